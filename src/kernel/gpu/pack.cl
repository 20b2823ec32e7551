/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights as they are stored, [n][k] without gaps, into the layout of gpu_pack.h. BITS: of a packed
 * code; FROM: bits of a stored one, 8 or 4 where BITS is 4, else BITS.
 */

/* A work-item is a word of four bytes of a row: column, row. Rows of codes end in zeros. */
__kernel void pack_codes(MEMORY(uchar, from), MEMORY(uint, to), int k, int words)
{
    HERE_CONST(uchar, from);
    HERE(uint, to);
    const int j = (int)get_global_id(0);
    const size_t row = get_group_id(1);
    const size_t row_bytes = ((size_t)k * FROM + 7) / 8;
    uint word = 0;
    if (j >= words)
        return;
    from += row * row_bytes;
#if BITS == 4 && FROM == 8
    for (int i = 0; i < 8 && 8 * j + i < k; i++)
        word |= (uint)(from[8 * j + i] & 15) << (4 * i);
#else
    for (int i = 0; i < 4 && (size_t)(4 * j + i) < row_bytes; i++)
        word |= (uint)from[4 * j + i] << (8 * i);
    /* the half byte after an odd last code may hold anything */
    if (BITS == 4 && (k & 1) != 0 && j == k / 8)
        word &= 0xffffffffu >> (32 - 4 * (k % 8));
#endif
    to[row * (size_t)words + (size_t)j] = word;
}

/* A work-item is a scale or zero point of BYTES bytes: group, row. */
__kernel void pack_values(MEMORY(uchar, from), MEMORY(uchar, to), int groups,
                          int stride_n, int stride_g, int scale_rows)
{
    HERE_CONST(uchar, from);
    HERE(uchar, to);
    const int g = (int)get_global_id(0);
    const size_t row = get_group_id(1);
    if (g >= groups)
        return;
    from += (row / (size_t)scale_rows * (size_t)stride_n + (size_t)g * (size_t)stride_g) * BYTES;
    to += (row * (size_t)groups + (size_t)g) * BYTES;
    for (int i = 0; i < BYTES; i++)
        to[i] = from[i];
}
