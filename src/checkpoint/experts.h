/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts: every expert's matrix is a module of its own, named as in checkpoints that
 * store experts one by one, whatever the files hold. Opening a checkpoint gives the router and the
 * shared expert one name in all families, and replaces each stack of experts by views:
 *
 *   P.experts.NAME          [experts][n][k], or [experts][k][n] where a family stores x @ W
 *   P.experts.NAME.weight   [experts][n][k], also of GGUF's blocks
 *   P.NAME_blocks           U8 [experts][n][k/32][16], MXFP4 with two codes per byte, low first
 *   P.NAME_scales           U8 [experts][n][k/32], e8m0
 *   P.NAME_bias, .bias      [experts][n]
 *
 * Expert 3 is the module P.experts.3.NAME (P.3.NAME). fused.c then splits gate_up_proj.
 */
#ifndef NIB_EXPERTS_H
#define NIB_EXPERTS_H

#include "fused.h"

/* Reads model_type, and that of text_config, from the text of config.json. name: its file name. */
nib_status nib__experts_family(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                               nib_err *err);
/* Renames the parts of mixtures of experts, and replaces stacks by a view for each expert. */
nib_status nib__experts_split(nib_checkpoint *cp, nib_err *err);
/* A name that a family (model_type; NULL: unknown) gives to our module ("mlp.gate": "mlp.router" in
 * gpt_oss), of any number from 0 on. False: there is none of this number. */
bool nib__experts_other_name(char out[NIB_FUSED_NAME], const char *family, const char *module,
                             size_t number);
/* How the checkpoints that a family publishes store experts. */
typedef struct nib_experts_form {
    const char *family;
    bool across;    /* matrices are transposed, as x @ W needs them */
    bool alternate; /* rows of gate and up take turns; else all of gate come first */
    bool dotted;    /* P.experts.NAME.weight; else P.experts.NAME, P.experts.NAME_bias */
} nib_experts_form;
/* NULL: one by one. */
const nib_experts_form *nib__experts_form(const char *family);
/* The family's name of a tensor; false: it is ours. prefixed: as nib__checkpoint_prefixed. */
bool nib__experts_written_name(char out[NIB_FUSED_NAME], const char *family, bool prefixed,
                               const char *name);

#endif
