/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory: the caller's allocator, arenas that are freed whole, and large aligned blocks for
 * weights. Nothing else in the library calls malloc.
 */
#ifndef NIB_MEMORY_H
#define NIB_MEMORY_H

#include "base.h"

/* The allocator in use; never NULL inside. nib__allocator_default() wraps malloc. */
nib_allocator nib__allocator_default(void);

/* Zeroed array; NULL when memory runs out or count * size overflows. */
void *nib__calloc(const nib_allocator *a, uint64_t count, uint64_t size);
/* Grows *array (elements of `size` bytes) so that at least `want` fit; doubles. False when memory
 * runs out. */
bool nib__reserve(const nib_allocator *a, void **array, size_t *capacity, size_t want, size_t size);
void nib__release(const nib_allocator *a, void *p);

/* ---- arena: many small pieces, one free ---- */

typedef struct nib_arena_block nib_arena_block;

typedef struct nib_arena {
    const nib_allocator *allocator;
    nib_arena_block *last;
    size_t used, size;   /* in the last block */
    size_t total, limit; /* bytes taken so far; limit 0: none */
} nib_arena;

void nib__arena_init(nib_arena *arena, const nib_allocator *a, size_t limit);
void nib__arena_free(nib_arena *arena);
/* Zeroed, aligned to 16 bytes; NULL: no memory, or over the limit. */
void *nib__arena_take(nib_arena *arena, uint64_t count, uint64_t size);
char *nib__arena_copy(nib_arena *arena, const char *text, size_t size); /* adds a NUL */
/* Moves a list that grew in an allocator into the arena; NULL: no memory. Frees the original either
 * way. */
void *nib__arena_settle(nib_arena *arena, const nib_allocator *a, void *list, size_t count,
                        size_t size);

/* ---- blocks: anonymous maps ---- */

/* Zeroed, page-aligned, in huge pages if the system has them; NULL when memory runs out. */
void *nib__block_take(uint64_t bytes);
void nib__block_free(void *p, uint64_t bytes);

/* Many smaller allocations from blocks large enough for huge pages, freed together: thousands of
 * weights that are read in turn would each wait for small pages otherwise. Starts as {0}. */
typedef struct nib_slab {
    struct nib_slab_block *last;
    uint64_t left; /* bytes of the last block */
} nib_slab;
enum { NIB_SLAB_MOST = 1 << 21 /* larger allocations have huge pages of their own */ };
/* Zeroed, aligned to 64 bytes; bytes: at most NIB_SLAB_MOST. NULL: no memory. */
void *nib__slab_take(nib_slab *slab, uint64_t bytes);
void nib__slab_free(nib_slab *slab);

/* ---- this process ---- */

/* Peak memory of this process. */
uint64_t nib__peak_bytes(void);
/* Resident memory of this process without file pages, such as its code; the peak if the system does
 * not say. */
uint64_t nib__resident_bytes(void);
/* The same for a process that will open no more files: a descriptor to read from at any time, which
 * close() closes; negative if the system has none. */
int nib__resident_open(void);
uint64_t nib__resident_read(int fd);

#endif
