/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of a training config: one row each, with torchtitan's sections and names, those of May
 * 2025 and later ones. A row says which values are allowed and where the value goes in a draft,
 * from which train_config.c makes the config. A key that has no meaning in Nibble is accepted, and
 * its row says why it changes nothing. A key that would change the result in an unsupported way
 * accepts only the value that changes nothing.
 */
#ifndef NIB_TRAIN_KEYS_H
#define NIB_TRAIN_KEYS_H

#include "ledger.h"
#include "train_config.h"

typedef enum nib_key_type {
    NIB_KEY_FLAG,
    NIB_KEY_WHOLE, /* int64_t in least..most */
    NIB_KEY_REAL,  /* double in least..most */
    NIB_KEY_WORD,  /* int: index into `words` */
    NIB_KEY_TEXT,
    NIB_KEY_READ,  /* path of a file to read; in a config it is relative to the config */
    NIB_KEY_WRITE, /* path to write */
    NIB_KEY_LIST,  /* of texts */
    NIB_KEY_JSON,  /* any value, verbatim */
} nib_key_type;

typedef struct nib_train_key {
    const char *name; /* "training.steps"; sections may be nested */
    nib_key_type type;
    size_t at;           /* offset in nib_train_draft; NIB_KEY_NOWHERE: no effect */
    double least, most;  /* WHOLE, REAL; for FLAG, TEXT and LIST most 0 allows only false, or
                            empty */
    const char *words;   /* WORD: "linear|sqrt|cosine"; REAL: "null" is allowed, and becomes -1; for
                            a key without effect: values that need no line in the ledger, NULL: all
                            need one */
    const char *means;   /* for documentation; NULL: another name of an earlier row */
    const char *instead; /* why the key has no effect, or what is supported; ends a sentence */
    nib_setting_relation relation; /* for a key without effect whose value is not the default */
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

/* Settings of converters and of the quantize section; NULL: not given. */
typedef struct nib_train_recipe {
    const char *recipe, *recipe_name, *other; /* other: "else" */
    const char *rules, *whole;                /* JSON; whole: another tool's config */
    nib_train_list filter_fqns, fqns, skip, only;
    bool wgrad_with_hp; /* mx only; float8 has a recipe_name for it, quantize uses
                           nib_train_config's */
} nib_train_recipe;

/* Values as given, before they are checked against each other. */
typedef struct nib_train_draft {
    nib_train_config out;
    nib_config model; /* explicit sizes; 0: not given */
    const char *flavor, *hf_config, *metrics;
    int64_t multiple_of;
    double ffn_multiplier;
    int attention, param_type, checkpointing, decay, export_type; /* indexes into `words` */
    nib_train_list converters;
    nib_train_recipe mx, float8, quantize;
    bool validate;
    int64_t validation_batch, validation_length;
} nib_train_draft;

/* The row of a key; SIZE_MAX: none. */
size_t nib__train_key_find(const char *name);
/* The index of a section's name; SIZE_MAX: none. */
size_t nib__train_section_find(const char *name);

#endif
