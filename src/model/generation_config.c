/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads generation_config.json.
 */
#include "generation_config.h"

#include "config_values.h"

const nib_generation nib__generation_none = {.temperature = -1,
                                             .top_p = -1,
                                             .min_p = -1,
                                             .repeat_penalty = -1,
                                             .top_k = -1,
                                             .max_new_tokens = -1,
                                             .max_length = -1};

/* Keys that choose no tokens and end no text: bookkeeping. */
static const char *const harmless[] = {"_from_model_config",   "bos_token_id",
                                       "pad_token_id",         "use_cache",
                                       "transformers_version", "return_dict_in_generate"};

/* Other keys choose tokens in ways that are not built: said, unless the value is null, false or an
 * empty list. */
static bool read_other(nib_json *json, nib_ledger *ledger)
{
    char key[64], value[NIB_SHOWN];
    for (size_t i = 0; i < COUNT(harmless); i++)
        if (nib__json_is(json, harmless[i]))
            return nib__json_skip(json);
    nib__say_name(key, sizeof key, json->token, json->token_size);
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_NULL || event == NIB_JSON_FALSE)
        return true;
    nib__ledger_add_unread(ledger, "generation-key", "generation_config.json", key,
                           nib__json_shown(json, value));
    return nib__json_skip(json);
}

static bool read_key(nib_generation *out, nib_json *json, nib_ledger *ledger)
{
    if (nib__json_is(json, "temperature"))
        return nib__config_number(json, &out->temperature);
    if (nib__json_is(json, "top_p"))
        return nib__config_number(json, &out->top_p);
    if (nib__json_is(json, "min_p"))
        return nib__config_number(json, &out->min_p);
    if (nib__json_is(json, "repetition_penalty"))
        return nib__config_number(json, &out->repeat_penalty);
    if (nib__json_is(json, "top_k"))
        return nib__config_size(json, &out->top_k);
    if (nib__json_is(json, "max_new_tokens"))
        return nib__config_size(json, &out->max_new_tokens);
    if (nib__json_is(json, "max_length"))
        return nib__config_size(json, &out->max_length);
    if (nib__json_is(json, "eos_token_id"))
        return nib__config_ids(json, out->eos, NIB_EOS_MAX, &out->eos_count);
    if (nib__json_is(json, "do_sample")) {
        const bool read = nib__config_flag(json, &out->do_sample);
        out->do_sample_given = json->event != NIB_JSON_NULL;
        return read;
    }
    return read_other(json, ledger);
}

nib_status nib__generation_parse(nib_generation *out, const char *name, const char *text,
                                 size_t size, nib_ledger *ledger, nib_err *err)
{
    *out = nib__generation_none;
    nib_json json;
    const nib_json_limits limits = {.literals = true};
    nib__json_init(&json, name, text, size, &limits);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY)
        ok = read_key(out, &json, ledger);
    if (!ok || !nib__config_now(&json, NIB_JSON_OBJECT_END) ||
        nib__json_next(&json) != NIB_JSON_END)
        return nib__json_status(&json, err);
    return NIB_OK;
}
