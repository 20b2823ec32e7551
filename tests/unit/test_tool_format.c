/* SPDX-License-Identifier: Apache-2.0
 *
 * The tool-call format derived from chat templates: those of tests/serve/templates and of known
 * models.
 */
#include "skipping.h"
#include "tool_format.h"

#include "failing.h"
#include "rendering.h"
#include "refused.h"
#include "tokenizing.h"

typedef struct form {
    const char *path;
    const char *before, *middle, *next, *last, *gap; /* before NULL: no format is found */
    bool short_ids, text_arguments;
    const char *end;
} form;

#define HERE "tests/serve/templates/"

static const form forms[] = {
    {"examples/tools.jinja", "<tool_call>\n{\"name\": \"", "\", \"arguments\": ",
     "}\n</tool_call>\n<tool_call>\n{\"name\": \"", "}\n</tool_call>", "\n", false, false, "</s>"},
    {"examples/tools.jinja", "<tool_call>\n{\"name\": \"", "\", \"arguments\": ",
     "}\n</tool_call>\n<tool_call>\n{\"name\": \"", "}\n</tool_call>", "\n", false, false, NULL},
    {HERE "llama.jinja", "{\"name\": \"", "\", \"parameters\": ", NULL, "}", "", false, false,
     "</s>"},
    {HERE "array.jinja", "[TOOL_CALLS] [{\"name\": \"",
     "\", \"arguments\": ", ", \"id\": \"IIIIIIIII\"}, {\"name\": \"", ", \"id\": \"IIIIIIIII\"}]",
     "", true, false, "</s>"},
    {HERE "text.jinja", "call ", ": ", "\ncall ", "", "", false, true, "</s>"},
    {.path = HERE "xml.jinja", .end = "</s>"}, /* arguments that are no JSON object */
};

static const form known[] = {
    {"chat_templates/qwen2.5-instruct.jinja", "<tool_call>\n{\"name\": \"",
     "\", \"arguments\": ", "}\n</tool_call>\n<tool_call>\n{\"name\": \"", "}\n</tool_call>", "\n",
     false, false, "<|im_end|>"},
    {"../tokenizers/qwen2/qwen3_tokenizer_config.json", "<tool_call>\n{\"name\": \"",
     "\", \"arguments\": ", "}\n</tool_call>\n<tool_call>\n{\"name\": \"", "}\n</tool_call>", "\n",
     false, false, "<|im_end|>"},
    {"mistral-chat/chat_templates/v3_spm.jinja", "[TOOL_CALLS] [{\"name\": \"",
     "\", \"arguments\": ", ", \"id\": \"IIIIIIIII\"}, {\"name\": \"", ", \"id\": \"IIIIIIIII\"}]",
     "", true, true, "</s>"},
    {"mistral-chat/chat_templates/v7.jinja", "[TOOL_CALLS][{\"name\": \"",
     "\", \"arguments\": ", ", \"id\": \"IIIIIIIII\"}, {\"name\": \"", ", \"id\": \"IIIIIIIII\"}]",
     "", true, true, "</s>"},
    {"mistral-chat/chat_templates/v11.jinja", "[TOOL_CALLS]", "[CALL_ID]IIIIIIIII[ARGS]",
     "[TOOL_CALLS]", "", "", true, false, "</s>"},
    {"mistral-chat/chat_templates/v13.jinja", "[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]", "", "",
     false, false, "</s>"},
    /* it raises an exception */
    {.path = "../tokenizers/gpt-oss/chat_template.jinja", .end = "<|call|>"},
    /* it does not write the calls */
    {.path = "chat_templates/granite-3.0-instruct.jinja", .end = "<|end_of_text|>"},
};

typedef struct source {
    const char *text;
    size_t size;
    const nib_allocator *allocator;
} source;

static nib_status render(void *ctx, const char *messages, const char *tools, bool prompt,
                         nib_text *out, nib_err *err)
{
    const source *s = ctx;
    rendering r;
    nib_text values;
    nib__text_init(&values, s->allocator);
    nib__text_format(&values, "{\"messages\": %s, \"tools\": %s, \"add_generation_prompt\": %s}",
                     messages, tools != NULL ? tools : "null", prompt ? "true" : "false");
    if (values.failed)
        return nib__fail_memory(err, 0, "values");
    render_within(&r, s->text, s->size, values.at, NULL, s->allocator);
    nib__text_free(&values);
    nib__text_put(out, r.out.text.at != NULL ? r.out.text.at : "", r.out.text.size);
    if (r.status != NIB_OK)
        *err = r.err;
    nib__template_output_free(&r.out);
    return r.status;
}

/* Replaces each letter of an id by I. */
static void expect_text(const form *f, const char *part, const char *want, const nib_call_text *got)
{
    char text[200];
    if ((want == NULL) != (got->at == NULL))
        fail_msg("%s: %s is %s", f->path, part, got->at != NULL ? got->at : "none");
    if (want == NULL)
        return;
    snprintf(text, sizeof text, "%.*s", (int)got->size, got->at);
    memset(text + got->id_at, 'I', got->id_size);
    if (strcmp(text, want) != 0)
        fail_msg("%s: %s is\n%s\nnot\n%s", f->path, part, text, want);
}

/* Reads a template, or the one in a tokenizer_config.json. */
static const char *read_template(nib_arena *arena, const char *path, size_t *size)
{
    const char *text = read_text(arena, path, size);
    nib_json json;
    if (!nib__ends_with(path, ".json"))
        return text;
    nib__json_init(&json, path, text, *size, NULL);
    assert_true(nib__json_expect(&json, NIB_JSON_OBJECT));
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "chat_template"))
            return nib__json_read_string(&json, arena, size);
        assert_true(nib__json_skip(&json));
    }
    fail_msg("%s has no template", path);
    return NULL;
}

static void expect_form(const form *f, const char *folder)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_tool_format got;
    char path[1024];
    nib_err err;
    nib__arena_init(&arena, &a, 0);
    snprintf(path, sizeof path, "%s%s", folder, f->path);
    source s = {.allocator = &a};
    s.text = read_template(&arena, path, &s.size);
    const nib_tool_prober p = {render, &s, &a, &f->end, f->end != NULL};
    if (nib__tool_format_shows(&p, &err) != NIB_OK)
        fail_msg("%s: %s", f->path, err.text);
    const nib_status status = nib__tool_format_find(&got, &p, &arena, &err);
    if (f->before == NULL && folder[0] != 0) { /* not at hand everywhere, so not recorded */
        assert_int_equal(status, NIB_UNSUPPORTED);
    } else if (f->before == NULL) {
        refused(NIB_UNSUPPORTED, status, &err);
    } else {
        if (status != NIB_OK)
            fail_msg("%s: %s", f->path, err.text);
        if (got.short_ids != f->short_ids || got.text_arguments != f->text_arguments)
            fail_msg("%s: %d %d", f->path, got.short_ids, got.text_arguments);
        expect_text(f, "before", f->before, &got.calls.before);
        expect_text(f, "middle", f->middle, &got.calls.middle);
        expect_text(f, "next", f->next, &got.calls.next);
        expect_text(f, "last", f->last, &got.calls.last);
        assert_int_equal(got.calls.gap_size, strlen(f->gap));
        assert_memory_equal(got.calls.gap, f->gap, strlen(f->gap));
    }
    nib__arena_free(&arena);
}

static void test_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(forms); i++)
        expect_form(&forms[i], "");
}

static void test_known_models(void **state)
{
    char folder[1000];
    (void)state;
    snprintf(folder, sizeof folder, "%s/text/", test_data());
    for (size_t i = 0; i < COUNT(known); i++)
        expect_form(&known[i], folder);
}

static void test_rejects_templates(void **state)
{
    static const struct {
        const char *text;
        nib_status status;
    } cases[] = {
        {"{{ tools }}{{ raise_exception('never') }}", NIB_UNSUPPORTED},
        {"{{ messages[0].content }}", NIB_UNSUPPORTED}, /* no tools */
        /* no calls */
        {"{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}", NIB_UNSUPPORTED},
        /* the arguments before the name */
        {"{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
         "{{ c.function.arguments | tojson }}{{ c.function.name }}{% endfor %}{% endfor %}",
         NIB_UNSUPPORTED},
        /* the name twice */
        {"{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
         "{{ c.function.name }}: {{ c.function.arguments | tojson }} {{ c.function.name }}"
         "{% endfor %}{% endfor %}",
         NIB_UNSUPPORTED},
        {"{{ tools }}{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}"
         "{% endif %}{{ m.content }}{% endfor %}",
         NIB_UNSUPPORTED},
        {"{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }} "
         "{{ c.function.name }}: {{ c.function.arguments | tojson }} {{ c.id }}{% endfor %}"
         "{% endfor %}",
         NIB_OK},
        /* calls begin unlike the answer that the prompt asks for */
        {"{{ tools }}{% if add_generation_prompt %}A>{% endif %}{% for m in messages %}"
         "{% for c in m.tool_calls or [] %}B>{{ c.function.name }}: "
         "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
         NIB_UNSUPPORTED},
    };
    const nib_allocator a = nib__allocator_default();
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        source s = {cases[i].text, strlen(cases[i].text), &a};
        const nib_tool_prober p = {render, &s, &a, NULL, 0};
        nib_tool_format got;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &a, 0);
        nib_status status = nib__tool_format_shows(&p, &err);
        if (status == NIB_OK)
            status = nib__tool_format_find(&got, &p, &arena, &err);
        if (cases[i].status == NIB_OK)
            assert_int_equal(status, NIB_OK);
        else
            refused(cases[i].status, status, &err);
        nib__arena_free(&arena);
    }
}

static void test_failing_allocations(void **state)
{
    failing memory = {.left = -1};
    const nib_allocator a = failing_allocator(&memory), plain = nib__allocator_default();
    nib_arena arena, texts;
    nib_tool_format got;
    bool whole = false;
    (void)state;
    nib__arena_init(&texts, &plain, 0);
    source s = {.allocator = &plain};
    s.text = read_text(&texts, HERE "array.jinja", &s.size);
    static const char *const end = "</s>";
    const nib_tool_prober p = {render, &s, &a, &end, 1};
    for (int n = 0; n < 1000 && !whole; n++) {
        nib_err err;
        nib__arena_init(&arena, &a, 0);
        memory.left = n;
        nib_status status = nib__tool_format_shows(&p, &err);
        if (status == NIB_OK)
            status = nib__tool_format_find(&got, &p, &arena, &err);
        whole = status == NIB_OK && got.calls.next.at != NULL;
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        memory.left = -1;
        nib__arena_free(&arena);
        assert_int_equal(memory.live, 0);
    }
    assert_true(whole);
    nib__arena_free(&texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_known_models),
        cmocka_unit_test(test_rejects_templates),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
