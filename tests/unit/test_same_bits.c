/* SPDX-License-Identifier: Apache-2.0
 *
 * The same checkpoint and recipe give the same bits: logits for any number of threads, batch,
 * prompt chunks and instruction set equal those of one thread of plain C with one sequence at a
 * time.
 */
#include "session.h"
#include "skipping.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* ten times as slow: fewer */
static const char *const all_isas[] = {"avx2", NULL /* the best of this machine */};
static const int all_threads[] = {1, 3}, all_batches[] = {1, 7};
enum { LENGTH = 4, SHIPPED_LENGTH = 2, LONG_LENGTH = 262, DTYPES = 2 };
#else
static const char *const all_isas[] = {"ref", "avx2", "avx512", NULL};
static const int all_threads[] = {1, 2, 3, 8}, all_batches[] = {1, 2, 7, 32};
enum { LENGTH = 6, SHIPPED_LENGTH = 20, LONG_LENGTH = 290, DTYPES = 4 };
#endif

enum { BASES = 3, LARGEST_BATCH = 32 };

/* Sequence j of a batch has the tokens of base sequence j % BASES. */
typedef struct workload {
    const char *path;
    int64_t length, vocab;
    int32_t *tokens; /* [BASES][length] */
    float *want;     /* [BASES][length][vocab] */
} workload;

/* Runs `batch` sequences, `chunk` tokens of each per step; the logits of every position must equal
 * those of its base sequence. Sequences start one step apart, so that a batch mixes positions. */
static bool runs_equal(nib_session *s, const workload *w, int batch, int64_t chunk, int64_t *where)
{
    nib_slot *slots = calloc((size_t)(batch * chunk), sizeof *slots);
    int64_t at[LARGEST_BATCH] = {0}, left = batch * w->length;
    const size_t row = (size_t)w->vocab * sizeof *w->want;
    bool same = true;
    for (int j = 0; j < batch; j++)
        assert_int_equal(nib_session_truncate(s, j, 0, NULL), NIB_OK);
    for (int64_t step = 0; left > 0 && same; step++) {
        size_t count = 0;
        for (int j = 0; j < batch; j++)
            for (int64_t n = 0; n < chunk && step >= j % BASES && at[j] < w->length; n++, at[j]++)
                slots[count++] = (nib_slot){
                    j, (int32_t)at[j], w->tokens[j % BASES * w->length + at[j]], NIB_SLOT_LOGITS};
        const float *logits;
        nib_err err;
        if (nib_session_step(s, slots, count, &logits, &err) != NIB_OK)
            fail_msg("%s", err.text);
        for (size_t i = 0; i < count && same; i++) {
            *where = slots[i].position;
            same = memcmp(logits + (int64_t)i * w->vocab,
                          w->want + (slots[i].sequence % BASES * w->length + slots[i].position) *
                                        w->vocab,
                          row) == 0;
        }
        left -= (int64_t)count;
    }
    free(slots);
    return same;
}

/* The reference logits. */
static void fill_workload(workload *w, const open_how *how)
{
    open_how plain = *how;
    plain.isa = "ref", plain.threads = 1, plain.sequences = 1;
    opened o = must_open(&plain);
    w->vocab = nib_session_vocab(o.session);
    w->tokens = calloc((size_t)(BASES * w->length), sizeof *w->tokens);
    w->want = calloc((size_t)(BASES * w->length * w->vocab), sizeof *w->want);
    nib_slot *slots = calloc((size_t)w->length, sizeof *slots);
    uint32_t random = 12345;
    for (int b = 0; b < BASES; b++) {
        for (int64_t i = 0; i < w->length; i++) {
            random = random * 1664525u + 1013904223u;
            w->tokens[b * w->length + i] = (int32_t)((random >> 8) % (uint32_t)w->vocab);
            slots[i] = (nib_slot){0, (int32_t)i, w->tokens[b * w->length + i], NIB_SLOT_LOGITS};
        }
        const float *logits;
        nib_err err;
        assert_int_equal(nib_session_truncate(o.session, 0, 0, NULL), NIB_OK);
        if (nib_session_step(o.session, slots, (size_t)w->length, &logits, &err) != NIB_OK)
            fail_msg("%s", err.text);
        memcpy(w->want + b * w->length * w->vocab, logits,
               (size_t)(w->length * w->vocab) * sizeof *logits);
    }
    for (int64_t i = 0; i < BASES * w->length * w->vocab; i++)
        assert_true(w->want[i] - w->want[i] == 0); /* finite */
    free(slots);
    close_opened(&o);
}

static void free_workload(workload *w)
{
    free(w->tokens);
    free(w->want);
}

/* Prints the distinct rows of a plan, so that a failure says where to look. */
static void print_rows(const nib_plan *plan)
{
    const char *last = "";
    for (size_t i = 0; i < plan->assignment.count; i++)
        for (int u = 0; u < plan->assignment.layers[i].use_count; u++) {
            const nib_use *use = &plan->assignment.layers[i].uses[u];
            if (strcmp(use->kernel->name, last) != 0)
                print_message("    m from %d: %s, input by %s\n", (int)use->m_min,
                              use->kernel->name, use->quant ? use->quant->name : "-");
            last = use->kernel->name;
        }
}

static int failures;

static void check_run(const opened *o, const workload *w, const open_how *how, int batch,
                      int64_t chunk)
{
    int64_t where = 0;
    if (runs_equal(o->session, w, batch, chunk, &where))
        return;
    failures++;
    print_message(
        "%s, recipe %s, dtype %s, cache %s: isa %s, %d threads, %d sequences by %d tokens: the "
        "logits of position %d differ\n",
        w->path, how->recipe ? how->recipe : "as stored", how->dtype,
        how->cache ? how->cache : "the same", how->isa ? how->isa : "best", how->threads, batch,
        (int)chunk, (int)where);
    print_rows(o->plan);
}

/* threads x batch x ISA; the chunk size rotates, so that every pair of settings occurs. `make test`
 * runs one batch of every other pair of threads and ISA; which ones rotates with the schemes. */
static void check_scheme(const char *path, const char *recipe, const char *dtype, const char *cache)
{
    static const int64_t chunks[] = {1, 4, LENGTH, 3};
    open_how how = {
        .path = path, .recipe = recipe, .dtype = dtype, .cache = cache, .sequences = LARGEST_BATCH};
    workload w = {.path = path, .length = LENGTH};
    fill_workload(&w, &how);
    static size_t scheme = 0;
    const size_t step = (size_t)sampled((int)COUNT(all_batches));
    const size_t pairs = (size_t)sampled(2);
    size_t turn = scheme++;
    for (size_t i = 0; i < COUNT(all_isas); i++)
        for (size_t t = 0; t < COUNT(all_threads) && isa_is_here(all_isas[i]); t++, turn++) {
            if ((scheme / 2 + i + t) % pairs != 0)
                continue;
            how.isa = all_isas[i], how.threads = all_threads[t];
            opened o = must_open(&how);
            for (size_t b = turn % step; b < COUNT(all_batches); b += step)
                check_run(&o, &w, &how, all_batches[b],
                          chunks[(scheme / 4 + turn + b) % COUNT(chunks)]);
            close_opened(&o);
        }
    free_workload(&w);
}

static const struct {
    const char *recipe, *dtype;
} schemes[] = {
    {NULL, "f32"},
    {NULL, "bf16"},
    {NULL, "f16"},
    {"int8wo", "bf16"},
    {"int8wo", "f32"},
    {"int8wo-g32", "bf16"},
    {"int4wo-g32", "bf16"},
    {"int4wo-g32", "f32"},
    {"int4wo-g32", "f16"},
    {"int4wo-g32-sym", "bf16"},
    {"int4wo-g24", "f32"},
    {"8da4w-g32", "bf16"},
    {"8da4w-g32-asym", "bf16"},
    {"8da4w-g32-actsym", "f32"},
    {"int8dq", "bf16"},
    {"int8dq-g32", "bf16"},
    {"fp8wo", "bf16"},
    {"fp8wo-tensor", "f32"},
    {"fp8dq", "bf16"},
    {"fp8dq-tensor", "bf16"},
    {"mxfp8", "bf16"},
    {"mxfp8-floor", "f32"},
    {"nvfp4dq", "bf16"},
    {"nvfp4dq-block", "f32"},
    {"4da4w", "bf16"},
};

/* A tiny Qwen2: k of 64 and 140, whose last group is short; n of 16, 64, 140, 257; biases. */
static void test_schemes(void **state)
{
    (void)state;
    failures = 0;
    for (size_t i = 0; i < COUNT(schemes); i++)
        check_scheme("tests/golden/models/qwen2", schemes[i].recipe, schemes[i].dtype, NULL);
    assert_int_equal(failures, 0);
}

/* A tiny mixture of experts: 3 of 9 chosen, so that batches of 7 and 32 share experts. */
static void test_experts(void **state)
{
    (void)state;
    failures = 0;
    for (size_t i = 0; i < COUNT(schemes); i++)
        check_scheme("tests/golden/models/qwen3_moe", schemes[i].recipe, schemes[i].dtype, NULL);
    check_scheme("tests/golden/models/mixtral", NULL, "f32", NULL);
    check_scheme("tests/golden/models/glm4_moe", "8da4w-g32", "bf16", NULL);
    check_scheme("tests/golden/models/gpt_oss", "8da4w-g32", "bf16", "int8");
    check_scheme("tests/golden/models/gpt_oss", NULL, "f32", NULL);
    check_scheme("tests/golden/models/llama4", "8da4w-g32", "bf16", "int8");
    check_scheme("tests/golden/models/llama4", NULL, "f32", NULL);
    check_scheme("tests/golden/models/gemma4", "8da4w-g32", "bf16", "int8");
    check_scheme("tests/golden/models/gemma4", NULL, "f32", NULL);
    check_scheme("tests/golden/models/gemma4_shared", "8da4w-g32", "bf16", "int8");
    check_scheme("tests/golden/models/gemma4_shared", "8da4w-g32+embed", "f32", NULL);
    check_scheme("tests/golden/gguf/qwen3moe.gguf", NULL, "f32", NULL);
    assert_int_equal(failures, 0);
}

/* Two of three layers have a short convolution, whose state batches and chunks continue. */
static void test_convolutions(void **state)
{
    (void)state;
    failures = 0;
    check_scheme("tests/golden/models/lfm2", NULL, "f32", NULL);
    check_scheme("tests/golden/models/lfm2", "8da4w-g16", "bf16", "int8");
    check_scheme("tests/golden/models/lfm2_listed", "int8dq", "f32", NULL);
    assert_int_equal(failures, 0);
}

/* Three of four layers have the gated delta rule, whose matrices are behind the sequence. */
static void test_gated_delta(void **state)
{
    (void)state;
    failures = 0;
    check_scheme("tests/golden/models/qwen3_next", NULL, "f32", NULL);
    check_scheme("tests/golden/models/qwen3_5", "8da4w-g16", "bf16", "int8");
    check_scheme("tests/golden/models/qwen3_5_moe", "int8dq", "f32", NULL);
    assert_int_equal(failures, 0);
}

/* Layers with Mamba-2, which roll back likewise. */
static void test_mamba(void **state)
{
    (void)state;
    failures = 0;
    check_scheme("tests/golden/models/granite_hybrid", NULL, "f32", NULL);
    check_scheme("tests/golden/models/granite_hybrid", "8da4w-g16", "bf16", "int8");
    check_scheme("tests/golden/models/granite_hybrid_moe", "int8dq", "f32", NULL);
    assert_int_equal(failures, 0);
}

/* Latent attention: heads of 16 by 48, whose groups are short; keys that hold the values. */
static void test_latent(void **state)
{
    static const struct {
        const char *recipe, *dtype, *cache;
    } cases[] = {
        {NULL, "f32", NULL},         {NULL, "bf16", "int8"},        {NULL, "f16", NULL},
        {"8da4w-g32", "bf16", NULL}, {"int4wo-g32", "f32", "bf16"}, {"int8dq", "bf16", NULL},
        {"fp8dq", "bf16", NULL},     {"mxfp8", "bf16", NULL},       {"nvfp4dq", "bf16", NULL}};
    (void)state;
    failures = 0;
    for (size_t i = 0; i < COUNT(cases); i++)
        check_scheme("tests/golden/models/deepseek_v3", cases[i].recipe, cases[i].dtype,
                     cases[i].cache);
    check_scheme("tests/golden/models/deepseek_v2", NULL, "f32", NULL);
    assert_int_equal(failures, 0);
}

/* KV caches of another type than the activations. */
static void test_caches(void **state)
{
    (void)state;
    failures = 0;
    check_scheme("tests/golden/models/qwen2", NULL, "f32", "int8");
    check_scheme("tests/golden/models/qwen2", "8da4w-g32", "bf16", "int8");
    check_scheme("tests/golden/models/qwen2", NULL, "bf16", "f32");
    check_scheme("tests/golden/models/qwen2", NULL, "f32", "int4");
    check_scheme("tests/golden/models/qwen2", "8da4w-g32", "bf16", "int4-hadamard");
    check_scheme("tests/golden/models/qwen2", NULL, "f32", "int8:int4");
    check_scheme("tests/golden/models/gpt_oss", NULL, "bf16", "f16-hadamard:int8");
    check_scheme("tests/golden/models/deepseek_v3", NULL, "f32", "int4-hadamard");
    assert_int_equal(failures, 0);
}

/* Every block type of GGUF, with ggml's activations and with floats. */
static void test_gguf(void **state)
{
    (void)state;
    failures = 0;
    check_scheme("tests/golden/gguf/llama.gguf", NULL, "f32", NULL);
    check_scheme("tests/golden/gguf/llama.gguf", "weight-only", "f32", NULL);
    assert_int_equal(failures, 0);
}

/* Fused operations give the bits of the separate ones. */
static void test_fused_operations(void **state)
{
    static const char *const passes[] = {"rope_copy_f32*", "norm_quant_f32*"};
    static const struct {
        const char *path, *recipe, *dtype, *cache;
    } cases[] = {{"tests/golden/models/qwen2", NULL, "bf16", NULL},
                 {"tests/golden/models/qwen2", "8da4w-g32", "f32", "int8"},
                 {"tests/golden/models/qwen2", "int8dq", "bf16", NULL},
                 {"tests/golden/models/qwen2", "4da4w", "bf16", "f16"},
                 {"tests/golden/gguf/llama.gguf", NULL, "f32", NULL}};
    (void)state;
    failures = 0;
    for (size_t i = 0; i < COUNT(cases); i++) {
        open_how how = {.path = cases[i].path,
                        .recipe = cases[i].recipe,
                        .dtype = cases[i].dtype,
                        .cache = cases[i].cache,
                        .sequences = LARGEST_BATCH,
                        .without = {passes, COUNT(passes)}};
        workload w = {.path = how.path, .length = LENGTH};
        fill_workload(&w, &how);
        how.without = (nib_strings){NULL, 0};
        for (how.threads = 1; how.threads <= 2; how.threads++) {
            opened o = must_open(&how);
            assert_non_null(nib__plan_operation(&o.plan->assignment, NIB_OP_ROPE_COPY));
            check_run(&o, &w, &how, 1, 1);
            check_run(&o, &w, &how, 7, 4);
            close_opened(&o);
        }
        free_workload(&w);
    }
    assert_int_equal(failures, 0);
}

/* Longer than one softmax block, and than one pass of NIB_CHUNK slots. */
static void test_long(void **state)
{
    (void)state;
    failures = 0;
    static const char *const dtypes[] = {"bf16", "bf16", "f32", "f16", "bf16", "f32"};
    static const char *const caches[COUNT(dtypes)] = {"int8", NULL, NULL, NULL, "int8"};
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        if (d >= DTYPES && d < 4)
            continue;
        open_how how = {.path = d < 4 ? "tests/golden/models/llama3"
                                      : "tests/golden/models/deepseek_v3",
                        .dtype = dtypes[d],
                        .cache = caches[d],
                        .sequences = 2};
        workload w = {.path = how.path, .length = LONG_LENGTH};
        fill_workload(&w, &how);
        for (size_t i = 0; i < COUNT(all_isas); i++) {
            how.isa = all_isas[i], how.threads = (int)(1 + i);
            if (!isa_is_here(how.isa))
                continue;
            opened o = must_open(&how);
            check_run(&o, &w, &how, 2, w.length);
            check_run(&o, &w, &how, 1, 37);
            close_opened(&o);
        }
        free_workload(&w);
    }
    assert_int_equal(failures, 0);
}

/* The shipped model, with realistic sizes. */
static void test_shipped_model(void **state)
{
    (void)state;
    static const char *const recipes[] = {NULL, "8da4w-g32", "int4wo-g32", "int8wo"};
    failures = 0;
    for (size_t r = 0; r < COUNT(recipes); r++) {
        open_how how = {
            .path = "models/nibble-tales", .recipe = recipes[r], .dtype = "bf16", .sequences = 8};
        workload w = {.path = how.path, .length = SHIPPED_LENGTH};
        fill_workload(&w, &how);
        static const char *const isas[] = {"avx2", NULL};
        for (size_t i = 0; i < COUNT(isas); i++) {
            how.isa = isas[i], how.threads = (int)(2 + i);
            if (!isa_is_here(how.isa))
                continue;
            opened o = must_open(&how);
            check_run(&o, &w, &how, 1, w.length);
            check_run(&o, &w, &how, 1, 1);
            check_run(&o, &w, &how, 7, 13);
            close_opened(&o);
        }
        free_workload(&w);
    }
    assert_int_equal(failures, 0);
}

/* Products that share an input run in one round of the workers (k and v with q, up with gate) and
 * give the same bits as separately. */
static void test_joined_products(void **state)
{
    static const char *const recipes[] = {NULL, "8da4w-g32", "int4wo-g32"};
    (void)state;
    failures = 0;
    for (size_t r = 0; r < COUNT(recipes); r++) {
        open_how how = {.path = "models/nibble-tales", .recipe = recipes[r], .threads = 3};
        workload w = {.path = how.path, .length = SHIPPED_LENGTH};
        fill_workload(&w, &how);
        opened o = must_open(&how);
        nib_lowered *ops = &o.session->runner.ops;
        int64_t joins = 0;
        check_run(&o, &w, &how, 1, 1);
        for (size_t i = 0; i < ops->count; i++) {
            joins += ops->nodes[i].joins;
            ops->nodes[i].joins = false;
        }
        assert_int_equal(joins, 3 * o.model->net.config.layers);
        check_run(&o, &w, &how, 1, 1);
        close_opened(&o);
        free_workload(&w);
    }
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_gated_delta),
        cmocka_unit_test(test_mamba),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_caches),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_shipped_model),
        cmocka_unit_test(test_joined_products),
        cmocka_unit_test(test_fused_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
