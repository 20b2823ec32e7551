/* SPDX-License-Identifier: Apache-2.0
 *
 * Renders templates for tools/oracle/template_diff.py. Each input line is a JSON object:
 * "template", "values" (an object of user variables), "tokens" (an object with the model's strings)
 * and "now". Each output line is {"text": ...} or {"error": ...}.
 */
#include "json.h"
#include "template.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 16 };

typedef struct request {
    char *template, *values;
    size_t template_size;
    nib_template_token tokens[TOKENS];
    size_t token_count;
    int64_t now;
} request;

static bool read_tokens(request *q, nib_json *json, nib_arena *arena)
{
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return false;
    while (q->token_count < TOKENS && nib__json_next(json) == NIB_JSON_KEY) {
        nib_template_token *t = &q->tokens[q->token_count++];
        t->name = nib__json_string(json, arena, NULL);
        t->text = nib__json_read_string(json, arena, &t->size);
        if (t->name == NULL || t->text == NULL)
            return false;
    }
    return json->event == NIB_JSON_OBJECT_END;
}

static bool read_request(request *q, const char *line, size_t size, nib_arena *arena)
{
    const nib_json_limits limits = {.depth = 256, .literals = true};
    nib_json json;
    nib__json_init(&json, "request", line, size, &limits);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "template"))
            ok = (q->template = nib__json_read_string(&json, arena, &q->template_size)) != NULL;
        else if (nib__json_is(&json, "values"))
            ok = (q->values = nib__json_raw(&json, arena)) != NULL;
        else if (nib__json_is(&json, "tokens"))
            ok = read_tokens(q, &json, arena);
        else if (nib__json_is(&json, "now"))
            ok = nib__json_read_int64(&json, 0, INT64_MAX, &q->now);
        else
            ok = nib__json_skip(&json);
    }
    if (json.event != NIB_JSON_OBJECT_END)
        fprintf(stderr, "%s\n", json.err.text);
    return json.event == NIB_JSON_OBJECT_END;
}

static void answer(const request *q, const nib_allocator *a)
{
    const nib_named_text source = {"template", q->template, q->template_size};
    const nib_template_value values = {NULL, q->values, strlen(q->values)};
    const nib_template_input input = {
        .tokens = q->tokens,
        .token_count = q->token_count,
        .values = &values,
        .value_count = 1,
        .now = q->now,
    };
    nib_template *t = NULL;
    nib_template_output out;
    nib_text text;
    nib_jsonw w;
    nib_err err = {0};
    nib__template_output_init(&out, a);
    nib__text_init(&text, a);
    nib__jsonw_init(&w, &text, 0);
    nib_status status = nib__template_open(&t, &source, a, &err);
    if (status == NIB_OK)
        status = nib__template_render(t, &input, &out, &err);
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, status == NIB_OK ? "text" : "error");
    if (status == NIB_OK)
        nib__jsonw_string_n(&w, out.text.at == NULL ? "" : out.text.at, out.text.size);
    else
        nib__jsonw_string(&w, err.text);
    nib__jsonw_object_end(&w);
    puts(text.at);
    nib__text_free(&text);
    nib__template_output_free(&out);
    nib__template_close(t);
}

int main(void)
{
    const nib_allocator a = nib__allocator_default();
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t size; (size = getline(&line, &capacity, stdin)) > 0;) {
        nib_arena arena;
        request q = {.now = 0};
        nib__arena_init(&arena, &a, 0);
        if (!read_request(&q, line, (size_t)size, &arena))
            return 1;
        answer(&q, &a);
        fflush(stdout);
        nib__arena_free(&arena);
    }
    free(line);
    return 0;
}
