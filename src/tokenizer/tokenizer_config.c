/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads added tokens, as tokenizer.json and tokenizer_config.json write them, and what the latter
 * says of BOS and EOS. Its many other keys steer Python classes and are passed over; chat templates
 * are not here.
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

nib_status nib__load_added_token(nib_loader *loader, nib_json *json, nib_added *added)
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
        return NIB_OK; /* nothing can be found by it */
    if (added->size > NIB_TOKENIZER_ADDED)
        return nib__loader_unsupported(
            loader, "the added token \"%s\" has %zu bytes; the limit is %d",
            nib__say_name(name, sizeof name, added->content, added->size), added->size,
            NIB_TOKENIZER_ADDED);
    if (!nib__reserve(&t->allocator, (void **)&t->added, &t->added_capacity, t->added_count + 1,
                      sizeof *t->added))
        return nib__fail_memory(loader->err, t->added_count * sizeof *t->added, "the added tokens");
    nib_added *place = &t->added[t->added_count++];
    *place = *added;
    place->match = place->content;
    place->match_size = place->size;
    return NIB_OK;
}

/* ---- tokenizer_config.json ---- */

/* A token's text: a string, an added token's object, or null. */
static bool read_token(nib_loader *loader, nib_json *json, const char **token, size_t *size)
{
    nib_added added = {.content = NULL};
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_STRING)
        *token = nib__json_string(json, &loader->t->arena, size);
    else if (event == NIB_JSON_OBJECT && nib__load_added_token(loader, json, &added) == NIB_OK) {
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

/* {"151643": {"content": ...}, ...}: tokens that tokenizer.json need not repeat. */
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
        NIB_TRY(nib__load_added_token(loader, json, &added));
        NIB_TRY(nib__loader_add(loader, &added));
    }
    return nib__json_status(json, loader->err);
}

nib_status nib__load_tokenizer_config(nib_loader *loader, nib_tokenizer_config *config)
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
