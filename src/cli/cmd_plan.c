/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble plan: prints everything, then exits 4 if a layer has no allowed way.
 */
#include "cli.h"

static int write_plan(const nib_plan *plan, const settings *s)
{
    nib_err err;
    const nib_sink sink = report_sink(s), errors = stderr_sink();
    if (nib_plan_write(plan, form_of(s), &sink, &err) != NIB_OK)
        return fail(&err);
    const nib_status status = nib_plan_status(plan, &err);
    if (status != NIB_OK)
        return finish_stdout(fail(&err));
    if (!s->quiet && nib_plan_summary(plan, &errors, &err) != NIB_OK)
        return fail(&err);
    return finish_stdout(0);
}

int run_plan(const settings *s)
{
    const char *path = model_path(s);
    if (!path)
        return fail_usage(
            "`nibble plan` wants MODEL: a directory, a config.json or a .safetensors file");
    nib_engine *engine;
    int status = open_engine(&engine, s);
    if (status)
        return status;
    nib_model *model = NULL;
    nib_plan *plan = NULL;
    status = open_model(&model, engine, s, path, false);
    if (status == 0) {
        const nib_request request = request_of(s);
        nib_err err;
        status = nib_plan_make(&plan, model, &request, &err) == NIB_OK ? write_plan(plan, s)
                                                                       : fail(&err);
    }
    nib_plan_free(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}
