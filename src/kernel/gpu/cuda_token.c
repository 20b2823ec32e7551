/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA rows for operations on rows of tokens, attention, experts, quantizing activations and
 * weights, sampling, packing and training casts: the functions and launches of the OpenCL rows
 * (ocl_token.c, ocl_experts.c, ocl_quant.c, ocl_quant_w.c, ocl_sample.c, ocl_pack.c, ocl_train.c),
 * compiled by nvcc.
 */
#include "cast_launches.h"
#include "cuda_programs.h"
#include "experts_launches.h"
#include "gpu_pack.h"
#include "kernel.h"
#include "quant_launches.h"
#include "quant_w_launches.h"
#include "sources.h"
#include "token_launches.h"

enum {
    ROW_THREADS = 256, /* that sum or compare the values of a row */
    SAMPLE_THREADS = 1024,
    FEW_SLOTS = 16, /* more slots fill the device with two warps each */
};

#define SM80 NIB_AT_LEAST(SM, 80, "its machine code begins at sm_80")
static const nib_cond sm80[] = {SM80, NIB_COND_END};
static const nib_cond float_cache[] = {SM80, NIB_FLOAT_CACHE, NIB_COND_END};
static const nib_cond attends[] = {SM80, NIB_FLOAT_CACHE, NIB_NO_LATENT, NIB_COND_END};
static const nib_cond latent[] = {SM80, NIB_FLOAT_CACHE, NIB_LATENT, NIB_COND_END};

static const nib_cond greedy[] = {
    SM80,
    NIB_IS(TOP_K, 1, "it only finds the best token"),
    NIB_IS(PENALTY, 0, "it does not see earlier tokens"),
    NIB_COND_END,
};
static const nib_cond draws[] = {
    SM80,
    NIB_AT_LEAST(TOP_K, 1, "0 keeps every token, and the candidates are sorted in shared memory"),
    NIB_AT_MOST(TOP_K, NIB_DRAW_KEEP_MOST, "the candidates are sorted in shared memory"),
    NIB_IS(PENALTY, 0, "it does not see earlier tokens"),
    NIB_COND_END,
};
static const nib_cond plain[] = {
    SM80,
    NIB_IS(PLAIN, 1, "it copies rows; the CPU unpacks words, blocks and tiles"),
    NIB_COND_END,
};

static int quant_a8t(const void *args, nib_launch out[])
{
    return nib__launch_quant_a8t(args, out, ROW_THREADS);
}
static int quant_a8s(const void *args, nib_launch out[])
{
    return nib__launch_quant_a8s(args, out, ROW_THREADS);
}
static int quant_a4t(const void *args, nib_launch out[])
{
    return nib__launch_quant_a4t(args, out, ROW_THREADS);
}
static int quant_e4m3t(const void *args, nib_launch out[])
{
    return nib__launch_quant_e4m3t(args, out, ROW_THREADS);
}
static int quant_nv4(const void *args, nib_launch out[])
{
    return nib__launch_quant_nv4(args, out, ROW_THREADS);
}
static int launch_norm(const void *args, nib_launch out[])
{
    return nib__launch_norm(args, out, ROW_THREADS);
}
static int launch_greedy(const void *args, nib_launch out[])
{
    return nib__launch_greedy(args, out, SAMPLE_THREADS);
}
static int launch_draw(const void *args, nib_launch out[])
{
    return nib__launch_draw(args, out, SAMPLE_THREADS);
}

static int launch_attention(const void *args, nib_launch out[])
{
    const nib_attn *a = args;
    const int count = nib__launch_attention(args, out);
    if (a->m > FEW_SLOTS)
        return count;
    out->function = "attend";
    out->items[0] = a->cache.head_dim > 2 * NIB_CACHE_BLOCK ? 256 : 512;
    return count;
}

#define KEYED(name_, tile, op_, code_, act_, input_, conds_, packing_, numbers_, rank_, file,      \
              function, words)                                                                     \
    {                                                                                              \
        .name = name_ "__sm80" tile, .op = NIB_OP_##op_, .code = code_, .act = act_,               \
        .input = input_, .device = NIB_DEVICE_CUDA, .conds = conds_,                               \
        .arithmetic = NIB_ARITHMETIC_##numbers_, .reference = name_ "__ref", .rank = rank_,        \
        .unit = NIB_UNIT_F32, .n_step = 1, .packing = packing_,                                    \
        .gpu = NIB_CUDA_CODE(&nib__source_##file, function), .note = words                         \
    }
#define ROW(name, op, numbers, file, function, words)                                              \
    KEYED(name, "", op, NIB_ANY, NIB_ANY, NIB_ANY, sm80, NULL, numbers, 30, file, function, words)
#define OF(name, op, conds, file, function, words)                                                 \
    KEYED(name, "", op, NIB_ANY, NIB_ANY, NIB_ANY, conds, NULL, OTHER, 30, file, function, words)
#define QUANT(form, act, input, function, words)                                                   \
    KEYED("quant_f32_" #form, "", QUANT, NIB_ANY, NIB_ACT_##act, input, sm80, NULL, OTHER, 30,     \
          quant, function, words)
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
    ROW("norm_f32", NORM, OTHER, token, launch_norm,
        "one thread block per row; RMSNorm or LayerNorm"),
    ROW("rope_f32", ROPE, OTHER, token, nib__launch_rope,
        "one thread per pair of values, half-split or interleaved"),
    OF("copy_f32", STORE_KV, float_cache, token, nib__launch_store_kv, "one thread per value"),
    ROW("swiglu_f32", SWIGLU, OTHER, token, nib__launch_swiglu,
        "one thread per value; silu, tanh GELU, clamped or sigmoid, with or without up"),
    ROW("scale_f32", SCALE, OTHER, token, nib__launch_scale,
        "one thread per value, with or without a cap"),
    ROW("add_f32", ADD, EXACT, token, nib__launch_add, "one thread per value"),
    OF("attn_f32", ATTN, attends, attention, launch_attention,
       "two warps per head and token, or if there are few tokens 8 or 16, which take turns at 32 "
       "positions; windows, chunks, caps and sinks"),
    KEYED("attn_f32", "_8x64", ATTN, NIB_ANY, NIB_ANY, NIB_ANY, latent, NULL, OTHER, 30, attention,
          nib__launch_latent, NIB_LATENT_NOTE("thread block")),
    ROW("gather_f32", GATHER, EXACT, token, nib__launch_gather, "one thread per value"),
    ROW("route_f32", ROUTE, OTHER, experts, nib__launch_route,
        "one thread block per token; the CPU's arithmetic in its order"),
    ROW("sort_f32", SORT, EXACT, experts, nib__launch_sort, "one thread block per expert"),
    ROW("dispatch_f32", DISPATCH, EXACT, experts, nib__launch_dispatch, "one thread per value"),
    ROW("combine_f32", COMBINE, EXACT, experts, nib__launch_combine,
        "one thread per value; experts ascending"),
    QUANT(a8t, I8_TOKEN, NIB_ANY, quant_a8t, "one thread block per token"),
    QUANT(a8s, I8_STATIC, NIB_ANY, quant_a8s, "one thread block per token"),
    QUANT(a4t, I4_TOKEN, NIB_ANY, quant_a4t, "one thread block per token"),
    QUANT(a8b32, I8_BLOCK32, NIB_ANY, nib__launch_quant_a8b32, "one thread block per block"),
    QUANT(a8b256, I8_BLOCK256, NIB_ANY, nib__launch_quant_a8b256, "one thread block per block"),
    QUANT(e4m3t, E4M3_TOKEN, NIB_ANY, quant_e4m3t, "one thread block per token"),
    QUANT(mx8, MX8, NIB_ANY, nib__launch_quant_mx8, "one warp per block"),
    QUANT(mx4, MX4, NIB_ANY, nib__launch_quant_mx4, "one warp per block"),
    QUANT(nv4, NV4, NIB_ANY, quant_nv4, "one thread block per token"),
    QUANT(bf16, FLOAT, NIB_TYPE_BF16, nib__launch_quant_bf16, "one thread per value"),
    QUANT(f16, FLOAT, NIB_TYPE_F16, nib__launch_quant_f16, "one thread per value"),
    QUANT(f32, FLOAT, NIB_TYPE_F32, nib__launch_quant_f32,
          "used unchanged, or copied with one thread per value"),
    ROW("quant_w", QUANT_W, EXACT, quant_w, nib__launch_quant_w,
        "16 to 64 threads per group; the same bits as the CPU"),
    SAMPLE("_1x1", greedy, 25, launch_greedy, "the best token, in one thread block"),
    SAMPLE("", draws, 30, launch_draw, "the CPU's arithmetic, in double"),
    KEYED("pack", "", PACK, NIB_ANY, NIB_ANY, NIB_ANY, plain, &nib__packing_rows, EXACT, 30, pack,
          nib__launch_pack, "one thread per four bytes of a row"),
    NIB_GPU_CASTS(CAST, QUANT_T),
    ROW("amax_f32", AMAX, OTHER, cast, nib__launch_amax, "one thread block per 256 rows"),
};

const nib_family nib__family_cuda_token = {rows, COUNT(rows)};
