/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: GPU rows. A case's memory, with its guards, is copied to the device and
 * addressed by host pointers, so that a GPU row takes the same arguments as a CPU row; the results
 * are copied back and compared in the same way.
 */
#ifndef NIB_CHECK_GPU_H
#define NIB_CHECK_GPU_H

#include "check_values.h"

#include "gpu.h"

#include <sys/wait.h>
#include <unistd.h>

/* The device of this process and its failure. A process checks one row on one device. */
typedef struct gpu_state {
    nib_gpu_found found[NIB_GPUS_MAX];
    nib_gpu *gpu;
    nib_err err;
} gpu_state;

static gpu_state under_test;

static size_t find_gpus(nib_gpu_found found[NIB_GPUS_MAX])
{
    const nib_allocator a = nib__allocator_default();
    nib_text why;
    nib__text_init(&why, &a);
    const size_t count = nib__gpus_find(found, &why);
    nib__text_free(&why);
    return count;
}

static bool open_gpu(verdict *v, size_t index)
{
    static nib_allocator a;
    a = nib__allocator_default();
    if (index >= find_gpus(under_test.found))
        return broken(v, "its device is gone");
    if (nib__gpu_open(&under_test.gpu, &under_test.found[index], 60, &a, &under_test.err) != NIB_OK)
        return broken(v, "%s", under_test.err.text);
    return true;
}

static size_t piece_bytes(const memory *m, int i) { return m->pieces[i].bytes + 2 * (size_t)GUARD; }

static nib_status run_between_copies(memory *m, const nib_kernel *row, const void *args,
                                     nib_err *err)
{
    nib_gpu *gpu = under_test.gpu;
    for (int i = 0; i < m->count; i++) {
        uint8_t *base = m->pieces[i].base;
        NIB_TRY(nib__gpu_shadow(gpu, base, piece_bytes(m, i), err));
        NIB_TRY(nib__gpu_write(gpu, base, base, piece_bytes(m, i), err));
    }
    NIB_TRY(nib__gpu_run(gpu, row, args, err));
    NIB_TRY(nib__gpu_finish(gpu, err));
    for (int i = 0; i < m->count; i++) {
        uint8_t *base = m->pieces[i].base;
        NIB_TRY(nib__gpu_read(gpu, base, base, piece_bytes(m, i), err));
    }
    return NIB_OK;
}

/* Runs the row as a whole; false: it is not a GPU row. */
static bool runs_on_gpu(memory *m, const nib_kernel *row, const void *args)
{
    if (row->gpu == NULL)
        return false;
    if (under_test.err.status == NIB_OK)
        (void)run_between_copies(m, row, args, &under_test.err);
    for (int i = 0; i < m->count; i++)
        nib__gpu_free(under_test.gpu, m->pieces[i].base);
    return true;
}

/* The facts of this process's device; none for the CPU. */
static nib_query device_facts(void)
{
    const nib_query none = {.fact = {0}};
    return under_test.gpu != NULL ? under_test.gpu->found->machine.facts : none;
}

/* Checks launches with as many rows as a vocabulary or a large micro-batch: CUDA allows that many
 * thread blocks only in the first dimension. */
enum { MANY_ROWS = 300000 };

static bool takes_many_rows(verdict *v, const nib_kernel *row, const void *args)
{
    nib_launch launches[NIB_LAUNCHES_MAX];
    const int count = row->gpu != NULL ? row->gpu->launches(args, launches) : 0;
    for (int i = 0; i < count; i++)
        if (launches[i].groups[0] > INT32_MAX || launches[i].groups[1] > UINT16_MAX ||
            launches[i].groups[2] > UINT16_MAX)
            return broken(v, "%s has more work-groups in a dimension than CUDA takes",
                          launches[i].function);
    return true;
}

/* Reports the device's error, if there was one. */
static bool gpu_held(verdict *v)
{
    return under_test.err.status == NIB_OK || broken(v, "%s", under_test.err.text);
}

/* ---- finding devices, in a child process, as a driver's threads do not survive a fork ---- */

typedef struct devices {
    size_t count;
    nib_query facts[NIB_GPUS_MAX];
    char names[NIB_GPUS_MAX][128];
} devices;

static void find_devices(devices *out)
{
    nib_gpu_found found[NIB_GPUS_MAX];
    *out = (devices){.count = find_gpus(found)};
    for (size_t i = 0; i < out->count; i++) {
        out->facts[i] = found[i].machine.facts;
        snprintf(out->names[i], sizeof out->names[i], "%s (%s)", found[i].name, found[i].title);
    }
}

/* Finds no devices if the child process ends without an answer. */
static void ask_devices(devices *out)
{
    int ends[2];
    devices found = {0};
    fflush(stdout);
    *out = found;
    if (pipe(ends) != 0)
        return;
    const pid_t child = fork();
    if (child == 0) {
        find_devices(&found);
        _exit(write(ends[1], &found, sizeof found) == (ssize_t)sizeof found ? 0 : 1);
    }
    close(ends[1]);
    size_t have = 0;
    while (child > 0 && have < sizeof found) {
        const ssize_t got = read(ends[0], (char *)&found + have, sizeof found - have);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    if (have == sizeof found)
        *out = found;
}

#endif
