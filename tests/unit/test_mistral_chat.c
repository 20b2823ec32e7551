/* SPDX-License-Identifier: Apache-2.0
 *
 * Mistral conversations against the text and ids of Mistral's own tokenizer library: template,
 * control tokens and tokenizer together. The conversations, templates and tokenizers in
 * tests/golden/mistral are ours; expected.txt has the library's output. The data folder has the
 * library's own conversations and the published templates; the test compares those whose text the
 * templates can produce. In the other seven the library rewrites the JSON of call arguments, as
 * nib__api_read_calls does, but also that of tool results, or merges results. No template produces
 * these texts, whether arguments are objects or text (test_template.c compares those with jinja2).
 */
#include "skipping.h"
#include "template.h"
#include "tokenizing.h"

/* The expected text and ids of a conversation. */
typedef struct chat {
    const char *name, *version;
    const char *text;
    size_t size;
    const int32_t *ids; /* NULL: not compared */
    size_t count;
} chat;

enum { IDS = 4096 };

static void expect_ids_of(const chat *c, const nib_template_output *got, const nib_tokenizer *t)
{
    int32_t *ids;
    size_t count;
    nib_err err;
    const nib_encoding how = {
        .flags = NIB_ENCODE_PARSE_SPECIAL, .marked = got->user, .marked_count = got->user_count};
    if (nib__tokenizer_encode_as(t, got->text.at, got->text.size, &how, &ids, &count, &err) !=
        NIB_OK)
        fail_msg("%s %s: %s", c->name, c->version, err.text);
    for (size_t i = 0; i < count && i < c->count; i++)
        if (ids[i] != c->ids[i])
            fail_msg("%s %s: id %zu is %d, not %d", c->name, c->version, i, (int)ids[i],
                     (int)c->ids[i]);
    if (count != c->count)
        fail_msg("%s %s: %zu ids, not %zu", c->name, c->version, count, c->count);
    nib__tokenizer_ids_free(t, ids);
}

static void expect_chat(const chat *c, const nib_named_text *source,
                        const nib_template_value *sample, const nib_tokenizer *tokenizer)
{
    static const nib_template_token tokens[] = {{"bos_token", "<s>", 3}, {"eos_token", "</s>", 4}};
    const nib_allocator a = nib__allocator_default();
    nib_template *t;
    nib_template_output got;
    nib_err err;
    nib__template_output_init(&got, &a);
    const nib_template_input input = {
        .tokens = tokens, .token_count = 2, .values = sample, .value_count = 1};
    if (nib__template_open(&t, source, &a, &err) != NIB_OK ||
        nib__template_render(t, &input, &got, &err) != NIB_OK)
        fail_msg("%s %s: %s", c->name, c->version, err.text);
    if (got.text.size != c->size || memcmp(got.text.at, c->text, c->size) != 0)
        fail_msg("%s %s:\n%s\nis not\n%s", c->name, c->version, got.text.at, c->text);
    if (c->ids != NULL)
        expect_ids_of(c, &got, tokenizer);
    nib__template_close(t);
    nib__template_output_free(&got);
}

static char *read_in(nib_arena *arena, const char *root, const char *folder, const char *name,
                     size_t *size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    return read_text(arena, path, size);
}

/* ---- conversations of our own ---- */

/* Parses a line: "v3", tab, name, tab, text as JSON, tab, ids. */
static void expect_line(char *line, nib_tokenizer *const tokenizers[2])
{
    const nib_allocator a = nib__allocator_default();
    char file[64], *fields[4] = {line};
    int32_t ids[IDS];
    nib_arena arena;
    nib_json json;
    for (int i = 1; i < 4; i++) {
        fields[i] = strchr(fields[i - 1], '\t');
        assert_non_null(fields[i]);
        *fields[i]++ = 0;
    }
    chat c = {.version = fields[0], .name = fields[1], .ids = ids};
    nib__arena_init(&arena, &a, 0);
    nib__json_init(&json, "expected.txt", fields[2], strlen(fields[2]), NULL);
    c.text = nib__json_read_string(&json, &arena, &c.size);
    if (c.text == NULL)
        fail_msg("%s", json.err.text);
    c.count = read_ids(fields[3], ids, IDS);
    nib_named_text source = {.name = file};
    snprintf(file, sizeof file, "%s.json", c.name);
    nib_template_value sample = {.name = NULL};
    sample.json = read_in(&arena, "tests/golden", "mistral", file, &sample.size);
    snprintf(file, sizeof file, "%s.jinja", c.version);
    source.text = read_in(&arena, "tests/golden", "mistral", file, &source.size);
    expect_chat(&c, &source, &sample, tokenizers[strcmp(c.version, "v1") != 0]);
    nib__arena_free(&arena);
}

static void test_own_conversations(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    size_t size;
    int lines = 0;
    nib__arena_init(&arena, &a, 0);
    nib_tokenizer *const tokenizers[2] = {
        open_path("tests/golden/mistral/tokenizer_text.json", NULL),
        open_path("tests/golden/mistral/tokenizer_marks.json", NULL),
    };
    char *at = read_text(&arena, "tests/golden/mistral/expected.txt", &size);
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        *end = 0;
        if (*at == '#')
            continue;
        expect_line(at, tokenizers);
        lines++;
    }
    assert_int_equal(*at, 0);
    assert_int_equal(lines, 25);
    nib__tokenizer_close(tokenizers[0]);
    nib__tokenizer_close(tokenizers[1]);
    nib__arena_free(&arena);
}

/* ---- the library's own ---- */

/* Writes text as the library's tokens do: a space is U+2581, a line end a byte token. */
static void put_expected(nib_text *out, const char *text, size_t size)
{
    static const char blank[] = "\xe2\x96\x81", line[] = "<0x0A>";
    for (size_t i = 0; i < size;) {
        if (strncmp(text + i, blank, sizeof blank - 1) == 0) {
            nib__text_str(out, " ");
            i += sizeof blank - 1;
        } else if (strncmp(text + i, line, sizeof line - 1) == 0) {
            nib__text_str(out, "\n");
            i += sizeof line - 1;
        } else {
            nib__text_put(out, text + i++, 1);
        }
    }
}

/* Reads {"tokens": [1, 3]}. */
static size_t read_tokens(const char *json, size_t size, int32_t *ids)
{
    nib_json j;
    size_t count = 0;
    nib__json_init(&j, "tokens", json, size, NULL);
    assert_true(nib__json_expect(&j, NIB_JSON_OBJECT) && nib__json_expect(&j, NIB_JSON_KEY));
    assert_true(nib__json_is(&j, "tokens") && nib__json_expect(&j, NIB_JSON_ARRAY));
    while (nib__json_next(&j) == NIB_JSON_NUMBER) {
        int64_t id;
        assert_true(nib__json_int64(&j, &id) && count < IDS);
        ids[count++] = (int32_t)id;
    }
    assert_int_equal(j.event, NIB_JSON_ARRAY_END);
    return count;
}

static void expect_published(const char *data, const char *name, const char *version,
                             const nib_tokenizer *t)
{
    const nib_allocator a = nib__allocator_default();
    char folder[256], file[64];
    int32_t ids[IDS];
    nib_arena arena;
    nib_text want;
    size_t size;
    nib__arena_init(&arena, &a, 0);
    nib__text_init(&want, &a);
    nib_named_text source = {.name = file};
    snprintf(file, sizeof file, "%s_spm.jinja", version);
    source.text = read_in(&arena, data, "text/mistral-chat/chat_templates", file, &source.size);
    snprintf(folder, sizeof folder, "text/mistral-chat/samples/%s", name);
    nib_template_value sample = {.name = NULL};
    sample.json = read_in(&arena, data, folder, "sample.json", &sample.size);
    snprintf(file, sizeof file, "text_%s.txt", version);
    const char *text = read_in(&arena, data, folder, file, &size);
    put_expected(&want, text, size);
    chat c = {.name = name, .version = version, .text = want.at, .size = want.size};
    if (t != NULL) {
        snprintf(file, sizeof file, "tokens_%s.json", version);
        const char *tokens = read_in(&arena, data, folder, file, &size);
        c.ids = ids;
        c.count = read_tokens(tokens, size, ids);
    }
    expect_chat(&c, &source, &sample, t);
    nib__text_free(&want);
    nib__arena_free(&arena);
}

static void test_published_conversations(void **state)
{
    static const struct {
        const char *sample, *version;
        bool ids; /* Nibble reads the tokenizer of this version */
    } chats[] = {
        {"no_tools", "v1", false},     {"no_tools", "v2", true},
        {"no_tools", "v3", true},      {"parallel_calls", "v3", true},
        {"several_calls", "v2", true}, {"several_calls", "v3", true},
    };
    char path[1024];
    (void)state;
    const char *data = test_data();
    snprintf(path, sizeof path, "%s/tokenizers/mistral/Mistral-7B-v0.3_tokenizer.json", data);
    nib_tokenizer *t = open_path(path, NULL);
    for (size_t i = 0; i < COUNT(chats); i++)
        expect_published(data, chats[i].sample, chats[i].version, chats[i].ids ? t : NULL);
    nib__tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_conversations),
                                       cmocka_unit_test(test_published_conversations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
