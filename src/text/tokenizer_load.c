/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a tokenizer: reads tokenizer.json as a stream (no tree: a file has up to 300,000 merges), the
 * vocabulary into its tables at once, the small components as slices of the file; then joins the parts.
 */
#include "tokenizer_parts.h"

#include "file.h"

enum {
    SCRATCH = 1024 * 1024, /* bytes of decoded strings before they are let go */
};

typedef struct nib_merge_list {
    nib_merge *at;
    size_t count, capacity;
} merge_list;

typedef struct model {
    nib_json_slice late_merges; /* merges that came before the vocabulary */
    char *unk;
    size_t unk_size;
    bool has_vocab, has_merges;
    merge_list merges;
    nib_text joined;
} model;

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
        if (nib__vocab_put(&t->vocab, &t->vocab.model, token, size, id, &t->allocator, &inner) != NIB_OK)
            return fail_here(loader, json, &inner);
    }
    return nib__json_status(json, loader->err);
}

/* ---- merges ---- */

static bool same_join(const nib_tokenizer *t, nib_text *joined, const char *left, size_t left_size,
                      const char *right, size_t right_size, nib_merge *m, const char **lacks, size_t *lacks_size)
{
    const nib_token_index *index = &t->vocab.model;
    nib__text_clear(joined);
    nib__text_put(joined, left, left_size);
    nib__text_put(joined, right, right_size);
    const int32_t ids[3] = {nib__vocab_find(&t->vocab, index, left, left_size),
                            nib__vocab_find(&t->vocab, index, right, right_size),
                            joined->failed ? -1 : nib__vocab_find(&t->vocab, index, joined->at, joined->size)};
    if (ids[0] >= 0 && ids[1] >= 0 && ids[2] >= 0) {
        m->left = (uint32_t)ids[0];
        m->right = (uint32_t)ids[1];
        m->id = (uint32_t)ids[2];
        return true;
    }
    *lacks = ids[0] < 0 ? left : ids[1] < 0 ? right : joined->at;
    *lacks_size = ids[0] < 0 ? left_size : ids[1] < 0 ? right_size : joined->size;
    return false;
}

static void fail_lacks(nib_json *json, size_t number, const char *lacks, size_t lacks_size)
{
    char name[80];
    nib__json_fail(json, "merge %zu needs the token \"%s\", which the vocabulary lacks", number,
                   nib__say_name(name, sizeof name, lacks == NULL ? "" : lacks, lacks_size));
}

/* "left right". Llama 2's has tokens that are spaces themselves: where there are several spaces, the one
 * counts that parts tokens of the vocabulary, if it is the only one. */
static bool read_merge_string(nib_loader *loader, nib_json *json, model *m, nib_merge *merge)
{
    size_t size, lacks_size = 0;
    const char *text = string_of(loader, json, &size), *lacks = NULL;
    if (text == NULL)
        return false;
    int spaces = 0, found = 0;
    nib_merge last = *merge;
    for (const char *space = text; (space = memchr(space, ' ', (size_t)(text + size - space))) != NULL; space++) {
        const size_t left_size = (size_t)(space - text);
        spaces++;
        if (same_join(loader->t, &m->joined, text, left_size, space + 1, size - left_size - 1, &last, &lacks,
                      &lacks_size)) {
            *merge = last;
            found++;
        }
        if (spaces > 64)
            break;
    }
    if (found == 1)
        return true;
    if (spaces == 1)
        fail_lacks(json, m->merges.count, lacks, lacks_size);
    else
        nib__json_fail(json, "merge %zu is not two tokens with a space between", m->merges.count);
    return false;
}

/* ["left", "right"], past the bracket. */
static bool read_merge_pair(nib_loader *loader, nib_json *json, model *m, nib_merge *merge)
{
    size_t left_size, right_size, lacks_size;
    const char *left, *right, *lacks;
    if (!nib__json_expect(json, NIB_JSON_STRING) || (left = string_of(loader, json, &left_size)) == NULL ||
        !nib__json_expect(json, NIB_JSON_STRING) || (right = string_of(loader, json, &right_size)) == NULL)
        return false;
    if (!same_join(loader->t, &m->joined, left, left_size, right, right_size, merge, &lacks, &lacks_size)) {
        fail_lacks(json, m->merges.count, lacks, lacks_size);
        return false;
    }
    return nib__json_expect(json, NIB_JSON_ARRAY_END);
}

static nib_status load_merges(nib_loader *loader, nib_json *json, model *m)
{
    const nib_allocator *a = &loader->t->allocator;
    merge_list *list = &m->merges;
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return nib__json_status(json, loader->err);
    while (nib__json_next(json) == NIB_JSON_STRING || json->event == NIB_JSON_ARRAY) {
        nib_merge merge = {.rank = (uint32_t)list->count};
        if (loader->scratch.total > SCRATCH)
            nib__arena_free(&loader->scratch);
        if (json->event == NIB_JSON_STRING && json->token_size >= 8 && memcmp(json->token, "#version", 8) == 0)
            continue; /* the first line of merges.txt, carried along */
        if (list->count == NIB_TOKENIZER_MERGES)
            return nib__loader_unsupported(loader, "there are more than %d merges", NIB_TOKENIZER_MERGES);
        const bool good = json->event == NIB_JSON_STRING ? read_merge_string(loader, json, m, &merge)
                                                         : read_merge_pair(loader, json, m, &merge);
        if (!good)
            return nib__json_status(json, loader->err);
        if (!nib__reserve(a, (void **)&list->at, &list->capacity, list->count + 1, sizeof *list->at))
            return nib__fail_memory(loader->err, list->count * sizeof *list->at, "the merges");
        list->at[list->count++] = merge;
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
        (void)nib__loader_unsupported(loader, "the BPE model has a %s, which is not supported; %s", what, remedy);
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

static bool read_unk(nib_loader *loader, nib_json *json, model *m)
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
    (void)nib__loader_unsupported(loader, "the model is a %s; only BPE is supported, so use a model with a BPE tokenizer",
                                  nib__say_name(name, sizeof name, json->token, json->token_size));
    return false;
}

static bool fail_key(nib_loader *loader, const nib_json *json, const char *what)
{
    char name[80];
    (void)nib__loader_unsupported(loader, "the key \"%s\" of %s is not known, and it could change the ids; remove it "
                                  "if it does not",
                                  nib__say_name(name, sizeof name, json->token, json->token_size), what);
    return false;
}

/* One key of the model; false: loader->err or json->err says why. */
static bool read_model_key(nib_loader *loader, nib_json *json, model *m)
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
        return m->has_vocab ? load_merges(loader, json, m) == NIB_OK : nib__loader_slice(json, &m->late_merges);
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
        return read_nothing(loader, json, "continuing_subword_prefix", "use a model with another tokenizer");
    if (nib__json_is(json, "end_of_word_suffix"))
        return read_nothing(loader, json, "end_of_word_suffix", "use a model with another tokenizer");
    return fail_key(loader, json, "the BPE model");
}

/* Fills loader->err if the call before has not. */
static nib_status status_of(nib_loader *loader, const nib_json *json)
{
    if (json->err.status != NIB_OK)
        return nib__json_status(json, loader->err);
    return loader->err->status;
}

static nib_status load_model(nib_loader *loader, nib_json *json, model *m)
{
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return status_of(loader, json);
    while (nib__json_next(json) == NIB_JSON_KEY)
        if (!read_model_key(loader, json, m))
            return status_of(loader, json);
    NIB_TRY(status_of(loader, json));
    if (!m->has_vocab || !m->has_merges)
        return nib__fail(loader->err, NIB_BAD_INPUT, "%s: the model has no %s", loader->file.name,
                         m->has_vocab ? "merges" : "vocab");
    if (m->late_merges.at == NULL)
        return NIB_OK;
    nib_json late;
    nib__loader_reader(loader, &late, m->late_merges);
    return load_merges(loader, &late, m);
}

/* ---- the file ---- */

static nib_status load_added(nib_loader *loader, nib_json *json)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return status_of(loader, json);
    while (nib__json_next(json) == NIB_JSON_OBJECT) {
        nib_added added = {.id = -1};
        NIB_TRY(nib__load_added_token(loader, json, &added));
        if (added.id < 0 || added.content == NULL)
            nib__json_fail(json, "an added token has no id or no content");
        NIB_TRY(nib__json_status(json, loader->err));
        NIB_TRY(nib__loader_add(loader, &added));
    }
    if (json->event != NIB_JSON_ARRAY_END)
        nib__json_fail(json, "an added token is an object");
    return status_of(loader, json);
}

static nib_status load_key(nib_loader *loader, nib_json *json, model *m)
{
    static const struct {
        const char *key;
        nib_status (*load)(nib_loader *loader, nib_json_slice slice, int nesting);
    } parts[] = {
        {"normalizer", nib__load_normalizer},
        {"pre_tokenizer", nib__load_pre_tokenizer},
        {"post_processor", nib__load_processor},
        {"decoder", nib__load_decoder},
    };
    if (nib__json_is(json, "model"))
        return load_model(loader, json, m);
    if (nib__json_is(json, "added_tokens"))
        return load_added(loader, json);
    if (nib__json_is(json, "version")) {
        if (nib__json_expect(json, NIB_JSON_STRING) && !nib__json_is(json, "1.0"))
            return nib__loader_unsupported(loader, "the version is not 1.0");
        return status_of(loader, json);
    }
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (!nib__json_is(json, parts[i].key))
            continue;
        nib_json_slice slice;
        return nib__loader_slice(json, &slice) ? parts[i].load(loader, slice, 0) : status_of(loader, json);
    }
    /* truncation and padding are a caller's wishes; what is not known is not the ids' business either. */
    (void)nib__json_skip(json);
    return status_of(loader, json);
}

static nib_status load_file(nib_loader *loader, model *m)
{
    nib_json json;
    nib__json_init(&json, loader->file.name, loader->file.text, loader->file.size, NULL);
    if (nib__json_expect(&json, NIB_JSON_OBJECT))
        while (nib__json_next(&json) == NIB_JSON_KEY)
            NIB_TRY(load_key(loader, &json, m));
    if (json.event == NIB_JSON_OBJECT_END)
        (void)nib__json_expect(&json, NIB_JSON_END);
    NIB_TRY(nib__json_status(&json, loader->err));
    if (m->has_vocab)
        return NIB_OK;
    return nib__fail(loader->err, NIB_BAD_INPUT, "%s has no model; it is no tokenizer.json", loader->file.name);
}

/* ---- joining the parts ---- */

/* Added tokens into the vocabulary, each under the id that the file gives it. */
static nib_status place_added(nib_loader *loader)
{
    nib_tokenizer *t = loader->t;
    char name[80];
    nib_err inner;
    for (size_t i = 0; i < t->added_count; i++) {
        nib_added *added = &t->added[i];
        const int32_t held = nib__vocab_find(&t->vocab, &t->vocab.added, added->content, added->size);
        const int32_t known = nib__vocab_find(&t->vocab, &t->vocab.model, added->content, added->size);
        if ((known >= 0 && known != added->id) || (held >= 0 && held != added->id))
            return nib__fail(loader->err, NIB_BAD_INPUT,
                             "%s: the added token \"%s\" has the id %lld, but elsewhere it is %d; "
                             "make the two the same",
                             loader->file.name, nib__say_name(name, sizeof name, added->content, added->size),
                             (long long)added->id, known >= 0 ? known : held);
        if (held >= 0) {
            added->match_size = 0; /* the first one says how it is found */
            continue;
        }
        if (nib__vocab_put(&t->vocab, &t->vocab.added, added->content, added->size, added->id, &t->allocator,
                           &inner) != NIB_OK)
            return nib__fail(loader->err, inner.status, "%s: %s", loader->file.name, inner.text);
        if (added->special)
            t->vocab.texts[added->id].size |= NIB_TOKEN_SPECIAL;
    }
    return NIB_OK;
}

static nib_status normalize_one(nib_loader *loader, nib_encoder *e, nib_added *added)
{
    const char *text;
    size_t size;
    NIB_TRY(nib__normalize(e, added->content, added->size, &text, &size));
    if (size > NIB_TOKENIZER_ADDED)
        return nib__loader_unsupported(loader, "an added token has %zu bytes when normalized; the limit is %d", size,
                                       NIB_TOKENIZER_ADDED);
    added->match = nib__arena_copy(&loader->t->arena, text, size);
    added->match_size = size;
    return added->match == NULL ? nib__fail_memory(loader->err, size, "an added token") : NIB_OK;
}

/* Tokens that are looked for in the normalized text are normalized themselves. */
static nib_status normalize_added(nib_loader *loader)
{
    nib_tokenizer *t = loader->t;
    nib_encoder e;
    size_t size = 0;
    for (size_t i = 0; i < t->added_count; i++)
        size += t->added[i].size;
    nib_status status = nib__encoder_open(&e, t, size, loader->err);
    for (size_t i = 0; i < t->added_count && status == NIB_OK; i++)
        if (t->added[i].normalized && t->added[i].match_size != 0 && t->normalizer_count != 0)
            status = normalize_one(loader, &e, &t->added[i]);
    nib__encoder_close(&e);
    return status;
}

static nib_status find_unk(nib_loader *loader, const model *m)
{
    nib_tokenizer *t = loader->t;
    char name[80];
    t->bpe.unk = -1;
    if (m->unk == NULL)
        return NIB_OK;
    t->bpe.unk = nib__vocab_find(&t->vocab, &t->vocab.model, m->unk, m->unk_size);
    return t->bpe.unk >= 0 ? NIB_OK
                           : nib__fail(loader->err, NIB_BAD_INPUT, "%s: the unk_token \"%s\" is not in the vocabulary",
                                       loader->file.name, nib__say_name(name, sizeof name, m->unk, m->unk_size));
}

static nib_status check_processor(nib_loader *loader)
{
    const nib_tokenizer *t = loader->t;
    size_t size;
    for (size_t i = 0; i < t->before_count + t->after_count; i++) {
        const int32_t id = i < t->before_count ? t->before[i] : t->after[i - t->before_count];
        if (nib__vocab_text(&t->vocab, id, &size) == NULL)
            return nib__fail(loader->err, NIB_BAD_INPUT, "%s: the post-processor adds the id %d, which has no token",
                             loader->file.name, id);
    }
    return NIB_OK;
}

/* The id of a token that tokenizer_config.json names; -1 if it names none. */
static nib_status find_named(nib_loader *loader, const nib_named_text *config, const char *key, const char *token,
                             size_t size, int32_t *id)
{
    char name[80];
    *id = token == NULL ? -1 : nib__tokenizer_find(loader->t, token, size);
    if (token == NULL || *id >= 0)
        return NIB_OK;
    return nib__fail(loader->err, NIB_BAD_INPUT, "%s: the %s \"%s\" is no token of %s; name one that is", config->name,
                     key, nib__say_name(name, sizeof name, token, size), loader->file.name);
}

static nib_status apply_config(nib_loader *loader, const nib_named_text *file, const nib_tokenizer_config *config)
{
    nib_tokenizer *t = loader->t;
    NIB_TRY(find_named(loader, file, "bos_token", config->bos, config->bos_size, &t->bos));
    NIB_TRY(find_named(loader, file, "eos_token", config->eos, config->eos_size, &t->eos));
    /* Without a post-processor, what a Llama tokenizer adds stands in the configuration alone. */
    if (!t->has_processor)
        NIB_TRY(nib__processor_wrap(loader, &t->bos, config->add_bos && t->bos >= 0, &t->eos,
                                    config->add_eos && t->eos >= 0));
    if (t->bos < 0 && t->before_count != 0 && nib__vocab_special(&t->vocab, t->before[0]))
        t->bos = t->before[0];
    return NIB_OK;
}

static nib_status build(nib_loader *loader, const nib_named_text *config_file, const model *m)
{
    nib_tokenizer *t = loader->t;
    nib_tokenizer_config config = {0};
    nib_err inner;
    if (config_file != NULL) {
        nib_loader other = *loader;
        other.file = *config_file;
        const nib_status status = nib__load_tokenizer_config(&other, &config);
        loader->scratch = other.scratch;
        NIB_TRY(status);
    }
    NIB_TRY(place_added(loader));
    NIB_TRY(find_unk(loader, m));
    NIB_TRY(check_processor(loader));
    if (nib__bpe_build(&t->bpe, &t->vocab, m->merges.at, m->merges.count, &t->allocator, &inner) != NIB_OK)
        return nib__fail(loader->err, inner.status, "%s: %s", loader->file.name, inner.text);
    NIB_TRY(normalize_added(loader));
    NIB_TRY(nib__trie_build(&t->plain, t->added, t->added_count, false, &t->allocator, loader->err));
    NIB_TRY(nib__trie_build(&t->normal, t->added, t->added_count, true, &t->allocator, loader->err));
    return apply_config(loader, config_file, &config);
}

/* ---- open and close ---- */

nib_status nib__tokenizer_parse(nib_tokenizer **out, const nib_named_text *json, const nib_named_text *config,
                                const nib_allocator *a, nib_err *err)
{
    nib_err own = {.status = NIB_OK};
    nib_tokenizer *t = nib__calloc(a, 1, sizeof *t);
    if (t == NULL)
        return nib__fail_memory(err, sizeof *t, "the tokenizer");
    t->allocator = *a;
    t->bos = t->eos = -1;
    nib__arena_init(&t->arena, &t->allocator, 0);
    nib_loader loader = {.t = t, .file = *json, .err = &own};
    model m = {.has_vocab = false};
    nib__arena_init(&loader.scratch, a, 0);
    nib__text_init(&m.joined, a);
    nib_status status = load_file(&loader, &m);
    if (status == NIB_OK)
        status = build(&loader, config, &m);
    nib__arena_free(&loader.scratch);
    nib__text_free(&m.joined);
    nib__release(a, m.merges.at);
    if (status != NIB_OK) {
        nib__tokenizer_close(t);
        if (err != NULL)
            *err = own;
        return status;
    }
    *out = t;
    return NIB_OK;
}

nib_status nib__tokenizer_open(nib_tokenizer **out, const char *path, const char *config_path,
                               const nib_allocator *a, nib_err *err)
{
    nib_map json = {NULL, 0}, config = {NULL, 0};
    NIB_TRY(nib__map_open(&json, path, err));
    nib_status status = config_path == NULL ? NIB_OK : nib__map_open(&config, config_path, err);
    if (status == NIB_OK) {
        const nib_named_text json_text = {path, (const char *)json.at, (size_t)json.size};
        const nib_named_text config_text = {config_path, (const char *)config.at, (size_t)config.size};
        status = nib__tokenizer_parse(out, &json_text, config_path == NULL ? NULL : &config_text, a, err);
    }
    nib__map_close(&config);
    nib__map_close(&json);
    return status;
}

void nib__tokenizer_close(nib_tokenizer *t)
{
    if (t == NULL)
        return;
    const nib_allocator a = t->allocator;
    for (size_t i = 0; i < t->normalizer_count; i++)
        nib__text_regex_close(&t->normalizers[i].finder.regex);
    for (size_t i = 0; i < t->stage_count; i++)
        nib__text_regex_close(&t->stages[i].finder.regex);
    nib__trie_free(&t->plain, &a);
    nib__trie_free(&t->normal, &a);
    nib__bpe_free(&t->bpe, &a);
    nib__vocab_free(&t->vocab, &a);
    nib__release(&a, t->added);
    nib__arena_free(&t->arena);
    nib__release(&a, t);
}
