/* SPDX-License-Identifier: Apache-2.0
 *
 * The streaming writer. In a safetensors file, tensors with wider elements come first, so that each
 * is aligned to its element size without holes, which the format forbids; within a width, tensors
 * keep the order in which they were added. Every shard has all metadata, so it can be read alone.
 */
#include "writer_inside.h"

#include "head_norms.h"
#include "pool.h"
#include "safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

nib_status nib__writer_make(nib_writer **out, const nib_allocator *a, nib_err *err)
{
    nib_writer *w = nib__calloc(a, 1, sizeof *w);
    if (w == NULL)
        return nib__fail_memory(err, sizeof *w, "a writer");
    w->allocator = *a;
    nib__arena_init(&w->arena, &w->allocator, 0);
    *out = w;
    return NIB_OK;
}

void nib__writer_free(nib_writer *w)
{
    if (w == NULL)
        return;
    const nib_allocator a = w->allocator;
    for (size_t i = 0; i < w->shard_count; i++) {
        nib__output_abandon(w->shards[i].output);
        nib__text_free(&w->shards[i].header);
    }
    for (size_t i = 0; i < w->count; i++) {
        nib_interleaved *in = w->entries[i].in;
        if (w->entries[i].hasher != NULL)
            (void)nib__hasher_finish(w->entries[i].hasher);
        if (in != NULL && in->first == i)
            nib__release(&a, in->held);
    }
    nib__release(&a, w->metas);
    nib__release(&a, w->entries);
    nib__arena_free(&w->arena);
    nib__release(&a, w);
}

/* ---- adding entries ---- */

void nib__writer_add_meta(nib_writer *w, const char *key, const char *value)
{
    void *metas = w->metas;
    const nib_meta meta = {nib__arena_copy(&w->arena, key, strlen(key)),
                           nib__arena_copy(&w->arena, value, strlen(value))};
    if (meta.key == NULL || meta.value == NULL ||
        !nib__reserve(&w->allocator, &metas, &w->meta_capacity, w->meta_count + 1, sizeof meta)) {
        w->failed = true;
        return;
    }
    w->metas = metas;
    w->metas[w->meta_count++] = meta;
}

size_t nib__writer_add_tensor(nib_writer *w, const char *name, nib_type type, const int64_t *shape,
                              int rank, size_t unit)
{
    void *entries = w->entries;
    nib_writer_entry e = {.type = type, .rank = rank, .unit = unit, .next = SIZE_MAX};
    e.name = e.stored = nib__arena_copy(&w->arena, name, strlen(name));
    for (int i = 0; i < rank; i++)
        e.shape[i] = shape[i];
    if (e.name == NULL || !nib__tensor_bytes(&e.bytes, type, shape, rank) ||
        !nib__reserve(&w->allocator, &entries, &w->capacity, w->count + 1, sizeof e)) {
        w->failed = true;
        return w->count;
    }
    w->entries = entries;
    w->entries[w->count] = e;
    return w->count++;
}

void nib__writer_use_gguf(nib_writer *w, const nib_gguf_head *head) { w->gguf = head; }

void nib__writer_fuse(nib_writer *w, unsigned fused) { w->fused = fused; }

void nib__writer_family(nib_writer *w, const char *family, bool prefixed)
{
    w->family = nib__arena_copy(&w->arena, family, strlen(family));
    w->failed = w->failed || w->family == NULL;
    w->prefixed = prefixed;
}

size_t nib__writer_unjoined(const nib_writer *w) { return w->unjoined; }

size_t nib__writer_unjoined_heads(const nib_writer *w) { return w->unjoined_heads; }

/* The next part of the same tensor; NULL: e is the last. */
static nib_writer_entry *next_part(nib_writer *w, const nib_writer_entry *e)
{
    return e->next == SIZE_MAX ? NULL : &w->entries[e->next];
}

/* Bytes of the whole tensor that begins with part e; *rows: its rows. */
static uint64_t stored_bytes(nib_writer *w, const nib_writer_entry *e, int64_t *rows)
{
    uint64_t bytes = 0;
    *rows = 0;
    for (; e != NULL; e = next_part(w, e)) {
        bytes += e->bytes;
        *rows += e->rank > 0 ? e->shape[0] : 0;
    }
    return bytes;
}

/* Sets the offsets of consecutive parts from `at` on; returns the end. */
static uint64_t assign_offsets(nib_writer *w, nib_writer_entry *e, uint64_t at)
{
    for (; e != NULL; e = next_part(w, e)) {
        e->offset = at;
        at += e->bytes;
    }
    return at;
}

/* ---- layout ---- */

/* Assigns entries to shards. A unit that would exceed the limit starts a new shard. */
static size_t assign_shards(nib_writer *w, uint64_t limit)
{
    uint64_t used = 0;
    size_t shards = 0;
    int64_t rows;
    for (size_t i = 0; i < w->count;) {
        uint64_t unit = 0;
        size_t end = i;
        for (; end < w->count && w->entries[end].unit == w->entries[i].unit; end++)
            unit += w->entries[end].follows ? 0 : stored_bytes(w, &w->entries[end], &rows);
        if (used != 0 && limit != 0 && unit > limit - (used < limit ? used : limit)) {
            shards++;
            used = 0;
        }
        used += unit;
        for (; i < end; i++)
            for (nib_writer_entry *e = &w->entries[i]; e != NULL && !w->entries[i].follows;
                 e = next_part(w, e))
                e->shard = shards;
    }
    return shards + 1;
}

/* Number of tensors that an entry is written as; stored_name returns the name of tensor i. */
static int64_t count_tensors(const nib_writer_entry *e)
{
    return e->apart && e->rank == 2 ? e->shape[0] : 1;
}

static const char *stored_name(char out[NIB_FUSED_NAME], const nib_writer_entry *e, int64_t i)
{
    return e->apart && nib__head_norm_name(out, e->name, i) ? out : e->stored;
}

static void write_entry(nib_jsonw *json, const char *name, const nib_writer_entry *e, int64_t rows,
                        uint64_t begin, uint64_t end)
{
    nib__jsonw_key(json, name);
    nib__jsonw_object(json);
    nib__jsonw_pair_string(json, "dtype", nib__type_stored_name(e->type));
    nib__jsonw_key(json, "shape");
    nib__jsonw_array(json);
    for (int i = 0; i < e->whole_rank; i++)
        nib__jsonw_int(json, e->whole[i]);
    for (int i = e->apart ? e->rank - 1 : 0; i < e->rank && e->whole_rank == 0; i++)
        nib__jsonw_int(json, i == 0 ? rows : e->shape[i]);
    nib__jsonw_array_end(json);
    nib__jsonw_key(json, "data_offsets");
    nib__jsonw_array(json);
    nib__jsonw_int(json, (int64_t)begin);
    nib__jsonw_int(json, (int64_t)end);
    nib__jsonw_array_end(json);
    nib__jsonw_object_end(json);
}

/* Computes header and data offsets of one shard. */
static void lay_out_shard(nib_writer *w, size_t s)
{
    static const int widths[] = {64, 32, 16, 8, 6, 4};
    nib_writer_shard *to = &w->shards[s];
    char name[NIB_FUSED_NAME];
    nib_jsonw json;
    nib__text_init(&to->header, &w->allocator);
    nib__text_put(&to->header, "\0\0\0\0\0\0\0\0", 8);
    nib__jsonw_init(&json, &to->header, 0);
    nib__jsonw_object(&json);
    nib__jsonw_key(&json, "__metadata__");
    nib__jsonw_object(&json);
    for (size_t i = 0; i < w->meta_count; i++)
        nib__jsonw_pair_string(&json, w->metas[i].key, w->metas[i].value);
    nib__jsonw_object_end(&json);
    for (size_t b = 0; b < COUNT(widths); b++)
        for (size_t i = 0; i < w->count; i++) {
            nib_writer_entry *e = &w->entries[i];
            int64_t rows;
            if (e->shard != s || nib__type_bits(e->type) != widths[b] || e->follows)
                continue;
            const int64_t count = count_tensors(e);
            const uint64_t bytes = stored_bytes(w, e, &rows) / (uint64_t)count;
            for (int64_t t = 0; t < count; t++) {
                const uint64_t at = to->data + (uint64_t)t * bytes;
                write_entry(&json, stored_name(name, e, t), e, rows, at, at + bytes);
            }
            to->data = assign_offsets(w, e, to->data);
        }
    nib__jsonw_object_end(&json);
    while (!to->header.failed && to->header.size % 8 != 0)
        nib__text_put(&to->header, " ", 1);
}

/* Computes offsets in a GGUF: tensors in the order they were added, each aligned. The gaps are
 * zeros, because begin extends the file to its full length before any data is written. */
static nib_status lay_out_gguf(nib_writer *w, nib_writer_shard *to, nib_err *err)
{
    char shown[160];
    nib__text_init(&to->header, &w->allocator);
    nib__gguf_begin(&to->header, w->gguf, w->stored);
    for (size_t i = 0; i < w->count; i++) {
        nib_writer_entry *e = &w->entries[i];
        const size_t length = strlen(e->stored);
        int64_t shape[NIB_RANK_MAX];
        if (e->follows)
            continue;
        nib__escape_name(shown, sizeof shown, e->stored, length);
        if (!nib__gguf_holds(e->type))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: GGUF has no type %s; convert it to a type of GGUF, such as f16",
                             shown, nib__type_name(e->type));
        if (length > NIB_GGUF_NAME_MAX)
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: has a name of %zu bytes; GGUF allows at most %d; choose another "
                             "--format",
                             shown, length, NIB_GGUF_NAME_MAX);
        const int outer = e->experts > 0 ? 1 : 0; /* the dimension of a stack */
        if (e->rank > NIB_GGUF_RANK_MAX - outer || e->rank < 1)
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: has rank %d; GGUF allows 1 to %d; choose another --format", shown,
                             e->rank, NIB_GGUF_RANK_MAX - outer);
        if (e->bytes == 0)
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: has no elements, which GGUF does not allow; remove it from the "
                             "model",
                             shown);
        memcpy(shape + outer, e->shape, (size_t)e->rank * sizeof *shape);
        if (outer != 0)
            shape[0] = e->experts;
        else
            (void)stored_bytes(w, e, &shape[0]);
        nib__gguf_entry(&to->header, e->stored, e->type, shape, e->rank + outer, to->data);
        to->data = assign_offsets(w, e, to->data);
        to->data += (NIB_GGUF_ALIGNMENT - to->data % NIB_GGUF_ALIGNMENT) % NIB_GGUF_ALIGNMENT;
    }
    while (!to->header.failed && to->header.size % NIB_GGUF_ALIGNMENT != 0)
        nib__text_put(&to->header, "\0", 1);
    for (size_t i = 0; i < w->count; i++)
        w->entries[i].offset += to->header.size;
    return to->header.failed ? nib__fail_memory(err, to->header.size, "a header") : NIB_OK;
}

static nib_status check_header(nib_writer *w, nib_writer_shard *s, nib_err *err)
{
    if (s->header.failed)
        return nib__fail_memory(err, s->header.size, "a header");
    uint64_t size = s->header.size - 8;
    if (size > NIB_SAFETENSORS_HEADER_MAX)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the safetensors header needs %" PRIu64
                         " bytes, over the format's limit of %d; shorten the names of tensors",
                         size, NIB_SAFETENSORS_HEADER_MAX);
    for (int i = 0; i < 8; i++, size >>= 8)
        s->header.at[i] = (char)(size & 0xff);
    for (size_t i = 0; i < w->count; i++)
        if (&w->shards[w->entries[i].shard] == s)
            w->entries[i].offset += s->header.size;
    return NIB_OK;
}

/* Refuses two tensors of one name, which no reader would accept. */
static nib_status check_names(nib_writer *w, nib_err *err)
{
    char shown[160];
    nib_name_index names;
    const void **items = nib__arena_take(&w->arena, w->count, sizeof *items);
    if (items == NULL || !nib__name_index_init(&names, &w->arena, w->count))
        return nib__fail_memory(err, w->count * sizeof *items, "the list of tensors");
    for (size_t i = 0; i < w->count; i++) {
        const char *name = w->entries[i].stored;
        items[i] = &w->entries[i].stored;
        if (w->entries[i].follows)
            continue;
        if (nib__name_index_add(&names, items, i) != NULL || strcmp(name, "__metadata__") == 0)
            return nib__fail(err, NIB_BAD_INPUT, "two tensors would be written as \"%s\"",
                             nib__escape_name(shown, sizeof shown, name, strlen(name)));
    }
    return NIB_OK;
}

nib_status nib__writer_layout(nib_writer *w, uint64_t shard_limit, nib_err *err)
{
    if (w->failed)
        return nib__fail_memory(err, w->count * sizeof *w->entries, "the list of tensors");
    NIB_TRY(nib__writer_join(w, err));
    NIB_TRY(check_names(w, err));
    const size_t count = assign_shards(w, w->gguf != NULL ? 0 : shard_limit);
    w->shards = nib__arena_take(&w->arena, count, sizeof *w->shards);
    if (w->shards == NULL)
        return nib__fail_memory(err, count * sizeof *w->shards, "the list of shards");
    w->shard_count = count;
    if (w->gguf != NULL) {
        snprintf(w->shards[0].name, sizeof w->shards[0].name, "model.gguf");
        return lay_out_gguf(w, &w->shards[0], err);
    }
    for (size_t s = 0; s < count; s++) {
        lay_out_shard(w, s);
        if (count == 1)
            snprintf(w->shards[s].name, sizeof w->shards[s].name, "model.safetensors");
        else
            snprintf(w->shards[s].name, sizeof w->shards[s].name,
                     "model-%05zu-of-%05zu.safetensors", s + 1, count);
        NIB_TRY(check_header(w, &w->shards[s], err));
    }
    return NIB_OK;
}

size_t nib__writer_file_count(const nib_writer *w) { return w->shard_count; }

uint64_t nib__writer_bytes(const nib_writer *w)
{
    uint64_t total = 0;
    for (size_t s = 0; s < w->shard_count; s++)
        total += w->shards[s].header.size + w->shards[s].data;
    return total;
}

/* ---- bytes ---- */

nib_status nib__writer_begin(nib_writer *w, const char *directory, const char *file, nib_err *err)
{
    w->directory =
        directory == NULL ? NULL : nib__arena_copy(&w->arena, directory, strlen(directory));
    if (directory != NULL && w->directory == NULL)
        return nib__fail_memory(err, strlen(directory), "a path");
    for (size_t i = 0; i < w->shard_count; i++) {
        nib_writer_shard *s = &w->shards[i];
        const char *path = file != NULL ? file : nib__path_join(&w->arena, directory, s->name);
        if (path == NULL)
            return nib__fail_memory(err, strlen(s->name), "a path");
        NIB_TRY(nib__output_open(&s->output, path, &w->allocator, err));
        NIB_TRY(nib__output_write(s->output, s->header.at, s->header.size, err));
        NIB_TRY(nib__output_extend(s->output, s->header.size + s->data, err));
    }
    return NIB_OK;
}

/* Writes interleaved parts, and hashes each from its first byte to its last, as a reader finds it
 * there. */
static nib_status write_interleaved(nib_writer *w, nib_interleaved *c, nib_err *err)
{
    const nib_writer_entry *first = &w->entries[c->first];
    for (nib_writer_entry *e = &w->entries[c->first]; e != NULL && e->in == c;
         e = next_part(w, e)) {
        const uint64_t width = (uint64_t)nib__type_bits(e->type) / 8;
        const int64_t rows = (int64_t)(e->bytes / width) / e->columns,
                      span = (rows - 1) * e->down + (e->columns - 1) * e->across + 1;
        e->hash = nib__hash_bytes(c->held + (uint64_t)e->start * width, (uint64_t)span * width);
    }
    const nib_status status =
        nib__output_patch(w->shards[first->shard].output, first->offset, c->held, c->bytes, err);
    nib__release(&w->allocator, c->held);
    c->held = NULL;
    return status;
}

/* Puts the next bytes of an interleaved part. */
static nib_status put_interleaved(nib_writer *w, nib_writer_entry *e, const char *bytes,
                                  size_t size, nib_err *err)
{
    nib_interleaved *c = e->in;
    const uint64_t width = (uint64_t)nib__type_bits(e->type) / 8;
    if (c->held == NULL && (c->held = nib__calloc(&w->allocator, c->bytes, 1)) == NULL)
        return nib__fail_memory(err, c->bytes, e->name);
    const uint64_t end = e->done + size;
    int64_t row = (int64_t)(e->done / width) / e->columns,
            column = (int64_t)(e->done / width) % e->columns;
    for (uint64_t at = e->done; at < end; column++) { /* pieces may end within an element */
        const uint64_t into = at % width, left = end - at,
                       some = width - into < left ? width - into : left;
        if (column == e->columns)
            row++, column = 0;
        const int64_t to = e->start + row * e->down + column * e->across;
        memcpy(c->held + (uint64_t)to * width + into, bytes + (at - e->done), (size_t)some);
        at += some;
    }
    e->done += size;
    c->done += size;
    return c->done == c->bytes ? write_interleaved(w, c, err) : NIB_OK;
}

nib_status nib__writer_put(nib_writer *w, size_t tensor, const void *bytes, size_t size,
                           nib_err *err)
{
    nib_writer_entry *e = &w->entries[tensor];
    if (size > e->bytes - e->done)
        return nib__fail(err, NIB_FAILED,
                         "%s: %zu bytes are written after %" PRIu64 ", but its shape has %" PRIu64,
                         e->name, size, e->done, e->bytes);
    if (e->in != NULL)
        return put_interleaved(w, e, bytes, size, err);
    if (e->hasher == NULL && e->done == 0)
        e->hasher = nib__hasher_open();
    if (e->hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    nib__hasher_add(e->hasher, bytes, size);
    NIB_TRY(nib__output_patch(w->shards[e->shard].output, e->offset + e->done, bytes, size, err));
    e->done += size;
    if (e->done == e->bytes) {
        e->hash = nib__hasher_finish(e->hasher);
        e->hasher = NULL;
    }
    return NIB_OK;
}

static nib_status write_index(nib_writer *w, nib_err *err)
{
    nib_text text;
    nib_jsonw json;
    char name[NIB_FUSED_NAME];
    uint64_t total = 0;
    const char *path = nib__path_join(&w->arena, w->directory, "model.safetensors.index.json");
    if (path == NULL)
        return nib__fail_memory(err, strlen(w->directory), "a path");
    for (size_t i = 0; i < w->count; i++)
        total += w->entries[i].bytes;
    nib__text_init(&text, &w->allocator);
    nib__jsonw_init(&json, &text, 2);
    nib__jsonw_object(&json);
    nib__jsonw_key(&json, "metadata");
    nib__jsonw_object(&json);
    nib__jsonw_pair_int(&json, "total_size", (int64_t)total);
    nib__jsonw_object_end(&json);
    nib__jsonw_key(&json, "weight_map");
    nib__jsonw_object(&json);
    for (size_t i = 0; i < w->count; i++) {
        const nib_writer_entry *e = &w->entries[i];
        for (int64_t t = 0; t < count_tensors(e) && !e->follows; t++)
            nib__jsonw_pair_string(&json, stored_name(name, e, t), w->shards[e->shard].name);
    }
    nib__jsonw_object_end(&json);
    nib__jsonw_object_end(&json);
    nib__text_str(&text, "\n");
    const nib_status status = text.failed
                                  ? nib__fail_memory(err, text.size, path)
                                  : nib__file_write(path, text.at, text.size, &w->allocator, err);
    nib__text_free(&text);
    return status;
}

nib_status nib__writer_finish(nib_writer *w, nib_err *err)
{
    for (size_t i = 0; i < w->count; i++) {
        nib_writer_entry *e = &w->entries[i];
        if (e->bytes == 0)
            e->hash = nib__hash_bytes("", 0);
        else if (e->done != e->bytes)
            return nib__fail(err, NIB_FAILED,
                             "%s: only %" PRIu64 " of %" PRIu64 " bytes were written", e->name,
                             e->done, e->bytes);
    }
    const uint64_t start = nib__now_ns();
    for (size_t s = 0; s < w->shard_count; s++) {
        nib_output *output = w->shards[s].output;
        w->shards[s].output = NULL;
        NIB_TRY(nib__output_finish(output, err));
    }
    w->sync_seconds = (double)(nib__now_ns() - start) * 1e-9;
    return w->shard_count > 1 ? write_index(w, err) : NIB_OK;
}

double nib__writer_sync_seconds(const nib_writer *w) { return w->sync_seconds; }

size_t nib__writer_count(const nib_writer *w) { return w->count; }

const char *nib__writer_name(const nib_writer *w, size_t tensor) { return w->entries[tensor].name; }

nib_hash nib__writer_hash(const nib_writer *w, size_t tensor) { return w->entries[tensor].hash; }
