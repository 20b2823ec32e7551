/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of GGUF files: plain floats, or blocks that code_layout_gguf.c reads in place.
 */
#include "checkpoint_inside.h"
#include "gguf.h"

bool nib__weight_is_gguf(const nib_weight_query *q, const nib_tensor *codes)
{
    return q->cp->gguf != NULL && codes->stored_n == 0; /* a transposed view is plain floats */
}

nib_status nib__weight_gguf(const nib_weight_query *q)
{
    const nib_tensor *tensor = nib__weight_part(q, ".weight");
    nib_weight *w = q->out;
    if (tensor->rank != 2)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "has %d dimensions; a linear weight has two", tensor->rank);
    if (!nib__block_weight(w, tensor->type, tensor->shape[0], tensor->shape[1], tensor->data)) {
        *w = (nib_weight){.scheme.symmetric = true,
                          .n = tensor->shape[0],
                          .k = tensor->shape[1],
                          .layout = NIB_LAYOUT_FLOAT,
                          .codes = tensor->data};
        switch (tensor->type) {
        case NIB_TYPE_F32:
        case NIB_TYPE_F16:
        case NIB_TYPE_BF16: w->scheme.code = nib__float_code(tensor->type); break;
        default:
            return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                    "is %s; a weight in GGUF is F32, F16, BF16 or quantized",
                                    nib__type_stored_name(tensor->type));
        }
    }
    w->rows = tensor->rows;
    return NIB_OK;
}
