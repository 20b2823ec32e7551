/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads generation_config.json.
 */
#include "generation_config.h"

#include "config_values.h"

#include <math.h>

const nib_generation nib__generation_none = {.temperature = -1,
                                             .top_p = -1,
                                             .min_p = -1,
                                             .repeat_penalty = -1,
                                             .top_k = -1,
                                             .max_new_tokens = -1,
                                             .max_length = -1};

/* Bookkeeping keys: they neither choose tokens nor end a text. */
static const char *const harmless[] = {"_from_model_config",   "bos_token_id",
                                       "pad_token_id",         "use_cache",
                                       "transformers_version", "return_dict_in_generate"};

/* Unsupported keys that affect the output, and the value that turns each off. */
static const struct {
    const char *key;
    double neutral;
} unsupported[] = {{"diversity_penalty", 0},
                   {"encoder_no_repeat_ngram_size", 0},
                   {"encoder_repetition_penalty", 1},
                   {"epsilon_cutoff", 0},
                   {"eta_cutoff", 0},
                   {"guidance_scale", 1},
                   {"length_penalty", 1},
                   {"min_length", 0},
                   {"min_new_tokens", 0},
                   {"no_repeat_ngram_size", 0},
                   {"num_beam_groups", 1},
                   {"num_beams", 1},
                   {"num_return_sequences", 1},
                   {"penalty_alpha", 0},
                   {"typical_p", 1}};

/* Reports any other key unless its value is null, false, an empty list, or the number without
 * effect. */
static bool read_other(nib_json *json, nib_ledger *ledger)
{
    char key[64];
    nib_json_value value;
    double neutral = NAN;
    for (size_t i = 0; i < COUNT(harmless); i++)
        if (nib__json_is(json, harmless[i]))
            return nib__json_skip(json);
    for (size_t i = 0; i < COUNT(unsupported); i++)
        if (nib__json_is(json, unsupported[i].key))
            neutral = unsupported[i].neutral;
    nib__escape_name(key, sizeof key, json->token, json->token_size);
    if (!nib__json_any(json, &value))
        return false;
    if (value.event != NIB_JSON_NULL && value.event != NIB_JSON_FALSE && !value.empty &&
        value.number != neutral)
        nib__ledger_add_unread(ledger, "generation-key", "generation_config.json", key,
                               value.shown);
    return true;
}

/* Reads a sampling parameter from 0 to `most`; zero: 0 is allowed. null: *out stays unset. */
static bool read_rate(nib_json *json, double most, bool zero, double *out)
{
    double value = 1;
    if (!nib__config_number(json, &value) || json->event == NIB_JSON_NULL)
        return json->event == NIB_JSON_NULL;
    if (!(value <= most) || !(value >= 0) || (value == 0 && !zero)) {
        nib__json_fail(json,
                       zero ? "%g is not between 0 and %g"
                            : "%g is out of range: it must be above 0 and at most %g",
                       value, most);
        return false;
    }
    *out = value;
    return true;
}

static bool read_key(nib_generation *out, nib_json *json, nib_ledger *ledger)
{
    if (nib__json_is(json, "temperature"))
        return read_rate(json, NIB_TEMPERATURE_MAX, true, &out->temperature);
    if (nib__json_is(json, "top_p"))
        return read_rate(json, 1, false, &out->top_p);
    if (nib__json_is(json, "min_p"))
        return read_rate(json, 1, true, &out->min_p);
    if (nib__json_is(json, "repetition_penalty"))
        return read_rate(json, NIB_REPEAT_PENALTY_MAX, false, &out->repeat_penalty);
    if (nib__json_is(json, "top_k"))
        return nib__config_size(json, &out->top_k);
    if (nib__json_is(json, "max_new_tokens"))
        return nib__config_count(json, &out->max_new_tokens);
    if (nib__json_is(json, "max_length"))
        return nib__config_count(json, &out->max_length);
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
    if (!ok || !nib__config_check_event(&json, NIB_JSON_OBJECT_END) ||
        nib__json_next(&json) != NIB_JSON_END)
        return nib__json_status(&json, err);
    return NIB_OK;
}
