/* SPDX-License-Identifier: Apache-2.0
 *
 * What a micro-batch needs of a device, asked for before the first step: its memory, and a compiled
 * kernel for each of its launches. What the device refuses of that is said, so that the plan can be
 * made again without it.
 */
#include "cast.h"
#include "step.h"

static nib_status refuse(nib_step *s, nib_status status, nib_refusal refusal)
{
    if (status != NIB_OK)
        s->refusal = refusal;
    return status;
}

/* Only sizes are asked: kernels are compiled for addresses that nothing lies at. */
static nib_status take(nib_step *s, uint64_t bytes, const char *what, char **at, nib_err *err)
{
    enum { NOWHERE = 4096 };
    void *taken = (void *)(uintptr_t)NOWHERE;
    if (!s->options.sizes_only)
        NIB_TRY(nib__gpu_take(s->workers.gpu, bytes, what, &taken, err));
    *at = taken;
    return NIB_OK;
}

/* ---- memory ---- */

/* What all its layers share. */
static nib_status take_buffers(nib_step *s, nib_err *err)
{
    nib_step_side *there = &s->sides[NIB_SIDE_GPU];
    const nib_machine *gpu = s->plan->gpu;
    NIB_TRY(nib__engine_gpu(&s->workers.gpu, s->engine, gpu, err));
    nib__gpu_limit(s->workers.gpu, gpu->memory);
    return take(s, there->block_bytes, "the buffers of a micro-batch", &there->block, err);
}

/* One after the other, so that what there is room for can be told. Inputs that layers take turns in
 * lie in the block. */
static nib_status take_site(nib_step *s, size_t site, nib_err *err)
{
    const nib_product *dw = &s->products[site][NIB_PRODUCT_DW];
    nib_step_place *input = &s->places[s->inputs[site]];
    const bool keeps = nib__step_keeps_all_inputs(s) && input->apart == NULL;
    uint64_t at[NIB_PACKED_COUNT];
    const uint64_t packed = nib__step_packed_bytes(s, site, at),
                   bytes = packed + (keeps ? nib__cast_bytes(dw->row, &dw->shape) : 0);
    char *piece;
    NIB_TRY(take(s, bytes, "a layer with its input", &piece, err));
    for (int p = 0; p < NIB_PACKED_COUNT; p++)
        s->packed[site][p] = piece + at[p];
    if (keeps)
        input->apart = piece + packed;
    s->sides[NIB_SIDE_GPU].packed_bytes += bytes;
    return NIB_OK;
}

static nib_status take_sites(nib_step *s, nib_err *err)
{
    nib_refusal refusal = {.what = NIB_REFUSED_MEMORY};
    nib_status status = NIB_OK;
    for (size_t i = 1; i < s->net->site_count && status == NIB_OK; i++) {
        if (nib__step_side(s, i) != NIB_SIDE_GPU)
            continue;
        status = take_site(s, i, err);
        if (status == NIB_NO_MEMORY)
            refuse(s, status, refusal);
        refusal.room += nib__plan_layer_bytes(&s->plan->layers[i]);
    }
    return status;
}

/* ---- kernels ---- */

/* Those that weights are cast with before each step, and those of the micro-batch. */
static nib_status compile(nib_step *s, nib_err *err)
{
    char *weight = nib__step_room(s, NIB_SIDE_GPU, NIB_ROOM_WEIGHT);
    nib_status status = NIB_OK;
    for (size_t i = 1; i < s->net->site_count && status == NIB_OK; i++)
        if (nib__step_side(s, i) == NIB_SIDE_GPU)
            status = nib__step_cast_site(s, i, (const float *)(const void *)weight, err);
    for (size_t i = 0; i < s->count && status == NIB_OK; i++)
        if (s->nodes[i].side == NIB_SIDE_GPU && s->nodes[i].op != NIB_OP_MOVE)
            status = nib__step_product(s, &s->nodes[i], err);
    return status;
}

static nib_status prepare(nib_step *s, nib_err *err)
{
    const nib_kernel *refused = NULL;
    s->workers.refused = &refused;
    const nib_status status = compile(s, err);
    s->workers.refused = NULL;
    return refused != NULL ? refuse(s, status, (nib_refusal){NIB_REFUSED_ROW, .row = refused})
                           : status;
}

/* ---- all of it ---- */

static bool has_device(const nib_step *s)
{
    for (size_t i = 1; i < s->net->site_count; i++)
        if (nib__step_side(s, i) == NIB_SIDE_GPU)
            return true;
    return false;
}

nib_status nib__step_ask_device(nib_step *s, nib_err *err)
{
    if (!has_device(s))
        return NIB_OK;
    const nib_status status = take_buffers(s, err);
    if (status != NIB_OK)
        return refuse(s, status,
                      (nib_refusal){.what = NIB_REFUSED_DEVICE,
                                    .device = s->plan->gpu->facts.fact[NIB_FACT_DEVICE]});
    NIB_TRY(take_sites(s, err));
    return prepare(s, err);
}

void nib__step_leave_device(nib_step *s)
{
    if (s->workers.gpu == NULL || s->options.sizes_only)
        return;
    for (size_t i = 1; i < s->net->site_count; i++)
        if (nib__step_side(s, i) == NIB_SIDE_GPU)
            nib__gpu_give(s->workers.gpu, s->packed[i][NIB_PACKED_Y]);
    nib__gpu_give(s->workers.gpu, s->sides[NIB_SIDE_GPU].block);
}
