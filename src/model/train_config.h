/* SPDX-License-Identifier: Apache-2.0
 *
 * A training config in torchtitan's sections: enough of it to plan a step. The model's dimensions
 * become a nib_config, the quantize section is a recipe's JSON.
 */
#ifndef NIB_TRAIN_CONFIG_H
#define NIB_TRAIN_CONFIG_H

#include "config.h"

typedef struct nib_train_config {
    int64_t batch, sequence; /* of one rank's micro-batch */
    char *recipe;            /* the text of the quantize section; NULL: none */
} nib_train_config;

/* Whether a JSON text is a training config: an object whose "model" is an object. */
bool nib__train_config_is(const char *text, size_t size);
nib_status nib__train_config_parse(nib_train_config *out, nib_config *model, const char *name,
                                   const char *text, size_t size, nib_arena *arena, nib_err *err);

#endif
