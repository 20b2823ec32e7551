/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens and closes the engine; finds machines by name.
 */
#include "engine.h"
#include "public_struct.h"

#include <stdio.h>

/* Logs that processes share cores; only the first process does. */
static void log_crowded(const nib_engine *e, const nib_engine_options *o, int cores)
{
    char line[128];
    if (!o->callbacks.log || o->slice != 0 || o->slices <= cores)
        return;
    snprintf(line, sizeof line, "%d ranks share %d core%s: %d thread%s each, not pinned", o->slices,
             cores, cores == 1 ? "" : "s", nib__pool_threads(e->pool),
             nib__pool_threads(e->pool) == 1 ? "" : "s");
    o->callbacks.log(o->callbacks.ctx, line);
}

static nib_status open_parts(nib_engine *e, const nib_engine_options *o, nib_err *err)
{
    if (o->sandbox < NIB_SANDBOX_OFF || o->sandbox > NIB_SANDBOX_ON)
        return nib__fail(err, NIB_USAGE,
                         "nib_engine_options.sandbox is %d, which is not a nib_sandbox",
                         (int)o->sandbox);
    NIB_TRY(nib__cpu_isa_mask(&e->isa, o->isa, err));
    e->asked_threads = o->threads;
    snprintf(e->asked_isa, sizeof e->asked_isa, "%s", o->isa != NULL ? o->isa : "");
    NIB_TRY(nib__number_check("nib_engine_options.slices", o->slices, err));
    if (o->slice < 0 || o->slice >= nib__max(o->slices, 1))
        return nib__fail(err, NIB_USAGE, "slice %d is out of range: %d slices are numbered 0 to %d",
                         o->slice, (int)nib__max(o->slices, 1), (int)nib__max(o->slices, 1) - 1);
    const int cores = nib__cores_allowed(); /* before this thread moves to its share */
    NIB_TRY(nib__pool_open_share(&e->pool, o->threads, (nib_share){o->slice, o->slices},
                                 &e->allocator, err));
    log_crowded(e, o, cores);
    nib__machine_here(&e->here, e->isa, nib__pool_threads(e->pool));
    if (o->cache_path == NULL)
        return NIB_OK;
    const size_t size = strlen(o->cache_path) + 1;
    e->cache_path = nib__calloc(&e->allocator, size, 1);
    if (e->cache_path == NULL)
        return nib__fail_memory(err, size, "the cache path");
    memcpy(e->cache_path, o->cache_path, size);
    return NIB_OK;
}

nib_status nib_engine_open(nib_engine **out, const nib_engine_options *options, nib_err *err)
{
    NIB_NEED(err, "out", out);
    NIB_OPTIONS(nib_engine_options, o, options, err);
    if (o.allocator != NULL && o.allocator->resize == NULL)
        return nib__fail(err, NIB_USAGE, "nib_engine_options.allocator->resize is NULL");
    const nib_allocator a = o.allocator != NULL ? *o.allocator : nib__allocator_default();
    nib_engine *e = nib__calloc(&a, 1, sizeof *e);
    if (e == NULL)
        return nib__fail_memory(err, sizeof *e, "the engine");
    e->allocator = a;
    e->callbacks = o.callbacks;
    e->sandbox = o.sandbox;
    nib__text_init(&e->no_gpus, &e->allocator);
    const nib_status status = open_parts(e, &o, err);
    if (status != NIB_OK) {
        nib_engine_close(e);
        return status;
    }
    *out = e;
    return NIB_OK;
}

void nib__engine_hold(nib_engine *engine) { nib__holders_add(&engine->holders); }

nib_status nib__engine_check(const nib_engine *engine, nib_err *err)
{
    if (!nib__pool_forked(engine->pool))
        return NIB_OK;
    return nib__fail(err, NIB_USAGE,
                     "the engine was opened before this process was forked, so its threads and "
                     "devices are not here; open an engine after the fork");
}

void nib_engine_close(nib_engine *engine)
{
    if (engine == NULL || !nib__holders_leave(&engine->holders))
        return;
    const nib_allocator a = engine->allocator;
    for (size_t i = 0; i < engine->gpu_count; i++)
        nib__gpu_close(engine->opened[i]);
    nib__release(&a, engine->gpus);
    nib__text_free(&engine->no_gpus);
    nib__pool_close(engine->pool);
    nib__machines_close(&engine->machines);
    nib__tuned_free(&engine->tuned);
    nib__release(&a, engine->cache_path);
    nib__release(&a, engine);
}

static nib_status load_tuned(nib_engine *engine, nib_err *err)
{
    nib_arena arena;
    if (engine->cache_path == NULL)
        return NIB_OK;
    nib__arena_init(&arena, &engine->allocator, 0);
    const char *path = nib__tuned_path(&arena, engine->cache_path);
    nib_status status = NIB_OK;
    if (path == NULL)
        status = nib__fail_memory(err, strlen(engine->cache_path), "a path");
    else
        nib__tuned_load(&engine->tuned, &engine->here, path, &engine->allocator);
    engine->here.tuned = &engine->tuned;
    nib__arena_free(&arena);
    return status;
}

nib_status nib__engine_measure(nib_engine *engine, nib_err *err)
{
    NIB_TRY(nib__engine_check(engine, err));
    if (engine->measured)
        return NIB_OK;
    NIB_TRY(nib__machine_measure(&engine->here, engine->pool, engine->cache_path,
                                 &engine->allocator, err));
    NIB_TRY(load_tuned(engine, err));
    engine->measured = true;
    return NIB_OK;
}

/* ---- GPUs ---- */

nib_status nib__engine_find_gpus(nib_engine *engine, nib_err *err)
{
    NIB_TRY(nib__engine_check(engine, err));
    if (engine->gpus != NULL)
        return NIB_OK;
    nib_gpu_found *found = nib__calloc(&engine->allocator, NIB_GPUS_MAX, sizeof *found);
    if (found == NULL)
        return nib__fail_memory(err, NIB_GPUS_MAX * sizeof *found, "the list of devices");
    engine->gpus = found;
    engine->gpu_count = nib__gpus_find(found, &engine->no_gpus);
    for (size_t i = 0; i < engine->gpu_count; i++) {
        found[i].machine.host = &engine->here;
        if (engine->cache_path != NULL)
            nib__measured_find(&found[i].machine, found[i].driver_version, engine->cache_path,
                               &engine->allocator);
    }
    return NIB_OK;
}

const nib_machine *nib__engine_gpu_find(const nib_engine *engine, const char *name)
{
    for (size_t i = 0; i < engine->gpu_count; i++)
        if (strcmp(engine->gpus[i].name, name) == 0)
            return &engine->gpus[i].machine;
    return NULL;
}

nib_status nib__engine_gpu(nib_gpu **out, nib_engine *engine, const nib_machine *machine,
                           nib_err *err)
{
    const double limit_s = 60; /* of one launch */
    for (size_t i = 0; i < engine->gpu_count; i++) {
        if (strcmp(engine->gpus[i].name, machine->name) != 0)
            continue;
        if (engine->opened[i] == NULL)
            NIB_TRY(nib__gpu_open(&engine->opened[i], &engine->gpus[i], limit_s, &engine->allocator,
                                  err));
        *out = engine->opened[i];
        return NIB_OK;
    }
    return nib__fail(err, NIB_FAILED, "device %s was not found", machine->name);
}

/* ---- machines by name ---- */

nib_status nib__engine_machines(nib_engine *engine, const nib_machines **out, nib_err *err)
{
    if (engine->machines.count == 0)
        NIB_TRY(nib__machines_open(&engine->machines, &engine->allocator, err));
    *out = &engine->machines;
    return NIB_OK;
}

static void list_names(nib_text *out, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        nib__text_format(out, "%s%s", i == 0 ? "" : ", ", names[i]);
}

/* Appends the line of `nibble devices` about the driver that the name begins with: "; OpenCL:
 * libOpenCL.so.1 not found; install ...". False: no driver matches. */
static bool append_driver(const nib_engine *engine, const char *name, nib_text *out)
{
    const size_t before = out->size;
    const char *line = engine->no_gpus.size != 0 ? engine->no_gpus.at : "";
    for (size_t size; *line != 0; line += size + (line[size] == '\n')) {
        const size_t driver = strcspn(line, ":");
        size = strcspn(line, "\n");
        if (driver < size && nib__same_start_ignoring_case(line, name, driver))
            nib__text_format(out, "; %.*s", (int)size, line);
    }
    return out->size != before;
}

/* Fails with its driver's line or similar names, then the devices here and the known machines. */
static nib_status fail_machine(const nib_engine *engine, const char *name, nib_err *err)
{
    const nib_machines *known = &engine->machines;
    const size_t here = 1 + engine->gpu_count, most = here + known->count;
    nib_text words, near;
    char shown[NIB_SHOWN];
    const char **names = nib__calloc(&engine->allocator, most, sizeof *names);
    if (names == NULL)
        return nib__fail_memory(err, most * sizeof *names, "names of machines");
    names[0] = engine->here.name;
    for (size_t i = 0; i < engine->gpu_count; i++)
        names[1 + i] = engine->gpus[i].name;
    for (size_t i = 0; i < known->count; i++)
        names[here + i] = known->items[i].name;
    nib__text_init(&words, &engine->allocator);
    nib__text_init(&near, &engine->allocator);
    nib__near_names(&near, name, names, most);
    const bool has_driver = append_driver(engine, name, &words);
    if (!has_driver && near.size != 0)
        nib__text_format(&words, "; did you mean %s", near.at);
    nib__text_str(&words, "; here: ");
    list_names(&words, names, here);
    nib__text_str(&words, has_driver ? "" : "; known: ");
    list_names(&words, names + here, has_driver ? 0 : known->count);
    const nib_status status =
        nib__fail(err, NIB_USAGE, "device \"%s\" is not %s%s", nib__escape_string(shown, name),
                  has_driver ? "here" : "known", words.failed ? "" : words.at);
    nib__text_free(&near);
    nib__text_free(&words);
    nib__release(&engine->allocator, names);
    return status;
}

/* A device that is not present, and whose file names no host, is planned as if it were in this
 * machine. */
static nib_status set_default_host(nib_engine *engine, nib_machine *device, nib_err *err)
{
    if (device->facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_CPU || device->host != NULL)
        return NIB_OK;
    device->host = &engine->here;
    return nib__engine_measure(engine, err);
}

nib_status nib__engine_machine(nib_engine *engine, nib_machine *out, const char *name,
                               nib_arena *arena, nib_err *err)
{
    const nib_machines *known;
    if (strcmp(name, engine->here.name) == 0) {
        NIB_TRY(nib__engine_measure(engine, err));
        *out = engine->here;
        return NIB_OK;
    }
    NIB_TRY(nib__engine_machines(engine, &known, err));
    if (nib__machine_is_path(name)) {
        NIB_TRY(nib__machine_read(out, name, known, arena, err));
        return set_default_host(engine, out, err);
    }
    const nib_machine *machine = nib__machines_find(known, name);
    if (machine != NULL) {
        *out = *machine;
        return set_default_host(engine, out, err);
    }
    NIB_TRY(nib__engine_find_gpus(engine, err));
    machine = nib__engine_gpu_find(engine, name);
    if (machine == NULL)
        return fail_machine(engine, name, err);
    NIB_TRY(nib__engine_measure(engine, err)); /* its host */
    *out = *machine;
    return NIB_OK;
}

nib_status nib__engine_machine_here(nib_engine *engine, nib_machine *out, nib_gpu **gpu,
                                    const char *name, nib_err *err)
{
    nib_arena arena; /* texts of a machine from a file */
    nib__arena_init(&arena, &engine->allocator, 0);
    nib_status status = nib__engine_machine(engine, out, name, &arena, err);
    if (status == NIB_OK && !out->here)
        status = nib__fail(err, NIB_USAGE, "%s is not present, so it cannot be measured", name);
    nib__arena_free(&arena);
    *gpu = NULL;
    if (status == NIB_OK && out->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU)
        status = nib__engine_gpu(gpu, engine, out, err);
    return status;
}

/* Whether a driver runs kernels for this engine. */
static const nib_gpu_found *opened_gpu(const nib_engine *e)
{
    for (size_t i = 0; i < e->gpu_count; i++)
        if (e->opened[i] != NULL)
            return &e->gpus[i];
    return NULL;
}

nib_status nib__engine_sandbox(nib_engine *e, nib_sandbox_task task, char note[NIB_SANDBOX_TEXT],
                               nib_err *err)
{
    nib_sandbox_result r = {.landlock = false};
    const nib_gpu_found *gpu = opened_gpu(e);
    note[0] = '\0';
    if (e->sandbox == NIB_SANDBOX_OFF)
        return NIB_OK;
    if (gpu == NULL)
        nib__sandbox_enter(&r, task, e->pool, NIB_SANDBOX_NEWEST);
    else
        snprintf(r.text, sizeof r.text,
                 "off: the driver of %s compiles kernels and opens files at any time",
                 gpu->machine.name);
    if (e->sandbox == NIB_SANDBOX_ON && !(r.landlock && r.seccomp))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "--sandbox on: %s; `--sandbox auto` runs with what there is", r.text);
    memcpy(note, r.text, sizeof r.text);
    return NIB_OK;
}

bool nib__engine_progress(const nib_engine *engine, const char *what, uint64_t done, uint64_t total)
{
    const nib_callbacks *c = &engine->callbacks;
    return c->progress == NULL || c->progress(c->ctx, what, done, total);
}
