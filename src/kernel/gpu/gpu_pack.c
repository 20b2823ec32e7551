/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs weights of any code and stored layout into the rows of gpu_pack.h.
 */
#include "gpu_pack.h"

static nib_type packed_type(nib_type stored)
{
    return stored == NIB_TYPE_F64 ? NIB_TYPE_F32 : stored;
}

/* Places n x groups values of the type at the next multiple of 64 bytes after *end and moves *end
 * past them. Returns their offset; clears *fits if it overflows. */
static uint64_t place_values(uint64_t *end, const nib_weight *w, int64_t groups, nib_type type,
                             bool *fits)
{
    uint64_t begin, bytes;
    *fits = *fits && nib__add(&begin, *end, 63) &&
            nib__mul(&bytes, (uint64_t)w->n, (uint64_t)groups) &&
            nib__mul(&bytes, bytes, (uint64_t)nib__type_bits(type) / 8) &&
            nib__add(end, begin & ~UINT64_C(63), bytes);
    return *fits ? begin & ~UINT64_C(63) : 0;
}

nib_gpu_layout nib__gpu_layout(const nib_weight *w)
{
    const bool quantized = nib__scheme_is_quantized(&w->scheme);
    nib_gpu_layout l = {.ldk = nib__round_up(w->k, NIB_CODES_PAD)};
    l.groups = quantized ? nib__scheme_groups(&w->scheme, w->k) : 0;
    l.scale_type = quantized ? packed_type(w->scale_type) : NIB_TYPE_NONE;
    l.zero_type =
        quantized && w->scheme.zero != NIB_ZERO_NONE ? packed_type(w->zero_type) : NIB_TYPE_NONE;
    l.row_bytes = (uint64_t)(l.ldk * nib__code_bits(w->scheme.code) / 8);
    bool fits = nib__mul(&l.bytes, (uint64_t)w->n, l.row_bytes);
    l.scale_offset = place_values(&l.bytes, w, l.groups, l.scale_type, &fits);
    l.zero_offset = place_values(&l.bytes, w, l.groups, l.zero_type, &fits);
    l.bytes = fits ? l.bytes : UINT64_MAX;
    return l;
}

static uint64_t packed_bytes(const nib_weight *w) { return nib__gpu_layout(w).bytes; }

/* ---- packing ---- */

enum { FETCH = 1024 /* codes of a row fetched at a time; even */ };

/* Packs 4-bit codes, one per byte, two to a byte. With an odd count, codes[count] must be 0. */
static void put_nibbles(uint8_t *to, const uint8_t *codes, int64_t count)
{
    for (int64_t j = 0; j < count; j += 2)
        to[j / 2] = (uint8_t)((codes[j] & 15) | (codes[j + 1] & 15) << 4);
}

static void put_codes(const nib_weight *w, int64_t i, uint8_t *to)
{
    uint8_t codes[FETCH + 1];
    if (!nib__scheme_is_quantized(&w->scheme)) {
        nib__weight_floats(w, i, 0, w->k, to);
        return;
    }
    if (nib__code_bits(w->scheme.code) == 8) {
        nib__weight_codes(w, i, 0, w->k, (int8_t *)to);
        return;
    }
    for (int64_t k0 = 0; k0 < w->k; k0 += FETCH) {
        const int64_t count = nib__min(FETCH, w->k - k0);
        const int bits = nib__code_bits(w->scheme.code);
        nib__weight_codes(w, i, k0, count, (int8_t *)codes);
        if (bits != 4) {
            nib__pack_bits(to + k0 * bits / 8, (const int8_t *)codes, count, bits);
            continue;
        }
        codes[count] = 0;
        put_nibbles(to + k0 / 2, codes, count);
    }
}

static void pack(const nib_weight *w, void *out, int64_t n0, int64_t n1)
{
    const nib_gpu_layout l = nib__gpu_layout(w);
    const size_t used = (size_t)nib__ceil_div(w->k * nib__code_bits(w->scheme.code), 8);
    const size_t scale_bytes = (size_t)nib__type_bits(l.scale_type) / 8,
                 zero_bytes = (size_t)nib__type_bits(l.zero_type) / 8;
    uint8_t *base = out;
    for (int64_t i = n0; i < n1; i++) {
        uint8_t *row = base + (size_t)i * l.row_bytes;
        put_codes(w, i, row);
        memset(row + used, 0, (size_t)l.row_bytes - used);
        const size_t at = (size_t)(i * l.groups);
        nib__weight_put_scales(w, i, 0, l.groups, base + l.scale_offset + at * scale_bytes,
                               scale_bytes);
        if (l.zero_type != NIB_TYPE_NONE)
            nib__weight_put_zeros(w, i, 0, l.groups, base + l.zero_offset + at * zero_bytes,
                                  zero_bytes);
    }
}

const nib_packing nib__packing_rows = {"rows", 1, packed_bytes, pack};

/* ---- the same as an operation, for stored layouts that no device row packs ---- */

static void pack_ref(const nib_pack_rows *a, int64_t n0, int64_t n1) { pack(a->w, a->out, n0, n1); }

static const nib_kernel rows[] = {
    {.name = "pack__ref",
     .op = NIB_OP_PACK,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_CPU,
     .conds = NIB_NO_CONDS,
     .arithmetic = NIB_ARITHMETIC_EXACT,
     .rank = 90,
     .unit = NIB_UNIT_SCALAR,
     .packing = &nib__packing_rows,
     .run = {.pack = pack_ref},
     .note = "every stored layout; packs on the CPU, then copies to the GPU"},
};

const nib_family nib__family_gpu_pack = {rows, COUNT(rows)};
