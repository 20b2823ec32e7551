/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt-oss: MXFP4 weights of experts. experts.c makes views of each expert from the stacks in the
 * file: .weight_blocks [n][k/2], two codes per byte, low first, and .weight_scales [n][k/32], e8m0.
 */
#include "dialect_common.h"

static const char blocks[] = ".weight_blocks", scales[] = ".weight_scales";

nib_status nib__weight_mxfp4(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    w->scheme = (nib_scheme){.code = NIB_CODE_MX4, .group = 32, .symmetric = true};
    NIB_TRY(nib__weight_read_bytes(q, blocks, NIB_TYPE_U8));
    w->k *= 2;
    w->layout = NIB_LAYOUT_NIBBLE;
    return nib__weight_read_grid(q, scales, NIB_TYPE_E8M0);
}
