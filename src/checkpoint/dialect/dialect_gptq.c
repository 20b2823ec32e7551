/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of AutoGPTQ and GPTQModel. b is 4 or 8 bits, from config.json; k is the length of g_idx,
 * or without it the capacity of the words:
 *
 *   M.qweight  I32 [ceil(k*b/32)][n]       unsigned codes along k, the first lowest
 *   M.qzeros   I32 [groups][ceil(n*b/32)]  zero points along n; minus 1 except in "gptq_v2"
 *   M.scales   float [groups][n]
 *   M.g_idx    I32 [k]                     the group of each input; with desc_act in any order
 *
 * The value is (code - zero) * scale.
 */
#include "dialect_common.h"

#include <inttypes.h>

static const char qweight[] = ".qweight", qzeros[] = ".qzeros", scales[] = ".scales",
                  g_idx[] = ".g_idx";

bool nib__weight_is_gptq(const nib_weight_query *q, const nib_tensor *codes)
{
    (void)codes;
    return q->cp->coding != NULL && q->cp->coding->method == NIB_METHOD_GPTQ;
}

static nib_status read_codes(const nib_weight_query *q, int64_t bits)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, qweight), *index = nib__weight_part(q, g_idx);
    NIB_TRY(nib__weight_expect_matrix(q, qweight, codes, NIB_TYPE_I32));
    w->n = codes->shape[1];
    w->k = index != NULL && index->rank == 1 ? index->shape[0] : codes->shape[0] * 32 / bits;
    const int64_t shape[2] = {nib__ceil_div(w->k * bits, 32), w->n};
    NIB_TRY(nib__weight_expect(q, qweight, codes, NIB_TYPE_I32, 2, shape));
    w->codes = codes->data;
    return NIB_OK;
}

/* Tools disagree about a stored 15: 0, wrapped by the - 1, or 16, which no code can be. */
static void report_wrapped_zeros(const nib_weight_query *q)
{
    const nib_weight *w = q->out;
    const int lowest = -nib__code_most(w->scheme.code) - 1;
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    if (q->ledger == NULL || w->layout != NIB_LAYOUT_GPTQ_LESS_ONE ||
        w->scheme.zero == NIB_ZERO_NONE)
        return;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < w->n; i++)
            if (nib__weight_int_zero(w, i, g) == lowest) {
                nib__weight_report(q, qzeros,
                                   "zero points of 0, stored minus 1 as the largest code", "0", 0,
                                   "writers subtract 1 from 0; some readers read 16 or 256");
                return;
            }
}

nib_status nib__weight_gptq(const nib_weight_query *q)
{
    const nib_quantization *config = q->cp->coding;
    nib_weight *w = q->out;
    w->scheme = (nib_scheme){.code = nib__int_code(config->bits),
                             .group = config->group > 0 ? config->group : NIB_GROUP_ROW,
                             .symmetric = true};
    NIB_TRY(read_codes(q, config->bits));
    w->layout = config->zeros_less_one ? NIB_LAYOUT_GPTQ_LESS_ONE : NIB_LAYOUT_GPTQ;
    NIB_TRY(nib__weight_read_columns(q, scales));
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    const int64_t shape[2] = {groups, nib__ceil_div(w->n * config->bits, 32)};
    const nib_tensor *zeros = nib__weight_part(q, qzeros);
    NIB_TRY(nib__weight_expect(q, qzeros, zeros, NIB_TYPE_I32, 2, shape));
    w->zeros = zeros->data;
    nib__weight_drop_zeros(q);
    report_wrapped_zeros(q);
    return nib__weight_read_order(q, g_idx);
}
