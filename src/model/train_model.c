/* SPDX-License-Identifier: Apache-2.0
 *
 * The model that a training config describes: a flavor of torchtitan, explicit sizes, or the
 * config.json of a model.
 */
#include "arch.h"
#include "config_values.h"
#include "train_values.h"

#include "file.h"

#include <inttypes.h>
#include <math.h>

enum { CONFIG_LIMIT = 1 << 20 };

/* torchtitan's llama3_configs, with the vocabularies of its tokenizers. model.attn_mask_type alone
 * sets the mask, so the two debug models are the same. */
static const struct flavor {
    const char *name;
    int64_t dim, layers, heads, kv_heads, vocab, multiple_of;
    double ffn_multiplier;
} flavors[] = {
    {"debugmodel", 256, 6, 16, 16, 2048, 256, 0},
    {"debugmodel_flex_attn", 256, 6, 16, 16, 2048, 256, 0},
    {"8B", 4096, 32, 32, 8, 128256, 1024, 1.3},
    {"70B", 8192, 80, 64, 8, 128256, 4096, 1.3},
    {"405B", 16384, 126, 128, 8, 128256, 4096, 1.2},
};

static nib_status fail_flavor(const nib_train_reader *r, nib_err *err)
{
    const char *names[COUNT(flavors)];
    nib_text near;
    char shown[NIB_SHOWN];
    for (size_t i = 0; i < COUNT(flavors); i++)
        names[i] = flavors[i].name;
    nib__text_init(&near, r->source->arena->allocator);
    nib__near_names(&near, r->draft.flavor, names, COUNT(names));
    const nib_status status =
        nib__fail(err, NIB_BAD_INPUT,
                  "%s: model.flavor \"%s\" is not one of debugmodel, debugmodel_flex_attn, 8B, "
                  "70B, 405B%s%s; "
                  "or give sizes one by one (model.dim, model.n_layers, ...)",
                  r->source->name, nib__escape_string(shown, r->draft.flavor),
                  near.size ? "; did you mean " : "", near.size ? near.at : "");
    nib__text_free(&near);
    return status;
}

/* Llama 3's rule: two thirds of 4 dim, times the multiplier, rounded up to a multiple. */
static int64_t ffn_width(const nib_config *m, double multiplier, int64_t multiple_of)
{
    int64_t width = 2 * 4 * m->width / 3;
    if (multiplier > 0)
        /* a product too large for the checks below need not be exact, but must fit */
        width = (int64_t)fmin(multiplier * (double)width, 0x1p50);
    return nib__round_up(width, nib__max(1, multiple_of));
}

static void set_default(int64_t *size, int64_t other)
{
    if (*size == 0)
        *size = other;
}

static nib_status check_sizes(const nib_config *m, const char *name, nib_err *err)
{
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"dim", m->width},
                 {"n_layers", m->layers},
                 {"n_heads", m->heads},
                 {"vocab_size", m->vocab}};
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i].value == 0)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: model.%s is missing, and neither model.flavor nor "
                             "model.hf_config gives it",
                             name, sizes[i].key);
    if (m->width % m->heads != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: model.dim %" PRId64 " is not a multiple of model.n_heads %" PRId64,
                         name, m->width, m->heads);
    return NIB_OK;
}

static nib_status model_from_sizes(nib_config *out, const nib_train_reader *r, nib_err *err)
{
    const nib_train_draft *d = &r->draft;
    int64_t multiple_of = d->multiple_of;
    double multiplier = d->ffn_multiplier;
    size_t i = 0;
    *out = d->model;
    out->arch = nib__family_of_params(false, false);
    out->bos = -1;
    while (d->flavor && i < COUNT(flavors) && strcmp(flavors[i].name, d->flavor) != 0)
        i++;
    if (i == COUNT(flavors))
        return fail_flavor(r, err);
    if (d->flavor) {
        const struct flavor *f = &flavors[i];
        set_default(&out->width, f->dim);
        set_default(&out->layers, f->layers);
        set_default(&out->heads, f->heads);
        set_default(&out->kv_heads, f->kv_heads);
        set_default(&out->vocab, f->vocab);
        set_default(&multiple_of, f->multiple_of);
        if (!nib__train_given(r, "model.ffn_dim_multiplier"))
            multiplier = f->ffn_multiplier;
    }
    NIB_TRY(check_sizes(out, r->source->name, err));
    set_default(&out->kv_heads, out->heads);
    set_default(&multiple_of, 256);
    if (out->ffn == 0)
        out->ffn = ffn_width(out, multiplier, multiple_of);
    out->head_dim = out->width / out->heads;
    set_default(&out->context, d->out.sequence); /* as torchtitan sets it */
    return NIB_OK;
}

/* The JSON is neither null nor 0. */
static bool is_set(const char *json)
{
    return strcmp(json, "null") != 0 && strspn(json, "0.") < strlen(json);
}

/* Whether the family has a load-balancing loss of DeepSeek's form. */
static bool balances_sequences(const nib_config *c)
{
    const nib_expert_names *names = nib__family_of(c)->experts;
    return names != NULL && names->balance_over == NIB_BALANCE_SEQUENCES;
}

/* Notes keys of a model's config that matter only for training. */
static void note_training_keys(const nib_config *c, const nib_train_reader *r, const char *text,
                               size_t size)
{
    const bool own_loss = balances_sequences(c);
    static const char *const dropouts[] = {"attention_dropout", "hidden_dropout", "attn_pdrop",
                                           "residual_dropout",  "resid_pdrop",    "embd_pdrop"};
    const bool initializes = !r->draft.out.initial_load;
    nib_json json;
    nib__json_init(&json, "", text, size, NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        const char *key = nib__json_string(&json, r->source->arena, NULL);
        nib_ledger_setting line = {
            .code = "config-key", .name = key, .by = NIB_BY_CONFIG, .relation = NIB_SETTING_OTHER};
        bool drops = false;
        for (size_t i = 0; key && i < COUNT(dropouts); i++)
            drops |= strcmp(key, dropouts[i]) == 0;
        line.asked = key ? nib__json_raw(&json, r->source->arena) : NULL;
        ok = line.asked != NULL;
        if (ok && drops && is_set(line.asked))
            nib__ledger_add_setting(r->source->notes, &line, "training uses no dropout");
        if (ok && !own_loss && strcmp(key, "aux_loss_alpha") == 0 && is_set(line.asked))
            nib__ledger_add_setting(r->source->notes, &line,
                                    "training has no loss for the balance of experts within a "
                                    "sequence");
        if (ok && initializes && strcmp(key, "initializer_range") == 0)
            nib__ledger_add_setting(r->source->notes, &line,
                                    "weights are initialized as in torchtitan, unless "
                                    "checkpoint.initial_load_path names a model");
    }
}

/* Sets the coefficient of the load-balancing loss: the key of the training config, else that of
 * config.json if it switches the loss on, as transformers does. */
static void read_balance(nib_config *out, const nib_train_reader *r, const char *text, size_t size)
{
    const nib_expert_names *names = nib__family_of(out)->experts;
    double coefficient = names != NULL ? names->balance : 0;
    bool on = false, stated = false;
    nib_json json;
    nib__json_init(&json, "", text, size, NULL);
    bool ok = names != NULL && names->balance > 0 && nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "output_router_logits")) {
            on = nib__json_next(&json) == NIB_JSON_TRUE;
        } else if (nib__json_is(&json, "router_aux_loss_coef")) {
            stated =
                nib__json_next(&json) == NIB_JSON_NUMBER && nib__json_double(&json, &coefficient);
        } else {
            ok = nib__json_skip(&json);
        }
    }
    const bool given = r->draft.out.aux_loss >= 0;
    if (names == NULL || names->balance == 0)
        return;
    out->moe.balance = given ? r->draft.out.aux_loss : on ? coefficient : 0;
    if (!stated || on || given || coefficient == 0)
        return;
    char value[32];
    const nib_ledger_setting line = {.code = "config-key",
                                     .name = "router_aux_loss_coef",
                                     .asked = nib__format_double(value, coefficient),
                                     .by = NIB_BY_CONFIG,
                                     .relation = NIB_SETTING_NONE};
    nib__ledger_add_setting(r->source->notes, &line,
                            "output_router_logits is false, which switches the load-balancing loss "
                            "off, as in transformers; model.router_aux_loss_coef sets it");
}

/* Says which key sets the coefficient of DeepSeek's loss, if config.json has one. */
static void note_own_balance(const nib_config *c, const nib_train_reader *r, double alpha)
{
    char asked[32], done[32];
    const nib_ledger_setting line = {.code = "config-key",
                                     .name = "aux_loss_alpha",
                                     .asked = nib__format_double(asked, alpha),
                                     .by = NIB_BY_CONFIG,
                                     .relation = NIB_SETTING_EQUIVALENT};
    if (alpha == 0)
        return;
    if (c->moe.balance == alpha)
        nib__ledger_add_setting(r->source->notes, &line,
                                "the load-balancing loss of each %s has this coefficient, as in "
                                "DeepSeek's own code; model.router_aux_loss_coef overrides it",
                                c->moe.whole_batches ? "micro-batch" : "sequence");
    else
        nib__ledger_add_overruled(r->source->notes, line.code, line.name, line.asked,
                                  nib__format_double(done, c->moe.balance),
                                  "model.router_aux_loss_coef, which is %s, decides", done);
}

/* Sets the coefficient of DeepSeek's load-balancing loss, which the models' own code adds in
 * training: the key of the training config, else aux_loss_alpha; absent or null: none. The loss is
 * over sequences unless seq_aux is false. */
static nib_status read_own_balance(nib_config *out, const nib_train_reader *r, const char *path,
                                   const char *text, size_t size, nib_err *err)
{
    const double most = 1000;
    double alpha = 0;
    nib_json json;
    nib__json_init(&json, "", text, size, NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        const bool is_alpha = nib__json_is(&json, "aux_loss_alpha");
        if (!is_alpha && !nib__json_is(&json, "seq_aux")) {
            ok = nib__json_skip(&json);
            continue;
        }
        const nib_json_event kind = nib__json_next(&json);
        if (kind == NIB_JSON_NULL)
            continue;
        if (is_alpha && !(kind == NIB_JSON_NUMBER && nib__json_double(&json, &alpha) &&
                          alpha >= 0 && alpha <= most))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: aux_loss_alpha is not a number from 0 to %g, the coefficient of "
                             "the load-balancing loss",
                             path, most);
        if (!is_alpha && kind != NIB_JSON_TRUE && kind != NIB_JSON_FALSE)
            return nib__fail(err, NIB_BAD_INPUT, "%s: seq_aux is not true or false", path);
        if (!is_alpha)
            out->moe.whole_batches = kind == NIB_JSON_FALSE;
    }
    out->moe.balance = r->draft.out.aux_loss >= 0 ? r->draft.out.aux_loss : alpha;
    note_own_balance(out, r, alpha);
    return NIB_OK;
}

static nib_status model_from_config(nib_config *out, const nib_train_reader *r, nib_err *err)
{
    static const char *const sizes[] = {"model.flavor",
                                        "model.dim",
                                        "model.n_layers",
                                        "model.n_heads",
                                        "model.n_kv_heads",
                                        "model.vocab_size",
                                        "model.hidden_dim",
                                        "model.multiple_of",
                                        "model.ffn_dim_multiplier",
                                        "model.norm_eps",
                                        "model.rope_theta",
                                        "model.max_seq_len",
                                        "model.name",
                                        "model.enable_weight_tying"};
    const nib_train_source *source = r->source;
    const nib_allocator *a = source->arena->allocator;
    const char *path = r->draft.hf_config;
    char *text;
    size_t size;
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (nib__train_given(r, sizes[i]))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s and model.hf_config both define the model; keep one",
                             source->name, sizes[i]);
    if (nib__path_kind(path) == NIB_PATH_DIRECTORY) {
        path = nib__path_join(source->arena, path, "config.json");
        if (!path)
            return nib__fail_memory(err, strlen(r->draft.hf_config), "a path");
    }
    NIB_TRY(nib__file_read(&text, &size, path, CONFIG_LIMIT, a, err));
    nib_status status = nib__config_parse(out, path, text, size, source->arena, source->notes, err);
    if (status == NIB_OK) {
        note_training_keys(out, r, text, size);
        read_balance(out, r, text, size);
    }
    if (status == NIB_OK && balances_sequences(out))
        status = read_own_balance(out, r, path, text, size, err);
    nib__release(a, text);
    out->quantized = false; /* training uses floats, whatever that checkpoint holds */
    return status;
}

nib_status nib__train_model(nib_config *out, const nib_train_reader *r, nib_err *err)
{
    static const nib_config_names names = {.width = "model.dim",
                                           .ffn = "model.hidden_dim",
                                           .layers = "model.n_layers",
                                           .heads = "model.n_heads",
                                           .kv_heads = "model.n_kv_heads",
                                           .head_dim = "model.dim / model.n_heads",
                                           .vocab = "model.vocab_size",
                                           .context = "model.max_seq_len",
                                           .eps = "model.norm_eps"};
    const nib_train_draft *d = &r->draft;
    NIB_TRY(d->hf_config ? model_from_config(out, r, err) : model_from_sizes(out, r, err));
    out->dtype = d->out.export_dtype; /* values derived from the type must match the exported
                                         model */
    if (nib__family_of(out)->complete != NULL)
        nib__family_of(out)->complete(out);
    out->dtype = d->out.dtype; /* type of products */
    nib__train_note_balance(r, out);
    if (d->out.draft_weight > 0)
        NIB_TRY(nib__draft_train(out, r->source->name, err));
    if (d->out.sequence > out->context)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: training.seq_len %" PRId64 " is over the model's limit of %" PRId64
                         " positions; raise %s",
                         r->source->name, d->out.sequence, out->context,
                         d->hf_config ? "max_position_embeddings" : "model.max_seq_len");
    return nib__config_check(out, r->source->name, &names, err);
}
