/* SPDX-License-Identifier: Apache-2.0
 *
 * Training steps on a tiny model: non-finite values and spikes stop or skip a step before weights
 * change, and the error names where they began; torchtitan's learning rates; clipping; validation
 * loss; cast losses; predicted memory.
 */
#include "cast_losses.h"
#include "skipping.h"
#include "train_state.h"
#include "trainer.h"
#include "validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

static char root[] = "/tmp/nibble-trainer-XXXXXX";

static const char model_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, "
    "\"intermediate_size\": %d, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"vocab_size\": %d, \"max_position_embeddings\": 256, "
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": %s, \"torch_dtype\": \"%s\"}";

/* ---- files ---- */

static const char *in_root(const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void write_text(const char *name, const char *text, size_t size)
{
    FILE *f = fopen(in_root(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    fclose(f);
}

static void write_model(const char *name, int width, int ffn, int vocab, const char *tied,
                        const char *type)
{
    char text[512];
    const int size = snprintf(text, sizeof text, model_json, width, ffn, vocab, tied, type);
    write_text(name, text, (size_t)size);
}

/* Documents of varying words, as JSON lines. */
static void write_documents(const char *name, int count, uint32_t random)
{
    static char text[60000];
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"text\": \"");
        for (int word = 0; word < 4 + i * i % 37; word++) {
            random = random * 1664525 + 1013904223;
            used += (size_t)snprintf(text + used, sizeof text - used, "w%u and ", random >> 26);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "end.\"}\n");
    }
    write_text(name, text, used);
}

/* Documents of one word. */
static void write_words(const char *name, int count)
{
    static char text[60000];
    size_t used = 0;
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"text\": \"w%d\"}\n", i);
    write_text(name, text, used);
}

static int make_root(void **state)
{
    (void)state;
    if (!mkdtemp(root))
        return -1;
    write_documents("text.jsonl", 60, 1);
    write_documents("other.jsonl", 12, 7);
    write_words("words.jsonl", 2000);
    write_model("tiny.json", 32, 48, 920, "false", "float32");
    write_model("tiny_bf16.json", 32, 48, 920, "false", "bfloat16");
    write_model("tall_bf16.json", 32, 4400, 920, "false", "bfloat16");
    write_model("wide.json", 512, 1536, 8192, "true", "float32");
    write_model("wide_bf16.json", 512, 1536, 8192, "true", "bfloat16");
    const nib_allocator a = nib__allocator_default();
    char *json;
    size_t size;
    nib_err err;
    if (nib__file_read(&json, &size, "tests/golden/tokenizer_bytes.json", 1 << 20, &a, &err))
        return -1;
    write_text("tokenizer.json", json, size);
    free(json);
    return 0;
}

static int remove_root(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

/* ---- a run ---- */

typedef struct fixture {
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_trainer trainer;
    char log[4096];
} fixture;

/* Differences from the usual config. */
typedef struct setting {
    const char *model, *dtype, *recipe, *dataset, *validation;
    nib_strings without;
    int64_t global_batch, batch, sequence, validation_steps;
    double rate, max_norm, spike, norm_spike;
    bool skip, qat;
    int threads;
    nib_ac checkpointing;
} setting;

static void expect_ok(nib_status status, const nib_err *err)
{
    if (status != NIB_OK)
        fail_msg("%s", err->text);
}

static void on_log(void *ctx, const char *line)
{
    fixture *f = ctx;
    const size_t used = strlen(f->log);
    snprintf(f->log + used, sizeof f->log - used, "%s\n", line);
}

static nib_train_config config_of(const setting *s)
{
    return (nib_train_config){.dump_folder = root,
                              .document_mask = true,
                              .dataset = in_root(s->dataset ? s->dataset : "text.jsonl"),
                              .batch = s->batch ? s->batch : 2,
                              .sequence = s->sequence ? s->sequence : 24,
                              .global_batch = s->global_batch ? s->global_batch : 4,
                              .steps = 50,
                              .max_norm = s->max_norm,
                              .seed = 5,
                              .dtype = NIB_TYPE_F32,
                              .qat = s->qat,
                              .checkpointing = s->checkpointing,
                              .rate = s->rate > 0 ? s->rate : 1e-2,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .decay_ratio = 0,
                              .log_every = 1,
                              .spike = s->spike,
                              .norm_spike = s->norm_spike,
                              .skip_bad_steps = s->skip,
                              .validation = s->validation,
                              .validation_every = 5,
                              .validation_steps = s->validation_steps,
                              .timeout_s = 10};
}

static void open_fixture(fixture *f, const setting *s)
{
    nib_err err;
    *f = (fixture){0};
    const nib_engine_options options = {.threads = s->threads ? s->threads : 1,
                                        .callbacks = {NULL, on_log, f}};
    const nib_model_options bare = {.config_only = true};
    expect_ok(nib_engine_open(&f->engine, &options, &err), &err);
    f->engine->measured = true;
    expect_ok(nib_model_open(&f->model, f->engine, in_root(s->model ? s->model : "tiny.json"),
                             &bare, &err),
              &err);
    f->model->net.training = true;
    f->model->net.train = config_of(s);
    const nib_request request = {
        .dtype = s->dtype ? s->dtype : "f32", .recipe = s->recipe, .without = s->without};
    expect_ok(nib_plan_open(&f->plan, f->model, &request, &err), &err);
    expect_ok(nib_plan_status(f->plan, &err), &err);
    expect_ok(nib__trainer_open(&f->trainer, f->model, f->plan, NULL, &err), &err);
}

static void close_fixture(fixture *f)
{
    nib__trainer_close(&f->trainer);
    nib_plan_close(f->plan);
    nib_model_close(f->model);
    nib_engine_close(f->engine);
}

static nib_step_report step(fixture *f)
{
    nib_err err;
    nib_step_report report;
    expect_ok(nib__trainer_step(&f->trainer, &report, &err), &err);
    return report;
}

/* The step is refused; the error names this layer, or whichever for "". */
static void expect_stop(fixture *f, const char *name)
{
    nib_err err;
    nib_step_report report;
    refused(NIB_CHECK_FAILED, nib__trainer_step(&f->trainer, &report, &err), &err);
    assert_int_equal(nib_status_exit(err.status), 8);
    assert_non_null(strstr(err.text, name));
}

static float *weight_of(fixture *f, const char *name)
{
    for (size_t i = 0; i < f->trainer.params.count; i++)
        if (strcmp(f->trainer.params.items[i].name, name) == 0)
            return f->trainer.weights + f->trainer.params.items[i].at;
    fail_msg("no parameter %s", name);
    return NULL;
}

/* Everything that a training step changes. */
typedef struct held {
    float *weights, *m, *v;
    size_t bytes;
} held;

static held copy_state(const fixture *f)
{
    const size_t bytes = f->trainer.params.total * sizeof(float);
    held h = {malloc(bytes), malloc(bytes), malloc(bytes), bytes};
    assert_true(h.weights && h.m && h.v);
    memcpy(h.weights, f->trainer.weights, bytes);
    memcpy(h.m, f->trainer.optimizer.m, bytes);
    memcpy(h.v, f->trainer.optimizer.v, bytes);
    return h;
}

static void expect_state(held *h, const fixture *f)
{
    assert_memory_equal(h->weights, f->trainer.weights, h->bytes);
    assert_memory_equal(h->m, f->trainer.optimizer.m, h->bytes);
    assert_memory_equal(h->v, f->trainer.optimizer.v, h->bytes);
    free(h->weights), free(h->m), free(h->v);
}

/* ---- values that are not finite ---- */

static void test_names_the_first_bad_layer(void **state)
{
    static const struct {
        const char *name;
        float value;
    } cases[] = {
        {"model.layers.1.mlp.down_proj", NAN},
        {"model.layers.0.self_attn.k_proj", INFINITY},
        {"model.layers.1.post_attention_layernorm", -INFINITY},
        {"model.norm", NAN},
        {"lm_head", NAN},
        {"model.layers.1.self_attn.o_proj", 3e38f}, /* finite, unlike its products */
    };
    char weight[96];
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++) {
            fixture f;
            open_fixture(&f, &(setting){.skip = cases[i].value != 3e38f,
                                        .threads = 2,
                                        .checkpointing = (nib_ac)ac});
            step(&f), step(&f);
            snprintf(weight, sizeof weight, "%s.weight", cases[i].name);
            float *w = weight_of(&f, weight);
            for (int j = 0; j < 32; j++)
                w[j] = cases[i].value;
            held before = copy_state(&f);
            expect_stop(&f, cases[i].name);
            expect_state(&before, &f);
            assert_int_equal(f.trainer.optimizer.steps, 2);
            close_fixture(&f);
        }
}

/* Inputs of layers with several widths are quantized in one buffer, where a bad step leaves its
 * values. */
static void test_names_the_first_bad_layer_qat(void **state)
{
    fixture f;
    (void)state;
    open_fixture(&f, &(setting){.recipe = "8da4w-g16", .qat = true});
    step(&f);
    weight_of(&f, "model.layers.0.mlp.gate_proj.weight")[0] = NAN;
    expect_stop(&f, "model.layers.0.mlp.gate_proj");
    close_fixture(&f);
}

static void scale(fixture *f, const char *name, float factor)
{
    const nib_params *p = &f->trainer.params;
    float *w = weight_of(f, name);
    for (size_t i = 0; i < p->count; i++)
        for (size_t j = 0;
             f->trainer.weights + p->items[i].at == w && j < nib__param_size(&p->items[i]); j++)
            w[j] *= factor;
}

/* The loss is finite but the backward pass is not: norms scale a residual of 1e-18 to 1, so they
 * multiply gradients by 1e18. */
static void test_names_the_first_bad_gradient(void **state)
{
    fixture f;
    (void)state;
    open_fixture(&f, &(setting){0});
    f.model->net.config.norm_eps = 0;
    scale(&f, "model.embed_tokens.weight", 1e-18f);
    for (int layer = 0; layer < 2; layer++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.weight", layer);
        scale(&f, name, 0);
        snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", layer);
        scale(&f, name, 0);
    }
    scale(&f, "lm_head.weight", 1e25f);
    held before = copy_state(&f);
    expect_stop(&f, "");
    expect_state(&before, &f);
    close_fixture(&f);
}

/* A skipped step advances the data and the step count and changes nothing else: the next step has
 * the bits of a run that never ran the bad one. */
static void test_skipped_steps_change_no_weight(void **state)
{
    fixture f, other;
    (void)state;
    open_fixture(&f, &(setting){.skip = true});
    open_fixture(&other, &(setting){.skip = true});
    step(&f), step(&other);
    float *w = weight_of(&f, "model.layers.0.mlp.up_proj.weight");
    const float kept = w[0];
    w[0] = 3e38f, w[1] = 3e38f;
    held before = copy_state(&f);
    const nib_data_position place = f.trainer.data.position;
    const double mean = f.trainer.mean_loss;
    const nib_step_report report = step(&f);
    assert_true(report.skipped);
    assert_int_equal(report.step, 2);
    assert_int_equal(f.trainer.optimizer.steps, 2);
    assert_int_equal(f.trainer.data.position.sequences, place.sequences + 4);
    assert_true(f.trainer.mean_loss == mean);
    assert_non_null(strstr(f.log, "step 2: the "));
    assert_non_null(strstr(f.log, "model.layers.0.mlp.up_proj"));
    expect_state(&before, &f);
    /* the third step reads the data that it would have read */
    nib_err err;
    expect_ok(nib__data_skip(&other.trainer.data, 4, &err), &err);
    other.trainer.optimizer.steps++;
    w[0] = kept;
    w[1] = weight_of(&other, "model.layers.0.mlp.up_proj.weight")[1];
    const nib_step_report a = step(&f), b = step(&other);
    assert_false(a.skipped);
    assert_true(a.loss == b.loss && a.norm == b.norm && a.step == 3);
    close_fixture(&f);
    close_fixture(&other);
}

/* Skipped steps do not count for AdamW: at its first update m / (1 - beta1) is the gradient, so
 * most weights change by the rate. The count survives a checkpoint. */
static void test_skipped_steps_do_not_count_for_adamw(void **state)
{
    fixture f, other;
    nib_err err;
    (void)state;
    open_fixture(&f, &(setting){.skip = true});
    float *w = weight_of(&f, "model.layers.0.mlp.up_proj.weight");
    const float kept[2] = {w[0], w[1]};
    w[0] = 3e38f, w[1] = 3e38f;
    assert_true(step(&f).skipped);
    w[0] = kept[0], w[1] = kept[1];
    held before = copy_state(&f);
    assert_false(step(&f).skipped);
    float most = 0;
    for (size_t i = 0, at = (size_t)(w - f.trainer.weights); i < 64; i++)
        most = fmaxf(most, fabsf(w[i] - before.weights[at + i]));
    assert_true(most > 0.99e-2f && most < 1.02e-2f);
    free(before.weights), free(before.m), free(before.v);
    assert_int_equal(f.trainer.optimizer.skipped, 1);
    assert_int_equal(mkdir(in_root("skipped"), 0777), 0);
    expect_ok(nib__state_write(&f.trainer, in_root("skipped"), &err), &err);
    open_fixture(&other, &(setting){.skip = true});
    expect_ok(nib__state_read(&other.trainer, in_root("skipped"), &err), &err);
    assert_true(other.trainer.optimizer.skipped == 1 && other.trainer.optimizer.steps == 2);
    step(&f), step(&other);
    held after = copy_state(&f);
    expect_state(&after, &other);
    close_fixture(&f);
    close_fixture(&other);
}

static void test_spikes(void **state)
{
    fixture f;
    (void)state;
    /* a rate that ruins the model in one step */
    open_fixture(&f, &(setting){.rate = 10, .spike = 2});
    step(&f);
    held before = copy_state(&f);
    expect_stop(&f, "");
    expect_state(&before, &f);
    close_fixture(&f);
    open_fixture(&f, &(setting){.rate = 10, .spike = 2, .skip = true});
    step(&f);
    assert_true(step(&f).skipped && step(&f).skipped);
    /* the log has the error even if the caller passes no nib_err */
    f.log[0] = '\0';
    nib_step_report report;
    assert_int_equal(nib__trainer_step(&f.trainer, &report, NULL), NIB_OK);
    assert_true(report.skipped);
    assert_non_null(strstr(f.log, "step 4: the loss of "));
    close_fixture(&f);
    open_fixture(&f, &(setting){.norm_spike = 3});
    step(&f);
    f.trainer.mean_norm = 1e-3;
    expect_stop(&f, "");
    close_fixture(&f);
}

/* ---- no poisoned checkpoint ---- */

static nib_status to_nowhere(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_OK;
}

static void expect_run_stops(const char *folder, double rate, double spike)
{
    fixture f;
    nib_err err;
    open_fixture(&f, &(setting){.rate = rate, .spike = spike});
    f.model->net.train.save = true;
    f.model->net.train.folder = folder;
    f.model->net.train.interval = 1;
    f.model->net.train.load_step = -1;
    const nib_train_options none = {0};
    const nib_sink sink = {to_nowhere, NULL};
    refused(NIB_CHECK_FAILED, nib_train(f.model, f.plan, &none, &sink, &err), &err);
    close_fixture(&f);
}

static bool exists(const char *name) { return nib__path_kind(in_root(name)) != NIB_PATH_NONE; }

static void test_no_poisoned_checkpoint(void **state)
{
    (void)state;
    /* a bad step keeps the checkpoint of the previous step */
    expect_run_stops("spiked", 10, 2);
    assert_true(exists("spiked/step-00000001/nibble.json"));
    assert_false(exists("spiked/step-00000002") || exists("spiked/step-00000002.part"));
    /* the checkpoint is whole: the run resumes and fails the same way */
    expect_run_stops("spiked", 10, 2);
    /* an overflowing update is found when the checkpoint is written */
    expect_run_stops("poisoned", 1e39, 0);
    assert_false(exists("poisoned/step-00000001") || exists("poisoned/step-00000001.part"));
}

/* ---- the schedule and clipping ---- */

/* torchtitan's linear_warmup_stable_decay with its names and three stages; its lambda gets the
 * number of the last update. */
static double titan_rate(int64_t current, int64_t steps, int64_t warmup, double ratio,
                         nib_decay type, double lowest)
{
    if (warmup > steps)
        warmup = steps;
    int64_t decay = ratio < 0 ? steps - warmup : (int64_t)nearbyint((double)steps * ratio);
    if (decay > steps - warmup)
        decay = steps - warmup;
    const int64_t stable = steps + 1 - warmup - decay;
    if (current < warmup)
        return (double)(current + 1) / (double)warmup;
    if (current < warmup + stable)
        return 1;
    const double progress = (double)(current + 1 - warmup - stable) / (double)decay;
    const double left = type == NIB_DECAY_LINEAR ? 1 - progress
                        : type == NIB_DECAY_SQRT ? 1 - sqrt(progress)
                                                 : 0.5 * (1 + cos(acos(-1.0) * progress));
    return lowest + (1 - lowest) * left;
}

static void test_learning_rates_equal_torchtitan(void **state)
{
    /* by hand: 10 steps, 2 of warm-up, linear decay over 0.8, that is 8 steps that start one step
     * late, so the last has 1/8 left */
    static const double wanted[] = {0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125};
    const nib_train_config c = {.steps = 10, .warmup = 2, .decay_ratio = 0.8};
    (void)state;
    for (int64_t i = 0; i < 10; i++)
        assert_true(fabs(nib__rate_factor(&c, i) - wanted[i]) < 1e-15);
    static const int64_t steps[] = {1, 7, 50, 1000}, warmups[] = {0, 2, 60};
    static const double ratios[] = {-1, 0, 0.1, 0.5, 1}, lowest[] = {0, 0.1, 1};
    for (size_t a = 0; a < COUNT(steps); a++)
        for (size_t b = 0; b < COUNT(warmups); b++)
            for (size_t r = 0; r < COUNT(ratios); r++)
                for (int type = NIB_DECAY_LINEAR; type <= NIB_DECAY_COSINE; type++)
                    for (size_t l = 0; l < COUNT(lowest); l++) {
                        const nib_train_config d = {.steps = steps[a],
                                                    .warmup = warmups[b],
                                                    .decay_ratio = ratios[r],
                                                    .decay = (nib_decay)type,
                                                    .min_factor = lowest[l]};
                        for (int64_t i = 0; i < steps[a]; i++) {
                            const double factor = titan_rate(i, steps[a], warmups[b], ratios[r],
                                                             (nib_decay)type, lowest[l]);
                            if (fabs(nib__rate_factor(&d, i) - factor) > 1e-12)
                                fail_msg("step %d of %d: %g, not %g", (int)i, (int)steps[a],
                                         nib__rate_factor(&d, i), factor);
                        }
                    }
}

/* From zero moments, AdamW's first step moves each weight by the rate whatever the gradient's size,
 * so clipping shows only in the moments. */
static void test_clipping(void **state)
{
    fixture f, free_run;
    (void)state;
    open_fixture(&f, &(setting){.max_norm = 0.125});
    open_fixture(&free_run, &(setting){0});
    const nib_step_report a = step(&f), b = step(&free_run);
    assert_true(a.norm == b.norm && a.norm > 0.125);
    double clipped = 0, whole = 0;
    for (size_t i = 0; i < f.trainer.params.total; i++) {
        clipped += (double)f.trainer.optimizer.m[i] * (double)f.trainer.optimizer.m[i];
        whole += (double)free_run.trainer.optimizer.m[i] * (double)free_run.trainer.optimizer.m[i];
    }
    assert_true(fabs(sqrt(whole) / 0.1 / a.norm - 1) < 1e-6);
    assert_true(fabs(sqrt(clipped) / 0.1 / 0.125 - 1) < 1e-4);
    close_fixture(&f);
    close_fixture(&free_run);
}

/* ---- validation ---- */

static nib_validation_report validation_of(nib_validation *v)
{
    nib_err err;
    nib_validation_report report;
    expect_ok(nib__validation_run(v, &report, &err), &err);
    return report;
}

static void test_validation(void **state)
{
    fixture f, g;
    nib_err err;
    nib_validation v, w;
    (void)state;
    const setting s = {.validation = in_root("other.jsonl"), .validation_steps = 3};
    open_fixture(&f, &s);
    open_fixture(&g, &(setting){.threads = 2});
    expect_ok(nib__validation_open(&v, &f.trainer, &err), &err);
    expect_ok(nib__validation_open(&w, &g.trainer, &err), &err);
    assert_null(w.trainer); /* no validation text is set */
    assert_false(nib__validation_due(&w, 5));
    assert_true(nib__validation_due(&v, 1) && nib__validation_due(&v, 10));
    assert_false(nib__validation_due(&v, 4));
    assert_int_equal(v.count, 3);
    /* the first losses are near log(vocab), repeatable, and do not disturb training */
    const nib_validation_report first = validation_of(&v), again = validation_of(&v);
    assert_true(first.loss == again.loss && fabs(first.loss - log(920)) < 1);
    assert_int_equal(first.tokens, 3 * 2 * 24);
    for (int i = 0; i < 4; i++) {
        const nib_step_report a = step(&f), b = step(&g);
        assert_true(a.loss == b.loss && a.norm == b.norm);
        validation_of(&v);
    }
    assert_true(validation_of(&v).loss < first.loss);
    assert_int_equal(v.count, 3);
    nib__validation_close(&v);
    nib__validation_close(&w);
    close_fixture(&g);
    close_fixture(&f);
}

static void test_validation_of_short_texts(void **state)
{
    fixture f;
    nib_err err;
    nib_validation v;
    (void)state;
    open_fixture(&f, &(setting){.validation = in_root("other.jsonl"), .validation_steps = 1000});
    expect_ok(nib__validation_open(&v, &f.trainer, &err), &err);
    assert_true(v.count > 3 && v.count < 1000);
    assert_non_null(strstr(f.log, "of the 1000 micro-batches of validation.steps"));
    assert_null(strstr(f.log, "begins again")); /* validation never wraps around */
    nib__validation_close(&v);
    /* all ids except those that do not fill a micro-batch */
    write_text("short.jsonl", "{\"text\": \"a b\"}\n", 16);
    f.model->net.train.validation = in_root("short.jsonl");
    refused(NIB_BAD_INPUT, nib__validation_open(&v, &f.trainer, &err), &err);
    f.model->net.train.validation = in_root("missing.jsonl");
    refused(NIB_IO, nib__validation_open(&v, &f.trainer, &err), &err);
    close_fixture(&f);
}

/* ---- cast losses ---- */

static nib_cast_line line_of(const nib_cast_losses *l, const char *layer, int product, int side)
{
    nib_cast_line line = {0};
    for (size_t i = 1; i < l->trainer->model->net.site_count; i++)
        if (nib__cast_losses_line(&line, l, i, product, side) && strcmp(line.layer, layer) == 0)
            return line;
    fail_msg("no line of %s", layer);
    return line;
}

static void test_cast_losses(void **state)
{
    (void)state;
    for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++) {
        fixture f, g;
        nib_err err;
        nib_cast_losses losses;
        const setting s = {.model = "tiny_bf16.json",
                           .dtype = "bf16",
                           .recipe = "mxfp8",
                           .checkpointing = (nib_ac)ac};
        open_fixture(&f, &s);
        open_fixture(&g, &s);
        expect_ok(nib__cast_losses_open(&losses, &f.trainer, &err), &err);
        static const char name[] = "model.layers.1.mlp.gate_proj";
        float *w = weight_of(&f, "model.layers.1.mlp.gate_proj.weight"),
              *same = weight_of(&g, "model.layers.1.mlp.gate_proj.weight");
        for (int i = 0; i < 32; i++) /* one block: 1, and 31 values too small for its scale */
            w[i] = same[i] = i == 0 ? 1.0f : 1e-6f;
        nib__cast_losses_begin(&losses);
        const nib_step_report a = step(&f), b = step(&g);
        expect_ok(nib__cast_losses_end(&losses, &err), &err);
        assert_true(a.loss == b.loss && a.norm == b.norm); /* counting does not change the step */
        const nib_cast_line weight = line_of(&losses, name, NIB_PRODUCT_Y, 1);
        assert_int_equal(weight.values, 48 * 32);
        assert_true(weight.counts.underflowed >= 31 && weight.counts.underflowed < 200);
        assert_true(weight.counts.nonzero <= weight.values);
        assert_string_equal(weight.operand, "w");
        assert_string_equal(weight.code, "mxfp8");
        const nib_cast_line x = line_of(&losses, name, NIB_PRODUCT_Y, 0),
                            dy = line_of(&losses, name, NIB_PRODUCT_DX, 0),
                            across = line_of(&losses, name, NIB_PRODUCT_DW, 0),
                            input = line_of(&losses, name, NIB_PRODUCT_DW, 1);
        assert_int_equal(x.values, 2 * 2 * 24 * 32);
        assert_int_equal(dy.values, 2 * 2 * 24 * 48);
        assert_int_equal(input.counts.nonzero, x.counts.nonzero);
        assert_int_equal(across.counts.nonzero, dy.counts.nonzero);
        assert_true(x.counts.nonzero > x.values / 2 && x.counts.nonzero <= x.values);
        assert_true(dy.counts.nonzero > dy.values / 2);
        nib_text text;
        nib__text_init(&text, &f.engine->allocator);
        nib__cast_losses_write(&text, &losses, 1);
        assert_non_null(strstr(text.at, "casts of step 1: model.layers.0.self_attn.q_proj"));
        assert_non_null(strstr(text.at, "dy of dw mxfp8  nonzero "));
        nib__text_free(&text);
        nib__cast_losses_close(&losses);
        close_fixture(&f);
        close_fixture(&g);
    }
}

static void test_no_cast_losses_in_floats(void **state)
{
    fixture f;
    nib_err err;
    nib_cast_losses losses;
    nib_text text;
    (void)state;
    open_fixture(&f, &(setting){0});
    expect_ok(nib__cast_losses_open(&losses, &f.trainer, &err), &err);
    nib__cast_losses_begin(&losses);
    step(&f);
    expect_ok(nib__cast_losses_end(&losses, &err), &err);
    nib__text_init(&text, &f.engine->allocator);
    nib__cast_losses_write(&text, &losses, 1);
    assert_string_equal(text.at, "casts of step 1: no layer is cast to fewer than 16 bits\n");
    nib__text_free(&text);
    nib__cast_losses_close(&losses);
    close_fixture(&f);
}

/* ---- memory ---- */

/* Compares the memory that a run adds to the process with its prediction. Runs in a child process,
 * so that earlier tests do not set the peak. */
static int measure_memory(const setting *s)
{
    fixture f;
    const uint64_t before = nib__peak_bytes();
    open_fixture(&f, s);
    const uint64_t said = nib__trainer_bytes(&f.trainer);
    step(&f), step(&f);
    const double share = (double)(nib__peak_bytes() - before) / (double)said;
    if (share > 0.9 && share < 1.1)
        return 0;
    fprintf(stderr, "%.1f MB were said, %.1f MB taken\n", (double)said * 1e-6,
            share * (double)said * 1e-6);
    return 1;
}

/* Runs with and without these rows give the same bits. */
static void test_excluded_rows_give_the_same_bits(void **state)
{
    fixture f, g;
    (void)state;
    open_fixture(&f, &(setting){0});
    const char *const without[] = {f.trainer.optimizer.adamw->name,
                                   f.trainer.optimizer.squares->name, f.trainer.tree.add->name};
    if (nib__kernel_is_ref(f.trainer.optimizer.adamw) || nib__kernel_is_ref(f.trainer.tree.add)) {
        close_fixture(&f);
        skip_test(__func__, "this processor has the reference rows only");
    }
    open_fixture(&g, &(setting){.without = {without, COUNT(without)}});
    assert_ptr_not_equal(f.trainer.optimizer.adamw, g.trainer.optimizer.adamw);
    assert_ptr_not_equal(f.trainer.tree.add, g.trainer.tree.add);
    assert_ptr_not_equal(f.trainer.optimizer.squares, g.trainer.optimizer.squares);
    for (int i = 0; i < 2; i++) {
        const nib_step_report a = step(&f), b = step(&g);
        assert_true(a.loss == b.loss && a.norm == b.norm);
    }
    held h = copy_state(&f);
    expect_state(&h, &g);
    close_fixture(&f);
    close_fixture(&g);
}

/* Compares the blocks that a gradient tree allocates with its prediction. */
static void test_predicts_gradient_tree_memory(void **state)
{
    fixture f;
    (void)state;
    open_fixture(&f, &(setting){0});
    for (int64_t count = 1; count <= 64; count *= 2)
        for (int ranks = 1; ranks <= count && ranks <= 7; ranks++)
            for (int rank = 0; rank < ranks; rank++) {
                nib_tree tree;
                nib_err err;
                float *block;
                nib__tree_init(&tree, f.engine->pool, NULL, f.trainer.tree.add, 16, count);
                for (int64_t i = nib__tree_first(count, rank, ranks);
                     i < nib__tree_first(count, rank + 1, ranks); i++) {
                    expect_ok(nib__tree_block(&tree, &block, &err), &err);
                    nib__tree_put(&tree, i, block, (nib_losses){0});
                }
                if (ranks > 1) { /* the block from another rank */
                    expect_ok(nib__tree_block(&tree, &block, &err), &err);
                    nib__tree_release_block(&tree, block);
                }
                assert_int_equal(nib__tree_blocks(count, rank, ranks),
                                 tree.held_count + tree.spare_count);
                nib__tree_free(&tree);
            }
    close_fixture(&f);
}

static void test_predicted_memory(void **state)
{
    static const setting settings[] = {
        {.model = "wide.json", .sequence = 128, .global_batch = 8, .batch = 2},
        {.model = "wide_bf16.json",
         .sequence = 128,
         .global_batch = 2,
         .batch = 2,
         .dtype = "bf16",
         .recipe = "mxfp8",
         .checkpointing = NIB_AC_FULL},
        /* documents of one or two words take a KV block each */
        {.model = "wide.json",
         .sequence = 128,
         .global_batch = 2,
         .batch = 2,
         .dataset = "words.jsonl"},
        {.sequence = 128, .global_batch = 32, .batch = 32, .dataset = "words.jsonl"},
    };
    (void)state;
    if (only_messages())
        return;                   /* slow, and refuses nothing */
#if defined(__SANITIZE_ADDRESS__) /* its own memory counts too */
    skip_test(__func__, SKIP_SANITIZED);
#endif
    for (size_t i = (size_t)sparse(2) - 1; i < COUNT(settings); i += (size_t)sparse(2)) {
        int status;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(measure_memory(&settings[i]));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* Sizes measured without allocating equal those of an allocated run. */
static void test_measuring_allocates_nothing(void **state)
{
    static const setting settings[] = {
        {.threads = 2},
        {.dtype = "bf16", .model = "tiny_bf16.json", .recipe = "mxfp8"},
        {.dtype = "bf16", .model = "tiny_bf16.json", .recipe = "fp8dq-tensor"},
        {.recipe = "8da4w-g16", .qat = true, .dataset = "words.jsonl"},
        {.recipe = "int4wo-g32", .qat = true, .global_batch = 16},
    };
    (void)state;
    for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++)
        for (size_t i = 0; i < COUNT(settings); i++) {
            fixture f;
            nib_err err;
            nib_trainer sizes;
            setting s = settings[i];
            s.checkpointing = (nib_ac)ac;
            open_fixture(&f, &s);
            expect_ok(nib__trainer_measure(&sizes, f.model, f.plan, NULL, &err), &err);
            assert_int_equal(nib__step_bytes(&sizes.step), nib__step_bytes(&f.trainer.step));
            assert_int_equal(nib__trainer_bytes(&sizes), nib__trainer_bytes(&f.trainer));
            assert_true(sizes.weights == NULL && sizes.step.sides[NIB_SIDE_CPU].block == NULL);
            nib__trainer_close(&sizes);
            close_fixture(&f);
        }
}

/* Buffers that do not fit; the error names the keys that shrink them. */
static void test_buffers_do_not_fit(void **state)
{
    fixture f;
    nib_err err;
    nib_step step;
    nib_refusal refusal;
    (void)state;
    open_fixture(&f, &(setting){0});
    for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++) {
        nib_params params = f.trainer.params;
        nib_step_options o = {.batch = 2, .length = 24, .checkpointing = (nib_ac)ac};
        params.total = UINT64_MAX / 64; /* a sum of sizes would wrap */
        refused(
            NIB_NO_MEMORY,
            nib__step_open(&step, &f.model->net, &f.plan->assignment, &params, &o, &refusal, &err),
            &err);
        /* more than any address space; if a system grants it anyway, it is never touched */
        o.batch = INT32_MAX / 24;
        const nib_status status = nib__step_open(&step, &f.model->net, &f.plan->assignment,
                                                 &f.trainer.params, &o, &refusal, &err);
        if (status == NIB_OK)
            nib__step_close(&step);
        else
            assert_int_equal(status, NIB_NO_MEMORY);
    }
    close_fixture(&f);
}

/* A weight with one scale and more rows than a micro-batch has tokens. */
static void test_scratch_fits_tall_weights(void **state)
{
    fixture f;
    (void)state;
    open_fixture(&f, &(setting){.model = "tall_bf16.json",
                                .dtype = "bf16",
                                .recipe = "fp8dq-tensor",
                                .sequence = 8});
    const int64_t parts = nib__ceil_div(4400, NIB_TRAIN_ROWS);
    assert_true(f.trainer.step.sides[NIB_SIDE_CPU].region_bytes[NIB_REGION_AMAX] >=
                (uint64_t)(parts + 1) * sizeof(float));
    assert_true(isfinite(step(&f).loss));
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_the_first_bad_layer),
        cmocka_unit_test(test_names_the_first_bad_layer_qat),
        cmocka_unit_test(test_names_the_first_bad_gradient),
        cmocka_unit_test(test_scratch_fits_tall_weights),
        cmocka_unit_test(test_skipped_steps_change_no_weight),
        cmocka_unit_test(test_skipped_steps_do_not_count_for_adamw),
        cmocka_unit_test(test_spikes),
        cmocka_unit_test(test_no_poisoned_checkpoint),
        cmocka_unit_test(test_learning_rates_equal_torchtitan),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_validation),
        cmocka_unit_test(test_validation_of_short_texts),
        cmocka_unit_test(test_cast_losses),
        cmocka_unit_test(test_no_cast_losses_in_floats),
        cmocka_unit_test(test_predicted_memory),
        cmocka_unit_test(test_measuring_allocates_nothing),
        cmocka_unit_test(test_buffers_do_not_fit),
        cmocka_unit_test(test_predicts_gradient_tree_memory),
        cmocka_unit_test(test_excluded_rows_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
