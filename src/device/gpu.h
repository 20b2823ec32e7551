/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU, or any device behind OpenCL: found, opened, its memory, its launches. What a driver is
 * lies behind nib_gpu_driver, of which there is one for OpenCL and one for CUDA; both are loaded at
 * run time. These are the only calls of an operation that can fail.
 *
 * Memory on a device has addresses: numbers that arithmetic within one piece is done on, and that
 * nothing on the host follows. So operations are described alike for every device.
 */
#ifndef NIB_GPU_H
#define NIB_GPU_H

#include "kernel.h"
#include "machine.h"

enum { NIB_GPUS_MAX = 16 };

/* A device that was found. */
typedef struct nib_gpu_found {
    nib_machine machine; /* here; the name is in `name` */
    char name[32];       /* "opencl", "opencl:1": in the order in which the driver has them */
    char title[96], driver_version[96];
    const struct nib_gpu_driver *driver;
    void *ids[2]; /* the driver's own */
} nib_gpu_found;

typedef struct nib_gpu nib_gpu;

typedef struct nib_gpu_driver {
    const char *name, *library; /* "OpenCL", "libOpenCL.so.1" */
    /* Appends to out[*count..NIB_GPUS_MAX]. A library that is missing or has no device is no
     * error: `why` then says so. */
    void (*find)(nib_gpu_found *out, size_t *count, nib_text *why);
    nib_status (*open)(nib_gpu *gpu, nib_err *err);
    void (*close)(nib_gpu *gpu);
    nib_status (*take)(nib_gpu *gpu, uint64_t bytes, uint64_t *handle, nib_err *err);
    void (*give)(nib_gpu *gpu, uint64_t handle);
    nib_status (*write)(nib_gpu *gpu, uint64_t handle, uint64_t at, const void *from,
                        uint64_t bytes, nib_err *err);
    nib_status (*read)(nib_gpu *gpu, uint64_t handle, uint64_t at, void *to, uint64_t bytes,
                       nib_err *err);
    nib_status (*copy)(nib_gpu *gpu, uint64_t to, uint64_t to_at, uint64_t from, uint64_t from_at,
                       uint64_t bytes, nib_err *err);
    /* The source with the launch's options. */
    nib_status (*load_program)(nib_gpu *gpu, const nib_gpu_source *source, const nib_launch *launch,
                               void **program, nib_err *err);
    void (*give_program)(nib_gpu *gpu, void *program);
    nib_status (*find_function)(nib_gpu *gpu, void *program, const nib_launch *launch,
                                void **function, nib_err *err);
    void (*give_function)(nib_gpu *gpu, void *function); /* NULL: it goes with its program */
    nib_status (*launch)(nib_gpu *gpu, void *function, const nib_launch *launch, nib_err *err);
    /* An event that comes after all that was launched, and whether it has come. `mark` also sees
     * to it that what was launched begins. */
    nib_status (*mark)(nib_gpu *gpu, void **event, nib_err *err);
    nib_status (*has_come)(nib_gpu *gpu, void *event, bool *come, const char *what, nib_err *err);
    void (*give_event)(nib_gpu *gpu, void *event);
    uint64_t spin_ns; /* how long waiting asks without a sleep, which lasts longer than a launch */
} nib_gpu_driver;

/* All drivers, in the order in which they are preferred; NULL past the last. */
const nib_gpu_driver *nib__gpu_driver_at(size_t i);

/* Every device of every driver; `why` gets a line for each driver without one. */
size_t nib__gpus_find(nib_gpu_found out[NIB_GPUS_MAX], nib_text *why);

/* `found` must outlive it. A launch that takes longer than limit_s is an error that names it. */
nib_status nib__gpu_open(nib_gpu **out, const nib_gpu_found *found, double limit_s,
                         const nib_allocator *a, nib_err *err);
void nib__gpu_close(nib_gpu *gpu);

/* No more than `bytes` are taken of its memory from now on; 0: what the driver gives. */
void nib__gpu_limit(nib_gpu *gpu, uint64_t bytes);
/* Memory of the device; `what` is for the error. */
nib_status nib__gpu_take(nib_gpu *gpu, uint64_t bytes, const char *what, void **address,
                         nib_err *err);
/* Memory that goes by the address of the host's, for tests: the same arguments run on both. */
nib_status nib__gpu_shadow(nib_gpu *gpu, void *host, uint64_t bytes, nib_err *err);
void nib__gpu_give(nib_gpu *gpu, void *address);
uint64_t nib__gpu_held(const nib_gpu *gpu); /* bytes */

/* All are in order with launches; read has waited when it returns. */
nib_status nib__gpu_write(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err);
nib_status nib__gpu_read(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err);
nib_status nib__gpu_copy(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err);

/* Compiles what the arguments would launch, so that what a driver refuses is known before. */
nib_status nib__gpu_prepare(nib_gpu *gpu, const nib_kernel *row, const void *args, nib_err *err);
nib_status nib__gpu_run(nib_gpu *gpu, const nib_kernel *row, const void *args, nib_err *err);
nib_status nib__gpu_finish(nib_gpu *gpu, nib_err *err);

/* Measures what copies cost, within the device and between it and the host, and what a launch of
 * `add` does, a row of NIB_OP_ADD. Some 0.5 s. What products take is measured by kernels:
 * src/measure/measure_products.c. */
nib_status nib__gpu_measure(nib_machine *m, nib_gpu *gpu, const nib_kernel *add, nib_err *err);

/* ---- for drivers ---- */

/* A piece of memory by its address. */
typedef struct nib_gpu_piece {
    uint64_t address, bytes;
    uint64_t handle;
} nib_gpu_piece;

/* A program that was loaded, or a function of it. */
typedef struct nib_gpu_loaded {
    const nib_gpu_source *source;
    char options[NIB_LAUNCH_OPTIONS];
    const char *name; /* of the function; NULL: the program */
    void *program, *function;
    int32_t shared; /* the most that was asked for */
} nib_gpu_loaded;

/* Launches under one event. */
typedef struct nib_gpu_batch {
    void *event;
    const char *first, *last; /* functions; first NULL: nothing was launched */
    int count;
    bool alike; /* all are of one function */
} nib_gpu_batch;

enum {
    NIB_GPU_BATCH = 16,   /* launches under one event */
    NIB_GPU_BATCHES = 32, /* that are remembered, to name those that hang */
};

struct nib_gpu {
    const nib_gpu_found *found;
    const nib_allocator *allocator;
    double limit_s;
    bool emulates; /* tests: instructions that the device lacks are functions of the sources */
    void *state;   /* the driver's */
    nib_gpu_piece *pieces; /* by address */
    size_t count, capacity;
    uint64_t next;       /* address of the next piece */
    uint64_t held, most; /* most 0: no limit */
    nib_gpu_loaded *loaded;
    size_t loaded_count, loaded_capacity;
    nib_gpu_batch batches[NIB_GPU_BATCHES]; /* a ring */
    size_t batch_first, batch_count;
    nib_gpu_batch now; /* launched since the last event */
};

/* The piece that holds the address; NULL for NULL and for what is none. */
const nib_gpu_piece *nib__gpu_piece(const nib_gpu *gpu, const void *address);

/* Looks up names[i] in a library and writes the i-th of `functions`, pointers to functions. Without
 * the library, false and *lacking is NULL; without a function, false and its name. */
bool nib__gpu_load_library(const char *library, const char *const *names, size_t count,
                           void *functions, const char **lacking);

/* What nib__gpu_close does first: gives back events, functions and programs. */
void nib__gpu_forget_launches(nib_gpu *gpu);

extern const nib_gpu_driver nib__driver_cuda, nib__driver_opencl;

#endif
