/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation: the loss of texts and documents against the same sums by hand, the distance between
 * two models against a plain loop in f64, through files of logits, too; refusals; the shipped
 * model's loss against transformers (tests/golden/eval_losses.txt), also through GGUF; its distance
 * from itself in int4 against PyTorch (eval_divergences.txt); and, with $NIBBLE_TEST_DATA, the loss
 * of a third-party model.
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

static nib_eval_result evaluate_with(const opened *o, const opened *against,
                                     const nib_eval_options *options)
{
    nib_eval_result result = {.size = sizeof result};
    nib_err err;
    if (nib_eval(o->session, against ? against->session : NULL, options, &result, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(result.seconds > 0);
    assert_true(fabs(result.perplexity / exp(result.loss) - 1) < 1e-12);
    return result;
}

static nib_eval_result evaluate(const opened *o, const opened *against, const char *path,
                                int64_t window)
{
    return evaluate_with(o, against, &(nib_eval_options){.text_path = path, .window = window});
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
    assert_true(r.kl == 0 && r.top1_agreement == 1 && r.kl_largest == 0 && r.kl_p999 == 0);
    assert_true(r.perplexity_ratio == 1 && r.loss_difference == 0 && r.against_loss == r.loss);
    assert_true(r.units == 1 && r.resamples == 0 && !r.documents);
    r = evaluate(&same, &a, path, 5); /* enough windows for intervals */
    assert_true(r.units >= NIB_EVAL_UNITS && r.resamples == NIB_EVAL_RESAMPLES);
    for (size_t i = 0; i < 2; i++)
        assert_true(r.kl_interval[i] == 0 && r.loss_difference_interval[i] == 0 &&
                    r.perplexity_ratio_interval[i] == 1 && r.top1_agreement_interval[i] == 1);
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

/* ---- the distance by hand ---- */

enum { MOST_TOKENS = 128 };

/* Log-probabilities in f64, in the order of the text: [predicted][vocab]. */
typedef struct predictions {
    double *log_p;
    int32_t targets[MOST_TOKENS], position[MOST_TOKENS];
    int64_t predicted, vocab;
} predictions;

/* One step per id; windows do not overlap. */
static predictions predict_by_hand(const opened *o, const tokens *t, size_t window)
{
    predictions p = {.vocab = nib_session_vocab(o->session)};
    p.log_p = calloc(MOST_TOKENS * (size_t)p.vocab, sizeof *p.log_p);
    assert_non_null(p.log_p);
    for (size_t i = 0; i + 1 < t->count; i++) {
        const size_t at = i % window;
        const nib_slot slot = {0, (int32_t)at, t->ids[i], NIB_SLOT_LOGITS};
        const float *logits;
        if (at == 0)
            assert_int_equal(nib_session_truncate(o->session, 0, 0, NULL), NIB_OK);
        assert_int_equal(nib_session_step(o->session, &slot, 1, &logits, NULL), NIB_OK);
        if (at + 1 == window)
            continue;
        double sum = 0, *row = p.log_p + p.predicted * p.vocab;
        for (int64_t v = 0; v < p.vocab; v++)
            sum += exp((double)logits[v]);
        for (int64_t v = 0; v < p.vocab; v++)
            row[v] = (double)logits[v] - log(sum);
        p.targets[p.predicted] = t->ids[i + 1];
        p.position[p.predicted++] = (int32_t)at;
    }
    return p;
}

static int64_t most_likely(const double *row, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t v = 1; v < vocab; v++)
        best = row[v] > row[best] ? v : best;
    return best;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void assert_close(const char *what, double value, double wanted, double tolerance)
{
    if (!(fabs(value - wanted) <= tolerance * fabs(wanted)))
        fail_msg("%s: %.9g, not %.9g", what, value, wanted);
}

/* The numbers of a result from both models' log-probabilities. */
static void assert_distance(const nib_eval_result *r, const predictions *p, const predictions *ref)
{
    double kl[MOST_TOKENS], sum = 0, loss = 0, ref_loss = 0, near[2] = {0};
    int64_t same = 0, largest = 0, counts[2] = {0};
    for (int64_t i = 0; i < p->predicted; i++) {
        const double *mine = p->log_p + i * p->vocab, *other = ref->log_p + i * p->vocab;
        kl[i] = 0;
        for (int64_t v = 0; v < p->vocab; v++)
            kl[i] += exp(other[v]) * (other[v] - mine[v]);
        sum += kl[i];
        loss -= mine[p->targets[i]];
        ref_loss -= other[p->targets[i]];
        same += most_likely(mine, p->vocab) == most_likely(other, p->vocab);
        largest = kl[i] > kl[largest] ? i : largest;
        near[p->position[i] >= 8] += kl[i];
        counts[p->position[i] >= 8]++;
    }
    const double count = (double)p->predicted;
    assert_int_equal(r->predicted, p->predicted);
    assert_close("mean", r->kl, sum / count, 1e-5);
    assert_close("reference's loss", r->against_loss, ref_loss / count, 1e-6);
    assert_close("ratio", r->perplexity_ratio, exp((loss - ref_loss) / count), 1e-6);
    assert_close("agreement", r->top1_agreement, (double)same / count, 1e-12);
    assert_close("largest", r->kl_largest, kl[largest], 1e-4);
    assert_int_equal(r->kl_largest_position, p->position[largest]);
    assert_int_equal(r->kl_largest_token, p->targets[largest]);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(r->position_predicted[i], counts[i]);
        assert_close("by position", r->position_kl[i], near[i] / (double)counts[i], 1e-5);
    }
    qsort(kl, (size_t)p->predicted, sizeof *kl, ascending);
    assert_close("median", r->kl_median, kl[(p->predicted + 1) / 2 - 1], 1e-3);
    assert_close("99 %", r->kl_p99, kl[(p->predicted * 99 + 99) / 100 - 1], 1e-3);
    assert_close("99.9 %", r->kl_p999, kl[(p->predicted * 999 + 999) / 1000 - 1], 1e-3);
}

static void test_distance_by_hand(void **state)
{
    (void)state;
    enum { WINDOW = 13 };
    char directory[256], path[300];
    opened fine = open_shipped(NULL, "f32"), coarse = open_shipped("int4wo-g32", "f32");
    make_directory(directory);
    write_text(directory, "a.txt", text);
    snprintf(path, sizeof path, "%s/a.txt", directory);
    const tokens t = tokenize(&fine, text);
    assert_true(t.count <= MOST_TOKENS);
    predictions p = predict_by_hand(&coarse, &t, WINDOW), ref = predict_by_hand(&fine, &t, WINDOW);
    const nib_eval_result r = evaluate(&coarse, &fine, path, WINDOW);
    assert_distance(&r, &p, &ref);
    assert_int_equal(r.units, nib__ceil_div((int64_t)t.count, WINDOW));
    free(p.log_p);
    free(ref.log_p);
    nib_tokens_free(fine.engine, t.ids);
    close_opened(&fine);
    close_opened(&coarse);
    drop_directory(directory);
}

/* ---- files of logits ---- */

/* A folder with a text, and the logits of the model in f32 on it, in windows of 16 tokens. */
typedef struct saved {
    opened fine;
    char directory[256], text[300], logits[300];
} saved;

static void save(saved *s)
{
    s->fine = open_shipped(NULL, "f32");
    make_directory(s->directory);
    write_text(s->directory, "a.txt", text);
    snprintf(s->text, sizeof s->text, "%s/a.txt", s->directory);
    snprintf(s->logits, sizeof s->logits, "%s/a.logits", s->directory);
    evaluate_with(
        &s->fine, NULL,
        &(nib_eval_options){.text_path = s->text, .window = 16, .save_logits = s->logits});
}

static void drop(saved *s)
{
    close_opened(&s->fine);
    drop_directory(s->directory);
}

/* A comparison with a file has the bits of one with the model. */
static void test_logits_in_place_of_a_model(void **state)
{
    (void)state;
    saved s;
    save(&s);
    opened coarse = open_shipped("int4wo-g32", "f32");
    nib_eval_result with = evaluate(&coarse, &s.fine, s.text, 16);
    nib_eval_result file = evaluate_with(
        &coarse, NULL, &(nib_eval_options){.text_path = s.text, .against_logits = s.logits});
    assert_true(with.kl > 1e-4 && with.units >= 4);
    assert_true(with.loss == file.loss && with.kl == file.kl && with.predicted == file.predicted);
    assert_true(with.top1_agreement == file.top1_agreement);
    const size_t from = offsetof(nib_eval_result, kl_median);
    assert_memory_equal((char *)&with + from, (char *)&file + from, sizeof with - from);
    file = evaluate_with(&s.fine, NULL,
                         &(nib_eval_options){.text_path = s.text, .against_logits = s.logits});
    assert_true(file.kl == 0 && file.top1_agreement == 1 && file.against_loss == file.loss);
    close_opened(&coarse);
    drop(&s);
}

/* Writes `count` bytes over those of a file. */
static void overwrite(const char *path, long offset, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void assert_logits_refused(const saved *s, nib_eval_options options, nib_status status)
{
    nib_eval_result r = {.size = sizeof r};
    nib_err err;
    options.text_path = options.text_path ? options.text_path : s->text;
    refused(status, nib_eval(s->fine.session, NULL, &options, &r, &err), &err);
}

static void test_refused_logits(void **state)
{
    (void)state;
    saved s;
    char other[300];
    save(&s);
    const nib_eval_options with = {.against_logits = s.logits};
    nib_eval_options changed = with;
    snprintf(other, sizeof other, "%s/b.txt", s.directory);
    write_text(s.directory, "b.txt", "Prince Andrew looked at the young man, and said nothing.");
    changed.text_path = other;
    assert_logits_refused(&s, changed, NIB_BAD_INPUT); /* another text */
    changed = with;
    changed.window = 32;
    assert_logits_refused(&s, changed, NIB_BAD_INPUT);
    assert_logits_refused(&s, (nib_eval_options){.save_logits = s.logits}, NIB_EXISTS);
    assert_logits_refused(&s, (nib_eval_options){.logits_format = "nibble"}, NIB_USAGE);
    changed = with;
    changed.save_logits = other;
    changed.logits_format = "llama.cpp"; /* cuts the text in another way */
    assert_logits_refused(&s, changed, NIB_USAGE);
    changed = with;
    changed.against_logits = s.text; /* no file of logits */
    assert_logits_refused(&s, changed, NIB_BAD_INPUT);
    const float values[] = {NAN, INFINITY};
    for (size_t i = 0; i < COUNT(values); i++) {
        overwrite(s.logits, 64 + 4 * 1000, &values[i], sizeof values[i]);
        assert_logits_refused(&s, with, NIB_BAD_INPUT);
    }
    uint64_t head[8] = {0, 1 | (uint64_t)9 << 32, 16}; /* version 1, 9 tokens, no rows */
    memcpy(head, "niblogit", 8);
    write_bytes(s.logits, head, sizeof head);
    assert_logits_refused(&s, with, NIB_BAD_INPUT); /* another vocabulary */
    drop(&s);
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

/* ---- divergences from PyTorch ---- */

/* NAME=VALUE of a line of eval_divergences.txt. */
static double known_value(const char *line, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, " %s=", name);
    const char *at = strstr(line, key);
    if (!at)
        fail_msg("no %s in %s", name, line);
    return strtod(at + strlen(key), NULL);
}

/* Both models compute in f32, as PyTorch does. An error of 1e-5 in a logit changes the KL
 * divergence of a token by 1e-5 times its square root. */
static void expect_divergence(const char *line, const char *text_file, int window)
{
    opened fine = must_open(&(open_how){
        .path = "models/nibble-tales", .dtype = "f32", .threads = 2, .context = window});
    opened coarse = must_open(&(open_how){.path = "models/nibble-tales",
                                          .recipe = "int4wo-g32",
                                          .dtype = "f32",
                                          .threads = 2,
                                          .context = window});
    const nib_eval_result r = evaluate(&coarse, &fine, text_file, window);
    assert_true(r.documents);
    assert_close("mean", r.kl, known_value(line, "kl"), 1e-4);
    assert_close("median", r.kl_median, known_value(line, "median"), 1e-3);
    assert_close("99 %", r.kl_p99, known_value(line, "p99"), 1e-3);
    assert_close("99.9 %", r.kl_p999, known_value(line, "p999"), 1e-3);
    assert_close("largest", r.kl_largest, known_value(line, "largest"), 1e-3);
    assert_close("its position", (double)r.kl_largest_position,
                 known_value(line, "largest_position"), 0);
    assert_close("agreement", r.top1_agreement, known_value(line, "top1"), 1e-6);
    assert_close("reference's loss", r.against_loss, known_value(line, "against_loss"), 1e-5);
    assert_close("ratio", r.perplexity_ratio, known_value(line, "ratio"), 1e-5);
    for (size_t i = 0; i < NIB_EVAL_POSITIONS && r.position_predicted[i] > 0; i++) {
        char name[32];
        snprintf(name, sizeof name, "from%" PRId64, r.position_begin[i]);
        assert_close(name, r.position_kl[i], known_value(line, name), 1e-4);
    }
    close_opened(&coarse);
    close_opened(&fine);
}

static void test_divergences_of_pytorch(void **state)
{
    (void)state;
    skip_slow();
    char line[1024], text_file[128];
    int window, count = 0;
    FILE *file = fopen("tests/golden/eval_divergences.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#')
            continue;
        assert_int_equal(
            sscanf(line, "models/nibble-tales %127s %d int4wo-g32", text_file, &window), 2);
        expect_divergence(line, text_file, window);
        count++;
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(count, 2);
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
        cmocka_unit_test(test_distance_by_hand),
        cmocka_unit_test(test_logits_in_place_of_a_model),
        cmocka_unit_test(test_refused_logits),
        cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_loss_of_transformers),
        cmocka_unit_test(test_divergences_of_pytorch),
        cmocka_unit_test(test_loss_through_gguf),
        cmocka_unit_test(test_tiny_stories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
