/* SPDX-License-Identifier: Apache-2.0
 *
 * Per-layer settings of config.json: which layers have a sliding window, which use RoPE, which have
 * experts, and which a short convolution.
 */
#ifndef NIB_CONFIG_LAYERS_H
#define NIB_CONFIG_LAYERS_H

#include "config.h"

enum { NIB_LAYERS_MAX = 1024 };

/* Numbers of layers. */
typedef struct nib_layer_list {
    int64_t *at; /* [count]; NULL: the key is absent */
    int64_t count;
} nib_layer_list;

struct nib_family_row;

typedef struct nib_layers_given {
    int64_t window;        /* sliding_window, or the family's default; 0: null */
    int64_t first_window;  /* max_window_layers; negative: absent */
    bool use_window;       /* use_sliding_window */
    int64_t pattern;       /* sliding_window_pattern: every n-th layer has no window; 0: absent */
    char *pattern_letters; /* the same as letters, "LLLG": L has a window; NULL: a number, or
                              absent */
    bool *sliding;         /* [type_count] layer_types: true for sliding attention, or for the
                              family's chunked attention or convolution; NULL: absent */
    int64_t type_count;
    char *other_type; /* first of layer_types that is neither full nor this attention */
    bool *rotates;    /* [rotate_count] no_rope_layers, in which 1 means RoPE; NULL: absent */
    int64_t rotate_count;
    int64_t rotate_interval; /* no_rope_layer_interval; 0: absent */
    nib_layer_list dense;    /* mlp_only_layers: layers without experts */
    nib_layer_list mixed;    /* moe_layers: the layers with experts */
    /* full_attn_idxs: the layers without a convolution; absent: all, unless layer_types says */
    nib_layer_list attending;
} nib_layers_given;

/* Each reads the value after its key. */
bool nib__layers_read_types(nib_layers_given *given, const struct nib_family_row *family,
                            nib_json *json, nib_arena *arena);
bool nib__layers_read_rotates(nib_layers_given *given, nib_json *json, nib_arena *arena);
bool nib__layers_read_pattern(nib_layers_given *given, nib_json *json, nib_arena *arena);
bool nib__layers_read_numbers(nib_layer_list *list, nib_json *json, nib_arena *arena);
bool nib__layers_read_window(nib_layers_given *given, nib_json *json);
/* What layer_types calls attention that the family limits to a window or a chunk, or what it has in
 * place of attention. */
const char *nib__layers_local(const struct nib_family_row *family);
/* What it calls attention without such a limit. */
const char *nib__layers_full(const struct nib_family_row *family);
/* Sets windows, RoPE, experts and convolutions of layers in config, whose family and sizes must be
 * set. Adds to ledger (NULL allowed) a line for each key that is overruled. */
nib_status nib__layers_apply(nib_config *config, const nib_layers_given *given, const char *name,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err);
/* Sets a window for the layers in `layers` [layers]; NULL: by the family's rule. 0: no window,
 * which some families do not allow. `name` is the file's. */
nib_status nib__layers_window(nib_config *config, int64_t window, const bool *layers,
                              const char *name, nib_arena *arena, nib_err *err);

#endif
