/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the whole model is better by a method than rounded, if the method leaves the codes to the
 * stream. Layers run as the output will: weights by their codes, and inputs by theirs, on the
 * tokens of the text's end, of which search alone uses the squares of inputs.
 */
#ifndef NIB_CODED_CHECK_H
#define NIB_CODED_CHECK_H

#include "act_codes.h"
#include "gptq_run.h"
#include "rotate.h"

/* The inputs of a linear layer, as a run sees them. */
typedef struct nib_coded_input {
    nib_act_codes codes;  /* row NULL: the layer reads floats */
    const float *columns; /* [k] scales that its inputs have; NULL: all 1 */
    bool is_coded;        /* now, outside of the check */
    bool is_changed;      /* its weight is another in the output, by the method */
    float rounded_scale;  /* rounding's static_scale and static_zero in the check */
    int32_t rounded_zero;
} nib_coded_input;

typedef struct nib_coded_check {
    nib_gptq_run *g;
    nib_quantize_layer *layers;    /* [site_count] */
    nib_coded_input *inputs;       /* [site_count] */
    float *rows[3];                /* [NIB_CHUNK][k] for inputs of layers that run together */
    int next;                      /* of them */
    void *room;                    /* of nib__act_codes_rows */
    const nib_rotate_norms *norms; /* other ones in the output; NULL: they compute the same */
    nib_arena held;                /* weights that codes stand for, while they are loaded */
} nib_coded_check;

/* How a weight is coded. */
typedef struct nib_coded_as {
    nib_ptq_method method;
    const float *importance; /* of the scaled inputs; NULL: all count the same */
    nib_fold fold;
} nib_coded_as;

/* Allocates the inputs, and finds how those of layers with is_changed become codes. The runner of
 * check->g is open. */
nib_status nib__coded_open(nib_coded_check *check, const nib_plan *plan,
                           bool (*is_changed)(const nib_quantize_layer *layer), nib_arena *arena,
                           nib_err *err);
/* What a layer reads instead of x: nib_observer.replace; check: its ctx. */
const float *nib__coded_replace(void *check, size_t site, const float *x, int64_t ld, int64_t m,
                                int64_t k);
/* Loads a site with the weights that its codes stand for, without the scales of the fold, into
 * check->held, which must live as long as they are loaded. */
nib_status nib__coded_load(nib_coded_check *check, size_t site, const nib_coded_as *as,
                           nib_err *err);
/* A turned weight in f32, with its bias, from the arena. type: its values are those that such a
 * type stores. */
nib_status nib__coded_turn(nib_weight *out, const nib_turn *turn, nib_type type, nib_engine *engine,
                           nib_arena *arena, nib_err *err);

/* Starts the check on the text's last `tokens`: allocates their states. */
nib_status nib__coded_begin(nib_coded_check *check, int64_t tokens, nib_arena *arena, nib_err *err);
/* Moves them through a layer, which is decided, and whose weights [begin, end) are loaded as
 * stored. */
nib_status nib__coded_check_layer(nib_coded_check *check, size_t layer, size_t begin, size_t end,
                                  nib_err *err);
/* Behind the last layer: whether the model is worse than rounded, which a note says by numbers. */
nib_status nib__coded_end(nib_coded_check *check, bool *is_worse, nib_err *err);

/* The same for a method that has chosen all codes, or how the stream does. */
typedef struct nib_coded_comparison {
    const char *name;           /* of the method, for notes */
    nib_quantize_layer *layers; /* [site_count] */
    bool (*is_changed)(const nib_quantize_layer *layer);
    const nib_quantize_options *options; /* with a text */
    const nib_input_stats *stats;        /* [site_count] of the text; NULL: no scale is static */
    const nib_rotating *rotating;        /* whose norms the output has; NULL: they stay */
    nib_ledger *ledger;
    nib_arena *arena;
    int64_t tokens;      /* asked, or NIB_CHECKED_DEFAULT; result: that checked the model */
    int64_t most;        /* of them by default */
    bool keeps_rounding; /* result: the model was worse than rounded */
} nib_coded_comparison;
/* Compares the logits of the text's last tokens with the codes of the output, and with those of
 * rounding the stored weights, with those of the stored weights, and notes the divergences. Layers
 * are not changed. NIB_BAD_INPUT: the text has fewer tokens. NIB_UNSUPPORTED: layers read another
 * layer's keys. */
nib_status nib__coded_compare(nib_coded_comparison *job, nib_model *model, nib_err *err);

#endif
