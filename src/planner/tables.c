/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of the public interface that need no model.
 */
#include "arch.h"
#include "public_struct.h"
#include "dialect_table.h"
#include "plan_handle.h"

nib_status nib_recipes_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    return nib__recipes_write(form, &engine->allocator, sink, err);
}

nib_status nib_formats_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__dialects_render(form, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_models_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__families_render(form, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_kernels_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_text text;
    const nib_machines *known;
    NIB_TRY(nib__engine_machines(engine, &known, err));
    nib__text_init(&text, &engine->allocator);
    nib__kernels_render(form, &text);
    if (form == NIB_FORM_MARKDOWN)
        nib__support_render(known, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_devices_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_TRY(nib__engine_measure(engine, err));
    nib_text text;
    const nib_machines *known;
    NIB_TRY(nib__engine_machines(engine, &known, err));
    NIB_TRY(nib__engine_find_gpus(engine, err));
    nib_machines_here here = {.items = {&engine->here},
                              .count = 1,
                              .missing = engine->no_gpus.at ? engine->no_gpus.at : ""};
    for (size_t i = 0; i < engine->gpu_count; i++)
        here.items[here.count++] = &engine->gpus[i].machine;
    nib__text_init(&text, &engine->allocator);
    nib__devices_render(form, &here, known, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_device_write(nib_engine *engine, const char *name, nib_form form,
                            const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine, name", engine, name);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_machine machine;
    nib_arena arena;
    nib_text text;
    nib__arena_init(&arena, &engine->allocator, 0);
    nib__text_init(&text, &engine->allocator);
    nib_status status = nib__engine_machine(engine, &machine, name, &arena, err);
    if (status == NIB_OK) {
        nib__device_render(form, &machine, &text);
        status = nib__text_flush(&text, sink, err);
    }
    nib__text_free(&text);
    nib__arena_free(&arena);
    return status;
}

nib_status nib_train_keys_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__train_keys_render(form, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
