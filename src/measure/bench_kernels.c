/* SPDX-License-Identifier: Apache-2.0
 *
 * Times every linear kernel that runs here on one real shape: for one token with weights from
 * memory, and for a prompt; on all threads, beside the rates measured in the same run.
 */
#include "bench.h"
#include "public_struct.h"
#include "timing.h"

#include <inttypes.h>

enum { BENCH_N = 8192, BENCH_K = 2048, BENCH_PROMPT = 128 };

static nib_scheme scheme_of(const nib_kernel *row)
{
    const nib_code code = (nib_code)row->code;
    nib_scheme s = {.code = code,
                    .symmetric = true,
                    .act = row->act == NIB_ANY ? NIB_ACT_FLOAT : (nib_act)row->act};
    s.group = nib__codes[code].group;
    if (s.group == 0 && (nib__code_bits(code) == 4 || nib__act_block(s.act) > 0))
        s.group = 32;
    if (nib__kernel_asks(row, NIB_FACT_Q6_K))
        s.group = 16;
    return s;
}

static nib_type input_type(const nib_kernel *row)
{
    return row->input == NIB_ANY ? NIB_TYPE_BF16 : (nib_type)row->input;
}

static void write_row(const nib_kernel *row, double bytes, nib_form form, double one_s,
                      double prompt_s, const nib_machine *now, nib_text *out, bool first)
{
    const double rate = 2.0 * BENCH_N * BENCH_K * BENCH_PROMPT / prompt_s;
    const double share = 100 * bytes / one_s / now->bytes_per_s, peak = now->rate[row->unit];
    if (form == NIB_FORM_JSON)
        nib__text_format(out,
                         "%s    {\"kernel\": \"%s\", \"us_1\": %.2f, \"gb_per_s\": %.2f, "
                         "\"us_%d\": %.2f, \"gop_per_s\": %.1f}",
                         first ? "" : ",\n", row->name, one_s * 1e6, bytes / one_s * 1e-9,
                         BENCH_PROMPT, prompt_s * 1e6, rate * 1e-9);
    else
        nib__text_format(out,
                         form == NIB_FORM_MARKDOWN
                             ? "| %s | %.1f | %.1f | %.0f %% | %.1f | %.0f | %.0f %% |\n"
                             : "%-44s %9.1f %7.1f %5.0f %% %10.1f %8.0f %5.0f %%\n",
                         row->name, one_s * 1e6, bytes / one_s * 1e-9, share, prompt_s * 1e6,
                         rate * 1e-9, peak > 0 ? 100 * rate / peak : 0.0);
}

bool nib__bench_supports(const nib_engine *engine, const nib_kernel *row)
{
    nib_query q = engine->here.facts;
    if (row->op != NIB_OP_LINEAR || row->peer || !row->run.any || !row->reference ||
        row->code == NIB_ANY)
        return false;
    const nib_scheme s = scheme_of(row);
    const bool is_q6_k = nib__kernel_asks(row, NIB_FACT_Q6_K);
    q.fact[NIB_FACT_OP] = NIB_OP_LINEAR, q.fact[NIB_FACT_CODE] = s.code,
    q.fact[NIB_FACT_ACT] = s.act;
    q.fact[NIB_FACT_INPUT] = input_type(row), q.fact[NIB_FACT_N] = BENCH_N,
    q.fact[NIB_FACT_K] = BENCH_K;
    q.fact[NIB_FACT_M] = 1, q.fact[NIB_FACT_GROUP] = s.group, q.fact[NIB_FACT_SYMMETRIC] = 1;
    q.fact[NIB_FACT_Q6_K] = is_q6_k;
    q.fact[NIB_FACT_SCALE_TYPE] = nib__codes[s.code].scale_type != NIB_TYPE_NONE
                                      ? nib__codes[s.code].scale_type
                                  : is_q6_k ? NIB_TYPE_F32
                                            : NIB_TYPE_BF16;
    return nib__kernel_holds(row, &q, true);
}

static nib_status run_rows(nib_timed *t, nib_form form, const nib_machine *now, nib_text *out,
                           nib_err *err)
{
    bool first = true;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        double one_s, prompt_s;
        if (!nib__bench_supports(t->engine, row))
            continue;
        if (!nib__engine_progress(t->engine, "bench", i, nib__kernel_count()))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        const nib_scheme scheme = scheme_of(row);
        const nib_layer layer = {.n = BENCH_N, .k = BENCH_K, .scale_type = NIB_TYPE_BF16};
        NIB_TRY(nib__timed_set(t, &layer, &scheme, input_type(row), BENCH_N, BENCH_PROMPT, err));
        NIB_TRY(nib__timed_linear(t, row, BENCH_N, 1, true, &one_s, err));
        NIB_TRY(nib__timed_linear(t, row, BENCH_N, BENCH_PROMPT, false, &prompt_s, err));
        write_row(row, (double)nib__timed_bytes(t, row, BENCH_N), form, one_s, prompt_s, now, out,
                  first);
        first = false;
    }
    return NIB_OK;
}

nib_status nib_bench_kernels(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_machine now = engine->here;
    NIB_TRY(nib__engine_check(engine, err));
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
    nib_timed timed;
    nib_status status =
        nib__timed_open(&timed, engine, NULL, nib__timed_weights(&engine->here), err);
    if (status == NIB_OK)
        status = run_rows(&timed, form, &now, &text, err);
    nib__timed_close(&timed);
    if (form == NIB_FORM_JSON)
        nib__text_str(&text, "\n  ]\n}\n");
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
