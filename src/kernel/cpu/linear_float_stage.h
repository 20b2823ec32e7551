/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs of f32, for instruction sets that hold a pair in two vectors: weights from pair_decode, and
 * activations staged as {float first, second}. Even k comes first, or with `swap` odd k.
 */

NIB_INLINE pair pair_get(const nib_element f, const bool has_zeros, const bool swap,
                         const uint8_t *p, raw held, const int i, ivec zero)
{
    const pair w = pair_decode(f, has_zeros, p, held, i, zero);
    return swap ? (pair){w.second, w.first} : w;
}

NIB_INLINE void pair_store(uint8_t *p, pair w)
{
    float *out = (float *)(void *)p;
    vec_store(out, w.first);
    vec_store(out + NIB_FLOAT_PANEL, w.second);
}

NIB_INLINE pair pair_native(const uint8_t *p)
{
    const float *in = (const float *)(const void *)p;
    return (pair){vec_load(in), vec_load(in + NIB_FLOAT_PANEL)};
}

NIB_INLINE void put_bits(x_pair *out, uint32_t even, uint32_t odd, bool swap)
{
    const uint64_t first = swap ? odd : even, second = swap ? even : odd;
    const uint64_t both = first | second << 32;
    memcpy(out, &both, sizeof both);
}

NIB_INLINE void x_put_f32(x_pair *out, const float *x, int64_t count, bool swap)
{
    (void)swap; /* f32 activations have F32 sums */
    memcpy(out, x, (size_t)count * sizeof *x);
    if (count % 2 != 0)
        out[count / 2].second = 0;
}

NIB_INLINE void x_put_bf16(x_pair *out, const uint16_t *x, int64_t count, bool swap)
{
    const uint64_t high = 0xffff0000U;
    for (int64_t i = 0; i < count / 2; i++) { /* by words, not halves, so that it vectorizes */
        uint32_t word;
        memcpy(&word, x + 2 * i, sizeof word);
        const uint64_t even = (uint64_t)word << 16 & high, odd = word & high;
        const uint64_t both = swap ? odd | even << 32 : even | odd << 32;
        memcpy(out + i, &both, sizeof both);
    }
    if (count % 2 != 0)
        put_bits(out + count / 2, (uint32_t)x[count - 1] << 16, 0, swap);
}
