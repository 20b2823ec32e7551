/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests that compile OpenCL rows for other devices: writes each program of a linear row, for
 * one token and for many, to a file.
 */
#ifndef NIB_CHECK_PROGRAMS_H
#define NIB_CHECK_PROGRAMS_H

#include "check_linear.h"

static void write_chain(FILE *to, const nib_gpu_source *source)
{
    if (source == NULL)
        return;
    write_chain(to, source->before);
    fwrite(source->text, 1, *source->size, to);
}

/* Writes FOLDER/NAME-M.cl and prints a line: the file, the options, the function. */
static bool write_program(const nib_kernel *row, int64_t m, const char *folder)
{
    memory held = {.count = 0};
    rng r = {.state = 1};
    linear_case c = {.scheme = random_scheme(row, &r), .m = m, .n = 128, .k = 256};
    nib_launch launches[NIB_LAUNCHES_MAX];
    char path[512];
    nib_weight w;
    c.scheme.group = c.scheme.group == 16 ? 16 : 32; /* nvfp4 has no other */
    c.scheme.zero = NIB_ZERO_NONE;
    c.input = row->input == NIB_ANY ? NIB_TYPE_F32 : (nib_type)row->input;
    c.scale_type = c.scheme.code == NIB_CODE_NV4                                    ? NIB_TYPE_E4M3
                   : c.scheme.code == NIB_CODE_MX8 || c.scheme.code == NIB_CODE_MX4 ? NIB_TYPE_E8M0
                   : nib__scheme_is_quantized(&c.scheme)                            ? NIB_TYPE_F32
                                                                                    : NIB_TYPE_NONE;
    make_weight(&w, &held, &c, &r);
    const nib_linear a = {.w = &w, .x = make_form(&held, &c), .ldy = c.n};
    const int count = row->gpu->launches(&a, launches);
    snprintf(path, sizeof path, "%s/%s-%" PRId64 ".cl", folder, row->name, m);
    FILE *to = count == 1 ? fopen(path, "w") : NULL;
    if (to != NULL) {
        write_chain(to, row->gpu->source);
        printf("%s %s %s\n", path, launches[0].function, launches[0].options);
    }
    release(&held);
    return to != NULL && fclose(to) == 0;
}

/* Writes the programs of every linear OpenCL row whose name contains `only`. */
static int write_programs(const char *only, const char *folder)
{
    int written = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->gpu == NULL || row->op != NIB_OP_LINEAR || row->device != NIB_DEVICE_OPENCL ||
            (only != NULL && strstr(row->name, only) == NULL))
            continue;
        if (!write_program(row, 1, folder) || !write_program(row, 64, folder))
            return 1;
        written++;
    }
    return written == 0;
}

#endif
