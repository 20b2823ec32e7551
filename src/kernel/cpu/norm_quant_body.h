/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms whose values are quantized at once: the formulas of quant_body.h on the values of
 * norm_lanes.h, a piece of a row at a time. If a scale needs the whole row first, the values are
 * computed twice.
 */
#include "norm_lanes.h"
#include "quant_body.h"

enum { NORMED_PIECE = 256 }; /* whole blocks */

/* Computes values k0.. of token r into `piece` and, if the norm has an output, into its rows.
 * Returns their number. */
NIB_INLINE int64_t norm_piece(const nib_norm *n, int64_t r, nib_norm_row of, int64_t k0,
                              float piece[NORMED_PIECE])
{
    const int64_t count = nib__min(NORMED_PIECE, n->width - k0);
    nib__norm_values(piece, n, r, of, k0, count);
    if (n->out != NULL)
        memcpy(n->out + r * n->ldo + k0, piece, (size_t)count * sizeof *piece);
    return count;
}

NIB_INLINE void normed_tokens(const nib_norm_quant *a, int64_t m0, int64_t m1, int32_t qmin,
                              int32_t qmax)
{
    const nib_norm *n = &a->norm;
    const nib_input *out = &a->quant.out;
    float piece[NORMED_PIECE];
    for (int64_t r = m0; r < m1; r++) {
        const nib_norm_row row = nib__norm_row(n, r);
        extent of = {0, 0};
        for (int64_t k0 = 0; k0 < n->width; k0 += NORMED_PIECE)
            of = extend(of, piece, norm_piece(n, r, row, k0, piece));
        const mapping map = dynamic_mapping(&a->quant, range_from(of), qmin, qmax);
        for (int64_t k0 = 0; k0 < n->width && map.is_finite; k0 += NORMED_PIECE) {
            const int64_t count = norm_piece(n, r, row, k0, piece);
            integer_codes(out->codes + r * out->ld + k0, piece, count, 1 / map.scale, map.zero,
                          qmin, qmax);
        }
        close_token(out, r, map);
    }
}

void NIB_QUANT(normed_a8t)(const nib_norm_quant *a, int64_t m0, int64_t m1)
{
    normed_tokens(a, m0, m1, -128, 127);
}
void NIB_QUANT(normed_a4t)(const nib_norm_quant *a, int64_t m0, int64_t m1)
{
    normed_tokens(a, m0, m1, -8, 7);
}

NIB_INLINE void normed_blocks(const nib_norm_quant *a, int64_t m0, int64_t m1, int64_t block)
{
    const nib_norm *n = &a->norm;
    float piece[NORMED_PIECE];
    for (int64_t r = m0; r < m1; r++) {
        const nib_norm_row row = nib__norm_row(n, r);
        for (int64_t k0 = 0; k0 < n->width; k0 += NORMED_PIECE) {
            const int64_t count = norm_piece(n, r, row, k0, piece);
            block_codes(&a->quant.out, r, k0, piece, count, block);
        }
        close_blocks(&a->quant.out, r);
    }
}

void NIB_QUANT(normed_a8b32)(const nib_norm_quant *a, int64_t m0, int64_t m1)
{
    normed_blocks(a, m0, m1, 32);
}
void NIB_QUANT(normed_a8b256)(const nib_norm_quant *a, int64_t m0, int64_t m1)
{
    normed_blocks(a, m0, m1, 256);
}
