/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts: everything about a layer, device, build or phase that a kernel may depend on; and
 * conditions on them. One list defines the enum, names, words and documentation. A query is an
 * array of int64.
 */
#ifndef NIB_FACT_H
#define NIB_FACT_H

#include "kv_type.h"
#include "scheme.h"

typedef enum nib_kind { NIB_KIND_INT, NIB_KIND_ENUM, NIB_KIND_SET, NIB_KIND_FLAG } nib_kind;

/* X(id, name in rows, plans and --without). Operations of inference come first, then those of
 * training from QUANT_T on (train_ops.h), then those of quantization-aware training, which have no
 * kernel rows (fake_quant.h). */
#define NIB_OPS(X)                                                                                 \
    X(LINEAR, "linear")                 /* y = x W^T + bias */                                     \
    X(LINEAR_DX, "linear_dx")           /* dx = dy W */                                            \
    X(LINEAR_DW, "linear_dw")           /* dW = dy^T x */                                          \
    X(LINEAR_EXPERTS, "linear_experts") /* each row by the weight of its expert */                 \
    X(LINEAR_HEADS, "linear_heads")     /* each head by its own weight */                          \
    X(QUANT, "quant")                   /* activations to the form that a linear row reads */      \
    X(QUANT_W, "quant_w")               /* weights to codes, scales and zeros */                   \
    X(DEQUANT, "dequant")                                                                          \
    X(PACK, "pack")                                                                                \
    X(EMBED, "embed")                                                                              \
    X(ATTN, "attn")                                                                                \
    X(NORM, "norm")                                                                                \
    X(ROPE, "rope")                                                                                \
    X(SWIGLU, "swiglu")                                                                            \
    X(ADD, "add")                                                                                  \
    X(SCALE, "scale")             /* multiplies by a number, or soft-caps */                       \
    X(STORE_KV, "copy")           /* writes keys and values to the KV cache */                     \
    X(SHORT_CONV, "short_conv")   /* a causal convolution of each channel over the last tokens */  \
    X(DELTA_GATES, "delta_gates") /* the two gates of each head of GATED_DELTA */                  \
    X(GATED_DELTA, "gated_delta") /* the gated delta rule: linear attention over a matrix */       \
    X(SSM_GATES, "ssm_gates")     /* the step and the decay of each head of SSM */                 \
    X(SSM, "ssm")                 /* the state-space recurrence of Mamba-2, over a matrix */       \
    X(GATHER, "gather")           /* reorders columns to a weight's act-order */                   \
    X(ROUTE, "route")             /* chooses each token's experts from the router's logits */      \
    X(SORT, "sort")               /* lists the rows of each expert, from the choice of ROUTE */    \
    X(DISPATCH, "dispatch")       /* copies each token to the rows of its experts */               \
    X(COMBINE, "combine")         /* adds the outputs of each token's experts */                   \
    X(SAMPLE, "sample")           /* the next token from logits */                                 \
    X(ROPE_COPY, "rope_copy")     /* ROPE of queries and keys and STORE_KV in one pass */          \
    X(NORM_QUANT, "norm_quant")   /* NORM and QUANT in one pass; the normed rows are not kept */   \
    X(MOVE, "move")               /* copies a buffer to another device; has no kernel rows */      \
    X(HIDDEN, "hidden")           /* the caller's hidden states behind a value; likewise none */   \
    X(QUANT_T, "quant_t")         /* QUANT of the transposed matrix */                             \
    X(CAST, "cast")               /* f32 rows to a packed weight */                                \
    X(CAST_T, "cast_t")           /* CAST of the transposed matrix */                              \
    X(AMAX, "amax")               /* the largest magnitude */                                      \
    X(NORM_DX, "norm_dx")         /* the gradient of a norm's input */                             \
    X(NORM_DW, "norm_dw")         /* of its weight */                                              \
    X(SWIGLU_DX, "swiglu_dx")     /* of gate and up */                                             \
    X(SCALE_DX, "scale_dx")       /* of its input */                                               \
    X(ATTN_DX, "attn_dx")         /* of queries, keys and values */                                \
    X(SINKS_DW, "sinks_dw")       /* of the sinks of attention */                                  \
    X(GATHER_DX, "gather_dx")     /* of its columns */                                             \
    X(DELTA_GATES_DX, "delta_gates_dx") /* of the inputs and vectors of the gates */               \
    X(GATED_DELTA_DX, "gated_delta_dx") /* of queries, keys, values and gates */                   \
    X(SSM_GATES_DX, "ssm_gates_dx")     /* of the inputs and vectors of the gates */               \
    X(SSM_DX, "ssm_dx")                 /* of x, B, C, gates and D */                              \
    X(SHORT_CONV_DX, "short_conv_dx")   /* of the columns of a short convolution */                \
    X(SHORT_CONV_DW, "short_conv_dw")   /* of its taps */                                          \
    X(ROUTE_DX, "route_dx")             /* of the router's logits */                               \
    X(ROUTE_DW, "route_dw")             /* of the factors of the experts' weights */               \
    X(COMBINE_DW, "combine_dw")         /* of the weights of a token's experts */                  \
    X(ROUTE_SUMS, "route_sums")         /* sums of the experts' probabilities over tokens */       \
    X(BALANCE, "balance")               /* the load-balancing loss of a micro-batch */             \
    X(EMBED_DW, "embed_dw")             /* of the table */                                         \
    X(BIAS_DW, "bias_dw")               /* of a bias */                                            \
    X(XENT, "xent")                     /* cross-entropy and its gradient */                       \
    X(SQUARES, "squares")               /* a float64 sum of squares */                             \
    X(ADAMW, "adamw")                                                                              \
    X(FAKE, "fake")       /* quantizes an input and dequantizes it */                              \
    X(FAKE_DX, "fake_dx") /* its gradient past the rounding */                                     \
    X(FAKE_DW, "fake_dw") /* the weight's */

#define X(id, name) NIB_OP_##id,
typedef enum nib_op { NIB_OPS(X) NIB_OP_COUNT } nib_op;
#undef X

typedef enum nib_device_kind {
    NIB_DEVICE_CPU,
    NIB_DEVICE_OPENCL,
    NIB_DEVICE_CUDA,
    NIB_DEVICE_COUNT
} nib_device_kind;

/* The vendor of the device, for kernels of other engines. */
typedef enum nib_maker {
    NIB_MAKER_X86,
    NIB_MAKER_ARM,
    NIB_MAKER_NVIDIA,
    NIB_MAKER_AMD,
    NIB_MAKER_APPLE,
    NIB_MAKER_INTEL,
    NIB_MAKER_COUNT
} nib_maker;

typedef enum nib_phase {
    NIB_PHASE_INFER,
    NIB_PHASE_FORWARD,
    NIB_PHASE_BACKWARD,
    NIB_PHASE_COUNT
} nib_phase;

/* bits of the isa fact */
enum {
    NIB_ISA_AVX2 = 1 << 0,   /* with fma, f16c, bmi2 */
    NIB_ISA_AVX512 = 1 << 1, /* f, bw, dq, vl */
    NIB_ISA_AVX512VNNI = 1 << 2,
    NIB_ISA_AVX512BF16 = 1 << 3,
    NIB_ISA_NEON = 1 << 4,
    NIB_ISA_DOTPROD = 1 << 5,
    NIB_ISA_I8MM = 1 << 6,
    NIB_ISA_AMX = 1 << 7, /* tiles and int8, granted by the operating system */
};

/* Packed layouts that another engine's recipe may name. */
typedef enum nib_layout_hint {
    NIB_HINT_NONE,
    NIB_HINT_PLAIN,
    NIB_HINT_CUTLASS_INT4,
    NIB_HINT_TILE_PACKED,
    NIB_HINT_MARLIN,
    NIB_HINT_OPAQUE,
    NIB_HINT_OTHER,
    NIB_HINT_COUNT
} nib_layout_hint;

/* How the codes of a weight are chosen: docs/quantization.md, "Methods". */
typedef enum nib_ptq_method {
    NIB_PTQ_RTN,    /* to nearest, under the scale of the scheme's formula */
    NIB_PTQ_SEARCH, /* to nearest, under the scale with the least weighted squared error */
    NIB_PTQ_GPTQ,   /* to nearest in turn, each after the errors of those before it */
    NIB_PTQ_HQQ,    /* to nearest, under the float zero with the least sum of |error|^(11/16) */
    NIB_PTQ_QRONOS, /* as GPTQ, for the outputs of the model as stored */
    NIB_PTQ_AWQ,    /* as SEARCH, after scales of inputs were folded into what makes them */
    NIB_PTQ_LEARN,  /* as QRONOS, then moved along gradients */
    NIB_PTQ_SMOOTH, /* as AWQ, with scales that make activations easier to code */
    NIB_PTQ_ROTATE, /* as SEARCH, after rotations of the model's inside were merged into weights */
    NIB_PTQ_COUNT
} nib_ptq_method;

/* Whether a method takes the second moments of a layer's inputs: src/convert/gptq.h. */
NIB_INLINE bool nib__ptq_sweeps(nib_ptq_method method)
{
    return method == NIB_PTQ_GPTQ || method == NIB_PTQ_QRONOS || method == NIB_PTQ_LEARN;
}

/* Whether a method starts at codes for the outputs of the model as stored. */
NIB_INLINE bool nib__ptq_pairs(nib_ptq_method method)
{
    return method == NIB_PTQ_QRONOS || method == NIB_PTQ_LEARN;
}

/* Whether a method scales the inputs of layers on a text, before codes are chosen by a search. */
NIB_INLINE bool nib__ptq_scales(nib_ptq_method method)
{
    return method == NIB_PTQ_AWQ || method == NIB_PTQ_SMOOTH;
}

/* Whether a method changes weights before codes are chosen by a search, which one scale for a whole
 * tensor does not need. */
NIB_INLINE bool nib__ptq_changes(nib_ptq_method method)
{
    return nib__ptq_scales(method) || method == NIB_PTQ_ROTATE;
}

/* Whether a method cannot do without a text. */
NIB_INLINE bool nib__ptq_needs_text(nib_ptq_method method)
{
    return nib__ptq_sweeps(method) || nib__ptq_scales(method);
}

/* X(id, kind, key, owner, noun, names of its values or NULL) */
#define NIB_FACTS(X)                                                                               \
    X(OP, ENUM, "op", "the layer", "the operation", nib__op_names)                                 \
    X(CODE, ENUM, "weight", "the layer", "the weight's code", nib__code_names)                     \
    X(ACT, ENUM, "act", "the layer", "the activation's code", nib__act_names)                      \
    X(INPUT, ENUM, "input", "the layer", "the activation type", nib__type_names)                   \
    X(DEVICE, ENUM, "device", "the device", "the device", nib__device_names)                       \
    X(MAKER, ENUM, "maker", "the device", "the device's maker", nib__maker_names)                  \
    X(ISA, SET, "isa", "the device", "the instruction set", nib__isa_names)                        \
    X(SM, INT, "sm", "the device", "the compute capability", NULL)                                 \
    X(CDNA, INT, "cdna", "the device", "the CDNA generation", NULL)                                \
    X(DOT4, FLAG, "dot4", "the device", "a 4-bit dot product", NULL)                               \
    X(DOT8, FLAG, "dot8", "the device", "an 8-bit dot product", NULL)                              \
    X(MATRIX_UNIT, FLAG, "matrix_unit", "the device", "a matrix unit", NULL)                       \
    X(FP8_UNIT, FLAG, "fp8_unit", "the device", "an fp8 matrix unit", NULL)                        \
    X(MX_UNIT, FLAG, "mx_unit", "the device", "a block-scaled matrix unit", NULL)                  \
    X(SUBGROUPS, FLAG, "subgroups", "the device", "sub-groups", NULL)                              \
    X(FP16, FLAG, "fp16", "the device", "half precision", NULL)                                    \
    X(FP64, FLAG, "fp64", "the device", "double precision", NULL)                                  \
    X(DENORMALS, FLAG, "denormals", "the device", "f32 denormals", NULL)                           \
    X(DRIVER, INT, "driver", "the device", "the driver version", NULL)                             \
    X(N, INT, "n", "the layer", "the output width n", NULL)                                        \
    X(K, INT, "k", "the layer", "the input width k", NULL)                                         \
    X(M, INT, "m", "the layer", "the number of tokens m", NULL)                                    \
    X(GROUP, INT, "group", "the layer", "the group size", NULL)                                    \
    X(SYMMETRIC, FLAG, "symmetric", "the layer", "symmetric weights", NULL)                        \
    X(ACT_SYMMETRIC, FLAG, "act_symmetric", "the layer", "symmetric activations", NULL)            \
    X(SCALE_TYPE, ENUM, "scale_type", "the layer", "the scale type", nib__type_names)              \
    X(ZERO, ENUM, "zero", "the layer", "the zero point", nib__zero_names)                          \
    X(ZERO_TYPE, ENUM, "zero_type", "the layer", "the zero point type", nib__type_names)           \
    X(ACT_SCALE_TYPE, ENUM, "act_scale_type", "the layer", "the activation's scale type",          \
      nib__type_names)                                                                             \
    X(BIAS, FLAG, "bias", "the layer", "a bias", NULL)                                             \
    X(PLAIN, FLAG, "plain", "the layer", "codes and scales in plain rows", NULL)                   \
    X(Q6_K, FLAG, "q6_k", "the layer", "a weight in Q6_K blocks", NULL)                            \
    X(EXPERT, FLAG, "expert", "the layer", "the matrix of an expert", NULL)                        \
    X(LAYOUT_HINT, ENUM, "layout", "the layer", "the requested layout", nib__layout_hint_names)    \
    X(TOP_K, INT, "top_k", "the request", "the number of top-k candidates", NULL)                  \
    X(PENALTY, FLAG, "penalty", "the request", "a repetition penalty", NULL)                       \
    X(LATENT, FLAG, "latent", "the layer", "values inside keys", NULL)                             \
    X(CACHE, ENUM, "cache", "the request", "the KV cache type", nib__kv_names)                     \
    X(CACHE_MIXED, FLAG, "cache_mixed", "the request", "values of another type than keys", NULL)   \
    X(CACHE_HADAMARD, FLAG, "cache_hadamard", "the request", "rotated keys or values", NULL)       \
    X(METHOD, ENUM, "method", "the layer", "the method", nib__ptq_names)                           \
    X(PHASE, ENUM, "phase", "the layer", "the phase", nib__phase_names)                            \
    X(BUILT, FLAG, "built", "this program", "this kernel", NULL)                                   \
    X(OFFERED, FLAG, "offered", "this run", "this kernel", NULL)

#define X(id, kind, key, owner, noun, names) NIB_FACT_##id,
typedef enum nib_fact { NIB_FACTS(X) NIB_FACT_COUNT } nib_fact;
#undef X

typedef struct nib_fact_info {
    nib_kind kind;
    const char *key, *owner, *noun;
    const char *const *names; /* ENUM: by value; SET: by bit; ends in NULL */
} nib_fact_info;

extern const nib_fact_info nib__fact_info[NIB_FACT_COUNT];
extern const char *const nib__op_names[];
extern const char *const nib__code_names[];
extern const char *const nib__act_names[];
extern const char *const nib__type_names[];
extern const char *const nib__device_names[];
extern const char *const nib__maker_names[];
extern const char *const nib__isa_names[];
extern const char *const nib__zero_names[];
extern const char *const nib__layout_hint_names[];
extern const char *const nib__phase_names[];
extern const char *const nib__ptq_names[]; /* "rtn", "search" */

/* The facts of one product on one device. */
typedef struct nib_query {
    int64_t fact[NIB_FACT_COUNT];
    const nib_strings *without; /* names of rows that --without excludes; NULL: none */
} nib_query;

/* ---- conditions ---- */

typedef enum nib_relation {
    NIB_REL_END,
    NIB_REL_IS,
    NIB_REL_ONE_OF, /* arg of ENUM: bits of the allowed values; of INT: powers of two, or-ed */
    NIB_REL_MIN,
    NIB_REL_MAX,
    NIB_REL_MULTIPLE, /* fact % arg == 0; holds for a group of a row or tensor */
    NIB_REL_DIVIDES,  /* fact divides the fact `arg`; holds for a group of a row or tensor */
    NIB_REL_HAS,      /* all bits of arg */
} nib_relation;

typedef struct nib_cond {
    nib_relation relation;
    nib_fact fact;
    int64_t arg;
    const char *why; /* ends the sentence; NULL: none */
} nib_cond;

#define NIB_IS(f, x, why)                                                                          \
    {                                                                                              \
        NIB_REL_IS, NIB_FACT_##f, (x), why                                                         \
    }
#define NIB_ONE_OF(f, set, why)                                                                    \
    {                                                                                              \
        NIB_REL_ONE_OF, NIB_FACT_##f, (set), why                                                   \
    }
#define NIB_AT_LEAST(f, x, why)                                                                    \
    {                                                                                              \
        NIB_REL_MIN, NIB_FACT_##f, (x), why                                                        \
    }
#define NIB_AT_MOST(f, x, why)                                                                     \
    {                                                                                              \
        NIB_REL_MAX, NIB_FACT_##f, (x), why                                                        \
    }
#define NIB_MULTIPLE(f, x, why)                                                                    \
    {                                                                                              \
        NIB_REL_MULTIPLE, NIB_FACT_##f, (x), why                                                   \
    }
#define NIB_DIVIDES(f, g, why)                                                                     \
    {                                                                                              \
        NIB_REL_DIVIDES, NIB_FACT_##f, NIB_FACT_##g, why                                           \
    }
#define NIB_HAS(f, set, why)                                                                       \
    {                                                                                              \
        NIB_REL_HAS, NIB_FACT_##f, (set), why                                                      \
    }
#define NIB_BIT(x) (INT64_C(1) << (x))
#define NIB_COND_END                                                                               \
    {                                                                                              \
        NIB_REL_END, NIB_FACT_OP, 0, NULL                                                          \
    }
#define NIB_CONDS(...)                                                                             \
    (const nib_cond[]) { __VA_ARGS__, NIB_COND_END }
#define NIB_NO_CONDS                                                                               \
    (const nib_cond[]) { NIB_COND_END }

bool nib__cond_holds(const nib_cond *cond, const nib_query *query);
/* The stable code: "n%128", "sm>=80", "group|k", "scale_type:f32,bf16", "isa+avx2",
 * "symmetric=yes". */
void nib__cond_code(const nib_cond *cond, nib_text *out);
/* The sentence of a condition that does not hold: the value, the required value, the smallest
 * change that would satisfy it, and why the kernel requires it. */
void nib__cond_say(const nib_cond *cond, const nib_query *query, nib_text *out);
/* What the condition requires, without a query: for the kernel documentation. */
void nib__cond_describe(const nib_cond *cond, nib_text *out);
void nib__fact_say(nib_fact fact, int64_t value, nib_text *out);

#endif
