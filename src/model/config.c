/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads config.json by a table of keys. The family's defaults for absent keys are set first, so
 * pass one reads only model_type. Ranges are checked once at the end, where an error can name two
 * values that disagree.
 */
#include "arch.h"
#include "config_keys.h"
#include "config_layers.h"
#include "config_rope.h"
#include "config_values.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *const rope_names[] = {
    [NIB_ROPE_PLAIN] = "default",     [NIB_ROPE_LLAMA3] = "llama3",
    [NIB_ROPE_LINEAR] = "linear",     [NIB_ROPE_YARN] = "yarn",
    [NIB_ROPE_LONGROPE] = "longrope", [NIB_ROPE_PROPORTIONAL] = "proportional"};

const char *nib__rope_name(nib_rope_kind rope) { return rope_names[rope]; }

/* Everything read from the file, before it is checked. */
typedef struct reader {
    nib_config c;
    const nib_family_row *family;
    nib_json json;
    nib_arena *arena;
    nib_ledger *ledger;
    char key[64]; /* key being read, for messages; empty between keys */
    char *model_type, *hidden_act, *hidden_activation;
    const char *text_config; /* of a model with images: the object, as text; NULL: none */
    bool outer;              /* the model has images or audio, too; its text_config is read */
    bool encoder;            /* it was reported */
    char *class_name;        /* the first of architectures */
    nib_rope_given rope;
    nib_layers_given layers;
    nib_keys_given keys;
    bool bias, bias_given; /* attention_bias */
    int64_t head_dim;      /* as given; 0: absent */
    int64_t longest;       /* model_max_length; 0: absent */
    uint64_t classes;      /* bit per nib_arch whose class `architectures` names */
    nib_type dtypes[2];    /* dtype and torch_dtype, its older name */
} reader;

/* Keys that cannot change a forward step: provenance, or training only. */
static const char *const harmless[] = {"_name_or_path",
                                       "attention_dropout",
                                       "hidden_dropout",
                                       "id2label",
                                       "initializer_range",
                                       "label2id",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "output_router_logits",
                                       "router_aux_loss_coef",
                                       "router_jitter_noise",
                                       "pad_token_id",
                                       "pretraining_tp",
                                       "residual_dropout",
                                       "resid_pdrop",
                                       "embd_pdrop",
                                       "ep_size", /* how DeepSeek's own code runs and trains */
                                       "aux_loss_alpha",
                                       "seq_aux",
                                       "attn_pdrop",
                                       "transformers_version",
                                       "unk_token_id",
                                       "use_cache",
                                       "return_dict",
                                       "torchscript",
                                       "use_bfloat16",
                                       "chunk_size_feed_forward",
                                       "problem_type",
                                       "cache_implementation",
                                       "initial_context_length", /* rope_scaling has it */
                                       "embedding_dropout",
                                       "use_embedding_sharing",
                                       "use_parallel_embedding",
                                       "attention_softmax_in_fp32",
                                       "scale_attention_softmax_in_fp32",
                                       "layer_norm_epsilon", /* GPT-2's; no family reads it */
                                       "for_llm_compressor",
                                       "_attn_implementation_autoset",
                                       "tokenizer_class"};

/* Keys that name code to run. It is never run, and the ledger says so. */
static const char *const code_keys[] = {"auto_map", "trust_remote_code"};

/* Keys that name an attention implementation of transformers, or code with one:
 * "REPOSITORY/NAME". */
static const char *const attention_keys[] = {
    "_attn_implementation", "_attn_implementation_internal", "attn_implementation"};

static bool is_listed(const nib_json *json, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (nib__json_is(json, names[i]))
            return true;
    return false;
}

/* ---- values ---- */

static bool read_string(reader *r, char **out)
{
    if (nib__json_next(&r->json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(&r->json, NIB_JSON_STRING))
        return false;
    *out = nib__json_string(&r->json, r->arena, NULL);
    return *out != NULL;
}

static bool read_unknown(reader *r)
{
    const bool code = is_listed(&r->json, code_keys, COUNT(code_keys));
    const bool attention = is_listed(&r->json, attention_keys, COUNT(attention_keys));
    nib_json_value value;
    if (!nib__json_any(&r->json, &value))
        return false;
    if (value.event == NIB_JSON_NULL || value.empty || (code && value.event == NIB_JSON_FALSE))
        return true; /* not set */
    if (code || (attention && value.shown && strchr(value.shown, '/')))
        nib__ledger_add_overruled(r->ledger, "config-code", r->key, NULL, NULL,
                                  "config.json names Python code, which is not run");
    else if (attention)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "config-key",
                                                      .name = r->key,
                                                      .asked = value.shown,
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_EQUIVALENT},
                                "attention runs in Nibble's own kernels, to the same result");
    else
        nib__ledger_add_unread(r->ledger, "config-key", "config.json", r->key, value.shown);
    return true;
}

/* ---- keys: each function reads one value; `at` is the offset of its destination ---- */

static void *member_at(reader *r, size_t at) { return (char *)r + at; }

/* null: derived from other sizes. */
static bool read_size(reader *r, size_t at)
{
    int64_t *out = member_at(r, at);
    *out = 0;
    return nib__config_count(&r->json, out);
}

/* null: false, as in Python. */
static bool read_flag(reader *r, size_t at)
{
    bool *out = member_at(r, at);
    *out = false;
    return nib__config_flag(&r->json, out);
}

static bool read_head_dim(reader *r, size_t at)
{
    const bool read = read_size(r, at);
    r->head_dim = r->c.head_dim;
    return read;
}

static bool read_bias(reader *r, size_t at)
{
    const bool read = read_flag(r, at);
    r->bias_given = r->json.event != NIB_JSON_NULL;
    return read;
}

static bool read_text(reader *r, size_t at) { return read_string(r, member_at(r, at)); }

static bool read_type(reader *r, size_t at)
{
    static const struct {
        const char *name;
        nib_type type;
    } types[] = {{"float32", NIB_TYPE_F32}, {"float16", NIB_TYPE_F16}, {"bfloat16", NIB_TYPE_BF16}};
    nib_type *out = member_at(r, at);
    char *name = NULL;
    if (!read_string(r, &name))
        return false;
    if (!name || strcmp(name, "auto") == 0)
        return true;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(name, types[i].name) == 0) {
            *out = types[i].type;
            return true;
        }
    nib__json_fail(&r->json,
                   "torch_dtype \"%s\" is not supported; float32, float16 and bfloat16 are", name);
    return false;
}

/* `at` is an index into nib__eps_keys. */
static bool read_eps(reader *r, size_t at)
{
    return at == (size_t)r->family->eps ? nib__config_number(&r->json, &r->c.norm_eps)
                                        : read_unknown(r);
}

static bool read_rope_number(reader *r, size_t at)
{
    return nib__rope_read_number(&r->rope, (int)at, &r->json);
}

static bool read_rope_object(reader *r, size_t at)
{
    return nib__rope_read_object(&r->rope, (int)at, &r->json, r->arena);
}

static bool read_rotates(reader *r, size_t at)
{
    (void)at;
    return nib__layers_read_rotates(&r->layers, &r->json, r->arena);
}

static bool read_interval(reader *r, size_t at)
{
    return r->family->rope_interval > 0 ? read_size(r, at) : read_unknown(r);
}

static bool read_layer_types(reader *r, size_t at)
{
    (void)at;
    return nib__layers_read_types(&r->layers, r->family, &r->json, r->arena);
}

/* layers_block_type: the older name in families with Mamba-2. */
static bool read_block_types(reader *r, size_t at)
{
    return r->family->mamba ? read_layer_types(r, at) : read_unknown(r);
}

/* An infinite number: Infinity, or as transformers 5 writes it, {"__float__": "Infinity"}. */
static bool read_infinite(reader *r)
{
    if (!nib__config_check_event(&r->json, NIB_JSON_OBJECT))
        return false;
    bool infinite = true;
    while (nib__json_next(&r->json) == NIB_JSON_KEY) {
        infinite = infinite && nib__json_is(&r->json, "__float__");
        infinite = nib__json_next(&r->json) == NIB_JSON_STRING && infinite &&
                   nib__json_is(&r->json, "Infinity");
    }
    if (!infinite)
        nib__json_fail(&r->json, "a number or {\"__float__\": \"Infinity\"} is expected");
    return infinite && nib__config_check_event(&r->json, NIB_JSON_OBJECT_END);
}

/* time_step_limit: the least and the largest dt. */
static bool read_step_limit(reader *r, size_t at)
{
    (void)at;
    double *const to[] = {&r->c.least_step, &r->c.most_step};
    if (!r->family->mamba)
        return read_unknown(r);
    if (nib__json_next(&r->json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(&r->json, NIB_JSON_ARRAY))
        return false;
    for (size_t i = 0; i < COUNT(to); i++) {
        *to[i] = (double)INFINITY;
        if (nib__json_next(&r->json) != NIB_JSON_NUMBER ? !read_infinite(r)
                                                        : !nib__json_double(&r->json, to[i]))
            return false;
    }
    if (r->c.most_step >= DBL_MAX) /* as Nibble writes it */
        r->c.most_step = (double)INFINITY;
    if (!(r->c.least_step >= 0 && r->c.least_step < r->c.most_step)) {
        nib__json_fail(&r->json,
                       "time_step_limit is %g to %g; two ascending numbers from 0 on are "
                       "expected",
                       r->c.least_step, r->c.most_step);
        return false;
    }
    nib__json_next(&r->json);
    return nib__config_check_event(&r->json, NIB_JSON_ARRAY_END);
}

static bool read_layer_numbers(reader *r, size_t at)
{
    return nib__layers_read_numbers(member_at(r, at), &r->json, r->arena);
}

static bool read_window(reader *r, size_t at)
{
    (void)at;
    return r->family->window == NIB_WINDOW_CHUNKS ? read_unknown(r)
                                                  : nib__layers_read_window(&r->layers, &r->json);
}

static bool read_chunk(reader *r, size_t at)
{
    (void)at;
    return r->family->window == NIB_WINDOW_CHUNKS ? nib__layers_read_window(&r->layers, &r->json)
                                                  : nib__keys_read(&r->keys, &r->json);
}

static bool read_first_window(reader *r, size_t at)
{
    return nib__config_size(&r->json, member_at(r, at));
}

static bool read_pattern(reader *r, size_t at)
{
    (void)at;
    return r->family->window == NIB_WINDOW_PATTERN
               ? nib__layers_read_pattern(&r->layers, &r->json, r->arena)
               : read_unknown(r);
}

static bool read_quantized(reader *r, size_t at)
{
    const char *raw = nib__json_raw(&r->json, r->arena);
    if (raw == NULL)
        return false;
    bool *quantized = member_at(r, at);
    *quantized = *raw == '{';
    if (*quantized || strcmp(raw, "null") == 0 || strcmp(raw, "false") == 0)
        return true;
    nib__json_fail(&r->json, "must be an object, or null if the weights are not quantized");
    return false;
}

/* Whether the string is the class of the family, or of its models with images. */
static bool is_class(const reader *r, const nib_family_row *family)
{
    static const char conditional[] = "ForConditionalGeneration";
    const char *name = family->class_name, *end = strstr(name, "ForCausalLM");
    const size_t size = end != NULL ? (size_t)(end - name) : 0;
    return nib__json_is(&r->json, name) ||
           (r->outer && end != NULL && family == r->family &&
            r->json.token_size == size + sizeof conditional - 1 &&
            memcmp(r->json.token, name, size) == 0 &&
            memcmp(r->json.token + size, conditional, sizeof conditional - 1) == 0);
}

/* architectures: names of Python classes; the supported one need not be first. */
static bool read_classes(reader *r, size_t at)
{
    (void)at;
    if (nib__json_next(&r->json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(&r->json, NIB_JSON_ARRAY))
        return false;
    while (nib__json_next(&r->json) == NIB_JSON_STRING) {
        for (size_t i = 0; nib__family_at(i) != NULL; i++)
            if (is_class(r, nib__family_at(i)))
                r->classes |= UINT64_C(1) << i;
        if (r->class_name == NULL)
            r->class_name = nib__json_string(&r->json, r->arena, NULL);
        if (r->class_name == NULL)
            return false;
    }
    return nib__config_check_event(&r->json, NIB_JSON_ARRAY_END);
}

static bool read_bos(reader *r, size_t at)
{
    int count = 0;
    return nib__config_ids(&r->json, member_at(r, at), 1, &count);
}

static bool read_eos(reader *r, size_t at)
{
    return nib__config_ids(&r->json, member_at(r, at), NIB_EOS_MAX, &r->c.eos_count);
}

#define AT(member) offsetof(reader, member)

static const struct {
    const char *key;
    bool (*read)(reader *r, size_t at);
    size_t at;
} keys[] = {
    {"architectures", read_classes, 0},
    {"model_type", read_text, AT(model_type)},
    {"hidden_size", read_size, AT(c.width)},
    {"intermediate_size", read_size, AT(c.ffn)},
    {"num_hidden_layers", read_size, AT(c.layers)},
    {"num_attention_heads", read_size, AT(c.heads)},
    {"num_key_value_heads", read_size, AT(c.kv_heads)},
    {"head_dim", read_head_dim, AT(c.head_dim)},
    {"vocab_size", read_size, AT(c.vocab)},
    {"max_position_embeddings", read_size, AT(c.context)},
    {"model_max_length", read_size, AT(longest)},
    {"hidden_act", read_text, AT(hidden_act)},
    {"hidden_activation", read_text, AT(hidden_activation)},
    {"rms_norm_eps", read_eps, NIB_EPS_RMS},
    {"layer_norm_eps", read_eps, NIB_EPS_LAYER},
    {"norm_epsilon", read_eps, NIB_EPS_NORM},
    {"norm_eps", read_eps, NIB_EPS_PLAIN},
    {"attention_bias", read_bias, AT(bias)},
    {"mlp_bias", read_flag, AT(c.mlp_bias)},
    {"tie_word_embeddings", read_flag, AT(c.tied)},
    {"rope_theta", read_rope_number, NIB_ROPE_THETA},
    {"partial_rotary_factor", read_rope_number, NIB_ROPE_PARTIAL},
    {"original_max_position_embeddings", read_rope_number, NIB_ROPE_ORIGINAL},
    {"rope_scaling", read_rope_object, NIB_ROPE_SCALING},
    {"rope_parameters", read_rope_object, NIB_ROPE_PARAMETERS},
    {"no_rope_layers", read_rotates, 0},
    {"no_rope_layer_interval", read_interval, AT(layers.rotate_interval)},
    {"layer_types", read_layer_types, 0},
    {"layers_block_type", read_block_types, 0},
    {"time_step_limit", read_step_limit, 0},
    {"mlp_only_layers", read_layer_numbers, AT(layers.dense)},
    {"moe_layers", read_layer_numbers, AT(layers.mixed)},
    {"full_attn_idxs", read_layer_numbers, AT(layers.attending)},
    {"sliding_window", read_window, 0},
    {"attention_chunk_size", read_chunk, 0},
    {"use_sliding_window", read_flag, AT(layers.use_window)},
    {"max_window_layers", read_first_window, AT(layers.first_window)},
    {"sliding_window_pattern", read_pattern, 0},
    {"_sliding_window_pattern", read_pattern, 0},
    {"quantization_config", read_quantized, AT(c.quantized)},
    {"dtype", read_type, AT(dtypes[0])},
    {"torch_dtype", read_type, AT(dtypes[1])},
    {"bos_token_id", read_bos, AT(c.bos)},
    {"eos_token_id", read_eos, AT(c.eos)},
};

static bool is_ignored(const reader *r)
{
    const char *const *key = r->family->ignored;
    while (key != NULL && *key != NULL && !nib__json_is(&r->json, *key))
        key++;
    return key != NULL && *key != NULL;
}

static bool read_key(reader *r)
{
    for (size_t i = 0; i < COUNT(keys); i++)
        if (nib__json_is(&r->json, keys[i].key))
            return nib__keys_own(r->family, keys[i].key) ? nib__keys_read(&r->keys, &r->json)
                                                         : keys[i].read(r, keys[i].at);
    if (is_listed(&r->json, harmless, COUNT(harmless)) || is_ignored(r))
        return nib__json_skip(&r->json);
    if (nib__keys_is_known(&r->json))
        return nib__keys_read(&r->keys, &r->json);
    return read_unknown(r);
}

/* Keys of a model with images or audio that its text does not depend on. */
static const char *const keys_of_encoders[] = {
    "audio_token_id",      "boa_token_id",         "boi_token_id",   "boi_token_index",
    "eoa_token_id",        "eoa_token_index",      "eoi_token_id",   "eoi_token_index",
    "image_token_index",   "image_token_id",       "video_token_id", "vision_soft_tokens_per_image",
    "vision_end_token_id", "vision_start_token_id"};

/* Keys beside text_config that its text does depend on. */
static const char *const keys_of_both[] = {"architectures", "model_type",          "dtype",
                                           "torch_dtype",   "tie_word_embeddings", "bos_token_id",
                                           "eos_token_id",  "quantization_config"};

static bool read_encoder(reader *r)
{
    nib_json_value value;
    if (!nib__json_any(&r->json, &value))
        return false;
    if (value.event != NIB_JSON_NULL && !r->encoder)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "config-key",
                                                      .name = r->key,
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_NARROWER},
                                "only the text model runs: images and audio are not read");
    r->encoder = r->encoder || value.event != NIB_JSON_NULL;
    return true;
}

/* Reads a key beside text_config. */
static bool read_outer_key(reader *r)
{
    if (nib__json_is(&r->json, "text_config") ||
        is_listed(&r->json, keys_of_encoders, COUNT(keys_of_encoders)))
        return nib__json_skip(&r->json);
    if (nib__json_is(&r->json, "vision_config") || nib__json_is(&r->json, "audio_config"))
        return read_encoder(r);
    return is_listed(&r->json, keys_of_both, COUNT(keys_of_both)) ||
                   is_listed(&r->json, harmless, COUNT(harmless))
               ? read_key(r)
               : read_unknown(r);
}

static bool read_model_type(reader *r)
{
    if (nib__json_is(&r->json, "text_config")) {
        r->text_config = nib__json_raw(&r->json, r->arena);
        return r->text_config != NULL;
    }
    return nib__json_is(&r->json, "model_type") ? read_string(r, &r->model_type)
                                                : nib__json_skip(&r->json);
}

/* Adds the key that was being read to the JSON reader's error. */
static nib_status config_error(const reader *r, nib_err *err)
{
    nib_err inner;
    const nib_status status = nib__json_status(&r->json, &inner);
    if (r->key[0] == 0)
        return nib__fail(err, status, "%s", inner.text);
    return nib__fail(err, status, "%s (in \"%s\")", inner.text, r->key);
}

/* One pass over the keys. */
static nib_status read_all(reader *r, bool (*read)(reader *r), const char *name, const char *text,
                           size_t size, nib_err *err)
{
    const nib_json_limits limits = {.literals = true};
    nib__json_init(&r->json, name, text, size, &limits);
    bool ok = nib__json_expect(&r->json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&r->json) == NIB_JSON_KEY) {
        nib__escape_name(r->key, sizeof r->key, r->json.token, r->json.token_size);
        ok = read(r);
        if (ok)
            r->key[0] = 0;
    }
    return ok && nib__config_check_event(&r->json, NIB_JSON_OBJECT_END) &&
                   nib__json_next(&r->json) == NIB_JSON_END
               ? NIB_OK
               : config_error(r, err);
}

/* ---- the family ---- */

/* Whether model_type is that of the family, or of its models with images. */
static bool is_type(const reader *r, const nib_family_row *family)
{
    return strcmp(family->name, r->model_type) == 0 ||
           (family->outer != NULL && r->text_config != NULL && *r->text_config == '{' &&
            strcmp(family->outer, r->model_type) == 0);
}

static nib_status find_family(reader *r, const char *name, nib_err *err)
{
    if (!r->model_type)
        return nib__fail(
            err, NIB_BAD_INPUT,
            "%s: \"model_type\" is missing; it names the architecture (a training config, "
            "for `nibble train`, has sections instead, such as \"model\": {...})",
            name);
    char shown[64], names[NIB_FAMILY_NAMES];
    size_t i = 0;
    while (nib__family_at(i) != NULL && !is_type(r, nib__family_at(i)))
        i++;
    if (nib__family_at(i) == NULL)
        return nib__fail(
            err, NIB_UNSUPPORTED, "%s: the architecture \"%s\" is not supported; %s are", name,
            nib__escape_name(shown, sizeof shown, r->model_type, strlen(r->model_type)),
            nib__family_names(names, sizeof names));
    r->c.arch = (nib_arch)i;
    r->family = nib__family_at(i);
    r->outer = strcmp(r->family->name, r->model_type) != 0;
    return NIB_OK;
}

/* Sets the defaults of transformers for absent keys. */
static void set_defaults(reader *r)
{
    nib_config *c = &r->c;
    const nib_family_row *family = r->family;
    c->heads = family->absent.heads;
    c->kv_heads = family->absent.kv_heads;
    c->head_dim = family->absent.head_dim;
    c->vocab = family->absent.vocab;
    c->context = family->absent.context;
    c->norm_eps = family->absent.norm_eps;
    c->rope_theta = family->absent.rope_theta;
    c->rope_interleaved = family->interleaved;
    c->qk_norm = family->head_norms;
    c->tied = family->absent.tied;
    r->bias = family->absent.bias;
    r->layers.window = family->absent.window;
    r->rope.sections = family->mrope;
    c->most_step = (double)INFINITY;
}

/* ---- checks ---- */

static void set_biases(reader *r)
{
    const nib_family_row *family = r->family;
    r->c.qkv_bias =
        (r->bias && family->biases != NIB_BIASES_OWN) || family->biases == NIB_BIASES_QKV_ALWAYS;
    r->c.o_bias = r->bias && family->biases == NIB_BIASES_ALL;
}

static bool is_act(const nib_family_row *family, const char *act)
{
    const char *older = family->act == NULL ? "swish" : family->older_act;
    return act == NULL || strcmp(act, nib__family_act(family)) == 0 ||
           (older != NULL && strcmp(act, older) == 0);
}

/* Checks both names, unless the family lets the newer one decide where it is given. */
static nib_status check_act(const reader *r, const char *name, nib_err *err)
{
    const bool newer = !is_act(r->family, r->hidden_activation),
               older = !is_act(r->family, r->hidden_act);
    const char *act = newer ? r->hidden_activation : r->hidden_act;
    char shown[NIB_SHOWN];
    if (!newer && older && r->family->newer_act && r->hidden_activation != NULL) {
        nib__ledger_add_overruled(r->ledger, "config-key", "hidden_act",
                                  nib__escape_string(shown, act), r->hidden_activation,
                                  "hidden_activation decides");
        return NIB_OK;
    }
    if (!newer && !older)
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED, "%s: %s is \"%s\"; only %s is supported for %s", name,
                     newer ? "hidden_activation" : "hidden_act",
                     nib__escape_name(shown, sizeof shown, act, strlen(act)),
                     nib__family_act(r->family), r->family->name);
}

/* ---- keys that are not followed ---- */

static void report_class(const reader *r)
{
    char shown[NIB_SHOWN];
    if (r->class_name && (r->classes & UINT64_C(1) << r->c.arch) == 0)
        nib__ledger_add_overruled(r->ledger, "config-key", "architectures",
                                  nib__escape_string(shown, r->class_name), r->family->class_name,
                                  "model_type is \"%s\", which selects %s", r->family->name,
                                  r->family->class_name);
}

static void report_bias(const reader *r)
{
    if (!r->bias_given)
        return;
    if (r->family->biases == NIB_BIASES_OWN && r->bias)
        nib__ledger_add_unread(r->ledger, "config-key", "config.json", "attention_bias", "true");
    if (r->family->biases != NIB_BIASES_QKV_ALWAYS)
        return;
    if (r->bias)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "bias",
                                                      .name = "attention_bias",
                                                      .asked = "true",
                                                      .done = "true",
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_NARROWER},
                                "%s has biases on q, k and v, but not on o", r->family->name);
    else
        nib__ledger_add_overruled(r->ledger, "bias", "attention_bias", "false", "true",
                                  "%s always has biases on q, k and v", r->family->name);
}

/* Reports keys that another key or the architecture overrules. */
static void report_overruled(const reader *r)
{
    char asked[32], done[32];
    report_class(r);
    report_bias(r);
    if (r->longest > 0 && r->longest != r->c.context)
        nib__ledger_add_overruled(r->ledger, "context", "model_max_length",
                                  nib__format_double(asked, (double)r->longest),
                                  nib__format_double(done, (double)r->c.context),
                                  "max_position_embeddings sets the longest context");
    if (r->dtypes[0] != NIB_TYPE_NONE && r->dtypes[1] != NIB_TYPE_NONE &&
        r->dtypes[0] != r->dtypes[1])
        nib__ledger_add_overruled(r->ledger, "dtype", "torch_dtype", nib__type_name(r->dtypes[1]),
                                  nib__type_name(r->dtypes[0]),
                                  "dtype, its newer name, takes precedence");
}

/* Latent attention has head sizes of its own; transformers writes qk_rope_head_dim as head_dim. */
static void report_head_dim(const reader *r)
{
    const nib_config *c = &r->c;
    char asked[32], done[32];
    if (c->latent.rank == 0 || r->head_dim == 0 || r->head_dim == c->latent.rope ||
        r->head_dim == c->head_dim)
        return;
    nib__format(asked, sizeof asked, "%" PRId64, r->head_dim);
    nib__format(done, sizeof done, "%" PRId64, c->head_dim);
    nib__ledger_add_overruled(r->ledger, "config-key", "head_dim", asked, done,
                              "qk_nope_head_dim and qk_rope_head_dim decide");
}

/* Reads text_config, then the keys beside it. */
static nib_status read_outer(reader *r, const char *name, const char *text, size_t size,
                             nib_err *err)
{
    char inner[256], shown[64];
    snprintf(inner, sizeof inner, "text_config of %s", name);
    r->model_type = NULL; /* text_config need not have one */
    NIB_TRY(read_all(r, read_key, inner, r->text_config, strlen(r->text_config), err));
    if (r->model_type != NULL && strcmp(r->model_type, r->family->name) != 0)
        return nib__fail(
            err, NIB_UNSUPPORTED,
            "%s: the model_type of text_config is \"%s\"; only \"%s\" is supported there", name,
            nib__escape_name(shown, sizeof shown, r->model_type, strlen(r->model_type)),
            r->family->name);
    return read_all(r, read_outer_key, name, text, size, err);
}

nib_status nib__config_parse(nib_config *out, const char *name, const char *text, size_t size,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    reader r = {.c = {.bos = -1}, .arena = arena, .ledger = ledger, .layers = {.first_window = -1}};
    nib_config *c = &r.c;
    NIB_TRY(read_all(&r, read_model_type, name, text, size, err));
    NIB_TRY(find_family(&r, name, err));
    set_defaults(&r);
    NIB_TRY(r.outer ? read_outer(&r, name, text, size, err)
                    : read_all(&r, read_key, name, text, size, err));
    c->dtype = r.dtypes[r.dtypes[0] == NIB_TYPE_NONE];
    set_biases(&r);
    const nib_config_names names = {.width = "hidden_size",
                                    .ffn = "intermediate_size",
                                    .layers = "num_hidden_layers",
                                    .heads = "num_attention_heads",
                                    .kv_heads = "num_key_value_heads",
                                    .head_dim = "head_dim",
                                    .vocab = "vocab_size",
                                    .context = "max_position_embeddings",
                                    .eps = nib__eps_keys[r.family->eps]};
    NIB_TRY(nib__keys_apply(c, &r.keys, name, err));
    NIB_TRY(nib__config_derive(c, name, &names, err));
    NIB_TRY(nib__config_check(c, name, &names, err));
    NIB_TRY(nib__layers_apply(c, &r.layers, name, arena, ledger, err));
    NIB_TRY(nib__config_check_heads(c, name, ledger, err));
    NIB_TRY(check_act(&r, name, err));
    report_overruled(&r);
    NIB_TRY(nib__rope_apply(c, &r.rope, name, ledger, err));
    if (r.family->complete != NULL)
        r.family->complete(c);
    report_head_dim(&r);
    NIB_TRY(nib__config_check_shared(c, name, err));
    NIB_TRY(nib__config_check_mixture(c, name, err));
    NIB_TRY(nib__config_check_latent(c, name, err));
    NIB_TRY(nib__config_check_matrix(c, name, err));
    *out = *c;
    return NIB_OK;
}
