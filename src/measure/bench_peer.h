/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs another engine's benchmark: llama.cpp's llama-bench, or a program with the same options and
 * JSON.
 */
#ifndef NIB_BENCH_PEER_H
#define NIB_BENCH_PEER_H

#include "engine.h"

/* Results of one run of a prompt and of new tokens. */
typedef struct nib_peer_run {
    nib_bench_speeds speeds;  /* 0: not reported */
    uint64_t model_bytes;     /* of all tensors, as reported; 0: not reported */
    char build[64], type[64]; /* "0c1e570", "llama 1B Q4_0"; empty: not reported */
} nib_peer_run;

/* Parses the output of the program: the first JSON list in it, after any other text. name is for
 * errors. */
nib_status nib__peer_parse(nib_peer_run *out, const char *name, const char *text, size_t size,
                           const nib_allocator *a, nib_err *err);
/* Runs the program once, with the engine's number of threads. On failure the error quotes the last
 * line of its standard error. */
nib_status nib__peer_run(nib_peer_run *out, const nib_engine *engine, const nib_bench_peer *peer,
                         int64_t prompt_tokens, int64_t new_tokens, nib_err *err);
/* file_bytes: size of a GGUF file; 0: it cannot be opened. token_bytes: bytes of the weights that a
 * token is multiplied with; 0: it has unknown types. expert_share: of the experts of a layer, those
 * that a token chooses. */
void nib__peer_file(uint64_t *file_bytes, uint64_t *token_bytes, const char *path,
                    double expert_share, const nib_allocator *a);

#endif
