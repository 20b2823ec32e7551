/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts in training: a mixture of one expert has the bits of a model without experts,
 * also in a micro-batch of more than one block of tokens; products of heads over such a batch; the
 * bias that balances experts; logits that are not finite.
 */
#include "checkpoint_build.h"
#include "session_handle.h"
#include "step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TOKENS = NIB_SUM_BLOCK + 137, VOCAB = 40 };

static char root[] = "/tmp/nibble-mixture-XXXXXX";

#define MODEL(type, kv_heads, own)                                                                 \
    "{\"model_type\": \"" type "\", \"hidden_size\": 16, \"head_dim\": 8, "                        \
    "\"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "            \
    "\"num_key_value_heads\": " kv_heads ", \"vocab_size\": 40, "                                  \
    "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "         \
    "\"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"torch_dtype\": \"%s\"" own "}"

static const char dense[] = MODEL("qwen3", "1", "");
static const char experts[] =
    MODEL("qwen3_moe", "1",
          ", \"num_experts\": %d, \"num_experts_per_tok\": %d, \"moe_intermediate_size\": 24,"
          "\"decoder_sparse_step\": 1, \"norm_topk_prob\": true, \"mlp_only_layers\": []");

static const char heads[] =
    MODEL("deepseek_v3", "2",
          ", \"kv_lora_rank\": 12, \"q_lora_rank\": null, \"qk_nope_head_dim\": 5, "
          "\"qk_rope_head_dim\": 4, \"v_head_dim\": 7, \"n_routed_experts\": %d, \"n_group\": 1, "
          "\"topk_group\": 1, \"num_experts_per_tok\": %d, \"moe_intermediate_size\": 24, "
          "\"first_k_dense_replace\": 1, \"num_nextn_predict_layers\": 0");

typedef struct fixture {
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_arena arena;
    nib_params params;
    nib_step step;
    float *weights, *gradients;
    int32_t ids[TOKENS], targets[TOKENS], start[3];
    int64_t documents;
} fixture;

static void ok(nib_status status, const nib_err *err)
{
    if (status != NIB_OK)
        fail_msg("%s", err->text);
}

static uint32_t next(uint32_t *random) { return *random = *random * 1664525 + 1013904223; }

/* Values that depend on the name alone; those of expert 0 are those of the MLP. */
static void fill(fixture *f)
{
    for (size_t i = 0; i < f->params.count; i++) {
        const nib_param *p = &f->params.items[i];
        char name[160];
        snprintf(name, sizeof name, "%s", p->name);
        char *number = strstr(name, ".experts.0");
        if (number != NULL)
            memmove(number, number + 10, strlen(number + 10) + 1);
        uint32_t random = 7;
        for (const char *c = name; *c != '\0'; c++)
            random = random * 31 + (uint32_t)*c;
        for (size_t j = 0; j < nib__param_size(p); j++)
            f->weights[p->at + j] =
                (float)((int32_t)next(&random) >> 8) * 0x1p-24F + (p->role == NIB_PARAM_NORM);
    }
}

static void open_fixture(fixture *f, const char *json, const char *type, const char *recipe,
                         int threads)
{
    nib_err err;
    char path[64];
    *f = (fixture){0};
    snprintf(path, sizeof path, "%s/model.json", root);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(json, file);
    fclose(file);
    const nib_engine_options options = {.threads = threads};
    const nib_model_options bare = {.config_only = true};
    ok(nib_engine_open(&f->engine, &options, &err), &err);
    f->engine->measured = true;
    ok(nib_model_open(&f->model, f->engine, path, &bare, &err), &err);
    f->model->net.training = true;
    f->model->net.train = (nib_train_config){.batch = 1, .sequence = TOKENS};
    const nib_request request = {.dtype = type, .recipe = recipe};
    ok(nib_plan_open(&f->plan, f->model, &request, &err), &err);
    ok(nib_plan_status(f->plan, &err), &err);
    nib__arena_init(&f->arena, &f->engine->allocator, 0);
    ok(nib__params_list(&f->params, &f->model->net, &f->arena, &err), &err);
    f->weights = nib__arena_take(&f->arena, f->params.total, sizeof(float));
    f->gradients = nib__arena_take(&f->arena, nib__load_block(&f->params.load), sizeof(float));
    assert_true(f->weights && f->gradients);
    fill(f);
    const nib_step_options step = {.batch = 1, .length = TOKENS};
    nib_refusal refusal;
    ok(nib__step_open(&f->step, &f->model->net, &f->plan->assignment, &f->params, &step, &refusal,
                      &err),
       &err);
    uint32_t random = 3;
    for (int i = 0; i < TOKENS; i++)
        f->ids[i] = (int32_t)(next(&random) >> 16) % VOCAB;
    for (int i = 0; i < TOKENS; i++)
        f->targets[i] = f->ids[(i + 1) % TOKENS];
    f->start[1] = TOKENS;
    f->documents = 1;
}

static double run(fixture *f)
{
    nib_err err;
    nib_losses losses;
    const nib_micro_batch batch = {TOKENS, f->documents, f->ids, f->targets, f->start};
    ok(nib__step_cast(&f->step, f->weights, &err), &err);
    ok(nib__step_run(&f->step, f->weights, &batch, 1.0F / TOKENS, f->gradients, &losses, &err),
       &err);
    return losses.text;
}

static void close_fixture(fixture *f)
{
    nib__step_close(&f->step);
    nib__arena_free(&f->arena);
    nib_plan_close(f->plan);
    nib_model_close(f->model);
    nib_engine_close(f->engine);
}

static const nib_param *find(const fixture *f, const char *name)
{
    for (size_t i = 0; i < f->params.count; i++)
        if (strcmp(f->params.items[i].name, name) == 0)
            return &f->params.items[i];
    return NULL;
}

static const char *text_of(const char *form, const char *type, int count, int top_k)
{
    static char text[2][900];
    static int at;
    at = !at;
    snprintf(text[at], sizeof text[at], form, type, count, top_k);
    return text[at];
}

/* Its weight is 1 whatever its logit, so the router has no gradient. */
static void test_one_expert(void **state)
{
    static const char *const recipes[] = {NULL, NULL, "mxfp8"};
    (void)state;
    for (size_t r = 0; r < COUNT(recipes); r++) {
        static fixture f, g;
        const char *type = r == 0 ? "f32" : "bf16", *stored = r == 0 ? "float32" : "bfloat16";
        open_fixture(&f, text_of(dense, stored, 0, 0), type, recipes[r], 1);
        open_fixture(&g, text_of(experts, stored, 1, 1), type, recipes[r], 3);
        assert_true(run(&f) == run(&g));
        size_t same = 0;
        for (size_t i = 0; i < g.params.count; i++) {
            const nib_param *q = &g.params.items[i], *p;
            char name[160];
            snprintf(name, sizeof name, "%s", q->name);
            char *number = strstr(name, ".experts.0");
            if (number != NULL)
                memmove(number, number + 10, strlen(number + 10) + 1);
            p = find(&f, name);
            for (size_t j = 0; j < nib__param_size(q); j++) { /* -0 is 0 */
                const float want = p != NULL ? f.gradients[p->at + j] : 0;
                if (!(g.gradients[q->at + j] == want))
                    fail_msg("%s %s[%zu]: %.9g, not %.9g", recipes[r] != NULL ? recipes[r] : type,
                             q->name, j, (double)g.gradients[q->at + j], (double)want);
            }
            same += p != NULL;
        }
        assert_int_equal(same, f.params.count);
        for (int64_t i = 0; i < g.params.load.layers; i++)
            assert_true(*nib__load_counts(&g.params.load, g.gradients, i) == TOKENS);
        close_fixture(&f);
        close_fixture(&g);
    }
}

/* Splits the tokens into two documents, of which `first` tokens come first. */
static void split(fixture *f, int32_t first)
{
    f->start[1] = first, f->start[2] = TOKENS;
    f->documents = 2;
}

/* Two documents in either order have the same gradients but for rounding, so no block of tokens is
 * lost. Threads change no bit. */
static void test_heads(void **state)
{
    enum { FIRST = 1000, SECOND = TOKENS - FIRST };
    static const char *const recipes[] = {NULL, "bf16", "mxfp8", "fp8dq", "fp8dq-tensor"};
    (void)state;
    static fixture f, g;
    open_fixture(&f, text_of(heads, "float32", 4, 2), "f32", NULL, 2);
    open_fixture(&g, text_of(heads, "float32", 4, 2), "f32", NULL, 2);
    split(&f, FIRST);
    split(&g, SECOND);
    for (int i = 0; i < TOKENS; i++) {
        const int to = i < FIRST ? i + SECOND : i - FIRST;
        g.ids[to] = f.ids[i], g.targets[to] = f.targets[i];
    }
    const double loss = run(&f), other = run(&g);
    assert_true(fabs(loss - other) < 1e-6 * loss);
    for (size_t i = 0; i < f.params.count; i++) {
        const nib_param *p = &f.params.items[i];
        double size = 0, off = 0;
        for (size_t j = 0; j < nib__param_size(p); j++) {
            const double a = (double)f.gradients[p->at + j], b = (double)g.gradients[p->at + j];
            size += a * a, off += (a - b) * (a - b);
        }
        if (!(sqrt(off) <= 1e-4 * sqrt(size)))
            fail_msg("%s: %g of %g", p->name, sqrt(off), sqrt(size));
    }
    close_fixture(&f);
    close_fixture(&g);
    for (size_t r = 0; r < COUNT(recipes); r++) {
        const char *type = r == 0 ? "f32" : "bf16", *stored = r == 0 ? "float32" : "bfloat16";
        open_fixture(&f, text_of(heads, stored, 4, 2), type, recipes[r], 1);
        open_fixture(&g, text_of(heads, stored, 4, 2), type, recipes[r], 3);
        assert_true(run(&f) == run(&g));
        assert_memory_equal(f.gradients, g.gradients,
                            nib__load_block(&f.params.load) * sizeof(float));
        close_fixture(&f);
        close_fixture(&g);
    }
}

/* Each token counts once per chosen expert. */
static void test_counts(void **state)
{
    (void)state;
    static fixture f;
    open_fixture(&f, text_of(experts, "float32", 7, 3), "f32", NULL, 2);
    assert_true(isfinite(run(&f)));
    const nib_load_extremes x = nib__load_extremes(&f.params.load, f.gradients);
    for (int64_t i = 0; i < f.params.load.layers; i++) {
        double sum = 0;
        for (int e = 0; e < 7; e++)
            sum += (double)nib__load_counts(&f.params.load, f.gradients, i)[e];
        assert_true(sum == 3 * TOKENS);
    }
    assert_true(fabs(x.mean - 3.0 * TOKENS / 7) < 1e-9 && x.most >= 1 && x.least <= 1);
    close_fixture(&f);
}

/* The loss shows it, and nothing reads out of bounds. */
static void test_not_finite(void **state)
{
    (void)state;
    static fixture f;
    open_fixture(&f, text_of(experts, "float32", 5, 2), "f32", NULL, 2);
    f.weights[find(&f, "model.layers.1.mlp.gate.weight")->at] = NAN;
    assert_true(isnan(run(&f)));
    close_fixture(&f);
}

/* torchtitan: c sign(mean - count), minus the mean of these. */
static void test_bias(void **state)
{
    (void)state;
    const float counts[] = {10, 2, 4, 4, 0}; /* mean 4: signs -1, 1, 0, 0, 1; their mean is 0.2 */
    const float wanted[] = {-1.2F, 0.8F, -0.2F, -0.2F, 0.8F};
    float bias[5] = {0};
    nib__load_update_bias(bias, counts, 5, 0.5);
    for (int e = 0; e < 5; e++)
        assert_true(fabsf(bias[e] - 0.5F * wanted[e]) < 1e-7F);
    nib__load_update_bias(bias, counts, 5, 0);
    assert_true(bias[0] == -0.6F);
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_expert), cmocka_unit_test(test_heads),
        cmocka_unit_test(test_counts),     cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_bias),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
