/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads config.json key by key. Ranges are checked once at the end, where the sentence
 * can name two values that disagree.
 */
#include "arch.h"
#include "config_keys.h"
#include "config_layers.h"
#include "config_rope.h"
#include "config_values.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* No model comes near these (Llama 3.1 405B has 126 layers). With them sizes of all weights in bits
 * fit 64 bits, and a plan, which lists every layer, takes seconds at most. */
enum { SIZE_LIMIT = 1 << 24 };
static const double WEIGHTS_LIMIT = 0x1p50;

static const char *const rope_names[] = {[NIB_ROPE_PLAIN] = "default",
                                         [NIB_ROPE_LLAMA3] = "llama3",
                                         [NIB_ROPE_LINEAR] = "linear",
                                         [NIB_ROPE_YARN] = "yarn",
                                         [NIB_ROPE_LONGROPE] = "longrope"};

const char *nib__rope_name(nib_rope_kind rope) { return rope_names[rope]; }

enum { NOT_GIVEN = -1 /* 0: given as null */ };

/* Everything that is read before it is judged. */
typedef struct reader {
    nib_config *c;
    nib_json json;
    nib_arena *arena;
    nib_ledger *ledger;
    char key[64];               /* being read, for messages; empty between */
    char *model_type, *acts[2]; /* hidden_act, hidden_activation */
    char *class_name;           /* the first of architectures */
    nib_rope_said rope;
    nib_layers_said of_layers;
    nib_keys_said keys;
    int64_t attention_bias;
    int64_t longest;  /* model_max_length */
    unsigned classes; /* bits of the architectures whose class is named */
    bool tied_given;
    double eps[NIB_EPS_KEYS]; /* NOT_GIVEN */
    nib_type dtypes[2];       /* dtype and torch_dtype, its older name */
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
                                       "problem_type",
                                       "cache_implementation",
                                       "embedding_dropout",
                                       "use_embedding_sharing",
                                       "use_parallel_embedding",
                                       "attention_softmax_in_fp32",
                                       "scale_attention_softmax_in_fp32",
                                       "layer_norm_epsilon", /* of GPT-2, which no family reads */
                                       "tokenizer_class"};

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
        {"max_window_layers", &r->of_layers.first_window},
        {"model_max_length", &r->longest},
        {"no_rope_layer_interval", &r->of_layers.rotate_interval},
    };
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (nib__json_is(j, sizes[i].key)) {
            *sizes[i].out = 0; /* null */
            return nib__config_size(j, sizes[i].out);
        }
    if (nib__json_is(j, "model_type"))
        return read_text(r, &r->model_type);
    if (nib__json_is(j, "hidden_act"))
        return read_text(r, &r->acts[0]);
    if (nib__json_is(j, "hidden_activation"))
        return read_text(r, &r->acts[1]);
    for (int i = 0; i < NIB_EPS_KEYS; i++)
        if (nib__json_is(j, nib__eps_keys[i]))
            return nib__config_number(j, &r->eps[i]);
    if (nib__json_is(j, "rope_theta"))
        return nib__rope_read_number(&r->rope, NIB_ROPE_THETA, j);
    if (nib__json_is(j, "partial_rotary_factor"))
        return nib__rope_read_number(&r->rope, NIB_ROPE_PARTIAL, j);
    if (nib__json_is(j, "original_max_position_embeddings"))
        return nib__rope_read_number(&r->rope, NIB_ROPE_ORIGINAL, j);
    if (nib__json_is(j, "rope_scaling"))
        return nib__rope_read_object(&r->rope, NIB_ROPE_SCALING, j, r->arena);
    if (nib__json_is(j, "rope_parameters"))
        return nib__rope_read_object(&r->rope, NIB_ROPE_PARAMETERS, j, r->arena);
    if (nib__json_is(j, "layer_types"))
        return nib__layers_read_types(&r->of_layers, j, r->arena);
    if (nib__json_is(j, "sliding_window"))
        return nib__layers_read_window(&r->of_layers, j);
    if (nib__json_is(j, "sliding_window_pattern") || nib__json_is(j, "_sliding_window_pattern"))
        return nib__layers_read_pattern(&r->of_layers, j, r->arena);
    if (nib__json_is(j, "quantization_config")) {
        const char *raw = nib__json_raw(j, r->arena);
        c->quantized = raw != NULL && *raw == '{';
        return raw != NULL;
    }
    if (nib__json_is(j, "no_rope_layers"))
        return nib__layers_read_rotates(&r->of_layers, j, r->arena);
    if (nib__json_is(j, "tie_word_embeddings")) {
        r->tied_given = true;
        return nib__config_flag(j, &c->tied);
    }
    if (nib__json_is(j, "mlp_bias"))
        return nib__config_flag(j, &c->mlp_bias);
    if (nib__json_is(j, "use_sliding_window"))
        return nib__config_flag(j, &r->of_layers.use_window);
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
    if (nib__keys_know(j))
        return nib__keys_read(&r->keys, j);
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
    char shown[64], names[320];
    size_t i = 0;
    while (nib__family_at(i) != NULL && strcmp(nib__family_at(i)->name, r->model_type) != 0)
        i++;
    if (nib__family_at(i) == NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: the architecture \"%s\" is not supported; %s are", name,
                         nib__say_name(shown, sizeof shown, r->model_type, strlen(r->model_type)),
                         nib__family_names(names, sizeof names));
    nib_config *c = r->c;
    const nib_family_row *family = nib__family_at(i);
    const bool bias = r->attention_bias == NOT_GIVEN ? family->absent.bias : r->attention_bias == 1;
    c->arch = (nib_arch)i;
    c->qk_norm = family->head_norms;
    c->qkv_bias =
        (bias && family->biases != NIB_BIASES_OWN) || family->biases == NIB_BIASES_QKV_ALWAYS;
    c->o_bias = bias && family->biases == NIB_BIASES_ALL;
    return NIB_OK;
}

/* What is not given, as transformers takes it. */
static nib_status fill_absent(reader *r, const char *name, nib_err *err)
{
    nib_config *c = r->c;
    const nib_family_row *family = nib__family_of(c);
    c->norm_eps = r->eps[family->eps] != NOT_GIVEN ? r->eps[family->eps] : family->absent.norm_eps;
    c->rope_theta = family->absent.rope_theta;
    c->rope_interleaved = family->interleaved;
    if (c->heads == 0)
        c->heads = family->absent.heads;
    if (c->vocab == 0)
        c->vocab = family->absent.vocab;
    if (!r->tied_given)
        c->tied = family->absent.tied;
    if (c->kv_heads == NOT_GIVEN)
        c->kv_heads = family->absent.kv_heads;
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->context == NOT_GIVEN)
        c->context = family->absent.context;
    if (r->of_layers.first_window == NOT_GIVEN)
        r->of_layers.first_window = family->absent.first_window;
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

/* hidden_activation, Gemma's newer name, goes before hidden_act. */
static nib_status check_act(const reader *r, const char *name, nib_err *err)
{
    const nib_family_row *family = nib__family_of(r->c);
    const char *wanted = family->act != NULL ? family->act : "silu",
               *act = r->acts[1] != NULL ? r->acts[1] : r->acts[0],
               *older = family->act == NULL ? "swish" : family->older_act;
    char shown[64];
    if (act == NULL || strcmp(act, wanted) == 0 || (older != NULL && strcmp(act, older) == 0))
        return NIB_OK;
    return nib__fail(err, NIB_UNSUPPORTED, "%s: %s is \"%s\"; only %s is built for %s", name,
                     r->acts[1] != NULL ? "hidden_activation" : "hidden_act",
                     nib__say_name(shown, sizeof shown, act, strlen(act)), wanted,
                     nib__arch_name(r->c->arch));
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
        {"num_hidden_layers", c->layers, NIB_LAYERS_MAX},
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
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %g; a number between 0 and 1 is wanted",
                         name, nib__eps_keys[nib__family_of(c)->eps], c->norm_eps);
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
    for (int i = 0; i < NIB_EPS_KEYS; i++)
        if (r->eps[i] != NOT_GIVEN && i != (int)nib__family_of(c)->eps)
            nib__ledger_add_unread(r->ledger, "config-key", "config.json", nib__eps_keys[i],
                                   nib__say_double(asked, r->eps[i]));
    if (r->longest > 0 && r->longest != c->context)
        nib__ledger_add_overruled(r->ledger, "context", "model_max_length",
                                  nib__say_double(asked, (double)r->longest),
                                  nib__say_double(done, (double)c->context),
                                  "max_position_embeddings is the longest context");
}

/* What config.json says and another of its keys, or the architecture, overrules. */
static void say_overruled(const reader *r)
{
    const nib_config *c = r->c;
    say_class(r);
    say_numbers(r);
    const bool always = nib__family_of(c)->biases == NIB_BIASES_QKV_ALWAYS;
    if (nib__family_of(c)->biases == NIB_BIASES_OWN && r->attention_bias == 1)
        nib__ledger_add_unread(r->ledger, "config-key", "config.json", "attention_bias", "true");
    if (always && r->attention_bias == 0)
        nib__ledger_add_overruled(r->ledger, "bias", "attention_bias", "false", "true",
                                  "%s has biases of q, k and v", nib__arch_name(c->arch));
    if (always && r->attention_bias == 1)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "bias",
                                                      .name = "attention_bias",
                                                      .asked = "true",
                                                      .done = "true",
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_NARROWER},
                                "%s has biases of q, k and v, and none of o",
                                nib__arch_name(c->arch));
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
                .eps = {NOT_GIVEN, NOT_GIVEN, NOT_GIVEN},
                .of_layers = {.window = NIB_LAYERS_UNSAID,
                              .first_window = NOT_GIVEN,
                              .pattern = NIB_LAYERS_UNSAID,
                              .type_count = NIB_LAYERS_UNSAID},
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
    NIB_TRY(nib__layers_apply(out, &r.of_layers, name, arena, ledger, err));
    NIB_TRY(nib__keys_apply(out, &r.keys, name, err));
    NIB_TRY(check_act(&r, name, err));
    say_overruled(&r);
    NIB_TRY(nib__rope_apply(out, &r.rope, name, ledger, err));
    if (nib__family_of(out)->complete != NULL)
        nib__family_of(out)->complete(out);
    return NIB_OK;
}
