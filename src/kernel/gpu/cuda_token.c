/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of CUDA for operations on rows of tokens, attention, quantizers of activations and of
 * weights, drawing a token, packing and the casts of training: the functions and launches of
 * OpenCL's rows (ocl_token.c, ocl_quant.c, ocl_quant_w.c, ocl_sample.c, ocl_pack.c, ocl_train.c),
 * compiled by nvcc.
 */
#include "cast_launches.h"
#include "cuda_programs.h"
#include "gpu_pack.h"
#include "kernel.h"
#include "quant_launches.h"
#include "quant_w_launches.h"
#include "sources.h"
#include "token_launches.h"

#define SM80 NIB_AT_LEAST(SM, 80, "its machine code begins at sm_80")
static const nib_cond sm80[] = {SM80, NIB_COND_END};
static const nib_cond float_cache[] = {SM80, NIB_FLOAT_CACHE, NIB_COND_END};

static const nib_cond greedy[] = {
    SM80,
    NIB_IS(TOP_K, 1, "it finds the best token"),
    NIB_IS(PENALTY, 0, "it does not know the tokens before"),
    NIB_COND_END,
};
static const nib_cond draws[] = {
    SM80,
    NIB_AT_LEAST(TOP_K, 1, "0 keeps every token, and the candidates are sorted in shared memory"),
    NIB_AT_MOST(TOP_K, NIB_DRAW_KEEP_MOST, "the candidates are sorted in shared memory"),
    NIB_IS(PENALTY, 0, "it does not know the tokens before"),
    NIB_COND_END,
};
static const nib_cond plain[] = {
    SM80,
    NIB_IS(PLAIN, 1, "it copies rows; words, blocks and tiles are unpacked by the CPU"),
    NIB_COND_END,
};

#define KEYED(name_, tile, op_, code_, act_, input_, conds_, packing_, numbers_, rank_, file,      \
              function, words)                                                                     \
    {                                                                                              \
        .name = name_ "__sm80" tile, .op = NIB_OP_##op_, .code = code_, .act = act_,               \
        .input = input_, .device = NIB_DEVICE_CUDA, .conds = conds_,                               \
        .arithmetic = NIB_ARITHMETIC_##numbers_, .reference = name_ "__ref", .rank = rank_,        \
        .unit = NIB_UNIT_F32, .n_step = 1, .packing = packing_,                                    \
        .gpu = NIB_CUDA_CODE(&nib__source_##file, function),                                       \
        .note = words "; compiled only, not yet run on a device"                                   \
    }
#define ROW(name, op, numbers, file, function, words)                                              \
    KEYED(name, "", op, NIB_ANY, NIB_ANY, NIB_ANY, sm80, NULL, numbers, 30, file, function, words)
#define CACHED(name, op, file, function, words)                                                    \
    KEYED(name, "", op, NIB_ANY, NIB_ANY, NIB_ANY, float_cache, NULL, OTHER, 30, file, function,   \
          words)
#define QUANT(form, act, input, words)                                                             \
    KEYED("quant_f32_" #form, "", QUANT, NIB_ANY, NIB_ACT_##act, input, sm80, NULL, OTHER, 30,     \
          quant, nib__launch_quant_##form, words)
#define SAMPLE(tile, conds, rank, function, words)                                                 \
    KEYED("sample_f32", tile, SAMPLE, NIB_ANY, NIB_ANY, NIB_ANY, conds, NULL, EXACT, rank, sample, \
          function, words)
#define CAST_OF(name, op, code, function, words)                                                   \
    KEYED(name, "", op, NIB_CODE_##code, NIB_ANY, NIB_ANY, sm80, &nib__packing_rows, OTHER, 30,    \
          cast, function, words)
#define CAST(form, code, words)                                                                    \
    CAST_OF("cast_f32_" form, CAST, code, nib__launch_cast, words),                                \
        CAST_OF("cast_t_f32_" form, CAST_T, code, nib__launch_cast_t, words)
#define QUANT_T(form, act, input, words)                                                           \
    KEYED("quant_t_f32_" #form, "", QUANT_T, NIB_ANY, NIB_ACT_##act, input, sm80, NULL, OTHER, 30, \
          cast, nib__launch_quant_t_##form, words)

static const nib_kernel rows[] = {
    ROW("norm_f32", NORM, OTHER, token, nib__launch_norm,
        "a block of threads a row, root mean square or LayerNorm"),
    ROW("rope_f32", ROPE, OTHER, token, nib__launch_rope,
        "a block of threads a token, pairs of either kind"),
    CACHED("copy_f32", STORE_KV, token, nib__launch_store_kv, "a block of threads a token"),
    ROW("swiglu_f32", SWIGLU, OTHER, token, nib__launch_swiglu,
        "a thread a value, of silu or tanh gelu, with up or without"),
    ROW("scale_f32", SCALE, OTHER, token, nib__launch_scale, "a thread a value, capped or not"),
    ROW("add_f32", ADD, LANES, token, nib__launch_add, "a thread a value"),
    CACHED("attn_f32", ATTN, attention, nib__launch_attention,
           "a block of threads a head of a token; windows and caps"),
    ROW("gather_f32", GATHER, LANES, token, nib__launch_gather, "a thread a value"),
    QUANT(a8t, I8_TOKEN, NIB_ANY, "a block of threads a token"),
    QUANT(a8s, I8_STATIC, NIB_ANY, "a block of threads a token"),
    QUANT(a4t, I4_TOKEN, NIB_ANY, "a block of threads a token"),
    QUANT(a8b32, I8_BLOCK32, NIB_ANY, "a block of threads a block"),
    QUANT(a8b256, I8_BLOCK256, NIB_ANY, "a block of threads a block"),
    QUANT(e4m3t, E4M3_TOKEN, NIB_ANY, "a block of threads a token"),
    QUANT(mx8, MX8, NIB_ANY, "a warp a block"),
    QUANT(mx4, MX4, NIB_ANY, "a warp a block"),
    QUANT(nv4, NV4, NIB_ANY, "a block of threads a token"),
    QUANT(bf16, FLOAT, NIB_TYPE_BF16, "a thread a value"),
    QUANT(f16, FLOAT, NIB_TYPE_F16, "a thread a value"),
    QUANT(f32, FLOAT, NIB_TYPE_F32, "as it is, or a thread a value"),
    ROW("quant_w", QUANT_W, EXACT, quant_w, nib__launch_quant_w,
        "16 to 64 threads a group; the CPU's bits"),
    SAMPLE("_1x1", greedy, 25, nib__launch_greedy, "the best token, in one block of threads"),
    SAMPLE("", draws, 30, nib__launch_draw, "the CPU's arithmetic in double"),
    KEYED("pack", "", PACK, NIB_ANY, NIB_ANY, NIB_ANY, plain, &nib__packing_rows, EXACT, 30, pack,
          nib__launch_pack, "a thread four bytes of a row"),
    NIB_GPU_CASTS(CAST, QUANT_T),
    ROW("amax_f32", AMAX, OTHER, cast, nib__launch_amax, "a block of threads for 256 rows"),
};

const nib_family nib__family_cuda_token = {rows, COUNT(rows)};
