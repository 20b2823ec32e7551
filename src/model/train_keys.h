/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of a training config: one row each, in torchtitan's sections and under its names, those
 * of May 2025 and later ones. A row says what the value may be, and where it goes in a draft, from
 * which train_config.c makes the config. A key that has no meaning here is taken, and its row says
 * why nothing changes; one that would change the result in a way that is not built takes only the
 * value that changes nothing.
 */
#ifndef NIB_TRAIN_KEYS_H
#define NIB_TRAIN_KEYS_H

#include "ledger.h"
#include "train_config.h"

typedef enum nib_key_type {
    NIB_KEY_FLAG,
    NIB_KEY_WHOLE, /* int64_t in least..most */
    NIB_KEY_REAL,  /* double in least..most */
    NIB_KEY_WORD,  /* int: which of `words` */
    NIB_KEY_TEXT,
    NIB_KEY_READ,  /* path of a file that is read: in a config it is relative to the config */
    NIB_KEY_WRITE, /* path that is written */
    NIB_KEY_LIST,  /* of texts */
    NIB_KEY_JSON,  /* any value, as it stands */
} nib_key_type;

typedef struct nib_train_key {
    const char *name; /* "training.steps"; sections may be nested */
    nib_key_type type;
    size_t at;           /* in nib_train_draft; NIB_KEY_NOWHERE: without effect */
    double least, most;  /* WHOLE, REAL; most 0 of FLAG, TEXT, LIST: only false, or empty */
    const char *words;   /* WORD: "linear|sqrt|cosine"; REAL: "null" is taken, and -1; of a key
                            without effect: the values that ask for none, NULL: every one asks */
    const char *means;   /* for documentation; NULL: another name of the row above */
    const char *instead; /* why nothing changes, or what is built, at the end of a sentence */
    nib_setting_relation
        relation; /* of a key without effect that has another value than the default */
} nib_train_key;

#define NIB_KEY_NOWHERE SIZE_MAX

extern const nib_train_key nib__train_keys[];
extern const size_t nib__train_key_count;
extern const char *const nib__train_sections[]; /* "training", "training.dataloader" */
extern const size_t nib__train_section_count;

enum { NIB_TRAIN_KEYS_MAX = 256, NIB_TRAIN_SECTIONS_MAX = 64 };

typedef struct nib_train_list {
    const char **items;
    size_t count, capacity;
    bool given;
} nib_train_list;

/* What converters and the section quantize say; NULL: not given. */
typedef struct nib_train_recipe {
    const char *recipe, *recipe_name, *other; /* other: "else" */
    const char *rules, *whole;                /* JSON; whole: another tool's config */
    nib_train_list filter_fqns, fqns, skip, only;
    bool wgrad_with_hp; /* of mx; float8 has a recipe_name for it, quantize the config's own */
} nib_train_recipe;

/* Values as they were written, before one is held against another. */
typedef struct nib_train_draft {
    nib_train_config out;
    nib_config model; /* explicit sizes; 0: not given */
    const char *flavor, *hf_config, *metrics;
    int64_t multiple_of;
    double ffn_multiplier;
    int attention, param_type, checkpointing, decay, export_type; /* words */
    nib_train_list converters;
    nib_train_recipe mx, float8, quantize;
    bool validate;
    int64_t validation_batch, validation_length;
} nib_train_draft;

/* The row of a name; SIZE_MAX: none. */
size_t nib__train_key_find(const char *name);
/* The index of a section's name; SIZE_MAX: none. */
size_t nib__train_section_find(const char *name);

#endif
