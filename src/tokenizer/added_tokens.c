/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds added tokens in a text with a trie over bytes: leftmost, then longest. A match follows at
 * most NIB_TOKENIZER_ADDED bytes, so the cost is linear in the text.
 */
#include "tokenizer_parts.h"

/* ---- the trie ---- */

static size_t edge_slot(const nib_trie *trie, uint32_t key_1)
{
    const uint64_t mixed = key_1 * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 32) & (trie->capacity - 1);
}

/* The slot of an edge, or the empty slot for it; NULL: the probe is too long, an attack. */
static nib_trie_edge *find_edge(const nib_trie *trie, uint32_t node, unsigned char byte)
{
    const uint32_t key_1 = (node << 8 | byte) + 1;
    size_t at = edge_slot(trie, key_1);
    for (int run = 0; run < NIB_TOKENIZER_RUN; run++) {
        if (trie->edges[at].key_1 == 0 || trie->edges[at].key_1 == key_1)
            return &trie->edges[at];
        at = (at + 1) & (trie->capacity - 1);
    }
    return NULL;
}

static bool add_node(nib_trie *trie, const nib_allocator *a)
{
    if (!nib__reserve(a, (void **)&trie->tokens, &trie->node_capacity, trie->node_count + 1,
                      sizeof *trie->tokens))
        return false;
    trie->tokens[trie->node_count++] = 0;
    return true;
}

static bool grow_edges(nib_trie *trie, const nib_allocator *a)
{
    const nib_trie old = *trie;
    trie->capacity = old.capacity == 0 ? 256 : 2 * old.capacity;
    trie->edges = nib__calloc(a, trie->capacity, sizeof *trie->edges);
    if (trie->edges == NULL) {
        *trie = old;
        return false;
    }
    for (size_t i = 0; i < old.capacity; i++) {
        if (old.edges[i].key_1 == 0)
            continue;
        size_t at = edge_slot(trie, old.edges[i].key_1);
        while (trie->edges[at].key_1 != 0)
            at = (at + 1) & (trie->capacity - 1);
        trie->edges[at] = old.edges[i];
    }
    nib__release(a, old.edges);
    return true;
}

static nib_status add_path(nib_trie *trie, const nib_added *added, uint32_t index,
                           const nib_allocator *a, nib_err *err)
{
    uint32_t node = 0;
    for (size_t i = 0; i < added->match_size; i++) {
        if (trie->node_count >= UINT32_MAX >> 8)
            return nib__fail(err, NIB_NO_MEMORY, "the added tokens have more than %u bytes",
                             UINT32_MAX >> 8);
        if (3 * (trie->count + 1) > 2 * trie->capacity && !grow_edges(trie, a))
            return nib__fail_memory(err, 2 * trie->capacity * sizeof *trie->edges,
                                    "the added tokens");
        const unsigned char byte = (unsigned char)added->match[i];
        nib_trie_edge *edge = find_edge(trie, node, byte);
        if (edge == NULL)
            return nib__fail(
                err, NIB_UNSUPPORTED,
                "%d prefixes of added tokens share a hash; these tokens are made to be slow",
                NIB_TOKENIZER_RUN);
        if (edge->key_1 == 0) {
            *edge = (nib_trie_edge){(node << 8 | byte) + 1, (uint32_t)trie->node_count};
            trie->count++;
            if (!add_node(trie, a))
                return nib__fail_memory(err, trie->node_count * sizeof *trie->tokens,
                                        "the added tokens");
        }
        node = edge->node;
    }
    trie->starts[(unsigned char)added->match[0]] = true;
    if (trie->tokens[node] == 0)
        trie->tokens[node] = index + 1;
    return NIB_OK;
}

nib_status nib__trie_build(nib_trie *trie, const nib_added *added, size_t count, bool normalized,
                           const nib_allocator *a, nib_err *err)
{
    if (!add_node(trie, a))
        return nib__fail_memory(err, sizeof *trie->tokens, "the added tokens");
    for (size_t i = 0; i < count; i++)
        if (added[i].normalized == normalized && added[i].match_size != 0)
            NIB_TRY(add_path(trie, &added[i], (uint32_t)i, a, err));
    return NIB_OK;
}

void nib__trie_free(nib_trie *trie, const nib_allocator *a)
{
    nib__release(a, trie->edges);
    nib__release(a, trie->tokens);
    *trie = (nib_trie){0};
}

const char *nib__added_match(const nib_tokenizer *t, int64_t id, size_t *size)
{
    for (size_t i = 0; i < t->added_count; i++) {
        if (t->added[i].id == id && t->added[i].match_size != 0) {
            *size = t->added[i].match_size;
            return t->added[i].match;
        }
    }
    return nib__vocab_text(&t->vocab, id, size);
}

/* ---- finding ---- */

/* The longest token at text[0]: its index + 1, and *found_size; 0: none. */
static uint32_t longest_at(const nib_trie *trie, const char *text, size_t size, size_t *found_size)
{
    uint32_t node = 0, found = 0;
    for (size_t i = 0; i < size; i++) {
        const nib_trie_edge *edge = find_edge(trie, node, (unsigned char)text[i]);
        if (edge == NULL || edge->key_1 == 0)
            break;
        node = edge->node;
        if (trie->tokens[node] != 0) {
            found = trie->tokens[node];
            *found_size = i + 1;
        }
    }
    return found;
}

static uint32_t point_before(const char *text, size_t at)
{
    const char *c = text + at - 1;
    while (c > text && ((unsigned char)*c & 0xc0) == 0x80)
        c--;
    return nib__utf8_next(&c);
}

static bool stands_alone(const char *text, size_t size, nib_text_range match)
{
    const char *after = text + match.end;
    return (match.start == 0 || !nib__is_word_char(point_before(text, match.start))) &&
           (match.end == size || !nib__is_word_char(nib__utf8_next(&after)));
}

/* Extends the match over white space: to the left, back to `done` at most, and to the right. */
static void extend_over_spaces(const nib_added *added, const char *text, size_t size, size_t done,
                               nib_text_range *match)
{
    while (added->lstrip && match->start > done &&
           nib__is_space(point_before(text, match->start))) {
        match->start--;
        while (((unsigned char)text[match->start] & 0xc0) == 0x80)
            match->start--;
    }
    while (added->rstrip && match->end < size) {
        const char *at = text + match->end;
        if (!nib__is_space(nib__utf8_next(&at)))
            break;
        match->end = (size_t)(at - text);
    }
}

/* Offset of the first byte whose mark is `marked`; `size` if none. */
static size_t first_byte(const char *marks, size_t size, bool marked)
{
    const char *found = memchr(marks, marked, size);
    return found == NULL ? size : (size_t)(found - marks);
}

/* The longest token at text[0]. If a special token is only partly user text, takes the longest one
 * that ends before the user text instead: what a user writes cannot change a token of the template.
 */
static uint32_t token_at(const nib_tokenizer *t, const nib_trie *trie, const char *text,
                         size_t size, const char *marks, size_t *found_size)
{
    const uint32_t found = longest_at(trie, text, size, found_size);
    if (found == 0 || marks == NULL || !t->added[found - 1].special ||
        first_byte(marks, *found_size, false) == *found_size)
        return found;
    const size_t clean = first_byte(marks, *found_size, true);
    return clean == *found_size ? found : longest_at(trie, text, clean, found_size);
}

int64_t nib__added_next(const nib_tokenizer *t, const nib_trie *trie, const char *text, size_t size,
                        bool parse_special, const char *marks, size_t done, size_t *from,
                        nib_text_range *match)
{
    while (*from < size && trie->count != 0) {
        size_t found_size = 0;
        const bool starts = trie->starts[(unsigned char)text[*from]];
        const char *here = marks == NULL ? NULL : marks + *from;
        const uint32_t found =
            starts ? token_at(t, trie, text + *from, size - *from, here, &found_size) : 0;
        if (found == 0) {
            ++*from;
            continue;
        }
        const nib_added *added = &t->added[found - 1];
        *match = (nib_text_range){*from, *from + found_size};
        *from = match->end; /* a skipped token still consumes its bytes */
        if (added->special && (!parse_special || (here != NULL && here[0])))
            continue;
        if (added->single_word && !stands_alone(text, size, *match))
            continue;
        extend_over_spaces(added, text, size, done, match);
        return (int64_t)found - 1;
    }
    return -1;
}
