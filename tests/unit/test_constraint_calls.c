/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls under masks: in the formats of known models, alone or after free text, and only with
 * declared names and arguments that conform to their schemas.
 */
#include "constraint_calls.h"

#include "constraining.h"
#include "failing.h"
#include "refused.h"
#include "skipping.h"
#include "validating.h"

static const char BYTES[] = "tests/golden/tokenizer_bytes.json";
static const char PIECES[] = "tests/golden/tokenizer_words.json";
static const char SHIPPED[] = "configs/tokenizer/tokenizer.json";

#define TEXT(t) .at = t, .size = sizeof t - 1

/* In tags, as Hermes and Qwen write them. */
static const nib_call_format tags = {
    .before = {TEXT("<call>\n{\"name\": \"")},
    .middle = {TEXT("\", \"arguments\": ")},
    .next = {TEXT("}\n</call>\n<call>\n{\"name\": \"")},
    .last = {TEXT("}\n</call>")},
    .gap = "\n",
    .gap_size = 1,
};
/* The bare object, once. */
static const nib_call_format bare = {
    .before = {TEXT("{\"name\": \"")},
    .middle = {TEXT("\", \"parameters\": ")},
    .last = {TEXT("}")},
};
/* An array after a special token, with ids. */
static const nib_call_format array = {
    .before = {TEXT("</s> [{\"name\": \"")},
    .middle = {TEXT("\", \"arguments\": ")},
    .next = {TEXT(", \"id\": \"IIIII\"}, {\"name\": \""), 9, 5},
    .last = {TEXT(", \"id\": \"IIIII\"}]"), 9, 5},
};
/* Only special tokens around names and arguments; nothing after the last. */
static const nib_call_format marks = {
    .before = {TEXT("</s>")},
    .middle = {TEXT("<s>")},
    .next = {TEXT("</s>")},
    .last = {TEXT("")},
};

#define SCHEMA(t)                                                                                  \
    {                                                                                              \
        "tools[0].function.parameters", t, sizeof t - 1                                            \
    }
static const nib_callable tools[] = {
    {"get", SCHEMA("{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}, "
                   "\"required\": [\"n\"], \"additionalProperties\": false}")},
    {"get_all", {"tools[1].function.parameters", NULL, 0}},
    {"any", SCHEMA("{}")},
    {"Z-9", SCHEMA("{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [\"x\", \"y}\"]}}, "
                   "\"additionalProperties\": false}")},
};

static nib_status open_status(const constraining *c, const nib_call_format *format, bool text_first,
                              bool several, const nib_allocator *a, nib_constraint **out,
                              nib_err *err)
{
    const nib_calls_options o = {format, tools, COUNT(tools), text_first, several};
    return nib__calls_open(out, c->trie, c->tokenizer, &o, a, err);
}

static nib_constraint *open_calls(const constraining *c, const nib_call_format *format,
                                  bool text_first, bool several)
{
    const nib_allocator a = nib__allocator_default();
    nib_constraint *out = NULL;
    nib_err err;
    if (open_status(c, format, text_first, several, &a, &out, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return out;
}

static void expect_text(const constraining *c, const nib_constraint *constraint, bool yes,
                        const char *text)
{
    if (accepts(c, constraint, text) != yes)
        fail_msg("%s is %s", text, yes ? "refused" : "accepted");
}

#define GET "{\"name\": \"get\", \"arguments\": {\"n\": 5}}\n</call>"
#define ALL "{\"name\": \"get_all\", \"arguments\": {}}\n</call>"

static void test_texts(void **state)
{
    static const char *const both[] = {"<call>\n" GET, "<call>\n" ALL};
    static const char *const never[] = {
        "",
        "x",
        "<call>\n",
        "<call>\n{\"name\": \"gets\", \"arguments\": {\"n\": 5}}\n</call>",
        "<call>\n{\"name\": \"get\", \"arguments\": {}}\n</call>",
        "<call>\n{\"name\": \"get\", \"arguments\":  {\"n\": 5}}\n</call>",
        "<call>\n{\"name\": \"get\", \"arguments\": {\"n\": 5}}\n</call>\n",
        "<call>\n{\"name\": \"get_all\", \"arguments\": {\"n\": 5}}\n</call>",
        "<call>\n{\"name\": \"Z-9\", \"arguments\": {\"a\": \"y\"}}\n</call>",
        "<call>\n{\"name\": \"get\", \"arguments\": {\"n\": 5} }\n</call>"};
    (void)state;
    constraining c = open_constraining(SHIPPED);
    for (int several = 0; several < 2; several++) {
        nib_constraint *constraint = open_calls(&c, &tags, false, several);
        for (size_t i = 0; i < COUNT(both); i++)
            expect_text(&c, constraint, true, both[i]);
        for (size_t i = 0; i < COUNT(never); i++)
            expect_text(&c, constraint, false, never[i]);
        expect_text(&c, constraint, several, "<call>\n" ALL "\n<call>\n" GET "\n<call>\n" ALL);
        expect_text(&c, constraint, true,
                    "<call>\n{\"name\": \"Z-9\", \"arguments\": {\n  \"a\": \"y}\"\n}}\n</call>");
        nib__constraint_close(constraint);
    }
    nib_constraint *one = open_calls(&c, &bare, false, true);
    expect_text(&c, one, true, "{\"name\": \"get_all\", \"parameters\": {}}");
    expect_text(&c, one, false, "{\"name\": \"get_all\", \"parameters\": {}}, {");
    nib__constraint_close(one);
    close_constraining(&c);
}

/* Where nothing may follow, and where the text may end. */
static void test_where_the_text_may_end(void **state)
{
    static const char text[] = "<call>\n" GET;
    nib_constraint_state s;
    (void)state;
    constraining c = open_constraining(SHIPPED);
    for (int several = 0; several < 2; several++) {
        nib_constraint *constraint = open_calls(&c, &tags, false, several);
        nib__constraint_start(&s, constraint);
        for (size_t i = 0; i + 1 < sizeof text; i++) {
            assert_false(nib__constraint_complete(&s) || nib__constraint_ended(&s));
            assert_int_equal(taken(&c, &s, text + i, 1), 1);
        }
        assert_true(nib__constraint_complete(&s));
        assert_int_equal(nib__constraint_ended(&s), !several);
        nib__constraint_close(constraint);
    }
    close_constraining(&c);
}

static void test_free_text(void **state)
{
    static const char text[] = "say <ca <<call>\n" GET;
    nib_constraint_state s;
    (void)state;
    constraining c = open_constraining(SHIPPED);
    nib_constraint *constraint = open_calls(&c, &tags, true, false);
    expect_text(&c, constraint, true, "");
    expect_text(&c, constraint, true, "any {\"name\": \"get\"} <call");
    expect_text(&c, constraint, true, text);
    expect_text(&c, constraint, false, "x<call>");
    expect_text(&c, constraint, false, "x<call>y");
    assert_int_equal(nib__calls_opening(constraint), 6);
    nib__constraint_start(&s, constraint);
    assert_int_equal(taken(&c, &s, text, 7), 7);
    assert_int_equal(nib__calls_held(&s), 3); /* "<ca" */
    assert_int_equal(taken(&c, &s, text + 7, 3), 3);
    assert_int_equal(nib__calls_held(&s), 1);
    assert_int_equal(nib__calls_part(&s), NIB_CALL_FREE);
    assert_int_equal(taken(&c, &s, text + 10, 5), 5);
    assert_int_equal(nib__calls_part(&s), NIB_CALL_AROUND);
    assert_false(nib__constraint_complete(&s));
    nib__constraint_close(constraint);
    /* a bare object is a call only at the beginning of the text */
    constraint = open_calls(&c, &bare, true, false);
    expect_text(&c, constraint, true, "{\"name\": \"get_all\", \"parameters\": {}}");
    expect_text(&c, constraint, false, "{\"name\": \"get_all\", \"parameters\": []}");
    expect_text(&c, constraint, true, "{\"name\" : \"x\"}");
    expect_text(&c, constraint, true, "as {\"name\": \"x\"}");
    assert_int_equal(nib__calls_opening(constraint), 10);
    nib__constraint_close(constraint);
    close_constraining(&c);
}

static void test_special_tokens(void **state)
{
    nib_constraint_state s;
    (void)state;
    constraining c = open_constraining(BYTES);
    const int32_t mark = nib__tokenizer_find(c.tokenizer, "</s>", 4),
                  other = nib__tokenizer_find(c.tokenizer, "<s>", 3);
    for (int free = 0; free < 2; free++) {
        nib_constraint *constraint = open_calls(&c, &array, free, true);
        static const char rest[] = " [{\"name\": \"get_all\", \"arguments\": {}, \"id\": \"";
        nib__constraint_start(&s, constraint);
        assert_int_equal(taken(&c, &s, "</s>", 4), free ? 4 : 0);
        assert_int_equal(nib__constraint_accept(&s, other), free);
        assert_true(nib__constraint_accept(&s, mark));
        assert_int_equal(taken(&c, &s, rest, sizeof rest - 1), sizeof rest - 1);
        assert_int_equal(taken(&c, &s, "ab-", 3), 2);
        assert_int_equal(taken(&c, &s, "X09\"}]", 6), 6);
        assert_true(nib__constraint_complete(&s) && nib__constraint_ended(&s));
        assert_int_equal(nib__calls_opening(constraint), 0);
        nib__constraint_close(constraint);
    }
    nib_call_format added = tags; /* opened by a token that is text, like Qwen's <tool_call> */
    added.before = (nib_call_text){TEXT("<sep>{\"name\": \"")};
    for (int free = 0; free < 2; free++) {
        nib_constraint *constraint = open_calls(&c, &added, free, false);
        nib__constraint_start(&s, constraint);
        assert_true(nib__constraint_accept(&s, nib__tokenizer_find(c.tokenizer, "<sep>", 5)));
        assert_int_equal(nib__calls_part(&s), NIB_CALL_AROUND);
        assert_int_equal(taken(&c, &s, "{\"name\": \"get\"", 14), 14);
        nib__constraint_close(constraint);
    }
    nib_constraint *constraint = open_calls(&c, &marks, false, true);
    nib__constraint_start(&s, constraint);
    assert_false(nib__constraint_accept(&s, other));
    assert_true(nib__constraint_accept(&s, mark));
    assert_int_equal(taken(&c, &s, "get", 3), 3);
    assert_false(nib__constraint_accept(&s, mark));
    assert_true(nib__constraint_accept(&s, other));
    assert_int_equal(taken(&c, &s, "{\"n\": 1}", 8), 8);
    assert_true(nib__constraint_complete(&s) && !nib__constraint_ended(&s));
    assert_true(nib__constraint_accept(&s, mark));
    assert_false(nib__constraint_complete(&s));
    nib__constraint_close(constraint);
    close_constraining(&c);
}

/* ---- masks ---- */

static void check_masks(const char *tokenizer, const nib_call_format *format, bool text_first,
                        int steps)
{
    constraining c = open_constraining(tokenizer);
    nib_constraint *constraint = open_calls(&c, format, text_first, true);
    expect_masks(&c, constraint, 5, text_first && format == &tags ? "a<call" : "", 3, steps);
    nib__constraint_close(constraint);
    close_constraining(&c);
}

static void test_masks(void **state)
{
    (void)state;
    for (int free = 0; free < 2; free++) {
        check_masks(SHIPPED, &tags, free, 70);
        check_masks(SHIPPED, &bare, free, 40);
        check_masks(BYTES, &array, free, 80);
        check_masks(BYTES, &marks, free, 40);
        check_masks(PIECES, &tags, free, 60);
    }
}

/* Random texts under masks, split at the markers around name and arguments and validated against
 * the schemas. */
static void test_walks(void **state)
{
    const nib_allocator a = nib__allocator_default();
    (void)state;
    constraining c = open_constraining(SHIPPED);
    nib_constraint *constraint = open_calls(&c, &tags, false, false);
    walking w = open_walking(&c, 11);
    int seen[COUNT(tools)] = {0};
    assert_int_equal(nib__masks_open(&w.masks, constraint, &a, NULL), NIB_OK);
    for (int i = 0; i < 60; i++) {
        nib_arena arena;
        nib_text text;
        size_t tool = COUNT(tools);
        nib__text_init(&text, &a);
        nib__arena_init(&arena, &a, 0);
        assert_int_equal(walk_once(&w, constraint, &text), WALK_ENDED);
        char *name = text.at + tags.before.size, *end = strstr(name, tags.middle.at);
        assert_non_null(end);
        *end = 0;
        for (size_t t = 0; t < COUNT(tools); t++)
            if (strcmp(tools[t].name, name) == 0)
                tool = t;
        assert_true(tool < COUNT(tools));
        seen[tool]++;
        const char *arguments = end + tags.middle.size;
        const json_tree *value = read_tree(
            &arena, arguments, text.size - (size_t)(arguments - text.at) - tags.last.size);
        assert_non_null(value);
        if (tools[tool].schema.text != NULL) {
            const json_tree *root =
                read_tree(&arena, tools[tool].schema.text, tools[tool].schema.size);
            assert_true(is_of(value, root, root));
        }
        nib__text_free(&text);
        nib__arena_free(&arena);
    }
    for (size_t t = 0; t < COUNT(tools); t++)
        assert_true(seen[t] > 0);
    nib__masks_close(w.masks);
    free(w.allowed);
    nib__constraint_close(constraint);
    close_constraining(&c);
}

/* The masks allow the tokens of a rendered call, which are those that a model learns: around, in
 * and across names and arguments. */
static void expect_canonical(const char *path, const nib_call_format *format, const char *prompt,
                             const char *answer)
{
    constraining c = open_constraining(path);
    nib_text all;
    const nib_allocator a = nib__allocator_default();
    int32_t *ids;
    size_t count, before;
    nib_err err;
    nib__text_init(&all, &a);
    nib__text_str(&all, prompt);
    assert_int_equal(nib__tokenizer_encode(c.tokenizer, all.at, all.size, NIB_ENCODE_PARSE_SPECIAL,
                                           &ids, &before, &err),
                     NIB_OK);
    nib__tokenizer_ids_free(c.tokenizer, ids);
    nib__text_str(&all, answer);
    assert_int_equal(nib__tokenizer_encode(c.tokenizer, all.at, all.size, NIB_ENCODE_PARSE_SPECIAL,
                                           &ids, &count, &err),
                     NIB_OK);
    for (int text_first = 0; text_first < 2; text_first++) {
        nib_constraint *constraint = open_calls(&c, format, text_first, true);
        nib_constraint_state s;
        nib__constraint_start(&s, constraint);
        for (size_t i = before; i < count; i++)
            if (!nib__constraint_accept(&s, ids[i]))
                fail_msg("%s: token %zu of %zu is not taken", path, i - before, count - before);
        assert_true(nib__constraint_complete(&s) && nib__calls_part(&s) == NIB_CALL_AROUND);
        nib__constraint_close(constraint);
    }
    nib__tokenizer_ids_free(c.tokenizer, ids);
    nib__text_free(&all);
    close_constraining(&c);
}

#define MISTRAL_CALLS                                                                              \
    "[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"n\": 5}, \"id\": \"aB3x9\"}, "            \
    "{\"name\": \"Z-9\", \"arguments\": {\"a\": \"y}\"}, \"id\": \"00000\"}]"

static const nib_call_format mistral = {
    .before = {TEXT("[TOOL_CALLS] [{\"name\": \"")},
    .middle = {TEXT("\", \"arguments\": ")},
    .next = {TEXT(", \"id\": \"IIIII\"}, {\"name\": \""), 9, 5},
    .last = {TEXT(", \"id\": \"IIIII\"}]"), 9, 5},
};

static void expect_tags(const char *path)
{
    expect_canonical(path, &tags, "a\n", "<call>\n" GET "\n<call>\n" ALL);
    expect_canonical(path, &bare, "a\n", "{\"name\": \"get\", \"parameters\": {\"n\": -17}}");
}

static void test_own_tokenizers(void **state)
{
    (void)state;
    expect_canonical("tests/golden/mistral/tokenizer_marks.json", &mistral, "<s>[INST] a[/INST]",
                     MISTRAL_CALLS);
    expect_tags(BYTES);
    expect_tags(PIECES);
    expect_tags(SHIPPED);
}

static void test_known_tokenizers(void **state)
{
    const char *data = test_data();
    char path[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizers/mistral/Mistral-7B-v0.3_tokenizer.json", data);
    expect_canonical(path, &mistral, "<s>[INST] a[/INST]", MISTRAL_CALLS);
    snprintf(path, sizeof path, "%s/tokenizers/gpt2/tokenizer.json", data);
    expect_tags(path);
}

/* ---- refusals ---- */

static void expect_refused(const constraining *c, const nib_call_format *format,
                           const nib_callable *tool, bool text_first, nib_status status)
{
    const nib_allocator a = nib__allocator_default();
    const nib_calls_options o = {format, tool, 1, text_first, true};
    nib_constraint *out = NULL;
    nib_err err = {NIB_OK, ""};
    refused(status, nib__calls_open(&out, c->trie, c->tokenizer, &o, &a, &err), &err);
}

static void test_refusals(void **state)
{
    static const nib_callable list = {"f", SCHEMA("{\"type\": \"array\"}")},
                              endless = {"f",
                                         SCHEMA("{\"anyOf\": [{\"type\": \"null\"}, {\"$ref\": "
                                                "\"#/$defs/o\"}], \"$defs\": {\"o\": {\"type\": "
                                                "\"object\", \"properties\": {\"a\": {\"$ref\": "
                                                "\"#/$defs/o\"}}, \"required\": [\"a\"]}}}")},
                              pattern = {"f", SCHEMA("{\"type\": \"object\", \"properties\": "
                                                     "{\"a\": {\"pattern\": \"x\"}}}")};
    nib_call_format f = tags;
    (void)state;
    constraining c = open_constraining(SHIPPED);
    expect_refused(&c, &tags, &list, false, NIB_BAD_INPUT);
    expect_refused(&c, &tags, &endless, false, NIB_BAD_INPUT);
    expect_refused(&c, &tags, &pattern, false, NIB_UNSUPPORTED);
    f.middle = (nib_call_text){TEXT("x")};
    expect_refused(&c, &f, &tools[0], false, NIB_UNSUPPORTED);
    f = tags;
    f.before = (nib_call_text){TEXT("")};
    expect_refused(&c, &f, &tools[0], true, NIB_UNSUPPORTED);
    f.before = (nib_call_text){TEXT(" \n")};
    nib_constraint *blank =
        open_calls(&c, &f, true, true); /* the text begins with exactly this call */
    assert_int_equal(nib__calls_opening(blank), 2);
    nib__constraint_close(blank);
    close_constraining(&c);
}

/* A schema that also allows other values accepts only objects as arguments; nested values follow
 * the schema unchanged. */
static void test_arguments_must_be_objects(void **state)
{
    static const struct {
        nib_callable tool;
        const char *good[3], *bad[3];
    } cases[] = {
        {{"f", SCHEMA("{}")}, {"{}", "{\"a\": [1, {\"b\": null}]}"}, {"null", "\"x\"", "[{}]"}},
        {{"f", SCHEMA("{\"description\": \"none\"}")}, {"{}"}, {"1"}},
        {{"f",
          SCHEMA("{\"type\": [\"null\", \"object\"], \"properties\": {\"a\": {\"const\": 1}}}")},
         {"{}", "{\"a\": 1}"},
         {"null", "{\"a\": 2}", "{\"b\": 1}"}},
        {{"f",
          SCHEMA("{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"object\", \"properties\": "
                 "{\"a\": "
                 "{\"$ref\": \"#\"}}}, {\"type\": \"object\", \"properties\": {\"b\": {}}}]}")},
         {"{\"a\": 5}", "{\"a\": {\"a\": {\"b\": 1}}}", "{\"b\": null}"},
         {"5", "{\"a\": null}"}},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    constraining c = open_constraining(SHIPPED);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const nib_calls_options o = {&tags, &cases[i].tool, 1, false, false};
        nib_constraint *constraint = NULL;
        nib_err err;
        char text[256];
        if (nib__calls_open(&constraint, c.trie, c.tokenizer, &o, &a, &err) != NIB_OK)
            fail_msg("%s", err.text);
        for (int good = 0; good < 2; good++)
            for (const char *const *arguments = good ? cases[i].good : cases[i].bad;
                 arguments < (good ? cases[i].good : cases[i].bad) + 3 && *arguments; arguments++) {
                snprintf(text, sizeof text, "<call>\n{\"name\": \"f\", \"arguments\": %s}\n</call>",
                         *arguments);
                expect_text(&c, constraint, good, text);
            }
        nib__constraint_close(constraint);
    }
    close_constraining(&c);
}

static void test_failing_allocations(void **state)
{
    failing memory = {.left = -1};
    const nib_allocator a = failing_allocator(&memory);
    bool whole = false;
    (void)state;
    constraining c = open_constraining(BYTES);
    for (int n = 0; n < 500 && !whole; n++) {
        nib_constraint *out = NULL;
        nib_err err;
        memory.left = n;
        const nib_status status = open_status(&c, &tags, true, true, &a, &out, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        whole = status == NIB_OK;
        memory.left = -1;
        nib__constraint_close(out);
        assert_int_equal(memory.live, 0);
    }
    assert_true(whole);
    close_constraining(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_where_the_text_may_end),
        cmocka_unit_test(test_free_text),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_walks),
        cmocka_unit_test(test_own_tokenizers),
        cmocka_unit_test(test_known_tokenizers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_arguments_must_be_objects),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
