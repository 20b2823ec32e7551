/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: trains a tiny model on a tiny text in a temporary folder, and keeps its output.
 */
#ifndef NIB_TESTS_TRAIN_RUNS_H
#define NIB_TESTS_TRAIN_RUNS_H

#include "session_handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

static char root[] = "/tmp/nibble-train-XXXXXX";

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 32, "
    "\"intermediate_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"vocab_size\": 920, \"max_position_embeddings\": 64, "
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}";

/* ---- files ---- */

static inline const char *in_root(const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static inline void write_text(const char *name, const char *text, size_t size)
{
    FILE *f = fopen(in_root(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    fclose(f);
}

/* Not inline: gcc 12 would then falsely warn about a pointer to `text`. */
__attribute__((noinline, unused)) static char *read_file(const char *name, size_t *size)
{
    const nib_allocator a = nib__allocator_default();
    char *text = NULL;
    nib_err err;
    if (nib__file_read(&text, size, in_root(name), 1 << 26, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return text;
}

static inline bool exists(const char *name)
{
    return nib__path_kind(in_root(name)) != NIB_PATH_NONE;
}

/* ---- runs ---- */

typedef struct job {
    const char *folder;
    int64_t steps, stop, interval, keep, load; /* stop: cancel after this many; load 0: the last */
    int64_t batch, global_batch, sequence;
    double norm_eps, rate; /* 0: defaults */
    const char *dataset, *metrics, *out;
    nib_type export_dtype;
    bool export_last;
    const char *qat;           /* recipe of quantization-aware training */
    const char *recipe, *skip; /* of the request */
    bool wgrad_with_hp;
    const char *initial_load;
    int threads;
    bool unsaved;
    nib_err err;
    char log[2048], lines[4096]; /* its output */
} job;

static inline bool on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const job *j = ctx;
    (void)what;
    (void)total;
    return j->stop == 0 || done < (uint64_t)j->stop;
}

static inline void on_log(void *ctx, const char *line)
{
    job *j = ctx;
    const size_t used = strlen(j->log);
    snprintf(j->log + used, sizeof j->log - used, "%s\n", line);
}

static inline nib_status on_line(void *ctx, const char *bytes, size_t size)
{
    job *j = ctx;
    const size_t used = strlen(j->lines);
    snprintf(j->lines + used, sizeof j->lines - used, "%.*s", (int)size, bytes);
    return NIB_OK;
}

static inline nib_train_config settings(const job *j)
{
    return (nib_train_config){.dump_folder = root,
                              .document_mask = true,
                              .dataset = j->dataset ? j->dataset : in_root("text.jsonl"),
                              .recipe = (char *)j->qat,
                              .qat = j->qat != NULL,
                              .wgrad_with_hp = j->wgrad_with_hp,
                              .batch = j->batch ? j->batch : 2,
                              .sequence = j->sequence ? j->sequence : 24,
                              .global_batch = j->global_batch ? j->global_batch : 4,
                              .steps = j->steps,
                              .max_norm = 1,
                              .seed = 5,
                              .dtype = NIB_TYPE_F32,
                              .rate = j->rate > 0 ? j->rate : 1e-2,
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
                              .initial_load = j->initial_load,
                              .load_step = j->load ? j->load : -1,
                              .export_last = j->export_last,
                              .export_dtype = j->export_dtype ? j->export_dtype : NIB_TYPE_F32,
                              .metrics = j->metrics,
                              .log_every = 1,
                              .timeout_s = 10};
}

static inline nib_status train(job *j)
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
    const nib_request request = {
        .dtype = "f32", .recipe = j->recipe, .skip = {&j->skip, j->skip != NULL}};
    const nib_train_options how = {.out = j->out};
    nib_status status = nib_plan_open(&plan, model, &request, &j->err);
    if (status == NIB_OK)
        status = nib_train(model, plan, &how, &sink, &j->err);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}

static inline void must_train(job *j)
{
    if (train(j) != NIB_OK)
        fail_msg("%s", j->err.text);
}

static inline void expect_refused(job *j, nib_status status) { refused(status, train(j), &j->err); }

static inline int make_root(void **state)
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

static inline int remove_root(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

#endif
