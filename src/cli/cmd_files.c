/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble info, verify, quantize: commands about files.
 */
#include "cli.h"

#include <string.h>

int run_info(const settings *s)
{
    const char *path = model_path(s);
    if (!path)
        return fail_usage("`nibble info` wants MODEL");
    nib_engine *engine;
    int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_model *model = NULL;
    nib_err err;
    const nib_sink sink = report_sink(s);
    status = open_model(&model, engine, s, path, true);
    if (status == 0)
        status = nib_info_write(model, form_of(s), &sink, &err) == NIB_OK ? finish_stdout(0)
                                                                          : fail(&err);
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}

int run_verify(const settings *s)
{
    const char *path = model_path(s);
    if (!path)
        return fail_usage("`nibble verify` wants MODEL");
    nib_engine *engine;
    int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_model *model = NULL, *against = NULL;
    nib_err err;
    const nib_sink sink = report_sink(s);
    status = open_model(&model, engine, s, path, true);
    if (status == 0 && s->against)
        status = open_model(&against, engine, s, s->against, true);
    if (status == 0)
        status = nib_verify(model, against, form_of(s), &sink, &err) == NIB_OK ? finish_stdout(0)
                                                                               : fail(&err);
    nib_model_close(against);
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}

int run_quantize(const settings *s)
{
    const char *path = model_path(s),
               *out = s->arguments.count > 0 ? s->arguments.items[s->arguments.count - 1] : NULL;
    if (!path || !out || (!s->model && s->arguments.count < 2))
        return fail_usage("`nibble quantize` wants MODEL and OUT");
    if (!s->recipe)
        return fail_usage("`nibble quantize` wants --recipe; `nibble recipes` lists them");
    if (s->method && strcmp(s->method, "rtn") != 0)
        return fail_usage("--method %s is not built; rtn (round to nearest) is", s->method);
    nib_engine *engine;
    int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_model *model = NULL;
    nib_err err;
    const nib_sink sink = report_sink(s);
    status = open_model(&model, engine, s, path, false);
    if (status == 0) {
        const nib_quantize_options options = {.request = request_of(s),
                                              .out = out,
                                              .format = s->format,
                                              .calibrate = s->calibrate,
                                              .force = s->force,
                                              .dry_run = s->dry_run};
        status = nib_quantize(model, &options, form_of(s), &sink, &err) == NIB_OK ? finish_stdout(0)
                                                                                  : fail(&err);
        clear_progress();
    }
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}
