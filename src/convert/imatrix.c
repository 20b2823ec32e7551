/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads importance matrices:
 *
 *   GGUF     general.type = "imatrix"; NAME.in_sum2 f32 [matrices][k], NAME.counts f32 [matrices]
 *   older    i32 entries, each: i32 length, name, i32 calls, i32 values, f32 [values], divided by
 *            tokens and multiplied by calls; then i32 chunks, i32 length, name of the text
 *
 * with a matrix for each expert of a stack. Only the ratios of a matrix's values count here.
 */
#include "imatrix.h"

#include "file.h"
#include "gguf.h"
#include "name_index.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { OLDER_ENTRIES_MAX = 1 << 20, OLDER_NAME_MAX = 1024 };

typedef struct entry {
    const char *name;      /* GGUF's, with .weight; first, as the index wants it */
    const uint8_t *values; /* f32, unaligned */
    const uint8_t *counts; /* f32 [matrices]; NULL: seen */
    uint64_t value_count, matrices;
} entry;

struct nib_imatrix {
    const char *path;
    nib_map map;
    nib_arena arena;
    nib_allocator allocator;
    entry **entries; /* [count] */
    size_t count;
    nib_name_index by_name;
};

static float value_at(const uint8_t *values, uint64_t i)
{
    float value;
    memcpy(&value, values + 4 * i, sizeof value);
    return value;
}

static nib_status check_values(const nib_imatrix *m, const entry *e, nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN];
    for (uint64_t i = 0; i < e->value_count; i++) {
        const float value = value_at(e->values, i);
        if (!(value >= 0 && isfinite(value)))
            return nib__fail(
                err, NIB_BAD_INPUT, "%s: value %" PRIu64 " of %s is %.9g, not a sum of squares",
                nib__escape_string(a, m->path), i, nib__escape_string(b, e->name), (double)value);
    }
    return NIB_OK;
}

static nib_status add_entry(nib_imatrix *m, const entry *e, nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN];
    *m->entries[m->count] = *e;
    NIB_TRY(check_values(m, e, err));
    if (nib__name_index_add(&m->by_name, (const void *const *)m->entries, m->count) != NULL)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s occurs twice", nib__escape_string(a, m->path),
                         nib__escape_string(b, e->name));
    m->count++;
    return NIB_OK;
}

static nib_status allocate_entries(nib_imatrix *m, size_t count, nib_err *err)
{
    m->entries = nib__container_items(&m->arena, count, sizeof **m->entries);
    if (m->entries == NULL || !nib__name_index_init(&m->by_name, &m->arena, count))
        return nib__fail_memory(err, count * sizeof **m->entries, m->path);
    return NIB_OK;
}

/* ---- GGUF ---- */

/* NAME of a tensor NAME.SUFFIX; NULL: another suffix, or no memory. */
static const char *name_before(nib_arena *arena, const char *name, const char *suffix)
{
    const size_t size = strlen(name), tail = strlen(suffix);
    if (size <= tail || strcmp(name + size - tail, suffix) != 0)
        return NULL;
    return nib__arena_copy(arena, name, size - tail);
}

static const nib_tensor *find_counts(const nib_container *file, const char *name)
{
    char wanted[NIB_GGUF_NAME_MAX + 1];
    snprintf(wanted, sizeof wanted, "%s.counts", name);
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i]->name, wanted) == 0)
            return file->tensors[i];
    return NULL;
}

static nib_status read_tensor(nib_imatrix *m, const nib_container *file, const nib_tensor *t,
                              nib_err *err)
{
    char a[NIB_SHOWN], b[NIB_SHOWN];
    const char *name = name_before(&m->arena, t->name, ".in_sum2");
    if (name == NULL)
        return NIB_OK;
    const nib_tensor *counts = find_counts(file, name);
    entry e = {.name = name, .values = t->data, .value_count = t->bytes / 4};
    if (counts == NULL || counts->type != NIB_TYPE_F32 || t->type != NIB_TYPE_F32)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s has no f32 .in_sum2 and .counts",
                         nib__escape_string(a, m->path), nib__escape_string(b, name));
    e.counts = counts->data;
    e.matrices = counts->bytes / 4;
    if (e.matrices == 0 || e.value_count % e.matrices != 0)
        return nib__fail(
            err, NIB_BAD_INPUT, "%s: %s has %" PRIu64 " values for %" PRIu64 " matrices",
            nib__escape_string(a, m->path), nib__escape_string(b, name), e.value_count, e.matrices);
    return add_entry(m, &e, err);
}

static nib_status read_gguf(nib_imatrix *m, nib_err *err)
{
    nib_container file;
    const char *type = NULL;
    char a[NIB_SHOWN];
    size_t size = 0;
    bool found;
    NIB_TRY(nib__gguf_parse(&file, m->map.at, m->map.size, m->path, 0, &m->arena, err));
    NIB_TRY(nib__gguf_string(&type, &size, &found, file.gguf, "general.type", err));
    if (!found || size != 7 || memcmp(type, "imatrix", 7) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s is a GGUF file, but general.type is not \"imatrix\"",
                         nib__escape_string(a, m->path));
    NIB_TRY(allocate_entries(m, file.count, err));
    for (size_t i = 0; i < file.count; i++)
        NIB_TRY(read_tensor(m, &file, file.tensors[i], err));
    return NIB_OK;
}

/* ---- the older form ---- */

typedef struct reader {
    const nib_imatrix *m;
    uint64_t at;
} reader;

/* The next `bytes` bytes; NULL: the file ends before. */
static const uint8_t *take(reader *r, uint64_t bytes)
{
    if (bytes > r->m->map.size - r->at)
        return NULL;
    const uint8_t *from = r->m->map.at + r->at;
    r->at += bytes;
    return from;
}

static bool take_int(reader *r, int32_t *out)
{
    const uint8_t *from = take(r, sizeof *out);
    if (from != NULL)
        memcpy(out, from, sizeof *out);
    return from != NULL;
}

static nib_status fail_older(const nib_imatrix *m, size_t index, nib_err *err)
{
    char a[NIB_SHOWN];
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s is not an imatrix of llama.cpp, or is cut short in entry %zu",
                     nib__escape_string(a, m->path), index);
}

static nib_status read_older(nib_imatrix *m, nib_err *err)
{
    reader r = {.m = m};
    int32_t entries = 0;
    if (!take_int(&r, &entries) || entries < 1 || entries > OLDER_ENTRIES_MAX ||
        (uint64_t)entries > m->map.size / 16)
        return fail_older(m, 0, err);
    NIB_TRY(allocate_entries(m, (size_t)entries, err));
    for (size_t i = 0; i < (size_t)entries; i++) {
        int32_t size, calls, count;
        if (!take_int(&r, &size) || size < 1 || size > OLDER_NAME_MAX)
            return fail_older(m, i, err);
        const uint8_t *name = take(&r, (uint64_t)size);
        if (name == NULL || !take_int(&r, &calls) || !take_int(&r, &count) || count < 1)
            return fail_older(m, i, err);
        const uint8_t *values = take(&r, 4 * (uint64_t)count);
        entry e = {.name = nib__arena_copy(&m->arena, (const char *)name, (size_t)size),
                   .values = values,
                   .value_count = (uint64_t)count};
        if (values == NULL)
            return fail_older(m, i, err);
        if (e.name == NULL)
            return nib__fail_memory(err, (uint64_t)size, m->path);
        NIB_TRY(add_entry(m, &e, err));
    }
    return NIB_OK;
}

/* ---- the interface ---- */

nib_status nib__imatrix_open(nib_imatrix **out, const char *path, const nib_allocator *a,
                             nib_err *err)
{
    nib_imatrix *m = nib__calloc(a, 1, sizeof *m);
    if (m == NULL)
        return nib__fail_memory(err, sizeof *m, path);
    m->allocator = *a;
    m->path = path;
    nib_status status = nib__map_open(&m->map, path, err);
    if (status != NIB_OK) {
        nib__release(a, m);
        return status;
    }
    nib__arena_init(&m->arena, a, 0);
    const bool is_gguf = m->map.size >= 4 && memcmp(m->map.at, "GGUF", 4) == 0;
    status = is_gguf ? read_gguf(m, err) : read_older(m, err);
    status = nib__map_read(&m->map, path, status, err);
    if (status == NIB_OK)
        *out = m;
    else
        nib__imatrix_close(m);
    return status;
}

void nib__imatrix_close(nib_imatrix *m)
{
    if (m == NULL)
        return;
    const nib_allocator a = m->allocator;
    nib__arena_free(&m->arena);
    nib__map_close(&m->map);
    nib__release(&a, m);
}

size_t nib__imatrix_count(const nib_imatrix *m) { return m->count; }

/* Cuts the number that follows `mark` out of a name; -1: there is none. */
static int64_t cut_number(char *name, const char *mark)
{
    char *at = strstr(name, mark), *end;
    if (at == NULL)
        return -1;
    at += strlen(mark);
    if (*at < '0' || *at > '9')
        return -1;
    const long long number = strtoll(at, &end, 10);
    memmove(at - 1, end, strlen(end) + 1);
    return number;
}

/* "blk.0.ffn_up_exps.3.weight" is matrix 3 of blk.0.ffn_up_exps.weight, and
 * "blk.0.attn_k_b.3.weight" of blk.0.attn_k_b.weight. */
bool nib__imatrix_name(char out[NIB_RENAME_MAX], int64_t *matrix, const char *arch,
                       const char *layer)
{
    char module[NIB_RENAME_MAX];
    if (snprintf(module, sizeof module, "%s.weight", layer) >= (int)sizeof module ||
        !nib__rename_to_gguf(out, arch, module))
        return false;
    *matrix = cut_number(out, "_exps.");
    if (*matrix < 0)
        *matrix = cut_number(out, "_b.");
    return true;
}

/* The entry of a weight, or of the fused weight that reads the same inputs. */
static const entry *find_entry(const nib_imatrix *m, const char *name)
{
    static const char *const fused[][2] = {{".attn_q.", ".attn_qkv."},
                                           {".attn_k.", ".attn_qkv."},
                                           {".attn_v.", ".attn_qkv."},
                                           {".ffn_gate.", ".ffn_up."}};
    const void *const *items = (const void *const *)m->entries;
    size_t at = nib__name_index_find(&m->by_name, items, name);
    for (size_t i = 0; i < COUNT(fused) && at == SIZE_MAX; i++) {
        char other[NIB_RENAME_MAX + 16];
        const char *part = strstr(name, fused[i][0]);
        if (part == NULL)
            continue;
        snprintf(other, sizeof other, "%.*s%s%s", (int)(part - name), name, fused[i][1],
                 part + strlen(fused[i][0]));
        at = nib__name_index_find(&m->by_name, items, other);
    }
    return at == SIZE_MAX ? NULL : m->entries[at];
}

nib_status nib__imatrix_read(double *squares, bool *found, const nib_imatrix *m, const char *arch,
                             const char *layer, int64_t k, nib_err *err)
{
    char name[NIB_RENAME_MAX], a[NIB_SHOWN], b[NIB_SHOWN];
    int64_t matrix;
    *found = false;
    if (!nib__imatrix_name(name, &matrix, arch, layer))
        return NIB_OK;
    const entry *e = find_entry(m, name);
    if (e == NULL)
        return NIB_OK;
    const uint64_t matrices = e->value_count / (uint64_t)k;
    if (e->value_count % (uint64_t)k != 0 ||
        (matrix < 0 ? matrices != 1 : matrices <= (uint64_t)matrix) ||
        (e->counts != NULL && e->matrices != matrices && e->matrices != 1))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s has %" PRIu64 " values, but %s reads %" PRId64
                         " inputs; it is of another model",
                         nib__escape_string(a, m->path), name, e->value_count,
                         nib__escape_string(b, layer), k);
    const uint64_t at = matrix > 0 ? (uint64_t)matrix : 0;
    if (e->counts != NULL && !(value_at(e->counts, e->matrices == 1 ? 0 : at) > 0))
        return NIB_OK;
    for (int64_t j = 0; j < k; j++)
        squares[j] = (double)value_at(e->values, at * (uint64_t)k + (uint64_t)j);
    *found = true;
    return NIB_OK;
}
