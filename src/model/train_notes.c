/* SPDX-License-Identifier: Apache-2.0
 *
 * What keys of a training config do not do in this run, or not to their full extent: a line of the
 * ledger for each.
 */
#include "train_values.h"

#include <inttypes.h>
#include <stdio.h>

/* The line of a row that was given; done NULL: nothing. */
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

/* ---- keys that nothing here reads, or that a flag switches off ---- */

/* Keys that do something only where one of two flags is set. */
static const struct {
    const char *key, *flag, *other; /* other: often an older name of the flag, or the same one */
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

/* Whoever gave the row gave the other one, too. */
static bool given_with(const nib_train_reader *r, size_t row, size_t other)
{
    const unsigned by =
        (r->given[row] & NIB_GIVEN_AS_OPTION) != 0 ? NIB_GIVEN_AS_OPTION : NIB_GIVEN_IN_FILE;
    return (r->given[other] & by) != 0;
}

/* The file gave the row, and an option the other one, which then overrules it knowingly. */
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

/* The flag of a row is off; *said: whoever gave the row switched it off. */
static bool is_off(const nib_train_reader *r, size_t row, const char **flag, bool *said)
{
    for (size_t i = 0; i < COUNT(dependent); i++) {
        if (strcmp(dependent[i].key, nib__train_keys[row].name) != 0)
            continue;
        const size_t one = nib__train_key_find(dependent[i].flag);
        const size_t other = nib__train_key_find(dependent[i].other);
        *flag = dependent[i].flag;
        *said = given_with(r, row, one) || given_with(r, row, other);
        return !is_set(r, one) && !is_set(r, other);
    }
    return false;
}

/* A line for each key that changes nothing, and for each whose flag is not set. */
static void note_idle(const nib_train_reader *r)
{
    for (size_t i = 0; i < nib__train_key_count; i++) {
        const nib_train_key *k = &nib__train_keys[i];
        const bool idle = k->at == NIB_KEY_NOWHERE;
        const char *flag;
        bool said = false;
        if ((r->given[i] & NIB_GIVEN_TO_DO) == 0)
            continue;
        const bool off = is_off(r, i, &flag, &said);
        if (off && said)
            continue;
        nib_ledger_setting line = line_of(r, i, idle ? k->relation : NIB_SETTING_NONE, NULL);
        if (idle && k->least < 0 && k->instead)
            nib__ledger_add_setting(r->source->notes, &line, "%s", k->instead);
        else if (off && !idle)
            nib__ledger_add_setting(r->source->notes, &line, "%s is not set", flag);
    }
}

/* ---- the schedule ---- */

/* A decay of no steps has no form and no end. */
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

/* A warm-up that is longer than the run, and a decay that the warm-up leaves no room for. */
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
                                "%" PRId64 " of %" PRId64 " steps are left for the decay behind "
                                "the warm-up, as in torchtitan",
                                s.decay, c->steps);
    } else if (s.decay == 0) {
        note_undecayed(r);
    }
}

/* ---- sizes ---- */

/* hidden_dim is the width that these two are for computing. */
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

void nib__train_notes(const nib_train_reader *r)
{
    note_idle(r);
    note_schedule(r);
    note_sizes(r);
}
