/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines as data: what a device has, as facts with date and source, and the rates that predict
 * time. The machine this process runs on is found out; others are files of machines/, which the
 * library holds as text, or files of the user's.
 */
#ifndef NIB_MACHINE_H
#define NIB_MACHINE_H

#include "fact.h"
#include "kernel.h"

/* The numbers of a machine's file: bytes/s, bytes, seconds, and operations/s of each unit. */
enum {
    NIB_RATE_BYTES,
    NIB_RATE_MEMORY,
    NIB_RATE_LAUNCH,
    NIB_RATE_COPY, /* between a device and its host */
    NIB_RATE_UNITS, /* + nib_unit */
    NIB_RATE_COUNT = NIB_RATE_UNITS + NIB_UNIT_COUNT
};
extern const char *const nib__rate_names[]; /* by rate; ends in NULL */

typedef struct nib_source {
    const char *key; /* within its file */
    const char *title, *date;
    const char *address; /* NULL: none */
} nib_source;

/* Where one fact or rate is from; its value lies in the machine. */
typedef struct nib_fact_source {
    nib_fact fact; /* NIB_FACT_COUNT: a rate */
    int rate;
    const char *words;   /* what the value alone does not say; NULL */
    const char *derived; /* how it follows from the source; NULL: it stands there */
    const nib_source *source;
} nib_fact_source;

/* What products of one code and one kind of activations take on a machine, as the planner does them
 * there, measured for a few numbers of tokens and, of each, a few numbers of outputs: a product of
 * few outputs does not fill a device, and one of many may be compiled otherwise. Without launches.
 */
/* So many times their size caches keep a part of what is read again and again: they do not drop the
 * oldest first (docs/speed.md has the measurement). */
enum { NIB_CACHE_REACH = 4 };

enum { NIB_POINTS = 5, NIB_SIZES = 4, NIB_MEASURED_MAX = 16 };
extern const int64_t nib__points[NIB_POINTS]; /* tokens: 1, then one more where few share a row and
                                                 three where many do; see cost.c */
typedef struct nib_point {
    const nib_kernel *row;
    int size_count;
    double outputs[NIB_SIZES]; /* ascending */
    double k_s[NIB_SIZES];     /* seconds of so many outputs, per k; of one token where the caches
                                  hold the weights */
    double quant_s;            /* per element of the input, bringing it into form */
} nib_point;
typedef struct nib_measured {
    nib_code code;
    nib_act act;
    nib_point at[NIB_POINTS];
    double memory_s;     /* per weight, one token, weights from memory */
    double weight_bytes; /* per weight, as they were packed */
} nib_measured;

typedef struct nib_machine {
    const char *name, *title;
    bool here;
    char cpu[64];                   /* this machine: the processor's own name */
    int threads;                    /* this machine: of the pool */
    const struct nib_machine *host; /* the CPU beside it, where work may go if allowed; NULL */
    nib_query facts;                /* the device facts only */
    double bytes_per_s;             /* from memory */
    double cache_bytes;             /* what the caches hold of weights; 0: not known */
    double cache_bytes_per_s;
    double rate[NIB_UNIT_COUNT];     /* operations/s (a multiply-add is two); 0: has no such unit */
    double launch_s;                 /* per operation */
    double copy_s, copy_bytes_per_s; /* between it and its host; 0: there is none */
    uint64_t memory;                 /* bytes */
    bool measured;                   /* rates were measured here, not published */
    char measured_on[16];            /* "2026-11-20" */
    bool disturbed; /* others used the cores meanwhile: the rates are lower than true */
    nib_measured products[NIB_MEASURED_MAX]; /* empty until they are asked for */
    int product_count;
    const struct nib_tuned *tuned;  /* this machine: orders of kernels that were measured, which
                                       are the engine's; NULL: none is to be taken */
    const nib_fact_source *sources; /* facts, then rates; this machine: none, see below */
    size_t source_count;
} nib_machine;

/* ---- the machines known by name ---- */

typedef struct nib_machines {
    nib_arena arena;
    nib_machine *items; /* [count], by name; a host is one of them */
    size_t count;
} nib_machines;

nib_status nib__machines_open(nib_machines *out, const nib_allocator *a, nib_err *err);
void nib__machines_close(nib_machines *machines);
const nib_machine *nib__machines_find(const nib_machines *machines, const char *name);

/* A file of machines/: its text is part of the library. */
typedef struct nib_machine_file {
    const char *name;
    const unsigned char *text;
    size_t size;
} nib_machine_file;
extern const nib_machine_file nib__machine_files[]; /* made by the Makefile; ends in a NULL name */

/* Is it the path of a file, not a name? It has a slash or ends in .json. */
bool nib__machine_is_path(const char *name);
/* The machine that a file describes; its name is the file's. known: where its host may be. What it
 * holds lies in the arena. */
nib_status nib__machine_read(nib_machine *out, const char *path, const nib_machines *known,
                             nib_arena *arena, nib_err *err);
/* The same of a text; file is what errors name. *host: the name of its host, or NULL; out->host is
 * left open. */
nib_status nib__machine_parse(nib_machine *out, const char **host, const char *name,
                              const char *file, const char *text, size_t size, nib_arena *arena,
                              nib_err *err);
/* The file of a machine, as machines/ has it: parsed, it gives the same machine. */
void nib__machine_write(const nib_machine *m, nib_text *out);

/* ---- words ---- */

/* What it is: "AMD Instinct MI210"; of this machine the processor's own name. */
const char *nib__machine_title(const nib_machine *m);
/* Until it is measured, and of a device that is not here, a copy takes so long and moves so many
 * bytes per second: what any PCIe slot does. */
#define NIB_CAUTIOUS_COPY_S 20e-6
#define NIB_CAUTIOUS_COPY_BYTES_PER_S 5e9

/* What is predicted from, in words: "published rates", "measured kernels". */
const char *nib__machine_rates(const nib_machine *m);

enum { NIB_LINES_MAX = NIB_FACT_COUNT + NIB_RATE_COUNT };

/* All that is known of a machine, line by line: its sources, or for this machine what was found
 * out. Keeps the source that lines of this machine share, so it must outlive them. */
typedef struct nib_machine_lines {
    nib_source here;
    char today[16];
    nib_fact_source items[NIB_LINES_MAX];
    size_t count;
} nib_machine_lines;
void nib__machine_lines(nib_machine_lines *out, const nib_machine *m);
/* "dot4", "bytes_per_s" */
const char *nib__line_name(const nib_fact_source *line);
/* "yes: v_dot8_i32_i4", "1.638 TB/s (HBM2e)" */
void nib__line_say(const nib_fact_source *line, const nib_machine *m, nib_text *out);
/* One of the three things that int4 asks of a machine: dot products of 4 or 8 bits, matrix units,
 * bandwidth. */
bool nib__line_is_int4(const nib_fact_source *line);
double nib__machine_rate(const nib_machine *m, int rate);

/* What is here: the CPU first, then other devices; lines about drivers that are not. */
typedef struct nib_machines_here {
    const nib_machine *items[1 + 16];
    size_t count;
    const char *missing;
} nib_machines_here;
/* The machines here (Markdown leaves them out) and the known ones, every fact with date and
 * source. */
void nib__devices_render(nib_form form, const nib_machines_here *here, const nib_machines *known,
                         nib_text *out);
/* One machine: in words, or its file as JSON. */
void nib__device_render(nib_form form, const nib_machine *m, nib_text *out);

/* cpuid and the operating system's word; the bits of NIB_FACT_ISA. */
int64_t nib__cpu_isa(void);
/* Of the last cache that a core reaches; 0: the system does not say. Not what sysconf has: on AMD's
 * processors that is the sum of all their last caches, of which a core uses one. */
int64_t nib__cpu_cache_bytes(const nib_allocator *a);
/* Bits up to and including the named level; an unknown name is NIB_USAGE, with the known ones.
 * Asking for a level that this CPU lacks is NIB_NOT_AS_ASKED. NULL: all. */
nib_status nib__cpu_isa_mask(int64_t *out, const char *level, nib_err *err);
const char *nib__cpu_isa_name(int64_t isa); /* of the highest level: "avx512vnni"; "ref" for none */

/* This machine with `isa` and `threads`; rates are cautious defaults until measured. */
void nib__machine_here(nib_machine *out, int64_t isa, int threads);
void nib__today(char out[16]); /* "2026-11-20" */
/* Measures read bandwidth and the arithmetic rates with the pool (about 0.3 s), or reads them from
 * cache_path where they were written for the same CPU, isa and threads. cache_path NULL: measures.
 * What was measured while others used the cores is not written. */
struct nib_pool;
nib_status nib__machine_measure(nib_machine *machine, struct nib_pool *pool, const char *cache_path,
                                const nib_allocator *a, nib_err *err);

/* Bytes per second that the pool reads from memory just now. */
nib_status nib__machine_read_rate(double *bytes_per_s, const nib_machine *machine,
                                  struct nib_pool *pool, const nib_allocator *a, nib_err *err);

/* ---- what was measured before, in one file: measured.c ---- */

/* Fills in what the file has of this machine (of a device: by this driver), products only of this
 * version's kernels. False: nothing. */
bool nib__measured_find(nib_machine *m, const char *driver, const char *path,
                        const nib_allocator *a);
/* Writes it there in place of what the file has. */
nib_status nib__measured_keep(const nib_machine *m, const char *driver, const char *path,
                              const nib_allocator *a, nib_err *err);

#endif
