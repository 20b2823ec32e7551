/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes a checkpoint and prints the ledger.
 * cc quantize.c -o quantize $(pkg-config --cflags --libs nibble)
 * ./quantize MODEL OUT RECIPE
 */
#include <nibble_tools.h>
#include <stdio.h>

static nib_status print(void *ctx, const char *bytes, size_t size)
{
    return fwrite(bytes, 1, size, ctx) == size ? NIB_OK : NIB_IO;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: quantize MODEL OUT RECIPE\n");
        return 2;
    }
    nib_err err = {NIB_OK, ""};
    nib_engine *engine = NULL;
    nib_model *model = NULL;
    const nib_request request = {.size = sizeof request, .recipe = argv[3]};
    const nib_quantize_options options = {
        .size = sizeof options, .request = &request, .out = argv[2]};
    const nib_sink sink = {print, stdout};
    if (nib_engine_open(&engine, NULL, &err) != NIB_OK ||
        nib_model_open(&model, engine, argv[1], NULL, &err) != NIB_OK ||
        nib_quantize(model, &options, NIB_FORM_TEXT, &sink, &err) != NIB_OK)
        fprintf(stderr, "%s\n", err.text);
    nib_model_close(model);
    nib_engine_close(engine);
    return nib_status_exit(err.status);
}
