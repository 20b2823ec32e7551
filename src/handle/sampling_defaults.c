/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model's files say about generation: default sampling parameters, and the tokens that end a
 * text.
 */
#include "model_handle.h"

#include <inttypes.h>
#include <stdio.h>

/* An option that is not a number stays, to be refused. */
static double pick_value(double option, double file, double fallback)
{
    return !(option < 0) ? option : file >= 0 ? file : fallback;
}

static double asked_value(double option, double off)
{
    return option == 0 ? -1 : option < 0 ? off : option;
}

nib_sampling nib__asked_sampling(const nib_generate_options *o)
{
    return (nib_sampling){.temperature = asked_value(o->temperature, 0),
                          .top_p = asked_value(o->top_p, 1),
                          .min_p = asked_value(o->min_p, 0),
                          .repeat_penalty = asked_value(o->repeat_penalty, 1),
                          .top_k = o->top_k == 0 ? -1 : nib__max(o->top_k, 0),
                          .seed = o->seed};
}

nib_sampling nib__model_sampling(const nib_model *model, const nib_sampling *o)
{
    const nib_generation *f = &model->net.generation;
    /* do_sample false in the file means greedy, unless an option says otherwise */
    const double file_temperature = f->do_sample_given && !f->do_sample ? 0.0 : f->temperature;
    return (nib_sampling){
        .temperature = pick_value(o->temperature, file_temperature, 0.8),
        .top_p = pick_value(o->top_p, f->top_p, 0.95),
        .min_p = pick_value(o->min_p, f->min_p, 0.05),
        .repeat_penalty = pick_value(o->repeat_penalty, f->repeat_penalty, 1.0),
        .top_k = o->top_k >= 0   ? o->top_k
                 : f->top_k >= 0 ? f->top_k
                                 : 40,
        .seed = o->seed,
    };
}

void nib__report_sampling(nib_ledger *ledger, const nib_model *model, const nib_sampling *o,
                          nib_asker by)
{
    const struct {
        const char *option, *member;
        bool narrows;
        double value;
    } filters[] = {{"--top-k", "top_k", o->top_k > 0, (double)o->top_k},
                   {"--top-p", "top_p", o->top_p >= 0 && o->top_p < 1, o->top_p},
                   {"--min-p", "min_p", o->min_p > 0, o->min_p}};
    if (nib__model_sampling(model, o).temperature != 0)
        return;
    for (size_t i = 0; i < COUNT(filters); i++) {
        char asked[32];
        nib__format(asked, sizeof asked, "%g", filters[i].value);
        if (filters[i].narrows)
            nib__ledger_add_setting(ledger,
                                    &(nib_ledger_setting){.code = "sampling",
                                                          .name = by == NIB_BY_REQUEST
                                                                      ? filters[i].member
                                                                      : filters[i].option,
                                                          .asked = asked,
                                                          .by = by,
                                                          .relation = NIB_SETTING_NONE},
                                    "at temperature 0 the likeliest token is taken");
    }
}

void nib__report_max_tokens(nib_ledger *ledger, const char *name, int64_t most, int64_t prompt,
                            int64_t context, nib_asker by)
{
    /* a prompt that fills the context is still followed by one token */
    const int64_t left = nib__max(context - prompt, 1);
    char asked[24], done[24];
    if (most <= left)
        return;
    snprintf(asked, sizeof asked, "%" PRId64, most);
    snprintf(done, sizeof done, "%" PRId64, left);
    nib__ledger_add_setting(ledger,
                            &(nib_ledger_setting){.code = "context",
                                                  .name = name,
                                                  .asked = asked,
                                                  .done = done,
                                                  .by = by,
                                                  .relation = NIB_SETTING_NARROWER},
                            "the context of %" PRId64 " tokens ends the text first", context);
}

nib_status nib__model_max_tokens(int64_t *out, const nib_model *model, int64_t asked,
                                 int64_t prompt_count, nib_err *err)
{
    const nib_generation *f = &model->net.generation;
    *out = asked > 0 ? asked : INT64_MAX;
    if (asked != 0)
        return NIB_OK;
    if (f->max_new_tokens > 0) {
        *out = f->max_new_tokens; /* takes precedence over max_length, as in transformers */
        return NIB_OK;
    }
    if (f->max_length <= 0)
        return NIB_OK;
    *out = f->max_length - prompt_count;
    if (*out > 0)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT,
                     "the prompt has %" PRId64
                     " tokens, and generation_config.json ends a text at max_length %" PRId64
                     "; ask for a number of new tokens",
                     prompt_count, f->max_length);
}

int nib__model_ends(const nib_model *model, int32_t ids[NIB_EOS_MAX])
{
    const nib_config *c = &model->net.config;
    const nib_generation *f = &model->net.generation;
    const int32_t *list = f->eos_count > 0 ? f->eos : c->eos;
    const int count = f->eos_count > 0 ? f->eos_count : c->eos_count;
    memcpy(ids, list, (size_t)count * sizeof *ids);
    if (count > 0 || model->tokenizer == NULL || nib__tokenizer_eos(model->tokenizer) < 0)
        return count;
    ids[0] = nib__tokenizer_eos(model->tokenizer);
    return 1;
}
