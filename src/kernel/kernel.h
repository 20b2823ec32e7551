/* SPDX-License-Identifier: Apache-2.0
 *
 * THE table: a row per kernel, the same in every build and on every machine. A row that this build
 * lacks has no run, and its fact `built` is 0. Rows of other engines explain why those ran or
 * refused; they never run.
 */
#ifndef NIB_KERNEL_H
#define NIB_KERNEL_H

#include "fact.h"
#include "launch.h"
#include "ops.h"
#include "train_ops.h"

/* The arithmetic contract. Rows with the same contract give the same bits; a layer mixes only such
 * rows. */
typedef enum nib_arithmetic {
    NIB_ARITHMETIC_F32,   /* f32 fused multiply-adds, k ascending */
    NIB_ARITHMETIC_BF16,  /* per pair of k: odd then even fused multiply-add, as vdpbf16ps */
    NIB_ARITHMETIC_I32,   /* exact integer dot per group, then f32 per group ascending */
    NIB_ARITHMETIC_LANES, /* 16 lanes and one tree: norms, softmax, attention */
    NIB_ARITHMETIC_EXACT, /* no rounding beyond the operation's own: copies, casts, element-wise */
    NIB_ARITHMETIC_OTHER, /* specific to a device, within the row's tolerance */
    NIB_ARITHMETIC_COUNT
} nib_arithmetic;
extern const char *const nib__arithmetic_names[]; /* "f32", "bf16", "i32", ... */

/* The arithmetic unit whose rate bounds a row. */
typedef enum nib_unit {
    NIB_UNIT_F32,
    NIB_UNIT_BF16,
    NIB_UNIT_I8,
    NIB_UNIT_FP8,
    NIB_UNIT_MX8,
    NIB_UNIT_DOT8, /* dot products of 8 bits without a matrix unit: vpdpbusd, AVX2's vpmaddubsw */
    NIB_UNIT_SCALAR,
    NIB_UNIT_COUNT
} nib_unit;

/* A packed layout. bytes and pack are NULL for a row that reads the plain weight. */
typedef struct nib_packing {
    const char *name;
    int64_t step; /* parts of pack() begin at multiples of it */
    uint64_t (*bytes)(const nib_weight *w);
    /* Packs outputs n0..n1; out: the start of the whole block. */
    void (*pack)(const nib_weight *w, void *out, int64_t n0, int64_t n1);
} nib_packing;

typedef union nib_run {
    void (*any)(void); /* to test for NULL */
    void (*quant)(const nib_quant *a, int64_t m0, int64_t m1);
    void (*quant_w)(const nib_quant_w *a, int64_t row0, int64_t row1, void *scratch);
    /* scratch: nib_kernel.scratch(a) bytes for this worker alone, 64-byte aligned */
    void (*linear)(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
    void (*embed)(const nib_embed *a, int64_t m0, int64_t m1);
    void (*norm)(const nib_norm *a, int64_t row0, int64_t row1);
    void (*norm_quant)(const nib_norm_quant *a, int64_t m0, int64_t m1);
    void (*rope)(const nib_rope *a, int64_t m0, int64_t m1);
    void (*store_kv)(const nib_store_kv *a, int64_t m0, int64_t m1);
    void (*rope_store_kv)(const nib_rope_store_kv *a, int64_t m0, int64_t m1);
    /* items: slot * heads + head */
    void (*attn)(const nib_attn *a, int64_t item0, int64_t item1, void *scratch);
    void (*swiglu)(const nib_swiglu *a, int64_t m0, int64_t m1);
    void (*add)(const nib_add *a, int64_t m0, int64_t m1);
    void (*scale)(const nib_scale *a, int64_t m0, int64_t m1);
    void (*short_conv)(const nib_short_conv *a, int64_t channel0, int64_t channel1);
    void (*delta_gates)(const nib_delta_gates *a, int64_t m0, int64_t m1);
    void (*ssm_gates)(const nib_ssm_gates *a, int64_t m0, int64_t m1);
    void (*recurrence)(const nib_recurrence *a, int64_t part0, int64_t part1);
    void (*gather)(const nib_gather *a, int64_t m0, int64_t m1);
    void (*route)(const nib_route_tokens *a, int64_t m0, int64_t m1);
    void (*sort)(const nib_sort_rows *a);
    void (*dispatch)(const nib_dispatch *a, int64_t row0, int64_t row1);
    void (*combine)(const nib_combine *a, int64_t m0, int64_t m1);
    void (*pack)(const nib_pack_rows *a, int64_t n0, int64_t n1);
    void (*draw)(const nib_draw *a, void *scratch); /* scratch: for one worker, as for linear */
    /* training; quant_t is a quant */
    void (*cast)(const nib_cast *a, int64_t n0, int64_t n1);
    void (*amax)(const nib_amax *a, int64_t part0, int64_t part1);
    void (*norm_dx)(const nib_norm_dx *a, int64_t m0, int64_t m1);
    void (*norm_dw)(const nib_norm_dw *a, int64_t column0, int64_t column1);
    void (*swiglu_dx)(const nib_swiglu_dx *a, int64_t m0, int64_t m1);
    void (*scale_dx)(const nib_scale_dx *a, int64_t m0, int64_t m1);
    /* items: document * kv_heads + kv_head */
    void (*attn_dx)(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);
    void (*sinks_dw)(const nib_sinks_dw *a, int64_t head0, int64_t head1);
    void (*short_conv_dx)(const nib_short_conv_dx *a, int64_t channel0, int64_t channel1);
    void (*short_conv_dw)(const nib_short_conv_dw *a, int64_t channel0, int64_t channel1);
    void (*gather_dx)(const nib_gather_dx *a, int64_t m0, int64_t m1);
    void (*delta_gates_dx)(const nib_delta_gates_dx *a, int64_t m0, int64_t m1);
    void (*ssm_gates_dx)(const nib_ssm_gates_dx *a, int64_t m0, int64_t m1);
    /* items: document * key_heads + key head */
    void (*recurrence_dx)(const nib_recurrence_dx *a, int64_t item0, int64_t item1, void *scratch);
    void (*route_dx)(const nib_route_dx *a, int64_t m0, int64_t m1);
    void (*route_dw)(const nib_route_dw *a, int64_t expert0, int64_t expert1);
    void (*combine_dw)(const nib_combine_dw *a, int64_t m0, int64_t m1);
    void (*route_sums)(const nib_route_sums *a, int64_t block0, int64_t block1);
    void (*balance)(const nib_balance *a);
    void (*embed_dw)(const nib_embed_dw *a, int64_t column0, int64_t column1);
    void (*bias_dw)(const nib_bias_dw *a, int64_t column0, int64_t column1);
    void (*xent)(const nib_xent *a, int64_t m0, int64_t m1);
    void (*squares)(const nib_squares *a, int64_t part0, int64_t part1);
    void (*adamw)(const nib_adamw *a, int64_t i0, int64_t i1);
} nib_run;

typedef struct nib_peer {
    const char *engine, *version, *source; /* "torchao", "0.10", "commit:path" */
    const char *result; /* what the engine does if it accepts, if that needs explaining; NULL */
    /* The scale type that the engine makes for activations with a zero point, regardless of the
     * layer. */
    nib_type act_scale_type; /* NONE: as the layer says */
} nib_peer;

enum { NIB_ANY = -1 }; /* in a row's key: matches everything */

#define NIB_TOLERANCE 1e-5

typedef struct nib_kernel {
    const char *name;
    nib_op op;
    int64_t code, act, input, device; /* the key; NIB_ANY matches everything */
    const nib_cond *conds;
    nib_arithmetic arithmetic;
    double tolerance;      /* OTHER: relative to the sum of magnitudes; 0: NIB_TOLERANCE */
    const char *reference; /* the row that tests compare it with; NULL for a __ref row */
    int rank;              /* among rows whose conditions hold, the lowest runs */
    nib_unit unit;
    int64_t n_step; /* parts of a linear row begin at multiples of it */
    int64_t m_best; /* m from which the row beats lower ranks (not a condition); 0: always */
    bool grouped; /* LINEAR on a GPU: one launch also takes several experts (nib_linear.experts) */
    const nib_packing *packing;
    /* Bytes for one worker, given the operation's arguments; NULL: none. Must not shrink as m
     * grows: it is called once, for the largest m. */
    size_t (*scratch)(const void *args);
    nib_run run;             /* on the CPU */
    const nib_gpu_code *gpu; /* on a GPU */
    const nib_peer *peer;    /* NULL: Nibble's own */
    const char *note; /* one line for the documentation; for a peer: what it does if it refuses */
} nib_kernel;

/* All rows, Nibble's first. */
size_t nib__kernel_count(void);
const nib_kernel *nib__kernel_at(size_t i);
/* Iterator over all rows, faster than nib__kernel_at for every i: starts as {0}, ends with NULL. */
typedef struct nib_kernel_walk {
    size_t family, row; /* the next one */
} nib_kernel_walk;
const nib_kernel *nib__kernel_next(nib_kernel_walk *walk);
const nib_kernel *nib__kernel_find(const char *name); /* may be NULL */
bool nib__kernel_built(const nib_kernel *kernel);

/* Does the key match the query? Only such rows are candidates. */
bool nib__kernel_keyed(const nib_kernel *kernel, const nib_query *query);
/* Do all conditions hold? ask_built false: ignores `built`, to plan for another machine. */
bool nib__kernel_holds(const nib_kernel *kernel, const nib_query *query, bool ask_built);
/* Lists at most `room` conditions that do not hold, `built` first; returns the number of all that
 * do not. */
size_t nib__kernel_failed(const nib_kernel *kernel, const nib_query *query, bool ask_built,
                          const nib_cond **failed, size_t room);
/* Does the row have a condition on this fact? */
bool nib__kernel_asks(const nib_kernel *kernel, nib_fact fact);
/* A __ref row of Nibble's own: plain C, every shape. */
bool nib__kernel_is_ref(const nib_kernel *kernel);

enum { NIB_KEY_CONDS = 5 };
/* The row's key as conditions, to explain why a row that was asked for by name is not a
 * candidate. */
int nib__kernel_key_conds(const nib_kernel *kernel, nib_cond conds[NIB_KEY_CONDS]);

/* The whole table for people, programs or docs/kernels.md. */
void nib__kernels_render(nib_form form, nib_text *out);

/* The engines that `plan --engine` accepts, in order; NULL past the last. An engine uses its own
 * peer rows and those of the libraries it builds on. */
const char *nib__engine_at(size_t i);
bool nib__engine_uses(const char *engine, const nib_kernel *kernel);

/* The families: each .c under cpu/ and gpu/ that defines rows, beside their code, exports one
 * array, which table.c lists. They are declared here so that table.c needs no other header. */
typedef struct nib_family {
    const nib_kernel *rows;
    size_t count;
} nib_family;

extern const nib_family nib__family_linear_int;      /* int8 activations: linear_int.c */
extern const nib_family nib__family_quant;           /* activation quantizers: quant_rows.c */
extern const nib_family nib__family_quant_w;         /* weight quantizers: quant_w.c */
extern const nib_family nib__family_linear_float;    /* float activations: linear_float.c */
extern const nib_family nib__family_linear_fp8;      /* fp8 and MX activations: linear_fp8.c */
extern const nib_family nib__family_linear_backward; /* dx and dW: linear_backward.c */
extern const nib_family nib__family_cast;            /* training's operands: cast_rows.c */
extern const nib_family nib__family_token; /* embed, norm, rope, swiglu, add, cache: token_rows.c */
extern const nib_family nib__family_experts;        /* of mixtures: experts_rows.c */
extern const nib_family nib__family_conv;           /* short convolutions: conv_rows.c */
extern const nib_family nib__family_delta;          /* the gated delta rule: delta_rows.c */
extern const nib_family nib__family_ssm;            /* Mamba-2: ssm_rows.c */
extern const nib_family nib__family_attn;           /* attention: attn_rows.c */
extern const nib_family nib__family_sample;         /* sampling: sample_rows.c */
extern const nib_family nib__family_attn_dx;        /* its gradients: attn_dx_rows.c */
extern const nib_family nib__family_recurrence_dx;  /* those of recurrences: recurrence_dx_rows.c */
extern const nib_family nib__family_train;          /* gradients, loss, optimizer: train_rows.c */
extern const nib_family nib__family_ocl_token;      /* OpenCL: gpu/ocl_token.c */
extern const nib_family nib__family_ocl_experts;    /* gpu/ocl_experts.c */
extern const nib_family nib__family_ocl_linear;     /* gpu/ocl_linear.c */
extern const nib_family nib__family_ocl_quant;      /* gpu/ocl_quant.c */
extern const nib_family nib__family_ocl_quant_w;    /* gpu/ocl_quant_w.c */
extern const nib_family nib__family_ocl_gfx90a;     /* gpu/ocl_gfx90a.c */
extern const nib_family nib__family_ocl_sample;     /* gpu/ocl_sample.c */
extern const nib_family nib__family_ocl_train;      /* gpu/ocl_train.c */
extern const nib_family nib__family_gpu_pack;       /* packing: gpu/gpu_pack.c */
extern const nib_family nib__family_ocl_pack;       /* gpu/ocl_pack.c */
extern const nib_family nib__family_ocl_extensions; /* gpu/ocl_extensions.c */
extern const nib_family nib__family_cuda_token;     /* CUDA: gpu/cuda_token.c */
extern const nib_family nib__family_cuda_linear;    /* gpu/cuda_linear.c */
extern const nib_family nib__family_cuda_few;       /* gpu/cuda_few.c */
extern const nib_family nib__family_peers;          /* other engines: peers.c */

#endif
