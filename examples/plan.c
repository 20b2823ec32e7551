/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a plan as structs: what runs for each layer of a model, why, and what else was asked for
 * but is done differently. `nibble plan` prints the same.
 * cc plan.c -o plan $(pkg-config --cflags --libs nibble)
 * ./plan MODEL RECIPE
 */
#include <nibble.h>
#include <stdio.h>

static nib_status print_layer(const nib_plan *plan, size_t index, nib_err *err)
{
    nib_plan_layer layer = {.size = sizeof layer};
    nib_plan_use use = {.size = sizeof use};
    nib_plan_advice advice = {.size = sizeof advice};
    nib_status status = nib_plan_layer_get(plan, index, &layer, err);
    if (status != NIB_OK)
        return status;
    printf("%s: %s", layer.name, layer.asked);
    if (layer.denied)
        printf(", nothing can run it");
    else if (layer.rung != NIB_RUNG_NONE)
        printf(", runs as %s on rung %s", layer.done, nib_rung_name(layer.rung));
    printf("\n");
    for (size_t i = 0; i < layer.uses && status == NIB_OK; i++) {
        status = nib_plan_use_get(plan, index, i, &use, err);
        if (status == NIB_OK)
            printf("    from %lld tokens: %s, %.1f us\n", (long long)use.m_min, use.kernel,
                   use.predicted_us);
    }
    for (size_t i = 0; i < layer.reason_count; i++)
        printf("    %s: %s\n", layer.reasons[i].code, layer.reasons[i].text);
    for (size_t i = 0; i < layer.advice && status == NIB_OK; i++) {
        status = nib_plan_advice_get(plan, index, i, &advice, err);
        if (status == NIB_OK)
            printf("    try %s: %s\n", advice.option != NULL ? advice.option : advice.code,
                   advice.text);
    }
    return status;
}

static nib_status print_plan(const nib_plan *plan, nib_err *err)
{
    nib_plan_facts facts = {.size = sizeof facts};
    nib_plan_setting setting = {.size = sizeof setting};
    nib_status status = NIB_OK;
    nib_plan_facts_get(plan, &facts);
    for (size_t i = 0; i < facts.layers && status == NIB_OK; i++)
        status = print_layer(plan, i, err);
    for (size_t i = 0; i < facts.settings && status == NIB_OK; i++) {
        status = nib_plan_setting_get(plan, i, &setting, err);
        if (status == NIB_OK)
            printf("%s (%s): %s\n", setting.name, nib_setting_relation_name(setting.relation),
                   setting.text);
    }
    printf("%s on %s: %zu of %zu linear layers as asked, %zu substituted, %zu denied\n",
           facts.recipe != NULL ? facts.recipe : "as stored", facts.device, facts.done, facts.asked,
           facts.substituted, facts.denied);
    return status != NIB_OK ? status : nib_plan_status(plan, err);
}

int main(int argc, char **argv)
{
    nib_err err = {NIB_OK, ""};
    nib_engine *engine = NULL;
    nib_model *model = NULL;
    nib_plan *plan = NULL;
    if (argc != 3) {
        fprintf(stderr, "usage: plan MODEL RECIPE\n");
        return nib_status_exit(NIB_USAGE);
    }
    const nib_request request = {.size = sizeof request, .recipe = argv[2]};
    if (nib_engine_open(&engine, NULL, &err) != NIB_OK ||
        nib_model_open(&model, engine, argv[1], NULL, &err) != NIB_OK ||
        nib_plan_open(&plan, model, &request, &err) != NIB_OK || print_plan(plan, &err) != NIB_OK)
        fprintf(stderr, "%s: %s\n", nib_status_name(err.status), err.text);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return nib_status_exit(err.status);
}
