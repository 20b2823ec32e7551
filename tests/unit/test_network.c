/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass: logits of every family equal those of transformers in float32 (golden files),
 * for a prompt in one piece, token by token, in odd chunks or batched with other sequences. Also
 * the errors for a bad step or a bad directory.
 */
#include "ledger_lines.h"
#include "session.h"

#include "failing.h"
#include "safetensors_build.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static const char *const families[] = {"llama2",
                                       "llama3",
                                       "llama_bias",
                                       "qwen2",
                                       "qwen3",
                                       "mistral",
                                       "smollm3",
                                       "olmo2",
                                       "exaone4",
                                       "mistral_window",
                                       "exaone4_window",
                                       "granite",
                                       "gemma",
                                       "gemma2",
                                       "gemma3",
                                       "cohere",
                                       "cohere2",
                                       "starcoder2",
                                       "stablelm",
                                       "ministral",
                                       "ministral3",
                                       "llama_yarn",
                                       "phi3",
                                       "phi3_longrope",
                                       "glm",
                                       "glm4",
                                       "cohere_norms",
                                       "stablelm_norms",
                                       "qwen3_moe",
                                       "qwen3_moe_plain",
                                       "mixtral",
                                       "granitemoe",
                                       "glm4_moe",
                                       "gpt_oss",
                                       "llama4",
                                       "llama4_plain",
                                       "gemma4",
                                       "gemma4_dense",
                                       "gemma4_shared",
                                       "deepseek_v2",
                                       "deepseek_v3",
                                       "kimi_k2",
                                       "deepseek_v3_fp8",
                                       "deepseek_v2_groups",
                                       "lfm2",
                                       "lfm2_listed",
                                       "lfm2_moe",
                                       "qwen3_next",
                                       "qwen3_5",
                                       "qwen3_5_moe",
                                       "granite_hybrid",
                                       "granite_hybrid_moe"};

/* One golden sequence. Views into the checkpoint. */
typedef struct golden {
    const int32_t *tokens, *positions;
    const float *logits; /* [kept][vocab] */
    int64_t count, kept, vocab;
} golden;

static const nib_tensor *golden_tensor(const nib_checkpoint *cp, const char *part, int i)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%d", part, i);
    const nib_tensor *t = nib__checkpoint_find(cp, name);
    assert_non_null(t);
    assert_int_equal((uintptr_t)t->data % 4, 0);
    return t;
}

static golden golden_at(const nib_checkpoint *cp, int i)
{
    const nib_tensor *tokens = golden_tensor(cp, "tokens", i),
                     *positions = golden_tensor(cp, "positions", i),
                     *logits = golden_tensor(cp, "logits", i);
    assert_int_equal(positions->shape[0], logits->shape[0]);
    return (golden){.tokens = (const void *)tokens->data,
                    .positions = (const void *)positions->data,
                    .logits = (const void *)logits->data,
                    .count = tokens->shape[0],
                    .kept = logits->shape[0],
                    .vocab = logits->shape[1]};
}

typedef struct family {
    char path[64];
    nib_checkpoint *golden;
    opened on;
    golden sequences[2];
} family;

static void open_family(family *f, const char *name, int sequences)
{
    char path[96];
    const nib_allocator a = nib__allocator_default();
    snprintf(f->path, sizeof f->path, "tests/golden/models/%s", name);
    snprintf(path, sizeof path, "%s/logits.safetensors", f->path);
    nib_err err;
    if (nib__checkpoint_open(&f->golden, path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    f->on = must_open(
        &(open_how){.path = f->path, .dtype = "f32", .threads = 2, .sequences = sequences});
    for (int i = 0; i < 2; i++) {
        f->sequences[i] = golden_at(f->golden, i);
        assert_int_equal(f->sequences[i].vocab, nib_session_vocab(f->on.session));
    }
}

static void close_family(family *f)
{
    close_opened(&f->on);
    nib__checkpoint_close(f->golden);
}

static void must_step(nib_session *s, const nib_slot *slots, size_t count, const float **logits)
{
    nib_err err;
    if (nib_session_step(s, slots, count, logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

/* Runs tokens first..first+count of a golden sequence as sequence `as`; writes all logits to out.
 */
static void run_part(nib_session *s, const golden *g, int as, int64_t first, int64_t count,
                     float *out)
{
    nib_slot *slots = calloc((size_t)count, sizeof *slots);
    assert_non_null(slots);
    for (int64_t i = 0; i < count; i++)
        slots[i] = (nib_slot){as, (int32_t)(first + i), g->tokens[first + i], NIB_SLOT_LOGITS};
    const float *logits;
    must_step(s, slots, (size_t)count, &logits);
    memcpy(out + first * g->vocab, logits, (size_t)(count * g->vocab) * sizeof *out);
    free(slots);
}

static float *run_in_chunks(nib_session *s, const golden *g, int as, int64_t chunk)
{
    float *out = calloc((size_t)(g->count * g->vocab), sizeof *out);
    assert_non_null(out);
    assert_int_equal(nib_session_truncate(s, as, 0, NULL), NIB_OK);
    for (int64_t at = 0; at < g->count; at += chunk)
        run_part(s, g, as, at, nib__min(chunk, g->count - at), out);
    return out;
}

/* max|a-b| / max|b| at the worst position. */
static double relative_error(const golden *g, const float *logits)
{
    double worst = 0;
    for (int64_t i = 0; i < g->kept; i++) {
        const float *got = logits + g->positions[i] * g->vocab, *want = g->logits + i * g->vocab;
        double off = 0, size = 0;
        for (int64_t v = 0; v < g->vocab; v++) {
            assert_true(isfinite(got[v]));
            off = fmax(off, fabs((double)got[v] - (double)want[v]));
            size = fmax(size, fabs((double)want[v]));
        }
        worst = fmax(worst, off / size);
    }
    return worst;
}

static void assert_same_bits(const float *a, const float *b, const golden *g)
{
    for (int64_t i = 0; i < g->count; i++)
        if (memcmp(a + i * g->vocab, b + i * g->vocab, (size_t)g->vocab * sizeof *a) != 0)
            fail_msg("the logits of position %d differ", (int)i);
}

static void test_equals_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(families); i++) {
        family f;
        open_family(&f, families[i], 1);
        for (int s = 0; s < 2; s++) {
            const golden *g = &f.sequences[s];
            float *whole = run_in_chunks(f.on.session, g, 0, g->count);
            const double error = relative_error(g, whole);
            if (!(error <= 1e-4))
                fail_msg("%s, sequence %d: relative error %g", families[i], s, error);
            static const int64_t chunks[] = {1, 3, 7, 64, 65};
            for (size_t c = 0; c < COUNT(chunks); c++) {
                float *parts = run_in_chunks(f.on.session, g, 0, chunks[c]);
                assert_same_bits(parts, whole, g);
                free(parts);
            }
            free(whole);
        }
        close_family(&f);
    }
}

/* Both golden sequences twice, as four sequences that grow at different speeds in one batch.
 */
static void test_ragged_batch(void **state)
{
    (void)state;
    enum { SEQUENCES = 4 };
    static const int64_t speed[SEQUENCES] = {1, 5, 3, 17};
    for (size_t i = 0; i < COUNT(families); i++) {
        family f;
        open_family(&f, families[i], SEQUENCES);
        float *alone[2], *out[SEQUENCES];
        int64_t at[SEQUENCES] = {0}, left = 0;
        for (int s = 0; s < 2; s++)
            alone[s] = run_in_chunks(f.on.session, &f.sequences[s], 0, 8);
        assert_int_equal(nib_session_truncate(f.on.session, 0, 0, NULL), NIB_OK);
        for (int s = 0; s < SEQUENCES; s++) {
            const golden *g = &f.sequences[s % 2];
            out[s] = calloc((size_t)(g->count * g->vocab), sizeof **out);
            left += g->count;
        }
        while (left > 0) {
            nib_slot slots[64];
            size_t count = 0;
            for (int s = 0; s < SEQUENCES; s++)
                for (int64_t n = 0; n < speed[s] && at[s] < f.sequences[s % 2].count; n++, at[s]++)
                    slots[count++] = (nib_slot){s, (int32_t)at[s], f.sequences[s % 2].tokens[at[s]],
                                                NIB_SLOT_LOGITS};
            const float *logits;
            must_step(f.on.session, slots, count, &logits);
            for (size_t j = 0; j < count; j++) {
                const int64_t vocab = f.sequences[0].vocab;
                memcpy(out[slots[j].sequence] + slots[j].position * vocab,
                       logits + (int64_t)j * vocab, (size_t)vocab * sizeof *logits);
            }
            left -= (int64_t)count;
        }
        for (int s = 0; s < SEQUENCES; s++) {
            assert_same_bits(out[s], alone[s % 2], &f.sequences[s % 2]);
            free(out[s]);
        }
        free(alone[0]);
        free(alone[1]);
        close_family(&f);
    }
}

/* A step returns only the requested rows, in slot order; it may request none. */
static void test_wanted_rows(void **state)
{
    (void)state;
    family f;
    open_family(&f, "qwen2", 1);
    const golden *g = &f.sequences[0];
    float *whole = run_in_chunks(f.on.session, g, 0, g->count);
    assert_int_equal(nib_session_truncate(f.on.session, 0, 0, NULL), NIB_OK);
    nib_slot slots[40];
    const float *logits;
    const size_t row = (size_t)g->vocab * sizeof *logits;
    for (int i = 0; i < 40; i++)
        slots[i] = (nib_slot){0, i, g->tokens[i], i == 3 || i == 4 || i == 9 ? NIB_SLOT_LOGITS : 0};
    must_step(f.on.session, slots, 10, &logits);
    assert_memory_equal(logits, whole + 3 * g->vocab, row);
    assert_memory_equal(logits + g->vocab, whole + 4 * g->vocab, row);
    assert_memory_equal(logits + 2 * g->vocab, whole + 9 * g->vocab, row);
    must_step(f.on.session, slots + 10, 29, &logits);
    slots[39].outputs = NIB_SLOT_LOGITS;
    must_step(f.on.session, slots + 39, 1, &logits);
    assert_memory_equal(logits, whole + 39 * g->vocab, row);
    free(whole);
    close_family(&f);
}

/* After a rollback, another continuation and another rollback, the first continuation gives the
 * same bits. */
static void test_truncate_restores_the_bits(void **state)
{
    (void)state;
    family f;
    open_family(&f, "llama3", 1);
    const golden *g = &f.sequences[1], *other = &f.sequences[0];
    nib_session *s = f.on.session;
    float *whole = run_in_chunks(s, g, 0, 128), *again = run_in_chunks(s, g, 0, 100);
    static const int32_t cuts[] = {699, 513, 300, 256, 129, 64, 63, 1, 0};
    for (size_t i = 0; i < COUNT(cuts); i++) {
        assert_int_equal(nib_session_truncate(s, 0, cuts[i], NULL), NIB_OK);
        nib_slot slots[20];
        const float *logits;
        for (int j = 0; j < 20; j++)
            slots[j] = (nib_slot){0, cuts[i] + j, other->tokens[j], NIB_SLOT_LOGITS};
        must_step(s, slots, 20, &logits);
        assert_int_equal(nib_session_truncate(s, 0, cuts[i], NULL), NIB_OK);
        memset(again + cuts[i] * g->vocab, 0,
               (size_t)((g->count - cuts[i]) * g->vocab) * sizeof *again);
        run_part(s, g, 0, cuts[i], g->count - cuts[i], again);
        assert_same_bits(again, whole, g);
    }
    /* truncating past the end changes nothing */
    assert_int_equal(nib_session_truncate(s, 0, 5000, NULL), NIB_OK);
    const nib_slot next = {0, (int32_t)g->count, 1, 0};
    const float *logits;
    must_step(s, &next, 1, &logits);
    free(whole);
    free(again);
    close_family(&f);
}

/* A window drops what is more than 512 positions back. Truncating there is refused and changes
 * nothing; truncating within the window continues with the same bits. */
static void test_truncate_window(void **state)
{
    (void)state;
    family f;
    open_family(&f, "exaone4_window", 1);
    const golden *g = &f.sequences[1];
    nib_session *s = f.on.session;
    nib_err err;
    float *whole = run_in_chunks(s, g, 0, 512), *again = run_in_chunks(s, g, 0, 1);
    assert_same_bits(again, whole, g);
    refused(NIB_USAGE, nib_session_truncate(s, 0, 64, &err), &err);
    const int64_t cuts[] = {g->count - 1, g->count - 64, g->count - 300, g->count - 512};
    for (size_t i = 0; i < COUNT(cuts); i++) {
        assert_int_equal(nib_session_truncate(s, 0, (int32_t)cuts[i], NULL), NIB_OK);
        memset(again + cuts[i] * g->vocab, 0,
               (size_t)((g->count - cuts[i]) * g->vocab) * sizeof *again);
        run_part(s, g, 0, cuts[i], g->count - cuts[i], again);
        assert_same_bits(again, whole, g);
    }
    assert_int_equal(nib_session_truncate(s, 0, 0, NULL), NIB_OK);
    run_part(s, g, 0, 0, g->count, again);
    assert_same_bits(again, whole, g);
    free(whole);
    free(again);
    close_family(&f);
}

/* ---- bad steps: refused as a whole ---- */

static void assert_refused(nib_session *s, const nib_slot *slots, size_t count, nib_status status)
{
    nib_err err;
    const float *logits;
    refused(status, nib_session_step(s, slots, count, &logits, &err), &err);
}

static void test_step_errors(void **state)
{
    (void)state;
    const opened o = must_open(&(open_how){
        .path = "tests/golden/models/qwen2", .dtype = "f32", .sequences = 2, .context = 8});
    nib_session *s = o.session;
    nib_slot slots[9];
    for (int i = 0; i < 9; i++)
        slots[i] = (nib_slot){0, i, i, NIB_SLOT_LOGITS};
    assert_refused(s, &(nib_slot){0, 1, 5, NIB_SLOT_LOGITS}, 1, NIB_USAGE);
    assert_refused(s, &(nib_slot){0, -1, 5, NIB_SLOT_LOGITS}, 1, NIB_USAGE);
    assert_refused(s, &(nib_slot){2, 0, 5, NIB_SLOT_LOGITS}, 1, NIB_USAGE);
    assert_refused(s, &(nib_slot){-1, 0, 5, NIB_SLOT_LOGITS}, 1, NIB_USAGE);
    assert_refused(s, &(nib_slot){0, 0, 257, NIB_SLOT_LOGITS}, 1, NIB_BAD_INPUT);
    assert_refused(s, &(nib_slot){0, 0, -1, NIB_SLOT_LOGITS}, 1, NIB_BAD_INPUT);
    assert_refused(s, slots, 9, NIB_NO_MEMORY); /* the context has 8 positions */
    slots[3].position = 2;
    assert_refused(s, slots, 8, NIB_USAGE);
    slots[3].position = 3;
    slots[3].sequence = 1;
    assert_refused(s, slots, 8, NIB_USAGE);
    slots[3].sequence = 0;
    slots[7].token = 300;
    assert_refused(s, slots, 8, NIB_BAD_INPUT);
    slots[7].token = 7;
    /* no refused step advanced a sequence */
    const float *logits;
    must_step(s, slots, 8, &logits);
    assert_refused(s, slots + 8, 1, NIB_NO_MEMORY);
    must_step(s, NULL, 0, &logits);
    nib_err err;
    refused(NIB_USAGE, nib_session_truncate(s, 2, 0, &err), &err);
    refused(NIB_USAGE, nib_session_truncate(s, 0, -1, &err), &err);
    opened copy = o;
    close_opened(&copy);
}

/* ---- bad model directories ---- */

/* A copy of a golden model with `more` added to its config.json. */
static const char *copy_model(char out[256], const char *name, const char *more)
{
    const nib_allocator a = nib__allocator_default();
    char path[300], *text;
    size_t size;
    make_directory(out);
    snprintf(path, sizeof path, "tests/golden/models/%s/model.safetensors", name);
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 20, &a, NULL), NIB_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    write_bytes(path, text, size);
    nib__release(&a, text);
    snprintf(path, sizeof path, "tests/golden/models/%s/config.json", name);
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 20, &a, NULL), NIB_OK);
    char *end = strrchr(text, '}'), config[4096];
    assert_non_null(end);
    snprintf(config, sizeof config, "%.*s, %s}", (int)(end - text), text, more);
    write_text(out, "config.json", config);
    nib__release(&a, text);
    return out;
}

static void test_config_against_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *model, *more;
    } cases[] = {
        {"qwen2", "\"num_hidden_layers\": 3"}, /* of 2 */
        {"qwen2", "\"num_hidden_layers\": 1"},
        {"qwen2",
         "\"quantization_config\": {\"quant_method\": \"torchao\"}"}, /* no weight is quantized */
        {"qwen2", "\"hidden_size\": 96"},
        {"qwen2", "\"intermediate_size\": 139"},
        {"qwen2", "\"num_key_value_heads\": 2"},
        {"qwen2", "\"vocab_size\": 258"},
        {"llama2", "\"attention_bias\": true"}, /* none is stored */
        {"llama2", "\"model_type\": \"qwen2\", \"num_key_value_heads\": 4"},
        {"llama3", "\"model_type\": \"qwen3\", \"head_dim\": 16"},
        {"qwen3", "\"head_dim\": 16"},
        {"deepseek_v3", "\"kv_lora_rank\": 64"}, /* of 48 */
        {"deepseek_v3", "\"q_lora_rank\": 32"},
        {"deepseek_v3", "\"qk_nope_head_dim\": 12"},
        {"deepseek_v3", "\"v_head_dim\": 32"},
        {"deepseek_v3", "\"num_key_value_heads\": 2"}, /* of 4 */
        {"deepseek_v3", "\"qk_head_dim\": 30"},
        {"kimi_k2", "\"qk_rope_head_dim\": 15"},
        {"lfm2", "\"conv_L_cache\": 4"}, /* of 3 */
        {"lfm2", "\"block_multiple_of\": 16"},
        {"lfm2", "\"layer_types\": [\"conv\", \"conv\", \"full_attention\"]"},
        {"qwen3_next", "\"linear_conv_kernel_dim\": 3"}, /* of 4 */
        {"qwen3_next", "\"linear_num_key_heads\": 3"},   /* of 2, for 6 of values */
        {"qwen3_next", "\"linear_num_key_heads\": 4"},   /* not for 6 of values */
        {"qwen3_next", "\"linear_num_value_heads\": 4"},
        {"qwen3_next", "\"shared_expert_intermediate_size\": 24"},        /* of 40 */
        {"qwen3_5", "\"linear_value_head_dim\": 64"},                     /* of 72 */
        {"qwen3_5", "\"linear_key_head_dim\": 16"},                       /* of 20 */
        {"granite_hybrid", "\"mamba_d_conv\": 3"},                        /* of 4 */
        {"granite_hybrid", "\"mamba_d_state\": 16"},                      /* of 20 */
        {"granite_hybrid", "\"mamba_n_heads\": 4, \"mamba_d_head\": 24"}, /* of 2 and 48 */
        {"granite_hybrid", "\"mamba_n_heads\": 3"},
        {"granite_hybrid", "\"shared_intermediate_size\": 48"}, /* of 64 */
        {"granite_hybrid", "\"mamba_proj_bias\": true"},
        {"granite_hybrid_moe", "\"mamba_conv_bias\": true"},
        {"granite_hybrid_moe", "\"mamba_n_groups\": 4"}, /* not for 6 heads */
        {"granite_hybrid_moe", "\"mamba_expand\": 3"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char directory[256];
        opened o;
        nib_err err;
        copy_model(directory, cases[i].model, cases[i].more);
        refused(NIB_BAD_INPUT, try_open(&o, &(open_how){.path = directory, .dtype = "f32"}, &err),
                &err);
        drop_directory(directory);
    }
}

/* Stored tensors override the config, with a note. Rows past the vocabulary are padding. */
static void test_config_notes(void **state)
{
    (void)state;
    static const struct {
        const char *model, *more, *code, *says; /* code NULL: none */
    } cases[] = {
        {"qwen2", "\"vocab_size\": 250", NULL, NULL},
        {"qwen2", "\"tie_word_embeddings\": true", "tie", "true (config): a head is stored"},
        {"llama3", "\"tie_word_embeddings\": false", "tie", "no head is stored"},
        {"llama_bias", "\"attention_bias\": false", "bias", "that config.json does not imply"},
        {"qwen2", "\"auto_map\": {\"AutoModel\": \"a/b--c.D\"}", "config-code", "auto_map"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char directory[256];
        copy_model(directory, cases[i].model, cases[i].more);
        opened o = must_open(&(open_how){.path = directory, .dtype = "f32"});
        const nib_ledger *ledger = &o.model->net.notes;
        if (cases[i].code != NULL && count_settings(ledger, cases[i].code, cases[i].says) == 0)
            fail_msg("no line \"%s\" for %s", cases[i].code, cases[i].more);
        close_opened(&o);
        drop_directory(directory);
    }
}

/* Adds an F32 tensor of ones [count] to the header and the data of the model's file. */
static void add_ones(const char *directory, const char *name, int64_t count)
{
    const nib_allocator a = nib__allocator_default();
    char path[300], *file, entry[256];
    size_t size;
    uint64_t header = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    assert_int_equal(nib__file_read(&file, &size, path, 1 << 20, &a, NULL), NIB_OK);
    for (int i = 0; i < 8; i++)
        header |= (uint64_t)(uint8_t)file[i] << 8 * i;
    const size_t end = 8 + (size_t)header, data = size - end, bytes = (size_t)count * sizeof(float);
    size_t brace = end;
    while (file[brace - 1] != '}')
        brace--;
    const int used = snprintf(entry, sizeof entry,
                              ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld],"
                              "\"data_offsets\":[%zu,%zu]}",
                              name, (long long)count, data, data + bytes);
    const uint64_t grown = brace - 9 + (size_t)used + 1;
    uint8_t *out = malloc(8 + (size_t)grown + data + bytes), *at = out;
    assert_non_null(out);
    for (int i = 0; i < 8; i++)
        *at++ = (uint8_t)(grown >> 8 * i);
    memcpy(at, file + 8, brace - 9);
    at += brace - 9;
    memcpy(at, entry, (size_t)used);
    at += used;
    *at++ = '}';
    memcpy(at, file + end, data);
    at += data;
    for (int64_t i = 0; i < count; i++, at += sizeof(float))
        memcpy(at, &(float){1}, sizeof(float));
    write_bytes(path, out, (size_t)(at - out));
    free(out);
    nib__release(&a, file);
}

/* Norms with a weight per head of q and k: the device gets the whole tensor. Mixtures and latent
 * attention run there completely, with one launch for the experts or heads of a matrix. */
static void test_on_device(void **state)
{
    static const char *const models[] = {
        "cohere_norms",  "stablelm_norms", "qwen3_moe",   "glm4_moe", "gpt_oss",
        "mixtral",       "granitemoe",     "llama4",      "gemma4",   "gemma4_dense",
        "gemma4_shared", "deepseek_v2",    "deepseek_v3", "kimi_k2"};
    enum { VOCAB_MAX = 256 };
    opened o;
    (void)state;
    skip_without_device();
    for (size_t i = 0; i < COUNT(models); i++) {
        static const nib_slot slots[] = {{0, 0, 7, 0}, {0, 1, 11, 0}, {0, 2, 5, NIB_SLOT_LOGITS}};
        char path[64];
        const float *logits;
        float want[VOCAB_MAX];
        double off = 0, size = 0;
        snprintf(path, sizeof path, "tests/golden/models/%s", models[i]);
        o = must_open(&(open_how){.path = path, .dtype = "f32"});
        const size_t vocab = (size_t)nib_session_vocab(o.session);
        must_step(o.session, slots, COUNT(slots), &logits);
        memcpy(want, logits, vocab * sizeof *want);
        close_opened(&o);
        o = must_open(&(open_how){.path = path, .dtype = "f32", .device = tested_device()});
        must_step(o.session, slots, COUNT(slots), &logits);
        for (size_t v = 0; v < vocab; v++) {
            off = fmax(off, fabs((double)(logits[v] - want[v])));
            size = fmax(size, fabs((double)want[v]));
        }
        if (!(off < 0.01 * size))
            fail_msg("%s: off by %g of %g", models[i], off, size);
        close_opened(&o);
    }
}

/* Writes the logits of one token to out [vocab]; checks that the plan's line of the head reports a
 * bias. */
static void read_first_logits(const char *path, bool biased, float *out)
{
    opened o = must_open(&(open_how){.path = path, .dtype = "f32"});
    const nib_slot slot = {0, 0, 7, NIB_SLOT_LOGITS};
    const float *logits;
    must_step(o.session, &slot, 1, &logits);
    memcpy(out, logits, (size_t)nib_session_vocab(o.session) * sizeof *out);
    assert_int_equal(nib__network_head(&o.model->net)->bias, biased);
    close_opened(&o);
}

/* A head tied to the embedding may have its own bias. */
static void test_bias_of_tied_head(void **state)
{
    (void)state;
    enum { VOCAB = 211 };
    char directory[256];
    float plain[VOCAB], biased[VOCAB];
    copy_model(directory, "llama3", "\"tie_word_embeddings\": true");
    read_first_logits(directory, false, plain);
    add_ones(directory, "lm_head.bias", VOCAB);
    read_first_logits(directory, true, biased);
    for (int i = 0; i < VOCAB; i++)
        assert_true(biased[i] == 1 + plain[i]);
    drop_directory(directory);
}

/* An unused stored tensor is a note; an unused bias is an error. */
static void test_unused_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *tensor;
        int64_t count;
        nib_status status;
    } cases[] = {
        {"model.norm.bias", 64, NIB_UNSUPPORTED},
        {"model.embed_tokens.bias", 211, NIB_UNSUPPORTED},
        {"model.layers.0.self_attn.q_norm.weight", 16, NIB_OK},
        {"model.vision.weight", 3, NIB_OK},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char directory[256];
        opened o;
        nib_err err;
        copy_model(directory, "llama3", "\"tie_word_embeddings\": true");
        add_ones(directory, cases[i].tensor, cases[i].count);
        const nib_status status =
            try_open(&o, &(open_how){.path = directory, .dtype = "f32"}, &err);
        if (cases[i].status != NIB_OK) {
            refused(cases[i].status, status, &err);
        } else {
            assert_int_equal(status, NIB_OK);
            const nib_ledger *ledger = &o.model->net.notes;
            assert_int_equal(ledger->setting_count, 1);
            assert_int_equal(count_settings(ledger, "extra-tensor", cases[i].tensor), 1);
            close_opened(&o);
        }
        drop_directory(directory);
    }
}

static const nib_site *site_named(const nib_network *net, const char *name)
{
    size_t i = 0;
    while (i < net->site_count && strcmp(net->sites[i].name, name) != 0)
        i++;
    assert_true(i < net->site_count);
    return &net->sites[i];
}

static void test_config_only(void **state)
{
    (void)state;
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_session *session;
    nib_err err;
    assert_int_equal(nib_engine_open(&engine, NULL, NULL), NIB_OK);
    engine->measured = true;
    assert_int_equal(
        nib_model_open(&model, engine, "tests/golden/models/qwen3/config.json", NULL, &err),
        NIB_OK);
    assert_int_equal(model->net.site_count, 2 + 2 * 7);
    assert_int_equal(site_named(&model->net, "model.layers.1.self_attn.o_proj")->k, 96);
    assert_int_equal(nib_plan_open(&plan, model, NULL, &err), NIB_OK);
    refused(NIB_USAGE, nib_session_open(&session, model, plan, 1, &err), &err);
    nib_plan_close(plan);
    nib_model_close(model);
    char directory[256], path[300];
    copy_model(directory, "qwen3", "\"quantization_config\": {\"quant_method\": \"gptq\"}");
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_int_equal(nib_model_open(&model, engine, path, NULL, &err), NIB_OK);
    assert_int_equal(model->net.notes.setting_count, 1);
    assert_int_equal(count_settings(&model->net.notes, "quantization-config", "as if unquantized"),
                     1);
    nib_model_close(model);
    drop_directory(directory);
    refused(NIB_IO, nib_model_open(&model, engine, "tests/golden/models", NULL, &err), &err);
    nib_engine_close(engine);
}

/* Each allocation of opening and stepping fails once: NIB_NO_MEMORY, and nothing leaks. */
static void test_memory(void **state)
{
    (void)state;
    failing f;
    const nib_allocator a = failing_allocator(&f);
    bool done = false;
    for (int n = 0; !done; n += 1 + n / 64) {
        assert_true(n < 1000000);
        f = (failing){.left = n};
        opened o;
        nib_err err;
        nib_status status = try_open(&o,
                                     &(open_how){.path = "tests/golden/models/qwen2",
                                                 .recipe = "8da4w-g32",
                                                 .dtype = "f32",
                                                 .allocator = &a},
                                     &err);
        if (status == NIB_OK) {
            const float *logits;
            status = nib_session_step(o.session, &(nib_slot){0, 0, 1, NIB_SLOT_LOGITS}, 1, &logits,
                                      &err);
            close_opened(&o);
        }
        done = status == NIB_OK;
        if (!done && status != NIB_NO_MEMORY)
            fail_msg("request %d: %s", n, err.text);
        assert_int_equal(f.live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_transformers),
        cmocka_unit_test(test_ragged_batch),
        cmocka_unit_test(test_wanted_rows),
        cmocka_unit_test(test_truncate_restores_the_bits),
        cmocka_unit_test(test_truncate_window),
        cmocka_unit_test(test_step_errors),
        cmocka_unit_test(test_config_against_tensors),
        cmocka_unit_test(test_config_notes),
        cmocka_unit_test(test_on_device),
        cmocka_unit_test(test_bias_of_tied_head),
        cmocka_unit_test(test_unused_tensors),
        cmocka_unit_test(test_config_only),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
