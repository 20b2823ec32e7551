/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the scales of a layer's inputs can go: into the norm that makes them, or into the rows of
 * the linear layer that makes them, so that the model computes the same function of floats.
 */
#ifndef NIB_FOLD_H
#define NIB_FOLD_H

#include "network.h"
#include "quantize.h"

enum { NIB_FOLD_READERS = 8 };

/* The linear layers of a decoder layer that read one value, and what makes it. */
typedef struct nib_fold_group {
    size_t sites[NIB_FOLD_READERS]; /* of the network */
    int count;
    int64_t k; /* columns of the value */
    /* One of two makes the value; both unset, if `why` is set. */
    int norm;      /* number of the norm in the graph, as in nib__network_norm; -1: none */
    size_t before; /* the linear layer by whose rows it is linear; SIZE_MAX: none */
    /* Input j takes row row_of(j) of `before`: heads of attention that share keys and values read
     * the same rows. */
    int64_t head_dim, heads_per_row; /* 1 head per row: row j */
    const char *why;                 /* why the input cannot have scales; NULL: it can */
} nib_fold_group;

/* The operations that read a value. */
typedef struct nib_fold_use {
    int count;
    bool linear;                /* all are linear layers */
    const nib_graph_node *last; /* NULL: there is none */
} nib_fold_use;
nib_fold_use nib__fold_use_of(const nib_graph *g, int value);

/* Whether the method of a layer scales inputs. */
bool nib__fold_is_scaled(const nib_quantize_layer *layer);
/* The row of `before` that makes input j. */
int64_t nib__fold_row_of(const nib_fold_group *group, int64_t j);

/* Finds the groups of decoder layer `layer`, in the order of the graph; layers: [site_count], those
 * whose method scales inputs may be scaled, together if they have the same; NULL: all may. *groups
 * is in the arena. */
nib_status nib__fold_groups(nib_fold_group **groups, size_t *count, const nib_network *net,
                            int64_t layer, const nib_quantize_layer *layers, nib_arena *arena,
                            nib_err *err);

#endif
