/* SPDX-License-Identifier: Apache-2.0
 *
 * The config of a GGUF, by changing the keys of the golden files: every key that is read with the
 * wrong type, values at and past their limits, and every allocation failing. config_gguf.c.
 */
#include "ledger_lines.h"
#include "skipping.h"

#include "config_gguf.h"
#include "dialects.h"
#include "failing.h"
#include "gguf_build.h"
#include "safetensors_build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "refused.h"

/* Files under tests/golden/gguf. */
static const char *const files[] = {
    "llama",      "qwen2",          "qwen2_yarn",    "qwen3",
    "smollm3",    "olmo2",          "exaone4",       "granite",
    "gemma",      "gemma2",         "gemma3",        "command-r",
    "cohere2",    "starcoder2",     "stablelm",      "phi3",
    "glm4",       "stablelm_norms", "qwen3moe",      "mixtral",
    "granitemoe", "gpt-oss",        "glm4moe",       "llama4",
    "gemma4",     "gemma4_shared",  "lfm2",          "qwen35",
    "qwen35moe",  "qwen3next",      "granitehybrid", "granitehybrid_moe",
    "lfm2moe"};

/* A key to add in place of the file's own. */
typedef struct change {
    const char *key; /* starts with '.': a key of the architecture. NULL: none */
    uint32_t kind;
    double value;
    const char *text; /* NIB_GGUF_STRING, or NIB_GGUF_ARRAY: a flag for each 0 and 1; NULL: an array
                         without elements, which no key may have */
    bool removed;     /* only removes the file's own */
    bool digits;      /* NIB_GGUF_ARRAY: of numbers, one for each digit */
} change;

static void put_value(gguf_file *f, const char *key, const change *c)
{
    if (c->kind == NIB_GGUF_STRING) {
        put_key_text(f, key, c->text);
    } else if (c->kind == NIB_GGUF_ARRAY) {
        const char *flags = c->text != NULL ? c->text : "";
        put_key_array(f, key,
                      c->digits         ? NIB_GGUF_I32
                      : c->text != NULL ? NIB_GGUF_BOOL
                                        : NIB_GGUF_U8,
                      strlen(flags));
        for (; *flags != 0; flags++)
            put_int(f, c->digits ? (uint64_t)(*flags - '0') : *flags == '1', c->digits ? 4 : 1);
    } else if (c->kind == NIB_GGUF_F32) {
        put_key_f32(f, key, (float)c->value);
    } else {
        put_key_int(f, key, c->kind, (uint64_t)(int64_t)c->value, c->kind == NIB_GGUF_BOOL ? 1 : 4);
    }
}

/* Finds text in bytes after its length of 8 bytes; NULL: not there. */
static char *find_key(char *bytes, size_t size, const char *text)
{
    const uint64_t length = strlen(text);
    for (size_t i = 8; i + length <= size; i++)
        if (memcmp(bytes + i, text, length) == 0 && memcmp(bytes + i - 8, &length, 8) == 0)
            return bytes + i;
    return NULL;
}

static const char *key_of(char out[128], const char *arch, const change *c)
{
    snprintf(out, 128, "%s%s", c->key[0] == '.' ? arch : "", c->key);
    return out;
}

/* Writes the golden file `from` with the changes to `path`. The file's own keys get a name that
 * nothing reads, and a filler keeps the tensors at multiples of 32 bytes. */
static void write_changed(const char *path, const char *from, const change *changes, size_t count)
{
    static gguf_file added;
    const nib_allocator a = nib__allocator_default();
    char source[128], key[128], arch[64], *bytes;
    size_t size;
    uint64_t keys;
    snprintf(source, sizeof source, "tests/golden/gguf/%s.gguf", from);
    assert_int_equal(nib__file_read(&bytes, &size, source, 1 << 20, &a, NULL), NIB_OK);
    const char *named = find_key(bytes, size, "general.architecture");
    assert_non_null(named);
    named += strlen("general.architecture") + 4;
    snprintf(arch, sizeof arch, "%.*s", (int)named[0], named + 8);
    memcpy(&keys, bytes + 16, 8);
    added.size = 0;
    for (size_t i = 0; i < count && changes[i].key != NULL; i++) {
        char *own = find_key(bytes, size, key_of(key, arch, &changes[i]));
        if (own != NULL)
            *own = '_';
        if (changes[i].removed) {
            assert_non_null(own);
            continue;
        }
        put_value(&added, key, &changes[i]);
        keys++;
    }
    static const char filler[] = "general.filler";
    char spaces[33] = "";
    const size_t written = added.size + 8 + sizeof filler - 1 + 4 + 8;
    memset(spaces, ' ', (32 - written % 32) % 32);
    put_key_text(&added, filler, spaces);
    keys++;
    memcpy(bytes + 16, &keys, 8);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, 24, f), 24);
    assert_int_equal(fwrite(added.bytes, 1, added.size, f), added.size);
    assert_int_equal(fwrite(bytes + 24, 1, size - 24, f), size - 24);
    assert_int_equal(fclose(f), 0);
    nib__release(&a, bytes);
}

typedef struct outcome {
    nib_config config; /* lists of layers: NULL if it has none, else not to be read */
    nib_generation generation;
    nib_ledger notes;
    nib_err err;
    nib_status status;
} outcome;

static char path_of_changed[300];
static nib_allocator heap; /* of the notes */

static void read_changed(outcome *o, const char *from, const change *changes, size_t count)
{
    nib_checkpoint *cp;
    nib_arena arena;
    write_changed(path_of_changed, from, changes, count);
    *o = (outcome){.status = NIB_OK};
    nib__ledger_init(&o->notes, &heap);
    if (nib__checkpoint_open(&cp, path_of_changed, &heap, &o->err) != NIB_OK)
        fail_msg("%s", o->err.text);
    nib__arena_init(&arena, &heap, 0);
    o->status = nib__config_gguf(&o->config, cp, &arena, &o->notes, &o->err);
    if (o->status == NIB_OK)
        o->status =
            nib__generation_gguf(&o->generation, nib__checkpoint_gguf(cp), &o->notes, &o->err);
    if (o->status == NIB_OK)
        nib__gguf_report_tokenizer(nib__checkpoint_gguf(cp), &o->notes);
    nib__arena_free(&arena);
    nib__checkpoint_close(cp);
}

/* ---- types ---- */

/* A value of the wrong type is refused even if a neutral value of that key would change nothing. */
static void test_wrong_types(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        const char *unread; /* by the files whose name starts so */
    } keys[] = {
        {".block_count", NULL},
        {".embedding_length", NULL},
        {".feed_forward_length", NULL},
        {".context_length", NULL},
        {".attention.head_count", NULL},
        {".attention.head_count_kv", NULL},
        {".attention.key_length", NULL},
        {".attention.value_length", NULL},
        {".attention.sliding_window", NULL},
        {".attention.causal", NULL},
        {".use_parallel_residual", "stablelm"},
        {".vocab_size", NULL},
        {".rope.freq_base", NULL},
        {".rope.dimension_count", NULL},
        {".rope.scaling.type", NULL},
        {".rope.scaling.factor", "phi3"},
        {".rope.scale_linear", "phi3"},
        {".rope.scaling.attn_factor", NULL},
        {".rope.scaling.yarn_beta_fast", NULL},
        {".rope.scaling.yarn_beta_slow", NULL},
        {".rope.scaling.yarn_ext_factor", NULL},
        {".rope.freq_base_swa", NULL},
        {".expert_count", NULL},
        {".attention.scale", NULL},
        {".attn_logit_softcapping", NULL},
        {".logit_scale", NULL},
        {".final_logit_softcapping", NULL},
        {".residual_scale", NULL},
        {".embedding_scale", NULL},
        {"general.quantization_version", NULL},
        {"general.type", NULL},
        {"general.sampling.temp", NULL},
        {"general.sampling.top_k", NULL},
        {"general.sampling.top_p", NULL},
        {"general.sampling.min_p", NULL},
        {"general.sampling.penalty_repeat", NULL},
        {"tokenizer.ggml.bos_token_id", NULL},
        {"tokenizer.ggml.eos_token_id", NULL},
        {"tokenizer.ggml.eot_token_id", NULL},
        {"tokenizer.ggml.eom_token_id", NULL},
    };
    for (size_t f = 0; f < COUNT(files); f++)
        for (size_t i = 0; i < COUNT(keys); i++) {
            const change wrong = {.key = keys[i].key, .kind = NIB_GGUF_ARRAY};
            const bool unread = keys[i].unread != NULL &&
                                strncmp(files[f], keys[i].unread, strlen(keys[i].unread)) == 0;
            outcome o;
            read_changed(&o, files[f], &wrong, 1);
            if (o.status != (unread ? NIB_OK : NIB_BAD_INPUT) ||
                (!unread && strstr(o.err.text, keys[i].key) == NULL))
                fail_msg("%s, %s: status %d, %s", files[f], keys[i].key, o.status, o.err.text);
            nib__ledger_free(&o.notes);
        }
}

/* ---- values ---- */

#define U32(key_, value_)                                                                          \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_U32, .value = value_                                         \
    }
#define I32(key_, value_)                                                                          \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_I32, .value = value_                                         \
    }
#define F32(key_, value_)                                                                          \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_F32, .value = value_                                         \
    }
#define FLAG(key_, value_)                                                                         \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_BOOL, .value = value_                                        \
    }
#define TEXT(key_, text_)                                                                          \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_STRING, .text = text_                                        \
    }
#define ARRAY(key_)                                                                                \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_ARRAY                                                        \
    }
#define FLAGS(key_, text_)                                                                         \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_ARRAY, .text = text_                                         \
    }
#define DIGITS(key_, text_)                                                                        \
    {                                                                                              \
        .key = key_, .kind = NIB_GGUF_ARRAY, .text = text_, .digits = true                         \
    }
#define WITHOUT(key_)                                                                              \
    {                                                                                              \
        .key = key_, .removed = true                                                               \
    }

static void test_values_refused(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        change changes[3];
        nib_status status;
    } cases[] = {
        /* RoPE */
        {"glm4", {U32(".rope.dimension_count", 1)}, NIB_UNSUPPORTED},
        {"glm4", {U32(".rope.dimension_count", 7)}, NIB_UNSUPPORTED},
        {"glm4", {U32(".rope.dimension_count", 1024)}, NIB_UNSUPPORTED},
        {"llama", {F32(".rope.freq_base", 2e18)}, NIB_BAD_INPUT},
        {"llama", {F32(".rope.freq_base", -1)}, NIB_BAD_INPUT},
        {"llama", {F32(".rope.scaling.factor", 2e9)}, NIB_BAD_INPUT},
        {"llama", {F32(".rope.scaling.factor", NAN)}, NIB_BAD_INPUT},
        {"phi3", {TEXT(".rope.scaling.type", "yarn")}, NIB_UNSUPPORTED},
        {"llama", {TEXT(".rope.scaling.type", "longrope")}, NIB_UNSUPPORTED},
        {"llama", {TEXT(".rope.scaling.type", "lineal")}, NIB_UNSUPPORTED},
        {"phi3", {WITHOUT(".rope.scaling.original_context_length")}, NIB_BAD_INPUT},
        {"phi3", {ARRAY(".rope.scaling.original_context_length")}, NIB_BAD_INPUT},
        {"phi3", {U32(".rope.scaling.original_context_length", 1)}, NIB_BAD_INPUT},
        {"phi3", {U32(".rope.scaling.original_context_length", 1 << 20)}, NIB_BAD_INPUT},
        {"phi3", {F32(".rope.scaling.attn_factor", 0)}, NIB_BAD_INPUT},
        {"phi3", {F32(".rope.scaling.attn_factor", 1001)}, NIB_BAD_INPUT},
        {"phi3", {F32(".rope.scaling.attn_factor", NAN)}, NIB_BAD_INPUT},
        {"qwen2_yarn", {ARRAY(".rope.scaling.original_context_length")}, NIB_BAD_INPUT},
        {"qwen2_yarn", {F32(".rope.scaling.factor", 0)}, NIB_BAD_INPUT},
        {"qwen2_yarn", {F32(".rope.scaling.yarn_beta_slow", -1)}, NIB_BAD_INPUT},
        /* keys of one family */
        {"gemma2", {F32(".attn_logit_softcapping", -1)}, NIB_BAD_INPUT},
        {"gemma2", {F32(".attn_logit_softcapping", NAN)}, NIB_BAD_INPUT},
        {"granite", {F32(".logit_scale", 0)}, NIB_BAD_INPUT},
        {"granite", {F32(".logit_scale", INFINITY)}, NIB_BAD_INPUT},
        /* which change the result in others */
        {"llama", {F32(".rope.freq_base_swa", 10000)}, NIB_UNSUPPORTED},
        {"llama", {FLAG(".use_parallel_residual", 1)}, NIB_UNSUPPORTED},
        {"llama", {U32(".attention.mood", 1)}, NIB_UNSUPPORTED},
        {"llama", {F32(".attention.layer_norm_rms_epsilon", 1)}, NIB_BAD_INPUT},
        /* windows */
        {"gemma2", {I32(".attention.sliding_window", -1)}, NIB_BAD_INPUT},
        {"gemma2", {ARRAY(".attention.sliding_window_pattern")}, NIB_BAD_INPUT},
        {"llama", {U32(".attention.sliding_window", 255)}, NIB_UNSUPPORTED},
        {"gemma3",
         {U32(".attention.sliding_window", 9), ARRAY(".attention.sliding_window_pattern")},
         NIB_BAD_INPUT},
        {"gemma3",
         {U32(".attention.sliding_window", 9), FLAGS(".attention.sliding_window_pattern", "1")},
         NIB_BAD_INPUT},
        {"smollm3", {I32(".attention.sliding_window", -1)}, NIB_BAD_INPUT},
        /* heads that differ by layer */
        {"gemma4", {U32(".attention.value_length_swa", 8)}, NIB_UNSUPPORTED},
        {"gemma4", {U32(".rope.dimension_count_swa", 8)}, NIB_UNSUPPORTED},
        {"gemma4", {U32(".rope.dimension_count", 16)}, NIB_UNSUPPORTED},
        /* layers that share: of 4 and 6, in other numbers than there are layers of both kinds */
        {"gemma4", {U32(".attention.shared_kv_layers", 1)}, NIB_UNSUPPORTED},
        {"gemma4", {U32(".attention.shared_kv_layers", 4)}, NIB_BAD_INPUT},
        {"gemma4", {I32(".attention.shared_kv_layers", -1)}, NIB_BAD_INPUT},
        {"gemma4_shared", {U32(".attention.shared_kv_layers", 4)}, NIB_UNSUPPORTED},
        {"gemma4_shared", {U32(".attention.shared_kv_layers", 0)}, NIB_UNSUPPORTED},
        {"gemma4_shared", {FLAGS(".feed_forward_length", "111122")}, NIB_BAD_INPUT},
        {"gemma4_shared", {ARRAY(".feed_forward_length")}, NIB_BAD_INPUT},
        {"gemma4", {U32(".embedding_length_per_layer_input", 1 << 17)}, NIB_BAD_INPUT},
        {"gemma4", {ARRAY(".attention.head_count_kv")}, NIB_BAD_INPUT},
        {"gemma4", {FLAGS(".attention.head_count_kv", "1212")}, NIB_BAD_INPUT},
        {"gemma4", {FLAGS(".attention.sliding_window_pattern", "1100")}, NIB_BAD_INPUT},
        {"gemma4", {FLAGS(".attention.sliding_window_pattern", "10")}, NIB_BAD_INPUT},
        {"gemma4", {WITHOUT(".expert_used_count")}, NIB_BAD_INPUT},
        {"gemma3", {U32(".attention.key_length_swa", 16)}, NIB_UNSUPPORTED},
        {"smollm3", {WITHOUT(".attention.layer_norm_rms_epsilon")}, NIB_BAD_INPUT},
        /* experts */
        {"glm4moe", {U32(".nextn_predict_layers", 4)}, NIB_BAD_INPUT},
        {"glm4moe", {I32(".nextn_predict_layers", -1)}, NIB_BAD_INPUT},
        {"glm4moe", {ARRAY(".nextn_predict_layers")}, NIB_BAD_INPUT},
        {"glm4moe", {U32(".expert_gating_func", 1)}, NIB_UNSUPPORTED},
        {"glm4moe", {U32(".expert_group_count", 4)}, NIB_BAD_INPUT},
        {"glm4moe", {U32(".expert_weights_norm", 1)}, NIB_BAD_INPUT},
        {"glm4moe", {WITHOUT(".leading_dense_block_count")}, NIB_BAD_INPUT},
        {"qwen3moe", {U32(".nextn_predict_layers", 1)}, NIB_UNSUPPORTED},
        {"gpt-oss", {U32(".expert_feed_forward_length", 32)}, NIB_UNSUPPORTED},
        {"granitemoe", {U32(".expert_feed_forward_length", 64)}, NIB_UNSUPPORTED},
        {"llama4", {WITHOUT(".interleave_moe_layer_step")}, NIB_BAD_INPUT},
        {"llama4", {WITHOUT(".expert_feed_forward_length")}, NIB_BAD_INPUT},
        {"llama4", {U32(".interleave_moe_layer_step", 0)}, NIB_BAD_INPUT},
        /* layers that keep states */
        {"lfm2", {ARRAY(".attention.head_count_kv")}, NIB_BAD_INPUT},
        {"lfm2", {DIGITS(".attention.head_count_kv", "020")}, NIB_BAD_INPUT},
        {"lfm2", {DIGITS(".attention.head_count_kv", "0204")}, NIB_BAD_INPUT},
        {"lfm2", {DIGITS(".attention.head_count_kv", "0000")}, NIB_UNSUPPORTED},
        {"lfm2", {U32(".shortconv.l_cache", 1)}, NIB_BAD_INPUT},
        {"lfm2", {WITHOUT(".shortconv.l_cache")}, NIB_BAD_INPUT},
        {"granitehybrid", {U32(".ssm.inner_size", 80)}, NIB_BAD_INPUT}, /* 2.5 times 32 */
        {"granitehybrid", {U32(".ssm.inner_size", 63)}, NIB_BAD_INPUT},
        {"granitehybrid", {U32(".ssm.time_step_rank", 0)}, NIB_BAD_INPUT},
        {"granitehybrid", {WITHOUT(".ssm.group_count")}, NIB_BAD_INPUT},
        {"granitehybrid", {U32(".expert_shared_feed_forward_length", 32)}, NIB_BAD_INPUT},
        {"granitehybrid", {TEXT(".rope.scaling.finetuned", "no")}, NIB_BAD_INPUT},
        {"granitehybrid_moe", {WITHOUT(".expert_shared_feed_forward_length")}, NIB_BAD_INPUT},
        {"granitehybrid_moe", {U32(".ssm.group_count", 3)}, NIB_BAD_INPUT},
        {"granitehybrid_moe", {U32(".expert_feed_forward_length", 64)}, NIB_UNSUPPORTED},
        {"granite", {FLAG(".rope.scaling.finetuned", 0)}, NIB_UNSUPPORTED},
        {"lfm2moe", {U32(".expert_gating_func", 1)}, NIB_UNSUPPORTED},
        {"lfm2moe", {WITHOUT(".expert_feed_forward_length")}, NIB_BAD_INPUT},
        {"lfm2moe", {U32(".expert_used_count", 6)}, NIB_BAD_INPUT}, /* of 5 */
        {"lfm2moe", {F32(".expert_weights_scale", 0)}, NIB_BAD_INPUT},
        {"qwen35", {U32(".ssm.inner_size", 130)}, NIB_BAD_INPUT},
        {"qwen35", {U32(".ssm.time_step_rank", 3)}, NIB_BAD_INPUT},
        {"qwen35", {U32(".ssm.time_step_rank", 0)}, NIB_BAD_INPUT},
        {"qwen35", {U32(".ssm.group_count", 3)}, NIB_BAD_INPUT},
        {"qwen35", {WITHOUT(".ssm.state_size")}, NIB_BAD_INPUT},
        {"qwen35", {U32(".full_attention_interval", 0)}, NIB_BAD_INPUT},
        {"qwen35", {U32(".full_attention_interval", 5)}, NIB_BAD_INPUT},
        {"qwen35", {U32(".nextn_predict_layers", 4)}, NIB_BAD_INPUT},
        {"qwen35", {DIGITS(".rope.dimension_sections", "11000")}, NIB_BAD_INPUT},
        {"qwen35moe", {WITHOUT(".expert_shared_feed_forward_length")}, NIB_BAD_INPUT},
        /* tokens */
        {"llama", {U32("tokenizer.ggml.bos_token_id", 272)}, NIB_BAD_INPUT},
        {"llama", {I32("tokenizer.ggml.eom_token_id", -2)}, NIB_BAD_INPUT},
        {"llama", {ARRAY("tokenizer.ggml.tokens")}, NIB_BAD_INPUT},
        /* sampling */
        {"llama", {F32("general.sampling.temp", -0.5)}, NIB_BAD_INPUT},
        {"llama", {F32("general.sampling.temp", NAN)}, NIB_BAD_INPUT},
        {"llama", {F32("general.sampling.top_p", 0)}, NIB_BAD_INPUT},
        {"llama", {F32("general.sampling.top_p", 1.5)}, NIB_BAD_INPUT},
        {"llama", {F32("general.sampling.min_p", 2)}, NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        outcome o;
        read_changed(&o, cases[i].file, cases[i].changes, COUNT(cases[i].changes));
        if (o.status != cases[i].status)
            fail_msg("%s, %s: status %d, %s", cases[i].file, cases[i].changes[0].key, o.status,
                     o.err.text);
        refused(cases[i].status, o.status, &o.err);
        nib__ledger_free(&o.notes);
    }
}

/* The shorter list of divisors belongs to the longer one. */
static void test_tensors_refused(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        change changes[2];
    } cases[] = {
        {"phi3", {WITHOUT("rope_factors_short.weight")}},
        {"phi3", {WITHOUT("rope_factors_long.weight")}},
        {"llama", {WITHOUT("rope_freqs.weight")}},
        {"phi3", {WITHOUT("rope_factors_short.weight"), WITHOUT("rope_factors_long.weight")}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        outcome o;
        read_changed(&o, cases[i].file, cases[i].changes, 2);
        refused(i < 2 ? NIB_BAD_INPUT : NIB_UNSUPPORTED, o.status, &o.err);
        nib__ledger_free(&o.notes);
    }
}

/* RoPE's divisors are positive numbers, one for each pair of channels. */
static void test_divisors(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, 0, -1, 0.5f};
    const nib_allocator a = nib__allocator_default();
    nib_config c;
    nib_err err = {NIB_OK, ""};
    for (size_t i = 0; i < COUNT(values); i++) {
        nib_checkpoint *cp;
        nib_arena arena;
        char *bytes, *at;
        size_t size;
        assert_int_equal(
            nib__file_read(&bytes, &size, "tests/golden/gguf/llama.gguf", 1 << 20, &a, &err),
            NIB_OK);
        assert_int_equal(nib__checkpoint_open(&cp, "tests/golden/gguf/llama.gguf", &a, &err),
                         NIB_OK);
        const nib_tensor *t = nib__checkpoint_find(cp, "rope_freqs.weight");
        assert_non_null(t);
        at = memmem(bytes, size, t->data, t->bytes);
        assert_non_null(at);
        memcpy(at + sizeof(float), &values[i], sizeof(float));
        nib__checkpoint_close(cp);
        write_bytes(path_of_changed, bytes, size);
        nib__release(&a, bytes);
        assert_int_equal(nib__checkpoint_open(&cp, path_of_changed, &a, &err), NIB_OK);
        nib__arena_init(&arena, &a, 0);
        const nib_status status = nib__config_gguf(&c, cp, &arena, NULL, &err);
        if (values[i] > 0 && isfinite(values[i])) {
            assert_int_equal(status, NIB_OK);
            assert_true(c.rope_divisors[1] == values[i]);
        } else {
            refused(NIB_BAD_INPUT, status, &err);
        }
        nib__arena_free(&arena);
        nib__checkpoint_close(cp);
    }
}

/* What is read, but not followed, is reported; values that change nothing are not. */
static void test_notes(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        change changes[3];
        const char *words; /* of the one note more than without the changes; NULL: none */
    } cases[] = {
        {"llama", {U32(".mood", 1)}, "llama.mood"},
        {"llama", {U32("llamas.mood", 1)}, "llamas.mood"},
        {"llama", {FLAG(".attention.causal", 1)}, NULL},
        {"llama", {U32(".attention.sliding_window", 256)}, NULL},
        {"llama", {F32(".rope.scaling.factor", 1), F32(".rope.scale_linear", 1)}, NULL},
        {"llama",
         {F32(".rope.scaling.factor", 2), F32(".rope.scale_linear", 4)},
         "its newer name, takes precedence"},
        {"llama",
         {TEXT(".rope.scaling.type", "none"), F32(".rope.scaling.factor", 2)},
         "rope.scaling.type is \"none\""},
        {"llama",
         {TEXT(".rope.scaling.type", "none"), F32(".rope.scale_linear", 2)},
         "rope.scaling.type is \"none\""},
        {"llama", {TEXT(".rope.scaling.type", "none"), F32(".rope.scale_linear", 1)}, NULL},
        {"llama4", {U32(".attention.sliding_window", 8192)}, NULL},
        {"llama4", {U32(".attention.sliding_window", 0)}, NULL},
        {"llama4", {U32(".attention.sliding_window", 16)}, "llama.cpp gives every model"},
        {"glm4moe", {U32(".expert_group_count", 1)}, NULL},
        {"granitemoe", {U32(".expert_feed_forward_length", 32)}, NULL},
        {"granitehybrid", {WITHOUT(".expert_count")}, "_ranitehybrid.expert_count"},
        {"granite", {FLAG(".rope.scaling.finetuned", 1)}, NULL},
        {"qwen3", {FLAG(".rope.scaling.finetuned", 0)}, NULL},
        /* the note is of the file's own key, which is renamed */
        {"qwen35", {U32(".block_count", 5), U32(".nextn_predict_layers", 1)}, "_wen35.block"},
        {"qwen35", {WITHOUT(".full_attention_interval")}, "_wen35.full_attention"},
        {"phi3", {TEXT(".rope.scaling.type", "longrope")}, NULL},
        {"phi3", {F32(".rope.scaling.factor", 2)}, "rope.scaling.factor"},
        {"llama", {F32("general.sampling.temp", 0)}, NULL},
        {"llama", {U32("general.sampling.mood", 1)}, "general.sampling.mood"},
        {"llama", {F32("general.sampling.penalty_repeat", 1)}, NULL},
        {"llama", {F32("general.sampling.penalty_repeat", 1.5)}, "penalty_repeat"},
        {"llama", {F32("general.sampling.mirostat_tau", 5)}, NULL},
        {"llama", {U32("tokenizer.ggml.mood", 1)}, "tokenizer.ggml.mood"},
        {"llama", {FLAG("tokenizer.ggml.mood", 1)}, "tokenizer.ggml.mood"},
        {"llama", {FLAG("tokenizer.ggml.mood", 0)}, NULL},
        {"llama", {ARRAY("tokenizer.ggml.mood")}, "tokenizer.ggml.mood"},
        {"llama", {TEXT("tokenizer.chat_template.tools", "x")}, NULL},
        {"llama", {U32("tokenizer.ggml.mood_token_id", 1)}, NULL},
        {"llama", {U32("tokenizer.x", 1)}, "tokenizer.x"},
        {"llama", {U32("tokenizer.ggml.x", 1)}, "tokenizer.ggml.x"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        outcome plain, o;
        read_changed(&plain, cases[i].file, NULL, 0);
        read_changed(&o, cases[i].file, cases[i].changes, COUNT(cases[i].changes));
        const size_t wanted = plain.notes.setting_count + (cases[i].words != NULL);
        if (o.status != NIB_OK || o.notes.setting_count != wanted ||
            (cases[i].words != NULL && count_settings(&o.notes, NULL, cases[i].words) != 1))
            fail_msg("%s, %s: status %d, %s, %zu notes of %zu", cases[i].file,
                     cases[i].changes[0].key, o.status, o.err.text, o.notes.setting_count, wanted);
        nib__ledger_free(&plain.notes);
        nib__ledger_free(&o.notes);
    }
}

static void test_values(void **state)
{
    (void)state;
    outcome o;
    const change ends[] = {U32("tokenizer.ggml.eos_token_id", 5),
                           U32("tokenizer.ggml.eot_token_id", 5),
                           U32("tokenizer.ggml.eom_token_id", 7)};
    read_changed(&o, "llama", ends, COUNT(ends));
    assert_int_equal(o.config.eos_count, 2);
    assert_true(o.config.eos[0] == 5 && o.config.eos[1] == 7);
    nib__ledger_free(&o.notes);
    const change sampled[] = {F32("general.sampling.temp", 0.5), F32("general.sampling.top_p", 1),
                              F32("general.sampling.min_p", 0), I32("general.sampling.top_k", -1)};
    read_changed(&o, "llama", sampled, COUNT(sampled));
    assert_int_equal(o.status, NIB_OK);
    assert_true(o.generation.temperature == 0.5 && o.generation.top_p == 1);
    assert_true(o.generation.min_p == 0 && o.generation.top_k == 0);
    nib__ledger_free(&o.notes);
    const change top[] = {U32("general.sampling.top_k", 40)};
    read_changed(&o, "llama", top, 1);
    assert_int_equal(o.generation.top_k, 40);
    nib__ledger_free(&o.notes);
    /* the list decides which layers have a window: all, or none */
    static const char *const lists[] = {"111111", "000000", "010000"};
    for (size_t i = 0; i < COUNT(lists); i++) {
        const change windows[] = {U32(".block_count", 6), U32(".attention.sliding_window", 9),
                                  FLAGS(".attention.sliding_window_pattern", lists[i])};
        read_changed(&o, "gemma3", windows, COUNT(windows));
        assert_int_equal(o.status, NIB_OK);
        assert_int_equal(o.config.window, i == 1 ? 0 : 9);
        assert_true((o.config.window_layers != NULL) == (i == 2));
        nib__ledger_free(&o.notes);
    }
    /* without a tensor of the embedding the list of tokens has their number */
    const change unnamed[] = {WITHOUT("token_embd.weight")};
    read_changed(&o, "starcoder2", unnamed, 1);
    assert_int_equal(o.status, NIB_UNSUPPORTED);
    assert_non_null(strstr(o.err.text, "_oken_embd"));
    nib__ledger_free(&o.notes);
    /* Llama 4 has chunks unless a window of 0 is given; then all layers have RoPE */
    const change unlimited[] = {U32(".attention.sliding_window", 0)};
    for (size_t i = 0; i < 2; i++) {
        read_changed(&o, "llama4", unlimited, i);
        assert_int_equal(o.status, NIB_OK);
        assert_int_equal(o.config.window, i == 0 ? 8192 : 0);
        assert_true((o.config.rope_layers != NULL) == (i == 0));
        assert_true((o.config.query_beta > 0) == (i == 0) && o.config.qk_norm);
        assert_true(nib__gguf_lacks_chunks(&o.config) == (i == 1));
        nib__ledger_free(&o.notes);
    }
    const change maverick[] = {U32(".expert_count", 128)};
    read_changed(&o, "llama4", maverick, 1);
    assert_false(o.config.qk_norm);
    nib__ledger_free(&o.notes);
    read_changed(&o, "gpt-oss", maverick, 0);
    assert_true(o.config.rope_unrounded && o.config.swiglu_limit == 7);
    nib__ledger_free(&o.notes);
    const change groups[] = {U32(".expert_group_count", 3), U32(".expert_group_used_count", 2),
                             WITHOUT(".expert_weights_norm")};
    for (size_t i = 0; i <= COUNT(groups); i += COUNT(groups)) {
        read_changed(&o, "glm4moe", groups, i);
        assert_int_equal(o.status, NIB_OK);
        assert_int_equal(o.config.layers, 3);
        assert_int_equal(o.config.moe.unread_layers, 1);
        assert_int_equal(o.config.moe.groups, i == 0 ? 1 : 3);
        assert_true(o.config.moe.normalize == (i == 0));
        nib__ledger_free(&o.notes);
    }
    /* without the key Granite 4 has RoPE */
    const change rotated[] = {WITHOUT(".rope.scaling.finetuned")};
    for (size_t i = 0; i < 2; i++) {
        read_changed(&o, "granitehybrid", rotated, i);
        assert_int_equal(o.status, NIB_OK);
        assert_true(o.config.unrotated == (i == 0) && o.config.conv_layers != NULL);
        assert_true(o.config.moe.experts == 0 && o.config.ffn == 64 && o.config.mamba_expand == 2);
        nib__ledger_free(&o.notes);
    }
    /* llama.cpp's LFM2 divides weights by their sum, unless Nibble's files say otherwise */
    const change weighed[] = {FLAG(".expert_weights_norm", 0), F32(".expert_weights_scale", 2.5)};
    for (size_t i = 0; i <= COUNT(weighed); i += COUNT(weighed)) {
        read_changed(&o, "lfm2moe", weighed, i);
        assert_int_equal(o.status, NIB_OK);
        assert_true(o.config.moe.normalize == (i == 0) && o.config.moe.first == 1);
        assert_true(o.config.moe.scale == (i == 0 ? 1 : 2.5));
        nib__ledger_free(&o.notes);
    }
    /* a window as wide as the context limits nothing */
    const change wide[] = {U32(".attention.sliding_window", 255)};
    read_changed(&o, "gemma2", wide, 1);
    assert_int_equal(o.status, NIB_OK);
    assert_int_equal(o.config.window, 255);
    nib__ledger_free(&o.notes);
}

/* ---- memory ---- */

/* The config of every golden file, with each allocation failing once. */
static void test_no_memory(void **state)
{
    (void)state;
    const change listed[] = {U32(".block_count", 6), U32(".attention.sliding_window", 9),
                             FLAGS(".attention.sliding_window_pattern", "010000")};
    write_changed(path_of_changed, "gemma3", listed, COUNT(listed));
    for (size_t f = 0; f <= COUNT(files); f++) {
        char path[300];
        nib_checkpoint *cp;
        nib_status status = NIB_NO_MEMORY;
        nib_err err = {NIB_OK, ""};
        if (f == COUNT(files))
            snprintf(path, sizeof path, "%s", path_of_changed);
        else
            snprintf(path, sizeof path, "tests/golden/gguf/%s.gguf", files[f]);
        assert_int_equal(nib__checkpoint_open(&cp, path, &heap, &err), NIB_OK);
        for (int left = 0; status != NIB_OK; left++) {
            failing failure = {.left = left};
            const nib_allocator a = failing_allocator(&failure);
            nib_config c;
            nib_arena arena;
            nib__arena_init(&arena, &a, 0);
            status = nib__config_gguf(&c, cp, &arena, NULL, &err);
            assert_true(status == NIB_OK || (status == NIB_NO_MEMORY && failure.left == 0));
            assert_true(status == NIB_NO_MEMORY || nib__gguf_rope_layers_match(&c));
            nib__arena_free(&arena);
            assert_int_equal(failure.live, 0);
        }
        nib__checkpoint_close(cp);
    }
}

int main(void)
{
    char directory[256];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_types),     cmocka_unit_test(test_values_refused),
        cmocka_unit_test(test_tensors_refused), cmocka_unit_test(test_divisors),
        cmocka_unit_test(test_notes),           cmocka_unit_test(test_values),
        cmocka_unit_test(test_no_memory),
    };
    heap = nib__allocator_default();
    make_directory(directory);
    snprintf(path_of_changed, sizeof path_of_changed, "%s/changed.gguf", directory);
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    drop_directory(directory);
    return failures;
}
