/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble plan: prints the whole plan, then exits 4 if a layer has no allowed kernel.
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

static int plan_model(nib_model *model, nib_engine *engine, const settings *s)
{
    nib_plan *plan = NULL;
    nib_model *draft;
    nib_request request = request_of(s);
    nib_err err;
    int status = open_draft(&draft, engine, s, model_path(s), &request);
    if (status == 0)
        status = nib_plan_open(&plan, model, &request, &err) == NIB_OK ? write_plan(plan, s)
                                                                       : fail(&err);
    nib_plan_close(plan);
    nib_model_close(draft);
    return status;
}

int run_plan(const settings *s)
{
    return with_model(
        s, "`nibble plan` needs MODEL: a directory, a config.json or a .safetensors file",
        (nib_model_options){0}, plan_model);
}
