/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the model of a tokenizer.json as a stream (no tree: a file has up to 300,000 merges), its
 * vocabulary and merges at once into their tables.
 */
#include "tokenizer_parts.h"

enum {
    SCRATCH = 1024 * 1024, /* bytes of decoded strings before they are let go */
};

/* ---- small readers ---- */

/* The string or key just read: as it lies in the file, or decoded into scratch. */
static const char *string_of(nib_loader *loader, nib_json *json, size_t *size)
{
    *size = json->token_size;
    return json->escaped ? nib__json_string(json, &loader->scratch, size) : json->token;
}

/* A sentence of a deeper call becomes one of the file's line. */
static nib_status fail_here(nib_loader *loader, nib_json *json, const nib_err *inner)
{
    if (inner->status != NIB_BAD_INPUT)
        return nib__fail(loader->err, inner->status, "%s: %s", loader->file.name, inner->text);
    nib__json_fail(json, "%s", inner->text);
    return nib__json_status(json, loader->err);
}

/* ---- vocabulary ---- */

static nib_status load_vocab(nib_loader *loader, nib_json *json)
{
    nib_tokenizer *t = loader->t;
    nib_err inner;
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return nib__json_status(json, loader->err);
    while (nib__json_next(json) == NIB_JSON_KEY) {
        size_t size;
        int64_t id;
        if (loader->scratch.total > SCRATCH)
            nib__arena_free(&loader->scratch);
        const char *token = string_of(loader, json, &size);
        if (token == NULL || nib__json_next(json) == NIB_JSON_ERROR || !nib__json_int64(json, &id))
            return nib__json_status(json, loader->err);
        if (nib__vocab_put(&t->vocab, &t->vocab.model, token, size, id, &t->allocator, &inner) !=
            NIB_OK)
            return fail_here(loader, json, &inner);
    }
    return nib__json_status(json, loader->err);
}

/* ---- merges ---- */

typedef struct half {
    const char *at;
    size_t size;
} half;

/* Fills merge with the ids of two tokens and of what they make together; false: *lacks is no token.
 */
static bool find_merge(const nib_tokenizer *t, nib_text *joined, half left, half right,
                       nib_merge *merge, half *lacks)
{
    const nib_token_index *index = &t->vocab.model;
    nib__text_clear(joined);
    nib__text_put(joined, left.at, left.size);
    nib__text_put(joined, right.at, right.size);
    const half both = {joined->at, joined->size};
    const half parts[3] = {left, right, both};
    uint32_t ids[3];
    if (joined->failed)
        return false;
    for (int i = 0; i < 3; i++) {
        const int32_t id = nib__vocab_find(&t->vocab, index, parts[i].at, parts[i].size);
        *lacks = parts[i];
        if (id < 0)
            return false;
        ids[i] = (uint32_t)id;
    }
    merge->left = ids[0];
    merge->right = ids[1];
    merge->id = ids[2];
    return true;
}

static nib_status fail_lacks(const nib_model_part *m, half lacks, nib_err *err)
{
    char name[80];
    if (m->joined.failed)
        return nib__fail_memory(err, m->joined.size, "the merges");
    return nib__fail(err, NIB_BAD_INPUT,
                     "merge %zu needs the token \"%s\", which the vocabulary lacks",
                     m->merges.count, nib__say_name(name, sizeof name, lacks.at, lacks.size));
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

/* Llama 2's has tokens that are spaces themselves: where there are several spaces, the one counts
 * that parts tokens of the vocabulary, if it is the only one. */
nib_status nib__merges_add(nib_model_part *m, const nib_tokenizer *t, const char *text, size_t size,
                           nib_err *err)
{
    enum { MOST_SPACES = 64 };
    half lacks = {"", 0};
    nib_merge merge = {.rank = (uint32_t)m->merges.count};
    const char *const end = text + size, *space = text;
    int spaces = 0, found = 0;
    while ((space = memchr(space, ' ', (size_t)(end - space))) != NULL && spaces <= MOST_SPACES) {
        const half left = {text, (size_t)(space - text)};
        const half right = {space + 1, (size_t)(end - space) - 1};
        spaces++;
        space++;
        found += find_merge(t, &m->joined, left, right, &merge, &lacks);
    }
    if (found == 1)
        return nib__merges_push(m, t, &merge, err);
    if (spaces == 1 || m->joined.failed)
        return fail_lacks(m, lacks, err);
    return nib__fail(err, NIB_BAD_INPUT, "merge %zu is not two tokens with a space between",
                     m->merges.count);
}

/* ["left", "right"], past the bracket. */
static nib_status read_merge_pair(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    half left, right, lacks = {"", 0};
    nib_merge merge = {.rank = (uint32_t)m->merges.count};
    nib_err inner;
    if (!nib__json_expect(json, NIB_JSON_STRING) ||
        (left.at = string_of(loader, json, &left.size)) == NULL ||
        !nib__json_expect(json, NIB_JSON_STRING) ||
        (right.at = string_of(loader, json, &right.size)) == NULL)
        return nib__json_status(json, loader->err);
    const nib_status status = find_merge(loader->t, &m->joined, left, right, &merge, &lacks)
                                  ? nib__merges_push(m, loader->t, &merge, &inner)
                                  : fail_lacks(m, lacks, &inner);
    if (status != NIB_OK)
        return fail_here(loader, json, &inner);
    (void)nib__json_expect(json, NIB_JSON_ARRAY_END);
    return nib__json_status(json, loader->err);
}

/* "left right" */
static nib_status read_merge_string(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    nib_err inner;
    size_t size;
    const char *text = string_of(loader, json, &size);
    if (text == NULL)
        return nib__json_status(json, loader->err);
    if (nib__merges_add(m, loader->t, text, size, &inner) != NIB_OK)
        return fail_here(loader, json, &inner);
    return NIB_OK;
}

static nib_status load_merges(nib_loader *loader, nib_json *json, nib_model_part *m)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return nib__json_status(json, loader->err);
    while (nib__json_next(json) == NIB_JSON_STRING || json->event == NIB_JSON_ARRAY) {
        if (loader->scratch.total > SCRATCH)
            nib__arena_free(&loader->scratch);
        if (json->event == NIB_JSON_STRING && json->token_size >= 8 &&
            memcmp(json->token, "#version", 8) == 0)
            continue; /* the first line of merges.txt, carried along */
        NIB_TRY(json->event == NIB_JSON_STRING ? read_merge_string(loader, json, m)
                                               : read_merge_pair(loader, json, m));
    }
    if (json->event != NIB_JSON_ARRAY_END)
        nib__json_fail(json, "a merge is a string or a pair of strings");
    return nib__json_status(json, loader->err);
}

/* ---- model ---- */

/* Null, or the empty string where it means the same. */
static bool read_nothing(nib_loader *loader, nib_json *json, const char *what, const char *remedy)
{
    const nib_json_event event = nib__json_next(json);
    double value = 1;
    if (event == NIB_JSON_NULL || (event == NIB_JSON_STRING && json->token_size == 0) ||
        (event == NIB_JSON_NUMBER && nib__json_double(json, &value) && value == 0))
        return true;
    if (event != NIB_JSON_ERROR)
        (void)nib__loader_unsupported(loader, "the BPE model has a %s, which is not supported; %s",
                                      what, remedy);
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
        nib__say_name(name, sizeof name, json->token, json->token_size));
    return false;
}

static bool fail_key(nib_loader *loader, const nib_json *json, const char *what)
{
    char name[80];
    (void)nib__loader_unsupported(
        loader,
        "the key \"%s\" of %s is not known, and it could change the ids; remove it "
        "if it does not",
        nib__say_name(name, sizeof name, json->token, json->token_size), what);
    return false;
}

/* One key of the model; false: loader->err or json->err says why. */
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
        return read_nothing(loader, json, "dropout", "set it to null");
    if (nib__json_is(json, "continuing_subword_prefix"))
        return read_nothing(loader, json, "continuing_subword_prefix",
                            "use a model with another tokenizer");
    if (nib__json_is(json, "end_of_word_suffix"))
        return read_nothing(loader, json, "end_of_word_suffix",
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
