/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA through the driver's own library, loaded at run time: devices and their facts, memory,
 * programs out of the library's fat binaries, launches in order on one stream. Nothing is compiled
 * on the device but what the driver makes of PTX for a device newer than the fat binary.
 */
#include "cuda_api.h"
#include "cuda_programs.h"
#include "gpu.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define LIBRARY "libcuda.so.1"

/* ---- the library ---- */

typedef struct library {
    void *handle;
#define POINTER(result, name, arguments) result(*name) arguments;
    NIB_CUDA_FUNCTIONS(POINTER)
#undef POINTER
} library;

/* False: there is no such library, or it lacks a function, whose name is then in *lacking. */
static bool load(library *l, const char **lacking)
{
    *lacking = NULL;
    *l = (library){.handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (l->handle == NULL)
        return false;
#define LOOK_UP(result, name, arguments)                                                           \
    {                                                                                              \
        void *at = dlsym(l->handle, #name);                                                        \
        memcpy(&l->name, &at, sizeof at); /* ISO C has no cast from data to a function */          \
        *lacking = at == NULL ? #name : *lacking;                                                  \
    }
    NIB_CUDA_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    return *lacking == NULL;
}

static nib_status failed(const library *l, nib_err *err, const char *what, cu_result code)
{
    const char *text = NULL;
    if (l->cuGetErrorString(code, &text) != CU_SUCCESS || text == NULL)
        text = "an error that the driver has no words for";
    return nib__fail(err, NIB_FAILED, "%s: %s (CUDA's %d)", what, text, code);
}

/* ---- finding devices ---- */

static double attribute(const library *l, cu_device device, int which)
{
    int value = 0;
    return l->cuDeviceGetAttribute(&value, which, device) == CU_SUCCESS ? (double)value : 0;
}

/* Rates by the clocks and units that the device says it has, until it is measured. */
static void published_rates(const library *l, cu_device device, nib_machine *m)
{
    const int64_t sm = m->facts.fact[NIB_FACT_SM];
    const double units = attribute(l, device, CU_ATTRIBUTE_MULTIPROCESSORS);
    const double clock = 1e3 * attribute(l, device, CU_ATTRIBUTE_CLOCK_KHZ);
    /* multiply-adds of a multiprocessor in a clock; a matrix unit's are multiples of 16-bit ones */
    const double lanes = sm == 80 ? 64 : 128;
    const double matrix = sm == 80 || sm == 90 || sm / 10 == 10 ? (sm >= 90 ? 2048 : 1024) : 512;
    const double rate = 2 * units * clock;
    m->rate[NIB_UNIT_F32] = m->rate[NIB_UNIT_SCALAR] = rate * lanes;
    m->rate[NIB_UNIT_BF16] = sm >= 80 ? rate * matrix : 0;
    m->rate[NIB_UNIT_I8] = sm >= 80 ? rate * matrix * 2 : 0;
    m->rate[NIB_UNIT_FP8] = m->facts.fact[NIB_FACT_FP8_UNIT] != 0 ? rate * matrix * 2 : 0;
    m->rate[NIB_UNIT_MX8] = m->facts.fact[NIB_FACT_MX_UNIT] != 0 ? rate * matrix * 2 : 0;
    m->bytes_per_s = 2e3 * attribute(l, device, CU_ATTRIBUTE_MEMORY_CLOCK_KHZ) *
                     attribute(l, device, CU_ATTRIBUTE_MEMORY_BUS_BITS) / 8;
    if (m->bytes_per_s <= 0) /* newer devices do not say */
        m->bytes_per_s = 200e9;
    m->launch_s = 4e-6;
}

static void describe(const library *l, cu_device device, size_t index, int version,
                     nib_gpu_found *out)
{
    size_t memory = 0;
    nib_machine *m = &out->machine;
    if (l->cuDeviceGetName(out->title, (int)sizeof out->title, device) != CU_SUCCESS)
        out->title[0] = 0;
    out->title[sizeof out->title - 1] = 0;
    snprintf(out->driver_version, sizeof out->driver_version, "CUDA %d.%d", version / 1000,
             version % 1000 / 10);
    if (index == 0)
        snprintf(out->name, sizeof out->name, "cuda");
    else
        snprintf(out->name, sizeof out->name, "cuda:%zu", index);
    if (l->cuDeviceTotalMem_v2(&memory, device) != CU_SUCCESS)
        memory = 0;
    *m = (nib_machine){.here = true, .memory = memory};
    int64_t *fact = m->facts.fact;
    const int64_t sm = (int64_t)(10 * attribute(l, device, CU_ATTRIBUTE_CAPABILITY_MAJOR) +
                                 attribute(l, device, CU_ATTRIBUTE_CAPABILITY_MINOR));
    fact[NIB_FACT_DEVICE] = NIB_DEVICE_CUDA;
    fact[NIB_FACT_MAKER] = NIB_MAKER_NVIDIA;
    fact[NIB_FACT_SM] = sm;
    fact[NIB_FACT_DOT8] = sm >= 61;
    fact[NIB_FACT_DOT4] = sm >= 75 && sm < 90; /* left out of the matrix units since */
    fact[NIB_FACT_MATRIX_UNIT] = sm >= 70;
    fact[NIB_FACT_FP8_UNIT] = sm >= 89;
    fact[NIB_FACT_MX_UNIT] = sm >= 100;
    fact[NIB_FACT_SUBGROUPS] = 1;
    fact[NIB_FACT_DRIVER] = version;
    published_rates(l, device, m);
}

/* The library stays loaded: a context of it may be in use. */
static void find(nib_gpu_found *out, size_t *count, nib_text *why)
{
    library l;
    const char *lacking;
    int devices = 0, version = 0;
    if (!load(&l, &lacking)) {
        if (lacking == NULL)
            nib__text_str(why, "CUDA: " LIBRARY " is not here; install NVIDIA's driver\n");
        else
            nib__text_format(why, "CUDA: " LIBRARY " has no %s; install a newer driver\n", lacking);
        return;
    }
    const cu_result code = l.cuInit(0);
    if (code != CU_SUCCESS || l.cuDriverGetVersion(&version) != CU_SUCCESS ||
        l.cuDeviceGetCount(&devices) != CU_SUCCESS || devices == 0) {
        const char *text = NULL;
        l.cuGetErrorString(code != CU_SUCCESS ? code : CU_ERROR_NO_DEVICE, &text);
        nib__text_format(why, "CUDA: " LIBRARY " is here, but no device: %s\n",
                         text != NULL ? text : "no reason is given");
        return;
    }
    for (int i = 0; i < devices && *count < NIB_GPUS_MAX; i++) {
        cu_device device;
        if (l.cuDeviceGet(&device, i) != CU_SUCCESS)
            continue;
        nib_gpu_found *found = &out[(*count)++];
        *found = (nib_gpu_found){.driver = &nib__driver_cuda};
        found->ids[0] = (void *)(intptr_t)device;
        describe(&l, device, (size_t)i, version, found);
    }
}

/* ---- opening ---- */

enum {
    BATCH = 16,   /* launches under one event */
    BATCHES = 32, /* that are remembered, to name those that hang */
};

/* A program that was loaded, or a function of it. */
typedef struct loaded {
    const nib_cuda_program *program;
    const char *name; /* of the function; NULL: the program */
    cu_module module;
    cu_function function;
    int32_t shared; /* the most that was asked for */
} loaded;

typedef struct batch {
    cu_event event;
    const char *first, *last; /* functions */
} batch;

typedef struct state {
    library l;
    cu_device device;
    cu_context context;
    cu_stream stream;
    loaded *loaded;
    size_t count, capacity;
    batch batches[BATCHES]; /* a ring; the event is made once for each place */
    size_t first, held;
    const char *begun; /* the first function that was launched since the last event; NULL: none */
    const char *last;
    int since; /* their number */
} state;

/* A context is current in a thread; calls may come from any. */
static nib_status enter(nib_gpu *gpu, nib_err *err)
{
    state *s = gpu->state;
    const cu_result code = s->l.cuCtxSetCurrent(s->context);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "the context", code);
}

static nib_status check_driver(const state *s, nib_err *err)
{
    int version = 0;
    if (nib__cuda_toolkit == 0)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "this program has no kernels for CUDA; build it with make CUDA=1 where "
                         "nvcc is");
    if (s->l.cuDriverGetVersion(&version) != CU_SUCCESS)
        version = 0;
    if (version / 1000 < nib__cuda_toolkit / 1000)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the driver is of CUDA %d.%d, and the kernels were compiled by %d.%d, "
                         "which asks for %d.0 or later; update the driver or build with its nvcc",
                         version / 1000, version % 1000 / 10, nib__cuda_toolkit / 1000,
                         nib__cuda_toolkit % 1000 / 10, nib__cuda_toolkit / 1000);
    return NIB_OK;
}

static nib_status open_device(nib_gpu *gpu, nib_err *err)
{
    const char *lacking;
    state *s = nib__calloc(gpu->allocator, 1, sizeof *s);
    if (s == NULL)
        return nib__fail_memory(err, sizeof *s, "a device of CUDA");
    gpu->state = s;
    if (!load(&s->l, &lacking))
        return nib__fail(err, NIB_NOT_AS_ASKED, LIBRARY " is not here any more");
    NIB_TRY(check_driver(s, err));
    s->device = (cu_device)(intptr_t)gpu->found->ids[0];
    cu_result code = s->l.cuInit(0);
    if (code == CU_SUCCESS)
        code = s->l.cuDevicePrimaryCtxRetain(&s->context, s->device);
    if (code != CU_SUCCESS)
        return failed(&s->l, err, "a context", code);
    NIB_TRY(enter(gpu, err));
    code = s->l.cuStreamCreate(&s->stream, CU_STREAM_ALONE);
    for (size_t i = 0; code == CU_SUCCESS && i < BATCHES; i++)
        code = s->l.cuEventCreate(&s->batches[i].event, CU_EVENT_WITHOUT_TIME);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a stream", code);
}

static void close_device(nib_gpu *gpu)
{
    state *s = gpu->state;
    if (s == NULL)
        return;
    if (s->context != NULL && s->l.cuCtxSetCurrent(s->context) == CU_SUCCESS) {
        for (size_t i = 0; i < s->count; i++)
            if (s->loaded[i].name == NULL)
                s->l.cuModuleUnload(s->loaded[i].module);
        for (size_t i = 0; i < BATCHES; i++)
            if (s->batches[i].event != NULL)
                s->l.cuEventDestroy_v2(s->batches[i].event);
        if (s->stream != NULL)
            s->l.cuStreamDestroy_v2(s->stream);
        s->l.cuCtxSetCurrent(NULL);
    }
    if (s->context != NULL)
        s->l.cuDevicePrimaryCtxRelease_v2(s->device);
    nib__release(gpu->allocator, s->loaded);
    nib__release(gpu->allocator, s);
    gpu->state = NULL;
}

/* ---- waiting ---- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *say_batch(char out[128], const batch *b)
{
    if (strcmp(b->first, b->last) == 0)
        snprintf(out, 128, "%s", b->first);
    else
        snprintf(out, 128, "one of %d launches from %s to %s", BATCH, b->first, b->last);
    return out;
}

/* Waits for the oldest batch that is remembered. A driver's own wait has no limit. */
static nib_status wait_oldest(nib_gpu *gpu, nib_err *err)
{
    enum { SPIN_MS = 2 };
    state *s = gpu->state;
    const batch *oldest = &s->batches[s->first];
    const double begun = seconds_now();
    char name[128];
    for (;;) {
        const cu_result code = s->l.cuEventQuery(oldest->event);
        if (code == CU_SUCCESS)
            break;
        if (code != CU_ERROR_NOT_READY)
            return failed(&s->l, err, say_batch(name, oldest), code);
        const double waited = seconds_now() - begun;
        if (waited > gpu->limit_s)
            return nib__fail(err, NIB_FAILED,
                             "%s: %s did not return in %.0f s; the device hangs, or is far slower "
                             "than its facts say",
                             gpu->found->name, say_batch(name, oldest), gpu->limit_s);
        if (waited * 1e3 < SPIN_MS) /* a sleep lasts longer than most launches */
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    s->first = (s->first + 1) % BATCHES;
    s->held--;
    return NIB_OK;
}

/* An event after what was launched since the last one. */
static nib_status end_batch(nib_gpu *gpu, nib_err *err)
{
    state *s = gpu->state;
    if (s->begun == NULL)
        return NIB_OK;
    if (s->held == BATCHES)
        NIB_TRY(wait_oldest(gpu, err));
    batch *b = &s->batches[(s->first + s->held) % BATCHES];
    const cu_result code = s->l.cuEventRecord(b->event, s->stream);
    if (code != CU_SUCCESS)
        return failed(&s->l, err, s->last, code);
    b->first = s->begun, b->last = s->last;
    s->held++;
    s->begun = NULL, s->since = 0;
    return NIB_OK;
}

static nib_status finish(nib_gpu *gpu, nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(enter(gpu, err));
    NIB_TRY(end_batch(gpu, err));
    while (s->held > 0)
        NIB_TRY(wait_oldest(gpu, err));
    return NIB_OK;
}

/* ---- memory: a handle is the address on the device ---- */

static nib_status take(nib_gpu *gpu, uint64_t bytes, uint64_t *handle, nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(enter(gpu, err));
    const cu_result code = s->l.cuMemAlloc_v2(handle, (size_t)bytes);
    if (code == CU_ERROR_OUT_OF_MEMORY)
        return NIB_NO_MEMORY;
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "memory", code);
}

/* The driver waits for launches that may still use it. */
static void give(nib_gpu *gpu, uint64_t handle)
{
    state *s = gpu->state;
    if (enter(gpu, NULL) == NIB_OK)
        s->l.cuMemFree_v2(handle);
}

static nib_status write(nib_gpu *gpu, uint64_t handle, uint64_t at, const void *from,
                        uint64_t bytes, nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(enter(gpu, err));
    /* of memory that is not pinned, the driver has taken a copy when the call returns */
    const cu_result code = s->l.cuMemcpyHtoDAsync_v2(handle + at, from, (size_t)bytes, s->stream);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a copy to the device", code);
}

static nib_status read(nib_gpu *gpu, uint64_t handle, uint64_t at, void *to, uint64_t bytes,
                       nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(finish(gpu, err)); /* with a limit, unlike the driver's wait */
    cu_result code = s->l.cuMemcpyDtoHAsync_v2(to, handle + at, (size_t)bytes, s->stream);
    if (code == CU_SUCCESS)
        code = s->l.cuStreamSynchronize(s->stream);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a copy from the device", code);
}

static nib_status copy(nib_gpu *gpu, uint64_t to, uint64_t to_at, uint64_t from, uint64_t from_at,
                       uint64_t bytes, nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(enter(gpu, err));
    const cu_result code =
        s->l.cuMemcpyDtoDAsync_v2(to + to_at, from + from_at, (size_t)bytes, s->stream);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a copy on the device", code);
}

/* ---- programs ---- */

static nib_status add_loaded(nib_gpu *gpu, const loaded *one, nib_err *err)
{
    state *s = gpu->state;
    void *list = s->loaded;
    if (!nib__reserve(gpu->allocator, &list, &s->capacity, s->count + 1, sizeof *s->loaded))
        return nib__fail_memory(err, (s->count + 1) * sizeof *s->loaded, "loaded functions");
    s->loaded = list;
    s->loaded[s->count++] = *one;
    return NIB_OK;
}

static const nib_cuda_program *program_of(const char *source, const char *options)
{
    const nib_cuda_program *p = nib__cuda_programs;
    while (p->source != NULL &&
           (strcmp(p->source, source) != 0 || strcmp(p->options, options) != 0))
        p++;
    return p->source != NULL ? p : NULL;
}

static nib_status load_program(nib_gpu *gpu, loaded *one, nib_err *err)
{
    state *s = gpu->state;
    const cu_result code = s->l.cuModuleLoadData(&one->module, one->program->image);
    if (code != CU_SUCCESS)
        return failed(&s->l, err, one->program->source, code);
    const nib_status status = add_loaded(gpu, one, err);
    if (status != NIB_OK)
        s->l.cuModuleUnload(one->module);
    return status;
}

static nib_status load_function(nib_gpu *gpu, loaded *one, const nib_launch *launch, nib_err *err)
{
    state *s = gpu->state;
    one->name = launch->function;
    one->shared = launch->shared;
    cu_result code = s->l.cuModuleGetFunction(&one->function, one->module, one->name);
    if (code == CU_SUCCESS && one->shared > 0)
        code = s->l.cuFuncSetAttribute(one->function, CU_FUNCTION_MOST_DYNAMIC_SHARED, one->shared);
    return code == CU_SUCCESS ? add_loaded(gpu, one, err) : failed(&s->l, err, one->name, code);
}

static nib_status prepare(nib_gpu *gpu, const nib_gpu_code *code, const nib_launch *launch,
                          void **function, nib_err *err)
{
    state *s = gpu->state;
    loaded one = {.program = NULL};
    for (size_t i = 0; i < s->count; i++) {
        const loaded *have = &s->loaded[i];
        if (strcmp(have->program->source, code->source->name) != 0 ||
            strcmp(have->program->options, launch->options) != 0)
            continue;
        if (have->name != NULL && strcmp(have->name, launch->function) == 0 &&
            have->shared >= launch->shared) {
            *function = have->function;
            return NIB_OK;
        }
        one.program = have->program, one.module = have->module;
    }
    NIB_TRY(enter(gpu, err));
    if (one.program == NULL) {
        one.program = program_of(code->source->name, launch->options);
        if (one.program == NULL)
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "%s with %s is not among the programs for CUDA; add its line to "
                             "cuda_programs.txt",
                             code->source->name, launch->options);
        NIB_TRY(load_program(gpu, &one, err));
    }
    NIB_TRY(load_function(gpu, &one, launch, err));
    *function = one.function;
    return NIB_OK;
}

/* ---- launching ---- */

/* What an argument points to when it is given to the driver. */
typedef union value {
    cu_address address;
    int32_t integer;
    float number;
} value;

static nib_status set_args(nib_gpu *gpu, const nib_launch *launch, value *values, void **at,
                           nib_err *err)
{
    for (int i = 0; i < launch->count; i++) {
        const nib_launch_arg *arg = &launch->args[i];
        at[i] = &values[i];
        if (arg->kind == NIB_LAUNCH_INT) {
            values[i].integer = arg->value.integer;
        } else if (arg->kind == NIB_LAUNCH_FLOAT) {
            values[i].number = arg->value.number;
        } else {
            const nib_gpu_piece *piece = nib__gpu_piece(gpu, arg->value.memory);
            if (piece == NULL && arg->value.memory != NULL)
                return nib__fail(err, NIB_FAILED, "%s: argument %d is no memory of %s",
                                 launch->function, i, gpu->found->name);
            values[i].address =
                piece == NULL
                    ? 0
                    : piece->handle + ((uint64_t)(uintptr_t)arg->value.memory - piece->address);
        }
    }
    return NIB_OK;
}

static nib_status launch(nib_gpu *gpu, void *function, const nib_launch *launch, nib_err *err)
{
    static const int64_t most[3] = {INT32_MAX, 65535, 65535};
    state *s = gpu->state;
    value values[NIB_LAUNCH_ARGS];
    void *args[NIB_LAUNCH_ARGS];
    for (int i = 0; i < 3; i++) {
        if (launch->groups[i] == 0)
            return NIB_OK;
        if (launch->groups[i] > most[i])
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "%s: %" PRId64 " blocks of threads in dimension %d, where CUDA takes "
                             "%" PRId64 "; run fewer tokens at a time",
                             launch->function, launch->groups[i], i, most[i]);
    }
    NIB_TRY(enter(gpu, err));
    NIB_TRY(set_args(gpu, launch, values, args, err));
    const cu_result code = s->l.cuLaunchKernel(
        function, (unsigned)launch->groups[0], (unsigned)launch->groups[1],
        (unsigned)launch->groups[2], (unsigned)launch->items[0], (unsigned)launch->items[1],
        (unsigned)launch->items[2], (unsigned)launch->shared, s->stream, args, NULL);
    if (code != CU_SUCCESS)
        return failed(&s->l, err, launch->function, code);
    s->last = launch->function;
    if (s->begun == NULL)
        s->begun = s->last;
    return ++s->since == BATCH ? end_batch(gpu, err) : NIB_OK;
}

const nib_gpu_driver nib__driver_cuda = {
    .name = "CUDA",
    .library = LIBRARY,
    .find = find,
    .open = open_device,
    .close = close_device,
    .take = take,
    .give = give,
    .write = write,
    .read = read,
    .copy = copy,
    .prepare = prepare,
    .launch = launch,
    .finish = finish,
};
