/* SPDX-License-Identifier: Apache-2.0
 *
 * What layers keep of a sequence in place of keys and values, f32 whatever the type of the KV
 * cache: the last inputs of their short convolution, and the matrices of the gated delta rule or of
 * Mamba-2.
 *
 * An input is in the row of its position modulo the rows, so a sequence can be rolled back by
 * NIB_STATE_SPARE positions, and to its start. A matrix cannot be taken back. So a pass writes it
 * only up to where the pass begins, or to NIB_STATE_SPARE tokens before its end; the keys, values
 * and gates of the tokens after that go to a log. The next pass first runs those again that were
 * not rolled back: the same operations on the same values, so the same bits.
 */
#ifndef NIB_STATES_H
#define NIB_STATES_H

#include "memory.h"
#include "ops.h"

enum {
    /* Positions that a sequence with short convolutions alone can be rolled back: the longest
     * draft. Also most tokens of a log. */
    NIB_STATE_SPARE = 64
};

typedef struct nib_state_shape {
    int64_t layers;  /* of the model */
    const bool *has; /* [layers] layers with a state; NULL: none */
    int64_t channels, taps, sequences;
    nib_matrix_size matrix; /* of their matrices; heads 0: none */
    int64_t slots;          /* most of a pass */
} nib_state_shape;

typedef struct nib_states {
    const nib_allocator *allocator;
    nib_state_shape shape; /* without `has` */
    float *block;          /* [count][sequences][room][channels] inputs */
    float *matrices;       /* behind it: [count][sequences][each] matrices, then the log */
    uint64_t bytes;        /* of both */
    int64_t count;         /* layers with a state; 0: none, and nothing is allocated */
    int64_t room, each;
    int32_t *lists;   /* all of the following */
    int32_t *place;   /* [layers] index of the layer's state; -1: it has none */
    int32_t *firsts;  /* [sequences] the first position whose input is there */
    int32_t *reached; /* [count][sequences] tokens that the matrices have; the log has the others */
    int32_t *held;    /* [sequences] nib__states_hold's position */
    /* The pass, for nib_recurrence: [slots], and [sequences] runs; run_of: -1 between passes */
    int32_t *slots, *run_of;
    nib_matrix_run *runs;
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
/* The earliest position that a sequence can be rolled back to, besides 0. */
int64_t nib__states_earliest(const nib_states *states, int64_t sequence);
/* Later passes keep the sequence able to be rolled back to `position`, which must not be before
 * nib__states_earliest, as long as it has at most NIB_STATE_SPARE tokens more. Each pass then runs
 * these tokens again. Until the next call, or until the sequence is empty. */
void nib__states_hold(nib_states *states, int64_t sequence, int64_t position);
/* The sequence is empty now. */
void nib__states_clear(nib_states *states, int64_t sequence);
/* Gives the sequence `to` the state of `from`. */
void nib__states_copy(nib_states *states, int64_t from, int64_t to);
/* The content of a sequence of `length` tokens in a layer, as docs/formats.md has it: its bytes;
 * whether such bytes can be of this length; out of the states, and into an empty sequence. */
uint64_t nib__states_content(const nib_states *states, int64_t length);
bool nib__states_check(const nib_states *states, int64_t length, const void *content);
void nib__states_read(const nib_states *states, int64_t sequence, int64_t layer, int64_t length,
                      void *out);
void nib__states_write(nib_states *states, int64_t sequence, int64_t layer, int64_t length,
                       const void *content);
/* nib_short_conv.state of a layer. */
float *nib__states_layer(const nib_states *states, int64_t layer);

/* Lists the m slots of a pass in states->slots and states->runs, for the matrices of a layer;
 * returns the number of runs. */
int64_t nib__states_list(nib_states *states, int64_t layer, const int32_t *sequence,
                         const int32_t *position, int64_t m);
/* After the pass: logs the tokens that the matrices do not have. */
void nib__states_keep(nib_states *states, int64_t layer, const nib_recurrence *pass,
                      const int32_t *sequence);

#endif
