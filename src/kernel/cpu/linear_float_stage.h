/* SPDX-License-Identifier: Apache-2.0
 *
 * Activations staged as pairs of f32, for the instruction sets whose x_pair is {float even, odd}.
 */

NIB_INLINE void x_put_f32(x_pair *out, const float *x, int64_t count)
{
    memcpy(out, x, (size_t)count * sizeof *x);
}

NIB_INLINE void x_put_bits(x_pair *out, int64_t at, uint32_t bits)
{
    memcpy((uint8_t *)out + (size_t)at * sizeof bits, &bits, sizeof bits);
}

NIB_INLINE void x_put_bf16(x_pair *out, const uint16_t *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x_put_bits(out, i, (uint32_t)x[i] << 16);
}

NIB_INLINE void x_put_e4m3(x_pair *out, const uint8_t *codes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x_put_bits(out, i, nib__e4m3_bits(codes[i]));
}

NIB_INLINE void x_clear(x_pair *out, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        x_put_bits(out, i, 0);
}

NIB_INLINE void x_swap(x_pair *out, int64_t count)
{
    for (int64_t i = 0; i < count / 2; i++)
        out[i] = (x_pair){out[i].second, out[i].first};
}
