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

/* Values of the matrices of a layer and sequence, and of its log. */
static int64_t matrix_values(const nib_state_shape *s)
{
    return s->matrix.heads == 0 ? 0
                                : nib__matrix_values(&s->matrix) +
                                      NIB_STATE_SPARE * nib__matrix_token_values(&s->matrix);
}

nib_status nib__states_measure(uint64_t *bytes, const nib_state_shape *s, nib_err *err)
{
    const uint64_t layers = (uint64_t)nib__states_count(s);
    uint64_t inputs = 0, all = 0;
    *bytes = 0;
    if (layers == 0)
        return NIB_OK;
    if (!nib__mul(&inputs, (uint64_t)room_of(s), (uint64_t)s->channels) ||
        !nib__mul(&all, inputs + (uint64_t)matrix_values(s), layers * sizeof(float)) ||
        !nib__mul(bytes, all, (uint64_t)s->sequences) || *bytes > INT64_MAX / 2)
        return nib__fail(err, NIB_NO_MEMORY,
                         "the states of %" PRId64 " sequences in %" PRIu64
                         " layers do not fit; ask for fewer sequences",
                         s->sequences, layers);
    return NIB_OK;
}

static nib_status open_lists(nib_states *s, const nib_state_shape *shape, nib_err *err)
{
    const uint64_t sequences = (uint64_t)shape->sequences, layers = (uint64_t)shape->layers,
                   count = layers + (uint64_t)shape->slots + ((uint64_t)s->count + 3) * sequences;
    s->lists = nib__calloc(s->allocator, count, sizeof *s->lists);
    s->runs = nib__calloc(s->allocator, sequences, sizeof *s->runs);
    if (s->lists == NULL || s->runs == NULL)
        return nib__fail_memory(err, count * sizeof *s->lists + sequences * sizeof *s->runs, WHAT);
    s->place = s->lists;
    s->slots = s->place + layers;
    s->firsts = s->slots + shape->slots;
    s->held = s->firsts + sequences;
    s->run_of = s->held + sequences;
    s->reached = s->run_of + sequences;
    for (int64_t i = 0, next = 0; i < shape->layers; i++)
        s->place[i] = shape->has[i] ? (int32_t)next++ : -1;
    for (int64_t i = 0; i < shape->sequences; i++)
        s->held[i] = INT32_MAX, s->run_of[i] = -1;
    return NIB_OK;
}

nib_status nib__states_open(nib_states *out, const nib_state_shape *s, const nib_allocator *a,
                            nib_err *err)
{
    nib_states states = {.allocator = a,
                         .shape = *s,
                         .count = nib__states_count(s),
                         .room = room_of(s),
                         .each = matrix_values(s)};
    *out = (nib_states){0};
    if (states.count == 0)
        return NIB_OK;
    states.shape.has = NULL;
    NIB_TRY(nib__states_measure(&states.bytes, s, err));
    states.block = nib__block_take(states.bytes);
    if (states.block == NULL)
        return nib__fail_memory(err, states.bytes, WHAT);
    states.matrices = states.block + states.count * s->sequences * states.room * s->channels;
    const nib_status status = open_lists(&states, s, err);
    if (status != NIB_OK)
        nib__states_close(&states);
    else
        *out = states;
    return status;
}

void nib__states_close(nib_states *s)
{
    if (s->block == NULL)
        return;
    nib__block_free(s->block, s->bytes);
    nib__release(s->allocator, s->lists);
    nib__release(s->allocator, s->runs);
    *s = (nib_states){0};
}

/* ---- where a sequence can be rolled back to ---- */

void nib__states_place(nib_states *s, int64_t sequence, int64_t position)
{
    if (s->count > 0 && position + 1 - s->room > s->firsts[sequence])
        s->firsts[sequence] = (int32_t)(position + 1 - s->room);
}

int64_t nib__states_earliest(const nib_states *s, int64_t sequence)
{
    int64_t earliest = 0;
    if (s->count > 0 && s->firsts[sequence] > 0)
        earliest = s->firsts[sequence] + s->shape.taps - 1;
    for (int64_t i = 0; i < s->count; i++)
        earliest = nib__max(earliest, s->reached[i * s->shape.sequences + sequence]);
    return earliest;
}

void nib__states_hold(nib_states *s, int64_t sequence, int64_t position)
{
    if (s->count > 0)
        s->held[sequence] = (int32_t)position;
}

void nib__states_clear(nib_states *s, int64_t sequence)
{
    if (s->count > 0)
        s->firsts[sequence] = 0, s->held[sequence] = INT32_MAX;
    for (int64_t i = 0; i < s->count; i++)
        s->reached[i * s->shape.sequences + sequence] = 0;
}

/* ---- content ---- */

static float *inputs_of(const nib_states *s, int64_t place, int64_t sequence)
{
    return s->block + (place * s->shape.sequences + sequence) * s->room * s->shape.channels;
}

static float *matrices_of(const nib_states *s, int64_t place, int64_t sequence)
{
    return s->matrices + (place * s->shape.sequences + sequence) * s->each;
}

void nib__states_copy(nib_states *s, int64_t from, int64_t to)
{
    const int64_t sequences = s->shape.sequences;
    for (int64_t i = 0; i < s->count; i++) {
        memcpy(inputs_of(s, i, to), inputs_of(s, i, from),
               (size_t)(s->room * s->shape.channels) * sizeof *s->block);
        memcpy(matrices_of(s, i, to), matrices_of(s, i, from), (size_t)s->each * sizeof *s->block);
        s->reached[i * sequences + to] = s->reached[i * sequences + from];
    }
    if (s->count > 0)
        s->firsts[to] = s->firsts[from];
}

/* Inputs that the token at position `length` reads. */
static int64_t inputs_before(const nib_states *s, int64_t length)
{
    return nib__min(s->shape.taps - 1, length);
}

static size_t input_bytes(const nib_states *s)
{
    return (size_t)s->shape.channels * sizeof *s->block;
}

static float *input_at(const nib_states *s, int64_t sequence, int64_t layer, int64_t position)
{
    return inputs_of(s, s->place[layer], sequence) + position % s->room * s->shape.channels;
}

/* The content has the inputs; then, of layers with matrices, how many tokens the log has (u64), the
 * matrices, and the rows of the log, those without a token zeros. */
uint64_t nib__states_content(const nib_states *s, int64_t length)
{
    const uint64_t inputs = (uint64_t)inputs_before(s, length) * input_bytes(s);
    return inputs + (s->each > 0 ? sizeof(uint64_t) + (uint64_t)s->each * sizeof *s->block : 0);
}

bool nib__states_check(const nib_states *s, int64_t length, const void *content)
{
    uint64_t logged = 0;
    if (s->each > 0)
        memcpy(&logged, (const char *)content + inputs_before(s, length) * (int64_t)input_bytes(s),
               sizeof logged);
    return logged <= (uint64_t)nib__min(length, NIB_STATE_SPARE);
}

void nib__states_read(const nib_states *s, int64_t sequence, int64_t layer, int64_t length,
                      void *out)
{
    const int64_t place = s->place[layer];
    const int64_t reached = s->reached[place * s->shape.sequences + sequence];
    const uint64_t logged = (uint64_t)(length - reached);
    char *to = out;
    for (int64_t p = length - inputs_before(s, length); p < length; p++, to += input_bytes(s))
        memcpy(to, input_at(s, sequence, layer, p), input_bytes(s));
    if (s->each == 0)
        return;
    const size_t matrices = (size_t)nib__matrix_values(&s->shape.matrix),
                 log = logged * (size_t)nib__matrix_token_values(&s->shape.matrix);
    memcpy(to, &logged, sizeof logged);
    to += sizeof logged;
    memset(to, 0, (size_t)s->each * sizeof *s->block);
    if (reached > 0) /* else memory holds another sequence's */
        memcpy(to, matrices_of(s, place, sequence), matrices * sizeof *s->block);
    memcpy(to + matrices * sizeof *s->block, matrices_of(s, place, sequence) + matrices,
           log * sizeof *s->block);
}

void nib__states_write(nib_states *s, int64_t sequence, int64_t layer, int64_t length,
                       const void *content)
{
    const int64_t place = s->place[layer];
    const char *at = content;
    uint64_t logged;
    s->firsts[sequence] = (int32_t)(length - inputs_before(s, length));
    for (int64_t p = s->firsts[sequence]; p < length; p++, at += input_bytes(s))
        memcpy(input_at(s, sequence, layer, p), at, input_bytes(s));
    if (s->each == 0)
        return;
    memcpy(&logged, at, sizeof logged);
    s->reached[place * s->shape.sequences + sequence] = (int32_t)(length - (int64_t)logged);
    memcpy(matrices_of(s, place, sequence), at + sizeof logged, (size_t)s->each * sizeof *s->block);
}

float *nib__states_layer(const nib_states *s, int64_t layer)
{
    return inputs_of(s, s->place[layer], 0);
}

/* ---- a pass of a recurrence over matrices ---- */

/* Fills in the state of a run, and how many tokens its matrices are written with. */
static void start_run(nib_states *s, int64_t place, nib_matrix_run *run, int64_t sequence,
                      int64_t begin)
{
    const int64_t at = s->reached[place * s->shape.sequences + sequence],
                  end = begin + run->end - run->first, certain = nib__min(begin, s->held[sequence]),
                  to = nib__max(at, nib__max(certain, end - NIB_STATE_SPARE));
    run->state = matrices_of(s, place, sequence);
    run->earlier = run->state + nib__matrix_values(&s->shape.matrix);
    run->empty = at == 0;
    run->again = begin - at;
    run->kept = to - at;
}

int64_t nib__states_list(nib_states *s, int64_t layer, const int32_t *sequence,
                         const int32_t *position, int64_t m)
{
    int64_t count = 0, next = 0;
    for (int64_t i = 0; i < m; i++) {
        int32_t *run = &s->run_of[sequence[i]];
        if (*run < 0) {
            *run = (int32_t)count;
            s->runs[count++] = (nib_matrix_run){.end = 0};
        }
        s->runs[*run].end++;
    }
    for (int64_t r = 0; r < count; r++) {
        s->runs[r].first = next;
        next += s->runs[r].end;
        s->runs[r].end = s->runs[r].first;
    }
    for (int64_t i = 0; i < m; i++)
        s->slots[s->runs[s->run_of[sequence[i]]].end++] = (int32_t)i;
    for (int64_t r = 0; r < count; r++) {
        const int32_t slot = s->slots[s->runs[r].first];
        start_run(s, s->place[layer], &s->runs[r], sequence[slot], position[slot]);
        s->run_of[sequence[slot]] = -1;
    }
    return count;
}

void nib__states_keep(nib_states *s, int64_t layer, const nib_recurrence *pass,
                      const int32_t *sequence)
{
    const nib_matrix_size *size = &s->shape.matrix;
    const int64_t width = nib__matrix_token_values(size), gates = 2 * size->heads;
    for (int64_t r = 0; r < pass->count; r++) {
        const nib_matrix_run *run = &pass->runs[r];
        float *log = run->state + nib__matrix_values(size), *to = log;
        for (int64_t i = run->kept; i < run->again; i++, to += width)
            memmove(to, log + i * width, (size_t)width * sizeof *log);
        for (int64_t i = run->first + nib__max(run->kept - run->again, 0); i < run->end; i++) {
            const int64_t slot = pass->slots[i];
            memcpy(to, pass->x + slot * pass->ldx + pass->logged,
                   (size_t)(width - gates) * sizeof *to);
            memcpy(to + width - gates, pass->gates + slot * pass->ldg, (size_t)gates * sizeof *to);
            to += width;
        }
        s->reached[s->place[layer] * s->shape.sequences + sequence[pass->slots[run->first]]] +=
            (int32_t)run->kept;
    }
}
