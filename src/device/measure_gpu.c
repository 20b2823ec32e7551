/* SPDX-License-Identifier: Apache-2.0
 *
 * Times copies and launches on a device with any driver: the best of a few runs, by the host's
 * clock. Reading a few values after a copy waits for it.
 */
#include "gpu.h"
#include "pool.h"

enum {
    COPY_MOST = 256 << 20, /* bytes of the largest copy, but at most */
    COPY_SHARE = 8,        /* 1 / COPY_SHARE of the memory */
    COPY_LEAST = 1 << 20,
    COPY_STEP = 4,         /* factor from one size to the next smaller one */
    HOST_BYTES = 16 << 20, /* between device and host */
    RUNS = 5,
    LAUNCHES = 200,
    LITTLE = 64, /* values */
};

typedef struct meter {
    nib_gpu *gpu;
    const nib_kernel *add;
    char *from, *to; /* on the device */
    char *host;      /* HOST_BYTES */
    uint64_t bytes;
    nib_err *err;
} meter;

typedef nib_status (*timed_call)(meter *t, uint64_t bytes);

static nib_status wait_for_device(meter *t)
{
    float values[LITTLE];
    return nib__gpu_read(t->gpu, values, t->to, sizeof values, t->err);
}

static nib_status copy_within(meter *t, uint64_t bytes)
{
    NIB_TRY(nib__gpu_copy(t->gpu, t->to, t->from, bytes, t->err));
    return wait_for_device(t);
}

static nib_status copy_to_device(meter *t, uint64_t bytes)
{
    NIB_TRY(nib__gpu_write(t->gpu, t->to, t->host, bytes, t->err));
    return nib__gpu_finish(t->gpu, t->err);
}

static nib_status copy_to_host(meter *t, uint64_t bytes)
{
    return nib__gpu_read(t->gpu, t->host, t->to, bytes, t->err);
}

static nib_status launch(meter *t, uint64_t count)
{
    const nib_add args = {.x = (const float *)(void *)t->from,
                          .y = (float *)(void *)t->to,
                          .m = 1,
                          .width = LITTLE,
                          .ldx = LITTLE,
                          .ldy = LITTLE};
    for (uint64_t i = 0; i < count; i++)
        NIB_TRY(nib__gpu_run(t->gpu, t->add, &args, t->err));
    return wait_for_device(t);
}

/* The best of a few runs, after a warm-up run. */
static nib_status best_seconds(meter *t, timed_call call, uint64_t bytes, double *seconds)
{
    *seconds = 0;
    for (int i = -1; i < RUNS; i++) {
        const uint64_t start = nib__now_ns();
        NIB_TRY(call(t, bytes));
        const double s = (double)(nib__now_ns() - start + 1) * 1e-9;
        *seconds = i <= 0 || s < *seconds ? s : *seconds;
    }
    return NIB_OK;
}

/* Copies ever smaller sizes: the largest gives the rate of memory, the others that of caches, and
 * the size below which the cache rate clearly shows. Each byte is read and written. */
static nib_status measure_copies(meter *t, nib_machine *m)
{
    const double clearly = 1.5;
    m->cache_bytes = 0, m->cache_bytes_per_s = 0;
    for (uint64_t size = t->bytes; size >= COPY_LEAST; size /= COPY_STEP) {
        double seconds;
        NIB_TRY(best_seconds(t, copy_within, size, &seconds));
        const double rate = 2 * (double)size / seconds;
        if (size == t->bytes)
            m->bytes_per_s = rate;
        else if (rate > clearly * m->bytes_per_s && rate > m->cache_bytes_per_s) {
            m->cache_bytes = m->cache_bytes > 0 ? m->cache_bytes : 2 * (double)size;
            m->cache_bytes_per_s = rate;
        }
    }
    return NIB_OK;
}

static nib_status measure_host(meter *t, nib_machine *m)
{
    const uint64_t bytes = t->bytes < HOST_BYTES ? t->bytes : HOST_BYTES;
    double to_device, to_host, to_device_s, to_host_s;
    NIB_TRY(best_seconds(t, copy_to_device, LITTLE, &to_device_s));
    NIB_TRY(best_seconds(t, copy_to_host, LITTLE, &to_host_s));
    NIB_TRY(best_seconds(t, copy_to_device, bytes, &to_device));
    NIB_TRY(best_seconds(t, copy_to_host, bytes, &to_host));
    m->copy_s = (to_device_s + to_host_s) / 2;
    m->copy_bytes_per_s = 2 * (double)bytes / (to_device + to_host);
    return NIB_OK;
}

static nib_status measure(meter *t, nib_machine *m)
{
    void *from = NULL, *to = NULL;
    double seconds, one;
    NIB_TRY(nib__gpu_alloc(t->gpu, t->bytes, "measuring it", &from, t->err));
    t->from = from;
    NIB_TRY(nib__gpu_alloc(t->gpu, t->bytes, "measuring it", &to, t->err));
    t->to = to;
    for (uint64_t at = 0; at < t->bytes;
         at += HOST_BYTES) { /* forces the driver to commit the memory */
        const uint64_t left = t->bytes - at, part = left < HOST_BYTES ? left : HOST_BYTES;
        NIB_TRY(nib__gpu_write(t->gpu, t->from + at, t->host, part, t->err));
        NIB_TRY(nib__gpu_write(t->gpu, t->to + at, t->host, part, t->err));
    }
    NIB_TRY(measure_copies(t, m));
    NIB_TRY(measure_host(t, m));
    NIB_TRY(best_seconds(t, launch, 1, &one));
    NIB_TRY(best_seconds(t, launch, 1 + LAUNCHES, &seconds));
    m->launch_s = seconds > one ? (seconds - one) / LAUNCHES : 0;
    return NIB_OK;
}

nib_status nib__gpu_measure(nib_machine *m, nib_gpu *gpu, const nib_kernel *add, nib_err *err)
{
    const uint64_t most = m->memory / COPY_SHARE;
    meter t = {.gpu = gpu, .add = add, .bytes = most < COPY_MOST ? most : COPY_MOST, .err = err};
    t.bytes = t.bytes < COPY_LEAST ? COPY_LEAST : t.bytes;
    t.host = nib__block_take(HOST_BYTES);
    if (t.host == NULL)
        return nib__fail_memory(err, HOST_BYTES, "measuring a device");
    memset(t.host, 0, HOST_BYTES);
    const nib_status status = measure(&t, m);
    nib__gpu_free(gpu, t.to);
    nib__gpu_free(gpu, t.from);
    nib__block_free(t.host, HOST_BYTES);
    if (status != NIB_OK)
        return status;
    m->measured = true;
    m->disturbed = false;
    nib__today(m->measured_on);
    return NIB_OK;
}
