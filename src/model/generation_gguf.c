/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF keys that matter for generating text, not for a forward step: sampling and the tokenizer.
 */
#include "config_gguf.h"

#include "gguf.h"

#include <math.h>
#include <stdio.h>

/* ---- sampling ---- */

static const char sampling[] = "general.sampling.";

static nib_status read_rate(double *out, const nib_gguf *g, const char *name, double most,
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
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s is %g; %s %g is expected", g->name, key, value,
                         zero ? "0 to" : "above 0 and at most", most);
    *out = value;
    return NIB_OK;
}

/* Keys of samplers that are off by default, and the value that keeps each off. */
static const struct {
    const char *name;
    double off; /* NaN: has no effect without the others */
} switches[] = {{"penalty_repeat", 1},  {"xtc_probability", 0},  {"mirostat", 0},
                {"xtc_threshold", NAN}, {"penalty_last_n", NAN}, {"mirostat_tau", NAN},
                {"mirostat_eta", NAN}};

/* Reports a sampling key that nothing reads. */
static nib_status report_sampling(const nib_gguf *g, const char *key, nib_ledger *ledger,
                                  nib_err *err)
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
                           nib__escape_name(shown, sizeof shown, key, strlen(key)), NULL);
    return NIB_OK;
}

nib_status nib__generation_gguf(nib_generation *out, const nib_gguf *g, nib_ledger *ledger,
                                nib_err *err)
{
    bool found;
    *out = nib__generation_none;
    NIB_TRY(read_rate(&out->temperature, g, "temp", NIB_TEMPERATURE_MAX, true, err));
    NIB_TRY(read_rate(&out->top_p, g, "top_p", 1, false, err));
    NIB_TRY(read_rate(&out->min_p, g, "min_p", 1, true, err));
    NIB_TRY(nib__gguf_int(&out->top_k, &found, g, "general.sampling.top_k", err));
    if (found && out->top_k < 0)
        out->top_k = 0; /* negative is off, like 0 */
    for (size_t i = 0; i < g->count; i++)
        if (strncmp(g->values[i]->key, sampling, sizeof sampling - 1) == 0)
            NIB_TRY(report_sampling(g, g->values[i]->key, ledger, err));
    return NIB_OK;
}

/* ---- tokenizer ---- */

static const char tokenizer[] = "tokenizer.";

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* The key is read, or only names a token that is never drawn or inserted. */
static bool is_tokenizer_key_read(const char *name)
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

void nib__gguf_report_tokenizer(const nib_gguf *g, nib_ledger *ledger)
{
    char shown[96];
    for (size_t i = 0; i < g->count; i++) {
        const nib_gguf_value *v = g->values[i];
        const bool off = v->kind == NIB_GGUF_BOOL && !v->is_array && *v->at == 0;
        if (begins_with(v->key, tokenizer) && !off &&
            !is_tokenizer_key_read(v->key + sizeof tokenizer - 1))
            nib__ledger_add_unread(ledger, "tokenizer", "the GGUF",
                                   nib__escape_name(shown, sizeof shown, v->key, strlen(v->key)),
                                   NULL);
    }
}
