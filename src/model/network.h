/* SPDX-License-Identifier: Apache-2.0
 *
 * A network: config.json (or the keys of a GGUF file), the checkpoint unless only the config is at
 * hand, and the list of linear layers and other weights by name. It runs nothing; plan and runner
 * work from it.
 */
#ifndef NIB_NETWORK_H
#define NIB_NETWORK_H

#include "checkpoint.h"
#include "config.h"
#include "engine.h"
#include "generation_config.h"
#include "graph.h"
#include "head_order.h"
#include "plan.h"
#include "train_config.h"

typedef struct nib_site {
    const char *name; /* module name, without .weight */
    nib_role role;
    int64_t n, k;
    int64_t experts, top_k, heads; /* as in nib_graph_weight */
    bool shares_input;             /* likewise */
    bool bias;                     /* as config.json implies; for a checkpoint, as stored */
    nib_bias bias_form;
    nib_weight weight; /* as stored, with its bias; read once at opening. A tied head has the
                          embedding's weight and its own bias */
    nib_scheme stored;
    nib_act act;          /* nib__weight_act of the stored weight */
    const int32_t *order; /* column order of the stored weight (nib_weight.order); owned by the
                             checkpoint */
    nib_type scale_type, zero_type, act_scale_type;
    uint64_t stored_bytes; /* nib__weight_bytes of the stored weight; 0: none */
    bool plain;            /* nib__weight_is_plain */
} nib_site;

typedef struct nib_network {
    nib_engine *engine;
    nib_arena arena;
    nib_ledger notes;
    nib_config config;
    nib_generation generation;
    nib_checkpoint *checkpoint; /* NULL: config only */
    nib_checkpoint *described;  /* the GGUF whose keys are the config: the checkpoint, unless only
                                   the config is needed; NULL: config.json or params.json is */
    const char *path;           /* what was opened */
    const char *directory;      /* directory of config.json */
    nib_graph graph;            /* built from config.json; empty for an unsupported architecture */
    nib_site *sites;            /* [site_count] the graph's matrices: embedding first, head last */
    size_t site_count;
    bool tied;       /* the head uses the embedding's stored tensor */
    bool draft_head; /* of the model's draft head alone: config is of its one layer */
    bool reordered;  /* opened as NIB_NETWORK_REORDERED */
    bool reads_head; /* draft heads of the checkpoint are read, too, or alone */
    bool training;   /* opened from a training config; plans are for training steps */
    bool inspected;  /* opened for inspection; weights are not checked against the config */
    bool unknown;    /* unsupported architecture; sites are the stored matrices */
    nib_train_config train;
    const struct nib_packed *packed; /* packed.h; not owned; NULL: weights are packed at load */
} nib_network;

typedef enum nib_network_use {
    NIB_NETWORK_RUN,     /* checks every weight against config.json */
    NIB_NETWORK_DRAFT,   /* the same of the draft head alone */
    NIB_NETWORK_TRAINED, /* the same of the model with its draft head, as they train together */
    NIB_NETWORK_CONVERT, /* the same, but allows an unsupported architecture */
    NIB_NETWORK_CONFIG,  /* config.json alone */
    NIB_NETWORK_INSPECT, /* weights as stored; no sites without a config.json */
    NIB_NETWORK_REORDERED /* as RUN, in the order of the other container: head_order.h */
} nib_network_use;

/* path: a directory, a config.json, a training config, a .safetensors file beside a config.json, or
 * a .gguf file. */
nib_status nib__network_open(nib_network *out, nib_engine *engine, const char *path,
                             nib_network_use use, nib_err *err);
/* The same with options that override a training config's keys. NIB_USAGE: path is not a training
 * config. */
nib_status nib__network_open_with(nib_network *out, nib_engine *engine, const char *path,
                                  nib_network_use use, nib_strings options, nib_err *err);
void nib__network_close(nib_network *network);

/* The orders of a family with gated DeltaNet. */
void nib__network_head_order(nib_head_order *out, const nib_config *config);

NIB_INLINE const nib_site *nib__network_embed(const nib_network *net) { return &net->sites[0]; }
NIB_INLINE const nib_site *nib__network_head(const nib_network *net)
{
    return &net->sites[net->site_count - 1];
}

/* Numbers that the model has: of matrices, biases, norms and other vectors; what is shared counts
 * once. Of an unsupported architecture only matrices are known. */
uint64_t nib__network_weights(const nib_network *net);

enum { NIB_NORM_NAME = 168 };
/* Parts of a norm: the multiplier, the optional bias, and the weight as Hugging Face stores it,
 * without the family's offset. GGUF stores the multiplier. */
typedef enum nib_norm_part { NIB_NORM_WEIGHT, NIB_NORM_BIAS, NIB_NORM_STORED } nib_norm_part;
/* Formats the stored name of the graph's norm number `norm`:
 * "model.layers.0.input_layernorm.weight". */
const char *nib__network_norm_name(char out[NIB_NORM_NAME], const nib_network *net, size_t norm,
                                   nib_norm_part part);
/* Reads a part into f32 [n]; checks name, length and type. */
nib_status nib__network_norm(float *out, const nib_network *net, size_t norm, nib_norm_part part,
                             nib_err *err);

#endif
