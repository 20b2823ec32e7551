/* SPDX-License-Identifier: Apache-2.0
 *
 * The default allocator, checked arrays over any allocator, arenas, and anonymous maps. The only
 * file that calls malloc.
 *
 * An arena is a chain of blocks, newest first; pieces are cut from the newest. A large piece that
 * does not fit there gets a block of its own, inserted after the newest, so that the rest of the
 * newest stays in use.
 */
#include "memory.h"

#include <stdlib.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Under ASan each arena piece is its own allocation, so that a write past its end is detected. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ONE_PIECE_PER_BLOCK true
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ONE_PIECE_PER_BLOCK true
#endif
#ifndef ONE_PIECE_PER_BLOCK
#define ONE_PIECE_PER_BLOCK false
#endif

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

enum {
    ALIGN = 16,
    FIRST_BLOCK = 4096,
    LARGEST_BLOCK = 1 << 20,
    HUGE_PAGE = 2 << 20, /* of x86-64 and of aarch64 with 4 KiB pages */
};

static void *default_resize(void *ctx, void *old, size_t size)
{
    (void)ctx;
    if (size == 0) {
        free(old);
        return NULL;
    }
    return realloc(old, size);
}

nib_allocator nib__allocator_default(void) { return (nib_allocator){default_resize, NULL}; }

void *nib__calloc(const nib_allocator *a, uint64_t count, uint64_t size)
{
    if (size != 0 && count > SIZE_MAX / size)
        return NULL;
    size_t bytes = (size_t)(count * size);
    if (bytes == 0)
        bytes = 1; /* so that NULL always means failure */
    void *p = a->resize(a->ctx, NULL, bytes);
    if (p != NULL)
        memset(p, 0, bytes);
    return p;
}

bool nib__reserve(const nib_allocator *a, void **array, size_t *capacity, size_t want, size_t size)
{
    if (want <= *capacity)
        return true;
    const size_t most = SIZE_MAX / 2 / (size == 0 ? 1 : size);
    if (want > most)
        return false;
    size_t count = *capacity < 8 ? 8 : *capacity > most / 2 ? most : 2 * *capacity;
    if (count > most)
        count = most;
    if (count < want)
        count = want;
    /* *array is really a pointer of another type: copying its bytes breaks no aliasing rule. */
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = a->resize(a->ctx, old, count * (size == 0 ? 1 : size));
    if (grown == NULL)
        return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = count;
    return true;
}

void nib__release(const nib_allocator *a, void *p)
{
    if (p != NULL)
        a->resize(a->ctx, p, 0);
}

/* ---- arena ---- */

struct nib_arena_block {
    _Alignas(ALIGN) nib_arena_block *previous;
    /* the pieces follow */
};

void nib__arena_init(nib_arena *arena, const nib_allocator *a, size_t limit)
{
    *arena = (nib_arena){.allocator = a, .limit = limit};
}

void nib__arena_free(nib_arena *arena)
{
    nib_arena_block *block = arena->last;
    while (block != NULL) {
        nib_arena_block *previous = block->previous;
        nib__release(arena->allocator, block);
        block = previous;
    }
    nib__arena_init(arena, arena->allocator, arena->limit);
}

static nib_arena_block *block_make(const nib_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    return arena->allocator->resize(arena->allocator->ctx, NULL, sizeof(nib_arena_block) + bytes);
}

/* A block for one piece, inserted after the newest. */
static void *allocate_alone(nib_arena *arena, size_t bytes)
{
    nib_arena_block *block = block_make(arena, bytes);
    if (block == NULL)
        return NULL;
    if (arena->last == NULL) {
        block->previous = NULL;
        arena->last = block;
        arena->used = arena->size = 0;
    } else {
        block->previous = arena->last->previous;
        arena->last->previous = block;
    }
    return block + 1;
}

static void *allocate_shared(nib_arena *arena, size_t bytes)
{
    if (bytes > arena->size - arena->used) {
        size_t size = arena->size == 0 ? FIRST_BLOCK : 2 * arena->size;
        if (size > LARGEST_BLOCK)
            size = LARGEST_BLOCK;
        nib_arena_block *block = block_make(arena, size);
        if (block == NULL)
            return NULL;
        block->previous = arena->last;
        arena->last = block;
        arena->used = 0;
        arena->size = size;
    }
    char *piece = (char *)(arena->last + 1) + arena->used;
    arena->used += bytes;
    return piece;
}

void *nib__arena_take(nib_arena *arena, uint64_t count, uint64_t size)
{
    if (size != 0 && count > (SIZE_MAX / 2) / size)
        return NULL;
    const size_t exact = count * size == 0 ? 1 : (size_t)(count * size);
    const size_t rounded = (exact + ALIGN - 1) / ALIGN * ALIGN;
    if (arena->limit != 0 && (arena->total > arena->limit || rounded > arena->limit - arena->total))
        return NULL;
    const bool fits = rounded <= arena->size - arena->used;
    void *piece;
    if (ONE_PIECE_PER_BLOCK || (!fits && rounded > FIRST_BLOCK / 4))
        piece = allocate_alone(arena, exact);
    else
        piece = allocate_shared(arena, rounded);
    if (piece == NULL)
        return NULL;
    arena->total += rounded;
    memset(piece, 0, exact);
    return piece;
}

char *nib__arena_copy(nib_arena *arena, const char *text, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    char *copy = nib__arena_take(arena, size + 1, 1);
    if (copy != NULL && size != 0)
        memcpy(copy, text, size);
    return copy;
}

void *nib__arena_settle(nib_arena *arena, const nib_allocator *a, void *list, size_t count,
                        size_t size)
{
    void *kept = nib__arena_take(arena, count, size);
    if (kept != NULL && count != 0)
        memcpy(kept, list, count * size);
    nib__release(a, list);
    return kept;
}

/* ---- blocks ---- */

static size_t whole_pages(size_t bytes)
{
    const long known = sysconf(_SC_PAGESIZE);
    const size_t page = known > 0 ? (size_t)known : 4096;
    return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

void *nib__block_take(uint64_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    const size_t size = whole_pages((size_t)bytes);
    /* Large blocks start at a huge-page boundary; the rest of the mapping is unmapped. */
    const size_t extra = size >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *base =
        mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (extra == 0)
        return base;
    const size_t before = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    if (before != 0)
        munmap(base, before);
    if (extra != before)
        munmap(base + before + size, extra - before);
#if defined(MADV_HUGEPAGE)
    /* A hint: if it is refused, small pages do. */
    (void)madvise(base + before, size, MADV_HUGEPAGE);
#endif
    return base + before;
}

void nib__block_free(void *p, uint64_t bytes)
{
    if (p != NULL)
        munmap(p, whole_pages((size_t)bytes));
}

/* ---- slabs ---- */

enum { SLAB_BYTES = 32 << 20, SLAB_HEAD = 64 };

/* The first SLAB_HEAD bytes of a block; the rest is handed out from the front. */
struct nib_slab_block {
    struct nib_slab_block *previous;
};

void *nib__slab_take(nib_slab *s, uint64_t bytes)
{
    const uint64_t size = (bytes + 63) & ~UINT64_C(63);
    if (s->last == NULL || s->left < size) {
        struct nib_slab_block *block = nib__block_take(SLAB_BYTES);
        if (block == NULL)
            return NULL;
        block->previous = s->last;
        s->last = block;
        s->left = SLAB_BYTES - SLAB_HEAD;
    }
    char *at = (char *)s->last + SLAB_BYTES - s->left;
    s->left -= size;
    return at;
}

void nib__slab_free(nib_slab *s)
{
    while (s->last != NULL) {
        struct nib_slab_block *previous = s->last->previous;
        nib__block_free(s->last, SLAB_BYTES);
        s->last = previous;
    }
    s->left = 0;
}

/* ---- this process ---- */

uint64_t nib__peak_bytes(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
#ifdef __APPLE__
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024; /* Linux counts KiB */
#endif
}

int nib__resident_open(void) { return open("/proc/self/statm", O_RDONLY | O_CLOEXEC); }

uint64_t nib__resident_read(int fd)
{
    char text[128];
    char *at = text;
    const ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (size <= 0)
        return nib__peak_bytes();
    text[size] = '\0';
    strtoull(at, &at, 10); /* pages of address space, then resident ones, then those of files */
    const uint64_t resident = strtoull(at, &at, 10), of_files = strtoull(at, NULL, 10);
    return (resident > of_files ? resident - of_files : 0) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t nib__resident_bytes(void)
{
    const int fd = nib__resident_open();
    const uint64_t bytes = nib__resident_read(fd);
    if (fd >= 0)
        close(fd);
    return bytes;
}
