/* SPDX-License-Identifier: Apache-2.0
 *
 * quantization_config of config.json: which tool wrote the weights, and how. One reader for every
 * quant_method; methods without a dialect are refused by name. Dialects look up how a module is
 * coded and check the tensors themselves.
 */
#ifndef NIB_QUANTIZATION_H
#define NIB_QUANTIZATION_H

#include "ledger.h"
#include "targets.h"

typedef enum nib_method {
    NIB_METHOD_NONE, /* not given, or a method whose weights describe themselves */
    NIB_METHOD_COMPRESSED,
    NIB_METHOD_GPTQ,
    NIB_METHOD_AWQ,
    NIB_METHOD_FP8,
    NIB_METHOD_MODELOPT,
} nib_method;

enum { NIB_WORD = 32 }; /* bytes of a short string of the config */

/* How compressed-tensors or ModelOpt codes weights or activations. Empty strings: not given. */
typedef struct nib_coding {
    bool given;
    int64_t bits;
    char type[NIB_WORD]; /* "int", "float" */
    bool symmetric;
    char strategy[NIB_WORD]; /* "tensor", "channel", "group", "tensor_group", "block", "token" */
    int64_t group;           /* -1: a row; 0: not given */
    int64_t block[2];        /* rows and columns that share a scale; 0: not given */
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
    const char *method_name; /* as in the file; NULL: none */
    const char *family; /* model_type of the model, whose names the lists have; NULL: unknown */
    /* compressed-tensors and ModelOpt */
    char format[NIB_WORD];
    nib_coding_group *groups; /* [group_count] */
    size_t group_count;
    nib_targets ignore;
    nib_target_limits expressions; /* counted over all target lists */
    bool has_kv_cache;             /* asks for a quantized KV cache */
    /* GPTQ and AWQ */
    int64_t bits;
    int64_t group;            /* elements of k per scale; -1: a row */
    bool zeros_less_one;      /* GPTQ's first version stores zero point - 1 */
    char order[NIB_WORD];     /* desc_act: "true", "false" */
    char symmetric[NIB_WORD]; /* GPTQ's sym, or the opposite of AWQ's zero_point */
    /* all others */
    nib_targets kept;  /* modules that stay floats: names, or dotted parts of names */
    bool kept_unknown; /* other modules may stay floats, too */
    /* FP8 */
    int64_t block[2]; /* 0: no blocks */
    char act[NIB_WORD];
    double act_limit; /* FBGEMM clips larger activations; 0: none are clipped */
} nib_quantization;

/* *raw: the text of config.json's quantization_config, or of compression_config, as older files of
 * compressed-tensors call it; NULL: it has neither, or null. name: file name for messages. */
nib_status nib__quantization_find(const char **raw, const char *name, const char *text, size_t size,
                                  nib_arena *arena, nib_err *err);
/* text: the JSON object. name: file name for messages. method: its quant_method, or NULL if the
 * object says it. Everything except patterns is allocated in the arena. Keys that are not read go
 * to ledger (NULL allowed). */
nib_status nib__quantization_parse(nib_quantization **out, const char *name, const char *text,
                                   size_t size, const char *method, nib_arena *arena,
                                   const nib_allocator *a, nib_ledger *ledger, nib_err *err);
void nib__quantization_free(nib_quantization *q); /* frees the patterns; NULL allowed */

/* How ModelOpt codes what a quant_algo names ("NVFP4"), in groups of `group` inputs (0: the
 * usual size). False: Nibble does not read it. */
bool nib__modelopt_algorithm(nib_coding *weights, nib_coding *inputs, const char *algorithm,
                             int64_t group);
/* Whether modules are assigned to config groups; otherwise all modules are coded alike, and `kept`
 * lists those that are not coded. */
bool nib__quantization_has_groups(const nib_quantization *q);

/* *out: whether the config says that the module stays floats. */
nib_status nib__quantization_keeps(bool *out, const nib_quantization *q, const char *module,
                                   nib_err *err);
/* *out: the config group of the module's linear weight, or NULL. A target that names the module
 * takes precedence over the class Linear. */
nib_status nib__quantization_group(const nib_coding_group **out, const nib_quantization *q,
                                   const char *module, nib_err *err);
enum { NIB_FP8_INPUTS = 96 };
/* FP8: whether activations are e4m3 per token; else out (NULL allowed) describes those asked for,
 * which no kernel has, and they stay floats. */
bool nib__quantization_fp8_inputs(char out[NIB_FP8_INPUTS], const nib_quantization *q);
/* Entries of lists of modules that match no module. */
typedef struct nib_unmatched {
    size_t count;
    const char *first;
} nib_unmatched;

/* Of the list of modules that stay floats, and of ModelOpt's quantized_layers. Not counted (0) if
 * that takes too many comparisons. */
nib_status nib__quantization_unmatched(nib_unmatched *kept, nib_unmatched *coded,
                                       const nib_quantization *q, const char *const *modules,
                                       size_t module_count, nib_arena *arena, nib_err *err);

#endif
