/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds and checks the parts of a split GGUF model, and translates tensor names.
 */
#include "gguf_parts.h"

#include "file.h"
#include "renames.h"

#include <inttypes.h>
#include <stdio.h>

/* Reads an integer of 0 to `most`; a missing key leaves *out unchanged. */
static nib_status read_small_int(int64_t *out, const nib_gguf *g, const char *key, int64_t most,
                                 nib_err *err)
{
    bool found;
    NIB_TRY(nib__gguf_int(out, &found, g, key, err));
    if (found && (*out < 0 || *out > most))
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %" PRId64 "; 0 to %" PRId64 " is expected",
                         g->name, key, *out, most);
    return NIB_OK;
}

nib_status nib__gguf_part_count(size_t *out, const nib_gguf *g, nib_err *err)
{
    int64_t count = 1;
    NIB_TRY(read_small_int(&count, g, "split.count", NIB_GGUF_PART_MAX, err));
    *out = count > 1 ? (size_t)count : 1; /* llama.cpp writes 0 for an unsplit file */
    return NIB_OK;
}

static void format_part_suffix(char out[64], int64_t no, size_t count)
{
    snprintf(out, 64, "-%05" PRId64 "-of-%05zu.gguf", no + 1, count);
}

nib_status nib__gguf_part_paths(const char ***out, const nib_gguf *part, const char *path,
                                size_t count, nib_arena *arena, nib_err *err)
{
    int64_t no = 0;
    char end[64];
    NIB_TRY(read_small_int(&no, part, "split.no", (int64_t)count - 1, err));
    format_part_suffix(end, no, count);
    const size_t size = strlen(path), end_size = strlen(end);
    if (size < end_size || strcmp(path + size - end_size, end) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: this is part %" PRId64
                         " of %zu, but its name does not end in \"%s\", so the other parts cannot "
                         "be found; restore the original file names",
                         part->name, no + 1, count, end);
    const char **paths = nib__arena_take(arena, count, sizeof *paths);
    for (size_t i = 0; paths != NULL && i < count; i++) {
        char *copy = nib__arena_copy(arena, path, size);
        if (copy == NULL)
            return nib__fail_memory(err, size, "the parts of a GGUF model");
        format_part_suffix(end, (int64_t)i, count);
        memcpy(copy + size - end_size, end, end_size);
        paths[i] = copy;
        if (nib__path_kind(copy) == NIB_PATH_NONE)
            return nib__fail(err, NIB_BAD_INPUT, "%s: part %zu of %zu is missing: %s", part->name,
                             i + 1, count, nib__path_name(copy));
    }
    *out = paths;
    return paths != NULL ? NIB_OK : nib__fail_memory(err, size, "the parts of a GGUF model");
}

nib_status nib__gguf_check_parts(const nib_container *parsed, size_t count, nib_err *err)
{
    int64_t expected = -1;
    size_t tensors = 0;
    for (size_t i = 0; i < count; i++) {
        const nib_gguf *g = parsed[i].gguf;
        int64_t no = -1;
        size_t parts = 0;
        NIB_TRY(nib__gguf_part_count(&parts, g, err));
        NIB_TRY(read_small_int(&no, g, "split.no", NIB_GGUF_PART_MAX, err));
        if (parts != count || no != (int64_t)i)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: its metadata says part %" PRId64
                             " of %zu, but its name says part %zu of %zu",
                             g->name, no + 1, parts, i + 1, count);
        tensors += parsed[i].count;
    }
    NIB_TRY(read_small_int(&expected, parsed[0].gguf, "split.tensors.count", INT32_MAX, err));
    if (expected >= 0 && (size_t)expected != tensors)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: split.tensors.count is %" PRId64 ", but the %zu parts have %zu",
                         parsed[0].gguf->name, expected, count, tensors);
    return NIB_OK;
}

/* A positive integer under the architecture's prefix, or 0. */
static int64_t read_size(const nib_gguf *g, const char *name)
{
    char key[96];
    int64_t size = 0;
    bool found;
    nib_err ignored;
    if (g->arch == NULL)
        return 0;
    snprintf(key, sizeof key, "%s.%s", g->arch, name);
    const nib_status status = nib__gguf_int(&size, &found, g, key, &ignored);
    return status == NIB_OK && size > 0 ? size : 0;
}

void nib__gguf_heads(const nib_gguf *g, int64_t *heads, int64_t *kv_heads, int64_t *head)
{
    const int64_t width = read_size(g, "embedding_length");
    *heads = read_size(g, "attention.head_count");
    *kv_heads = read_size(g, "attention.head_count_kv");
    *head = read_size(g, "attention.key_length");
    if (*head == 0 && *heads > 0 && width % *heads == 0)
        *head = width / *heads;
}

void nib__gguf_latent(const nib_gguf *g, int64_t *nope, int64_t *value)
{
    const int64_t mla = read_size(g, "attention.key_length_mla"),
                  key = mla > 0 ? mla : read_size(g, "attention.key_length"),
                  rope = read_size(g, "rope.dimension_count");
    *nope = *value = 0;
    if (read_size(g, "attention.kv_lora_rank") == 0 || rope >= key)
        return;
    *nope = key - rope;
    *value = read_size(g, mla > 0 ? "attention.value_length_mla" : "attention.value_length");
}

/* Gives a tensor the shape that it has elsewhere (nib_rename_form). Some files drop dimensions of 1
 * where others do not. */
static void restore_shape(nib_tensor *tensor, const char *name)
{
    const nib_rename_form form = nib__rename_form(name);
    int64_t *shape = tensor->shape;
    if (form == NIB_RENAME_ROW && tensor->rank == 1) {
        tensor->rank = 2;
        shape[1] = shape[0];
        shape[0] = 1;
    } else if (form == NIB_RENAME_TAPS && tensor->rank == 2) {
        tensor->rank = 3;
        shape[2] = shape[1];
        shape[1] = 1;
    } else if (tensor->rank == 2 &&
               (form == NIB_RENAME_GROUPS || (form == NIB_RENAME_COLUMN && shape[1] == 1))) {
        tensor->rank = 1;
        shape[0] *= shape[1]; /* as many as the tensor has elements */
        shape[1] = 0;
    }
}

nib_status nib__gguf_translate(nib_container *parsed, size_t count, nib_arena *arena, nib_err *err)
{
    const nib_gguf *first = parsed[0].gguf;
    char ours[NIB_RENAME_MAX];
    if (!nib__rename_knows(first->arch))
        return NIB_OK;
    for (size_t p = 0; p < count; p++)
        for (size_t i = 0; i < parsed[p].count; i++) {
            nib_tensor *tensor = parsed[p].tensors[i];
            if (!nib__rename_from_gguf(ours, first->arch, tensor->name))
                continue;
            restore_shape(tensor, ours);
            tensor->name = nib__arena_copy(arena, ours, strlen(ours));
            if (tensor->name == NULL)
                return nib__fail_memory(err, strlen(ours), "a tensor name");
        }
    return NIB_OK;
}
