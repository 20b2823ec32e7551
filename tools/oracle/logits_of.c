/* SPDX-License-Identifier: Apache-2.0
 *
 * For the oracles: writes the logits of a model on given token ids as raw f32 to stdout, one row
 * per id.
 *
 *     logits_of MODEL DTYPE[:RECIPE] ID...
 */
#include "nibble.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const nib_err *err)
{
    fprintf(stderr, "logits_of: %s\n", err->text);
    return 1;
}

int main(int argc, char **argv)
{
    const size_t count = argc < 4 ? 0 : (size_t)argc - 3;
    nib_engine *engine = NULL;
    nib_model *model = NULL;
    nib_plan *plan = NULL;
    nib_session *session = NULL;
    nib_err err = {NIB_OK, ""};
    const float *logits;
    if (count == 0) {
        fprintf(stderr, "usage: logits_of MODEL DTYPE[:RECIPE] ID...\n");
        return 2;
    }
    char *recipe = strchr(argv[2], ':');
    if (recipe != NULL)
        *recipe++ = 0;
    const nib_request request = {.dtype = argv[2], .recipe = recipe};
    nib_slot *slots = calloc(count, sizeof *slots);
    for (size_t i = 0; slots != NULL && i < count; i++)
        slots[i] = (nib_slot){
            .position = (int32_t)i, .token = atoi(argv[3 + i]), .outputs = NIB_SLOT_LOGITS};
    if (slots == NULL || nib_engine_open(&engine, NULL, &err) != NIB_OK ||
        nib_model_open(&model, engine, argv[1], NULL, &err) != NIB_OK ||
        nib_plan_open(&plan, model, &request, &err) != NIB_OK ||
        nib_session_open(&session, model, plan, 1, &err) != NIB_OK ||
        nib_session_step(session, slots, count, &logits, &err) != NIB_OK)
        return fail(&err);
    const size_t vocab = (size_t)nib_session_vocab(session);
    const int status =
        fwrite(logits, sizeof *logits, count * vocab, stdout) == count * vocab ? 0 : 1;
    nib_session_close(session);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    free(slots);
    return status;
}
