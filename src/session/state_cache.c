/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of prefixes, and moving states between sequences and the file.
 */
#include "state_cache.h"
#include "record_file.h"

struct nib_state_cache {
    nib_session *session;
    nib_record_file *file;
    nib_hash key; /* of what all states belong to */
};

nib_status nib__state_cache_open(nib_state_cache **out, nib_session *session, const char *directory,
                                 uint64_t bytes, nib_err *err)
{
    const nib_allocator *a = &session->model->engine->allocator;
    nib_state_cache *cache = nib__calloc(a, 1, sizeof *cache);
    if (cache == NULL)
        return nib__fail_memory(err, sizeof *cache, "a cache of states");
    cache->session = session;
    nib_status status = nib__state_key(&cache->key, session, err);
    if (status == NIB_OK)
        status = nib__records_open(&cache->file, directory, bytes, a, err);
    if (status == NIB_OK)
        *out = cache;
    else
        nib__state_cache_close(cache);
    return status;
}

void nib__state_cache_close(nib_state_cache *cache)
{
    if (cache == NULL)
        return;
    nib__records_close(cache->file);
    nib__release(&cache->session->model->engine->allocator, cache);
}

/* ---- keys ---- */

static nib_hash first_key(const nib_state_cache *cache, uint64_t tenant)
{
    const nib_hash parts[] = {cache->key, {tenant, 0}};
    return nib__hash_bytes(parts, sizeof parts);
}

/* The key of a prefix from that of the prefix without its last block. */
static nib_hash next_key(nib_hash key, const int32_t *block)
{
    const nib_hash parts[] = {key, nib__hash_bytes(block, NIB_CACHE_BLOCK * sizeof *block)};
    return nib__hash_bytes(parts, sizeof parts);
}

static nib_hash key_of(const nib_state_cache *cache, uint64_t tenant, const int32_t *tokens,
                       int64_t count)
{
    nib_hash key = first_key(cache, tenant);
    for (int64_t i = 0; i < count; i += NIB_CACHE_BLOCK)
        key = next_key(key, tokens + i);
    return key;
}

int64_t nib__state_cache_find(const nib_state_cache *cache, uint64_t tenant, const int32_t *tokens,
                              int64_t count, int64_t above)
{
    nib_hash key = first_key(cache, tenant);
    int64_t found = 0;
    for (int64_t i = 0; i + NIB_CACHE_BLOCK <= count; i += NIB_CACHE_BLOCK) {
        key = next_key(key, tokens + i);
        if (i + NIB_CACHE_BLOCK > above && nib__records_has(cache->file, key))
            found = i + NIB_CACHE_BLOCK;
    }
    return found;
}

/* ---- states ---- */

nib_status nib__state_cache_load(nib_state_cache *cache, int64_t sequence, uint64_t tenant,
                                 const int32_t *tokens, int64_t count, nib_err *err)
{
    const nib_allocator *a = &cache->session->model->engine->allocator;
    const nib_hash key = key_of(cache, tenant, tokens, count);
    char *bytes;
    size_t size;
    int32_t length = 0;
    NIB_TRY(nib__records_read(cache->file, key, &bytes, &size, err));
    const nib_status status = nib__state_load(cache->session, sequence, bytes, size, &length, err);
    nib__release(a, bytes);
    if (status != NIB_OK)
        nib__records_remove(cache->file, key);
    return status;
}

typedef struct writing {
    nib_record_file *file;
    nib_err failed; /* why the file could not be written */
} writing;

static nib_status put(void *ctx, const char *bytes, size_t size)
{
    writing *w = ctx;
    return nib__records_write(w->file, bytes, size, &w->failed);
}

nib_status nib__state_cache_save(nib_state_cache *cache, int64_t sequence, uint64_t tenant,
                                 const int32_t *tokens, int64_t count, nib_err *err)
{
    const nib_hash key = key_of(cache, tenant, tokens, count);
    writing w = {.file = cache->file};
    const nib_sink sink = {put, &w};
    uint64_t size;
    if (nib__records_has(cache->file, key))
        return NIB_OK;
    NIB_TRY(nib__state_size(&size, cache->session, sequence, err));
    NIB_TRY(nib__records_begin(cache->file, key, size, err));
    const nib_status status = nib__state_save(cache->session, sequence, &sink, err);
    if (w.failed.status != NIB_OK)
        *err = w.failed;
    NIB_TRY(status);
    return nib__records_end(cache->file, err);
}
