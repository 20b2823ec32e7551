/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of a run: 2N steps equal N steps, a stop, and N more, bit for bit; the last few are
 * kept; checkpoints of another run, changed ones and half-removed ones are detected; a failed write
 * leaves the previous checkpoint.
 */
#include "skipping.h"
#include "train_runs.h"

#include <signal.h>
#include <sys/resource.h>

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

/* ---- tests ---- */

static void test_resumes_exactly(void **state)
{
    job whole = {.folder = "whole", .steps = 12};
    (void)state;
    must_train(&whole);
    assert_null(strstr(whole.log, "resuming from"));
    /* in one process and in three, with other threads, stopped within a document and a pass */
    job parts = {.folder = "parts", .steps = 12, .stop = 5};
    expect_refused(&parts, NIB_CANCELLED);
    assert_true(exists("parts/step-00000005/nibble.json"));
    assert_null(strstr(parts.log, "was"));
    parts.stop = 9;
    parts.threads = 2;
    expect_refused(&parts, NIB_CANCELLED);
    assert_non_null(strstr(parts.log, "resuming from"));
    assert_null(strstr(parts.lines, "step:  5"));
    assert_non_null(strstr(parts.lines, "step:  6"));
    parts.stop = 0;
    parts.threads = 1;
    must_train(&parts);
    expect_same("whole/step-00000012", "parts/step-00000012");
    assert_false(exists("parts/training.lock"));
    must_train(&parts); /* no steps are left */
    assert_string_equal(parts.lines, "");
}

/* A document that is read in pieces: the checkpoint is inside the second piece. */
static void test_resumes_inside_a_split_document(void **state)
{
    (void)state;
    skip_slow();
    const size_t size = 400000;
    char *text = malloc(size), path[256];
    assert_non_null(text);
    for (size_t i = 0; i < size; i++)
        text[i] = " the"[i % 4];
    write_text("long.txt", text, size);
    free(text);
    snprintf(path, sizeof path, "%s", in_root("long.txt"));
    const job base = {
        .steps = 11, .dataset = path, .batch = 64, .global_batch = 128, .sequence = 60};
    job whole = base, parts = base;
    whole.folder = "long";
    parts.folder = "long-parts";
    must_train(&whole);
    parts.stop = 10;
    assert_int_equal(train(&parts), NIB_CANCELLED);
    char *manifest = read_file("long-parts/step-00000010/nibble.json", &(size_t){0});
    assert_non_null(strstr(manifest, "\"data_piece\": 26"));
    free(manifest);
    parts.stop = 0;
    must_train(&parts);
    expect_same("long/step-00000011", "long-parts/step-00000011");
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
    /* an older checkpoint is loaded only if the run would not write beside newer ones */
    j.load = 8;
    expect_refused(&j, NIB_EXISTS);
    j.load = 7; /* removed */
    expect_refused(&j, NIB_BAD_INPUT);
    j.load = 8;
    j.unsaved = true;
    must_train(&j);
    assert_non_null(strstr(j.lines, "step:  9"));
    assert_null(strstr(j.lines, "step:  8"));
}

static int count_of(const char *text, const char *words)
{
    int count = 0;
    for (; (text = strstr(text, words)) != NULL; text++)
        count++;
    return count;
}

/* A checkpoint directory with a user's files is not removed, and the run continues. */
static void test_user_files_are_not_removed(void **state)
{
    job j = {.folder = "stays", .steps = 4, .interval = 2, .keep = 9};
    (void)state;
    must_train(&j);
    assert_int_equal(mkdir(in_root("stays/step-00000002/mine"), 0777), 0);
    assert_int_equal(mkdir(in_root("stays/step-00000003.part"), 0777), 0);
    assert_int_equal(mkdir(in_root("stays/step-00000003.part/mine"), 0777), 0);
    j.steps = 12, j.keep = 1;
    must_train(&j);
    assert_int_equal(
        count_of(j.log, "step-00000002: not removed, because it holds the directory mine"), 1);
    assert_int_equal(
        count_of(j.log, "step-00000003.part: not removed, because it holds the directory mine"), 1);
    assert_true(exists("stays/step-00000002/nibble.json"));
    assert_true(exists("stays/step-00000002/model.safetensors"));
    assert_false(exists("stays/step-00000004"));
    assert_true(exists("stays/step-00000012/nibble.json"));
    /* without a manifest it is not a checkpoint, and is removed */
    assert_int_equal(rmdir(in_root("stays/step-00000002/mine")), 0);
    assert_int_equal(unlink(in_root("stays/step-00000002/nibble.json")), 0);
    j.steps = 13;
    must_train(&j);
    assert_false(exists("stays/step-00000002"));
}

/* A run killed right after its last checkpoint leaves one more than it keeps. */
static void test_resumed_removes_the_oldest(void **state)
{
    job j = {.folder = "ended", .steps = 6, .interval = 2, .keep = 9};
    (void)state;
    must_train(&j);
    assert_true(exists("ended/step-00000002/nibble.json"));
    j.keep = 2; /* no step is left that would write another */
    must_train(&j);
    assert_false(exists("ended/step-00000002"));
    assert_true(exists("ended/step-00000004/nibble.json"));
    assert_true(exists("ended/step-00000006/nibble.json"));
}

static void test_rejects_checkpoints_of_other_runs(void **state)
{
    job first = {.folder = "other", .steps = 3}, j;
    (void)state;
    must_train(&first);
    const job again = {.folder = "other", .steps = 6};
    j = again, j.batch = 4;
    expect_refused(&j, NIB_BAD_INPUT);
    j = again, j.global_batch = 8;
    expect_refused(&j, NIB_BAD_INPUT);
    j = again, j.sequence = 32;
    expect_refused(&j, NIB_BAD_INPUT);
    j = again, j.norm_eps = 1e-6;
    expect_refused(&j, NIB_BAD_INPUT);
    write_text("else.jsonl", "{\"text\": \"else\"}\n", 17);
    char other[256];
    size_t bytes;
    char *same = read_file("text.jsonl", &bytes); /* its lines are not documents any more */
    write_text("text.txt", same, bytes);
    free(same);
    snprintf(other, sizeof other, "%s", in_root("text.txt"));
    j = again, j.dataset = other;
    expect_refused(&j, NIB_BAD_INPUT);
    snprintf(other, sizeof other, "%s", in_root("else.jsonl"));
    j = again, j.dataset = other;
    expect_refused(&j, NIB_BAD_INPUT);
    size_t size;
    char *text = read_file("config.json", &size);
    const char *layers = strstr(text, "num_hidden_layers\": 2");
    assert_non_null(layers);
    text[(size_t)(layers - text) + strlen("num_hidden_layers\": ")] = '3';
    write_text("config.json", text, size);
    j = again;
    expect_refused(&j, NIB_BAD_INPUT);
    write_text("config.json", config, sizeof config - 1);
    free(text);
    j = again; /* a longer run is allowed, with a log line */
    must_train(&j);
    assert_non_null(strstr(j.log, "training.steps was 3 before the checkpoint and is 6 now\n"));
    assert_null(strstr(j.log, "optimizer"));
}

/* Every occurrence of `old` in a file becomes `other`. */
static void replace_in_file(const char *name, const char *old, const char *other)
{
    size_t size;
    char *text = read_file(name, &size), *out = malloc(2 * size + 1000);
    size_t used = 0;
    assert_non_null(out);
    for (const char *at = text; *at;) {
        const bool here = strncmp(at, old, strlen(old)) == 0;
        used += (size_t)sprintf(out + used, here ? "%s" : "%.1s", here ? other : at);
        at += here ? strlen(old) : 1;
    }
    write_text(name, out, used);
    free(out), free(text);
}

static void test_other_positions_and_tokenizer(void **state)
{
    job first = {.folder = "same", .steps = 2}, j = {.folder = "same", .steps = 4, .unsaved = true};
    size_t size;
    char *tokenizer = read_file("tokenizer.json", &size);
    (void)state;
    must_train(&first);
    j.load = 2;
    replace_in_file("config.json", "\"hidden_act\"",
                    "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, \"hidden_act\"");
    expect_refused(&j, NIB_BAD_INPUT);
    first.folder = j.folder = "linear";
    must_train(&first);
    replace_in_file("config.json", "\"factor\": 2", "\"factor\": 4");
    expect_refused(&j, NIB_BAD_INPUT);
    FILE *f = fopen(in_root("tokenizer.json"), "ab");
    assert_non_null(f);
    fputs("\n", f);
    fclose(f);
    replace_in_file("config.json", "\"factor\": 4", "\"factor\": 2");
    expect_refused(&j, NIB_BAD_INPUT);
    /* what a checkpoint does not record is not compared */
    replace_in_file("linear/step-00000002/nibble.json", "\"tokenizer_xxh3_128\"",
                    "\"tokenizer_hash\"");
    replace_in_file("linear/step-00000002/nibble.json", "\"rope_type\"", "\"rope_kind\"");
    replace_in_file("linear/step-00000002/nibble.json", "\"rope_factor\"", "\"rope_times\"");
    replace_in_file("linear/step-00000002/nibble.json", "\"rope_original\"", "\"rope_positions\"");
    replace_in_file("config.json", "\"factor\": 2", "\"factor\": 4");
    must_train(&j);
    write_text("tokenizer.json", tokenizer, size);
    write_text("config.json", config, sizeof config - 1);
    free(tokenizer);
}

/* Training from existing weights may change rope on purpose. */
static void test_initial_load_logs_changed_rope(void **state)
{
    job first = {.folder = "first", .steps = 1},
        j = {.folder = "longer", .steps = 1, .unsaved = true};
    char path[256];
    (void)state;
    must_train(&first);
    snprintf(path, sizeof path, "%s", in_root("first/step-00000001"));
    j.initial_load = path;
    must_train(&j);
    assert_null(strstr(j.log, "in the model"));
    replace_in_file(
        "config.json", "\"rope_theta\": 10000.0",
        "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, \"rope_theta\": 500000");
    j.norm_eps = 1e-6;
    must_train(&j);
    assert_non_null(strstr(j.log, "first/step-00000001: rope_type is default in the model, but "
                                  "linear in this run\n"));
    assert_non_null(strstr(j.log, ": rope_theta is 10000 in the model, but 500000 in this run\n"));
    assert_non_null(strstr(j.log, ": norm_eps is 1e-05 in the model, but 1e-06 in this run\n"));
    assert_null(strstr(j.log, "factor"));
    first.folder = "linear-first";
    must_train(&first);
    snprintf(path, sizeof path, "%s", in_root("linear-first/step-00000001"));
    replace_in_file("config.json", "\"factor\": 2", "\"factor\": 4");
    j.norm_eps = 0;
    must_train(&j);
    assert_non_null(strstr(j.log, ": rope_scaling.factor is 2 in the model, but 4 in this run\n"));
    assert_null(strstr(j.log, "rope_type"));
    write_text("config.json", config, sizeof config - 1);
}

/* A resumed run logs every setting that differs from the start, whatever set it. */
static void test_logs_changed_recipes(void **state)
{
    job first = {.folder = "recipe", .steps = 2, .recipe = "mxfp8", .wgrad_with_hp = true}, j;
    const job again = {
        .folder = "recipe", .steps = 3, .load = 2, .unsaved = true, .recipe = "mxfp8"};
    (void)state;
    must_train(&first);
    j = again, j.wgrad_with_hp = true;
    must_train(&j);
    assert_null(strstr(j.log, "quantize"));
    assert_null(strstr(j.log, "schemes"));
    j = again;
    must_train(&j);
    assert_non_null(strstr(j.log, "quantize.wgrad_with_hp was true before the checkpoint and is "
                                  "false now\n"));
    j = again, j.recipe = NULL;
    must_train(&j);
    assert_non_null(
        strstr(j.log, "quantize was \"mxfp8\" before the checkpoint and is null now\n"));
    assert_null(strstr(j.log, "schemes"));
    j = again, j.skip = "*.q_proj", j.wgrad_with_hp = true;
    must_train(&j);
    assert_non_null(
        strstr(j.log, "--skip was null before the checkpoint and is \"*.q_proj\" now\n"));
    /* the recipe file has changed */
    char path[256];
    snprintf(path, sizeof path, "%s", in_root("r.json"));
    write_text("r.json", "{\"recipe\": \"mxfp8\"}", 19);
    first.folder = "file", first.recipe = path;
    must_train(&first);
    write_text("r.json", "{\"recipe\": \"mxfp8-floor\"}", 25);
    j = first, j.steps = 3, j.load = 2, j.unsaved = true;
    must_train(&j);
    assert_non_null(strstr(j.log, "layer schemes differ from those before the checkpoint"));
    /* the QAT scheme decides the export */
    first = (job){.folder = "codes", .steps = 2, .qat = "8da4w-g16"};
    must_train(&first);
    j = first, j.steps = 3, j.load = 2, j.unsaved = true, j.export_dtype = NIB_TYPE_BF16;
    must_train(&j);
    assert_non_null(strstr(j.log, "checkpoint.export_dtype was \"float32\" before the checkpoint "
                                  "and is \"bfloat16\" now\n"));
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

static void expect_missing(job *j, const char *name)
{
    size_t size;
    char *bytes = read_file(name, &size);
    assert_int_equal(unlink(in_root(name)), 0);
    expect_refused(j, NIB_BAD_INPUT);
    write_text(name, bytes, size);
    free(bytes);
}

static void test_detects_damage(void **state)
{
    job j = {.folder = "damaged", .steps = 4, .interval = 1, .keep = 3};
    (void)state;
    must_train(&j);
    j.steps = 5;
    damage("damaged/step-00000004/model.safetensors", SIZE_MAX);
    expect_refused(&j, NIB_BAD_INPUT);
    damage("damaged/step-00000004/model.safetensors", SIZE_MAX);
    damage("damaged/step-00000004/moments.safetensors", SIZE_MAX);
    expect_refused(&j, NIB_BAD_INPUT);
    damage("damaged/step-00000004/moments.safetensors", SIZE_MAX);
    damage("damaged/step-00000004/model.safetensors", 7); /* the size of its header */
    expect_refused(&j, NIB_BAD_INPUT);
    damage("damaged/step-00000004/model.safetensors", 7);
    damage("damaged/step-00000004/nibble.json", 0);
    expect_refused(&j, NIB_BAD_INPUT);
    damage("damaged/step-00000004/nibble.json", 0);
    expect_missing(&j, "damaged/step-00000004/model.safetensors");
    expect_missing(&j, "damaged/step-00000004/moments.safetensors");
    expect_missing(&j, "damaged/step-00000004/config.json");
    damage("damaged/step-00000004/config.json", 5);
    expect_refused(&j, NIB_BAD_INPUT);
    /* half removed: skipped, and replaced */
    assert_int_equal(unlink(in_root("damaged/step-00000004/nibble.json")), 0);
    must_train(&j);
    assert_non_null(strstr(j.log, "step-00000004 has no nibble.json: skipped"));
    assert_non_null(strstr(j.log, "step-00000003\n"));
    assert_true(exists("damaged/step-00000004/nibble.json"));
    /* a manifest of another directory */
    assert_int_equal(rename(in_root("damaged/step-00000005"), in_root("damaged/step-00000007")), 0);
    j.steps = 8;
    expect_refused(&j, NIB_BAD_INPUT);
    write_text("damaged/step-00000007/nibble.json", "{}", 2);
    expect_refused(&j, NIB_BAD_INPUT);
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
    expect_refused(&j, NIB_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_false(exists("full/step-00000006.part"));
    assert_false(exists("full/step-00000006"));
    /* leftovers of a killed process are removed */
    assert_int_equal(mkdir(in_root("full/step-00000004.part"), 0777), 0);
    write_text("full/step-00000004.part/model.safetensors", "x", 1);
    must_train(&j);
    assert_non_null(strstr(j.log, "step-00000003\n"));
    assert_false(exists("full/step-00000004.part"));
}

/* A step may ruin the weights although its loss was finite. */
static void test_rejects_nonfinite_weights(void **state)
{
    job j = {.folder = "ruined", .steps = 3, .interval = 1, .rate = 1e45};
    (void)state;
    expect_refused(&j, NIB_CHECK_FAILED);
    assert_false(exists("ruined/step-00000001"));
    assert_false(exists("ruined/step-00000001.part"));
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
    expect_refused(&j, NIB_EXISTS);
    nib__lock_release(fd, in_root("taken/training.lock"));
    must_train(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resumes_exactly),
        cmocka_unit_test(test_resumes_inside_a_split_document),
        cmocka_unit_test(test_keeps_the_last),
        cmocka_unit_test(test_resumed_removes_the_oldest),
        cmocka_unit_test(test_rejects_checkpoints_of_other_runs),
        cmocka_unit_test(test_detects_damage),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_rejects_nonfinite_weights),
        cmocka_unit_test(test_other_positions_and_tokenizer),
        cmocka_unit_test(test_initial_load_logs_changed_rope),
        cmocka_unit_test(test_logs_changed_recipes),
        cmocka_unit_test(test_user_files_are_not_removed),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
