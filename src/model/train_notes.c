/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes keys of a training config that have no effect in this run, or less than they ask: one line
 * of the ledger each.
 */
#include "arch.h"
#include "train_values.h"

#include <inttypes.h>
#include <stdio.h>

/* The line for a key that was given; done NULL: nothing is done. */
static nib_ledger_setting line_of(const nib_train_reader *r, size_t row,
                                  nib_setting_relation relation, const char *done)
{
    return (nib_ledger_setting){.code = "training-key",
                                .name = nib__train_keys[row].name,
                                .asked = r->asked[row],
                                .done = done,
                                .by = nib__train_asker(r, row),
                                .relation = relation};
}

/* ---- keys without effect, or switched off by a flag ---- */

/* Keys that have an effect only if one of two flags is set. */
static const struct {
    const char *key, *flag, *other; /* other: often an older name of the flag, or the flag itself */
} dependent[] = {
    {"checkpoint.folder", "checkpoint.enable", "checkpoint.last_save_in_hf"},
    {"checkpoint.interval", "checkpoint.enable", "checkpoint.enable_checkpoint"},
    {"checkpoint.keep_latest_k", "checkpoint.enable", "checkpoint.enable_checkpoint"},
    {"checkpoint.load_step", "checkpoint.enable", "checkpoint.enable_checkpoint"},
    {"validation.dataset_path", "validation.enable", "validation.enabled"},
    {"validation.freq", "validation.enable", "validation.enabled"},
    {"validation.steps", "validation.enable", "validation.enabled"},
    {"validation.local_batch_size", "validation.enable", "validation.enabled"},
    {"validation.seq_len", "validation.enable", "validation.enabled"},
    {"metrics.save_tb_folder", "metrics.enable_tensorboard", "metrics.enable_tensorboard"},
    {"profiling.save_traces_folder", "profiling.enable_profiling", "profiling.enable_profiling"},
    {"profiling.profile_freq", "profiling.enable_profiling", "profiling.enable_profiling"},
    {"profiling.profiler_active", "profiling.enable_profiling", "profiling.enable_profiling"},
    {"profiling.profiler_warmup", "profiling.enable_profiling", "profiling.enable_profiling"},
    {"profiling.save_memory_snapshot_folder", "profiling.enable_memory_snapshot",
     "profiling.enable_memory_snapshot"},
    {"compile.components", "compile.enable", "compile.enable"},
    {"compile.backend", "compile.enable", "compile.enable"},
};

/* Whether the file or options that gave the row also gave the other one. */
static bool given_with(const nib_train_reader *r, size_t row, size_t other)
{
    const unsigned by =
        (r->given[row] & NIB_GIVEN_AS_OPTION) != 0 ? NIB_GIVEN_AS_OPTION : NIB_GIVEN_IN_FILE;
    return (r->given[other] & by) != 0;
}

/* Whether the file gave the row and an option the other one, which deliberately overrules it. */
static bool given_later(const nib_train_reader *r, size_t row, size_t other)
{
    return (r->given[row] & NIB_GIVEN_AS_OPTION) == 0 &&
           (r->given[other] & NIB_GIVEN_AS_OPTION) != 0;
}

static bool is_set(const nib_train_reader *r, size_t flag)
{
    const size_t at = nib__train_keys[flag].at;
    return at == NIB_KEY_NOWHERE ? (r->given[flag] & NIB_GIVEN_TO_DO) != 0
                                 : *(const bool *)((const char *)&r->draft + at);
}

/* Whether the flag of a row is off; *deliberate: the source of the row switched it off, too. */
static bool is_off(const nib_train_reader *r, size_t row, const char **flag, bool *deliberate)
{
    for (size_t i = 0; i < COUNT(dependent); i++) {
        if (strcmp(dependent[i].key, nib__train_keys[row].name) != 0)
            continue;
        const size_t one = nib__train_key_find(dependent[i].flag);
        const size_t other = nib__train_key_find(dependent[i].other);
        *flag = dependent[i].flag;
        *deliberate = given_with(r, row, one) || given_with(r, row, other);
        return !is_set(r, one) && !is_set(r, other);
    }
    return false;
}

/* Adds a line for each key without effect, and for each whose flag is not set. */
static void note_idle(const nib_train_reader *r)
{
    for (size_t i = 0; i < nib__train_key_count; i++) {
        const nib_train_key *k = &nib__train_keys[i];
        const bool idle = k->at == NIB_KEY_NOWHERE;
        const char *flag;
        bool deliberate = false;
        if ((r->given[i] & NIB_GIVEN_TO_DO) == 0)
            continue;
        const bool off = is_off(r, i, &flag, &deliberate);
        if (off && deliberate)
            continue;
        nib_ledger_setting line = line_of(r, i, idle ? k->relation : NIB_SETTING_NONE, NULL);
        if (idle && k->least < 0 && k->instead)
            nib__ledger_add_setting(r->source->notes, &line, "%s", k->instead);
        else if (off && !idle)
            nib__ledger_add_setting(r->source->notes, &line, "%s is not set", flag);
    }
}

/* ---- the schedule ---- */

/* A decay of zero steps ignores decay_type and the final rate. */
static void note_undecayed(const nib_train_reader *r)
{
    static const char *const keys[] = {"lr_scheduler.decay_type", "lr_scheduler.min_lr_factor",
                                       "lr_scheduler.lr_min"};
    const size_t ratio = nib__train_key_find("lr_scheduler.decay_ratio");
    for (size_t i = 0; i < COUNT(keys); i++) {
        const size_t row = nib__train_key_find(keys[i]);
        if (r->given[row] == 0 || (r->given[ratio] != 0 && given_later(r, row, ratio)))
            continue;
        const nib_ledger_setting line = line_of(r, row, NIB_SETTING_NONE, NULL);
        nib__ledger_add_setting(r->source->notes, &line, "no step of this run decays");
    }
}

/* Notes a warm-up longer than the run, and a decay that does not fit after the warm-up. */
static void note_schedule(const nib_train_reader *r)
{
    const nib_train_config *c = &r->draft.out;
    const nib_train_stages s = nib__train_stages(c);
    const size_t warmup = nib__train_key_find("lr_scheduler.warmup_steps"),
                 ratio = nib__train_key_find("lr_scheduler.decay_ratio");
    char steps[24];
    snprintf(steps, sizeof steps, "%" PRId64, s.warmup);
    if (s.warmup < c->warmup && r->given[warmup] != 0) {
        const nib_ledger_setting line = line_of(r, warmup, NIB_SETTING_NARROWER, steps);
        nib__ledger_add_setting(r->source->notes, &line,
                                "shortened to the steps of the run, as torchtitan does");
    }
    if (s.decay < s.asked_decay && r->given[ratio] != 0) {
        const nib_ledger_setting line = line_of(r, ratio, NIB_SETTING_NARROWER, NULL);
        nib__ledger_add_setting(r->source->notes, &line,
                                "%" PRId64 " of %" PRId64 " steps are left for the decay after "
                                "the warm-up, as in torchtitan",
                                s.decay, c->steps);
    } else if (s.decay == 0) {
        note_undecayed(r);
    }
}

/* ---- sizes ---- */

/* model.hidden_dim replaces the width that these two keys compute. */
static void note_sizes(const nib_train_reader *r)
{
    static const char *const keys[] = {"model.multiple_of", "model.ffn_dim_multiplier"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        const size_t row = nib__train_key_find(keys[i]);
        const size_t width = nib__train_key_find("model.hidden_dim");
        if (r->given[row] == 0 || r->given[width] == 0 || given_later(r, row, width))
            continue;
        const nib_ledger_setting line = line_of(r, row, NIB_SETTING_NONE, NULL);
        nib__ledger_add_setting(r->source->notes, &line, "model.hidden_dim is given");
    }
}

/* ---- experts ---- */

/* other: how the experts are balanced instead; NULL: they are not. */
static void note_unbalanced(const nib_train_reader *r, const char *key, const nib_config *model,
                            bool has, const char *other)
{
    const size_t row = nib__train_key_find(key);
    if (has || r->given[row] == 0)
        return;
    const nib_ledger_setting line = line_of(r, row, NIB_SETTING_NONE, NULL);
    if (model->moe.experts == 0)
        nib__ledger_add_setting(r->source->notes, &line, "the model has no experts");
    else if (other == NULL)
        nib__ledger_add_setting(r->source->notes, &line,
                                "training does not balance the experts of %s",
                                nib__arch_name(model->arch));
    else
        nib__ledger_add_setting(r->source->notes, &line, "the experts of %s are balanced by %s",
                                nib__arch_name(model->arch), other);
}

void nib__train_note_balance(const nib_train_reader *r, const nib_config *model)
{
    const nib_expert_names *names = nib__family_of(model)->experts;
    const bool bias = names != NULL && names->choice_bias != NULL,
               loss = names != NULL &&
                      (names->balance > 0 || names->balance_over == NIB_BALANCE_SEQUENCES);
    note_unbalanced(r, "model.load_balance_coeff", model, bias,
                    loss ? "a loss, model.router_aux_loss_coef" : NULL);
    note_unbalanced(r, "model.router_aux_loss_coef", model, loss,
                    bias ? "a bias, model.load_balance_coeff" : NULL);
}

void nib__train_notes(const nib_train_reader *r)
{
    note_idle(r);
    note_schedule(r);
    note_sizes(r);
}
