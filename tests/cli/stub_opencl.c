/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver of OpenCL 1.1 with one device, for tests/cli/drivers.sh: what is not here is added there
 * as functions that fail.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <string.h>

cl_int clGetPlatformIDs(cl_uint room, cl_platform_id *out, cl_uint *count)
{
    if (room > 0)
        out[0] = (cl_platform_id)1;
    *count = 1;
    return CL_SUCCESS;
}

cl_int clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint room, cl_device_id *out,
                      cl_uint *count)
{
    (void)platform, (void)type;
    if (room > 0)
        out[0] = (cl_device_id)1;
    *count = 1;
    return CL_SUCCESS;
}

static cl_int put(size_t room, void *out, const void *value, size_t size, size_t *written)
{
    if (written != NULL)
        *written = size;
    if (room < size)
        return CL_INVALID_VALUE;
    memcpy(out, value, size);
    return CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t room, void *out,
                       size_t *written)
{
    static const struct {
        cl_device_info what;
        const char *text;
    } texts[] = {{CL_DEVICE_NAME, "Old GPU"},
                 {CL_DRIVER_VERSION, "9.9.1"},
                 {CL_DEVICE_VENDOR, "A maker"},
                 {CL_DEVICE_VERSION, "OpenCL 1.1 of old"},
                 {CL_DEVICE_EXTENSIONS, ""}};
    const cl_ulong type = CL_DEVICE_TYPE_GPU, memory = (cl_ulong)4 << 30;
    const cl_uint some = 16;
    (void)device;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].what == what)
            return put(room, out, texts[i].text, strlen(texts[i].text) + 1, written);
    if (what == CL_DEVICE_TYPE)
        return put(room, out, &type, sizeof type, written);
    if (what == CL_DEVICE_GLOBAL_MEM_SIZE || what == CL_DEVICE_MAX_MEM_ALLOC_SIZE)
        return put(room, out, &memory, sizeof memory, written);
    return room < sizeof some ? CL_INVALID_VALUE : put(room, out, &some, sizeof some, written);
}
