/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of the training config: the reader of one config, and how values get into its draft.
 */
#ifndef NIB_TRAIN_VALUES_H
#define NIB_TRAIN_VALUES_H

#include "json.h"
#include "train_keys.h"

/* How a key was given; TO_DO: it asks for something. */
enum { NIB_GIVEN_IN_FILE = 1, NIB_GIVEN_AS_OPTION = 2, NIB_GIVEN_TO_DO = 4 };

typedef struct nib_train_reader {
    nib_train_draft draft;
    const nib_train_source *source;
    const char *directory; /* of the config, for relative paths in it */
    uint8_t given[NIB_TRAIN_KEYS_MAX];
    const char *asked[NIB_TRAIN_KEYS_MAX];  /* values as shown in messages */
    const char *option[NIB_TRAIN_KEYS_MAX]; /* values given by options, verbatim */
    bool entered[NIB_TRAIN_SECTIONS_MAX];   /* sections of the file that were entered */
} nib_train_reader;

/* The defaults: torchtitan's for the debug model. */
void nib__train_draft_defaults(nib_train_draft *out);
/* Reads the value after the KEY just read into a row; false: json->err says why. */
bool nib__train_value_json(nib_train_reader *reader, size_t row, nib_json *json);
/* The same from an option; text NULL: a bare flag. */
nib_status nib__train_value_option(nib_train_reader *reader, size_t row, const char *text,
                                   nib_err *err);
/* Where the row's value comes from; an option overrides the config. */
NIB_INLINE nib_asker nib__train_asker(const nib_train_reader *reader, size_t row)
{
    return (reader->given[row] & NIB_GIVEN_AS_OPTION) != 0 ? NIB_BY_OPTION : NIB_BY_CONFIG;
}
bool nib__train_given(const nib_train_reader *reader, const char *name);
/* How a key that stores a value was given, by this or another name; .key NULL: not given, or only
 * switched off. */
nib_train_asked nib__train_asked(const nib_train_reader *reader, const char *name);
/* Adds a line for each key that has no effect in this run, or less than it asks. */
void nib__train_notes(const nib_train_reader *reader);

/* Adds a line for each key about the balance of experts that this model cannot follow. */
void nib__train_note_balance(const nib_train_reader *reader, const nib_config *model);

/* The model: from a flavor, sizes, or a config.json. */
nib_status nib__train_model(nib_config *out, const nib_train_reader *reader, nib_err *err);
/* *out: JSON or a path for nib__recipe_load; NULL: none. */
nib_status nib__train_recipe(const char **out, nib_train_reader *reader, nib_err *err);

#endif
