/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads values of config.json, params.json and generation_config.json.
 */
#include "config_values.h"

#include "arch.h"

#include "config_layers.h"

#include <inttypes.h>
#include <math.h>

bool nib__config_check_event(nib_json *json, nib_json_event event)
{
    if (json->event != event && json->event != NIB_JSON_ERROR)
        nib__json_fail(json, "the value has the wrong type");
    return json->event == event;
}

bool nib__config_number(nib_json *json, double *out)
{
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    return nib__config_check_event(json, NIB_JSON_NUMBER) && nib__json_double(json, out);
}

bool nib__config_size(nib_json *json, int64_t *out)
{
    if (nib__json_next(json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(json, NIB_JSON_NUMBER) || !nib__json_int64(json, out))
        return false;
    if (*out < 0)
        nib__json_fail(json, "%" PRId64 " is negative", *out);
    return *out >= 0;
}

bool nib__config_positive(nib_json *json, double *out)
{
    if (!nib__config_number(json, out) || json->event == NIB_JSON_NULL)
        return json->event == NIB_JSON_NULL;
    if (!(*out > 0) || isinf(*out))
        nib__json_fail(json, "%g is given; a number above 0 is expected", *out);
    return json->event != NIB_JSON_ERROR;
}

bool nib__config_count(nib_json *json, int64_t *out)
{
    if (!nib__config_size(json, out) || json->event == NIB_JSON_NULL)
        return json->event == NIB_JSON_NULL;
    if (*out == 0)
        nib__json_fail(json, "0 is given; at least 1 is expected");
    return *out > 0;
}

bool nib__config_flag(nib_json *json, bool *out)
{
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_NULL)
        return true;
    if (event != NIB_JSON_TRUE && event != NIB_JSON_FALSE) {
        nib__json_fail(json, "true or false is expected");
        return false;
    }
    *out = event == NIB_JSON_TRUE;
    return true;
}

bool nib__config_ids(nib_json *json, int32_t *ids, int room, int *count)
{
    nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_NULL)
        return true;
    const bool list = event == NIB_JSON_ARRAY;
    if (list)
        event = nib__json_next(json);
    for (*count = 0; event == NIB_JSON_NUMBER; event = nib__json_next(json)) {
        int64_t id = 0;
        if (!nib__json_int64(json, &id))
            return false;
        if (id < 0 || id > INT32_MAX) {
            nib__json_fail(json, "%" PRId64 " is not a token id; those are 0 to %d", id, INT32_MAX);
            return false;
        }
        if (*count == room) {
            nib__json_fail(json, "the list of token ids is longer than %d", room);
            return false;
        }
        ids[(*count)++] = (int32_t)id;
        if (!list)
            return true;
    }
    return nib__config_check_event(json, NIB_JSON_ARRAY_END);
}

nib_status nib__config_derive(nib_config *c, const char *name, const nib_config_names *names,
                              nib_err *err)
{
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->head_dim != 0 || c->heads < 1)
        return NIB_OK;
    if (c->width % c->heads != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s %" PRId64 " is not a multiple of %s %" PRId64
                         ", and %s is not given",
                         name, names->width, c->width, names->heads, c->heads, names->head_dim);
    c->head_dim = c->width / c->heads;
    return NIB_OK;
}

/* No model comes near these limits (Llama 3.1 405B has 126 layers). They keep the size of all
 * weights in bits within 64 bits, and the time for a plan, which lists every layer, within
 * seconds. */
enum { SIZE_LIMIT = 1 << 24 };
static const double WEIGHTS_LIMIT = 0x1p50;

/* Each size may be in range while their product is far too large. */
static nib_status check_weights(const nib_config *c, const char *name, nib_err *err)
{
    const double width = (double)c->width, head = (double)c->head_dim;
    const double attention = 2.0 * width * head * (double)(c->heads + c->kv_heads);
    const double all = (double)c->layers * (attention + 3.0 * width * (double)c->ffn) +
                       2.0 * width * (double)c->vocab;
    if (all <= WEIGHTS_LIMIT)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: the sizes describe %.3g weights; at most %.3g are supported", name, all,
                     WEIGHTS_LIMIT);
}

enum { LATENT_HEADS = 1 << 16 }; /* of all layers; DeepSeek-V3 has 7,808 */

nib_status nib__config_check_mixture(const nib_config *c, const char *name, nib_err *err)
{
    enum { EXPERTS_LIMIT = 1 << 16 }; /* of all layers; Kimi K2 has 23,040 */
    const nib_mixture *moe = &c->moe;
    if (moe->experts > 0 && (moe->top_k < 1 || moe->ffn < 1))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: there are %" PRId64 " experts, but the number that each token "
                         "chooses, or their width, is missing",
                         name, moe->experts);
    if (moe->top_k > moe->experts)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: each token chooses %" PRId64 " experts, but there are only %" PRId64,
                         name, moe->top_k, moe->experts);
    if (moe->same_top_k != 0 && moe->same_top_k != moe->top_k)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: two keys give the experts per token, as %" PRId64 " and as %" PRId64,
                         name, moe->same_top_k, moe->top_k);
    const int64_t groups = nib__max(moe->groups, 1), kept = nib__max(moe->top_groups, 1);
    if (moe->experts > 0 &&
        (moe->experts % groups != 0 || kept > groups || moe->top_k > moe->experts / groups * kept))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: each token chooses %" PRId64 " experts from %" PRId64 " of %" PRId64
                         " groups, into which %" PRId64 " experts cannot be divided",
                         name, moe->top_k, kept, groups, moe->experts);
    if (moe->experts * c->layers > EXPERTS_LIMIT)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %" PRId64 " layers of %" PRId64 " experts; at most %d experts in all "
                         "are supported",
                         name, c->layers, moe->experts, EXPERTS_LIMIT);
    const double weights =
        3.0 * (double)c->layers * (double)moe->experts * (double)c->width * (double)moe->ffn;
    if (weights > WEIGHTS_LIMIT)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: the experts have %.3g weights; at most %.3g are supported", name,
                         weights, WEIGHTS_LIMIT);
    return NIB_OK;
}

nib_status nib__config_check_latent(const nib_config *c, const char *name, nib_err *err)
{
    const nib_latent *l = &c->latent;
    if (l->rank == 0)
        return NIB_OK;
    if (c->kv_heads != c->heads)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: num_key_value_heads is %" PRId64 ", but latent attention makes keys "
                         "for each of its %" PRId64 " heads",
                         name, c->kv_heads, c->heads);
    if (l->rope % 2 != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: qk_rope_head_dim %" PRId64 " is odd; RoPE rotates pairs of channels",
                         name, l->rope);
    if (l->head != 0 && l->head != l->nope + l->rope)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: qk_head_dim is %" PRId64 ", but qk_nope_head_dim %" PRId64
                         " and qk_rope_head_dim %" PRId64 " add up to %" PRId64,
                         name, l->head, l->nope, l->rope, l->nope + l->rope);
    return c->heads * c->layers <= LATENT_HEADS
               ? NIB_OK
               : nib__fail(err, NIB_BAD_INPUT,
                           "%s: %" PRId64 " layers of %" PRId64 " heads of latent attention; at "
                           "most %d heads in all are supported",
                           name, c->layers, c->heads, LATENT_HEADS);
}

nib_status nib__config_check_matrix(const nib_config *c, const char *name, nib_err *err)
{
    const nib_matrix_size *d = &c->matrix;
    const bool mamba = nib__family_of(c)->mamba;
    if (d->heads == 0 || c->conv_layers == NULL)
        return NIB_OK;
    if (d->heads % d->key_heads != 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s %" PRId64 " is not a multiple of %s %" PRId64,
                         name, mamba ? "mamba_n_heads" : "linear_num_value_heads", d->heads,
                         mamba ? "mamba_n_groups" : "linear_num_key_heads", d->key_heads);
    if (mamba && d->heads * d->value_dim != c->mamba_expand * c->width)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: mamba_n_heads %" PRId64 " times mamba_d_head %" PRId64 " is %" PRId64
                         ", but mamba_expand %" PRId64 " times hidden_size %" PRId64 " is %" PRId64,
                         name, d->heads, d->value_dim, d->heads * d->value_dim, c->mamba_expand,
                         c->width, c->mamba_expand * c->width);
    return NIB_OK;
}

nib_status nib__config_check(const nib_config *c, const char *name, const nib_config_names *names,
                             nib_err *err)
{
    const struct {
        const char *key;
        int64_t value, limit;
    } sizes[] = {
        {names->width, c->width, SIZE_LIMIT},       {names->ffn, c->ffn, SIZE_LIMIT},
        {names->layers, c->layers, NIB_LAYERS_MAX}, {names->heads, c->heads, 65536},
        {names->kv_heads, c->kv_heads, 65536},      {names->head_dim, c->head_dim, 65536},
        {names->vocab, c->vocab, SIZE_LIMIT},       {names->context, c->context, 1 << 30},
    };
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].limit)
            return sizes[i].value == 0
                       ? nib__fail(err, NIB_BAD_INPUT,
                                   "%s: %s is missing; 1 to %" PRId64 " is expected", name,
                                   sizes[i].key, sizes[i].limit)
                       : nib__fail(err, NIB_BAD_INPUT,
                                   "%s: %s is %" PRId64 "; 1 to %" PRId64 " is expected", name,
                                   sizes[i].key, sizes[i].value, sizes[i].limit);
    if (c->heads % c->kv_heads != 0)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s %" PRId64 " is not a multiple of %s %" PRId64,
                         name, names->heads, c->heads, names->kv_heads, c->kv_heads);
    if (c->head_dim % 2 != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s %" PRId64 " is odd; RoPE rotates pairs of channels", name,
                         names->head_dim, c->head_dim);
    if (!(c->norm_eps > 0 && c->norm_eps < 1))
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %g; a number between 0 and 1 is expected",
                         name, names->eps, c->norm_eps);
    return check_weights(c, name, err);
}

nib_status nib__config_check_heads(const nib_config *c, const char *name, nib_ledger *ledger,
                                   nib_err *err)
{
    char asked[32], done[32];
    if (c->global_head_dim % 2 != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: global_head_dim %" PRId64 " is odd; RoPE rotates pairs of channels",
                         name, c->global_head_dim);
    if (c->global_kv_heads == 0)
        return NIB_OK;
    if (c->heads % c->global_kv_heads != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: num_attention_heads %" PRId64
                         " is not a multiple of num_global_key_value_heads %" PRId64,
                         name, c->heads, c->global_kv_heads);
    if (!c->keys_are_values && c->global_kv_heads != c->kv_heads)
        nib__ledger_add_overruled(
            ledger, "config-key", "num_global_key_value_heads",
            nib__format_double(asked, (double)c->global_kv_heads),
            nib__format_double(done, (double)c->kv_heads),
            "attention_k_eq_v is not true, so num_key_value_heads counts for all layers, as in "
            "transformers");
    return NIB_OK;
}

nib_status nib__config_check_shared(const nib_config *c, const char *name, nib_err *err)
{
    if (c->shared_layers >= c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %" PRId64 " layers share keys and values, but there are %" PRId64
                         " layers, and the first one needs its own",
                         name, c->shared_layers, c->layers);
    for (int64_t i = c->layers - c->shared_layers; i < c->layers; i++)
        if (nib__config_kv_layer(c, i) < 0)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: layer %" PRId64 ", %s a window, shares the keys and values of "
                             "an earlier layer of its kind, but no layer before %" PRId64
                             " is of this kind",
                             name, i, nib__config_window(c, i) > 0 ? "with" : "without",
                             c->layers - c->shared_layers);
    if (c->layer_inputs == 0)
        return NIB_OK;
    if (c->layers * c->layer_inputs > SIZE_LIMIT)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %" PRId64 " layers have inputs of %" PRId64
                         " values; at most %d values in all are supported",
                         name, c->layers, c->layer_inputs, SIZE_LIMIT);
    return c->layer_vocab >= c->vocab
               ? NIB_OK
               : nib__fail(err, NIB_UNSUPPORTED,
                           "%s: vocab_size_per_layer_input is %" PRId64
                           ", but vocab_size is %" PRId64 "; each token needs a row",
                           name, c->layer_vocab, c->vocab);
}
