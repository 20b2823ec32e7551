/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates the states of layers without keys, and keeps track of how far back they reach.
 */
#include "states.h"

#include <inttypes.h>

#define WHAT "the states of sequences; ask for fewer sequences"

int64_t nib__states_count(const nib_state_shape *s)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->layers && s->has != NULL; i++)
        count += s->has[i];
    return count;
}

/* Rows of a layer and sequence: those before its next token, and those to roll back. */
static int64_t room_of(const nib_state_shape *s) { return s->taps - 1 + NIB_STATE_SPARE; }

nib_status nib__states_measure(uint64_t *bytes, const nib_state_shape *s, nib_err *err)
{
    const uint64_t layers = (uint64_t)nib__states_count(s);
    uint64_t rows = 0, values = 0;
    *bytes = 0;
    if (layers == 0)
        return NIB_OK;
    if (!nib__mul(&rows, layers * (uint64_t)room_of(s), (uint64_t)s->sequences) ||
        !nib__mul(&values, rows, (uint64_t)s->channels) ||
        !nib__mul(bytes, values, sizeof(float)) || *bytes > INT64_MAX / 2)
        return nib__fail(err, NIB_NO_MEMORY,
                         "the states of %" PRId64 " sequences in %" PRIu64
                         " layers do not fit; ask for fewer sequences",
                         s->sequences, layers);
    return NIB_OK;
}

nib_status nib__states_open(nib_states *out, const nib_state_shape *s, const nib_allocator *a,
                            nib_err *err)
{
    int32_t next = 0;
    nib_states states = {.allocator = a,
                         .count = nib__states_count(s),
                         .sequences = s->sequences,
                         .channels = s->channels,
                         .taps = s->taps,
                         .room = room_of(s)};
    *out = (nib_states){0};
    if (states.count == 0)
        return NIB_OK;
    NIB_TRY(nib__states_measure(&states.bytes, s, err));
    states.block = nib__block_take(states.bytes);
    if (states.block == NULL)
        return nib__fail_memory(err, states.bytes, WHAT);
    *out = states;
    out->place = nib__calloc(a, (uint64_t)s->layers, sizeof *out->place);
    out->firsts = nib__calloc(a, (uint64_t)s->sequences, sizeof *out->firsts);
    if (out->place == NULL || out->firsts == NULL) {
        nib__states_close(out);
        return nib__fail_memory(err, (uint64_t)(s->layers + s->sequences) * sizeof *out->place,
                                WHAT);
    }
    for (int64_t i = 0; i < s->layers; i++)
        out->place[i] = s->has[i] ? next++ : -1;
    return NIB_OK;
}

void nib__states_close(nib_states *s)
{
    if (s->block == NULL)
        return;
    nib__block_free(s->block, s->bytes);
    nib__release(s->allocator, s->place);
    nib__release(s->allocator, s->firsts);
    *s = (nib_states){0};
}

void nib__states_place(nib_states *s, int64_t sequence, int64_t position)
{
    if (s->count > 0 && position + 1 - s->room > s->firsts[sequence])
        s->firsts[sequence] = (int32_t)(position + 1 - s->room);
}

bool nib__states_reach(const nib_states *s, int64_t sequence, int64_t position)
{
    return s->count == 0 || nib__max(position - (s->taps - 1), 0) >= s->firsts[sequence];
}

void nib__states_clear(nib_states *s, int64_t sequence)
{
    if (s->count > 0)
        s->firsts[sequence] = 0;
}

static float *state_of(const nib_states *s, int64_t place, int64_t sequence)
{
    return s->block + (place * s->sequences + sequence) * s->room * s->channels;
}

void nib__states_copy(nib_states *s, int64_t from, int64_t to)
{
    for (int64_t i = 0; i < s->count; i++)
        memcpy(state_of(s, i, to), state_of(s, i, from),
               (size_t)(s->room * s->channels) * sizeof *s->block);
    if (s->count > 0)
        s->firsts[to] = s->firsts[from];
}

/* Inputs that the token at position `length` reads. */
static int64_t inputs_before(const nib_states *s, int64_t length)
{
    return nib__min(s->taps - 1, length);
}

uint64_t nib__states_content(const nib_states *s, int64_t length)
{
    return (uint64_t)(inputs_before(s, length) * s->channels) * sizeof *s->block;
}

static float *input_at(const nib_states *s, int64_t sequence, int64_t layer, int64_t position)
{
    return state_of(s, s->place[layer], sequence) + position % s->room * s->channels;
}

void nib__states_read(const nib_states *s, int64_t sequence, int64_t layer, int64_t length,
                      void *out)
{
    const size_t row = (size_t)s->channels * sizeof *s->block;
    char *to = out;
    for (int64_t p = length - inputs_before(s, length); p < length; p++, to += row)
        memcpy(to, input_at(s, sequence, layer, p), row);
}

void nib__states_write(nib_states *s, int64_t sequence, int64_t layer, int64_t length,
                       const void *from)
{
    const size_t row = (size_t)s->channels * sizeof *s->block;
    const char *at = from;
    s->firsts[sequence] = (int32_t)(length - inputs_before(s, length));
    for (int64_t p = s->firsts[sequence]; p < length; p++, at += row)
        memcpy(input_at(s, sequence, layer, p), at, row);
}

float *nib__states_layer(const nib_states *s, int64_t layer)
{
    return state_of(s, s->place[layer], 0);
}
