/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF models: logits equal those of transformers for the dequantized weights (golden),
 * bit-identical on every instruction set; the config from the keys, and its refusals; models in
 * several files.
 */
#include "ledger_lines.h"
#include "session.h"

#include "checkpoint_build.h"
#include "config_gguf.h"
#include "dialects.h"
#include "gguf_build.h"
#include "gguf_parts.h"
#include "manifest.h"
#include "skipping.h"

#include <math.h>

static const char *in(char out[512], const char *directory, const char *name)
{
    snprintf(out, 512, "%s/%s", directory, name);
    return out;
}

static const char *const families[] = {
    "llama",      "qwen2",          "qwen2_yarn",    "qwen3",
    "smollm3",    "olmo2",          "exaone4",       "granite",
    "gemma",      "gemma2",         "gemma3",        "command-r",
    "cohere2",    "starcoder2",     "stablelm",      "phi3",
    "glm4",       "stablelm_norms", "qwen3moe",      "mixtral",
    "granitemoe", "gpt-oss",        "glm4moe",       "llama4",
    "gemma4",     "gemma4_shared",  "lfm2",          "qwen35",
    "qwen35moe",  "qwen3next",      "granitehybrid", "granitehybrid_moe",
    "lfm2moe"};

/* ---- logits ---- */

typedef struct golden {
    nib_checkpoint *cp;
    const int32_t *tokens, *positions;
    const float *logits; /* [kept][vocab] */
    int64_t count, kept, vocab;
} golden;

static const nib_tensor *part_of(const nib_checkpoint *cp, const char *family, const char *which)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%s", family, which);
    const nib_tensor *t = nib__checkpoint_find(cp, name);
    assert_non_null(t);
    assert_int_equal((uintptr_t)t->data % 4, 0);
    return t;
}

static golden open_golden(const char *family)
{
    golden g = {0};
    nib_err err;
    const nib_allocator a = nib__allocator_default();
    if (nib__checkpoint_open(&g.cp, "tests/golden/gguf/logits.safetensors", &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const nib_tensor *tokens = part_of(g.cp, family, "tokens"),
                     *positions = part_of(g.cp, family, "positions"),
                     *logits = part_of(g.cp, family, "logits");
    g.tokens = (const void *)tokens->data;
    g.positions = (const void *)positions->data;
    g.logits = (const void *)logits->data;
    g.count = tokens->shape[0];
    g.kept = logits->shape[0];
    g.vocab = logits->shape[1];
    return g;
}

/* Logits of every token, [count][vocab]. */
static float *run_all(const char *family, const golden *g, const char *recipe, const char *dtype,
                      const char *isa)
{
    char path[64];
    nib_err err;
    const float *logits;
    snprintf(path, sizeof path, "tests/golden/gguf/%s.gguf", family);
    opened o = must_open(
        &(open_how){.path = path, .recipe = recipe, .dtype = dtype, .isa = isa, .threads = 2});
    nib_slot *slots = calloc((size_t)g->count, sizeof *slots);
    for (int64_t i = 0; i < g->count; i++)
        slots[i] = (nib_slot){0, (int32_t)i, g->tokens[i], NIB_SLOT_LOGITS};
    assert_int_equal(nib_session_vocab(o.session), g->vocab);
    if (nib_session_step(o.session, slots, (size_t)g->count, &logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const size_t bytes = (size_t)(g->count * g->vocab) * sizeof(float);
    float *out = malloc(bytes);
    memcpy(out, logits, bytes);
    free(slots);
    close_opened(&o);
    return out;
}

/* Float activations, since the golden logits are from dequantized weights. */
static void test_logits(void **state)
{
    (void)state;
    for (size_t f = 0; f < COUNT(families); f++) {
        golden g = open_golden(families[f]);
        float *logits = run_all(families[f], &g, "weight-only", "f32", NULL);
        for (int64_t i = 0; i < g.kept; i++) {
            double off = 0, size = 0;
            for (int64_t v = 0; v < g.vocab; v++) {
                const double want = (double)g.logits[i * g.vocab + v];
                off = fmax(off, fabs((double)logits[g.positions[i] * g.vocab + v] - want));
                size = fmax(size, fabs(want));
            }
            if (!(off <= 1e-4 * size))
                fail_msg("%s: position %d is off by %g of %g", families[f], (int)g.positions[i],
                         off, size);
        }
        free(logits);
        nib__checkpoint_close(g.cp);
    }
}

/* For every block type and instruction set, packed weights give the same bits as the reference. */
static void test_all_instruction_sets_agree(void **state)
{
    (void)state;
    static const char *const types[] = {"f32", "bf16"}, *const sets[] = {"avx2", "avx512",
                                                                         "avx512bf16", "amx"};
    static const char *const recipes[] = {NULL, "weight-only"};
    golden g = open_golden("llama");
    for (size_t t = 0; t < COUNT(types) * COUNT(recipes); t++) {
        const char *recipe = recipes[t / COUNT(types)], *type = types[t % COUNT(types)];
        float *want = run_all("llama", &g, recipe, type, "ref");
        for (size_t s = 0; s < COUNT(sets); s++) {
            if (!isa_is_here(sets[s]))
                continue;
            float *got = run_all("llama", &g, recipe, type, sets[s]);
            assert_memory_equal(got, want, (size_t)(g.count * g.vocab) * sizeof *got);
            free(got);
        }
        free(want);
    }
    nib__checkpoint_close(g.cp);
}

/* Third-party files with their own tokenizers: llama2.c's 260K in F32 (K 172 is not a multiple of
 * 32), and llama.cpp's Q8_0 of TinyStories-656K, whose F32 weights have a loss of 2.9385, with
 * float activations and with ggml's. */
static void test_real_files(void **state)
{
    (void)state;
    static const struct {
        const char *file, *recipe;
        double loss;
        int64_t predicted;
    } cases[] = {{"stories260K/stories260K.gguf", NULL, 1.3061, 10069},
                 {"TinyStories-656K/TinyStories-656K-Q8_0.gguf", "weight-only", 2.9390, 6216},
                 {"TinyStories-656K/TinyStories-656K-Q8_0.gguf", NULL, 2.9392, 6216}};
    const char *data = test_data();
    for (size_t i = 0; i < COUNT(cases); i += (size_t)sparse(3)) {
        char path[512], text[512];
        nib_eval_result result = {.size = sizeof result};
        nib_err err;
        snprintf(path, sizeof path, "%s/weights/%s", data, cases[i].file);
        snprintf(text, sizeof text, "%s/text/tinystories_40.jsonl", data);
        opened o = must_open(&(open_how){.path = path,
                                         .recipe = cases[i].recipe,
                                         .dtype = "f32",
                                         .threads = 2,
                                         .sequences = 8,
                                         .context = 256});
        const nib_eval_options options = {.text_path = text, .window = 256};
        if (nib_eval(o.session, NULL, &options, &result, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_true(fabs(result.loss - cases[i].loss) < 5e-5);
        assert_int_equal(result.predicted, cases[i].predicted);
        close_opened(&o);
    }
}

/* As stored, blocks of 32 run with Q8_0 activations and blocks of 256 with Q8_K. Weight-only runs
 * the same codes with float activations. Any other activation scheme would be a differently
 * quantized model. */
static void test_activations(void **state)
{
    (void)state;
    static const struct {
        const char *layer;
        nib_act act;
    } layers[] = {
        {"model.layers.0.self_attn.q_proj", NIB_ACT_I8_BLOCK32}, /* Q4_0 */
        {"model.layers.0.self_attn.v_proj", NIB_ACT_I8_BLOCK32}, /* Q5_1 */
        {"model.layers.0.mlp.down_proj", NIB_ACT_I8_BLOCK256},   /* Q4_K */
        {"model.layers.2.mlp.down_proj", NIB_ACT_I8_BLOCK256},   /* Q6_K */
        {"model.layers.1.mlp.gate_proj", NIB_ACT_I8_BLOCK32},    /* MXFP4 */
        {"model.layers.1.self_attn.q_proj", NIB_ACT_FLOAT},      /* F16 */
        {"model.embed_tokens", NIB_ACT_FLOAT},
    };
    static const char *const recipes[] = {NULL, "weight-only"};
    for (size_t r = 0; r < COUNT(recipes); r++) {
        opened o =
            must_open(&(open_how){.path = "tests/golden/gguf/llama.gguf", .recipe = recipes[r]});
        for (size_t i = 0; i < COUNT(layers); i++) {
            const nib_layer_plan *found = NULL;
            for (size_t j = 0; j < o.plan->assignment.count; j++)
                if (strcmp(o.plan->assignment.layers[j].layer->name, layers[i].layer) == 0)
                    found = &o.plan->assignment.layers[j];
            assert_non_null(found);
            assert_int_equal(found->done.act, r == 0 ? layers[i].act : NIB_ACT_FLOAT);
            assert_true(nib__scheme_same_weight(&found->done, &found->layer->stored));
        }
        close_opened(&o);
    }
}

/* A row that reads blocks in place counts the blocks' bytes, not those of the scheme's own layout:
 * so do the embedding's row always, and every layer's if nothing is packed. */
static void test_bytes_of_blocks_read_in_place(void **state)
{
    (void)state;
    opened o = must_open(&(open_how){.path = "tests/golden/gguf/llama.gguf", .isa = "ref"});
    const nib_assignment *plan = &o.plan->assignment;
    int others = 0; /* layers whose blocks have another size than plain codes and scales */
    for (size_t i = 0; i < plan->count; i++) {
        nib_weight w;
        bool found = true;
        assert_int_equal(nib__checkpoint_weight(&w, &found, o.model->net.checkpoint,
                                                plan->layers[i].layer->name, NULL, NULL),
                         NIB_OK);
        if (!found) /* the head is tied */
            continue;
        const uint64_t bytes = nib__weight_bytes(&w);
        assert_int_equal(plan->layers[i].uses[0].bytes, bytes);
        assert_int_equal(plan->ledger.layers[i].bytes, bytes);
        if (!nib__scheme_is_quantized(&w.scheme))
            continue;
        w.layout = nib__code_layout(w.scheme.code);
        others += nib__weight_bytes(&w) != bytes;
    }
    assert_true(others > 0);
    close_opened(&o);
}

/* ---- the config ---- */

static nib_status config_of(nib_config *out, const char *path, nib_ledger *notes, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp;
    nib_arena arena;
    NIB_TRY(nib__checkpoint_open(&cp, path, &a, err));
    nib__arena_init(&arena, &a, 0);
    const nib_status status = nib__config_gguf(out, cp, &arena, notes, err);
    out->rope_divisors = NULL;
    nib__arena_free(&arena);
    nib__checkpoint_close(cp);
    return status;
}

static void test_golden_configs(void **state)
{
    (void)state;
    nib_config c;
    nib_err err;
    if (config_of(&c, "tests/golden/gguf/llama.gguf", NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(c.arch, NIB_ARCH_LLAMA);
    assert_int_equal(c.layers, 3);
    assert_int_equal(c.width, 32);
    assert_int_equal(c.ffn, 256);
    assert_int_equal(c.heads, 4);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.vocab, 272);
    assert_int_equal(c.context, 256);
    assert_true(c.rope_theta == 500);
    assert_int_equal(c.bos, 256);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos[0], 257);
    assert_true(c.tied && c.qkv_bias && c.o_bias && c.mlp_bias && !c.qk_norm);
    assert_int_equal(config_of(&c, "tests/golden/gguf/qwen3.gguf", NULL, &err), NIB_OK);
    assert_int_equal(c.arch, NIB_ARCH_QWEN3);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.qk_norm && c.tied && !c.qkv_bias);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.eos_count, 0);
    assert_int_equal(config_of(&c, "tests/golden/gguf/phi3.gguf", NULL, &err), NIB_OK);
    assert_true(c.rope == NIB_ROPE_LONGROPE && c.rope_original == 16 && c.rope_factor == 16);
    assert_true(c.window == 21 && fabs(c.rope_gain - sqrt(2)) < 1e-6);
    assert_int_equal(config_of(&c, "tests/golden/gguf/glm4.gguf", NULL, &err), NIB_OK);
    assert_true(c.rope_interleaved && c.rope_dims == 8 && c.qkv_bias && !c.o_bias);
}

/* llama.cpp decides by the tensors: its converter writes true whenever the config has no value. */
static void test_parallel_residual(void **state)
{
    static const char key[] = "stablelm.use_parallel_residual";
    const nib_allocator a = nib__allocator_default();
    char directory[256], path[300], *file;
    size_t size, at = 0;
    nib_config c;
    nib_err err;
    (void)state;
    assert_int_equal(config_of(&c, "tests/golden/gguf/stablelm_norms.gguf", NULL, &err), NIB_OK);
    assert_true(c.parallel && c.qk_norm);
    assert_int_equal(
        nib__file_read(&file, &size, "tests/golden/gguf/stablelm.gguf", 1 << 20, &a, &err), NIB_OK);
    while (memcmp(file + at, key, sizeof key - 1) != 0)
        at++;
    at += sizeof key - 1 + 4; /* after the type */
    assert_int_equal(file[at], 0);
    file[at] = 1;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/model.gguf", directory);
    write_bytes(path, file, size);
    assert_int_equal(config_of(&c, path, NULL, &err), NIB_OK);
    assert_false(c.parallel || c.qk_norm);
    nib__release(&a, file);
    drop_directory(directory);
}

/* The keys of a one-layer llama file without weights; `skip` is left out, `more` is added. */
typedef struct said {
    const char *arch, *skip;
    const char *key; /* more: one of these values */
    uint32_t kind;
    uint64_t value;
    const char *text;
} said;

static void put_said(gguf_file *f, const said *s)
{
    static const struct {
        const char *key;
        uint32_t kind;
        uint64_t value;
    } keys[] = {
        {"llama.block_count", NIB_GGUF_U32, 1},
        {"llama.embedding_length", NIB_GGUF_U32, 64},
        {"llama.feed_forward_length", NIB_GGUF_U32, 96},
        {"llama.context_length", NIB_GGUF_U32, 128},
        {"llama.attention.head_count", NIB_GGUF_U32, 4},
        {"llama.attention.head_count_kv", NIB_GGUF_U32, 2},
        {"llama.vocab_size", NIB_GGUF_U32, 100},
        {"llama.attention.layer_norm_rms_epsilon", NIB_GGUF_F32, 0x3727c5ac},
    };
    uint64_t count = 0;
    for (size_t i = 0; i < COUNT(keys); i++)
        count += s->skip == NULL || strcmp(keys[i].key, s->skip) != 0;
    put_header(f, 3, 0, count + (s->arch != NULL) + (s->key != NULL));
    if (s->arch != NULL)
        put_key_text(f, "general.architecture", s->arch);
    for (size_t i = 0; i < COUNT(keys); i++)
        if (s->skip == NULL || strcmp(keys[i].key, s->skip) != 0)
            put_key_int(f, keys[i].key, keys[i].kind, keys[i].value, 4);
    if (s->key == NULL)
        return;
    if (s->text != NULL)
        put_key_text(f, s->key, s->text);
    else
        put_key_int(f, s->key, s->kind, s->value,
                    s->kind == NIB_GGUF_BOOL  ? 1
                    : s->kind == NIB_GGUF_U64 ? 8
                                              : 4);
}

static nib_status config_said(nib_config *c, const said *s, nib_ledger *notes, nib_err *err)
{
    static gguf_file f;
    char dir[256], path[512];
    put_said(&f, s);
    make_directory(dir);
    write_bytes(in(path, dir, "x.gguf"), f.bytes, f.size);
    const nib_status status = config_of(c, path, notes, err);
    drop_directory(dir);
    return status;
}

#define KEY(name) "llama." name
#define WITHOUT(key_)                                                                              \
    {                                                                                              \
        .arch = "llama", .skip = key_                                                              \
    }
#define WITH(key_, kind_, value_)                                                                  \
    {                                                                                              \
        .arch = "llama", .key = key_, .kind = kind_, .value = value_                               \
    }
#define INSTEAD(key_, kind_, value_)                                                               \
    {                                                                                              \
        .arch = "llama", .skip = key_, .key = key_, .kind = kind_, .value = value_                 \
    }
#define TEXT(key_, text_)                                                                          \
    {                                                                                              \
        .arch = "llama", .key = key_, .text = text_                                                \
    }

enum { F32_HALF = 0x3f000000, F32_ONE = 0x3f800000, F32_NAN = 0x7fc00000, F32_BIG = 0x42000000 };

static void test_config_refused(void **state)
{
    (void)state;
    static const struct {
        said said;
        nib_status status;
    } cases[] = {
        {{.arch = NULL}, NIB_BAD_INPUT},
        {{.arch = "mamba"}, NIB_UNSUPPORTED},
        {WITHOUT(KEY("block_count")), NIB_BAD_INPUT},
        {WITHOUT(KEY("context_length")), NIB_BAD_INPUT},
        {INSTEAD(KEY("block_count"), NIB_GGUF_U32, 0), NIB_BAD_INPUT},
        {INSTEAD(KEY("block_count"), NIB_GGUF_U32, UINT32_MAX), NIB_BAD_INPUT},
        {INSTEAD(KEY("block_count"), NIB_GGUF_F32, F32_ONE), NIB_BAD_INPUT},
        {INSTEAD(KEY("context_length"), NIB_GGUF_U64, UINT64_C(1) << 62), NIB_BAD_INPUT},
        {INSTEAD(KEY("attention.head_count_kv"), NIB_GGUF_U32, 3), NIB_BAD_INPUT}, /* of 4 heads */
        {INSTEAD(KEY("attention.head_count_kv"), NIB_GGUF_U32, 0), NIB_BAD_INPUT},
        {INSTEAD(KEY("attention.head_count"), NIB_GGUF_U32, 6), NIB_BAD_INPUT}, /* of 64 channels */
        {WITH(KEY("attention.key_length"), NIB_GGUF_U32, 15), NIB_BAD_INPUT},   /* odd */
        {WITH(KEY("attention.value_length"), NIB_GGUF_U32, 32), NIB_UNSUPPORTED}, /* keys: 16 */
        {WITH(KEY("rope.dimension_count"), NIB_GGUF_U32, 8), NIB_UNSUPPORTED},    /* of 16 */
        {WITH(KEY("rope.freq_base"), NIB_GGUF_F32, 0), NIB_BAD_INPUT},
        {WITH(KEY("rope.freq_base"), NIB_GGUF_F32, F32_NAN), NIB_BAD_INPUT},
        {TEXT(KEY("rope.scaling.type"), "su"), NIB_UNSUPPORTED},
        {WITH(KEY("rope.scaling.factor"), NIB_GGUF_F32, F32_HALF), NIB_BAD_INPUT},
        {INSTEAD(KEY("attention.layer_norm_rms_epsilon"), NIB_GGUF_F32, 0), NIB_BAD_INPUT},
        {INSTEAD(KEY("attention.layer_norm_rms_epsilon"), NIB_GGUF_F32, F32_NAN), NIB_BAD_INPUT},
        {WITH(KEY("expert_count"), NIB_GGUF_U32, 8), NIB_BAD_INPUT},
        {WITH(KEY("logit_scale"), NIB_GGUF_F32, F32_HALF), NIB_UNSUPPORTED},
        {WITH(KEY("attention.causal"), NIB_GGUF_BOOL, 0), NIB_UNSUPPORTED},
        {WITH(KEY("attention.sliding_window"), NIB_GGUF_U32, 64), NIB_UNSUPPORTED},
        {WITH(KEY("attention.sinks_of_tomorrow"), NIB_GGUF_U32, 1), NIB_UNSUPPORTED},
        {WITH("general.quantization_version", NIB_GGUF_U32, 1), NIB_UNSUPPORTED},
        {TEXT("general.type", "adapter"), NIB_UNSUPPORTED},
        {WITH("tokenizer.ggml.eos_token_id", NIB_GGUF_U32, 100), NIB_BAD_INPUT}, /* of 100 tokens */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_config c;
        nib_err err = {NIB_OK, ""};
        refused(cases[i].status, config_said(&c, &cases[i].said, NULL, &err), &err);
    }
}

static void test_config_accepted(void **state)
{
    (void)state;
    nib_config c;
    nib_err err;
    assert_int_equal(config_said(&c, &(said){.arch = "llama"}, NULL, &err), NIB_OK);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(c.rope, NIB_ROPE_PLAIN);
    assert_int_equal(config_said(&c, &(said)WITHOUT(KEY("attention.head_count_kv")), NULL, &err),
                     NIB_OK);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(
        config_said(&c, &(said)WITH(KEY("rope.scale_linear"), NIB_GGUF_F32, F32_BIG), NULL, &err),
        NIB_OK);
    assert_int_equal(c.rope, NIB_ROPE_LINEAR);
    assert_true(c.rope_factor == 32);
    /* a factor without rope.scaling.type also means linear scaling */
    assert_int_equal(
        config_said(&c, &(said)WITH(KEY("rope.scaling.factor"), NIB_GGUF_F32, F32_BIG), NULL, &err),
        NIB_OK);
    assert_int_equal(c.rope, NIB_ROPE_LINEAR);
    assert_true(c.rope_factor == 32);
    assert_int_equal(config_said(&c, &(said)TEXT(KEY("rope.scaling.type"), "linear"), NULL, &err),
                     NIB_OK);
    assert_int_equal(c.rope, NIB_ROPE_PLAIN);
    assert_int_equal(
        config_said(&c, &(said)WITH("tokenizer.ggml.eos_token_id", NIB_GGUF_U32, UINT32_MAX), NULL,
                    &err),
        NIB_OK);
    assert_int_equal(c.eos_count, 0);
    /* neutral values, and unknown keys */
    assert_int_equal(config_said(&c, &(said)WITH(KEY("expert_count"), NIB_GGUF_U32, 0), NULL, &err),
                     NIB_OK);
    const nib_allocator a = nib__allocator_default();
    nib_ledger notes;
    nib__ledger_init(&notes, &a);
    assert_int_equal(config_said(&c, &(said)WITH(KEY("mood"), NIB_GGUF_U32, 1), &notes, &err),
                     NIB_OK);
    assert_int_equal(notes.setting_count, 1);
    assert_int_equal(count_settings(&notes, "config-key", "llama.mood"), 1);
    /* and keys that other models use */
    assert_int_equal(
        config_said(&c, &(said)WITH(KEY("rope.scaling.original_context_length"), NIB_GGUF_U32, 8),
                    &notes, &err),
        NIB_OK);
    assert_int_equal(
        config_said(&c, &(said)WITH(KEY("attention.layer_norm_epsilon"), NIB_GGUF_F32, F32_HALF),
                    &notes, &err),
        NIB_OK);
    assert_int_equal(notes.setting_count, 3);
    assert_int_equal(count_settings(&notes, "config-key", "llama.rope.scaling.original_context"),
                     1);
    assert_int_equal(count_settings(&notes, "config-key", "llama.attention.layer_norm_epsilon"), 1);
    nib__ledger_free(&notes);
}

/* ---- checks of a file without config.json ---- */

static void expect_model(const char *path, nib_status status)
{
    opened o;
    nib_err err = {NIB_OK, ""};
    const nib_status got = try_open(&o, &(open_how){.path = path}, &err);
    if (got == NIB_OK)
        close_opened(&o);
    refused(status, got, &err);
}

static char *read_llama(size_t *size)
{
    const nib_allocator a = nib__allocator_default();
    char *bytes;
    assert_int_equal(
        nib__file_read(&bytes, size, "tests/golden/gguf/llama.gguf", 1 << 20, &a, NULL), NIB_OK);
    return bytes;
}

/* Finds text in bytes. */
static char *place_of(char *bytes, size_t size, const char *text)
{
    for (size_t i = 0; i + strlen(text) <= size; i++)
        if (memcmp(bytes + i, text, strlen(text)) == 0)
            return bytes + i;
    fail_msg("no %s", text);
    return NULL;
}

/* Each case changes one place of the golden file and keeps its size. */
static void test_changed_files(void **state)
{
    (void)state;
    static const struct {
        const char *find;
        size_t at; /* offset from the match */
        const char *put;
        size_t size;
        nib_status status;
    } cases[] = {
        {"blk.0.attn_q.weight", 0, "blk.0.attn_x", 12, NIB_UNSUPPORTED},
        {"blk.1.attn_q.bias", 0, "blk.9", 5, NIB_BAD_INPUT}, /* a layer without it */
        {"blk.0.attn_k.bias", 0, "blk.9", 5, NIB_BAD_INPUT},
        {"llama.block_count", 21, "\2", 1, NIB_BAD_INPUT}, /* of 3 */
        {"llama.block_count", 21, "\4", 1, NIB_BAD_INPUT},
        {"llama.attention.head_count_kv", 33, "\1", 1, NIB_BAD_INPUT}, /* of 2 */
        {"output_norm.weight", 0, "output_norx", 11, NIB_UNSUPPORTED},
        {"rope_freqs.weight", 21, "\5", 1, NIB_BAD_INPUT}, /* of 4 values */
    };
    char dir[256], path[512];
    make_directory(dir);
    in(path, dir, "x.gguf");
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t size;
        char *bytes = read_llama(&size);
        memcpy(place_of(bytes, size, cases[i].find) + cases[i].at, cases[i].put, cases[i].size);
        write_bytes(path, bytes, size);
        expect_model(path, cases[i].status);
        free(bytes);
    }
    drop_directory(dir);
}

/* A NaN scale is an error when the weight is packed, with its position. */
static void test_bad_scale(void **state)
{
    (void)state;
    char dir[256], path[512];
    size_t size;
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp;
    nib_err err;
    assert_int_equal(nib__checkpoint_open(&cp, "tests/golden/gguf/llama.gguf", &a, &err), NIB_OK);
    const nib_tensor *t = nib__checkpoint_find(cp, "model.layers.0.mlp.down_proj.weight");
    char *bytes = read_llama(&size);
    assert_int_equal(t->type, NIB_TYPE_Q4_K);
    const size_t rows = 3;
    size_t at = 0; /* the tensor's bytes occur once in the file */
    while (memcmp(bytes + at, t->data, (size_t)t->bytes) != 0)
        at++;
    memcpy(bytes + at + rows * 144, "\0\x7c", 2);
    nib__checkpoint_close(cp);
    make_directory(dir);
    write_bytes(in(path, dir, "x.gguf"), bytes, size);
    expect_model(path, NIB_BAD_INPUT);
    free(bytes);
    drop_directory(dir);
}

static nib_status read_all(const nib_allocator *a, nib_err *err)
{
    nib_checkpoint *cp;
    nib_config config;
    nib_arena arena;
    NIB_TRY(nib__checkpoint_open(&cp, "tests/golden/gguf/llama.gguf", a, err));
    nib__arena_init(&arena, a, 0);
    nib_status status = nib__config_gguf(&config, cp, &arena, NULL, err);
    for (size_t i = 0; status == NIB_OK && i < nib__checkpoint_module_count(cp); i++) {
        nib_weight w;
        status = nib__checkpoint_weight(&w, NULL, cp, nib__checkpoint_module(cp, i), NULL, err);
    }
    nib__arena_free(&arena);
    nib__checkpoint_close(cp);
    return status;
}

/* Every allocation fails once: NIB_NO_MEMORY, and nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    nib_status status = NIB_NO_MEMORY;
    int allocations = 0;
    for (; status != NIB_OK; allocations++) {
        failing f = {.left = allocations};
        const nib_allocator a = failing_allocator(&f);
        nib_err err = {NIB_OK, ""};
        status = read_all(&a, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        assert_true(status == NIB_OK || err.text[0] != 0);
        assert_int_equal(f.live, 0);
    }
    assert_true(allocations > 2);
}

/* ---- several files ---- */

/* promised: the number of all tensors; UINT64_MAX: the key is missing. */
static void write_part(const char *dir, const char *name, uint64_t no, uint64_t parts,
                       uint64_t promised, const char *tensor)
{
    static gguf_file f;
    char path[512];
    put_header(&f, 3, 1, (no == 0 ? 4 : 3) - (promised == UINT64_MAX ? 1 : 0));
    if (no == 0)
        put_key_text(&f, "general.architecture", "llama");
    put_key_int(&f, "split.no", NIB_GGUF_U16, no, 2);
    put_key_int(&f, "split.count", NIB_GGUF_U16, parts, 2);
    if (promised != UINT64_MAX)
        put_key_int(&f, "split.tensors.count", NIB_GGUF_I32, promised, 4);
    put_tensor(&f, tensor, 0, 8, 0, 0);
    put_padding(&f, 32);
    for (int i = 0; i < 32; i++)
        put_int(&f, no + 1, 1);
    write_bytes(in(path, dir, name), f.bytes, f.size);
}

static void expect_parts(const char *path, nib_status status)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp;
    nib_err err = {NIB_OK, ""};
    const nib_status got = nib__checkpoint_open(&cp, path, &a, &err);
    if (got == NIB_OK)
        nib__checkpoint_close(cp);
    refused(status, got, &err);
}

static void test_parts(void **state)
{
    (void)state;
    static const char one[] = "m-00001-of-00002.gguf", two[] = "m-00002-of-00002.gguf";
    char dir[256], path[512];
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp;
    nib_err err;
    make_directory(dir);
    write_part(dir, one, 0, 2, 2, "output_norm.weight");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_part(dir, two, 1, 2, 2, "blk.0.attn_norm.weight");
    const char *const names[] = {one, two};
    for (size_t i = 0; i < COUNT(names); i++) { /* opened by either file */
        if (nib__checkpoint_open(&cp, in(path, dir, names[i]), &a, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(nib__checkpoint_count(cp), 2);
        assert_int_equal(nib__checkpoint_find(cp, "model.norm.weight")->data[0], 1);
        assert_int_equal(nib__checkpoint_find(cp, "model.layers.0.input_layernorm.weight")->data[0],
                         2);
        assert_string_equal(nib__checkpoint_gguf(cp)->arch, "llama");
        nib__checkpoint_close(cp);
    }
    check_memory_of_reading(in(path, dir, one));
    write_part(dir, one, 0, 2, UINT64_MAX, "output_norm.weight");
    nib__checkpoint_close(open_ok(in(path, dir, one)));
    write_part(dir, one, 0, 2, UINT32_MAX, "output_norm.weight"); /* -1 */
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_part(dir, one, 0, 2, 2, "output_norm.weight");
    write_part(dir, two, 1, 60000, 2, "x");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_part(dir, two, 60000, 2, 2, "x");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_part(dir, two, 1, 2, 2, "output_norm.weight");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_part(dir, two, 0, 2, 2, "x");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_part(dir, two, 1, 3, 2, "x");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_part(dir, one, 0, 2, 5, "output_norm.weight");
    write_part(dir, two, 1, 2, 5, "x");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_text(dir, two, "GGUF");
    expect_parts(in(path, dir, one), NIB_BAD_INPUT);
    write_safetensors(dir, one, "{}", NULL, 0);
    write_part(dir, two, 1, 2, 2, "x");
    expect_parts(in(path, dir, two), NIB_BAD_INPUT);
    write_part(dir, "other.gguf", 1, 2, 2, "x");
    expect_parts(in(path, dir, "other.gguf"), NIB_BAD_INPUT);
    write_part(dir, "other.gguf", 0, 60000, 2, "x");
    expect_parts(path, NIB_BAD_INPUT);
    nib_arena arena; /* a name shorter than the end that is looked for */
    const char **paths;
    nib__arena_init(&arena, &a, 0);
    refused(NIB_BAD_INPUT,
            nib__gguf_part_paths(&paths, &(nib_gguf){.name = "x"}, "x.gguf", 2, &arena, &err),
            &err);
    nib__arena_free(&arena);
    drop_directory(dir);
}

/* A GGUF named like another format in a directory: it has no manifest. */
static void test_named_as_another_format(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char dir[256], path[512];
    nib_manifest manifest;
    nib_checkpoint *cp;
    nib_arena arena;
    nib_err err = {NIB_OK, ""};
    make_directory(dir);
    write_part(dir, "model.safetensors", 0, 1, 1, "output_norm.weight");
    if (nib__checkpoint_open(&cp, dir, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__arena_init(&arena, &a, 0);
    assert_int_equal(nib__manifest_read(&manifest, cp, &arena, &a, &err), NIB_OK);
    assert_null(manifest.path);
    nib__arena_free(&arena);
    nib__checkpoint_close(cp);
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\": {\"model.norm.weight\": \"model.safetensors\"}}");
    expect_parts(in(path, dir, "model.safetensors.index.json"), NIB_BAD_INPUT);
    drop_directory(dir);
}

/* '{' is 123: with so many tensors it is the byte that starts the JSON of a safetensors file. */
static void test_number_of_tensors_like_a_brace(void **state)
{
    (void)state;
    enum { TENSORS = '{' };
    char dir[256], path[512], name[24];
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp;
    nib_err err = {NIB_OK, ""};
    gguf_file f;
    put_header(&f, 3, TENSORS, 1);
    put_key_text(&f, "general.architecture", "llama");
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "t%d.weight", i);
        put_tensor(&f, name, 0, 8, 0, (uint64_t)i * 32);
    }
    put_padding(&f, 32);
    for (int i = 0; i < TENSORS * 8; i++)
        put_int(&f, 0, 4);
    make_directory(dir);
    write_bytes(in(path, dir, "model.gguf"), f.bytes, f.size);
    if (nib__checkpoint_open(&cp, path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__checkpoint_count(cp), TENSORS);
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_files),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_all_instruction_sets_agree),
        cmocka_unit_test(test_golden_configs),
        cmocka_unit_test(test_parallel_residual),
        cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_config_accepted),
        cmocka_unit_test(test_changed_files),
        cmocka_unit_test(test_bad_scale),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_number_of_tensors_like_a_brace),
        cmocka_unit_test(test_named_as_another_format),
        cmocka_unit_test(test_bytes_of_blocks_read_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
