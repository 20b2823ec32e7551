/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of gptq's codes: gptq_store.h has the layout. Parts are mapped, so that the system
 * drops their pages when it needs the memory.
 */
#include "gptq_store.h"

#include <inttypes.h>
#include <stdio.h>

enum { ALIGN = 64, HASH = 16, HEAD = 64, KEY_MAX = 64 << 10 };

static const char magic[HEAD] = "nibble gptq 1\n"; /* of a part, and of the key's first line */

typedef struct record {
    uint64_t site;
    int64_t n, k;
    uint64_t scale_bytes, zero_bytes;
    double objective[2], damping;
    int64_t tokens;
    int64_t candidate;
    float tensor_scale;
    char unused[ALIGN * 2 - 10 * 8 - 4];
} record;
_Static_assert(sizeof(record) % ALIGN == 0, "records are padded");

typedef struct part {
    nib_map map; /* at NULL: not complete, or not looked at yet */
    bool looked;
} part;

struct nib_gptq_store {
    nib_allocator allocator;
    nib_arena arena;
    const char *path, *lock_path;
    int lock;
    part *parts;
    size_t count;
    /* the part that is written */
    nib_output *output; /* NULL: none */
    nib_hasher *hasher;
    size_t writing;
    char part_path[NIB_PART_PATH];
};

static uint64_t padded(uint64_t bytes) { return (bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1); }

const char *nib__gptq_store_path(const nib_gptq_store *s) { return s->path; }

/* ---- the directory and its key ---- */

static bool part_path(const nib_gptq_store *s, size_t i, char out[NIB_PART_PATH])
{
    const int length = snprintf(out, NIB_PART_PATH, "%s/layer-%05zu", s->path, i);
    return length > 0 && length < NIB_PART_PATH;
}

/* The end of the line at `at`. */
static const char *line_end(const char *at) { return at + strcspn(at, "\n"); }

/* The name of the first line of `key` that `old` does not have in its place; NULL: none. */
static const char *find_other(nib_arena *arena, const char *key, const char *old)
{
    while (*key != '\0') {
        const char *end = line_end(key), *old_end = line_end(old);
        if (end - key != old_end - old || memcmp(key, old, (size_t)(end - key)) != 0) {
            const char *name = nib__arena_copy(arena, key, strcspn(key, ":\n"));
            return name != NULL ? name : "key";
        }
        key = end + (*end != '\0');
        old = old_end + (*old_end != '\0');
    }
    return *old == '\0' ? NULL : "key";
}

/* Whether a killed run left the directory: it has the mark of an unfinished output. */
static bool is_left_behind(const char *path)
{
    char mark[NIB_PART_PATH];
    const int length = snprintf(mark, sizeof mark, "%s/%s", path, NIB_PART_MARK);
    return length > 0 && length < NIB_PART_PATH && nib__path_kind(mark) == NIB_PATH_FILE;
}

/* Removes what is in the directory if it is a store, for another key, or is empty. */
static nib_status check_directory(nib_gptq_store *s, const char *key_path, const char *key,
                                  const char **other, nib_err *err)
{
    char a[NIB_SHOWN], *old = NULL;
    size_t size;
    nib_path_kind kind;
    NIB_TRY(nib__path_look(&kind, s->path, err));
    if (kind == NIB_PATH_NONE || (kind == NIB_PATH_DIRECTORY && nib__directory_is_empty(s->path)))
        return nib__path_remove(s->path, err);
    if (kind == NIB_PATH_DIRECTORY && nib__path_kind(key_path) == NIB_PATH_FILE)
        NIB_TRY(nib__file_read(&old, &size, key_path, KEY_MAX, &s->allocator, err));
    /* without a key, but marked: a killed run was about to fill it, or to remove it */
    if (old == NULL && is_left_behind(s->path))
        return nib__path_remove(s->path, err);
    if (old == NULL || strncmp(old, magic, strlen(magic)) != 0) {
        nib__release(&s->allocator, old);
        return nib__fail(err, NIB_EXISTS,
                         "%s: exists, and holds no codes of an unfinished `nibble quantize`, which "
                         "would be kept there; choose another OUT, or remove it",
                         nib__escape_string(a, s->path));
    }
    *other = find_other(&s->arena, key, old);
    nib__release(&s->allocator, old);
    return *other != NULL ? nib__path_remove(s->path, err) : NIB_OK;
}

static nib_status open_directory(nib_gptq_store *s, const char *key, const char **other,
                                 nib_err *err)
{
    const char *key_path = nib__path_join(&s->arena, s->path, "key"),
               *parent = nib__path_directory(&s->arena, s->path);
    if (key_path == NULL || parent == NULL)
        return nib__fail_memory(err, strlen(s->path), "a path");
    NIB_TRY(nib__lock_take(&s->lock, s->lock_path, err));
    NIB_TRY(check_directory(s, key_path, key, other, err));
    NIB_TRY(nib__directories_make(parent, err));
    if (nib__path_kind(s->path) == NIB_PATH_NONE)
        NIB_TRY(nib__part_directory(s->path, err)); /* its mark is removed last */
    return nib__path_kind(key_path) == NIB_PATH_FILE
               ? NIB_OK
               : nib__file_replace(key_path, key, strlen(key), &s->allocator, err);
}

static const char *join(nib_arena *arena, const char *a, const char *b)
{
    char *out = nib__arena_take(arena, strlen(a) + strlen(b) + 1, 1);
    if (out != NULL) {
        memcpy(out, a, strlen(a));
        memcpy(out + strlen(a), b, strlen(b) + 1);
    }
    return out;
}

nib_status nib__gptq_store_open(nib_gptq_store **store, const char *out, const char *key,
                                size_t parts, const char **other, const nib_allocator *a,
                                nib_err *err)
{
    nib_gptq_store *s = nib__calloc(a, 1, sizeof *s);
    *other = NULL;
    if (s == NULL)
        return nib__fail_memory(err, sizeof *s, "a store of codes");
    s->allocator = *a;
    s->lock = -1;
    s->count = parts;
    nib__arena_init(&s->arena, &s->allocator, 0);
    s->path = join(&s->arena, out, ".codes");
    s->lock_path = join(&s->arena, out, ".codes.lock");
    s->parts = nib__arena_take(&s->arena, parts, sizeof *s->parts);
    const char *keyed = join(&s->arena, magic, key);
    const nib_status status = s->path && s->lock_path && s->parts && keyed
                                  ? open_directory(s, keyed, other, err)
                                  : nib__fail_memory(err, parts * sizeof *s->parts, "a store");
    if (status != NIB_OK)
        nib__gptq_store_close(s);
    else
        *store = s;
    return status;
}

static void abandon(nib_gptq_store *s)
{
    if (s->output == NULL)
        return;
    nib__output_abandon(s->output);
    (void)nib__path_remove(s->part_path, NULL);
    s->output = NULL;
}

void nib__gptq_store_close(nib_gptq_store *s)
{
    if (s == NULL)
        return;
    const nib_allocator a = s->allocator;
    abandon(s);
    if (s->hasher != NULL)
        (void)nib__hasher_finish(s->hasher);
    for (size_t i = 0; s->parts != NULL && i < s->count; i++)
        if (s->parts[i].map.at != NULL)
            nib__map_close(&s->parts[i].map);
    if (s->lock_path != NULL)
        nib__lock_release(s->lock, s->lock_path);
    nib__arena_free(&s->arena);
    nib__release(&a, s);
}

nib_status nib__gptq_store_remove(nib_gptq_store *s, nib_err *err)
{
    const nib_status status = s != NULL ? nib__path_remove(s->path, err) : NIB_OK;
    nib__gptq_store_close(s);
    return status;
}

/* ---- reading ---- */

/* Maps a part, instead of the one that it replaced. */
static nib_status map_part(nib_gptq_store *s, size_t i, nib_err *err)
{
    char path[NIB_PART_PATH];
    if (s->parts[i].map.at != NULL)
        nib__map_close(&s->parts[i].map);
    s->parts[i].map = (nib_map){0};
    if (!part_path(s, i, path))
        return nib__fail(err, NIB_IO, "%s: the path is too long", s->path);
    return nib__map_open(&s->parts[i].map, path, err);
}

static bool is_whole(const nib_map *map)
{
    if (map->size < HEAD + HASH || memcmp(map->at, magic, HEAD) != 0)
        return false;
    const nib_hash hash = nib__hash_bytes(map->at, map->size - HASH);
    return memcmp(map->at + map->size - HASH, &hash, HASH) == 0;
}

bool nib__gptq_store_has(nib_gptq_store *s, size_t i, bool *damaged)
{
    char path[NIB_PART_PATH];
    if (damaged != NULL)
        *damaged = false;
    if (s == NULL)
        return false;
    part *p = &s->parts[i];
    if (p->looked || p->map.at != NULL)
        return p->map.at != NULL;
    p->looked = true;
    if (!part_path(s, i, path) || nib__path_kind(path) != NIB_PATH_FILE ||
        nib__map_open(&p->map, path, NULL) != NIB_OK)
        return false;
    if (is_whole(&p->map))
        return true;
    nib__map_close(&p->map);
    p->map = (nib_map){0};
    if (damaged != NULL)
        *damaged = true;
    return false;
}

/* Takes `bytes` of the part and their padding; NULL: there are fewer. */
static const uint8_t *take(const nib_map *map, uint64_t *offset, uint64_t bytes)
{
    const uint64_t left = map->size - HASH - *offset;
    const uint8_t *at = map->at + *offset;
    if (bytes > left || padded(bytes) > left)
        return NULL;
    *offset += padded(bytes);
    return at;
}

bool nib__gptq_store_next(const nib_gptq_store *s, size_t i, uint64_t *offset, nib_gptq_codes *out)
{
    const nib_map *map = &s->parts[i].map;
    record r;
    if (*offset == 0)
        *offset = HEAD;
    const uint8_t *head = take(map, offset, sizeof r);
    if (head == NULL)
        return false;
    memcpy(&r, head, sizeof r);
    if (r.n < 0 || r.k < 0 || (r.k > 0 && r.n > INT64_MAX / r.k))
        return false;
    const uint8_t *codes = take(map, offset, (uint64_t)r.n * (uint64_t)r.k),
                  *scales = codes ? take(map, offset, r.scale_bytes) : NULL,
                  *zeros = scales ? take(map, offset, r.zero_bytes) : NULL;
    if (zeros == NULL)
        return false;
    *out = (nib_gptq_codes){.site = r.site,
                            .n = r.n,
                            .k = r.k,
                            .scale_bytes = r.scale_bytes,
                            .zero_bytes = r.zero_bytes,
                            .damping = r.damping,
                            .tokens = r.tokens,
                            .candidate = r.candidate};
    out->codes = (nib_codes){.codes = (int8_t *)(uintptr_t)codes,
                             .scales = (void *)(uintptr_t)scales,
                             .zeros = r.zero_bytes != 0 ? (void *)(uintptr_t)zeros : NULL,
                             .tensor_scale = r.tensor_scale,
                             .objective = {r.objective[0], r.objective[1]}};
    return true;
}

/* ---- writing ---- */

/* Writes bytes and their padding, and adds both to the hash. */
static nib_status write_padded(nib_gptq_store *s, const void *bytes, uint64_t size, nib_err *err)
{
    static const char zeros[ALIGN];
    const size_t rest = (size_t)(padded(size) - size);
    if (size == 0)
        return NIB_OK;
    nib__hasher_add(s->hasher, bytes, (size_t)size);
    nib__hasher_add(s->hasher, zeros, rest);
    NIB_TRY(nib__output_write(s->output, bytes, (size_t)size, err));
    return nib__output_write(s->output, zeros, rest, err);
}

nib_status nib__gptq_store_begin(nib_gptq_store *s, size_t i, nib_err *err)
{
    char path[NIB_PART_PATH];
    s->hasher = nib__hasher_open();
    s->writing = i;
    if (s->hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    if (!part_path(s, i, path))
        return nib__fail(err, NIB_IO, "%s: the path is too long", s->path);
    NIB_TRY(nib__part_choose(s->part_path, path, ".part", err));
    NIB_TRY(nib__output_open(&s->output, s->part_path, &s->allocator, err));
    return write_padded(s, magic, HEAD, err);
}

nib_status nib__gptq_store_put(nib_gptq_store *s, const nib_gptq_codes *c, nib_err *err)
{
    const record r = {.site = c->site,
                      .n = c->n,
                      .k = c->k,
                      .scale_bytes = c->scale_bytes,
                      .zero_bytes = c->zero_bytes,
                      .objective = {c->codes.objective[0], c->codes.objective[1]},
                      .damping = c->damping,
                      .tokens = c->tokens,
                      .candidate = c->candidate,
                      .tensor_scale = c->codes.tensor_scale};
    NIB_TRY(write_padded(s, &r, sizeof r, err));
    NIB_TRY(write_padded(s, c->codes.codes, (uint64_t)c->n * (uint64_t)c->k, err));
    NIB_TRY(write_padded(s, c->codes.scales, c->scale_bytes, err));
    return write_padded(s, c->codes.zeros, c->zero_bytes, err);
}

nib_status nib__gptq_store_end(nib_gptq_store *s, nib_err *err)
{
    char path[NIB_PART_PATH];
    const nib_hash hash = nib__hasher_finish(s->hasher);
    s->hasher = NULL;
    NIB_TRY(nib__output_write(s->output, &hash, sizeof hash, err));
    nib_output *output = s->output;
    s->output = NULL;
    nib_status status = nib__output_finish(output, err);
    if (status == NIB_OK && !part_path(s, s->writing, path))
        status = nib__fail(err, NIB_IO, "%s: the path is too long", s->path);
    if (status == NIB_OK)
        status = nib__publish(s->part_path, path, true, err);
    if (status != NIB_OK) {
        (void)nib__path_remove(s->part_path, NULL);
        return status;
    }
    return map_part(s, s->writing, err);
}
