/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes weights: what a scheme needs from a quantizer, and the rows. The arithmetic is
 * quant_w_body.h, compiled for each instruction set and, here, in plain C.
 */
#define NIB_QUANT_W nib__quant_w__ref
#define NIB_QUANT_SWEEP nib__quant_sweep__ref
#include "quant_w_body.h"
#include "arm.h"
#include "x86.h"

#include <inttypes.h>

nib_quant_family nib__quant_family(const nib_scheme *s)
{
    if (nib__code_is_mx(s->code))
        return NIB_QUANT_MX;
    if (nib__codes[s->code].scale_type == NIB_TYPE_E4M3)
        return NIB_QUANT_NV;
    if (nib__code_is_f8(s->code))
        return NIB_QUANT_FP8;
    if (s->formula == NIB_FORMULA_GGML)
        return NIB_QUANT_GGML;
    if (s->formula == NIB_FORMULA_SUPER)
        return NIB_QUANT_SUPER;
    if (s->formula == NIB_FORMULA_LEVELS)
        return NIB_QUANT_LEVELS;
    if (s->zero == NIB_ZERO_FLOAT)
        return s->formula == NIB_FORMULA_TINYGEMM ? NIB_QUANT_TINYGEMM : NIB_QUANT_INT4;
    return s->code == NIB_CODE_I8 && s->symmetric && s->group <= 0 ? NIB_QUANT_INT8
                                                                   : NIB_QUANT_INTX;
}

bool nib__quantizer_is_one(const nib_quantizer *q) { return q->scheme.group == NIB_GROUP_TENSOR; }

nib_status nib__quantizer_init(nib_quantizer *out, const nib_scheme *scheme, nib_type source,
                               int64_t k, nib_err *err)
{
    char name[64];
    const nib_code code = scheme->code;
    if (!nib__scheme_is_quantized(scheme) || code == NIB_CODE_E5M2)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "weights are not quantized to %s; `nibble recipes` lists what they can be "
                         "quantized to",
                         nib__scheme_name(name, scheme));
    if (source != NIB_TYPE_F32 && source != NIB_TYPE_BF16 && source != NIB_TYPE_F16)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "weights of type %s are not quantized; only f32, bf16 and f16 are",
                         nib__type_name(source));
    const nib_quant_family f = nib__quant_family(scheme);
    if (f == NIB_QUANT_SUPER && k % NIB_SUPER_ELEMENTS != 0)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s has super-blocks of %d inputs, and %" PRId64
                         " is not a multiple of that; --skip the layer, or give it "
                         "int8wo-g32-ggml (Q8_0) by a rule of a recipe file",
                         nib__scheme_name(name, scheme), NIB_SUPER_ELEMENTS, k);
    *out = (nib_quantizer){.scheme = *scheme, .source = source, .k = k};
    out->groups = nib__scheme_groups(scheme, k);
    out->scale_type = f == NIB_QUANT_MX                              ? NIB_TYPE_E8M0
                      : f == NIB_QUANT_NV                            ? NIB_TYPE_E4M3
                      : f == NIB_QUANT_GGML || f == NIB_QUANT_LEVELS ? NIB_TYPE_F16
                      : f == NIB_QUANT_INT8 || f == NIB_QUANT_FP8 || f == NIB_QUANT_SUPER
                          ? NIB_TYPE_F32
                          : source;
    out->zero_type = scheme->zero == NIB_ZERO_NONE                 ? NIB_TYPE_NONE
                     : scheme->zero == NIB_ZERO_INT                ? NIB_TYPE_I8
                     : f == NIB_QUANT_GGML || f == NIB_QUANT_SUPER ? NIB_TYPE_F32
                                                                   : source;
    return NIB_OK;
}

nib_status nib__quantizer_scales(nib_quantizer *q, nib_type type, nib_err *err)
{
    char name[64];
    if (type == NIB_TYPE_NONE || type == q->scale_type)
        return NIB_OK;
    if (nib__quant_family(&q->scheme) != NIB_QUANT_INTX)
        return nib__fail(err, NIB_UNSUPPORTED, "scales of %s are %s, not %s as the recipe asks",
                         nib__scheme_name(name, &q->scheme), nib__type_name(q->scale_type),
                         nib__type_name(type));
    q->scale_type = type;
    return NIB_OK;
}

bool nib__ptq_parse(nib_ptq_method *out, const char *name)
{
    for (int i = 0; i < NIB_PTQ_COUNT; i++)
        if (strcmp(name, nib__ptq_names[i]) == 0) {
            *out = (nib_ptq_method)i;
            return true;
        }
    return false;
}

nib_status nib__quantizer_method(nib_quantizer *q, nib_ptq_method method, const float *importance,
                                 nib_err *err)
{
    char name[64];
    const bool is_one = nib__quantizer_is_one(q);
    const bool rounds_one = method == NIB_PTQ_SMOOTH || method == NIB_PTQ_ROTATE;
    if (method != NIB_PTQ_RTN && !rounds_one && is_one)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method %s chooses scales of groups or rows, and %s has one scale for "
                         "the whole tensor; use rows, or the method rtn",
                         nib__ptq_names[method], nib__scheme_name(name, &q->scheme));
    if (method == NIB_PTQ_LEARN && nib__quant_family(&q->scheme) == NIB_QUANT_SUPER)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method learn moves the scale of each group, and those of %s are "
                         "integer multiples in super-blocks; use qronos or gptq",
                         nib__scheme_name(name, &q->scheme));
    if (method == NIB_PTQ_LEARN && nib__codes[q->scheme.code].element == NIB_ELEMENT_E4M3)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method learn moves codes of integers and of 4-bit floats, and %s has "
                         "8-bit floats, of which rounding loses little; use qronos or gptq",
                         nib__scheme_name(name, &q->scheme));
    if (method == NIB_PTQ_HQQ &&
        (q->scheme.zero != NIB_ZERO_FLOAT || nib__quant_family(&q->scheme) == NIB_QUANT_SUPER))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method hqq moves float zeros, and %s has none of its own; use "
                         "search, or a scheme like int4wo",
                         nib__scheme_name(name, &q->scheme));
    q->method = !nib__ptq_changes(method) ? method : is_one ? NIB_PTQ_RTN : NIB_PTQ_SEARCH;
    q->importance = importance;
    return NIB_OK;
}

bool nib__quantizer_needs_scan(const nib_quantizer *q)
{
    return nib__quantizer_is_one(q) || nib__scheme_has_tensor_scale(&q->scheme);
}

float nib__quant_smallest(const nib_quantizer *q)
{
    const bool epsilon = q->scheme.formula == NIB_FORMULA_AO017;
    switch (q->source) {
    case NIB_TYPE_BF16: return epsilon ? 0x1p-7f : 0x1p-126f;
    case NIB_TYPE_F16: return epsilon ? 0x1p-10f : 0x1p-14f;
    default: return epsilon ? 0x1p-23f : 0x1p-126f;
    }
}

float nib__quant_inverse(const nib_quantizer *q)
{
    return q->tensor_scale != 0 ? 1 / q->tensor_scale : 1;
}

bool nib__quantizer_fix(nib_quantizer *q, const float range[2])
{
    if (nib__quant_family(&q->scheme) == NIB_QUANT_NV) {
        /* If torchao's scale is 0, or so small that its reciprocal is infinite, torchao's codes are
         * NaN. With a scale of 1 they are 0. */
        const float scale = largest_of(range[0], range[1]) / (E4M3_MAX * E2M1_MAX);
        q->tensor_scale = scale > 0 && isfinite(1 / scale) ? scale : 1;
        return true;
    }
    const params p = params_of(q, nib__quant_family(&q->scheme), range[0], range[1]);
    q->scale = p.scale;
    q->zero = p.zero;
    q->factor = p.factor;
    return isfinite(p.scale);
}

bool nib__quant_range(const float *x, int64_t count, float *low, float *high)
{
    return range_of(x, count, low, high);
}

/* Whether a code is one of a scheme's; *value: what it stands for. */
static bool code_level(float *value, const searched *s, int8_t code)
{
    const float number = (float)code;
    switch (s->grid) {
    case GRID_E4M3: *value = nib__e4m3_to_f32((uint8_t)code); return isfinite(*value);
    case GRID_E2M1: *value = nib__e2m1_to_f32((uint8_t)code); return code >= 0 && code < 16;
    case GRID_LEVELS: *value = number; return nearest_level(number) == number;
    default: *value = number; return number >= s->lowest && number <= s->highest;
    }
}

void nib__quant_levels(nib_code_levels *out, const nib_quantizer *q)
{
    const searched s = codes_of_scheme(q, nib__quant_family(&q->scheme));
    out->count = 0;
    for (int code = INT8_MIN; code <= INT8_MAX; code++) {
        float value;
        if (!code_level(&value, &s, (int8_t)code))
            continue;
        int at = out->count;
        while (at > 0 && out->value[at - 1] > value)
            at--;
        if (at > 0 && out->value[at - 1] == value) /* the other 0 of a float format */
            continue;
        memmove(out->value + at + 1, out->value + at, (size_t)(out->count - at) * sizeof value);
        memmove(out->code + at + 1, out->code + at, (size_t)(out->count - at));
        out->value[at] = value;
        out->code[at] = (int8_t)code;
        out->count++;
    }
}

void nib__quant_store(void *out, nib_type type, int64_t at, float value)
{
    char *to = (char *)out + at * (nib__type_bits(type) / 8);
    if (type == NIB_TYPE_I8)
        *(int8_t *)to = (int8_t)value;
    else if (type == NIB_TYPE_E8M0)
        *(uint8_t *)to = nib__f32_to_e8m0_up(value); /* exact, as it is a power of two */
    else
        nib__from_f32(to, type, &value, 1);
}

static size_t quant_w_scratch(const void *args)
{
    const nib_quant_w *a = args;
    return a->type != NIB_TYPE_F32 ? (size_t)a->q->k * sizeof(float) : 0;
}

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "quant_w__" #target, .op = NIB_OP_QUANT_W, .code = NIB_ANY, .act = NIB_ANY,        \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .arithmetic = NIB_ARITHMETIC_EXACT, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32, \
        .scratch = quant_w_scratch, .run = {.quant_w = function}, .note = words                    \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "quant_w__ref",
        NIB_X86(nib__quant_w__avx512), "a row at a time, 16 weights at once"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "quant_w__ref",
        NIB_X86(nib__quant_w__avx2), "a row at a time, 8 weights at once"),
    ROW(neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), "quant_w__ref",
        NIB_ARM(nib__quant_w__neon), "a row at a time, 4 weights at once"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__quant_w__ref, "plain C, a row at a time"),
};

const nib_family nib__family_quant_w = {rows, COUNT(rows)};

nib_quant_w_run nib__quant_w_best(int64_t isa)
{
    nib_query query = {.fact = {0}};
    const nib_kernel *best = &rows[COUNT(rows) - 1];
    query.fact[NIB_FACT_ISA] = isa;
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i].rank < best->rank && nib__kernel_built(&rows[i]) &&
            nib__kernel_holds(&rows[i], &query, false))
            best = &rows[i];
    return best->run.quant_w;
}

nib_quant_sweep_run nib__quant_sweep_best(int64_t isa)
{
    const nib_quant_w_run row = nib__quant_w_best(isa);
    if (row == NIB_X86(nib__quant_w__avx512) && row != NULL)
        return NIB_X86(nib__quant_sweep__avx512);
    if (row == NIB_X86(nib__quant_w__avx2) && row != NULL)
        return NIB_X86(nib__quant_sweep__avx2);
    if (row == NIB_ARM(nib__quant_w__neon) && row != NULL)
        return NIB_ARM(nib__quant_sweep__neon);
    return nib__quant_sweep__ref;
}

uint64_t nib__quant_sweep_scratch(const nib_quantizer *q)
{
    const int64_t k = q->k, groups = q->groups, lanes = 16;
    const int64_t block = nib__max(nib__scheme_group_size(&q->scheme, k), 128);
    return (uint64_t)(k * lanes * (4 + 4 + 4 + 1 + 1) + block * lanes * 4 + k * 5 +
                      groups * lanes * (16 + 16) + lanes * 16 + 18 * 64);
}
