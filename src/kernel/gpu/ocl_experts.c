/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL rows for the operations around a mixture's experts (experts.cl), for any OpenCL 1.2
 * device. The experts' own products are rows of LINEAR.
 */
#include "experts_launches.h"
#include "sources.h"

#include "kernel.h"

enum { GROUP = 64 };

static void init(nib_launch *out, const char *function, int64_t groups)
{
    nib__launch_init(out, function, groups, GROUP);
    nib__launch_option(out, "-DGROUP=%d", GROUP);
}

int nib__launch_route(const void *args, nib_launch out[])
{
    const nib_route_tokens *a = args;
    const nib_routing *rule = a->rule;
    init(out, "route", a->m);
    nib__launch_memory(out, a->logits);
    nib__launch_memory(out, a->bias);
    nib__launch_memory(out, a->weight_scales);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->ldx);
    nib__launch_int(out, a->ldo);
    nib__launch_int(out, rule->experts);
    nib__launch_int(out, rule->top_k);
    nib__launch_int(out, rule->score);
    nib__launch_int(out, rule->groups);
    nib__launch_int(out, rule->top_groups);
    nib__launch_int(out, rule->group_pairs);
    nib__launch_int(out, a->bias != NULL);
    nib__launch_int(out, a->weight_scales != NULL);
    nib__launch_int(out, rule->normalize);
    nib__launch_float(out, rule->floor);
    nib__launch_float(out, rule->scale);
    return 1;
}

int nib__launch_sort(const void *args, nib_launch out[])
{
    const nib_sort_rows *a = args;
    init(out, "sort_rows", a->rule->experts);
    nib__launch_memory(out, a->choice);
    nib__launch_memory(out, a->to.first);
    nib__launch_memory(out, a->to.token);
    nib__launch_memory(out, a->to.expert);
    nib__launch_memory(out, a->to.weight);
    nib__launch_memory(out, a->to.row);
    nib__launch_memory(out, a->failed);
    nib__launch_int(out, a->m);
    nib__launch_int(out, a->ldc);
    nib__launch_int(out, a->rule->experts);
    nib__launch_int(out, a->rule->top_k);
    return 1;
}

int nib__launch_dispatch(const void *args, nib_launch out[])
{
    const nib_dispatch *a = args;
    init(out, "dispatch", nib__ceil_div(a->width, GROUP) * a->rows);
    nib__launch_memory(out, a->x);
    nib__launch_memory(out, a->token);
    nib__launch_memory(out, a->weight);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ldx);
    nib__launch_int(out, a->weight != NULL);
    return 1;
}

int nib__launch_combine(const void *args, nib_launch out[])
{
    const nib_combine *a = args;
    init(out, "combine", nib__ceil_div(a->width, GROUP) * a->m);
    nib__launch_memory(out, a->y);
    nib__launch_memory(out, a->row);
    nib__launch_memory(out, a->weight);
    nib__launch_memory(out, a->out);
    nib__launch_int(out, a->top_k);
    nib__launch_int(out, a->width);
    nib__launch_int(out, a->ldw);
    nib__launch_int(out, a->ldo);
    nib__launch_int(out, a->weight != NULL);
    return 1;
}

#define ROW(name_, op_, numbers_, function, words)                                                 \
    {                                                                                              \
        .name = name_ "__ocl", .op = NIB_OP_##op_, .code = NIB_ANY, .act = NIB_ANY,                \
        .input = NIB_ANY, .device = NIB_DEVICE_OPENCL, .conds = NIB_NO_CONDS,                      \
        .arithmetic = NIB_ARITHMETIC_##numbers_, .reference = name_ "__ref", .rank = 40,           \
        .unit = NIB_UNIT_F32, .n_step = 1,                                                         \
        .gpu = &(const nib_gpu_code){&nib__source_experts, function}, .note = words                \
    }

static const nib_kernel rows[] = {
    ROW("route_f32", ROUTE, OTHER, nib__launch_route,
        "one work-group per token; the CPU's arithmetic in its order"),
    ROW("sort_f32", SORT, EXACT, nib__launch_sort, "one work-group per expert"),
    ROW("dispatch_f32", DISPATCH, EXACT, nib__launch_dispatch, "one work-item per value"),
    ROW("combine_f32", COMBINE, EXACT, nib__launch_combine,
        "one work-item per value; experts ascending"),
};

const nib_family nib__family_ocl_experts = {rows, COUNT(rows)};
