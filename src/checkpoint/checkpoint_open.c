/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns a path into open files and one list of their tensors: picks the model file of a directory,
 * detects the format, and checks that an index and its shards agree.
 */
#include "checkpoint_inside.h"
#include "gguf.h"
#include "gguf_parts.h"
#include "renames.h"
#include "renames_meta.h"
#include "rotary.h"
#include "safetensors.h"
#include "shards.h"
#include "torch_zip.h"

#include <inttypes.h>
#include <stdio.h>

enum { INDEX_MAX = 100000000 /* bytes of an index file, as for a safetensors header */ };

/* Files to look for in a directory, in order of preference. */
enum { SINGLE, INDEX, TORCH_SINGLE, TORCH_INDEX, META, STORED_COUNT };
enum { MISTRAL = STORED_COUNT, BESIDE_COUNT }; /* reported, never read */
static const char *const stored_names[BESIDE_COUNT] = {
    [SINGLE] = "model.safetensors",       [INDEX] = "model.safetensors.index.json",
    [TORCH_SINGLE] = "pytorch_model.bin", [TORCH_INDEX] = "pytorch_model.bin.index.json",
    [META] = "consolidated.00.pth",       [MISTRAL] = "consolidated.safetensors",
};

/* ---- files ---- */

static nib_status allocate_files(nib_checkpoint *cp, size_t count, nib_err *err)
{
    cp->maps = nib__arena_take(&cp->arena, count, sizeof *cp->maps);
    cp->files = nib__arena_take(&cp->arena, count, sizeof *cp->files);
    return cp->maps == NULL || cp->files == NULL ? nib__checkpoint_no_memory(err, cp->path)
                                                 : NIB_OK;
}

static bool begins_with(const nib_map *map, const char *magic)
{
    const size_t size = strlen(magic);
    return map->size >= size && (size == 0 || memcmp(map->at, magic, size) == 0);
}

/* A safetensors header has at most 100 MB, so the upper half of its 64-bit size is 0, and its JSON
 * starts with '{' at byte 8. This comes before any magic: the lower bytes of the size may equal
 * one. */
static bool is_safetensors(const nib_map *map)
{
    return map->size > 8 && memcmp(map->at + 4, "\0\0\0\0{", 5) == 0;
}

/* Refuses other formats that users may pass, with advice. */
static nib_status check_magic(const nib_map *map, const char *path, nib_err *err)
{
    static const struct {
        const char *magic, *problem;
    } others[] = {
        {"FUGG", "is a big-endian GGUF file; convert the model for little-endian machines"},
        {"version https://git-lfs",
         "is a Git LFS pointer, not the file itself; fetch the file with "
         "`git lfs pull`"},
        {"\x80\002\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
         "is in PyTorch's format before 1.6, which is not a zip file; load it with torch.load and "
         "save it again with torch.save"},
        {"\x80\002", "is a pickle outside a zip file, which nibble does not read; save the weights "
                     "with torch.save or as safetensors"},
        {"\x80\004", "is a pickle outside a zip file, which nibble does not read; save the weights "
                     "with torch.save or as safetensors"},
    };
    char a[NIB_SHOWN];
    for (size_t i = 0; i < COUNT(others) && !is_safetensors(map); i++)
        if (begins_with(map, others[i].magic))
            return nib__fail(err, NIB_UNSUPPORTED, "%s %s", nib__escape_string(a, path),
                             others[i].problem);
    return NIB_OK;
}

/* The supported file formats by their first bytes; safetensors has no magic and comes last. */
typedef struct container {
    const char *magic, *name;
    nib_parse *parse;
} container;

static const container containers[] = {
    {"GGUF", "gguf", nib__gguf_parse},
    {"PK\003\004", "pytorch", nib__torch_parse},
    {"", "safetensors", nib__safetensors_parse},
};

static const container *find_container(const nib_map *map)
{
    size_t i = is_safetensors(map) ? COUNT(containers) - 1 : 0;
    while (!begins_with(map, containers[i].magic))
        i++;
    return &containers[i];
}

static nib_status open_file(nib_checkpoint *cp, nib_container *parsed, const char *path,
                            nib_err *err)
{
    nib_map *map = &cp->maps[cp->file_count];
    NIB_TRY(nib__map_open(map, path, err));
    cp->files[cp->file_count] = path;
    const int file = cp->file_count++;
    cp->bytes += map->size;
    if (map->size < SIZE_MAX / 4)
        cp->arena.limit += 2 * (size_t)map->size;
    NIB_TRY(check_magic(map, path, err));
    const container *kind = find_container(map);
    cp->container = kind->name;
    NIB_TRY(kind->parse(parsed, map->at, map->size, path, file, &cp->arena, err));
    for (size_t i = 0; i < parsed->note_count; i++)
        NIB_TRY(nib__checkpoint_add_note(cp, parsed->notes[i], err));
    return NIB_OK;
}

/* ---- merging the tensors of all files ---- */

/* Checks a tensor of a shard against the index. */
static nib_status check_entry(nib_shards *index, const nib_checkpoint *cp, const nib_tensor *tensor,
                              nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN], c[NIB_SHOWN];
    const char *file = nib__path_name(cp->files[tensor->file]);
    const size_t i =
        nib__name_index_find(&index->by_tensor, (const void *const *)index->entries, tensor->name);
    if (i == SIZE_MAX)
        return nib__fail(err, NIB_BAD_INPUT, "%s: tensor \"%s\" is not in the weight_map of %s",
                         nib__escape_string(a, file), nib__escape_string(b, tensor->name),
                         index->name);
    nib_shard_entry *entry = index->entries[i];
    if (strcmp(entry->shard->name, file) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: tensor \"%s\" is stored here, but the weight_map puts it in \"%s\"",
                         nib__escape_string(a, file), nib__escape_string(b, tensor->name),
                         nib__escape_string(c, entry->shard->name));
    entry->found = true;
    return NIB_OK;
}

/* Shards repeat metadata entries. If two entries that define a weight differ, neither can be
 * trusted; of other entries, which are for people, the first wins. */
static nib_status add_meta(nib_checkpoint *cp, const nib_meta *meta, nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN];
    cp->metas[cp->meta_count] = meta;
    const nib_meta *same =
        nib__name_index_add(&cp->by_key, (const void *const *)cp->metas, cp->meta_count);
    if (same == NULL) {
        cp->meta_count++;
        return NIB_OK;
    }
    const bool defines_weight = nib__ends_with(meta->key, ".weight") ||
                                nib__ends_with(meta->key, ".bias") ||
                                strcmp(meta->key, "nibble") == 0;
    if (!defines_weight || strcmp(same->value, meta->value) == 0)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: two shards have different __metadata__ entries \"%s\"; write all shards "
                     "again from the same source",
                     nib__escape_string(a, cp->path), nib__escape_string(b, meta->key));
}

static nib_status add_tensors(nib_checkpoint *cp, const nib_container *parsed, nib_shards *index,
                              nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN], c[NIB_SHOWN];
    for (size_t i = 0; i < parsed->count; i++) {
        const nib_tensor *tensor = parsed->tensors[i];
        cp->tensors[cp->count] = tensor;
        const nib_tensor *same =
            nib__name_index_add(&cp->by_name, (const void *const *)cp->tensors, cp->count);
        if (same != NULL)
            return nib__fail(err, NIB_BAD_INPUT, "tensor \"%s\" is stored twice, in %s and in %s",
                             nib__escape_string(a, tensor->name),
                             nib__escape_string(b, nib__path_name(cp->files[same->file])),
                             nib__escape_string(c, nib__path_name(cp->files[tensor->file])));
        cp->count++;
        if (index != NULL)
            NIB_TRY(check_entry(index, cp, tensor, err));
    }
    for (size_t i = 0; i < parsed->meta_count; i++)
        NIB_TRY(add_meta(cp, parsed->metas[i], err));
    return NIB_OK;
}

static nib_status merge_tensors(nib_checkpoint *cp, const nib_container *parsed, nib_shards *index,
                                nib_err *err)
{
    size_t tensors = 0, metas = 0;
    for (int f = 0; f < cp->file_count; f++) {
        tensors += parsed[f].count;
        metas += parsed[f].meta_count;
    }
    cp->tensors = nib__arena_take(&cp->arena, tensors, sizeof *cp->tensors);
    cp->metas = nib__arena_take(&cp->arena, metas, sizeof *cp->metas);
    if (cp->tensors == NULL || cp->metas == NULL ||
        !nib__name_index_init(&cp->by_name, &cp->arena, tensors) ||
        !nib__name_index_init(&cp->by_key, &cp->arena, metas))
        return nib__checkpoint_no_memory(err, cp->path);
    for (int f = 0; f < cp->file_count; f++)
        NIB_TRY(add_tensors(cp, &parsed[f], index, err));
    return NIB_OK;
}

/* ---- ways to open a checkpoint ---- */

/* A GGUF file describes itself: a config.json next to it belongs to another model. */
static nib_status add_gguf(nib_checkpoint *cp, nib_container *parsed, nib_err *err)
{
    int64_t head;
    cp->gguf = parsed[0].gguf;
    cp->directory = NULL;
    nib__gguf_heads(cp->gguf, &cp->heads, &cp->kv_heads, &head);
    nib__gguf_latent(cp->gguf, &cp->nope, &cp->value);
    NIB_TRY(nib__gguf_translate(parsed, (size_t)cp->file_count, &cp->arena, err));
    if (nib__rename_pairs(cp->gguf->arch)) {
        cp->paired = -1;
        NIB_TRY(nib__rotary_set(cp, cp->heads, head, err));
    }
    return merge_tensors(cp, parsed, NULL, err);
}

/* Opens all parts of a split GGUF model in order; `first` may be any of them. The part that is
 * already open is opened again. */
static nib_status open_parts(nib_checkpoint *cp, const nib_gguf *first, size_t count, nib_err *err)
{
    const char **paths;
    char a[NIB_SHOWN];
    nib_container *parsed = nib__arena_take(&cp->arena, count, sizeof *parsed);
    if (parsed == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    NIB_TRY(nib__gguf_part_paths(&paths, first, cp->files[0], count, &cp->arena, err));
    nib__map_close(&cp->maps[0]);
    cp->file_count = 0;
    cp->bytes = 0;
    NIB_TRY(allocate_files(cp, count, err));
    for (size_t i = 0; i < count; i++) {
        NIB_TRY(open_file(cp, &parsed[i], paths[i], err));
        if (parsed[i].gguf == NULL)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: part %zu of %zu is not a GGUF file but %s; download it again",
                             nib__escape_string(a, paths[i]), i + 1, count, cp->container);
    }
    NIB_TRY(nib__gguf_check_parts(parsed, count, err));
    return add_gguf(cp, parsed, err);
}

/* Adds a file that may have Meta's names. */
static nib_status add_named(nib_checkpoint *cp, nib_container *parsed, const char *path,
                            nib_err *err)
{
    const size_t noted = parsed->note_count;
    NIB_TRY(nib__meta_translate(&cp->meta_names, parsed, path, &cp->arena, err));
    for (size_t i = noted; i < parsed->note_count; i++)
        NIB_TRY(nib__checkpoint_add_note(cp, parsed->notes[i], err));
    cp->params = cp->meta_names ? parsed->params : NULL;
    cp->paired = cp->meta_names ? -1 : 0;
    return merge_tensors(cp, parsed, NULL, err);
}

static nib_status open_single(nib_checkpoint *cp, const char *path, nib_err *err)
{
    nib_container parsed = {0};
    size_t parts;
    NIB_TRY(allocate_files(cp, 1, err));
    NIB_TRY(open_file(cp, &parsed, path, err));
    if (parsed.gguf == NULL)
        return add_named(cp, &parsed, path, err);
    NIB_TRY(nib__gguf_part_count(&parts, parsed.gguf, err));
    return parts == 1 ? add_gguf(cp, &parsed, err) : open_parts(cp, parsed.gguf, parts, err);
}

/* Fails if a tensor of the index is missing, even as an alias; only notes a wrong total_size. */
static nib_status check_index(nib_checkpoint *cp, const nib_shards *index, nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN], note[200];
    uint64_t total = 0;
    for (size_t i = 0; i < index->count; i++)
        if (!index->entries[i]->found &&
            nib__checkpoint_alias(cp, index->entries[i]->tensor) == NULL)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: tensor \"%s\" is missing, but the weight_map puts it here",
                             nib__escape_string(a, index->entries[i]->shard->name),
                             nib__escape_string(b, index->entries[i]->tensor));
    for (size_t i = 0; i < cp->count; i++)
        total += cp->tensors[i]->bytes;
    if (!index->has_total || index->total_size == (double)total)
        return NIB_OK;
    nib__format(note, sizeof note,
                "%s has total_size %.0f, but the tensors have %" PRIu64
                " bytes; total_size is ignored",
                index->name, index->total_size, total);
    return nib__checkpoint_add_note(cp, note, err);
}

static nib_status open_shards(nib_checkpoint *cp, const nib_shards *read, const char *directory,
                              nib_err *err)
{
    nib_shards index = *read;
    char a[NIB_SHOWN], b[NIB_SHOWN];
    nib_container *parsed = nib__arena_take(&cp->arena, index.shard_count, sizeof *parsed);
    if (parsed == NULL)
        return nib__checkpoint_no_memory(err, cp->path);
    NIB_TRY(allocate_files(cp, index.shard_count, err));
    for (size_t i = 0; i < index.shard_count; i++) {
        const char *path = nib__path_join(&cp->arena, directory, index.shards[i]->name);
        if (path == NULL)
            return nib__checkpoint_no_memory(err, cp->path);
        if (nib__path_kind(path) == NIB_PATH_NONE)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: shard \"%s\" is missing; %s puts %" PRId64 " tensors in it",
                             nib__escape_string(a, directory),
                             nib__escape_string(b, index.shards[i]->name), index.name,
                             index.shards[i]->tensors);
        NIB_TRY(open_file(cp, &parsed[i], path, err));
        if (parsed[i].gguf != NULL)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: a GGUF file needs no index; pass the file itself instead of %s",
                             nib__escape_string(a, path), index.name);
    }
    NIB_TRY(merge_tensors(cp, parsed, &index, err));
    return check_index(cp, &index, err);
}

static nib_status open_index(nib_checkpoint *cp, const char *path, const char *directory,
                             nib_err *err)
{
    char *text = NULL, a[NIB_SHOWN];
    size_t size = 0;
    nib_shards index;
    NIB_TRY(nib__file_read(&text, &size, path, INDEX_MAX, &cp->allocator, err));
    cp->arena.limit += 2 * size;
    const nib_status status =
        nib__shards_parse(&index, text, size, nib__escape_string(a, path), &cp->arena, err);
    nib__release(&cp->allocator, text);
    index.name = nib__path_name(path);
    return status == NIB_OK ? open_shards(cp, &index, directory, err) : status;
}

static nib_status check_exists(nib_checkpoint *cp, bool *exists, const char *directory,
                               const char *name, nib_err *err)
{
    const char *path = nib__path_join(&cp->arena, directory, name);
    if (path == NULL)
        return nib__checkpoint_no_memory(err, directory);
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, path, err));
    *exists = kind != NIB_PATH_NONE; /* opening reports non-files */
    return NIB_OK;
}

/* Refuses Meta's larger models, whose tensors are split across files (model parallel). */
static nib_status check_model_parallel(nib_checkpoint *cp, const char *directory, const char *name,
                                       nib_err *err)
{
    bool second = false;
    char a[NIB_SHOWN];
    if (strcmp(name, stored_names[META]) == 0)
        NIB_TRY(check_exists(cp, &second, directory, "consolidated.01.pth", err));
    if (!second)
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED,
                     "%s: the model is split for several devices (consolidated.00.pth, "
                     "consolidated.01.pth and so on), which nibble does not read; convert it to "
                     "Hugging Face's format",
                     nib__escape_string(a, directory));
}

/* Reports a file that is not read. */
static void report_unread(nib_checkpoint *cp, const char *file, nib_setting_relation relation,
                          const char *text)
{
    nib__ledger_add_setting(
        &cp->ledger,
        &(nib_ledger_setting){
            .code = "extra-tensor", .name = file, .by = NIB_BY_CHECKPOINT, .relation = relation},
        "%s", text);
}

/* Reports other models in the directory, and an adapter, which transformers would apply. */
static nib_status report_others(nib_checkpoint *cp, const char *directory, const char *chosen,
                                bool adapter, nib_err *err)
{
    char text[120];
    bool exists = false;
    snprintf(text, sizeof text, "%s is read instead of this file", chosen);
    for (int i = 0; i < BESIDE_COUNT; i++) {
        if (strcmp(stored_names[i], chosen) == 0)
            continue;
        NIB_TRY(check_exists(cp, &exists, directory, stored_names[i], err));
        if (exists)
            report_unread(cp, stored_names[i], NIB_SETTING_NARROWER, text);
    }
    if (adapter)
        report_unread(
            cp, "adapter_config.json", NIB_SETTING_NONE,
            "adapters are not applied; merge it into the weights first, for example with peft's "
            "merge_and_unload");
    return cp->ledger.failed ? nib__checkpoint_no_memory(err, directory) : NIB_OK;
}

static nib_status fail_empty(nib_checkpoint *cp, const char *directory, nib_err *err)
{
    bool described = false;
    char a[NIB_SHOWN], way[NIB_SHOWN + 64] = "";
    nib__escape_string(a, directory);
    NIB_TRY(check_exists(cp, &described, directory, "config.json", err));
    if (described)
        snprintf(way, sizeof way, ", or plan without weights: nibble plan %s/config.json", a);
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: has no %s, %s, pytorch_model.bin (or its index) or %s; if the weights "
                     "have another name, pass the path of their file%s",
                     a, stored_names[SINGLE], stored_names[INDEX], stored_names[META], way);
}

static nib_status open_directory(nib_checkpoint *cp, const char *directory, nib_err *err)
{
    bool exists = false, adapter = false;
    char a[NIB_SHOWN];
    int chosen = STORED_COUNT;
    cp->directory = cp->beside = directory;
    for (int i = STORED_COUNT; i-- > 0;) {
        NIB_TRY(check_exists(cp, &exists, directory, stored_names[i], err));
        chosen = exists ? i : chosen;
    }
    NIB_TRY(check_exists(cp, &adapter, directory, "adapter_config.json", err));
    if (chosen == STORED_COUNT && adapter)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: has an adapter but no model; merge it into the weights of its base "
                         "model first, for example with peft's merge_and_unload",
                         nib__escape_string(a, directory));
    if (chosen == STORED_COUNT)
        return fail_empty(cp, directory, err);
    NIB_TRY(report_others(cp, directory, stored_names[chosen], adapter, err));
    NIB_TRY(check_model_parallel(cp, directory, stored_names[chosen], err));
    const char *path = nib__path_join(&cp->arena, directory, stored_names[chosen]);
    if (path == NULL)
        return nib__checkpoint_no_memory(err, directory);
    return nib__ends_with(path, ".index.json") ? open_index(cp, path, directory, err)
                                               : open_single(cp, path, err);
}

nib_status nib__checkpoint_open_path(nib_checkpoint *cp, nib_err *err)
{
    const char *path = cp->path, *name = nib__path_name(path);
    char a[NIB_SHOWN];
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, path, err));
    if (kind == NIB_PATH_NONE)
        return nib__fail(err, NIB_IO, "%s: there is no such file or directory",
                         nib__escape_string(a, path));
    if (kind == NIB_PATH_DIRECTORY)
        return open_directory(cp, path, err);
    const char *directory =
        name == path ? "." : nib__arena_copy(&cp->arena, path, (size_t)(name - path));
    if (directory == NULL)
        return nib__checkpoint_no_memory(err, path);
    if (strcmp(name, "config.json") == 0)
        return open_directory(cp, directory, err);
    if (nib__ends_with(name, ".index.json")) {
        cp->directory = directory; /* even without a config.json */
        return open_index(cp, path, directory, err);
    }
    bool config = false;
    cp->beside = directory;
    NIB_TRY(check_exists(cp, &config, directory, "config.json", err));
    if (config)
        cp->directory = directory;
    return open_single(cp, path, err);
}
