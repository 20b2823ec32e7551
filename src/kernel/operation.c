/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations.
 */
#include "operation.h"

/* Part begin..end of each operation, by the member of nib_kernel.run that has its arguments. */
static void run_linear(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                       void *scratch)
{
    row->run.linear(args, begin, end, scratch);
}

static void run_attn(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                     void *scratch)
{
    row->run.attn(args, begin, end, scratch);
}

static void run_attn_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                        void *scratch)
{
    row->run.attn_dx(args, begin, end, scratch);
}

static void run_quant(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                      void *scratch)
{
    (void)scratch;
    row->run.quant(args, begin, end);
}

static void run_cast(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                     void *scratch)
{
    (void)scratch;
    row->run.cast(args, begin, end);
}

static void run_amax(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                     void *scratch)
{
    (void)scratch;
    row->run.amax(args, begin, end);
}

static void run_embed(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                      void *scratch)
{
    (void)scratch;
    row->run.embed(args, begin, end);
}

static void run_norm(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                     void *scratch)
{
    (void)scratch;
    row->run.norm(args, begin, end);
}

static void run_norm_quant(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                           void *scratch)
{
    (void)scratch;
    row->run.norm_quant(args, begin, end);
}

static void run_rope(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                     void *scratch)
{
    (void)scratch;
    row->run.rope(args, begin, end);
}

static void run_store_kv(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                         void *scratch)
{
    (void)scratch;
    row->run.store_kv(args, begin, end);
}

static void run_rope_copy(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                          void *scratch)
{
    (void)scratch;
    row->run.rope_store_kv(args, begin, end);
}

static void run_swiglu(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                       void *scratch)
{
    (void)scratch;
    row->run.swiglu(args, begin, end);
}

static void run_add(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                    void *scratch)
{
    (void)scratch;
    row->run.add(args, begin, end);
}

static void run_scale(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                      void *scratch)
{
    (void)scratch;
    row->run.scale(args, begin, end);
}

/* Parts are channels. */
static void run_short_conv(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                           void *scratch)
{
    (void)scratch;
    row->run.short_conv(args, begin, end);
}

static void run_delta_gates(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                            void *scratch)
{
    (void)scratch;
    row->run.delta_gates(args, begin, end);
}

static void run_ssm_gates(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                          void *scratch)
{
    (void)scratch;
    row->run.ssm_gates(args, begin, end);
}

/* Parts are blocks of columns of a value head. */
static void run_recurrence(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                           void *scratch)
{
    (void)scratch;
    row->run.recurrence(args, begin, end);
}

static void run_gather(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                       void *scratch)
{
    (void)scratch;
    row->run.gather(args, begin, end);
}

static void run_route(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                      void *scratch)
{
    (void)scratch;
    row->run.route(args, begin, end);
}

/* One part: rows depend on all tokens before them. */
static void run_sort(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                     void *scratch)
{
    (void)begin, (void)end, (void)scratch;
    row->run.sort(args);
}

static void run_dispatch(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                         void *scratch)
{
    (void)scratch;
    row->run.dispatch(args, begin, end);
}

static void run_combine(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                        void *scratch)
{
    (void)scratch;
    row->run.combine(args, begin, end);
}

static void run_norm_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                        void *scratch)
{
    (void)scratch;
    row->run.norm_dx(args, begin, end);
}

static void run_norm_dw(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                        void *scratch)
{
    (void)scratch;
    row->run.norm_dw(args, begin, end);
}

static void run_swiglu_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                          void *scratch)
{
    (void)scratch;
    row->run.swiglu_dx(args, begin, end);
}

static void run_scale_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                         void *scratch)
{
    (void)scratch;
    row->run.scale_dx(args, begin, end);
}

static void run_sinks_dw(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                         void *scratch)
{
    (void)scratch;
    row->run.sinks_dw(args, begin, end);
}

static void run_gather_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                          void *scratch)
{
    (void)scratch;
    row->run.gather_dx(args, begin, end);
}

static void run_delta_gates_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                               void *scratch)
{
    (void)scratch;
    row->run.delta_gates_dx(args, begin, end);
}

static void run_ssm_gates_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                             void *scratch)
{
    (void)scratch;
    row->run.ssm_gates_dx(args, begin, end);
}

/* Parts are items of one document and one head of keys. */
static void run_recurrence_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                              void *scratch)
{
    row->run.recurrence_dx(args, begin, end, scratch);
}

static void run_short_conv_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                              void *scratch)
{
    (void)scratch;
    row->run.short_conv_dx(args, begin, end);
}

static void run_short_conv_dw(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                              void *scratch)
{
    (void)scratch;
    row->run.short_conv_dw(args, begin, end);
}

static void run_route_dx(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                         void *scratch)
{
    (void)scratch;
    row->run.route_dx(args, begin, end);
}

static void run_route_dw(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                         void *scratch)
{
    (void)scratch;
    row->run.route_dw(args, begin, end);
}

static void run_combine_dw(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                           void *scratch)
{
    (void)scratch;
    row->run.combine_dw(args, begin, end);
}

static void run_route_sums(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                           void *scratch)
{
    (void)scratch;
    row->run.route_sums(args, begin, end);
}

/* One part. */
static void run_balance(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                        void *scratch)
{
    (void)begin, (void)end, (void)scratch;
    row->run.balance(args);
}

static void run_embed_dw(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                         void *scratch)
{
    (void)scratch;
    row->run.embed_dw(args, begin, end);
}

static void run_bias_dw(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                        void *scratch)
{
    (void)scratch;
    row->run.bias_dw(args, begin, end);
}

static void run_xent(const nib_kernel *row, const void *args, int64_t begin, int64_t end,
                     void *scratch)
{
    (void)scratch;
    row->run.xent(args, begin, end);
}

const nib_op_row nib__ops[NIB_OP_COUNT] = {
    [NIB_OP_LINEAR] = {run_linear, .by_tokens = true},
    [NIB_OP_LINEAR_DX] = {run_linear, .by_tokens = true},
    [NIB_OP_LINEAR_DW] = {run_linear, .values = 0},
    [NIB_OP_QUANT] = {run_quant, .values = 1, .by_tokens = true},
    [NIB_OP_QUANT_T] = {run_quant, .values = 1},
    [NIB_OP_CAST] = {run_cast, .values = 1},
    [NIB_OP_CAST_T] = {run_cast, .values = 1},
    [NIB_OP_AMAX] = {run_amax, .values = 1},
    [NIB_OP_EMBED] = {run_embed, .values = 2, .by_tokens = true},
    [NIB_OP_ATTN] = {run_attn, .values = 0},
    [NIB_OP_NORM] = {run_norm, .values = 2, .by_tokens = true, .inplace = {NIB_INPLACE_FIRST}},
    [NIB_OP_NORM_QUANT] = {run_norm_quant, .values = 1, .by_tokens = true},
    [NIB_OP_ROPE] = {run_rope, .values = 2, .by_tokens = true, .inplace = {NIB_INPLACE_FIRST},
                     .always_inplace = true},
    /* keys, values, and their copies in the cache */
    [NIB_OP_STORE_KV] = {run_store_kv, .values = 3, .by_tokens = true},
    /* for the queries; for the keys it replaces ROPE and STORE_KV, and reads them once */
    [NIB_OP_ROPE_COPY] = {run_rope_copy, .values = 2, .by_tokens = true},
    [NIB_OP_SWIGLU] = {run_swiglu, .values = 3, .by_tokens = true, .inplace = {NIB_INPLACE_FIRST}},
    [NIB_OP_ADD] = {run_add, .values = 3, .by_tokens = true, .inplace = {NIB_INPLACE_SECOND},
                    .always_inplace = true, .commutes = true},
    [NIB_OP_SCALE] = {run_scale, .values = 2, .by_tokens = true, .inplace = {NIB_INPLACE_FIRST}},
    /* of three columns for each channel: all are read, then a state of a few tokens, and two values
     * are written */
    [NIB_OP_SHORT_CONV] = {run_short_conv, .values = 3},
    [NIB_OP_DELTA_GATES] = {run_delta_gates, .values = 4, .by_tokens = true},
    /* beside its state, which step_cost.c counts */
    [NIB_OP_GATED_DELTA] = {run_recurrence, .values = 2},
    [NIB_OP_SSM_GATES] = {run_ssm_gates, .values = 3, .by_tokens = true},
    [NIB_OP_SSM] = {run_recurrence, .values = 2},
    [NIB_OP_GATHER] = {run_gather, .values = 2, .by_tokens = true},
    [NIB_OP_ROUTE] = {run_route, .values = 1, .by_tokens = true},
    [NIB_OP_SORT] = {run_sort, .values = 1},
    [NIB_OP_DISPATCH] = {run_dispatch, .values = 1},
    [NIB_OP_COMBINE] = {run_combine, .values = 1, .by_tokens = true, .gathers = true},
    [NIB_OP_MOVE] = {NULL, .values = 1},
    /* of as many columns: both are read, and both written */
    [NIB_OP_HIDDEN] = {NULL, .values = 4},
    [NIB_OP_NORM_DX] = {run_norm_dx, .values = 4, .by_tokens = true,
                        .inplace = {NIB_INPLACE_THIRD}},
    [NIB_OP_NORM_DW] = {run_norm_dw, .values = 2},
    [NIB_OP_SWIGLU_DX] = {run_swiglu_dx, .values = 5, .by_tokens = true,
                          .inplace = {NIB_INPLACE_SECOND, NIB_INPLACE_THIRD}},
    [NIB_OP_SCALE_DX] = {run_scale_dx, .values = 2, .by_tokens = true,
                         .inplace = {NIB_INPLACE_FIRST}},
    [NIB_OP_ATTN_DX] = {run_attn_dx, .values = 0},
    [NIB_OP_SINKS_DW] = {run_sinks_dw, .values = 2},
    [NIB_OP_GATHER_DX] = {run_gather_dx, .values = 3, .by_tokens = true,
                          .inplace = {NIB_INPLACE_SECOND}},
    [NIB_OP_DELTA_GATES_DX] = {run_delta_gates_dx, .values = 4, .by_tokens = true},
    [NIB_OP_GATED_DELTA_DX] = {run_recurrence_dx, .values = 3},
    [NIB_OP_SSM_GATES_DX] = {run_ssm_gates_dx, .values = 4, .by_tokens = true},
    [NIB_OP_SSM_DX] = {run_recurrence_dx, .values = 3},
    [NIB_OP_SHORT_CONV_DX] = {run_short_conv_dx, .values = 3},
    [NIB_OP_SHORT_CONV_DW] = {run_short_conv_dw, .values = 2},
    [NIB_OP_ROUTE_DX] = {run_route_dx, .values = 3, .by_tokens = true},
    [NIB_OP_ROUTE_DW] = {run_route_dw, .values = 2},
    [NIB_OP_COMBINE_DW] = {run_combine_dw, .values = 2},
    [NIB_OP_ROUTE_SUMS] = {run_route_sums, .values = 1},
    [NIB_OP_BALANCE] = {run_balance, .values = 0},
    [NIB_OP_EMBED_DW] = {run_embed_dw, .values = 3},
    [NIB_OP_BIAS_DW] = {run_bias_dw, .values = 1},
    [NIB_OP_XENT] = {run_xent, .values = 3, .by_tokens = true, .inplace = {NIB_INPLACE_FIRST},
                     .always_inplace = true},
};

int nib__op_inplace_input(nib_op op, int out, int64_t heads)
{
    if (op == NIB_OP_NORM && heads == 1)
        return -1; /* a quantizer may be fused with it, which reads the norm's input twice */
    return out < NIB_INPLACE_OUTPUTS ? (int)nib__ops[op].inplace[out] - 1 : -1;
}
