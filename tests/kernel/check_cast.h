/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: the casts that make training's operands. A row that writes a packed
 * layout must equal the layout's pack() of the reference's plain weight; other outputs are compared
 * directly. Shapes around strips, panels and MX blocks; the whole against the smallest parts.
 */
#ifndef NIB_CHECK_CAST_H
#define NIB_CHECK_CAST_H

#include "cast.h"
#include "check_linear.h"

static bool is_cast(nib_op op)
{
    return op == NIB_OP_CAST || op == NIB_OP_CAST_T || op == NIB_OP_QUANT_T || op == NIB_OP_AMAX;
}

static const int64_t cast_sizes[] = {1,  2,  7,  15, 16,  17,  31,  32,
                                     33, 47, 64, 65, 100, 129, 271, 600};
enum { CAST_PART = 16 /* parts of casts begin at multiples of this */ };

typedef struct cast_case {
    int64_t sums, length; /* n and k, or m and k */
    value_class values;
    bool mx_floor, two_power, e5m2, tensor;
} cast_case;

/* ---- weights ---- */

static nib_weight cast_shape(const nib_kernel *row, const cast_case *c)
{
    nib_weight w = {.n = c->sums, .k = c->length, .scheme = {.symmetric = true}};
    w.scheme.code = (nib_code)row->code;
    w.scheme.group = row->code == NIB_CODE_MX8 ? 32 : c->tensor ? NIB_GROUP_TENSOR : NIB_GROUP_ROW;
    w.scheme.mx_floor = c->mx_floor;
    w.scale_type = row->code == NIB_CODE_MX8    ? NIB_TYPE_E8M0
                   : row->code == NIB_CODE_E4M3 ? NIB_TYPE_F32
                                                : NIB_TYPE_NONE;
    return w;
}

static uint8_t *run_cast(memory *m, const nib_kernel *row, nib_cast a, int64_t part)
{
    a.packed = take(m, (size_t)nib__cast_bytes(row, a.w));
    if (runs_on_gpu(m, row, &a))
        return a.packed;
    for (int64_t i = 0; i < a.w->n; i += part)
        row->run.cast(&a, i, nib__min(a.w->n, i + part));
    return a.packed;
}

static bool check_weight_cast(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                              const cast_case *c, rng *r)
{
    memory m = {.count = 0};
    const bool across = row->op == NIB_OP_CAST_T;
    const nib_weight shape = cast_shape(row, c);
    float *amax = take(&m, sizeof *amax);
    *amax = c->values == VALUES_NOT_FINITE ? INFINITY : 70;
    nib_cast a = {.w = &shape, .ldx = (across ? c->sums : c->length) + below(r, 3)};
    a.x = floats(&m, (across ? c->length : c->sums) * a.ldx, r, c->values);
    a.amax = c->tensor ? amax : NULL;
    a.two_power = c->two_power;
    const uint8_t *plain = run_cast(&m, ref, a, c->sums), *want = plain;
    nib_weight view;
    nib__cast_view(&view, ref, &shape, plain);
    if (row->packing != NULL)
        want = pack_weight(&m, row, &view);
    const uint8_t *got = run_cast(&m, row, a, c->sums), *parts = run_cast(&m, row, a, CAST_PART);
    const size_t bytes = (size_t)nib__cast_bytes(row, &shape);
    const bool good =
        gpu_held(v) &&
        (memcmp(got, want, bytes) == 0 || broken(v, "its bytes differ from the reference's")) &&
        (memcmp(parts, got, bytes) == 0 || broken(v, "its bytes in parts differ")) &&
        (guards_hold(&m) || broken(v, "wrote outside its memory"));
    release(&m);
    return good;
}

/* ---- inputs ---- */

static bool check_input_cast(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                             const cast_case *c, rng *r)
{
    memory m = {.count = 0};
    float *amax = take(&m, sizeof *amax);
    *amax = c->values == VALUES_NOT_FINITE ? NAN : 70;
    linear_case l = {.m = c->sums, .k = c->length, .scheme = {.symmetric = true}};
    l.scheme.act = (nib_act)row->act;
    l.scheme.group = row->act == NIB_ACT_MX8 ? 32 : NIB_GROUP_ROW;
    l.scheme.mx_floor = c->mx_floor;
    l.input = row->input == NIB_ANY ? NIB_TYPE_F32 : (nib_type)row->input;
    const int64_t ldx = c->sums + below(r, 3);
    const float *x = floats(&m, c->length * ldx, r, c->values);
    nib_quant all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = make_quant(&m, &l, x, ldx);
        all[i].e5m2 = c->e5m2, all[i].two_power = c->two_power;
        all[i].amax = c->tensor ? amax : NULL;
    }
    ref->run.quant(&all[0], 0, c->sums);
    run_quant(&m, row, &all[1], c->sums);
    run_quant(&m, row, &all[2], CAST_PART);
    const bool good = gpu_held(v) && same_form(v, &all[1].out, &all[0].out, &l, 0, 0) &&
                      same_form(v, &all[2].out, &all[0].out, &l, 0, 0) &&
                      (guards_hold(&m) || broken(v, "wrote outside its output"));
    release(&m);
    return good;
}

/* ---- the largest magnitude ---- */

static bool check_amax(verdict *v, const nib_kernel *row, const nib_kernel *ref, const cast_case *c,
                       rng *r)
{
    memory m = {.count = 0};
    nib_amax a = {.rows = c->sums, .width = c->length, .ldx = c->length + below(r, 3)};
    a.x = floats(&m, a.rows * a.ldx, r, c->values);
    const int64_t count = nib__ceil_div(a.rows, NIB_TRAIN_ROWS);
    float *want = take(&m, (size_t)count * sizeof *want),
          *got = take(&m, (size_t)count * sizeof *got);
    a.out = want, ref->run.amax(&a, 0, count);
    a.out = got;
    const bool there = runs_on_gpu(&m, row, &a);
    for (int64_t p = 0; p < count && !there; p++)
        row->run.amax(&a, p, p + 1);
    const bool good = gpu_held(v) && same_floats(v, "against the reference", got, want, count) &&
                      (guards_hold(&m) || broken(v, "wrote outside its output"));
    release(&m);
    return good;
}

/* ---- all of a row's cases ---- */

static bool check_casts(verdict *v, const nib_kernel *row, const nib_kernel *ref, uint64_t seed)
{
    enum { CASES = 96 };
    rng r = {seed};
    for (int i = 0; i < nib__max(cases_of(CASES), VALUES_COUNT); i++) {
        cast_case c = {.values = (value_class)(i % VALUES_COUNT)};
        c.sums = cast_sizes[below(&r, COUNT(cast_sizes))];
        c.length = cast_sizes[below(&r, COUNT(cast_sizes))];
        c.mx_floor = below(&r, 2) != 0, c.two_power = below(&r, 2) != 0;
        c.e5m2 = below(&r, 2) != 0, c.tensor = below(&r, 3) == 0;
        const bool good = row->op == NIB_OP_AMAX      ? check_amax(v, row, ref, &c, &r)
                          : row->op == NIB_OP_QUANT_T ? check_input_cast(v, row, ref, &c, &r)
                                                      : check_weight_cast(v, row, ref, &c, &r);
        if (!good) {
            char text[sizeof v->text];
            snprintf(text, sizeof text, "%s", v->text);
            return broken(v, "%.300s (%" PRId64 " sums of %" PRId64 ", %s values%s%s%s%s)", text,
                          c.sums, c.length, class_names[c.values], c.mx_floor ? ", floor" : "",
                          c.two_power ? ", powers of two" : "", c.e5m2 ? ", e5m2" : "",
                          c.tensor ? ", one scale" : "");
        }
        v->cases++;
    }
    return true;
}

/* ---- speed ---- */

typedef struct cast_bench {
    const nib_kernel *row;
    nib_cast cast;
    nib_quant quant;
    nib_amax amax;
    int64_t parts, step; /* in sums, or in parts of AMAX */
} cast_bench;

static void run_cast_bench(cast_bench *b)
{
    for (int64_t i = 0; i < b->parts; i += b->step) {
        const int64_t end = nib__min(b->parts, i + b->step);
        if (b->row->op == NIB_OP_AMAX)
            b->row->run.amax(&b->amax, i, end);
        else if (b->row->op == NIB_OP_QUANT || b->row->op == NIB_OP_QUANT_T)
            b->row->run.quant(&b->quant, i, end);
        else
            b->row->run.cast(&b->cast, i, end);
    }
}

/* One thread on a matrix [rows][width] in parts of `step` sums: elements read per second, and bytes
 * read and written per second. */
static void bench_cast(const nib_kernel *row, int64_t rows, int64_t width, int64_t step)
{
    memory m = {.count = 0};
    rng r = {1};
    const bool across = row->op == NIB_OP_CAST_T || row->op == NIB_OP_QUANT_T;
    const cast_case c = {.sums = across ? width : rows, .length = across ? rows : width};
    const float *x = floats(&m, rows * width, &r, VALUES_RANDOM);
    cast_bench b = {.row = row, .parts = c.sums, .step = step};
    uint64_t least = UINT64_MAX;
    double written = 0;
    nib_weight shape;
    if (row->op == NIB_OP_AMAX) {
        b.parts = nib__ceil_div(rows, NIB_TRAIN_ROWS), b.step = 1;
        b.amax = (nib_amax){.x = x, .rows = rows, .width = width, .ldx = width};
        b.amax.out = take(&m, (size_t)b.parts * sizeof *b.amax.out);
    } else if (row->op == NIB_OP_QUANT || row->op == NIB_OP_QUANT_T) {
        linear_case l = {.m = c.sums, .k = c.length, .scheme = {.symmetric = true}};
        l.scheme.act = (nib_act)row->act;
        l.scheme.group = row->act == NIB_ACT_MX8 ? 32 : NIB_GROUP_ROW;
        l.input = row->input == NIB_ANY ? NIB_TYPE_F32 : (nib_type)row->input;
        b.quant = make_quant(&m, &l, x, width);
        b.quant.two_power = row->act == NIB_ACT_E4M3_TOKEN;
        written = b.quant.out.f32 != NULL ? 4 : b.quant.out.bf16 != NULL ? 2 : 1;
    } else {
        shape = cast_shape(row, &c);
        b.cast = (nib_cast){.x = x, .ldx = width, .w = &shape, .two_power = true};
        b.cast.packed = take(&m, (size_t)nib__cast_bytes(row, &shape));
        written = (double)nib__cast_bytes(row, &shape) / ((double)rows * (double)width);
    }
    for (int i = 0; i < BENCH_RUNS; i++) {
        const uint64_t start = nib__now_ns();
        run_cast_bench(&b);
        const uint64_t ns = nib__now_ns() - start;
        least = ns < least ? ns : least;
    }
    const double count = (double)rows * (double)width, ns = (double)least;
    printf("%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%.1f,%.2f,%.2f\n", row->name, rows, width, step,
           ns * 1e-3, count / ns, count * (4 + written) / ns);
    release(&m);
}

/* Benches the casts on activations of a small model, and on a matrix that fits into the CPU cache.
 */
static int bench_casts(const char *wanted, int64_t isa)
{
    static const int64_t shapes[][3] = {{256, 256, 64}, {4096, 768, 64}, {4096, 768, 768}};
    printf("row,rows,width,part,us,gelements_per_s,gb_per_s\n");
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const bool is_operand =
            is_cast(row->op) || (row->op == NIB_OP_QUANT &&
                                 (row->act == NIB_ACT_MX8 || row->act == NIB_ACT_E4M3_TOKEN ||
                                  (row->act == NIB_ACT_FLOAT && row->input == NIB_TYPE_BF16)));
        nib_query q = {.fact = {0}};
        q.fact[NIB_FACT_ISA] = isa;
        if (is_operand && nib__kernel_built(row) && nib__kernel_holds(row, &q, true) &&
            (wanted == NULL ? !nib__kernel_is_ref(row) : strstr(row->name, wanted) != NULL))
            for (size_t j = 0; j < COUNT(shapes); j++)
                bench_cast(row, shapes[j][0], shapes[j][1], shapes[j][2]);
    }
    return 0;
}

#endif
