/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of the public interface that need no model.
 */
#include "formats.h"
#include "library.h"

nib_status nib_recipes_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    return nib__recipes_write(form, &engine->allocator, sink, err);
}

nib_status nib_formats_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__formats_render(form, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_kernels_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__kernels_render(form, &text);
    if (form == NIB_FORM_MARKDOWN)
        nib__support_render(&text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_devices_write(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_TRY(nib__engine_measure(engine, err));
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__devices_render(form, &engine->here, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_train_keys_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                nib_err *err)
{
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__train_keys_render(form, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
