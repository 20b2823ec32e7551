/* SPDX-License-Identifier: Apache-2.0
 *
 * Base64: three bytes are four digits of six bits, the highest first.
 */
#include "base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void nib__base64_put(nib_text *out, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i += 3) {
        const size_t some = size - i < 3 ? size - i : 3;
        uint32_t bits = 0;
        char four[4] = {'=', '=', '=', '='};
        for (size_t j = 0; j < some; j++)
            bits |= (uint32_t)at[i + j] << (16 - 8 * j);
        for (size_t j = 0; j <= some; j++)
            four[j] = digits[bits >> (18 - 6 * j) & 63];
        nib__text_put(out, four, sizeof four);
    }
}

static int read_digit(char c)
{
    const char *at = c == 0 ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

bool nib__base64_read(uint8_t *out, size_t *out_size, const char *text, size_t size)
{
    size_t written = 0;
    *out_size = 0;
    if (size % 4 != 0)
        return false;
    for (size_t i = 0; i < size; i += 4) {
        const bool last = i + 4 == size;
        const size_t some = !last || text[i + 3] != '=' ? 3 : text[i + 2] != '=' ? 2 : 1;
        uint32_t bits = 0;
        for (size_t j = 0; j <= some; j++) {
            const int digit = read_digit(text[i + j]);
            if (digit < 0)
                return false;
            bits |= (uint32_t)digit << (18 - 6 * j);
        }
        if ((bits & (UINT32_C(0xffffff) >> (8 * some))) != 0) /* bits that no byte holds */
            return false;
        for (size_t j = 0; j < some; j++)
            out[written++] = (uint8_t)(bits >> (16 - 8 * j));
    }
    *out_size = written;
    return true;
}
