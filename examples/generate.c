/* SPDX-License-Identifier: Apache-2.0
 *
 * Continues a prompt if every layer runs as asked; otherwise says which do not, and why.
 * cc generate.c -o generate $(pkg-config --cflags --libs nibble)
 * ./generate MODEL PROMPT [RECIPE]
 */
#include <nibble.h>
#include <stdio.h>

static nib_status check_layers(const nib_plan *plan, nib_err *err)
{
    nib_plan_facts facts = {.size = sizeof facts};
    nib_plan_layer layer = {.size = sizeof layer};
    nib_plan_facts_get(plan, &facts);
    for (size_t i = 0; i < facts.layers; i++) {
        if (nib_plan_layer_get(plan, i, &layer, err) != NIB_OK)
            return err->status;
        if (layer.denied)
            fprintf(stderr, "%s: nothing can run %s\n", layer.name, layer.asked);
        else if (layer.rung != NIB_RUNG_NONE)
            fprintf(stderr, "%s: asked for %s, runs as %s on rung %s\n", layer.name, layer.asked,
                    layer.done, nib_rung_name(layer.rung));
        for (size_t r = 0; r < layer.reason_count; r++)
            fprintf(stderr, "    %s: %s\n", layer.reasons[r].code, layer.reasons[r].text);
    }
    if (facts.done == facts.asked)
        return NIB_OK;
    snprintf(err->text, sizeof err->text,
             "%zu of %zu linear layers would run as asked, so nothing is run", facts.done,
             facts.asked);
    return err->status = NIB_NOT_AS_ASKED;
}

static nib_status generate(nib_session *session, const char *prompt, nib_err *err)
{
    const nib_generate_options options = {
        .size = sizeof options, .prompt = prompt, .max_tokens = 40, .temperature = -1};
    nib_generator *generator;
    nib_piece piece = {.size = sizeof piece};
    if (nib_generator_open(&generator, session, &options, err) != NIB_OK)
        return err->status;
    while (nib_generator_next(generator, &piece, err) == NIB_OK && !piece.over) {
        fwrite(piece.text, 1, piece.text_size, stdout);
        fflush(stdout);
    }
    nib_generator_close(generator);
    return err->status;
}

int main(int argc, char **argv)
{
    nib_err err = {NIB_OK, ""};
    nib_engine *engine = NULL;
    nib_model *model = NULL;
    nib_plan *plan = NULL;
    nib_session *session = NULL;
    const nib_request request = {.size = sizeof request, .recipe = argc > 3 ? argv[3] : NULL};
    if (argc < 3)
        err = (nib_err){NIB_USAGE, "usage: generate MODEL PROMPT [RECIPE]"};
    else if (nib_engine_open(&engine, NULL, &err) == NIB_OK &&
             nib_model_open(&model, engine, argv[1], NULL, &err) == NIB_OK &&
             nib_plan_open(&plan, model, &request, &err) == NIB_OK &&
             check_layers(plan, &err) == NIB_OK &&
             nib_session_open(&session, model, plan, 1, &err) == NIB_OK &&
             generate(session, argv[2], &err) == NIB_OK)
        putchar('\n');
    if (err.status != NIB_OK)
        fprintf(stderr, "%s: %s\n", nib_status_name(err.status), err.text);
    nib_session_close(session);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return nib_status_exit(err.status);
}
