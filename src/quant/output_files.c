/* SPDX-License-Identifier: Apache-2.0
 *
 * Files beside the weights. Only files with listed names are copied from the source.
 */
#include "output_files.h"

#include "fused.h"
#include "json_edit.h"
#include "renames.h"

#include <stdio.h>
#include <stdlib.h>

enum { CONFIG_MAX = 16 << 20, COPY_MAX = 256 << 20 };

static const char *const copied[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.gguf", /* from a converted GGUF */
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "USE_POLICY.md",
};

const char *nib__side_file_name(size_t i) { return i < COUNT(copied) ? copied[i] : NULL; }

static nib_status add_file(nib_side_files *out, const char *name, const void *bytes, size_t size,
                           nib_err *err)
{
    if (out->count == NIB_SIDE_FILES_MAX)
        return nib__fail(err, NIB_FAILED, "%s: too many files", name);
    out->files[out->count++] = (nib_side_file){name, nib__hash_bytes(bytes, size)};
    return NIB_OK;
}

static nib_status copy_file(nib_side_files *out, nib_arena *arena, const nib_quantize_job *job,
                            const char *from, const char *to, const char *name, nib_err *err)
{
    const char *source = nib__path_join(arena, from, name),
               *target = nib__path_join(arena, to, name);
    char *bytes;
    size_t size;
    if (source == NULL || target == NULL)
        return nib__fail_memory(err, strlen(name), "a path");
    if (nib__path_kind(source) != NIB_PATH_FILE)
        return NIB_OK;
    NIB_TRY(nib__file_read(&bytes, &size, source, COPY_MAX, job->allocator, err));
    nib_status status = nib__file_write(target, bytes, size, job->allocator, err);
    if (status == NIB_OK)
        status = add_file(out, name, bytes, size, err);
    nib__release(job->allocator, bytes);
    return status;
}

/* ---- config.json ---- */

/* Reads the source's config.json, which the caller releases; *text NULL: none. */
static nib_status read_config(char **text, size_t *size, const char **name, nib_arena *arena,
                              const nib_quantize_job *job, nib_err *err)
{
    *text = NULL;
    if (job->config != NULL) {
        *name = "config.json";
        *size = strlen(job->config);
        *text = nib__calloc(job->allocator, *size + 1, 1);
        if (*text == NULL)
            return nib__fail_memory(err, *size, "config.json");
        memcpy(*text, job->config, *size);
        return NIB_OK;
    }
    *name = nib__path_join(arena, nib__checkpoint_directory(job->checkpoint), "config.json");
    if (*name == NULL)
        return nib__fail_memory(err, 16, "a path");
    if (nib__path_kind(*name) != NIB_PATH_FILE)
        return NIB_OK;
    return nib__file_read(text, size, *name, CONFIG_MAX, job->allocator, err);
}

/* All quantized layers as written; NULL: out of memory. */
static const nib_output_weight *fit_all(const nib_output_layout *r, nib_arena *arena)
{
    nib_output_weight *stored = nib__arena_take(arena, r->job->count + 1, sizeof *stored);
    for (size_t i = 0; i < r->job->count && stored != NULL; i++)
        if (nib__layer_is_quantized(&r->job->layers[i]))
            nib__output_sources_fit(r, i, &stored[i]);
    return stored;
}

/* The weights' type for config.json, as JSON; NULL: unchanged. As in a plan, the first linear layer
 * with float weights decides, if it is cast to a given type. */
static const char *written_type(const nib_quantize_job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        const nib_quantize_layer *l = &job->layers[i];
        const bool kept = l->choice.keep;
        if (l->role == NIB_ROLE_EMBED || l->role == NIB_ROLE_HEAD || nib__layer_is_quantized(l))
            continue;
        switch (kept ? NIB_TYPE_NONE : nib__float_type(l->choice.scheme.code)) {
        case NIB_TYPE_F32: return "\"float32\"";
        case NIB_TYPE_F16: return "\"float16\"";
        case NIB_TYPE_BF16: return "\"bfloat16\"";
        default: return NULL;
        }
    }
    return NULL;
}

static nib_status write_config(nib_side_files *out, nib_arena *arena, const nib_output_layout *r,
                               const char *directory)
{
    const nib_quantize_job *job = r->job;
    nib_err *err = r->err;
    const bool untied = r->separated_count != 0;
    const nib_output_weight *stored = fit_all(r, arena);
    const char *to = nib__path_join(arena, directory, "config.json"), *from;
    char *text;
    size_t size;
    nib_text quantization, edited;
    if (to == NULL || stored == NULL)
        return nib__fail_memory(err, job->count * sizeof *stored, "the config");
    NIB_TRY(read_config(&text, &size, &from, arena, job, err));
    if (text == NULL)
        return NIB_OK;
    nib__text_init(&quantization, job->allocator);
    nib__text_init(&edited, job->allocator);
    nib__quantization_config(&quantization, job, stored, r->dialect);
    nib_json_edit edits[4] = {{.key = "quantization_config", .value = quantization.at}};
    size_t count = 1;
    const char *type = written_type(job);
    if (untied)
        edits[count++] = (nib_json_edit){.key = "tie_word_embeddings", .value = "false"};
    if (type != NULL) {
        edits[count++] =
            (nib_json_edit){.key = "torch_dtype", .value = type, .only_if_present = true};
        edits[count++] = (nib_json_edit){.key = "dtype", .value = type, .only_if_present = true};
    }
    nib_status status = quantization.failed
                            ? nib__fail_memory(err, quantization.size, from)
                            : nib__json_edit(&edited, from, text, size, edits, count, err);
    if (status == NIB_OK)
        status = nib__file_write(to, edited.at, edited.size, job->allocator, err);
    if (status == NIB_OK)
        status = add_file(out, "config.json", edited.at, edited.size, err);
    nib__text_free(&quantization);
    nib__text_free(&edited);
    nib__release(job->allocator, text);
    return status;
}

static nib_status write_beside(nib_side_files *out, nib_arena *arena, const nib_quantize_job *job,
                               size_t i, const char *directory, nib_err *err)
{
    const struct nib_beside *file = &job->beside[i];
    const char *to = nib__path_join(arena, directory, file->name);
    if (to == NULL)
        return nib__fail_memory(err, strlen(directory), "a path");
    NIB_TRY(nib__file_write(to, file->text, file->size, job->allocator, err));
    return add_file(out, file->name, file->text, file->size, err);
}

/* ---- files that are not copied ---- */

enum { LEFT_SHOWN = 8, LEFT_MAX = 256 };

typedef struct left {
    nib_arena *arena;
    const char *names[LEFT_MAX];
    size_t count; /* of all; names has only the first LEFT_MAX */
} left;

/* True for weights, files that describe them, files that Nibble writes anew, and hidden files. */
static bool is_weight_file(const char *name)
{
    static const char *const whole[] = {"config.json", "nibble.json", "nibble.pack",
                                        "nibble.tokens", "params.json"};
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",
                                       ".pth",         ".pt",         ".gguf"};
    for (size_t i = 0; i < COUNT(whole); i++)
        if (strcmp(name, whole[i]) == 0)
            return true;
    for (size_t i = 0; i < COUNT(ends); i++)
        if (nib__ends_with(name, ends[i]))
            return true;
    return name[0] == '.';
}

static void note_name(void *ctx, const char *name)
{
    left *l = ctx;
    for (size_t i = 0; i < COUNT(copied); i++)
        if (strcmp(name, copied[i]) == 0)
            return;
    if (is_weight_file(name))
        return;
    if (l->count < LEFT_MAX)
        l->names[l->count] = nib__arena_copy(l->arena, name, strlen(name));
    if (l->count >= LEFT_MAX || l->names[l->count] != NULL)
        l->count++;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

nib_status nib__side_files_report(nib_output_layout *r)
{
    const char *from = nib__checkpoint_directory(r->job->checkpoint);
    left l = {.arena = &r->arena};
    if (!r->directory || from == NULL || nib__checkpoint_gguf(r->job->checkpoint) != NULL)
        return NIB_OK;
    NIB_TRY(nib__directory_each(from, note_name, &l, r->err));
    if (l.count == 0)
        return NIB_OK;
    const size_t kept = l.count < LEFT_MAX ? l.count : LEFT_MAX;
    const size_t shown = kept < LEFT_SHOWN ? kept : LEFT_SHOWN;
    nib_text list;
    char a[NIB_SHOWN];
    qsort(l.names, kept, sizeof *l.names, by_name);
    nib__text_init(&list, r->job->allocator);
    for (size_t i = 0; i < shown; i++)
        nib__text_format(&list, "%s%s", i == 0 ? "" : ", ", nib__escape_string(a, l.names[i]));
    if (shown < l.count)
        nib__text_format(&list, " and %zu more", l.count - shown);
    if (!list.failed)
        nib__ledger_add_note(r->ledger, "files", "%zu file%s beside the weights %s not copied: %s",
                             l.count, l.count == 1 ? "" : "s", l.count == 1 ? "is" : "are",
                             list.at);
    const nib_status status =
        list.failed ? nib__fail_memory(r->err, list.size, "the names of files") : NIB_OK;
    nib__text_free(&list);
    return status;
}

nib_status nib__side_files_write(nib_side_files *out, const nib_output_layout *r,
                                 const char *directory)
{
    const nib_quantize_job *job = r->job;
    const char *from = nib__checkpoint_directory(job->checkpoint);
    const bool gguf = nib__checkpoint_gguf(job->checkpoint) != NULL;
    nib_arena arena;
    *out = (nib_side_files){.count = 0};
    nib__arena_init(&arena, job->allocator, 0);
    nib_status status = write_config(out, &arena, r, directory);
    for (size_t i = 0; job->beside[i].name != NULL && status == NIB_OK; i++)
        status = write_beside(out, &arena, job, i, directory, r->err);
    for (size_t i = 0; i < COUNT(copied) && status == NIB_OK && !gguf && from != NULL; i++)
        status = copy_file(out, &arena, job, from, directory, copied[i], r->err);
    nib__arena_free(&arena);
    return status;
}

/* ---- the manifest ---- */

static void put_hash(nib_jsonw *w, const char *key, nib_hash hash)
{
    char text[33];
    nib__jsonw_pair_string(w, key, nib__hash_text(text, hash));
}

/* The name under which verify finds the tensor written as `name`. */
static const char *read_name(char out[NIB_FUSED_NAME], const nib_quantize_job *job,
                             const char *name)
{
    char ours[NIB_RENAME_MAX];
    nib_fused_part part;
    if (job->gguf == NULL)
        return name;
    const bool fused = nib__fused_part(&part, name, job->fused);
    if (!nib__rename_from_gguf(ours, job->gguf_arch, fused ? part.whole : name))
        return name;
    if (!fused)
        snprintf(out, NIB_FUSED_NAME, "%s", ours);
    return !fused || nib__fused_name(out, ours, part.part) ? out : name;
}

nib_status nib__manifest_write(const char *path, const nib_quantize_job *job,
                               const nib_ledger *ledger, const char *format, nib_hash source,
                               const nib_writer *writer, const nib_side_files *files,
                               const nib_receipt *receipt, nib_err *err)
{
    nib_text text;
    nib_jsonw w;
    nib__text_init(&text, job->allocator);
    nib__jsonw_init(&w, &text, 1);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "schema", 1);
    nib__jsonw_pair_string(&w, "tool", "nibble " NIB_VERSION);
    nib__jsonw_key(&w, "source");
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "name", nib__path_name(nib__checkpoint_path(job->checkpoint)));
    nib__jsonw_pair_int(&w, "bytes", (int64_t)nib__checkpoint_bytes(job->checkpoint));
    put_hash(&w, "xxh3_128", source);
    nib__jsonw_object_end(&w);
    nib__jsonw_pair_string(&w, "recipe", job->recipe);
    nib__jsonw_pair_string(&w, "format", format);
    nib__jsonw_key(&w, "ledger");
    nib__jsonw_object(&w);
    nib__ledger_json(ledger, &w);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "files");
    nib__jsonw_object(&w);
    for (size_t i = 0; i < files->count; i++)
        put_hash(&w, files->files[i].name, files->files[i].hash);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "tensors");
    nib__jsonw_object(&w);
    for (size_t i = 0; i < nib__writer_count(writer); i++) {
        char name[NIB_FUSED_NAME];
        put_hash(&w, read_name(name, job, nib__writer_name(writer, i)),
                 nib__writer_hash(writer, i));
    }
    nib__jsonw_object_end(&w);
    if (job->receipt != NULL) {
        nib__jsonw_key(&w, "receipt");
        nib__receipt_json(receipt, job, &w);
    }
    nib__jsonw_object_end(&w);
    nib__text_str(&text, "\n");
    const nib_status status = text.failed || ledger->failed
                                  ? nib__fail_memory(err, text.size, "the manifest")
                                  : nib__file_write(path, text.at, text.size, job->allocator, err);
    nib__text_free(&text);
    return status;
}
