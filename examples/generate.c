/* SPDX-License-Identifier: Apache-2.0
 *
 * Continues a prompt by greedy decoding and prints the ledger's summary line.
 * cc generate.c -o generate $(pkg-config --cflags --libs --static nibble)
 * ./generate MODEL PROMPT
 */
#include <nibble.h>
#include <stdio.h>

/* Flushes, so that text appears as it is generated, and before the ledger's line on stderr. */
static nib_status print(void *ctx, const char *bytes, size_t size)
{
    return fwrite(bytes, 1, size, ctx) == size && fflush(ctx) == 0 ? NIB_OK : NIB_IO;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT\n");
        return 2;
    }
    nib_err err = {NIB_OK, ""};
    nib_engine *engine = NULL;
    nib_model *model = NULL;
    nib_plan *plan = NULL;
    nib_session *session = NULL;
    const nib_generate_options options = {.prompt = argv[2],
                                          .max_tokens = 40,
                                          .temperature = -1};
    const nib_sink text = {print, stdout}, messages = {print, stderr};
    if (nib_engine_open(&engine, NULL, &err) == NIB_OK &&
        nib_model_open(&model, engine, argv[1], NULL, &err) == NIB_OK &&
        nib_plan_make(&plan, model, NULL, &err) == NIB_OK &&
        nib_session_open(&session, model, plan, 1, &err) == NIB_OK &&
        nib_generate(session, &options, &text, NULL, &err) == NIB_OK &&
        print(stdout, "\n", 1) == NIB_OK)
        err.status = nib_plan_summary(nib_session_plan(session), &messages, &err);
    if (err.status != NIB_OK)
        fprintf(stderr, "%s\n", err.text);
    nib_session_close(session);
    nib_plan_free(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return nib_status_exit(err.status);
}
