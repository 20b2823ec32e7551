/* SPDX-License-Identifier: Apache-2.0
 *
 * Models of the public interface: opening, closing, their tokenizer.
 */
#include "model_handle.h"
#include "public_struct.h"

#include "gguf_vocab.h"
#include "packed.h"

#include <inttypes.h>
#include <stdio.h>

nib_status nib_model_open(nib_model **out, nib_engine *engine, const char *path,
                          const nib_model_options *options, nib_err *err)
{
    NIB_OPTIONS(nib_model_options, o, options, err);
    nib_model *m = nib__calloc(&engine->allocator, 1, sizeof *m);
    if (!m)
        return nib__fail_memory(err, sizeof *m, "the model");
    m->engine = engine;
    nib_status status = nib__network_open_with(&m->net, engine, path,
                                               o.inspect       ? NIB_NETWORK_INSPECT
                                               : o.convert     ? NIB_NETWORK_CONVERT
                                               : o.config_only ? NIB_NETWORK_CONFIG
                                                               : NIB_NETWORK_RUN,
                                               o.overrides, err);
    if (status != NIB_OK) {
        nib__release(&engine->allocator, m);
        return status;
    }
    status = nib__report_stored_config(m, err);
    if (status != NIB_OK) {
        nib_model_close(m);
        return status;
    }
    const char *tokenizer = o.tokenizer ? o.tokenizer : m->net.train.tokenizer;
    if (tokenizer) {
        m->tokenizer_path = nib__arena_copy(&m->net.arena, tokenizer, strlen(tokenizer));
        if (!m->tokenizer_path) {
            nib_model_close(m);
            return nib__fail_memory(err, strlen(tokenizer), "a path");
        }
    }
    if (o.cache_dir) {
        m->cache_dir = nib__arena_copy(&m->net.arena, o.cache_dir, strlen(o.cache_dir));
        if (!m->cache_dir) {
            nib_model_close(m);
            return nib__fail_memory(err, strlen(o.cache_dir), "a path");
        }
    }
    /* open a named tokenizer at once, so that a wrong one also fails commands that do not use it */
    const nib_tokenizer *named;
    if (o.tokenizer && !o.inspect && !o.convert)
        status = nib__model_tokenizer(m, &named, err);
    if (status != NIB_OK) {
        nib_model_close(m);
        return status;
    }
    *out = m;
    return NIB_OK;
}

void nib_model_close(nib_model *model)
{
    if (!model)
        return;
    nib__chat_close(model->chat);
    if (model->tokenizer)
        nib__tokenizer_close(model->tokenizer);
    nib__packed_close(model->packed);
    nib__network_close(&model->net);
    nib__release(&model->engine->allocator, model);
}

nib_status nib__model_runs(const nib_model *model, nib_err *err)
{
    if (!model->net.inspected && !model->net.unknown)
        return NIB_OK;
    if (!model->net.inspected)
        return nib__fail(err, NIB_USAGE,
                         "%s: the model's architecture is unknown: it was opened only for "
                         "conversion (nib_model_options.convert)",
                         model->net.directory);
    return nib__fail(err, NIB_USAGE,
                     "%s: the model was opened only for inspection (nib_model_options.inspect)",
                     model->net.directory);
}

nib_status nib__tokenizer_file(const char **out, const char *at, nib_arena *arena, nib_err *err)
{
    nib_path_kind kind;
    *out = at;
    NIB_TRY(nib__path_look(&kind, at, err));
    if (kind != NIB_PATH_DIRECTORY)
        return NIB_OK;
    const char *json = nib__path_join(arena, at, "tokenizer.json"),
               *gguf = nib__path_join(arena, at, "tokenizer.gguf");
    if (!json || !gguf)
        return nib__fail_memory(err, strlen(at), "a path");
    const bool is_gguf =
        nib__path_kind(json) == NIB_PATH_NONE && nib__path_kind(gguf) == NIB_PATH_FILE;
    *out = is_gguf ? gguf : json;
    return NIB_OK;
}

void nib__model_say_tokenizer(const nib_model *m, nib_ledger *ledger)
{
    const nib_checkpoint *cp = m->net.checkpoint;
    const char *at = m->tokenizer_path ? m->tokenizer_path : m->net.directory, *file;
    const char *config = NULL;
    nib_err err;
    if (m->net.training || (cp && nib__checkpoint_gguf(cp) && !m->tokenizer_path))
        return;
    if (nib__tokenizer_file(&file, at, &ledger->arena, &err) != NIB_OK) {
        ledger->failed = ledger->failed || err.status == NIB_NO_MEMORY;
        return; /* a model without a tokenizer */
    }
    if (nib__path_kind(file) != NIB_PATH_FILE || nib__gguf_begins(file))
        return;
    if (nib__path_kind(at) == NIB_PATH_DIRECTORY) {
        config = nib__path_join(&ledger->arena, at, "tokenizer_config.json");
        ledger->failed = ledger->failed || config == NULL;
    }
    nib__tokenizer_report(ledger, file,
                          config && nib__path_kind(config) == NIB_PATH_FILE ? config : NULL);
}

/* Opens a tokenizer.json, with the files beside it, or a GGUF. *shown: the file, for messages. */
static nib_status open_tokenizer_at(nib_model *m, const char *at, const char **shown, nib_err *err)
{
    const nib_allocator *a = &m->engine->allocator;
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, at, err));
    const bool directory = kind == NIB_PATH_DIRECTORY;
    const char *file;
    const char *config =
        directory ? nib__path_join(&m->net.arena, at, "tokenizer_config.json") : NULL;
    if (directory && !config)
        return nib__fail_memory(err, strlen(at), "a path");
    NIB_TRY(nib__tokenizer_file(&file, at, &m->net.arena, err));
    *shown = file;
    if (nib__path_kind(file) == NIB_PATH_NONE)
        return nib__fail(err, NIB_IO, "%s: there is no tokenizer; name one with %s FILE or DIR",
                         file, m->net.training ? "--model.tokenizer_path" : "--tokenizer");
    if (nib__gguf_begins(file))
        return nib__gguf_tokenizer_open(&m->tokenizer, file, a, err);
    if (config && nib__path_kind(config) != NIB_PATH_FILE)
        config = NULL;
    return nib__tokenizer_open(&m->tokenizer, file, config, a, err);
}

/* Opens the named tokenizer, else the one inside the GGUF, else the one beside the weights. */
static nib_status open_tokenizer(nib_model *m, const char **shown, nib_err *err)
{
    const nib_checkpoint *cp = m->net.checkpoint;
    const nib_gguf *gguf = cp ? nib__checkpoint_gguf(cp) : NULL;
    if (m->tokenizer_path || !gguf || !nib__gguf_find(gguf, "tokenizer.ggml.model"))
        return open_tokenizer_at(m, m->tokenizer_path ? m->tokenizer_path : m->net.directory, shown,
                                 err);
    *shown = nib__checkpoint_path(cp);
    return nib__gguf_tokenizer(&m->tokenizer, gguf, &m->engine->allocator, err);
}

/* Closes a tokenizer that belongs to another model. */
static nib_status check_ids(nib_model *m, const char *shown, nib_err *err)
{
    const int64_t ids = nib__tokenizer_vocab_size(m->tokenizer),
                  rows = nib__min(nib__network_embed(&m->net)->n, nib__network_head(&m->net)->n);
    if (ids <= rows || m->net.training) /* training checks the ids of its data */
        return NIB_OK;
    nib__tokenizer_close(m->tokenizer);
    m->tokenizer = NULL;
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: the tokenizer has ids up to %" PRId64 ", but the model has %" PRId64
                     " tokens; does it belong to another model?",
                     shown, ids - 1, rows);
}

const char *nib__kept_path(nib_model *m, nib_hash what, const char *end)
{
    char text[33], name[64];
    snprintf(name, sizeof name, "%s.%s", nib__hash_text(text, what), end);
    return nib__path_join(&m->net.arena, m->cache_dir, name);
}

static nib_status open_tables(nib_model *m, nib_err *err)
{
    nib_arena *arena = &m->net.arena;
    const char *at = m->net.directory;
    const char *tables = nib__path_join(arena, at, NIB_TABLES_NAME),
               *json = nib__path_join(arena, at, "tokenizer.json"),
               *config = nib__path_join(arena, at, "tokenizer_config.json");
    if (!tables || !json || !config)
        return nib__fail_memory(err, strlen(at), "a path");
    if (nib__path_kind(json) == NIB_PATH_NONE)
        return NIB_OK;
    if (nib__path_kind(tables) == NIB_PATH_NONE && m->cache_dir) {
        tables = nib__kept_path(m, nib__path_hash(json), "tokens");
        if (!tables)
            return nib__fail_memory(err, strlen(at), "a path");
        m->tables = tables; /* unless they exist and are valid */
    }
    if (nib__path_kind(tables) == NIB_PATH_NONE)
        return NIB_OK;
    if (nib__path_kind(config) != NIB_PATH_FILE)
        config = NULL;
    NIB_TRY(nib__tokenizer_open_tables(&m->tokenizer, tables, json, config, &m->engine->allocator,
                                       err));
    m->tables = NULL;
    return check_ids(m, tables, err);
}

void nib__model_tables(nib_model *m)
{
    nib_err err = {NIB_OK, ""};
    if (m->tokenizer || m->tables_asked || m->tokenizer_path || m->net.training ||
        nib__path_kind(m->net.directory) != NIB_PATH_DIRECTORY)
        return;
    m->tables_asked = true;
    if (open_tables(m, &err) != NIB_OK)
        nib__ledger_add_note(&m->net.notes, "packed", "%s; tokenizer.json is read instead",
                             err.text);
}

nib_status nib__model_tokenizer(nib_model *m, const nib_tokenizer **out, nib_err *err)
{
    NIB_TRY(nib__model_runs(m, err));
    nib__model_tables(m);
    if (!m->tokenizer) {
        const char *shown = NULL;
        NIB_TRY(open_tokenizer(m, &shown, err));
        NIB_TRY(check_ids(m, shown, err));
    }
    *out = m->tokenizer;
    return NIB_OK;
}

nib_status nib_tokenize(nib_model *model, const char *text, size_t size, bool add_special,
                        int32_t **ids, size_t *count, nib_err *err)
{
    const nib_tokenizer *t;
    NIB_TRY(nib__model_tokenizer(model, &t, err));
    return nib__tokenizer_encode(t, text, size, add_special ? NIB_ENCODE_ADD_SPECIAL : 0, ids,
                                 count, err);
}

void nib_tokens_free(nib_model *model, int32_t *ids)
{
    if (ids) /* without ids there may be no tokenizer */
        nib__tokenizer_ids_free(model->tokenizer, ids);
}

nib_status nib_detokenize(nib_model *model, const int32_t *ids, size_t count, const nib_sink *sink,
                          nib_err *err)
{
    const nib_tokenizer *t;
    NIB_TRY(nib__model_tokenizer(model, &t, err));
    nib_text text;
    nib__text_init(&text, &model->engine->allocator);
    nib_status status = nib__tokenizer_decode(t, ids, count, false, &text, err);
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib__model_check_files(nib_model *m, nib_status status, nib_err *err)
{
    status = nib__checkpoint_check_files(m->net.checkpoint, status, err);
    if (m->packed != NULL)
        status = nib__packed_check(m->packed, status, err);
    return m->tokenizer != NULL ? nib__tokenizer_read(m->tokenizer, status, err) : status;
}

void nib__log_settings(const nib_engine *engine, const nib_ledger *ledger, size_t first)
{
    const nib_callbacks *c = &engine->callbacks;
    nib_ledger rest = *ledger;
    nib_text text;
    if (c->log == NULL || first >= ledger->setting_count)
        return;
    rest.settings += first;
    rest.setting_count -= first;
    nib__text_init(&text, &engine->allocator);
    nib__ledger_render_settings(&rest, NIB_SETTING_EQUIVALENT, &text);
    if (text.size > 0 && !text.failed) {
        text.at[text.size - 1] = '\0'; /* the log ends lines itself */
        c->log(c->ctx, text.at);
    }
    nib__text_free(&text);
}
