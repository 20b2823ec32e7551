/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights as they are stored, [n][k] without gaps, into the layout of gpu_pack.h. A work-group has
 * GROUP columns of a row: rows are the first dimension, of which CUDA takes any number.
 */
#define COLUMN ((int)get_group_id(1) * GROUP + (int)get_local_id(0))

/* A work-item is a word of four bytes of codes of `bits` bits. Rows end in zeros. */
__kernel void pack_codes(MEMORY(uchar, from), MEMORY(uint, to), int k, int words, int bits)
{
    HERE_CONST(uchar, from);
    HERE(uint, to);
    const int j = COLUMN;
    const size_t row = get_group_id(0), row_bytes = ((size_t)k * (size_t)bits + 7) / 8;
    uint word = 0;
    if (j >= words)
        return;
    from += row * row_bytes;
    for (int i = 0; i < 4 && (size_t)(4 * j + i) < row_bytes; i++)
        word |= (uint)from[4 * j + i] << (8 * i);
    /* the half byte after an odd last code may hold anything */
    if (bits == 4 && (k & 1) != 0 && j == k / 8)
        word &= 0xffffffffu >> (32 - 4 * (k % 8));
    to[row * (size_t)words + (size_t)j] = word;
}

/* A work-item is a word of eight codes of 4 bits, stored in a byte each. */
__kernel void pack_nibbles(MEMORY(uchar, from), MEMORY(uint, to), int k, int words)
{
    HERE_CONST(uchar, from);
    HERE(uint, to);
    const int j = COLUMN;
    const size_t row = get_group_id(0);
    uint word = 0;
    if (j >= words)
        return;
    from += row * (size_t)k;
    for (int i = 0; i < 8 && 8 * j + i < k; i++)
        word |= (uint)(from[8 * j + i] & 15) << (4 * i);
    to[row * (size_t)words + (size_t)j] = word;
}

/* A work-item is a scale or zero point of so many bytes. */
__kernel void pack_values(MEMORY(uchar, from), MEMORY(uchar, to), int groups, int stride_n,
                          int stride_g, int scale_rows, int bytes)
{
    HERE_CONST(uchar, from);
    HERE(uchar, to);
    const int g = COLUMN;
    const size_t row = get_group_id(0), size = (size_t)bytes;
    if (g >= groups)
        return;
    from += (row / (size_t)scale_rows * (size_t)stride_n + (size_t)g * (size_t)stride_g) * size;
    to += (row * (size_t)groups + (size_t)g) * size;
    for (int i = 0; i < bytes; i++)
        to[i] = from[i];
}
