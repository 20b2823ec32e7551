/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a sequence as bytes: a head, the lines of what it was computed with, the keys and
 * values, or the state, of each layer, and a checksum of all of it. docs/formats.md has the layout.
 */
#include "session_state.h"
#include "public_struct.h"
#include "network_hash.h"
#include "state_basis.h"

#include <inttypes.h>

enum {
    KEYS = 1,  /* version of a state whose layers all keep keys */
    STATES = 3 /* of one with layers that keep a state instead; 2 had matrices row by row */
};

static const char magic[8] = {'n', 'i', 'b', 's', 't', 'a', 't', 'e'};

/* Little-endian, as every processor that Nibble supports. */
typedef struct head {
    char magic[8];
    uint64_t version;
    nib_hash weights;
    uint64_t basis_bytes; /* of the lines after the head */
    int64_t layers, kv_heads, head_dim;
    int64_t length; /* positions */
    int64_t first;  /* layers with a window hold nothing before it */
} head;
_Static_assert(sizeof(head) == 80, "without padding, as docs/formats.md says");

enum { BASIS_MOST = 4 << 20 /* 1,024 layers need less than 1 MiB */ };

/* A state being written or read. */
typedef struct state {
    nib_session *session;
    nib_kv *kv;
    const nib_allocator *allocator;
    int64_t sequence;
    head head;
    nib_text basis;
    void *scratch; /* nib__kv_scratch_bytes */
} state;

static void close_state(state *s)
{
    nib__text_free(&s->basis);
    nib__release(s->allocator, s->scratch);
}

/* Fills in what this session would save. */
static nib_status open_state(state *s, nib_session *session, int64_t sequence, nib_err *err)
{
    nib_kv *kv = &session->runner.kv;
    const nib_network *net = &session->model->net;
    const uint64_t scratch = nib__kv_scratch_bytes(kv);
    *s = (state){.session = session,
                 .kv = kv,
                 .allocator = &session->model->engine->allocator,
                 .sequence = sequence};
    nib__text_init(&s->basis, s->allocator);
    nib__basis_write(&s->basis, session);
    s->scratch = nib__calloc(s->allocator, scratch, 1);
    if (s->basis.failed || (s->scratch == NULL && scratch != 0))
        return nib__fail_memory(err, s->basis.size + scratch, "the state of a sequence");
    if (!session->hashed)
        NIB_TRY(nib__model_check_files(session->model,
                                       nib__network_hash(&session->weights, net, err), err));
    session->hashed = true;
    s->head = (head){.version = kv->states.count > 0 ? STATES : KEYS,
                     .weights = session->weights,
                     .basis_bytes = s->basis.size,
                     .layers = kv->layers,
                     .kv_heads = kv->groups[0].kv_heads,
                     .head_dim = kv->groups[0].head_dim,
                     .length = kv->lengths[sequence],
                     .first = nib__kv_first(kv, sequence)};
    memcpy(s->head.magic, magic, sizeof magic);
    return NIB_OK;
}

/* The first position that the state has of a layer: the start of a block. */
static int64_t first_of(const state *s, int64_t layer)
{
    return nib__kv_has_window(s->kv, layer) ? s->head.first : 0;
}

/* Positions of the state in a block of the cache. */
static int64_t count_in(const state *s, int64_t block)
{
    return nib__min(NIB_CACHE_BLOCK, s->head.length - block * NIB_CACHE_BLOCK);
}

/* ---- saving ---- */

typedef struct saving {
    const nib_sink *sink;
    nib_hasher *hasher;
} saving;

static nib_status write_bytes(const nib_sink *sink, const void *bytes, size_t size, nib_err *err)
{
    const nib_status status = sink->write(sink->ctx, bytes, size);
    return status == NIB_OK ? NIB_OK
                            : nib__fail(err, status, "cannot write the state of a sequence: %s",
                                        nib_status_text(status));
}

static nib_status put(const saving *out, const void *bytes, size_t size, nib_err *err)
{
    nib__hasher_add(out->hasher, bytes, size);
    return write_bytes(out->sink, bytes, size, err);
}

/* Bytes of a layer. */
static uint64_t layer_bytes(const state *s, int64_t layer)
{
    if (!nib__kv_keeps_keys(s->kv, layer))
        return nib__states_content(&s->kv->states, s->head.length);
    return (uint64_t)(s->head.length - first_of(s, layer)) * nib__kv_position_bytes(s->kv, layer);
}

static nib_status put_layer(const state *s, const saving *out, int64_t layer, char *rows,
                            nib_err *err)
{
    if (!nib__kv_keeps_keys(s->kv, layer)) {
        nib__states_read(&s->kv->states, s->sequence, layer, s->head.length, rows);
        return put(out, rows, (size_t)layer_bytes(s, layer), err);
    }
    for (int64_t b = first_of(s, layer) / NIB_CACHE_BLOCK; b * NIB_CACHE_BLOCK < s->head.length;
         b++) {
        const int64_t count = count_in(s, b);
        NIB_TRY(nib__kv_read(s->kv, s->sequence, layer, b, count, rows, s->scratch, err));
        NIB_TRY(put(out, rows, (size_t)count * (size_t)nib__kv_position_bytes(s->kv, layer), err));
    }
    return NIB_OK;
}

/* Writes everything that the checksum covers. */
static nib_status put_content(const state *s, const saving *out, nib_err *err)
{
    const uint64_t keys = NIB_CACHE_BLOCK * nib__kv_widest_bytes(s->kv),
                   states = s->kv->states.count > 0
                                ? nib__states_content(&s->kv->states, s->head.length)
                                : 0,
                   bytes = keys > states ? keys : states;
    char *rows = nib__calloc(s->allocator, bytes, 1);
    nib_status status = rows == NULL ? nib__fail_memory(err, bytes, "the state of a sequence")
                                     : put(out, &s->head, sizeof s->head, err);
    if (status == NIB_OK)
        status = put(out, s->basis.at, s->basis.size, err);
    for (int64_t i = 0; i < s->kv->layers && status == NIB_OK; i++)
        status = put_layer(s, out, i, rows, err);
    nib__release(s->allocator, rows);
    return status;
}

static nib_status put_state(const state *s, const nib_sink *sink, nib_err *err)
{
    const saving out = {sink, nib__hasher_open()};
    if (out.hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    const nib_status status = put_content(s, &out, err);
    const nib_hash sum = nib__hasher_finish(out.hasher);
    return status == NIB_OK ? write_bytes(sink, &sum, sizeof sum, err) : status;
}

nib_status nib__state_save(nib_session *session, int64_t sequence, const nib_sink *sink,
                           nib_err *err)
{
    state s;
    nib_status status = open_state(&s, session, sequence, err);
    if (status == NIB_OK)
        status = put_state(&s, sink, err);
    close_state(&s);
    return status;
}

nib_status nib_session_save(nib_session *session, int32_t sequence, const nib_sink *sink,
                            nib_err *err)
{
    NIB_NEED(err, "session", session);
    NIB_TRY(nib__sink_check(sink, err));
    NIB_TRY(nib__session_check_sequence(session, sequence, err));
    NIB_TRY(nib__session_enter(session, err)); /* the sink is a callback */
    const nib_status status = nib__state_save(session, sequence, sink, err);
    nib__session_leave(session);
    return status;
}

nib_status nib__state_key(nib_hash *out, nib_session *session, nib_err *err)
{
    state s;
    const nib_status status = open_state(&s, session, 0, err);
    if (status == NIB_OK) {
        const nib_hash parts[] = {s.head.weights, nib__hash_bytes(s.basis.at, s.basis.size)};
        *out = nib__hash_bytes(parts, sizeof parts);
    }
    close_state(&s);
    return status;
}

nib_status nib__state_size(uint64_t *out, nib_session *session, int64_t sequence, nib_err *err)
{
    state s;
    const nib_status status = open_state(&s, session, sequence, err);
    *out = sizeof s.head + s.head.basis_bytes + sizeof(nib_hash);
    for (int64_t i = 0; i < s.kv->layers && status == NIB_OK; i++)
        *out += layer_bytes(&s, i);
    close_state(&s);
    return status;
}

/* ---- loading ---- */

/* Checks everything that the bytes say about themselves, and fills in s->head from them. */
static nib_status read_head(state *s, const char *bytes, size_t size, nib_err *err)
{
    nib_hash sum;
    head *h = &s->head;
    if (size < sizeof *h + sizeof sum || memcmp(bytes, magic, sizeof magic) != 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "these %zu bytes are not the state of a sequence, which begins with %.8s",
                         size, magic);
    memcpy(h, bytes, sizeof *h);
    if (h->version != KEYS && h->version != STATES)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the state has version %" PRIu64 " of its format; this libnibble reads "
                         "versions %d and %d",
                         h->version, KEYS, STATES);
    memcpy(&sum, bytes + size - sizeof sum, sizeof sum);
    if (!nib__hash_equal(nib__hash_bytes(bytes, size - sizeof sum), sum))
        return nib__fail(err, NIB_BAD_INPUT,
                         "the state of %zu bytes was cut or modified after it was saved: its "
                         "checksum is another",
                         size);
    if (h->basis_bytes > BASIS_MOST || h->basis_bytes > size - sizeof *h - sizeof sum)
        return nib__fail(err, NIB_BAD_INPUT,
                         "the state has %" PRIu64 " bytes of lines in %zu bytes", h->basis_bytes,
                         size);
    return NIB_OK;
}

/* Whether the state belongs to this session: same weights, computed in the same way. */
static nib_status check_basis(const state *s, const head *own, const char *lines, nib_err *err)
{
    char theirs[33], ours[33];
    if (!nib__hash_equal(s->head.weights, own->weights))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the state is of a model with hash %s, but the session's model, %s, has "
                         "%s; run the tokens again",
                         nib__hash_text(theirs, s->head.weights), s->session->model->net.path,
                         nib__hash_text(ours, own->weights));
    return nib__basis_check(lines, (size_t)s->head.basis_bytes, &s->basis, err);
}

/* Whether the sequence can hold the state, and all of its positions are there. */
static nib_status check_size(const state *s, const head *own, size_t size, nib_err *err)
{
    const head *h = &s->head;
    uint64_t bytes = 0;
    if (h->length > s->kv->context)
        return nib__fail(err, NIB_NO_MEMORY,
                         "the state has %" PRId64 " positions, but the context is %" PRId64
                         "; open a session with a larger one",
                         h->length, s->kv->context);
    if (h->version != own->version)
        return nib__fail(err, NIB_BAD_INPUT,
                         "the state has version %" PRIu64 " of its format, but a state of its "
                         "model has version %" PRIu64,
                         h->version, own->version);
    if (h->layers != own->layers || h->kv_heads != own->kv_heads || h->head_dim != own->head_dim)
        return nib__fail(err, NIB_BAD_INPUT,
                         "the state says %" PRId64 " layers, %" PRId64 " heads and %" PRId64
                         " dimensions, but its model has %" PRId64 ", %" PRId64 " and %" PRId64,
                         h->layers, h->kv_heads, h->head_dim, own->layers, own->kv_heads,
                         own->head_dim);
    if (!nib__kv_can_hold(s->kv, h->first, h->length))
        return nib__fail(err, NIB_BAD_INPUT,
                         "the state says %" PRId64 " positions, of which layers with a window have "
                         "those from %" PRId64 " on; no sequence of its model can be so",
                         h->length, h->first);
    for (int64_t i = 0; i < s->kv->layers; i++)
        bytes += layer_bytes(s, i);
    if (bytes != size)
        return nib__fail(err, NIB_BAD_INPUT,
                         "the state has %zu bytes of layers, but says %" PRId64
                         " positions, which have %" PRIu64,
                         size, h->length, bytes);
    return NIB_OK;
}

/* Whether the states of all layers can be of this length. */
static nib_status check_states(const state *s, const char *at, nib_err *err)
{
    for (int64_t i = 0; i < s->kv->layers; at += layer_bytes(s, i++))
        if (!nib__kv_keeps_keys(s->kv, i) && !nib__states_check(&s->kv->states, s->head.length, at))
            return nib__fail(err, NIB_BAD_INPUT,
                             "the state of layer %" PRId64
                             " has more tokens in its log than the %" PRId64
                             " positions, or the %d of a log",
                             i, s->head.length, NIB_STATE_SPARE);
    return NIB_OK;
}

static nib_status get_layer(const state *s, int64_t layer, const char **at, nib_err *err)
{
    if (!nib__kv_keeps_keys(s->kv, layer)) {
        nib__states_write(&s->kv->states, s->sequence, layer, s->head.length, *at);
        *at += layer_bytes(s, layer);
        return NIB_OK;
    }
    for (int64_t b = first_of(s, layer) / NIB_CACHE_BLOCK; b * NIB_CACHE_BLOCK < s->head.length;
         b++) {
        const int64_t count = count_in(s, b);
        NIB_TRY(nib__kv_write(s->kv, s->sequence, layer, b, count, *at, s->scratch, err));
        *at += (uint64_t)count * nib__kv_position_bytes(s->kv, layer);
    }
    return NIB_OK;
}

/* Replaces the sequence. Only a device can fail now; then the sequence is empty. */
static nib_status get_state(const state *s, const char *at, nib_err *err)
{
    nib_status status = NIB_OK;
    nib__kv_replace(s->kv, s->sequence, s->head.first, s->head.length);
    for (int64_t i = 0; i < s->kv->layers && status == NIB_OK; i++)
        status = get_layer(s, i, &at, err);
    if (status != NIB_OK)
        nib__kv_truncate(s->kv, s->sequence, 0);
    return status;
}

static nib_status load(state *s, const char *bytes, size_t size, nib_err *err)
{
    const head own = s->head;
    NIB_TRY(read_head(s, bytes, size, err));
    const char *lines = bytes + sizeof own, *data = lines + s->head.basis_bytes;
    NIB_TRY(check_basis(s, &own, lines, err));
    NIB_TRY(check_size(s, &own, (size_t)(bytes + size - sizeof(nib_hash) - data), err));
    NIB_TRY(check_states(s, data, err));
    return get_state(s, data, err);
}

nib_status nib__state_load(nib_session *session, int64_t sequence, const void *bytes, size_t size,
                           int32_t *length, nib_err *err)
{
    state s;
    nib_status status = open_state(&s, session, sequence, err);
    if (status == NIB_OK)
        status = load(&s, bytes, size, err);
    if (status == NIB_OK)
        *length = (int32_t)s.head.length;
    close_state(&s);
    return status;
}

nib_status nib_session_load(nib_session *session, int32_t sequence, const void *bytes, size_t size,
                            int32_t *length, nib_err *err)
{
    NIB_NEED(err, "session, bytes, length", session, size > 0 ? (const void *)bytes : "", length);
    NIB_TRY(nib__session_check_sequence(session, sequence, err));
    return nib__state_load(session, sequence, bytes, size, length, err);
}
