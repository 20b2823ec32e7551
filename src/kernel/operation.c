/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations.
 */
#include "operation.h"

#define PARTS(field)                                                                               \
    static void run_##field(const nib_kernel *row, const void *args, int64_t begin, int64_t end,   \
                            void *scratch)                                                         \
    {                                                                                              \
        (void)scratch;                                                                             \
        row->run.field(args, begin, end);                                                          \
    }
#define PARTS_WITH_SCRATCH(field)                                                                  \
    static void run_##field(const nib_kernel *row, const void *args, int64_t begin, int64_t end,   \
                            void *scratch)                                                         \
    {                                                                                              \
        row->run.field(args, begin, end, scratch);                                                 \
    }

PARTS_WITH_SCRATCH(linear)
PARTS_WITH_SCRATCH(attn)
PARTS_WITH_SCRATCH(attn_dx)
PARTS(quant)
PARTS(cast)
PARTS(amax)
PARTS(embed)
PARTS(norm)
PARTS(norm_quant)
PARTS(rope)
PARTS(store_kv)
PARTS(rope_copy)
PARTS(swiglu)
PARTS(add)
PARTS(scale)
PARTS(gather)
PARTS(norm_dx)
PARTS(norm_dw)
PARTS(swiglu_dx)
PARTS(scale_dx)
PARTS(embed_dw)
PARTS(bias_dw)
PARTS(xent)

const nib_op_row nib__ops[NIB_OP_COUNT] = {
    [NIB_OP_LINEAR] = {run_linear, .by_tokens = true},
    [NIB_OP_LINEAR_DX] = {run_linear, .by_tokens = true},
    [NIB_OP_LINEAR_DW] = {run_linear},
    [NIB_OP_QUANT] = {run_quant, .values = 1, .by_tokens = true},
    [NIB_OP_QUANT_T] = {run_quant, .values = 1},
    [NIB_OP_CAST] = {run_cast, .values = 1},
    [NIB_OP_CAST_T] = {run_cast, .values = 1},
    [NIB_OP_AMAX] = {run_amax, .values = 1},
    [NIB_OP_EMBED] = {run_embed, .values = 2, .by_tokens = true},
    [NIB_OP_ATTN] = {run_attn},
    [NIB_OP_NORM] = {run_norm, .values = 2, .by_tokens = true, .over = {NIB_OVER_FIRST}},
    [NIB_OP_NORM_QUANT] = {run_norm_quant, .values = 1, .by_tokens = true},
    [NIB_OP_ROPE] = {run_rope, .values = 2, .by_tokens = true, .over = {NIB_OVER_FIRST},
                     .only_over = true},
    /* keys, values, and what the cache holds of both */
    [NIB_OP_STORE_KV] = {run_store_kv, .values = 3, .by_tokens = true},
    /* of the queries; of the keys it is ROPE and COPY, which reads them once */
    [NIB_OP_ROPE_COPY] = {run_rope_copy, .values = 2, .by_tokens = true},
    [NIB_OP_SWIGLU] = {run_swiglu, .values = 3, .by_tokens = true, .over = {NIB_OVER_FIRST}},
    [NIB_OP_ADD] = {run_add, .values = 3, .by_tokens = true, .over = {NIB_OVER_SECOND},
                    .only_over = true, .commutes = true},
    [NIB_OP_SCALE] = {run_scale, .values = 2, .by_tokens = true, .over = {NIB_OVER_FIRST}},
    [NIB_OP_GATHER] = {run_gather, .values = 2, .by_tokens = true},
    [NIB_OP_MOVE] = {NULL, .values = 1},
    [NIB_OP_NORM_DX] = {run_norm_dx, .values = 4, .by_tokens = true, .over = {NIB_OVER_THIRD}},
    [NIB_OP_NORM_DW] = {run_norm_dw, .values = 2},
    [NIB_OP_SWIGLU_DX] = {run_swiglu_dx, .values = 5, .by_tokens = true,
                          .over = {NIB_OVER_SECOND, NIB_OVER_THIRD}},
    [NIB_OP_SCALE_DX] = {run_scale_dx, .values = 2, .by_tokens = true, .over = {NIB_OVER_FIRST}},
    [NIB_OP_ATTN_DX] = {run_attn_dx},
    [NIB_OP_EMBED_DW] = {run_embed_dw, .values = 3},
    [NIB_OP_BIAS_DW] = {run_bias_dw, .values = 1},
    [NIB_OP_XENT] = {run_xent, .values = 3, .by_tokens = true, .over = {NIB_OVER_FIRST},
                     .only_over = true},
};

int nib__op_over(nib_op op, int out, int64_t heads)
{
    if (op == NIB_OP_NORM && heads == 1)
        return -1; /* a quantizer may be fused with it, and reads its input twice */
    return out < NIB_OVER_OUTPUTS ? (int)nib__ops[op].over[out] - 1 : -1;
}
