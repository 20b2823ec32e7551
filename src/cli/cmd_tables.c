/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble devices, kernels, recipes, formats, explain: what needs no model.
 */
#include "cli.h"

typedef nib_status (*writer)(nib_engine *, nib_form, const nib_sink *, nib_err *);

static int write_table(const settings *s, writer write)
{
    nib_engine *engine;
    const int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_err err;
    const nib_sink sink = report_sink(s);
    const nib_status written = write(engine, form_of(s), &sink, &err);
    nib_engine_close(engine);
    return written == NIB_OK ? finish_stdout(0) : fail(&err);
}

int run_devices(const settings *s)
{
    const char *name = s->arguments.count != 0 ? s->arguments.items[0] : NULL;
    nib_engine *engine;
    const int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_err err;
    const nib_sink sink = report_sink(s);
    nib_status done = s->measure ? nib_devices_measure(engine, name, &err) : NIB_OK;
    clear_progress();
    if (done == NIB_OK)
        done = name != NULL ? nib_device_write(engine, name, form_of(s), &sink, &err)
                            : nib_devices_write(engine, form_of(s), &sink, &err);
    nib_engine_close(engine);
    return done == NIB_OK ? finish_stdout(0) : fail(&err);
}

int run_explain(const settings *s)
{
    nib_engine *engine;
    const int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_err err;
    const nib_sink sink = report_sink(s);
    const nib_status done = nib_codes_write(
        engine, s->arguments.count != 0 ? s->arguments.items[0] : NULL, form_of(s), &sink, &err);
    nib_engine_close(engine);
    return done == NIB_OK ? finish_stdout(0) : fail(&err);
}

int run_kernels(const settings *s) { return write_table(s, nib_kernels_write); }
int run_recipes(const settings *s) { return write_table(s, nib_recipes_write); }
int run_formats(const settings *s) { return write_table(s, nib_formats_write); }
