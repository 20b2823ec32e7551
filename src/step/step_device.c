/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets up the device before the first step: allocates its memory and compiles a kernel for each
 * launch. Reports what the device refuses, so that the plan can be made again without it.
 */
#include "cast.h"
#include "step.h"

static nib_status record_refusal(nib_step *s, nib_status status, nib_refusal refusal)
{
    if (status != NIB_OK)
        s->refusal = refusal;
    return status;
}

/* With sizes_only, kernels are compiled for a dummy address. */
static nib_status allocate(nib_step *s, uint64_t bytes, const char *what, char **at, nib_err *err)
{
    enum { DUMMY = 4096 };
    void *taken = (void *)(uintptr_t)DUMMY;
    if (!s->options.sizes_only)
        NIB_TRY(nib__gpu_alloc(s->workers.gpu, bytes, what, &taken, err));
    *at = taken;
    return NIB_OK;
}

/* ---- memory ---- */

/* The block that all layers share. */
static nib_status allocate_block(nib_step *s, nib_err *err)
{
    nib_step_side *side = &s->sides[NIB_SIDE_GPU];
    const nib_machine *gpu = s->plan->gpu;
    NIB_TRY(nib__engine_gpu(&s->workers.gpu, s->engine, gpu, err));
    nib__gpu_limit(s->workers.gpu, gpu->memory);
    return allocate(s, side->block_bytes, "the buffers of a micro-batch", &side->block, err);
}

/* Layers allocate one by one, so that a failure tells how many fit. Inputs that layers use in turn
 * are in the shared block. */
static nib_status allocate_site(nib_step *s, size_t site, nib_err *err)
{
    const nib_product *dw = &s->products[site][NIB_PRODUCT_DW];
    nib_step_buffer *input = s->inputs[site] >= 0 ? &s->buffers[s->inputs[site]] : NULL;
    const bool keeps =
        nib__step_keeps_all_inputs(s) && input != NULL && input->beside_weight == NULL;
    uint64_t at[NIB_PACKED_COUNT];
    const uint64_t packed = nib__step_packed_bytes(s, site, at),
                   bytes = packed + (keeps ? nib__cast_bytes(dw->row, &dw->shape) : 0);
    char *piece;
    NIB_TRY(allocate(s, bytes, "a layer with its input", &piece, err));
    for (int p = 0; p < NIB_PACKED_COUNT; p++)
        s->packed[site][p] = piece + at[p];
    if (keeps)
        input->beside_weight = piece + packed;
    s->sides[NIB_SIDE_GPU].packed_bytes += bytes;
    return NIB_OK;
}

static nib_status allocate_sites(nib_step *s, nib_err *err)
{
    nib_refusal refusal = {.what = NIB_REFUSED_MEMORY};
    nib_status status = NIB_OK;
    for (size_t i = 1; i < s->net->site_count && status == NIB_OK; i++) {
        if (nib__step_side(s, i) != NIB_SIDE_GPU)
            continue;
        status = allocate_site(s, i, err);
        if (status == NIB_NO_MEMORY)
            record_refusal(s, status, refusal);
        refusal.room += nib__plan_layer_bytes(&s->plan->layers[i]);
    }
    return status;
}

/* ---- kernels ---- */

/* Compiles the kernels that cast weights before each step, and those of the micro-batch. */
static nib_status compile_kernels(nib_step *s, nib_err *err)
{
    char *weight = nib__step_region(s, NIB_SIDE_GPU, NIB_REGION_WEIGHT);
    nib_status status = NIB_OK;
    for (size_t i = 1; i < s->net->site_count && status == NIB_OK; i++)
        if (nib__step_side(s, i) == NIB_SIDE_GPU)
            status = nib__step_cast_site(s, i, (const float *)(const void *)weight, err);
    for (size_t i = 0; i < s->count && status == NIB_OK; i++)
        if (s->nodes[i].side == NIB_SIDE_GPU && s->nodes[i].op != NIB_OP_MOVE)
            status = nib__step_product(s, &s->nodes[i], err);
    return status;
}

static nib_status compile_or_refuse(nib_step *s, nib_err *err)
{
    const nib_kernel *refused = NULL;
    s->workers.refused = &refused;
    const nib_status status = compile_kernels(s, err);
    s->workers.refused = NULL;
    return refused != NULL
               ? record_refusal(s, status, (nib_refusal){NIB_REFUSED_ROW, .row = refused})
               : status;
}

/* ---- all of it ---- */

static bool uses_device(const nib_step *s)
{
    for (size_t i = 1; i < s->net->site_count; i++)
        if (nib__step_side(s, i) == NIB_SIDE_GPU)
            return true;
    return false;
}

nib_status nib__step_open_device(nib_step *s, nib_err *err)
{
    if (!uses_device(s))
        return NIB_OK;
    const nib_status status = allocate_block(s, err);
    if (status != NIB_OK)
        return record_refusal(s, status,
                              (nib_refusal){.what = NIB_REFUSED_DEVICE,
                                            .device = s->plan->gpu->facts.fact[NIB_FACT_DEVICE]});
    NIB_TRY(allocate_sites(s, err));
    return compile_or_refuse(s, err);
}

void nib__step_close_device(nib_step *s)
{
    if (s->workers.gpu == NULL || s->options.sizes_only)
        return;
    for (size_t i = 1; i < s->net->site_count; i++)
        if (nib__step_side(s, i) == NIB_SIDE_GPU)
            nib__gpu_free(s->workers.gpu, s->packed[i][NIB_PACKED_Y]);
    nib__gpu_free(s->workers.gpu, s->sides[NIB_SIDE_GPU].block);
}
