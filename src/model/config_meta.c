/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads params.json by one table of keys. Values that Meta's programs compute from it (width of the
 * MLP, RoPE scaling) are computed here; values they have built in (context, token ids) are filled
 * in with a note.
 */
#include "config_meta.h"

#include "arch.h"
#include "config_values.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { SIZE_LIMIT = 1 << 24, LLAMA3_VOCAB = 128256 };

/* Everything read from the file, before it is checked; 0: absent. */
typedef struct reader {
    nib_config *c;
    nib_json json;
    nib_ledger *ledger;
    int64_t multiple_of, sliding_window;
    double ffn_multiplier, scale_factor;
    double thetas[2]; /* rope_theta and rope_freq_base */
    int bos_count;
    bool scaled_rope, spinquant;
} reader;

/* Keys that cannot change a forward step. */
static const char *const harmless[] = {"dropout",
                                       "max_batch_size",
                                       "use_hf_rope" /* rotary.c reads it */,
                                       "use_kv_cache",
                                       "enable_dynamic_shape",
                                       "generate_full_logits",
                                       "model_parallel_size",
                                       "lora_args" /* the weights show whether there are
                                                      adapters */};

/* Keys that change it in an unsupported way, unless false or null. */
static const char *const changing[] = {"moe",
                                       "num_experts",
                                       "n_experts",
                                       "vision_chunk_size",
                                       "vision_args",
                                       "partial_rotary_factor",
                                       "qk_norm",
                                       "local_rope_theta",
                                       "no_rope_layer_interval"};

static bool is_listed(const nib_json *json, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (nib__json_is(json, names[i]))
            return true;
    return false;
}

/* quantization_args: the weights tell the scheme; spinquant needs an extra operation. */
static bool read_quantization(reader *r)
{
    nib_json *j = &r->json;
    if (nib__json_next(j) == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(j, NIB_JSON_OBJECT))
        return false;
    while (nib__json_next(j) == NIB_JSON_KEY) {
        r->c->quantized = true;
        const bool spinquant = nib__json_is(j, "spinquant");
        if (!(spinquant ? nib__config_flag(j, &r->spinquant) : nib__json_skip(j)))
            return false;
    }
    return nib__config_check_event(j, NIB_JSON_OBJECT_END);
}

static bool read_changing(reader *r)
{
    const nib_json_event event = nib__json_next(&r->json);
    if (event == NIB_JSON_NULL || event == NIB_JSON_FALSE)
        return true;
    nib__json_fail(&r->json, "this key changes the result and is not supported");
    return false;
}

/* vocab_size is -1 if the tokenizer determines it. */
static bool read_vocab(reader *r)
{
    const nib_json_event event = nib__json_next(&r->json);
    int64_t vocab = -1;
    if (event == NIB_JSON_NULL)
        return true;
    if (!nib__config_check_event(&r->json, NIB_JSON_NUMBER) || !nib__json_int64(&r->json, &vocab))
        return false;
    if (vocab < 1 && vocab != -1)
        nib__json_fail(&r->json, "%" PRId64 " is given; at least 1 is expected, or -1", vocab);
    r->c->vocab = vocab < 0 ? 0 : vocab;
    return r->json.event != NIB_JSON_ERROR;
}

static bool read_key(reader *r)
{
    nib_config *c = r->c;
    nib_json *j = &r->json;
    const struct {
        const char *key;
        int64_t *out;
    } sizes[] = {{"dim", &c->width},
                 {"n_layers", &c->layers},
                 {"n_heads", &c->heads},
                 {"n_kv_heads", &c->kv_heads},
                 {"head_dim", &c->head_dim},
                 {"hidden_dim", &c->ffn},
                 {"max_seq_len", &c->context},
                 {"multiple_of", &r->multiple_of},
                 {"sliding_window", &r->sliding_window}};
    const struct {
        const char *key;
        double *out;
    } numbers[] = {{"norm_eps", &c->norm_eps},
                   {"rope_theta", &r->thetas[0]},
                   {"rope_freq_base", &r->thetas[1]},
                   {"ffn_dim_multiplier", &r->ffn_multiplier},
                   {"rope_scaling_factor", &r->scale_factor},
                   {"rope_scale_factor", &r->scale_factor},
                   {"low_freq_factor", &c->rope_low},
                   {"high_freq_factor", &c->rope_high}};
    const struct {
        const char *key;
        bool *out;
    } flags[] = {{"use_scaled_rope", &r->scaled_rope},
                 {"attention_qkv_bias", &c->qkv_bias},
                 {"use_qk_norm", &c->qk_norm}};
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (nib__json_is(j, sizes[i].key))
            return nib__config_count(j, sizes[i].out);
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (nib__json_is(j, numbers[i].key))
            return nib__config_positive(j, numbers[i].out);
    for (size_t i = 0; i < COUNT(flags); i++)
        if (nib__json_is(j, flags[i].key))
            return nib__config_flag(j, flags[i].out);
    if (nib__json_is(j, "vocab_size"))
        return read_vocab(r);
    if (nib__json_is(j, "bos_idx"))
        return nib__config_ids(j, &c->bos, 1, &r->bos_count);
    if (nib__json_is(j, "eos_idx"))
        return nib__config_ids(j, c->eos, NIB_EOS_MAX, &c->eos_count);
    if (nib__json_is(j, "quantization_args"))
        return read_quantization(r);
    if (is_listed(j, changing, COUNT(changing)))
        return read_changing(r);
    if (is_listed(j, harmless, COUNT(harmless)))
        return nib__json_skip(j);
    char shown[64];
    nib_json_value value;
    nib__escape_name(shown, sizeof shown, j->token, j->token_size);
    if (!nib__json_any(j, &value))
        return false;
    if (value.event != NIB_JSON_NULL && !value.empty)
        nib__ledger_add_unread(r->ledger, "config-key", "params.json", shown, value.shown);
    return true;
}

/* ---- derived values ---- */

/* Two thirds of four widths, times a factor, rounded up. Meta's code truncates twice, so this does,
 * too. */
static nib_status derive_ffn(reader *r, const char *name, nib_err *err)
{
    nib_config *c = r->c;
    if (c->ffn != 0 || c->width < 1 || c->width > SIZE_LIMIT) /* nib__config_check names dim */
        return NIB_OK;
    if (r->multiple_of > SIZE_LIMIT)
        return nib__fail(err, NIB_BAD_INPUT, "%s: multiple_of is %" PRId64 "; 1 to %d is expected",
                         name, r->multiple_of, SIZE_LIMIT);
    const double factor = r->ffn_multiplier > 0 ? r->ffn_multiplier : 1;
    const double hidden = floor(factor * floor(2.0 * (double)(4 * c->width) / 3.0));
    if (hidden >= 1 && hidden <= SIZE_LIMIT)
        c->ffn = nib__round_up((int64_t)hidden, r->multiple_of);
    if (c->ffn < 1 || c->ffn > SIZE_LIMIT)
        return nib__fail(
            err, NIB_BAD_INPUT,
            "%s: ffn_dim_multiplier %g, times two thirds of 4 * dim, gives the MLP a width "
            "of %g; 1 to %d is expected",
            name, factor, c->ffn > SIZE_LIMIT ? (double)c->ffn : hidden, SIZE_LIMIT);
    return NIB_OK;
}

/* Reports a number that has no effect; 0: it is absent. */
static void report_rope(reader *r, const char *name, double asked, const char *text)
{
    char value[32];
    nib__format(value, sizeof value, "%g", asked);
    if (asked > 0)
        nib__ledger_add_overruled(r->ledger, "rope", name, value, NULL, "%s", text);
}

/* Llama 3.2's small models scale by 32, which their params.json omits. */
static void derive_rope(reader *r)
{
    nib_config *c = r->c;
    const bool small =
        (c->width == 2048 && c->layers == 16) || (c->width == 3072 && c->layers == 28);
    if (r->thetas[0] > 0 && r->thetas[1] > 0 && r->thetas[0] != r->thetas[1])
        report_rope(r, "rope_freq_base", r->thetas[1],
                    "rope_theta is given, too, and takes precedence");
    if (r->thetas[0] > 0 || r->thetas[1] > 0)
        c->rope_theta = r->thetas[r->thetas[0] > 0 ? 0 : 1];
    if (!r->scaled_rope) {
        report_rope(r, "rope_scaling_factor", r->scale_factor, "use_scaled_rope is not true");
        report_rope(r, "low_freq_factor", c->rope_low, "use_scaled_rope is not true");
        report_rope(r, "high_freq_factor", c->rope_high, "use_scaled_rope is not true");
        return;
    }
    c->rope = NIB_ROPE_LLAMA3;
    c->rope_original = 8192;
    c->rope_factor = r->scale_factor > 0 ? r->scale_factor : small ? 32 : 8;
    c->rope_low = c->rope_low > 0 ? c->rope_low : 1;
    c->rope_high = c->rope_high > 0 ? c->rope_high : 4;
    if (r->scale_factor == 0 && r->ledger != NULL)
        nib__ledger_add_setting(r->ledger,
                                &(nib_ledger_setting){.code = "rope",
                                                      .name = "use_scaled_rope",
                                                      .asked = "true",
                                                      .by = NIB_BY_CONFIG,
                                                      .relation = NIB_SETTING_EQUIVALENT},
                                "params.json does not give the factor; %g is used, as in Hugging "
                                "Face's config of this size",
                                c->rope_factor);
}

static void derive_context(reader *r)
{
    nib_config *c = r->c;
    if (c->context > 0)
        return;
    c->context = r->scaled_rope ? 131072 : c->rope_theta >= 500000 ? 8192 : 2048;
    nib__ledger_add_setting(r->ledger,
                            &(nib_ledger_setting){.code = "context",
                                                  .name = "context",
                                                  .by = NIB_BY_DEFAULT,
                                                  .relation = NIB_SETTING_EQUIVALENT},
                            "params.json does not give the longest context; %" PRId64
                            " is used, as in models with this rope_theta",
                            c->context);
}

/* Begin and end tokens of Meta's tokenizers: Llama 3's, or SentencePiece before it. */
static void derive_tokens(nib_config *c)
{
    static const int32_t llama3_ends[] = {128001, 128008, 128009};
    const bool llama3 = c->vocab == LLAMA3_VOCAB;
    if (c->bos < 0)
        c->bos = llama3 ? 128000 : 1;
    if (c->eos_count > 0)
        return;
    c->eos[0] = 2;
    c->eos_count = 1;
    if (!llama3)
        return;
    memcpy(c->eos, llama3_ends, sizeof llama3_ends);
    c->eos_count = (int)COUNT(llama3_ends);
}

static nib_status derive(reader *r, const nib_checkpoint *cp, const char *name, nib_err *err)
{
    static const nib_config_names names = {.width = "dim",
                                           .ffn = "hidden_dim",
                                           .layers = "n_layers",
                                           .heads = "n_heads",
                                           .kv_heads = "n_kv_heads",
                                           .head_dim = "head_dim",
                                           .vocab = "vocab_size",
                                           .context = "max_seq_len",
                                           .eps = "norm_eps"};
    nib_config *c = r->c;
    const nib_tensor *embed = nib__checkpoint_find(cp, "model.embed_tokens.weight"),
                     *head = nib__checkpoint_find(cp, "lm_head.weight");
    c->arch = nib__family_of_params(c->qkv_bias, c->qk_norm);
    if (c->vocab == 0 && embed != NULL && embed->rank == 2)
        c->vocab = embed->shape[0];
    NIB_TRY(nib__config_derive(c, name, &names, err));
    c->tied = head == NULL || head == embed;
    NIB_TRY(derive_ffn(r, name, err));
    derive_rope(r);
    derive_context(r);
    derive_tokens(c);
    if (r->spinquant)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: spinquant is true: the inputs of feed_forward.w2 need a Hadamard "
                         "rotation, which is not supported; without it the model writes "
                         "nonsense; the weights can still be listed, verified and converted",
                         name);
    if (r->sliding_window > 0 && r->sliding_window < c->context)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: attention is limited to a sliding window of %" PRId64
                         " positions, which is not supported",
                         name, r->sliding_window);
    return nib__config_check(c, name, &names, err);
}

nib_status nib__config_meta(nib_config *out, const nib_checkpoint *checkpoint, nib_ledger *ledger,
                            nib_err *err)
{
    static const char name[] = "params.json";
    const char *text = nib__checkpoint_params(checkpoint);
    const nib_json_limits limits = {.literals = true};
    *out = (nib_config){.rope_theta = 10000.0, .norm_eps = 1e-5, .bos = -1};
    reader r = {.c = out, .ledger = ledger, .multiple_of = 256};
    nib__json_init(&r.json, name, text, strlen(text), &limits);
    bool ok = nib__json_expect(&r.json, NIB_JSON_OBJECT);
    char key[64] = "";
    while (ok && nib__json_next(&r.json) == NIB_JSON_KEY) {
        nib__escape_name(key, sizeof key, r.json.token, r.json.token_size);
        ok = read_key(&r);
    }
    if (!ok || r.json.event != NIB_JSON_OBJECT_END || nib__json_next(&r.json) != NIB_JSON_END) {
        nib_err inner = {NIB_OK, ""};
        const nib_status status = nib__json_status(&r.json, &inner);
        return nib__fail(err, status, "%s (in \"%s\")", inner.text, key);
    }
    return derive(&r, checkpoint, name, err);
}
