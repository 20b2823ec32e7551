/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of keys with the values that change nothing; which family reads one is its row's.
 */
#include "config_keys.h"

#include "arch.h"
#include "config_values.h"

#include <math.h>
#include <stdio.h>

static const struct {
    const char *key;
    double neutral;   /* NaN: no number is; null, false and empty lists always are */
    const char *text; /* the same of a string; NULL: none is */
} known[] = {{"alibi", NAN, NULL},
             {"attention_chunk_size", NAN, NULL},
             {"attention_multiplier", NAN, NULL},
             {"attn_logit_softcapping", NAN, NULL},
             {"clip_qkv", NAN, NULL},
             {"embedding_multiplier", 1, NULL},
             {"final_logit_softcapping", NAN, NULL},
             {"is_encoder_decoder", NAN, NULL},
             {"logit_scale", 1, NULL},
             {"logits_scaling", 1, NULL},
             {"num_experts", 0, NULL},
             {"num_local_experts", 0, NULL},
             {"query_pre_attn_scalar", NAN, NULL},
             {"residual_multiplier", 1, NULL},
             {"rope_interleaved", NAN, NULL},
             {"rope_local_base_freq", NAN, NULL},
             {"rope_ratio", 1, NULL},
             {"use_qk_norm", NAN, NULL},
             {"qk_norm", NAN, NULL},
             {"qk_layernorm", NAN, NULL},
             {"use_bidirectional_attention", NAN, NULL},
             {"use_mrope", NAN, NULL},
             {"use_parallel_residual", NAN, NULL},
             {"use_parallel_block", NAN, NULL},
             {"use_bias", NAN, NULL},
             {"use_qkv_bias", NAN, NULL},
             {"use_gated_activation", NAN, NULL},
             {"mlp_type", NAN, NULL},
             {"norm_type", NAN, NULL},
             {"position_embedding_type", NAN, "rope"},
             {"layer_switch", NAN, NULL},
             {"order_of_interleaved_layers", NAN, NULL},
             {"scale_attn_weights", NAN, NULL},
             {"lm_head_bias", NAN, NULL},
             {"full_attn_mod", 1, NULL},
             {"interpolate_factor", 1, NULL},
             {"rotary_pct", 1, NULL},
             {"rope_pct", 1, NULL}};

_Static_assert(COUNT(known) <= NIB_KEYS_MAX, "raise NIB_KEYS_MAX");

static size_t place_of(const nib_json *json)
{
    size_t i = 0;
    while (i < COUNT(known) && !nib__json_is(json, known[i].key))
        i++;
    return i;
}

bool nib__keys_know(const nib_json *json) { return place_of(json) < COUNT(known); }

bool nib__keys_read(nib_keys_said *s, nib_json *json)
{
    const size_t i = place_of(json);
    nib_json_value value;
    if (!nib__json_any(json, &value))
        return false;
    const bool flag = value.event == NIB_JSON_FALSE || value.event == NIB_JSON_TRUE;
    s->null[i] = value.event == NIB_JSON_NULL;
    s->given[i] = !s->null[i];
    if (value.event == NIB_JSON_STRING && value.shown != NULL)
        snprintf(s->text[i], sizeof s->text[i], "%s", value.shown);
    s->number[i] = flag ? value.event == NIB_JSON_TRUE : value.number;
    s->neutral[i] = value.event == NIB_JSON_FALSE || value.empty ||
                    value.number == known[i].neutral ||
                    (known[i].text != NULL && value.event == NIB_JSON_STRING &&
                     strcmp(s->text[i], known[i].text) == 0);
    return true;
}

void nib__keys_put(nib_config *c, const nib_family_key *key, double value)
{
    void *at = (char *)c + key->at;
    if (key->is == NIB_OWN_FLAG)
        *(bool *)at = value != 0;
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
    const double value = *(const double *)at;
    return key->is == NIB_OWN_INVERSE        ? (double)(float)(1 / value)
           : key->is == NIB_OWN_INVERSE_ROOT ? (double)(float)(1 / (value * value))
                                             : value;
}

nib_status nib__keys_apply(nib_config *c, const nib_keys_said *s, const char *name, nib_err *err)
{
    bool read[COUNT(known)] = {false};
    const nib_family_key *keys = nib__family_of(c)->keys;
    for (size_t k = 0; keys != NULL && keys[k].key != NULL; k++) {
        size_t i = 0;
        while (strcmp(known[i].key, keys[k].key) != 0)
            i++;
        read[i] = true;
        if (keys[k].is == NIB_OWN_TEXT && s->given[i] && strcmp(s->text[i], keys[k].text) != 0)
            return nib__fail(err, NIB_UNSUPPORTED, "%s: %s is \"%s\"; only %s is built for %s",
                             name, keys[k].key, s->text[i], keys[k].text, nib__arch_name(c->arch));
        if (keys[k].is == NIB_OWN_TEXT)
            continue;
        const bool none = s->null[i] && keys[k].least <= 0; /* a cap of null is none */
        const double value = s->given[i] ? s->number[i] : none ? 0 : keys[k].absent;
        const bool half = keys[k].is == NIB_OWN_FLAG && value != 0 && value != 1;
        if (half || !(value >= keys[k].least) || !(value <= keys[k].most))
            return nib__fail(
                err, NIB_BAD_INPUT, "%s: %s is %g; a value from %g to %g is wanted for %s", name,
                keys[k].key, value, keys[k].least, keys[k].most, nib__arch_name(c->arch));
        nib__keys_put(c, &keys[k], value);
    }
    for (size_t i = 0; i < COUNT(known); i++)
        if (s->given[i] && !s->neutral[i] && !read[i])
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: it changes the result in a way that is not built for %s (in "
                             "\"%s\")",
                             name, nib__arch_name(c->arch), known[i].key);
    return NIB_OK;
}
