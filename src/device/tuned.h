/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kernels were measured to be the fastest for a shape, kept from one run to the next. An
 * order is only among kernels of one arithmetic contract: it changes no bit.
 */
#ifndef NIB_TUNED_H
#define NIB_TUNED_H

#include "machine.h"

enum { NIB_TUNED_ROWS = 8, NIB_TUNED_KEY = 10 };

/* What of a query an order is for; the last is M, the least number of tokens of its range. */
extern const nib_fact nib__tuned_facts[NIB_TUNED_KEY];

typedef struct nib_tuned_row {
    const nib_kernel *kernel;
    double seconds; /* of a product */
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
    char why[256]; /* what was kept of this machine is not taken; empty */
} nib_tuned;

/* The file beside the cache of other measurements: "tuned.json" in its folder. In the arena; NULL:
 * no memory. */
char *nib__tuned_path(nib_arena *arena, const char *cache_path);

void nib__tuned_init(nib_tuned *tuned, const nib_allocator *a);
void nib__tuned_free(nib_tuned *tuned);
/* Fills in what the file has of this machine with its threads, instruction set, and these kernels.
 * What does not fit is left alone, and *why says so. */
void nib__tuned_load(nib_tuned *out, const nib_machine *machine, const char *path,
                     const nib_allocator *a);
/* NULL: this shape was not measured. */
const nib_tuned_line *nib__tuned_find(const nib_tuned *tuned, const nib_query *query);
/* The kernel's time in an order, seconds; 0: it is not in it. */
double nib__tuned_seconds(const nib_tuned_line *line, const nib_kernel *kernel);
/* In place of what there is of the same key. False: no memory. */
bool nib__tuned_add(nib_tuned *tuned, const nib_tuned_line *line);
/* Writes it in place of what the file has of this machine. */
nib_status nib__tuned_keep(const nib_tuned *tuned, const nib_machine *machine, const char *path,
                           const nib_allocator *a, nib_err *err);
/* Removes all of this processor, whatever its threads; *found: there was some. */
nib_status nib__tuned_forget(bool *found, const nib_machine *machine, const char *path,
                             const nib_allocator *a, nib_err *err);

#endif
