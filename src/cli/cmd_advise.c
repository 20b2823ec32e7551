/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble advise: recommends a recipe for a device.
 */
#include "cli.h"

#include <string.h>

/* "prompt" is the older word for "prefill". */
static bool asks_prefill(const settings *s)
{
    return s->speed && (strcmp(s->speed, "prefill") == 0 || strcmp(s->speed, "prompt") == 0);
}

static int advise(nib_model *model, nib_engine *engine, const settings *s)
{
    const size_t first = s->model ? 0 : 1; /* skip MODEL if it is the first argument */
    const nib_request request = request_of(s);
    const nib_advise_options options = {
        .size = sizeof options,
        .request = &request,
        .recipes = {s->arguments.items + first, s->arguments.count - first},
        .text_path = s->text,
        .window = s->window,
        .memory = s->memory,
        .loss_budget = or_default(s->loss_budget),
        .by_prefill = asks_prefill(s),
        .dry_run = s->dry_run,
        .svg = s->svg,
        .name = model_path(s)};
    const nib_sink sink = report_sink(s);
    nib_err err;
    (void)engine;
    const nib_status status = nib_advise(model, &options, form_of(s), &sink, &err);
    return finish_stdout(status == NIB_OK ? 0 : fail(&err));
}

int run_advise(const settings *s)
{
    if (s->speed && strcmp(s->speed, "decode") != 0 && !asks_prefill(s))
        return fail_usage("--speed: \"%s\" is not decode or prefill", s->speed);
    return with_model(s,
                      "`nibble advise` needs MODEL: a directory, a config.json or a weights file",
                      (nib_model_options){0}, advise);
}
