/* SPDX-License-Identifier: Apache-2.0
 *
 * What a row on a GPU is: the source of its functions, and a function that turns an operation's
 * arguments into launches. Both are data; src/device compiles and launches. Arguments are those of
 * the CPU's rows (ops.h) with addresses of the device's memory in place of pointers, which nothing
 * here follows; what describes shapes (nib_weight, nib_scheme) stays in the host's.
 */
#ifndef NIB_LAUNCH_H
#define NIB_LAUNCH_H

#include "ops.h"

enum { NIB_LAUNCH_ARGS = 28, NIB_LAUNCH_OPTIONS = 256, NIB_LAUNCHES_MAX = 4 };

typedef enum nib_launch_kind {
    NIB_LAUNCH_MEMORY,
    NIB_LAUNCH_INT,
    NIB_LAUNCH_FLOAT
} nib_launch_kind;

/* MEMORY is two arguments of the function in OpenCL, base and offset (NIB_MEMORY in
 * gpu/prelude.cl), and one in CUDA. */
typedef struct nib_launch_arg {
    nib_launch_kind kind;
    union {
        const void *memory; /* an address on the device; NULL */
        int32_t integer;
        float number;
    } value;
} nib_launch_arg;

/* One launch of one function: groups[i] work-groups of items[i] work-items. */
typedef struct nib_launch {
    const char *function;
    char options[NIB_LAUNCH_OPTIONS]; /* "-DW=4 ...": each text is a program of its own */
    int64_t groups[3];
    int32_t items[3];
    int32_t shared; /* CUDA: bytes of shared memory beside what the function itself declares */
    nib_launch_arg args[NIB_LAUNCH_ARGS];
    int count;
} nib_launch;

/* Text that is compiled on the device, after another: every chain begins with the prelude. */
typedef struct nib_gpu_source {
    const char *name; /* "token.cl" */
    const unsigned char *text;
    const size_t *size;
    const struct nib_gpu_source *before; /* NULL: the prelude */
} nib_gpu_source;

typedef struct nib_gpu_code {
    const nib_gpu_source *source;
    /* Returns how many launches, in order; 0: there is nothing to do. */
    int (*launches)(const void *args, nib_launch out[NIB_LAUNCHES_MAX]);
} nib_gpu_code;

/* ---- for the rows' own functions ---- */

/* A launch of work-groups of `items` in one dimension, without options or arguments. */
void nib__launch_init(nib_launch *out, const char *function, int64_t groups, int32_t items);
void nib__launch_option(nib_launch *launch, const char *format, ...) NIB_PRINTF(2, 3);
void nib__launch_memory(nib_launch *launch, const void *address);
void nib__launch_int(nib_launch *launch, int64_t value); /* below 2^31 */
void nib__launch_float(nib_launch *launch, float value);

#endif
