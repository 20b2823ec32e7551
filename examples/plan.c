/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what will run for a model and a recipe, and why.
 * cc plan.c -o plan $(pkg-config --cflags --libs --static nibble) && ./plan MODEL RECIPE
 */
#include <nibble.h>
#include <stdio.h>

static nib_status print(void *ctx, const char *bytes, size_t size)
{
    return fwrite(bytes, 1, size, ctx) == size ? NIB_OK : NIB_IO;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: plan MODEL RECIPE\n");
        return 2;
    }
    nib_err err = {NIB_OK, ""};
    nib_engine *engine = NULL;
    nib_model *model = NULL;
    nib_plan *plan = NULL;
    const nib_request request = {.recipe = argv[2]};
    const nib_sink sink = {print, stdout};
    if (nib_engine_open(&engine, NULL, &err) != NIB_OK ||
        nib_model_open(&model, engine, argv[1], NULL, &err) != NIB_OK ||
        nib_plan_make(&plan, model, &request, &err) != NIB_OK ||
        nib_plan_write(plan, NIB_FORM_TEXT, &sink, &err) != NIB_OK ||
        nib_plan_status(plan, &err) != NIB_OK)
        fprintf(stderr, "%s\n", err.text);
    nib_plan_free(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return nib_status_exit(err.status);
}
