/* SPDX-License-Identifier: Apache-2.0
 *
 * Prebuilt tables of a tokenizer in a file, used in place once mapped (see tokenizer.h): a header
 * of fixed size, arrays whose lengths it holds, and the tokenizer.json without its vocabulary and
 * merges, which is parsed like any other. Every index is range-checked, because the hashes detect
 * damage but not forgery.
 */
#include "tokenizer_parts.h"

enum {
    VERSION = 1,
    JSON_LIMIT = 64 << 20, /* bytes of the tokenizer.json without vocabulary and merges */
};

static const char magic[8] = {'n', 'i', 'b', 't', 'o', 'k', 's', '\n'};
static const uint32_t ORDER = 0x01020304;

typedef struct head {
    char magic[8];
    uint32_t version, order; /* order: ORDER, in the byte order of the writer */
    uint64_t ids, slots, merge_bits, bytes, json;
    nib_hash source; /* of the tokenizer.json */
    nib_hash rest;   /* of the bytes after this header */
    nib_hash self;   /* of this header with zeros in this field */
} head;

/* The arrays follow the header in this order. */
typedef struct tables {
    head head;
    const nib_token_text *texts; /* [ids] without flags but NIB_TOKEN_PRESENT */
    const nib_token_slot *slots; /* [slots] of the model's index */
    const nib_merge *merges;     /* [1 << merge_bits] */
    const uint64_t *joins;       /* [COUNT(nib_bpe.joins)] */
    const char *bytes;           /* [bytes] of all texts */
    const char *json;            /* [json] */
} tables;

static nib_hash self_hash(head h)
{
    h.self = (nib_hash){0, 0};
    return nib__hash_bytes(&h, sizeof h);
}

/* ---- writing ---- */

/* Copies the members of the object just entered, but writes the vocabulary and merges of "model" as
 * empty. */
static bool put_members(nib_json *json, nib_text *out, bool model)
{
    const char *comma = "";
    nib__text_str(out, "{");
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const bool vocab = model && nib__json_is(json, "vocab");
        const bool merges = model && nib__json_is(json, "merges");
        const bool is_model = !model && nib__json_is(json, "model");
        nib_json_slice slice = {NULL, 0};
        nib__text_format(out, "%s\"%.*s\":", comma, (int)json->token_size, json->token);
        comma = ",";
        if (is_model) {
            if (!nib__json_expect(json, NIB_JSON_OBJECT) || !put_members(json, out, true))
                return false;
            continue;
        }
        if (!nib__loader_slice(json, &slice))
            return false;
        if (vocab || merges)
            nib__text_str(out, vocab ? "{}" : "[]");
        else
            nib__text_put(out, slice.at, slice.size);
    }
    nib__text_str(out, "}");
    return json->event == NIB_JSON_OBJECT_END;
}

static nib_status put_small_parts(nib_text *out, const nib_named_text *file, nib_err *err)
{
    nib_json json;
    nib__json_init(&json, file->name, file->text, file->size, NULL);
    if (nib__json_expect(&json, NIB_JSON_OBJECT))
        (void)put_members(&json, out, false);
    return nib__json_status(&json, err);
}

static void put_bytes(nib_text *out, const void *bytes, size_t size)
{
    if (size != 0)
        nib__text_put(out, bytes, size);
}

nib_status nib__tokenizer_tables(nib_text *out, const nib_tokenizer *t, const nib_named_text *json,
                                 nib_err *err)
{
    const nib_vocab *v = &t->vocab;
    const nib_bpe *b = &t->bpe;
    head h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, magic, sizeof magic);
    h.version = VERSION, h.order = ORDER;
    h.ids = v->text_count, h.slots = v->model.capacity;
    h.merge_bits = (uint64_t)b->bits, h.bytes = v->bytes_size;
    h.source = nib__hash_bytes(json->text, json->size);
    put_bytes(out, &h, sizeof h);
    for (size_t i = 0; i < v->text_count; i++) {
        nib_token_text text = v->texts[i];
        text.size &= NIB_TOKEN_PRESENT | NIB_TOKEN_SIZE;
        put_bytes(out, &text, sizeof text);
    }
    put_bytes(out, v->model.slots, v->model.capacity * sizeof *v->model.slots);
    put_bytes(out, b->slots, sizeof *b->slots << b->bits);
    put_bytes(out, b->joins, sizeof b->joins);
    put_bytes(out, v->bytes, v->bytes_size);
    const size_t before = out->size;
    NIB_TRY(put_small_parts(out, json, err));
    if (out->failed)
        return nib__fail_memory(err, out->size, "the tables of a tokenizer");
    h.json = out->size - before;
    h.rest = nib__hash_bytes(out->at + sizeof h, out->size - sizeof h);
    h.self = self_hash(h);
    memcpy(out->at, &h, sizeof h);
    return NIB_OK;
}

/* ---- reading ---- */

static nib_status refuse(const nib_named_text *file, const char *why, nib_err *err)
{
    return nib__fail(err, NIB_BAD_INPUT, "%s: %s", file->name, why);
}

static nib_status check_head(head *h, const nib_named_text *file, nib_err *err)
{
    if (file->size < sizeof *h)
        return refuse(file, "it is shorter than its header", err);
    memcpy(h, file->text, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return refuse(file, "it is not a file of tokenizer tables", err);
    if (h->version != VERSION || h->order != ORDER)
        return refuse(file, "it has another version or byte order", err);
    if (!nib__hash_equal(self_hash(*h), h->self))
        return refuse(file, "its header was changed since it was written", err);
    if (h->ids > NIB_TOKENIZER_IDS || h->slots > 4 * (uint64_t)NIB_TOKENIZER_IDS ||
        (h->slots & (h->slots - 1)) != 0 || h->merge_bits < 4 || h->merge_bits > 24 ||
        h->bytes > UINT32_MAX || h->json > JSON_LIMIT)
        return refuse(file, "its tables are larger than a tokenizer's can be", err);
    return NIB_OK;
}

/* Locates the arrays; checks that the file has exactly their bytes. */
static nib_status find_tables(tables *t, const nib_named_text *file, nib_err *err)
{
    const head *h = &t->head;
    const size_t merges = (size_t)1 << h->merge_bits;
    const char *at = file->text + sizeof *h;
    t->texts = (const nib_token_text *)(const void *)at;
    t->slots = (const nib_token_slot *)(const void *)(t->texts + h->ids);
    t->merges = (const nib_merge *)(const void *)(t->slots + h->slots);
    t->joins = (const uint64_t *)(const void *)(t->merges + merges);
    const uint64_t arrays = h->ids * sizeof *t->texts + h->slots * sizeof *t->slots +
                            merges * sizeof *t->merges + sizeof((nib_bpe *)NULL)->joins;
    if (arrays + h->bytes + h->json != file->size - sizeof *h) /* check_head rules out overflow */
        return refuse(file, "its size differs from what its header says", err);
    t->bytes = at + arrays;
    t->json = t->bytes + h->bytes;
    return nib__hash_equal(nib__hash_bytes(at, file->size - sizeof *h), h->rest)
               ? NIB_OK
               : refuse(file, "its tables were changed since they were written", err);
}

static bool begins_character(const tables *t, uint64_t at)
{
    return at == t->head.bytes || ((unsigned char)t->bytes[at] & 0xc0) != 0x80;
}

/* Checks that the bytes are UTF-8, and that each text is inside and starts and ends between
 * characters. */
static bool check_texts(const tables *t)
{
    bool valid = nib__utf8_check(t->bytes, (size_t)t->head.bytes) == t->head.bytes;
    for (uint64_t i = 0; i < t->head.ids && valid; i++) {
        const nib_token_text text = t->texts[i];
        const uint64_t size = text.size & NIB_TOKEN_SIZE, end = text.offset + size;
        if (text.size != 0)
            valid = text.size == (size | NIB_TOKEN_PRESENT) && end <= t->head.bytes &&
                    begins_character(t, text.offset) && begins_character(t, end);
    }
    return valid;
}

static bool check_index(const tables *t)
{
    bool valid = true;
    for (uint64_t i = 0; i < t->head.slots; i++)
        valid = valid && t->slots[i].id_1 <= t->head.ids;
    return valid;
}

static nib_status adopt_vocab(nib_vocab *v, const tables *t, const nib_named_text *file,
                              const nib_allocator *a, nib_err *err)
{
    const size_t ids = (size_t)t->head.ids;
    if (v->text_count != 0)
        return refuse(file, "its tokenizer.json must not have a vocabulary", err);
    if (!check_texts(t) || !check_index(t))
        return refuse(file, "its vocabulary is damaged: a text or id is out of range", err);
    if (!nib__reserve(a, (void **)&v->texts, &v->text_capacity, ids, sizeof *v->texts))
        return nib__fail_memory(err, ids * sizeof *v->texts, "the vocabulary");
    if (ids != 0)
        memcpy(v->texts, t->texts, ids * sizeof *v->texts); /* a copy, as flags are set in it */
    v->text_count = ids;
    v->mapped = true; /* never written */
    v->bytes = (char *)(uintptr_t)t->bytes;
    v->bytes_size = v->bytes_capacity = (size_t)t->head.bytes;
    v->model.slots = (nib_token_slot *)(uintptr_t)t->slots;
    v->model.capacity = (size_t)t->head.slots;
    return NIB_OK;
}

static nib_status load_tables(nib_loader *loader, nib_model_part *m, const tables *t,
                              const nib_named_text *file, const nib_named_text *config)
{
    const nib_merge_source merges = {
        .slots = t->merges, .bits = (int)t->head.merge_bits, .joins = t->joins};
    NIB_TRY(nib__load_file(loader, m));
    NIB_TRY(adopt_vocab(&loader->t->vocab, t, file, &loader->t->allocator, loader->err));
    return nib__loader_build(loader, config, m, &merges);
}

nib_status nib__tokenizer_parse_tables(nib_tokenizer **out, const nib_named_text *file,
                                       const nib_hash *source, const nib_named_text *config,
                                       const nib_allocator *a, nib_err *err)
{
    nib_err own = {.status = NIB_OK};
    nib_loader loader;
    nib_model_part m;
    tables t;
    NIB_TRY(check_head(&t.head, file, err));
    if (source != NULL && !nib__hash_equal(*source, t.head.source))
        return refuse(file, "it was made from another tokenizer.json than the one beside it", err);
    NIB_TRY(find_tables(&t, file, err));
    const nib_named_text small = {file->name, t.json, (size_t)t.head.json};
    NIB_TRY(nib__loader_open(&loader, &m, &small, a, err));
    loader.err = &own;
    const nib_status status = load_tables(&loader, &m, &t, file, config);
    if (status != NIB_OK && err != NULL)
        *err = own;
    return nib__loader_close(&loader, &m, status, out);
}
