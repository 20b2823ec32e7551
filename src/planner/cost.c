/* SPDX-License-Identifier: Apache-2.0
 *
 * Predicted time. If products of this kind were measured on the machine (nib_measured): the
 * measured time per weight, more if weights come from memory, and a launch. Else the longer of two
 * times at the machine's rates, and a launch: reading weights and activations and writing outputs;
 * or 2 m n k operations and, on a GPU, the arithmetic around them. Layers that share an input
 * quantize it once, as a run does: the first of them pays.
 */
#include "variant.h"

#include <math.h>
#include <stdio.h>

uint64_t nib__row_bytes(const nib_kernel *kernel, const nib_layer *layer, const nib_scheme *scheme)
{
    const nib_weight w = nib__layer_weight(layer, scheme);
    if (kernel->packing != NULL && kernel->packing->bytes != NULL)
        return kernel->packing->bytes(&w);
    /* a row of Nibble's without a packing reads the weight as stored */
    if (kernel->run.any != NULL && layer->stored_bytes != 0 &&
        nib__scheme_same_weight(&layer->stored, scheme))
        return layer->stored_bytes;
    return nib__weight_bytes(&w);
}

uint64_t nib__variant_bytes(const nib_variant *variant, const nib_layer *layer)
{
    uint64_t sum = layer->bias ? (uint64_t)layer->n * sizeof(float) : 0;
    for (int i = 0; i < variant->use_count; i++) {
        const nib_kernel *row = variant->uses[i].kernel;
        const nib_op op =
            variant->uses[i].op; /* in a training step, dx reads the transposed weight */
        bool counted = op == NIB_OP_LINEAR_DW;
        for (int j = 0; j < i && op != NIB_OP_LINEAR_DX; j++)
            counted = counted || variant->uses[j].kernel->packing == row->packing;
        if (!counted && !nib__add(&sum, sum, nib__row_bytes(row, layer, &variant->scheme)))
            return UINT64_MAX; /* the size overflows */
    }
    return sum;
}

uint64_t nib__plan_room(const nib_policy *policy, const nib_machine *own,
                        const nib_machine *machine)
{
    nib_query attention;
    nib__plan_op_ask(&attention, NIB_OP_ATTN, policy, machine);
    const bool has_cache = machine == own && nib__plan_op_best(&attention, machine) != NULL;
    const uint64_t other_bytes = policy->step_bytes + (has_cache ? policy->cache_bytes : 0);
    if (machine->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU)
        return UINT64_MAX;
    if (policy->limit_message != NULL)
        return policy->weight_bytes_limit;
    if (machine->memory == 0 || policy->training) /* the memory of a training step is only known
                                                     once allocated */
        return UINT64_MAX;
    return machine->memory > other_bytes ? machine->memory - other_bytes : 0;
}

static bool is_gpu(const nib_machine *machine)
{
    return machine->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU;
}

static double unit_rate(const nib_machine *machine, nib_unit unit)
{
    if (machine->rate[unit] > 0)
        return machine->rate[unit];
    /* A wider unit does the work of one that the machine lacks. */
    return machine->rate[NIB_UNIT_F32] > 0 ? machine->rate[NIB_UNIT_F32] : 1e9;
}

/* The share of a unit's rate that products of many tokens reach if no kernel was timed. Loops of
 * multiplications alone measure a CPU's units: `nibble bench --kernels` shows 0.5 to 0.8 (EPYC
 * Zen 3). Other rates are low guesses, or published. */
static double untimed_share(const nib_machine *machine)
{
    const bool is_peak = machine->measured && machine->product_count == 0 && !is_gpu(machine);
    return is_peak ? 0.6 : 1;
}

static double bytes_per_input(nib_act act, int64_t dtype, const nib_machine *machine)
{
    if (act != NIB_ACT_FLOAT) /* the CPU's rows read e4m3 widened to bf16 */
        return act == NIB_ACT_E4M3_TOKEN && !is_gpu(machine) ? 2 : 1;
    return dtype == NIB_TYPE_F32 ? 4 : 2;
}

static bool uses_amx(const nib_kernel *kernel, const nib_machine *machine)
{
    return !is_gpu(machine) && kernel->unit == NIB_UNIT_I8 &&
           (machine->facts.fact[NIB_FACT_ISA] & NIB_ISA_AMX) != 0;
}

/* Seconds of f32 arithmetic around the products of a GPU, which its matrix units do not hide: codes
 * that the unit does not multiply are widened and scaled, a weight's once per tile of tokens; else
 * the sum of each group is converted and scaled, unless the unit applies block scales. This is why
 * weight-only is slower than bf16 if arithmetic is the limit, and small groups are slower than
 * large ones. The CPU's rows widen a panel once for all tokens; of them only AMX needs time for the
 * sums of groups, which leave its tiles through the cache: 66 cycles for 16 x 16 sums, measured. */
static double extra_seconds(const nib_kernel *kernel, const nib_layer *layer,
                            const nib_scheme *scheme, const nib_machine *machine, double tokens)
{
    const double tile = 128, each = 2, n = (double)layer->n, k = (double)layer->k;
    const int64_t block = nib__act_block(scheme->act);
    if (uses_amx(kernel, machine))
        return 24 * tokens * n * (double)nib__scheme_groups(scheme, layer->k) /
               unit_rate(machine, NIB_UNIT_F32);
    if (!is_gpu(machine) || !nib__scheme_is_quantized(scheme) || kernel->unit == NIB_UNIT_MX8)
        return 0;
    double operations;
    if (kernel->unit == NIB_UNIT_I8 || kernel->unit == NIB_UNIT_FP8 ||
        kernel->unit == NIB_UNIT_DOT8) {
        const double groups = (double)nib__scheme_groups(scheme, layer->k);
        operations = each * tokens * n * fmax(groups, block > 0 ? ceil(k / (double)block) : 1);
    } else {
        operations = each * n * k * ceil(tokens / tile);
        if (scheme->act != NIB_ACT_FLOAT)
            operations += each * tokens * k * ceil(n / tile);
    }
    return operations / unit_rate(machine, NIB_UNIT_F32);
}

/* The share of `bytes`, all read for each token, that stays in the caches until the next token. */
static double cached_share(const nib_machine *machine, double bytes)
{
    const double all = machine->cache_bytes / 2, none = machine->cache_bytes * NIB_CACHE_REACH;
    if (machine->cache_bytes <= 0 || bytes >= none || bytes <= 0)
        return 0;
    return bytes <= all ? 1 : log(none / bytes) / log(none / all);
}

/* The same for all weights of the model, if they were stored like this layer's: `bytes` for n x
 * k. */
static double cached_share_of_layer(const nib_machine *machine, const nib_layer *layer,
                                    double bytes, const nib_policy *policy)
{
    const double weights = (double)layer->n * (double)layer->k;
    return policy->weights > 0 ? cached_share(machine, bytes * policy->weights / weights) : 0;
}

/* ---- from rates ---- */

/* extra: seconds of arithmetic that no unit hides; cached: the share of bytes read from caches */
static double bounded_seconds(double bytes, double operations, double extra, double cached,
                              const nib_machine *machine, nib_unit unit)
{
    double seconds = bytes * (1 - cached) / machine->bytes_per_s;
    if (cached > 0)
        seconds += bytes * cached / machine->cache_bytes_per_s;
    return fmax(seconds, operations / unit_rate(machine, unit) + extra) + machine->launch_s;
}

static double quant_seconds(const nib_use *use, double bytes, double tokens, double k,
                            const nib_machine *machine)
{
    return bounded_seconds(tokens * k * (4 + bytes), 8 * tokens * k, 0, 0, machine,
                           use->quant->unit);
}

/* ---- from measured products ---- */

enum { FEW = 16 /* tokens up to which a product has the row of nib__points[1] */, MANY = 2 };

static int point_of(int64_t m) { return m == 1 ? 0 : m <= FEW ? 1 : MANY; }

/* The product was timed with this row, or with a row that differs only in the type of its input. */
static bool is_timed(const nib_kernel *timed, const nib_kernel *row)
{
    return timed == row || (timed->input != row->input && timed->rank == row->rank);
}

static const nib_measured *measured_of(const nib_machine *machine, const nib_scheme *scheme,
                                       const nib_kernel *row, int64_t m)
{
    for (int i = 0; i < machine->product_count; i++) {
        const nib_measured *p = &machine->products[i];
        if (p->code == scheme->code && p->act == scheme->act &&
            is_timed(p->at[point_of(m)].row, row))
            return p;
    }
    return NULL;
}

static double interpolate(double x0, double y0, double x1, double y1, double x)
{
    return y0 + (y1 - y0) / (x1 - x0) * (x - x0);
}

/* Seconds per k of n outputs: interpolated between two timed numbers of outputs. Past the largest,
 * which keeps any machine busy, in proportion. */
static double seconds_of_outputs(const nib_point *point, double n)
{
    const double *x = point->outputs, *y = point->k_s;
    const int last = point->size_count - 1;
    int i = 0;
    if (last == 0)
        return y[0] * n / x[0];
    while (i < last - 1 && n > x[i + 1])
        i++;
    const double on_line = interpolate(x[i], y[i], x[i + 1], y[i + 1], n);
    if (n < x[0]) /* at least its share */
        return fmax(on_line, y[0] * n / x[0]);
    return n > x[last] ? y[last] * n / x[last] : on_line;
}

/* The first of the two timed points around m, or of the last two that share its row. */
static int first_of_two(int64_t m)
{
    int first = m <= FEW ? 0 : MANY;
    while (m > FEW && first < NIB_POINTS - 2 && m > nib__points[first + 1])
        first++;
    return first;
}

static double seconds_of_tokens(const nib_measured *p, double n, int64_t m)
{
    const int first = first_of_two(m);
    return fmax(interpolate((double)nib__points[first], seconds_of_outputs(&p->at[first], n),
                            (double)nib__points[first + 1],
                            seconds_of_outputs(&p->at[first + 1], n), (double)m),
                0);
}

/* bytes: of the layer's packed weights; the timed ones may have had another group size. */
static double measured_seconds(const nib_measured *p, const nib_machine *machine,
                               const nib_layer *layer, double bytes, const nib_policy *policy,
                               int64_t m)
{
    const double n = (double)layer->n, k = (double)layer->k;
    const double cached_s = seconds_of_outputs(&p->at[0], n);
    const double memory_s = fmax(cached_s, p->memory_s * bytes / (k * p->weight_bytes));
    const double cached = cached_share_of_layer(machine, layer, bytes, policy);
    double each = cached * cached_s + (1 - cached) * memory_s;
    if (m > 1)
        each = fmax(each, seconds_of_tokens(p, n, m));
    return k * each + machine->launch_s;
}

static double measured_quant(const nib_measured *p, const nib_machine *machine, double k, int64_t m)
{
    const int first = first_of_two(m);
    const int64_t most = nib__points[NIB_POINTS - 1];
    const double each = interpolate((double)nib__points[first], p->at[first].quant_s,
                                    (double)nib__points[first + 1], p->at[first + 1].quant_s,
                                    (double)(m < most ? m : most));
    return (double)m * k * fmax(each, 0) + machine->launch_s;
}

/* ---- a layer ---- */

/* Whether the product reads the input that was quantized for the layer before it. */
static bool shares_input(const nib_variant *variant, const nib_layer *layer, nib_op op)
{
    return layer->shares_input && !variant->own_input && op != NIB_OP_LINEAR_DX &&
           variant->scheme.act != NIB_ACT_I8_STATIC;
}

static double embed_seconds(const nib_variant *variant, const nib_use *use, const nib_layer *layer,
                            double tokens)
{
    const double n = (double)layer->n, k = (double)layer->k;
    const double row = (double)nib__row_bytes(use->kernel, layer, &variant->scheme) / fmax(n, 1);
    return bounded_seconds(tokens * (row + 4 * k), tokens * k, 0, 0, variant->machine,
                           use->kernel->unit);
}

/* Whether rows are quantized apart from those of the layer before it, or those of heads sorted. */
static bool quantizes(const nib_variant *variant, const nib_use *use, const nib_layer *layer,
                      const nib_policy *policy)
{
    const bool sorts = layer->heads > 1 && use->kernel->grouped && !variant->alone;
    return use->quant != NULL && !shares_input(variant, layer, use->op) &&
           (sorts || !nib__input_is_plain(&variant->scheme, policy->dtype));
}

static double use_seconds(const nib_variant *variant, const nib_use *use, const nib_layer *layer,
                          const nib_policy *policy, int64_t m)
{
    const nib_scheme *scheme = &variant->scheme;
    const nib_machine *machine = variant->machine;
    const double n = (double)layer->n, k = (double)layer->k, tokens = (double)m;
    if (use->op == NIB_OP_EMBED)
        return embed_seconds(variant, use, layer, tokens);
    const double packed = (double)nib__row_bytes(use->kernel, layer, scheme);
    const nib_measured *measured =
        use->op == NIB_OP_LINEAR ? measured_of(machine, scheme, use->kernel, m) : NULL;
    const double in = bytes_per_input(
        scheme->act, use->kernel->input == NIB_ANY ? NIB_TYPE_F32 : use->kernel->input, machine);
    double seconds;
    if (measured != NULL) {
        seconds = measured_seconds(measured, machine, layer, packed, policy, m);
    } else {
        const double weights = use->op == NIB_OP_LINEAR_DW ? 4 * n * k /* written */ : packed;
        const double share = m > 1 ? untimed_share(machine) : 1;
        seconds = bounded_seconds(
            weights + tokens * k * in + tokens * n * 4, 2 * tokens * n * k / share,
            extra_seconds(use->kernel, layer, scheme, machine, tokens),
            cached_share_of_layer(machine, layer, weights, policy), machine, use->kernel->unit);
    }
    if (quantizes(variant, use, layer, policy))
        seconds += measured != NULL ? measured_quant(measured, machine, k, m)
                                    : quant_seconds(use, in, tokens, k, machine);
    return seconds;
}

void nib__variant_price(nib_variant *variant, const nib_layer *layer, const nib_policy *policy)
{
    for (int i = 0; i < variant->use_count; i++) {
        nib_use *use = &variant->uses[i];
        use->predicted_s = use_seconds(variant, use, layer, policy, use->m_min);
        use->bytes = nib__row_bytes(use->kernel, layer, &variant->scheme);
    }
}

/* Seconds of launches that a use costs an expert or head less if one launch takes all of them, of
 * which `chosen` is the expected share. */
static double grouped_seconds(const nib_variant *variant, const nib_use *use,
                              const nib_layer *layer, const nib_policy *policy, double chosen)
{
    const int launches = quantizes(variant, use, layer, policy) ? 2 : 1;
    return launches * variant->machine->launch_s * (chosen - 1 / (double)nib__layer_peers(layer));
}

/* Seconds for m tokens. An expert has its share of them, if tokens choose experts evenly and
 * independently: it is left out with probability (1 - share)^m. */
double nib__variant_seconds(const nib_variant *variant, const nib_layer *layer,
                            const nib_policy *policy, int64_t m)
{
    const double share = nib__layer_share(layer);
    const double chosen = share < 1 ? 1 - pow(1 - share, (double)m) : 1;
    double sum = 0;
    if (!variant->runs)
        return NAN;
    const bool grouped =
        !policy->training && !variant->alone && nib__variant_groups(variant, layer);
    if (share < 1)
        m = nib__max(1, (int64_t)((double)m * share / chosen + 0.5));
    for (int i = 0; i < variant->use_count; i++) {
        const nib_use *use = &variant->uses[i];
        const bool in_range = m >= use->m_min && (use->m_max == 0 || m <= use->m_max);
        if (policy->training || in_range)
            sum += use_seconds(variant, use, layer, policy, m) * chosen;
        if (grouped && in_range)
            sum -= grouped_seconds(variant, use, layer, policy, chosen);
    }
    return sum;
}

double nib__bf16_seconds(const nib_layer *layer, const nib_machine *machine,
                         const nib_policy *policy, int64_t m)
{
    const nib_scheme bf16 = {.code = NIB_CODE_BF16, .symmetric = true};
    nib_policy copy = *policy;
    nib_variant variant;
    copy.dtype = NIB_TYPE_BF16;
    nib__variant_find(&variant, layer, &bf16, machine, &copy, NULL);
    return nib__variant_seconds(&variant, layer, &copy, m);
}

int64_t nib__policy_m(const nib_policy *policy)
{
    return policy->training ? nib__max(policy->m, 1) : 1;
}

const char *nib__policy_unit(const nib_policy *policy)
{
    return policy->training ? "micro-batch" : "token";
}
