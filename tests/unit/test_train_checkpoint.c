/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of a run: 2N steps are N, a stop, and N more, bit for bit; the last few are kept; one
 * of another run, a changed one and a half-removed one are told apart; a write that fails leaves
 * the one before.
 */
#include "library.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static char root[] = "/tmp/nibble-train-checkpoint-XXXXXX";

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 32, "
    "\"intermediate_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"vocab_size\": 920, \"max_position_embeddings\": 64, "
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}";

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

static char *read_file(const char *name, size_t *size)
{
    const nib_allocator a = nib__allocator_default();
    char *text;
    nib_err err;
    if (nib__file_read(&text, size, in_root(name), 1 << 26, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return text;
}

static bool exists(const char *name) { return nib__path_kind(in_root(name)) != NIB_PATH_NONE; }

static void expect_same(const char *a, const char *b)
{
    static const char *const files[] = {"config.json", "model.safetensors", "moments.safetensors",
                                        "nibble.json"};
    for (size_t i = 0; i < COUNT(files); i++) {
        char path[128];
        size_t a_size, b_size;
        snprintf(path, sizeof path, "%s/%s", a, files[i]);
        char *x = read_file(path, &a_size);
        snprintf(path, sizeof path, "%s/%s", b, files[i]);
        char *y = read_file(path, &b_size);
        if (a_size != b_size || memcmp(x, y, a_size) != 0)
            fail_msg("%s of %s and %s differ", files[i], a, b);
        free(x);
        free(y);
    }
}

/* ---- runs ---- */

typedef struct job {
    const char *folder;
    int64_t steps, stop, interval, keep, load; /* stop: cancelled after so many; load 0: the last */
    int64_t batch, global_batch, sequence;
    double norm_eps;
    const char *dataset;
    int threads;
    bool unsaved;
    nib_err err;
    char log[2048], lines[4096]; /* what it said */
} job;

static bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const job *j = ctx;
    (void)what;
    (void)total;
    return j->stop == 0 || done < (uint64_t)j->stop;
}

static void on_log(void *ctx, const char *line)
{
    job *j = ctx;
    const size_t used = strlen(j->log);
    snprintf(j->log + used, sizeof j->log - used, "%s\n", line);
}

static nib_status on_line(void *ctx, const char *bytes, size_t size)
{
    job *j = ctx;
    const size_t used = strlen(j->lines);
    snprintf(j->lines + used, sizeof j->lines - used, "%.*s", (int)size, bytes);
    return NIB_OK;
}

static nib_train_config settings(const job *j)
{
    return (nib_train_config){.dump_folder = root,
                              .document_mask = true,
                              .dataset = j->dataset ? j->dataset : in_root("text.jsonl"),
                              .batch = j->batch ? j->batch : 2,
                              .sequence = j->sequence ? j->sequence : 24,
                              .global_batch = j->global_batch ? j->global_batch : 4,
                              .steps = j->steps,
                              .max_norm = 1,
                              .seed = 5,
                              .dtype = NIB_TYPE_F32,
                              .rate = 1e-2,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .warmup = 2,
                              .decay_ratio = 0.8,
                              .save = !j->unsaved,
                              .folder = j->folder,
                              .interval = j->interval,
                              .keep = j->keep,
                              .load_step = j->load ? j->load : -1,
                              .export_dtype = NIB_TYPE_F32,
                              .log_every = 1,
                              .timeout_s = 10};
}

static nib_status train(job *j)
{
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan = NULL;
    j->log[0] = j->lines[0] = '\0';
    const nib_engine_options options = {.threads = j->threads ? j->threads : 1,
                                        .callbacks = {on_progress, on_log, j}};
    const nib_model_options bare = {.config_only = true};
    const nib_sink sink = {on_line, j};
    assert_int_equal(nib_engine_open(&engine, &options, &j->err), NIB_OK);
    engine->measured = true;
    if (nib_model_open(&model, engine, in_root("config.json"), &bare, &j->err) != NIB_OK)
        fail_msg("%s", j->err.text);
    model->net.training = true;
    model->net.train = settings(j);
    if (j->norm_eps > 0)
        model->net.config.norm_eps = j->norm_eps;
    const nib_request request = {.dtype = "f32"};
    const nib_train_options none = {0};
    nib_status status = nib_plan_make(&plan, model, &request, &j->err);
    if (status == NIB_OK)
        status = nib_train(model, plan, &none, &sink, &j->err);
    nib_plan_free(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}

static void must_train(job *j)
{
    if (train(j) != NIB_OK)
        fail_msg("%s", j->err.text);
}

static void expect_refused(job *j, nib_status status, const char *words)
{
    const nib_status got = train(j);
    if (got != status || !strstr(j->err.text, words))
        fail_msg("wanted %s, \"%s\"; got %s, \"%s\"", nib_status_name(status), words,
                 nib_status_name(got), got == NIB_OK ? "" : j->err.text);
}

static int make_root(void **state)
{
    static char text[40000];
    size_t used = 0, size;
    uint32_t random = 1;
    (void)state;
    if (!mkdtemp(root))
        return -1;
    for (int i = 0; i < 60; i++) { /* documents of very different lengths */
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"text\": \"");
        for (int word = 0; word < 1 + i * i % 37; word++) {
            random = random * 1664525 + 1013904223;
            used += (size_t)snprintf(text + used, sizeof text - used, "w%u and ", random >> 26);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "end.\"}\n");
    }
    write_text("text.jsonl", text, used);
    write_text("config.json", config, sizeof config - 1);
    const nib_allocator a = nib__allocator_default();
    char *json;
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

/* ---- tests ---- */

static void test_resumes_exactly(void **state)
{
    job whole = {.folder = "whole", .steps = 12};
    (void)state;
    must_train(&whole);
    assert_null(strstr(whole.log, "goes on"));
    /* in one process and in three, with other threads, stopped within a document and a pass */
    job parts = {.folder = "parts", .steps = 12, .stop = 5};
    expect_refused(&parts, NIB_CANCELLED, "step 5, whose checkpoint is written");
    assert_true(exists("parts/step-00000005/nibble.json"));
    parts.stop = 9;
    parts.threads = 2;
    expect_refused(&parts, NIB_CANCELLED, "step 9");
    assert_non_null(strstr(parts.log, "goes on from"));
    assert_null(strstr(parts.lines, "step:  5"));
    assert_non_null(strstr(parts.lines, "step:  6"));
    parts.stop = 0;
    parts.threads = 1;
    must_train(&parts);
    expect_same("whole/step-00000012", "parts/step-00000012");
    assert_false(exists("parts/training.lock"));
    must_train(&parts); /* there is nothing left to do */
    assert_string_equal(parts.lines, "");
}

static void test_keeps_the_last(void **state)
{
    job j = {.folder = "kept", .steps = 9, .interval = 2, .keep = 2};
    (void)state;
    must_train(&j);
    assert_false(exists("kept/step-00000002"));
    assert_false(exists("kept/step-00000006"));
    assert_true(exists("kept/step-00000008/nibble.json"));
    assert_true(exists("kept/step-00000009/nibble.json"));
    /* an older one is only taken where nothing newer stands beside what this run writes */
    j.load = 8;
    expect_refused(&j, NIB_EXISTS, "checkpoints up to step 9");
    j.load = 7;
    expect_refused(&j, NIB_BAD_INPUT, "there are 2, from step 8 to 9");
    j.load = 8;
    j.unsaved = true;
    must_train(&j);
    assert_non_null(strstr(j.lines, "step:  9"));
    assert_null(strstr(j.lines, "step:  8"));
}

static void test_other_runs(void **state)
{
    job first = {.folder = "other", .steps = 3}, j;
    (void)state;
    must_train(&first);
    const job again = {.folder = "other", .steps = 6};
    j = again, j.batch = 4;
    expect_refused(&j, NIB_BAD_INPUT,
                   "training.local_batch_size is 2 in the checkpoint, but 4 here");
    j = again, j.global_batch = 8;
    expect_refused(&j, NIB_BAD_INPUT,
                   "training.global_batch_size is 4 in the checkpoint, but 8 here");
    j = again, j.sequence = 32;
    expect_refused(&j, NIB_BAD_INPUT, "training.seq_len is 24 in the checkpoint, but 32 here");
    j = again, j.norm_eps = 1e-6;
    expect_refused(&j, NIB_BAD_INPUT, "model.norm_eps is 1e-05 in the checkpoint, but 1e-06 here");
    write_text("else.jsonl", "{\"text\": \"else\"}\n", 17);
    char other[256];
    snprintf(other, sizeof other, "%s", in_root("else.jsonl"));
    j = again, j.dataset = other;
    expect_refused(&j, NIB_BAD_INPUT, "was trained on \"text.jsonl\", which hashed to ");
    size_t size;
    char *text = read_file("config.json", &size);
    char *layers = strstr(text, "num_hidden_layers\": 2");
    layers[strlen("num_hidden_layers\": ")] = '3';
    write_text("config.json", text, size);
    j = again;
    expect_refused(&j, NIB_BAD_INPUT, "model.n_layers is 2 in the checkpoint, but 3 here");
    write_text("config.json", config, sizeof config - 1);
    free(text);
    j = again;
    must_train(&j);
}

/* Changes one byte. */
static void damage(const char *name, size_t place)
{
    size_t size;
    char *bytes = read_file(name, &size);
    bytes[place < size ? place : size - 1] ^= 1;
    write_text(name, bytes, size);
    free(bytes);
}

static void test_damage(void **state)
{
    job j = {.folder = "damaged", .steps = 4, .interval = 1, .keep = 3};
    (void)state;
    must_train(&j);
    j.steps = 5;
    damage("damaged/step-00000004/model.safetensors", SIZE_MAX);
    expect_refused(&j, NIB_BAD_INPUT, "step-00000004/model.safetensors: ");
    assert_non_null(strstr(j.err.text, "hashes to"));
    damage("damaged/step-00000004/model.safetensors", SIZE_MAX);
    damage("damaged/step-00000004/moments.safetensors", SIZE_MAX);
    expect_refused(&j, NIB_BAD_INPUT, "step-00000004/moments.safetensors hashes to");
    /* half removed: passed over, and replaced */
    assert_int_equal(unlink(in_root("damaged/step-00000004/nibble.json")), 0);
    must_train(&j);
    assert_non_null(strstr(j.log, "step-00000004 has no nibble.json: it is passed over"));
    assert_non_null(strstr(j.log, "step-00000003\n"));
    assert_true(exists("damaged/step-00000004/nibble.json"));
    /* a manifest of another directory */
    assert_int_equal(rename(in_root("damaged/step-00000005"), in_root("damaged/step-00000007")), 0);
    j.steps = 8;
    expect_refused(&j, NIB_BAD_INPUT, "says that it is of step 5");
    write_text("damaged/step-00000007/nibble.json", "{}", 2);
    expect_refused(&j, NIB_BAD_INPUT, "step-00000007/nibble.json has no \"training\"");
}

static void test_full_disk(void **state)
{
    job j = {.folder = "full", .steps = 3};
    struct rlimit before;
    (void)state;
    must_train(&j);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    const struct rlimit small = {300000, before.rlim_max}; /* weights fit, moments do not */
    setrlimit(RLIMIT_FSIZE, &small);
    j.steps = 6;
    expect_refused(&j, NIB_IO, "no checkpoint of step 6, that of step 3 stands: ");
    assert_non_null(strstr(j.err.text, "step-00000006.part/moments.safetensors: cannot write"));
    setrlimit(RLIMIT_FSIZE, &before);
    assert_false(exists("full/step-00000006.part"));
    assert_false(exists("full/step-00000006"));
    /* what a killed process leaves is cleared away */
    assert_int_equal(mkdir(in_root("full/step-00000004.part"), 0777), 0);
    write_text("full/step-00000004.part/model.safetensors", "x", 1);
    must_train(&j);
    assert_non_null(strstr(j.log, "step-00000003\n"));
    assert_false(exists("full/step-00000004.part"));
}

static void test_one_at_a_time(void **state)
{
    int fd;
    nib_err err;
    job j = {.folder = "taken", .steps = 1};
    (void)state;
    must_train(&j);
    assert_int_equal(nib__lock_take(&fd, in_root("taken/training.lock"), &err), NIB_OK);
    j.steps = 2;
    expect_refused(&j, NIB_EXISTS, "another process writes there now");
    nib__lock_release(fd, in_root("taken/training.lock"));
    must_train(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resumes_exactly), cmocka_unit_test(test_keeps_the_last),
        cmocka_unit_test(test_other_runs),      cmocka_unit_test(test_damage),
        cmocka_unit_test(test_full_disk),       cmocka_unit_test(test_one_at_a_time),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
