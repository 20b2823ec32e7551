/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte pair encoding. Encodes one word: splits it into characters, then applies the merge of lowest
 * rank until none is left, as Hugging Face's tokenizers does, stale candidates included. Also loads
 * the model of a tokenizer.json.
 *
 * A heap holds the candidate merges. n symbols form at most n pairs at the start, and each merge
 * removes one symbol and makes at most two new pairs, so a word of n bytes costs less than 3 n
 * steps, whatever it holds. A cache answers short words that repeat.
 *
 * A file has up to 300,000 merges, so the loader reads it as a stream, without a tree, and fills
 * the tables of the vocabulary and merges directly.
 */
#include "tokenizer_parts.h"

#include <stdlib.h>
#include <xxhash.h>

enum {
    WORD_BYTES = 56,
    WORD_IDS = 16,
    CACHED_WORDS = 8192,         /* 1 MiB */
    BYTES_PER_WORD = 64,         /* one cache entry per 64 bytes of text */
    SCRATCH_BYTES = 1024 * 1024, /* decoded strings held before the arena is freed */
};

#define MERGED UINT32_MAX

struct nib_word {
    uint32_t hash;
    uint8_t size, count; /* size 0: empty */
    char text[WORD_BYTES];
    int32_t ids[WORD_IDS];
};

/* ---- the table of merges ---- */

static size_t merge_slot(const nib_bpe *b, uint32_t left, uint32_t right)
{
    const uint64_t key = (uint64_t)left << 32 | right;
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - b->bits));
}

/* The merge of a pair; NULL: none. Ends even if the mapped file of the table has changed. */
static const nib_merge *find_merge(const nib_bpe *b, uint32_t left, uint32_t right)
{
    const size_t mask = ((size_t)1 << b->bits) - 1;
    size_t at = merge_slot(b, left, right);
    for (int run = 0; run <= NIB_TOKENIZER_RUN; run++, at = (at + 1) & mask) {
        const nib_merge *m = &b->slots[at];
        if (m->left == left && m->right == right)
            return m;
        if (m->left == UINT32_MAX)
            return NULL;
    }
    return NULL;
}

static nib_status fill_merges(nib_bpe *b, const nib_merge *list, size_t count, nib_err *err)
{
    const size_t mask = ((size_t)1 << b->bits) - 1;
    memset(b->slots, 0xff, (mask + 1) * sizeof *b->slots);
    for (size_t i = 0; i < count; i++) {
        size_t at = merge_slot(b, list[i].left, list[i].right);
        int run = 0;
        while (b->slots[at].left != UINT32_MAX &&
               (b->slots[at].left != list[i].left || b->slots[at].right != list[i].right)) {
            at = (at + 1) & mask;
            if (++run == NIB_TOKENIZER_RUN)
                return nib__fail(
                    err, NIB_UNSUPPORTED,
                    "%d merges share the hash of merge %zu; these merges are made to be slow",
                    NIB_TOKENIZER_RUN, i);
        }
        b->slots[at] = list[i];
    }
    return NIB_OK;
}

/* ---- where a long word can be cut ---- */

static size_t join_bit(const nib_bpe *b, uint32_t left, uint32_t right)
{
    const uint64_t key = (uint64_t)left << 32 | right;
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 40) % (64 * COUNT(b->joins));
}

static uint32_t last_point(const char *text, size_t size)
{
    const char *at = text + size - 1;
    while (at > text && ((unsigned char)*at & 0xc0) == 0x80)
        at--;
    return nib__utf8_next(&at);
}

/* Two adjacent known characters can end up in one token only through a merge of a token that ends
 * with the first and one that begins with the second. */
static void fill_joins(nib_bpe *b, const nib_vocab *v, const nib_merge *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t left_size, right_size;
        const char *left = nib__vocab_text(v, list[i].left, &left_size);
        const char *right = nib__vocab_text(v, list[i].right, &right_size);
        if (left_size == 0 || right_size == 0)
            continue;
        const size_t bit = join_bit(b, last_point(left, left_size), nib__utf8_next(&right));
        b->joins[bit / 64] |= UINT64_C(1) << (bit % 64);
    }
}

static bool can_join(const nib_bpe *b, uint32_t left, uint32_t right)
{
    const size_t bit = join_bit(b, left, right);
    return (b->joins[bit / 64] >> (bit % 64) & 1) != 0;
}

static void fill_characters(nib_bpe *b, const nib_vocab *v)
{
    static const char digits[] = "0123456789ABCDEF";
    char bytes[4];
    for (uint32_t point = 0; point < COUNT(b->characters); point++) {
        const int size = nib__utf8_put(bytes, point);
        b->characters[point] = nib__vocab_find(v, &v->model, bytes, (size_t)size);
    }
    for (unsigned i = 0; i < 256; i++) {
        const char name[6] = {'<', '0', 'x', digits[i >> 4], digits[i & 15], '>'};
        b->bytes[i] = nib__vocab_find(v, &v->model, name, sizeof name);
    }
}

nib_status nib__bpe_build(nib_bpe *b, const nib_vocab *v, const nib_merge *list, size_t count,
                          bool long_words, const nib_allocator *a, nib_err *err)
{
    b->bits = 4;
    while (((size_t)1 << b->bits) / 3 * 2 < count)
        b->bits++;
    b->slots = nib__calloc(a, (uint64_t)1 << b->bits, sizeof *b->slots);
    if (b->slots == NULL)
        return nib__fail_memory(err, sizeof *b->slots << b->bits, "the table of merges");
    NIB_TRY(fill_merges(b, list, count, err));
    b->makes_special = false;
    for (size_t i = 0; i < count; i++)
        b->makes_special = b->makes_special || nib__vocab_special(v, list[i].id);
    b->cut = long_words;
    if (long_words)
        fill_joins(b, v, list, count);
    fill_characters(b, v);
    return NIB_OK;
}

/* Checks that every id is in the vocabulary and that no run of full slots is longer than
 * fill_merges allows, so that every probe ends. Half of the slots are empty, in random order, so
 * the loop is branchless. *end: one past the largest id that a merge makes. */
static bool check_slots(const nib_merge *slots, size_t capacity, uint32_t ids, uint32_t *end)
{
    unsigned outside = 0, run = 0, longest = 0;
    uint32_t past = 0;
    size_t count = 0;
    for (size_t i = 0; i < capacity; i++) {
        const nib_merge m = slots[i];
        const unsigned full = m.left != UINT32_MAX, next = (m.id + 1) & (0 - full);
        outside |= full & ((m.left >= ids) | (m.right >= ids) | (m.id >= ids) |
                           (m.rank >= NIB_TOKENIZER_MERGES));
        run = (run + 1) & (0 - full);
        longest = run > longest ? run : longest;
        past = next > past ? next : past;
        count += full;
    }
    for (size_t i = 0; i < capacity && slots[i].left != UINT32_MAX; i++)
        run++; /* probes wrap around */
    longest = run > longest ? run : longest;
    *end = past;
    return outside == 0 && longest <= NIB_TOKENIZER_RUN && count < capacity;
}

static bool any_special(const nib_vocab *v, const nib_merge *slots, size_t capacity, uint32_t end)
{
    uint32_t first = 0;
    while (first < end && !nib__vocab_special(v, first))
        first++;
    for (size_t i = 0; i < capacity && first < end; i++)
        if (slots[i].left != UINT32_MAX && nib__vocab_special(v, slots[i].id))
            return true;
    return false;
}

nib_status nib__bpe_use_table(nib_bpe *b, const nib_vocab *v, const nib_merge *slots, int bits,
                              const uint64_t *joins, bool long_words, nib_err *err)
{
    const size_t capacity = (size_t)1 << bits;
    uint32_t end;
    if (!check_slots(slots, capacity, (uint32_t)v->text_count, &end))
        return nib__fail(err, NIB_BAD_INPUT,
                         "the table of merges is damaged: an id is outside the vocabulary, or a "
                         "lookup would not end");
    b->slots = (nib_merge *)(uintptr_t)slots; /* never written */
    b->bits = bits;
    b->mapped = true;
    b->makes_special = any_special(v, slots, capacity, end);
    b->cut = long_words;
    memcpy(b->joins, joins, sizeof b->joins);
    fill_characters(b, v);
    return NIB_OK;
}

static int by_rank(const void *left, const void *right)
{
    const nib_merge *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return a->left < b->left ? -1 : a->left > b->left;
}

nib_status nib__bpe_list(nib_merge **out, size_t *count, const nib_bpe *b, nib_arena *arena,
                         nib_err *err)
{
    const size_t slots = (size_t)1 << b->bits;
    size_t all = 0;
    *count = 0;
    for (size_t i = 0; i < slots; i++)
        all += b->slots[i].left != UINT32_MAX;
    *out = nib__arena_take(arena, all + 1, sizeof **out);
    if (*out == NULL)
        return nib__fail_memory(err, all * sizeof **out, "the merges");
    for (size_t i = 0; i < slots; i++)
        if (b->slots[i].left != UINT32_MAX)
            (*out)[(*count)++] = b->slots[i];
    qsort(*out, *count, sizeof **out, by_rank);
    return NIB_OK;
}

void nib__bpe_free(nib_bpe *b, const nib_allocator *a)
{
    if (!b->mapped)
        nib__release(a, b->slots);
    b->slots = NULL;
}

/* ---- characters to symbols ---- */

/* split_characters has reserved the space. */
static void add_symbol(nib_encoder *e, int32_t id)
{
    const int32_t at = (int32_t)e->symbol_count++;
    e->symbols[at] = (nib_symbol){(uint32_t)id, at - 1, at + 1};
}

static int32_t find_character(const nib_tokenizer *t, const char *text, size_t size)
{
    if (size <= 2) {
        const unsigned char first = (unsigned char)text[0];
        return t->bpe
            .characters[size == 1 ? first
                                  : (first & 0x1fu) << 6 | ((unsigned char)text[1] & 0x3fu)];
    }
    return nib__vocab_find(&t->vocab, &t->vocab.model, text, size);
}

/* Adds the character as bytes; false: the vocabulary lacks one of them. */
static bool add_bytes(nib_encoder *e, const char *text, size_t size)
{
    const nib_bpe *b = &e->t->bpe;
    for (size_t i = 0; i < size; i++)
        if (b->bytes[(unsigned char)text[i]] < 0)
            return false;
    for (size_t i = 0; i < size; i++)
        add_symbol(e, b->bytes[(unsigned char)text[i]]);
    return true;
}

static nib_status fail_unknown(nib_encoder *e, const char *text)
{
    const char *at = text;
    return nib__fail(
        e->err, NIB_BAD_INPUT,
        "the tokenizer has no token for U+%04X, no byte tokens for it and no unk_token; "
        "remove the character, or use a model whose tokenizer has it",
        nib__utf8_next(&at));
}

/* Holds back the token of an unknown character until a known one follows, so that fuse_unk can fuse
 * it with the next. Byte tokens do not count as known, as in Hugging Face's tokenizers. */
static nib_status split_characters(nib_encoder *e, const char *text, size_t size)
{
    const nib_bpe *b = &e->t->bpe;
    bool waiting = false;
    e->symbol_count = 0;
    if (size >= INT32_MAX)
        return nib__fail(e->err, NIB_NO_MEMORY, "a word of the text has %zu bytes; the limit is %d",
                         size, INT32_MAX - 1);
    /* A character makes at most one symbol per byte. */
    if (!nib__reserve(&e->t->allocator, (void **)&e->symbols, &e->symbol_capacity, size,
                      sizeof *e->symbols))
        return nib__fail_memory(e->err, size * sizeof *e->symbols, "the tokenizer");
    for (size_t i = 0; i < size;) {
        const size_t length = (size_t)nib__utf8_length(text + i, size - i);
        const int32_t id = find_character(e->t, text + i, length);
        if (id >= 0) {
            if (waiting)
                add_symbol(e, b->unk);
            waiting = false;
            add_symbol(e, id);
        } else if (!b->byte_fallback || !add_bytes(e, text + i, length)) {
            if (b->unk < 0 && !e->drop_unknown)
                return fail_unknown(e, text + i);
            if (waiting && !b->fuse_unk)
                add_symbol(e, b->unk);
            waiting = b->unk >= 0;
        }
        i += length;
    }
    if (waiting)
        add_symbol(e, b->unk);
    return NIB_OK;
}

/* ---- merging ---- */

static void sift_down(nib_next_merge *heap, size_t count, size_t at)
{
    const nib_next_merge moved = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count)
            break;
        child += child + 1 < count && heap[child + 1].key < heap[child].key;
        if (heap[child].key >= moved.key)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static nib_next_merge pop(nib_encoder *e)
{
    const nib_next_merge top = e->heap[0];
    e->heap[0] = e->heap[--e->heap_count];
    if (e->heap_count != 0)
        sift_down(e->heap, e->heap_count, 0);
    return top;
}

static void push(nib_next_merge *heap, size_t at, nib_next_merge candidate)
{
    while (at != 0 && heap[(at - 1) / 2].key > candidate.key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = candidate;
}

/* The merge of the symbol at `left` with its successor, if this call may use it; else NULL. */
static const nib_merge *merge_at(const nib_encoder *e, int32_t left)
{
    const int32_t right = e->symbols[left].next;
    if (right >= (int32_t)e->symbol_count)
        return NULL;
    const nib_merge *m = find_merge(&e->t->bpe, e->symbols[left].id, e->symbols[right].id);
    /* Merges must not turn user text into a special token. */
    if (m != NULL && e->t->bpe.makes_special && !e->special_words &&
        nib__vocab_special(&e->t->vocab, m->id))
        return NULL;
    return m;
}

static nib_next_merge candidate_of(const nib_merge *m, int32_t at)
{
    return (nib_next_merge){(uint64_t)m->rank << 32 | (uint32_t)at, m->id};
}

static void push_pair(nib_encoder *e, int32_t left)
{
    const nib_merge *m = left < 0 ? NULL : merge_at(e, left);
    if (m != NULL)
        push(e->heap, e->heap_count++, candidate_of(m, left));
}

static void merge_pair(nib_encoder *e, int32_t left, uint32_t id)
{
    nib_symbol *symbol = &e->symbols[left];
    const int32_t gone = symbol->next, next = e->symbols[gone].next;
    symbol->id = id;
    symbol->next = next;
    e->symbols[gone].id = MERGED;
    if (next < (int32_t)e->symbol_count)
        e->symbols[next].previous = left;
    push_pair(e, symbol->previous);
    push_pair(e, left);
}

static nib_status merge_symbols(nib_encoder *e)
{
    const size_t n = e->symbol_count;
    /* n pairs at first; each of n merges removes one candidate and adds up to two. */
    if (!nib__reserve(&e->t->allocator, (void **)&e->heap, &e->heap_capacity, 2 * n + 2,
                      sizeof *e->heap))
        return nib__fail_memory(e->err, 2 * n * sizeof *e->heap, "the tokenizer");
    e->heap_count = 0;
    for (int32_t i = 0; i + 1 < (int32_t)n; i++) {
        const nib_merge *m = merge_at(e, i);
        if (m != NULL)
            e->heap[e->heap_count++] = candidate_of(m, i);
    }
    for (size_t i = e->heap_count / 2; i-- > 0;)
        sift_down(e->heap, e->heap_count, i);
    while (e->heap_count != 0) {
        const nib_next_merge top = pop(e);
        const int32_t at = (int32_t)(top.key & UINT32_MAX);
        e->steps++;
        if (e->symbols[at].id == MERGED)
            continue;
        /* The symbols may have changed since; the candidate is valid if they still merge into its
         * id. */
        const nib_merge *m = merge_at(e, at);
        if (m != NULL && m->id == top.id)
            merge_pair(e, at, top.id);
    }
    return NIB_OK;
}

nib_status nib__fail_word(size_t most, nib_err *err)
{
    return nib__fail(err, NIB_BAD_INPUT,
                     "the text has a word or a run of spaces of more than %zu bytes; break it up",
                     most);
}

static nib_status encode_word(nib_encoder *e, const char *text, size_t size)
{
    if (e->max_word != 0 && size > e->max_word)
        return nib__fail_word(e->max_word, e->err);
    NIB_TRY(split_characters(e, text, size));
    if (e->symbol_count > 1)
        NIB_TRY(merge_symbols(e));
    for (size_t i = 0; i < e->symbol_count; i = (size_t)e->symbols[i].next)
        NIB_TRY(nib__encoder_add_id(e, e->symbols[i].id));
    return NIB_OK;
}

/* ---- the cache of recent words ---- */

nib_status nib__bpe_cache_open(nib_encoder *e, size_t text_size)
{
    size_t count = 1;
    while (count < CACHED_WORDS && count * BYTES_PER_WORD < text_size)
        count *= 2;
    if (count < 16)
        return NIB_OK;
    e->words = nib__calloc(&e->t->allocator, count, sizeof *e->words);
    if (e->words == NULL)
        return nib__fail_memory(e->err, count * sizeof *e->words, "the tokenizer");
    e->word_count = count;
    return NIB_OK;
}

static nib_status encode_cached(nib_encoder *e, const char *text, size_t size)
{
    if (e->word_count == 0 || size > WORD_BYTES || size == 0)
        return encode_word(e, text, size);
    const uint32_t hash = (uint32_t)XXH3_64bits(text, size);
    nib_word *word = &e->words[hash & (e->word_count - 1)];
    if (word->hash == hash && word->size == size && memcmp(word->text, text, size) == 0) {
        for (int i = 0; i < word->count; i++)
            NIB_TRY(nib__encoder_add_id(e, word->ids[i]));
        return NIB_OK;
    }
    const size_t before = e->count;
    NIB_TRY(encode_word(e, text, size));
    const size_t added_ids = e->count - before;
    if (added_ids > WORD_IDS)
        return NIB_OK;
    word->hash = hash;
    word->size = (uint8_t)size;
    word->count = (uint8_t)added_ids;
    memcpy(word->text, text, size);
    if (added_ids != 0)
        memcpy(word->ids, e->ids + before, added_ids * sizeof *word->ids);
    return NIB_OK;
}

/* ---- one word of the pre-tokenizer ---- */

/* Where the word that begins at `start` can be cut: between two known characters that no merge
 * joins. Unknown characters may become bytes or fuse into one token, so it never cuts there. */
static size_t next_cut(const nib_tokenizer *t, const char *text, size_t size, size_t start)
{
    const char *at = text + start, *const end = text + size;
    const char *last = at;
    uint32_t before = nib__utf8_next(&at);
    while (at < end) {
        const char *const here = at;
        const uint32_t point = nib__utf8_next(&at);
        if (!can_join(&t->bpe, before, point) &&
            find_character(t, last, (size_t)(here - last)) >= 0 &&
            find_character(t, here, (size_t)(at - here)) >= 0)
            return (size_t)(here - text);
        before = point;
        last = here;
    }
    return size;
}

nib_status nib__bpe_word(nib_encoder *e, const char *text, size_t size)
{
    const nib_tokenizer *t = e->t;
    if (t->bpe.ignore_merges) {
        const int32_t id = nib__vocab_find(&t->vocab, &t->vocab.model, text, size);
        if (id >= 0 && (e->special_words || !nib__vocab_special(&t->vocab, id)))
            return nib__encoder_add_id(e, id);
    }
    if (!t->bpe.cut)
        return encode_cached(e, text, size);
    for (size_t start = 0; start < size;) {
        const size_t end = next_cut(t, text, size, start);
        NIB_TRY(encode_cached(e, text + start, end - start));
        start = end;
    }
    return NIB_OK;
}

/* ---- reading the model of tokenizer.json ---- */

/* The string or key just read: a view of the file, or decoded into scratch if it has escapes. */
static const char *token_text(nib_loader *loader, nib_json *json, size_t *size)
{
    *size = json->token_size;
    return json->escaped ? nib__json_string(json, &loader->scratch, size) : json->token;
}

/* Reports an inner error with the file and line. */
static nib_status fail_at_line(nib_loader *loader, nib_json *json, const nib_err *inner)
{
    if (inner->status != NIB_BAD_INPUT)
        return nib__fail(loader->err, inner->status, "%s: %s", loader->file.name, inner->text);
    nib__json_fail(json, "%s", inner->text);
    return nib__json_status(json, loader->err);
}

static nib_status load_vocab(nib_loader *loader, nib_json *json)
{
    nib_tokenizer *t = loader->t;
    nib_err inner;
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return nib__json_status(json, loader->err);
    while (nib__json_next(json) == NIB_JSON_KEY) {
        size_t size;
        int64_t id;
        if (loader->scratch.total > SCRATCH_BYTES)
            nib__arena_free(&loader->scratch);
        const char *token = token_text(loader, json, &size);
        if (token == NULL || nib__json_next(json) == NIB_JSON_ERROR || !nib__json_int64(json, &id))
            return nib__json_status(json, loader->err);
        if (nib__vocab_put(&t->vocab, &t->vocab.model, token, size, id, &t->allocator, &inner) !=
            NIB_OK)
            return fail_at_line(loader, json, &inner);
    }
    return nib__json_status(json, loader->err);
}

typedef struct piece {
    const char *at;
    size_t size;
} piece;

/* Fills `merge` with the ids of two tokens and of their concatenation; false: *missing is not a
 * token. */
static bool resolve_merge(const nib_tokenizer *t, nib_text *joined, piece left, piece right,
                          nib_merge *merge, piece *missing)
{
    const nib_token_index *index = &t->vocab.model;
    nib__text_clear(joined);
    nib__text_put(joined, left.at, left.size);
    nib__text_put(joined, right.at, right.size);
    const piece both = {joined->at, joined->size};
    const piece parts[3] = {left, right, both};
    uint32_t ids[3];
    if (joined->failed)
        return false;
    for (int i = 0; i < 3; i++) {
        const int32_t id = nib__vocab_find(&t->vocab, index, parts[i].at, parts[i].size);
        *missing = parts[i];
        if (id < 0)
            return false;
        ids[i] = (uint32_t)id;
    }
    merge->left = ids[0];
    merge->right = ids[1];
    merge->id = ids[2];
    return true;
}

static nib_status fail_missing_token(const nib_model_part *m, piece missing, nib_err *err)
{
    char name[80];
    if (m->joined.failed)
        return nib__fail_memory(err, m->joined.size, "the merges");
    return nib__fail(
        err, NIB_BAD_INPUT, "merge %zu needs the token \"%s\", which is not in the vocabulary",
        m->merges.count, nib__escape_name(name, sizeof name, missing.at, missing.size));
}

nib_status nib__merges_push(nib_model_part *m, const nib_tokenizer *t, const nib_merge *merge,
                            nib_err *err)
{
    nib_merge_list *list = &m->merges;
    if (list->count == NIB_TOKENIZER_MERGES)
        return nib__fail(err, NIB_UNSUPPORTED, "there are more than %d merges",
                         NIB_TOKENIZER_MERGES);
    if (!nib__reserve(&t->allocator, (void **)&list->at, &list->capacity, list->count + 1,
                      sizeof *list->at))
        return nib__fail_memory(err, list->count * sizeof *list->at, "the merges");
    list->at[list->count++] = *merge;
    return NIB_OK;
}

/* Llama 2 has tokens that are spaces themselves, so a merge may have several spaces: split at the
 * only one with tokens of the vocabulary on both sides. */
nib_status nib__merges_add(nib_model_part *m, const nib_tokenizer *t, const char *text, size_t size,
                           nib_err *err)
{
    enum { MOST_SPACES = 64 };
    piece missing = {"", 0};
    nib_merge merge = {.rank = (uint32_t)m->merges.count};
    const char *const end = text + size, *space = text;
    int spaces = 0, found = 0;
    while ((space = memchr(space, ' ', (size_t)(end - space))) != NULL && spaces <= MOST_SPACES) {
        const piece left = {text, (size_t)(space - text)};
        const piece right = {space + 1, (size_t)(end - space) - 1};
        spaces++;
        space++;
        found += resolve_merge(t, &m->joined, left, right, &merge, &missing);
    }
    if (found == 1)
        return nib__merges_push(m, t, &merge, err);
    if (spaces == 1 || m->joined.failed)
        return fail_missing_token(m, missing, err);
    return nib__fail(err, NIB_BAD_INPUT, "merge %zu is not two tokens with a space between",
                     m->merges.count);
}

/* ["left", "right"], past the bracket. */
static nib_status read_merge_pair(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    piece left, right, missing = {"", 0};
    nib_merge merge = {.rank = (uint32_t)m->merges.count};
    nib_err inner;
    if (!nib__json_expect(json, NIB_JSON_STRING) ||
        (left.at = token_text(loader, json, &left.size)) == NULL ||
        !nib__json_expect(json, NIB_JSON_STRING) ||
        (right.at = token_text(loader, json, &right.size)) == NULL)
        return nib__json_status(json, loader->err);
    const nib_status status = resolve_merge(loader->t, &m->joined, left, right, &merge, &missing)
                                  ? nib__merges_push(m, loader->t, &merge, &inner)
                                  : fail_missing_token(m, missing, &inner);
    if (status != NIB_OK)
        return fail_at_line(loader, json, &inner);
    (void)nib__json_expect(json, NIB_JSON_ARRAY_END);
    return nib__json_status(json, loader->err);
}

/* "left right" */
static nib_status read_merge_string(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    nib_err inner;
    size_t size;
    const char *text = token_text(loader, json, &size);
    if (text == NULL)
        return nib__json_status(json, loader->err);
    if (nib__merges_add(m, loader->t, text, size, &inner) != NIB_OK)
        return fail_at_line(loader, json, &inner);
    return NIB_OK;
}

static nib_status load_merges(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return nib__json_status(json, loader->err);
    while (nib__json_next(json) == NIB_JSON_STRING || json->event == NIB_JSON_ARRAY) {
        if (loader->scratch.total > SCRATCH_BYTES)
            nib__arena_free(&loader->scratch);
        if (json->event == NIB_JSON_STRING && json->token_size >= 8 &&
            memcmp(json->token, "#version", 8) == 0)
            continue; /* the first line of merges.txt, copied into the list */
        NIB_TRY(json->event == NIB_JSON_STRING ? read_merge_string(loader, json, m)
                                               : read_merge_pair(loader, json, m));
    }
    if (json->event != NIB_JSON_ARRAY_END)
        nib__json_fail(json, "a merge is a string or a pair of strings");
    return nib__json_status(json, loader->err);
}

/* Accepts null, "" or 0, which all mean unset. */
static bool expect_unset(nib_loader *loader, nib_json *json, const char *what, const char *remedy)
{
    const nib_json_event event = nib__json_next(json);
    double value = 1;
    if (event == NIB_JSON_NULL || (event == NIB_JSON_STRING && json->token_size == 0) ||
        (event == NIB_JSON_NUMBER && nib__json_double(json, &value) && value == 0))
        return true;
    if (event != NIB_JSON_ERROR)
        (void)nib__loader_unsupported(
            loader, "the BPE model has the key %s, which is not supported; %s", what, remedy);
    return false;
}

static bool read_flag(nib_json *json, bool *flag)
{
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_NULL)
        return true;
    *flag = event == NIB_JSON_TRUE;
    if (event != NIB_JSON_TRUE && event != NIB_JSON_FALSE)
        nib__json_fail(json, "expected true or false");
    return json->event != NIB_JSON_ERROR;
}

static bool read_unk(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    if (json->event != NIB_JSON_STRING) {
        nib__json_fail(json, "unk_token is not a string");
        return false;
    }
    m->unk = nib__json_string(json, &loader->t->arena, &m->unk_size);
    return m->unk != NULL;
}

static bool read_type(nib_loader *loader, nib_json *json)
{
    char name[80];
    if (!nib__json_expect(json, NIB_JSON_STRING))
        return false;
    if (nib__json_is(json, "BPE"))
        return true;
    (void)nib__loader_unsupported(
        loader, "the model is a %s; only BPE is supported, so use a model with a BPE tokenizer",
        nib__escape_name(name, sizeof name, json->token, json->token_size));
    return false;
}

static bool fail_key(nib_loader *loader, const nib_json *json, const char *what)
{
    char name[80];
    (void)nib__loader_unsupported(
        loader, "unknown key \"%s\" in %s could change the ids; remove it if it does not",
        nib__escape_name(name, sizeof name, json->token, json->token_size), what);
    return false;
}

/* Reads one key of the model; false: loader->err or json->err says why. */
static bool read_model_key(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    nib_bpe *b = &loader->t->bpe;
    if (nib__json_is(json, "type"))
        return read_type(loader, json);
    if (nib__json_is(json, "vocab")) {
        if (m->has_vocab)
            nib__json_fail(json, "the model has two vocabularies");
        m->has_vocab = true;
        return load_vocab(loader, json) == NIB_OK;
    }
    if (nib__json_is(json, "merges")) {
        if (m->has_merges)
            nib__json_fail(json, "the model has two lists of merges");
        m->has_merges = true;
        return m->has_vocab ? load_merges(loader, json, m) == NIB_OK
                            : nib__loader_slice(json, &m->late_merges);
    }
    if (nib__json_is(json, "unk_token"))
        return read_unk(loader, json, m);
    if (nib__json_is(json, "fuse_unk"))
        return read_flag(json, &b->fuse_unk);
    if (nib__json_is(json, "byte_fallback"))
        return read_flag(json, &b->byte_fallback);
    if (nib__json_is(json, "ignore_merges"))
        return read_flag(json, &b->ignore_merges);
    if (nib__json_is(json, "dropout"))
        return expect_unset(loader, json, "dropout", "set it to null");
    if (nib__json_is(json, "continuing_subword_prefix"))
        return expect_unset(loader, json, "continuing_subword_prefix",
                            "use a model with another tokenizer");
    if (nib__json_is(json, "end_of_word_suffix"))
        return expect_unset(loader, json, "end_of_word_suffix",
                            "use a model with another tokenizer");
    return fail_key(loader, json, "the BPE model");
}

nib_status nib__loader_status(nib_loader *loader, const nib_json *json)
{
    if (json->err.status != NIB_OK)
        return nib__json_status(json, loader->err);
    return loader->err->status;
}

nib_status nib__load_model_part(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return nib__loader_status(loader, json);
    while (nib__json_next(json) == NIB_JSON_KEY)
        if (!read_model_key(loader, json, m))
            return nib__loader_status(loader, json);
    NIB_TRY(nib__loader_status(loader, json));
    if (!m->has_vocab || !m->has_merges)
        return nib__fail(loader->err, NIB_BAD_INPUT, "%s: the model has no %s", loader->file.name,
                         m->has_vocab ? "merges" : "vocab");
    if (m->late_merges.at == NULL)
        return NIB_OK;
    nib_json late;
    nib__loader_reader(loader, &late, m->late_merges);
    return load_merges(loader, &late, m);
}
