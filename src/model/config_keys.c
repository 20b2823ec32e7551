/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of single families are in the families' rows; the table here has the keys that no supported
 * family reads.
 */
#include "config_keys.h"

#include "arch.h"
#include "config_values.h"

#include <math.h>
#include <stdio.h>

/* A key of another family, or of none that is supported. */
typedef struct known_key {
    const char *key;
    double neutral;   /* NaN: no number is neutral; null, false and empty lists always are */
    const char *text; /* neutral string; NULL: none */
} known_key;

static const known_key unsupported_keys[] = {
    {"alibi", NAN, NULL},
    {"attention_chunk_size", NAN, NULL},
    {"clip_qkv", NAN, NULL},
    {"full_attn_mod", 1, NULL},
    {"interpolate_factor", 1, NULL},
    {"is_encoder_decoder", NAN, NULL},
    {"lm_head_bias", NAN, NULL},
    {"num_experts", 0, NULL},
    {"num_local_experts", 0, NULL},
    {"qk_norm", NAN, NULL},
    {"rope_interleaved", NAN, NULL},
    {"rope_pct", 1, NULL},
    {"rope_ratio", 1, NULL},
    {"rotary_pct", 1, NULL},
    {"use_bidirectional_attention", NAN, NULL},
    {"use_mrope", NAN, NULL},
};

static bool find_known(known_key *out, const nib_json *json)
{
    for (size_t i = 0; i < COUNT(unsupported_keys); i++)
        if (nib__json_is(json, unsupported_keys[i].key)) {
            *out = unsupported_keys[i];
            return true;
        }
    for (size_t f = 0; nib__family_at(f) != NULL; f++) {
        const nib_family_key *keys = nib__family_at(f)->keys;
        for (size_t i = 0; keys != NULL && keys[i].key != NULL; i++)
            if (nib__json_is(json, keys[i].key)) {
                const double neutral = keys[i].elsewhere != 0 ? keys[i].elsewhere : (double)NAN;
                *out = (known_key){keys[i].key, neutral, keys[i].elsewhere_text};
                return true;
            }
    }
    return false;
}

bool nib__keys_is_known(const nib_json *json)
{
    known_key known;
    return find_known(&known, json);
}

bool nib__keys_own(const nib_family_row *family, const char *key)
{
    const nib_family_key *keys = family->keys;
    while (keys != NULL && keys->key != NULL && strcmp(keys->key, key) != 0)
        keys++;
    return keys != NULL && keys->key != NULL;
}

static const nib_key_given *find_given(const nib_keys_given *s, const char *key)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->keys[i].key, key) == 0)
            return &s->keys[i];
    return NULL;
}

bool nib__keys_read(nib_keys_given *s, nib_json *json)
{
    known_key known = {0};
    nib_json_value value;
    find_known(&known, json);
    if (!nib__json_any(json, &value))
        return false;
    size_t i = 0;
    while (i < s->count && strcmp(s->keys[i].key, known.key) != 0)
        i++;
    if (i == NIB_KEYS_MAX) {
        nib__json_fail(
            json, "there are too many keys that only some models have; at most %d are supported",
            NIB_KEYS_MAX);
        return false;
    }
    s->count += i == s->count;
    nib_key_given *entry = &s->keys[i];
    const bool flag = value.event == NIB_JSON_FALSE || value.event == NIB_JSON_TRUE;
    *entry = (nib_key_given){.key = known.key,
                             .event = value.event,
                             .null = value.event == NIB_JSON_NULL,
                             .number = flag ? value.event == NIB_JSON_TRUE : value.number};
    if (value.shown != NULL)
        snprintf(entry->text, sizeof entry->text, "%s", value.shown);
    entry->neutral = entry->null || value.event == NIB_JSON_FALSE || value.empty ||
                     value.number == known.neutral ||
                     (known.text != NULL && value.event == NIB_JSON_STRING &&
                      strcmp(entry->text, known.text) == 0);
    return true;
}

void nib__keys_set(nib_config *c, const nib_family_key *key, double value)
{
    void *at = (char *)c + key->at;
    if (key->is == NIB_OWN_FLAG)
        *(bool *)at = value != 0;
    else if (key->is == NIB_OWN_COUNT || key->is == NIB_OWN_WORD)
        *(int64_t *)at = (int64_t)value;
    else if (key->is != NIB_OWN_CHECKED)
        *(double *)at = key->is == NIB_OWN_INVERSE        ? 1 / value
                        : key->is == NIB_OWN_INVERSE_ROOT ? 1 / sqrt(value)
                                                          : value;
}

double nib__keys_value(const nib_config *c, const nib_family_key *key)
{
    const void *at = (const char *)c + key->at;
    if (key->is >= NIB_OWN_CHECKED)
        return key->absent;
    if (key->is == NIB_OWN_FLAG)
        return *(const bool *)at;
    if (key->is == NIB_OWN_COUNT || key->is == NIB_OWN_WORD)
        return (double)*(const int64_t *)at;
    const double value = *(const double *)at;
    return key->is == NIB_OWN_INVERSE        ? (double)(float)(1 / value)
           : key->is == NIB_OWN_INVERSE_ROOT ? (double)(float)(1 / (value * value))
                                             : value;
}

static const char *shown(char out[40], const nib_key_given *entry)
{
    if (entry->event == NIB_JSON_ARRAY || entry->event == NIB_JSON_OBJECT)
        return entry->event == NIB_JSON_ARRAY ? "a list" : "an object";
    snprintf(out, 40, entry->event == NIB_JSON_STRING ? "\"%s\"" : "%s", entry->text);
    return out;
}

const char *nib__keys_word(const nib_family_key *key, int64_t number, size_t *size)
{
    const char *at = key->text;
    while (number-- > 0 && at != NULL)
        at = (at = strchr(at, '|')) != NULL ? at + 1 : NULL;
    *size = at != NULL ? strcspn(at, "|") : 0;
    return at;
}

bool nib__keys_allows(const nib_family_key *key, double value)
{
    const bool whole = key->is == NIB_OWN_FLAG || key->is == NIB_OWN_COUNT;
    return value >= key->least && value <= key->most && (!whole || value == floor(value));
}

const char *nib__keys_range(char out[NIB_KEYS_RANGE], const nib_family_key *key)
{
    if (key->least == key->most)
        nib__format(out, NIB_KEYS_RANGE, "only %.10g is supported", key->least);
    else if (key->is == NIB_OWN_FLAG)
        nib__format(out, NIB_KEYS_RANGE, "true or false is expected");
    else
        nib__format(out, NIB_KEYS_RANGE, "a %s from %.10g to %.10g is expected",
                    key->is == NIB_OWN_COUNT ? "whole number" : "value", key->least, key->most);
    return out;
}

/* Applies a key with one of several words. */
static nib_status apply_word(nib_config *c, const nib_family_key *key, const nib_key_given *entry,
                             const char *name, nib_err *err)
{
    char value_shown[40];
    const char *word;
    size_t size;
    const bool given = entry != NULL && !entry->null;
    for (int64_t i = 0; (word = nib__keys_word(key, i, &size)) != NULL; i++)
        if (!given || (entry->event == NIB_JSON_STRING && strlen(entry->text) == size &&
                       memcmp(entry->text, word, size) == 0)) {
            nib__keys_set(c, key, given ? (double)i : key->absent);
            return NIB_OK;
        }
    return nib__fail(err, NIB_UNSUPPORTED, "%s: %s is %s; only %s are supported for %s", name,
                     key->key, shown(value_shown, entry), key->text, nib__arch_name(c->arch));
}

/* Applies one key of the family; entry NULL: the key is absent. */
static nib_status apply_key(nib_config *c, const nib_family_key *key, const nib_key_given *entry,
                            const char *name, nib_err *err)
{
    char value_shown[40];
    const bool null = entry != NULL && entry->null, given = entry != NULL && !null;
    if (key->is == NIB_OWN_TEXT)
        return !given || (entry->event == NIB_JSON_STRING && strcmp(entry->text, key->text) == 0)
                   ? NIB_OK
                   : nib__fail(err, NIB_UNSUPPORTED, "%s: %s is %s; only %s is supported for %s",
                               name, key->key, shown(value_shown, entry), key->text,
                               nib__arch_name(c->arch));
    if (key->is == NIB_OWN_WORD)
        return apply_word(c, key, entry, name, err);
    if (!given && key->older)
        return NIB_OK;
    if (key->text != NULL &&
        (!given || (entry->event == NIB_JSON_STRING && strcmp(entry->text, key->text) == 0))) {
        nib__keys_set(c, key, 0);
        return NIB_OK;
    }
    const bool none = null && key->least <= 0; /* null means no cap */
    const double value = given ? entry->number : none ? 0 : key->absent;
    if (!nib__keys_allows(key, value)) {
        char range[NIB_KEYS_RANGE];
        nib__format(value_shown, sizeof value_shown, "%g", value);
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %s; %s for %s", name, key->key,
                         given ? shown(value_shown, entry) : value_shown,
                         nib__keys_range(range, key), nib__arch_name(c->arch));
    }
    nib__keys_set(c, key, value);
    return NIB_OK;
}

nib_status nib__keys_apply(nib_config *c, const nib_keys_given *s, const char *name, nib_err *err)
{
    const nib_family_key *keys = nib__family_of(c)->keys;
    for (size_t i = 0; i < s->count; i++)
        if (!s->keys[i].neutral && !nib__keys_own(nib__family_of(c), s->keys[i].key))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: \"%s\" changes the result and is not supported for %s", name,
                             s->keys[i].key, nib__arch_name(c->arch));
    for (size_t i = 0; keys != NULL && keys[i].key != NULL; i++)
        NIB_TRY(apply_key(c, &keys[i], find_given(s, keys[i].key), name, err));
    return NIB_OK;
}
