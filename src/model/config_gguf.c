/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads GGUF keys by tables: keys that a model needs, keys that must have their usual value, and
 * keys that do not matter for a forward step. config_gguf_rope.c reads those of RoPE.
 */
#include "config_gguf.h"

#include "arch.h"
#include "config_gguf_heads.h"
#include "config_gguf_inside.h"
#include "config_gguf_shared.h"
#include "config_gguf_states.h"
#include "config_keys.h"
#include "config_layers.h"
#include "config_rope.h"
#include "config_values.h"

#include "gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- architecture and sizes ---- */

static const nib_config_names names = {.width = "embedding_length",
                                       .ffn = "feed_forward_length",
                                       .layers = "block_count",
                                       .heads = "attention.head_count",
                                       .kv_heads = "attention.head_count_kv",
                                       .head_dim = "attention.key_length",
                                       .vocab = "vocab_size",
                                       .context = "context_length"};

static const char *eps_key(const nib_config *c)
{
    return nib__family_of(c)->norm.centered ? "attention.layer_norm_epsilon"
                                            : "attention.layer_norm_rms_epsilon";
}

#define GATING "expert_gating_func"
enum { GATING_SOFTMAX = 1 /* or absent */, GATING_SIGMOID = 2 };

/* Whether the family chooses experts by this function: only sigmoid has a bias that chooses. */
static bool is_gated_so(const nib_family_row *row, int64_t gating)
{
    return row->experts != NULL &&
           (row->experts->choice_bias != NULL) == (gating == GATING_SIGMOID);
}

/* Takes the first family with this name: GGUF calls mistral llama, too; and mixtral, which has
 * experts; deepseek2 is DeepSeek-V2, or V3 if experts are chosen by sigmoid. */
static nib_status read_arch(nib_gguf_reader *r)
{
    char shown[64], families[NIB_FAMILY_NAMES], key[96];
    int64_t experts = 0, gating = 0;
    bool found, any = false, any_gating = false;
    if (r->g->arch == NULL)
        return nib__fail(r->err, NIB_BAD_INPUT, "%s: key \"general.architecture\" is missing",
                         r->g->name);
    snprintf(key, sizeof key, "%.64s.expert_count", r->g->arch);
    NIB_TRY(nib__gguf_int(&experts, &found, r->g, key, r->err));
    snprintf(key, sizeof key, "%.64s." GATING, r->g->arch);
    NIB_TRY(nib__gguf_int(&gating, &found, r->g, key, r->err));
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_family_row *row = nib__family_at(i);
        const bool named = row->gguf != NULL && strcmp(row->gguf, r->g->arch) == 0;
        any = any || (named && (row->experts != NULL) == (experts > 0));
        any_gating = any_gating || (named && experts > 0 && is_gated_so(row, gating));
    }
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_family_row *row = nib__family_at(i);
        if (row->gguf == NULL || strcmp(row->gguf, r->g->arch) != 0 ||
            (any && (row->experts != NULL) != (experts > 0)) ||
            (any_gating && !is_gated_so(row, gating)))
            continue;
        r->arch = row->gguf;
        r->c->arch = (nib_arch)i;
        r->c->qk_norm = row->head_norms;
        r->c->moe.enabled = experts > 0; /* llama.cpp goes by their number */
        r->c->rope_interleaved = row->interleaved;
        return NIB_OK;
    }
    return nib__fail(r->err, NIB_UNSUPPORTED,
                     "%s: the architecture \"%s\" is not supported; %s are", r->g->name,
                     nib__escape_name(shown, sizeof shown, r->g->arch, strlen(r->g->arch)),
                     nib__family_names(families, sizeof families));
}

/* The family's key for this member, an offset in nib_config; NULL: none. */
static const nib_family_key *key_at(const nib_config *c, size_t at)
{
    const nib_family_key *keys = nib__family_of(c)->keys;
    while (keys != NULL && keys->key != NULL && (keys->at != at || keys->is >= NIB_OWN_CHECKED))
        keys++;
    return keys != NULL && keys->key != NULL ? keys : NULL;
}

bool nib__gguf_has_key(const nib_config *c, size_t at)
{
    const nib_family_key *key = key_at(c, at);
    return key != NULL && key->gguf != NULL;
}

/* Whether the family has layers after its own that predict further tokens. */
static bool has_unread_layers(const nib_config *c)
{
    return key_at(c, offsetof(nib_config, moe.unread_layers)) != NULL ||
           nib__family_of(c)->full_interval > 0;
}

/* Such layers are part of block_count, but not read. */
static nib_status skip_layers(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    bool found;
    if (!has_unread_layers(c))
        return NIB_OK;
    NIB_TRY(nib__gguf_int(&c->moe.unread_layers, &found, r->g,
                          nib__gguf_key(r, "nextn_predict_layers"), r->err));
    if (c->moe.unread_layers < 0 || c->moe.unread_layers >= c->layers)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s is %" PRId64 ", but block_count is only %" PRId64, r->g->name,
                         r->key, c->moe.unread_layers, c->layers);
    c->layers -= c->moe.unread_layers;
    return NIB_OK;
}

static nib_status read_sizes(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    const struct {
        const char *name;
        int64_t *out;
        bool needed;
    } sizes[] = {
        {"block_count", &c->layers, true},
        {"embedding_length", &c->width, true},
        {"feed_forward_length", &c->ffn, true},
        {"context_length", &c->context, true},
        {"attention.head_count", &c->heads, true},
        {"attention.head_count_kv", &c->kv_heads, false},
        {"attention.key_length", &c->head_dim, false},
        {"vocab_size", &c->vocab, false},
    };
    bool found = true;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        nib__gguf_key(r, sizes[i].name);
        if ((sizes[i].out == &c->kv_heads && nib__gguf_lists_heads(c, r->g, r->key)) ||
            (sizes[i].out == &c->ffn && nib__gguf_lists_widths(c, r->g, r->key)))
            continue;
        NIB_TRY(nib__gguf_int(sizes[i].out, sizes[i].needed ? NULL : &found, r->g, r->key, r->err));
        if (found && (*sizes[i].out < 1 || *sizes[i].out > 1 << 30))
            return nib__fail(r->err, NIB_BAD_INPUT, "%s: %s is %" PRId64 "; 1 to %d is expected",
                             r->g->name, r->key, *sizes[i].out, 1 << 30);
    }
    NIB_TRY(skip_layers(r));
    NIB_TRY(nib__gguf_read_heads(c, r->g, r->arch, r->err));
    NIB_TRY(nib__gguf_read_states(c, r->g, r->arch, r->arena, r->err));
    NIB_TRY(nib__gguf_read_widths(c, r->g, r->arch, r->err));
    NIB_TRY(nib__gguf_double(&c->norm_eps, NULL, r->g, nib__gguf_key(r, eps_key(c)), r->err));
    return nib__gguf_double(&c->rope_theta, &found, r->g, nib__gguf_key(r, "rope.freq_base"),
                            r->err);
}

/* Fills in absent values as llama.cpp does. */
static nib_status fill_absent(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    nib_gguf_array tokens;
    bool found;
    NIB_TRY(nib__config_derive(c, r->g->name, &names, r->err));
    if (c->vocab != 0)
        return NIB_OK;
    const nib_tensor *embed = nib__checkpoint_find(r->cp, "model.embed_tokens.weight");
    NIB_TRY(nib__gguf_array_of(&tokens, &found, r->g, "tokenizer.ggml.tokens", NIB_GGUF_STRING,
                               r->err));
    if (embed != NULL && embed->rank == 2)
        c->vocab = embed->shape[0];
    else if (found)
        c->vocab = (int64_t)nib__min((int64_t)tokens.count, INT32_MAX);
    return NIB_OK;
}

/* The first layer tells which biases exist; the others are checked against it later. */
static void detect_biases(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    static const char layer[] = "model.layers.0.";
    const struct {
        const char *name;
        bool *out;
    } biases[] = {
        {"self_attn.q_proj", &c->qkv_bias},   {"self_attn.k_proj", &c->qkv_bias},
        {"self_attn.v_proj", &c->qkv_bias},   {"self_attn.o_proj", &c->o_bias},
        {"self_attn.q_a_proj", &c->qkv_bias}, {"self_attn.kv_a_proj_with_mqa", &c->qkv_bias},
        {"mlp.gate_proj", &c->mlp_bias},      {"mlp.up_proj", &c->mlp_bias},
        {"mlp.down_proj", &c->mlp_bias},      {"mlp.c_fc", &c->mlp_bias},
        {"mlp.c_proj", &c->mlp_bias}};
    for (size_t i = 0; i < COUNT(biases); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s.bias", layer, biases[i].name);
        if (nib__checkpoint_find(r->cp, name) != NULL)
            *biases[i].out = true;
    }
    c->qkv_bias = c->qkv_bias || nib__family_of(c)->biases == NIB_BIASES_QKV_ALWAYS;
    c->tied = nib__checkpoint_find(r->cp, "lm_head.weight") == NULL;
}

static bool has_flag(const nib_config *c, size_t at)
{
    const nib_family_key *key = key_at(c, at);
    return key != NULL && key->is == NIB_OWN_FLAG;
}

/* For families whose models vary: whether q and k heads have norms, and whether the MLP has a norm
 * of its own; the first layer tells. And whether layers without a window have values of their own;
 * the last one tells. */
static void detect_norms(nib_gguf_reader *r)
{
    if (has_flag(r->c, offsetof(nib_config, qk_norm)))
        r->c->qk_norm =
            nib__checkpoint_find(r->cp, "model.layers.0.self_attn.q_norm.weight") != NULL;
    const int64_t own = r->c->layers - r->c->shared_layers;
    for (int64_t i = 0; i < own && has_flag(r->c, offsetof(nib_config, keys_are_values)); i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%" PRId64 ".self_attn.v_proj.weight", i);
        if (nib__config_window(r->c, i) == 0)
            r->c->keys_are_values = nib__checkpoint_find(r->cp, name) == NULL;
    }
    if (has_flag(r->c, offsetof(nib_config, parallel)))
        r->c->parallel =
            nib__checkpoint_find(r->cp, "model.layers.0.post_attention_layernorm.weight") == NULL;
}

/* -1: absent, or stored as all ones. */
static nib_status read_id(nib_gguf_reader *r, const char *key, int64_t *out)
{
    bool found;
    *out = -1;
    NIB_TRY(nib__gguf_int(out, &found, r->g, key, r->err));
    if (*out == UINT32_MAX)
        *out = -1;
    if (*out < -1 || *out >= r->c->vocab)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s is %" PRId64 ", but there are %" PRId64 " tokens", r->g->name, key,
                         *out, r->c->vocab);
    return NIB_OK;
}

/* All end tokens: of the text, of a turn, of a message. */
static nib_status read_ids(nib_gguf_reader *r)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    nib_config *c = r->c;
    int64_t id;
    NIB_TRY(read_id(r, "tokenizer.ggml.bos_token_id", &id));
    c->bos = (int32_t)id;
    for (size_t i = 0; i < COUNT(ends); i++) {
        NIB_TRY(read_id(r, ends[i], &id));
        bool known = id < 0;
        for (int j = 0; j < c->eos_count; j++)
            known = known || c->eos[j] == id;
        if (!known)
            c->eos[c->eos_count++] = (int32_t)id;
    }
    return NIB_OK;
}

/* ---- keys of one family ---- */

/* The family's key with this GGUF name, or NULL. */
static const nib_family_key *find_family_key(const nib_gguf_reader *r, const char *name)
{
    const nib_family_key *keys = nib__family_of(r->c)->keys;
    for (size_t i = 0; keys != NULL && keys[i].key != NULL; i++)
        if (keys[i].gguf != NULL && strcmp(keys[i].gguf, name) == 0)
            return &keys[i];
    return NULL;
}

static bool is_latent(const nib_gguf_reader *r)
{
    return find_family_key(r, "attention.kv_lora_rank") != NULL;
}

/* The keys of latent attention and of its mixtures that need more than a row of a family. llama.cpp
 * describes attention in its absorbed form, with the real widths of heads under other names; older
 * files have them under the usual ones. */
static nib_status read_latent(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    int64_t head = c->head_dim, value = c->head_dim, gating = GATING_SOFTMAX;
    double log_multiplier = 0;
    const struct {
        const char *name;
        int64_t *out;
    } sizes[] = {{"attention.value_length", &value},
                 {"attention.key_length_mla", &head},
                 {"attention.value_length_mla", &value},
                 {"rope.dimension_count", &c->latent.rope},
                 {"expert_group_count", &c->moe.groups},
                 {"expert_group_used_count", &c->moe.top_groups},
                 {GATING, &gating}};
    bool found;
    if (!is_latent(r))
        return NIB_OK;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        NIB_TRY(nib__gguf_int(sizes[i].out, &found, r->g, nib__gguf_key(r, sizes[i].name), r->err));
        if (*sizes[i].out < 0 || *sizes[i].out > 1 << 16)
            return nib__fail(r->err, NIB_BAD_INPUT, "%s: %s is %" PRId64 "; 0 to %d is expected",
                             r->g->name, r->key, *sizes[i].out, 1 << 16);
    }
    if (c->latent.rope < 2 || c->latent.rope >= head || value < 1)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: rope.dimension_count is %" PRId64 ", keys of heads have %" PRId64
                         " channels and values %" PRId64
                         "; latent attention rotates some channels of keys",
                         r->g->name, c->latent.rope, head, value);
    if (gating != GATING_SOFTMAX && gating != GATING_SIGMOID && gating != 0)
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: " GATING " is %" PRId64 "; only %d (softmax) and %d (sigmoid) are "
                         "supported",
                         r->g->name, gating, GATING_SOFTMAX, GATING_SIGMOID);
    NIB_TRY(nib__gguf_bool(&c->moe.normalize, &found, r->g, nib__gguf_key(r, "expert_weights_norm"),
                           r->err));
    NIB_TRY(nib__gguf_double(&log_multiplier, &found, r->g, nib__gguf_key(r, NIB_GGUF_YARN_LOG),
                             r->err));
    c->latent.nope = head - c->latent.rope;
    c->latent.value = value;
    c->latent.mscale = log_multiplier / 0.1;
    c->moe.interval = 1;
    c->moe.method = c->moe.groups > 1;
    c->kv_heads = c->heads;
    c->head_dim = c->latent.rope; /* until the config is complete */
    return NIB_OK;
}

static nib_status read_family_keys(nib_gguf_reader *r)
{
    const nib_family_key *keys = nib__family_of(r->c)->keys;
    for (size_t i = 0; keys != NULL && keys[i].key != NULL; i++) {
        const bool none = keys[i].none || (keys[i].optional && keys[i].least <= 0),
                   word = keys[i].is == NIB_OWN_WORD;
        double value = none ? 0 : keys[i].absent;
        bool found, flag = word || (keys[i].optional && keys[i].absent != 0);
        if (keys[i].gguf == NULL)
            continue;
        const bool needed = keys[i].is == NIB_OWN_COUNT && !keys[i].optional && !keys[i].none;
        nib__gguf_key(r, keys[i].gguf);
        if (keys[i].is == NIB_OWN_FLAG || word) {
            NIB_TRY(nib__gguf_bool(&flag, &found, r->g, r->key, r->err));
            value = flag;
        } else {
            NIB_TRY(nib__gguf_double(&value, needed ? NULL : &found, r->g, r->key, r->err));
        }
        if (!nib__keys_allows(&keys[i], value)) {
            char range[NIB_KEYS_RANGE];
            return nib__fail(r->err, NIB_BAD_INPUT, "%s: %s is %g; %s", r->g->name, r->key, value,
                             nib__keys_range(range, &keys[i]));
        }
        nib__keys_set(r->c, &keys[i], value);
    }
    return NIB_OK;
}

/* ---- keys that must have their usual value ---- */

/* Numbers that change the result unless they have this value; NaN: unless they are absent. */
static const struct {
    const char *name;
    double neutral;
} changing[] = {
    {"expert_count", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.clamp_kqv", 0},
    {"attention.scale", 0},
    {"attention.softcap", 0},
    {"attn_logit_softcapping", 0},
    {"logit_scale", 1},
    {"final_logit_softcapping", 0},
    {"residual_scale", 1},
    {"router_logit_softcapping", 0},
    {"embedding_scale", 1},
    {"attention.group_norm_epsilon", NAN},
    {"rope.scaling.attn_factor", 1},
    {"rope.scaling.yarn_beta_fast", 32},
    {"rope.scaling.yarn_beta_slow", 1},
    {"rope.scaling.yarn_ext_factor", 1},
    {"rope.scaling.yarn_attn_factor", 1},
    {NIB_GGUF_YARN_LOG, 0},
    {"attention.output_scale", 1},
    {"attention.temperature_length", 0},
    {"attention.temperature_scale", 0},
    {"nextn_predict_layers", 0},
    {"rope.freq_base_swa", NAN},
};

static nib_status check_numbers(nib_gguf_reader *r)
{
    for (size_t i = 0; i < COUNT(changing); i++) {
        const char *key = nib__gguf_key(r, changing[i].name);
        double value = changing[i].neutral;
        bool found;
        if (find_family_key(r, changing[i].name) != NULL ||
            nib__gguf_is_of_rope(r->c, changing[i].name) ||
            (has_unread_layers(r->c) && strcmp(changing[i].name, "nextn_predict_layers") == 0))
            continue;
        NIB_TRY(nib__gguf_double(&value, &found, r->g, key, r->err));
        if (found && value != changing[i].neutral)
            return nib__fail(r->err, NIB_UNSUPPORTED,
                             "%s: %s is %g; it changes the result in a way that is not supported",
                             r->g->name, key, value);
    }
    return NIB_OK;
}

static nib_status check_flags(nib_gguf_reader *r)
{
    enum { PARALLEL = 1, ROTATES };
    static const struct {
        const char *name;
        bool neutral;
    } flags[] = {{"attention.causal", true},
                 [PARALLEL] = {"use_parallel_residual", false},
                 [ROTATES] = {"rope.scaling.finetuned", true}};
    for (size_t i = 0; i < COUNT(flags); i++) {
        bool value = flags[i].neutral, found;
        if (i == ROTATES && (!nib__gguf_has_key(r->c, offsetof(nib_config, residual_scale)) ||
                             find_family_key(r, flags[i].name) != NULL))
            continue; /* only llama.cpp's Granite has no RoPE where it is false */
        if (i == PARALLEL && has_flag(r->c, offsetof(nib_config, parallel)))
            continue; /* the tensors tell; the converter writes true even if config.json has no such
                         key */
        NIB_TRY(nib__gguf_bool(&value, &found, r->g, nib__gguf_key(r, flags[i].name), r->err));
        if (value != flags[i].neutral)
            return nib__fail(r->err, NIB_UNSUPPORTED,
                             "%s: %s is %s; it changes the result in a way that is not supported",
                             r->g->name, r->key, value ? "true" : "false");
    }
    return NIB_OK;
}

/* Numbers that the family or other keys imply. */
static nib_status check_experts(nib_gguf_reader *r)
{
    const nib_config *c = r->c;
    const int64_t gating = nib__family_of(c)->gguf_gating;
    const struct {
        const char *key;
        int64_t value;
        bool implied;
    } numbers[] = {{"expert_gating_func", gating, gating != 0},
                   {"expert_feed_forward_length", c->moe.ffn > 0 ? c->moe.ffn : c->ffn,
                    nib__family_of(c)->experts != NULL &&
                        !nib__gguf_has_key(c, offsetof(nib_config, moe.ffn))}};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int64_t value = numbers[i].value;
        bool found;
        if (!numbers[i].implied)
            continue;
        NIB_TRY(nib__gguf_int(&value, &found, r->g, nib__gguf_key(r, numbers[i].key), r->err));
        if (value != numbers[i].value)
            return nib__fail(r->err, NIB_UNSUPPORTED,
                             "%s: %s is %" PRId64 "; only %" PRId64 " is supported here",
                             r->g->name, r->key, value, numbers[i].value);
    }
    return NIB_OK;
}

static nib_status check_others(nib_gguf_reader *r)
{
    const int64_t head = r->c->global_head_dim > 0 ? r->c->global_head_dim : r->c->head_dim;
    int64_t value_length = head, version = 2;
    const char *type = "model";
    char shown[64];
    size_t size = 5;
    bool found;
    NIB_TRY(nib__gguf_int(&value_length, &found, r->g, nib__gguf_key(r, "attention.value_length"),
                          r->err));
    if (value_length != head && !is_latent(r))
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: %s is %" PRId64 ", but keys have %" PRId64
                         " elements; only equal lengths are supported",
                         r->g->name, r->key, value_length, head);
    NIB_TRY(nib__gguf_int(&version, &found, r->g, "general.quantization_version", r->err));
    if (version != 2)
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: general.quantization_version is %" PRId64
                         "; only version 2 is supported",
                         r->g->name, version);
    NIB_TRY(nib__gguf_string(&type, &size, &found, r->g, "general.type", r->err));
    if (!nib__gguf_text_is(type, size, "model"))
        return nib__fail(r->err, NIB_UNSUPPORTED, "%s: general.type is \"%s\"; a model is expected",
                         r->g->name, nib__escape_name(shown, sizeof shown, type, size));
    return NIB_OK;
}

/* Chunks, as in llama.cpp: their size is the family's, unless the key is 0, which means that no
 * layer has them, and that all layers have RoPE. */
static nib_status set_chunks(nib_gguf_reader *r, bool given, int64_t window)
{
    nib_config *c = r->c;
    const int64_t chunk = nib__family_of(c)->absent.window;
    char asked[32], done[32];
    if (given && window == 0) {
        c->rope_layers = NULL;
        return NIB_OK;
    }
    if (given && window != chunk)
        nib__ledger_add_overruled(r->ledger, "config-key", r->key,
                                  nib__format_double(asked, (double)window),
                                  nib__format_double(done, (double)chunk),
                                  "llama.cpp gives every model of %s this size", r->arch);
    return nib__layers_window(c, chunk, NULL, r->g->name, r->arena, r->err);
}

/* Windows: a size, and for some families which layers have it. Absent keys default as in llama.cpp:
 * to the family's pattern, or to all layers if it has none. */
static nib_status read_windows(nib_gguf_reader *r)
{
    nib_config *c = r->c;
    nib_gguf_array layers;
    int64_t window = 0;
    bool found;
    NIB_TRY(
        nib__gguf_int(&window, &found, r->g, nib__gguf_key(r, "attention.sliding_window"), r->err));
    if (nib__family_of(c)->window == NIB_WINDOW_CHUNKS)
        return set_chunks(r, found, window);
    if (!found || window == 0)
        return nib__layers_window(c, 0, NULL, r->g->name, r->arena, r->err);
    if (window < 0)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s is %" PRId64 "; a window of at least 1 position is expected",
                         r->g->name, r->key, window);
    NIB_TRY(nib__gguf_array_of(&layers, &found, r->g,
                               nib__gguf_key(r, "attention.sliding_window_pattern"), NIB_GGUF_BOOL,
                               r->err));
    if (found && (int64_t)layers.count != c->layers)
        return nib__fail(r->err, NIB_BAD_INPUT,
                         "%s: %s has %zu values, but there are %" PRId64 " layers", r->g->name,
                         r->key, (size_t)layers.count, c->layers);
    bool *has = found ? nib__arena_take(r->arena, (uint64_t)c->layers, sizeof *has) : NULL;
    if (found && has == NULL)
        return nib__fail_memory(r->err, (uint64_t)c->layers, "a list of layers");
    for (int64_t i = 0; found && i < c->layers; i++)
        has[i] = layers.at[i] != 0;
    if (!found && nib__family_of(c)->window < NIB_WINDOW_ALWAYS && window < c->context)
        return nib__fail(r->err, NIB_UNSUPPORTED,
                         "%s: %s.attention.sliding_window limits attention to %" PRId64
                         " positions, but %s has no layers with a window",
                         r->g->name, r->arch, window, r->arch);
    return nib__layers_window(c, window, has, r->g->name, r->arena, r->err);
}

bool nib__gguf_expert_layers_match(const nib_config *c)
{
    return c->moe.experts == 0 || c->latent.rank > 0 ||
           (c->moe.dense == NULL &&
            (c->moe.interval == 1 || nib__gguf_has_key(c, offsetof(nib_config, moe.interval))));
}

bool nib__gguf_expert_weights_match(const nib_config *c)
{
    const nib_mixture *moe = &c->moe;
    return moe->experts == 0 || c->latent.rank > 0 || moe->normalize || moe->chosen_softmax ||
           moe->scaled_inputs || nib__gguf_has_key(c, offsetof(nib_config, moe.normalize));
}

bool nib__gguf_lacks_chunks(const nib_config *c)
{
    bool rotate = nib__family_of(c)->window == NIB_WINDOW_CHUNKS && c->window == 0;
    for (int64_t i = 0; rotate && i < c->layers; i++)
        rotate = nib__config_has_rope(c, i);
    return rotate;
}

bool nib__gguf_chunks_match(const nib_config *c)
{
    const int64_t chunk = nib__family_of(c)->absent.window;
    if (nib__family_of(c)->window != NIB_WINDOW_CHUNKS || nib__gguf_lacks_chunks(c))
        return true;
    for (int64_t i = 0; i < c->layers; i++) {
        const int64_t own = nib__config_window(c, i), want = nib__config_has_rope(c, i) ? chunk : 0;
        const bool limited = own > 0 && own<c->context, implied = want> 0 && want < c->context;
        if (limited != implied || (limited && own != want))
            return false;
    }
    return true;
}

bool nib__gguf_rope_layers_match(const nib_config *c)
{
    const int64_t every = nib__family_of(c)->rope_interval;
    if (nib__gguf_lacks_chunks(c))
        return true;
    for (int64_t i = 0; every > 0 && c->rope_layers != NULL && i < c->layers; i++)
        if (c->rope_layers[i] != ((i + 1) % every != 0))
            return false;
    return true;
}

/* ---- unknown keys and tensors ---- */

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Keys of the architecture that are read above, or that do not matter for a forward step. */
static bool is_known(const nib_gguf_reader *r, const char *name)
{
    static const char *const known[] = {"block_count",
                                        "embedding_length",
                                        "feed_forward_length",
                                        "context_length",
                                        "vocab_size",
                                        "attention.head_count",
                                        "attention.head_count_kv",
                                        "attention.key_length",
                                        "attention.value_length",
                                        "attention.sliding_window",
                                        "attention.sliding_window_pattern",
                                        "attention.causal",
                                        "use_parallel_residual",
                                        "rope.dimension_count",
                                        "rope.freq_base",
                                        "rope.scaling.type",
                                        "rope.scaling.finetuned",
                                        "tensor_data_layout",
                                        "expert_used_count",
                                        "expert_feed_forward_length",
                                        "pooling_type"};
    static const char *const of_latent[] = {
        "attention.key_length_mla", "attention.value_length_mla", "expert_group_count",
        "expert_group_used_count",  "expert_weights_norm",        GATING};
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(known[i], name) == 0)
            return true;
    for (size_t i = 0; is_latent(r) && i < COUNT(of_latent); i++)
        if (strcmp(of_latent[i], name) == 0)
            return true;
    for (size_t i = 0; i < COUNT(changing); i++)
        if (strcmp(changing[i].name, name) == 0)
            return true;
    return find_family_key(r, name) != NULL || nib__gguf_is_of_heads(r->c, name) ||
           nib__gguf_is_of_states(r->c, name);
}

/* Keys that only some families and RoPE types use. *used: whether this model does. */
static bool is_conditional(bool *used, const nib_config *c, const char *name)
{
    const nib_family_row *family = nib__family_of(c);
    const bool rms = !family->norm.centered,
               original = c->rope == NIB_ROPE_YARN || family->only_longrope,
               factor = c->rope != NIB_ROPE_LONGROPE && c->rope_factor != 0; /* it was read */
    const struct {
        const char *name;
        bool used;
    } keys[] = {{"attention.layer_norm_rms_epsilon", rms},
                {"attention.layer_norm_epsilon", !rms},
                {"expert_gating_func", family->gguf_gating != 0},
                {"rope.scaling.original_context_length", original},
                {"rope.scaling.factor", factor},
                {"rope.scale_linear", factor}};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (strcmp(keys[i].name, name) == 0) {
            *used = keys[i].used;
            return true;
        }
    return false;
}

static nib_status check_unknown(nib_gguf_reader *r)
{
    static const char *const elsewhere[] = {"general.", "tokenizer.", "split.", "quantize."};
    const size_t prefix = strlen(r->arch);
    for (size_t i = 0; i < r->g->count; i++) {
        const char *key = r->g->values[i]->key;
        const bool own = begins_with(key, r->arch) && key[prefix] == '.';
        const char *name = own ? key + prefix + 1 : "";
        bool known = own && is_known(r, name);
        const bool conditional = is_conditional(&known, r->c, name);
        char shown[128];
        for (size_t j = 0; j < COUNT(elsewhere); j++)
            known = known || begins_with(key, elsewhere[j]);
        if (known)
            continue;
        nib__escape_name(shown, sizeof shown, key, strlen(key));
        if (!conditional && (begins_with(name, "rope.") || begins_with(name, "attention.")))
            return nib__fail(r->err, NIB_UNSUPPORTED,
                             "%s: key \"%s\" is unknown and may change the result", r->g->name,
                             shown);
        nib__ledger_add_unread(r->ledger, "config-key", "the GGUF", shown, NULL);
    }
    return NIB_OK;
}

/* Every tensor must belong to the model; ignoring one would silently change the result. */
static nib_status check_tensors(nib_gguf_reader *r)
{
    static const char *const known[] = {"model.", "lm_head.", "rope_freqs.weight"};
    for (size_t i = 0; i < nib__checkpoint_count(r->cp); i++) {
        const char *name = nib__checkpoint_at(r->cp, i)->name;
        bool placed = r->c->rope == NIB_ROPE_LONGROPE && (strcmp(name, NIB_GGUF_ROPE_SHORT) == 0 ||
                                                          strcmp(name, NIB_GGUF_ROPE_LONG) == 0);
        char shown[96];
        for (size_t j = 0; j < COUNT(known); j++)
            placed = placed || begins_with(name, known[j]);
        if (!placed)
            return nib__fail(r->err, NIB_UNSUPPORTED,
                             "%s: tensor \"%s\" is not part of %s; leaving it out would "
                             "change the result",
                             r->g->name, nib__escape_name(shown, sizeof shown, name, strlen(name)),
                             r->arch);
    }
    return NIB_OK;
}

/* ---- the interface ---- */

nib_status nib__config_gguf(nib_config *out, const nib_checkpoint *cp, nib_arena *arena,
                            nib_ledger *ledger, nib_err *err)
{
    *out = (nib_config){.rope_theta = 10000.0, .bos = -1};
    nib_gguf_reader r = {.c = out,
                         .cp = cp,
                         .g = nib__checkpoint_gguf(cp),
                         .arena = arena,
                         .ledger = ledger,
                         .err = err};
    nib_config_names used = names;
    NIB_TRY(read_arch(&r));
    used.eps = eps_key(out);
    NIB_TRY(read_sizes(&r));
    NIB_TRY(fill_absent(&r));
    NIB_TRY(nib__config_check(out, r.g->name, &used, err));
    NIB_TRY(read_latent(&r));
    NIB_TRY(nib__gguf_read_rope(&r));
    NIB_TRY(nib__gguf_fill_rope_layers(&r));
    NIB_TRY(read_windows(&r));
    NIB_TRY(read_family_keys(&r));
    nib__gguf_read_layer_table(out, cp);
    NIB_TRY(check_numbers(&r));
    NIB_TRY(check_flags(&r));
    NIB_TRY(check_experts(&r));
    NIB_TRY(check_others(&r));
    NIB_TRY(check_unknown(&r));
    NIB_TRY(check_tensors(&r));
    NIB_TRY(read_ids(&r));
    detect_biases(&r);
    detect_norms(&r);
    const nib_family_row *family = nib__family_of(out);
    if (family->complete != NULL)
        family->complete(out);
    if (family->complete_gguf != NULL)
        family->complete_gguf(out);
    if (out->rope_unrounded && ledger != NULL)
        nib__ledger_add_note(
            ledger, "rope",
            "yarn changes a range of pairs that is not rounded, as %s's config.json "
            "says and a GGUF cannot; llama.cpp rounds it",
            family->name);
    NIB_TRY(nib__config_check_heads(out, r.g->name, ledger, err));
    NIB_TRY(nib__config_check_shared(out, r.g->name, err));
    if (!nib__gguf_shared_match(out))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: layers with a window must share the keys and values of layer %" PRId64
                         ", and those without one of layer %" PRId64 ", which llama.cpp takes",
                         r.g->name, out->layers - out->shared_layers - 2,
                         out->layers - out->shared_layers - 1);
    NIB_TRY(nib__config_check_mixture(out, r.g->name, err));
    NIB_TRY(nib__config_check_matrix(out, r.g->name, err));
    return nib__config_check_latent(out, r.g->name, err);
}
