/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of the types of keys and values.
 */
#include "kv_type.h"

#include <stdio.h>

#define X(id, name, type) name,
const char *const nib__kv_names[] = {NIB_KV_KINDS(X) NULL};
#undef X
#define X(id, name, type) NIB_TYPE_##type,
static const nib_type types_of[] = {NIB_KV_KINDS(X)};
#undef X

static const char rotated[] = "-hadamard";

nib_kv_kind nib__kv_kind(nib_type type)
{
    for (int i = 0; i < NIB_KV_KIND_COUNT; i++)
        if (types_of[i] == type)
            return (nib_kv_kind)i;
    return NIB_KV_KIND_COUNT;
}

static bool parse_one(nib_kv_type *out, const char *text, size_t size)
{
    for (int i = 0; i < NIB_KV_KIND_COUNT; i++) {
        const size_t name = strlen(nib__kv_names[i]);
        if (size < name || memcmp(text, nib__kv_names[i], name) != 0)
            continue;
        *out = (nib_kv_type){types_of[i], size > name};
        if (size == name ||
            (size == name + strlen(rotated) && memcmp(text + name, rotated, strlen(rotated)) == 0))
            return true;
    }
    return false;
}

bool nib__kv_parse(nib_kv_types *out, const char *text)
{
    const char *colon = strchr(text, ':');
    const size_t first = colon != NULL ? (size_t)(colon - text) : strlen(text);
    const char *values = colon != NULL ? colon + 1 : text;
    nib_kv_types types;
    if (!parse_one(&types.keys, text, first) || !parse_one(&types.values, values, strlen(values)))
        return false;
    *out = types;
    return true;
}

const char *nib__kv_name(char out[NIB_KV_NAME], nib_kv_types t)
{
    const char *keys = nib__kv_names[nib__kv_kind(t.keys.type)],
               *values = nib__kv_names[nib__kv_kind(t.values.type)];
    const char *turned = t.keys.hadamard ? rotated : "";
    if (nib__kv_alike(t))
        snprintf(out, NIB_KV_NAME, "%s%s", keys, turned);
    else
        snprintf(out, NIB_KV_NAME, "%s%s:%s%s", keys, turned, values,
                 t.values.hadamard ? rotated : "");
    return out;
}
