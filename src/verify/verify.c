/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports changed bytes, NaN and infinities, codes out of range, and weights that are missing,
 * surplus or of the wrong shape; and compares with another checkpoint. Collects all findings in
 * file order instead of stopping at the first.
 */
#include "verify.h"

#include "calibration.h"
#include "manifest.h"
#include "name_index.h"
#include "signature.h"
#include "sqnr.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    BLOCK = 8 << 20,
    GRAIN = 1 << 16,
    FINDING_MAX = 1000, /* findings kept; the rest are only counted */
};

typedef struct finding {
    const char *code, *tensor, *text;
} finding;

/* A file that the manifest lists. */
typedef enum file_state { FILE_SAME, FILE_CHANGED, FILE_UNREADABLE, FILE_ELSEWHERE } file_state;

typedef struct verifier {
    const nib_verify_job *job;
    nib_arena arena;
    nib_ledger ledger;
    nib_entry *entries;
    size_t count;
    const void **items; /* [count] entries, for by_name */
    nib_name_index by_name;
    const void **parts;     /* [count] part_of of the entries, for by_part */
    nib_name_index by_part; /* the first tensor of each unreadable module */
    size_t *next_part;      /* [count] index of the module's next tensor + 1, or 0 */
    finding *findings;
    size_t finding_count, finding_capacity, more; /* more: counted but not kept */
    nib_manifest manifest;
    file_state *files;     /* [manifest.file_count] */
    size_t files_compared; /* files whose hash was compared with the manifest */
    nib_hash *hashes;      /* by tensor of the checkpoint */
    int64_t *bad;          /* [threads] first non-finite value of the current block */
    int64_t *many;         /* [threads] number of them */
    uint64_t done, total;
    nib_err *err;
} verifier;

static nib_status add_finding(verifier *v, const char *code, const char *tensor, const char *format,
                              ...) NIB_PRINTF(4, 5);

static nib_status add_finding(verifier *v, const char *code, const char *tensor, const char *format,
                              ...)
{
    char text[700], name[160];
    void *list = v->findings;
    va_list args;
    if (v->finding_count == FINDING_MAX) {
        v->more++;
        return NIB_OK;
    }
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    nib__escape_name(name, sizeof name, tensor, strlen(tensor));
    /* errors of other functions begin with the name, which the line already has */
    const size_t length = strlen(name);
    const bool named = strncmp(text, name, length) == 0 && strncmp(text + length, ": ", 2) == 0;
    const char *sentence = named ? text + length + 2 : text;
    const finding f = {code, nib__arena_copy(&v->arena, name, length),
                       nib__arena_copy(&v->arena, sentence, strlen(sentence))};
    if (f.tensor == NULL || f.text == NULL ||
        !nib__reserve(v->job->allocator, &list, &v->finding_capacity, v->finding_count + 1,
                      sizeof f))
        return nib__fail_memory(v->err, sizeof f, "the list of findings");
    v->findings = list;
    v->findings[v->finding_count++] = f;
    return NIB_OK;
}

static nib_status report_progress(verifier *v, uint64_t bytes)
{
    const nib_callbacks *c = v->job->callbacks;
    v->done += bytes;
    if (c == NULL || c->progress == NULL || c->progress(c->ctx, "verify", v->done, v->total))
        return NIB_OK;
    return nib__fail(v->err, NIB_CANCELLED, "cancelled");
}

/* ---- every byte of every tensor ---- */

typedef struct span {
    const uint8_t *at;
    nib_type type;
    verifier *v;
} span;

/* Counts NaN and infinities and finds the first. */
static void scan_values(void *ctx, int worker, int64_t begin, int64_t end)
{
    const span *s = ctx;
    float values[256];
    int64_t first = s->v->bad[worker], many = 0;
    const int64_t bytes = nib__type_bits(s->type) / 8;
    for (int64_t at = begin; at < end; at += (int64_t)COUNT(values)) {
        const int64_t some = nib__min((int64_t)COUNT(values), end - at);
        nib__to_f32(values, s->at + at * bytes, s->type, some);
        for (int64_t i = 0; i < some; i++)
            if (!isfinite(values[i])) {
                first = nib__min(first, at + i);
                many++;
            }
    }
    s->v->bad[worker] = first;
    s->v->many[worker] += many;
}

static bool can_be_non_finite(nib_type type)
{
    return nib__type_is_float(type) || type == NIB_TYPE_E4M3 || type == NIB_TYPE_E5M2 ||
           type == NIB_TYPE_E8M0;
}

static nib_status check_tensor(verifier *v, const nib_tensor *t, nib_hash *hash)
{
    const int threads = nib__pool_threads(v->job->pool);
    nib_hasher *hasher = nib__hasher_open();
    int64_t first = INT64_MAX, many = 0;
    nib_status status = hasher == NULL ? nib__fail_memory(v->err, 1024, "a hash") : NIB_OK;
    const uint64_t span_bytes = nib__tensor_span(t);
    /* rows of others fill the gaps of a view: check_weights checks its own */
    const bool scans = can_be_non_finite(t->type) && span_bytes == t->bytes;
    for (uint64_t at = 0; at < span_bytes && status == NIB_OK; at += BLOCK) {
        const uint64_t left = span_bytes - at, some = left < BLOCK ? left : BLOCK;
        const int64_t width = nib__type_bits(t->type) / 8;
        nib__hasher_add(hasher, t->data + at, (size_t)some);
        if (scans) {
            span s = {t->data + at, t->type, v};
            for (int i = 0; i < threads; i++)
                v->bad[i] = INT64_MAX, v->many[i] = 0;
            nib__pool_run(v->job->pool, (int64_t)some / width, GRAIN, false, scan_values, &s);
            for (int i = 0; i < threads; i++) {
                if (v->bad[i] != INT64_MAX)
                    first = nib__min(first, (int64_t)at / width + v->bad[i]);
                many += v->many[i];
            }
        }
        nib__checkpoint_release(v->job->checkpoint, t->data + at, some);
        status = report_progress(v, some);
    }
    if (hasher != NULL)
        *hash = nib__hasher_finish(hasher);
    if (status == NIB_OK && many != 0)
        status = add_finding(v, "not-finite", t->name,
                             "%" PRId64 " value%s not finite, the first at index %" PRId64, many,
                             many == 1 ? " is" : "s are", first);
    return status;
}

static nib_status check_tensors(verifier *v)
{
    const nib_checkpoint *cp = v->job->checkpoint;
    const size_t count = nib__checkpoint_count(cp);
    const size_t threads = (size_t)nib__pool_threads(v->job->pool);
    v->hashes = nib__arena_take(&v->arena, count, sizeof *v->hashes);
    v->bad = nib__arena_take(&v->arena, threads, sizeof *v->bad);
    v->many = nib__arena_take(&v->arena, threads, sizeof *v->many);
    if (v->hashes == NULL || v->bad == NULL || v->many == NULL)
        return nib__fail_memory(v->err, count * sizeof *v->hashes, "the hashes");
    for (size_t i = 0; i < count; i++)
        v->total += nib__tensor_span(nib__checkpoint_at(cp, i));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(check_tensor(v, nib__checkpoint_at(cp, i), &v->hashes[i]));
    return NIB_OK;
}

/* ---- against the manifest ---- */

static nib_status check_hashes(verifier *v)
{
    const nib_checkpoint *cp = v->job->checkpoint;
    const nib_manifest *m = &v->manifest;
    nib_name_index names;
    const void **items = nib__arena_take(&v->arena, m->tensor_count, sizeof *items);
    bool *seen = nib__arena_take(&v->arena, m->tensor_count, sizeof *seen);
    if (items == NULL || seen == NULL || !nib__name_index_init(&names, &v->arena, m->tensor_count))
        return nib__fail_memory(v->err, m->tensor_count * sizeof *items, "the manifest");
    for (size_t i = 0; i < m->tensor_count; i++) {
        items[i] = &m->tensors[i];
        nib__name_index_add(&names, items, i);
    }
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const char *name = nib__checkpoint_at(cp, i)->name;
        const size_t at = nib__name_index_find(&names, items, name);
        char stated[33], found[33];
        if (at == SIZE_MAX) {
            NIB_TRY(add_finding(v, "not-in-manifest", name, "is stored, but %s does not list it",
                                m->path));
            continue;
        }
        seen[at] = true;
        if (!nib__hash_equal(m->tensors[at].hash, v->hashes[i]))
            NIB_TRY(add_finding(v, "hash", name,
                                "hashes to %s, but %s has %s: the bytes have changed",
                                nib__hash_text(found, v->hashes[i]), m->path,
                                nib__hash_text(stated, m->tensors[at].hash)));
    }
    for (size_t i = 0; i < m->tensor_count; i++)
        if (!seen[i])
            NIB_TRY(add_finding(v, "missing", m->tensors[i].name, "is listed in %s, but not stored",
                                m->path));
    return NIB_OK;
}

/* Compares a file with its hash in the manifest. */
static nib_status compare_file(verifier *v, const nib_manifest_hash *listed, file_state *out)
{
    const char *directory = nib__checkpoint_directory(v->job->checkpoint);
    nib_map map;
    if (strpbrk(listed->name, "/\\") != NULL || directory == NULL) {
        *out = FILE_ELSEWHERE;
        return NIB_OK;
    }
    const char *path = nib__path_join(&v->arena, directory, listed->name);
    if (path == NULL)
        return nib__fail_memory(v->err, strlen(listed->name), "a path");
    if (nib__map_open(&map, path, NULL) != NIB_OK) {
        *out = FILE_UNREADABLE;
        return NIB_OK;
    }
    const uint8_t *bytes = map.size == 0 ? (const uint8_t *)"" : map.at;
    *out =
        nib__hash_equal(listed->hash, nib__hash_bytes(bytes, map.size)) ? FILE_SAME : FILE_CHANGED;
    nib__map_close(&map);
    return NIB_OK;
}

/* Only hashes are computed here, before the sandbox: one map at a time, because a manifest may list
 * more files than a process can map. */
static nib_status compare_files(verifier *v)
{
    const size_t count = v->manifest.file_count;
    if (count == 0)
        return NIB_OK;
    v->files = nib__arena_take(&v->arena, count, sizeof *v->files);
    if (v->files == NULL)
        return nib__fail_memory(v->err, count * sizeof *v->files, "the list of files");
    for (size_t i = 0; i < count; i++)
        NIB_TRY(compare_file(v, &v->manifest.files[i], &v->files[i]));
    return NIB_OK;
}

static nib_status report_files(verifier *v)
{
    static const struct {
        const char *code, *format;
    } findings[] = {
        [FILE_CHANGED] = {"file-hash", "has changed since %s was written"},
        [FILE_UNREADABLE] = {"missing-file", "is listed in %s, but cannot be opened"},
        [FILE_ELSEWHERE] = {"file-name", "is listed in %s, but is not the name of a file next to "
                                         "the weights"},
    };
    const nib_manifest *m = &v->manifest;
    for (size_t i = 0; i < m->file_count; i++) {
        const file_state state = v->files[i];
        v->files_compared += state == FILE_SAME || state == FILE_CHANGED;
        if (state != FILE_SAME)
            NIB_TRY(add_finding(v, findings[state].code, m->files[i].name, findings[state].format,
                                m->path));
    }
    return NIB_OK;
}

/* ---- the signature ---- */

static nib_status report_signed(void *ctx, const char *code, const char *name, const char *text)
{
    return add_finding(ctx, code, name, "%s", text);
}

static nib_status check_signature(verifier *v)
{
    const nib_verify_job *job = v->job;
    const nib_signature_job signature = {.path = nib__checkpoint_path(job->checkpoint),
                                         .signers = job->signers,
                                         .signer = job->signer,
                                         .report = {report_signed, v},
                                         .notes = &v->ledger,
                                         .callbacks = job->callbacks,
                                         .arena = &v->arena,
                                         .allocator = job->allocator};
    return nib__signature_check(&signature, v->err);
}

/* ---- weights ---- */

/* Counts groups with a scale of 0 whose codes differ, so that their values are lost. */
static int64_t count_lost_groups(const nib_weight *w)
{
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k),
                  size = nib__scheme_group_size(&w->scheme, w->k);
    int8_t codes[256];
    int64_t lost = 0;
    for (int64_t n = 0; w->scales != NULL && n < w->n; n++)
        for (int64_t g = 0; g < groups; g++) {
            if (nib__weight_scale(w, n, g) != 0)
                continue;
            const int64_t end = nib__min((g + 1) * size, w->k);
            int8_t first = 0;
            bool same = true;
            for (int64_t at = g * size; at < end && same; at += (int64_t)sizeof codes) {
                const int64_t some = nib__min((int64_t)sizeof codes, end - at);
                nib__weight_codes(w, n, at, some, codes);
                first = at == g * size ? codes[0] : first;
                for (int64_t j = 0; j < some; j++)
                    same = same && codes[j] == first;
            }
            lost += !same;
        }
    return lost;
}

static nib_status check_bias_scales(verifier *v, const nib_entry *e)
{
    const nib_weight *w = &e->weight;
    const int64_t bytes = nib__type_bits(w->bias_scale_type) / 8;
    int64_t bad = 0;
    for (int64_t g = 0; w->bias_scales != NULL && g < nib__ceil_div(w->n, NIB_BIAS_GROUP); g++) {
        float scale;
        nib__to_f32(&scale, (const uint8_t *)w->bias_scales + g * bytes, w->bias_scale_type, 1);
        bad += scale <= 0;
    }
    return bad == 0
               ? NIB_OK
               : add_finding(v, "scale", e->name,
                             "%" PRId64 " scales of its bias are 0 or negative, which nibble never "
                             "writes",
                             bad);
}

static nib_status check_weights(verifier *v)
{
    for (size_t i = 0; i < v->count; i++) {
        const nib_entry *e = &v->entries[i];
        nib_err why = {NIB_OK, ""};
        if (e->problem != NULL)
            NIB_TRY(add_finding(v, "unreadable", e->name, "%s", e->problem));
        if (e->module == NULL)
            continue;
        /* check_tensors has counted NaN and infinities, except within blocks and across columns. */
        const bool floats =
            nib__weight_holds_scales(&e->weight) || nib__weight_is_transposed(&e->weight);
        const bool needs_check = (nib__code_is_int(e->weight.scheme.code) &&
                                  nib__code_bits(e->weight.scheme.code) < 8) ||
                                 floats;
        const nib_status status =
            needs_check ? nib__weight_check_codes(&e->weight, e->module, &why) : NIB_OK;
        if (status == NIB_BAD_INPUT)
            NIB_TRY(add_finding(v, floats ? "not-finite" : "code-range", e->name, "%s", why.text));
        else if (status != NIB_OK)
            return nib__fail(v->err, status, "%s", why.text);
        const int64_t lost = count_lost_groups(&e->weight);
        if (lost != 0)
            NIB_TRY(add_finding(v, "scale", e->name,
                                "%" PRId64
                                " groups have a scale of 0 but different codes: their values "
                                "are lost",
                                lost));
        NIB_TRY(check_bias_scales(v, e));
    }
    return NIB_OK;
}

/* Signs of a broken calibration: problems become findings, the rest notes. */
static nib_status check_calibration(verifier *v)
{
    nib_signs signs;
    nib_status status = nib__find_signs(&signs, v->job->checkpoint, v->entries, v->count, &v->arena,
                                        v->job->allocator, v->err);
    for (size_t i = 0; i < signs.count && status == NIB_OK; i++) {
        const nib_sign *s = &signs.items[i];
        char name[160];
        if (s->is_problem)
            status = add_finding(v, s->code, s->name, "%s", s->text);
        else
            nib__ledger_add_note(&v->ledger, "calibration", "%s: %s",
                                 nib__escape_name(name, sizeof name, s->name, strlen(s->name)),
                                 s->text);
    }
    nib__release(v->job->allocator, signs.items);
    return status;
}

/* ---- completeness ---- */

/* Claims the tensors of a weight that is stored but unreadable, which is reported elsewhere. */
static bool claim_unreadable(const verifier *v, const char *module, bool *claimed)
{
    const size_t first = nib__name_index_find(&v->by_part, v->parts, module);
    if (first == SIZE_MAX)
        return false;
    for (size_t i = first + 1; i != 0; i = v->next_part[i - 1])
        claimed[i - 1] = true;
    return true;
}

static size_t find_entry(const verifier *v, const char *name)
{
    return nib__name_index_find(&v->by_name, v->items, name);
}

/* The bias of a vector, such as a norm, is a separate entry. */
static bool claim_bias(const verifier *v, const nib_expected *x, bool *claimed)
{
    char name[512];
    if (x->k != 0 || snprintf(name, sizeof name, "%s.bias", x->name) >= (int)sizeof name)
        return false;
    const size_t at = find_entry(v, name);
    if (at == SIZE_MAX || v->entries[at].rank != 1 || v->entries[at].shape[0] != x->n)
        return false;
    claimed[at] = true;
    return true;
}

static nib_status check_expected(verifier *v, const nib_expected *x, bool *claimed)
{
    char name[512];
    const char *by = nib__checkpoint_config_name(v->job->checkpoint);
    if (snprintf(name, sizeof name, "%s%s", x->name, x->bare ? "" : ".weight") >= (int)sizeof name)
        return NIB_OK;
    size_t at = find_entry(v, name);
    const nib_meta *alias = nib__checkpoint_alias(v->job->checkpoint, name);
    if (at == SIZE_MAX && alias != NULL)
        at = find_entry(v, alias->value);
    if (at == SIZE_MAX && claim_unreadable(v, x->name, claimed))
        return NIB_OK;
    if (at == SIZE_MAX)
        return x->optional
                   ? NIB_OK
                   : add_finding(v, "missing", name, "%s implies it, but it is not stored", by);
    claimed[at] = true;
    const nib_entry *e = &v->entries[at];
    const bool vector = x->k == 0;
    char has[256], wanted[256];
    nib_entry implied = {.rank = vector ? 1 : 2, .shape = {x->n, x->k}};
    if (x->taps > 0)
        implied.rank = 3, implied.shape[1] = 1, implied.shape[2] = x->taps;
    if (e->rank != implied.rank ||
        memcmp(e->shape, implied.shape, (size_t)e->rank * sizeof *e->shape) != 0)
        NIB_TRY(add_finding(v, "shape", name, "is %s, but %s implies %s",
                            nib__format_entry_shape(has, e), by,
                            nib__format_entry_shape(wanted, &implied)));
    if (vector && e->tensor != NULL && !nib__type_is_float(e->tensor->type))
        NIB_TRY(add_finding(v, "type", name, "is %s, but %s implies floats",
                            nib__type_stored_name(e->tensor->type), by));
    if (x->bias && !e->bias && !claim_bias(v, x, claimed))
        NIB_TRY(add_finding(v, "bias", name, "%s implies a bias, but none is stored", by));
    if (!x->bias && e->bias)
        NIB_TRY(add_finding(v, "bias", name,
                            "has a bias that %s does not imply; other programs may drop it", by));
    return NIB_OK;
}

static bool is_unread(const verifier *v, const char *name)
{
    static const char layers[] = "model.layers.";
    const size_t size = sizeof layers - 1;
    if (strncmp(name, layers, size) != 0)
        return false;
    const int64_t layer = strtoll(name + size, NULL, 10);
    return (layer >= v->job->first_unread && layer < v->job->end_unread) ||
           (layer < v->job->first_unread && nib__makes_keys(name, v->job->first_shared));
}

/* Checks that every implied weight is stored, and nothing else. A bias belongs to the entry of its
 * weight; a bias without a weight is surplus. */
static nib_status check_completeness(verifier *v)
{
    bool *claimed = nib__arena_take(&v->arena, v->count, sizeof *claimed);
    if (v->job->expected_count == 0)
        return NIB_OK;
    if (claimed == NULL)
        return nib__fail_memory(v->err, v->count, "the list of weights");
    for (size_t i = 0; i < v->job->expected_count; i++)
        NIB_TRY(check_expected(v, &v->job->expected[i], claimed));
    for (size_t i = 0; i < v->count; i++)
        if (!claimed[i] && !nib__is_rotary_table(v->entries[i].name) &&
            !is_unread(v, v->entries[i].name))
            NIB_TRY(add_finding(v, "surplus", v->entries[i].name,
                                "is stored, but %s does not imply it",
                                nib__checkpoint_config_name(v->job->checkpoint)));
    return NIB_OK;
}

/* ---- against another checkpoint ---- */

static nib_status add_distance(verifier *v, const char *name, double sqnr_db)
{
    nib_ledger_layer *line = nib__ledger_add_layer(&v->ledger, name);
    if (line == NULL)
        return nib__fail_memory(v->err, sizeof *line, "the ledger");
    line->sqnr_db = sqnr_db;
    return NIB_OK;
}

static nib_status compare_tensor(verifier *v, const char *name)
{
    const nib_tensor *a = nib__checkpoint_find(v->job->checkpoint, name);
    const nib_tensor *b = nib__checkpoint_find(v->job->against, name);
    if (a == NULL || b == NULL)
        return a == b || nib__is_rotary_table(name)
                   ? NIB_OK
                   : add_finding(v, "against", name, "is only in one of the checkpoints");
    if (a->rank != b->rank || memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return add_finding(v, "against", name, "has a different shape in the other checkpoint");
    if (nib__type_is_float(a->type) && nib__type_is_float(b->type))
        return add_distance(v, name, nib__tensor_distance(a, b));
    const bool same = a->type == b->type && memcmp(a->data, b->data, (size_t)a->bytes) == 0;
    return same ? NIB_OK
                : add_finding(v, "against", name, "has different bytes in the other checkpoint");
}

/* Compares values, because forms and orders of biases may differ between files. */
static nib_status compare_bias(verifier *v, const nib_entry *e, const nib_weight *other)
{
    double db;
    if (e->weight.bias == NULL && other->bias == NULL)
        return NIB_OK;
    const char *name = nib__ledger_text(&v->ledger, "%s.bias", e->module);
    if (name == NULL)
        return nib__fail_memory(v->err, strlen(e->module), "the ledger");
    if (e->weight.bias == NULL || other->bias == NULL)
        return add_finding(v, "against", name, "is only in one of the checkpoints");
    NIB_TRY(nib__bias_distance(&db, &e->weight, other, v->job->allocator, v->err));
    return add_distance(v, name, db);
}

static nib_status compare_weight(verifier *v, const nib_entry *e)
{
    nib_weight other;
    nib_err why = {NIB_OK, ""};
    bool found = true;
    const nib_verify_job *job = v->job;
    const bool was_tied = job->head != NULL && strcmp(e->module, job->head) == 0;
    const char *module = was_tied ? job->against_head : e->module;
    if (nib__checkpoint_weight(&other, &found, job->against, module, NULL, &why) != NIB_OK)
        return add_finding(v, "against", e->name, "the other checkpoint: %s", why.text);
    if (!found)
        return add_finding(v, "against", e->name, "is only in one of the checkpoints");
    if (other.n != e->weight.n || other.k != e->weight.k)
        return add_finding(v, "against", e->name,
                           "is %" PRId64 " x %" PRId64 " in the other checkpoint", other.n,
                           other.k);
    const nib_weight_source ours = {job->checkpoint, &e->weight}, theirs = {job->against, &other};
    double db;
    NIB_TRY(nib__weight_distance(&db, &ours, &theirs, job->pool, job->allocator, v->err));
    NIB_TRY(add_distance(v, e->module, db));
    return compare_bias(v, e, &other);
}

/* Compares an output that is stored separately there but tied to the embedding here. */
static nib_status compare_lone_head(verifier *v, const nib_weight *other)
{
    nib_weight own;
    nib_err why;
    double db;
    const nib_verify_job *job = v->job;
    if (nib__checkpoint_weight(&own, NULL, job->checkpoint, job->tied_head, NULL, &why) != NIB_OK)
        return add_finding(v, "against", job->lone_head, "%s", why.text);
    if (own.n != other->n || own.k != other->k)
        return add_finding(
            v, "against", job->lone_head,
            "is %" PRId64 " x %" PRId64
            " in the other checkpoint, but here it is tied to the embedding, which is "
            "%" PRId64 " x %" PRId64,
            other->n, other->k, own.n, own.k);
    const nib_weight_source ours = {job->checkpoint, &own}, theirs = {job->against, other};
    NIB_TRY(nib__weight_distance(&db, &ours, &theirs, job->pool, job->allocator, v->err));
    return add_distance(v, job->lone_head, db);
}

/* Reports what only the other checkpoint has. */
static nib_status report_absent(verifier *v)
{
    nib_entry *others;
    size_t count;
    NIB_TRY(nib__entries_list(&others, &count, v->job->against, &v->arena, NULL, v->err));
    for (size_t i = 0; i < count; i++) {
        const bool is_part = others[i].part_of != NULL; /* of a weight that cannot be read */
        const char *lone = v->job->lone_head, *module = others[i].module;
        if (lone != NULL && module != NULL && strcmp(module, lone) == 0) {
            NIB_TRY(compare_lone_head(v, &others[i].weight));
            continue;
        }
        if (!is_part && !nib__is_rotary_table(others[i].name) &&
            find_entry(v, others[i].name) == SIZE_MAX &&
            nib__checkpoint_alias(v->job->checkpoint, others[i].name) == NULL)
            NIB_TRY(add_finding(v, "against", others[i].name, "is only in the other checkpoint"));
    }
    return NIB_OK;
}

static nib_status compare_checkpoints(verifier *v)
{
    if (v->job->against == NULL)
        return NIB_OK;
    for (size_t i = 0; i < v->count; i++) {
        const nib_entry *e = &v->entries[i];
        if (e->module != NULL)
            NIB_TRY(compare_weight(v, e));
        else if (e->part_of == NULL)
            NIB_TRY(compare_tensor(v, e->name));
    }
    return report_absent(v);
}

/* ---- rendering ---- */

static void json_findings(const verifier *v, nib_jsonw *w)
{
    nib__jsonw_key(w, "findings");
    nib__jsonw_array(w);
    for (size_t i = 0; i < v->finding_count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", v->findings[i].code);
        nib__jsonw_pair_string(w, "tensor", v->findings[i].tensor);
        nib__jsonw_pair_string(w, "text", v->findings[i].text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_pair_int(w, "problems", (int64_t)(v->finding_count + v->more));
}

static void json_models(const nib_model_distance *d, nib_jsonw *w)
{
    nib__jsonw_key(w, "models");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "why_not", d->why_not);
    if (d->why_not == NULL) {
        nib__jsonw_pair_int(w, "tokens", d->tokens);
        nib__jsonw_pair_double(w, "kl", d->kl);
        nib__jsonw_pair_double(w, "top1_agreement", d->agreement);
    }
    nib__jsonw_object_end(w);
}

static void render_models(const nib_model_distance *d, nib_text *out)
{
    if (d->why_not != NULL) {
        nib__ledger_wrap(out, "as models: not compared: ", "    ", 100, d->why_not);
        return;
    }
    nib__text_format(out,
                     "as models: %" PRId64 " tokens, KL divergence %.3g nats per token, the same "
                     "top token in %.1f %%\n",
                     d->tokens, d->kl, 100 * d->agreement);
}

static bool has_sandbox_note(const nib_verify_job *job)
{
    return job->sandbox != NULL && job->sandbox[0] != '\0';
}

static void render_json(const verifier *v, nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_key(&w, "tensors");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < v->count; i++) {
        nib__jsonw_object(&w);
        nib__entry_json(&w, &v->entries[i]);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_pair_string(&w, "manifest", v->manifest.path);
    json_findings(v, &w);
    if (v->job->against != NULL) {
        nib__jsonw_key(&w, "against");
        nib__jsonw_array(&w);
        for (size_t i = 0; i < v->ledger.layer_count; i++) {
            nib__jsonw_object(&w);
            nib__jsonw_pair_string(&w, "name", v->ledger.layers[i].name);
            nib__jsonw_pair_double(&w, "sqnr_db", v->ledger.layers[i].sqnr_db);
            nib__jsonw_pair_bool(
                &w, "equal", isinf(v->ledger.layers[i].sqnr_db) && v->ledger.layers[i].sqnr_db > 0);
            nib__jsonw_object_end(&w);
        }
        nib__jsonw_array_end(&w);
    }
    if (v->job->models != NULL)
        json_models(v->job->models, &w);
    nib__jsonw_key(&w, "notes");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < v->ledger.note_count; i++) {
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "code", v->ledger.notes[i].code);
        nib__jsonw_pair_string(&w, "text", v->ledger.notes[i].text);
        nib__jsonw_object_end(&w);
    }
    if (has_sandbox_note(v->job)) {
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "code", "sandbox");
        nib__jsonw_pair_string(&w, "text", v->job->sandbox);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

static void render_text(const verifier *v, nib_text *out)
{
    char bytes[32];
    const nib_checkpoint *cp = v->job->checkpoint;
    for (size_t i = 0; i < v->finding_count; i++) {
        char head[256];
        snprintf(head, sizeof head, "%s: %s: ", v->findings[i].code, v->findings[i].tensor);
        nib__ledger_wrap(out, head, "    ", 100, v->findings[i].text);
    }
    for (size_t i = 0; i < v->ledger.layer_count; i++) {
        const double db = v->ledger.layers[i].sqnr_db;
        if (isinf(db) && db > 0)
            nib__text_format(out, "%-52s  equal\n", v->ledger.layers[i].name);
        else if (isnan(db))
            nib__text_format(out, "%-52s  has NaN or infinite values\n", v->ledger.layers[i].name);
        else
            nib__text_format(out, "%-52s %6.1f dB\n", v->ledger.layers[i].name, db);
    }
    if (v->job->models != NULL)
        render_models(v->job->models, out);
    for (size_t i = 0; i < v->ledger.note_count; i++)
        nib__ledger_wrap(out, "note: ", "    ", 100, v->ledger.notes[i].text);
    if (has_sandbox_note(v->job))
        nib__text_format(out, "sandbox: %s\n", v->job->sandbox);
    nib__text_format(out, "%zu tensors, %s read; ", nib__checkpoint_count(cp),
                     nib__format_bytes(bytes, v->done));
    if (v->manifest.path != NULL)
        nib__text_format(out, "%zu hashes of %s compared; ",
                         v->manifest.tensor_count + v->files_compared,
                         nib__path_name(v->manifest.path));
    else
        nib__text_str(out, "no manifest next to it; ");
    if (v->job->expected_count != 0)
        nib__text_format(out, "%zu weights expected from %s; ", v->job->expected_count,
                         nib__checkpoint_config_name(v->job->checkpoint));
    else
        nib__text_str(out, "no description of the expected weights; ");
    const size_t problems = v->finding_count + v->more;
    nib__text_format(out, "%zu problem%s%s\n", problems, problems == 1 ? "" : "s",
                     v->more != 0 ? ", of which only the first are listed" : "");
}

/* ---- all checks ---- */

/* Adds entry i, a tensor of an unreadable weight, to the list of its module. */
static void add_part(verifier *v, size_t i)
{
    const size_t first = nib__name_index_find(&v->by_part, v->parts, v->entries[i].part_of);
    v->parts[i] = &v->entries[i].part_of;
    if (first == SIZE_MAX) {
        nib__name_index_add(&v->by_part, v->parts, i);
        return;
    }
    v->next_part[i] = v->next_part[first];
    v->next_part[first] = i + 1;
}

static nib_status list_entries(verifier *v)
{
    NIB_TRY(nib__entries_list(&v->entries, &v->count, v->job->checkpoint, &v->arena, NULL, v->err));
    v->items = nib__arena_take(&v->arena, v->count, sizeof *v->items);
    v->parts = nib__arena_take(&v->arena, v->count, sizeof *v->parts);
    v->next_part = nib__arena_take(&v->arena, v->count, sizeof *v->next_part);
    if (v->items == NULL || v->parts == NULL || v->next_part == NULL ||
        !nib__name_index_init(&v->by_name, &v->arena, v->count) ||
        !nib__name_index_init(&v->by_part, &v->arena, v->count))
        return nib__fail_memory(v->err, v->count * sizeof *v->items, "the list of weights");
    for (size_t i = 0; i < v->count; i++) {
        v->items[i] = &v->entries[i];
        nib__name_index_add(&v->by_name, v->items, i);
        if (v->entries[i].part_of != NULL)
            add_part(v, i);
    }
    return NIB_OK;
}

static nib_status run_checks(verifier *v)
{
    const nib_verify_job *job = v->job;
    NIB_TRY(list_entries(v));
    NIB_TRY(nib__manifest_read(&v->manifest, job->checkpoint, &v->arena, job->allocator, v->err));
    NIB_TRY(compare_files(v));
    NIB_TRY(check_signature(v));
    if (job->files_open != NULL)
        NIB_TRY(job->files_open(job->ctx, v->err));
    NIB_TRY(check_tensors(v));
    if (v->manifest.path != NULL) {
        NIB_TRY(check_hashes(v));
        NIB_TRY(report_files(v));
    }
    NIB_TRY(check_weights(v));
    NIB_TRY(check_calibration(v));
    NIB_TRY(check_completeness(v));
    return compare_checkpoints(v);
}

nib_status nib__verify_render(const nib_verify_job *job, nib_form form, nib_text *out,
                              size_t *problems, nib_err *err)
{
    verifier v = {.job = job, .err = err};
    nib__arena_init(&v.arena, job->allocator, nib__info_memory_limit(job->checkpoint));
    nib__ledger_init(&v.ledger, job->allocator);
    const nib_status status = run_checks(&v);
    if (status == NIB_OK) {
        *problems = v.finding_count + v.more;
        if (form == NIB_FORM_JSON)
            render_json(&v, out);
        else
            render_text(&v, out);
    }
    nib__release(job->allocator, v.findings);
    nib__ledger_free(&v.ledger);
    nib__arena_free(&v.arena);
    return status;
}
