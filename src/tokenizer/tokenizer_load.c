/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a tokenizer: reads tokenizer.json, the model as a stream and the small components as
 * slices of the file, then joins the parts. And closes it.
 */
#include "tokenizer_parts.h"

/* ---- the file ---- */

static nib_status load_added(nib_loader *loader, nib_json *json)
{
    if (!nib__json_expect(json, NIB_JSON_ARRAY))
        return nib__loader_status(loader, json);
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
        if (nib__json_expect(json, NIB_JSON_STRING) && !nib__json_is(json, "1.0"))
            return nib__loader_unsupported(loader, "the version is not 1.0");
        return nib__loader_status(loader, json);
    }
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (!nib__json_is(json, parts[i].key))
            continue;
        nib_json_slice slice;
        if (loader->parts_seen &
            1u << i) /* components add up, where Python's reader takes the last */
            nib__json_fail(json, "the file has two of \"%s\"", parts[i].key);
        loader->parts_seen |= 1u << i;
        return nib__loader_slice(json, &slice) ? parts[i].load(loader, slice, 0)
                                               : nib__loader_status(loader, json);
    }
    /* truncation and padding are a caller's wishes; what is not known is not the ids' business
     * either. */
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
                         "%s is a Git LFS pointer and not the file itself, which `git lfs pull` "
                         "fetches",
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
    return nib__fail(loader->err, NIB_BAD_INPUT, "%s has no model; it is no tokenizer.json",
                     loader->file.name);
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
        const int32_t held =
            nib__vocab_find(&t->vocab, &t->vocab.added, added->content, added->size);
        const int32_t known =
            nib__vocab_find(&t->vocab, &t->vocab.model, added->content, added->size);
        if ((known >= 0 && known != added->id) || (held >= 0 && held != added->id))
            return nib__fail(loader->err, NIB_BAD_INPUT,
                             "%s: the added token \"%s\" has the id %lld, but elsewhere it is %d; "
                             "make the two the same",
                             loader->file.name,
                             nib__say_name(name, sizeof name, added->content, added->size),
                             (long long)added->id, known >= 0 ? known : held);
        if (held >= 0) {
            added->match_size = 0; /* the first one says how it is found */
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

static nib_status normalize_one(nib_loader *loader, nib_encoder *e, nib_added *added)
{
    const char *text;
    size_t size;
    NIB_TRY(nib__normalize(e, added->content, added->size, &text, &size));
    if (size > NIB_TOKENIZER_ADDED)
        return nib__loader_unsupported(
            loader, "an added token has %zu bytes when normalized; the limit is %d", size,
            NIB_TOKENIZER_ADDED);
    added->match = nib__arena_copy(&loader->t->arena, text, size);
    added->match_size = size;
    if (size != added->size || memcmp(text, added->content, size) != 0)
        loader->t->vocab.texts[added->id].size |= NIB_TOKEN_NORMAL;
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
    nib_status status = nib__encoder_open(&e, t, size, &(nib_encoding){.flags = 0}, loader->err);
    for (size_t i = 0; i < t->added_count && status == NIB_OK; i++)
        if (t->added[i].normalized && t->added[i].match_size != 0 && t->normalizer_count != 0)
            status = normalize_one(loader, &e, &t->added[i]);
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
                           nib__say_name(name, sizeof name, m->unk, m->unk_size));
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

/* The id of a token that tokenizer_config.json names; -1 if it names none. */
static nib_status find_named(nib_loader *loader, const nib_named_text *config, const char *key,
                             const char *token, size_t size, int32_t *id)
{
    char name[80];
    *id = token == NULL ? -1 : nib__tokenizer_find(loader->t, token, size);
    if (token == NULL || *id >= 0)
        return NIB_OK;
    return nib__fail(loader->err, NIB_BAD_INPUT,
                     "%s: the %s \"%s\" is no token of %s; name one that is", config->name, key,
                     nib__say_name(name, sizeof name, token, size), loader->file.name);
}

static nib_status apply_config(nib_loader *loader, const nib_named_text *file,
                               const nib_tokenizer_config *config)
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

nib_status nib__loader_join(nib_loader *loader, const nib_merge_source *merges)
{
    nib_tokenizer *t = loader->t;
    nib_err inner;
    NIB_TRY(place_added(loader));
    NIB_TRY(check_processor(loader));
    bool long_words = true;
    for (size_t i = 0; i < t->stage_count; i++)
        long_words = long_words && t->stages[i].kind != NIB_STAGE_SPLIT;
    const nib_status status = merges->slots != NULL
                                  ? nib__bpe_adopt(&t->bpe, &t->vocab, merges->slots, merges->bits,
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
    nib_tokenizer_config config = {0};
    if (config_file != NULL) {
        nib_loader other = *loader;
        other.file = *config_file;
        const nib_status status = nib__load_tokenizer_config(&other, &config);
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
    nib_err own = {.status = NIB_OK}; /* always there, as some readers ask it how they fared */
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
