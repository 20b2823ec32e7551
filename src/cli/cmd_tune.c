/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble tune: measures which kernels are fastest on this machine, shows the results, deletes them.
 */
#include "cli.h"

static int tune_model(nib_model *model, nib_engine *engine, const settings *s)
{
    (void)engine;
    const nib_request request = request_of(s);
    const nib_sink sink = report_sink(s);
    nib_err err;
    const nib_status status = nib_tune(model, &request, form_of(s), &sink, &err);
    clear_progress();
    return status == NIB_OK ? finish_stdout(0) : fail(&err);
}

static int clear(nib_engine *engine, const settings *s)
{
    bool found;
    nib_err err;
    if (nib_tune_clear(engine, &found, &err) != NIB_OK)
        return fail(&err);
    if (s->json)
        printf("{\"schema\": 1, \"cleared\": %s}\n", found ? "true" : "false");
    else if (!s->quiet)
        puts(found ? "deleted the tuning results of this machine"
                   : "there are no tuning results of this machine");
    return finish_stdout(0);
}

static int show(nib_engine *engine, const settings *s)
{
    const nib_sink sink = report_sink(s);
    nib_err err;
    return nib_tune_show(engine, form_of(s), &sink, &err) == NIB_OK ? finish_stdout(0) : fail(&err);
}

int run_tune(const settings *s)
{
    const char *path = model_path(s);
    if (path && s->clear)
        return fail_usage("--clear deletes the tuning results of all models on this machine; leave "
                          "out %s",
                          path);
    const char *useless = s->device ? "device" : first_model_option(s);
    if (!path && useless)
        return fail_usage("--%s needs MODEL; without one, `nibble tune` %s all tuning results of "
                          "this machine",
                          useless, s->clear ? "deletes" : "shows");
    if (path)
        return with_model(s, "", (nib_model_options){0}, tune_model);
    nib_engine *engine;
    int status = open_engine(&engine, s);
    if (status)
        return status;
    status = s->clear ? clear(engine, s) : show(engine, s);
    nib_engine_close(engine);
    return status;
}
