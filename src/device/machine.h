/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines as data: what a device has, as facts with date and source, and the rates that predict
 * time. The machine this process runs on is found out; others are a table, present or not.
 */
#ifndef NIB_MACHINE_H
#define NIB_MACHINE_H

#include "fact.h"
#include "kernel.h"

typedef struct nib_fact_source {
    nib_fact fact; /* NIB_FACT_COUNT: a rate, named by `what` */
    const char *what, *value, *date, *source;
} nib_fact_source;

typedef struct nib_machine {
    const char *name, *title;
    bool here;
    char cpu[64];                   /* this machine: the processor's own name */
    int threads;                    /* this machine: of the pool */
    const struct nib_machine *host; /* the CPU beside it, where work may go if allowed; NULL */
    nib_query facts;                /* the device facts only */
    double bytes_per_s;
    double rate[NIB_UNIT_COUNT]; /* operations/s (a multiply-add is two); 0: has no such unit */
    double launch_s;             /* per operation */
    uint64_t memory;             /* bytes */
    bool measured;               /* rates were measured here, not published */
    char measured_on[16];        /* "2026-11-20" */
    bool disturbed; /* others used the cores meanwhile: the rates are lower than true */
    const nib_fact_source *sources;
    size_t source_count;
} nib_machine;

size_t nib__machine_count(void); /* of the table, without this machine */
const nib_machine *nib__machine_at(size_t i);
const nib_machine *nib__machine_find(const char *name);

/* This machine (NULL: without it) and the table, every fact with date and source. */
void nib__devices_render(nib_form form, const nib_machine *here, nib_text *out);

/* cpuid and the operating system's word; the bits of NIB_FACT_ISA. */
int64_t nib__cpu_isa(void);
/* Bits up to and including the named level; an unknown name is NIB_USAGE, with the known ones.
 * Asking for a level that this CPU lacks is NIB_NOT_AS_ASKED. NULL: all. */
nib_status nib__cpu_isa_mask(int64_t *out, const char *level, nib_err *err);
const char *nib__cpu_isa_name(int64_t isa); /* of the highest level: "avx512vnni"; "ref" for none */

/* This machine with `isa` and `threads`; rates are cautious defaults until measured. */
void nib__machine_here(nib_machine *out, int64_t isa, int threads);
/* Measures read bandwidth and the arithmetic rates with the pool (about 0.2 s), or reads them from
 * cache_path where they were written for the same CPU, isa and threads. cache_path NULL: measures.
 * What was measured while others used the cores is not written. */
struct nib_pool;
nib_status nib__machine_measure(nib_machine *machine, struct nib_pool *pool, const char *cache_path,
                                const nib_allocator *a, nib_err *err);

#endif
