/* SPDX-License-Identifier: Apache-2.0
 *
 * What config.json says of rotation: at its top, in rope_scaling and in rope_parameters, which may
 * say the same thing twice.
 */
#ifndef NIB_CONFIG_ROPE_H
#define NIB_CONFIG_ROPE_H

#include "config.h"

enum { NIB_ROPE_SCALING, NIB_ROPE_PARAMETERS, NIB_ROPE_TOP, NIB_ROPE_PLACES };

enum {
    NIB_ROPE_FACTOR,
    NIB_ROPE_LOW,
    NIB_ROPE_HIGH,
    NIB_ROPE_ORIGINAL,
    NIB_ROPE_THETA,
    NIB_ROPE_PARTIAL,
    NIB_ROPE_NUMBERS
};

typedef struct nib_rope_said {
    char *type;                      /* NULL: not said */
    unsigned given[NIB_ROPE_PLACES]; /* bits of the numbers that a place has */
    double numbers[NIB_ROPE_PLACES][NIB_ROPE_NUMBERS];
} nib_rope_said;

/* The object behind a key, or null. */
bool nib__rope_read_object(nib_rope_said *said, int place, nib_json *json, nib_arena *arena);
/* The number behind a key at the top. */
bool nib__rope_read_number(nib_rope_said *said, int number, nib_json *json);
/* Writes the rotation into config, and a line for each contradiction and each number without effect
 * into ledger; NULL: no lines. */
nib_status nib__rope_apply(nib_config *config, const nib_rope_said *said, const char *name,
                           nib_ledger *ledger, nib_err *err);

#endif
