/* SPDX-License-Identifier: Apache-2.0
 *
 * Draft heads (multi-token prediction; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024): a
 * decoder layer beside the model's own, which from the model's hidden state of a token and the
 * token after it predicts the next one. It shares the model's embedding and output layer.
 */
#include "arch.h"

#include <inttypes.h>
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
    return own != NULL && c->gguf_order ? &nib__draft_after : own;
}

/* Makes all layers like a head's: attention, then a mixture if the model has any. */
static void make_alike(nib_config *c, int64_t layers)
{
    c->layers = layers;
    c->conv_layers = NULL;
    c->matrix = (nib_matrix_size){0};
    c->moe.first = 0, c->moe.interval = 1, c->moe.dense = NULL;
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
    make_alike(c, 1);
    return NIB_OK;
}

nib_status nib__draft_train(nib_config *c, const char *path, nib_err *err)
{
    const nib_draft_names *names = names_of(c);
    if (names == NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: model.draft_head.loss_weight: models of the family %s have no draft "
                         "head to train; leave the key out, or set it to 0",
                         path, nib__arch_name(c->arch));
    if (c->moe.unread_layers > 1)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: model.draft_head.loss_weight: num_nextn_predict_layers is %" PRId64
                         ", but one draft head is trained; set it to 1",
                         path, c->moe.unread_layers);
    c->trains_head = true;
    if (names->prefix == NULL)
        c->moe.unread_layers = 1;
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

/* Joins the embeddings of tokens with hidden states, each normalized. The normalized states are a
 * value of their own if the graph has them: in training, gradients pass both ways. */
static int join(nib_build *b, const nib_config *c, int64_t around, int embedded, int hidden)
{
    const nib_draft_names *names = names_of(c);
    int x = nib__block_norm(b, c, around, names->embed_norm, embedded);
    if (hidden == NIB_NO_ID) {
        const int norm =
            nib__build_norm(b, around, names->hidden_norm, 1, c->width, nib__family_of(c)->norm);
        x = nib__emit_norm_part(b, nib__emit_hidden(b, x, NIB_NO_ID), norm, c->width);
    } else {
        x = nib__emit_hidden(b, x, nib__block_norm(b, c, around, names->hidden_norm, hidden));
    }
    return nib__emit_linear(
        b, x,
        nib__build_matrix(b, NIB_ROLE_OTHER, around, names->join, c->width, 2 * c->width, false));
}

/* Emits a head up to its last norm. `layer`: its number in the graph. */
static int emit_head(nib_build *b, const nib_config *c, int64_t layer, int embedded, int hidden)
{
    const nib_draft_names *names = names_of(c);
    const int64_t around = names->prefix != NULL ? -1 : layer; /* of what surrounds the layer */
    const int x = nib__block_llama(b, c, layer, join(b, c, around, embedded, hidden));
    return nib__block_norm(b, c, around, names->last_norm, x);
}

void nib__build_draft_head(nib_build *b, const nib_config *c)
{
    if (names_of(c)->prefix != NULL)
        b->prefix = names_of(c)->prefix;
    b->first = c->draft_layer;
    nib__block_logits(b, c, emit_head(b, c, 0, nib__block_embed(b, c), NIB_NO_ID));
}

int nib__block_draft_head(nib_build *b, const nib_config *c, int hidden)
{
    const nib_draft_names *names = names_of(c);
    const char *const prefix = b->prefix;
    const int64_t layer = c->layers, first = b->first;
    nib_config own = *c;
    make_alike(&own, layer + 1);
    if (names->prefix != NULL)
        b->prefix = names->prefix, b->first = -layer; /* its own names count from 0 */
    const int x = emit_head(b, &own, layer, nib__block_embed_ahead(b, c), hidden);
    b->prefix = prefix, b->first = first;
    return x;
}
