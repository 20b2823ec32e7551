/* SPDX-License-Identifier: Apache-2.0
 *
 * Receipts: hashes of source and output, and their JSON.
 */
#include "receipt.h"

#include "gguf.h"
#include "output_files.h"

#include <stdlib.h>

enum { PIECE = 8 << 20 };

nib_digest nib__digest_tensor(const nib_checkpoint *cp, const nib_tensor *tensor)
{
    const uint64_t span = nib__tensor_span(tensor);
    nib_sha256 hash;
    nib__sha256_init(&hash);
    for (uint64_t at = 0; at < span; at += PIECE) {
        const uint64_t left = span - at, some = left < PIECE ? left : PIECE;
        nib__sha256_add(&hash, tensor->data + at, (size_t)some);
        nib__checkpoint_release(cp, tensor->data + at, some);
    }
    return nib__sha256_finish(&hash);
}

/* ---- files ---- */

static nib_status add_file(nib_digests *out, const char *directory, const char *name,
                           nib_arena *arena, const nib_allocator *a, nib_err *err)
{
    const char *path = nib__path_join(arena, directory, name);
    nib_digest digest;
    uint64_t size;
    if (path == NULL)
        return nib__fail_memory(err, strlen(name), "a path");
    NIB_TRY(nib__digest_file(&digest, &size, path, err));
    return nib__digests_add(out, name, &digest, a, err);
}

/* Adds the file if it exists. */
static nib_status add_if_present(nib_digests *out, const char *directory, const char *name,
                                 nib_arena *arena, const nib_allocator *a, nib_err *err)
{
    const char *path = nib__path_join(arena, directory, name);
    if (path == NULL)
        return nib__fail_memory(err, strlen(name), "a path");
    return nib__path_kind(path) == NIB_PATH_FILE ? add_file(out, directory, name, arena, a, err)
                                                 : NIB_OK;
}

nib_status nib__digest_source_files(nib_digests *out, const nib_checkpoint *cp, nib_arena *arena,
                                    const nib_allocator *a, nib_err *err)
{
    static const char *const configs[] = {"config.json", "params.json", "quantize_config.json",
                                          "hf_quant_config.json"};
    const char *directory = nib__checkpoint_directory(cp);
    const char *name;
    nib_text keys;
    if (nib__checkpoint_gguf(cp) != NULL) {
        nib__text_init(&keys, a);
        nib__gguf_keys(nib__checkpoint_gguf(cp), &keys);
        const nib_digest digest = nib__sha256_bytes(keys.at, keys.failed ? 0 : keys.size);
        const nib_status status = keys.failed
                                      ? nib__fail_memory(err, keys.size, "the key/values")
                                      : nib__digests_add(out, NIB_GGUF_KEYS, &digest, a, err);
        nib__text_free(&keys);
        return status;
    }
    for (size_t i = 0; i < COUNT(configs) && directory != NULL; i++)
        NIB_TRY(add_if_present(out, directory, configs[i], arena, a, err));
    for (size_t i = 0; (name = nib__side_file_name(i)) != NULL && directory != NULL; i++)
        NIB_TRY(add_if_present(out, directory, name, arena, a, err));
    return NIB_OK;
}

/* ---- outputs ---- */

typedef struct names {
    nib_arena *arena;
    const nib_allocator *allocator;
    void *items; /* const char *[count] */
    size_t count, capacity;
    bool failed;
} names;

static void note_output(void *ctx, const char *name)
{
    static const char *const left_out[] = {"nibble.json", NIB_PART_MARK, "nibble.pack",
                                           "nibble.tokens", "recipe.json"};
    names *n = ctx;
    for (size_t i = 0; i < COUNT(left_out); i++)
        if (strcmp(name, left_out[i]) == 0)
            return;
    const char *copy = nib__arena_copy(n->arena, name, strlen(name));
    if (copy == NULL ||
        !nib__reserve(n->allocator, &n->items, &n->capacity, n->count + 1, sizeof copy))
        n->failed = true;
    else
        ((const char **)n->items)[n->count++] = copy;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

nib_status nib__digest_outputs(nib_digests *out, const char *path, const char *name,
                               nib_arena *arena, const nib_allocator *a, nib_err *err)
{
    names n = {.arena = arena, .allocator = a};
    nib_digest digest;
    uint64_t size;
    if (nib__path_kind(path) != NIB_PATH_DIRECTORY) {
        NIB_TRY(nib__digest_file(&digest, &size, path, err));
        return nib__digests_add(out, name, &digest, a, err);
    }
    nib_status status = nib__directory_each(path, note_output, &n, err);
    if (status == NIB_OK && n.failed)
        status = nib__fail_memory(err, n.count * sizeof(char *), "the names of files");
    if (n.count != 0)
        qsort(n.items, n.count, sizeof(const char *), by_name);
    for (size_t i = 0; i < n.count && status == NIB_OK; i++)
        status = add_file(out, path, ((const char **)n.items)[i], arena, a, err);
    nib__release(a, n.items);
    return status;
}

/* ---- JSON ---- */

static void put_digest(nib_jsonw *w, const char *key, const nib_digest *digest)
{
    char text[NIB_DIGEST_TEXT];
    nib__jsonw_pair_string(w, key, nib__digest_text(text, digest));
}

static void put_digests(nib_jsonw *w, const char *key, const nib_digests *digests)
{
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    for (size_t i = 0; i < digests->count; i++)
        put_digest(w, digests->items[i].name, &digests->items[i].digest);
    nib__jsonw_object_end(w);
}

void nib__receipt_json(const nib_receipt *receipt, const nib_quantize_job *job, nib_jsonw *w)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "version", NIB_RECEIPT_VERSION);
    nib__jsonw_pair_string(w, "program", "nibble " NIB_VERSION);
    job->receipt(job->receipt_ctx, w);
    nib__jsonw_key(w, "source");
    nib__jsonw_object(w);
    put_digests(w, "files", &receipt->files);
    nib__jsonw_key(w, "tensors");
    nib__jsonw_object(w);
    for (size_t i = 0; i < nib__checkpoint_count(job->checkpoint); i++)
        put_digest(w, nib__checkpoint_at(job->checkpoint, i)->name, &receipt->tensors[i]);
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
    put_digests(w, "outputs", &receipt->outputs);
    nib__jsonw_object_end(w);
}
