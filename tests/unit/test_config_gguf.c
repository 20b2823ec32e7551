/* SPDX-License-Identifier: Apache-2.0
 *
 * Every key that a GGUF's config, sampling and tokenizer are read from: of another kind, out of
 * range, and at its limits. The models are those of the golden files. Names config_gguf.c.
 */
#include "config_gguf.h"

#include "failing.h"
#include "gguf_build.h"
#include "ledger_lines.h"
#include "safetensors_build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static char directory[256];
static nib_allocator heap;

/* ---- a golden file with other keys ---- */

typedef struct golden {
    char *bytes;
    size_t size;
    nib_arena arena;
    nib_container contents;
} golden;

static golden open_golden(const char *family)
{
    golden g;
    char path[64];
    snprintf(path, sizeof path, "tests/golden/gguf/%s.gguf", family);
    assert_int_equal(nib__file_read(&g.bytes, &g.size, path, 1 << 20, &heap, NULL), NIB_OK);
    nib__arena_init(&g.arena, &heap, 0);
    assert_int_equal(nib__gguf_parse(&g.contents, (const uint8_t *)g.bytes, g.size, "golden.gguf",
                                     0, &g.arena, NULL),
                     NIB_OK);
    return g;
}

static void close_golden(golden *g)
{
    nib__arena_free(&g->arena);
    nib__release(&heap, g->bytes);
}

typedef struct entry {
    const char *key;  /* ".NAME": after the architecture's name; NULL: none */
    const char *text; /* NULL: a number */
    uint32_t kind;    /* BOOL, U32, I32 or F32, or ARRAY of `count` times true */
    double value;
    uint64_t count;
} entry;

static const char *full_key(char out[128], const golden *g, const entry *e)
{
    snprintf(out, 128, "%s%s", *e->key == '.' ? g->contents.gguf->arch : "", e->key);
    return out;
}

static void put_entry(gguf_file *f, const char *key, const entry *e)
{
    if (e->text != NULL) {
        put_key_text(f, key, e->text);
    } else if (e->kind == NIB_GGUF_ARRAY) {
        put_key_array(f, key, NIB_GGUF_BOOL, e->count);
        for (uint64_t i = 0; i < e->count; i++)
            put_int(f, 1, 1);
    } else if (e->kind == NIB_GGUF_F32) {
        put_key_f32(f, key, (float)e->value);
    } else {
        put_key_int(f, key, e->kind, (uint64_t)(int64_t)e->value, e->kind == NIB_GGUF_BOOL ? 1 : 4);
    }
}

/* Bytes that replace others, at the first match after the keys. */
typedef struct patch {
    const char *find; /* NULL: none */
    size_t at;        /* offset from the match */
    const char *put;
    size_t size;
} patch;

/* Writes the golden file with these entries in place of those of the same key, and with padding,
 * so that tensors stay aligned. Returns the path. */
static const char *write_with(const golden *g, const entry entries[2], const patch *p)
{
    static char path[300];
    static gguf_file f;
    const nib_gguf *gguf = g->contents.gguf;
    size_t old = 24;
    uint64_t count = 1;
    char keys[2][128] = {"", ""};
    put_header(&f, 3, g->contents.count, 0);
    for (int i = 0; i < 2 && entries[i].key != NULL; i++, count++)
        put_entry(&f, full_key(keys[i], g, &entries[i]), &entries[i]);
    for (size_t i = 0; i < gguf->count; i++) {
        const nib_gguf_value *v = gguf->values[i];
        old += v->entry_bytes;
        if (strcmp(v->key, keys[0]) == 0 || strcmp(v->key, keys[1]) == 0)
            continue;
        put_bytes(&f, v->entry, v->entry_bytes);
        count++;
    }
    memcpy(f.bytes + 16, &count, sizeof count);
    put_key_array(&f, "general.padding", NIB_GGUF_U8, 0);
    const uint64_t padding = (old - f.size) % 32;
    memcpy(f.bytes + f.size - 8, &padding, sizeof padding);
    for (uint64_t i = 0; i < padding; i++)
        put_int(&f, 0, 1);
    const size_t size = f.size + g->size - old;
    char *bytes = malloc(size);
    assert_non_null(bytes);
    memcpy(bytes, f.bytes, f.size);
    memcpy(bytes + f.size, g->bytes + old, g->size - old);
    for (size_t at = f.size; p != NULL && p->find != NULL; at++) {
        assert_true(at + strlen(p->find) <= size);
        if (memcmp(bytes + at, p->find, strlen(p->find)) != 0)
            continue;
        memcpy(bytes + at + p->at, p->put, p->size);
        break;
    }
    snprintf(path, sizeof path, "%s/x.gguf", directory);
    write_bytes(path, bytes, size);
    free(bytes);
    return path;
}

/* What stays after the file is closed. */
static nib_status config_of(nib_config *out, const char *path, const nib_allocator *a,
                            nib_ledger *notes, nib_err *err)
{
    nib_checkpoint *cp;
    nib_arena arena;
    NIB_TRY(nib__checkpoint_open(&cp, path, a, err));
    nib__arena_init(&arena, a, 0);
    const nib_status status = nib__config_gguf(out, cp, &arena, notes, err);
    if (status == NIB_OK)
        out->rope_divisors = out->rope_short = out->rope_long = NULL;
    nib__arena_free(&arena);
    nib__checkpoint_close(cp);
    return status;
}

/* ---- the config ---- */

static const char *const families[] = {
    "llama",   "qwen2",      "qwen2_yarn", "qwen3",  "smollm3", "olmo2",
    "exaone4", "granite",    "gemma",      "gemma2", "gemma3",  "command-r",
    "cohere2", "starcoder2", "stablelm",   "phi3",   "glm4",    "stablelm_norms"};

static void expect(const golden *g, const char *family, const entry entries[2], const patch *p,
                   nib_status wanted)
{
    nib_config c;
    nib_err err = {NIB_OK, ""};
    const nib_status got = config_of(&c, write_with(g, entries, p), &heap, NULL, &err);
    if (got != wanted)
        fail_msg("%s, %s: %s %s", family, entries[0].key ? entries[0].key : p->find,
                 nib_status_name(got), err.text);
    assert_true(got == NIB_OK || err.text[0] != '\0');
}

/* Keys that no config is read from. */
static bool is_unread(const char *key)
{
    static const char *const keys[] = {"general.name", "stablelm.use_parallel_residual",
                                       "tokenizer.ggml.add_bos_token"};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return strncmp(key, "tokenizer.", 10) == 0 && strstr(key, "_token_id") == NULL &&
           strcmp(key, "tokenizer.ggml.tokens") != 0;
}

/* Each key of each file as a list. */
static void test_keys_of_another_kind(void **state)
{
    (void)state;
    for (size_t f = 0; f < COUNT(families); f++) {
        golden g = open_golden(families[f]);
        for (size_t i = 0; i < g.contents.gguf->count; i++) {
            const entry entries[2] = {
                {.key = g.contents.gguf->values[i]->key, .kind = NIB_GGUF_ARRAY}};
            expect(&g, families[f], entries, NULL,
                   is_unread(entries[0].key) ? NIB_OK : NIB_BAD_INPUT);
        }
        close_golden(&g);
    }
}

/* Each number with a fraction that is not finite. */
static void test_numbers_not_finite(void **state)
{
    (void)state;
    static const double values[] = {NAN, INFINITY, -INFINITY};
    for (size_t f = 0; f < COUNT(families); f++) {
        golden g = open_golden(families[f]);
        for (size_t i = 0; i < COUNT(values) * g.contents.gguf->count; i++) {
            const nib_gguf_value *v = g.contents.gguf->values[i / COUNT(values)];
            const entry entries[2] = {
                {.key = v->key, .kind = NIB_GGUF_F32, .value = values[i % COUNT(values)]}};
            if (v->kind == NIB_GGUF_F32 && !v->is_array)
                expect(&g, families[f], entries, NULL, NIB_BAD_INPUT);
        }
        close_golden(&g);
    }
}

#define LIST(n) .kind = NIB_GGUF_ARRAY, .count = n
#define REAL(x) .kind = NIB_GGUF_F32, .value = x
#define WHOLE(x) .kind = NIB_GGUF_I32, .value = x
#define FLAG(x) .kind = NIB_GGUF_BOOL, .value = x

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        nib_status status;
        entry entries[2];
    } cases[] = {
        /* keys that the files lack, as lists */
        {"llama", NIB_BAD_INPUT, {{.key = ".vocab_size", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".attention.key_length", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".attention.value_length", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".attention.sliding_window", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".attention.causal", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".use_parallel_residual", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".rope.scaling.type", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".rope.scaling.factor", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".rope.scale_linear", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".expert_count", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = "general.type", LIST(1)}}},
        {"llama", NIB_BAD_INPUT, {{.key = "tokenizer.ggml.eot_token_id", LIST(1)}}},
        {"gemma3", NIB_BAD_INPUT, {{.key = ".attention.sliding_window_pattern", WHOLE(1)}}},
        /* ids of tokens */
        {"llama", NIB_BAD_INPUT, {{.key = "tokenizer.ggml.bos_token_id", WHOLE(-2)}}},
        {"llama", NIB_OK, {{.key = "tokenizer.ggml.eot_token_id", WHOLE(257)}}},
        {"llama", NIB_BAD_INPUT, {{.key = "tokenizer.ggml.eot_token_id", WHOLE(272)}}},
        /* flags */
        {"llama", NIB_OK, {{.key = ".attention.causal", FLAG(1)}}},
        {"llama", NIB_UNSUPPORTED, {{.key = ".use_parallel_residual", FLAG(1)}}},
        /* windows */
        {"llama", NIB_UNSUPPORTED, {{.key = ".attention.sliding_window", WHOLE(255)}}},
        {"llama", NIB_OK, {{.key = ".attention.sliding_window", WHOLE(256)}}}, /* the context */
        {"llama", NIB_OK, {{.key = ".attention.sliding_window", WHOLE(0)}}},
        {"gemma3", NIB_BAD_INPUT, {{.key = ".attention.sliding_window", WHOLE(-1)}}},
        {"gemma3", NIB_OK, {{.key = ".attention.sliding_window_pattern", LIST(6)}}},
        {"gemma3", NIB_BAD_INPUT, {{.key = ".attention.sliding_window_pattern", LIST(5)}}},
        {"qwen2", NIB_OK, {{.key = ".attention.sliding_window", WHOLE(256)}}},
        {"smollm3", NIB_OK, {{.key = ".attention.sliding_window", WHOLE(256)}}},
        {"cohere2", NIB_UNSUPPORTED, {{.key = ".attention.sliding_window", WHOLE(0)}}},
        {"exaone4", NIB_OK, {{.key = ".attention.sliding_window", WHOLE(0)}}},
        /* RoPE */
        {"qwen2_yarn", NIB_BAD_INPUT, {{.key = ".rope.scaling.original_context_length", WHOLE(1)}}},
        {"qwen2_yarn",
         NIB_BAD_INPUT,
         {{.key = ".rope.scaling.original_context_length", WHOLE(INT32_MAX)}}},
        {"glm4", NIB_UNSUPPORTED, {{.key = ".rope.dimension_count", WHOLE(1)}}},
        {"glm4", NIB_UNSUPPORTED, {{.key = ".rope.dimension_count", WHOLE(7)}}},
        {"llama", NIB_BAD_INPUT, {{.key = ".rope.scaling.factor", REAL(1e9)}}},
        {"llama", NIB_OK, {{.key = ".rope.scaling.factor", REAL(9e8)}}},
        {"llama", NIB_UNSUPPORTED, {{.key = ".rope.scaling.type", .text = "longrope"}}},
        {"phi3", NIB_OK, {{.key = ".rope.scaling.type", .text = "longrope"}}},
        {"phi3", NIB_UNSUPPORTED, {{.key = ".rope.scaling.type", .text = "yarn"}}},
        {"phi3", NIB_BAD_INPUT, {{.key = ".rope.scaling.original_context_length", WHOLE(1)}}},
        {"phi3", NIB_BAD_INPUT, {{.key = ".rope.scaling.original_context_length", WHOLE(257)}}},
        {"phi3", NIB_OK, {{.key = ".rope.scaling.original_context_length", WHOLE(256)}}},
        {"phi3", NIB_BAD_INPUT, {{.key = ".rope.scaling.attn_factor", REAL(0)}}},
        {"phi3", NIB_OK, {{.key = ".rope.scaling.attn_factor", REAL(1000)}}},
        {"phi3", NIB_BAD_INPUT, {{.key = ".rope.scaling.attn_factor", REAL(1001)}}},
        {"phi3", NIB_UNSUPPORTED, {{.key = ".rope.scaling.type", .text = "none"}}},
        /* keys of other models */
        {"llama", NIB_OK, {{.key = "llamas.rope.freq_base", REAL(5)}}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        golden g = open_golden(cases[i].family);
        expect(&g, cases[i].family, cases[i].entries, NULL, cases[i].status);
        close_golden(&g);
    }
}

/* Tensors that the config is read from. */
static void test_tensors(void **state)
{
    (void)state;
    static const entry none[2];
    static const struct {
        const char *family;
        nib_status status;
        patch patch;
    } cases[] = {
        {"phi3", NIB_BAD_INPUT, {"rope_factors_short", 0, "x", 1}},
        {"phi3", NIB_BAD_INPUT, {"rope_factors_long", 0, "x", 1}},
        {"llama", NIB_BAD_INPUT, {"rope_freqs.weight", 29, "\x1a", 1}}, /* I32 */
        /* the vocabulary has the size of the embeddings, else of the tokens */
        {"llama", NIB_UNSUPPORTED, {"token_embd.weight", 0, "x", 1}},
        {"qwen3", NIB_BAD_INPUT, {"token_embd.weight", 0, "x", 1}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        golden g = open_golden(cases[i].family);
        expect(&g, cases[i].family, none, &cases[i].patch, cases[i].status);
        close_golden(&g);
    }
}

/* A factor that does not take effect is reported. */
static void test_rope_factors(void **state)
{
    (void)state;
    static const struct {
        entry entries[2];
        double factor;
        const char *note; /* NULL: none */
    } cases[] = {
        {{{.key = ".rope.scaling.type", .text = "none"}, {.key = ".rope.scaling.factor", REAL(2)}},
         2,
         "rope.scaling.type is \"none\""},
        {{{.key = ".rope.scaling.type", .text = "none"}, {.key = ".rope.scale_linear", REAL(2)}},
         2,
         "rope.scaling.type is \"none\""},
        {{{.key = ".rope.scaling.type", .text = "none"}, {.key = ".rope.scale_linear", REAL(1)}},
         1,
         NULL},
        {{{.key = ".rope.scaling.factor", REAL(2)}, {.key = ".rope.scale_linear", REAL(4)}},
         2,
         "its newer name"},
        {{{.key = ".rope.scaling.factor", REAL(2)}, {.key = ".rope.scale_linear", REAL(2)}},
         2,
         NULL},
    };
    golden g = open_golden("qwen2");
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_config c;
        nib_ledger notes;
        nib_err err;
        nib__ledger_init(&notes, &heap);
        assert_int_equal(config_of(&c, write_with(&g, cases[i].entries, NULL), &heap, &notes, &err),
                         NIB_OK);
        assert_true(c.rope_factor == cases[i].factor);
        assert_int_equal(c.rope,
                         cases[i].entries[0].text != NULL ? NIB_ROPE_PLAIN : NIB_ROPE_LINEAR);
        assert_int_equal(notes.setting_count, cases[i].note != NULL);
        if (cases[i].note != NULL)
            assert_int_equal(count_settings(&notes, "rope", cases[i].note), 1);
        nib__ledger_free(&notes);
    }
    close_golden(&g);
}

/* Divisors of frequencies that would make no rotation. */
static void test_divisors(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -1, 0};
    golden g = open_golden("llama");
    for (size_t i = 0; i < g.contents.count; i++) {
        const nib_tensor *t = g.contents.tensors[i];
        if (strcmp(t->name, "rope_freqs.weight") != 0)
            continue;
        static const entry none[2];
        expect(&g, "llama", none, NULL, NIB_OK);
        for (size_t v = 0; v < COUNT(values); v++) {
            memcpy(g.bytes + (t->data - (const uint8_t *)g.bytes) + 4, &values[v], 4);
            expect(&g, "llama", (const entry[2]){{.key = "general.name", .text = "divisors"}}, NULL,
                   NIB_BAD_INPUT);
        }
    }
    close_golden(&g);
}

/* Every allocation of opening a file and reading its config fails once. */
static void test_no_memory(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        entry entries[2];
    } some[] = {{"llama", {{NULL}}},
                {"qwen2_yarn", {{NULL}}},
                {"smollm3", {{NULL}}},
                {"gemma3", {{.key = ".attention.sliding_window_pattern", LIST(6)}}},
                {"phi3", {{NULL}}}};
    for (size_t f = 0; f < COUNT(some); f++) {
        golden g = open_golden(some[f].family);
        const char *path = write_with(&g, some[f].entries, NULL);
        nib_status status = NIB_NO_MEMORY;
        for (int left = 0; status != NIB_OK; left++) {
            failing failed = {left, 0};
            const nib_allocator a = failing_allocator(&failed);
            nib_config c;
            nib_err err;
            status = config_of(&c, path, &a, NULL, &err);
            assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
            assert_int_equal(failed.live, 0);
        }
        close_golden(&g);
    }
}

static void test_rope_layers_match(void **state)
{
    (void)state;
    nib_checkpoint *cp;
    nib_arena arena;
    nib_config c;
    nib_err err;
    nib__arena_init(&arena, &heap, 0);
    assert_int_equal(nib__checkpoint_open(&cp, "tests/golden/gguf/smollm3.gguf", &heap, &err),
                     NIB_OK);
    assert_int_equal(nib__config_gguf(&c, cp, &arena, NULL, &err), NIB_OK);
    assert_true(nib__gguf_rope_layers_match(&c));
    bool *layers = nib__arena_take(&arena, (uint64_t)c.layers, sizeof *layers);
    memcpy(layers, c.rope_layers, (size_t)c.layers * sizeof *layers);
    layers[c.layers - 1] = !layers[c.layers - 1];
    c.rope_layers = layers;
    assert_false(nib__gguf_rope_layers_match(&c));
    c.rope_layers = NULL; /* all layers use it */
    assert_true(nib__gguf_rope_layers_match(&c));
    nib__checkpoint_close(cp);
    nib__arena_free(&arena);
}

/* ---- sampling and the tokenizer ---- */

#define SAMPLING(name) "general.sampling." name

static nib_status sampling_with(nib_generation *out, const entry *e, nib_ledger *notes,
                                nib_err *err)
{
    static gguf_file f;
    nib_container contents;
    nib_arena arena;
    put_header(&f, 3, 0, 1);
    put_entry(&f, e->key, e);
    nib__arena_init(&arena, &heap, 0);
    nib_status status = nib__gguf_parse(&contents, f.bytes, f.size, "x.gguf", 0, &arena, err);
    if (status == NIB_OK)
        status = nib__generation_gguf(out, contents.gguf, notes, err);
    if (status == NIB_OK)
        nib__gguf_report_tokenizer(contents.gguf, notes);
    nib__arena_free(&arena);
    return status;
}

static void test_sampling_refused(void **state)
{
    (void)state;
    static const entry cases[] = {
        {.key = SAMPLING("temp"), REAL(-0.5)},      {.key = SAMPLING("temp"), REAL(101)},
        {.key = SAMPLING("temp"), REAL(NAN)},       {.key = SAMPLING("temp"), LIST(1)},
        {.key = SAMPLING("top_p"), REAL(0)},        {.key = SAMPLING("top_p"), REAL(1.5)},
        {.key = SAMPLING("top_p"), LIST(1)},        {.key = SAMPLING("min_p"), REAL(1.5)},
        {.key = SAMPLING("min_p"), LIST(1)},        {.key = SAMPLING("top_k"), LIST(1)},
        {.key = SAMPLING("top_k"), REAL(1)},        {.key = SAMPLING("penalty_repeat"), LIST(1)},
        {.key = SAMPLING("xtc_threshold"), LIST(1)}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_generation got;
        nib_err err = {NIB_OK, ""};
        refused(NIB_BAD_INPUT, sampling_with(&got, &cases[i], NULL, &err), &err);
    }
}

/* Values that are read, and whether a key is reported as unread. */
static void test_sampling_accepted(void **state)
{
    (void)state;
    static const struct {
        entry entry;
        size_t member; /* of nib_generation, a double; 0: temperature */
        double value;  /* -1: not given */
        bool reported;
    } cases[] = {
        {{.key = SAMPLING("temp"), REAL(0)}, offsetof(nib_generation, temperature), 0, false},
        {{.key = SAMPLING("temp"), REAL(100)}, offsetof(nib_generation, temperature), 100, false},
        {{.key = SAMPLING("top_p"), REAL(1)}, offsetof(nib_generation, top_p), 1, false},
        {{.key = SAMPLING("min_p"), REAL(0)}, offsetof(nib_generation, min_p), 0, false},
        {{.key = SAMPLING("penalty_repeat"), REAL(1)}, 0, -1, false},
        {{.key = SAMPLING("penalty_repeat"), REAL(1.5)}, 0, -1, true},
        {{.key = SAMPLING("mirostat_tau"), REAL(5)}, 0, -1, false},
        {{.key = SAMPLING("of_tomorrow"), REAL(0)}, 0, -1, true},
        {{.key = "tokenizer.of_tomorrow", WHOLE(1)}, 0, -1, true},
        {{.key = "tokenizer.of_tomorrow", FLAG(1)}, 0, -1, true},
        {{.key = "tokenizer.of_tomorrow", FLAG(0)}, 0, -1, false},
        {{.key = "tokenizer.of_tomorrow", LIST(1)}, 0, -1, true},
        {{.key = "tokenizer.ggml.of_tomorrow", WHOLE(1)}, 0, -1, true},
        {{.key = "tokenizer.ggml.x", WHOLE(1)}, 0, -1, true},
        {{.key = "tokenizer.ggml.mask_token_id", WHOLE(1)}, 0, -1, false},
        {{.key = "tokenizer.chat_template.tool_use", .text = "{}"}, 0, -1, false},
        {{.key = "general.of_tomorrow", WHOLE(1)}, 0, -1, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_generation got;
        nib_ledger notes;
        nib_err err;
        double value;
        nib__ledger_init(&notes, &heap);
        assert_int_equal(sampling_with(&got, &cases[i].entry, &notes, &err), NIB_OK);
        memcpy(&value, (const char *)&got + cases[i].member, sizeof value);
        assert_true(value == cases[i].value || (value < 0 && cases[i].value < 0));
        assert_int_equal(notes.setting_count, cases[i].reported);
        nib__ledger_free(&notes);
    }
    static const int64_t top_k[][2] = {{-1, 0}, {0, 0}, {7, 7}};
    for (size_t i = 0; i < COUNT(top_k); i++) {
        nib_generation got;
        nib_err err;
        const entry e = {.key = SAMPLING("top_k"), WHOLE((double)top_k[i][0])};
        assert_int_equal(sampling_with(&got, &e, NULL, &err), NIB_OK);
        assert_int_equal(got.top_k, top_k[i][1]);
    }
}

static int make(void **state)
{
    (void)state;
    heap = nib__allocator_default();
    make_directory(directory);
    return 0;
}

static int drop(void **state)
{
    (void)state;
    drop_directory(directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_of_another_kind),
        cmocka_unit_test(test_numbers_not_finite),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_divisors),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_rope_layers_match),
        cmocka_unit_test(test_sampling_refused),
        cmocka_unit_test(test_sampling_accepted),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
