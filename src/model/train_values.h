/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the training config: the reader of one config, and values on their way into its draft.
 */
#ifndef NIB_TRAIN_VALUES_H
#define NIB_TRAIN_VALUES_H

#include "json.h"
#include "train_keys.h"

/* How a key was given, by row. */
enum { NIB_GIVEN_IN_FILE = 1, NIB_GIVEN_AS_OPTION = 2, NIB_GIVEN_TO_DO = 4 };

typedef struct nib_train_reader {
    nib_train_draft draft;
    const nib_train_source *source;
    const char *directory; /* of the config, for the paths in it */
    uint8_t given[NIB_TRAIN_KEYS_MAX];
    const char *asked[NIB_TRAIN_KEYS_MAX];  /* values, as a sentence shows them */
    const char *option[NIB_TRAIN_KEYS_MAX]; /* values that options gave, as they stand there */
    bool entered[NIB_TRAIN_SECTIONS_MAX];   /* of the file */
} nib_train_reader;

/* The values of a config that gives none: torchtitan's for the debug model. */
void nib__train_draft_defaults(nib_train_draft *out);
/* The value of the row that follows the KEY just read; false: json->err says why. */
bool nib__train_value_json(nib_train_reader *reader, size_t row, nib_json *json);
/* text NULL: a bare flag. */
nib_status nib__train_value_option(nib_train_reader *reader, size_t row, const char *text,
                                   nib_err *err);
/* Who gave the row: the config, or an option, which goes over it. */
NIB_INLINE nib_asker nib__train_asker(const nib_train_reader *reader, size_t row)
{
    return (reader->given[row] & NIB_GIVEN_AS_OPTION) != 0 ? NIB_BY_OPTION : NIB_BY_CONFIG;
}
bool nib__train_given(const nib_train_reader *reader, const char *name);
/* The same key, or another name of it, with its value and by whom; without a key if it was not
 * given, or only to switch it off. */
nib_train_asked nib__train_asked(const nib_train_reader *reader, const char *name);
/* Adds a line for each key that does nothing in this run, or less than it says. */
void nib__train_notes(const nib_train_reader *reader);

/* The sizes of the model: by name, by number, or from a config.json. */
nib_status nib__train_model(nib_config *out, const nib_train_reader *reader, nib_err *err);
/* *out: JSON or a path for nib__recipe_load; NULL: none. */
nib_status nib__train_recipe(const char **out, nib_train_reader *reader, nib_err *err);

#endif
