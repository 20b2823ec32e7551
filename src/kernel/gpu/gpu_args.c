/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments that rows of every driver share: see gpu_args.h.
 */
#include "gpu_args.h"

int nib__gpu_value_number(nib_type type)
{
    switch (type) {
    case NIB_TYPE_F32: return 0;
    case NIB_TYPE_F16: return 1;
    case NIB_TYPE_BF16: return 2;
    case NIB_TYPE_E8M0: return 3;
    case NIB_TYPE_E4M3: return 4;
    case NIB_TYPE_I8: return 5;
    case NIB_TYPE_I32: return 6;
    default: return -1;
    }
}

int nib__gpu_input_number(const nib_input *x, nib_act act)
{
    if (x->codes != NULL && act != NIB_ACT_FLOAT && act != NIB_ACT_E4M3_TOKEN)
        return nib__act_is_f8_blocks(act) ? NIB_INPUT_E4M3 : NIB_INPUT_I8;
    return x->bf16 != NULL ? NIB_INPUT_BF16 : NIB_INPUT_F32;
}

const void *nib__gpu_input_values(const nib_input *x)
{
    return x->bf16 != NULL    ? (const void *)x->bf16
           : x->codes != NULL ? (const void *)x->codes
                              : x->f32;
}

static const void *address_of(const void *packed, uint64_t at, nib_type type)
{
    return type != NIB_TYPE_NONE ? (const char *)packed + at : NULL;
}

void nib__gpu_weight_memory(nib_launch *out, const nib_gpu_layout *l, const void *packed)
{
    nib__launch_memory(out, packed);
    nib__launch_memory(out, address_of(packed, l->scale_offset, l->scale_type));
    nib__launch_memory(out, address_of(packed, l->zero_offset, l->zero_type));
}

int64_t nib__gpu_tokens(const nib_linear *a)
{
    const int64_t rows = a->x.m;
    return a->experts == NULL ? rows
                              : nib__ceil_div(rows, nib__max(1, nib__min(rows, a->experts->count)));
}

int64_t nib__gpu_token_tiles(const nib_linear *a, int64_t tokens, bool is_few)
{
    if (a->experts == NULL)
        return nib__ceil_div(a->x.m, tokens);
    if (a->experts->head_step > 0)
        return a->experts->count * nib__ceil_div(nib__gpu_tokens(a), tokens);
    return is_few ? a->x.m : a->x.m / tokens + a->experts->count;
}

void nib__gpu_expert_args(nib_launch *out, const nib_linear *a)
{
    const nib_linear_experts *e = a->experts;
    if (e == NULL)
        return;
    nib__launch_option(out, " -DEXPERTS");
    nib__launch_memory(out, e->first);
    nib__launch_memory(out, e->expert);
    nib__launch_memory(out, e->places);
    nib__launch_memory(out, e->factors);
    nib__launch_int(out, e->count);
    nib__launch_int(out, e->head_step);
}

float nib__gpu_weight_factor(const nib_weight *w)
{
    return w->tensor_scale != 0 ? nib__weight_factor(w) : 1;
}
