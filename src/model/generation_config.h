/* SPDX-License-Identifier: Apache-2.0
 *
 * generation_config.json: the sampling settings that a model's authors recommend, and the ids that
 * end a text.
 */
#ifndef NIB_GENERATION_CONFIG_H
#define NIB_GENERATION_CONFIG_H

#include "config.h"

enum { NIB_TEMPERATURE_MAX = 100, NIB_REPEAT_PENALTY_MAX = 100 };

/* Negative, or a count of 0: not given. */
typedef struct nib_generation {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k;
    int64_t max_new_tokens, max_length; /* max_length includes the prompt */
    bool do_sample, do_sample_given;
    int32_t eos[NIB_EOS_MAX];
    int eos_count;
} nib_generation;

extern const nib_generation nib__generation_none;

/* `name` is for messages. A key that is not followed is a note of the ledger (NULL allowed). */
nib_status nib__generation_parse(nib_generation *out, const char *name, const char *text,
                                 size_t size, nib_ledger *ledger, nib_err *err);

#endif
