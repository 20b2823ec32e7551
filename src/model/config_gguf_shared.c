/* SPDX-License-Identifier: Apache-2.0
 *
 * llama.cpp's converter lists the width of each layer's MLP where the layers that share keys and
 * values are twice as wide. The table of inputs of layers has no key for its rows.
 */
#include "config_gguf_shared.h"

#include "arch.h"

#include <inttypes.h>
#include <stdio.h>

static const char width_key[] = "feed_forward_length", shared_key[] = "attention.shared_kv_layers";

enum { KEY_MAX = 128 };

/* Whether the last layers may share keys and values. */
static bool may_share(const nib_config *c)
{
    const nib_family_key *keys = nib__family_of(c)->keys;
    while (keys != NULL && keys->key != NULL && keys->at != offsetof(nib_config, shared_layers))
        keys++;
    return keys != NULL && keys->key != NULL;
}

bool nib__gguf_lists_widths(const nib_config *c, const nib_gguf *g, const char *key)
{
    const nib_gguf_value *value = nib__gguf_find(g, key);
    return may_share(c) && value != NULL && value->is_array;
}

nib_status nib__gguf_read_widths(nib_config *c, const nib_gguf *g, const char *arch, nib_err *err)
{
    nib_gguf_array widths;
    char key[KEY_MAX];
    int64_t shared = 0, width = 0, last = 0;
    bool found;
    snprintf(key, sizeof key, "%s.%s", arch, shared_key);
    if (may_share(c))
        NIB_TRY(nib__gguf_int(&shared, &found, g, key, err));
    snprintf(key, sizeof key, "%s.%s", arch, width_key);
    if (!nib__gguf_lists_widths(c, g, key))
        return NIB_OK;
    NIB_TRY(nib__gguf_array_of(&widths, &found, g, key, NIB_GGUF_I64, err));
    if ((int64_t)widths.count != c->layers)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: %s has %zu values; %" PRId64 " are expected, one for each layer",
                         g->name, key, (size_t)widths.count, c->layers);
    nib_gguf_array rest = widths;
    (void)nib__gguf_next_int(&rest, &c->ffn);
    while (nib__gguf_next_int(&rest, &last))
        continue;
    if (c->ffn < 1 || c->ffn > 1 << 24)
        return nib__fail(err, NIB_BAD_INPUT, "%s: %s[0] is %" PRId64 "; 1 to %d is expected",
                         g->name, key, c->ffn, 1 << 24);
    c->wide_mlp = shared > 0 && last == 2 * c->ffn;
    c->shared_layers = shared;
    for (int64_t i = 0; nib__gguf_next_int(&widths, &width); i++)
        if (width != nib__config_ffn(c, i))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "%s: %s[%" PRId64 "] is %" PRId64
                             "; the width of the first layer is expected, or twice that in the "
                             "%" PRId64 " layers that share keys and values",
                             g->name, key, i, width, shared);
    return NIB_OK;
}

void nib__gguf_read_layer_table(nib_config *c, const nib_checkpoint *cp)
{
    const nib_tensor *table = nib__checkpoint_find(cp, "model.embed_tokens_per_layer.weight");
    c->layer_vocab = table != NULL && table->rank == 2 ? table->shape[0] : c->vocab;
}

bool nib__gguf_shared_match(const nib_config *c)
{
    const int64_t own = c->layers - c->shared_layers;
    for (int64_t i = own; i < c->layers; i++)
        if (nib__config_kv_layer(c, i) != own - (nib__config_window(c, i) > 0 ? 2 : 1))
            return false;
    return true;
}
