/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_bench, except for its times: a batch gives the bits of each sequence alone, float results
 * accompany quantized ones or a reason says why not, and peers' output is parsed.
 */
#include "bench.h"
#include "bench_peer.h"
#include "process.h"
#include "session.h"
#include "timing.h"
#include "variant.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static const char tales[] = "models/nibble-tales";

/* ---- a batch ---- */

/* The logits of the last of `count` new tokens, for each sequence in a batch and alone. */
static void check_batch(const char *recipe, int sequences)
{
    enum { NEW = 3 };
    opened o = must_open(&(open_how){
        .path = tales, .recipe = recipe, .threads = 2, .sequences = sequences, .context = 64});
    const size_t row = (size_t)nib_session_vocab(o.session) * sizeof(float);
    float *together = malloc((size_t)sequences * row);
    const float *logits;
    double seconds;
    nib_err err;
    assert_int_equal(nib__bench_batch(o.session, sequences, NEW, &logits, &seconds, &err), NIB_OK);
    memcpy(together, logits, (size_t)sequences * row);
    for (int j = 0; j < sequences; j++) {
        const int64_t end = nib__bench_batch_start(o.session, j, NEW) + NEW;
        /* other cache blocks, and the same tokens in other chunks */
        assert_int_equal(nib__bench_fill(o.session, 0, 0, end, &err), NIB_OK);
        logits = o.session->runner.logits;
        assert_memory_equal((const char *)together + (size_t)j * row, logits, row);
    }
    free(together);
    close_opened(&o);
}

static void a_batch_has_the_bits_of_each_sequence_alone(void **state)
{
    (void)state;
    check_batch(NULL, 8);
    check_batch("8da4w", 8);
    check_batch("int4wo", 3);
}

/* ---- floats for comparison ---- */

static nib_bench_result must_bench(const opened *o, const nib_bench_options *options)
{
    nib_bench_result r = {.size = sizeof r};
    nib_err err;
    if (nib_bench(o->session, options, &r, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return r;
}

static void floats_are_timed_for_comparison(void **state)
{
    (void)state;
    nib_bench_round rounds[2];
    const int64_t contexts[] = {20, 0, 10};
    const nib_bench_options options = {.prompt_tokens = 8,
                                       .new_tokens = 2,
                                       .repeats = 2,
                                       .batch = 3,
                                       .contexts = contexts,
                                       .context_count = COUNT(contexts),
                                       .beside = true,
                                       .rounds = rounds};
    opened o =
        must_open(&(open_how){.path = tales, .recipe = "8da4w", .sequences = 3, .context = 64});
    const nib_bench_result r = must_bench(&o, &options);
    assert_string_equal(r.floats_name, "bf16");
    assert_true(r.floats.prefill_tokens_per_s > 0 && r.floats.decode_tokens_per_s > 0);
    assert_true(rounds[1].floats.decode_tokens_per_s > 0 && rounds[1].batch_tokens_per_s > 0);
    assert_true(r.batch_tokens_per_s > 0 && r.peer.decode_tokens_per_s == 0);
    assert_int_equal(r.context_count, COUNT(contexts));
    for (size_t i = 0; i < COUNT(contexts); i++) {
        assert_int_equal(r.contexts[i].positions, contexts[i]);
        assert_true(r.contexts[i].tokens_per_s > 0 && r.contexts[i].empty_tokens_per_s > 0);
    }
    assert_int_equal(r.cache_bytes, 3 * o.plan->cache.bytes);
    close_opened(&o);
}

static void float_models_have_no_comparison(void **state)
{
    (void)state;
    const nib_bench_options options = {
        .prompt_tokens = 4, .new_tokens = 1, .repeats = 1, .beside = true};
    opened o = must_open(&(open_how){.path = tales, .context = 16});
    const nib_bench_result r = must_bench(&o, &options);
    assert_string_equal(r.floats_name, "");
    assert_string_equal(r.floats_why, "");
    close_opened(&o);
}

static void impossible_requests_are_refused(void **state)
{
    (void)state;
    const int64_t far[] = {15};
    const struct {
        nib_bench_options options;
        nib_status status;
    } cases[] = {
        {{.batch = 3}, NIB_USAGE},                          /* the model was opened for 2 */
        {{.contexts = far, .context_count = 1}, NIB_USAGE}, /* 15 + 2 positions of 16 */
        {{.repeats = 1001}, NIB_USAGE},
        {{.against = tales, .beside = true, .repeats = 1}, NIB_OK},
        {{.against = "tests/no-such-model", .beside = true, .repeats = 1}, NIB_IO},
    };
    opened o =
        must_open(&(open_how){.path = tales, .recipe = "8da4w", .sequences = 2, .context = 16});
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_bench_options options = cases[i].options;
        nib_bench_result r = {.size = sizeof r};
        nib_err err = {NIB_OK, ""};
        options.prompt_tokens = 2, options.new_tokens = 2;
        const nib_status status = nib_bench(o.session, &options, &r, &err);
        if (cases[i].status == NIB_OK)
            assert_int_equal(status, NIB_OK);
        else
            refused(cases[i].status, status, &err);
    }
    close_opened(&o);
}

/* ---- output of peers ---- */

static nib_status parse(nib_peer_run *out, const char *text, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    return nib__peer_parse(out, "peer", text, strlen(text), &a, err);
}

static void json_of_peers_is_parsed(void **state)
{
    (void)state;
    nib_peer_run run;
    nib_err err;
    /* llama.cpp's output, cut to some of its members */
    const char *list = "[\n {\"build_commit\": \"0c1e570\", \"model_type\": \"llama 1B Q4_0\",\n"
                       "  \"model_size\": 763097216, \"cpu_strict\": false, \"n_prompt\": 16,\n"
                       "  \"n_gen\": 0, \"avg_ns\": 2, \"avg_ts\": 3.5, \"samples_ts\": [ 3.5 ]},\n"
                       " {\"n_prompt\": 0, \"n_gen\": 4, \"avg_ts\": 5.25}\n]\n";
    assert_int_equal(parse(&run, list, &err), NIB_OK);
    assert_true(run.speeds.prefill_tokens_per_s == 3.5 && run.speeds.decode_tokens_per_s == 5.25);
    assert_int_equal(run.model_bytes, 763097216);
    assert_string_equal(run.build, "0c1e570");
    assert_string_equal(run.type, "llama 1B Q4_0");
    /* text before it, unknown members and types, no tokens per second, prefill and decode in one
     * test */
    const char *other = "loading [1/2]\nready\n[{\"n_prompt\": 8, \"n_gen\": 4, \"avg_ts\": 1},"
                        "{\"n_prompt\": 8, \"n_gen\": 0, \"avg_ns\": 2e9, \"fmoe\": {\"a\": []},"
                        " \"model_size\": null, \"build_commit\": 7, \"avg_ts\": null},"
                        "{\"n_gen\": 4, \"avg_ns\": 1000000000, \"stddev_ts\": NaN}]";
    assert_int_equal(parse(&run, other, &err), NIB_OK);
    assert_true(run.speeds.prefill_tokens_per_s == 4 && run.speeds.decode_tokens_per_s == 4);
    assert_true(run.model_bytes == 0 && run.build[0] == 0);
}

static void other_output_of_peers_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",    "| model | size |\n",
        "[]",  "[{\"n_prompt\": 8, \"n_gen\": 0, \"avg_ts\": 1}]", /* no new tokens */
        "[1]", "[{\"n_prompt\": 8",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        nib_peer_run run;
        nib_err err = {NIB_OK, ""};
        refused(NIB_BAD_INPUT, parse(&run, texts[i], &err), &err);
    }
}

/* ---- another program ---- */

static nib_status run_shell(nib_process *p, const char *script, size_t limit,
                            bool (*goes_on)(void *ctx), nib_err *err)
{
    const char *const arguments[] = {"/bin/sh", "-c", script, NULL};
    const nib_allocator a = nib__allocator_default();
    const nib_process_job job = {.arguments = arguments, .limit = limit, .keep_going = goes_on};
    return nib__process_run(p, &job, &a, err);
}

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

static void a_program_gives_its_output_status_and_last_line(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_process p;
    nib_err err;
    const char *script =
        "echo one; echo first >&2; echo two; printf '\\n  the last\\tline \\n\\n' >&2; "
        "exit 3";
    assert_int_equal(run_shell(&p, script, 100, NULL, &err), NIB_OK);
    assert_string_equal(p.out, "one\ntwo\n");
    assert_int_equal(p.status, 3);
    assert_string_equal(p.last_line, "the last line ");
    nib__release(&a, p.out);
    assert_int_equal(run_shell(&p, "kill -9 $$", 100, NULL, &err), NIB_OK);
    assert_int_equal(p.status, 137);
    assert_string_equal(p.last_line, "");
    nib__release(&a, p.out);
    /* more of stdout, then of stderr, than a pipe holds */
    script = "i=0; while [ $i -lt 3000 ]; do echo a line that is long enough to fill pipes >&2; "
             "i=$((i + 1)); done; i=0; while [ $i -lt 3000 ]; do echo a line that is long enough; "
             "i=$((i + 1)); done";
    assert_int_equal(run_shell(&p, script, 1 << 20, NULL, &err), NIB_OK);
    assert_int_equal(p.size, 3000 * sizeof "a line that is long enough");
    nib__release(&a, p.out);
}

/* More than a pipe holds; less than is given; and nothing of it. */
static void a_program_reads_its_input(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20 };
    static const char *const scripts[] = {"tr a b | wc -c", "head -c 7 | tr a b", "echo none"};
    static const char *const outputs[] = {"1048576\n", "bbbbbbb", "none\n"};
    const nib_allocator a = nib__allocator_default();
    char *input = nib__calloc(&a, SIZE, 1);
    memset(input, 'a', SIZE);
    for (size_t i = 0; i < COUNT(scripts); i++) {
        const char *const arguments[] = {"/bin/sh", "-c", scripts[i], NULL};
        const nib_process_job job = {.arguments = arguments,
                                     .inherits = true,
                                     .input = input,
                                     .input_size = SIZE,
                                     .limit = 100};
        nib_process p;
        nib_err err;
        assert_int_equal(nib__process_run(&p, &job, &a, &err), NIB_OK);
        assert_string_equal(p.out, outputs[i]);
        nib__release(&a, p.out);
    }
    nib__release(&a, input);
}

static void a_program_that_fails_is_an_error(void **state)
{
    (void)state;
    const char *const missing[] = {"no-such-program", NULL}, *const gone[] = {"/no/such", NULL};
    const nib_allocator a = nib__allocator_default();
    nib_process p;
    nib_err err;
    const nib_process_job job = {.arguments = missing, .limit = 100};
    refused(NIB_UNSUPPORTED, nib__process_run(&p, &job, &a, &err), &err);
    const nib_process_job other = {.arguments = gone, .limit = 100};
    refused(NIB_IO, nib__process_run(&p, &other, &a, &err), &err);
    refused(NIB_IO, run_shell(&p, "while :; do echo much; done", 1000, NULL, &err), &err);
    refused(NIB_CANCELLED, run_shell(&p, "while :; do :; done", 100, never, &err), &err);
    assert_null(p.out);
}

/* ---- kernels ---- */

/* Every row that this CPU can run is timed, whatever its formats and group sizes. */
static void every_product_of_this_machine_is_timed(void **state)
{
    (void)state;
    nib_engine *engine;
    nib_err err;
    size_t count = 0;
    assert_int_equal(nib_engine_open(&engine, NULL, &err), NIB_OK);
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        bool here = row->op == NIB_OP_LINEAR && row->device == NIB_DEVICE_CPU &&
                    nib__kernel_built(row) && !nib__kernel_is_ref(row) && row->code != NIB_ANY;
        for (const nib_cond *c = row->conds; here && c->relation != NIB_REL_END; c++)
            here = c->fact != NIB_FACT_ISA || nib__cond_holds(c, &engine->here.facts);
        if (here != nib__bench_supports(engine, row))
            fail_msg("%s: runs here %d, timed %d", row->name, here, !here);
        count += here;
    }
    assert_true(count > 0 || engine->here.facts.fact[NIB_FACT_ISA] == 0);
    nib_engine_close(engine);
}

/* The timed product has the zero points and scale width of a real one: a zero point of 0 has its
 * own code path, and wider scales take more bytes. */
static void timed_products_match_real_ones(void **state)
{
    static const struct {
        const char *scheme;
        int32_t zero;
    } cases[] = {{"int8dq", 0}, {"8da4w-g32", -1}};
    enum { N = 64, K = 128, M = 9 };
    const nib_policy policy = {.dtype = NIB_TYPE_F32};
    nib_engine *engine;
    nib_timed timed;
    nib_err err;
    (void)state;
    assert_int_equal(nib_engine_open(&engine, &(nib_engine_options){.threads = 2}, &err), NIB_OK);
    assert_int_equal(nib__timed_open(&timed, engine, NULL, 1 << 20, &err), NIB_OK);
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        static uint64_t bytes[2];
        const bool wide = i % 2 != 0;
        const char *name = cases[i / 2].scheme;
        nib_layer layer = {.n = N,
                           .k = K,
                           .scale_type = wide ? NIB_TYPE_F32 : NIB_TYPE_BF16,
                           .act_scale_type = NIB_TYPE_F32};
        nib_scheme s;
        nib_variant way;
        nib_input in;
        assert_int_equal(nib__scheme_parse(&s, name, strlen(name), NULL), NIB_OK);
        layer.asked = s;
        nib__variant_find(&way, &layer, &s, &engine->here, &policy, NULL);
        assert_int_equal(nib__timed_set(&timed, &layer, &s, NIB_TYPE_F32, N, M, &err), NIB_OK);
        nib__input_place(&in, &s, NIB_TYPE_F32, M, K, timed.input, NULL);
        for (int r = 0; r < M; r++)
            assert_int_equal(in.zero[r], cases[i / 2].zero);
        for (int64_t m = 1; m <= M; m += M - 1) {
            const nib_kernel *row = nib__variant_use(&way, m)->kernel;
            double seconds = 0;
            assert_int_equal(nib__timed_linear(&timed, row, N, m, m == 1, &seconds, &err), NIB_OK);
            assert_true(seconds > 0);
            bytes[wide] = nib__timed_bytes(&timed, row, N);
        }
        assert_true(!wide || bytes[1] > bytes[0]);
    }
    nib__timed_close(&timed);
    nib_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_has_the_bits_of_each_sequence_alone),
        cmocka_unit_test(floats_are_timed_for_comparison),
        cmocka_unit_test(float_models_have_no_comparison),
        cmocka_unit_test(impossible_requests_are_refused),
        cmocka_unit_test(every_product_of_this_machine_is_timed),
        cmocka_unit_test(timed_products_match_real_ones),
        cmocka_unit_test(json_of_peers_is_parsed),
        cmocka_unit_test(other_output_of_peers_is_refused),
        cmocka_unit_test(a_program_gives_its_output_status_and_last_line),
        cmocka_unit_test(a_program_reads_its_input),
        cmocka_unit_test(a_program_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
