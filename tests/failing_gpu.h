/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake GPU for tests. Its memory is host memory and its launches compute nothing; a test chooses
 * which calls fail, as a driver might. It is the engine's only device, "opencl", so plans use the
 * OpenCL rows.
 */
#ifndef NIB_TESTS_FAILING_GPU_H
#define NIB_TESTS_FAILING_GPU_H

#include "engine.h"
#include "skipping.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct failing_gpu {
    const char *open_words;      /* error of opening the device; NULL: opens */
    const char *refuse_function; /* fails to compile; NULL: none */
    const char *refuse_option;   /* programs with this option fail; NULL: none */
    uint64_t room;               /* bytes that can really be allocated */
    uint64_t held;
    int takes_left;          /* allocations that still succeed; negative: all */
    const char *fail_launch; /* function whose launch fails; NULL: none */
    bool hangs, fail_read, fail_write;
    bool subgroups; /* whether the device has subgroups */
    int live;       /* buffers, programs, functions and events not released */
    int launches;   /* accepted launches */
    int copies;     /* to and from the host */
    uint64_t copied;
} failing_gpu;

static inline failing_gpu *failing_of(const nib_gpu *gpu) { return gpu->found->ids[0]; }

static inline nib_status failing_open(nib_gpu *gpu, nib_err *err)
{
    const char *words = failing_of(gpu)->open_words;
    return words == NULL ? NIB_OK : nib__fail(err, NIB_NOT_AS_ASKED, "%s", words);
}

static inline void failing_close(nib_gpu *gpu) { (void)gpu; }

typedef struct failing_piece {
    uint64_t bytes;
    char data[];
} failing_piece;

static inline nib_status failing_take(nib_gpu *gpu, uint64_t bytes, uint64_t *handle, nib_err *err)
{
    failing_gpu *f = failing_of(gpu);
    (void)err;
    if (f->takes_left == 0 || bytes > f->room - f->held)
        return NIB_NO_MEMORY;
    failing_piece *piece = calloc(1, sizeof *piece + (size_t)bytes);
    if (piece == NULL)
        return NIB_NO_MEMORY;
    piece->bytes = bytes;
    f->takes_left -= f->takes_left > 0;
    f->held += bytes;
    f->live++;
    *handle = (uint64_t)(uintptr_t)piece;
    return NIB_OK;
}

static inline failing_piece *failing_piece_of(uint64_t handle)
{
    return (failing_piece *)(uintptr_t)handle;
}

static inline void failing_give(nib_gpu *gpu, uint64_t handle)
{
    failing_gpu *f = failing_of(gpu);
    f->held -= failing_piece_of(handle)->bytes;
    f->live--;
    free(failing_piece_of(handle));
}

static inline nib_status failing_write(nib_gpu *gpu, uint64_t handle, uint64_t at, const void *from,
                                       uint64_t bytes, nib_err *err)
{
    if (failing_of(gpu)->fail_write)
        return nib__fail(err, NIB_FAILED, "a copy to the device: the bus is gone");
    failing_of(gpu)->copies++;
    failing_of(gpu)->copied += bytes;
    memcpy(failing_piece_of(handle)->data + at, from, (size_t)bytes);
    return NIB_OK;
}

static inline nib_status failing_read(nib_gpu *gpu, uint64_t handle, uint64_t at, void *to,
                                      uint64_t bytes, nib_err *err)
{
    NIB_TRY(nib__gpu_finish(gpu, err));
    if (failing_of(gpu)->fail_read)
        return nib__fail(err, NIB_FAILED, "a copy from the device: the bus is gone");
    failing_of(gpu)->copies++;
    failing_of(gpu)->copied += bytes;
    memcpy(to, failing_piece_of(handle)->data + at, (size_t)bytes);
    return NIB_OK;
}

static inline nib_status failing_copy(nib_gpu *gpu, uint64_t to, uint64_t to_at, uint64_t from,
                                      uint64_t from_at, uint64_t bytes, nib_err *err)
{
    (void)gpu, (void)err;
    memcpy(failing_piece_of(to)->data + to_at, failing_piece_of(from)->data + from_at,
           (size_t)bytes);
    return NIB_OK;
}

static inline nib_status failing_load_program(nib_gpu *gpu, const nib_gpu_source *source,
                                              const nib_launch *launch, void **program,
                                              nib_err *err)
{
    failing_gpu *f = failing_of(gpu);
    if (f->refuse_option != NULL && strstr(launch->options, f->refuse_option) != NULL)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the driver 7.5 of a device of tests does not compile %s: error: %s",
                         source->name, f->refuse_option);
    *program = f;
    f->live++;
    return NIB_OK;
}

static inline nib_status failing_find_function(nib_gpu *gpu, void *program,
                                               const nib_launch *launch, void **function,
                                               nib_err *err)
{
    failing_gpu *f = failing_of(gpu);
    (void)program;
    if (f->refuse_function != NULL && strcmp(launch->function, f->refuse_function) == 0)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the driver 7.5 of a device of tests does not compile %s: error: too many "
                         "registers",
                         launch->function);
    *function = f;
    f->live++;
    return NIB_OK;
}

static inline void failing_give_any(nib_gpu *gpu, void *what)
{
    (void)what;
    failing_of(gpu)->live--;
}

static inline nib_status failing_launch(nib_gpu *gpu, void *function, const nib_launch *launch,
                                        nib_err *err)
{
    failing_gpu *f = failing_of(gpu);
    (void)function;
    if (f->fail_launch != NULL && strcmp(launch->function, f->fail_launch) == 0)
        return nib__fail(err, NIB_FAILED, "%s: out of the device's resources", launch->function);
    f->launches++;
    return NIB_OK;
}

static inline nib_status failing_mark(nib_gpu *gpu, void **event, nib_err *err)
{
    (void)err;
    failing_of(gpu)->live++;
    *event = failing_of(gpu);
    return NIB_OK;
}

static inline nib_status failing_has_come(nib_gpu *gpu, void *event, bool *come, const char *what,
                                          nib_err *err)
{
    (void)event, (void)what, (void)err;
    *come = !failing_of(gpu)->hangs;
    return NIB_OK;
}

static const nib_gpu_driver failing_driver = {
    .name = "tests",
    .library = "none",
    .open = failing_open,
    .close = failing_close,
    .allocate = failing_take,
    .release = failing_give,
    .write = failing_write,
    .read = failing_read,
    .copy = failing_copy,
    .load_program = failing_load_program,
    .release_program = failing_give_any,
    .find_function = failing_find_function,
    .release_function = failing_give_any,
    .launch = failing_launch,
    .record_event = failing_mark,
    .is_event_done = failing_has_come,
    .release_event = failing_give_any,
};

/* A device that refuses nothing. It has the facts that OpenCL rows need, and rates that rank plans.
 */
static inline void failing_init(failing_gpu *f)
{
    *f = (failing_gpu){.room = UINT64_C(1) << 32, .takes_left = -1};
}

static inline void failing_describe(nib_gpu_found *out, failing_gpu *f)
{
    *out = (nib_gpu_found){.driver = &failing_driver, .ids = {f, NULL}};
    snprintf(out->name, sizeof out->name, "opencl");
    snprintf(out->title, sizeof out->title, "a device of tests");
    snprintf(out->driver_version, sizeof out->driver_version, "7.5");
    nib_machine *m = &out->machine;
    *m = (nib_machine){.name = out->name,
                       .title = out->title,
                       .here = true,
                       .memory = UINT64_C(1) << 32,
                       .bytes_per_s = 100e9,
                       .launch_s = 5e-6,
                       .copy_s = 10e-6,
                       .copy_bytes_per_s = 10e9};
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        m->rate[unit] = 1e12;
    m->facts.fact[NIB_FACT_DEVICE] = NIB_DEVICE_OPENCL;
    m->facts.fact[NIB_FACT_MAKER] = NIB_MAKER_AMD;
    m->facts.fact[NIB_FACT_SUBGROUPS] = f->subgroups;
}

/* Makes this the engine's only device; false: out of memory. */
static inline bool failing_offer(nib_engine *engine, failing_gpu *f)
{
    if (sizeof(void *) < 8)
        skip_test("a device", "a 32-bit program cannot address its memory");
    engine->gpus = nib__calloc(&engine->allocator, NIB_GPUS_MAX, sizeof *engine->gpus);
    if (engine->gpus == NULL)
        return false;
    failing_describe(&engine->gpus[0], f);
    engine->gpus[0].machine.host = &engine->here;
    engine->gpu_count = 1;
    return true;
}

#endif
