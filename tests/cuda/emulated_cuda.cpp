/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 for tests, with one device, of sm_89 or EMULATED_CUDA_SM, in host memory. It runs
 * the library's programs through emulate.h, to check the driver code, the rows' launches and the
 * kernels' index arithmetic without a GPU. The programs are those of cuda_programs.txt, which
 * `tools/cuda_programs emulated` includes below.
 */
#include EMULATED_PROGRAMS

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <ucontext.h>

#include "cuda_api.h"

uint3e threadIdx, blockIdx, blockDim, gridDim;
unsigned char *emulated_shared, *emulated_window;
emulated_unit emulated_tensor;

namespace
{

/* ---- a block of threads ---- */

enum { STACK = 128 << 10 };

int sm()
{
    const char *as = getenv("EMULATED_CUDA_SM");
    return as != nullptr ? (int)strtol(as, nullptr, 10) : 89;
}

/* Bytes of shared memory per block (CUDA programming guide, compute capabilities). */
unsigned shared_most()
{
    const int of = sm();
    return of == 80 ? 163 << 10 : of == 90 || of / 10 == 10 ? 227 << 10 : 99 << 10;
}

struct pending {
    void *to;
    const void *from;
    size_t from_bytes, bytes;
};

struct thread {
    ucontext_t context; /* to start in */
    bool begun;
    jmp_buf here; /* to resume at, without the system call of a context switch */
    std::vector<std::vector<pending>> copies; /* groups; the last is open */
    emulated_products products;
    uint3e id;
    int waits;        /* the number of the barrier that it waits at; -1: none */
    bool done, spins; /* spins: waits for another warp */
};

struct warp_exchange {
    int come, generation;
    emulated_room rooms[2]; /* in turn, so that a fast lane does not overwrite */
};

jmp_buf scheduler;
std::vector<thread> threads;
std::vector<std::vector<unsigned char>> stacks; /* reused by all threads */
std::vector<warp_exchange> warps;
size_t current, live;
size_t barrier_come;
int barrier_generation;
const std::function<void(void **)> *running;
void **running_args;

void yield()
{
    if (_setjmp(threads[current].here) == 0)
        _longjmp(scheduler, 1);
}

/* Returns when the thread yields or ends. */
__attribute__((noinline)) void run_thread(thread &t)
{
    if (_setjmp(scheduler) != 0)
        return;
    if (t.begun)
        _longjmp(t.here, 1);
    t.begun = true;
    setcontext(&t.context);
}

void begin_thread()
{
    (*running)(running_args);
    threads[current].done = true;
    live--;
    if (barrier_come > 0 && barrier_come == live) /* the others no longer wait for this one */
        barrier_come = 0, barrier_generation++;
    _longjmp(scheduler, 1);
}

/* Runs a warp until all its lanes have ended or wait for other warps, as far ahead of these as
 * possible. */
void run_warp(size_t warp, bool backwards)
{
    const size_t first = 32 * warp, lanes = std::min<size_t>(32, threads.size() - first);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < lanes; i++) {
            current = first + (backwards ? lanes - 1 - i : i);
            thread &t = threads[current];
            if (t.done || t.waits == barrier_generation)
                continue;
            threadIdx = t.id;
            t.spins = false;
            run_thread(t);
            moved = moved || !t.spins;
        }
    }
}

void run_block(bool backwards)
{
    const size_t count = threads.size();
    live = count, barrier_come = 0;
    warps.assign((count + 31) / 32, {});
    while (stacks.size() < count)
        stacks.emplace_back(STACK);
    for (size_t i = 0; i < count; i++) {
        thread &t = threads[i];
        t.copies.assign(1, {});
        t.begun = t.done = false;
        t.waits = -1;
        t.id = {(uint)(i % blockDim.x), (uint)(i / blockDim.x % blockDim.y),
                (uint)(i / blockDim.x / blockDim.y)};
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = stacks[i].data();
        t.context.uc_stack.ss_size = STACK;
        makecontext(&t.context, begin_thread, 0);
    }
    while (live > 0)
        for (size_t i = 0; i < warps.size(); i++)
            run_warp(backwards ? warps.size() - 1 - i : i, backwards);
    emulated_unit_end();
}

struct function {
    std::string name;
    std::function<void(void **)> run;
};
typedef std::map<std::string, function> module_functions;

std::map<std::string, module_functions> &images()
{
    static std::map<std::string, module_functions> all;
    return all;
}

const char *failure = nullptr;

} // namespace

void emulated_function::add(const char *image, const char *name, std::function<void(void **)> run)
{
    images()[image][name] = {name, std::move(run)};
}

void emulated_block_barrier()
{
    const int now = barrier_generation;
    if (++barrier_come == live)
        barrier_come = 0, barrier_generation++;
    else
        while (barrier_generation == now) {
            threads[current].waits = now;
            yield();
        }
    threadIdx = threads[current].id;
}

emulated_room *emulated_warp_room()
{
    warp_exchange &w = warps[current / 32];
    return &w.rooms[w.generation % 2];
}

void emulated_warp_meet()
{
    const size_t lanes = std::min<size_t>(32, threads.size() - current / 32 * 32);
    warp_exchange &w = warps[current / 32];
    const int now = w.generation;
    if ((size_t)++w.come == lanes)
        w.come = 0, w.generation++;
    else
        while (w.generation == now)
            yield();
    threadIdx = threads[current].id;
}

void emulated_copy(void *to, const void *from, size_t from_bytes, size_t bytes)
{
    if ((uintptr_t)to % bytes != 0 || (from_bytes > 0 && (uintptr_t)from % bytes != 0))
        failure = "an asynchronous copy is not aligned";
    threads[current].copies.back().push_back({to, from, from_bytes, bytes});
}

void emulated_copy_commit() { threads[current].copies.push_back({}); }

void emulated_copy_wait(int groups_left)
{
    auto &copies = threads[current].copies;
    while ((int)copies.size() - 1 > groups_left) {
        for (const pending &p : copies.front()) {
            memset(p.to, 0, p.bytes);
            if (p.from_bytes > 0)
                memcpy(p.to, p.from, p.from_bytes);
        }
        copies.erase(copies.begin());
    }
}

/* ---- asynchronous units ---- */

void emulated_fail(const char *what) { failure = what; }
void emulated_yield()
{
    threads[current].spins = true;
    yield();
    threadIdx = threads[current].id;
}
emulated_products &emulated_own_products() { return threads[current].products; }

void emulated_unit_begin(bool is_late)
{
    emulated_tensor.is_late = is_late;
    memset(emulated_tensor.memory, 0xff, sizeof emulated_tensor.memory);
}

void emulated_unit_end()
{
    if (emulated_tensor.taken != 0)
        emulated_fail("tensor memory was not given back");
    if (!emulated_tensor.asked.empty())
        emulated_fail("what the unit was asked for is not waited for");
    for (const thread &t : threads)
        if (!t.products.asked.empty())
            emulated_fail("products are not waited for");
    emulated_tensor.asked.clear();
    emulated_tensor.taken = 0;
}

/* ---- the driver API ---- */

extern "C" {

/* The ends of the section with the kernels' static shared memory, as named by the linker. */
extern unsigned char __start_emulated_static[], __stop_emulated_static[];

#define API __attribute__((visibility("default"))) int

API cuInit(unsigned) { return 0; }
API cuDriverGetVersion(int *version)
{
    const char *as = getenv("EMULATED_CUDA_VERSION");
    *version = as != nullptr ? (int)strtol(as, nullptr, 10) : 13000;
    return 0;
}
API cuGetErrorString(int code, const char **text)
{
    *text = failure != nullptr ? failure : code == 2 ? "out of memory" : "an emulated error";
    return 0;
}
API cuDeviceGetCount(int *count) { return *count = 1, 0; }
API cuDeviceGet(int *device, int index) { return *device = index, 0; }
API cuDeviceGetName(char *name, int size, int)
{
    return snprintf(name, (size_t)size, "emulated on the CPU"), 0;
}
API cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = (size_t)1 << 30, 0; }
API cuDeviceGetAttribute(int *value, int attribute, int)
{
    *value = attribute == 75   ? sm() / 10
             : attribute == 76 ? sm() % 10
             : attribute == 13 ? 1000000
             : attribute == 36 ? 1000000
             : attribute == 37 ? 128
             : attribute == 16 ? 1
                               : 0;
    return 0;
}
API cuDevicePrimaryCtxRetain(void **context, int) { return *context = &threads, 0; }
API cuDevicePrimaryCtxRelease_v2(int) { return 0; }
API cuCtxSetCurrent(void *) { return 0; }
API cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    if (bytes > (size_t)1 << 30)
        return 2;
    void *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    *address = (uint64_t)(uintptr_t)at;
    return at != nullptr ? 0 : 2;
}
API cuMemFree_v2(uint64_t address) { return free((void *)(uintptr_t)address), 0; }
API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *)
{
    return memcpy((void *)to, from, bytes), 0;
}
API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *)
{
    return memcpy(to, (void *)from, bytes), 0;
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *)
{
    return memmove((void *)to, (void *)from, bytes), 0;
}
API cuModuleLoadData(void **module, const void *image)
{
    const auto at = images().find((const char *)image);
    if (at == images().end())
        return 200;
    *module = &at->second;
    return 0;
}
API cuModuleUnload(void *) { return 0; }
API cuModuleGetFunction(void **out, void *module, const char *name)
{
    auto &functions = *(module_functions *)module;
    const auto at = functions.find(name);
    if (at == functions.end())
        return 500;
    *out = &at->second;
    return 0;
}
API cuFuncSetAttribute(void *, int, int value) { return value > (int)shared_most() ? 1 : 0; }
API cuLaunchKernelEx(const cu_launch_config *how, void *f, void **args, void **)
{
    const unsigned shared = how->shared;
    const unsigned *const g = how->grid, *const b = how->block;
    enum { ALIGNED = 1024, OWN = 384 /* the kernel's static part comes first */ };
    enum { BEYOND = 8192 /* bytes after it that no block may write */ };
    static std::vector<unsigned char> room(EMULATED_WINDOW + ALIGNED + BEYOND);
    static unsigned launches;
    running = &((function *)f)->run;
    running_args = args;
    gridDim = {g[0], g[1], g[2]}, blockDim = {b[0], b[1], b[2]};
    threads.clear();
    threads.resize((size_t)b[0] * b[1] * b[2]);
    failure = nullptr;
    if (shared > shared_most() || threads.size() > 1024)
        return 1;
    emulated_window = (unsigned char *)(((uintptr_t)room.data() + ALIGNED - 1) / ALIGNED * ALIGNED);
    emulated_shared = emulated_window + OWN;
    const bool is_late = launches++ % 2 == 0;
    for (uint z = 0; z < g[2]; z++)
        for (uint y = 0; y < g[1]; y++)
            for (uint x = 0; x < g[0]; x++) {
                blockIdx = {x, y, z};
                memset(emulated_shared, 0xff, shared + BEYOND);
                memset(__start_emulated_static, 0xff,
                       (size_t)(__stop_emulated_static - __start_emulated_static));
                emulated_unit_begin(is_late);
                run_block((x + y) % 2 != 0);
                for (size_t i = 0; i < BEYOND; i++)
                    if (emulated_shared[shared + i] != 0xff)
                        failure = "a block wrote past its shared memory";
            }
    return failure != nullptr ? 719 : 0;
}
API cuStreamCreate(void **stream, unsigned) { return *stream = &threads, 0; }
API cuStreamDestroy_v2(void *) { return 0; }
API cuStreamSynchronize(void *) { return 0; }
API cuEventCreate(void **event, unsigned) { return *event = &threads, 0; }
API cuEventDestroy_v2(void *) { return 0; }
API cuEventRecord(void *, void *) { return 0; }
API cuEventQuery(void *) { return 0; }
}
