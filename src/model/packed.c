/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of packed weights; see packed.h. A head of fixed size, records of fixed size, and a
 * checksum for each piece of the data. No offset or size from the file is used before it is checked
 * against the file's size.
 */
#include "packed.h"

#include "weights.h"

#include <stdio.h>

enum {
    VERSION = 1,
    HEAD = 2 << 20,  /* bytes before the data, so that huge pages can map the data */
    PIECE = 4 << 20, /* bytes of data per checksum */
    ALIGN = 64,
    NAME = 160,
    PROBE = 32, /* rows packed again to compare layouts; a multiple of every step */
};

static const char magic[8] = {'n', 'i', 'b', 'p', 'a', 'c', 'k', '\n'};

typedef struct record {
    char site[NAME], packing[32], scheme[64]; /* each ends with a NUL */
    uint64_t offset, bytes;                   /* in the data */
    nib_hash probe;                           /* of its first rows, packed separately */
} record;

typedef struct head {
    char magic[8];
    uint32_t version, order; /* order: ORDER in this machine's byte order */
    uint64_t count, data_bytes;
    nib_hash manifest; /* of nibble.json and config.json */
    nib_hash stamp;    /* of the weight files' sizes and times; if it differs, `content` decides */
    nib_hash content;  /* of the weight files' bytes */
    nib_hash rest;     /* of the records and checksums after the head */
    nib_hash self;     /* of this head with `self` zeroed */
} head;

static const uint32_t ORDER = 0x01020304;

struct nib_packed {
    nib_allocator allocator;
    nib_map map;       /* of the file; empty: the bytes are the caller's */
    const uint8_t *at; /* all bytes */
    uint64_t size;
    head head;
    const record *records;
    const nib_hash *sums;
    const uint8_t *data;
    const char *path;    /* of map */
    uint64_t checked_ns; /* time of the last check of a piece */
    uint64_t next;       /* piece that was checked last */
};

/* ---- checksums ---- */

static uint64_t pieces_of(uint64_t bytes) { return bytes / PIECE + (bytes % PIECE != 0); }

static nib_hash piece_hash(const uint8_t *data, uint64_t bytes, uint64_t piece)
{
    const uint64_t at = piece * PIECE, left = bytes - at;
    return nib__hash_bytes(data + at, left < PIECE ? left : PIECE);
}

typedef struct summing {
    const uint8_t *data;
    uint64_t bytes;
    nib_hash *sums; /* [pieces] */
} summing;

static void sum_pieces(void *ctx, int worker, int64_t begin, int64_t end)
{
    const summing *s = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        s->sums[i] = piece_hash(s->data, s->bytes, (uint64_t)i);
}

/* Checksums of all pieces, computed by all workers; NULL: no memory. Allocates at least one
 * element, even for no pieces. */
static nib_hash *sums_of(const uint8_t *data, uint64_t bytes, nib_pool *pool,
                         const nib_allocator *a)
{
    const uint64_t pieces = pieces_of(bytes);
    summing s = {data, bytes, nib__calloc(a, pieces + 1, sizeof *s.sums)};
    if (s.sums != NULL)
        nib__pool_run(pool, (int64_t)pieces, 1, false, sum_pieces, &s);
    return s.sums;
}

/* ---- the source ---- */

/* Hashes the descriptions beside the weights, if any: the manifest has a hash of every tensor. */
static nib_status hash_manifest(nib_hash *out, const char *directory, const nib_allocator *a,
                                nib_err *err)
{
    static const char *const names[] = {"nibble.json", "config.json"};
    nib_hash hashes[COUNT(names)];
    nib_arena arena;
    nib_status status = NIB_OK;
    nib__arena_init(&arena, a, 0);
    for (size_t i = 0; i < COUNT(names) && status == NIB_OK; i++) {
        enum { LIMIT = 256 << 20 };
        char *text = NULL;
        size_t size = 0;
        const char *path = nib__path_join(&arena, directory != NULL ? directory : "", names[i]);
        hashes[i] = (nib_hash){0, 0};
        if (path == NULL)
            status = nib__fail_memory(err, strlen(names[i]), "a path");
        else if (directory == NULL || nib__path_kind(path) == NIB_PATH_NONE)
            continue;
        else
            status = nib__file_read(&text, &size, path, LIMIT, a, err);
        if (status == NIB_OK)
            hashes[i] = nib__hash_bytes(text, size);
        nib__release(a, text);
    }
    nib__arena_free(&arena);
    if (status == NIB_OK)
        *out = nib__hash_bytes(hashes, sizeof hashes);
    return status;
}

static nib_status hash_stamp(nib_hash *out, const nib_checkpoint *cp, nib_err *err)
{
    nib_hasher *hasher = nib__hasher_open();
    if (hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    for (size_t i = 0; i < nib__checkpoint_file_count(cp); i++) {
        const nib_map *map = nib__checkpoint_file(cp, i);
        nib__hasher_add(hasher, &map->size, sizeof map->size);
        nib__hasher_add(hasher, &map->modified_ns, sizeof map->modified_ns);
    }
    *out = nib__hasher_finish(hasher);
    return NIB_OK;
}

static nib_status hash_content(nib_hash *out, const nib_checkpoint *cp, nib_pool *pool,
                               const nib_allocator *a, nib_err *err)
{
    nib_hasher *hasher = nib__hasher_open();
    nib_status status = hasher == NULL ? nib__fail_memory(err, 1024, "a hash") : NIB_OK;
    for (size_t i = 0; i < nib__checkpoint_file_count(cp) && status == NIB_OK; i++) {
        const nib_map *map = nib__checkpoint_file(cp, i);
        nib_hash *sums = sums_of(map->at, map->size, pool, a);
        if (sums == NULL)
            status = nib__fail_memory(err, pieces_of(map->size) * sizeof *sums, "hashes");
        else
            nib__hasher_add(hasher, sums, (size_t)pieces_of(map->size) * sizeof *sums);
        nib__release(a, sums);
        nib__map_release(map->at, map->size);
    }
    if (hasher != NULL)
        *out = nib__hasher_finish(hasher);
    return status;
}

/* ---- reading ---- */

static nib_hash self_hash(head h)
{
    h.self = (nib_hash){0, 0};
    return nib__hash_bytes(&h, sizeof h);
}

static nib_status refuse(const char *path, const char *why, nib_err *err)
{
    return nib__fail(err, NIB_BAD_INPUT, "%s: %s", path, why);
}

static bool ends_inside(const char *text, size_t size) { return memchr(text, 0, size) != NULL; }

static nib_status check_records(const nib_packed *p, const char *path, nib_err *err)
{
    for (uint64_t i = 0; i < p->head.count; i++) {
        const record *r = &p->records[i];
        if (!ends_inside(r->site, sizeof r->site) || !ends_inside(r->packing, sizeof r->packing) ||
            !ends_inside(r->scheme, sizeof r->scheme) || r->offset % ALIGN != 0 ||
            r->offset > p->head.data_bytes || r->bytes > p->head.data_bytes - r->offset)
            return refuse(path, "a record points outside the file", err);
    }
    return NIB_OK;
}

/* Checks everything that needs only the file, except the checksums of the data. */
static nib_status check_head(nib_packed *p, const char *path, nib_err *err)
{
    head *h = &p->head;
    if (p->size < HEAD)
        return refuse(path, "is shorter than its head", err);
    memcpy(h, p->at, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return refuse(path, "is not a file of packed weights", err);
    if (h->version != VERSION || h->order != ORDER)
        return refuse(path, "has an unsupported version or another byte order", err);
    if (!nib__hash_equal(self_hash(*h), h->self))
        return refuse(path, "its head was modified after it was written", err);
    if (h->data_bytes != p->size - HEAD)
        return refuse(path, "its size does not match its head", err);
    const uint64_t room = HEAD - sizeof *h, pieces = pieces_of(h->data_bytes);
    if (h->count > room / sizeof(record) ||
        pieces > (room - h->count * sizeof(record)) / sizeof(nib_hash))
        return refuse(path, "has more records than its head has room for", err);
    const uint64_t rest = h->count * sizeof(record) + pieces * sizeof(nib_hash);
    p->records = (const record *)(const void *)(p->at + sizeof *h);
    p->sums = (const nib_hash *)(const void *)(p->records + h->count);
    p->data = p->at + HEAD;
    if (!nib__hash_equal(nib__hash_bytes(p->records, rest), h->rest))
        return refuse(path, "its records were modified after they were written", err);
    return check_records(p, path, err);
}

static nib_status check_source(const nib_packed *p, const nib_checkpoint *cp, nib_pool *pool,
                               const char *path, nib_err *err)
{
    static const char other[] = "was made from different weights";
    const nib_allocator *a = &p->allocator;
    nib_hash manifest, stamp, content;
    NIB_TRY(hash_manifest(&manifest, nib__checkpoint_directory(cp), a, err));
    if (!nib__hash_equal(manifest, p->head.manifest))
        return refuse(path, other, err);
    NIB_TRY(hash_stamp(&stamp, cp, err));
    if (nib__hash_equal(stamp, p->head.stamp))
        return NIB_OK;
    NIB_TRY(hash_content(&content, cp, pool, a, err)); /* a copy has different times */
    return nib__hash_equal(content, p->head.content) ? NIB_OK : refuse(path, other, err);
}

static nib_status check_data(const nib_packed *p, nib_pool *pool, const char *path, nib_err *err)
{
    const uint64_t pieces = pieces_of(p->head.data_bytes);
    nib_hash *sums = sums_of(p->data, p->head.data_bytes, pool, &p->allocator);
    if (sums == NULL)
        return nib__fail_memory(err, pieces * sizeof *sums, "checksums");
    const bool same = memcmp(sums, p->sums, (size_t)pieces * sizeof *sums) == 0;
    nib__release(&p->allocator, sums);
    return same ? NIB_OK : refuse(path, "its weights were modified after they were written", err);
}

static nib_status open_file(nib_packed *p, const char *path, const nib_checkpoint *cp,
                            nib_pool *pool, nib_err *err)
{
    NIB_TRY(nib__map_open_wide(&p->map, path, err));
    p->at = p->map.at, p->size = p->map.size, p->path = path;
    NIB_TRY(check_head(p, path, err));
    NIB_TRY(check_source(p, cp, pool, path, err));
    NIB_TRY(nib__map_read(&p->map, path, check_data(p, pool, path, err), err));
    p->checked_ns = nib__now_ns(); /* all pieces were just checked */
    return NIB_OK;
}

nib_status nib__packed_parse(nib_packed **out, const uint8_t *at, uint64_t size, const char *name,
                             nib_pool *pool, const nib_allocator *a, nib_err *err)
{
    nib_packed *p = nib__calloc(a, 1, sizeof *p);
    if (p == NULL)
        return nib__fail_memory(err, sizeof *p, name);
    p->allocator = *a;
    p->at = at, p->size = size;
    nib_status status = check_head(p, name, err);
    if (status == NIB_OK)
        status = check_data(p, pool, name, err);
    if (status == NIB_OK)
        *out = p;
    else
        nib__packed_close(p);
    return status;
}

const char *nib__packed_path(const nib_checkpoint *cp, nib_arena *arena)
{
    const char *directory = nib__checkpoint_directory(cp);
    return directory != NULL ? nib__path_join(arena, directory, NIB_PACKED_NAME) : NULL;
}

nib_status nib__packed_open(nib_packed **out, const char *path, const nib_checkpoint *cp,
                            nib_pool *pool, const nib_allocator *a, nib_err *err)
{
    *out = NULL;
    if (nib__path_kind(path) == NIB_PATH_NONE)
        return NIB_OK;
    nib_packed *p = nib__calloc(a, 1, sizeof *p);
    if (p == NULL)
        return nib__fail_memory(err, sizeof *p, path);
    p->allocator = *a;
    const nib_status status = open_file(p, path, cp, pool, err);
    if (status == NIB_OK)
        *out = p;
    else
        nib__packed_close(p);
    return status;
}

void nib__packed_close(nib_packed *packed)
{
    if (packed == NULL)
        return;
    const nib_allocator a = packed->allocator;
    nib__map_close(&packed->map);
    nib__release(&a, packed);
}

nib_status nib__packed_check(nib_packed *p, nib_status status, nib_err *err)
{
    enum { BETWEEN_NS = 1000000000 };
    if (p->map.at == NULL)
        return status;
    status = nib__map_read(&p->map, p->path, status, err);
    const uint64_t now = nib__now_ns(), pieces = pieces_of(p->head.data_bytes);
    if (status != NIB_OK || pieces == 0 || now - p->checked_ns < BETWEEN_NS)
        return status;
    p->checked_ns = now;
    p->next = (p->next + 1) % pieces;
    if (nib__hash_equal(piece_hash(p->data, p->head.data_bytes, p->next), p->sums[p->next]))
        return status;
    return nib__fail(
        err, NIB_IO,
        "%s: another process wrote to the file while it was in use; run again when it is complete",
        p->path);
}

/* ---- finding ---- */

/* Formats what the packed bytes depend on besides the layout's name and the codes. */
static void name_scheme(char out[64], const nib_weight *w)
{
    char scheme[64];
    memset(out, 0, 64);
    snprintf(out, 64, "%s %s %s %lldx%lld", nib__scheme_name(scheme, &w->scheme),
             nib__type_name(w->scale_type), nib__type_name(w->zero_type), (long long)w->n,
             (long long)w->k);
}

/* Hashes the first rows packed separately: this detects another layout under the same name, and
 * other weights. */
static bool hash_probe(nib_hash *out, const nib_weight *w, const nib_packing *packing)
{
    nib_weight first = *w;
    first.n = nib__min(w->n, PROBE);
    const uint64_t bytes = packing->bytes(&first);
    uint8_t *packed = nib__block_take(bytes);
    if (packed == NULL)
        return false;
    packing->pack(&first, packed, 0, first.n);
    *out = nib__hash_bytes(packed, bytes);
    nib__block_free(packed, bytes);
    return true;
}

static const record *find_record(const nib_packed *p, const char *site, const nib_packing *packing)
{
    for (uint64_t i = 0; i < p->head.count; i++)
        if (strcmp(p->records[i].site, site) == 0 &&
            strcmp(p->records[i].packing, packing->name) == 0)
            return &p->records[i];
    return NULL;
}

bool nib__packed_has(const nib_packed *packed, const char *site, const nib_packing *packing)
{
    return find_record(packed, site, packing) != NULL;
}

const void *nib__packed_find(const nib_packed *packed, const char *site, const nib_weight *w,
                             const nib_packing *packing, uint64_t bytes)
{
    char scheme[64];
    nib_hash hash;
    const record *r = find_record(packed, site, packing);
    name_scheme(scheme, w);
    if (r == NULL || r->bytes != bytes || strcmp(r->scheme, scheme) != 0 ||
        !hash_probe(&hash, w, packing) || !nib__hash_equal(hash, r->probe))
        return NULL;
    return packed->data + r->offset;
}

/* ---- writing ---- */

typedef struct writing {
    const nib_network *net;
    nib_output *output;
    nib_hasher *hasher; /* of the current piece */
    uint64_t bytes;     /* of data so far */
    nib_text records, sums;
    size_t count;
} writing;

static nib_status end_piece(writing *w, nib_err *err)
{
    const nib_hash hash = nib__hasher_finish(w->hasher);
    nib__text_put(&w->sums, (const char *)&hash, sizeof hash);
    w->hasher = nib__hasher_open();
    return w->hasher == NULL ? nib__fail_memory(err, 1024, "a hash") : NIB_OK;
}

static nib_status write_data(writing *w, const uint8_t *bytes, uint64_t size, nib_err *err)
{
    while (size != 0) {
        const uint64_t room = PIECE - w->bytes % PIECE, some = size < room ? size : room;
        nib__hasher_add(w->hasher, bytes, (size_t)some);
        NIB_TRY(nib__output_write(w->output, bytes, (size_t)some, err));
        w->bytes += some, bytes += some, size -= some;
        if (some == room)
            NIB_TRY(end_piece(w, err));
    }
    return NIB_OK;
}

static nib_status write_pack(writing *w, const char *site, const nib_loaded *loaded,
                             const nib_pack *pack, nib_err *err)
{
    static const uint8_t zeros[ALIGN] = {0};
    record r;
    memset(&r, 0, sizeof r);
    const int named = snprintf(r.site, sizeof r.site, "%s", site);
    const int laid_out = snprintf(r.packing, sizeof r.packing, "%s", pack->packing->name);
    if ((size_t)named >= sizeof r.site || (size_t)laid_out >= sizeof r.packing)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: the name is over the limit of packed files, %d bytes", site,
                         NAME - 1);
    name_scheme(r.scheme, &loaded->w);
    r.offset = w->bytes;
    r.bytes = pack->bytes;
    if (!hash_probe(&r.probe, &loaded->w, pack->packing))
        return nib__fail_memory(err, pack->bytes, "a packed weight");
    nib__text_put(&w->records, (const char *)&r, sizeof r);
    w->count++;
    NIB_TRY(write_data(w, pack->at, pack->bytes, err));
    return write_data(w, zeros, (ALIGN - pack->bytes % ALIGN) % ALIGN, err);
}

static nib_status write_sites(writing *w, const nib_assignment *plan, nib_err *err)
{
    const nib_allocator *a = &w->net->engine->allocator;
    for (size_t i = 0; i < w->net->site_count; i++) {
        const char *site = w->net->sites[i].name;
        nib_loaded loaded = {0};
        nib_staging none = {0};
        if (!nib__engine_progress(w->net->engine, "pack", i, w->net->site_count))
            return nib__fail(err, NIB_CANCELLED, "packing was cancelled");
        NIB_TRY(nib__weight_load(&loaded, w->net, &plan->layers[i], i, &none, NULL, err));
        nib_status status = NIB_OK;
        for (int j = 0; j < loaded.pack_count && status == NIB_OK; j++)
            status = write_pack(w, site, &loaded, &loaded.packs[j], err);
        nib__weight_unload(&loaded, a);
        NIB_TRY(status);
    }
    return w->bytes % PIECE != 0 ? end_piece(w, err) : NIB_OK;
}

static nib_status write_head(writing *w, nib_err *err)
{
    const nib_checkpoint *cp = w->net->checkpoint;
    const nib_engine *e = w->net->engine;
    head h;
    memset(&h, 0, sizeof h);
    nib__text_put(&w->records, w->sums.at, w->sums.size);
    if (w->records.failed || w->sums.failed)
        return nib__fail_memory(err, w->records.size, "records");
    if (w->records.size > HEAD - sizeof h)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%zu bytes of records do not fit into the head of a packed file, %zu",
                         w->records.size, HEAD - sizeof h);
    memcpy(h.magic, magic, sizeof magic);
    h.version = VERSION, h.order = ORDER;
    h.count = w->count, h.data_bytes = w->bytes;
    NIB_TRY(hash_manifest(&h.manifest, nib__checkpoint_directory(cp), &e->allocator, err));
    NIB_TRY(hash_stamp(&h.stamp, cp, err));
    NIB_TRY(hash_content(&h.content, cp, e->pool, &e->allocator, err));
    h.rest = nib__hash_bytes(w->records.at, w->records.size);
    h.self = self_hash(h);
    NIB_TRY(nib__output_patch(w->output, 0, &h, sizeof h, err));
    return nib__output_patch(w->output, sizeof h, w->records.at, w->records.size, err);
}

static nib_status write_part(writing *w, const nib_assignment *plan, nib_err *err)
{
    w->hasher = nib__hasher_open();
    if (w->hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    NIB_TRY(nib__output_extend(w->output, HEAD, err));
    NIB_TRY(write_sites(w, plan, err));
    NIB_TRY(write_head(w, err));
    nib_output *output = w->output;
    w->output = NULL;
    return nib__output_finish(output, err);
}

static nib_status write_and_publish(writing *w, const char *part, const char *path,
                                    const nib_assignment *plan, nib_err *err)
{
    NIB_TRY(nib__output_open(&w->output, part, &w->net->engine->allocator, err));
    nib_status status = write_part(w, plan, err);
    if (status == NIB_OK)
        status = nib__publish(part, path, true, err);
    nib__output_abandon(w->output);
    if (w->hasher != NULL)
        (void)nib__hasher_finish(w->hasher);
    if (status != NIB_OK)
        (void)nib__path_remove(part, NULL);
    return status;
}

nib_status nib__packed_write(nib_packed_report *report, const char *path, const nib_network *net,
                             const nib_assignment *plan, nib_err *err)
{
    const nib_allocator *a = &net->engine->allocator;
    writing w = {.net = net};
    char part[NIB_PART_PATH];
    nib_text lock;
    int fd;
    nib__text_init(&w.records, a);
    nib__text_init(&w.sums, a);
    nib__text_init(&lock, a);
    nib__text_format(&lock, "%s.part.lock", path);
    nib_status status = lock.failed ? nib__fail_memory(err, strlen(path), "a path")
                                    : nib__lock_take(&fd, lock.at, err);
    if (status == NIB_OK) {
        status = nib__part_choose(part, path, ".part", err);
        if (status == NIB_OK)
            status = write_and_publish(&w, part, path, plan, err);
        nib__lock_release(fd, lock.at);
    }
    *report = (nib_packed_report){w.count, w.bytes};
    nib__text_free(&lock);
    nib__text_free(&w.records);
    nib__text_free(&w.sums);
    return status;
}
