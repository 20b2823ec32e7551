/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: opens engine, model, plan and session together, and computes logits by sequence and
 * position.
 */
#ifndef NIB_TESTS_SESSION_H
#define NIB_TESTS_SESSION_H

#include "session_handle.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct opened {
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_session *session;
} opened;

typedef struct open_how {
    const char *path, *recipe, *dtype, *cache, *isa, *tokenizer, *device;
    nib_strings without;    /* kernel rows to exclude */
    nib_strings allow;      /* rungs */
    int threads, sequences; /* 0: 1 */
    int64_t context, snapshots;
    const nib_allocator *allocator;
    nib_callbacks callbacks;
} open_how;

static inline void close_opened(opened *o)
{
    nib_session_close(o->session);
    nib_plan_close(o->plan);
    nib_model_close(o->model);
    nib_engine_close(o->engine);
    *o = (opened){0};
}

/* On failure closes everything and sets err. */
static inline nib_status try_open(opened *o, const open_how *how, nib_err *err)
{
    const nib_engine_options options = {.threads = how->threads ? how->threads : 1,
                                        .isa = how->isa,
                                        .allocator = how->allocator,
                                        .callbacks = how->callbacks};
    const nib_request request = {.recipe = how->recipe,
                                 .dtype = how->dtype,
                                 .cache = how->cache,
                                 .device = how->device,
                                 .context = how->context,
                                 .snapshots = how->snapshots,
                                 .without = how->without,
                                 .allow = how->allow};
    *o = (opened){0};
    nib_status status = nib_engine_open(&o->engine, &options, err);
    if (status == NIB_OK) {
        o->engine->measured = true; /* skip measuring: rates cannot change a bit */
        const nib_model_options model = {.tokenizer = how->tokenizer};
        status = nib_model_open(&o->model, o->engine, how->path, &model, err);
    }
    if (status == NIB_OK)
        status = nib_plan_open(&o->plan, o->model, &request, err);
    if (status == NIB_OK)
        status = nib_session_open(&o->session, o->model, o->plan,
                                  how->sequences ? how->sequences : 1, err);
    if (status != NIB_OK)
        close_opened(o);
    return status;
}

static inline opened must_open(const open_how *how)
{
    opened o;
    nib_err err;
    if (try_open(&o, how, &err) != NIB_OK) {
        fprintf(stderr, "%s with %s, %s, %s: %s\n", how->path,
                how->recipe ? how->recipe : "the stored recipe", how->dtype ? how->dtype : "-",
                how->isa ? how->isa : "-", err.text);
        abort();
    }
    return o;
}

/* The device that tests of devices use: OpenCL's, or the one that NIBBLE_TEST_DEVICE names (make
 * test-gpu). */
static inline const char *tested_device(void)
{
    const char *asked = getenv("NIBBLE_TEST_DEVICE");
    return asked != NULL && asked[0] != 0 ? asked : "opencl";
}

static inline bool device_is_here(void)
{
    nib_engine *engine;
    nib_err err;
    if (nib_engine_open(&engine, NULL, &err) != NIB_OK ||
        nib__engine_find_gpus(engine, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    const bool found = nib__engine_gpu_find(engine, tested_device()) != NULL;
    nib_engine_close(engine);
    return found;
}

static inline bool isa_is_here(const char *isa)
{
    int64_t bits;
    return nib__cpu_isa_mask(&bits, isa, NULL) == NIB_OK;
}

#endif
