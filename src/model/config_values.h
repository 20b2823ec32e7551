/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of the files that configure a model. What is not given keeps its value: what stands for
 * an absent key is put there before any is read, so no reader needs a mark for it. A size of 0
 * follows from other sizes (nib__config_derive); none is given as 0.
 *
 * Each call reads the next event, and null is not given; false: json->err says what is wrong.
 */
#ifndef NIB_CONFIG_VALUES_H
#define NIB_CONFIG_VALUES_H

#include "config.h"
#include "json.h"

/* Of the event just read: is it this one? */
bool nib__config_now(nib_json *json, nib_json_event event);

bool nib__config_number(nib_json *json, double *out);
bool nib__config_rate(nib_json *json, double *out);   /* above 0 */
bool nib__config_size(nib_json *json, int64_t *out);  /* 0 or more */
bool nib__config_count(nib_json *json, int64_t *out); /* 1 or more */
bool nib__config_flag(nib_json *json, bool *out);
/* One token id, or a list of at most `room`. */
bool nib__config_ids(nib_json *json, int32_t *ids, int room, int *count);

/* kv_heads and head_dim, where they are 0. names: of width, heads and head_dim, for the sentence;
 * name: of the file. */
nib_status nib__config_derive(nib_config *config, const char *name, const char *const names[3],
                              nib_err *err);

#endif
