/* SPDX-License-Identifier: Apache-2.0
 *
 * The streaming writer. In a safetensors file, tensors with wider elements come first, so that each
 * is aligned to its element size without holes, which the format forbids; within a width, tensors
 * keep the order in which they were added. Every shard has all metadata, so it can be read alone.
 */
#include "writer.h"

#include "head_norms.h"
#include "name_index.h"
#include "pool.h"
#include "safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct entry {
    const char *name;
    nib_type type;
    int rank;
    int64_t shape[NIB_RANK_MAX];
    size_t unit, shard;
    uint64_t bytes, done;
    uint64_t offset;    /* in the file */
    const char *stored; /* name in the file; in the first part of a fused tensor, its name */
    size_t next;        /* next part of the same fused tensor or stack; SIZE_MAX: none */
    int64_t experts;    /* > 0: the first part of a stack of so many experts */
    bool follows;       /* a part other than the first */
    bool apart;         /* each row is written as a separate tensor */
    bool turned;        /* `shape` is as stored; the bytes that are put are of its transpose */
    char *held;         /* turned: what was put so far, as stored */
    nib_hasher *hasher; /* while bytes are missing */
    nib_hash hash;
} entry;

typedef struct shard {
    nib_text header; /* with the eight bytes of its size, padded to a multiple of 8 */
    uint64_t data;   /* bytes after the header */
    char name[64];
    nib_output *output;
} shard;

struct nib_writer {
    nib_allocator allocator;
    nib_arena arena;
    nib_meta *metas;
    entry *entries;
    shard *shards;
    size_t meta_count, meta_capacity, count, capacity, shard_count;
    const nib_gguf_head *gguf; /* NULL: safetensors */
    const char *directory;     /* NULL: one file */
    double sync_seconds;       /* spent finishing the files */
    unsigned fused;            /* bits of fused.h */
    size_t stored;             /* tensors in the files */
    bool failed;               /* out of memory while adding */
};

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
        if (w->entries[i].hasher != NULL)
            (void)nib__hasher_finish(w->entries[i].hasher);
        nib__release(&a, w->entries[i].held);
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
    entry e = {.type = type, .rank = rank, .unit = unit, .next = SIZE_MAX};
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

/* ---- fused tensors ---- */

/* Whether a and b can be parts of one tensor. */
static bool can_join(const entry *a, const entry *b)
{
    bool same = a->type == b->type && a->rank == b->rank;
    for (int i = 1; same && i < a->rank; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

/* Joins the parts of which entry i is the first into one tensor. */
static nib_status join_tensor(nib_writer *w, size_t i, const nib_fused_part *first,
                              const nib_name_index *names, const void *const *items, nib_err *err)
{
    size_t parts[4] = {i};
    char name[NIB_FUSED_NAME] = "", shown[160];
    for (int p = 1; p < first->count; p++) {
        parts[p] = nib__fused_name(name, first->whole, p) ? nib__name_index_find(names, items, name)
                                                          : SIZE_MAX;
        if (parts[p] != SIZE_MAX && can_join(&w->entries[i], &w->entries[parts[p]]))
            continue;
        if (w->gguf == NULL)
            return NIB_OK;
        return nib__fail(
            err, NIB_NOT_AS_ASKED,
            "%s: a GGUF of this architecture stores it in one tensor with %s, so both must have "
            "the same type; use the same recipe for both, or --format nibble",
            nib__escape_name(shown, sizeof shown, w->entries[i].name, strlen(w->entries[i].name)),
            name);
    }
    entry *e = &w->entries[i];
    e->stored = nib__arena_copy(&w->arena, first->whole, strlen(first->whole));
    if (e->stored == NULL)
        return nib__fail_memory(err, strlen(first->whole), "a name");
    for (int p = 1; p < first->count; p++) {
        w->entries[parts[p - 1]].next = parts[p];
        w->entries[parts[p]].follows = true;
    }
    return NIB_OK;
}

/* ---- halves of heads ---- */

/* The entry of a half of head h, beside that of the keys' half of head 0; SIZE_MAX: none. */
static size_t find_half(const nib_writer *w, size_t first, const char *half, int64_t h,
                        const nib_name_index *names, const void *const *items)
{
    static const char mark[] = "k_b_proj.0";
    char name[NIB_FUSED_NAME];
    const char *of = w->entries[first].name, *at = strstr(of, mark);
    const int size = snprintf(name, sizeof name, "%.*s%s_b_proj.%" PRId64 "%s", (int)(at - of), of,
                              half, h, at + sizeof mark - 1);
    return size < (int)sizeof name ? nib__name_index_find(names, items, name) : SIZE_MAX;
}

/* Joins all halves of heads into one tensor, [heads][nope + value][rank], if they are floats of one
 * type that fit. Entry i is the keys' half of head 0, [rank][nope], which is stored transposed. */
static nib_status join_heads(nib_writer *w, size_t i, const char *whole,
                             const nib_name_index *names, const void *const *items, nib_err *err)
{
    entry *const first = &w->entries[i];
    const int64_t rank = first->shape[0];
    int64_t heads = 0;
    for (;; heads++) {
        const size_t k = find_half(w, i, "k", heads, names, items),
                     v = find_half(w, i, "v", heads, names, items);
        if (k == SIZE_MAX && v == SIZE_MAX)
            break;
        if (k == SIZE_MAX || v == SIZE_MAX || !nib__type_is_float(first->type) ||
            !can_join(first, &w->entries[k]) || w->entries[k].shape[0] != rank ||
            w->entries[v].type != first->type || w->entries[v].rank != 2 ||
            w->entries[v].shape[1] != rank)
            return NIB_OK;
    }
    entry *last = NULL;
    for (int64_t h = 0; h < 2 * heads; h++) {
        const bool keys = h % 2 == 0;
        const size_t next = find_half(w, i, keys ? "k" : "v", h / 2, names, items);
        entry *e = &w->entries[next];
        if (keys) {
            e->turned = true;
            e->shape[0] = e->shape[1], e->shape[1] = rank;
        }
        e->follows = last != NULL;
        if (last != NULL)
            last->next = next;
        last = e;
    }
    first->stored = nib__arena_copy(&w->arena, whole, strlen(whole));
    return first->stored != NULL ? NIB_OK : nib__fail_memory(err, strlen(whole), "a name");
}

/* What the shares of a GGUF's stacks belong to, by the end of the stack's name. */
static const struct share_row {
    const char *mark, *of;
} shares[] = {{"_exps.", "expert"}, {".attn_k_b.", "head"}, {".attn_v_b.", "head"}};

static const struct share_row *find_mark(const char **at, const char *name)
{
    for (size_t i = 0; i < COUNT(shares); i++)
        if ((*at = strstr(name, shares[i].mark)) != NULL)
            return &shares[i];
    return NULL;
}

/* What a share's number counts: "expert". */
static const char *owner_of(const char *name)
{
    const char *at;
    return find_mark(&at, name)->of;
}

/* The name of a GGUF's stack, if the name is that of a share of one (renames.h), and its number;
 * -1: it is not. beside: the name of share number `other`. */
static int64_t find_share(char whole[NIB_FUSED_NAME], char beside[NIB_FUSED_NAME], int64_t other,
                          const char *name)
{
    const char *found;
    const struct share_row *row = find_mark(&found, name);
    if (row == NULL)
        return -1;
    const char *number = found + strlen(row->mark);
    const size_t digits = strspn(number, "0123456789"), before = (size_t)(number - name);
    if (digits == 0 || digits > 9 || number[digits] != '.' || strlen(name) >= NIB_FUSED_NAME - 12)
        return -1;
    snprintf(whole, NIB_FUSED_NAME, "%.*s%s", (int)(before - 1), name, number + digits);
    snprintf(beside, NIB_FUSED_NAME, "%.*s%" PRId64 "%s", (int)before, name, other,
             number + digits);
    return strtol(number, NULL, 10);
}

/* Joins the shares of which entry i is the first into one stack. */
static nib_status join_experts(nib_writer *w, size_t i, const nib_name_index *names,
                               const void *const *items, nib_err *err)
{
    char whole[NIB_FUSED_NAME], share[NIB_FUSED_NAME], shown[160];
    entry *e = &w->entries[i], *last = e;
    for (e->experts = 1;; e->experts++) {
        (void)find_share(whole, share, e->experts, e->name);
        const size_t next = nib__name_index_find(names, items, share);
        if (next == SIZE_MAX)
            break;
        if (!can_join(e, &w->entries[next]) || e->shape[0] != w->entries[next].shape[0])
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "%s: a GGUF stores all %ss in one tensor, so this one must have "
                             "the type and shape of %s 0; use the same recipe for all of them, "
                             "or --format nibble",
                             nib__escape_name(shown, sizeof shown, share, strlen(share)),
                             owner_of(e->name), owner_of(e->name));
        last->next = next;
        last = &w->entries[next];
        last->follows = true;
    }
    e->stored = nib__arena_copy(&w->arena, whole, strlen(whole));
    return e->stored != NULL ? NIB_OK : nib__fail_memory(err, strlen(whole), "a name");
}

/* Joins the experts of a GGUF's stacks. */
static nib_status join_stacks(nib_writer *w, const nib_name_index *names, const void *const *items,
                              nib_err *err)
{
    char whole[NIB_FUSED_NAME], share[NIB_FUSED_NAME], shown[160];
    for (size_t i = 0; i < w->count; i++)
        if (find_share(whole, share, 0, w->entries[i].name) == 0)
            NIB_TRY(join_experts(w, i, names, items, err));
    for (size_t i = 0; i < w->count; i++) {
        const entry *e = &w->entries[i];
        if (find_share(whole, share, 0, e->name) > 0 && !e->follows)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: a GGUF stores all %ss in one tensor, and one before this is "
                             "missing",
                             nib__escape_name(shown, sizeof shown, e->name, strlen(e->name)),
                             owner_of(e->name));
    }
    return NIB_OK;
}

static nib_status join_parts(nib_writer *w, nib_err *err)
{
    nib_name_index names;
    const void **items = nib__arena_take(&w->arena, w->count, sizeof *items);
    if (items == NULL || !nib__name_index_init(&names, &w->arena, w->count))
        return nib__fail_memory(err, w->count * sizeof *items, "the list of tensors");
    for (size_t i = 0; i < w->count; i++) {
        items[i] = &w->entries[i];
        nib__name_index_add(&names, items, i);
    }
    for (size_t i = 0; i < w->count && w->fused != 0; i++) {
        nib_fused_part first;
        char name[NIB_FUSED_NAME];
        const char *of = w->entries[i].name;
        if (nib__fused_part(&first, of, w->fused & NIB_FUSED_HEADS) && first.part == 0)
            NIB_TRY(join_heads(w, i, first.whole, &names, items, err));
        else if (nib__fused_part(&first, of, w->fused & ~(unsigned)NIB_FUSED_HEADS) &&
                 first.part == 0)
            NIB_TRY(join_tensor(w, i, &first, &names, items, err));
        w->entries[i].apart = (w->fused & NIB_APART_HEAD_NORMS) != 0 && w->gguf == NULL &&
                              nib__head_norm_name(name, w->entries[i].name, 0);
    }
    if (w->gguf != NULL)
        NIB_TRY(join_stacks(w, &names, items, err));
    for (size_t i = 0; i < w->count; i++)
        w->stored += !w->entries[i].follows;
    return NIB_OK;
}

/* The next part of the same tensor; NULL: e is the last. */
static entry *next_part(nib_writer *w, const entry *e)
{
    return e->next == SIZE_MAX ? NULL : &w->entries[e->next];
}

/* Bytes of the whole tensor that begins with part e; *rows: its rows. */
static uint64_t stored_bytes(nib_writer *w, const entry *e, int64_t *rows)
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
static uint64_t assign_offsets(nib_writer *w, entry *e, uint64_t at)
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
            for (entry *e = &w->entries[i]; e != NULL && !w->entries[i].follows;
                 e = next_part(w, e))
                e->shard = shards;
    }
    return shards + 1;
}

/* Number of tensors that an entry is written as; stored_name returns the name of tensor i. */
static int64_t count_tensors(const entry *e) { return e->apart && e->rank == 2 ? e->shape[0] : 1; }

static const char *stored_name(char out[NIB_FUSED_NAME], const entry *e, int64_t i)
{
    return e->apart && nib__head_norm_name(out, e->name, i) ? out : e->stored;
}

static void write_entry(nib_jsonw *json, const char *name, const entry *e, int64_t rows,
                        uint64_t begin, uint64_t end)
{
    nib__jsonw_key(json, name);
    nib__jsonw_object(json);
    nib__jsonw_pair_string(json, "dtype", nib__type_stored_name(e->type));
    nib__jsonw_key(json, "shape");
    nib__jsonw_array(json);
    for (int i = e->apart ? e->rank - 1 : 0; i < e->rank; i++)
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
    shard *to = &w->shards[s];
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
            entry *e = &w->entries[i];
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
static nib_status lay_out_gguf(nib_writer *w, shard *to, nib_err *err)
{
    char shown[160];
    nib__text_init(&to->header, &w->allocator);
    nib__gguf_begin(&to->header, w->gguf, w->stored);
    for (size_t i = 0; i < w->count; i++) {
        entry *e = &w->entries[i];
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

static nib_status check_header(nib_writer *w, shard *s, nib_err *err)
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
    NIB_TRY(join_parts(w, err));
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
        shard *s = &w->shards[i];
        const char *path = file != NULL ? file : nib__path_join(&w->arena, directory, s->name);
        if (path == NULL)
            return nib__fail_memory(err, strlen(s->name), "a path");
        NIB_TRY(nib__output_open(&s->output, path, &w->allocator, err));
        NIB_TRY(nib__output_write(s->output, s->header.at, s->header.size, err));
        NIB_TRY(nib__output_extend(s->output, s->header.size + s->data, err));
    }
    return NIB_OK;
}

/* Puts the next bytes of the transpose of a stored tensor; writes all once they are complete. */
static nib_status put_turned(nib_writer *w, entry *e, const char *bytes, size_t size, nib_err *err)
{
    const uint64_t width = (uint64_t)nib__type_bits(e->type) / 8, rows = (uint64_t)e->shape[0],
                   columns = (uint64_t)e->shape[1];
    if (e->held == NULL && (e->held = nib__calloc(&w->allocator, e->bytes, 1)) == NULL)
        return nib__fail_memory(err, e->bytes, e->name);
    for (uint64_t i = e->done; i < e->done + size; i++) {
        const uint64_t at = i / width;
        e->held[(at % rows * columns + at / rows) * width + i % width] = bytes[i - e->done];
    }
    e->done += size;
    if (e->done < e->bytes)
        return NIB_OK;
    e->hash = nib__hash_bytes(e->held, e->bytes);
    const nib_status status =
        nib__output_patch(w->shards[e->shard].output, e->offset, e->held, e->bytes, err);
    nib__release(&w->allocator, e->held);
    e->held = NULL;
    return status;
}

nib_status nib__writer_put(nib_writer *w, size_t tensor, const void *bytes, size_t size,
                           nib_err *err)
{
    entry *e = &w->entries[tensor];
    if (size > e->bytes - e->done)
        return nib__fail(err, NIB_FAILED,
                         "%s: %zu bytes are written after %" PRIu64 ", but its shape has %" PRIu64,
                         e->name, size, e->done, e->bytes);
    if (e->turned)
        return put_turned(w, e, bytes, size, err);
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
        const entry *e = &w->entries[i];
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
        entry *e = &w->entries[i];
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
