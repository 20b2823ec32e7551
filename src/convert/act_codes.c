/* SPDX-License-Identifier: Apache-2.0
 *
 * Codes of activations and their values. Whatever the form, a value is code times scale, less the
 * zero for integers with one.
 */
#include "act_codes.h"

#include "lower.h"
#include "planner.h"

nib_status nib__act_codes_find(nib_act_codes *out, const nib_scheme *scheme,
                               const nib_assignment *plan, const char *name, nib_err *err)
{
    char of[64];
    *out = (nib_act_codes){.scheme = scheme,
                           .row = nib__plan_operand(NIB_OP_QUANT, scheme, NIB_TYPE_F32, NULL,
                                                    nib__plan_host(plan), &plan->without)};
    return out->row != NULL
               ? NIB_OK
               : nib__fail(err, NIB_NOT_AS_ASKED, "%s: no kernel codes activations of %s here",
                           name, nib__scheme_name(of, scheme));
}

uint64_t nib__act_codes_room(const nib_scheme *scheme, int64_t m, int64_t k)
{
    nib_input input;
    uint64_t bytes;
    nib__input_place(&input, scheme, NIB_TYPE_F32, m, k, NULL, &bytes);
    return bytes;
}

/* The values of row i; out: [k]. */
static void decode_row(const nib_input *in, nib_act act, int64_t i, float *out)
{
    const int64_t k = in->k, block = nib__act_block(act) > 0 ? nib__act_block(act) : k;
    const float *scale = in->scale + i * nib__ceil_div(k, block);
    if (in->bf16 != NULL)
        nib__to_f32(out, in->bf16 + i * in->ld, NIB_TYPE_BF16, k);
    else if (nib__act_is_f8_blocks(act))
        nib__to_f32(out, in->codes + i * in->ld, NIB_TYPE_E4M3, k);
    else
        for (int64_t j = 0; j < k; j++)
            out[j] = (float)(in->codes[i * in->ld + j] - (in->zero != NULL ? in->zero[i] : 0));
    for (int64_t j = 0; j < k; j++)
        out[j] *= scale[j / block];
}

typedef struct coding_rows {
    const nib_act_codes *codes;
    const float *columns;
    const float *x;
    int64_t ld, k;
    float *out;
    nib_quant quant; /* of rows of `out` */
} coding_rows;

static void code_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const coding_rows *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < c->k; j++)
            c->out[i * c->k + j] = c->x[i * c->ld + j] / (c->columns != NULL ? c->columns[j] : 1);
    c->codes->row->run.quant(&c->quant, begin, end);
    for (int64_t i = begin; i < end; i++) {
        float *out = c->out + i * c->k;
        decode_row(&c->quant.out, c->codes->scheme->act, i, out);
        for (int64_t j = 0; c->columns != NULL && j < c->k; j++)
            out[j] *= c->columns[j];
    }
}

void nib__act_codes_rows(const nib_act_codes *codes, const float *columns, const float *x,
                         int64_t ld, int64_t m, int64_t k, float *out, void *room, nib_pool *pool)
{
    const nib_scheme *scheme = codes->scheme;
    coding_rows c = {.codes = codes,
                     .columns = columns,
                     .x = x,
                     .ld = ld,
                     .k = k,
                     .out = out,
                     .quant = {.x = out,
                               .ldx = k,
                               .symmetric = scheme->act_symmetric,
                               .mx_floor = scheme->mx_floor,
                               .block_only = scheme->block_only,
                               .formula = scheme->formula,
                               .static_scale = &codes->static_scale,
                               .static_zero = &codes->static_zero}};
    nib__input_place(&c.quant.out, scheme, NIB_TYPE_F32, m, k, room, NULL);
    nib__pool_run(pool, m, 4, false, code_rows, &c);
}
