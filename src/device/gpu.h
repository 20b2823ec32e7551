/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU, or any OpenCL device: finding and opening it, its memory, its launches. nib_gpu_driver
 * hides the driver; there is one for OpenCL and one for CUDA, both loaded at run time. Only on a
 * GPU can running an operation fail.
 *
 * Device memory has addresses: numbers with pointer arithmetic inside one allocation, which the
 * host never dereferences. So the arguments of operations look the same for every device.
 */
#ifndef NIB_GPU_H
#define NIB_GPU_H

#include "kernel.h"
#include "machine.h"

#include <sys/types.h>

enum { NIB_GPUS_MAX = 16 };

/* A device that was found. */
typedef struct nib_gpu_found {
    nib_machine machine; /* machine.name points to `name` */
    char name[32];       /* "opencl", "opencl:1", in the driver's order */
    char title[96], driver_version[96];
    const struct nib_gpu_driver *driver;
    void *ids[2]; /* the driver's own */
} nib_gpu_found;

typedef struct nib_gpu nib_gpu;

typedef struct nib_gpu_driver {
    const char *name, *library; /* "OpenCL", "libOpenCL.so.1" */
    /* Appends to out[*count..NIB_GPUS_MAX]. A library that is missing or has no device is not an
     * error; `why` explains it. */
    void (*find)(nib_gpu_found *out, size_t *count, nib_text *why);
    nib_status (*open)(nib_gpu *gpu, nib_err *err);
    void (*close)(nib_gpu *gpu);
    nib_status (*allocate)(nib_gpu *gpu, uint64_t bytes, uint64_t *handle, nib_err *err);
    void (*release)(nib_gpu *gpu, uint64_t handle);
    nib_status (*write)(nib_gpu *gpu, uint64_t handle, uint64_t at, const void *from,
                        uint64_t bytes, nib_err *err);
    nib_status (*read)(nib_gpu *gpu, uint64_t handle, uint64_t at, void *to, uint64_t bytes,
                       nib_err *err);
    nib_status (*copy)(nib_gpu *gpu, uint64_t to, uint64_t to_at, uint64_t from, uint64_t from_at,
                       uint64_t bytes, nib_err *err);
    /* Loads the source compiled with the launch's options. */
    nib_status (*load_program)(nib_gpu *gpu, const nib_gpu_source *source, const nib_launch *launch,
                               void **program, nib_err *err);
    void (*release_program)(nib_gpu *gpu, void *program);
    nib_status (*find_function)(nib_gpu *gpu, void *program, const nib_launch *launch,
                                void **function, nib_err *err);
    void (*release_function)(nib_gpu *gpu, void *function); /* NULL: the program frees it */
    nib_status (*launch)(nib_gpu *gpu, void *function, const nib_launch *launch, nib_err *err);
    /* Records an event after all launches so far, and tests whether it has completed. Recording
     * also flushes the queue, so that the launches start. */
    nib_status (*record_event)(nib_gpu *gpu, void **event, nib_err *err);
    nib_status (*is_event_done)(nib_gpu *gpu, void *event, bool *done, const char *what,
                                nib_err *err);
    void (*release_event)(nib_gpu *gpu, void *event);
    uint64_t spin_ns; /* how long a wait polls before it sleeps; a sleep is longer than a launch */
} nib_gpu_driver;

/* All drivers in order of preference; NULL past the last. */
const nib_gpu_driver *nib__gpu_driver_at(size_t i);

/* Finds every device of every driver; `why` gets a line for each driver without one. */
size_t nib__gpus_find(nib_gpu_found out[NIB_GPUS_MAX], nib_text *why);

/* `found` must outlive the GPU. A launch that takes longer than limit_s is an error that names
 * it. */
nib_status nib__gpu_open(nib_gpu **out, const nib_gpu_found *found, double limit_s,
                         const nib_allocator *a, nib_err *err);
void nib__gpu_close(nib_gpu *gpu);

/* Limits the memory that may be allocated to `bytes`; 0: no limit but the driver's. */
void nib__gpu_limit(nib_gpu *gpu, uint64_t bytes);
/* Allocates device memory; the error names `what`. */
nib_status nib__gpu_alloc(nib_gpu *gpu, uint64_t bytes, const char *what, void **address,
                          nib_err *err);
/* Allocates device memory under a host address, for tests: the same arguments run on both. */
nib_status nib__gpu_shadow(nib_gpu *gpu, void *host, uint64_t bytes, nib_err *err);
void nib__gpu_free(nib_gpu *gpu, void *address);
uint64_t nib__gpu_held(const nib_gpu *gpu); /* bytes */

/* All are ordered with launches; nib__gpu_read waits for the data. */
nib_status nib__gpu_write(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err);
nib_status nib__gpu_read(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err);
nib_status nib__gpu_copy(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err);

/* Compiles what the arguments would launch, so that a driver's refusal is known early. */
nib_status nib__gpu_prepare(nib_gpu *gpu, const nib_kernel *row, const void *args, nib_err *err);
nib_status nib__gpu_run(nib_gpu *gpu, const nib_kernel *row, const void *args, nib_err *err);
/* Waits for all launches and copies; NIB_FAILED names those that take longer than the limit. */
nib_status nib__gpu_finish(nib_gpu *gpu, nib_err *err);

/* Measures copies within the device and to and from the host, and the launch of `add`, a row of
 * NIB_OP_ADD. Takes about 0.5 s. src/measure/measure_products.c times matmuls with their
 * kernels. */
nib_status nib__gpu_measure(nib_machine *m, nib_gpu *gpu, const nib_kernel *add, nib_err *err);

/* ---- for drivers ---- */

/* One allocation, by address. */
typedef struct nib_gpu_piece {
    uint64_t address, bytes;
    uint64_t handle;
} nib_gpu_piece;

/* A loaded program, or a function of one. */
typedef struct nib_gpu_loaded {
    const nib_gpu_source *source;
    char options[NIB_LAUNCH_OPTIONS];
    const char *name; /* of the function; NULL: the program */
    void *program, *function;
    int32_t shared; /* the largest shared memory requested */
} nib_gpu_loaded;

/* Launches under one event. */
typedef struct nib_gpu_batch {
    void *event;
    const char *first, *last; /* functions; first NULL: empty */
    int count;
    bool alike; /* all launch the same function */
} nib_gpu_batch;

enum {
    NIB_GPU_BATCH = 16,   /* launches under one event */
    NIB_GPU_BATCHES = 32, /* batches remembered, to name the one that hangs */
};

struct nib_gpu {
    const nib_gpu_found *found;
    const nib_allocator *allocator;
    double limit_s;
    pid_t process;         /* that opened it: drivers do not work in forked ones */
    bool emulates;         /* tests: the sources emulate instructions that the device lacks */
    void *state;           /* the driver's */
    nib_gpu_piece *pieces; /* by address */
    size_t count, capacity;
    uint64_t next;       /* address of the next allocation */
    uint64_t held, most; /* most 0: no limit */
    nib_gpu_loaded *loaded;
    size_t loaded_count, loaded_capacity;
    nib_gpu_batch batches[NIB_GPU_BATCHES]; /* a ring */
    size_t batch_first, batch_count;
    nib_gpu_batch now;  /* launched since the last event */
    bool wrote_weights; /* by the last launch */
};

/* The allocation that holds the address; NULL if none does. */
const nib_gpu_piece *nib__gpu_piece(const nib_gpu *gpu, const void *address);

/* Looks up names[i] in a library and writes them to `functions`, an array of function pointers.
 * False: the library is missing (*lacking is NULL), or lacks the function *lacking. */
bool nib__gpu_load_library(const char *library, const char *const *names, size_t count,
                           void *functions, const char **lacking);

/* Counts a launch or copy of that name, which nib__gpu_finish must wait for. */
nib_status nib__gpu_launched(nib_gpu *gpu, const char *name, nib_err *err);

/* The first step of nib__gpu_close: releases events, functions and programs. */
void nib__gpu_forget_launches(nib_gpu *gpu);

extern const nib_gpu_driver nib__driver_cuda, nib__driver_opencl;

#endif
