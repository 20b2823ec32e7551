/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation: the loss of texts and documents against the same sums by hand, the distance between
 * two models, refusals; the shipped model's loss against transformers
 * (tests/golden/eval_losses.txt), also through GGUF; and, with $NIBBLE_TEST_DATA, the loss of a
 * third-party model.
 */
#include "session.h"

#include "safetensors_build.h"
#include "skipping.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static opened open_shipped(const char *recipe, const char *dtype)
{
    return must_open(&(open_how){.path = "models/nibble-tales",
                                 .recipe = recipe,
                                 .dtype = dtype,
                                 .threads = 2,
                                 .context = 128});
}

static const char text[] =
    "Prince Andrew looked at the old man, and said nothing. Then he rode on with the others.\n\n"
    "Once upon a time there was a king who had three daughters \xe2\x80\x94 and the youngest\twas "
    "so fair that the sun himself, who has seen so much, wondered whenever he shone in her face.";

/* Sum of -log p over ids[1..count), one step per id. */
static double loss_by_hand(const opened *o, const int32_t *ids, size_t count)
{
    const int64_t vocab = nib_session_vocab(o->session);
    double loss = 0;
    assert_int_equal(nib_session_truncate(o->session, 0, 0, NULL), NIB_OK);
    for (size_t i = 0; i + 1 < count; i++) {
        const float *logits;
        const nib_slot slot = {0, (int32_t)i, ids[i], NIB_SLOT_LOGITS};
        assert_int_equal(nib_session_step(o->session, &slot, 1, &logits, NULL), NIB_OK);
        double sum = 0;
        for (int64_t v = 0; v < vocab; v++)
            sum += exp((double)logits[v]);
        loss += log(sum) - (double)logits[ids[i + 1]];
    }
    return loss;
}

typedef struct tokens {
    int32_t *ids;
    size_t count;
} tokens;

static tokens tokenize(const opened *o, const char *from)
{
    const nib_tokenizer *tokenizer;
    tokens t;
    assert_int_equal(nib_model_tokenizer(&tokenizer, o->model, NULL), NIB_OK);
    assert_int_equal(nib_tokenize(tokenizer, from, strlen(from), 0, &t.ids, &t.count, NULL),
                     NIB_OK);
    return t;
}

static nib_eval_result evaluate(const opened *o, const opened *against, const char *path,
                                int64_t window)
{
    nib_eval_result result = {.size = sizeof result};
    nib_err err;
    const nib_eval_options options = {.text_path = path, .window = window};
    if (nib_eval(o->session, against ? against->session : NULL, &options, &result, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(result.seconds > 0);
    assert_true(fabs(result.perplexity / exp(result.loss) - 1) < 1e-12);
    return result;
}

static void test_windows_of_a_text(void **state)
{
    (void)state;
    char directory[256], path[300];
    opened o = open_shipped(NULL, "f32");
    make_directory(directory);
    write_text(directory, "a.txt", text);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    const tokens t = tokenize(&o, text);
    assert_true(t.count > 40 && t.count < 128);
    const nib_eval_result whole = evaluate(&o, NULL, path, 0);
    assert_int_equal(whole.predicted, t.count - 1);
    assert_true(fabs(whole.loss * (double)whole.predicted - loss_by_hand(&o, t.ids, t.count)) <
                1e-3);
    /* windows do not overlap; the first id of each is not predicted */
    for (size_t window = 2; window < 40; window += 9) {
        double loss = 0;
        size_t predicted = 0;
        for (size_t at = 0; at < t.count; at += window) {
            const size_t part = t.count - at < window ? t.count - at : window;
            loss += loss_by_hand(&o, t.ids + at, part);
            predicted += part - 1;
        }
        const nib_eval_result r = evaluate(&o, NULL, path, (int64_t)window);
        assert_int_equal(r.predicted, predicted);
        assert_true(fabs(r.loss * (double)predicted - loss) < 1e-3);
    }
    nib_tokens_free(o.engine, t.ids);
    close_opened(&o);
    drop_directory(directory);
}

static void test_documents(void **state)
{
    (void)state;
    char directory[256], path[300];
    opened o = open_shipped(NULL, "f32");
    make_directory(directory);
    write_text(
        directory, "a.jsonl",
        "{\"text\": \"Prince Andrew looked at the old man, and said nothing.\"}\n"
        "\n"
        "{\"id\": 7, \"more\": {\"text\": \"no\"}, \"text\": \"\\u2014and \\\"so\\\" on\"}\r\n"
        "{\"text\": \"\"}\n"
        "{\"text\": \"The king\"}");
    snprintf(path, sizeof path, "%s/a.jsonl", directory);
    static const char *const documents[] = {
        "Prince Andrew looked at the old man, and said nothing.",
        ("\xe2\x80\x94"
         "and \"so\" on"),
        "The king"};
    double loss = 0;
    size_t predicted = 0;
    enum { WINDOW = 8 };
    for (size_t i = 0; i < COUNT(documents); i++) {
        const tokens t = tokenize(&o, documents[i]);
        const size_t part = t.count < WINDOW ? t.count : WINDOW; /* longer documents are cut */
        loss += loss_by_hand(&o, t.ids, part);
        predicted += part - 1;
        nib_tokens_free(o.engine, t.ids);
    }
    const nib_eval_result r = evaluate(&o, NULL, path, WINDOW);
    assert_int_equal(r.predicted, predicted);
    assert_true(fabs(r.loss * (double)predicted - loss) < 1e-3);
    close_opened(&o);
    drop_directory(directory);
}

static void test_distance_to_another_model(void **state)
{
    (void)state;
    char directory[256], path[300];
    opened a = open_shipped(NULL, "f32"), same = open_shipped(NULL, "f32"),
           coarse = open_shipped("int4wo-g32", "f32");
    make_directory(directory);
    write_text(directory, "a.txt", text);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    nib_eval_result r = evaluate(&a, &same, path, 0);
    assert_true(r.kl == 0 && r.top1_agreement == 1);
    r = evaluate(&coarse, &a, path, 0);
    assert_true(r.kl > 1e-4 && r.kl < 0.5);
    assert_true(r.top1_agreement > 0.6 && r.top1_agreement < 1.0);
    const nib_eval_result alone = evaluate(&coarse, NULL, path, 0);
    assert_true(r.loss == alone.loss); /* the other model does not change the loss */
    close_opened(&a);
    close_opened(&same);
    close_opened(&coarse);
    drop_directory(directory);
}

/* Losses of all recipes are near the float loss but differ from it: each has an effect. */
static void test_recipes(void **state)
{
    (void)state;
    static const char *const recipes[] = {"int8wo", "int4wo-g32", "8da4w-g32", "int8dq",
                                          "fp8wo",  "fp8dq",      "mxfp8",     "4da4w"};
    char directory[256], path[300];
    make_directory(directory);
    write_text(directory, "a.txt", text);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    opened o = open_shipped(NULL, "f32");
    const double exact = evaluate(&o, NULL, path, 0).loss;
    close_opened(&o);
    assert_true(exact > 2 && exact < 6);
    for (size_t i = 0; i < COUNT(recipes); i++) {
        o = open_shipped(recipes[i], "f32");
        const double loss = evaluate(&o, NULL, path, 0).loss;
        const double room = strcmp(recipes[i], "4da4w") == 0 ? 1.0 : 0.15;
        if (!(fabs(loss - exact) < room) || loss == exact)
            fail_msg("%s: %.6f nats per token, %.6f without it", recipes[i], loss, exact);
        close_opened(&o);
    }
    drop_directory(directory);
}

static void assert_refused(const opened *o, const opened *against, const char *path, int64_t window,
                           nib_status status)
{
    nib_eval_result r = {.size = sizeof r};
    nib_err err;
    const nib_eval_options options = {.text_path = path, .window = window};
    refused(status, nib_eval(o->session, against ? against->session : NULL, &options, &r, &err),
            &err);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *name, *content;
    } files[] = {
        {"empty.txt", ""},
        {"one.txt", "a"}, /* nothing to predict */
        {"bytes.txt", "abc\xff"},
        {"empty.jsonl", "\n\n"},
        {"blank.jsonl", "\r\n \t\r\n"},
        {"none.jsonl", "{\"text\":\"a b\"}\n{\"txt\":\"a\"}\n"},
        {"number.jsonl", "{\"text\":3}"},
        {"list.jsonl", "[\"text\"]"},
        {"cut.jsonl", "{\"text\":\"a b c\""},
        {"junk.jsonl", "{\"text\":\"a b c\"} x"},
    };
    char directory[256], path[300];
    opened o = open_shipped(NULL, "bf16");
    make_directory(directory);
    for (size_t i = 0; i < COUNT(files); i++) {
        write_text(directory, files[i].name, files[i].content);
        snprintf(path, sizeof path, "%s/%s", directory, files[i].name);
        assert_refused(&o, NULL, path, 0, NIB_BAD_INPUT);
    }
    write_text(directory, "a.txt", text);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    assert_refused(&o, NULL, path, 129, NIB_USAGE);
    assert_refused(&o, NULL, path, 1, NIB_USAGE);
    assert_refused(&o, NULL, "tests/no/such/file.txt", 0, NIB_IO);
    opened tiny = must_open(&(open_how){.path = "tests/golden/models/qwen2", .dtype = "f32"});
    assert_refused(&o, &tiny, path, 0, NIB_USAGE); /* another vocabulary */
    assert_refused(&tiny, NULL, path, 0, NIB_IO);  /* no tokenizer */
    close_opened(&tiny);
    close_opened(&o);
    drop_directory(directory);
}

/* A NaN in a weight makes the evaluation fail instead of being averaged in. */
static void test_nan(void **state)
{
    (void)state;
    char directory[256], path[300];
    opened o = open_shipped(NULL, "f32");
    make_directory(directory);
    write_text(directory, "a.txt", text);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    for (size_t i = 0; i < o.session->runner.ops.count; i++) {
        nib_node *node = &o.session->runner.ops.nodes[i];
        if (node->op == NIB_OP_NORM && node->wanted_only)
            ((float *)(uintptr_t)node->weight)[3] = NAN;
    }
    assert_refused(&o, NULL, path, 0, NIB_CHECK_FAILED);
    opened good = open_shipped(NULL, "f32");
    assert_refused(&good, &o, path, 0, NIB_CHECK_FAILED);
    close_opened(&good);
    close_opened(&o);
    drop_directory(directory);
}

/* ---- losses from transformers ---- */

/* FILE WINDOW PREDICTED LOSS of eval_losses.txt, of models/nibble-tales. */
typedef struct known_loss {
    char file[128];
    int window;
    int64_t predicted;
    double loss;
} known_loss;

enum { KNOWN_LOSSES = 2 };

static void read_losses(known_loss known[KNOWN_LOSSES])
{
    char line[512];
    int count = 0;
    FILE *file = fopen("tests/golden/eval_losses.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#')
            continue;
        assert_true(count < KNOWN_LOSSES);
        known_loss *k = &known[count++];
        assert_int_equal(sscanf(line, "models/nibble-tales %127s %d %" SCNd64 " %lf", k->file,
                                &k->window, &k->predicted, &k->loss),
                         4);
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(count, KNOWN_LOSSES);
}

static void expect_loss(const char *path, const char *dtype, const known_loss *known,
                        double tolerance)
{
    opened o = must_open(&(open_how){
        .path = path, .dtype = dtype, .threads = 2, .context = known->window, .sequences = 1});
    const nib_eval_result r = evaluate(&o, NULL, known->file, known->window);
    if (!(fabs(r.loss - known->loss) < tolerance) || r.predicted != known->predicted)
        fail_msg("%s in %s, window %d: %.6f nats per token of %" PRId64 ", not %.5f of %" PRId64,
                 path, dtype, known->window, r.loss, r.predicted, known->loss, known->predicted);
    close_opened(&o);
}

static void test_loss_of_transformers(void **state)
{
    (void)state;
    skip_slow();
    known_loss known[KNOWN_LOSSES];
    read_losses(known);
    for (size_t i = 0; i < KNOWN_LOSSES; i++)
        expect_loss("models/nibble-tales", "f32", &known[i], 2e-5);
    expect_loss("models/nibble-tales", "bf16", &known[0], 1e-3);
}

static nib_status write_nothing(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_OK;
}

/* Weights, config and vocabulary to GGUF and back. */
static void test_loss_through_gguf(void **state)
{
    (void)state;
    char directory[256], path[300];
    known_loss known[KNOWN_LOSSES];
    const nib_sink sink = {write_nothing, NULL};
    nib_err err;
    read_losses(known);
    make_directory(directory);
    snprintf(path, sizeof path, "%s/tales.gguf", directory);
    opened o = open_shipped(NULL, "f32");
    const nib_convert_options options = {.out = path, .format = "gguf"};
    if (nib_convert(o.model, &options, NIB_FORM_TEXT, &sink, &err) != NIB_OK)
        fail_msg("%s", err.text);
    close_opened(&o);
    expect_loss(path, "f32", &known[0], 2e-5);
    drop_directory(directory);
}

/* ---- real data ---- */

/* transformers gives 2.9385 nats per token in float32. */
static void test_tiny_stories(void **state)
{
    (void)state;
    skip_slow();
    const char *data = test_data();
    static const struct {
        const char *directory, *dtype;
        double tolerance;
    } cases[] = {{"hf-f32", "f32", 2e-4}, {"hf-bf16", "f32", 2e-4}, {"hf-bf16", "bf16", 5e-4}};
    char jsonl[512];
    snprintf(jsonl, sizeof jsonl, "%s/text/tinystories_40.jsonl", data);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char path[512], tokenizer[512];
        snprintf(path, sizeof path, "%s/weights/TinyStories-656K/%s", data, cases[i].directory);
        snprintf(tokenizer, sizeof tokenizer, "%s/weights/TinyStories-656K/hf-f32", data);
        opened o = must_open(&(open_how){
            .path = path, .tokenizer = tokenizer, .dtype = cases[i].dtype, .threads = 2});
        const nib_eval_result r = evaluate(&o, NULL, jsonl, 256);
        print_message("%s in %s: %.5f nats per token\n", cases[i].directory, cases[i].dtype,
                      r.loss);
        assert_int_equal(r.predicted, 6216);
        assert_true(fabs(r.loss - 2.9385) < cases[i].tolerance);
        close_opened(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_of_a_text),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_distance_to_another_model),
        cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_loss_of_transformers),
        cmocka_unit_test(test_loss_through_gguf),
        cmocka_unit_test(test_tiny_stories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
