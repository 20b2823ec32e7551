/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary: texts by id, and ids by text in two indexes, one of the model and one of added
 * tokens.
 */
#include "tokenizer_parts.h"

#include <xxhash.h>

static uint32_t hash_text(const char *text, size_t size)
{
    return (uint32_t)XXH3_64bits(text, size);
}

/* The slot of a text, or the empty slot for it; NULL: the probe is too long, an attack. */
static nib_token_slot *find_slot(const nib_vocab *v, const nib_token_index *index, const char *text,
                                 size_t size, uint32_t hash)
{
    const size_t mask = index->capacity - 1;
    for (size_t i = 0; i < NIB_TOKENIZER_RUN; i++) {
        nib_token_slot *slot = &index->slots[(hash + i) & mask];
        if (slot->id_1 == 0)
            return slot;
        if (slot->hash != hash)
            continue;
        const nib_token_text *held = &v->texts[slot->id_1 - 1];
        if ((held->size & NIB_TOKEN_SIZE) == size &&
            memcmp(v->bytes + held->offset, text, size) == 0)
            return slot;
    }
    return NULL;
}

static bool grow_index(nib_token_index *index, const nib_allocator *a)
{
    const size_t capacity = index->capacity == 0 ? 1024 : 2 * index->capacity;
    nib_token_slot *slots = nib__calloc(a, capacity, sizeof *slots);
    if (slots == NULL)
        return false;
    for (size_t i = 0; i < index->capacity; i++) {
        if (index->slots[i].id_1 == 0)
            continue;
        size_t at = index->slots[i].hash & (capacity - 1);
        while (slots[at].id_1 != 0)
            at = (at + 1) & (capacity - 1);
        slots[at] = index->slots[i];
    }
    nib__release(a, index->slots);
    index->slots = slots;
    index->capacity = capacity;
    return true;
}

static bool grow_texts(nib_vocab *v, size_t want, const nib_allocator *a)
{
    if (want <= v->text_count)
        return true;
    if (!nib__reserve(a, (void **)&v->texts, &v->text_capacity, want, sizeof *v->texts))
        return false;
    memset(v->texts + v->text_count, 0, (want - v->text_count) * sizeof *v->texts);
    v->text_count = want;
    return true;
}

static nib_status fail_taken(const nib_vocab *v, int64_t id, const char *text, size_t size,
                             nib_err *err)
{
    char name[80], other[80];
    size_t other_size;
    const char *held = nib__vocab_text(v, id, &other_size);
    return nib__fail(err, NIB_BAD_INPUT,
                     "the tokens \"%s\" and \"%s\" both have the id %lld; ids must be unique",
                     nib__escape_name(other, sizeof other, held, other_size),
                     nib__escape_name(name, sizeof name, text, size), (long long)id);
}

/* Stores the text of an id, unless the id already has this text. */
static nib_status put_text(nib_vocab *v, const char *text, size_t size, int64_t id,
                           const nib_allocator *a, nib_err *err)
{
    char name[80];
    size_t held_size;
    if (id < (int64_t)v->text_count && nib__vocab_text(v, id, &held_size) != NULL) {
        const char *held = nib__vocab_text(v, id, &held_size);
        if (held_size == size && memcmp(held, text, size) == 0)
            return NIB_OK;
        return fail_taken(v, id, text, size, err);
    }
    if (v->mapped)
        return nib__fail(err, NIB_BAD_INPUT, "the tables lack the token \"%s\"",
                         nib__escape_name(name, sizeof name, text, size));
    if (size > NIB_TOKEN_SIZE || v->bytes_size > UINT32_MAX - size)
        return nib__fail(err, NIB_NO_MEMORY, "the tokens have more than %u bytes of text",
                         UINT32_MAX);
    if (!grow_texts(v, (size_t)id + 1, a) ||
        !nib__reserve(a, (void **)&v->bytes, &v->bytes_capacity, v->bytes_size + size + 1, 1))
        return nib__fail_memory(err, v->bytes_size + size, "the vocabulary");
    memcpy(v->bytes + v->bytes_size, text, size);
    v->texts[id] = (nib_token_text){(uint32_t)v->bytes_size, (uint32_t)size | NIB_TOKEN_PRESENT};
    v->bytes_size += size;
    return NIB_OK;
}

nib_status nib__vocab_put(nib_vocab *v, nib_token_index *index, const char *text, size_t size,
                          int64_t id, const nib_allocator *a, nib_err *err)
{
    char name[80];
    if (id < 0 || id >= NIB_TOKENIZER_IDS)
        return nib__fail(err, NIB_BAD_INPUT, "token \"%s\" has the id %lld, outside 0 to %d",
                         nib__escape_name(name, sizeof name, text, size), (long long)id,
                         NIB_TOKENIZER_IDS - 1);
    if (index == NULL)
        return put_text(v, text, size, id, a, err);
    if (3 * (index->count + 1) > 2 * index->capacity && !grow_index(index, a))
        return nib__fail_memory(err, 2 * index->capacity * sizeof *index->slots, "the vocabulary");
    const uint32_t hash = hash_text(text, size);
    nib_token_slot *slot = find_slot(v, index, text, size, hash);
    if (slot == NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%d tokens share the hash of \"%s\"; this vocabulary is made to be slow",
                         NIB_TOKENIZER_RUN, nib__escape_name(name, sizeof name, text, size));
    if (slot->id_1 != 0)
        return nib__fail(
            err, NIB_BAD_INPUT,
            "token \"%s\" is in the vocabulary twice, as %u and as %lld; remove one of them",
            nib__escape_name(name, sizeof name, text, size), slot->id_1 - 1, (long long)id);
    NIB_TRY(put_text(v, text, size, id, a, err));
    *slot = (nib_token_slot){hash, (uint32_t)id + 1};
    index->count++;
    return NIB_OK;
}

int32_t nib__vocab_find(const nib_vocab *v, const nib_token_index *index, const char *text,
                        size_t size)
{
    if (index->capacity == 0)
        return -1;
    const nib_token_slot *slot = find_slot(v, index, text, size, hash_text(text, size));
    return slot == NULL ? -1 : (int32_t)slot->id_1 - 1;
}

const char *nib__vocab_text(const nib_vocab *v, int64_t id, size_t *size)
{
    if (id < 0 || id >= (int64_t)v->text_count || v->texts[id].size == 0)
        return NULL;
    *size = v->texts[id].size & NIB_TOKEN_SIZE;
    return v->bytes + v->texts[id].offset;
}

void nib__vocab_free(nib_vocab *v, const nib_allocator *a)
{
    if (!v->mapped) {
        nib__release(a, v->bytes);
        nib__release(a, v->model.slots);
    }
    nib__release(a, v->texts);
    nib__release(a, v->added.slots);
    *v = (nib_vocab){0};
}
