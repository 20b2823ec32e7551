/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a config.json with Hugging Face's names for a model that had none; nib__config_parse reads
 * it back as the same architecture.
 */
#include "arch.h"
#include "config_keys.h"
#include "config_layers.h"

#include "json.h"

#include <float.h>
#include <math.h>

/* Whether llama3 parameters with this high_freq_factor give these divisors. */
static bool is_llama3(const nib_config *guess, const float *divisors)
{
    for (int64_t i = 0; i < guess->head_dim / 2; i++)
        if (fabs(nib__rope_divisor(guess, i) - (double)divisors[i]) > 1e-4 * (double)divisors[i])
            return false;
    return true;
}

/* Finds llama3 parameters that give these divisors, among those of published models: Llama 3's
 * high_freq_factor is 4, Llama 4's is 1. */
static bool find_llama3(nib_config *c)
{
    nib_config guess = *c;
    double largest = 1;
    if (c->rope != NIB_ROPE_PLAIN) /* scaled in another way, too: no published model is */
        return false;
    for (int64_t i = 0; i < c->head_dim / 2; i++)
        largest = fmax(largest, (double)c->rope_divisors[i]);
    guess.rope = NIB_ROPE_LLAMA3;
    guess.rope_factor = largest;
    guess.rope_low = 1;
    guess.rope_original = 8192;
    for (guess.rope_high = 4; guess.rope_high >= 1; guess.rope_high -= 3)
        if (is_llama3(&guess, c->rope_divisors)) {
            *c = guess;
            return true;
        }
    return false;
}

static void put_factors(nib_jsonw *w, const nib_config *c, const char *key, const float *factors)
{
    char number[32];
    nib__jsonw_key(w, key);
    nib__jsonw_array(w);
    for (int64_t i = 0; i < nib__config_rope_dims(c) / 2; i++)
        nib__jsonw_number(w, nib__format_double(number, (double)factors[i]));
    nib__jsonw_array_end(w);
}

static void put_yarn(nib_jsonw *w, const nib_config *c)
{
    nib__jsonw_pair_float(w, "beta_fast", c->rope_fast);
    nib__jsonw_pair_float(w, "beta_slow", c->rope_slow);
    nib__jsonw_pair_bool(w, "truncate", !c->rope_unrounded);
    if (c->latent.mscale != 0)
        nib__jsonw_pair_float(w, "mscale_all_dim", c->latent.mscale);
}

/* RoPE of layers without a window, which is proportional, and of those with one. */
static void put_two_ropes(nib_jsonw *w, const nib_config *c)
{
    nib__jsonw_key(w, "rope_parameters");
    nib__jsonw_object(w);
    nib__jsonw_key(w, "full_attention");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "rope_type", nib__rope_name(c->rope));
    nib__jsonw_pair_float(w, "rope_theta", c->rope_theta);
    if (c->rope == NIB_ROPE_PROPORTIONAL) {
        nib__jsonw_pair_float(w, "partial_rotary_factor",
                              2 * (double)c->rope_pairs / (double)nib__config_rope_dims(c));
        nib__jsonw_pair_float(w, "factor", c->rope_factor);
    }
    nib__jsonw_object_end(w);
    nib__jsonw_key(w, "sliding_attention");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "rope_type", nib__rope_name(NIB_ROPE_PLAIN));
    nib__jsonw_pair_float(w, "rope_theta", c->local_theta);
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
}

static void put_sections(nib_jsonw *w, const nib_config *c)
{
    int count = NIB_ROPE_SECTIONS;
    while (c->rope_sections[count - 1] == 0)
        count--;
    nib__jsonw_key(w, "mrope_section");
    nib__jsonw_array(w);
    for (int i = 0; i < nib__max(count, 3); i++)
        nib__jsonw_int(w, c->rope_sections[i]);
    nib__jsonw_array_end(w);
    nib__jsonw_pair_bool(w, "mrope_interleaved", true);
}

static void put_rope(nib_jsonw *w, const nib_config *c)
{
    if (nib__family_of(c)->proportional) {
        put_two_ropes(w, c);
        return;
    }
    const bool has_gain = c->rope == NIB_ROPE_YARN || c->rope == NIB_ROPE_LONGROPE;
    const bool at_top = nib__family_of(c)->only_longrope && c->rope == NIB_ROPE_LONGROPE;
    nib__jsonw_pair_float(w, "rope_theta", c->rope_theta);
    if (at_top) /* transformers looks for it here, and defaults to 4096 */
        nib__jsonw_pair_int(w, "original_max_position_embeddings", c->rope_original);
    const bool scales = c->query_beta > 0 && nib__family_of(c)->scales_queries;
    if (c->rope == NIB_ROPE_PLAIN && !scales && !nib__config_has_sections(c))
        return;
    nib__jsonw_key(w, "rope_scaling");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "rope_type", nib__rope_name(c->rope));
    if (c->rope != NIB_ROPE_PLAIN)
        nib__jsonw_pair_float(w, "factor", c->rope_factor);
    if (c->rope == NIB_ROPE_LLAMA3) {
        nib__jsonw_pair_float(w, "low_freq_factor", c->rope_low);
        nib__jsonw_pair_float(w, "high_freq_factor", c->rope_high);
    }
    if (c->rope_original > 0 && !at_top)
        nib__jsonw_pair_int(w, "original_max_position_embeddings", c->rope_original);
    if (has_gain)
        nib__jsonw_pair_float(w, "attention_factor", c->rope_gain);
    if (c->rope == NIB_ROPE_YARN)
        put_yarn(w, c);
    if (c->rope == NIB_ROPE_LONGROPE) {
        put_factors(w, c, "short_factor", c->rope_short);
        put_factors(w, c, "long_factor", c->rope_long);
    }
    if (scales)
        nib__jsonw_pair_float(w, "llama_4_scaling_beta", c->query_beta);
    if (nib__config_has_sections(c))
        put_sections(w, c);
    nib__jsonw_object_end(w);
}

/* Without a token null, because transformers has defaults. */
static void put_tokens(nib_jsonw *w, const nib_config *c)
{
    nib__jsonw_key(w, "bos_token_id");
    if (c->bos >= 0)
        nib__jsonw_int(w, c->bos);
    else
        nib__jsonw_null(w);
    nib__jsonw_key(w, "eos_token_id");
    if (c->eos_count == 0)
        nib__jsonw_null(w);
    if (c->eos_count > 1)
        nib__jsonw_array(w);
    for (int i = 0; i < c->eos_count; i++)
        nib__jsonw_int(w, c->eos[i]);
    if (c->eos_count > 1)
        nib__jsonw_array_end(w);
}

static void put_type(nib_jsonw *w, nib_type type)
{
    if (type != NIB_TYPE_NONE)
        nib__jsonw_pair_string(w, "torch_dtype",
                               type == NIB_TYPE_BF16  ? "bfloat16"
                               : type == NIB_TYPE_F16 ? "float16"
                                                      : "float32");
}

static void put_word(nib_jsonw *w, const nib_family_key *key, int64_t number)
{
    char word[32];
    size_t size;
    const char *at = nib__keys_word(key, number, &size);
    nib__format(word, sizeof word, "%.*s", (int)size, at);
    nib__jsonw_pair_string(w, key->key, word);
}

static void put_family_keys(nib_jsonw *w, const nib_config *c)
{
    const nib_family_key *keys = nib__family_of(c)->keys;
    for (size_t i = 0; keys != NULL && keys[i].key != NULL; i++) {
        const double value = nib__keys_value(c, &keys[i]);
        if (keys[i].is >= NIB_OWN_CHECKED || strchr(keys[i].key, '.') != NULL)
            continue; /* its default is the supported value, or it is nested */
        if (keys[i].is == NIB_OWN_WORD) {
            put_word(w, &keys[i], (int64_t)value);
            continue;
        }
        if (keys[i].least <= 0 && keys[i].is != NIB_OWN_FLAG &&
            (keys[i].is != NIB_OWN_COUNT || keys[i].none) && value == 0) {
            nib__jsonw_key(w, keys[i].key);
            nib__jsonw_null(w);
        } else if (keys[i].is == NIB_OWN_FLAG)
            nib__jsonw_pair_bool(w, keys[i].key, value != 0);
        else if (keys[i].is == NIB_OWN_COUNT || keys[i].is == NIB_OWN_INVERSE_ROOT)
            nib__jsonw_pair_double(w, keys[i].key, value); /* a whole number in transformers */
        else
            nib__jsonw_pair_float(w, keys[i].key, value);
    }
}

static void put_layer_types(nib_jsonw *w, const nib_config *c)
{
    nib__jsonw_key(w, "layer_types");
    nib__jsonw_array(w);
    for (int64_t i = 0; i < c->layers; i++)
        nib__jsonw_string(w, nib__config_window(c, i) > 0 || nib__config_has_conv(c, i)
                                 ? nib__layers_local(nib__family_of(c))
                                 : nib__layers_full(nib__family_of(c)));
    nib__jsonw_array_end(w);
}

/* Layers of a mixture that have no experts, besides those of its interval; or those that have. */
static void put_plain_layers(nib_jsonw *w, const nib_config *c)
{
    const bool mixed = c->moe.dense != NULL && nib__family_of(c)->lists_experts;
    if (c->moe.dense == NULL)
        return;
    nib__jsonw_key(w, mixed ? "moe_layers" : "mlp_only_layers");
    nib__jsonw_array(w);
    for (int64_t i = 0; i < c->layers; i++)
        if (c->moe.dense[i] != mixed)
            nib__jsonw_int(w, i);
    nib__jsonw_array_end(w);
}

/* The range of Mamba-2's dt, if it has one. JSON has no infinity. */
static void put_steps(nib_jsonw *w, const nib_config *c)
{
    if (!nib__family_of(c)->mamba || (c->least_step == 0 && c->most_step == (double)INFINITY))
        return;
    nib__jsonw_key(w, "time_step_limit");
    nib__jsonw_array(w);
    nib__jsonw_double(w, c->least_step);
    nib__jsonw_double(w, fmin(c->most_step, DBL_MAX));
    nib__jsonw_array_end(w);
}

/* If the family's default has a window, the key must be written even for none; and the family's
 * rule may differ from this model's layers. */
static void put_windows(nib_jsonw *w, const nib_config *c)
{
    const nib_family_row *family = nib__family_of(c);
    const bool asks =
        family->window == NIB_WINDOW_IF_USED || family->window == NIB_WINDOW_UNROTATED;
    if (family->window < NIB_WINDOW_ALWAYS && c->window == 0)
        return;
    if (asks)
        nib__jsonw_pair_bool(w, "use_sliding_window", true);
    nib__jsonw_key(w,
                   family->window == NIB_WINDOW_CHUNKS ? "attention_chunk_size" : "sliding_window");
    if (c->window == 0)
        nib__jsonw_null(w);
    else
        nib__jsonw_int(w, c->window);
    if (c->window != 0 && family->layer_types)
        put_layer_types(w, c);
}

/* Layers that use RoPE: 1 for each. */
static void put_rope_layers(nib_jsonw *w, const nib_config *c)
{
    if (nib__family_of(c)->rope_interval == 0)
        return;
    nib__jsonw_key(w, "no_rope_layers");
    nib__jsonw_array(w);
    for (int64_t i = 0; i < c->layers; i++)
        nib__jsonw_int(w, nib__config_has_rope(c, i));
    nib__jsonw_array_end(w);
}

nib_status nib__config_write(nib_text *out, const nib_config *config, nib_err *err)
{
    nib_config c = *config;
    nib_jsonw w;
    const nib_family_row *family = nib__family_of(config);
    const bool always = family->biases == NIB_BIASES_QKV_ALWAYS,
               inexpressible = family->biases == NIB_BIASES_ALL
                                   ? c.qkv_bias != c.o_bias
                                   : c.o_bias || (always && !c.qkv_bias);
    if (c.rope_divisors != NULL && !find_llama3(&c))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the divisors of the RoPE frequencies (rope_freqs) match no published "
                         "model, and config.json has no key for them");
    if (family->proportional && c.rope != NIB_ROPE_PROPORTIONAL && c.rope != NIB_ROPE_PLAIN)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "a config.json of %s with the rope type \"%s\" cannot be written",
                         nib__arch_name(c.arch), nib__rope_name(c.rope));
    if (family->biases != NIB_BIASES_OWN && inexpressible)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "config.json of %s cannot describe attention with biases on %s",
                         nib__arch_name(c.arch),
                         c.qkv_bias && c.o_bias ? "q, k, v and o"
                         : c.qkv_bias           ? "q, k and v alone"
                         : c.o_bias             ? "o alone"
                                                : "none of q, k, v and o");
    if (c.keys_are_values && c.global_kv_heads == 0)
        c.global_kv_heads = c.kv_heads;
    nib__jsonw_init(&w, out, 2);
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "architectures");
    nib__jsonw_array(&w);
    nib__jsonw_string(&w, nib__family_of(&c)->class_name);
    nib__jsonw_array_end(&w);
    nib__jsonw_pair_string(&w, "model_type", nib__arch_name(c.arch));
    nib__jsonw_pair_int(&w, "hidden_size", c.width);
    if (!nib__keys_own(family, "intermediate_size"))
        nib__jsonw_pair_int(&w, "intermediate_size", c.ffn);
    nib__jsonw_pair_int(&w, "num_hidden_layers", c.layers);
    nib__jsonw_pair_int(&w, "num_attention_heads", c.heads);
    nib__jsonw_pair_int(&w, "num_key_value_heads", c.kv_heads);
    if (c.latent.rank == 0) /* else other keys give it */
        nib__jsonw_pair_int(&w, "head_dim", c.head_dim);
    nib__jsonw_pair_int(&w, "vocab_size", c.vocab);
    nib__jsonw_pair_int(&w, "max_position_embeddings", c.context);
    nib__jsonw_pair_float(&w, nib__eps_keys[family->eps], c.norm_eps);
    put_rope(&w, &c);
    if (family->partial)
        nib__jsonw_pair_float(&w, "partial_rotary_factor",
                              (double)nib__config_rope_dims(&c) / (double)c.head_dim);
    nib__jsonw_pair_string(&w, "hidden_act", nib__family_act(family));
    put_family_keys(&w, &c);
    const int64_t heads = c.trains_head ? 1 : c.moe.unread_layers;
    if (heads > 0 && family->draft != NULL && family->draft->count != NULL)
        nib__jsonw_pair_int(&w, family->draft->count, heads);
    if (!always && family->biases != NIB_BIASES_OWN)
        nib__jsonw_pair_bool(&w, "attention_bias", c.qkv_bias);
    if (family->biases != NIB_BIASES_OWN && c.mlp_bias)
        nib__jsonw_pair_bool(&w, "mlp_bias", true);
    put_windows(&w, &c);
    if (c.conv_layers != NULL || family->mamba)
        put_layer_types(&w, &c);
    put_plain_layers(&w, &c);
    put_steps(&w, &c);
    put_rope_layers(&w, &c);
    nib__jsonw_pair_bool(&w, "tie_word_embeddings", c.tied);
    put_type(&w, c.dtype);
    put_tokens(&w, &c);
    nib__jsonw_object_end(&w);
    nib__text_str(out, "\n");
    return out->failed ? nib__fail_memory(err, out->size, "config.json") : NIB_OK;
}
