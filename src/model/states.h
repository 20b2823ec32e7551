/* SPDX-License-Identifier: Apache-2.0
 *
 * What layers keep of a sequence in place of keys and values: the last inputs of their short
 * convolution, f32 whatever the type of the KV cache. An input is in the row of its position modulo
 * the rows, so a sequence can be rolled back by NIB_STATE_SPARE positions, and to its start.
 */
#ifndef NIB_STATES_H
#define NIB_STATES_H

#include "memory.h"

enum {
    NIB_STATE_SPARE = 64 /* positions that a sequence can be rolled back: the longest draft */
};

typedef struct nib_state_shape {
    int64_t layers;  /* of the model */
    const bool *has; /* [layers] layers with a state; NULL: none */
    int64_t channels, taps, sequences;
} nib_state_shape;

typedef struct nib_states {
    const nib_allocator *allocator;
    float *block; /* [count][sequences][room][channels] */
    uint64_t bytes;
    int64_t count; /* layers with a state; 0: none, and nothing is allocated */
    int64_t sequences, channels, taps, room;
    int32_t *place;  /* [layers] index of the layer's state; -1: it has none */
    int32_t *firsts; /* [sequences] the first position whose input is there */
} nib_states;

/* Layers with a state, and bytes of all states. NIB_NO_MEMORY: they are over a limit. */
int64_t nib__states_count(const nib_state_shape *shape);
nib_status nib__states_measure(uint64_t *bytes, const nib_state_shape *shape, nib_err *err);
/* An all-zero nib_states has no layers; the calls below do nothing with it. */
nib_status nib__states_open(nib_states *out, const nib_state_shape *shape, const nib_allocator *a,
                            nib_err *err);
void nib__states_close(nib_states *states);
/* A pass will write the input of this position, over that of an earlier one. */
void nib__states_place(nib_states *states, int64_t sequence, int64_t position);
/* Whether the inputs that the token at `position` reads are there. */
bool nib__states_reach(const nib_states *states, int64_t sequence, int64_t position);
/* The sequence is empty now. */
void nib__states_clear(nib_states *states, int64_t sequence);
/* Gives the sequence `to` the state of `from`. */
void nib__states_copy(nib_states *states, int64_t from, int64_t to);
/* The content of a sequence of `length` tokens in a layer, the same on every device: the inputs
 * that its next token reads, f32, the oldest first. */
uint64_t nib__states_content(const nib_states *states, int64_t length); /* bytes */
void nib__states_read(const nib_states *states, int64_t sequence, int64_t layer, int64_t length,
                      void *out);
/* Gives an empty sequence that content. */
void nib__states_write(nib_states *states, int64_t sequence, int64_t layer, int64_t length,
                       const void *from);
/* nib_short_conv.state of a layer. */
float *nib__states_layer(const nib_states *states, int64_t layer);

#endif
