/* SPDX-License-Identifier: Apache-2.0
 *
 * A network: config.json (or the keys of a GGUF file) and, unless only that is at hand, the
 * checkpoint; and the list of
 * its linear layers and other weights by name. It runs nothing: plan and runner work from it.
 */
#ifndef NIB_NETWORK_H
#define NIB_NETWORK_H

#include "checkpoint.h"
#include "config.h"
#include "engine.h"
#include "generation_config.h"
#include "graph.h"
#include "plan.h"
#include "train_config.h"

typedef struct nib_site {
    const char *name; /* module, without .weight */
    nib_role role;
    int64_t n, k;
    bool shares_input; /* nib_graph_weight's */
    bool bias;         /* what config.json implies; for a checkpoint, what is stored */
    nib_bias bias_form;
    nib_weight weight; /* as stored, with the bias beside it; looked at when it was opened, so that
                          nobody need ask the checkpoint again. A tied head has the embedding's
                          weight and a bias of its own */
    nib_scheme stored;
    nib_act act;          /* nib__weight_act of what is stored */
    const int32_t *order; /* of the stored weight's columns, as nib_weight says; the checkpoint's */
    nib_type scale_type, zero_type, act_scale_type;
    uint64_t stored_bytes; /* nib__weight_bytes of what is stored; 0: nothing is */
    bool plain;            /* nib__weight_is_plain */
} nib_site;

typedef struct nib_network {
    nib_engine *engine;
    nib_arena arena;
    nib_ledger notes;
    nib_config config;
    nib_generation generation;
    nib_checkpoint *checkpoint; /* NULL: config only */
    const char *directory;      /* of config.json */
    nib_graph graph;            /* of config.json; empty: of an architecture that is not built */
    nib_site *sites;            /* [site_count] the graph's matrices: embedding first, head last */
    size_t site_count;
    bool tied;      /* the head is the embedding's stored tensor */
    bool training;  /* opened from a training config: plans are of a step */
    bool inspected; /* opened to look only: nothing was held against the config */
    bool unknown; /* of an architecture that is not built: sites are the matrices that are stored */
    nib_train_config train;
    const struct nib_packed *packed; /* packed.h; not owned; NULL: weights are packed at load */
} nib_network;

typedef enum nib_network_use {
    NIB_NETWORK_RUN,     /* every weight is held against config.json */
    NIB_NETWORK_CONVERT, /* the same, but an architecture that is not known is no error */
    NIB_NETWORK_CONFIG,  /* config.json alone */
    NIB_NETWORK_INSPECT, /* weights as they are; without a config.json there are no sites */
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

NIB_INLINE const nib_site *nib__network_embed(const nib_network *net) { return &net->sites[0]; }
NIB_INLINE const nib_site *nib__network_head(const nib_network *net)
{
    return &net->sites[net->site_count - 1];
}

enum { NIB_NORM_NAME = 168 };
/* Of a norm: what it multiplies by, the bias that it may have, and the weight as Hugging Face
 * stores it, without the offset that a family adds. GGUF stores the first. */
typedef enum nib_norm_part { NIB_NORM_WEIGHT, NIB_NORM_BIAS, NIB_NORM_STORED } nib_norm_part;
/* The stored name of the graph's norm number `norm`: "model.layers.0.input_layernorm.weight". */
const char *nib__network_norm_name(char out[NIB_NORM_NAME], const nib_network *net, size_t norm,
                                   nib_norm_part part);
/* Reads a part into f32 [n]; checks name, length and type. */
nib_status nib__network_norm(float *out, const nib_network *net, size_t norm, nib_norm_part part,
                             nib_err *err);

#endif
