/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of the two configuration files, in which null means "not given": the value is then left as
 * it was. Each call reads the next event; false: json->err says what is wrong with it.
 */
#ifndef NIB_CONFIG_VALUES_H
#define NIB_CONFIG_VALUES_H

#include "json.h"

/* Of the event just read: is it this one? */
bool nib__config_now(nib_json *json, nib_json_event event);

bool nib__config_number(nib_json *json, double *out);
bool nib__config_size(nib_json *json, int64_t *out); /* 0 or more */
bool nib__config_flag(nib_json *json, bool *out);
/* One token id, or a list of at most `room`. */
bool nib__config_ids(nib_json *json, int32_t *ids, int room, int *count);

#endif
