/* SPDX-License-Identifier: Apache-2.0
 *
 * Another engine's benchmark beside ours: llama.cpp's llama-bench, or a program that takes its
 * options and writes its JSON.
 */
#ifndef NIB_BENCH_PEER_H
#define NIB_BENCH_PEER_H

#include "engine.h"

/* What it found in one run of a prompt and of new tokens. */
typedef struct nib_peer_run {
    nib_bench_speeds speeds;  /* 0: it has none */
    uint64_t model_bytes;     /* of all tensors, as it says; 0: it does not */
    char build[64], type[64]; /* "0c1e570", "llama 1B Q4_0"; empty: not said */
} nib_peer_run;

/* Reads what the program wrote: the list of JSON in it, whatever stands before. name is what errors
 * say. */
nib_status nib__peer_parse(nib_peer_run *out, const char *name, const char *text, size_t size,
                           const nib_allocator *a, nib_err *err);
/* One run, with the engine's number of threads. The last line of its standard error is in the
 * sentence of a failure. */
nib_status nib__peer_run(nib_peer_run *out, const nib_engine *engine, const nib_bench_peer *peer,
                         int64_t prompt_tokens, int64_t new_tokens, nib_err *err);
/* Bytes of a GGUF's file, 0: it cannot be opened; and those of weights that a token is multiplied
 * with, 0: it has types that are not known here. */
void nib__peer_file(uint64_t *file_bytes, uint64_t *token_bytes, const char *path,
                    const nib_allocator *a);

#endif
