/* SPDX-License-Identifier: Apache-2.0
 *
 * One checkpoint of a run, written and read by a trainer that is not stepped: what is missing or
 * false in each of its files, each allocation failing once, and a full disk. Names train_state.c.
 * test_train_checkpoint.c has whole runs.
 */
#include "train_state.h"

#include "failing.h"
#include "train_runs.h"

#include <signal.h>
#include <sys/resource.h>

typedef struct opened {
    job settings;
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_trainer trainer;
} opened;

static void open_trainer(opened *o)
{
    const nib_engine_options options = {.threads = 1, .callbacks = {NULL, on_log, &o->settings}};
    const nib_model_options bare = {.config_only = true};
    const nib_request request = {.dtype = "f32"};
    nib_err err = {NIB_OK, ""};
    o->settings.log[0] = '\0';
    if (nib_engine_open(&o->engine, &options, &err) != NIB_OK ||
        nib_model_open(&o->model, o->engine, in_root("config.json"), &bare, &err) != NIB_OK)
        fail_msg("%s", err.text);
    o->engine->measured = true;
    o->model->net.training = true;
    o->model->net.train = settings(&o->settings);
    if (nib_plan_open(&o->plan, o->model, &request, &err) != NIB_OK ||
        nib__trainer_open(&o->trainer, o->model, o->plan, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void close_trainer(opened *o)
{
    nib__trainer_close(&o->trainer);
    nib_plan_close(o->plan);
    nib_model_close(o->model);
    nib_engine_close(o->engine);
}

static const char *new_directory(const char *name)
{
    assert_int_equal(nib__path_remove(in_root(name), NULL), NIB_OK);
    assert_int_equal(mkdir(in_root(name), 0777), 0);
    return in_root(name);
}

static void write_state(opened *o, const char *name)
{
    nib_err err = {NIB_OK, ""};
    if (nib__state_write(&o->trainer, new_directory(name), &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void open_with_state(opened *o)
{
    *o = (opened){.settings = {.steps = 3}};
    open_trainer(o);
    write_state(o, "state");
}

/* Replaces the first occurrence in a file of the checkpoint; it must exist. */
static void replace(const char *name, const char *old, const char *other)
{
    size_t size;
    char *text = read_file(name, &size), *at = text;
    while (at + strlen(old) <= text + size && memcmp(at, old, strlen(old)) != 0)
        at++;
    assert_true(at + strlen(old) <= text + size);
    const size_t before = (size_t)(at - text), after = size - before - strlen(old);
    char *out = malloc(size + strlen(other));
    assert_non_null(out);
    memcpy(out, text, before);
    memcpy(out + before, other, strlen(other));
    memcpy(out + before + strlen(other), at + strlen(old), after);
    write_text(name, out, before + strlen(other) + after);
    free(out), free(text);
}

static void expect_state(opened *o, nib_status wanted)
{
    nib_err err = {NIB_OK, ""};
    const nib_status got = nib__state_read(&o->trainer, in_root("state"), &err);
    if (wanted == NIB_OK) {
        if (got != NIB_OK)
            fail_msg("%s", err.text);
        return;
    }
    refused(wanted, got, &err);
}

static void test_reads_what_it_wrote(void **state)
{
    (void)state;
    static const char llama3[] =
        "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
        "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 16}, \"hidden_act\"";
    opened o;
    open_with_state(&o);
    const size_t bytes = (size_t)o.trainer.params.total * sizeof(float);
    float *weights = malloc(bytes);
    assert_non_null(weights);
    memcpy(weights, o.trainer.weights, bytes);
    memset(o.trainer.weights, 0, bytes);
    expect_state(&o, NIB_OK);
    assert_memory_equal(o.trainer.weights, weights, bytes);
    free(weights);
    close_trainer(&o);
    /* the numbers of RoPE are written and compared, too */
    replace("config.json", "\"hidden_act\"", llama3);
    open_trainer(&o);
    expect_state(&o, NIB_BAD_INPUT);
    write_state(&o, "state");
    expect_state(&o, NIB_OK);
    replace("state/nibble.json", "\"rope_low\": 1", "\"rope_low\": 2");
    expect_state(&o, NIB_BAD_INPUT);
    write_text("config.json", config, sizeof config - 1);
    close_trainer(&o);
}

/* Members of nibble.json that are missing, false, or of the wrong kind. */
static void test_bad_manifests(void **state)
{
    (void)state;
    static const struct {
        const char *old, *other;
    } cases[] = {
        {"{", "["},
        {"\"training\"", "\"trainings\""},
        {"\"training\": {", "\"training\": 5, \"x\": {"},
        {"\"arch\"", "\"archs\""},
        {"\"dataset\"", "\"datasets\""},
        {"\"tokens\"", "\"token\""},
        {"\"mean_loss\"", "\"mean_losses\""},
        {"\"step\": 0", "\"step\": -1"},
        {"\"step\": 0", "\"step\": null"},
        {"\"skipped\": 0", "\"skipped\": 1"},
        {"\"skipped\": 0", "\"skipped\": -1"},
        {"\"arch\": \"llama\"", "\"arch\": 5"},
        {"\"arch\": \"llama\"", "\"arch\": \"qwen3\""},
        {"\"dataset\": \"", "\"dataset\": 5, \"x\": \""},
        {"\"dataset_xxh3_128\": \"", "\"dataset_xxh3_128\": 5, \"x\": \""},
        {"\"dataset_xxh3_128\": \"", "\"dataset_xxh3_128\": \"x"},
        {"\"tokenizer_xxh3_128\": \"", "\"tokenizer_xxh3_128\": \"x"},
        {"\"rope_type\": \"default\"", "\"rope_type\": 5"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"linear\""},
        {"\"norm_eps\": ", "\"norm_eps\": 1, \"x\": "},
        {"\"data_piece\": 0", "\"data_piece\": 0, \"x\": }"},
        {"\"config\": {", "\"config\": {]"},
        {"\"model.norm.weight\": \"", "\"model.nxrm.weight\": \""},
        {"\"moments.safetensors\": \"", "\"moment.safetensors\": \""},
        {"\"config.json\": \"", "\"konfig.json\": \""},
        /* a position that is not in the data */
        {"\"data_sequences\": 0", "\"data_sequences\": 4"},
    };
    opened o;
    open_with_state(&o);
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t size;
        char *kept = read_file("state/nibble.json", &size);
        replace("state/nibble.json", cases[i].old, cases[i].other);
        if (i + 1 == COUNT(cases))
            replace("state/nibble.json", "\"data_used\": 0", "\"data_used\": 1000000");
        expect_state(&o, NIB_BAD_INPUT);
        write_text("state/nibble.json", kept, size);
        free(kept);
    }
    /* unknown members are ignored */
    replace("state/nibble.json", "\"training\": {", "\"training\": {\"x\": [1],");
    expect_state(&o, NIB_OK);
    assert_int_equal(nib__path_remove(in_root("state/nibble.json"), NULL), NIB_OK);
    expect_state(&o, NIB_IO);
    close_trainer(&o);
}

/* The hash that nibble.json states for a file becomes that of its present bytes. */
static void renew_hash(const char *name)
{
    char path[64], old[64], text[33];
    size_t size;
    snprintf(path, sizeof path, "state/%s", name);
    char *bytes = read_file(path, &size), *manifest;
    const nib_hash hash = nib__hash_bytes(bytes, size);
    free(bytes);
    manifest = read_file("state/nibble.json", &size);
    snprintf(old, sizeof old, "\"%s\": \"", name);
    char *at = strstr(manifest, old);
    assert_non_null(at);
    memcpy(at + strlen(old), nib__hash_text(text, hash), 32);
    write_text("state/nibble.json", manifest, size);
    free(manifest);
}

/* Tensors that another model would have, under hashes that are right. */
static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *file, *old, *other;
    } cases[] = {
        {"model.safetensors", "\"model.norm.weight\"", "\"model.nxrm.weight\""},
        {"model.safetensors", "\"dtype\": \"F32\"", "\"dtype\": \"I32\""},
        {"moments.safetensors", "\"m.model.norm.weight\"", "\"m.model.nxrm.weight\""},
        {"moments.safetensors", "\"v.model.norm.weight\"", "\"v.model.nxrm.weight\""},
        {"moments.safetensors", "\"dtype\": \"F32\"", "\"dtype\": \"I32\""},
        {"moments.safetensors", "{", "["},
    };
    opened o;
    open_with_state(&o);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char path[64];
        write_state(&o, "state");
        snprintf(path, sizeof path, "state/%s", cases[i].file);
        replace(path, cases[i].old, cases[i].other);
        if (cases[i].file[1] == 'o' && cases[i].file[2] == 'm')
            renew_hash(cases[i].file);
        expect_state(&o, NIB_BAD_INPUT);
    }
    /* the key's weights under the name of the query's, which are twice as many */
    write_state(&o, "state");
    replace("state/model.safetensors", "layers.0.self_attn.q_proj", "layers.0.self_attn.x_proj");
    replace("state/model.safetensors", "layers.0.self_attn.k_proj", "layers.0.self_attn.q_proj");
    expect_state(&o, NIB_BAD_INPUT);
    /* fewer tensors than moments: a file of the first moments alone */
    write_state(&o, "state");
    const nib_state_block first = {"m.", o.trainer.optimizer.m};
    nib_err err = {NIB_OK, ""};
    assert_int_equal(nib__path_remove(in_root("state/moments.safetensors"), &err), NIB_OK);
    assert_int_equal(nib__state_blocks(in_root("state/moments.safetensors"), &o.trainer, &first, 1,
                                       NIB_TYPE_F32, NULL, &err),
                     NIB_OK);
    renew_hash("moments.safetensors");
    expect_state(&o, NIB_BAD_INPUT);
    close_trainer(&o);
}

/* Each allocation of writing and of reading fails once. */
static void test_no_memory(void **state)
{
    (void)state;
    opened o;
    open_with_state(&o);
    const nib_allocator heap = o.engine->allocator;
    for (int reading = 0; reading < 2; reading++) {
        nib_status status = NIB_NO_MEMORY;
        for (int n = 0; status != NIB_OK; n++) {
            failing f = {.left = n};
            nib_err err = {NIB_OK, ""};
            const char *const directory = reading ? in_root("state") : new_directory("other");
            o.engine->allocator = failing_allocator(&f);
            status = reading ? nib__state_read(&o.trainer, directory, &err)
                             : nib__state_write(&o.trainer, directory, &err);
            o.engine->allocator = heap;
            if (status != NIB_OK && status != NIB_NO_MEMORY)
                fail_msg("allocation %d: %s", n, err.text);
            assert_int_equal(f.live, 0);
            assert_true(n < 5000);
        }
    }
    close_trainer(&o);
}

/* Each type of values, up to a disk that is full at any point. */
static void test_full_disk(void **state)
{
    (void)state;
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    opened o;
    open_with_state(&o);
    const nib_state_block block = {"", o.trainer.weights};
    struct rlimit before;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    for (size_t i = 0; i < COUNT(types); i++) {
        nib_err err = {NIB_OK, ""};
        size_t size;
        assert_int_equal(nib__path_remove(in_root("x"), &err), NIB_OK);
        if (nib__state_blocks(in_root("x"), &o.trainer, &block, 1, types[i], NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        char *bytes = read_file("x", &size);
        free(bytes);
        assert_true(size > (i == 0 ? 4 : 2) * o.trainer.params.total);
        for (rlim_t limit = 0; limit < size; limit += size / 7) {
            const struct rlimit small = {limit, before.rlim_max};
            nib__path_remove(in_root("x"), NULL);
            setrlimit(RLIMIT_FSIZE, &small);
            const nib_status status =
                nib__state_blocks(in_root("x"), &o.trainer, &block, 1, types[i], NULL, &err);
            setrlimit(RLIMIT_FSIZE, &before);
            assert_int_equal(status, NIB_IO);
        }
    }
    for (rlim_t limit = 0; limit < 2000; limit += 300) { /* config.json */
        const struct rlimit small = {limit, before.rlim_max};
        nib_err err = {NIB_OK, ""};
        const char *const directory = new_directory("other");
        setrlimit(RLIMIT_FSIZE, &small);
        const nib_status status = nib__state_write(&o.trainer, directory, &err);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(status, NIB_IO);
    }
    close_trainer(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_it_wrote), cmocka_unit_test(test_bad_manifests),
        cmocka_unit_test(test_bad_tensors),         cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
