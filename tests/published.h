/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: checks a published config.json. It must parse, have as many weights as the model
 * card says, and plan without weights for another machine. Include it after cmocka.h.
 */
#ifndef NIB_TESTS_PUBLISHED_H
#define NIB_TESTS_PUBLISHED_H

#include "arch.h"
#include "session_handle.h"

#include <math.h>

#include "parsed_config.h"
#include "safetensors_build.h"

static nib_engine *engine;
static char directory[256]; /* holds its config.json */
/* The machine and recipes of the plans; a test of larger models sets others. */
static const char *machine = "xeon-spr", *recipes[] = {"8da4w", "int8wo"};

static int open_published(void **state)
{
    (void)state;
    make_directory(directory);
    return nib_engine_open(&engine, NULL, NULL) == NIB_OK ? 0 : -1;
}

static int close_published(void **state)
{
    (void)state;
    nib_engine_close(engine);
    drop_directory(directory);
    return 0;
}

/* Number of weights in matrices, counting a tied head once. */
static void check_weights(parsed *p, const char *name, double billions)
{
    nib_graph graph;
    double weights = 0;
    if (nib__arch_build(&graph, &p->config, &p->arena, &allocator, &p->err) != NIB_OK)
        fail_msg("%s: %s", name, p->err.text);
    const size_t count = graph.kind_count[NIB_WEIGHT_MATRIX];
    for (size_t w = 0; w < count - (size_t)p->config.tied; w++) {
        const nib_graph_weight *matrix = nib__graph_weight(&graph, NIB_WEIGHT_MATRIX, w);
        weights += (double)matrix->n * (double)matrix->k;
    }
    if (fabs(weights / 1e9 - billions) > 0.001)
        fail_msg("%s: %.4f billion weights", name, weights / 1e9);
}

/* Expects every layer and every setting of the plan to be done as asked. */
static void check_plan(nib_model *model, const char *name, const char *recipe)
{
    const nib_request request = {.recipe = recipe, .device = machine, .strict = true};
    nib_plan *plan = NULL;
    nib_err err;
    if (nib_plan_open(&plan, model, &request, &err) != NIB_OK ||
        nib_plan_status(plan, &err) != NIB_OK)
        fail_msg("%s with %s: %s", name, recipe, err.text);
    const nib_ledger *ledger = &plan->assignment.ledger;
    size_t quantized = 0;
    for (size_t i = 0; i < ledger->layer_count; i++) {
        const nib_ledger_layer *layer = &ledger->layers[i];
        if (layer->rung != NIB_RUNG_NONE || strcmp(layer->asked, layer->done) != 0)
            fail_msg("%s with %s: %s is %s, not %s", name, recipe, layer->name, layer->done,
                     layer->asked);
        quantized += strncmp(layer->asked, recipe, strlen(recipe)) == 0;
    }
    if (ledger->setting_count != 0)
        fail_msg("%s with %s: %s", name, recipe, ledger->settings[0].name);
    assert_true(quantized >= 5 * (size_t)model->net.config.layers);
    nib_plan_close(plan);
}

/* text: the contents of config.json. The caller closes *p. */
static void open_as_published(parsed *p, const char *name, const char *text, double billions)
{
    nib_model *model = NULL;
    nib_err err;
    char path[280];
    open_text(p, text);
    if (p->status != NIB_OK)
        fail_msg("%s: %s", name, p->err.text);
    if (p->ledger.setting_count != 0)
        fail_msg("%s: %s", name, p->ledger.settings[0].name);
    check_weights(p, name, billions);
    write_text(directory, "config.json", text);
    snprintf(path, sizeof path, "%s/config.json", directory);
    if (nib_model_open(&model, engine, path, NULL, &err) != NIB_OK)
        fail_msg("%s: %s", name, err.text);
    for (size_t i = 0; i < COUNT(recipes); i++)
        check_plan(model, name, recipes[i]);
    nib_model_close(model);
}

#endif
