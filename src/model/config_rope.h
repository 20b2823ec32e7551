/* SPDX-License-Identifier: Apache-2.0
 *
 * RoPE settings of config.json: at its top level, in rope_scaling and in rope_parameters, which may
 * repeat each other.
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
    NIB_ROPE_FAST,
    NIB_ROPE_SLOW,
    NIB_ROPE_TRUNCATE, /* a flag */
    NIB_ROPE_GAIN,
    NIB_ROPE_MSCALE,
    NIB_ROPE_MSCALE_ALL,
    NIB_ROPE_BETA,
    NIB_ROPE_CONTEXT,
    NIB_ROPE_NUMBERS
};

enum { NIB_ROPE_SHORT, NIB_ROPE_LONG, NIB_ROPE_LISTS };

typedef struct nib_rope_list {
    const float *values; /* NULL: absent */
    int64_t count;
} nib_rope_list;

typedef struct nib_rope_given {
    char *type;                      /* NULL: absent */
    unsigned given[NIB_ROPE_PLACES]; /* bit per number that a place has */
    double numbers[NIB_ROPE_PLACES][NIB_ROPE_NUMBERS];
    nib_rope_list lists[NIB_ROPE_PLACES][NIB_ROPE_LISTS];
    bool sections;                  /* the family may have mrope_section and mrope_interleaved */
    nib_rope_list section_list;     /* mrope_section */
    bool inside;                    /* reading the object of one kind of layers */
    struct nib_rope_given *sliding; /* settings of layers with a window; NULL: none */
} nib_rope_given;

/* Reads the object after a key, or null. */
bool nib__rope_read_object(nib_rope_given *rope, int place, nib_json *json, nib_arena *arena);
/* Reads the number after a top-level key. */
bool nib__rope_read_number(nib_rope_given *rope, int number, nib_json *json);
/* NIB_BAD_INPUT: a number is out of its range. name: of the file. */
nib_status nib__rope_check(const nib_config *config, const char *name, nib_err *err);
/* YaRN's attention factor for a context `factor` times as long, by which transformers multiplies
 * cosines and sines. mscale: DeepSeek's; 1: as in the paper. */
double nib__rope_yarn_gain(double factor, double mscale);
/* Sets RoPE in config, and adds a line to ledger for each contradiction and each number without
 * effect; NULL: no lines. */
nib_status nib__rope_apply(nib_config *config, const nib_rope_given *rope, const char *name,
                           nib_ledger *ledger, nib_err *err);
/* If config->rope_divisors are those of the rope type "proportional", sets that type instead: they
 * are 1, and at least 1e30 for the last pairs, which do not rotate. */
void nib__rope_find_proportional(nib_config *config, int64_t pairs);

#endif
