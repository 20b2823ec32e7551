/* SPDX-License-Identifier: Apache-2.0
 *
 * What config.json says of single layers: which of them see a window of positions, and which rotate
 * by positions.
 */
#ifndef NIB_CONFIG_LAYERS_H
#define NIB_CONFIG_LAYERS_H

#include "config.h"

enum { NIB_LAYERS_MAX = 1024 };

typedef struct nib_layers_said {
    int64_t window;        /* sliding_window, or what the family has without it; 0: null */
    int64_t first_window;  /* max_window_layers; negative: absent */
    bool use_window;       /* use_sliding_window */
    int64_t pattern;       /* sliding_window_pattern: every such layer has no window; 0: absent */
    char *pattern_letters; /* the same as "LLLG": L has a window; NULL: it is a number */
    bool *sliding;         /* [type_count] layer_types; NULL: absent */
    int64_t type_count;
    char *other_type; /* the first of layer_types that is neither full nor sliding attention */
    bool *rotates;    /* [rotate_count] no_rope_layers, as it has them: 1 is with positions; NULL:
                         absent */
    int64_t rotate_count;
    int64_t rotate_interval; /* no_rope_layer_interval; 0: absent */
} nib_layers_said;

/* Each reads the value behind its key. */
bool nib__layers_read_types(nib_layers_said *said, nib_json *json, nib_arena *arena);
bool nib__layers_read_rotates(nib_layers_said *said, nib_json *json, nib_arena *arena);
bool nib__layers_read_pattern(nib_layers_said *said, nib_json *json, nib_arena *arena);
bool nib__layers_read_window(nib_layers_said *said, nib_json *json);
/* Writes windows and rotation of layers into config, whose family and sizes are known, and a line
 * for what is overruled into ledger; NULL: no lines. */
nib_status nib__layers_apply(nib_config *config, const nib_layers_said *said, const char *name,
                             nib_arena *arena, nib_ledger *ledger, nib_err *err);
/* A window in the layers [layers] that have it; NULL: as the family's rule says. 0: there is none,
 * which a family may not allow. name: of the file. */
nib_status nib__layers_window(nib_config *config, int64_t window, const bool *layers,
                              const char *name, nib_arena *arena, nib_err *err);

#endif
