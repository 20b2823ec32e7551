/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs stored weights, [n][k] without gaps, in the layout of gpu_pack.h. A work-group has GROUP
 * columns of a row. Rows are the first dimension: CUDA allows only 65,535 work-groups in the
 * others.
 */
#define COLUMN ((int)get_group_id(1) * GROUP + (int)get_local_id(0))

/* Copies one word of four bytes per work-item, of codes of `bits` bits; pads rows with zeros. */
__kernel void pack_codes(GLOBAL_ARG(uchar, from), GLOBAL_ARG(uint, to), int k, int words, int bits)
{
    GLOBAL_CONST_PTR(uchar, from);
    GLOBAL_PTR(uint, to);
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

/* Packs eight 4-bit codes, stored one per byte, to one word per work-item. */
__kernel void pack_nibbles(GLOBAL_ARG(uchar, from), GLOBAL_ARG(uint, to), int k, int words)
{
    GLOBAL_CONST_PTR(uchar, from);
    GLOBAL_PTR(uint, to);
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

/* Copies one scale or zero point of `bytes` bytes per work-item. */
__kernel void pack_values(GLOBAL_ARG(uchar, from), GLOBAL_ARG(uchar, to), int groups, int stride_n,
                          int stride_g, int scale_rows, int bytes)
{
    GLOBAL_CONST_PTR(uchar, from);
    GLOBAL_PTR(uchar, to);
    const int g = COLUMN;
    const size_t row = get_group_id(0), size = (size_t)bytes;
    if (g >= groups)
        return;
    from += (row / (size_t)scale_rows * (size_t)stride_n + (size_t)g * (size_t)stride_g) * size;
    to += (row * (size_t)groups + (size_t)g) * size;
    for (int i = 0; i < bytes; i++)
        to[i] = from[i];
}
