/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF keys that say nothing about a forward step: how tokens are drawn, which llama.cpp follows
 * too, and those of the tokenizer, of which it is known here which ones are read.
 */
#include "config_gguf.h"

#include "gguf.h"

#include <math.h>
#include <stdio.h>

static const char sampling[] = "general.sampling.", tokenizer[] = "tokenizer.";

/* ---- sampling ---- */

static nib_status take_rate(double *out, const nib_gguf *g, const char *name, double most,
                            bool zero, nib_err *err)
{
    char key[64];
    double value = 1;
    bool found;
    snprintf(key, sizeof key, "%s%s", sampling, name);
    NIB_TRY(nib__gguf_double(&value, &found, g, key, err));
    if (!found)
        return NIB_OK;
    if (!(value <= most) || value < 0 || (value == 0 && !zero))
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %g; %s %g is wanted", g->name, key, value,
                         zero ? "0 to" : "above 0 to", most);
    *out = value;
    return NIB_OK;
}

/* Keys that others switch on, and the number with which these are off. */
static const struct {
    const char *name;
    double off; /* NaN: the key alone does nothing */
} switches[] = {{"penalty_repeat", 1},  {"xtc_probability", 0},  {"mirostat", 0},
                {"xtc_threshold", NAN}, {"penalty_last_n", NAN}, {"mirostat_tau", NAN},
                {"mirostat_eta", NAN}};

/* A key of sampling that no part reads. */
static nib_status say_sampling(const nib_gguf *g, const char *key, nib_ledger *ledger, nib_err *err)
{
    static const char *const known[] = {"temp", "top_k", "top_p", "min_p"};
    const char *name = key + sizeof sampling - 1;
    char shown[96];
    double value;
    bool found;
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(known[i], name) == 0)
            return NIB_OK;
    for (size_t i = 0; i < COUNT(switches); i++) {
        if (strcmp(switches[i].name, name) != 0)
            continue;
        value = switches[i].off;
        NIB_TRY(nib__gguf_double(&value, &found, g, key, err));
        if (isnan(switches[i].off) || value == switches[i].off)
            return NIB_OK;
    }
    nib__ledger_add_unread(ledger, "generation-key", "the GGUF",
                           nib__say_name(shown, sizeof shown, key, strlen(key)), NULL);
    return NIB_OK;
}

nib_status nib__generation_gguf(nib_generation *out, const nib_gguf *g, nib_ledger *ledger,
                                nib_err *err)
{
    bool found;
    *out = nib__generation_none;
    NIB_TRY(take_rate(&out->temperature, g, "temp", NIB_TEMPERATURE_MAX, true, err));
    NIB_TRY(take_rate(&out->top_p, g, "top_p", 1, false, err));
    NIB_TRY(take_rate(&out->min_p, g, "min_p", 1, true, err));
    NIB_TRY(nib__gguf_int(&out->top_k, &found, g, "general.sampling.top_k", err));
    if (found && out->top_k < 0)
        out->top_k = 0; /* off, as 0 is */
    for (size_t i = 0; i < g->count; i++)
        if (strncmp(g->values[i]->key, sampling, sizeof sampling - 1) == 0)
            NIB_TRY(say_sampling(g, g->values[i]->key, ledger, err));
    return NIB_OK;
}

/* ---- tokenizers ---- */

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* It is read, or it only names a token that nothing here draws or puts anywhere. */
static bool is_read(const char *name)
{
    static const char *const known[] = {"chat_template",
                                        "chat_templates",
                                        "huggingface.json",
                                        "rwkv.world",
                                        "ggml.model",
                                        "ggml.pre",
                                        "ggml.tokens",
                                        "ggml.token_type",
                                        "ggml.token_type_count",
                                        "ggml.scores",
                                        "ggml.merges",
                                        "ggml.add_bos_token",
                                        "ggml.add_eos_token",
                                        "ggml.add_space_prefix",
                                        "ggml.remove_extra_whitespaces",
                                        "ggml.precompiled_charsmap"};
    const size_t size = strlen(name);
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return begins_with(name, "chat_template.") ||
           (begins_with(name, "ggml.") && size > 9 && strcmp(name + size - 9, "_token_id") == 0);
}

void nib__gguf_say_tokenizer(const nib_gguf *g, nib_ledger *ledger)
{
    char shown[96];
    for (size_t i = 0; i < g->count; i++) {
        const nib_gguf_value *v = g->values[i];
        const bool off = v->kind == NIB_GGUF_BOOL && !v->is_array && *v->at == 0;
        if (begins_with(v->key, tokenizer) && !off && !is_read(v->key + sizeof tokenizer - 1))
            nib__ledger_add_unread(ledger, "tokenizer", "the GGUF",
                                   nib__say_name(shown, sizeof shown, v->key, strlen(v->key)),
                                   NULL);
    }
}
