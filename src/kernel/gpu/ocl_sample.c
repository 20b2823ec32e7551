/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows that sample a token on the device that holds the logits (sample.cl): the same token
 * as the CPU. The CUDA rows make the same launches.
 */
#include "kernel.h"
#include "sources.h"
#include "token_launches.h"

enum { GROUP = 256 };

static void add_double(nib_launch *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    nib__launch_int(out, (int32_t)(uint32_t)(bits >> 32));
    nib__launch_int(out, (int32_t)(uint32_t)bits);
}

static void init(nib_launch *out, const nib_draw *a, int items)
{
    nib__launch_init(out, "sample", 1, items);
    nib__launch_option(out, "-DGROUP=%d", items);
    nib__launch_memory(out, a->logits);
    nib__launch_memory(out, a->token);
    nib__launch_int(out, a->vocab);
}

int nib__launch_greedy(const nib_draw *a, nib_launch out[], int items)
{
    init(out, a, items);
    nib__launch_option(out, " -DGREEDY");
    return 1;
}

int nib__launch_draw(const nib_draw *a, nib_launch out[], int items)
{
    init(out, a, items);
    nib__launch_option(out, " -DKEEP_MOST=%d", NIB_DRAW_KEEP_MOST);
    nib__launch_int(out, a->top_k);
    add_double(out, a->random);
    add_double(out, a->temperature);
    add_double(out, a->top_p);
    add_double(out, a->min_p);
    return 1;
}

static int launch_greedy(const void *args, nib_launch out[])
{
    return nib__launch_greedy(args, out, GROUP);
}
static int launch_draw(const void *args, nib_launch out[])
{
    return nib__launch_draw(args, out, GROUP);
}

static const nib_cond greedy[] = {
    NIB_IS(TOP_K, 1, "it only finds the best token"),
    NIB_IS(PENALTY, 0, "it does not see earlier tokens"),
    NIB_COND_END,
};
static const nib_cond draws[] = {
    NIB_IS(FP64, 1, "it computes probabilities in double, as the CPU does"),
    NIB_AT_LEAST(TOP_K, 1, "0 keeps every token, and the candidates are sorted in local memory"),
    NIB_AT_MOST(TOP_K, NIB_DRAW_KEEP_MOST, "the candidates are sorted in local memory"),
    NIB_IS(PENALTY, 0, "it does not see earlier tokens"),
    NIB_COND_END,
};

#define ROW(name_, conds_, rank_, function, words)                                                 \
    {                                                                                              \
        .name = name_, .op = NIB_OP_SAMPLE, .code = NIB_ANY, .act = NIB_ANY, .input = NIB_ANY,     \
        .device = NIB_DEVICE_OPENCL, .conds = conds_, .arithmetic = NIB_ARITHMETIC_EXACT,          \
        .reference = "sample_f32__ref", .rank = rank_, .unit = NIB_UNIT_F32,                       \
        .gpu = &(const nib_gpu_code){&nib__source_sample, function}, .note = words                 \
    }

static const nib_kernel rows[] = {
    ROW("sample_f32__ocl_1x1", greedy, 30, launch_greedy, "the best token, in one work-group"),
    ROW("sample_f32__ocl", draws, 40, launch_draw, "the CPU's arithmetic, in double"),
};

const nib_family nib__family_ocl_sample = {rows, COUNT(rows)};
