/* SPDX-License-Identifier: Apache-2.0
 *
 * The measured order of kernels for a shape, kept between runs. An order contains only kernels with
 * the same arithmetic contract, so it changes no bits.
 */
#ifndef NIB_TUNED_H
#define NIB_TUNED_H

#include "machine.h"

enum { NIB_TUNED_ROWS = 8, NIB_TUNED_KEY = 10 };

/* The facts of a query that select an order; the last is M, the smallest number of tokens of its
 * range. */
extern const nib_fact nib__tuned_facts[NIB_TUNED_KEY];

typedef struct nib_tuned_row {
    const nib_kernel *kernel;
    double seconds; /* per matmul */
} nib_tuned_row;

typedef struct nib_tuned_line {
    int64_t key[NIB_TUNED_KEY]; /* the values of nib__tuned_facts */
    int count;
    nib_tuned_row rows[NIB_TUNED_ROWS]; /* the fastest first */
} nib_tuned_line;

typedef struct nib_tuned {
    const nib_allocator *allocator;
    nib_tuned_line *lines; /* [count] */
    size_t count, capacity;
    char measured_on[16];
    char why[256]; /* why the file's orders for this machine are not used; or empty */
} nib_tuned;

/* The path of "tuned.json" in the folder of the cache of other measurements, in the arena; NULL: no
 * memory. */
char *nib__tuned_path(nib_arena *arena, const char *cache_path);

void nib__tuned_init(nib_tuned *tuned, const nib_allocator *a);
void nib__tuned_free(nib_tuned *tuned);
/* Reads the orders for this machine with its threads, instruction set and these kernels. If those
 * in the file do not match, reads nothing and sets out->why. */
void nib__tuned_load(nib_tuned *out, const nib_machine *machine, const char *path,
                     const nib_allocator *a);
/* NULL: not measured for this shape. */
const nib_tuned_line *nib__tuned_find(const nib_tuned *tuned, const nib_query *query);
/* The kernel's time in an order, in seconds; 0: not in it. */
double nib__tuned_seconds(const nib_tuned_line *line, const nib_kernel *kernel);
/* Adds a line, or replaces the line of the same key. False: no memory. */
bool nib__tuned_add(nib_tuned *tuned, const nib_tuned_line *line);
/* Writes the orders of this machine, replacing older ones. */
nib_status nib__tuned_keep(const nib_tuned *tuned, const nib_machine *machine, const char *path,
                           const nib_allocator *a, nib_err *err);
/* Removes all orders of this processor, for any number of threads; *found: there were some. */
nib_status nib__tuned_forget(bool *found, const nib_machine *machine, const char *path,
                             const nib_allocator *a, nib_err *err);

#endif
