/* SPDX-License-Identifier: Apache-2.0
 *
 * The input of a step: tokens, targets, document starts and positions, against the sequences that
 * Python packs (tests/golden/train/batches.txt).
 */
#include "trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { LENGTH = 15, ROWS = 2, STEPS = 30, M = ROWS * LENGTH };

static char root[] = "/tmp/nibble-train-batches-XXXXXX";
static const char section[] = "@ tests/golden/train/documents.jsonl lines 15\n";

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 16, "
    "\"intermediate_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 1, \"vocab_size\": 2048, \"max_position_embeddings\": 64, "
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}";

typedef struct sequence {
    int32_t ids[LENGTH + 1];
    bool first[LENGTH + 1];
} sequence;

/* PASS STARTS IDS */
static sequence read_sequence(FILE *f)
{
    char line[512], starts[128];
    sequence s = {.ids = {0}};
    int used = 0;
    assert_non_null(fgets(line, sizeof line, f));
    assert_int_equal(sscanf(line, "%*d %127s %n", starts, &used), 1);
    for (char *at = starts; *at >= '0' && *at <= '9'; at += *at == ',') {
        const long start = strtol(at, &at, 10);
        assert_in_range(start, 0, LENGTH);
        s.first[start] = true;
    }
    char *at = line + used;
    for (int i = 0; i <= LENGTH; i++) {
        const char *const word = at;
        s.ids[i] = (int32_t)strtol(word, &at, 10);
        assert_ptr_not_equal(at, word);
    }
    return s;
}

/* A row of a micro-batch is one sequence; a document begins at its start. */
static void expect_row(const nib_trainer *t, int row, const sequence *s, bool masked,
                       int32_t *documents)
{
    int32_t begin = 0;
    for (int32_t i = 0; i < LENGTH; i++) {
        const int32_t at = row * LENGTH + i;
        assert_int_equal(t->ids[at], s->ids[i]);
        assert_int_equal(t->targets[at], s->ids[i + 1]);
        if (i == 0 || (masked && s->first[i])) {
            assert_int_equal(t->start[*documents], at);
            ++*documents;
            begin = i;
        }
        assert_int_equal(t->step.sequence[at], *documents - 1);
        assert_int_equal(t->step.position[at], i - begin);
    }
}

static void train(nib_model *model, const nib_plan *plan, FILE *f, bool masked)
{
    nib_trainer t;
    nib_err err;
    char line[512];
    do
        assert_non_null(fgets(line, sizeof line, f));
    while (strcmp(line, section) != 0);
    if (nib__trainer_open(&t, model, plan, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    for (int step = 1; step <= STEPS; step++) {
        nib_step_report report;
        int32_t documents = 0;
        if (nib__trainer_step(&t, &report, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(report.tokens, M);
        for (int row = 0; row < ROWS; row++) {
            const sequence s = read_sequence(f);
            expect_row(&t, row, &s, masked, &documents);
        }
        assert_int_equal(t.start[documents], M);
        assert_int_equal(t.data.position.sequences, step * ROWS);
    }
    nib__trainer_close(&t);
}

static void run(bool masked)
{
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_err err;
    const nib_engine_options options = {.threads = 1};
    const nib_model_options bare = {.config_only = true};
    const nib_request request = {.dtype = "f32"};
    assert_int_equal(nib_engine_open(&engine, &options, &err), NIB_OK);
    engine->measured = true;
    if (nib_model_open(&model, engine, root, &bare, &err) != NIB_OK)
        fail_msg("%s", err.text);
    model->net.training = true;
    model->net.train = (nib_train_config){.document_mask = masked,
                                          .dataset = "tests/golden/train/documents.jsonl",
                                          .batch = ROWS,
                                          .sequence = LENGTH,
                                          .global_batch = ROWS,
                                          .steps = STEPS,
                                          .max_norm = 1,
                                          .seed = 1,
                                          .dtype = NIB_TYPE_F32,
                                          .rate = 1e-3,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .log_every = 1};
    if (nib_plan_open(&plan, model, &request, &err) != NIB_OK)
        fail_msg("%s", err.text);
    FILE *f = fopen("tests/golden/train/batches.txt", "r");
    assert_non_null(f);
    train(model, plan, f, masked);
    fclose(f);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
}

static void test_documents(void **state)
{
    (void)state;
    run(true);
}

/* Each packed row counts as one document. */
static void test_rows(void **state)
{
    (void)state;
    run(false);
}

static void link_to(const char *name, const char *from)
{
    char path[256], *whole = realpath(from, NULL);
    assert_non_null(whole);
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(symlink(whole, path), 0);
    free(whole);
}

static int make_model(void **state)
{
    (void)state;
    char path[256];
    if (mkdtemp(root) == NULL)
        return -1;
    link_to("tokenizer.json", "configs/tokenizer/tokenizer.json");
    link_to("tokenizer_config.json", "configs/tokenizer/tokenizer_config.json");
    snprintf(path, sizeof path, "%s/config.json", root);
    FILE *f = fopen(path, "w");
    return f == NULL || fputs(config, f) < 0 || fclose(f) != 0;
}

static int remove_model(void **state)
{
    (void)state;
    return nib__path_remove(root, NULL) != NIB_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
