/* SPDX-License-Identifier: Apache-2.0
 *
 * Schemes: their grammar and names. The table `bases` below defines each base; quant_w.c and
 * docs/quantization.md define how its scales are chosen.
 */
#include "scheme.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- the grammar ---- */

enum { GROUP_MAX = 1 << 30 };

/* Bits of nib_scheme_base.takes, in the order of `modifiers`, which is the order in names. */
enum {
    M_GROUP = 1 << 0,
    M_ROW = 1 << 1,
    M_TENSOR = 1 << 2,
    M_SYM = 1 << 3,
    M_ASYM = 1 << 4,
    M_INTZERO = 1 << 5,
    M_ACTSYM = 1 << 6,
    M_ACTASYM = 1 << 7,
    M_STATIC = 1 << 8,
    M_RCEIL = 1 << 9,
    M_FLOOR = 1 << 10,
    M_AO017 = 1 << 11,
    M_TINYGEMM = 1 << 12,
    M_BLOCK = 1 << 13,
    M_GGML = 1 << 14,
    M_FLOATZERO = 1 << 15,
    M_SIZES = M_GROUP | M_ROW | M_TENSOR,
    M_MAPPINGS = M_SYM | M_ASYM | M_INTZERO | M_FLOATZERO,
    M_ACTS = M_ACTSYM | M_ACTASYM,
    M_ROUNDINGS = M_RCEIL | M_FLOOR,
    M_FORMULAS = M_AO017 | M_TINYGEMM | M_GGML,
    M_DYNAMIC = M_ACTS | M_STATIC | M_AO017,
};

static const char *const modifiers[] = {
    "gN",     "row",   "tensor", "sym",   "asym",     "intzero", "actsym", "actasym",
    "static", "rceil", "floor",  "ao017", "tinygemm", "block",   "ggml",   "floatzero"};

/* At most one of each of these. */
static const unsigned exclusive[] = {M_SIZES, M_MAPPINGS, M_ACTS, M_ROUNDINGS, M_FORMULAS};

/* One row per base. Activations of fp8dq have a scale per token for both granularities of the
 * weight, and those of nvfp4dq have one over their blocks: a scale over the whole batch would make
 * a token's result depend on its neighbours. Symmetric int4, int4 with integer zeros and every
 * grouped or asymmetric int8 weight follow torchao's Intx formulas, symmetric int8 rows and tensors
 * its Int8Tensor, int4 with a float zero its Int4Tensor (range of the group itself) or tinygemm.
 * Only int4wo has -intzero: the asymmetric mapping of the other bases has integer zeros anyway. The
 * other widths have -floatzero instead, int4wo's formula in 2^b levels.
 *
 * In the formulas: amax, min and max are over a group, eps is the smallest normal number of the
 * weight's type (of f32 for activations), round is to nearest, ties to even. */
/* Integers of b bits, codes from -`low` to `high`; `half`: low - 0.5. */
#define INTX(b, low, high, half)                                                                   \
    {                                                                                              \
        .name = "int" #b "wo", .scheme = {.code = NIB_CODE_I##b, .group = 32, .symmetric = true},  \
        .asym_zero = NIB_ZERO_INT,                                                                 \
        .takes = M_GROUP | M_ROW | M_SYM | M_ASYM | M_FLOATZERO | M_AO017,                         \
        .weights = "int" #b ", symmetric: s = max(amax/" #half                                     \
                   ", eps), q = clamp(round(w*(1/s)), -" #low ", " #high "), w = q*s",             \
        .activations = "float", .source = "torchao IntxWeightOnlyConfig"                           \
    }

static const nib_scheme_base bases[] = {
    {.name = "f32",
     .scheme = {.code = NIB_CODE_F32, .symmetric = true},
     .weights = "f32, not quantized",
     .activations = "float",
     .source = "-"},
    {.name = "f16",
     .scheme = {.code = NIB_CODE_F16, .symmetric = true},
     .weights = "f16, not quantized",
     .activations = "float",
     .source = "-"},
    {.name = "bf16",
     .scheme = {.code = NIB_CODE_BF16, .symmetric = true},
     .weights = "bf16, not quantized",
     .activations = "float",
     .source = "-"},
    {.name = "int8wo",
     .scheme = {.code = NIB_CODE_I8, .symmetric = true},
     .asym_zero = NIB_ZERO_INT,
     .takes = M_SIZES | M_SYM | M_ASYM | M_AO017 | M_GGML,
     .weights = "int8, symmetric: s = max(amax/127.5, 2^-23), q = clamp(round(w*(1/s)), -128, "
                "127), w = q*s",
     .activations = "float",
     .source = "torchao Int8WeightOnlyConfig"},
    {.name = "int8dq",
     .scheme =
         {.code = NIB_CODE_I8, .symmetric = true, .act = NIB_ACT_I8_TOKEN, .act_symmetric = true},
     .asym_zero = NIB_ZERO_INT,
     .takes = M_SIZES | M_SYM | M_DYNAMIC,
     .weights = "int8, symmetric, as int8wo",
     .activations = "int8 per token, symmetric: s = max(amax/127.5, 2^-23)",
     .source = "torchao Int8DynamicActivationInt8WeightConfig"},
    {.name = "int4wo",
     .scheme = {.code = NIB_CODE_I4, .group = 32, .zero = NIB_ZERO_FLOAT},
     .asym_zero = NIB_ZERO_FLOAT,
     .takes = M_GROUP | M_ROW | M_SYM | M_ASYM | M_INTZERO | M_FORMULAS,
     .weights = "int4, float zero: s = max(max-min, 1e-6)/15, z = min + 8*s, q = "
                "clamp(round((w-min)/s), 0, "
                "15) - 8, w = q*s + z",
     .activations = "float",
     .source = "torchao Int4WeightOnlyConfig"},
    INTX(1, 1, 0, 0.5),
    INTX(2, 2, 1, 1.5),
    INTX(3, 4, 3, 3.5),
    INTX(5, 16, 15, 15.5),
    INTX(6, 32, 31, 31.5),
    INTX(7, 64, 63, 63.5),
    {.name = "q2_k",
     .scheme =
         {.code = NIB_CODE_I4, .group = 16, .zero = NIB_ZERO_FLOAT, .formula = NIB_FORMULA_SUPER},
     .asym_zero = NIB_ZERO_FLOAT,
     .weights = "Q2_K: as q4_k, with s4 and m4 0..15 per 16, and q 0..3; 2.625 bits in a GGUF, "
                "int4 elsewhere and in memory",
     .activations = "float",
     .source = "ggml"},
    {.name = "q3_k",
     .scheme = {.code = NIB_CODE_I4, .group = 16, .symmetric = true, .formula = NIB_FORMULA_SUPER},
     .weights = "Q3_K: as q6_k, with s6 -32..31 per 16, and q -4..3; 3.4375 bits in a GGUF, int4 "
                "elsewhere and in memory",
     .activations = "float",
     .source = "ggml"},
    {.name = "q4_k",
     .scheme =
         {.code = NIB_CODE_I4, .group = 32, .zero = NIB_ZERO_FLOAT, .formula = NIB_FORMULA_SUPER},
     .asym_zero = NIB_ZERO_FLOAT,
     .weights =
         "Q4_K: s = d*s6, z = -dmin*m6, q = clamp(round((w-z)/s), 0, 15), w = q*s + z; d and "
         "dmin f16 per 256, s6 and m6 0..63 per 32",
     .activations = "float",
     .source = "ggml"},
    {.name = "q5_k",
     .scheme =
         {.code = NIB_CODE_I8, .group = 32, .zero = NIB_ZERO_FLOAT, .formula = NIB_FORMULA_SUPER},
     .asym_zero = NIB_ZERO_FLOAT,
     .weights = "Q5_K: as q4_k, with q 0..31; 5.5 bits in a GGUF, int8 elsewhere and in memory",
     .activations = "float",
     .source = "ggml"},
    {.name = "q6_k",
     .scheme = {.code = NIB_CODE_I8, .group = 16, .symmetric = true, .formula = NIB_FORMULA_SUPER},
     .weights = "Q6_K: s = d*s8, q = clamp(round(w/s), -32, 31), w = q*s; d f16 per 256, s8 "
                "-127..127 per 16",
     .activations = "float",
     .source = "ggml"},
    {.name = "iq4_nl",
     .scheme = {.code = NIB_CODE_I8, .group = 32, .symmetric = true, .formula = NIB_FORMULA_LEVELS},
     .weights = "IQ4_NL: s = f16(peak/-127), q = the nearest of ggml's 16 levels -127..113 to w/s, "
                "w = q*s; 4.5 bits in a GGUF, int8 elsewhere and in memory",
     .activations = "float",
     .source = "ggml"},
    {.name = "8da4w",
     .scheme = {.code = NIB_CODE_I4, .group = 32, .symmetric = true, .act = NIB_ACT_I8_TOKEN},
     .asym_zero = NIB_ZERO_INT,
     .takes = M_GROUP | M_ROW | M_SYM | M_ASYM | M_DYNAMIC,
     .weights =
         "int4, symmetric: s = max(amax/7.5, eps), q = clamp(round(w*(1/s)), -8, 7), w = q*s",
     .activations =
         "int8 per token, asymmetric: s = max((max-min)/255, eps), z = clamp(-128 - round(min/s), "
         "-128, 127)",
     .source = "torchao Int8DynamicActivationIntxWeightConfig"},
    {.name = "4da4w",
     .scheme = {.code = NIB_CODE_I4, .group = 32, .symmetric = true, .act = NIB_ACT_I4_TOKEN},
     .asym_zero = NIB_ZERO_INT,
     .takes = M_GROUP | M_ROW | M_SYM | M_ASYM | M_ACTS,
     .weights = "int4, symmetric, as 8da4w",
     .activations = "int4 per token, asymmetric: s = max((max-min)/15, eps), z = clamp(-8 - "
                    "round(min/s), -8, 7)",
     .source = "Nibble"},
    {.name = "fp8wo",
     .scheme = {.code = NIB_CODE_E4M3, .symmetric = true},
     .takes = M_ROW | M_TENSOR,
     .weights = "e4m3: s = amax/448, q = e4m3(w/s), w = q*s",
     .activations = "float",
     .source = "torchao Float8WeightOnlyConfig"},
    {.name = "fp8dq",
     .scheme = {.code = NIB_CODE_E4M3,
                .symmetric = true,
                .act = NIB_ACT_E4M3_TOKEN,
                .act_symmetric = true},
     .takes = M_ROW | M_TENSOR,
     .weights = "e4m3, as fp8wo",
     .activations = "e4m3 per token: s = amax/448",
     .source = "torchao Float8DynamicActivationFloat8WeightConfig"},
    {.name = "mxfp8",
     .scheme = {.code = NIB_CODE_MX8,
                .group = 32,
                .symmetric = true,
                .act = NIB_ACT_MX8,
                .act_symmetric = true},
     .takes = M_ROUNDINGS,
     .weights = "e4m3 in blocks: s = 2^ceil(log2(amax/448)), q = e4m3(w/s), w = q*s; the output "
                "layer is kept",
     .activations = "e4m3 in blocks of 32, as the weights",
     .source = "OCP MX, torchao MXDynamicActivationMXWeightConfig (RCEIL)"},
    {.name = "mxfp4",
     .scheme = {.code = NIB_CODE_MX4, .group = 32, .symmetric = true},
     .takes = M_ROUNDINGS,
     .weights = "e2m1 in blocks: s = 2^ceil(log2(amax/6)), q = e2m1(w/s), w = q*s",
     .activations = "float",
     .source = "OCP MX, torchao MXTensor (RCEIL)"},
    {.name = "mxfp4dq",
     .scheme = {.code = NIB_CODE_MX4,
                .group = 32,
                .symmetric = true,
                .act = NIB_ACT_MX4,
                .act_symmetric = true},
     .takes = M_ROUNDINGS,
     .weights = "e2m1 in blocks, as mxfp4",
     .activations = "e2m1 in blocks of 32, as the weights",
     .source = "OCP MX, torchao MXDynamicActivationMXWeightConfig (e2m1, RCEIL)"},
    {.name = "nvfp4",
     .scheme = {.code = NIB_CODE_NV4, .group = 16, .symmetric = true},
     .takes = M_BLOCK,
     .weights =
         "e2m1 in blocks, two scales: t = max|W|/2688, s = e4m3(clamp(amax/6/t, 2^-6, 448)), q = "
         "e2m1(w*(1/t/s)), w = q*(s*t)",
     .activations = "float",
     .source = "torchao NVFP4WeightOnlyConfig"},
    {.name = "nvfp4dq",
     .scheme = {.code = NIB_CODE_NV4,
                .group = 16,
                .symmetric = true,
                .act = NIB_ACT_NV4,
                .act_symmetric = true},
     .takes = M_BLOCK,
     .weights = "e2m1 in blocks, two scales, as nvfp4",
     .activations = "e2m1 in blocks of 16, as the weights, with t = amax/2688 of the token",
     .source = "torchao NVFP4DynamicActivationNVFP4WeightConfig"},
};

/* ---- codes ---- */

#define X(id, key, name, element, group, scale)                                                    \
    {key, name, NIB_ELEMENT_##element, group, NIB_TYPE_##scale},
const nib_code_info nib__codes[NIB_CODE_COUNT] = {NIB_CODES(X)};
#undef X

#define X(id, short_name, key, name, code, block) {short_name, key, name, NIB_CODE_##code, block},
const nib_act_info nib__acts[NIB_ACT_COUNT] = {NIB_ACTS(X)};
#undef X

/* By element: the type of one code in a plain array, and the bits of a packed code. */
static const struct {
    nib_type type;
    int bits;
} elements[] = {
    [NIB_ELEMENT_F32] = {NIB_TYPE_F32, 32},   [NIB_ELEMENT_F16] = {NIB_TYPE_F16, 16},
    [NIB_ELEMENT_BF16] = {NIB_TYPE_BF16, 16}, [NIB_ELEMENT_I8] = {NIB_TYPE_I8, 8},
    [NIB_ELEMENT_I4] = {NIB_TYPE_U8, 4},      [NIB_ELEMENT_E4M3] = {NIB_TYPE_E4M3, 8},
    [NIB_ELEMENT_E5M2] = {NIB_TYPE_E5M2, 8},  [NIB_ELEMENT_E2M1] = {NIB_TYPE_U8, 4},
    [NIB_ELEMENT_I1] = {NIB_TYPE_I32, 1},     [NIB_ELEMENT_I2] = {NIB_TYPE_I32, 2},
    [NIB_ELEMENT_I3] = {NIB_TYPE_I32, 3},     [NIB_ELEMENT_I5] = {NIB_TYPE_I32, 5},
    [NIB_ELEMENT_I6] = {NIB_TYPE_I32, 6},     [NIB_ELEMENT_I7] = {NIB_TYPE_I32, 7},
};

int nib__code_bits(nib_code code) { return elements[nib__codes[code].element].bits; }
nib_type nib__code_type(nib_code code) { return elements[nib__codes[code].element].type; }

bool nib__code_is_int(nib_code code)
{
    const nib_element element = nib__codes[code].element;
    return element == NIB_ELEMENT_I8 || element == NIB_ELEMENT_I4 || element >= NIB_ELEMENT_I1;
}

bool nib__code_is_odd_int(nib_code code) { return nib__codes[code].element >= NIB_ELEMENT_I1; }

nib_code nib__int_code(int64_t bits)
{
    static const nib_code codes[] = {NIB_CODE_I1, NIB_CODE_I2, NIB_CODE_I3, NIB_CODE_I4,
                                     NIB_CODE_I5, NIB_CODE_I6, NIB_CODE_I7, NIB_CODE_I8};
    return codes[bits - 1];
}

bool nib__code_is_f8(nib_code code)
{
    const nib_element element = nib__codes[code].element;
    return element == NIB_ELEMENT_E4M3 || element == NIB_ELEMENT_E5M2;
}

bool nib__code_is_mx(nib_code code) { return nib__codes[code].scale_type == NIB_TYPE_E8M0; }

bool nib__act_is_int(nib_act act)
{
    return nib__code_is_int(nib__acts[act].code) && nib__acts[act].block == 0;
}

nib_type nib__float_type(nib_code code)
{
    return nib__codes[code].element <= NIB_ELEMENT_BF16 ? nib__code_type(code) : NIB_TYPE_NONE;
}

nib_code nib__float_code(nib_type type)
{
    return type == NIB_TYPE_F16    ? NIB_CODE_F16
           : type == NIB_TYPE_BF16 ? NIB_CODE_BF16
                                   : NIB_CODE_F32;
}

/* ---- schemes ---- */

bool nib__scheme_is_quantized(const nib_scheme *s)
{
    return nib__codes[s->code].element > NIB_ELEMENT_BF16;
}

bool nib__scheme_is_gguf_block(const nib_scheme *s)
{
    return s->formula == NIB_FORMULA_SUPER || s->formula == NIB_FORMULA_LEVELS;
}

void nib__super_codes(const nib_scheme *s, int *lowest, int *highest)
{
    const bool is_4 = s->code == NIB_CODE_I4;
    if (s->zero == NIB_ZERO_NONE) /* Q3_K, Q6_K */
        *lowest = is_4 ? -4 : -32, *highest = -*lowest - 1;
    else if (s->group == 16) /* Q2_K */
        *lowest = 0, *highest = 3;
    else /* Q4_K, Q5_K */
        *lowest = is_4 ? -8 : 0, *highest = is_4 ? 7 : 31;
}

bool nib__scheme_has_tensor_scale(const nib_scheme *s)
{
    return nib__codes[s->code].scale_type == NIB_TYPE_E4M3 && !s->block_only;
}

bool nib__scheme_equal(const nib_scheme *a, const nib_scheme *b)
{
    if (a->code != b->code || a->act != b->act)
        return false;
    if (!nib__scheme_is_quantized(a))
        return true;
    if (a->group != b->group || a->zero != b->zero)
        return false;
    if (nib__code_is_int(a->code) && (a->symmetric != b->symmetric || a->formula != b->formula))
        return false;
    if (nib__act_is_int(a->act) && a->act_symmetric != b->act_symmetric)
        return false;
    if (nib__scheme_has_tensor_scale(a) != nib__scheme_has_tensor_scale(b))
        return false;
    return !nib__code_is_mx(a->code) || a->mx_floor == b->mx_floor;
}

bool nib__scheme_same_weight(const nib_scheme *a, const nib_scheme *b)
{
    nib_scheme other = *b;
    other.act = a->act;
    other.act_symmetric = a->act_symmetric;
    return nib__scheme_equal(a, &other);
}

int64_t nib__scheme_groups(const nib_scheme *s, int64_t k)
{
    return s->group > 0 && k > 0 ? nib__ceil_div(k, s->group) : 1;
}

int64_t nib__scheme_group_size(const nib_scheme *s, int64_t k)
{
    return s->group > 0 ? s->group : k;
}

/* ---- names ---- */

static const nib_scheme_base *base_of(const nib_scheme *s)
{
    const nib_act act = s->act == NIB_ACT_I8_STATIC ? NIB_ACT_I8_TOKEN : s->act;
    const bool is_block = nib__scheme_is_gguf_block(s); /* the name says group and zero, too */
    for (size_t i = 0; i < COUNT(bases); i++) {
        const nib_scheme *b = &bases[i].scheme;
        if (b->code == s->code && b->act == act && nib__scheme_is_gguf_block(b) == is_block &&
            (!is_block || (b->formula == s->formula && b->group == s->group && b->zero == s->zero)))
            return &bases[i];
    }
    return NULL;
}

typedef struct name_buffer {
    char *at;
    size_t used;
} name_buffer;

static void append(name_buffer *name, const char *text)
{
    const size_t size = strlen(text);
    if (name->used + size < 64) {
        memcpy(name->at + name->used, text, size + 1);
        name->used += size;
    }
}

static void append_size(name_buffer *name, const nib_scheme *s, const nib_scheme_base *base)
{
    char group[32];
    if (s->group > 0 && nib__codes[s->code].group == 0) {
        snprintf(group, sizeof group, "-g%" PRId64, s->group);
        append(name, group);
    } else if (s->group == NIB_GROUP_TENSOR) {
        append(name, "-tensor");
    } else if (s->group == NIB_GROUP_ROW && base->scheme.group != NIB_GROUP_ROW) {
        append(name, "-row");
    }
}

const char *nib__scheme_name(char out[64], const nib_scheme *s)
{
    name_buffer name = {out, 0};
    const nib_scheme_base *base = base_of(s);
    const nib_scheme_base other = {.scheme = {.symmetric = true}, .asym_zero = NIB_ZERO_INT};
    out[0] = 0;
    append(&name, base != NULL ? base->name : nib__codes[s->code].key);
    if (base != NULL && (!nib__scheme_is_quantized(s) || nib__scheme_is_gguf_block(s)))
        return out;
    if (base == NULL) { /* no recipe produces it, but a checkpoint may hold it */
        append(&name, "+");
        append(&name, nib__acts[s->act].short_name);
        base = &other;
    }
    append_size(&name, s, base);
    if (nib__code_is_int(s->code)) {
        const bool is_said = s->zero == NIB_ZERO_FLOAT && (base->takes & M_FLOATZERO) != 0;
        if (s->symmetric != base->scheme.symmetric && !is_said)
            append(&name, s->symmetric ? "-sym" : "-asym");
        const nib_zero implied = s->symmetric ? NIB_ZERO_NONE : base->asym_zero;
        if (s->zero != implied)
            append(&name, s->zero == NIB_ZERO_NONE  ? "-nozero"
                          : s->zero == NIB_ZERO_INT ? "-intzero"
                                                    : "-floatzero");
    }
    if (nib__act_is_int(s->act) && s->act_symmetric != base->scheme.act_symmetric)
        append(&name, s->act_symmetric ? "-actsym" : "-actasym");
    if (s->act == NIB_ACT_I8_STATIC)
        append(&name, "-static");
    if (nib__code_is_mx(s->code) && s->mx_floor)
        append(&name, "-floor");
    if (nib__codes[s->code].scale_type == NIB_TYPE_E4M3 && s->block_only)
        append(&name, "-block");
    if (nib__code_is_int(s->code) && s->formula != NIB_FORMULA_TORCHAO)
        append(&name, s->formula == NIB_FORMULA_AO017      ? "-ao017"
                      : s->formula == NIB_FORMULA_TINYGEMM ? "-tinygemm"
                                                           : "-ggml");
    return out;
}

/* ---- parsing ---- */

const char *nib__scheme_takes(char out[128], unsigned takes)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < COUNT(modifiers); i++) {
        if ((takes & 1U << i) == 0)
            continue;
        const unsigned after = takes >> i >> 1;
        const char *before = used == 0 ? "" : after == 0 ? " and " : ", ";
        used += (size_t)snprintf(out + used, 128 - used, "%s-%s", before, modifiers[i]);
    }
    return out;
}

const nib_scheme_base *nib__scheme_base(size_t i) { return i < COUNT(bases) ? &bases[i] : NULL; }

static nib_status fail_modifier(nib_err *err, const char *whole, const nib_scheme_base *base,
                                const char *text, size_t size)
{
    char name[128], part[64], all[128];
    nib__escape_name(name, sizeof name, whole, strlen(whole));
    nib__escape_name(part, sizeof part, text, size);
    if (base->takes == 0)
        return nib__fail(err, NIB_USAGE,
                         "scheme \"%s\": -%s does not apply to %s, which takes no modifier", name,
                         part, base->name);
    return nib__fail(err, NIB_USAGE, "scheme \"%s\": -%s does not apply to %s, which takes %s",
                     name, part, base->name, nib__scheme_takes(all, base->takes));
}

static nib_status fail_base(nib_err *err, const char *whole, const char *text, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    const char *names[COUNT(bases)];
    char wanted[64], shown[80];
    nib_text near, list;
    nib__text_init(&near, &a);
    nib__text_init(&list, &a);
    snprintf(wanted, sizeof wanted, "%.*s", (int)nib__min((int64_t)size, 63), text);
    for (size_t i = 0; i < COUNT(bases); i++) {
        names[i] = bases[i].name;
        nib__text_format(&list, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    nib__near_names(&near, wanted, names, COUNT(bases));
    nib__escape_name(shown, sizeof shown, whole, strlen(whole));
    const bool is_near = near.size > 0 && !near.failed;
    const nib_status status = nib__fail(err, NIB_USAGE, "scheme \"%s\": unknown name; %s %s", shown,
                                        is_near ? "did you mean" : "the names are",
                                        is_near       ? near.at
                                        : list.failed ? ""
                                                      : list.at);
    nib__text_free(&near);
    nib__text_free(&list);
    return status;
}

static nib_status parse_group(nib_scheme *out, const char *text, size_t size, const char *whole,
                              nib_err *err)
{
    int64_t value = 0;
    for (size_t i = 1; i < size; i++) {
        if (text[i] < '0' || text[i] > '9' || value > GROUP_MAX)
            value = GROUP_MAX + 1LL;
        else
            value = value * 10 + (text[i] - '0');
    }
    if (value < 1 || value > GROUP_MAX) {
        char name[128], part[32];
        return nib__fail(err, NIB_USAGE,
                         "scheme \"%s\": the group in -%s is not a whole number from 1 to %d",
                         nib__escape_name(name, sizeof name, whole, strlen(whole)),
                         nib__escape_name(part, sizeof part, text, size), GROUP_MAX);
    }
    out->group = value;
    return NIB_OK;
}

/* The bit of one modifier; 0 if it is unknown. "g" and digits is M_GROUP. */
static unsigned modifier_of(const char *text, size_t size)
{
    if (size >= 2 && text[0] == 'g' && text[1] >= '0' && text[1] <= '9')
        return M_GROUP;
    for (unsigned i = 1; i < COUNT(modifiers); i++)
        if (strlen(modifiers[i]) == size && memcmp(modifiers[i], text, size) == 0)
            return 1U << i;
    return 0;
}

static void apply_modifiers(nib_scheme *s, const nib_scheme_base *base, unsigned given)
{
    if (given & M_ROW)
        s->group = NIB_GROUP_ROW;
    if (given & M_TENSOR)
        s->group = NIB_GROUP_TENSOR;
    if (given & M_MAPPINGS) {
        s->symmetric = (given & M_SYM) != 0;
        s->zero = s->symmetric          ? NIB_ZERO_NONE
                  : given & M_INTZERO   ? NIB_ZERO_INT
                  : given & M_FLOATZERO ? NIB_ZERO_FLOAT
                                        : base->asym_zero;
    }
    if (given & M_ACTS)
        s->act_symmetric = (given & M_ACTSYM) != 0;
    if (given & M_STATIC)
        s->act = NIB_ACT_I8_STATIC;
    s->mx_floor = (given & M_FLOOR) != 0;
    s->block_only = (given & M_BLOCK) != 0;
    if (given & M_AO017)
        s->formula = NIB_FORMULA_AO017;
    if (given & M_TINYGEMM)
        s->formula = NIB_FORMULA_TINYGEMM;
    if (given & M_GGML)
        s->formula = NIB_FORMULA_GGML;
}

/* Formulas other than the default have conditions of their own. */
static nib_status check_formula(const nib_scheme *s, const char *whole, nib_err *err)
{
    char name[128];
    nib__escape_name(name, sizeof name, whole, strlen(whole));
    if (s->formula == NIB_FORMULA_TINYGEMM && s->zero != NIB_ZERO_FLOAT)
        return nib__fail(err, NIB_USAGE,
                         "scheme \"%s\": -tinygemm has float zero points; leave out -%s", name,
                         s->symmetric ? "sym" : "intzero");
    if (s->formula == NIB_FORMULA_GGML && (s->group != 32 || s->zero == NIB_ZERO_INT))
        return nib__fail(err, NIB_USAGE,
                         "scheme \"%s\": -ggml needs groups of 32 and no integer zero points: "
                         "int8wo-g32-ggml (Q8_0), int4wo-sym-ggml (Q4_0) or int4wo-ggml (Q4_1)",
                         name);
    if (s->formula != NIB_FORMULA_AO017)
        return NIB_OK;
    if (s->zero == NIB_ZERO_FLOAT)
        return nib__fail(
            err, NIB_USAGE,
            "scheme \"%s\": -ao017 does not change %s with a float zero, whose smallest scale is "
            "the same in every torchao; leave it out%s",
            name, nib__codes[s->code].name,
            s->code == NIB_CODE_I4 ? ", or add -sym or -intzero" : "");
    if (s->code == NIB_CODE_I8 && s->symmetric && s->group <= 0)
        return nib__fail(
            err, NIB_USAGE,
            "scheme \"%s\": -ao017 does not change int8 rows and tensors, whose smallest scale is "
            "the same in every torchao; leave it out, or give a group",
            name);
    return NIB_OK;
}

static nib_status parse_modifiers(nib_scheme *s, const nib_scheme_base *base, const char *whole,
                                  const char *at, const char *end, nib_err *err)
{
    unsigned given = 0;
    while (at < end) {
        const char *text = ++at; /* past the '-' */
        while (at < end && *at != '-')
            at++;
        const size_t size = (size_t)(at - text);
        const unsigned bit = modifier_of(text, size);
        if ((bit & base->takes) == 0)
            return fail_modifier(err, whole, base, text, size);
        unsigned taken = given;
        for (size_t i = 0; i < COUNT(exclusive); i++)
            taken |= (given & exclusive[i]) != 0 ? exclusive[i] : 0;
        if ((taken & bit) != 0) {
            char name[128], part[32];
            return nib__fail(err, NIB_USAGE,
                             "scheme \"%s\": -%s repeats or contradicts an earlier modifier",
                             nib__escape_name(name, sizeof name, whole, strlen(whole)),
                             nib__escape_name(part, sizeof part, text, size));
        }
        given |= bit;
        if (bit == M_GROUP)
            NIB_TRY(parse_group(s, text, size, whole, err));
    }
    apply_modifiers(s, base, given);
    return check_formula(s, whole, err);
}

nib_status nib__scheme_parse(nib_scheme *out, const char *name, size_t size, nib_err *err)
{
    char whole[128]; /* for messages */
    snprintf(whole, sizeof whole, "%.*s", (int)nib__min((int64_t)size, sizeof whole - 1), name);
    size_t base_size = 0;
    while (base_size < size && name[base_size] != '-')
        base_size++;
    for (size_t i = 0; i < COUNT(bases); i++) {
        const nib_scheme_base *base = &bases[i];
        if (strlen(base->name) != base_size || memcmp(base->name, name, base_size) != 0)
            continue;
        nib_scheme s = base->scheme;
        NIB_TRY(parse_modifiers(&s, base, whole, name + base_size, name + size, err));
        *out = s;
        return NIB_OK;
    }
    return fail_base(err, whole, name, base_size);
}
