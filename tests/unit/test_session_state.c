/* SPDX-License-Identifier: Apache-2.0
 *
 * States as bytes (session_state.c, state_basis.c): a sequence continues with the same bits where
 * it is loaded, and saves as the same bytes again; and what is refused, which changes nothing.
 */
#include "session.h"

#include "failing.h"
#include "failing_gpu.h"
#include "safetensors_build.h"
#include "skipping.h"

#include <limits.h>
#include <math.h>

#include "refused.h"

enum { MORE = 12 /* steps after a state */ };

/* Offsets of the head's numbers. */
enum {
    AT_VERSION = 8,
    AT_WEIGHTS = 16,
    AT_BASIS = 32,
    AT_LAYERS = 40,
    AT_HEADS = 48,
    AT_DIM = 56,
    AT_LENGTH = 64,
    AT_FIRST = 72,
    HEAD = 80,
    SUM = 16
};

typedef struct bytes {
    char *at;
    size_t size;
} bytes;

static nib_status grow(void *ctx, const char *more, size_t size)
{
    bytes *b = ctx;
    assert_true(size > 0);
    char *at = realloc(b->at, b->size + size);
    assert_non_null(at);
    memcpy(at + b->size, more, size);
    b->at = at;
    b->size += size;
    return NIB_OK;
}

/* Takes *left writes. */
static nib_status refuse_write(void *ctx, const char *more, size_t size)
{
    int *left = ctx;
    (void)more, (void)size;
    return --*left < 0 ? NIB_IO : NIB_OK;
}

static bytes save(nib_session *s, int32_t sequence)
{
    bytes b = {0};
    nib_err err;
    if (nib_session_save(s, sequence, &(nib_sink){grow, &b}, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return b;
}

static void must_load(nib_session *s, int32_t sequence, bytes b, int64_t length)
{
    int32_t got = -1;
    nib_err err;
    if (nib_session_load(s, sequence, b.at, b.size, &got, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(got, length);
    assert_int_equal(s->runner.kv.lengths[sequence], length);
}

/* Saving the sequence gives these bytes. */
static void assert_saves(nib_session *s, int32_t sequence, bytes want)
{
    bytes got = save(s, sequence);
    assert_int_equal(got.size, want.size);
    assert_memory_equal(got.at, want.at, want.size);
    free(got.at);
}

static opened open_model(const char *name, const char *recipe, const char *dtype, const char *cache,
                         int sequences)
{
    char path[64];
    snprintf(path, sizeof path, "tests/golden/models/%s", name);
    return must_open(&(open_how){
        .path = path, .recipe = recipe, .dtype = dtype, .cache = cache, .sequences = sequences});
}

static int32_t token_at(const nib_session *s, int64_t i, int number)
{
    return (int32_t)((7 * i + i / 50 + 31 * number + 3) % nib_session_vocab(s));
}

/* Runs positions [from, to) of text `number` in steps of at most `chunk`. */
static void run(nib_session *s, int32_t sequence, int64_t from, int64_t to, int64_t chunk,
                int number)
{
    nib_slot slots[1024];
    nib_err err;
    for (int64_t at = from; at < to; at += chunk) {
        const int64_t count = nib__min(chunk, to - at);
        for (int64_t i = 0; i < count; i++)
            slots[i] = (nib_slot){sequence, (int32_t)(at + i), token_at(s, at + i, number), 0};
        if (nib_session_step(s, slots, (size_t)count, NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
    }
}

/* Logits of the next MORE tokens, one by one: [MORE][vocab]. */
static float *run_on(nib_session *s, int32_t sequence, int64_t from)
{
    const size_t vocab = (size_t)nib_session_vocab(s);
    float *out = calloc(MORE * vocab, sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < MORE; i++) {
        const nib_slot slot = {sequence, (int32_t)(from + i), token_at(s, from + i, 5),
                               NIB_SLOT_LOGITS};
        const float *logits;
        nib_err err;
        if (nib_session_step(s, &slot, 1, &logits, &err) != NIB_OK)
            fail_msg("%s", err.text);
        memcpy(out + (size_t)i * vocab, logits, vocab * sizeof *out);
    }
    return out;
}

static void assert_runs_on(nib_session *s, int32_t sequence, int64_t from, const float *want)
{
    float *got = run_on(s, sequence, from);
    assert_memory_equal(got, want, MORE * (size_t)nib_session_vocab(s) * sizeof *got);
    free(got);
}

/* ---- the same bits ---- */

/* Saves after `length` tokens in one session; loads in another of the same kind, over what its
 * sequence held. */
static void check_length(opened *a, opened *b, int64_t length, int64_t cut)
{
    nib_kv *kv = &a->session->runner.kv;
    assert_int_equal(nib_session_truncate(a->session, 0, 0, NULL), NIB_OK);
    assert_int_equal(nib_session_truncate(b->session, 1, 0, NULL), NIB_OK);
    assert_int_equal(nib_session_truncate(b->session, 0, 0, NULL), NIB_OK);
    run(a->session, 0, 0, length + cut, 512, 0);
    if (cut > 0)
        assert_int_equal(nib_session_truncate(a->session, 0, (int32_t)length, NULL), NIB_OK);
    assert_int_equal(kv->lengths[0], length);
    bytes state = save(a->session, 0);
    float *want = run_on(a->session, 0, length);

    run(b->session, 1, 0, 150, 512, 1);
    run(b->session, 0, 0, 70, 512, 2);
    bytes neighbour = save(b->session, 0);
    must_load(b->session, 1, state, length);
    assert_saves(b->session, 1, state);
    assert_runs_on(b->session, 1, length, want);
    assert_saves(b->session, 0, neighbour);
    must_load(b->session, 1, state, length); /* once more, over itself */
    assert_runs_on(b->session, 1, length, want);
    must_load(b->session, 0, state, length);
    assert_runs_on(b->session, 0, length, want);
    free(state.at);
    free(neighbour.at);
    free(want);
}

static void test_same_bits(void **state)
{
    static const char *const caches[] = {
        "f32", "f16", "bf16", "int8", "int4", "int8:int4-hadamard", "bf16:f32"};
    static const int64_t lengths[] = {0, 1, 63, 64, 65, 128, 300, 600};
    (void)state;
    for (size_t c = 0; c < COUNT(caches); c++) {
        opened a = open_model("exaone4_window", NULL, "f32", caches[c], 1),
               b = open_model("exaone4_window", NULL, "f32", caches[c], 2);
        assert_int_equal(a.session->runner.kv.group_count, 2);
        for (size_t i = 0; i < COUNT(lengths); i += (size_t)sparse(3))
            check_length(&a, &b, lengths[i], 0);
        check_length(&a, &b, 900, 0); /* blocks before the windows are gone */
        assert_true(nib__kv_first(&a.session->runner.kv, 0) > 0);
        check_length(&a, &b, 640, 250); /* rolled back */
        check_length(&a, &b, 1000, 1);
        close_opened(&a);
        close_opened(&b);
    }
}

static void test_models(void **state)
{
    static const struct {
        const char *model, *recipe, *dtype;
    } cases[] = {
        {"llama2", NULL, "f32"},           {"gemma3", "8da4w", "bf16"},
        {"mistral_window", NULL, "bf16"},  {"phi3_longrope", "int8wo", "f32"},
        {"deepseek_v3", "int8wo", "bf16"}, {"kimi_k2", NULL, "f32"},
        {"cohere2", "fp8dq", "f32"},       {"ministral3", NULL, "f32"},
        {"gemma4_shared", NULL, "f32"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        opened a = open_model(cases[i].model, cases[i].recipe, cases[i].dtype, NULL, 1),
               b = open_model(cases[i].model, cases[i].recipe, cases[i].dtype, NULL, 2);
        const int64_t context = a.plan->context;
        check_length(&a, &b, nib__min(context - MORE, 97), 0);
        check_length(&a, &b, context - MORE, 0);
        close_opened(&a);
        close_opened(&b);
    }
}

/* A session with a shorter context, without windows in its cache, and one with a longer. */
static void test_other_context(void **state)
{
    static const int64_t contexts[] = {160, 600, 1024};
    opened all[COUNT(contexts)];
    (void)state;
    for (size_t i = 0; i < COUNT(contexts); i++)
        all[i] = must_open(&(open_how){.path = "tests/golden/models/mistral_window",
                                       .dtype = "f32",
                                       .context = contexts[i],
                                       .threads = 1 + (int)i});
    for (size_t i = 0; i < COUNT(contexts); i++) {
        run(all[i].session, 0, 0, 130, 17, 0);
        bytes state_of = save(all[i].session, 0);
        float *want = run_on(all[i].session, 0, 130);
        for (size_t j = 0; j < COUNT(contexts); j++) {
            must_load(all[j].session, 0, state_of, 130);
            assert_saves(all[j].session, 0, state_of);
            assert_runs_on(all[j].session, 0, 130, want);
            assert_int_equal(nib_session_truncate(all[j].session, 0, 0, NULL), NIB_OK);
        }
        free(state_of.at);
        free(want);
    }
    for (size_t i = 0; i < COUNT(contexts); i++)
        close_opened(&all[i]);
}

/* Sequences that share blocks are saved like any other, and loading into one leaves the other. */
static void test_shared_blocks(void **state)
{
    opened o = open_model("exaone4_window", NULL, "f32", NULL, 3);
    nib_kv *kv = &o.session->runner.kv;
    (void)state;
    run(o.session, 2, 0, 77, 512, 4);
    bytes other = save(o.session, 2);
    run(o.session, 0, 0, 300, 512, 0);
    bytes first = save(o.session, 0);
    nib__kv_share(kv, 0, 1, 256);
    run(o.session, 1, 256, 280, 512, 1);
    bytes second = save(o.session, 1);
    float *want = run_on(o.session, 1, 280);
    assert_int_equal(nib_session_truncate(o.session, 1, 280, NULL), NIB_OK);
    const int64_t used = nib__kv_used_blocks(kv);
    must_load(o.session, 1, second, 280); /* now in blocks of its own */
    assert_true(nib__kv_used_blocks(kv) > used);
    assert_saves(o.session, 0, first);
    assert_runs_on(o.session, 1, 280, want);
    must_load(o.session, 0, other, 77);
    assert_saves(o.session, 2, other);
    must_load(o.session, 0, first, 300);
    assert_saves(o.session, 0, first);
    free(first.at);
    free(second.at);
    free(other.at);
    free(want);
    close_opened(&o);
}

/* What nib_generate read and made can be saved, and continued elsewhere. */
static void test_after_generate(void **state)
{
    const open_how how = {.path = "models/nibble-tales", .recipe = "8da4w", .context = 128};
    opened a = must_open(&how), b = must_open(&how);
    const nib_generate_options options = {
        .prompt = "Once upon a time", .max_tokens = 20, .ignore_eos = true, .temperature = -1};
    bytes text = {0};
    nib_err err;
    (void)state;
    if (nib_generate(a.session, &options, &(nib_sink){grow, &text}, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const int64_t length = a.session->runner.kv.lengths[0];
    assert_true(length > 20);
    bytes after = save(a.session, 0);
    float *want = run_on(a.session, 0, length);
    must_load(b.session, 0, after, length);
    assert_runs_on(b.session, 0, length, want);
    free(want);
    free(text.at);
    free(after.at);
    close_opened(&a);
    close_opened(&b);
}

/* ---- on a device ---- */

static void assert_close(const float *got, const float *want, size_t count)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    if (!(off < 0.01 * size))
        fail_msg("off by %g of %g", off, size);
}

static void test_on_device(void **state)
{
    const open_how here = {.path = "tests/golden/models/exaone4_window", .dtype = "f32"};
    open_how there = here;
    there.device = tested_device();
    there.sequences = 2;
    (void)state;
    skip_without_device();
    opened cpu = must_open(&here), gpu = must_open(&there);
    const int64_t length = 650;
    int32_t got = -7;
    nib_err err;
    run(cpu.session, 0, 0, length, 512, 0);
    run(gpu.session, 1, 0, length, 512, 0);
    bytes of_cpu = save(cpu.session, 0), of_gpu = save(gpu.session, 1);
    float *on_cpu = run_on(cpu.session, 0, length), *on_gpu = run_on(gpu.session, 1, length);
    const size_t count = MORE * (size_t)nib_session_vocab(cpu.session);
    /* to the same device: the same bits */
    must_load(gpu.session, 0, of_gpu, length);
    assert_saves(gpu.session, 0, of_gpu);
    assert_runs_on(gpu.session, 0, length, on_gpu);
    /* the device promises no bits, so it takes the CPU's */
    must_load(gpu.session, 0, of_cpu, length);
    float *mixed = run_on(gpu.session, 0, length);
    assert_close(mixed, on_cpu, count);
    assert_close(on_gpu, on_cpu, count);
    /* the CPU promises bits */
    assert_int_equal(nib_session_load(cpu.session, 0, of_gpu.at, of_gpu.size, &got, &err),
                     NIB_NOT_AS_ASKED);
    assert_non_null(strstr(err.text, "other"));
    assert_int_equal(got, -7);
    assert_int_equal(cpu.session->runner.kv.lengths[0], length + MORE);
    free(of_cpu.at);
    free(of_gpu.at);
    free(on_cpu);
    free(on_gpu);
    free(mixed);
    close_opened(&cpu);
    close_opened(&gpu);
}

/* A device that cannot be read saves nothing; one that cannot be written to leaves the sequence
 * empty, and others alone. */
static void test_device_fails(void **state)
{
    failing_gpu device;
    opened o = {0};
    nib_err err;
    int32_t length = -7;
    int writes = INT_MAX;
    (void)state;
    failing_init(&device);
    if (nib_engine_open(&o.engine, &(nib_engine_options){.threads = 1}, &err) != NIB_OK ||
        !failing_offer(o.engine, &device))
        fail_msg("%s", err.text);
    o.engine->measured = true;
    if (nib_model_open(&o.model, o.engine, "tests/golden/models/exaone4_window", NULL, &err) !=
            NIB_OK ||
        nib_plan_open(&o.plan, o.model, &(nib_request){.device = "opencl"}, &err) != NIB_OK ||
        nib_session_open(&o.session, o.model, o.plan, 2, &err) != NIB_OK)
        fail_msg("%s", err.text);
    run(o.session, 0, 0, 100, 100, 0);
    run(o.session, 1, 0, 30, 30, 0);
    bytes b = save(o.session, 1);
    device.fail_read = true;
    refused(NIB_FAILED, nib_session_save(o.session, 0, &(nib_sink){refuse_write, &writes}, &err),
            &err);
    device.fail_read = false;
    device.fail_write = true;
    refused(NIB_FAILED, nib_session_load(o.session, 0, b.at, b.size, &length, &err), &err);
    device.fail_write = false;
    assert_int_equal(length, -7);
    assert_int_equal(o.session->runner.kv.lengths[0], 0);
    assert_saves(o.session, 1, b);
    must_load(o.session, 0, b, 30);
    assert_saves(o.session, 0, b);
    free(b.at);
    close_opened(&o);
    assert_int_equal(device.live, 0);
}

/* ---- other models and plans ---- */

static void refuse_load(nib_status status, nib_session *s, bytes b)
{
    const bytes before = save(s, 0);
    int32_t length = -7;
    nib_err err;
    refused(status, nib_session_load(s, 0, b.at, b.size, &length, &err), &err);
    assert_int_equal(length, -7);
    assert_saves(s, 0, before);
    free(before.at);
}

static void test_other_plans(void **state)
{
    static const open_how plain = {.path = "tests/golden/models/phi3_longrope", .dtype = "f32"};
    open_how others[6];
    opened o = must_open(&plain);
    (void)state;
    for (size_t i = 0; i < COUNT(others); i++)
        others[i] = plain;
    others[0].recipe = "int8wo";
    others[1].recipe = "int8dq";
    others[2].dtype = "bf16";
    others[3].cache = "int8";
    others[4].context = 32; /* the other factors of LongRoPE */
    others[5].path = "tests/golden/models/phi3";
    run(o.session, 0, 0, 20, 20, 0);
    bytes b = save(o.session, 0);
    for (size_t i = 0; i < COUNT(others); i++) {
        opened other = must_open(&others[i]);
        run(other.session, 0, 0, 9, 9, 1);
        refuse_load(NIB_NOT_AS_ASKED, other.session, b);
        bytes back = save(other.session, 0);
        refuse_load(NIB_NOT_AS_ASKED, o.session, back);
        free(back.at);
        close_opened(&other);
    }
    assert_saves(o.session, 0, b);
    free(b.at);
    close_opened(&o);
}

/* Only the output layer differs, on which no key or value depends. */
static void test_other_head(void **state)
{
    const open_how how = {.path = "tests/golden/models/llama2", .dtype = "f32"};
    open_how quantized = how;
    quantized.recipe =
        "{\"schema\": 1, \"rules\": [{\"match\": \"lm_head\", \"scheme\": \"int8wo\"}], "
        "\"else\": \"keep\"}";
    (void)state;
    opened a = must_open(&how), b = must_open(&quantized);
    run(a.session, 0, 0, 20, 20, 0);
    bytes s = save(a.session, 0);
    must_load(b.session, 0, s, 20);
    free(s.at);
    close_opened(&a);
    close_opened(&b);
}

#define MODEL "mistral_window"

/* A copy of a model's directory with one byte of its weights flipped, unless at is negative, and
 * with `to` in place of `from` in its config. */
static void copy_model(char out[256], const char *model, int64_t at, const char *from,
                       const char *to)
{
    const nib_allocator a = nib__allocator_default();
    char path[300], config[4096], *text;
    size_t size;
    make_directory(out);
    snprintf(path, sizeof path, "tests/golden/models/%s/model.safetensors", model);
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 20, &a, NULL), NIB_OK);
    assert_true(at < (int64_t)size);
    if (at >= 0)
        text[at] ^= 1;
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    write_bytes(path, text, size);
    nib__release(&a, text);
    snprintf(path, sizeof path, "tests/golden/models/%s/config.json", model);
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 20, &a, NULL), NIB_OK);
    const char *found = strstr(text, from);
    assert_non_null(found);
    snprintf(config, sizeof config, "%.*s%s%s", (int)(found - text), text, to,
             found + strlen(from));
    write_text(out, "config.json", config);
    nib__release(&a, text);
}

/* Loads b in a session of such a copy. */
static void check_copy_of(const char *model, bytes b, int64_t at, const char *from, const char *to)
{
    char directory[256];
    copy_model(directory, model, at, from, to);
    opened o = must_open(&(open_how){.path = directory, .dtype = "f32"});
    const bool same = at < 0 && strcmp(from, to) == 0;
    int32_t length = -7;
    assert_int_equal(nib_session_load(o.session, 0, b.at, b.size, &length, NULL),
                     same ? NIB_OK : NIB_NOT_AS_ASKED);
    assert_int_equal(length, same ? 20 : -7);
    close_opened(&o);
    drop_directory(directory);
}

static void check_copy(bytes b, int64_t at, const char *from, const char *to)
{
    check_copy_of(MODEL, b, at, from, to);
}

/* Heads of another size, which weights of the same shapes can have. */
static void test_other_heads(void **state)
{
    static const char two[] = "\"linear_key_head_dim\": 20,\n  \"linear_num_key_heads\": 2",
                      one[] = "\"linear_key_head_dim\": 40,\n  \"linear_num_key_heads\": 1";
    opened o = open_model("qwen3_5", NULL, "f32", NULL, 1);
    (void)state;
    run(o.session, 0, 0, 20, 20, 0);
    bytes b = save(o.session, 0);
    check_copy_of("qwen3_5", b, -1, two, two);
    check_copy_of("qwen3_5", b, -1, two, one);
    free(b.at);
    close_opened(&o);
}

static void test_other_weights(void **state)
{
    opened o = open_model(MODEL, NULL, "f32", NULL, 1);
    const nib_checkpoint *cp = o.model->net.checkpoint;
    const nib_tensor *large = nib__checkpoint_find(cp, "model.embed_tokens.weight"),
                     *small = nib__checkpoint_find(cp, "model.norm.weight");
    const uint8_t *file = nib__checkpoint_file(cp, 0)->at;
    static const char eps[] = "1e-05";
    (void)state;
    run(o.session, 0, 0, 20, 20, 0);
    bytes b = save(o.session, 0);
    assert_true(large->bytes > 16384 && small->bytes < 16384);
    check_copy(b, -1, eps, eps);
    const int64_t steps = (int64_t)(large->bytes - 4096) / 3;
    for (int i = 0; i < 4; i++) /* the ends of each sample */
        for (int64_t end = 0; end < 4096; end += 4092)
            check_copy(b, large->data - file + i * steps + end, eps, eps);
    for (uint64_t i = 0; i < small->bytes; i += 52)
        check_copy(b, small->data - file + (int64_t)i, eps, eps);
    check_copy(b, -1, eps, "2e-05");
    check_copy(b, -1, "10000.0", "10001.0");           /* of RoPE */
    check_copy(b, -1, "window\": 37", "window\": 36"); /* of the graph */
    free(b.at);
    close_opened(&o);
}

/* ---- any bytes ---- */

static void seal(bytes b)
{
    const nib_hash sum = nib__hash_bytes(b.at, b.size - SUM);
    memcpy(b.at + b.size - SUM, &sum, SUM);
}

static bytes copy_of(bytes b, size_t size)
{
    bytes copy = {malloc(size), size};
    assert_non_null(copy.at);
    memcpy(copy.at, b.at, size);
    return copy;
}

/* The load fails and changes nothing, or gives a sequence that runs on. */
static bool try_load(opened *o, bytes b, bytes before)
{
    int32_t length = -7;
    nib_err err = {NIB_OK, ""};
    const nib_status status = nib_session_load(o->session, 0, b.at, b.size, &length, &err);
    if (status != NIB_OK) {
        assert_true(err.status == status && err.text[0] != 0 && length == -7);
        assert_saves(o->session, 0, before);
        return false;
    }
    assert_true(length >= 0 && length <= o->plan->context);
    if (length < o->plan->context)
        run(o->session, 0, length, length + 1, 1, 0);
    must_load(o->session, 0, before, 5);
    return true;
}

static void test_any_bytes(void **state)
{
    opened o = open_model("exaone4_window", NULL, "f32", "int8", 1);
    (void)state;
    run(o.session, 0, 0, 3, 3, 0);
    bytes b = save(o.session, 0);
    assert_int_equal(nib_session_truncate(o.session, 0, 0, NULL), NIB_OK);
    run(o.session, 0, 0, 5, 5, 1);
    bytes before = save(o.session, 0);
    for (size_t size = 0; size < b.size; size++) {
        bytes cut = copy_of(b, size);
        assert_false(try_load(&o, cut, before));
        if (size >= SUM) {
            seal(cut);
            assert_false(try_load(&o, cut, before));
        }
        free(cut.at);
    }
    for (size_t i = 0; i < b.size; i++) {
        bytes flipped = copy_of(b, b.size);
        flipped.at[i] ^= (char)(1 << i % 8);
        assert_false(try_load(&o, flipped, before));
        seal(flipped);
        /* only another key or value still is a state */
        uint64_t lines;
        memcpy(&lines, b.at + AT_BASIS, sizeof lines);
        assert_int_equal(try_load(&o, flipped, before), i >= HEAD + lines);
        free(flipped.at);
    }
    bytes longer = copy_of(b, b.size);
    longer.at = realloc(longer.at, b.size + 1);
    longer.size++;
    seal(longer);
    assert_false(try_load(&o, longer, before));
    assert_true(try_load(&o, b, before));
    free(longer.at);
    free(b.at);
    free(before.at);
    close_opened(&o);
}

/* A model without windows has every position. */
static void test_first_without_windows(void **state)
{
    const int64_t first = 64;
    opened o = open_model("llama2", NULL, "f32", NULL, 1);
    (void)state;
    run(o.session, 0, 0, 128, 128, 0);
    bytes b = save(o.session, 0);
    memcpy(b.at + AT_FIRST, &first, sizeof first);
    seal(b);
    refuse_load(NIB_BAD_INPUT, o.session, b);
    free(b.at);
    close_opened(&o);
}

/* More lines than any model has. */
static void test_many_lines(void **state)
{
    opened o = open_model("llama2", NULL, "f32", NULL, 1);
    bytes b = save(o.session, 0), more = {calloc(5 << 20, 1), 5 << 20};
    const uint64_t lines = more.size - HEAD - SUM;
    (void)state;
    assert_non_null(more.at);
    memcpy(more.at, b.at, HEAD);
    memcpy(more.at + AT_BASIS, &lines, sizeof lines);
    seal(more);
    refuse_load(NIB_BAD_INPUT, o.session, more);
    free(b.at);
    free(more.at);
    close_opened(&o);
}

static void test_huge_numbers(void **state)
{
    static const int64_t numbers[] = {
        -1,  1,    2,    3,    4,         64,        128,       576,       577,       640,
        900, 1023, 1024, 1025, INT32_MAX, INT64_MAX, INT64_MIN, 1LL << 32, 1LL << 61, 0};
    static const size_t places[] = {AT_VERSION, AT_BASIS,  AT_LAYERS, AT_HEADS,
                                    AT_DIM,     AT_LENGTH, AT_FIRST};
    opened o = open_model("exaone4_window", NULL, "f32", NULL, 1);
    (void)state;
    run(o.session, 0, 0, 900, 512, 0);
    bytes b = save(o.session, 0);
    assert_int_equal(nib_session_truncate(o.session, 0, 0, NULL), NIB_OK);
    run(o.session, 0, 0, 5, 5, 1);
    bytes before = save(o.session, 0);
    for (size_t p = 0; p < COUNT(places); p++)
        for (size_t i = 0; i < COUNT(numbers); i++) {
            bytes changed = copy_of(b, b.size);
            memcpy(changed.at + places[p], &numbers[i], sizeof numbers[i]);
            seal(changed);
            const bool same = memcmp(changed.at, b.at, b.size) == 0;
            assert_int_equal(try_load(&o, changed, before), same);
            free(changed.at);
        }
    /* both numbers together, with as many bytes as they say */
    const nib_kv *kv = &o.session->runner.kv;
    for (int64_t length = 0; length <= 1088; length += 32)
        for (int64_t first = 0; first <= length; first += 32) {
            uint64_t lines, size = 0;
            memcpy(&lines, b.at + AT_BASIS, sizeof lines);
            for (int64_t i = 0; i < kv->layers; i++)
                size += (uint64_t)(length - (nib__kv_has_window(kv, i) ? first : 0)) *
                        nib__kv_position_bytes(kv, i);
            bytes made = {calloc(HEAD + (size_t)(lines + size) + SUM, 1),
                          HEAD + (size_t)(lines + size) + SUM};
            memcpy(made.at, b.at, HEAD + (size_t)lines);
            memcpy(made.at + AT_LENGTH, &length, sizeof length);
            memcpy(made.at + AT_FIRST, &first, sizeof first);
            seal(made);
            /* a window of 20, and 512 more positions, in blocks of 64 */
            const bool holds = length <= 1024 && first % 64 == 0 &&
                               first <= nib__max(length + 1 - 20, 0) &&
                               nib__ceil_div(length, 64) - first / 64 <= 10;
            assert_int_equal(try_load(&o, made, before), holds);
            free(made.at);
        }
    free(b.at);
    free(before.at);
    close_opened(&o);
}

/* ---- arguments, sinks and memory ---- */

/* Tries to change the session that calls it. */
static nib_status truncate_inside(void *ctx, const char *more, size_t size)
{
    (void)more, (void)size;
    return nib_session_truncate(ctx, 0, 64, NULL) == NIB_USAGE ? NIB_CANCELLED : NIB_OK;
}

static void test_refused(void **state)
{
    const open_how how = {.path = "models/nibble-tales", .context = 64};
    opened o = must_open(&how);
    nib_generator *g;
    int32_t length = -7;
    int writes = 1 << 20;
    nib_err err;
    (void)state;
    run(o.session, 0, 0, 64, 64, 0);
    bytes b = save(o.session, 0);
    const nib_sink sink = {refuse_write, &writes};
    refused(NIB_USAGE, nib_session_save(o.session, 1, &sink, &err), &err);
    refused(NIB_USAGE, nib_session_save(o.session, -1, &sink, &err), &err);
    refused(NIB_USAGE, nib_session_load(o.session, 1, b.at, b.size, &length, &err), &err);
    refused(NIB_BAD_INPUT, nib_session_load(o.session, 0, NULL, 0, &length, &err), &err);
    int all = 0;
    for (nib_status status = NIB_IO; status != NIB_OK; all++) {
        writes = all;
        status = nib_session_save(o.session, 0, &sink, &err);
        assert_true(status == NIB_OK || (status == NIB_IO && err.status == NIB_IO));
    }
    assert_int_equal(all - 1, 3 + 5); /* head, lines, layers, checksum */

    refused(NIB_CANCELLED,
            nib_session_save(o.session, 0, &(nib_sink){truncate_inside, o.session}, &err), &err);

    const nib_generate_options options = {.prompt = "Once"};
    assert_int_equal(nib_generator_open(&g, o.session, &options, NULL), NIB_OK);
    refused(NIB_USAGE, nib_session_save(o.session, 0, &sink, &err), &err);
    refused(NIB_USAGE, nib_session_load(o.session, 0, b.at, b.size, &length, &err), &err);
    nib_generator_close(g);
    must_load(o.session, 0, b, 64);

    opened shorter = must_open(&(open_how){.path = how.path, .context = 63});
    refuse_load(NIB_NO_MEMORY, shorter.session, b);
    assert_int_equal(length, -7);
    free(b.at);
    close_opened(&shorter);
    close_opened(&o);
}

static void test_no_memory(void **state)
{
    failing memory = {.left = -1};
    const nib_allocator a = failing_allocator(&memory);
    opened o = must_open(&(open_how){.path = "tests/golden/models/llama2", .allocator = &a});
    nib_err err;
    (void)state;
    run(o.session, 0, 0, 20, 20, 0);
    const int live = memory.live;
    bytes b = {0};
    int failed = 0;
    for (nib_status status = NIB_NO_MEMORY; status != NIB_OK;) {
        free(b.at);
        b = (bytes){0};
        memory.left = failed++;
        status = nib_session_save(o.session, 0, &(nib_sink){grow, &b}, &err);
        memory.left = -1;
        assert_true(status == NIB_OK || (status == NIB_NO_MEMORY && err.status == status));
        assert_int_equal(memory.live, live);
    }
    assert_in_range(failed, 4, 40);
    assert_int_equal(nib_session_truncate(o.session, 0, 7, NULL), NIB_OK);
    o.session->hashed = false;
    failed = 0;
    for (nib_status status = NIB_NO_MEMORY; status != NIB_OK;) {
        int32_t length = -7;
        memory.left = failed++;
        status = nib_session_load(o.session, 0, b.at, b.size, &length, &err);
        memory.left = -1;
        assert_true(status == NIB_OK || (status == NIB_NO_MEMORY && err.status == status));
        assert_int_equal(o.session->runner.kv.lengths[0], status == NIB_OK ? 20 : 7);
        assert_int_equal(memory.live, live);
    }
    assert_in_range(failed, 3, 40);
    free(b.at);
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),      cmocka_unit_test(test_models),
        cmocka_unit_test(test_other_context),  cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_after_generate), cmocka_unit_test(test_on_device),
        cmocka_unit_test(test_device_fails),   cmocka_unit_test(test_other_plans),
        cmocka_unit_test(test_other_head),     cmocka_unit_test(test_other_weights),
        cmocka_unit_test(test_any_bytes),      cmocka_unit_test(test_other_heads),
        cmocka_unit_test(test_huge_numbers),   cmocka_unit_test(test_first_without_windows),
        cmocka_unit_test(test_many_lines),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
