/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA through the driver's library, loaded at run time: devices and their facts, memory, programs
 * from embedded fat binaries, launches in order on one stream. The driver compiles nothing, except
 * PTX for a device newer than the fat binary.
 */
#include "cuda_api.h"
#include "cuda_programs.h"
#include "gpu.h"

#include <inttypes.h>
#include <stdio.h>

#define LIBRARY "libcuda.so.1"

/* ---- the library ---- */

typedef struct library {
#define POINTER(result, name, arguments) result(*name) arguments;
    NIB_CUDA_FUNCTIONS(POINTER)
#undef POINTER
} library;

/* False: the library is missing (*lacking is NULL), or lacks the function *lacking. */
static bool load(library *l, const char **lacking)
{
#define NAME(result, name, arguments) #name,
    static const char *const names[] = {NIB_CUDA_FUNCTIONS(NAME)};
#undef NAME
    return nib__gpu_load_library(LIBRARY, names, COUNT(names), l, lacking);
}

static nib_status failed(const library *l, nib_err *err, const char *what, cu_result code)
{
    const char *text = NULL;
    if (l->cuGetErrorString(code, &text) != CU_SUCCESS || text == NULL)
        text = "unknown error";
    return nib__fail(err, NIB_FAILED, "%s: %s (CUDA's %d)", what, text, code);
}

/* ---- finding devices ---- */

static double attribute(const library *l, cu_device device, int which)
{
    int value = 0;
    return l->cuDeviceGetAttribute(&value, which, device) == CU_SUCCESS ? (double)value : 0;
}

/* Rates from the clocks and units that the device reports, until it is measured. */
static void published_rates(const library *l, cu_device device, nib_machine *m)
{
    const int64_t sm = m->facts.fact[NIB_FACT_SM];
    const double units = attribute(l, device, CU_ATTRIBUTE_MULTIPROCESSORS);
    const double clock = 1e3 * attribute(l, device, CU_ATTRIBUTE_CLOCK_KHZ);
    /* multiply-adds per clock of a multiprocessor, and of its matrix units with 16-bit operands */
    const double lanes = sm == 80 ? 64 : 128;
    const double matrix = sm / 10 == 10 ? 4096 : sm == 90 ? 2048 : sm == 80 ? 1024 : 512;
    const double rate = 2 * units * clock;
    m->rate[NIB_UNIT_F32] = m->rate[NIB_UNIT_SCALAR] = rate * lanes;
    m->rate[NIB_UNIT_BF16] = sm >= 80 ? rate * matrix : 0;
    m->rate[NIB_UNIT_I8] = sm >= 80 ? rate * matrix * 2 : 0;
    m->rate[NIB_UNIT_FP8] = m->facts.fact[NIB_FACT_FP8_UNIT] != 0 ? rate * matrix * 2 : 0;
    m->rate[NIB_UNIT_MX8] = m->facts.fact[NIB_FACT_MX_UNIT] != 0 ? rate * matrix * 2 : 0;
    m->bytes_per_s = 2e3 * attribute(l, device, CU_ATTRIBUTE_MEMORY_CLOCK_KHZ) *
                     attribute(l, device, CU_ATTRIBUTE_MEMORY_BUS_BITS) / 8;
    if (m->bytes_per_s <= 0) /* newer devices do not report it */
        m->bytes_per_s = 200e9;
    m->launch_s = 4e-6;
    m->copy_s = NIB_CAUTIOUS_COPY_S;
    m->copy_bytes_per_s = NIB_CAUTIOUS_COPY_BYTES_PER_S;
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
    fact[NIB_FACT_DOT4] = sm >= 75 && sm < 90; /* later matrix units lack it */
    fact[NIB_FACT_MATRIX_UNIT] = sm >= 70;
    fact[NIB_FACT_FP8_UNIT] = sm >= 89;
    fact[NIB_FACT_MX_UNIT] = sm >= 100;
    fact[NIB_FACT_SUBGROUPS] = 1;
    fact[NIB_FACT_DRIVER] = version;
    published_rates(l, device, m);
}

static void find(nib_gpu_found *out, size_t *count, nib_text *why)
{
    library l;
    const char *lacking;
    int devices = 0, version = 0;
    if (!load(&l, &lacking)) {
        if (lacking == NULL)
            nib__text_str(why, "CUDA: " LIBRARY " not found; install NVIDIA's driver\n");
        else
            nib__text_format(why, "CUDA: " LIBRARY " has no %s; install a newer driver\n", lacking);
        return;
    }
    const cu_result code = l.cuInit(0);
    if (code != CU_SUCCESS || l.cuDriverGetVersion(&version) != CU_SUCCESS ||
        l.cuDeviceGetCount(&devices) != CU_SUCCESS || devices == 0) {
        const char *text = NULL;
        l.cuGetErrorString(code != CU_SUCCESS ? code : CU_ERROR_NO_DEVICE, &text);
        nib__text_format(why, "CUDA: " LIBRARY " found no device: %s\n",
                         text != NULL ? text : "no reason given");
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

typedef struct state {
    library l;
    cu_device device;
    cu_context context;
    cu_stream stream;
    bool overlaps; /* kernels wait for the one before them themselves: after_previous() */
} state;

/* Whether machine code of the device's architecture is built in, and waits. The driver would
 * compile PTX of an older one, which does not. */
static bool kernels_wait(int64_t sm)
{
    return (sm == 90 && NIB_SM90_BUILT) || (sm == 100 && NIB_SM100_BUILT);
}

/* Makes the context current in the calling thread, which may be any. */
static nib_status set_context(nib_gpu *gpu, nib_err *err)
{
    state *s = gpu->state;
    const cu_result code = s->l.cuCtxSetCurrent(s->context);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "the context", code);
}

static nib_status check_driver(const state *s, nib_err *err)
{
    int version = 0;
    if (nib__cuda_toolkit == 0)
        return nib__fail(
            err, NIB_NOT_AS_ASKED,
            "this program has no CUDA kernels; build it with make CUDA=1 where nvcc is installed");
    if (s->l.cuDriverGetVersion(&version) != CU_SUCCESS)
        version = 0;
    if (version / 1000 < nib__cuda_toolkit / 1000)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the driver supports CUDA %d.%d, but the kernels were compiled by %d.%d, "
                         "which needs %d.0 or later; update the driver or build with an older nvcc",
                         version / 1000, version % 1000 / 10, nib__cuda_toolkit / 1000,
                         nib__cuda_toolkit % 1000 / 10, nib__cuda_toolkit / 1000);
    return NIB_OK;
}

static nib_status open_device(nib_gpu *gpu, nib_err *err)
{
    const char *lacking;
    state *s = nib__calloc(gpu->allocator, 1, sizeof *s);
    if (s == NULL)
        return nib__fail_memory(err, sizeof *s, "a CUDA device");
    gpu->state = s;
    if (!load(&s->l, &lacking))
        return nib__fail(err, NIB_NOT_AS_ASKED, LIBRARY " can no longer be loaded");
    NIB_TRY(check_driver(s, err));
    s->device = (cu_device)(intptr_t)gpu->found->ids[0];
    s->overlaps = kernels_wait(gpu->found->machine.facts.fact[NIB_FACT_SM]);
    cu_result code = s->l.cuInit(0);
    if (code == CU_SUCCESS)
        code = s->l.cuDevicePrimaryCtxRetain(&s->context, s->device);
    if (code != CU_SUCCESS)
        return failed(&s->l, err, "a context", code);
    NIB_TRY(set_context(gpu, err));
    code = s->l.cuStreamCreate(&s->stream, CU_STREAM_ALONE);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a stream", code);
}

static void close_device(nib_gpu *gpu)
{
    state *s = gpu->state;
    if (s == NULL)
        return;
    if (s->context != NULL && s->l.cuCtxSetCurrent(s->context) == CU_SUCCESS) {
        if (s->stream != NULL)
            s->l.cuStreamDestroy_v2(s->stream);
        s->l.cuCtxSetCurrent(NULL);
    }
    if (s->context != NULL)
        s->l.cuDevicePrimaryCtxRelease_v2(s->device);
    nib__release(gpu->allocator, s);
    gpu->state = NULL;
}

/* ---- memory: a handle is a device address ---- */

static nib_status allocate(nib_gpu *gpu, uint64_t bytes, uint64_t *handle, nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(set_context(gpu, err));
    const cu_result code = s->l.cuMemAlloc_v2(handle, (size_t)bytes);
    if (code == CU_ERROR_OUT_OF_MEMORY)
        return NIB_NO_MEMORY;
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "memory", code);
}

/* The driver waits for launches that may still use the memory. */
static void release(nib_gpu *gpu, uint64_t handle)
{
    state *s = gpu->state;
    if (set_context(gpu, NULL) == NIB_OK)
        s->l.cuMemFree_v2(handle);
}

static nib_status write(nib_gpu *gpu, uint64_t handle, uint64_t at, const void *from,
                        uint64_t bytes, nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(set_context(gpu, err));
    /* for unpinned memory, the driver has made a copy by the time the call returns */
    const cu_result code = s->l.cuMemcpyHtoDAsync_v2(handle + at, from, (size_t)bytes, s->stream);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a copy to the device", code);
}

static nib_status read(nib_gpu *gpu, uint64_t handle, uint64_t at, void *to, uint64_t bytes,
                       nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(set_context(gpu, err));
    NIB_TRY(nib__gpu_finish(gpu, err)); /* with a limit, unlike the driver's wait */
    cu_result code = s->l.cuMemcpyDtoHAsync_v2(to, handle + at, (size_t)bytes, s->stream);
    if (code == CU_SUCCESS)
        code = s->l.cuStreamSynchronize(s->stream);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a copy from the device", code);
}

static nib_status copy(nib_gpu *gpu, uint64_t to, uint64_t to_at, uint64_t from, uint64_t from_at,
                       uint64_t bytes, nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(set_context(gpu, err));
    const cu_result code =
        s->l.cuMemcpyDtoDAsync_v2(to + to_at, from + from_at, (size_t)bytes, s->stream);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, "a copy on the device", code);
}

/* ---- programs ---- */

static const nib_cuda_program *find_program(const char *source, const char *options)
{
    const nib_cuda_program *p = nib__cuda_programs;
    while (p->source != NULL &&
           (strcmp(p->source, source) != 0 || strcmp(p->options, options) != 0))
        p++;
    return p->source != NULL ? p : NULL;
}

static nib_status load_program(nib_gpu *gpu, const nib_gpu_source *source, const nib_launch *launch,
                               void **program, nib_err *err)
{
    state *s = gpu->state;
    cu_module module;
    const nib_cuda_program *compiled = find_program(source->name, launch->options);
    if (compiled == NULL)
        return nib__fail(
            err, NIB_NOT_AS_ASKED,
            "%s with options %s was not compiled for CUDA; add it to cuda_programs.txt",
            source->name, launch->options);
    NIB_TRY(set_context(gpu, err));
    const cu_result code = s->l.cuModuleLoadData(&module, compiled->image);
    *program = module;
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, source->name, code);
}

static void release_program(nib_gpu *gpu, void *program)
{
    state *s = gpu->state;
    if (set_context(gpu, NULL) == NIB_OK)
        s->l.cuModuleUnload(program);
}

static nib_status find_function(nib_gpu *gpu, void *program, const nib_launch *launch,
                                void **function, nib_err *err)
{
    state *s = gpu->state;
    cu_function found;
    NIB_TRY(set_context(gpu, err));
    cu_result code = s->l.cuModuleGetFunction(&found, program, launch->function);
    if (code == CU_SUCCESS && launch->shared > 0)
        code = s->l.cuFuncSetAttribute(found, CU_FUNCTION_MOST_DYNAMIC_SHARED, launch->shared);
    *function = found;
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, launch->function, code);
}

/* ---- launching ---- */

/* The value that an argument pointer points to. */
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
                return nib__fail(err, NIB_FAILED, "%s: argument %d is not memory of %s",
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
        if (launch->groups[i] > most[i])
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "%s: %" PRId64
                             " thread blocks in dimension %d exceed CUDA's limit of %" PRId64
                             "; run fewer tokens at a time",
                             launch->function, launch->groups[i], i, most[i]);
    }
    NIB_TRY(set_context(gpu, err));
    NIB_TRY(set_args(gpu, launch, values, args, err));
    cu_launch_attribute overlaps = {.id = CU_LAUNCH_OVERLAPS, .value.is_allowed = 1};
    cu_launch_config how = {.shared = (unsigned)launch->shared,
                            .stream = s->stream,
                            .attributes = &overlaps,
                            .attribute_count = s->overlaps && !gpu->wrote_weights};
    for (int i = 0; i < 3; i++)
        how.grid[i] = (unsigned)launch->groups[i], how.block[i] = (unsigned)launch->items[i];
    const cu_result code = s->l.cuLaunchKernelEx(&how, function, args, NULL);
    return code == CU_SUCCESS ? NIB_OK : failed(&s->l, err, launch->function, code);
}

static void release_event(nib_gpu *gpu, void *event)
{
    state *s = gpu->state;
    if (set_context(gpu, NULL) == NIB_OK)
        s->l.cuEventDestroy_v2(event);
}

static nib_status record_event(nib_gpu *gpu, void **event, nib_err *err)
{
    state *s = gpu->state;
    cu_event created;
    NIB_TRY(set_context(gpu, err));
    cu_result code = s->l.cuEventCreate(&created, CU_EVENT_WITHOUT_TIME);
    if (code != CU_SUCCESS)
        return failed(&s->l, err, "an event", code);
    *event = created;
    code = s->l.cuEventRecord(created, s->stream);
    if (code == CU_SUCCESS)
        return NIB_OK;
    release_event(gpu, created);
    return failed(&s->l, err, "the stream", code);
}

static nib_status is_event_done(nib_gpu *gpu, void *event, bool *done, const char *what,
                                nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(set_context(gpu, err));
    const cu_result code = s->l.cuEventQuery(event);
    *done = code == CU_SUCCESS;
    return *done || code == CU_ERROR_NOT_READY ? NIB_OK : failed(&s->l, err, what, code);
}

const nib_gpu_driver nib__driver_cuda = {
    .name = "CUDA",
    .library = LIBRARY,
    .find = find,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .write = write,
    .read = read,
    .copy = copy,
    .load_program = load_program,
    .release_program = release_program,
    .find_function = find_function,
    .launch = launch,
    .record_event = record_event,
    .is_event_done = is_event_done,
    .release_event = release_event,
    .spin_ns = 2000000,
};
