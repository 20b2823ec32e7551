/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads values of the files that configure a model. An absent key keeps its default, which is set
 * before any key is read, so readers need no mark for "absent". A size of 0 is derived from other
 * sizes (nib__config_derive); no file may give 0.
 *
 * Each call reads the next event and treats null as absent. false: json->err says what is wrong.
 */
#ifndef NIB_CONFIG_VALUES_H
#define NIB_CONFIG_VALUES_H

#include "config.h"
#include "json.h"

/* Whether the event just read is this one; else sets the error. */
bool nib__config_check_event(nib_json *json, nib_json_event event);

bool nib__config_number(nib_json *json, double *out);
bool nib__config_positive(nib_json *json, double *out); /* above 0 */
bool nib__config_size(nib_json *json, int64_t *out);    /* 0 or more */
bool nib__config_count(nib_json *json, int64_t *out);   /* 1 or more */
bool nib__config_flag(nib_json *json, bool *out);
/* One token id, or a list of at most `room`. */
bool nib__config_ids(nib_json *json, int32_t *ids, int room, int *count);

/* The keys of a kind of file, for messages. */
typedef struct nib_config_names {
    const char *width, *ffn, *layers, *heads, *kv_heads, *head_dim, *vocab, *context, *eps;
} nib_config_names;

/* Checks the heads of layers without a window, where they differ. */
nib_status nib__config_check_heads(const nib_config *config, const char *name, nib_ledger *ledger,
                                   nib_err *err);
/* Derives kv_heads and head_dim if they are 0. name: of the file. */
nib_status nib__config_derive(nib_config *config, const char *name, const nib_config_names *names,
                              nib_err *err);
/* Checks the ranges of the sizes and that they fit together. */
nib_status nib__config_check_mixture(const nib_config *config, const char *name, nib_err *err);
/* The same for the sizes of latent attention, if the config has it. */
nib_status nib__config_check_latent(const nib_config *config, const char *name, nib_err *err);
/* Checks that heads of keys of the gated delta rule serve equally many of values. */
nib_status nib__config_check_matrix(const nib_config *config, const char *name, nib_err *err);
/* Checks layers that share keys and values, and the table of inputs of layers. */
nib_status nib__config_check_shared(const nib_config *config, const char *name, nib_err *err);
nib_status nib__config_check(const nib_config *config, const char *name,
                             const nib_config_names *names, nib_err *err);

#endif
