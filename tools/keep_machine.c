/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures this machine for tests and keeps the rates even if it is busy: otherwise every command
 * of a test that makes a plan would measure again.
 * usage: keep_machine FILE    $XDG_CACHE_HOME/nibble/machine.json, in an existing folder
 */
#include "engine.h"
#include "machine.h"

#include <stdio.h>

/* Rates are kept for an instruction set and a number of threads. 0, NULL: those of the program. */
static const struct {
    const char *isa;
    int threads;
} kept[] = {{NULL, 0}, {NULL, 1}, {NULL, 2}, {NULL, 4}, {"ref", 0}, {"ref", 1}, {"avx2", 0}};

static nib_status keep(const char *path, const char *isa, int threads, nib_err *err)
{
    const nib_engine_options options = {.isa = isa, .threads = threads};
    nib_engine *engine;
    NIB_TRY(nib_engine_open(&engine, &options, err));
    nib_status status = nib__engine_measure(engine, err);
    engine->here.disturbed = false;
    if (status == NIB_OK)
        status = nib__measured_keep(&engine->here, "", path, &engine->allocator, err);
    nib_engine_close(engine);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: keep_machine FILE\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        nib_err err;
        int64_t mask;
        if (kept[i].isa != NULL && nib__cpu_isa_mask(&mask, kept[i].isa, NULL) != NIB_OK)
            continue; /* a processor without it */
        if (keep(argv[1], kept[i].isa, kept[i].threads, &err) != NIB_OK) {
            fprintf(stderr, "keep_machine: %s\n", err.text);
            return 1;
        }
    }
    return 0;
}
