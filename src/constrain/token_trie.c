/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the trie of a vocabulary: gets the bytes of every token, sorts them, and stores the nodes
 * in preorder, so that the tokens below a node are a range of ids and skipping a subtree is one
 * step.
 */
#include "token_trie.h"

#include <stdlib.h>

typedef struct entry {
    uint64_t key; /* the lead and first bytes, which decide most comparisons */
    const uint8_t *at;
    int32_t id;
    uint8_t size, lead;
} entry;

static void set_entry(entry *e, const uint8_t *at, size_t size, int lead, int32_t id)
{
    *e = (entry){.at = at, .id = id, .size = (uint8_t)size, .lead = (uint8_t)lead};
    e->key = (uint64_t)lead << 56;
    for (size_t i = 0; i < 7 && i < size; i++)
        e->key |= (uint64_t)at[i] << (48 - 8 * i);
}

static int by_bytes(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    const int order = memcmp(a->at, b->at, a->size < b->size ? a->size : b->size);
    if (order != 0)
        return order;
    return a->size != b->size ? (a->size < b->size ? -1 : 1) : (a->id > b->id) - (a->id < b->id);
}

/* ---- one tree ---- */

/* Computes the summaries of subtrees (plain, chars), children before parents. */
static void summarize(nib_token_tree *tree)
{
    for (size_t i = tree->count; i-- > 0;) {
        nib_token_node *node = &tree->nodes[i];
        for (size_t c = i + 1; c < node->skip; c = tree->nodes[c].skip) {
            const nib_token_node *child = &tree->nodes[c];
            unsigned plain = 0;
            for (unsigned s = 0; s < NIB_CONTENT_BAD; s++) {
                const nib_content next = nib__content_step((nib_content)s, child->byte);
                if (next != NIB_CONTENT_BAD && child->plain >> next & 1)
                    plain |= 1u << s;
            }
            node->plain &= (uint8_t)plain;
            const unsigned chars = child->chars + ((child->byte & 0xc0) != 0x80 ? 1u : 0u);
            if (chars > node->chars)
                node->chars = (uint8_t)(chars > UINT8_MAX ? UINT8_MAX : chars);
        }
    }
}

static int common_depth(const entry *a, const entry *b)
{
    if (a->lead != b->lead)
        return 0;
    int n = 0;
    while (n < a->size && n < b->size && a->at[n] == b->at[n])
        n++;
    return n + 1;
}

static void close_path(nib_token_tree *tree, const uint32_t *path, int *depth, int until)
{
    for (; *depth > until; (*depth)--)
        tree->nodes[path[*depth]].skip = (uint32_t)tree->count;
}

static nib_status build_tree(nib_token_tree *tree, entry *entries, size_t count,
                             const nib_allocator *a, nib_err *err)
{
    static const char what[] = "the trie of the tokens";
    uint32_t path[NIB_SPELLING + 2];
    int depth = 0;
    if (count != 0)
        qsort(entries, count, sizeof *entries, by_bytes);
    tree->ids = nib__calloc(a, count, sizeof *tree->ids);
    if (tree->ids == NULL)
        return nib__fail_memory(err, count * sizeof *tree->ids, what);
    tree->id_count = count;
    for (size_t i = 0; i < count; i++) {
        const entry *e = &entries[i];
        close_path(tree, path, &depth, i == 0 ? 0 : common_depth(e - 1, e));
        if (!nib__reserve(a, (void **)&tree->nodes, &tree->capacity, tree->count + NIB_SPELLING + 2,
                          sizeof *tree->nodes))
            return nib__fail_memory(err, tree->count * sizeof *tree->nodes, what);
        while (depth < e->size + 1) {
            depth++;
            path[depth] = (uint32_t)tree->count;
            tree->nodes[tree->count++] =
                (nib_token_node){.first = (uint32_t)i,
                                 .byte = depth == 1 ? e->lead : e->at[depth - 2],
                                 .depth = (uint8_t)depth,
                                 .plain = UINT8_MAX};
        }
        tree->ids[i] = e->id;
    }
    close_path(tree, path, &depth, 0);
    if (!nib__reserve(a, (void **)&tree->nodes, &tree->capacity, tree->count + 1,
                      sizeof *tree->nodes))
        return nib__fail_memory(err, sizeof *tree->nodes, what);
    tree->nodes[tree->count] =
        (nib_token_node){.skip = (uint32_t)tree->count, .first = (uint32_t)count};
    summarize(tree);
    /* Shrinks the array, which grew by doubling; failure does no harm. */
    nib_token_node *fitted = a->resize(a->ctx, tree->nodes, (tree->count + 1) * sizeof *fitted);
    if (fitted != NULL) {
        tree->nodes = fitted;
        tree->capacity = tree->count + 1;
    }
    return NIB_OK;
}

/* ---- the tokens ---- */

/* Removes the tokens that are not whole characters: as some byte has no token, a character that
 * they begin might never be completed. */
static void keep_whole(nib_token_trie *trie)
{
    uint32_t to = 0, next = 0;
    for (size_t id = 0; id < trie->vocab; id++) {
        const uint32_t from = next, size = trie->offsets[id + 1] - from;
        next = from + size;
        trie->offsets[id] = to;
        if (size != 0 && nib__utf8_check(trie->bytes + from, size) == size) {
            memmove(trie->bytes + to, trie->bytes + from, size);
            to += size;
        }
    }
    trie->offsets[trie->vocab] = to;
    for (int byte = 0x80; byte < 0x100; byte++)
        trie->spelled[byte] = false;
}

/* Gets the bytes of all tokens. */
static nib_status spell_tokens(nib_token_trie *trie, const nib_tokenizer *t, nib_err *err)
{
    nib_text all;
    nib_status status = NIB_OK;
    nib__text_init(&all, &trie->allocator);
    for (size_t id = 0; id < trie->vocab && status == NIB_OK; id++) {
        const size_t before = all.size;
        trie->offsets[id] = (uint32_t)before;
        status = nib__tokenizer_spell(t, (int32_t)id, &all, err);
        const size_t size = all.size - before;
        if (size == 1)
            trie->spelled[(uint8_t)all.at[before]] = true;
        if (size > NIB_SPELLING)
            all.size = before;
        else if ((int)size > trie->longest)
            trie->longest = (int)size;
        if (all.size > UINT32_MAX / 2)
            status =
                nib__fail(err, NIB_UNSUPPORTED,
                          "the tokens of the vocabulary have more than %u bytes", UINT32_MAX / 2);
    }
    trie->offsets[trie->vocab] = (uint32_t)all.size;
    trie->bytes = all.at;
    bool complete = true;
    for (int byte = 0x80; byte < 0xc0; byte++)
        complete &= trie->spelled[byte];
    if (status == NIB_OK && !complete)
        keep_whole(trie);
    return status;
}

/* The offset where a token's content ends. *chars: characters that begin before it; *all: the whole
 * token is content. */
static size_t content_end(const uint8_t *at, size_t size, int *chars, bool *all)
{
    nib_content state = NIB_CONTENT_START;
    size_t i = 0;
    *chars = 0;
    for (; i < size; i++) {
        const nib_content next = nib__content_step(state, at[i]);
        if (next == NIB_CONTENT_BAD)
            break;
        *chars += state == NIB_CONTENT_START;
        state = next;
    }
    *all = i == size;
    return i;
}

typedef struct token_lists {
    entry *all, *ends;
    size_t all_count, end_count;
    uint32_t lengths[NIB_SPELLING + 2]; /* number of plain tokens, by characters */
} token_lists;

static void add_token(nib_token_trie *trie, token_lists *s, int32_t id)
{
    size_t size;
    int chars;
    bool all;
    const uint8_t *at = nib__token_spelling(trie, id, &size);
    if (size == 0)
        return;
    set_entry(&s->all[s->all_count++], at, size, 0, id);
    const size_t end = content_end(at, size, &chars, &all);
    if (all) {
        trie->plain[id / 32] |= UINT32_C(1) << (id % 32);
        s->lengths[chars]++;
        if (chars > trie->plain_longest)
            trie->plain_longest = chars;
    } else if (at[end] == '"' || at[end] == '\\') {
        set_entry(&s->ends[s->end_count++], at + end, size - end, chars, id);
    }
}

/* Sorts the ids of trie->plain by number of characters into plain_ids. */
static void sort_plain(nib_token_trie *trie, const token_lists *s)
{
    uint32_t next[NIB_SPELLING + 2], sum = 0;
    for (int n = 0; n <= NIB_SPELLING; n++) {
        next[n] = trie->plain_from[n] = sum;
        sum += s->lengths[n];
    }
    trie->plain_from[NIB_SPELLING + 1] = sum;
    for (size_t id = 0; id < trie->vocab; id++) {
        size_t size;
        int chars;
        bool all;
        if (!(trie->plain[id / 32] >> (id % 32) & 1))
            continue;
        const uint8_t *at = nib__token_spelling(trie, (int32_t)id, &size);
        content_end(at, size, &chars, &all);
        trie->plain_ids[next[chars]++] = (int32_t)id;
    }
}

static nib_status fill_trie(nib_token_trie *trie, token_lists *s, nib_err *err)
{
    const nib_allocator *a = &trie->allocator;
    for (size_t id = 0; id < trie->vocab; id++)
        add_token(trie, s, (int32_t)id);
    trie->plain_ids = nib__calloc(a, s->all_count, sizeof *trie->plain_ids);
    if (trie->plain_ids == NULL)
        return nib__fail_memory(err, s->all_count * sizeof *trie->plain_ids, "the plain tokens");
    sort_plain(trie, s);
    NIB_TRY(build_tree(&trie->all, s->all, s->all_count, a, err));
    NIB_TRY(build_tree(&trie->counted, s->ends, s->end_count, a, err));
    for (size_t i = 0; i < s->end_count; i++)
        set_entry(&s->ends[i], s->ends[i].at, s->ends[i].size, 0, s->ends[i].id);
    return build_tree(&trie->ends, s->ends, s->end_count, a, err);
}

static nib_status open_trie(nib_token_trie *trie, const nib_tokenizer *t, nib_err *err)
{
    const nib_allocator *a = &trie->allocator;
    token_lists s = {0};
    trie->vocab = (size_t)nib__tokenizer_vocab_size(t);
    trie->words = (trie->vocab + 31) / 32;
    trie->offsets = nib__calloc(a, trie->vocab + 1, sizeof *trie->offsets);
    trie->plain = nib__calloc(a, trie->words, sizeof *trie->plain);
    s.all = nib__calloc(a, trie->vocab, sizeof *s.all);
    s.ends = nib__calloc(a, trie->vocab, sizeof *s.ends);
    nib_status status;
    if (trie->offsets == NULL || trie->plain == NULL || s.all == NULL || s.ends == NULL)
        status = nib__fail_memory(err, trie->vocab * sizeof *s.all, "the spelling of the tokens");
    else
        status = spell_tokens(trie, t, err);
    if (status == NIB_OK)
        status = fill_trie(trie, &s, err);
    nib__release(a, s.all);
    nib__release(a, s.ends);
    return status;
}

nib_status nib__token_trie_open(nib_token_trie **out, const nib_tokenizer *t,
                                const nib_allocator *a, nib_err *err)
{
    nib_token_trie *trie = nib__calloc(a, 1, sizeof *trie);
    if (trie == NULL)
        return nib__fail_memory(err, sizeof *trie, "the trie of the tokens");
    trie->allocator = *a;
    const nib_status status = open_trie(trie, t, err);
    if (status != NIB_OK)
        nib__token_trie_close(trie);
    else
        *out = trie;
    return status;
}

static void free_tree(nib_token_tree *tree, const nib_allocator *a)
{
    nib__release(a, tree->nodes);
    nib__release(a, tree->ids);
}

void nib__token_trie_close(nib_token_trie *trie)
{
    if (trie == NULL)
        return;
    const nib_allocator a = trie->allocator;
    free_tree(&trie->all, &a);
    free_tree(&trie->ends, &a);
    free_tree(&trie->counted, &a);
    nib__release(&a, trie->bytes);
    nib__release(&a, trie->offsets);
    nib__release(&a, trie->plain);
    nib__release(&a, trie->plain_ids);
    nib__release(&a, trie);
}

static uint64_t tree_bytes(const nib_token_tree *tree)
{
    return tree->capacity * sizeof *tree->nodes + tree->id_count * sizeof *tree->ids;
}

uint64_t nib__token_trie_bytes(const nib_token_trie *trie)
{
    return sizeof *trie + tree_bytes(&trie->all) + tree_bytes(&trie->ends) +
           tree_bytes(&trie->counted) + trie->offsets[trie->vocab] +
           (trie->vocab + 1) * sizeof *trie->offsets + trie->words * sizeof *trie->plain +
           trie->all.id_count * sizeof *trie->plain_ids;
}
