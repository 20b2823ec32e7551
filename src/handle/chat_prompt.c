/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations to prompts: finds a model's chat template and the special tokens that it names,
 * renders it, and encodes the text so that no user text becomes a special token. The template stays
 * with the model and never changes, so threads may render at the same time.
 */
#include "model_handle.h"
#include "public_struct.h"

#include "chat_files.h"
#include "gguf_vocab.h"

struct nib_chat {
    nib_arena arena;
    nib_template *template, *tools; /* tools: for conversations with tools; either may be NULL */
    nib_chat_files files;
    bool found;        /* its files were read */
    const char *text;  /* the model's template; NULL: none */
    nib_status status; /* of opening it */
    nib_err err;
    nib_err unread;   /* why its files or the tokenizer cannot be read; status NIB_OK: they were */
    const char *note; /* NULL: nothing to say */
};

/* ---- finding the template ---- */

static nib_status read_gguf(nib_chat *c, nib_chat_source *f, const nib_gguf *gguf, const char *path,
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

/* Adds a token of the tokenizer, for models whose files do not name special tokens. */
static void name_token(nib_chat *c, const nib_tokenizer *t, int32_t id, const char *name)
{
    size_t size;
    const char *text = id < 0 ? NULL : nib__tokenizer_token(t, id, &size);
    if (text != NULL)
        nib__chat_files_add(&c->files, name, text, size);
}

/* The directory of the tokenizer. */
static nib_status tokenizer_directory(nib_chat *c, const nib_model *m, const char **out,
                                      nib_err *err)
{
    *out = m->tokenizer_path != NULL ? m->tokenizer_path : m->net.directory;
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, *out, err));
    if (kind != NIB_PATH_FILE)
        return NIB_OK;
    const size_t size = (size_t)(nib__path_name(*out) - *out);
    *out = size == 0 ? "." : nib__arena_copy(&c->arena, *out, size);
    return *out != NULL ? NIB_OK : nib__fail_memory(err, size, "a path");
}

static bool differ(const nib_chat_source *a, const nib_chat_source *b)
{
    return b->text.text != NULL &&
           (a->text.size != b->text.size || memcmp(a->text.text, b->text.text, a->text.size) != 0);
}

/* Chooses the first source with a template; the note names the sources whose template differs. */
static nib_status choose_template(nib_chat *c, const nib_chat_source *all, size_t count,
                                  const nib_chat_source **out, nib_err *err)
{
    nib_text note;
    nib__text_init(&note, c->arena.allocator);
    *out = NULL;
    for (size_t i = 0; i < count; i++) {
        if (*out == NULL && all[i].text.text != NULL) {
            *out = &all[i];
        } else if (*out != NULL && differ(*out, &all[i])) {
            char a[NIB_SHOWN], b[NIB_SHOWN];
            nib__text_format(&note,
                             "%s%s has a different chat template from that of %s, which is used",
                             note.size == 0 ? "" : "; ", nib__escape_string(a, all[i].text.name),
                             nib__escape_string(b, (*out)->text.name));
        }
    }
    c->note = note.size == 0 ? NULL : nib__arena_copy(&c->arena, note.at, note.size);
    const bool whole = !note.failed && (note.size == 0 || c->note != NULL);
    nib__text_free(&note);
    return whole ? NIB_OK : nib__fail_memory(err, 0, "a note");
}

/* chat_template.jinja comes first; then the GGUF, if its tokenizer is used; then
 * tokenizer_config.json. */
static nib_status find_template(nib_chat *c, const nib_model *m, const nib_chat_source **out,
                                nib_chat_source all[3], nib_err *err)
{
    const char *directory;
    NIB_TRY(tokenizer_directory(c, m, &directory, err));
    NIB_TRY(nib__chat_files_read(&c->files, directory, &c->arena, err));
    const char *path;
    const nib_gguf *gguf = nib__model_gguf(m, &path);
    all[0] = c->files.own;
    if (gguf != NULL)
        NIB_TRY(read_gguf(c, &all[1], gguf, path, err));
    all[2] = c->files.config;
    return choose_template(c, all, 3, out, err);
}

static nib_status open_chat(nib_chat *c, nib_model *m, nib_err *err)
{
    const nib_tokenizer *t;
    const nib_allocator *a = &m->engine->allocator;
    const nib_chat_source *f = NULL;
    nib_chat_source all[3] = {{.text = {.text = NULL}}};
    NIB_TRY(nib__model_runs(m, err));
    NIB_TRY(find_template(c, m, &f, all, err));
    c->found = true;
    c->text = f != NULL ? f->text.text : NULL;
    NIB_TRY(nib_model_tokenizer(&t, m, err));
    if (c->files.token_count == 0) {
        name_token(c, t, nib__tokenizer_bos(t), "bos_token");
        name_token(c, t, nib__tokenizer_eos(t), "eos_token");
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
    NIB_NEED(err, "model", model);
    const nib_allocator *a = &model->engine->allocator;
    nib_chat *c = model->chat;
    if (c != NULL)
        return c->unread.status == NIB_OK ? NIB_OK
                                          : nib__fail(err, c->unread.status, "%s", c->unread.text);
    c = nib__calloc(a, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a chat template");
    nib__arena_init(&c->arena, a, 0);
    nib_err why = {.status = NIB_OK};
    if (open_chat(c, model, &why) == NIB_NO_MEMORY) {
        nib__chat_close(c);
        return nib__fail(err, NIB_NO_MEMORY, "%s", why.text);
    }
    /* Files are read once: later the process may be in a sandbox. */
    c->unread = why;
    model->chat = c;
    return why.status == NIB_OK ? NIB_OK : nib__fail(err, why.status, "%s", why.text);
}

nib_status nib__chat_check(nib_model *model, nib_err *err)
{
    NIB_TRY(nib_chat_open(model, err));
    const nib_chat *c = model->chat;
    return c->status == NIB_OK ? NIB_OK : nib__fail(err, c->status, "%s", c->err.text);
}

nib_status nib__chat_text(const char **out, nib_model *model, nib_err *err)
{
    nib_err why; /* a model without a tokenizer may have a template */
    const nib_status status = nib_chat_open(model, &why);
    if (model->chat == NULL || !model->chat->found)
        return nib__fail(err, status, "%s", why.text);
    *out = model->chat->text;
    return NIB_OK;
}

const char *nib_chat_note(const nib_model *model)
{
    if (model == NULL)
        return NULL;
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
    return nib__fail(err, NIB_BAD_INPUT, "%s are not a JSON %s", what,
                     first == '[' ? "array" : "object");
}

nib_status nib__chat_template(const nib_template **out, nib_template **own, nib_model *m,
                              const nib_chat_options *o, nib_err *err)
{
    *own = NULL;
    NIB_TRY(nib_chat_open(m, err));
    const nib_chat *c = m->chat;
    *out = o->tools != NULL && c->tools != NULL ? c->tools : c->template;
    if (o->template_text == NULL)
        return c->status == NIB_OK ? NIB_OK : nib__fail(err, c->status, "%s", c->err.text);
    const nib_named_text text = {"the chat template", o->template_text, strlen(o->template_text)};
    NIB_TRY(nib__template_open(own, &text, &m->engine->allocator, err));
    *out = *own;
    return NIB_OK;
}

nib_status nib__chat_render(nib_model *m, const nib_chat_options *o, nib_template_output *out,
                            nib_err *err)
{
    const nib_template *t;
    nib_template *own;
    NIB_TRY(nib_chat_open(m, err));
    const nib_chat *c = m->chat;
    const nib_template_value values[] = {
        {"messages", o->messages, o->messages_size},
        {"tools", o->tools != NULL ? o->tools : "null", o->tools != NULL ? o->tools_size : 4},
        {"documents", "null", 4},
        {NULL, o->variables, o->variables_size},
    };
    const nib_template_input input = {
        .tokens = c->files.tokens,
        .token_count = c->files.token_count,
        .values = values,
        .value_count = COUNT(values) - (o->variables == NULL),
        .add_generation_prompt = !o->no_generation_prompt,
        .now = o->now,
    };
    if (o->messages == NULL && o->messages_size > 0)
        return nib__fail(err, NIB_USAGE,
                         "nib_chat_options.messages is NULL, but messages_size is %zu",
                         o->messages_size);
    NIB_TRY(check_kind(o->messages, o->messages_size, '[', "the messages", err));
    if (o->tools != NULL)
        NIB_TRY(check_kind(o->tools, o->tools_size, '[', "the tools", err));
    if (o->variables != NULL)
        NIB_TRY(check_kind(o->variables, o->variables_size, '{', "the variables", err));
    NIB_TRY(nib__chat_template(&t, &own, m, o, err));
    const nib_status status = nib__template_render(t, &input, out, err);
    nib__template_close(own);
    return status;
}

nib_status nib_chat_write(nib_model *model, const nib_chat_options *options, const nib_sink *sink,
                          nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__sink_check(sink, err));
    NIB_OPTIONS(nib_chat_options, o, options, err);
    nib_template_output out;
    nib__template_output_init(&out, &model->engine->allocator);
    nib_status status = nib__chat_render(model, &o, &out, err);
    if (status == NIB_OK)
        status = nib__text_flush(&out.text, sink, err);
    nib__template_output_free(&out);
    return status;
}

/* The template writes BOS itself, so the tokenizer adds none. */
nib_status nib__chat_encode(nib_model *model, const nib_chat_options *options,
                            const nib_encoding *limits, int32_t **ids, size_t *count, nib_err *err)
{
    nib_template_output out;
    nib__template_output_init(&out, &model->engine->allocator);
    nib_status status = nib__chat_render(model, options, &out, err);
    const nib_encoding how = {.flags = NIB_ENCODE_PARSE_SPECIAL,
                              .marked = out.user,
                              .marked_count = out.user_count,
                              .max_ids = limits->max_ids,
                              .max_word = limits->max_word};
    if (status == NIB_OK)
        status = nib__tokenizer_encode_as(model->tokenizer, out.text.at == NULL ? "" : out.text.at,
                                          out.text.size, &how, ids, count, err);
    nib__template_output_free(&out);
    return status;
}

nib_status nib_chat_encode(nib_model *model, const nib_chat_options *options, int32_t **ids,
                           size_t *count, nib_err *err)
{
    NIB_NEED(err, "model, ids, count", model, ids, count);
    NIB_OPTIONS(nib_chat_options, o, options, err);
    return nib__chat_encode(model, &o, &(nib_encoding){.flags = 0}, ids, count, err);
}
