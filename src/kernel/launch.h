/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel row on a GPU: the source of its functions, and a function that turns an operation's
 * arguments into launches. Both are data; src/device compiles and launches. Arguments are those of
 * CPU rows (ops.h), with device addresses instead of pointers, which the host never dereferences;
 * descriptions of shapes (nib_weight, nib_scheme) stay in host memory.
 */
#ifndef NIB_LAUNCH_H
#define NIB_LAUNCH_H

#include "ops.h"

enum { NIB_LAUNCH_ARGS = 32, NIB_LAUNCH_OPTIONS = 256, NIB_LAUNCHES_MAX = 4 };

typedef enum nib_launch_kind {
    NIB_LAUNCH_MEMORY,
    NIB_LAUNCH_INT,
    NIB_LAUNCH_FLOAT
} nib_launch_kind;

/* MEMORY is two arguments in OpenCL, base and offset (GLOBAL_ARG in gpu/prelude.cl), and one in
 * CUDA. */
typedef struct nib_launch_arg {
    nib_launch_kind kind;
    union {
        const void *memory; /* a device address, or NULL */
        int32_t integer;
        float number;
    } value;
} nib_launch_arg;

/* One launch of one function: groups[i] work-groups of items[i] work-items. */
typedef struct nib_launch {
    const char *function;
    char options[NIB_LAUNCH_OPTIONS]; /* "-DW=4 ...": each set of options is a separate program */
    int64_t groups[3];
    int32_t items[3];
    int32_t shared; /* CUDA: dynamic shared memory, bytes */
    nib_launch_arg args[NIB_LAUNCH_ARGS];
    int count;
} nib_launch;

/* Source text for the device, compiled after `before`; every chain begins with the prelude. */
typedef struct nib_gpu_source {
    const char *name; /* "token.cl" */
    const unsigned char *text;
    const size_t *size;
    const struct nib_gpu_source *before; /* NULL: the prelude */
} nib_gpu_source;

typedef struct nib_gpu_code {
    const nib_gpu_source *source;
    /* Returns the number of launches, in order; 0: nothing to do. */
    int (*launches)(const void *args, nib_launch out[NIB_LAUNCHES_MAX]);
} nib_gpu_code;

/* ---- for the functions that make launches ---- */

/* A one-dimensional launch of work-groups of `items`, without options or arguments. */
void nib__launch_init(nib_launch *out, const char *function, int64_t groups, int32_t items);
/* Appends to the options. format: as printf's, with %d and %s only. */
void nib__launch_option(nib_launch *launch, const char *format, ...) NIB_PRINTF(2, 3);
void nib__launch_memory(nib_launch *launch, const void *address);
void nib__launch_int(nib_launch *launch, int64_t value); /* below 2^31 */
void nib__launch_float(nib_launch *launch, float value);

#endif
