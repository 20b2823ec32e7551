/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: activation quantizers and linear rows. Shapes come from the row's own
 * conditions; activations are made by the quantizer's reference, as the planner pairs them.
 */
#ifndef NIB_CHECK_LINEAR_H
#define NIB_CHECK_LINEAR_H

#include "check_gpu.h"

typedef struct linear_case {
    nib_scheme scheme;
    nib_type input, scale_type, zero_type;
    int64_t m, n, k;
    value_class values;
    bool bias, int_bias;
    bool q6_k; /* the weight is in blocks of Q6_K */
} linear_case;

static const char *say_case(char out[160], const linear_case *c)
{
    snprintf(out, 160,
             "m %" PRId64 " n %" PRId64 " k %" PRId64 " group %" PRId64
             " scales %s zeros %s%s%s, %s values",
             c->m, c->n, c->k, c->scheme.group, nib__type_name(c->scale_type),
             nib__type_name(c->zero_type),
             c->int_bias ? ", int32 bias"
             : c->bias   ? ", bias"
                         : "",
             c->scheme.act_symmetric ? ", symmetric" : "", class_names[c->values]);
    return out;
}

/* The facts of this CPU, limited to these instruction sets. */
static nib_query cpu_query(int64_t isa)
{
    return (nib_query){.fact = {[NIB_FACT_DEVICE] = NIB_DEVICE_CPU, [NIB_FACT_ISA] = isa}};
}

/* Adds the case to a query that has the facts of a device. */
static void case_query(nib_query *q, const linear_case *c, nib_op op)
{
    q->fact[NIB_FACT_OP] = op;
    q->fact[NIB_FACT_CODE] = c->scheme.code;
    q->fact[NIB_FACT_ACT] = c->scheme.act;
    q->fact[NIB_FACT_INPUT] = c->input;
    q->fact[NIB_FACT_N] = c->n;
    q->fact[NIB_FACT_K] = c->k;
    q->fact[NIB_FACT_M] = c->m;
    q->fact[NIB_FACT_GROUP] =
        nib__scheme_is_quantized(&c->scheme) ? c->scheme.group : NIB_GROUP_ROW;
    q->fact[NIB_FACT_SYMMETRIC] = c->scheme.symmetric;
    q->fact[NIB_FACT_ACT_SYMMETRIC] = c->scheme.act_symmetric;
    q->fact[NIB_FACT_SCALE_TYPE] = c->scale_type;
    q->fact[NIB_FACT_ZERO] = c->scheme.zero;
    q->fact[NIB_FACT_ZERO_TYPE] = c->zero_type;
    q->fact[NIB_FACT_ACT_SCALE_TYPE] =
        c->scheme.act == NIB_ACT_FLOAT ? NIB_TYPE_NONE : NIB_TYPE_F32;
    q->fact[NIB_FACT_BIAS] = c->bias;
    q->fact[NIB_FACT_Q6_K] = c->q6_k;
    q->fact[NIB_FACT_BUILT] = 1;
}

/* Whether rows of this operation take a nib_linear. */
static bool is_product(int64_t op)
{
    return op == NIB_OP_LINEAR || op == NIB_OP_LINEAR_DX || op == NIB_OP_LINEAR_DW;
}

/* The best built row of `op` for the case on any CPU. */
static const nib_kernel *row_for(const linear_case *c, nib_op op)
{
    const nib_kernel *best = NULL;
    nib_query q = cpu_query(0);
    case_query(&q, c, op);
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (nib__kernel_built(row) && nib__kernel_keyed(row, &q) &&
            nib__kernel_holds(row, &q, true) && (best == NULL || row->rank < best->rank))
            best = row;
    }
    return best;
}

/* ---- weights ---- */

static int8_t weight_code(rng *r, const linear_case *c, int64_t i)
{
    const int most = nib__code_is_int(c->scheme.code) ? nib__code_most(c->scheme.code) : 127;
    if (c->values == VALUES_EQUAL)
        return (int8_t)nib__min(5, most);
    if (c->values == VALUES_ZERO_GROUPS && i / 32 % 2 == 0)
        return 0;
    if (c->values == VALUES_EXTREME)
        return (int8_t)(next(r) % 2 != 0 ? -most - 1 : most);
    return (int8_t)(below(r, 2 * (uint32_t)most + 2) - most - 1);
}

static void *make_codes(memory *m, const linear_case *c, nib_code_layout layout, rng *r)
{
    if (layout == NIB_LAYOUT_FLOAT) {
        const nib_type type = c->scheme.code == NIB_CODE_F32   ? NIB_TYPE_F32
                              : c->scheme.code == NIB_CODE_F16 ? NIB_TYPE_F16
                                                               : NIB_TYPE_BF16;
        uint8_t *out = take(m, (size_t)(c->n * c->k * (nib__type_bits(type) / 8)));
        for (int64_t i = 0; i < c->n * c->k; i++) {
            const float f = value(r, c->values == VALUES_NOT_FINITE ? VALUES_RANDOM : c->values, i);
            nib__from_f32(out + i * (nib__type_bits(type) / 8), type, &f, 1);
        }
        return out;
    }
    const bool is_f8 = c->scheme.code == NIB_CODE_E4M3 || c->scheme.code == NIB_CODE_E5M2 ||
                       c->scheme.code == NIB_CODE_MX8;
    const int64_t row = layout == NIB_LAYOUT_NIBBLE ? nib__ceil_div(c->k, 2) : c->k;
    uint8_t *out = take(m, (size_t)(c->n * row));
    for (int64_t i = 0; i < c->n * row; i++) {
        if (layout == NIB_LAYOUT_NIBBLE)
            out[i] = (uint8_t)((weight_code(r, c, i) & 15) | (weight_code(r, c, i) & 15) << 4);
        else if (!is_f8)
            out[i] = (uint8_t)weight_code(r, c, i);
        else if (c->scheme.code == NIB_CODE_E5M2)
            out[i] = nib__f32_to_e5m2_saturated(value(r, VALUES_RANDOM, i) * 64);
        else
            out[i] = nib__f32_to_e4m3_saturated(
                value(r, c->values == VALUES_NOT_FINITE ? VALUES_RANDOM : c->values, i) * 64);
    }
    return out;
}

static void *make_numbers(memory *m, nib_type type, int64_t count, value_class class, rng *r)
{
    const int64_t bytes = nib__type_bits(type) / 8;
    uint8_t *out = take(m, (size_t)(count * bytes));
    for (int64_t i = 0; i < count; i++) {
        const float f = class == VALUES_RATIO ? ldexpf(unit(r) + 1.5F, (int)below(r, 21) - 10)
                                              : 0.01F + 0.02F * unit(r);
        const double wide = (double)f * 1.0000001;
        const int32_t zero = (int32_t)below(r, 15) - 7;
        if (type == NIB_TYPE_F64)
            memcpy(out + i * bytes, &wide, sizeof wide);
        else if (type == NIB_TYPE_E8M0)
            out[i] = (uint8_t)(class == VALUES_RATIO ? 90 + below(r, 60) : 118 + below(r, 8));
        else if (type == NIB_TYPE_I8)
            out[i] = (uint8_t)zero;
        else if (type == NIB_TYPE_I32)
            memcpy(out + i * bytes, &zero, sizeof zero);
        else if (type == NIB_TYPE_E4M3)
            out[i] = nib__f32_to_e4m3_saturated(f);
        else
            nib__from_f32(out + i * bytes, type, &f, 1);
    }
    return out;
}

/* Blocks of random bits, with scales of the case's value class. */
static void make_q6_k(nib_weight *w, memory *m, const linear_case *c, rng *r)
{
    enum { ELEMENTS = 256, BYTES = 210, CODES = 192, D = 208 };
    const int64_t blocks = c->n * c->k / ELEMENTS;
    uint8_t *out = take(m, (size_t)(blocks * BYTES));
    for (int64_t i = 0; i < blocks * BYTES; i++)
        out[i] = (uint8_t)(c->values == VALUES_EQUAL && i % BYTES < CODES ? 0x5a : below(r, 256));
    for (int64_t i = 0; i < blocks; i++) {
        const float d = (below(r, 2) != 0 ? 1e-3F : -1e-3F) * (1 + unit(r)) *
                        (c->values == VALUES_RATIO ? ldexpf(1, (int)below(r, 21) - 10) : 1);
        const uint16_t half = nib__f32_to_f16(d);
        memcpy(out + i * BYTES + D, &half, sizeof half);
    }
    nib__block_weight(w, NIB_TYPE_Q6_K, c->n, c->k, out);
    w->scheme = c->scheme;
}

static void make_weight(nib_weight *w, memory *m, const linear_case *c, rng *r)
{
    if (c->q6_k) {
        make_q6_k(w, m, c, r);
        return;
    }
    const nib_code code = c->scheme.code;
    const bool quantized = nib__scheme_is_quantized(&c->scheme),
               one = c->scheme.group == NIB_GROUP_TENSOR;
    const bool two =
        code == NIB_CODE_MX4 || code == NIB_CODE_NV4 || (code == NIB_CODE_I4 && next(r) % 2 != 0);
    const int64_t groups = nib__scheme_groups(&c->scheme, c->k);
    *w = (nib_weight){.scheme = c->scheme, .n = c->n, .k = c->k};
    w->layout = !quantized ? NIB_LAYOUT_FLOAT : two ? NIB_LAYOUT_NIBBLE : NIB_LAYOUT_BYTE;
    w->codes = make_codes(m, c, w->layout, r);
    if (!quantized)
        return;
    const int64_t count = one ? 1 : c->n * groups;
    w->scale_type = c->scale_type;
    w->scale_stride_n = one ? 0 : groups;
    w->scale_stride_g = one ? 0 : 1;
    w->scales = make_numbers(m, c->scale_type, count, c->values, r);
    if (code == NIB_CODE_NV4 && next(r) % 2 != 0)
        w->tensor_scale = 0.0371F;
    w->zero_type = c->zero_type;
    if (c->scheme.zero != NIB_ZERO_NONE)
        w->zeros = make_numbers(m, c->zero_type, count, c->values, r);
}

/* ---- activations ---- */

static int64_t scale_count(const linear_case *c)
{
    const int64_t block = nib__act_block(c->scheme.act);
    return block > 0 ? c->m * nib__ceil_div(c->k, block) : c->m;
}

static nib_input make_form(memory *m, const linear_case *c)
{
    const bool is_float = c->scheme.act == NIB_ACT_FLOAT;
    const bool is_bf16 =
        (is_float && c->input == NIB_TYPE_BF16) || c->scheme.act == NIB_ACT_E4M3_TOKEN;
    const int64_t padded = nib__round_up(c->k, NIB_CODES_PAD);
    nib_input x = {.m = c->m, .k = c->k};
    x.groups = nib__scheme_groups(&c->scheme, c->k);
    x.group = nib__scheme_group_size(&c->scheme, c->k);
    x.ld = is_float && !is_bf16 ? c->k : padded;
    if (is_bf16)
        x.bf16 = take(m, (size_t)(c->m * x.ld) * sizeof *x.bf16);
    else if (is_float)
        x.f32 = take(m, (size_t)(c->m * x.ld) * sizeof *x.f32);
    else
        x.codes = take(m, (size_t)(c->m * x.ld));
    x.scale = take(m, (size_t)scale_count(c) * sizeof *x.scale);
    x.zero = take(m, (size_t)c->m * sizeof *x.zero);
    x.sums = take(m, (size_t)(c->m * x.groups) * sizeof *x.sums);
    x.fsums = c->scheme.zero == NIB_ZERO_FLOAT
                  ? take(m, (size_t)(c->m * x.groups) * sizeof *x.fsums)
                  : NULL;
    return x;
}

static nib_quant make_quant(memory *m, const linear_case *c, const float *x, int64_t ldx)
{
    float *scale = take(m, sizeof *scale);
    int32_t *zero = take(m, sizeof *zero);
    *scale = 0.0125F;
    *zero = c->scheme.act_symmetric ? 0 : 3;
    return (nib_quant){.x = x,
                       .ldx = ldx,
                       .out = make_form(m, c),
                       .symmetric = c->scheme.act_symmetric,
                       .mx_floor = c->scheme.mx_floor,
                       .block_only = c->scheme.block_only,
                       .formula = c->scheme.formula,
                       .static_scale = scale,
                       .static_zero = zero};
}

/* Codes and scales are the same on every device; only sums of floats, of values up to `size`, may
 * differ. */
static bool same_form(verdict *v, const nib_input *got, const nib_input *want, const linear_case *c,
                      double tolerance, double size)
{
    const size_t cells = (size_t)(c->m * want->ld);
    if (want->f32 != NULL && !same_floats(v, "f32", got->f32, want->f32, (int64_t)cells))
        return false;
    if (want->bf16 != NULL && memcmp(got->bf16, want->bf16, cells * sizeof *got->bf16) != 0)
        return broken(v, "bf16 values differ");
    if (want->codes != NULL && memcmp(got->codes, want->codes, cells) != 0)
        return broken(v, "codes differ");
    if (want->fsums != NULL && !near_floats(v, "sums", got->fsums, want->fsums, c->m * want->groups,
                                            tolerance, size * (double)want->group))
        return false;
    if (c->scheme.act == NIB_ACT_FLOAT)
        return true;
    if (!same_floats(v, "scales", got->scale, want->scale, scale_count(c)))
        return false;
    const bool is_int = want->codes != NULL && !nib__act_is_f8_blocks(c->scheme.act);
    const bool has_zeros = is_int && nib__act_block(c->scheme.act) == 0;
    if (has_zeros && memcmp(got->zero, want->zero, (size_t)c->m * sizeof *got->zero) != 0)
        return broken(v, "zero points differ");
    if (is_int &&
        memcmp(got->sums, want->sums, (size_t)(c->m * want->groups) * sizeof *got->sums) != 0)
        return broken(v, "code sums differ");
    return true;
}

static void run_quant(memory *m, const nib_kernel *row, const nib_quant *a, int64_t part)
{
    if (runs_on_gpu(m, row, a))
        return;
    for (int64_t i = 0; i < a->out.m; i += part)
        row->run.quant(a, i, nib__min(a->out.m, i + part));
}

/* On a GPU, the same rows as those of heads: the largest number of heads up to 4 that divides the
 * rows, and tokens of as many heads, one value apart. */
static nib_quant quantize_heads(memory *m, const nib_kernel *row, const nib_quant *whole,
                                const linear_case *c)
{
    const int64_t heads = c->m % 4 == 0   ? 4
                          : c->m % 3 == 0 ? 3
                          : c->m % 2 == 0 ? 2
                                          : 1,
                  tokens = c->m / heads, step = c->k + 1;
    float *x = take(m, (size_t)(c->m * step) * sizeof *x);
    nib_quant a = *whole;
    for (int64_t i = 0; i < c->m; i++)
        memcpy(x + (i % tokens * heads + i / tokens) * step, whole->x + i * whole->ldx,
               (size_t)c->k * sizeof *x);
    a.x = x, a.ldx = heads * step, a.per_head = tokens, a.head_step = step;
    a.out = make_form(m, c);
    run_quant(m, row, &a, c->m);
    return a;
}

static bool check_quant_case(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                             const linear_case *c, rng *r)
{
    memory m = {.count = 0};
    const int64_t ldx = c->k + below(r, 3);
    float *x = floats(&m, c->m * ldx, r, c->values);
    for (int64_t i = 0; i < c->k && c->scheme.act == NIB_ACT_NV4 && c->m > 1; i++)
        x[i] *= 1e-34F; /* 64 times the inverse of the token's scale overflows f32 */
    nib_quant want = make_quant(&m, c, x, ldx), got = make_quant(&m, c, x, ldx),
              parts = make_quant(&m, c, x, ldx);
    if (c->scheme.act == NIB_ACT_E4M3_TOKEN && next(r) % 2 != 0) { /* as in training */
        float *amax = take(&m, sizeof *amax);
        *amax = 0.75F;
        want.e5m2 = next(r) % 2 != 0, want.two_power = next(r) % 2 != 0;
        want.amax = next(r) % 2 != 0 ? amax : NULL;
        got.e5m2 = parts.e5m2 = want.e5m2, got.two_power = parts.two_power = want.two_power;
        got.amax = parts.amax = want.amax;
    }
    ref->run.quant(&want, 0, c->m);
    run_quant(&m, row, &got, c->m);
    run_quant(&m, row, &parts, 1);
    if (row->gpu != NULL)
        parts = quantize_heads(&m, row, &want, c);
    nib_quant many = want;
    many.out.m = MANY_ROWS;
    const double tolerance = tolerance_of(row), size = largest_of(x, c->m * ldx);
    const bool good = takes_many_rows(v, row, &many) && gpu_held(v) &&
                      same_form(v, &got.out, &want.out, c, tolerance, size) &&
                      same_form(v, &parts.out, &want.out, c, tolerance, size) &&
                      (guards_hold(&m) || broken(v, "wrote outside its output"));
    release(&m);
    return good;
}

/* Against the references of the norm and the quantizer in sequence; with and without the norm's
 * rows as output. */
static bool check_normed_case(verdict *v, const nib_kernel *row, const linear_case *c, rng *r)
{
    memory m = {.count = 0};
    const nib_kernel *quantizer = row_for(c, NIB_OP_QUANT);
    const int64_t ldo = c->k + below(r, 3);
    nib_norm_quant a = {.norm = {.weight = floats(&m, c->k, r, VALUES_RANDOM),
                                 .rows = c->m,
                                 .width = c->k,
                                 .ldx = c->k + below(r, 3),
                                 .ldo = ldo,
                                 .eps = 1e-5F,
                                 .centered = next(r) % 2 != 0}};
    if (next(r) % 2 != 0)
        a.norm.bias = floats(&m, c->k, r, VALUES_RANDOM);
    a.norm.x = floats(&m, c->m * a.norm.ldx, r, c->values);
    float *rows = take(&m, (size_t)(c->m * ldo) * sizeof *rows);
    a.norm.out = rows;
    nib__kernel_find("norm_f32__ref")->run.norm(&a.norm, 0, c->m);
    const nib_quant want = make_quant(&m, c, rows, ldo);
    quantizer->run.quant(&want, 0, c->m);
    nib_norm_quant parts = a;
    a.norm.out = take(&m, (size_t)(c->m * ldo) * sizeof *rows);
    parts.norm.out = NULL;
    a.quant = make_quant(&m, c, NULL, 0), parts.quant = make_quant(&m, c, NULL, 0);
    row->run.norm_quant(&a, 0, c->m);
    for (int64_t i = 0; i < c->m; i++)
        row->run.norm_quant(&parts, i, i + 1);
    const bool good = same_form(v, &a.quant.out, &want.out, c, 0, 0) &&
                      same_form(v, &parts.quant.out, &want.out, c, 0, 0) &&
                      same_floats(v, "the norm's rows", a.norm.out, rows, c->m * ldo) &&
                      (guards_hold(&m) || broken(v, "wrote outside its output"));
    release(&m);
    return good;
}

/* ---- products ---- */

/* Packs the weight in the row's layout, in the smallest parts; NULL: the row reads the plain
 * weight. */
static const void *pack_weight(memory *m, const nib_kernel *row, const nib_weight *w)
{
    const nib_packing *p = row->packing;
    if (p == NULL)
        return NULL;
    uint8_t *packed = take(m, (size_t)p->bytes(w));
    for (int64_t n = 0; n < w->n; n += p->step)
        p->pack(w, packed, n, nib__min(w->n, n + p->step));
    return packed;
}

static float *run_linear(memory *m, const nib_kernel *row, nib_linear a, int64_t part)
{
    const nib_weight plain = *a.w;
    nib_weight bare = plain;
    float *y = take(m, (size_t)(a.x.m * a.ldy) * sizeof *y);
    a.packed = pack_weight(m, row, &plain);
    if (a.packed != NULL)
        bare.codes = bare.scales = bare.zeros = NULL; /* the packed layout replaces them */
    a.w = &bare;
    a.y = y;
    void *scratch = take(m, row->scratch != NULL ? row->scratch(&a) : 0);
    if (row->gpu !=
        NULL) /* the runner passes no sums to a device, so a row that reads them fails */
        a.x.sums = NULL, a.x.fsums = NULL;
    if (runs_on_gpu(m, row, &a))
        return y;
    const nib_float_mode mode = nib__float_mode_flush();
    for (int64_t n = 0; n < plain.n; n += part)
        row->run.linear(&a, n, nib__min(plain.n, n + part), scratch);
    nib__float_mode_restore(mode);
    return y;
}

static bool rows_equal(verdict *v, const char *what, const float *got, const float *want,
                       const linear_case *c, int64_t ldy, double tolerance, const double *sizes)
{
    for (int64_t i = 0; i < c->m; i++) {
        if (!near_floats(v, what, got + i * ldy, want + i * ldy, c->n, tolerance,
                         sizes != NULL ? sizes[i] : 0))
            return false;
        for (int64_t j = c->n; j < ldy; j++) {
            uint32_t bits;
            memcpy(&bits, &got[i * ldy + j], sizeof bits);
            if (bits != UINT32_MAX)
                return broken(v, "%s: wrote between rows", what);
        }
    }
    return true;
}

/* Scratch must not shrink as m grows, as the runner asks once, for the largest m. */
static bool scratch_grows(verdict *v, const nib_kernel *row, nib_linear a)
{
    size_t last = 0;
    for (int64_t m = 1; row->scratch != NULL && m <= 600; m++) {
        a.x.m = m;
        const size_t size = row->scratch(&a);
        if (size < last)
            return broken(v, "scratch shrinks from %zu to %zu bytes at m %" PRId64, last, size, m);
        last = size;
    }
    return true;
}

/* Every other bias is as large as the sums allow. */
static const int32_t *int_bias(memory *m, const linear_case *c, rng *r)
{
    const int64_t padded = nib__round_up(c->n, NIB_CODES_PAD);
    const int64_t most = nib__bias_int32_most(&c->scheme, c->k);
    int32_t *out = take(m, (size_t)padded * sizeof *out);
    memset(out, 0, (size_t)padded * sizeof *out);
    for (int64_t i = 0; i < c->n; i++)
        out[i] = (int32_t)(i % 2 == 0 ? below(r, 20001) - 10000 : i % 4 == 1 ? most : -most);
    return out;
}

/* [m]: the sum of magnitudes over k for each token; the largest over all outputs. */
static const double *sizes_of_sums(memory *m, const nib_linear *a, const float *x)
{
    const int64_t k = a->w->k;
    double *sizes = take(m, (size_t)a->x.m * sizeof *sizes);
    float *row = take(m, (size_t)k * sizeof *row);
    for (int64_t r = 0; r < a->x.m; r++)
        sizes[r] = 0;
    for (int64_t i = 0; i < a->w->n; i++) {
        nib__weight_row(a->w, i, row);
        for (int64_t r = 0; r < a->x.m; r++) {
            double size = a->bias != NULL ? fabs((double)a->bias[i]) : 0;
            if (a->int_bias != NULL)
                size += fabs((double)a->int_bias[i] * (double)nib__weight_scale(a->w, i, 0) *
                             (double)*a->w->act_scale);
            for (int64_t j = 0; j < k; j++)
                if (isfinite(x[r * k + j]))
                    size += fabs((double)row[j] * (double)x[r * k + j]);
            sizes[r] = fmax(sizes[r], size);
        }
    }
    return sizes;
}

/* All products positive, so that sums grow steadily and show how many bits a unit keeps. */
static void make_positive(nib_weight *w, float *x, const linear_case *c)
{
    uint8_t *codes = (uint8_t *)(uintptr_t)w->codes;
    for (int64_t i = 0; i < c->n * c->k; i++)
        codes[i] &= 0x7f;
    for (int64_t i = 0; i < c->m * c->k; i++)
        x[i] = fabsf(x[i]);
}

static bool check_linear_case(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                              const linear_case *c, rng *r)
{
    memory m = {.count = 0};
    const nib_kernel *quantizer = row_for(c, NIB_OP_QUANT);
    nib_weight w;
    if (quantizer == NULL)
        return broken(v, "no reference quantizer makes its input");
    make_weight(&w, &m, c, r);
    float *x = floats(&m, c->m * c->k, r, c->values);
    if (row->unit == NIB_UNIT_FP8 && c->k % 2 == 0)
        make_positive(&w, x, c);
    nib_quant quant = make_quant(&m, c, x, c->k);
    quant.e5m2 = quant.out.e5m2 = c->scheme.act == NIB_ACT_E4M3_TOKEN && next(r) % 4 == 0;
    w.act_scale = quant.static_scale;
    w.act_zero = c->scheme.act_symmetric ? NULL : quant.static_zero;
    quantizer->run.quant(&quant, 0, c->m);
    const nib_linear a = {.w = &w,
                          .x = quant.out,
                          .ldy = c->n + below(r, 3),
                          .bias = c->bias ? floats(&m, c->n, r, VALUES_RANDOM) : NULL,
                          .int_bias = c->int_bias ? int_bias(&m, c, r) : NULL};
    const double tolerance = tolerance_of(row);
    const double *sizes = tolerance > 0 ? sizes_of_sums(&m, &a, x) : NULL;
    const int64_t step = row->n_step > 0 ? row->n_step : 1;
    const float *want = run_linear(&m, ref, a, c->n);
    const float *got = run_linear(&m, row, a, c->n);
    const float *again = run_linear(&m, row, a, c->n);
    const float *parts =
        row->gpu != NULL ? again : run_linear(&m, row, a, step); /* a GPU runs whole */
    nib_linear many = a;
    many.x.m = MANY_ROWS, many.packed = w.codes;
    const bool good =
        takes_many_rows(v, row, &many) && gpu_held(v) &&
        rows_equal(v, "against the reference", got, want, c, a.ldy, tolerance, sizes) &&
        rows_equal(v, "run twice", again, got, c, a.ldy, 0, NULL) &&
        rows_equal(v, "in parts", parts, got, c, a.ldy, 0, NULL) && scratch_grows(v, row, a) &&
        (guards_hold(&m) || broken(v, "wrote outside its memory"));
    release(&m);
    return good;
}

/* ---- rows of several experts or heads in one launch ---- */

enum { EXPERTS = 3 };

/* Packs the experts' weights and biases one after the other, the last first, at multiples of 64
 * bytes; fills in where they are. */
static char *pack_experts(memory *m, const nib_kernel *row, const nib_weight w[EXPERTS],
                          const float *biases, int64_t places[EXPERTS][2])
{
    const int64_t n = w[0].n;
    int64_t bytes = 0;
    for (int e = EXPERTS; e-- > 0;) {
        places[e][0] = bytes;
        places[e][1] = nib__round_up(bytes + (int64_t)row->packing->bytes(&w[e]), 64);
        bytes = nib__round_up(places[e][1] + n * (int64_t)sizeof *biases, 64);
    }
    char *out = take(m, (size_t)bytes);
    for (int e = 0; e < EXPERTS; e++) {
        row->packing->pack(&w[e], out + places[e][0], 0, n);
        memcpy(out + places[e][1], biases + e * n, (size_t)n * sizeof *biases);
    }
    return out;
}

/* Three experts, of which one has no rows, or three heads, against the reference row of each. */
static bool check_grouped_case(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                               const linear_case *c, rng *r)
{
    memory m = {.count = 0};
    const nib_kernel *quantizer = row_for(c, NIB_OP_QUANT);
    const bool heads = below(r, 3) == 0;
    const int64_t idle = heads ? -1 : below(r, EXPERTS), head_step = heads ? c->n + below(r, 3) : 0,
                  rows = heads ? EXPERTS * c->m : 2 * c->m + 1,
                  ldy = heads ? EXPERTS * head_step : c->n + below(r, 3),
                  cells = heads ? c->m * ldy : rows * ldy;
    nib_weight w[EXPERTS];
    linear_case all = *c;
    int32_t *first = take(&m, (EXPERTS + 1) * sizeof *first),
            *expert = take(&m, (size_t)rows * sizeof *expert);
    int64_t(*places)[2] = take(&m, EXPERTS * sizeof *places);
    float *factors = take(&m, EXPERTS * sizeof *factors);
    all.m = rows, first[0] = 0;
    for (int e = 0; e < EXPERTS; e++) {
        make_weight(&w[e], &m, c, r);
        factors[e] = w[e].tensor_scale != 0 ? nib__weight_factor(&w[e]) : 1;
        const bool is_last = e == (idle == EXPERTS - 1 ? EXPERTS - 2 : EXPERTS - 1);
        first[e + 1] = e == idle ? first[e] : is_last ? (int32_t)rows : (int32_t)(first[e] + c->m);
        for (int32_t i = first[e]; i < first[e + 1]; i++)
            expert[i] = e;
    }
    const float *x = floats(&m, rows * c->k, r, c->values),
                *biases = floats(&m, EXPERTS * c->n, r, VALUES_RANDOM);
    char *const slab = pack_experts(&m, row, w, biases, places);
    nib_quant quant = make_quant(&m, &all, x, c->k);
    quantizer->run.quant(&quant, 0, rows);
    quant.out.sums = NULL, quant.out.fsums = NULL;
    const nib_linear_experts experts = {.count = EXPERTS,
                                        .first = heads ? NULL : first,
                                        .expert = heads ? NULL : expert,
                                        .places = &places[0][0],
                                        .factors = factors,
                                        .head_step = head_step};
    float *got = take(&m, (size_t)cells * sizeof *got);
    const nib_linear a = {.w = &w[0],
                          .packed = slab,
                          .x = quant.out,
                          .y = got,
                          .ldy = ldy,
                          .bias = c->bias ? (const float *)(void *)slab : NULL,
                          .experts = &experts};
    bool good = runs_on_gpu(&m, row, &a) && gpu_held(v);
    for (int e = 0; e < EXPERTS && good; e++) {
        linear_case part = *c;
        part.m = first[e + 1] - first[e];
        if (part.m == 0)
            continue;
        const float *own = x + first[e] * c->k;
        const nib_quant of_part = make_quant(&m, &part, own, c->k);
        quantizer->run.quant(&of_part, 0, part.m);
        const int64_t step = heads ? head_step : ldy;
        const nib_linear one = {
            .w = &w[e], .x = of_part.out, .ldy = step, .bias = c->bias ? biases + e * c->n : NULL};
        float *y = take(&m, (size_t)(part.m * step) * sizeof *y);
        for (int64_t i = 0; i < part.m; i++)
            memcpy(y + i * step, heads ? got + i * ldy + e * step : got + (first[e] + i) * ldy,
                   (size_t)step * sizeof *y);
        good = rows_equal(v, heads ? "a head of several" : "an expert of several", y,
                          run_linear(&m, ref, one, c->n), &part, step, tolerance_of(row),
                          sizes_of_sums(&m, &one, own));
    }
    good = good && (guards_hold(&m) || broken(v, "wrote outside its memory"));
    release(&m);
    return good;
}

/* ---- cases from the row's conditions ---- */

static int64_t step_of(const nib_kernel *row, nib_fact fact)
{
    int64_t step = 1;
    for (const nib_cond *c = row->conds; c->relation != NIB_REL_END; c++)
        if (c->fact == fact && c->relation == NIB_REL_MULTIPLE && c->arg > step)
            step = c->arg;
    return step;
}

static nib_scheme random_scheme(const nib_kernel *row, rng *r)
{
    static const int64_t groups[] = {32,  NIB_GROUP_ROW, 64, 128, NIB_GROUP_TENSOR, 8, 40, 7,
                                     256, 2080,          16, 1024};
    nib_scheme s = {.symmetric = true};
    s.act = row->act == NIB_ANY ? NIB_ACT_FLOAT : (nib_act)row->act;
    s.code = row->code != NIB_ANY          ? (nib_code)row->code
             : s.act == NIB_ACT_MX8        ? NIB_CODE_MX8
             : s.act == NIB_ACT_MX4        ? NIB_CODE_MX4
             : s.act == NIB_ACT_NV4        ? NIB_CODE_NV4
             : s.act == NIB_ACT_E4M3_TOKEN ? NIB_CODE_E4M3
             : next(r) % 2 != 0            ? NIB_CODE_I4
                                           : NIB_CODE_I8;
    const bool is_int = nib__code_is_int(s.code);
    if (s.code == NIB_CODE_MX8 || s.code == NIB_CODE_MX4)
        s.group = 32;
    else if (s.code == NIB_CODE_NV4)
        s.group = 16;
    else if (nib__scheme_is_quantized(&s))
        s.group = groups[below(r, COUNT(groups))];
    if (is_int && (s.act == NIB_ACT_FLOAT || nib__act_block(s.act) > 0))
        s.zero = (nib_zero)below(r, 3);
    else if (is_int)
        s.zero = (nib_zero)below(r, 2);
    s.symmetric = s.zero == NIB_ZERO_NONE;
    s.act_symmetric = s.act != NIB_ACT_FLOAT && next(r) % 2 != 0;
    s.mx_floor = nib__act_is_mx(s.act) && next(r) % 2 != 0;
    s.block_only = s.act == NIB_ACT_NV4 && next(r) % 2 != 0;
    s.formula = next(r) % 2 != 0 ? NIB_FORMULA_TORCHAO : NIB_FORMULA_AO017;
    return s;
}

/* Large groups, one to three of them in a block of the float sum, with enough tokens for each way
 * to multiply: a row's tile is smaller than some groups and does not divide others. */
static void be_long(linear_case *c, int64_t tile, int t)
{
    static const int64_t groups[] = {544, 800, 1024, 2016, 2080}, ms[] = {25, 13, 33, 17};
    c->scheme.group = groups[t % (int)COUNT(groups)];
    c->m = ms[t % (int)COUNT(ms)];
    c->n = tile + 1;
    c->k = nib__max(1, NIB_SUM_BLOCK / c->scheme.group) * c->scheme.group + 100;
}

static linear_case random_case(const nib_kernel *row, int t, rng *r)
{
    static const int64_t ms[] = {1, 2, 3, 5, 8, 13, 17, 25, 33};
    static const nib_type scales[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16, NIB_TYPE_F64};
    static const nib_type inputs[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    const int64_t n_step = step_of(row, NIB_FACT_N), k_step = step_of(row, NIB_FACT_K);
    const int64_t tile = row->n_step > 0 ? row->n_step : 16;
    const int64_t ns[] = {n_step, 2 * n_step, tile - 1, tile, tile + 1, 3 * tile + 5, 100, 608};
    const int64_t ks[] = {k_step, 2 * k_step, 31,  32,  33,   64,   65,
                          96,     172,        224, 608, 2048, 2049, 4128};
    linear_case c = {.scheme = random_scheme(row, r)};
    c.input = row->input == NIB_ANY ? inputs[below(r, 3)] : (nib_type)row->input;
    c.m = ms[t % (int)COUNT(ms)];
    c.n = nib__max(1, ns[(size_t)below(r, COUNT(ns))]);
    c.k = ks[(size_t)(t / 2) % COUNT(ks)];
    enum { EVERY = 5 };          /* one case in this many is long */
    const int64_t most = 300000; /* multiply-adds: the reference takes about 1 ns for each */
    while (c.m * c.n * c.k > most && c.m > 3)
        c.m /= 2;
    while (c.m * c.n * c.k > most && c.n > 2 * tile)
        c.n = nib__max(2 * tile - 1, c.n / 2);
    const bool any_group = nib__code_is_int(c.scheme.code) && nib__act_block(c.scheme.act) == 0;
    if (any_group && row->op == NIB_OP_LINEAR && row->gpu == NULL && t % EVERY == EVERY - 1)
        be_long(&c, tile, t / EVERY);
    const bool quantized = nib__scheme_is_quantized(&c.scheme);
    const bool is_mx = c.scheme.code == NIB_CODE_MX8 || c.scheme.code == NIB_CODE_MX4;
    if (quantized)
        c.scale_type = is_mx                           ? NIB_TYPE_E8M0
                       : c.scheme.code == NIB_CODE_NV4 ? NIB_TYPE_E4M3
                                                       : scales[below(r, COUNT(scales))];
    if (c.scheme.zero == NIB_ZERO_INT)
        c.zero_type = next(r) % 4 == 0 ? NIB_TYPE_I32 : NIB_TYPE_I8;
    else if (c.scheme.zero == NIB_ZERO_FLOAT)
        c.zero_type = scales[below(r, COUNT(scales))];
    c.values = t % 3 == 0 ? VALUES_RANDOM : (value_class)below(r, VALUES_COUNT);
    c.int_bias = nib__bias_int32_refuses(&c.scheme, c.k) == NULL && next(r) % 3 != 0;
    c.bias = !c.int_bias && next(r) % 2 != 0;
    return c;
}

static void be_q6_k(linear_case *c)
{
    c->q6_k = true, c->int_bias = false;
    c->scheme.group = 16;
    c->scheme.zero = NIB_ZERO_NONE;
    c->scheme.symmetric = true;
    c->scale_type = NIB_TYPE_F32;
    c->zero_type = NIB_TYPE_NONE;
    c->k = nib__round_up(c->k, 256);
}

/* Where a row starts in a list that its cases cycle through. Neighbouring rows start elsewhere, so
 * that a few cases per row cover the whole list together. */
static int first_of(const nib_kernel *row)
{
    int sum = 0;
    for (const char *at = row->name; *at != '\0'; at++)
        sum += *at;
    return sum;
}

/* Narrows a case for a GPU, where each set of types is a program to compile: few sets, but every
 * number of tokens that has its own kernel, and more than one tile for rows of many tokens. */
static void narrow_for_gpu(linear_case *c, const nib_kernel *row, int t)
{
    static const int64_t few[] = {1, 2, 5, 17, 67}, many[] = {17, 131, 67, 1, 128};
    static const int64_t ks[] = {2000, 341, 33, 160, 2256}; /* those with many steps first */
    enum { LONG = 10 /* cases with these k; the others keep random_case's k */ };
    const int64_t *ms = row->m_best > 1 ? many : few;
    static const struct {
        nib_zero zero;
        nib_type scale, zero_type;
    } sets[] = {{NIB_ZERO_NONE, NIB_TYPE_F32, NIB_TYPE_NONE},
                {NIB_ZERO_INT, NIB_TYPE_BF16, NIB_TYPE_I8},
                {NIB_ZERO_FLOAT, NIB_TYPE_F16, NIB_TYPE_F16}};
    const int size = (t + first_of(row)) % (int)COUNT(few);
    const int set = (size + t / (int)COUNT(few) % 2) % (int)COUNT(sets);
    const bool is_int = nib__code_is_int(c->scheme.code);
    const bool any_zero = c->scheme.act == NIB_ACT_FLOAT || nib__act_block(c->scheme.act) > 0;
    c->m = ms[size];
    const bool is_f8 = row->unit == NIB_UNIT_FP8 || row->unit == NIB_UNIT_MX8;
    if (is_f8 || t < LONG)
        c->k = ks[size], c->n = nib__min(c->n, 137);
    c->int_bias = c->int_bias && nib__bias_int32_refuses(&c->scheme, c->k) == NULL;
    if (is_int) {
        c->scheme.zero = any_zero || set < 2 ? sets[set].zero : NIB_ZERO_NONE;
        c->scheme.symmetric = c->scheme.zero == NIB_ZERO_NONE;
        if (c->scheme.zero != NIB_ZERO_INT || c->zero_type != NIB_TYPE_I32)
            c->zero_type = c->scheme.zero != NIB_ZERO_NONE ? sets[set].zero_type : NIB_TYPE_NONE;
    }
    if (is_int || c->scheme.code == NIB_CODE_E4M3 || c->scheme.code == NIB_CODE_E5M2)
        c->scale_type = set == 0 && c->scale_type == NIB_TYPE_F64 ? NIB_TYPE_F64 : sets[set].scale;
}

enum { PRODUCTS = 28, PRODUCTS_EMULATED = 5 /* one for each number of tokens */ };

/* Cases whose conditions hold for the row and its reference. */
static bool check_products(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                           const nib_query *where, int wanted, uint64_t seed)
{
    enum { TRIES = 1200, EVERY = 3 /* cases: each has programs of its own */ };
    rng r = {seed};
    for (int t = 0; t < TRIES && v->cases < wanted; t++) {
        linear_case c = random_case(row, t, &r);
        nib_query q = *where;
        if (nib__kernel_asks(row, NIB_FACT_Q6_K))
            be_q6_k(&c);
        if (row->gpu != NULL && row->op != NIB_OP_QUANT)
            narrow_for_gpu(&c, row, t);
        case_query(&q, &c, row->op);
        if (!nib__kernel_keyed(row, &q) || !nib__kernel_holds(row, &q, true))
            continue;
        if (!nib__kernel_holds(ref, &q, true))
            return broken(v, "its reference %s does not take what it takes", ref->name);
        bool good = row->op == NIB_OP_QUANT        ? check_quant_case(v, row, ref, &c, &r)
                    : row->op == NIB_OP_NORM_QUANT ? check_normed_case(v, row, &c, &r)
                                                   : check_linear_case(v, row, ref, &c, &r);
        if (good && row->grouped && row->gpu != NULL && c.scheme.act != NIB_ACT_I8_STATIC &&
            v->cases % EVERY == 0) {
            rng own = {r.state};
            good = check_grouped_case(v, row, ref, &c, &own);
        }
        if (!good) {
            char said[160], text[sizeof v->text];
            snprintf(text, sizeof text, "%s", v->text);
            return broken(v, "%s (%s)", text, say_case(said, &c));
        }
        v->cases++;
    }
    return v->cases == wanted || broken(v, "only %d shapes meet its conditions", v->cases);
}

#endif
