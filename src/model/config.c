/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads config.json key by key. Ranges are checked once at the end, where the sentence
 * can name two values that disagree.
 */
#include "arch.h"
#include "config_rope.h"
#include "config_values.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* No model comes near these (Llama 3.1 405B has 126 layers). With them sizes of all weights in bits
 * fit 64 bits, and a plan, which lists every layer, takes seconds at most. */
enum { SIZE_LIMIT = 1 << 24, LAYER_LIMIT = 1024 };
static const double WEIGHTS_LIMIT = 0x1p50;

static const char *const rope_names[] = {
    [NIB_ROPE_PLAIN] = "default", [NIB_ROPE_LLAMA3] = "llama3", [NIB_ROPE_LINEAR] = "linear"};

const char *nib__rope_name(nib_rope_kind rope) { return rope_names[rope]; }

enum { NOT_GIVEN = -1 /* 0: given as null */, ROPE_INTERVAL = 4 /* SmolLM3's */ };

/* Everything that is read before it is judged. */
typedef struct reader {
    nib_config *c;
    nib_json json;
    nib_arena *arena;
    nib_ledger *ledger;
    char key[64]; /* being read, for messages; empty between */
    char *model_type, *act;
    char *class_name; /* the first of architectures */
    nib_rope_said rope;
    char *other_layer; /* the first of layer_types that is not full attention */
    int64_t sliding_window, attention_bias, layer_types, first_window_layer;
    int64_t longest;  /* model_max_length */
    unsigned classes; /* bits of the architectures whose class is named */
    bool use_sliding_window;
    bool *rope_layers; /* [rope_layer_count] as no_rope_layers has them: 1 is with positions */
    int64_t rope_layer_count, rope_interval;
    bool tied_given, eps_given;
    nib_type dtypes[2]; /* dtype and torch_dtype, its older name */
} reader;

/* Keys that cannot change what a forward step gives: how the file was made, or training only. */
static const char *const harmless[] = {"_name_or_path",
                                       "attention_dropout",
                                       "hidden_dropout",
                                       "id2label",
                                       "initializer_range",
                                       "label2id",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "pad_token_id",
                                       "pretraining_tp",
                                       "residual_dropout",
                                       "resid_pdrop",
                                       "embd_pdrop",
                                       "attn_pdrop",
                                       "transformers_version",
                                       "unk_token_id",
                                       "use_cache",
                                       "return_dict",
                                       "torchscript",
                                       "use_bfloat16",
                                       "chunk_size_feed_forward",
                                       "problem_type"};

/* Keys of related architectures that change the result: each is an error, unless its value says
 * that it does nothing (null, false, an empty list, or the number that leaves things as they
 * are). */
static const struct {
    const char *key;
    double neutral; /* NaN: no number is */
} changing[] = {{"alibi", NAN},
                {"attention_chunk_size", NAN},
                {"attention_multiplier", NAN},
                {"attn_logit_softcapping", NAN},
                {"clip_qkv", NAN},
                {"embedding_multiplier", 1},
                {"final_logit_softcapping", NAN},
                {"is_encoder_decoder", NAN},
                {"logit_scale", 1},
                {"logits_scaling", 1},
                {"num_experts", 0},
                {"num_local_experts", 0},
                {"query_pre_attn_scalar", NAN},
                {"residual_multiplier", 1},
                {"rope_interleaved", NAN},
                {"rope_ratio", 1},
                {"use_qk_norm", NAN},
                {"qk_norm", NAN}};

/* Keys that name code to run. They are never followed, and the ledger says so. */
static const char *const code_keys[] = {"auto_map", "trust_remote_code"};

/* Keys that name an attention of transformers, or code with one: "REPOSITORY/NAME". */
static const char *const attention_keys[] = {
    "_attn_implementation", "_attn_implementation_internal", "attn_implementation"};

static bool listed(const nib_json *json, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (nib__json_is(json, names[i]))
            return true;
    return false;
}

static bool read_text(reader *r, char **out)
{
    const nib_json_event event = nib__json_next(&r->json);
    if (event == NIB_JSON_NULL)
        return true;
    if (!nib__config_now(&r->json, NIB_JSON_STRING))
        return false;
    *out = nib__json_string(&r->json, r->arena, NULL);
    return *out != NULL;
}

static bool read_type(reader *r, nib_type *out)
{
    char *name = NULL;
    if (!read_text(r, &name))
        return false;
    if (!name || strcmp(name, "auto") == 0)
        return true;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    if (strcmp(name, "float32") == 0)
        *out = NIB_TYPE_F32;
    else if (strcmp(name, "float16") == 0)
        *out = NIB_TYPE_F16;
    else if (strcmp(name, "bfloat16") == 0)
        *out = NIB_TYPE_BF16;
    else {
        nib__json_fail(&r->json, "torch_dtype \"%s\" is none of float32, float16, bfloat16", name);
        return false;
    }
    return true;
}

/* ---- objects inside ---- */

/* layer_types: one name per layer. */
static bool read_layer_types(reader *r)
{
    if (nib__json_next(&r->json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_now(&r->json, NIB_JSON_ARRAY))
        return false;
    for (r->layer_types = 0; nib__json_next(&r->json) == NIB_JSON_STRING; r->layer_types++) {
        if (r->other_layer || nib__json_is(&r->json, "full_attention"))
            continue;
        r->other_layer = nib__json_string(&r->json, r->arena, NULL);
        if (!r->other_layer)
            return false;
    }
    return nib__config_now(&r->json, NIB_JSON_ARRAY_END);
}

/* no_rope_layers: 1 for each layer that rotates by positions, 0 for others. */
static bool read_rope_layers(reader *r)
{
    if (nib__json_next(&r->json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_now(&r->json, NIB_JSON_ARRAY))
        return false;
    bool *layers = nib__arena_take(r->arena, LAYER_LIMIT, sizeof *layers);
    int64_t count = 0, value;
    while (layers != NULL && nib__json_next(&r->json) == NIB_JSON_NUMBER) {
        if (!nib__json_int64(&r->json, &value))
            return false;
        if (count == LAYER_LIMIT || (value != 0 && value != 1)) {
            nib__json_fail(&r->json, "0 or 1 for each of at most %d layers is wanted", LAYER_LIMIT);
            return false;
        }
        layers[count++] = value == 1;
    }
    r->rope_layers = count != 0 ? layers : NULL;
    r->rope_layer_count = count;
    return layers != NULL && nib__config_now(&r->json, NIB_JSON_ARRAY_END);
}

/* architectures: names of Python classes; the one that is built need not be the first. */
static bool read_classes(reader *r)
{
    if (nib__json_next(&r->json) == NIB_JSON_NULL)
        return true;
    if (!nib__config_now(&r->json, NIB_JSON_ARRAY))
        return false;
    while (nib__json_next(&r->json) == NIB_JSON_STRING) {
        for (size_t i = 0; nib__family_at(i) != NULL; i++)
            if (nib__json_is(&r->json, nib__family_at(i)->class_name))
                r->classes |= 1U << i;
        if (r->class_name == NULL)
            r->class_name = nib__json_string(&r->json, r->arena, NULL);
        if (r->class_name == NULL)
            return false;
    }
    return nib__config_now(&r->json, NIB_JSON_ARRAY_END);
}

/* ---- the keys ---- */

static bool read_unknown(reader *r)
{
    const bool code = listed(&r->json, code_keys, COUNT(code_keys));
    const bool attention = listed(&r->json, attention_keys, COUNT(attention_keys));
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

/* A key of `changing`: only a value that changes nothing is taken. */
static bool read_changing(reader *r, double neutral)
{
    nib_json_value value;
    if (!nib__json_any(&r->json, &value))
        return false;
    if (value.event == NIB_JSON_NULL || value.event == NIB_JSON_FALSE || value.empty ||
        value.number == neutral)
        return true;
    nib__json_fail(&r->json, "it changes the result in a way that is not built");
    return false;
}

static bool read_key(reader *r)
{
    nib_config *c = r->c;
    nib_json *j = &r->json;
    int bos_count = 0;
    const struct {
        const char *key;
        int64_t *out;
    } sizes[] = {
        {"hidden_size", &c->width},
        {"intermediate_size", &c->ffn},
        {"num_hidden_layers", &c->layers},
        {"num_attention_heads", &c->heads},
        {"num_key_value_heads", &c->kv_heads},
        {"head_dim", &c->head_dim},
        {"vocab_size", &c->vocab},
        {"max_position_embeddings", &c->context},
        {"sliding_window", &r->sliding_window},
        {"max_window_layers", &r->first_window_layer},
        {"model_max_length", &r->longest},
        {"no_rope_layer_interval", &r->rope_interval},
    };
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (nib__json_is(j, sizes[i].key)) {
            *sizes[i].out = 0; /* null */
            return nib__config_size(j, sizes[i].out);
        }
    if (nib__json_is(j, "model_type"))
        return read_text(r, &r->model_type);
    if (nib__json_is(j, "hidden_act"))
        return read_text(r, &r->act);
    if (nib__json_is(j, "rms_norm_eps")) {
        r->eps_given = true;
        return nib__config_number(j, &c->norm_eps);
    }
    if (nib__json_is(j, "rope_theta"))
        return nib__rope_read_number(&r->rope, NIB_ROPE_THETA, j);
    if (nib__json_is(j, "partial_rotary_factor"))
        return nib__rope_read_number(&r->rope, NIB_ROPE_PARTIAL, j);
    if (nib__json_is(j, "rope_scaling"))
        return nib__rope_read_object(&r->rope, NIB_ROPE_SCALING, j, r->arena);
    if (nib__json_is(j, "rope_parameters"))
        return nib__rope_read_object(&r->rope, NIB_ROPE_PARAMETERS, j, r->arena);
    if (nib__json_is(j, "layer_types"))
        return read_layer_types(r);
    if (nib__json_is(j, "quantization_config")) {
        const char *raw = nib__json_raw(j, r->arena);
        c->quantized = raw != NULL && *raw == '{';
        return raw != NULL;
    }
    if (nib__json_is(j, "no_rope_layers"))
        return read_rope_layers(r);
    if (nib__json_is(j, "tie_word_embeddings")) {
        r->tied_given = true;
        return nib__config_flag(j, &c->tied);
    }
    if (nib__json_is(j, "mlp_bias"))
        return nib__config_flag(j, &c->mlp_bias);
    if (nib__json_is(j, "use_sliding_window"))
        return nib__config_flag(j, &r->use_sliding_window);
    if (nib__json_is(j, "attention_bias")) {
        bool bias = false;
        r->attention_bias = nib__config_flag(j, &bias) ? bias : -1;
        return j->event != NIB_JSON_ERROR;
    }
    if (nib__json_is(j, "dtype"))
        return read_type(r, &r->dtypes[0]);
    if (nib__json_is(j, "torch_dtype"))
        return read_type(r, &r->dtypes[1]);
    if (nib__json_is(j, "architectures"))
        return read_classes(r);
    if (nib__json_is(j, "bos_token_id"))
        return nib__config_ids(j, &c->bos, 1, &bos_count);
    if (nib__json_is(j, "eos_token_id"))
        return nib__config_ids(j, c->eos, NIB_EOS_MAX, &c->eos_count);
    if (listed(j, harmless, COUNT(harmless)))
        return nib__json_skip(j);
    for (size_t i = 0; i < COUNT(changing); i++)
        if (nib__json_is(j, changing[i].key))
            return read_changing(r, changing[i].neutral);
    return read_unknown(r);
}

/* ---- judging ---- */

static nib_status find_arch(reader *r, const char *name, nib_err *err)
{
    if (!r->model_type)
        return nib__fail(
            err, NIB_BAD_INPUT,
            "%s: \"model_type\" is missing; it names the architecture (a training config, "
            "for `nibble train`, has sections instead, such as \"model\": {...})",
            name);
    char shown[64], names[160];
    size_t i = 0;
    while (nib__family_at(i) != NULL && strcmp(nib__family_at(i)->name, r->model_type) != 0)
        i++;
    if (nib__family_at(i) == NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: the architecture \"%s\" is not supported; %s are", name,
                         nib__say_name(shown, sizeof shown, r->model_type, strlen(r->model_type)),
                         nib__family_names(names, sizeof names));
    nib_config *c = r->c;
    c->arch = (nib_arch)i;
    c->qk_norm = nib__family_at(i)->head_norms;
    c->qkv_bias = c->arch == NIB_ARCH_QWEN2 || r->attention_bias == 1;
    c->o_bias = c->arch != NIB_ARCH_QWEN2 && r->attention_bias == 1;
    return NIB_OK;
}

/* What is not given, as transformers takes it. */
static nib_status fill_absent(reader *r, const char *name, nib_err *err)
{
    nib_config *c = r->c;
    const nib_family_row *family = nib__family_of(c);
    if (!r->eps_given)
        c->norm_eps = family->absent.norm_eps;
    c->rope_theta = family->absent.rope_theta;
    if (!r->tied_given)
        c->tied = family->absent.tied;
    if (c->kv_heads == NOT_GIVEN)
        c->kv_heads = family->absent.kv_heads;
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->context == NOT_GIVEN)
        c->context = family->absent.context;
    if (r->sliding_window == NOT_GIVEN)
        r->sliding_window = family->absent.window;
    if (c->head_dim == NOT_GIVEN)
        c->head_dim = family->absent.head_dim;
    if (c->head_dim != 0 || c->heads < 1)
        return NIB_OK;
    if (c->width % c->heads != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: hidden_size %" PRId64
                         " is no multiple of num_attention_heads %" PRId64
                         ", and head_dim is not given",
                         name, c->width, c->heads);
    c->head_dim = c->width / c->heads;
    return NIB_OK;
}

/* Every layer must attend to all positions. Llama ignores a window; Qwen has one from layer
 * max_window_layers on, if use_sliding_window says so; layer_types overrule both. */
static nib_status check_window(const reader *r, const char *name, nib_err *err)
{
    const nib_config *c = r->c;
    const nib_family_row *family = nib__family_of(c);
    char shown[64];
    if (r->layer_types >= 0 && r->layer_types != c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: layer_types has %" PRId64 " names, but num_hidden_layers is %" PRId64,
                         name, r->layer_types, c->layers);
    if (r->other_layer && strcmp(r->other_layer, "sliding_attention") != 0)
        return nib__fail(
            err, NIB_UNSUPPORTED, "%s: layer_types names \"%s\"; only full_attention is built",
            name, nib__say_name(shown, sizeof shown, r->other_layer, strlen(r->other_layer)));
    bool window = r->other_layer != NULL;
    if (r->layer_types < 0)
        window = family->window >= NIB_WINDOW_ALWAYS ||
                 (family->window == NIB_WINDOW_IF_USED && r->use_sliding_window &&
                  (r->first_window_layer < 0 || r->first_window_layer < c->layers));
    if (r->other_layer && r->sliding_window <= 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: layer_types names \"sliding_attention\", but sliding_window is not "
                         "given",
                         name);
    if (family->window == NIB_WINDOW_ROPE && r->sliding_window > 0)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: attention is limited to a sliding window of %" PRId64
                         " positions, which is not built, and layers without it have no rotary "
                         "positions; only models with \"sliding_window\": null run",
                         name, r->sliding_window);
    if (window && r->sliding_window > 0 && r->sliding_window < c->context)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: attention is limited to a sliding window of %" PRId64
                         " positions, which is not built; \"sliding_window\": null, or at least "
                         "max_position_embeddings %" PRId64 ", is no window",
                         name, r->sliding_window, c->context);
    return NIB_OK;
}

static const char *decimal(char out[32], int64_t value)
{
    snprintf(out, 32, "%" PRId64, value);
    return out;
}

/* Which layers rotate by positions, where the family asks. */
static nib_status find_rope_layers(reader *r, const char *name, nib_err *err)
{
    nib_config *c = r->c;
    const bool skips = nib__family_of(c)->skips_rope;
    const int64_t every = r->rope_interval > 0 ? r->rope_interval : ROPE_INTERVAL;
    bool *layers = r->rope_layers, differs = false;
    char shown[32];
    if (!skips && layers != NULL)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: no_rope_layers changes the result in a way that is not built for %s",
                         name, nib__arch_name(c->arch));
    if (!skips && r->rope_interval > 0)
        nib__ledger_add_unread(r->ledger, "config-key", "config.json", "no_rope_layer_interval",
                               decimal(shown, r->rope_interval));
    if (!skips)
        return NIB_OK;
    if (layers != NULL && r->rope_layer_count != c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: no_rope_layers has %" PRId64
                         " numbers, but num_hidden_layers is %" PRId64,
                         name, r->rope_layer_count, c->layers);
    if (layers == NULL)
        layers = nib__arena_take(r->arena, (size_t)c->layers, sizeof *layers);
    if (layers == NULL)
        return nib__fail_memory(err, (size_t)c->layers, "the list of layers");
    for (int64_t i = 0; i < c->layers; i++) {
        const bool rotates = (i + 1) % every != 0;
        if (r->rope_layers == NULL)
            layers[i] = rotates;
        else
            differs = differs || (layers[i] != rotates && r->rope_interval > 0);
    }
    if (differs)
        nib__ledger_add_overruled(r->ledger, "config-key", "no_rope_layer_interval",
                                  decimal(shown, r->rope_interval), NULL,
                                  "no_rope_layers names other layers, and it decides");
    c->rope_layers = layers;
    return NIB_OK;
}

static nib_status check_parts(const reader *r, const char *name, nib_err *err)
{
    char shown[64];
    if (r->act && strcmp(r->act, "silu") != 0 && strcmp(r->act, "swish") != 0)
        return nib__fail(err, NIB_UNSUPPORTED, "%s: hidden_act is \"%s\"; only silu is built", name,
                         nib__say_name(shown, sizeof shown, r->act, strlen(r->act)));
    return NIB_OK;
}

/* Each size may be in range and their products far from it. */
static nib_status check_weights(const nib_config *c, const char *name, nib_err *err)
{
    const double width = (double)c->width, head = (double)c->head_dim;
    const double attention = 2.0 * width * head * (double)(c->heads + c->kv_heads);
    const double all = (double)c->layers * (attention + 3.0 * width * (double)c->ffn) +
                       2.0 * width * (double)c->vocab;
    if (all <= WEIGHTS_LIMIT)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT, "%s: %.3g weights are described; at most %.3g are wanted",
                     name, all, WEIGHTS_LIMIT);
}

nib_status nib__config_check(const nib_config *c, const char *name, nib_err *err)
{
    const struct {
        const char *key;
        int64_t value, limit;
    } sizes[] = {
        {"hidden_size", c->width, SIZE_LIMIT},
        {"intermediate_size", c->ffn, SIZE_LIMIT},
        {"num_hidden_layers", c->layers, LAYER_LIMIT},
        {"num_attention_heads", c->heads, 65536},
        {"num_key_value_heads", c->kv_heads, 65536},
        {"head_dim", c->head_dim, 65536},
        {"vocab_size", c->vocab, SIZE_LIMIT},
        {"max_position_embeddings", c->context, 1 << 30},
    };
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].limit)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s is %s%" PRId64 "; 1 to %" PRId64 " is wanted", name,
                             sizes[i].key, sizes[i].value == 0 ? "missing or " : "", sizes[i].value,
                             sizes[i].limit);
    if (c->heads % c->kv_heads != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: num_attention_heads %" PRId64
                         " is no multiple of num_key_value_heads %" PRId64,
                         name, c->heads, c->kv_heads);
    if (c->head_dim % 2 != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: head_dim %" PRId64 " is odd; rotation needs pairs", name,
                         c->head_dim);
    if (!(c->norm_eps > 0 && c->norm_eps < 1))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: rms_norm_eps is %g; a number between 0 and 1 is wanted", name,
                         c->norm_eps);
    return check_weights(c, name, err);
}

/* ---- what is not done as a key says ---- */

static void say_class(const reader *r)
{
    const char *built = nib__family_of(r->c)->class_name;
    char shown[NIB_SHOWN];
    if (r->class_name && (r->classes & 1U << r->c->arch) == 0)
        nib__ledger_add_overruled(
            r->ledger, "config-key", "architectures", nib__shown(shown, r->class_name), built,
            "model_type is \"%s\", and %s is built for it", nib__family_of(r->c)->name, built);
}

/* Numbers that others overrule. */
static void say_numbers(const reader *r)
{
    const nib_config *c = r->c;
    char asked[32], done[32];
    if (nib__family_of(c)->window == NIB_WINDOW_IGNORED && r->sliding_window > 0 &&
        r->sliding_window < c->context)
        nib__ledger_add_overruled(
            r->ledger, "config-key", "sliding_window", decimal(asked, r->sliding_window), NULL,
            "%s has no window; every position attends to all before it", nib__arch_name(c->arch));
    if (r->longest > 0 && r->longest != c->context)
        nib__ledger_add_overruled(r->ledger, "context", "model_max_length",
                                  decimal(asked, r->longest), decimal(done, c->context),
                                  "max_position_embeddings is the longest context");
}

/* What config.json says and another of its keys, or the architecture, overrules. */
static void say_overruled(const reader *r)
{
    const nib_config *c = r->c;
    say_class(r);
    say_numbers(r);
    if (c->arch == NIB_ARCH_QWEN2 && r->attention_bias == 0)
        nib__ledger_add_overruled(r->ledger, "bias", "attention_bias", "false", "true",
                                  "qwen2 has biases of q, k and v");
    if (c->arch == NIB_ARCH_QWEN2 && r->attention_bias == 1)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "bias",
                                                      .name = "attention_bias",
                                                      .asked = "true",
                                                      .done = "true",
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_NARROWER},
                                "qwen2 has biases of q, k and v, and none of o");
    if (r->dtypes[0] != NIB_TYPE_NONE && r->dtypes[1] != NIB_TYPE_NONE &&
        r->dtypes[0] != r->dtypes[1])
        nib__ledger_add_overruled(r->ledger, "dtype", "torch_dtype", nib__type_name(r->dtypes[1]),
                                  nib__type_name(r->dtypes[0]),
                                  "dtype, its newer name, goes before it");
}

/* The reader's error, and which key it was reading. */
static nib_status config_error(const reader *r, nib_err *err)
{
    nib_err inner;
    const nib_status status = nib__json_status(&r->json, &inner);
    if (r->key[0] == 0)
        return nib__fail(err, status, "%s", inner.text);
    return nib__fail(err, status, "%s (in \"%s\")", inner.text, r->key);
}

nib_status nib__config_parse(nib_config *out, const char *name, const char *text, size_t size,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err)
{
    *out =
        (nib_config){.bos = -1, .kv_heads = NOT_GIVEN, .head_dim = NOT_GIVEN, .context = NOT_GIVEN};
    reader r = {.c = out,
                .arena = arena,
                .ledger = ledger,
                .sliding_window = NOT_GIVEN,
                .first_window_layer = NOT_GIVEN,
                .layer_types = NOT_GIVEN,
                .attention_bias = NOT_GIVEN};
    const nib_json_limits limits = {.literals = true};
    nib__json_init(&r.json, name, text, size, &limits);
    bool ok = nib__json_expect(&r.json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&r.json) == NIB_JSON_KEY) {
        nib__say_name(r.key, sizeof r.key, r.json.token, r.json.token_size);
        ok = read_key(&r);
        if (ok)
            r.key[0] = 0;
    }
    if (!ok || !nib__config_now(&r.json, NIB_JSON_OBJECT_END) ||
        nib__json_next(&r.json) != NIB_JSON_END)
        return config_error(&r, err);
    out->dtype = r.dtypes[r.dtypes[0] == NIB_TYPE_NONE];
    NIB_TRY(find_arch(&r, name, err));
    NIB_TRY(fill_absent(&r, name, err));
    NIB_TRY(nib__config_check(out, name, err));
    NIB_TRY(check_window(&r, name, err));
    NIB_TRY(find_rope_layers(&r, name, err));
    NIB_TRY(check_parts(&r, name, err));
    say_overruled(&r);
    return nib__rope_apply(out, &r.rope, name, ledger, err);
}
