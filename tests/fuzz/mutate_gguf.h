/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutates a GGUF file as structure: keys, kinds and values, names, shapes, types and offsets of
 * tensors. Counts and offsets fit, except where one is made wrong.
 */
#ifndef NIB_TESTS_MUTATE_GGUF_H
#define NIB_TESTS_MUTATE_GGUF_H

#include "gguf.h"
#include "mutate.h"

enum { GG_KEYS = 64, GG_TENSORS = 64, GG_RANK = 5 };

typedef struct gg_key {
    piece name, value; /* value: without the kind; of an array with its kind and count */
    uint32_t kind;
} gg_key;

typedef struct gg_tensor {
    piece name;
    uint64_t shape[GG_RANK]; /* as in the file: fastest first */
    uint32_t rank, type;
    uint64_t offset;
} gg_tensor;

typedef struct gg_file {
    uint32_t version;
    gg_key keys[GG_KEYS];
    gg_tensor tensors[GG_TENSORS];
    size_t key_count, count;
    uint64_t alignment;
    piece data;
} gg_file;

/* Takes `size` bytes off the front of `rest`; NULL: it has fewer. */
static inline const uint8_t *gg_take(piece *rest, uint64_t size)
{
    const uint8_t *at = rest->at;
    if (size > rest->size)
        return NULL;
    rest->at += size;
    rest->size -= (size_t)size;
    return at;
}

static inline bool gg_number(piece *rest, uint64_t *out, int bytes)
{
    const uint8_t *at = gg_take(rest, (uint64_t)bytes);
    if (at != NULL)
        *out = number_at(at, bytes);
    return at != NULL;
}

static inline bool gg_string(piece *rest, piece *out)
{
    uint64_t size = 0;
    if (!gg_number(rest, &size, 8))
        return false;
    out->at = gg_take(rest, size);
    out->size = (size_t)size;
    return out->at != NULL;
}

static inline uint64_t gg_kind_bytes(uint64_t kind)
{
    static const uint8_t bytes[NIB_GGUF_KIND_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return kind < COUNT(bytes) ? bytes[kind] : 0;
}

static inline bool gg_skip(piece *rest, uint64_t kind, uint64_t count)
{
    piece text;
    if (kind != NIB_GGUF_STRING)
        return count <= rest->size && gg_take(rest, count * gg_kind_bytes(kind)) != NULL;
    while (count-- > 0)
        if (!gg_string(rest, &text))
            return false;
    return true;
}

static inline bool gg_read_key(piece *rest, gg_key *k)
{
    uint64_t kind = 0, of = 0, count = 1;
    if (!gg_string(rest, &k->name) || !gg_number(rest, &kind, 4))
        return false;
    k->kind = (uint32_t)kind;
    k->value.at = rest->at;
    of = kind;
    if (kind == NIB_GGUF_ARRAY && (!gg_number(rest, &of, 4) || !gg_number(rest, &count, 8)))
        return false;
    if (!gg_skip(rest, of, count))
        return false;
    k->value.size = (size_t)(rest->at - k->value.at);
    return true;
}

static inline bool gg_read_tensor(piece *rest, gg_tensor *t)
{
    uint64_t number = 0;
    if (!gg_string(rest, &t->name) || !gg_number(rest, &number, 4) || number > GG_RANK)
        return false;
    t->rank = (uint32_t)number;
    for (uint32_t i = 0; i < t->rank; i++)
        if (!gg_number(rest, &t->shape[i], 8))
            return false;
    if (!gg_number(rest, &number, 4))
        return false;
    t->type = (uint32_t)number;
    return gg_number(rest, &t->offset, 8);
}

static inline bool gg_read(gg_file *f, const uint8_t *data, size_t size)
{
    piece rest = {data, size};
    uint64_t number = 0, keys = 0, tensors = 0;
    *f = (gg_file){.alignment = 32};
    if (!gg_number(&rest, &number, 4) || !gg_number(&rest, &number, 4) ||
        !gg_number(&rest, &tensors, 8) || !gg_number(&rest, &keys, 8) || keys >= GG_KEYS ||
        tensors >= GG_TENSORS)
        return false;
    f->version = (uint32_t)number;
    for (; f->key_count < keys; f->key_count++) {
        gg_key *k = &f->keys[f->key_count];
        if (!gg_read_key(&rest, k))
            return false;
        if (piece_is(k->name, "general.alignment") && k->value.size == 4)
            f->alignment = number_at(k->value.at, 4);
    }
    for (; f->count < tensors; f->count++)
        if (!gg_read_tensor(&rest, &f->tensors[f->count]))
            return false;
    if (f->alignment == 0 || f->alignment > 4096)
        f->alignment = 32;
    const uint64_t over = (uint64_t)(rest.at - data) % f->alignment;
    (void)gg_take(&rest, over == 0 ? 0 : f->alignment - over);
    f->data = rest;
    return true;
}

/* A value of another kind with the same bits. */
static inline void gg_change_kind(mutant *m, gg_key *k)
{
    static const uint8_t zeros[8];
    const uint32_t kind = (uint32_t)roll(m, NIB_GGUF_KIND_COUNT + 1);
    const size_t bytes = (size_t)gg_kind_bytes(kind);
    if (bytes > 0) {
        k->value = join_pieces(m, k->value, (piece){zeros, 8});
        k->value.size = smaller(bytes, k->value.size);
    }
    k->kind = kind;
}

static inline void gg_edit_key(mutant *m, gg_file *f, gg_key *k)
{
    static const char *const names[] = {"general.architecture",
                                        "general.alignment",
                                        "general.file_type",
                                        "split.no",
                                        "split.count",
                                        "split.tensors.count",
                                        "llama.block_count",
                                        "llama.embedding_length",
                                        "llama.attention.head_count",
                                        "llama.rope.scaling.type",
                                        "llama.attention.head_count_kv",
                                        "tokenizer.ggml.tokens",
                                        "tokenizer.ggml.model",
                                        "tokenizer.ggml.scores",
                                        "tokenizer.ggml.merges",
                                        "tokenizer.chat_template",
                                        "llama.rope.freq_base",
                                        "llama.vocab_size"};
    uint8_t *bytes;
    switch (roll(m, 6)) {
    case 0: k->name = piece_of(names[roll(m, COUNT(names))]); break;
    case 1: gg_change_kind(m, k); break;
    case 2: k->name = f->keys[roll(m, f->key_count)].name; break;
    case 3: /* a number near the old one, also a length or an array's count */
        k->value = join_pieces(m, k->value, piece_of(""));
        bytes = (uint8_t *)(uintptr_t)k->value.at;
        if (k->value.size >= 4 && m->edits >= bytes) {
            const size_t at = k->kind == NIB_GGUF_ARRAY && k->value.size >= 12 ? 4 : 0;
            const uint64_t number = roll_number(m, number_at(bytes + at, 4));
            for (int i = 0; i < 4; i++)
                bytes[at + (size_t)i] = (uint8_t)(number >> 8 * i);
        }
        break;
    case 4: /* the text, its length made right */
        if (k->kind == NIB_GGUF_STRING && k->value.size >= 8) {
            const piece text = scramble(m, (piece){k->value.at + 8, k->value.size - 8});
            uint8_t size[8];
            for (int i = 0; i < 8; i++)
                size[i] = (uint8_t)((uint64_t)text.size >> 8 * i);
            k->value = join_pieces(m, (piece){size, 8}, text);
        }
        break;
    default: k->value = scramble(m, k->value);
    }
}

static inline void gg_edit_tensor(mutant *m, gg_file *f, gg_tensor *t)
{
    static const char *const names[] = {"token_embd.weight",      "output.weight",
                                        "output_norm.weight",     "blk.0.attn_q.weight",
                                        "blk.0.attn_k.weight",    "blk.0.ffn_up.weight",
                                        "blk.1.attn_norm.weight", "rope_freqs.weight"};
    static const uint8_t types[] = {0,  1,  2,  3,  6,  7,  8,  12, 13,
                                    14, 20, 24, 25, 26, 27, 28, 30, 39};
    const size_t d = roll(m, GG_RANK);
    switch (roll(m, 7)) {
    case 0: t->type = roll(m, 8) == 0 ? (uint32_t)roll(m, 50) : types[roll(m, COUNT(types))]; break;
    case 1: t->shape[d] = roll_number(m, t->shape[d]); break;
    case 2: t->rank = (uint32_t)roll(m, GG_RANK + 1); break;
    case 3: t->name = piece_of(names[roll(m, COUNT(names))]); break;
    case 4: t->name = f->tensors[roll(m, f->count)].name; break;
    case 5: t->name = scramble(m, t->name); break;
    default: t->offset = roll_number(m, t->offset);
    }
}

static inline void gg_edit(mutant *m, gg_file *f)
{
    const size_t k = f->key_count > 0 ? roll(m, f->key_count) : 0;
    const size_t t = f->count > 0 ? roll(m, f->count) : 0;
    switch (roll(m, 8)) {
    case 0:
        if (f->count > 0 && f->count + 1 < GG_TENSORS) {
            f->tensors[f->count] = f->tensors[t];
            f->tensors[f->count].name = roll_name(m, f->tensors[t].name);
            f->count++;
        }
        break;
    case 1:
        if (f->count > 0)
            f->tensors[t] = f->tensors[--f->count];
        break;
    case 2:
        if (f->key_count > 0)
            f->keys[k] = f->keys[--f->key_count];
        break;
    case 3:
        if (f->key_count > 0 && f->key_count + 1 < GG_KEYS) {
            f->keys[f->key_count] = f->keys[k];
            gg_edit_key(m, f, &f->keys[f->key_count++]);
        }
        break;
    case 4: f->data = scramble(m, f->data); break;
    case 5: f->version = (uint32_t)roll(m, 5); break;
    case 6:
        if (f->key_count > 0)
            gg_edit_key(m, f, &f->keys[k]);
        break;
    default:
        if (f->count > 0)
            gg_edit_tensor(m, f, &f->tensors[t]);
    }
}

/* Bytes of a tensor; 0: of no known type, or the size overflows. */
static inline uint64_t gg_bytes(const gg_tensor *t)
{
    int64_t shape[GG_RANK];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->rank; i++)
        shape[i] = (int64_t)t->shape[t->rank - 1 - i];
    for (int type = 1; type < NIB_TYPE_COUNT; type++)
        if (nib__gguf_type_number((nib_type)type) == (int)t->type &&
            nib__tensor_bytes(&bytes, (nib_type)type, shape, (int)t->rank))
            return bytes;
    return 0;
}

static inline void gg_put_string(mutant *m, piece text)
{
    put_number(m, text.size, 8);
    put_piece(m, text.at, text.size);
}

/* fitting: tensors lie one after the other, each padded to the alignment. */
static inline void gg_write(mutant *m, const gg_file *f, bool fitting)
{
    const bool wrong_count = roll(m, 16) == 0;
    uint64_t at = 0;
    put_string(m, "GGUF");
    put_number(m, f->version, 4);
    put_number(m, wrong_count ? roll_number(m, f->count) : f->count, 8);
    put_number(m, wrong_count ? roll_number(m, f->key_count) : f->key_count, 8);
    for (size_t i = 0; i < f->key_count; i++) {
        gg_put_string(m, f->keys[i].name);
        put_number(m, f->keys[i].kind, 4);
        put_piece(m, f->keys[i].value.at, f->keys[i].value.size);
    }
    for (size_t i = 0; i < f->count; i++) {
        const gg_tensor *t = &f->tensors[i];
        gg_put_string(m, t->name);
        put_number(m, t->rank, 4);
        for (uint32_t d = 0; d < t->rank; d++)
            put_number(m, t->shape[d], 8);
        put_number(m, t->type, 4);
        put_number(m, fitting ? at : t->offset, 8);
        at += (gg_bytes(t) + f->alignment - 1) / f->alignment * f->alignment;
    }
    if (m->size % f->alignment != 0)
        put_zeros(m, (size_t)(f->alignment - m->size % f->alignment));
    const size_t kept = fitting ? smaller(at, f->data.size) : f->data.size;
    put_piece(m, f->data.at, kept);
    if (fitting && at - kept > m->most)
        m->full = true;
    else if (fitting)
        put_zeros(m, (size_t)at - kept);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    mutant m;
    gg_file file;
    mutant_init(&m, most, seed);
    uint8_t *const edits = m.edits;
    if (gg_read(&file, data, size) && roll(&m, 6) > 0) {
        for (size_t left = 1 + roll(&m, 3); left > 0; left--)
            gg_edit(&m, &file);
        gg_write(&m, &file, roll(&m, 6) > 0);
    }
    return mutant_done(&m, data, size, most, edits);
}

#endif
