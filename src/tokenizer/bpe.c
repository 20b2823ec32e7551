/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte pair encoding of one word: characters to symbols, then the merge of least rank again and
 * again until none is left, as Hugging Face's tokenizers does it, expired candidates included.
 *
 * A heap holds the candidate merges. Each of n symbols is in at most one pair at the start, and
 * each merge takes one symbol away and makes at most two new pairs, so a word of n bytes costs less
 * than 3 n steps, whatever it holds. Short words that come again are answered from a table of
 * recent ones.
 */
#include "tokenizer_parts.h"

#include <xxhash.h>

enum {
    WORD_BYTES = 56,
    WORD_IDS = 16,
    MOST_WORDS = 8192,  /* 1 MiB of them */
    BYTES_PER_WORD = 64 /* a table for every so many bytes of text */
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

/* The merge of a pair; NULL: none. It ends whatever became of the file that the table lies in. */
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
                    "%d merges have the hash of merge %zu; these merges are made to be slow",
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

/* Two known characters can only come to be in one token by a merge of a token that ends with the
 * first and one that begins with the second. */
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
    b->slots = nib__calloc(a, (size_t)1 << b->bits, sizeof *b->slots);
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

/* Every id is one of the vocabulary, and a search ends: after no more full slots than a table that
 * is built here may have in a row. Half of the slots are empty, in no order, so nothing branches.
 * *most: past the ids that merges make. */
static bool check_slots(const nib_merge *slots, size_t capacity, uint32_t ids, uint32_t *most)
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
        run++; /* past the end it goes on at the front */
    longest = run > longest ? run : longest;
    *most = past;
    return outside == 0 && longest <= NIB_TOKENIZER_RUN && count < capacity;
}

static bool any_special(const nib_vocab *v, const nib_merge *slots, size_t capacity, uint32_t most)
{
    uint32_t first = 0;
    while (first < most && !nib__vocab_special(v, first))
        first++;
    for (size_t i = 0; i < capacity && first < most; i++)
        if (slots[i].left != UINT32_MAX && nib__vocab_special(v, slots[i].id))
            return true;
    return false;
}

nib_status nib__bpe_adopt(nib_bpe *b, const nib_vocab *v, const nib_merge *slots, int bits,
                          const uint64_t *joins, bool long_words, nib_err *err)
{
    const size_t capacity = (size_t)1 << bits;
    uint32_t most;
    if (!check_slots(slots, capacity, (uint32_t)v->text_count, &most))
        return nib__fail(err, NIB_BAD_INPUT, "the table of merges leads out of the vocabulary");
    b->slots = (nib_merge *)(uintptr_t)slots; /* only read from here on */
    b->bits = bits;
    b->mapped = true;
    b->makes_special = any_special(v, slots, capacity, most);
    b->cut = long_words;
    memcpy(b->joins, joins, sizeof b->joins);
    fill_characters(b, v);
    return NIB_OK;
}

void nib__bpe_free(nib_bpe *b, const nib_allocator *a)
{
    if (!b->mapped)
        nib__release(a, b->slots);
    b->slots = NULL;
}

/* ---- characters to symbols ---- */

/* Room is there: split_characters sees to it. */
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
        "the tokenizer has no token for U+%04X, no bytes to write it with and no unk_token; "
        "leave the character out, or use the tokenizer of a model that knows it",
        nib__utf8_next(&at));
}

/* An unknown character waits until a known one comes, so that the next can join it where fuse_unk
 * says so; bytes do not count as known here, as in Hugging Face's tokenizers. */
static nib_status split_characters(nib_encoder *e, const char *text, size_t size)
{
    const nib_bpe *b = &e->t->bpe;
    bool waiting = false;
    e->symbol_count = 0;
    if (size >= INT32_MAX)
        return nib__fail(e->err, NIB_NO_MEMORY, "a word of the text has %zu bytes; the limit is %d",
                         size, INT32_MAX - 1);
    /* A character gives at most a symbol for each of its bytes. */
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

/* The merge of the symbol at `left` with the one after it, if this call may use it. */
static const nib_merge *merge_at(const nib_encoder *e, int32_t left)
{
    const int32_t right = e->symbols[left].next;
    if (right >= (int32_t)e->symbol_count)
        return NULL;
    const nib_merge *m = find_merge(&e->t->bpe, e->symbols[left].id, e->symbols[right].id);
    /* Merges must not make a special token of a user's words. */
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
    /* n pairs at first, and each of n merges takes one candidate away and adds up to two. */
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
        /* Since the candidate was made its symbols may have changed; it holds if they still give
         * its id. */
        const nib_merge *m = merge_at(e, at);
        if (m != NULL && m->id == top.id)
            merge_pair(e, at, top.id);
    }
    return NIB_OK;
}

nib_status nib__fail_word(size_t most, nib_err *err)
{
    return nib__fail(err, NIB_BAD_INPUT,
                     "the text has a word, or a run of spaces, of more than %zu bytes; break it up",
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
        NIB_TRY(nib__encoder_id(e, e->symbols[i].id));
    return NIB_OK;
}

/* ---- words seen before ---- */

nib_status nib__bpe_cache_open(nib_encoder *e, size_t text_size)
{
    size_t count = 1;
    while (count < MOST_WORDS && count * BYTES_PER_WORD < text_size)
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
            NIB_TRY(nib__encoder_id(e, word->ids[i]));
        return NIB_OK;
    }
    const size_t before = e->count;
    NIB_TRY(encode_word(e, text, size));
    const size_t made = e->count - before;
    if (made > WORD_IDS)
        return NIB_OK;
    word->hash = hash;
    word->size = (uint8_t)size;
    word->count = (uint8_t)made;
    memcpy(word->text, text, size);
    if (made != 0)
        memcpy(word->ids, e->ids + before, made * sizeof *word->ids);
    return NIB_OK;
}

/* ---- one word of the pre-tokenizer ---- */

/* Where the word that begins at `start` can end: between two known characters that no merge joins.
 * Unknown ones may become bytes, or one token together. */
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
            return nib__encoder_id(e, id);
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
