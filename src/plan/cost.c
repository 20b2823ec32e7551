/* SPDX-License-Identifier: Apache-2.0
 *
 * Predicted time: a product reads its weights and activations and writes its outputs, and does 2 m
 * n k operations and, on a GPU, what surrounds them; it takes the longer of the two at the
 * machine's rates, and a launch.
 */
#include "way.h"

#include <math.h>
#include <stdio.h>

nib_weight nib__layer_weight(const nib_layer *layer, const nib_scheme *scheme)
{
    /* Sizes depend on shapes and types, never on what is stored: the address only says that there
     * is some. */
    static const char stored = 0;
    const bool quantized = nib__scheme_is_quantized(scheme);
    const bool two_per_byte =
        scheme->code == NIB_CODE_I4 || scheme->code == NIB_CODE_MX4 || scheme->code == NIB_CODE_NV4;
    const int64_t groups = nib__scheme_groups(scheme, layer->k);
    nib_weight w = {.scheme = *scheme, .n = layer->n, .k = layer->k, .codes = &stored};
    w.store = !quantized ? NIB_STORE_FLOAT : two_per_byte ? NIB_STORE_NIBBLE : NIB_STORE_BYTE;
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

uint64_t nib__row_bytes(const nib_kernel *kernel, const nib_layer *layer, const nib_scheme *scheme)
{
    const nib_weight w = nib__layer_weight(layer, scheme);
    if (kernel->packing != NULL && kernel->packing->bytes != NULL)
        return kernel->packing->bytes(&w);
    /* a row of ours without a packing reads the weight where it lies */
    if (kernel->run.any != NULL && layer->stored_bytes != 0 &&
        nib__scheme_same_weight(&layer->stored, scheme))
        return layer->stored_bytes;
    return nib__weight_bytes(&w);
}

uint64_t nib__way_bytes(const nib_way *way, const nib_layer *layer)
{
    uint64_t sum = layer->bias ? (uint64_t)layer->n * sizeof(float) : 0;
    for (int i = 0; i < way->use_count; i++) {
        const nib_kernel *row = way->uses[i].kernel;
        bool counted = false;
        for (int j = 0; j < i; j++)
            counted = counted || way->uses[j].kernel->packing == row->packing;
        if (!counted && !nib__add(&sum, sum, nib__row_bytes(row, layer, &way->scheme)))
            return UINT64_MAX; /* no layout can hold it */
    }
    return sum;
}

uint64_t nib__plan_room(const nib_policy *policy, const nib_machine *own,
                        const nib_machine *machine)
{
    nib_query attention;
    nib__plan_op_query(&attention, NIB_OP_ATTN, NIB_TYPE_F32, machine);
    attention.without = &policy->without;
    const bool has_cache =
        machine == own && (policy->declared || nib__plan_op_best(&attention, machine) != NULL);
    const uint64_t beside = policy->step_bytes + (has_cache ? policy->cache_bytes : 0);
    if (machine->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU || policy->training)
        return UINT64_MAX;
    if (policy->room_words != NULL)
        return policy->room;
    if (machine->memory == 0)
        return UINT64_MAX;
    return machine->memory > beside ? machine->memory - beside : 0;
}

static double rate_of(const nib_machine *machine, nib_unit unit)
{
    if (machine->rate[unit] > 0)
        return machine->rate[unit];
    /* A unit that the machine lacks is made of a wider one. */
    return machine->rate[NIB_UNIT_F32] > 0 ? machine->rate[NIB_UNIT_F32] : 1e9;
}

static bool is_gpu(const nib_machine *machine)
{
    return machine->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU;
}

static double bytes_per_input(nib_act act, int64_t dtype, const nib_machine *machine)
{
    if (act != NIB_ACT_FLOAT) /* the CPU's rows take e4m3 widened to bf16 */
        return act == NIB_ACT_E4M3_TOKEN && !is_gpu(machine) ? 2 : 1;
    return dtype == NIB_TYPE_F32 ? 4 : 2;
}

/* Seconds at the f32 rate beside the products of a GPU, which its matrix units do not hide: codes
 * that the unit does not multiply are widened and scaled, a weight's again for each tile of tokens;
 * else the sum of each group is converted and scaled, unless block scales enter the product. It is
 * why weight-only loses to bf16 where arithmetic bounds it, and small groups lose to large ones.
 * The CPU's rows widen a panel for all tokens. */
static double beside_seconds(const nib_kernel *kernel, const nib_layer *layer,
                             const nib_scheme *scheme, const nib_machine *machine, double tokens)
{
    const double tile = 128, each = 2, n = (double)layer->n, k = (double)layer->k;
    const int64_t block = nib__act_block(scheme->act);
    if (!is_gpu(machine) || !nib__scheme_is_quantized(scheme) || kernel->unit == NIB_UNIT_MX8)
        return 0;
    double operations;
    if (kernel->unit == NIB_UNIT_I8 || kernel->unit == NIB_UNIT_FP8) {
        const double groups = (double)nib__scheme_groups(scheme, layer->k);
        operations = each * tokens * n * fmax(groups, block > 0 ? ceil(k / (double)block) : 1);
    } else {
        operations = each * n * k * ceil(tokens / tile);
        if (scheme->act != NIB_ACT_FLOAT)
            operations += each * tokens * k * ceil(n / tile);
    }
    return operations / rate_of(machine, NIB_UNIT_F32);
}

/* beside: seconds of arithmetic that no unit hides */
static double longer(double bytes, double operations, double beside, const nib_machine *machine,
                     nib_unit unit)
{
    return fmax(bytes / machine->bytes_per_s, operations / rate_of(machine, unit) + beside) +
           machine->launch_s;
}

double nib__use_seconds(const nib_use *use, const nib_layer *layer, const nib_scheme *scheme,
                        const nib_machine *machine, int64_t m)
{
    const double n = (double)layer->n, k = (double)layer->k, tokens = (double)m;
    if (use->op == NIB_OP_EMBED) {
        const double row = (double)nib__row_bytes(use->kernel, layer, scheme) / fmax(n, 1);
        return longer(tokens * (row + 4 * k), tokens * k, 0, machine, use->kernel->unit);
    }
    const double in = bytes_per_input(
        scheme->act, use->kernel->input == NIB_ANY ? NIB_TYPE_F32 : use->kernel->input, machine);
    const double beside = beside_seconds(use->kernel, layer, scheme, machine, tokens);
    const double weights = use->op == NIB_OP_LINEAR_DW
                               ? 4 * n * k /* written */
                               : (double)nib__row_bytes(use->kernel, layer, scheme);
    const double bytes = weights + tokens * k * in + tokens * n * 4;
    double seconds = longer(bytes, 2 * tokens * n * k, beside, machine, use->kernel->unit);
    if (use->quant != NULL)
        seconds += longer(tokens * k * (4 + in), 8 * tokens * k, 0, machine, use->quant->unit);
    return seconds;
}

double nib__way_seconds(const nib_way *way, const nib_layer *layer, const nib_policy *policy,
                        int64_t m)
{
    double sum = 0;
    if (!way->runs)
        return NAN;
    for (int i = 0; i < way->use_count; i++) {
        const nib_use *use = &way->uses[i];
        const bool in_range = m >= use->m_min && (use->m_max == 0 || m <= use->m_max);
        if (policy->training || in_range)
            sum += nib__use_seconds(use, layer, &way->scheme, way->machine, m);
    }
    return sum;
}

double nib__bf16_seconds(const nib_layer *layer, const nib_machine *machine,
                         const nib_policy *policy, int64_t m)
{
    const nib_scheme bf16 = {.code = NIB_CODE_BF16, .symmetric = true};
    nib_policy own = *policy;
    nib_way way;
    own.dtype = NIB_TYPE_BF16;
    nib__way_find(&way, layer, &bf16, machine, &own, NULL);
    return nib__way_seconds(&way, layer, &own, m);
}

int64_t nib__policy_m(const nib_policy *policy)
{
    return policy->training ? nib__max(policy->m, 1) : 1;
}

const char *nib__policy_unit(const nib_policy *policy)
{
    return policy->training ? "micro-batch" : "token";
}

const char *nib__say_seconds(char out[32], double seconds)
{
    if (isnan(seconds))
        snprintf(out, 32, "unknown");
    else if (seconds < 1e-3)
        snprintf(out, 32, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out, 32, "%.3g ms", seconds * 1e3);
    else
        snprintf(out, 32, "%.3g s", seconds);
    return out;
}
