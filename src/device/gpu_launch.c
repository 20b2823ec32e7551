/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a row's launches: loads programs and functions once, waits for launches with a time limit,
 * and names the one that does not return.
 */
#include "gpu.h"
#include "pool.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

/* ---- programs ---- */

static nib_status remember(nib_gpu *gpu, const nib_gpu_loaded *one, nib_err *err)
{
    void *list = gpu->loaded;
    if (!nib__reserve(gpu->allocator, &list, &gpu->loaded_capacity, gpu->loaded_count + 1,
                      sizeof *one))
        return nib__fail_memory(err, (gpu->loaded_count + 1) * sizeof *one, "loaded functions");
    gpu->loaded = list;
    gpu->loaded[gpu->loaded_count++] = *one;
    return NIB_OK;
}

static void release_loaded(nib_gpu *gpu, const nib_gpu_loaded *one)
{
    const nib_gpu_driver *driver = gpu->found->driver;
    if (one->name == NULL)
        driver->release_program(gpu, one->program);
    else if (driver->release_function != NULL)
        driver->release_function(gpu, one->function);
}

static nib_status remember_or_release(nib_gpu *gpu, const nib_gpu_loaded *one, nib_err *err)
{
    const nib_status status = remember(gpu, one, err);
    if (status != NIB_OK)
        release_loaded(gpu, one);
    return status;
}

/* Finds the launch's function, or loads it. */
static nib_status load_function(nib_gpu *gpu, const nib_gpu_code *code, const nib_launch *launch,
                                void **function, nib_err *err)
{
    const nib_gpu_driver *driver = gpu->found->driver;
    nib_gpu_loaded one = {.source = code->source};
    for (size_t i = 0; i < gpu->loaded_count; i++) {
        const nib_gpu_loaded *loaded = &gpu->loaded[i];
        if (loaded->source != code->source || strcmp(loaded->options, launch->options) != 0)
            continue;
        if (loaded->name != NULL && strcmp(loaded->name, launch->function) == 0 &&
            loaded->shared >= launch->shared) {
            *function = loaded->function;
            return NIB_OK;
        }
        one.program = loaded->program;
    }
    snprintf(one.options, sizeof one.options, "%s", launch->options);
    if (one.program == NULL) {
        NIB_TRY(driver->load_program(gpu, code->source, launch, &one.program, err));
        NIB_TRY(remember_or_release(gpu, &one, err));
    }
    NIB_TRY(driver->find_function(gpu, one.program, launch, &one.function, err));
    one.name = launch->function;
    one.shared = launch->shared;
    NIB_TRY(remember_or_release(gpu, &one, err));
    *function = one.function;
    return NIB_OK;
}

/* ---- waiting ---- */

static const char *format_batch(char out[128], const nib_gpu_batch *b)
{
    if (b->alike)
        snprintf(out, 128, "%s", b->first);
    else
        snprintf(out, 128, "one of %d launches from %s to %s", b->count, b->first, b->last);
    return out;
}

/* Waits for the oldest remembered batch. Polls, because a driver's own wait has no time limit. */
static nib_status wait_oldest(nib_gpu *gpu, nib_err *err)
{
    enum { FIRST_SLEEP_NS = 2000, LONGEST_SLEEP_NS = 200000 };
    const nib_gpu_driver *driver = gpu->found->driver;
    const nib_gpu_batch *oldest = &gpu->batches[gpu->batch_first];
    const uint64_t begun = nib__now_ns();
    struct timespec pause = {.tv_nsec = FIRST_SLEEP_NS};
    char name[128];
    for (bool done = false;;) {
        NIB_TRY(driver->is_event_done(gpu, oldest->event, &done, format_batch(name, oldest), err));
        if (done)
            break;
        const uint64_t waited = nib__now_ns() - begun;
        if ((double)waited * 1e-9 > gpu->limit_s)
            return nib__fail(
                err, NIB_FAILED,
                "%s: %s did not return in %.3g s; the device hangs, or is far slower than expected",
                gpu->found->name, name, gpu->limit_s);
        if (waited < driver->spin_ns) {
            sched_yield();
        } else {
            nanosleep(&pause, NULL);
            pause.tv_nsec *= pause.tv_nsec < LONGEST_SLEEP_NS ? 2 : 1;
        }
    }
    driver->release_event(gpu, oldest->event);
    gpu->batch_first = (gpu->batch_first + 1) % NIB_GPU_BATCHES;
    gpu->batch_count--;
    return NIB_OK;
}

/* Records an event after the launches since the last one. */
static nib_status end_batch(nib_gpu *gpu, nib_err *err)
{
    if (gpu->now.first == NULL)
        return NIB_OK;
    if (gpu->batch_count == NIB_GPU_BATCHES)
        NIB_TRY(wait_oldest(gpu, err));
    NIB_TRY(gpu->found->driver->record_event(gpu, &gpu->now.event, err));
    gpu->batches[(gpu->batch_first + gpu->batch_count++) % NIB_GPU_BATCHES] = gpu->now;
    gpu->now = (nib_gpu_batch){.first = NULL};
    return NIB_OK;
}

nib_status nib__gpu_finish(nib_gpu *gpu, nib_err *err)
{
    NIB_TRY(end_batch(gpu, err));
    while (gpu->batch_count > 0)
        NIB_TRY(wait_oldest(gpu, err));
    return NIB_OK;
}

void nib__gpu_forget_launches(nib_gpu *gpu)
{
    for (; gpu->batch_count > 0; gpu->batch_count--) {
        gpu->found->driver->release_event(gpu, gpu->batches[gpu->batch_first].event);
        gpu->batch_first = (gpu->batch_first + 1) % NIB_GPU_BATCHES;
    }
    while (gpu->loaded_count > 0) /* functions before their programs */
        release_loaded(gpu, &gpu->loaded[--gpu->loaded_count]);
    nib__release(gpu->allocator, gpu->loaded);
    gpu->loaded = NULL;
}

/* ---- rows ---- */

nib_status nib__gpu_prepare(nib_gpu *gpu, const nib_kernel *row, const void *args, nib_err *err)
{
    nib_launch launches[NIB_LAUNCHES_MAX];
    const int count = row->gpu->launches(args, launches);
    void *function;
    for (int i = 0; i < count; i++)
        NIB_TRY(load_function(gpu, row->gpu, &launches[i], &function, err));
    return NIB_OK;
}

static bool is_empty(const nib_launch *launch)
{
    return launch->groups[0] == 0 || launch->groups[1] == 0 || launch->groups[2] == 0;
}

nib_status nib__gpu_launched(nib_gpu *gpu, const char *name, nib_err *err)
{
    nib_gpu_batch *now = &gpu->now;
    if (now->first == NULL)
        *now = (nib_gpu_batch){.first = name, .alike = true};
    now->alike = now->alike && strcmp(now->first, name) == 0;
    now->last = name;
    return ++now->count == NIB_GPU_BATCH ? end_batch(gpu, err) : NIB_OK;
}

/* Kernels may read weights before the launch before them ends, unless that one wrote them. */
static bool writes_weights(nib_op op)
{
    return op == NIB_OP_PACK || op == NIB_OP_CAST || op == NIB_OP_CAST_T;
}

static nib_status run_launch(nib_gpu *gpu, const nib_kernel *row, const nib_launch *launch,
                             nib_err *err)
{
    void *function;
    NIB_TRY(load_function(gpu, row->gpu, launch, &function, err));
    if (is_empty(launch))
        return NIB_OK;
    NIB_TRY(gpu->found->driver->launch(gpu, function, launch, err));
    gpu->wrote_weights = writes_weights(row->op);
    return nib__gpu_launched(gpu, launch->function, err);
}

nib_status nib__gpu_run(nib_gpu *gpu, const nib_kernel *row, const void *args, nib_err *err)
{
    nib_launch launches[NIB_LAUNCHES_MAX];
    const int count = row->gpu->launches(args, launches);
    for (int i = 0; i < count; i++) {
        const nib_status status = run_launch(gpu, row, &launches[i], err);
        if (status != NIB_OK)
            return nib__fail_in(err, status, row->name);
    }
    return NIB_OK;
}
