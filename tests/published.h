/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: a published config.json, which is parsed, has the weights that its card says, and is
 * planned without a weight on a machine that is not here. Include it after cmocka.h.
 */
#ifndef NIB_TESTS_PUBLISHED_H
#define NIB_TESTS_PUBLISHED_H

#include "arch.h"
#include "session_handle.h"

#include <math.h>

#include "parsed_config.h"
#include "safetensors_build.h"

static nib_engine *engine;
static char directory[256]; /* of its config.json */

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

/* Weights in matrices, a tied head counted once. */
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

/* Every layer is done as asked, and nothing else of the plan is other than asked. */
static void check_plan(nib_model *model, const char *name, const char *recipe)
{
    const nib_request request = {.recipe = recipe, .device = "xeon-spr", .strict = true};
    nib_plan *plan = NULL;
    nib_err err;
    if (nib_plan_make(&plan, model, &request, &err) != NIB_OK ||
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
    nib_plan_free(plan);
}

/* text: the config.json. The caller closes *p. */
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
    check_plan(model, name, "8da4w");
    check_plan(model, name, "int8wo");
    nib_model_close(model);
}

#endif
