/* SPDX-License-Identifier: Apache-2.0
 *
 * Exports a trained model.
 */
#include "train_export.h"

#include "hash.h"
#include "train_checkpoint.h"
#include "train_settings.h"
#include "train_state.h"

#include <stdio.h>

enum { COPY_MAX = 256 << 20 };

/* Files copied from a tokenizer's directory. */
static const char *const tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer.gguf",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
};

typedef struct exporting {
    const nib_trainer *t;
    const nib_allocator *allocator;
    nib_arena arena;
    nib_text manifest;
    nib_jsonw w;              /* the manifest; inside "files" while files are put */
    char part[NIB_PART_PATH]; /* the directory while it is being written */
    nib_err *err;
} exporting;

static nib_status check_free(const char *place, nib_err *err)
{
    if (nib__path_kind(place) == NIB_PATH_NONE)
        return NIB_OK;
    return nib__fail(err, NIB_EXISTS,
                     "%s: exists already; name another directory for the trained model, or remove "
                     "it",
                     place);
}

static const char *append_text(nib_arena *arena, const char *path, const char *words)
{
    const size_t size = strlen(path) + strlen(words) + 1;
    char *out = nib__arena_take(arena, size, 1);
    if (out)
        snprintf(out, size, "%s%s", path, words);
    return out;
}

/* Takes an asked path, without trailing slashes. Creates and removes the directory as a test: a run
 * of days must not end with the news that it cannot be created. */
static nib_status choose_asked(const char **out, nib_trainer *t, const char *asked, nib_err *err)
{
    size_t size = strlen(asked);
    while (size > 1 && asked[size - 1] == '/')
        size--;
    if (size == 0)
        return nib__fail(err, NIB_USAGE, "the directory of --export is empty; name one");
    char *place = nib__arena_copy(&t->arena, asked, size);
    if (!place)
        return nib__fail_memory(err, size, "a path");
    NIB_TRY(check_free(place, err));
    if (nib_ranks_rank(t->ranks) == 0) {
        char part[NIB_PART_PATH];
        NIB_TRY(nib__part_choose(part, place, ".part", err));
        NIB_TRY(nib__directory_make(part, err));
        NIB_TRY(nib__path_remove(part, err));
    }
    *out = place;
    return NIB_OK;
}

/* The path that the config implies: beside the checkpoints. */
static nib_status choose_beside(const char **out, nib_trainer *t, nib_err *err)
{
    const char *folder;
    NIB_TRY(nib__saves_folder(&folder, t, err));
    *out = nib__path_join(&t->arena, folder, "model");
    if (!*out)
        return nib__fail_memory(err, strlen(folder), "a path");
    return nib_ranks_rank(t->ranks) == 0 ? nib__directories_make(folder, err) : NIB_OK;
}

nib_status nib__export_paths(nib_export_paths *out, nib_trainer *t, const char *asked, nib_err *err)
{
    const nib_train_config *c = t->config;
    *out = (nib_export_paths){.replace = !asked};
    if (!asked && !c->export_last && !(c->qat && c->save))
        return NIB_OK;
    NIB_TRY(asked ? choose_asked(&out->model, t, asked, err) : choose_beside(&out->model, t, err));
    if (!c->qat)
        return NIB_OK;
    out->quantized = append_text(&t->arena, out->model, "-quantized");
    if (!out->quantized)
        return nib__fail_memory(err, strlen(out->model), "a path");
    return asked ? check_free(out->quantized, err) : NIB_OK;
}

static nib_status put_file(exporting *e, const char *name, const char *bytes, size_t size)
{
    char hash[33];
    const char *path = nib__path_join(&e->arena, e->part, name);
    if (!path)
        return nib__fail_memory(e->err, strlen(name), "a path");
    nib__jsonw_pair_string(&e->w, name, nib__hash_text(hash, nib__hash_bytes(bytes, size)));
    return nib__file_write(path, bytes, size, e->allocator, e->err);
}

static nib_status put_text(exporting *e, const char *name, const nib_text *text)
{
    return text->failed ? nib__fail_memory(e->err, text->size, name)
                        : put_file(e, name, text->at, text->size);
}

static nib_status copy_file(exporting *e, const char *from, const char *name)
{
    char *bytes;
    size_t size;
    NIB_TRY(nib__file_read(&bytes, &size, from, COPY_MAX, e->allocator, e->err));
    const nib_status status = put_file(e, name, bytes, size);
    nib__release(e->allocator, bytes);
    return status;
}

/* Copies the files of the run's tokenizer. */
static nib_status copy_tokenizer(exporting *e)
{
    const nib_model *m = e->t->model;
    const char *at = m->tokenizer_path ? m->tokenizer_path : m->net.directory;
    if (nib__path_kind(at) != NIB_PATH_DIRECTORY)
        return copy_file(e, at, nib__ends_with(at, ".gguf") ? "tokenizer.gguf" : "tokenizer.json");
    for (size_t i = 0; i < COUNT(tokenizer_files); i++) {
        const char *from = nib__path_join(&e->arena, at, tokenizer_files[i]);
        if (!from)
            return nib__fail_memory(e->err, strlen(at), "a path");
        if (nib__path_kind(from) == NIB_PATH_FILE)
            NIB_TRY(copy_file(e, from, tokenizer_files[i]));
    }
    return NIB_OK;
}

static void put_generation(nib_text *out, const nib_tokenizer *t)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    if (nib__tokenizer_bos(t) >= 0)
        nib__jsonw_pair_int(&w, "bos_token_id", nib__tokenizer_bos(t));
    if (nib__tokenizer_eos(t) >= 0)
        nib__jsonw_pair_int(&w, "eos_token_id", nib__tokenizer_eos(t));
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
}

static nib_status put_texts(exporting *e)
{
    nib_text text;
    nib__text_init(&text, e->allocator);
    nib_status status = nib__state_config(&text, e->t, e->t->config->export_dtype, e->err);
    if (status == NIB_OK)
        status = put_text(e, "config.json", &text);
    nib__text_clear(&text);
    put_generation(&text, e->t->data.options.tokenizer);
    if (status == NIB_OK)
        status = put_text(e, "generation_config.json", &text);
    nib__text_free(&text);
    return status;
}

static nib_status put_all(exporting *e)
{
    const nib_trainer *t = e->t;
    const nib_state_block weights[] = {{"", t->weights}};
    const char *model = nib__path_join(&e->arena, e->part, "model.safetensors"),
               *manifest = nib__path_join(&e->arena, e->part, "nibble.json");
    if (!model || !manifest)
        return nib__fail_memory(e->err, strlen(e->part), "a path");
    nib__jsonw_object(&e->w);
    nib__jsonw_pair_int(&e->w, "schema", 1);
    nib__jsonw_pair_string(&e->w, "tool", "nibble " NIB_VERSION);
    nib__jsonw_pair_string(&e->w, "format", "safetensors");
    nib__jsonw_pair_int(&e->w, "trained_steps", t->optimizer.steps);
    nib__jsonw_key(&e->w, "config");
    nib__trainer_settings(&e->w, t);
    nib__jsonw_key(&e->w, "tensors");
    nib__jsonw_object(&e->w);
    NIB_TRY(nib__state_blocks(model, t, weights, 1, t->config->export_dtype, &e->w, e->err));
    nib__jsonw_object_end(&e->w);
    nib__jsonw_key(&e->w, "files");
    nib__jsonw_object(&e->w);
    NIB_TRY(put_texts(e));
    NIB_TRY(copy_tokenizer(e));
    nib__jsonw_object_end(&e->w);
    nib__jsonw_object_end(&e->w);
    nib__text_str(&e->manifest, "\n");
    return e->manifest.failed
               ? nib__fail_memory(e->err, e->manifest.size, "the manifest")
               : nib__file_write(manifest, e->manifest.at, e->manifest.size, e->allocator, e->err);
}

static nib_status write_export(exporting *e, const char *directory, bool replace)
{
    NIB_TRY(nib__part_choose(e->part, directory, ".part", e->err));
    NIB_TRY(nib__part_directory(e->part, e->err));
    nib_status status = put_all(e);
    if (status == NIB_OK)
        status = nib__publish(e->part, directory, replace, e->err);
    if (status != NIB_OK)
        (void)nib__path_remove(e->part, NULL);
    return status;
}

nib_status nib__export(const nib_trainer *t, const char *directory, bool replace, nib_err *err)
{
    exporting e = {.t = t, .allocator = &t->engine->allocator, .err = err};
    nib_status status = NIB_OK;
    if (nib_ranks_rank(t->ranks) == 0) {
        nib__arena_init(&e.arena, e.allocator, 0);
        nib__text_init(&e.manifest, e.allocator);
        nib__jsonw_init(&e.w, &e.manifest, 1);
        status = write_export(&e, directory, replace);
        nib__text_free(&e.manifest);
        nib__arena_free(&e.arena);
    }
    return nib_ranks_agree(t->ranks, status, err);
}

static nib_status quantize(const nib_trainer *t, const nib_export_paths *paths,
                           const nib_sink *sink, nib_err *err)
{
    nib_model *model;
    const nib_request *asked = &t->plan->request;
    const nib_request request = {.recipe = asked->recipe ? asked->recipe : t->config->recipe,
                                 .skip = asked->skip,
                                 .only = asked->only,
                                 .bias = asked->bias};
    const nib_quantize_options options = {
        .request = &request,
        .out = paths->quantized,
        .force = paths->replace,
    };
    NIB_TRY(nib_model_open(&model, t->engine, paths->model, NULL, err));
    const nib_status status = nib_quantize(model, &options, NIB_FORM_TEXT, sink, err);
    nib_model_close(model);
    return status;
}

nib_status nib__export_quantized(const nib_trainer *t, const nib_export_paths *paths,
                                 const nib_sink *sink, nib_err *err)
{
    const bool first = nib_ranks_rank(t->ranks) == 0;
    return nib_ranks_agree(t->ranks, first ? quantize(t, paths, sink, err) : NIB_OK, err);
}
