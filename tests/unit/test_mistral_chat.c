/* SPDX-License-Identifier: Apache-2.0
 *
 * Mistral's conversations with the text and the ids that its own tokenizer library gives them:
 * template, marks and tokenizer together. The cases whose text the published templates make are
 * here. In the seven others the library rewrites the JSON of a call's arguments, as
 * nib__api_read_calls does, but also that of a tool's results, or puts results together: no
 * template makes these texts, whether arguments come as objects or as text (those are compared with
 * jinja2 in test_template.c).
 */
#include "skipping.h"
#include "template.h"
#include "tokenizing.h"

typedef struct chat {
    const char *sample, *version;
    bool ids; /* the tokenizer of this version is one that is read here */
} chat;

static const chat chats[] = {
    {"no_tools", "v1", false},      {"no_tools", "v2", true},      {"no_tools", "v3", true},
    {"parallel_calls", "v3", true}, {"several_calls", "v2", true}, {"several_calls", "v3", true},
};

static const char *data;

static char *read_data(nib_arena *arena, const char *folder, const char *name, size_t *size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s", data, folder, name);
    return read_text(arena, path, size);
}

/* As the library writes tokens: a blank is U+2581, a line end a byte's token. */
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

static void expect_tokens(const nib_template_output *got, const nib_tokenizer *t, const char *json,
                          size_t size, const chat *c)
{
    nib_json j;
    int32_t *ids;
    size_t count, at = 0;
    int64_t id;
    nib_err err;
    if (nib__tokenizer_encode_marked(t, got->text.at, got->text.size, got->user, got->user_count,
                                     NIB_ENCODE_PARSE_SPECIAL, &ids, &count, &err) != NIB_OK)
        fail_msg("%s %s: %s", c->sample, c->version, err.text);
    nib__json_init(&j, "tokens", json, size, NULL);
    assert_true(nib__json_expect(&j, NIB_JSON_OBJECT) && nib__json_expect(&j, NIB_JSON_KEY));
    assert_true(nib__json_is(&j, "tokens") && nib__json_expect(&j, NIB_JSON_ARRAY));
    for (; nib__json_next(&j) == NIB_JSON_NUMBER; at++) {
        assert_true(nib__json_int64(&j, &id));
        if (at >= count || ids[at] != id)
            fail_msg("%s %s: id %zu is %d, not %d", c->sample, c->version, at,
                     at < count ? (int)ids[at] : -1, (int)id);
    }
    if (at != count)
        fail_msg("%s %s: %zu ids, not %zu: %s", c->sample, c->version, count, at, j.err.text);
    nib__tokenizer_ids_free(t, ids);
}

static void expect_chat(const chat *c, const nib_tokenizer *tokenizer)
{
    static const nib_template_token tokens[] = {{"bos_token", "<s>", 3}, {"eos_token", "</s>", 4}};
    const nib_allocator a = nib__allocator_default();
    char folder[256], name[64];
    nib_arena arena;
    nib_template *t;
    nib_template_output got;
    nib_text want;
    nib_err err;
    nib__arena_init(&arena, &a, 0);
    nib__template_output_init(&got, &a);
    nib__text_init(&want, &a);
    nib_named_text source = {.name = name};
    snprintf(name, sizeof name, "%s_spm.jinja", c->version);
    source.text = read_data(&arena, "text/mistral-chat/chat_templates", name, &source.size);
    snprintf(folder, sizeof folder, "text/mistral-chat/samples/%s", c->sample);
    nib_template_value sample = {.name = NULL};
    sample.json = read_data(&arena, folder, "sample.json", &sample.size);
    const nib_template_input input = {
        .tokens = tokens, .token_count = 2, .values = &sample, .value_count = 1};
    if (nib__template_open(&t, &source, &a, &err) != NIB_OK ||
        nib__template_render(t, &input, &got, &err) != NIB_OK)
        fail_msg("%s %s: %s", c->sample, c->version, err.text);
    size_t size;
    snprintf(name, sizeof name, "text_%s.txt", c->version);
    const char *text = read_data(&arena, folder, name, &size);
    put_expected(&want, text, size);
    if (got.text.size != want.size || memcmp(got.text.at, want.at, want.size) != 0)
        fail_msg("%s %s:\n%s\nis not\n%s", c->sample, c->version, got.text.at, want.at);
    snprintf(name, sizeof name, "tokens_%s.json", c->version);
    if (c->ids) {
        const char *ids = read_data(&arena, folder, name, &size);
        expect_tokens(&got, tokenizer, ids, size, c);
    }
    nib__template_close(t);
    nib__text_free(&want);
    nib__template_output_free(&got);
    nib__arena_free(&arena);
}

static void test_texts_and_ids(void **state)
{
    char path[1024];
    (void)state;
    data = test_data();
    snprintf(path, sizeof path, "%s/tokenizers/mistral/Mistral-7B-v0.3_tokenizer.json", data);
    nib_tokenizer *t = open_path(path, NULL);
    for (size_t i = 0; i < COUNT(chats); i++)
        expect_chat(&chats[i], t);
    nib__tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts_and_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
