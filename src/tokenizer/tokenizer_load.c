/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads and closes a tokenizer: reads tokenizer.json (the model as a stream, the small components
 * as slices of the file) and, from tokenizer_config.json, the added tokens and BOS and EOS; then
 * builds the tables. The other keys of tokenizer_config.json steer Python classes and are skipped.
 */
#include "tokenizer_parts.h"

/* ---- added tokens ---- */

static bool read_added_key(nib_loader *loader, nib_json *json, nib_added *added)
{
    if (nib__json_is(json, "content")) {
        added->content = nib__json_read_string(json, &loader->t->arena, &added->size);
        return added->content != NULL;
    }
    if (nib__json_is(json, "id"))
        return nib__json_read_int64(json, 0, NIB_TOKENIZER_IDS - 1, &added->id);
    if (nib__json_is(json, "special"))
        return nib__json_read_bool(json, &added->special);
    if (nib__json_is(json, "single_word"))
        return nib__json_read_bool(json, &added->single_word);
    if (nib__json_is(json, "lstrip"))
        return nib__json_read_bool(json, &added->lstrip);
    if (nib__json_is(json, "rstrip"))
        return nib__json_read_bool(json, &added->rstrip);
    if (nib__json_is(json, "normalized"))
        return nib__json_read_bool(json, &added->normalized);
    return nib__json_skip(json); /* __type and such */
}

/* Reads the fields of one added token; the reader is past its `{`. */
static nib_status read_added_token(nib_loader *loader, nib_json *json, nib_added *added)
{
    while (nib__json_next(json) == NIB_JSON_KEY)
        if (!read_added_key(loader, json, added))
            break;
    return nib__json_status(json, loader->err);
}

nib_status nib__loader_add(nib_loader *loader, const nib_added *added)
{
    nib_tokenizer *t = loader->t;
    char name[80];
    if (added->size == 0)
        return NIB_OK; /* an empty token never matches */
    if (added->size > NIB_TOKENIZER_ADDED)
        return nib__loader_unsupported(
            loader, "the added token \"%s\" has %zu bytes; the limit is %d",
            nib__escape_name(name, sizeof name, added->content, added->size), added->size,
            NIB_TOKENIZER_ADDED);
    if (!nib__reserve(&t->allocator, (void **)&t->added, &t->added_capacity, t->added_count + 1,
                      sizeof *t->added))
        return nib__fail_memory(loader->err, t->added_count * sizeof *t->added, "the added tokens");
    nib_added *copy = &t->added[t->added_count++];
    *copy = *added;
    copy->match = copy->content;
    copy->match_size = copy->size;
    return NIB_OK;
}

/* ---- tokenizer_config.json ---- */

typedef struct tokenizer_config {
    const char *bos, *eos; /* NULL: not named */
    size_t bos_size, eos_size;
    bool add_bos, add_eos;
} tokenizer_config;

/* A token's text: a string, an added token's object, or null. */
static bool read_token(nib_loader *loader, nib_json *json, const char **token, size_t *size)
{
    nib_added added = {.content = NULL};
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_STRING)
        *token = nib__json_string(json, &loader->t->arena, size);
    else if (event == NIB_JSON_OBJECT && read_added_token(loader, json, &added) == NIB_OK) {
        *token = added.content;
        *size = added.size;
    } else if (event != NIB_JSON_NULL) {
        nib__json_fail(json, "a token is a string or an object with its content");
    }
    return json->event != NIB_JSON_ERROR;
}

static bool read_optional_flag(nib_json *json, bool *flag)
{
    const nib_json_event event = nib__json_next(json);
    *flag = event == NIB_JSON_TRUE;
    if (event != NIB_JSON_TRUE && event != NIB_JSON_FALSE && event != NIB_JSON_NULL)
        nib__json_fail(json, "expected true or false");
    return json->event != NIB_JSON_ERROR;
}

/* {"151643": {"content": ...}, ...}: may list tokens that tokenizer.json lacks. */
static nib_status read_added_decoder(nib_loader *loader, nib_json *json)
{
    if (!nib__json_expect(json, NIB_JSON_OBJECT))
        return nib__json_status(json, loader->err);
    while (nib__json_next(json) == NIB_JSON_KEY) {
        nib_added added = {.id = 0};
        const char *at = json->token;
        size_t digits = 0;
        while (digits < json->token_size && digits < 8 && at[digits] >= '0' && at[digits] <= '9')
            added.id = 10 * added.id + (at[digits++] - '0');
        if (digits == 0 || digits != json->token_size) {
            nib__json_fail(json, "a key of added_tokens_decoder is a token id");
            break;
        }
        if (!nib__json_expect(json, NIB_JSON_OBJECT))
            break;
        NIB_TRY(read_added_token(loader, json, &added));
        NIB_TRY(nib__loader_add(loader, &added));
    }
    return nib__json_status(json, loader->err);
}

static nib_status load_config(nib_loader *loader, tokenizer_config *config)
{
    const nib_json_limits limits = {.literals = true};
    nib_json json;
    nib__json_init(&json, loader->file.name, loader->file.text, loader->file.size, &limits);
    if (!nib__json_expect(&json, NIB_JSON_OBJECT))
        return nib__json_status(&json, loader->err);
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "bos_token"))
            (void)read_token(loader, &json, &config->bos, &config->bos_size);
        else if (nib__json_is(&json, "eos_token"))
            (void)read_token(loader, &json, &config->eos, &config->eos_size);
        else if (nib__json_is(&json, "add_bos_token"))
            (void)read_optional_flag(&json, &config->add_bos);
        else if (nib__json_is(&json, "add_eos_token"))
            (void)read_optional_flag(&json, &config->add_eos);
        else if (nib__json_is(&json, "added_tokens_decoder"))
            NIB_TRY(read_added_decoder(loader, &json));
        else
            (void)nib__json_skip(&json);
    }
    if (json.event == NIB_JSON_OBJECT_END)
        (void)nib__json_expect(&json, NIB_JSON_END);
    return nib__json_status(&json, loader->err);
}

/* ---- tokenizer.json ---- */

static nib_status load_added(nib_loader *loader, nib_json *json)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return nib__loader_status(loader, json);
    while (nib__json_next(json) == NIB_JSON_OBJECT) {
        nib_added added = {.id = -1};
        NIB_TRY(read_added_token(loader, json, &added));
        if (added.id < 0 || added.content == NULL)
            nib__json_fail(json, "an added token has no id or no content");
        NIB_TRY(nib__json_status(json, loader->err));
        NIB_TRY(nib__loader_add(loader, &added));
    }
    if (json->event != NIB_JSON_ARRAY_END)
        nib__json_fail(json, "an added token is an object");
    return nib__loader_status(loader, json);
}

static nib_status load_key(nib_loader *loader, nib_json *json, nib_model_part *m)
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
        return nib__load_model_part(loader, json, m);
    if (nib__json_is(json, "added_tokens"))
        return load_added(loader, json);
    if (nib__json_is(json, "version")) {
        char shown[48];
        if (nib__json_expect(json, NIB_JSON_STRING) && !nib__json_is(json, "1.0"))
            return nib__loader_unsupported(
                loader, "version \"%s\" is not supported; 1.0 is",
                nib__escape_name(shown, sizeof shown, json->token, json->token_size));
        return nib__loader_status(loader, json);
    }
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (!nib__json_is(json, parts[i].key))
            continue;
        nib_json_slice slice;
        if (loader->parts_seen & 1u << i) /* both would be appended; Python keeps the last */
            nib__json_fail(json, "\"%s\" appears twice", parts[i].key);
        loader->parts_seen |= 1u << i;
        return nib__loader_slice(json, &slice) ? parts[i].load(loader, slice, 0)
                                               : nib__loader_status(loader, json);
    }
    /* truncation and padding are up to the caller; unknown keys do not affect ids. */
    (void)nib__json_skip(json);
    return nib__loader_status(loader, json);
}

nib_status nib__load_file(nib_loader *loader, nib_model_part *m)
{
    static const char pointer[] = "version https://git-lfs";
    nib_json json;
    if (loader->file.size >= sizeof pointer &&
        memcmp(loader->file.text, pointer, sizeof pointer - 1) == 0)
        return nib__fail(loader->err, NIB_UNSUPPORTED,
                         "%s is a Git LFS pointer, not the file itself; fetch the file with `git "
                         "lfs pull`",
                         loader->file.name);
    nib__json_init(&json, loader->file.name, loader->file.text, loader->file.size, NULL);
    if (nib__json_expect(&json, NIB_JSON_OBJECT))
        while (nib__json_next(&json) == NIB_JSON_KEY)
            NIB_TRY(load_key(loader, &json, m));
    if (json.event == NIB_JSON_OBJECT_END)
        (void)nib__json_expect(&json, NIB_JSON_END);
    NIB_TRY(nib__json_status(&json, loader->err));
    if (m->has_vocab)
        return NIB_OK;
    return nib__fail(loader->err, NIB_BAD_INPUT, "%s has no model; it is not a tokenizer.json",
                     loader->file.name);
}

/* ---- building the tables ---- */

/* Adds the added tokens to the vocabulary, each with the id that the file gives it. */
static nib_status add_added_to_vocab(nib_loader *loader)
{
    nib_tokenizer *t = loader->t;
    char name[80];
    nib_err inner;
    for (size_t i = 0; i < t->added_count; i++) {
        nib_added *added = &t->added[i];
        const int32_t held =
            nib__vocab_find(&t->vocab, &t->vocab.added, added->content, added->size);
        const int32_t known =
            nib__vocab_find(&t->vocab, &t->vocab.model, added->content, added->size);
        if ((known >= 0 && known != added->id) || (held >= 0 && held != added->id))
            return nib__fail(loader->err, NIB_BAD_INPUT,
                             "%s: the added token \"%s\" has the id %lld here and %d elsewhere; "
                             "make them the same",
                             loader->file.name,
                             nib__escape_name(name, sizeof name, added->content, added->size),
                             (long long)added->id, known >= 0 ? known : held);
        if (held >= 0) {
            added->match_size = 0; /* the first entry defines how it matches */
            continue;
        }
        if (nib__vocab_put(&t->vocab, &t->vocab.added, added->content, added->size, added->id,
                           &t->allocator, &inner) != NIB_OK)
            return nib__fail(loader->err, inner.status, "%s: %s", loader->file.name, inner.text);
        if (added->special)
            t->vocab.texts[added->id].size |= NIB_TOKEN_SPECIAL;
    }
    return NIB_OK;
}

static nib_status normalize_added_token(nib_loader *loader, nib_encoder *e, nib_added *added)
{
    const char *text;
    size_t size;
    NIB_TRY(nib__normalize(e, added->content, added->size, &text, &size));
    if (size > NIB_TOKENIZER_ADDED)
        return nib__loader_unsupported(
            loader, "an added token has %zu bytes after normalization; the limit is %d", size,
            NIB_TOKENIZER_ADDED);
    added->match = nib__arena_copy(&loader->t->arena, text, size);
    added->match_size = size;
    if (size != added->size || memcmp(text, added->content, size) != 0)
        loader->t->vocab.texts[added->id].size |= NIB_TOKEN_NORMAL;
    return added->match == NULL ? nib__fail_memory(loader->err, size, "an added token") : NIB_OK;
}

/* Normalizes the tokens that are matched in normalized text. */
static nib_status normalize_added(nib_loader *loader)
{
    nib_tokenizer *t = loader->t;
    nib_encoder e;
    size_t size = 0;
    for (size_t i = 0; i < t->added_count; i++)
        size += t->added[i].size;
    nib_status status = nib__encoder_open(&e, t, size, &(nib_encoding){.flags = 0}, loader->err);
    for (size_t i = 0; i < t->added_count && status == NIB_OK; i++)
        if (t->added[i].normalized && t->added[i].match_size != 0 && t->normalizer_count != 0)
            status = normalize_added_token(loader, &e, &t->added[i]);
    nib__encoder_close(&e);
    return status;
}

static nib_status find_unk(nib_loader *loader, const nib_model_part *m)
{
    nib_tokenizer *t = loader->t;
    char name[80];
    if (m->unk == NULL)
        return NIB_OK;
    t->bpe.unk = nib__vocab_find(&t->vocab, &t->vocab.model, m->unk, m->unk_size);
    return t->bpe.unk >= 0
               ? NIB_OK
               : nib__fail(loader->err, NIB_BAD_INPUT,
                           "%s: the unk_token \"%s\" is not in the vocabulary", loader->file.name,
                           nib__escape_name(name, sizeof name, m->unk, m->unk_size));
}

static nib_status check_processor(nib_loader *loader)
{
    const nib_tokenizer *t = loader->t;
    size_t size;
    for (size_t i = 0; i < t->before_count + t->after_count; i++) {
        const int32_t id = i < t->before_count ? t->before[i] : t->after[i - t->before_count];
        if (nib__vocab_text(&t->vocab, id, &size) == NULL)
            return nib__fail(loader->err, NIB_BAD_INPUT,
                             "%s: the post-processor adds the id %d, which has no token",
                             loader->file.name, id);
    }
    return NIB_OK;
}

/* The id of a token named in tokenizer_config.json; -1 if none is named. */
static nib_status find_named(nib_loader *loader, const nib_named_text *config, const char *key,
                             const char *token, size_t size, int32_t *id)
{
    char name[80];
    *id = token == NULL ? -1 : nib__tokenizer_find(loader->t, token, size);
    if (token == NULL || *id >= 0)
        return NIB_OK;
    return nib__fail(loader->err, NIB_BAD_INPUT,
                     "%s: the %s \"%s\" is not a token of %s; name one that is", config->name, key,
                     nib__escape_name(name, sizeof name, token, size), loader->file.name);
}

static nib_status apply_config(nib_loader *loader, const nib_named_text *file,
                               const tokenizer_config *config)
{
    nib_tokenizer *t = loader->t;
    NIB_TRY(find_named(loader, file, "bos_token", config->bos, config->bos_size, &t->bos));
    NIB_TRY(find_named(loader, file, "eos_token", config->eos, config->eos_size, &t->eos));
    /* Without a post-processor, only tokenizer_config.json says what a Llama tokenizer adds. */
    if (!t->has_processor)
        NIB_TRY(nib__processor_wrap(loader, &t->bos, config->add_bos && t->bos >= 0, &t->eos,
                                    config->add_eos && t->eos >= 0));
    if (t->bos < 0 && t->before_count != 0 && nib__vocab_special(&t->vocab, t->before[0]))
        t->bos = t->before[0];
    return NIB_OK;
}

nib_status nib__loader_join(nib_loader *loader, const nib_merge_source *merges)
{
    nib_tokenizer *t = loader->t;
    nib_err inner;
    NIB_TRY(add_added_to_vocab(loader));
    NIB_TRY(check_processor(loader));
    bool long_words = true;
    for (size_t i = 0; i < t->stage_count; i++)
        long_words = long_words && t->stages[i].kind != NIB_STAGE_SPLIT;
    const nib_status status =
        merges->slots != NULL ? nib__bpe_use_table(&t->bpe, &t->vocab, merges->slots, merges->bits,
                                                   merges->joins, long_words, &inner)
                              : nib__bpe_build(&t->bpe, &t->vocab, merges->list, merges->count,
                                               long_words, &t->allocator, &inner);
    if (status != NIB_OK)
        return nib__fail(loader->err, inner.status, "%s: %s", loader->file.name, inner.text);
    NIB_TRY(normalize_added(loader));
    NIB_TRY(
        nib__trie_build(&t->plain, t->added, t->added_count, false, &t->allocator, loader->err));
    return nib__trie_build(&t->normal, t->added, t->added_count, true, &t->allocator, loader->err);
}

nib_status nib__loader_build(nib_loader *loader, const nib_named_text *config_file,
                             const nib_model_part *m, const nib_merge_source *merges)
{
    tokenizer_config config = {0};
    if (config_file != NULL) {
        nib_loader other = *loader;
        other.file = *config_file;
        const nib_status status = load_config(&other, &config);
        loader->scratch = other.scratch;
        NIB_TRY(status);
    }
    NIB_TRY(find_unk(loader, m));
    NIB_TRY(nib__loader_join(loader, merges));
    return apply_config(loader, config_file, &config);
}

/* ---- open and close ---- */

nib_status nib__loader_open(nib_loader *loader, nib_model_part *m, const nib_named_text *file,
                            const nib_allocator *a, nib_err *err)
{
    nib_tokenizer *t = nib__calloc(a, 1, sizeof *t);
    if (t == NULL)
        return nib__fail_memory(err, sizeof *t, "the tokenizer");
    t->allocator = *a;
    t->bos = t->eos = t->bpe.unk = -1;
    nib__arena_init(&t->arena, &t->allocator, 0);
    *loader = (nib_loader){.t = t, .file = *file, .err = err};
    *m = (nib_model_part){.has_vocab = false};
    nib__arena_init(&loader->scratch, &t->allocator, 0);
    nib__text_init(&m->joined, &t->allocator);
    return NIB_OK;
}

nib_status nib__loader_close(nib_loader *loader, nib_model_part *m, nib_status status,
                             nib_tokenizer **out)
{
    nib__arena_free(&loader->scratch);
    nib__text_free(&m->joined);
    nib__release(&loader->t->allocator, m->merges.at);
    if (status == NIB_OK)
        *out = loader->t;
    else
        nib__tokenizer_close(loader->t);
    return status;
}

nib_status nib__tokenizer_parse(nib_tokenizer **out, const nib_named_text *json,
                                const nib_named_text *config, const nib_allocator *a, nib_err *err)
{
    nib_err own = {.status = NIB_OK}; /* never NULL: nib__loader_status reads its status */
    nib_loader loader;
    nib_model_part m;
    NIB_TRY(nib__loader_open(&loader, &m, json, a, err));
    loader.err = &own;
    nib_status status = nib__load_file(&loader, &m);
    if (status == NIB_OK)
        status = nib__loader_build(
            &loader, config, &m, &(nib_merge_source){.list = m.merges.at, .count = m.merges.count});
    if (status != NIB_OK && err != NULL)
        *err = own;
    return nib__loader_close(&loader, &m, status, out);
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
    nib__map_close(&t->map);
    nib__release(&a, t);
}
