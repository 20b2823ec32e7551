/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds and opens tokenizers: a model's own, and those that are opened without a model.
 */
#include "model_handle.h"
#include "public_struct.h"

#include "gguf_vocab.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- files ---- */

/* The files of a tokenizer. Those beside a tokenizer.json count only if its directory is named. */
typedef struct files {
    const char *main;   /* tokenizer.json or a GGUF; it need not exist */
    const char *config; /* tokenizer_config.json; NULL: none */
    const char *tables; /* prebuilt; NULL: none */
} files;

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

static nib_status find_beside(const char **out, const char *at, const char *name, nib_arena *arena,
                              nib_err *err)
{
    *out = nib__path_join(arena, at, name);
    if (!*out)
        return nib__fail_memory(err, strlen(at), "a path");
    if (nib__path_kind(*out) != NIB_PATH_FILE)
        *out = NULL;
    return NIB_OK;
}

static nib_status find_files(files *out, const char *at, nib_arena *arena, nib_err *err)
{
    *out = (files){.config = NULL};
    NIB_TRY(nib__tokenizer_file(&out->main, at, arena, err));
    if (nib__path_kind(at) != NIB_PATH_DIRECTORY)
        return NIB_OK;
    NIB_TRY(find_beside(&out->config, at, "tokenizer_config.json", arena, err));
    return find_beside(&out->tables, at, NIB_TABLES_NAME, arena, err);
}

/* Opens a tokenizer.json, with the files beside it, or a GGUF. */
static nib_status open_main(nib_tokenizer **out, const files *f, const nib_allocator *a,
                            nib_err *err)
{
    return nib__gguf_begins(f->main) ? nib__gguf_tokenizer_open(out, f->main, a, err)
                                     : nib__tokenizer_open(out, f->main, f->config, a, err);
}

/* ---- without a model ---- */

/* Logs why tables cannot be used. */
static void open_tables(nib_tokenizer **out, const files *f, const nib_engine *engine)
{
    const nib_callbacks *c = &engine->callbacks;
    nib_err err;
    char line[sizeof err.text + 40];
    if (!f->tables || nib__path_kind(f->main) == NIB_PATH_NONE || nib__gguf_begins(f->main))
        return;
    if (nib__tokenizer_open_tables(out, f->tables, f->main, f->config, &engine->allocator, &err) ==
            NIB_OK ||
        !c->log)
        return;
    snprintf(line, sizeof line, "%s; tokenizer.json is read instead", err.text);
    c->log(c->ctx, line);
}

nib_status nib_tokenizer_open(nib_tokenizer **out, nib_engine *engine, const char *path,
                              nib_err *err)
{
    NIB_NEED(err, "out, engine, path", out, engine, path);
    nib_tokenizer *opened = NULL;
    nib_arena arena;
    files f;
    nib__arena_init(&arena, &engine->allocator, 0);
    nib_status status = find_files(&f, path, &arena, err);
    if (status == NIB_OK && nib__path_kind(f.main) == NIB_PATH_NONE)
        status = nib__fail(err, NIB_IO,
                           "%s: no tokenizer found; name a tokenizer.json, a directory that has "
                           "one, or a GGUF",
                           f.main);
    if (status == NIB_OK)
        open_tables(&opened, &f, engine);
    if (status == NIB_OK && !opened)
        status = open_main(&opened, &f, &engine->allocator, err);
    nib__arena_free(&arena);
    if (status == NIB_OK)
        *out = opened;
    return status;
}

void nib_tokens_free(nib_engine *engine, int32_t *ids)
{
    if (engine != NULL)
        nib__release(&engine->allocator, ids);
}

/* ---- of a model ---- */

static const char *tokenizer_place(const nib_model *m)
{
    return m->tokenizer_path ? m->tokenizer_path : m->net.directory;
}

const nib_gguf *nib__model_gguf(const nib_model *m, const char **path)
{
    const nib_checkpoint *cp = m->net.checkpoint ? m->net.checkpoint : m->net.described;
    const nib_gguf *gguf = m->tokenizer_path ? NULL : nib__checkpoint_gguf(cp);
    if (gguf)
        *path = nib__checkpoint_path(cp);
    return gguf;
}

/* The model's GGUF, if a tokenizer is in it. */
static const nib_gguf *tokenizer_gguf(const nib_model *m, const char **path)
{
    const nib_gguf *gguf = nib__model_gguf(m, path);
    return gguf && nib__gguf_find(gguf, "tokenizer.ggml.model") ? gguf : NULL;
}

nib_status nib__model_has_tokenizer(bool *out, const nib_model *m, nib_err *err)
{
    const char *file;
    nib_arena arena;
    *out = m->tokenizer || tokenizer_gguf(m, &file);
    if (*out)
        return NIB_OK;
    nib__arena_init(&arena, &m->engine->allocator, 0);
    const nib_status status = nib__tokenizer_file(&file, tokenizer_place(m), &arena, err);
    *out = status == NIB_OK && nib__path_kind(file) != NIB_PATH_NONE;
    nib__arena_free(&arena);
    return status;
}

void nib__model_say_tokenizer(const nib_model *m, nib_ledger *ledger)
{
    files f;
    nib_err err;
    const char *path;
    if (m->net.training || nib__model_gguf(m, &path))
        return;
    if (find_files(&f, tokenizer_place(m), &ledger->arena, &err) != NIB_OK) {
        ledger->failed = ledger->failed || err.status == NIB_NO_MEMORY;
        return; /* a model without a tokenizer */
    }
    if (nib__path_kind(f.main) == NIB_PATH_FILE && !nib__gguf_begins(f.main))
        nib__tokenizer_report(ledger, f.main, f.config);
}

/* Opens the named tokenizer, else the one inside the GGUF, else the one beside the weights. *shown:
 * the file, for messages. */
static nib_status open_tokenizer(nib_model *m, const char **shown, nib_err *err)
{
    const nib_allocator *a = &m->engine->allocator;
    const nib_gguf *gguf = tokenizer_gguf(m, shown);
    files f;
    if (gguf)
        return nib__gguf_tokenizer(&m->tokenizer, gguf, a, err);
    NIB_TRY(find_files(&f, tokenizer_place(m), &m->net.arena, err));
    *shown = f.main;
    if (nib__path_kind(f.main) == NIB_PATH_NONE)
        return nib__fail(err, NIB_IO, "%s: no tokenizer found; name one with %s FILE or DIR",
                         f.main, m->net.training ? "--model.tokenizer_path" : "--tokenizer");
    return open_main(&m->tokenizer, &f, a, err);
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

static nib_status open_model_tables(nib_model *m, nib_err *err)
{
    files f;
    NIB_TRY(find_files(&f, m->net.directory, &m->net.arena, err));
    if (nib__path_kind(f.main) == NIB_PATH_NONE || nib__gguf_begins(f.main))
        return NIB_OK;
    if (!f.tables && m->cache_dir) {
        f.tables = nib__kept_path(m, nib__path_hash(f.main), "tokens");
        if (!f.tables)
            return nib__fail_memory(err, strlen(m->cache_dir), "a path");
        m->tables = f.tables; /* unless they exist and are valid */
    }
    if (!f.tables || nib__path_kind(f.tables) == NIB_PATH_NONE)
        return NIB_OK;
    NIB_TRY(nib__tokenizer_open_tables(&m->tokenizer, f.tables, f.main, f.config,
                                       &m->engine->allocator, err));
    m->tables = NULL;
    return check_ids(m, f.tables, err);
}

void nib__model_tables(nib_model *m)
{
    nib_err err = {NIB_OK, ""};
    if (m->tokenizer || m->tables_asked || m->tokenizer_path || m->net.training ||
        nib__path_kind(m->net.directory) != NIB_PATH_DIRECTORY)
        return;
    m->tables_asked = true;
    if (open_model_tables(m, &err) != NIB_OK)
        nib__ledger_add_note(&m->net.notes, "packed", "%s; tokenizer.json is read instead",
                             err.text);
}

nib_status nib_model_tokenizer(const nib_tokenizer **out, nib_model *m, nib_err *err)
{
    NIB_NEED(err, "out, model", out, m);
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
