/* SPDX-License-Identifier: Apache-2.0
 *
 * Code shared by all drivers: loading libraries, the list of devices, and addressed memory.
 */
#include "gpu.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <unistd.h>

static const nib_gpu_driver *const drivers[] = {&nib__driver_cuda, &nib__driver_opencl};

const nib_gpu_driver *nib__gpu_driver_at(size_t i)
{
    return i < COUNT(drivers) ? drivers[i] : NULL;
}

size_t nib__gpus_find(nib_gpu_found out[NIB_GPUS_MAX], nib_text *why)
{
    size_t count = 0;
    for (size_t i = 0; i < COUNT(drivers); i++)
        drivers[i]->find(out, &count, why);
    for (size_t i = 0; i < count; i++)
        out[i].machine.name = out[i].name, out[i].machine.title = out[i].title;
    return count;
}

bool nib__gpu_load_library(const char *library, const char *const *names, size_t count,
                           void *functions, const char **lacking)
{
    /* never unloaded: devices that were found and opened belong to the library */
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    *lacking = NULL;
    if (handle == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        void *at = dlsym(handle, names[i]);
        /* ISO C has no cast from an object pointer to a function pointer */
        memcpy((char *)functions + i * sizeof at, &at, sizeof at);
        *lacking = at == NULL ? names[i] : *lacking;
    }
    return *lacking == NULL;
}

/* ---- opening ---- */

/* The first address: far from any that a process uses, so that a stray access faults. */
#define FIRST_ADDRESS (UINT64_C(1) << 60)
enum { PIECE_ALIGN = 4096 };

nib_status nib__gpu_open(nib_gpu **out, const nib_gpu_found *found, double limit_s,
                         const nib_allocator *a, nib_err *err)
{
    if (UINTPTR_MAX < FIRST_ADDRESS)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: a 32-bit program cannot address its memory; build Nibble for 64 bits",
                         found->name);
    nib_gpu *gpu = nib__calloc(a, 1, sizeof *gpu);
    if (gpu == NULL)
        return nib__fail_memory(err, sizeof *gpu, "a device");
    *gpu = (nib_gpu){.found = found,
                     .allocator = a,
                     .limit_s = limit_s,
                     .process = getpid(),
                     .next = FIRST_ADDRESS};
    const nib_status status = found->driver->open(gpu, err);
    if (status != NIB_OK) {
        nib__gpu_close(gpu);
        return nib__fail_in(err, status, found->name);
    }
    *out = gpu;
    return NIB_OK;
}

void nib__gpu_close(nib_gpu *gpu)
{
    if (gpu == NULL)
        return;
    const nib_allocator *a = gpu->allocator;
    const bool own = gpu->process == getpid();
    if (own)
        nib__gpu_forget_launches(gpu);
    for (size_t i = 0; i < gpu->count && own; i++)
        gpu->found->driver->release(gpu, gpu->pieces[i].handle);
    if (own)
        gpu->found->driver->close(gpu);
    nib__release(a, gpu->pieces);
    nib__release(a, gpu);
}

/* ---- memory ---- */

/* The number of allocations that begin at or before the address. */
static size_t count_pieces_before(const nib_gpu *gpu, uint64_t address)
{
    size_t low = 0, high = gpu->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (gpu->pieces[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const nib_gpu_piece *nib__gpu_piece(const nib_gpu *gpu, const void *address)
{
    const uint64_t at = (uint64_t)(uintptr_t)address;
    const size_t before = count_pieces_before(gpu, at);
    if (before == 0)
        return NULL;
    const nib_gpu_piece *piece = &gpu->pieces[before - 1];
    return at - piece->address < piece->bytes ? piece : NULL;
}

void nib__gpu_limit(nib_gpu *gpu, uint64_t bytes) { gpu->most = bytes; }

static nib_status allocate(nib_gpu *gpu, uint64_t bytes, const char *what, uint64_t *handle,
                           nib_err *err)
{
    char asked[32], held[32], all[32];
    const bool is_over = gpu->most != 0 && (bytes > gpu->most || gpu->held > gpu->most - bytes);
    const nib_status status =
        is_over ? NIB_NO_MEMORY : gpu->found->driver->allocate(gpu, bytes, handle, err);
    if (status != NIB_NO_MEMORY)
        return status;
    return nib__fail(
        err, NIB_NO_MEMORY, "%s is out of memory: %s of %s are in use; cannot allocate %s for %s",
        gpu->found->name, nib__format_bytes(held, gpu->held),
        nib__format_bytes(all, gpu->most != 0 ? gpu->most : gpu->found->machine.memory),
        nib__format_bytes(asked, bytes), what);
}

static nib_status add_piece(nib_gpu *gpu, uint64_t address, uint64_t bytes, const char *what,
                            nib_err *err)
{
    void *pieces = gpu->pieces;
    uint64_t handle = 0;
    if (!nib__reserve(gpu->allocator, &pieces, &gpu->capacity, gpu->count + 1, sizeof *gpu->pieces))
        return nib__fail_memory(err, (gpu->count + 1) * sizeof *gpu->pieces,
                                "the list of device memory");
    gpu->pieces = pieces;
    NIB_TRY(allocate(gpu, bytes, what, &handle, err));
    const size_t at = count_pieces_before(gpu, address);
    memmove(&gpu->pieces[at + 1], &gpu->pieces[at], (gpu->count - at) * sizeof *gpu->pieces);
    gpu->pieces[at] = (nib_gpu_piece){.address = address, .bytes = bytes, .handle = handle};
    gpu->count++;
    gpu->held += bytes;
    return NIB_OK;
}

nib_status nib__gpu_alloc(nib_gpu *gpu, uint64_t bytes, const char *what, void **address,
                          nib_err *err)
{
    const uint64_t at = gpu->next, wanted = bytes == 0 ? 1 : bytes;
    NIB_TRY(add_piece(gpu, at, wanted, what, err));
    gpu->next += (wanted + 2 * PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN; /* leaves a gap */
    *address = (void *)(uintptr_t)at;
    return NIB_OK;
}

nib_status nib__gpu_shadow(nib_gpu *gpu, void *host, uint64_t bytes, nib_err *err)
{
    return add_piece(gpu, (uint64_t)(uintptr_t)host, bytes, "a copy of the host's memory", err);
}

void nib__gpu_free(nib_gpu *gpu, void *address)
{
    const nib_gpu_piece *piece = nib__gpu_piece(gpu, address);
    if (piece == NULL || gpu->process != getpid())
        return;
    const size_t at = (size_t)(piece - gpu->pieces);
    gpu->found->driver->release(gpu, piece->handle);
    gpu->held -= piece->bytes;
    gpu->count--;
    memmove(&gpu->pieces[at], &gpu->pieces[at + 1], (gpu->count - at) * sizeof *gpu->pieces);
}

uint64_t nib__gpu_held(const nib_gpu *gpu) { return gpu->held; }

/* Finds the allocation that holds `bytes` at the address, and their offset in it. */
static nib_status locate(const nib_gpu *gpu, const void *address, uint64_t bytes,
                         const nib_gpu_piece **piece, uint64_t *at, nib_err *err)
{
    *piece = nib__gpu_piece(gpu, address);
    *at = *piece != NULL ? (uint64_t)(uintptr_t)address - (*piece)->address : 0;
    if (*piece == NULL || bytes > (*piece)->bytes - *at)
        return nib__fail(err, NIB_FAILED, "%s: %" PRIu64 " bytes at %p are not device memory",
                         gpu->found->name, bytes, address);
    return NIB_OK;
}

nib_status nib__gpu_write(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err)
{
    const nib_gpu_piece *piece;
    uint64_t at;
    NIB_TRY(locate(gpu, to, bytes, &piece, &at, err));
    return gpu->found->driver->write(gpu, piece->handle, at, from, bytes, err);
}

nib_status nib__gpu_read(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err)
{
    const nib_gpu_piece *piece;
    uint64_t at;
    NIB_TRY(locate(gpu, from, bytes, &piece, &at, err));
    return gpu->found->driver->read(gpu, piece->handle, at, to, bytes, err);
}

nib_status nib__gpu_copy(nib_gpu *gpu, void *to, const void *from, uint64_t bytes, nib_err *err)
{
    const nib_gpu_piece *source, *target;
    uint64_t source_at, target_at;
    NIB_TRY(locate(gpu, from, bytes, &source, &source_at, err));
    NIB_TRY(locate(gpu, to, bytes, &target, &target_at, err));
    NIB_TRY(gpu->found->driver->copy(gpu, target->handle, target_at, source->handle, source_at,
                                     bytes, err));
    return nib__gpu_launched(gpu, "a copy", err);
}
