/* SPDX-License-Identifier: Apache-2.0
 *
 * What config.json's quantization_config says: which tool wrote the weights and how. One reader for
 * every quant_method; methods that no dialect here reads are refused by name. The dialects ask it
 * how a module is coded; the tensors are theirs to check.
 */
#ifndef NIB_QUANTIZATION_H
#define NIB_QUANTIZATION_H

#include "ledger.h"
#include "targets.h"

typedef enum nib_method {
    NIB_METHOD_NONE, /* none is named, or one whose weights describe themselves */
    NIB_METHOD_COMPRESSED,
    NIB_METHOD_GPTQ,
    NIB_METHOD_AWQ,
    NIB_METHOD_FP8,
} nib_method;

enum { NIB_WORD = 32 }; /* bytes of a word of the config */

/* How compressed-tensors codes weights or activations; words are empty where nothing is said. */
typedef struct nib_coding {
    bool given;
    int64_t bits;
    char type[NIB_WORD]; /* "int", "float" */
    bool symmetric;
    char strategy[NIB_WORD]; /* "tensor", "channel", "group", "tensor_group", "block", "token" */
    int64_t group;           /* -1: a row; 0: not said */
    int64_t block[2];        /* rows and columns that share a scale; 0: not said */
    char order[NIB_WORD];    /* actorder: "group", "weight", ... */
    char dynamic[NIB_WORD];  /* "true", "false", "local" */
} nib_coding;

typedef struct nib_coding_group {
    const char *name; /* "group_0" */
    char format[NIB_WORD];
    nib_targets targets;
    nib_coding weights, inputs, outputs;
} nib_coding_group;

typedef struct nib_quantization {
    nib_method method;
    const char *method_name; /* as written; NULL: none */
    /* compressed-tensors */
    char format[NIB_WORD];
    nib_coding_group *groups; /* [group_count] */
    size_t group_count;
    nib_targets ignore;
    nib_target_limits expressions; /* in all lists of targets */
    bool has_kv_cache;  /* keys and values are to be kept in codes, too */
    /* GPTQ and AWQ */
    int64_t bits;
    int64_t group;            /* elements of k per scale; -1: a row */
    bool zeros_less_one;      /* GPTQ's first version stores a zero point less 1 */
    char order[NIB_WORD];     /* desc_act: "true", "false" */
    char symmetric[NIB_WORD]; /* GPTQ's sym, or the contrary of AWQ's zero_point */
    /* all but compressed-tensors */
    nib_targets kept;  /* names of modules, or parts of them, that stay floats */
    bool kept_unknown; /* others stay floats, too */
    /* FP8 */
    int64_t block[2]; /* 0: no blocks */
    char act[NIB_WORD];
} nib_quantization;

/* text: the JSON object. name: of the file, for messages. Memory but for patterns is the arena's.
 * Keys that no part reads go to ledger (NULL allowed). */
nib_status nib__quantization_parse(nib_quantization **out, const char *name, const char *text,
                                   size_t size, nib_arena *arena, const nib_allocator *a,
                                   nib_ledger *ledger, nib_err *err);
void nib__quantization_free(nib_quantization *q); /* its patterns; NULL allowed */

/* *out: the config says of the module that it stays floats. */
nib_status nib__quantization_keeps(bool *out, const nib_quantization *q, const char *module,
                                   nib_err *err);
/* *out: the group that describes the module's linear weight, or NULL. A target that names a module
 * goes before one that names the class Linear. */
nib_status nib__quantization_group(const nib_coding_group **out, const nib_quantization *q,
                                   const char *module, nib_err *err);

#endif
