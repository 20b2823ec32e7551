/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble devices, kernels, models, recipes, formats, explain, train --keys: tables that need no
 * model.
 */
#include "cli.h"

typedef nib_status (*table_writer)(nib_engine *, const settings *, const nib_sink *, nib_err *);

static int write_table(const settings *s, table_writer write)
{
    nib_engine *engine;
    const int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_err err;
    const nib_sink sink = report_sink(s);
    const nib_status written = write(engine, s, &sink, &err);
    nib_engine_close(engine);
    return written == NIB_OK ? finish_stdout(0) : fail(&err);
}

/* NULL if there is none. */
static const char *first_argument(const settings *s)
{
    return s->arguments.count != 0 ? s->arguments.items[0] : NULL;
}

static nib_status write_devices(nib_engine *e, const settings *s, const nib_sink *sink,
                                nib_err *err)
{
    const char *name = first_argument(s);
    if (s->measure) {
        const nib_status status = nib_devices_measure(e, name, err);
        clear_progress();
        if (status != NIB_OK)
            return status;
    }
    return name != NULL ? nib_device_write(e, name, form_of(s), sink, err)
                        : nib_devices_write(e, form_of(s), sink, err);
}

static nib_status write_kernels(nib_engine *e, const settings *s, const nib_sink *sink,
                                nib_err *err)
{
    return nib_kernels_write(e, form_of(s), sink, err);
}

static nib_status write_recipes(nib_engine *e, const settings *s, const nib_sink *sink,
                                nib_err *err)
{
    return nib_recipes_write(e, form_of(s), sink, err);
}

static nib_status write_formats(nib_engine *e, const settings *s, const nib_sink *sink,
                                nib_err *err)
{
    return nib_formats_write(e, form_of(s), sink, err);
}

static nib_status write_models(nib_engine *e, const settings *s, const nib_sink *sink, nib_err *err)
{
    return nib_models_write(e, form_of(s), sink, err);
}

static nib_status write_codes(nib_engine *e, const settings *s, const nib_sink *sink, nib_err *err)
{
    return nib_codes_write(e, first_argument(s), form_of(s), sink, err);
}

static nib_status write_keys(nib_engine *e, const settings *s, const nib_sink *sink, nib_err *err)
{
    return nib_train_keys_write(e, form_of(s), sink, err);
}

int run_devices(const settings *s) { return write_table(s, write_devices); }
int run_kernels(const settings *s) { return write_table(s, write_kernels); }
int run_recipes(const settings *s) { return write_table(s, write_recipes); }
int run_formats(const settings *s) { return write_table(s, write_formats); }
int run_models(const settings *s) { return write_table(s, write_models); }
int run_explain(const settings *s) { return write_table(s, write_codes); }
int write_training_keys(const settings *s) { return write_table(s, write_keys); }
