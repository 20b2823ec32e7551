/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of config.json that change the result in some families and are no other family's: scales,
 * caps, flags. A family's row lists those that it reads; any other is an error unless its value
 * changes nothing.
 */
#ifndef NIB_CONFIG_KEYS_H
#define NIB_CONFIG_KEYS_H

#include "config.h"

enum { NIB_KEYS_MAX = 64 /* different ones in a config */ };

typedef struct nib_key_said {
    const char *key;
    bool null;
    bool neutral;  /* it changes nothing, whoever reads it */
    double number; /* NaN: not a number; flags are 0 and 1 */
    char text[32]; /* empty: not a string */
} nib_key_said;

typedef struct nib_keys_said {
    nib_key_said keys[NIB_KEYS_MAX];
    size_t count;
} nib_keys_said;

/* The key just read is one of them: reads its value. */
bool nib__keys_know(const nib_json *json);
bool nib__keys_read(nib_keys_said *said, nib_json *json);
/* Into config, whose family is known. NIB_BAD_INPUT: a key that the family does not read. */
nib_status nib__keys_apply(nib_config *config, const nib_keys_said *said, const char *name,
                           nib_err *err);

struct nib_family_key;
/* One value into config, as the key says. */
void nib__keys_put(nib_config *config, const struct nib_family_key *key, double value);
/* The value that it says of config, the other way round. */
double nib__keys_value(const nib_config *config, const struct nib_family_key *key);

#endif
