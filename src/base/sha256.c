/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 in plain C, from FIPS 180-4: names are those of its sections 4.1.2 and 6.2.2.
 */
#include "sha256.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { BLOCK = 64, LENGTH_AT = 56 /* of the size in bits within the last block */ };

const uint32_t nib__sha256_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t read_be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* W[t] of the message schedule, of which w holds the last 16. */
NIB_INLINE uint32_t schedule(uint32_t w[16], int t)
{
    const uint32_t before = w[(t + 1) % 16], recent = w[(t + 14) % 16];
    const uint32_t sigma0 = rotr(before, 7) ^ rotr(before, 18) ^ before >> 3;
    const uint32_t sigma1 = rotr(recent, 17) ^ rotr(recent, 19) ^ recent >> 10;
    return w[t % 16] += sigma0 + w[(t + 9) % 16] + sigma1;
}

/* Round t. v holds the working variables a to h, a at index -t mod 8: so none of them moves. */
NIB_INLINE void round_of(uint32_t v[8], int t, uint32_t word)
{
    const int at = 64 - t;
    const uint32_t a = v[at % 8], b = v[(at + 1) % 8], c = v[(at + 2) % 8], e = v[(at + 4) % 8];
    const uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
    const uint32_t ch = (e & v[(at + 5) % 8]) ^ (~e & v[(at + 6) % 8]);
    const uint32_t t1 = v[(at + 7) % 8] + sum1 + ch + nib__sha256_constants[t] + word;
    const uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
    const uint32_t maj = (a & b) ^ (a & c) ^ (b & c);
    v[(at + 3) % 8] += t1;
    v[(at + 7) % 8] = t1 + sum0 + maj;
}

static void compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[16], v[8];
    memcpy(v, state, sizeof v);
#pragma GCC unroll 16
    for (int t = 0; t < 16; t++)
        round_of(v, t, w[t] = read_be32(block + 4 * t));
#pragma GCC unroll 48
    for (int t = 16; t < 64; t++)
        round_of(v, t, schedule(w, t));
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void nib__sha256_blocks(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        compress(state, blocks + BLOCK * i);
}

static void add_blocks(uint32_t state[8], const uint8_t *blocks, size_t count)
{
#if defined(__x86_64__)
    enum { LEAF = 7, SHA = 1 << 29 };
    unsigned a, b = 0, c, d;
    if (count != 0 && __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && (b & SHA) != 0) {
        nib__sha256_blocks_shani(state, blocks, count);
        return;
    }
#endif
    nib__sha256_blocks(state, blocks, count);
}

void nib__sha256_init(nib_sha256 *s)
{
    *s = (nib_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void nib__sha256_add(nib_sha256 *s, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    const size_t held = (size_t)(s->size % BLOCK);
    s->size += size;
    if (size == 0)
        return;
    if (held != 0) {
        const size_t some = size < BLOCK - held ? size : BLOCK - held;
        memcpy(s->pending + held, at, some);
        if (held + some < BLOCK)
            return;
        add_blocks(s->state, s->pending, 1);
        at += some;
        size -= some;
    }
    add_blocks(s->state, at, size / BLOCK);
    memcpy(s->pending, at + size / BLOCK * BLOCK, size % BLOCK);
}

nib_digest nib__sha256_finish(const nib_sha256 *s)
{
    nib_sha256 end = *s;
    uint8_t last[2 * BLOCK] = {0};
    const size_t held = (size_t)(s->size % BLOCK), blocks = held < LENGTH_AT ? 1 : 2;
    nib_digest out;
    memcpy(last, s->pending, held);
    last[held] = 0x80;
    for (size_t i = 0; i < 8; i++)
        last[blocks * BLOCK - 1 - i] = (uint8_t)(s->size << 3 >> (8 * i));
    add_blocks(end.state, last, blocks);
    for (size_t i = 0; i < sizeof out.bytes; i++)
        out.bytes[i] = (uint8_t)(end.state[i / 4] >> (24 - 8 * (i % 4)));
    return out;
}

nib_digest nib__sha256_bytes(const void *bytes, size_t size)
{
    nib_sha256 s;
    nib__sha256_init(&s);
    nib__sha256_add(&s, bytes, size);
    return nib__sha256_finish(&s);
}

/* ---- as text ---- */

const char *nib__digest_text(char out[NIB_DIGEST_TEXT], const nib_digest *digest)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof digest->bytes; i++) {
        out[2 * i] = digits[digest->bytes[i] >> 4];
        out[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    out[NIB_DIGEST_TEXT - 1] = 0;
    return out;
}

static int read_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool nib__digest_parse(nib_digest *out, const char *text, size_t size)
{
    if (size != 2 * sizeof out->bytes)
        return false;
    for (size_t i = 0; i < sizeof out->bytes; i++) {
        const int high = read_digit(text[2 * i]), low = read_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool nib__digest_equal(const nib_digest *a, const nib_digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}
