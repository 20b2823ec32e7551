/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: rows that quantize weights. Codes, scales, zeros, sums, ranges and errors
 * equal the reference's bit for bit, for every scheme that has a quantizer.
 */
#ifndef NIB_CHECK_QUANT_W_H
#define NIB_CHECK_QUANT_W_H

#include "check_gpu.h"
#include "quant_w.h"

typedef struct quant_w_case {
    char scheme[64];
    nib_type source, type; /* types of the weight and of the rows passed in */
    nib_type scales;       /* requested scale type; NONE: the formula's own */
    int64_t rows, k;
    value_class values;
    int power; /* every value is multiplied by 2^power */
    nib_ptq_method method;
    bool has_importance;
} quant_w_case;

/* %s stands for a group in bases that allow groups. */
static const char *const quant_w_schemes[] = {
    "8da4w%s",
    "8da4w%s-asym",
    "int8wo%s",
    "int8wo%s-asym",
    "8da4w%s-ao017",
    "int4wo%s",
    "int4wo%s-tinygemm",
    "int8wo",
    "int8wo-tensor",
    "int8dq",
    "fp8wo",
    "fp8wo-tensor",
    "mxfp8",
    "mxfp8-floor",
    "mxfp4",
    "mxfp4-floor",
    "nvfp4",
    "nvfp4-block",
    "int1wo%s-asym",
    "int2wo%s-floatzero",
    "int3wo%s",
    "int5wo%s-asym",
    "int6wo%s-ao017",
    "int7wo%s-floatzero",
    "int8wo-g32-ggml",
    "int4wo-g32-sym-ggml",
    "int4wo-g32-ggml",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
};
static const char *const quant_w_groups[] = {"-g32", "-g16",  "-g64",  "-g1", "-g3",
                                             "-g48", "-g100", "-g128", "-row"};
static const int64_t quant_w_widths[] = {1,  2,  15, 16,  17,  31,  32,  33,  63,
                                         64, 65, 96, 100, 128, 129, 260, 1000};

/* False: no such scheme. */
static bool quant_w_scheme(nib_scheme *out, quant_w_case *c, size_t scheme, size_t group)
{
    const char *form = quant_w_schemes[scheme], *at = strstr(form, "%s");
    if (at == NULL)
        snprintf(c->scheme, sizeof c->scheme, "%s", form);
    else
        snprintf(c->scheme, sizeof c->scheme, "%.*s%s%s", (int)(at - form), form,
                 quant_w_groups[group], at + 2);
    return nib__scheme_parse(out, c->scheme, strlen(c->scheme), NULL) == NIB_OK;
}

/* ---- rows ---- */

/* Rows in the case's type; each value is exact in the source's type. */
static void *quant_w_rows(memory *m, const quant_w_case *c, rng *r)
{
    const int64_t count = c->rows * c->k, bytes = nib__type_bits(c->type) / 8;
    uint8_t *out = take(m, (size_t)(count * bytes)), stored[4];
    for (int64_t i = 0; i < count; i++) {
        float x = ldexpf(value(r, c->values, i), c->power);
        if (c->values == VALUES_RANDOM && below(r, 40) == 0)
            x = below(r, 2) == 0 ? -0.0F : 0.0F;
        nib__from_f32(stored, c->source, &x, 1);
        nib__to_f32(&x, stored, c->source, 1);
        nib__from_f32(out + i * bytes, c->type, &x, 1);
    }
    return out;
}

static nib_quant_w quant_w_arguments(memory *m, const nib_quantizer *q, const quant_w_case *c,
                                     const void *rows)
{
    const size_t n = (size_t)c->rows, scales = n * (size_t)q->groups;
    nib_quant_w a = {.q = q, .rows = rows, .type = c->type, .count = c->rows};
    a.codes = take(m, n * (size_t)q->k);
    a.scales = take(m, scales * 4);
    a.zeros = q->zero_type != NIB_TYPE_NONE ? take(m, scales * 4) : NULL;
    a.sums = take(m, n * 2 * sizeof *a.sums);
    a.failed = take(m, n * sizeof *a.failed);
    a.objective = q->method != NIB_PTQ_RTN ? take(m, n * 2 * sizeof *a.objective) : NULL;
    a.room = take(m, scales * 2 * sizeof *a.room);
    return a;
}

static void run_quant_w(memory *m, const nib_kernel *row, const nib_quant_w *a, int64_t part)
{
    if (runs_on_gpu(m, row, a))
        return;
    void *scratch = take(m, row->scratch(a));
    for (int64_t i = 0; i < a->count; i += part)
        row->run.quant_w(a, i, nib__min(a->count, i + part), scratch);
}

/* ---- outputs ---- */

static bool same_part(verdict *v, const char *what, const void *got, const void *want, int64_t row,
                      int64_t bytes)
{
    for (int64_t i = 0; want != NULL && i < bytes; i++) {
        const uint8_t *one = (const uint8_t *)got + row * bytes,
                      *other = (const uint8_t *)want + row * bytes;
        if (one[i] != other[i])
            return broken(v, "%s of row %" PRId64 ": byte %" PRId64 " is %02x, not %02x", what, row,
                          i, one[i], other[i]);
    }
    return true;
}

static bool same_quant_w(verdict *v, const nib_quant_w *got, const nib_quant_w *want)
{
    const nib_quantizer *q = want->q;
    const int64_t groups = nib__quantizer_is_one(q) ? 0 : q->groups;
    for (int64_t i = 0; i < want->count; i++) {
        if (got->failed[i] != want->failed[i])
            return broken(v, "row %" PRId64 " has failed of %d, not %d", i, got->failed[i],
                          want->failed[i]);
        if (want->failed[i] != 0)
            continue;
        if (!same_part(v, "codes", got->codes, want->codes, i, q->k) ||
            !same_part(v, "scales", got->scales, want->scales, i,
                       groups * nib__type_bits(q->scale_type) / 8) ||
            !same_part(v, "zeros", got->zeros, want->zeros, i,
                       groups * nib__type_bits(q->zero_type) / 8) ||
            !same_part(v, "sums", got->sums, want->sums, i, 16) ||
            !same_part(v, "objective", got->objective, want->objective, i, 16))
            return false;
    }
    return true;
}

static bool same_ranges(verdict *v, const nib_quant_w *got, const nib_quant_w *want)
{
    for (int64_t i = 0; i < want->count; i++) {
        if (got->failed[i] != want->failed[i])
            return broken(v, "row %" PRId64 " of ranges has failed of %d, not %d", i,
                          got->failed[i], want->failed[i]);
        /* -0 and 0 are equal */
        for (int j = 0; j < 2 && want->failed[i] == 0; j++)
            if (got->ranges[2 * i + j] != want->ranges[2 * i + j])
                return broken(v, "range of row %" PRId64 ": %a, not %a", i,
                              (double)got->ranges[2 * i + j], (double)want->ranges[2 * i + j]);
    }
    return true;
}

/* Compares the tensor's range, then the scale that it gives. */
static bool check_ranges(verdict *v, memory *m, const nib_kernel *row, const nib_kernel *ref,
                         nib_quantizer *q, const quant_w_case *c, const void *rows)
{
    nib_quant_w by[2];
    float range[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        by[i] = (nib_quant_w){.q = q, .rows = rows, .type = c->type, .count = c->rows};
        by[i].ranges = take(m, (size_t)c->rows * 2 * sizeof(float));
        by[i].failed = take(m, (size_t)c->rows * sizeof(int32_t));
        run_quant_w(m, i == 0 ? ref : row, &by[i], i == 0 ? c->rows : 1);
    }
    for (int64_t i = 0; i < c->rows; i++)
        if (by[0].failed[i] == 0) {
            range[0] = fminf(range[0], by[0].ranges[2 * i]);
            range[1] = fmaxf(range[1], by[0].ranges[2 * i + 1]);
        }
    if (nib__quantizer_needs_scan(q))
        (void)nib__quantizer_fix(q, range);
    return gpu_held(v) && same_ranges(v, &by[1], &by[0]);
}

static bool check_quant_w_case(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                               const nib_scheme *scheme, const quant_w_case *c, rng *r)
{
    memory m = {.count = 0};
    nib_quantizer q;
    if (nib__quantizer_init(&q, scheme, c->source, c->k, NULL) != NIB_OK)
        return broken(v, "%s has no quantizer", c->scheme);
    (void)nib__quantizer_scales(&q, c->scales, NULL); /* some formulas have only one scale type */
    const void *rows = quant_w_rows(&m, c, r);
    float *importance = c->has_importance ? take(&m, (size_t)c->k * sizeof(float)) : NULL;
    for (int64_t j = 0; importance != NULL && j < c->k; j++)
        importance[j] = ldexpf(1 + (float)below(r, 1000) / 1000, (int)below(r, 12) - 6);
    (void)nib__quantizer_method(&q, c->method, importance, NULL); /* not for one scale in all */
    bool good = check_ranges(v, &m, row, ref, &q, c, rows);
    const nib_quant_w want = quant_w_arguments(&m, &q, c, rows),
                      got = quant_w_arguments(&m, &q, c, rows);
    run_quant_w(&m, ref, &want, c->rows);
    run_quant_w(&m, row, &got, 1);
    good = good && gpu_held(v) && same_quant_w(v, &got, &want) &&
           (guards_hold(&m) || broken(v, "wrote outside its memory"));
    release(&m);
    return good;
}

/* ---- all of a row's cases ---- */

/* Every scheme in every type; widths, groups and values in turn. Values like those of weights, and
 * at the limits of formats: denormals, and ranges too wide for a scale. */
static bool check_quant_w(verdict *v, const nib_kernel *row, const nib_kernel *ref, uint64_t seed)
{
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    static const int powers[] = {0, 0, 0, -10, -14, 9, 15, 120, 127, -110, -126, -140};
    enum { TURNS = 12 };
    rng r = {seed};
    for (int turn = 0; turn < cases_of(TURNS); turn++)
        for (size_t i = 0; i < COUNT(quant_w_schemes) * COUNT(types); i++) {
            quant_w_case c = {.source = types[i % COUNT(types)], .rows = 1 + below(&r, 5)};
            nib_scheme scheme;
            if (!quant_w_scheme(&scheme, &c, i / COUNT(types),
                                (size_t)below(&r, COUNT(quant_w_groups))))
                return broken(v, "%s is no scheme", c.scheme);
            c.type = below(&r, 3) == 0 ? NIB_TYPE_F32 : c.source;
            c.scales = below(&r, 3) == 0 ? types[below(&r, COUNT(types))] : NIB_TYPE_NONE;
            c.k = quant_w_widths[below(&r, COUNT(quant_w_widths))];
            if (row->gpu != NULL && nib__scheme_is_gguf_block(&scheme)) /* only on the CPU */
                continue;
            if (nib__quant_family(&scheme) == NIB_QUANT_SUPER)
                c.k = nib__round_up(c.k, NIB_SUPER_ELEMENTS);
            c.values = (value_class)(below(&r, 2) == 0 ? VALUES_RANDOM : below(&r, VALUES_COUNT));
            c.power = powers[below(&r, COUNT(powers))];
            if (row->gpu == NULL && below(&r, 2) == 0) /* GPUs only round */
                c.method = scheme.zero == NIB_ZERO_FLOAT && below(&r, 2) == 0 ? NIB_PTQ_HQQ
                                                                              : NIB_PTQ_SEARCH;
            c.has_importance = below(&r, 2) == 0;
            if (!check_quant_w_case(v, row, ref, &scheme, &c, &r)) {
                char text[sizeof v->text];
                snprintf(text, sizeof text, "%s", v->text);
                return broken(v,
                              "%.300s (%" PRId64 " rows of %" PRId64 ", %s of %s in %s, %s scales, "
                              "%s values times 2^%d, by %s)",
                              text, c.rows, c.k, c.scheme, nib__type_name(c.source),
                              nib__type_name(c.type), nib__type_name(c.scales),
                              class_names[c.values], c.power, nib__ptq_names[c.method]);
            }
            v->cases++;
        }
    return true;
}

#endif
