/* SPDX-License-Identifier: Apache-2.0
 *
 * What follows from a plan without planning again.
 */
#include "plan.h"

enum { ARRAYS = 3, ALIGN = 64 }; /* codes, scales and zeros of the stored weight */

const nib_op_plan *nib__plan_operation(const nib_assignment *plan, nib_op op)
{
    for (int i = 0; i < plan->op_count; i++)
        if (plan->ops[i].op == op)
            return &plan->ops[i];
    return NULL;
}

bool nib__plan_ordered(const nib_layer_plan *plan)
{
    return plan->layer->ordered && nib__scheme_same_weight(&plan->done, &plan->layer->stored);
}

bool nib__plan_same_form(const nib_layer_plan *a, const nib_layer_plan *b)
{
    if (a->use_count != b->use_count || !nib__scheme_equal(&a->done, &b->done))
        return false;
    for (int i = 0; i < a->use_count; i++)
        if (a->uses[i].quant != b->uses[i].quant || a->uses[i].m_max != b->uses[i].m_max)
            return false;
    /* a static activation scale belongs to one layer */
    return a->done.act != NIB_ACT_I8_STATIC && a->layer->k == b->layer->k;
}

static bool same_rows(const nib_layer_plan *a, const nib_layer_plan *b)
{
    bool same =
        a->use_count == b->use_count && a->pack == b->pack && nib__scheme_equal(&a->done, &b->done);
    for (int i = 0; i < a->use_count && same; i++)
        same = a->uses[i].kernel == b->uses[i].kernel &&
               a->uses[i].kernel->device == NIB_DEVICE_CPU && a->uses[i].m_min == b->uses[i].m_min;
    return same;
}

size_t nib__plan_lent(const nib_assignment *plan, size_t i, const nib_assignment *from)
{
    for (size_t at = 0; at < from->count; at++)
        if (strcmp(from->layers[at].layer->name, plan->layers[i].layer->name) == 0)
            return same_rows(&from->layers[at], &plan->layers[i]) ? at : SIZE_MAX;
    return SIZE_MAX;
}

nib_type nib__layer_scale_type(const nib_layer *layer, const nib_scheme *scheme)
{
    if (!nib__scheme_is_quantized(scheme))
        return NIB_TYPE_NONE;
    if (nib__codes[scheme->code].scale_type != NIB_TYPE_NONE)
        return nib__codes[scheme->code].scale_type;
    return nib__type_is_float(layer->scale_type) ? layer->scale_type : NIB_TYPE_F32;
}

nib_type nib__layer_zero_type(const nib_layer *layer, const nib_scheme *scheme)
{
    const bool is_float = nib__type_is_float(layer->zero_type);
    switch (scheme->zero) {
    case NIB_ZERO_NONE: break;
    case NIB_ZERO_INT:
        return is_float || layer->zero_type == NIB_TYPE_NONE ? NIB_TYPE_I8 : layer->zero_type;
    case NIB_ZERO_FLOAT: return is_float ? layer->zero_type : nib__layer_scale_type(layer, scheme);
    }
    return NIB_TYPE_NONE;
}

nib_weight nib__layer_weight(const nib_layer *layer, const nib_scheme *scheme)
{
    /* Sizes depend on shapes and types, never on data; the address only marks the arrays as
     * present. */
    static const char stored = 0;
    const bool quantized = nib__scheme_is_quantized(scheme);
    const int64_t groups = nib__scheme_groups(scheme, layer->k);
    nib_weight w = {.scheme = *scheme, .n = layer->n, .k = layer->k, .codes = &stored};
    w.layout = quantized ? nib__code_layout(scheme->code) : NIB_LAYOUT_FLOAT;
    if (quantized) {
        w.scales = &stored;
        w.scale_type = nib__layer_scale_type(layer, scheme);
        w.scale_stride_n = scheme->group == NIB_GROUP_TENSOR ? 0 : groups;
        w.scale_stride_g = scheme->group == NIB_GROUP_TENSOR ? 0 : 1;
    }
    if (scheme->zero != NIB_ZERO_NONE) {
        w.zeros = &stored;
        w.zero_type = nib__layer_zero_type(layer, scheme);
    }
    return w;
}

nib_bias nib__layer_bias(const nib_layer *layer, const nib_scheme *done)
{
    const bool refused =
        layer->bias_form == NIB_BIAS_INT32 && nib__bias_int32_refuses(done, layer->k);
    return refused ? NIB_BIAS_FLOAT : layer->bias_form;
}

uint64_t nib__upload_bytes(const nib_layer *layer, const nib_scheme *done)
{
    if (layer->stored_bytes != 0 && nib__scheme_same_weight(&layer->stored, done))
        return layer->stored_bytes;
    const nib_weight w = nib__layer_weight(layer, done);
    return nib__weight_bytes(&w);
}

uint64_t nib__staging_bytes(const nib_layer *layer, const nib_scheme *done)
{
    return nib__upload_bytes(layer, done) + (uint64_t)(ARRAYS * ALIGN);
}
