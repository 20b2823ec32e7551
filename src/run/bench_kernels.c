/* SPDX-License-Identifier: Apache-2.0
 *
 * Times every linear row that runs here on one real shape, for one token and for a prompt, with all
 * threads, beside the rates measured in the same run. Whether rows are right is the kernel
 * checker's matter.
 */
#include "library.h"

#include <inttypes.h>

enum { BENCH_N = 8192, BENCH_K = 2048, BENCH_PROMPT = 128, BENCH_RUNS = 7 };

typedef struct bench {
    nib_engine *engine;
    const nib_kernel *row;
    nib_weight w;
    char *plain, *packed, *input, *scratch;
    uint64_t plain_bytes, packed_bytes, input_bytes, scratch_bytes;
    float *y;
    nib_linear args;
} bench;

static nib_scheme scheme_of(const nib_kernel *row)
{
    const nib_code code = (nib_code)row->code;
    nib_scheme s = {.code = code,
                    .symmetric = true,
                    .act = row->act == NIB_ANY ? NIB_ACT_FLOAT : (nib_act)row->act};
    if (code == NIB_CODE_I4 || code == NIB_CODE_MX8 || code == NIB_CODE_MX4 ||
        nib__act_block(s.act) > 0)
        s.group = 32;
    if (code == NIB_CODE_NV4)
        s.group = 16;
    return s;
}

static nib_type input_type(const nib_kernel *row)
{
    return row->input == NIB_ANY ? NIB_TYPE_BF16 : (nib_type)row->input;
}

/* Small positive codes and scales near 1: no value is special, none overflows. */
static void fill_weight(bench *b)
{
    nib_weight *w = &b->w;
    const nib_scheme *s = &w->scheme;
    const int64_t groups = nib__scheme_groups(s, BENCH_K);
    const bool is_float = !nib__scheme_is_quantized(s);
    const int bytes = s->code == NIB_CODE_F32 ? 4 : is_float ? 2 : 1;
    const uint64_t code_bytes = (uint64_t)BENCH_N * BENCH_K * (uint64_t)bytes;
    for (uint64_t i = 0; i < code_bytes; i++)
        b->plain[i] = is_float ? (char)(i % 2 ? 0x3c : 0) : (char)(i * 7 % 8);
    w->codes = b->plain;
    w->store = is_float ? NIB_STORE_FLOAT : NIB_STORE_BYTE;
    if (is_float)
        return;
    const bool mx = s->code == NIB_CODE_MX8 || s->code == NIB_CODE_MX4,
               nv = s->code == NIB_CODE_NV4;
    char *scales = b->plain + code_bytes;
    for (int64_t i = 0; i < BENCH_N * groups; i++) {
        if (mx)
            scales[i] = 127;
        else if (nv)
            scales[i] = 0x38;
        else
            ((uint16_t *)(void *)scales)[i] = 0x3f80;
    }
    w->scales = scales;
    w->scale_type = mx ? NIB_TYPE_E8M0 : nv ? NIB_TYPE_E4M3 : NIB_TYPE_BF16;
    w->scale_stride_n = groups;
    w->scale_stride_g = 1;
}

static void job_pack(void *ctx, int worker, int64_t begin, int64_t end)
{
    bench *b = ctx;
    const int64_t step = b->row->packing->step;
    (void)worker;
    b->row->packing->pack(&b->w, b->packed, begin * step, nib__min(end * step, BENCH_N));
}

static void job_linear(void *ctx, int worker, int64_t begin, int64_t end)
{
    bench *b = ctx;
    const int64_t step = nib__max(1, b->row->n_step);
    b->row->run.linear(&b->args, begin * step, nib__min(end * step, BENCH_N),
                       b->scratch + (uint64_t)worker * b->scratch_bytes);
}

static nib_status open_bench(bench *b, nib_err *err)
{
    const size_t threads = (size_t)nib__pool_threads(b->engine->pool);
    b->w = (nib_weight){.scheme = scheme_of(b->row), .n = BENCH_N, .k = BENCH_K};
    b->plain_bytes =
        (uint64_t)BENCH_N * BENCH_K * 5; /* codes of at most 4 bytes, scales in the rest */
    b->plain = nib__block_take((size_t)b->plain_bytes);
    b->y = nib__calloc(&b->engine->allocator, BENCH_PROMPT * BENCH_N, sizeof *b->y);
    if (!b->plain || !b->y)
        return nib__fail_memory(err, (size_t)b->plain_bytes, "a weight to time");
    fill_weight(b);
    if (b->row->packing) {
        b->packed_bytes = b->row->packing->bytes(&b->w);
        b->packed = nib__block_take((size_t)b->packed_bytes);
        if (!b->packed)
            return nib__fail_memory(err, (size_t)b->packed_bytes, "a packed weight");
        nib__pool_run(b->engine->pool, nib__ceil_div(BENCH_N, b->row->packing->step), 1, false,
                      job_pack, b);
    }
    nib_input input;
    nib__input_place(&input, &b->w.scheme, input_type(b->row), BENCH_PROMPT, BENCH_K, NULL,
                     &b->input_bytes);
    b->input =
        nib__block_take((size_t)b->input_bytes); /* zeros: the time does not depend on values */
    b->args = (nib_linear){.w = &b->w, .packed = b->packed, .y = b->y, .ldy = BENCH_N};
    nib__input_place(&b->args.x, &b->w.scheme, input_type(b->row), BENCH_PROMPT, BENCH_K, b->input,
                     NULL);
    b->scratch_bytes = b->row->scratch ? (b->row->scratch(&b->args) + 63) / 64 * 64 : 0;
    b->scratch = nib__block_take((size_t)(b->scratch_bytes * threads + 64));
    return b->input && b->scratch
               ? NIB_OK
               : nib__fail_memory(err, (size_t)b->input_bytes, "an input to time");
}

static void close_bench(bench *b)
{
    const uint64_t threads = (uint64_t)nib__pool_threads(b->engine->pool);
    nib__block_free(b->plain, (size_t)b->plain_bytes);
    nib__block_free(b->packed, (size_t)b->packed_bytes);
    nib__block_free(b->input, (size_t)b->input_bytes);
    if (b->scratch)
        nib__block_free(b->scratch, (size_t)(b->scratch_bytes * threads + 64));
    nib__release(&b->engine->allocator, b->y);
}

static double median_seconds(bench *b, int64_t m)
{
    double seconds[BENCH_RUNS];
    const int64_t count = nib__ceil_div(BENCH_N, nib__max(1, b->row->n_step));
    const int64_t grain = nib__max(1, count / ((int64_t)nib__pool_threads(b->engine->pool) * 4));
    b->args.x.m = m;
    for (int i = -1; i < BENCH_RUNS; i++) {
        const uint64_t start = nib__now_ns();
        nib__pool_run(b->engine->pool, count, grain, true, job_linear, b);
        if (i >= 0)
            seconds[i] = (double)(nib__now_ns() - start) * 1e-9;
    }
    return nib__median(seconds, BENCH_RUNS);
}

static void write_row(const bench *b, nib_form form, double one, double prompt,
                      const nib_machine *now, nib_text *out, bool first)
{
    const double bytes = (double)(b->packed ? b->packed_bytes : nib__weight_bytes(&b->w));
    const double rate = 2.0 * BENCH_N * BENCH_K * BENCH_PROMPT / prompt;
    const double share = 100 * bytes / one / now->bytes_per_s, peak = now->rate[b->row->unit];
    if (form == NIB_FORM_JSON)
        nib__text_format(out,
                         "%s    {\"kernel\": \"%s\", \"us_1\": %.2f, \"gb_per_s\": %.2f, "
                         "\"us_%d\": %.2f, \"gop_per_s\": %.1f}",
                         first ? "" : ",\n", b->row->name, one * 1e6, bytes / one * 1e-9,
                         BENCH_PROMPT, prompt * 1e6, rate * 1e-9);
    else
        nib__text_format(out,
                         form == NIB_FORM_MARKDOWN
                             ? "| %s | %.1f | %.1f | %.0f %% | %.1f | %.0f | %.0f %% |\n"
                             : "%-44s %9.1f %7.1f %5.0f %% %10.1f %8.0f %5.0f %%\n",
                         b->row->name, one * 1e6, bytes / one * 1e-9, share, prompt * 1e6,
                         rate * 1e-9, peak > 0 ? 100 * rate / peak : 0.0);
}

static bool wanted(const nib_engine *engine, const nib_kernel *row)
{
    nib_query q = engine->here.facts;
    if (row->op != NIB_OP_LINEAR || row->peer || !row->run.any || !row->reference ||
        row->code == NIB_ANY)
        return false;
    const nib_scheme s = scheme_of(row);
    q.fact[NIB_FACT_OP] = NIB_OP_LINEAR, q.fact[NIB_FACT_CODE] = s.code,
    q.fact[NIB_FACT_ACT] = s.act;
    q.fact[NIB_FACT_INPUT] = input_type(row), q.fact[NIB_FACT_N] = BENCH_N,
    q.fact[NIB_FACT_K] = BENCH_K;
    q.fact[NIB_FACT_M] = 1, q.fact[NIB_FACT_GROUP] = s.group, q.fact[NIB_FACT_SYMMETRIC] = 1;
    q.fact[NIB_FACT_SCALE_TYPE] = s.code >= NIB_CODE_MX8 ? NIB_TYPE_E8M0 : NIB_TYPE_BF16;
    return nib__kernel_holds(row, &q, true);
}

static nib_status run_rows(nib_engine *engine, nib_form form, const nib_machine *now, nib_text *out,
                           nib_err *err)
{
    bool first = true;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        bench b = {.engine = engine, .row = nib__kernel_at(i)};
        if (!wanted(engine, b.row))
            continue;
        if (!nib__engine_progress(engine, "bench", i, nib__kernel_count()))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        const nib_status status = open_bench(&b, err);
        if (status == NIB_OK) {
            const double one = median_seconds(&b, 1), prompt = median_seconds(&b, BENCH_PROMPT);
            write_row(&b, form, one, prompt, now, out, first);
            first = false;
        }
        close_bench(&b);
        NIB_TRY(status);
    }
    return NIB_OK;
}

nib_status nib_bench_kernels(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    nib_machine now = engine->here;
    NIB_TRY(nib__machine_measure(&now, engine->pool, NULL, &engine->allocator, err));
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    if (form == NIB_FORM_JSON)
        nib__text_format(
            &text,
            "{\n  \"schema\": 1,\n  \"n\": %d, \"k\": %d, \"threads\": %d,\n  \"kernels\": [\n",
            BENCH_N, BENCH_K, nib__pool_threads(engine->pool));
    else if (form == NIB_FORM_MARKDOWN)
        nib__text_format(&text,
                         "| kernel | us, m 1 | GB/s | of %.1f | us, m %d | GOP/s | of the peak "
                         "|\n|---|---|---|---|---|---|---|\n",
                         now.bytes_per_s * 1e-9, BENCH_PROMPT);
    else
        nib__text_format(
            &text, "n %d, k %d, %d threads, %.1f GB/s measured\n%-44s %9s %7s %7s %10s %8s %7s\n",
            BENCH_N, BENCH_K, nib__pool_threads(engine->pool), now.bytes_per_s * 1e-9, "kernel",
            "us, m 1", "GB/s", "share", "us, m 128", "GOP/s", "share");
    nib_status status = run_rows(engine, form, &now, &text, err);
    if (form == NIB_FORM_JSON)
        nib__text_str(&text, "\n  ]\n}\n");
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
