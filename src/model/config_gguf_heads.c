/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF keys of families whose layers without a window may have heads of their own: how wide they
 * are, and how many heads of keys and values each layer has.
 */
#include "config_gguf_heads.h"

#include "arch.h"

#include <inttypes.h>
#include <stdio.h>

static const char head_count[] = "attention.head_count_kv";
static const char *const lengths[] = {"attention.key_length_swa", "attention.value_length_swa",
                                      "rope.dimension_count_swa"};

enum { KEY_MAX = 128 };

/* Formats ARCH.name. */
static const char *key_of(char out[KEY_MAX], const char *arch, const char *name)
{
    snprintf(out, KEY_MAX, "%s.%s", arch, name);
    return out;
}

/* Whether layers without a window may have heads of their own. */
static bool has_own_heads(const nib_config *c)
{
    const nib_family_key *keys = nib__family_of(c)->keys;
    while (keys != NULL && keys->key != NULL && keys->at != offsetof(nib_config, global_head_dim))
        keys++;
    return keys != NULL && keys->key != NULL;
}

bool nib__gguf_lists_heads(const nib_config *c, const nib_gguf *g, const char *key)
{
    const nib_gguf_value *value = nib__gguf_find(g, key);
    const nib_family_row *family = nib__family_of(c);
    const bool lists_states = family->state_type != NULL && family->full_interval == 0;
    return (has_own_heads(c) || lists_states) && value != NULL && value->is_array;
}

bool nib__gguf_is_of_heads(const nib_config *c, const char *name)
{
    for (size_t i = 0; i < COUNT(lengths) && has_own_heads(c); i++)
        if (strcmp(lengths[i], name) == 0)
            return true;
    return false;
}

/* Heads of keys and values of each layer: those with a window have one number, the others another.
 */
static nib_status read_kv_heads(nib_config *c, const nib_gguf *g, const char *arch, nib_err *err)
{
    nib_gguf_array heads, windows;
    char key[KEY_MAX];
    int64_t count = 0;
    bool found;
    NIB_TRY(
        nib__gguf_array_of(&heads, &found, g, key_of(key, arch, head_count), NIB_GGUF_I64, err));
    NIB_TRY(nib__gguf_array_of(&windows, &found, g,
                               key_of(key, arch, "attention.sliding_window_pattern"), NIB_GGUF_BOOL,
                               err));
    key_of(key, arch, head_count);
    if (!found || windows.count != heads.count || (int64_t)heads.count != c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s has %zu values; %" PRId64
                         " are expected, and as many in attention.sliding_window_pattern",
                         g->name, key, (size_t)heads.count, c->layers);
    for (size_t i = 0; nib__gguf_next_int(&heads, &count); i++) {
        int64_t *own = windows.at[i] != 0 ? &c->kv_heads : &c->global_kv_heads;
        if (count < 1 || count > 1 << 16 || (*own != 0 && *own != count))
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: %s[%zu] is %" PRId64
                             "; 1 to 65536 is expected, the same in all layers with a window and "
                             "in all layers without",
                             g->name, key, i, count);
        *own = count;
    }
    if (c->kv_heads == 0)
        c->kv_heads = c->global_kv_heads;
    return NIB_OK;
}

nib_status nib__gguf_read_heads(nib_config *c, const nib_gguf *g, const char *arch, nib_err *err)
{
    char key[KEY_MAX];
    bool found;
    if (!has_own_heads(c))
        return NIB_OK;
    if (nib__gguf_lists_heads(c, g, key_of(key, arch, head_count)))
        NIB_TRY(read_kv_heads(c, g, arch, err));
    c->global_head_dim = c->head_dim; /* attention.key_length */
    NIB_TRY(nib__gguf_int(&c->head_dim, &found, g, key_of(key, arch, lengths[0]), err));
    for (size_t i = 1; i < COUNT(lengths); i++) {
        int64_t value = c->head_dim;
        NIB_TRY(nib__gguf_int(&value, &found, g, key_of(key, arch, lengths[i]), err));
        if (value != c->head_dim)
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: %s is %" PRId64 ", but attention.key_length_swa is %" PRId64
                             "; only equal lengths are supported",
                             g->name, key, value, c->head_dim);
    }
    return NIB_OK;
}
