/* SPDX-License-Identifier: Apache-2.0
 *
 * An index of a text by its last 2 to 4 tokens, and how often its predictions were right.
 */
#include "prompt_lookup.h"

enum {
    SHORTEST = 2,
    LONGEST = 4,     /* longest n-gram in the index */
    COMPARED = 32,   /* most tokens before a position that are compared */
    SMALLEST = 1024, /* slots */
    PER_TOKEN = 8,   /* slots per token: with three keys per token, few collide */
    MEMORY = 32,     /* tokens after which a share has mostly faded */
};

/* ---- index ---- */

void nib__lookup_open(nib_lookup *out, const nib_allocator *a)
{
    /* Few short matches continue the same way in an average text; if the text does repeat, this
     * soon adapts. */
    static const double right[NIB_LOOKUP_CLASSES] = {0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95};
    *out = (nib_lookup){.allocator = a};
    memcpy(out->right, right, sizeof right);
}

void nib__lookup_close(nib_lookup *lookup)
{
    if (lookup->allocator != NULL)
        nib__release(lookup->allocator, lookup->places);
    *lookup = (nib_lookup){0};
}

/* The slot of the n tokens before `end`. Texts made to collide lose entries, nothing else: entries
 * are compared. */
static int32_t *slot_of(const nib_lookup *l, const int32_t *ids, size_t end, size_t n)
{
    uint64_t hash = n;
    for (size_t i = end - n; i < end; i++)
        hash = (hash ^ (uint32_t)ids[i]) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 32;
    return &l->places[(hash * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (l->size - 1)];
}

static void index_ngrams(nib_lookup *l, const int32_t *ids, size_t end)
{
    for (size_t n = SHORTEST; n <= LONGEST && n <= end; n++)
        *slot_of(l, ids, end, n) = (int32_t)end;
}

static nib_status grow(nib_lookup *l, const int32_t *ids, size_t count, nib_err *err)
{
    size_t size = l->size > 0 ? l->size : SMALLEST;
    while (size < count * PER_TOKEN)
        size *= 2;
    if (size == l->size)
        return NIB_OK;
    int32_t *places = nib__calloc(l->allocator, size, sizeof *places);
    if (places == NULL)
        return nib__fail_memory(err, size * sizeof *places, "the index of the text");
    nib__release(l->allocator, l->places);
    l->places = places, l->size = size;
    for (size_t end = SHORTEST; end <= l->count; end++)
        index_ngrams(l, ids, end);
    return NIB_OK;
}

/* Number of equal tokens before the two ends. */
static size_t common_length(const int32_t *ids, size_t a, size_t b)
{
    size_t n = 0;
    while (n < COMPARED && n < a && n < b && ids[a - 1 - n] == ids[b - 1 - n])
        n++;
    return n;
}

static int length_class(size_t length)
{
    static const size_t from[NIB_LOOKUP_CLASSES] = {0, 3, 4, 5, 7, 10, 16, COMPARED};
    int which = NIB_LOOKUP_CLASSES - 1;
    while (length < from[which])
        which--;
    return which;
}

/* Adds the token at count - 1: updates the share of right predictions, and finds the next one. */
static void add_token(nib_lookup *l, const int32_t *ids, size_t count)
{
    size_t follows = 0;
    if (l->next > 0) {
        const bool right_token = ids[l->next] == ids[count - 1];
        double *right = &l->right[length_class(l->length)];
        *right += (right_token - *right) / MEMORY;
        follows = right_token ? l->next + 1 : 0;
    }
    l->next = l->length = 0;
    for (size_t n = LONGEST; n >= SHORTEST && l->next == 0; n--) {
        const size_t place = n <= count ? (size_t)*slot_of(l, ids, count, n) : 0;
        const size_t length = place > 0 ? common_length(ids, place, count) : 0;
        if (length >= n)
            l->next = place, l->length = length;
    }
    /* the running match may be longer than the last occurrence of the last four tokens */
    const size_t length = follows > 0 ? common_length(ids, follows, count) : 0;
    if (length > l->length)
        l->next = follows, l->length = length;
    index_ngrams(l, ids, count);
    l->count = count;
}

nib_status nib__lookup_put(nib_lookup *lookup, const int32_t *ids, size_t count, nib_err *err)
{
    NIB_TRY(grow(lookup, ids, count, err));
    while (lookup->count < count)
        add_token(lookup, ids, lookup->count + 1);
    return NIB_OK;
}

/* ---- drafts ---- */

double nib__lookup_chance(const nib_lookup *l, size_t i)
{
    return l->right[length_class(l->length + i)];
}

void nib__lookup_copy(const nib_lookup *l, int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) /* a match near the end continues in the draft itself */
        ids[l->count + i] = ids[l->next + i];
}
