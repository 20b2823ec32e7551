/* SPDX-License-Identifier: Apache-2.0
 *
 * 4-bit weights in the gemm format of AutoAWQ:
 *
 *   M.qweight  I32 [k][n/8]       unsigned codes along n; nibbles 0 to 7: outputs 0 2 4 6 1 3 5 7
 *   M.qzeros   I32 [groups][n/8]  zero points in the same order
 *   M.scales   float [groups][n]
 *
 * The value is (code - zero) * scale. AWQ folded its input scales into the preceding layers.
 */
#include "dialect_common.h"

static const char qweight[] = ".qweight", qzeros[] = ".qzeros", scales[] = ".scales";

bool nib__weight_is_awq(const nib_weight_query *q, const nib_tensor *codes)
{
    (void)codes;
    return q->cp->coding != NULL && q->cp->coding->method == NIB_METHOD_AWQ;
}

nib_status nib__weight_awq(const nib_weight_query *q)
{
    const nib_quantization *config = q->cp->coding;
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, qweight), *zeros = nib__weight_part(q, qzeros);
    w->scheme = (nib_scheme){.code = NIB_CODE_I4,
                             .group = config->group > 0 ? config->group : NIB_GROUP_ROW,
                             .symmetric = true};
    NIB_TRY(nib__weight_expect_matrix(q, qweight, codes, NIB_TYPE_I32));
    w->n = 8 * codes->shape[1];
    w->k = codes->shape[0];
    w->layout = NIB_LAYOUT_AWQ;
    w->codes = codes->data;
    NIB_TRY(nib__weight_read_columns(q, scales));
    const int64_t shape[2] = {nib__scheme_groups(&w->scheme, w->k), codes->shape[1]};
    NIB_TRY(nib__weight_expect(q, qzeros, zeros, NIB_TYPE_I32, 2, shape));
    w->zeros = zeros->data;
    nib__weight_drop_zeros(q);
    return NIB_OK;
}
