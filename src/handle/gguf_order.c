/* SPDX-License-Identifier: Apache-2.0
 *
 * Models whose weights a GGUF has in another order (head_order.h): all that quantizes, converts or
 * compares one sees it as the output has it, so groups of columns are those that are written.
 */
#include "arch.h"
#include "model_handle.h"

nib_status nib__model_ordered(nib_model **own, const nib_model *model, bool in_gguf, nib_err *err)
{
    const nib_network *net = &model->net;
    const bool is_gguf = nib__checkpoint_gguf(net->checkpoint) != NULL;
    *own = NULL;
    if (net->checkpoint == NULL || net->unknown || is_gguf == in_gguf || net->config.layers == 0 ||
        nib__family_of(&net->config)->full_interval == 0)
        return NIB_OK;
    return nib__model_reordered(own, model, err);
}

nib_status nib__source_order(nib_model **source, const nib_model *model, nib_err *err)
{
    nib_model *own;
    const bool in_gguf = nib__checkpoint_gguf(model->net.checkpoint) != NULL;
    NIB_TRY(nib__model_ordered(&own, *source, in_gguf, err));
    if (own == NULL)
        return NIB_OK;
    nib_model_close(*source);
    *source = own;
    return NIB_OK;
}
