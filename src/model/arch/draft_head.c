/* SPDX-License-Identifier: Apache-2.0
 *
 * Draft heads (multi-token prediction; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024): a
 * decoder layer beside the model's own, which from the model's hidden state of a token and the
 * token after it predicts the next one. It shares the model's embedding and output layer.
 */
#include "arch.h"

#include <stdlib.h>
#include <string.h>

const nib_draft_names nib__draft_after = {.join = "eh_proj",
                                          .embed_norm = "enorm",
                                          .hidden_norm = "hnorm",
                                          .last_norm = "shared_head.norm"};

/* llama.cpp's converter gives every head the names of a layer after the model's. */
static const nib_draft_names *names_of(const nib_config *c)
{
    const nib_draft_names *own = nib__family_of(c)->draft;
    return own != NULL && c->delta_converted ? &nib__draft_after : own;
}

nib_status nib__draft_config(nib_config *c, const char *path, nib_err *err)
{
    const nib_draft_names *names = names_of(c);
    if (names == NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: --draft-head: models of the family %s have no draft head; leave the "
                         "option out, or name a draft model with --draft MODEL",
                         path, nib__arch_name(c->arch));
    if (names->prefix == NULL && c->moe.unread_layers == 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: --draft-head: the model has no draft head: "
                         "num_nextn_predict_layers is 0; leave the option out, or name a draft "
                         "model with --draft MODEL",
                         path);
    c->draft_head = true;
    c->draft_layer = names->prefix == NULL ? c->layers : 0;
    c->layers = 1;
    c->conv_layers = NULL;
    c->matrix = (nib_matrix_size){0};
    c->moe.first = 0, c->moe.interval = 1, c->moe.dense = NULL;
    return NIB_OK;
}

bool nib__draft_has(const nib_config *c, const char *tensor)
{
    static const char layers[] = "model.layers.";
    const nib_draft_names *names = names_of(c);
    if (names == NULL)
        return false;
    if (names->prefix != NULL) /* all that is called like its layer, up to the first point */
        return strncmp(tensor, names->prefix, strcspn(names->prefix, ".") + 1) == 0;
    return strncmp(tensor, layers, sizeof layers - 1) == 0 &&
           strtoll(tensor + sizeof layers - 1, NULL, 10) >= c->layers;
}

void nib__build_draft_head(nib_build *b, const nib_config *c)
{
    const nib_draft_names *names = names_of(c);
    const int64_t around = names->prefix != NULL ? -1 : 0; /* of what surrounds the layer */
    if (names->prefix != NULL)
        b->prefix = names->prefix;
    b->first = c->draft_layer;
    int x = nib__block_norm(b, c, around, names->embed_norm, nib__block_embed(b, c));
    x = nib__emit_hidden(b, x);
    x = nib__emit_norm_part(
        b, x, nib__build_norm(b, around, names->hidden_norm, 1, c->width, nib__family_of(c)->norm),
        c->width);
    x = nib__emit_linear(
        b, x,
        nib__build_matrix(b, NIB_ROLE_OTHER, around, names->join, c->width, 2 * c->width, false));
    x = nib__block_llama(b, c, 0, x);
    nib__block_logits(b, c, nib__block_norm(b, c, around, names->last_norm, x));
}
