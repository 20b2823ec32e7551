/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations to prompts: finds the chat template of a model and the tokens that it names,
 * renders it, and encodes the text so that nothing of a user's becomes a special token. What is
 * found stays with the model and never changes, so that threads may render at the same time.
 */
#include "library.h"

#include "gguf_vocab.h"
#include "json.h"
#include "template.h"

enum {
    CONFIG_LIMIT = 64 << 20, /* of tokenizer_config.json: some list every added token */
    TOKENS = 7,
};

static const char *const token_names[TOKENS] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                "pad_token", "cls_token", "mask_token"};

struct nib_chat {
    nib_arena arena;
    nib_template *template, *tools; /* tools: where a conversation has tools; may be NULL both */
    nib_template_token tokens[TOKENS];
    size_t token_count;
    nib_status status; /* of the model's template, for whoever wants it */
    nib_err err;
    const char *note; /* NULL: nothing to say */
};

/* A place that has a template. */
typedef struct found {
    nib_named_text text, tools; /* text.text NULL: none */
} found;

/* ---- tokenizer_config.json ---- */

static bool read_token(nib_json *json, nib_chat *c, const char *name)
{
    nib_template_token token = {.name = name};
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_STRING)
        token.text = nib__json_string(json, &c->arena, &token.size);
    while (event == NIB_JSON_OBJECT && nib__json_next(json) == NIB_JSON_KEY) {
        if (!nib__json_is(json, "content"))
            (void)nib__json_skip(json);
        else
            token.text = nib__json_read_string(json, &c->arena, &token.size);
    }
    if (event == NIB_JSON_ARRAY)
        (void)nib__json_skip(json);
    if (token.text != NULL && c->token_count < TOKENS)
        c->tokens[c->token_count++] = token;
    return json->event != NIB_JSON_ERROR;
}

/* {"name": ..., "template": ...}: "default" and "tool_use" are taken. */
static bool read_named(nib_json *json, nib_chat *c, found *f)
{
    char *name = NULL, *text = NULL;
    size_t size = 0;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (nib__json_is(json, "name"))
            name = nib__json_read_string(json, &c->arena, NULL);
        else if (nib__json_is(json, "template"))
            text = nib__json_read_string(json, &c->arena, &size);
        else
            (void)nib__json_skip(json);
    }
    if (name != NULL && text != NULL && strcmp(name, "default") == 0)
        f->text = (nib_named_text){f->text.name, text, size};
    else if (name != NULL && text != NULL && strcmp(name, "tool_use") == 0)
        f->tools = (nib_named_text){f->text.name, text, size};
    return json->event == NIB_JSON_OBJECT_END;
}

static bool read_templates(nib_json *json, nib_chat *c, found *f)
{
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_STRING)
        f->text.text = nib__json_string(json, &c->arena, &f->text.size);
    while (event == NIB_JSON_ARRAY && nib__json_next(json) == NIB_JSON_OBJECT)
        if (!read_named(json, c, f))
            return false;
    if (event == NIB_JSON_OBJECT)
        (void)nib__json_skip(json);
    return json->event != NIB_JSON_ERROR;
}

static nib_status read_config(nib_chat *c, found *f, const char *path, nib_err *err)
{
    const nib_json_limits limits = {.literals = true};
    char *text;
    size_t size;
    nib_json json;
    f->text.name = path;
    NIB_TRY(nib__file_read(&text, &size, path, CONFIG_LIMIT, c->arena.allocator, err));
    nib__json_init(&json, path, text, size, &limits);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        size_t token = 0;
        while (token < TOKENS && !nib__json_is(&json, token_names[token]))
            token++;
        ok = token < TOKENS                         ? read_token(&json, c, token_names[token])
             : nib__json_is(&json, "chat_template") ? read_templates(&json, c, f)
                                                    : nib__json_skip(&json);
    }
    const nib_status status =
        ok && json.event == NIB_JSON_OBJECT_END ? NIB_OK : nib__json_status(&json, err);
    nib__release(c->arena.allocator, text);
    return status;
}

/* ---- where templates are ---- */

static nib_status read_file(nib_chat *c, found *f, const char *path, nib_err *err)
{
    char *text;
    size_t size;
    NIB_TRY(nib__file_read(&text, &size, path, NIB_TEMPLATE_SOURCE, c->arena.allocator, err));
    f->text = (nib_named_text){path, nib__arena_copy(&c->arena, text, size), size};
    nib__release(c->arena.allocator, text);
    return f->text.text != NULL ? NIB_OK : nib__fail_memory(err, size, path);
}

static nib_status read_gguf(nib_chat *c, found *f, const nib_gguf *gguf, const char *path,
                            nib_err *err)
{
    const char *text;
    size_t size;
    NIB_TRY(nib__gguf_chat_template(&text, &size, gguf, err));
    if (text == NULL)
        return NIB_OK;
    f->text = (nib_named_text){path, nib__arena_copy(&c->arena, text, size), size};
    return f->text.text != NULL ? NIB_OK : nib__fail_memory(err, size, path);
}

/* The tokens that the tokenizer knows, where no file says how templates are to write them. */
static void name_token(nib_chat *c, const nib_tokenizer *t, int32_t id, const char *name)
{
    size_t size;
    const char *text = id < 0 ? NULL : nib__tokenizer_token(t, id, &size);
    if (text != NULL)
        c->tokens[c->token_count++] = (nib_template_token){name, text, size};
}

/* The directory that the tokenizer lies in. */
static nib_status tokenizer_directory(nib_chat *c, const nib_model *m, const char **out,
                                      nib_err *err)
{
    *out = m->tokenizer_path != NULL ? m->tokenizer_path : m->net.directory;
    if (nib__path_kind(*out) != NIB_PATH_FILE)
        return NIB_OK;
    const size_t size = (size_t)(nib__path_name(*out) - *out);
    *out = size == 0 ? "." : nib__arena_copy(&c->arena, *out, size);
    return *out != NULL ? NIB_OK : nib__fail_memory(err, size, "a path");
}

static bool differ(const found *a, const found *b)
{
    return b->text.text != NULL &&
           (a->text.size != b->text.size || memcmp(a->text.text, b->text.text, a->text.size) != 0);
}

/* The first that has one; *note says which of the others it is not. */
static nib_status choose(nib_chat *c, const found *all, size_t count, const found **out,
                         nib_err *err)
{
    nib_text note;
    nib__text_init(&note, c->arena.allocator);
    *out = NULL;
    for (size_t i = 0; i < count; i++) {
        if (*out == NULL && all[i].text.text != NULL) {
            *out = &all[i];
        } else if (*out != NULL && differ(*out, &all[i])) {
            char a[NIB_SHOWN], b[NIB_SHOWN];
            nib__text_format(&note, "%s%s is another chat template than that of %s, which is taken",
                             note.size == 0 ? "" : "; ", nib__shown(a, all[i].text.name),
                             nib__shown(b, (*out)->text.name));
        }
    }
    c->note = note.size == 0 ? NULL : nib__arena_copy(&c->arena, note.at, note.size);
    const bool whole = !note.failed && (note.size == 0 || c->note != NULL);
    nib__text_free(&note);
    return whole ? NIB_OK : nib__fail_memory(err, 0, "a note");
}

/* A file of its own goes before all; then the GGUF, if its tokenizer is the model's. */
static nib_status find_template(nib_chat *c, const nib_model *m, const found **out, found all[3],
                                nib_err *err)
{
    const char *directory;
    NIB_TRY(tokenizer_directory(c, m, &directory, err));
    const char *own = nib__path_join(&c->arena, directory, "chat_template.jinja"),
               *config = nib__path_join(&c->arena, directory, "tokenizer_config.json");
    const nib_checkpoint *cp = m->net.checkpoint;
    const nib_gguf *gguf = cp != NULL ? nib__checkpoint_gguf(cp) : NULL;
    if (own == NULL || config == NULL)
        return nib__fail_memory(err, strlen(directory), "a path");
    if (nib__path_kind(own) == NIB_PATH_FILE)
        NIB_TRY(read_file(c, &all[0], own, err));
    if (gguf != NULL && m->tokenizer_path == NULL)
        NIB_TRY(read_gguf(c, &all[1], gguf, nib__checkpoint_path(cp), err));
    if (nib__path_kind(config) == NIB_PATH_FILE)
        NIB_TRY(read_config(c, &all[2], config, err));
    return choose(c, all, 3, out, err);
}

static nib_status open_chat(nib_chat *c, nib_model *m, nib_err *err)
{
    const nib_tokenizer *t;
    const nib_allocator *a = &m->engine->allocator;
    const found *f = NULL;
    found all[3] = {{.text = {.text = NULL}}};
    NIB_TRY(nib__model_tokenizer(m, &t, err));
    NIB_TRY(find_template(c, m, &f, all, err));
    if (c->token_count == 0) {
        name_token(c, t, nib__tokenizer_bos(t), token_names[0]);
        name_token(c, t, nib__tokenizer_eos(t), token_names[1]);
    }
    if (f == NULL) {
        c->status =
            nib__fail(&c->err, NIB_UNSUPPORTED,
                      "%s: the model has no chat template; name one with --chat-template FILE, "
                      "or put it into chat_template.jinja beside the tokenizer",
                      m->net.directory);
        return NIB_OK;
    }
    c->status = nib__template_open(&c->template, &f->text, a, &c->err);
    if (c->status == NIB_OK && f->tools.text != NULL)
        c->status = nib__template_open(&c->tools, &f->tools, a, &c->err);
    return c->status == NIB_NO_MEMORY ? nib__fail(err, c->status, "%s", c->err.text) : NIB_OK;
}

void nib__chat_close(nib_chat *c)
{
    if (c == NULL)
        return;
    const nib_allocator *a = c->arena.allocator;
    nib__template_close(c->template);
    nib__template_close(c->tools);
    nib__arena_free(&c->arena);
    nib__release(a, c);
}

nib_status nib_chat_open(nib_model *model, nib_err *err)
{
    const nib_allocator *a = &model->engine->allocator;
    if (model->chat != NULL)
        return NIB_OK;
    nib_chat *c = nib__calloc(a, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a chat template");
    nib__arena_init(&c->arena, a, 0);
    const nib_status status = open_chat(c, model, err);
    if (status == NIB_OK)
        model->chat = c;
    else
        nib__chat_close(c);
    return status;
}

nib_status nib__chat_check(nib_model *model, nib_err *err)
{
    NIB_TRY(nib_chat_open(model, err));
    const nib_chat *c = model->chat;
    return c->status == NIB_OK ? NIB_OK : nib__fail(err, c->status, "%s", c->err.text);
}

const char *nib_chat_note(const nib_model *model)
{
    return model->chat == NULL ? NULL : model->chat->note;
}

/* ---- prompts ---- */

static nib_status check_kind(const char *json, size_t size, char first, const char *what,
                             nib_err *err)
{
    size_t at = 0;
    while (at < size && memchr(" \t\r\n", json[at], 4) != NULL)
        at++;
    if (at < size && json[at] == first)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT, "%s are no JSON %s", what,
                     first == '[' ? "array" : "object");
}

static nib_status render(nib_model *m, const nib_chat_options *o, nib_template_output *out,
                         nib_err *err)
{
    NIB_TRY(nib_chat_open(m, err));
    const nib_chat *c = m->chat;
    const nib_template *t = o->tools != NULL && c->tools != NULL ? c->tools : c->template;
    nib_template *own = NULL;
    const nib_template_value values[] = {
        {"messages", o->messages, o->messages_size},
        {"tools", o->tools != NULL ? o->tools : "null", o->tools != NULL ? o->tools_size : 4},
        {"documents", "null", 4},
        {NULL, o->variables, o->variables_size},
    };
    const nib_template_input input = {
        .tokens = c->tokens,
        .token_count = c->token_count,
        .values = values,
        .value_count = COUNT(values) - (o->variables == NULL),
        .add_generation_prompt = !o->no_generation_prompt,
        .now = o->now,
    };
    NIB_TRY(check_kind(o->messages, o->messages_size, '[', "the messages", err));
    if (o->tools != NULL)
        NIB_TRY(check_kind(o->tools, o->tools_size, '[', "the tools", err));
    if (o->variables != NULL)
        NIB_TRY(check_kind(o->variables, o->variables_size, '{', "the variables", err));
    if (o->template_text != NULL) {
        const nib_named_text text = {"the chat template", o->template_text,
                                     strlen(o->template_text)};
        NIB_TRY(nib__template_open(&own, &text, &m->engine->allocator, err));
    } else if (c->status != NIB_OK) {
        return nib__fail(err, c->status, "%s", c->err.text);
    }
    const nib_status status = nib__template_render(own != NULL ? own : t, &input, out, err);
    nib__template_close(own);
    return status;
}

nib_status nib_chat_write(nib_model *model, const nib_chat_options *options, const nib_sink *sink,
                          nib_err *err)
{
    nib_template_output out;
    nib__template_output_init(&out, &model->engine->allocator);
    nib_status status = render(model, options, &out, err);
    if (status == NIB_OK)
        status = nib__text_flush(&out.text, sink, err);
    nib__template_output_free(&out);
    return status;
}

/* The template writes BOS itself, so the tokenizer adds none. */
nib_status nib_chat_encode(nib_model *model, const nib_chat_options *options, int32_t **ids,
                           size_t *count, nib_err *err)
{
    nib_template_output out;
    nib__template_output_init(&out, &model->engine->allocator);
    nib_status status = render(model, options, &out, err);
    if (status == NIB_OK)
        status = nib__tokenizer_encode_marked(
            model->tokenizer, out.text.at == NULL ? "" : out.text.at, out.text.size, out.user,
            out.user_count, NIB_ENCODE_PARSE_SPECIAL, ids, count, err);
    nib__template_output_free(&out);
    return status;
}
