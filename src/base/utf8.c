/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8: check, read, write. Stateless.
 */
#include "text.h"

static bool is_tail(unsigned char c) { return (c & 0xc0) == 0x80; }

int nib__utf8_length(const char *s, size_t size)
{
    const unsigned char *u = (const unsigned char *)s;
    if (size == 0)
        return 0;
    if (u[0] < 0x80)
        return 1;
    if (u[0] < 0xc2 || size < 2 || !is_tail(u[1])) /* c0 and c1 could only begin overlong forms */
        return 0;
    if (u[0] < 0xe0)
        return 2;
    if (size < 3 || !is_tail(u[2]))
        return 0;
    if (u[0] < 0xf0) {
        const bool overlong = u[0] == 0xe0 && u[1] < 0xa0;
        const bool surrogate = u[0] == 0xed && u[1] >= 0xa0;
        return overlong || surrogate ? 0 : 3;
    }
    if (size < 4 || !is_tail(u[3]))
        return 0;
    const bool overlong = u[0] == 0xf0 && u[1] < 0x90;
    const bool too_high = u[0] > 0xf4 || (u[0] == 0xf4 && u[1] >= 0x90);
    return overlong || too_high ? 0 : 4;
}

uint32_t nib__utf8_next(const char **s)
{
    const unsigned char *u = (const unsigned char *)*s;
    uint32_t point = u[0];
    int tails = 0;
    if (u[0] >= 0xf0) {
        point = u[0] & 0x07u;
        tails = 3;
    } else if (u[0] >= 0xe0) {
        point = u[0] & 0x0fu;
        tails = 2;
    } else if (u[0] >= 0xc0) {
        point = u[0] & 0x1fu;
        tails = 1;
    }
    for (int i = 1; i <= tails; i++)
        point = point << 6 | (u[i] & 0x3fu);
    *s += 1 + tails;
    return point;
}

int nib__utf8_put(char out[4], uint32_t point)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xc0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff))
        point = 0xfffd;
    if (point < 0x10000) {
        out[0] = (char)(0xe0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (point & 0x3f));
    return 4;
}

size_t nib__utf8_check(const char *s, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        while (size - at >= sizeof eight) { /* most text is ASCII */
            memcpy(&eight, s + at, sizeof eight);
            if (eight & UINT64_C(0x8080808080808080))
                break;
            at += sizeof eight;
        }
        if (at == size)
            break;
        do { /* other text comes in runs */
            const int length = nib__utf8_length(s + at, size - at);
            if (length == 0)
                return at;
            at += (size_t)length;
        } while (at < size && (s[at] & 0x80) != 0);
    }
    return size;
}
