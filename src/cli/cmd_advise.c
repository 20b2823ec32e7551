/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble advise: recommends a recipe for a device.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* "prompt" is the older word for "prefill". */
static bool asks_prefill(const settings *s)
{
    return s->speed && (strcmp(s->speed, "prefill") == 0 || strcmp(s->speed, "prompt") == 0);
}

enum { METHODS_MAX = 16, METHODS_SIZE = 256 };

/* The names of --method, which lie in `text`. Returns 0, or prints an error and returns the exit
 * status. */
static int read_methods(nib_strings *out, const char *names[METHODS_MAX], char text[METHODS_SIZE],
                        const settings *s)
{
    *out = (nib_strings){names, 0};
    if (s->method == NULL)
        return 0;
    if (strlen(s->method) >= METHODS_SIZE)
        return fail_usage("--method has %zu characters, more than %d", strlen(s->method),
                          METHODS_SIZE - 1);
    memcpy(text, s->method, strlen(s->method) + 1);
    for (char *at = text; at != NULL;) {
        char *comma = strchr(at, ',');
        if (out->count == METHODS_MAX)
            return fail_usage("--method: more than %d names", METHODS_MAX);
        names[out->count++] = at;
        if (comma != NULL)
            *comma++ = '\0';
        at = comma;
    }
    return 0;
}

static int advise(nib_model *model, nib_engine *engine, const settings *s)
{
    const size_t first = s->model ? 0 : 1; /* skip MODEL if it is the first argument */
    const char *names[METHODS_MAX], *temporary = getenv("TMPDIR");
    char text[METHODS_SIZE];
    nib_advise_methods methods = {.size = sizeof methods,
                                  .calibrate = s->calibrate,
                                  .imatrix = s->imatrix,
                                  .scratch = s->scratch ? s->scratch
                                             : temporary != NULL && temporary[0] != '\0' ? temporary
                                                                                         : "/tmp"};
    const int usage = read_methods(&methods.methods, names, text, s);
    if (usage != 0)
        return usage;
    const nib_request request = request_of(s);
    const nib_strings named = {s->arguments.items + first, s->arguments.count - first};
    const nib_advise_options options = {.size = sizeof options,
                                        .request = &request,
                                        .recipes = s->caches ? (nib_strings){NULL, 0} : named,
                                        .text_path = s->text,
                                        .window = s->window,
                                        .memory = s->memory,
                                        .loss_budget = or_default(s->loss_budget),
                                        .by_prefill = asks_prefill(s),
                                        .dry_run = s->dry_run,
                                        .svg = s->svg,
                                        .name = model_path(s),
                                        .methods = s->method != NULL ? &methods : NULL,
                                        .caches = s->caches ? &named : NULL};
    const nib_sink sink = report_sink(s);
    nib_err err;
    (void)engine;
    const nib_status status = nib_advise(model, &options, form_of(s), &sink, &err);
    return finish_stdout(status == NIB_OK ? 0 : fail(&err));
}

int run_advise(const settings *s)
{
    const option_given inputs[] = {{"calibrate", s->calibrate != NULL},
                                   {"imatrix", s->imatrix != NULL},
                                   {"scratch", s->scratch != NULL}};
    const char *useless = first_given(inputs, sizeof inputs / sizeof *inputs);
    if (s->speed && strcmp(s->speed, "decode") != 0 && !asks_prefill(s))
        return fail_usage("--speed: \"%s\" is not decode or prefill", s->speed);
    if (useless && !s->method)
        return fail_usage("--%s has no effect without --method", useless);
    return with_model(s,
                      "`nibble advise` needs MODEL: a directory, a config.json or a weights file",
                      (nib_model_options){0}, advise);
}
