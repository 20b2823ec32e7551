/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of config.json that change the result and that only some families read: scales, caps, flags.
 * A family's row lists the keys it reads; any other is an error unless its value changes nothing.
 */
#ifndef NIB_CONFIG_KEYS_H
#define NIB_CONFIG_KEYS_H

#include "config.h"

enum { NIB_KEYS_MAX = 64 /* different keys in one config */ };

typedef struct nib_key_given {
    const char *key;
    nib_json_event event; /* the first of the value */
    bool null;
    bool neutral;  /* the value changes nothing in any family */
    double number; /* NaN: not a number; a flag is 0 or 1 */
    char text[32]; /* as a message prints it; empty: a list or an object */
} nib_key_given;

typedef struct nib_keys_given {
    nib_key_given keys[NIB_KEYS_MAX];
    size_t count;
} nib_keys_given;

/* Whether the key just read is such a key; then nib__keys_read reads its value. */
bool nib__keys_is_known(const nib_json *json);
bool nib__keys_read(nib_keys_given *given, nib_json *json);
/* Applies the keys to config, whose family must be set. NIB_BAD_INPUT: a key that the family does
 * not read. */
nib_status nib__keys_apply(nib_config *config, const nib_keys_given *given, const char *name,
                           nib_err *err);

struct nib_family_key;
struct nib_family_row;
/* Whether the family itself has this key, which then is read instead of a general one of its name.
 */
bool nib__keys_own(const struct nib_family_row *family, const char *key);
/* Sets the member of config that the key stands for. */
void nib__keys_set(nib_config *config, const struct nib_family_key *key, double value);
/* Word number `number` of a key with several, `size` long; NULL: there are fewer. */
const char *nib__keys_word(const struct nib_family_key *key, int64_t number, size_t *size);
/* Whether a key with a number or flag may have this value. */
bool nib__keys_allows(const struct nib_family_key *key, double value);
enum { NIB_KEYS_RANGE = 80 };
/* What it may have, for a message: "a whole number from 1 to 1024 is expected". */
const char *nib__keys_range(char out[NIB_KEYS_RANGE], const struct nib_family_key *key);
/* The inverse of nib__keys_set: the key's value for this config. */
double nib__keys_value(const nib_config *config, const struct nib_family_key *key);

#endif
