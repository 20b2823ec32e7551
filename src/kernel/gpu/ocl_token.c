/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows for operations on rows of tokens (token.cl) and attention, for any OpenCL 1.2 device.
 */
#include "sources.h"
#include "token_launches.h"

#include "kernel.h"

/* With more than FEW_SLOTS slots, as in prefill, a work-group takes QUERIES of them. */
enum { GROUP = NIB_OCL_GROUP, FEW_SLOTS = 16, QUERIES = 8 };

/* TYPE_* of prelude.cl. */
static int type_number(nib_type type)
{
    return type == NIB_TYPE_F32 ? 0 : type == NIB_TYPE_F16 ? 1 : 2;
}

/* cache: the type of the KV cache, for functions that access it. */
static void init_groups(nib_launch *out, const char *function, int64_t groups, int items,
                        nib_type cache)
{
    nib__launch_init(out, function, groups, items);
    nib__launch_option(out, "-DGROUP=%d -DBLOCK=%d -DCACHE=%d", items, NIB_CACHE_BLOCK,
                       type_number(cache));
}

/* One work-item per element. */
static void init_elements(nib_launch *out, const char *function, int64_t width, int64_t rows,
                          nib_type cache)
{
    init_groups(out, function, nib__ceil_div(width, GROUP) * rows, GROUP, cache);
}

int nib__launch_norm(const nib_norm *a, nib_launch out[], int items)
{
    init_groups(out, "norm_rows", a->rows, items, NIB_TYPE_F32);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out);
    nib__launch_memory(out, a->weight);
    nib__launch_memory(out, a->bias);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ldx);
    nib__launch_int(out, a->ldo);
    nib__launch_float(out, a->eps);
    nib__launch_int(out, a->centered);
    nib__launch_int(out, a->bias != NULL);
    nib__launch_int(out, nib__max(1, a->weights));
    return 1;
}

int nib__launch_rope(const void *args, nib_launch out[])
{
    const nib_rope *a = args;
    init_elements(out, "rope", (int64_t)a->heads * (a->dims / 2), a->m, NIB_TYPE_F32);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->position);
    nib__launch_memory(out, a->cos_sin);
    nib__launch_int(out, a->heads);
    nib__launch_int(out, a->head_dim);
    nib__launch_int(out, a->dims);
    nib__launch_int(out, a->ldx);
    nib__launch_float(out, a->inverse ? -1.0F : 1.0F);
    nib__launch_int(out, a->interleaved);
    return 1;
}

int nib__launch_store_kv(const void *args, nib_launch out[])
{
    const nib_store_kv *a = args;
    init_elements(out, "store_kv", (int64_t)a->cache.kv_heads * a->cache.head_dim, a->m,
                  a->cache.types.keys.type);
    nib__launch_memory(out, a->k);
    nib__launch_memory(out, a->v);
    nib__launch_memory(out, a->cache.keys);
    nib__launch_memory(out, a->cache.values);
    nib__launch_memory(out, a->sequence);
    nib__launch_memory(out, a->position);
    nib__launch_memory(out, a->cache.tables);
    nib__launch_int(out, a->ld);
    nib__launch_int(out, a->cache.table_ld);
    nib__launch_int(out, a->cache.kv_heads);
    nib__launch_int(out, a->cache.head_dim);
    nib__launch_int(out, a->cache.values != NULL);
    return 1;
}

int nib__launch_swiglu(const void *args, nib_launch out[])
{
    const nib_swiglu *a = args;
    init_elements(out, "swiglu", a->width, a->m, NIB_TYPE_F32);
    nib__launch_memory(out, a->gate);
    nib__launch_memory(out, a->up);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ld);
    nib__launch_int(out, a->ldu);
    nib__launch_int(out, a->ldo);
    nib__launch_int(out, a->activation);
    nib__launch_int(out, a->up != NULL);
    nib__launch_int(out, a->one_gate);
    nib__launch_float(out, a->alpha);
    nib__launch_float(out, a->limit);
    return 1;
}

int nib__launch_scale(const void *args, nib_launch out[])
{
    const nib_scale *a = args;
    init_elements(out, "scale", a->width, a->m, NIB_TYPE_F32);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ldx);
    nib__launch_int(out, a->ldo);
    nib__launch_float(out, a->scale);
    nib__launch_float(out, a->cap);
    return 1;
}

int nib__launch_add(const void *args, nib_launch out[])
{
    const nib_add *a = args;
    init_elements(out, "add", a->width, a->m, NIB_TYPE_F32);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->y);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ldx);
    nib__launch_int(out, a->ldy);
    return 1;
}

int nib__launch_gather(const void *args, nib_launch out[])
{
    const nib_gather *a = args;
    init_elements(out, "gather", a->width, a->m, NIB_TYPE_F32);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->out);
    nib__launch_memory(out, a->order);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ldx);
    nib__launch_int(out, a->ldo);
    return 1;
}

static void init_attention(nib_launch *out, const char *function, const nib_attn *a, int64_t groups,
                           int items, int64_t dims)
{
    nib__launch_init(out, function, groups, items);
    out->groups[1] = a->m;
    nib__launch_option(out, "-DBLOCK=%d -DCACHE=%d -DDIMS=%d", NIB_CACHE_BLOCK,
                       type_number(a->cache.types.keys.type), (int)dims);
    nib__launch_memory(out, a->q);
    nib__launch_memory(out, a->out);
    nib__launch_memory(out, a->cache.keys);
    nib__launch_memory(out, a->cache.values);
    nib__launch_memory(out, a->sequence);
    nib__launch_memory(out, a->position);
    nib__launch_memory(out, a->cache.tables);
    nib__launch_memory(out, a->lse);
    nib__launch_memory(out, a->sinks);
    nib__launch_int(out, a->ldq);
    nib__launch_int(out, a->ldo);
    nib__launch_int(out, a->heads);
    nib__launch_int(out, a->cache.kv_heads);
    nib__launch_int(out, a->cache.head_dim);
    nib__launch_int(out, a->cache.table_ld);
    nib__launch_int(out, a->lse != NULL);
    nib__launch_int(out, a->sinks != NULL);
    nib__launch_float(out, a->scale);
    nib__launch_int(out, nib__min(a->window, INT32_MAX));
    nib__launch_int(out, a->chunked);
    nib__launch_float(out, a->cap);
}

int nib__launch_attention(const void *args, nib_launch out[])
{
    const nib_attn *a = args;
    init_attention(out, "attention", a, a->heads, NIB_CACHE_BLOCK,
                   nib__ceil_div(a->cache.head_dim, NIB_CACHE_BLOCK));
    return 1;
}

/* Programs have room for the channels of small models, or for those of DeepSeek and Kimi. With few
 * slots a work-group takes fewer heads, so that there are more work-groups. */
int nib__launch_latent(const void *args, nib_launch out[])
{
    enum { ITEMS = 4 * NIB_CACHE_BLOCK, SMALL = 2, USUAL = 9, FEW = 4, MANY = 8 };
    const nib_attn *a = args;
    const int64_t needed = nib__ceil_div(a->cache.head_dim, NIB_CACHE_BLOCK);
    const int64_t dims = needed <= SMALL ? SMALL : nib__max(USUAL, needed);
    const int heads = a->m <= FEW_SLOTS || dims > USUAL ? FEW : MANY;
    init_attention(out, "attention_latent", a,
                   a->cache.kv_heads * nib__ceil_div(a->heads / a->cache.kv_heads, heads), ITEMS,
                   dims);
    nib__launch_option(out, " -DITEMS=%d -DHEADS=%d", ITEMS, heads);
    nib__launch_int(out, a->cache.value_dim);
    return 1;
}

int nib__ocl_attention(const void *args, nib_launch out[])
{
    const nib_attn *a = args;
    const int count = nib__launch_attention(args, out);
    if (a->m <= FEW_SLOTS)
        return count;
    out->function = "attention_tile";
    out->groups[1] = nib__ceil_div(a->m, QUERIES);
    nib__launch_option(out, " -DQUERIES=%d", QUERIES);
    nib__launch_int(out, a->m);
    return count;
}

static int launch_norm(const void *args, nib_launch out[])
{
    return nib__launch_norm(args, out, GROUP);
}

static const nib_cond any_device[] = {NIB_COND_END};
static const nib_cond float_cache[] = {NIB_FLOAT_CACHE, NIB_COND_END};
static const nib_cond attends[] = {NIB_FLOAT_CACHE, NIB_NO_LATENT, NIB_COND_END};
static const nib_cond latent[] = {NIB_FLOAT_CACHE, NIB_LATENT, NIB_COND_END};

#define ROW(name, op, numbers, conditions, file, function, words)                                  \
    TILED(name, "", op, numbers, conditions, file, function, words)
#define TILED(name_, tile, op_, numbers_, conditions, file, function, words)                       \
    {                                                                                              \
        .name = name_ "__ocl" tile, .op = NIB_OP_##op_, .code = NIB_ANY, .act = NIB_ANY,           \
        .input = NIB_ANY, .device = NIB_DEVICE_OPENCL, .conds = conditions,                        \
        .arithmetic = NIB_ARITHMETIC_OTHER, .reference = name_ "__ref", .rank = 40,                \
        .unit = NIB_UNIT_F32, .n_step = 1,                                                         \
        .gpu = &(const nib_gpu_code){&nib__source_##file, function}, .note = words                 \
    }

static const nib_kernel rows[] = {
    ROW("norm_f32", NORM, OTHER, any_device, token, launch_norm,
        "one work-group per row; RMSNorm or LayerNorm"),
    ROW("rope_f32", ROPE, OTHER, any_device, token, nib__launch_rope,
        "one work-item per pair of values, half-split or interleaved"),
    ROW("copy_f32", STORE_KV, OTHER, float_cache, token, nib__launch_store_kv,
        "one work-item per value"),
    ROW("swiglu_f32", SWIGLU, OTHER, any_device, token, nib__launch_swiglu,
        "one work-item per value; silu, tanh GELU, clamped or sigmoid, with or without up"),
    ROW("scale_f32", SCALE, OTHER, any_device, token, nib__launch_scale,
        "one work-item per value, with or without a cap"),
    ROW("add_f32", ADD, EXACT, any_device, token, nib__launch_add, "one work-item per value"),
    ROW("attn_f32", ATTN, OTHER, attends, attention, nib__ocl_attention,
        "one work-group per head and token, or eight tokens if there are many; windows, chunks, "
        "caps and "
        "sinks"),
    TILED("attn_f32", "_8x64", ATTN, OTHER, latent, attention, nib__launch_latent,
          NIB_LATENT_NOTE("work-group")),
    ROW("gather_f32", GATHER, EXACT, any_device, token, nib__launch_gather,
        "one work-item per value"),
};

const nib_family nib__family_ocl_token = {rows, COUNT(rows)};
