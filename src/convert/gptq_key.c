/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the store of a run, under a key of all that its content depends on, and says what an
 * earlier run left there.
 */
#include "gptq_run.h"

#include <inttypes.h>

enum { TEXT_MAX = 64 << 20 };

static void add_file(nib_hasher *hasher, const nib_map *map)
{
    const uint64_t file[] = {map->size, (uint64_t)map->modified_ns};
    nib__hasher_add(hasher, file, sizeof file);
}

static void add_tensor(nib_hasher *hasher, const nib_tensor *t)
{
    const int64_t facts[] = {(int64_t)t->type, t->rank, (int64_t)t->bytes, t->file};
    nib__hasher_add(hasher, t->name, strlen(t->name) + 1);
    nib__hasher_add(hasher, facts, sizeof facts);
    nib__hasher_add(hasher, t->shape, (size_t)t->rank * sizeof *t->shape);
}

/* The config.json, if there is one. */
static nib_status add_config(nib_hasher *hasher, const nib_gptq_run *g, nib_err *err)
{
    const nib_allocator *a = &g->model->engine->allocator;
    const char *directory = nib__checkpoint_directory(g->model->net.checkpoint);
    char *text;
    size_t size;
    if (directory == NULL)
        return NIB_OK;
    const char *path = nib__path_join(g->job->arena, directory, "config.json");
    if (path == NULL)
        return nib__fail_memory(err, strlen(directory), "a path");
    if (nib__path_kind(path) != NIB_PATH_FILE)
        return NIB_OK;
    NIB_TRY(nib__file_read(&text, &size, path, TEXT_MAX, a, err));
    nib__hasher_add(hasher, text, size);
    nib__release(a, text);
    return NIB_OK;
}

/* The files by size and time of the last change, their tensors, and config.json. */
static nib_status hash_source(nib_hash *out, const nib_gptq_run *g, nib_err *err)
{
    const nib_checkpoint *cp = g->model->net.checkpoint;
    nib_hasher *hasher = nib__hasher_open();
    if (hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    for (size_t i = 0; i < nib__checkpoint_file_count(cp); i++)
        add_file(hasher, nib__checkpoint_file(cp, i));
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++)
        add_tensor(hasher, nib__checkpoint_at(cp, i));
    const nib_status status = add_config(hasher, g, err);
    *out = nib__hasher_finish(hasher);
    return status;
}

/* Which layers the method codes, and into what. */
static nib_status hash_recipe(nib_hash *out, const nib_gptq_run *g, const nib_gptq_saved *saved,
                              nib_err *err)
{
    nib_hasher *hasher = nib__hasher_open();
    char name[64];
    if (hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    for (size_t i = 0; i < g->model->net.site_count; i++) {
        const nib_quantize_layer *l = &g->job->layers[i];
        if (!saved->is_saved(g, i))
            continue;
        const char *method = nib__ptq_names[l->choice.method],
                   *order = nib__order_names[nib__gptq_order(g, i).kind];
        nib__scheme_name(name, &l->choice.scheme);
        nib__hasher_add(hasher, method, strlen(method) + 1);
        nib__hasher_add(hasher, order, strlen(order) + 1);
        nib__hasher_add(hasher, l->name, strlen(l->name) + 1);
        nib__hasher_add(hasher, name, strlen(name) + 1);
        nib__hasher_add(hasher, nib__type_name(l->choice.scale_type),
                        strlen(nib__type_name(l->choice.scale_type)) + 1);
    }
    *out = nib__hasher_finish(hasher);
    return NIB_OK;
}

/* What the codes depend on. The text counts by the tokens that are used. */
static nib_status write_key(nib_text *out, const nib_gptq_run *g, const nib_gptq_saved *saved,
                            nib_type dtype, nib_err *err)
{
    nib_hash source, recipe;
    char a[33], b[33], c[33];
    const nib_hash text = nib__hash_bytes(g->ids, (uint64_t)g->count * sizeof *g->ids);
    NIB_TRY(hash_source(&source, g, err));
    NIB_TRY(hash_recipe(&recipe, g, saved, err));
    nib__text_format(out,
                     "program: %s\nsource: %s\nrecipe: %s\ntext: %s\ntokens: %" PRId64
                     "\nwindow: %" PRId64 "\ndtype: %s\n",
                     nib_version(), nib__hash_text(a, source), nib__hash_text(b, recipe),
                     nib__hash_text(c, text), g->count, g->window, nib__type_name(dtype));
    if (saved->key != NULL)
        nib__text_format(out, "%s", saved->key);
    return out->failed ? nib__fail_memory(err, out->size, "a key") : NIB_OK;
}

/* Notes what was found of an earlier run, if anything was, and tells it at once. */
static void note_found(nib_gptq_run *g, const nib_gptq_saved *saved, const char *other)
{
    const nib_callbacks *call = &g->model->engine->callbacks;
    nib_text *out = &g->job->resumed;
    size_t found = 0, damaged = 0;
    char a[NIB_SHOWN];
    (void)nib__escape_string(a, nib__gptq_store_path(g->store));
    for (size_t i = 0; i < saved->layers; i++) {
        bool bad;
        found += nib__gptq_store_has(g->store, i, &bad);
        damaged += bad;
    }
    if (other != NULL)
        nib__text_format(out,
                         "%s: %s held %s of a run with another %s, so they are gone, and all "
                         "layers are %s anew",
                         g->job->name, a, saved->noun, other, saved->done);
    else if (found + damaged > 0)
        nib__text_format(out, "%s: %zu of %zu layers have %s of an earlier run in %s", g->job->name,
                         found, saved->layers, saved->noun, a);
    if (damaged > 0)
        nib__text_format(out, "; those of %zu more are damaged, and are %s anew", damaged,
                         saved->done);
    if (out->size != 0 && other == NULL && saved->more != NULL)
        saved->more(out, g);
    if (out->size != 0 && !out->failed && call->log != NULL)
        call->log(call->ctx, out->at);
}

nib_status nib__gptq_open_store(nib_gptq_run *g, const nib_gptq_saved *saved, nib_type dtype,
                                nib_err *err)
{
    const nib_allocator *a = &g->model->engine->allocator;
    const char *other;
    nib_text key;
    nib__text_init(&key, a);
    nib_status status = write_key(&key, g, saved, dtype, err);
    if (status == NIB_OK)
        status = nib__gptq_store_open(&g->store, g->job->out, key.at, saved->parts, &other, a, err);
    nib__text_free(&key);
    g->job->store = g->store;
    if (status == NIB_OK)
        note_found(g, saved, other);
    return status;
}
