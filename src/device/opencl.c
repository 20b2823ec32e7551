/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL 1.2 and later, through the system's loader: devices and their facts, memory, programs
 * (compiled once per set of options), launches in order on one queue.
 */
#include "gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CL_TARGET_OPENCL_VERSION 120
#ifdef __APPLE__
#include <OpenCL/cl.h>
#define LIBRARY "/System/Library/Frameworks/OpenCL.framework/OpenCL"
#else
#include <CL/cl.h>
#define LIBRARY "libOpenCL.so.1"
#endif

/* ---- the library ---- */

#define FUNCTIONS(X)                                                                               \
    X(clGetPlatformIDs)                                                                            \
    X(clGetPlatformInfo)                                                                           \
    X(clGetDeviceIDs)                                                                              \
    X(clGetDeviceInfo)                                                                             \
    X(clCreateContext)                                                                             \
    X(clReleaseContext)                                                                            \
    X(clCreateCommandQueue)                                                                        \
    X(clReleaseCommandQueue)                                                                       \
    X(clCreateBuffer)                                                                              \
    X(clReleaseMemObject)                                                                          \
    X(clEnqueueWriteBuffer)                                                                        \
    X(clEnqueueReadBuffer)                                                                         \
    X(clEnqueueCopyBuffer)                                                                         \
    X(clCreateProgramWithSource)                                                                   \
    X(clBuildProgram)                                                                              \
    X(clGetProgramBuildInfo)                                                                       \
    X(clReleaseProgram)                                                                            \
    X(clCreateKernel)                                                                              \
    X(clSetKernelArg)                                                                              \
    X(clReleaseKernel)                                                                             \
    X(clEnqueueNDRangeKernel)                                                                      \
    X(clEnqueueMarkerWithWaitList)                                                                 \
    X(clGetEventInfo)                                                                              \
    X(clReleaseEvent)                                                                              \
    X(clFlush)

typedef struct library {
#define POINTER(name) __typeof__(&(name)) name;
    FUNCTIONS(POINTER)
#undef POINTER
} library;

/* False: the library is missing (*lacking is NULL), or lacks the function *lacking. */
static bool load(library *l, const char **lacking)
{
#define NAME(name) #name,
    static const char *const names[] = {FUNCTIONS(NAME)};
#undef NAME
    return nib__gpu_load_library(LIBRARY, names, COUNT(names), l, lacking);
}

static const char *error_name(cl_int code)
{
    switch (code) {
    case CL_DEVICE_NOT_AVAILABLE: return "the device is not available";
    case CL_COMPILER_NOT_AVAILABLE: return "the driver has no compiler";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES: return "the device is out of resources";
    case CL_OUT_OF_HOST_MEMORY: return "the host is out of memory";
    case CL_BUILD_PROGRAM_FAILURE: return "the driver cannot compile it";
    case CL_INVALID_WORK_GROUP_SIZE: return "the work-group is too large";
    case CL_INVALID_BUFFER_SIZE: return "over the largest buffer size";
    case CL_INVALID_KERNEL_ARGS: return "an argument is missing";
    default: return "driver error";
    }
}

static nib_status failed(nib_err *err, const char *what, cl_int code)
{
    return nib__fail(err, NIB_FAILED, "%s: %s (OpenCL's %d)", what, error_name(code), code);
}

static bool is_memory(cl_int code)
{
    return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES ||
           code == CL_OUT_OF_HOST_MEMORY || code == CL_INVALID_BUFFER_SIZE;
}

/* ---- finding devices ---- */

enum { PLATFORMS_MAX = 16, EXTENSIONS_SIZE = 8192 };

static void read_text(const library *l, cl_device_id device, cl_device_info what, char *out,
                      size_t size)
{
    size_t written = 0;
    out[0] = 0;
    if (l->clGetDeviceInfo(device, what, size, out, &written) != CL_SUCCESS)
        out[0] = 0; /* longer than `out`, or unknown */
    out[size - 1] = 0;
}

static uint64_t read_number(const library *l, cl_device_id device, cl_device_info what)
{
    uint64_t wide = 0;
    cl_uint narrow = 0;
    if (l->clGetDeviceInfo(device, what, sizeof wide, &wide, NULL) == CL_SUCCESS && wide != 0)
        return what == CL_DEVICE_GLOBAL_MEM_SIZE || what == CL_DEVICE_MAX_MEM_ALLOC_SIZE ||
                       what == CL_DEVICE_TYPE
                   ? wide
                   : (uint32_t)wide;
    return l->clGetDeviceInfo(device, what, sizeof narrow, &narrow, NULL) == CL_SUCCESS ? narrow
                                                                                        : 0;
}

static nib_maker maker_of(const char *vendor, bool is_cpu)
{
    static const struct {
        const char *word;
        nib_maker maker;
    } words[] = {{"NVIDIA", NIB_MAKER_NVIDIA}, {"Advanced Micro", NIB_MAKER_AMD},
                 {"AMD", NIB_MAKER_AMD},       {"Apple", NIB_MAKER_APPLE},
                 {"ARM", NIB_MAKER_ARM},       {"Intel", NIB_MAKER_INTEL}};
    for (size_t i = 0; !is_cpu && i < COUNT(words); i++)
        if (strstr(vendor, words[i].word) != NULL)
            return words[i].maker;
#if defined(__aarch64__)
    return NIB_MAKER_ARM;
#else
    return NIB_MAKER_X86;
#endif
}

/* The CDNA generation: gfx90a and gfx942 are 2 and 3; 0: not CDNA. */
static int64_t cdna_of(const char *name)
{
    static const struct {
        const char *word;
        int64_t generation;
    } words[] = {{"gfx908", 1}, {"gfx90a", 2}, {"gfx94", 3}, {"gfx950", 4}};
    for (size_t i = 0; i < COUNT(words); i++)
        if (strstr(name, words[i].word) != NULL)
            return words[i].generation;
    return 0;
}

/* Rates that any device of this kind reaches, used until it is measured. */
static void cautious_rates(const library *l, cl_device_id device, bool is_cpu, nib_machine *m)
{
    const double units = (double)read_number(l, device, CL_DEVICE_MAX_COMPUTE_UNITS);
    const double clock = 1e6 * (double)read_number(l, device, CL_DEVICE_MAX_CLOCK_FREQUENCY);
    const double lanes = is_cpu ? 4 : 64;
    const double f32 = units * (clock > 0 ? clock : 1e9) * lanes;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        m->rate[unit] = f32;
    if (m->facts.fact[NIB_FACT_DOT8] != 0)
        m->rate[NIB_UNIT_DOT8] = 4 * f32;
    m->bytes_per_s = is_cpu ? 5e9 * units : 50e9;
    m->launch_s = 10e-6;
    m->copy_s = NIB_CAUTIOUS_COPY_S;
    m->copy_bytes_per_s = NIB_CAUTIOUS_COPY_BYTES_PER_S;
}

static void describe(const library *l, cl_device_id device, size_t index, nib_gpu_found *out)
{
    char extensions[EXTENSIONS_SIZE], vendor[96];
    nib_machine *m = &out->machine;
    const bool is_cpu = (read_number(l, device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) != 0;
    read_text(l, device, CL_DEVICE_NAME, out->title, sizeof out->title);
    read_text(l, device, CL_DRIVER_VERSION, out->driver_version, sizeof out->driver_version);
    read_text(l, device, CL_DEVICE_VENDOR, vendor, sizeof vendor);
    read_text(l, device, CL_DEVICE_EXTENSIONS, extensions, sizeof extensions);
    if (index == 0)
        snprintf(out->name, sizeof out->name, "opencl");
    else
        snprintf(out->name, sizeof out->name, "opencl:%zu", index);
    *m = (nib_machine){.here = true, .memory = read_number(l, device, CL_DEVICE_GLOBAL_MEM_SIZE)};
    int64_t *fact = m->facts.fact;
    fact[NIB_FACT_DEVICE] = NIB_DEVICE_OPENCL;
    fact[NIB_FACT_MAKER] = maker_of(vendor, is_cpu);
    fact[NIB_FACT_CDNA] = fact[NIB_FACT_MAKER] == NIB_MAKER_AMD ? cdna_of(out->title) : 0;
    fact[NIB_FACT_DOT8] =
        fact[NIB_FACT_CDNA] >= 1 || strstr(extensions, "cl_khr_integer_dot_product") != NULL;
    fact[NIB_FACT_DOT4] = fact[NIB_FACT_CDNA] >= 2;
    fact[NIB_FACT_MATRIX_UNIT] = fact[NIB_FACT_CDNA] >= 1;
    fact[NIB_FACT_SUBGROUPS] = strstr(extensions, "_subgroups") != NULL; /* by Khronos or Intel */
    fact[NIB_FACT_FP16] = strstr(extensions, "cl_khr_fp16") != NULL;
    fact[NIB_FACT_FP64] = strstr(extensions, "cl_khr_fp64") != NULL;
    fact[NIB_FACT_DENORMALS] =
        (read_number(l, device, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_DENORM) != 0;
    cautious_rates(l, device, is_cpu, m);
}

static void find(nib_gpu_found *out, size_t *count, nib_text *why)
{
    library l;
    cl_platform_id platforms[PLATFORMS_MAX];
    cl_uint platform_count = 0;
    const char *lacking;
    size_t index = 0;
    if (!load(&l, &lacking)) {
        if (lacking == NULL)
            nib__text_str(why, "OpenCL: " LIBRARY " not found; install the device's driver and "
                               "ocl-icd-libopencl1\n");
        else
            nib__text_format(why,
                             "OpenCL: " LIBRARY " has no %s; install one for OpenCL 1.2 or later\n",
                             lacking);
        return;
    }
    if (l.clGetPlatformIDs(PLATFORMS_MAX, platforms, &platform_count) != CL_SUCCESS)
        platform_count = 0;
    for (cl_uint i = 0; i < platform_count && i < PLATFORMS_MAX; i++) {
        cl_device_id devices[NIB_GPUS_MAX];
        cl_uint device_count = 0;
        if (l.clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, NIB_GPUS_MAX, devices,
                             &device_count) != CL_SUCCESS)
            continue;
        for (cl_uint j = 0; j < device_count && j < NIB_GPUS_MAX && *count < NIB_GPUS_MAX; j++) {
            nib_gpu_found *found = &out[(*count)++];
            *found =
                (nib_gpu_found){.driver = &nib__driver_opencl, .ids = {platforms[i], devices[j]}};
            describe(&l, devices[j], index++, found);
        }
    }
    if (index == 0)
        nib__text_str(why,
                      "OpenCL: " LIBRARY " found no device; install the driver of its maker, or "
                      "pocl-opencl-icd for the CPU\n");
}

/* ---- opening ---- */

typedef struct state {
    library l;
    cl_device_id device;
    const char *language; /* the compiler option for sub-group functions, which need OpenCL C 2 */
    cl_context context;
    cl_command_queue queue;
} state;

/* OpenCL C 3 makes much of version 2 optional again, but both have what cl_khr_subgroups needs;
 * Intel's sub-groups work with 1.2 too. */
static const char *language_of(const library *l, cl_device_id device)
{
    char version[96]; /* "OpenCL 3.0 ..." */
    read_text(l, device, CL_DEVICE_VERSION, version, sizeof version);
    return strncmp(version, "OpenCL 3", 8) == 0   ? " -cl-std=CL3.0"
           : strncmp(version, "OpenCL 2", 8) == 0 ? " -cl-std=CL2.0"
                                                  : "";
}

/* "OpenCL 1.2 ..." */
static nib_status check_version(nib_gpu *gpu, nib_err *err)
{
    state *s = gpu->state;
    char version[96];
    int major = 0, minor = 0;
    read_text(&s->l, s->device, CL_DEVICE_VERSION, version, sizeof version);
    if (sscanf(version, "OpenCL %d.%d", &major, &minor) != 2 || 10 * major + minor >= 12)
        return NIB_OK;
    return nib__fail(
        err, NIB_NOT_AS_ASKED,
        "the driver %s of %s supports %.40s, but Nibble needs 1.2 or later; update the driver",
        gpu->found->driver_version, gpu->found->title, version);
}

static nib_status open_device(nib_gpu *gpu, nib_err *err)
{
    state *s = nib__calloc(gpu->allocator, 1, sizeof *s);
    cl_int code = CL_SUCCESS;
    if (s == NULL)
        return nib__fail_memory(err, sizeof *s, "an OpenCL device");
    gpu->state = s;
    const char *lacking;
    if (!load(&s->l, &lacking))
        return nib__fail(err, NIB_NOT_AS_ASKED, LIBRARY " can no longer be loaded");
    s->device = gpu->found->ids[1];
    NIB_TRY(check_version(gpu, err));
    s->language = language_of(&s->l, s->device);
    s->context = s->l.clCreateContext(NULL, 1, &s->device, NULL, NULL, &code);
    if (code != CL_SUCCESS)
        return failed(err, "a context", code);
    s->queue = s->l.clCreateCommandQueue(s->context, s->device, 0, &code);
    return code == CL_SUCCESS ? NIB_OK : failed(err, "a queue", code);
}

static void close_device(nib_gpu *gpu)
{
    state *s = gpu->state;
    if (s == NULL)
        return;
    if (s->queue != NULL)
        s->l.clReleaseCommandQueue(s->queue);
    if (s->context != NULL)
        s->l.clReleaseContext(s->context);
    nib__release(gpu->allocator, s);
    gpu->state = NULL;
}

/* ---- memory ---- */

/* Drivers may allocate memory only on first use, so this writes the last byte at once. */
static nib_status allocate(nib_gpu *gpu, uint64_t bytes, uint64_t *handle, nib_err *err)
{
    state *s = gpu->state;
    const char zero = 0;
    cl_int code = CL_SUCCESS;
    const cl_mem memory =
        s->l.clCreateBuffer(s->context, CL_MEM_READ_WRITE, (size_t)bytes, NULL, &code);
    const bool was_made = code == CL_SUCCESS;
    if (was_made)
        code = s->l.clEnqueueWriteBuffer(s->queue, memory, CL_TRUE, (size_t)bytes - 1, 1, &zero, 0,
                                         NULL, NULL);
    if (was_made && code != CL_SUCCESS)
        s->l.clReleaseMemObject(memory);
    if (is_memory(code))
        return NIB_NO_MEMORY;
    if (code != CL_SUCCESS)
        return failed(err, "memory", code);
    *handle = (uint64_t)(uintptr_t)memory;
    return NIB_OK;
}

static cl_mem memory_of(uint64_t handle) { return (cl_mem)(uintptr_t)handle; }

static void release(nib_gpu *gpu, uint64_t handle)
{
    state *s = gpu->state;
    s->l.clReleaseMemObject(memory_of(handle));
}

static nib_status write(nib_gpu *gpu, uint64_t handle, uint64_t at, const void *from,
                        uint64_t bytes, nib_err *err)
{
    state *s = gpu->state;
    const cl_int code = s->l.clEnqueueWriteBuffer(s->queue, memory_of(handle), CL_TRUE, (size_t)at,
                                                  (size_t)bytes, from, 0, NULL, NULL);
    return code == CL_SUCCESS ? NIB_OK : failed(err, "a copy to the device", code);
}

static nib_status read(nib_gpu *gpu, uint64_t handle, uint64_t at, void *to, uint64_t bytes,
                       nib_err *err)
{
    state *s = gpu->state;
    NIB_TRY(nib__gpu_finish(gpu, err)); /* with a limit, unlike the driver's wait */
    const cl_int code = s->l.clEnqueueReadBuffer(s->queue, memory_of(handle), CL_TRUE, (size_t)at,
                                                 (size_t)bytes, to, 0, NULL, NULL);
    return code == CL_SUCCESS ? NIB_OK : failed(err, "a copy from the device", code);
}

static nib_status copy(nib_gpu *gpu, uint64_t to, uint64_t to_at, uint64_t from, uint64_t from_at,
                       uint64_t bytes, nib_err *err)
{
    state *s = gpu->state;
    const cl_int code =
        s->l.clEnqueueCopyBuffer(s->queue, memory_of(from), memory_of(to), (size_t)from_at,
                                 (size_t)to_at, (size_t)bytes, 0, NULL, NULL);
    return code == CL_SUCCESS ? NIB_OK : failed(err, "a copy on the device", code);
}

/* ---- programs ---- */

/* Fails with the first error of the compiler's log, on one line. */
static nib_status fail_compile(nib_gpu *gpu, cl_program program, const char *name, nib_err *err)
{
    enum { LOG_SIZE = 1 << 16, SHOWN = 240 };
    state *s = gpu->state;
    char *log = nib__calloc(gpu->allocator, LOG_SIZE, 1);
    char line[SHOWN + 1] = "no message";
    size_t size = 0;
    if (log != NULL && s->l.clGetProgramBuildInfo(program, s->device, CL_PROGRAM_BUILD_LOG,
                                                  LOG_SIZE - 1, log, &size) == CL_SUCCESS) {
        const char *from = strstr(log, "error");
        snprintf(line, sizeof line, "%s", from != NULL ? from : log);
        for (char *c = line; *c != 0; c++)
            *c = *c == '\n' || *c == '\r' || *c == '\t' ? ' ' : *c;
    }
    nib__release(gpu->allocator, log);
    return nib__fail(err, NIB_NOT_AS_ASKED, "the driver %s of %s does not compile %s: %s",
                     gpu->found->driver_version, gpu->found->title, name, line);
}

/* With correctly rounded division, activation codes equal those of the CPU. */
static void compiler_options(nib_gpu *gpu, const nib_launch *launch, char *out, size_t size)
{
    state *s = gpu->state;
    const uint64_t has = read_number(&s->l, s->device, CL_DEVICE_SINGLE_FP_CONFIG);
    snprintf(out, size, "%s%s%s%s", launch->options, gpu->emulates ? " -DNIB_EMULATE" : "",
             strstr(launch->options, "-DSUBGROUPS") != NULL && !gpu->emulates ? s->language : "",
             (has & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0
                 ? " -cl-fp32-correctly-rounded-divide-sqrt"
                 : "");
}

static void release_program(nib_gpu *gpu, void *program)
{
    state *s = gpu->state;
    s->l.clReleaseProgram(program);
}

static nib_status load_program(nib_gpu *gpu, const nib_gpu_source *source, const nib_launch *launch,
                               void **program, nib_err *err)
{
    state *s = gpu->state;
    enum { CHAIN = 4 };
    char options[NIB_LAUNCH_OPTIONS + 128];
    const char *texts[CHAIN];
    size_t sizes[CHAIN], first = CHAIN;
    cl_int code = CL_SUCCESS;
    for (const nib_gpu_source *at = source; at != NULL && first > 0; at = at->before) {
        texts[--first] = (const char *)at->text;
        sizes[first] = *at->size;
    }
    *program = s->l.clCreateProgramWithSource(s->context, (cl_uint)(CHAIN - first), texts + first,
                                              sizes + first, &code);
    if (code != CL_SUCCESS)
        return failed(err, source->name, code);
    compiler_options(gpu, launch, options, sizeof options);
    code = s->l.clBuildProgram(*program, 1, &s->device, options, NULL, NULL);
    if (code == CL_SUCCESS)
        return NIB_OK;
    const nib_status status = fail_compile(gpu, *program, source->name, err);
    release_program(gpu, *program);
    return status;
}

static nib_status find_function(nib_gpu *gpu, void *program, const nib_launch *launch,
                                void **function, nib_err *err)
{
    state *s = gpu->state;
    cl_int code = CL_SUCCESS;
    *function = s->l.clCreateKernel(program, launch->function, &code);
    return code == CL_SUCCESS ? NIB_OK : failed(err, launch->function, code);
}

static void release_function(nib_gpu *gpu, void *function)
{
    state *s = gpu->state;
    s->l.clReleaseKernel(function);
}

/* ---- launching ---- */

static cl_int set_memory(nib_gpu *gpu, cl_kernel kernel, cl_uint *at, const void *address,
                         bool *known)
{
    state *s = gpu->state;
    const nib_gpu_piece *piece = nib__gpu_piece(gpu, address);
    const cl_mem memory = piece != NULL ? memory_of(piece->handle) : NULL;
    const cl_ulong offset = piece != NULL ? (uint64_t)(uintptr_t)address - piece->address : 0;
    *known = piece != NULL || address == NULL;
    const cl_int code = s->l.clSetKernelArg(kernel, (*at)++, sizeof memory, &memory);
    return code != CL_SUCCESS ? code : s->l.clSetKernelArg(kernel, (*at)++, sizeof offset, &offset);
}

static nib_status set_args(nib_gpu *gpu, cl_kernel kernel, const nib_launch *launch, nib_err *err)
{
    state *s = gpu->state;
    cl_uint at = 0;
    for (int i = 0; i < launch->count; i++) {
        const nib_launch_arg *arg = &launch->args[i];
        bool known = true;
        cl_int code;
        if (arg->kind == NIB_LAUNCH_MEMORY)
            code = set_memory(gpu, kernel, &at, arg->value.memory, &known);
        else if (arg->kind == NIB_LAUNCH_INT)
            code =
                s->l.clSetKernelArg(kernel, at++, sizeof arg->value.integer, &arg->value.integer);
        else
            code = s->l.clSetKernelArg(kernel, at++, sizeof arg->value.number, &arg->value.number);
        if (!known)
            return nib__fail(err, NIB_FAILED, "%s: argument %d is not memory of %s",
                             launch->function, i, gpu->found->name);
        if (code != CL_SUCCESS)
            return failed(err, launch->function, code);
    }
    return NIB_OK;
}

static nib_status launch(nib_gpu *gpu, void *function, const nib_launch *launch, nib_err *err)
{
    state *s = gpu->state;
    size_t global[3], local[3];
    for (int i = 0; i < 3; i++) {
        local[i] = (size_t)launch->items[i];
        global[i] = (size_t)launch->groups[i] * local[i];
    }
    NIB_TRY(set_args(gpu, function, launch, err));
    const cl_int code =
        s->l.clEnqueueNDRangeKernel(s->queue, function, 3, NULL, global, local, 0, NULL, NULL);
    return code == CL_SUCCESS ? NIB_OK : failed(err, launch->function, code);
}

static nib_status record_event(nib_gpu *gpu, void **event, nib_err *err)
{
    state *s = gpu->state;
    cl_event created;
    cl_int code = s->l.clEnqueueMarkerWithWaitList(s->queue, 0, NULL, &created);
    if (code != CL_SUCCESS)
        return failed(err, "the queue", code);
    *event = created;
    code = s->l.clFlush(s->queue);
    if (code == CL_SUCCESS)
        return NIB_OK;
    s->l.clReleaseEvent(created);
    return failed(err, "the queue", code);
}

static nib_status is_event_done(nib_gpu *gpu, void *event, bool *done, const char *what,
                                nib_err *err)
{
    state *s = gpu->state;
    cl_int status = CL_QUEUED;
    const cl_int code =
        s->l.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    *done = status == CL_COMPLETE;
    if (code != CL_SUCCESS || status < 0)
        return failed(err, what, code != CL_SUCCESS ? code : status);
    return NIB_OK;
}

static void release_event(nib_gpu *gpu, void *event)
{
    state *s = gpu->state;
    s->l.clReleaseEvent(event);
}

const nib_gpu_driver nib__driver_opencl = {
    .name = "OpenCL",
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
    .release_function = release_function,
    .launch = launch,
    .record_event = record_event,
    .is_event_done = is_event_done,
    .release_event = release_event,
    .spin_ns = 0, /* a device that runs on the CPU needs its cores */
};
