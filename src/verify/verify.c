/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads every byte of a checkpoint and says what is wrong with it: bytes that are not those that
 * were written, values that are no numbers, codes out of range, weights that are missing, surplus
 * or of another shape; and how far it is from another checkpoint. Findings do not stop it; they are
 * collected in the order of the file.
 */
#include "verify.h"

#include "sqnr.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    BLOCK = 8 << 20,
    GRAIN = 1 << 16,
    FINDING_MAX = 1000, /* kept; more are only counted */
};

static nib_status find(nib_verifying *v, const char *code, const char *tensor, const char *format,
                       ...) NIB_PRINTF(4, 5);

static nib_status find(nib_verifying *v, const char *code, const char *tensor, const char *format,
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
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    nib__say_name(name, sizeof name, tensor, strlen(tensor));
    /* sentences of others begin with the name, which the line has already */
    const size_t length = strlen(name);
    const bool named = strncmp(text, name, length) == 0 && strncmp(text + length, ": ", 2) == 0;
    const char *sentence = named ? text + length + 2 : text;
    const nib_finding f = {code, nib__arena_copy(&v->arena, name, length),
                           nib__arena_copy(&v->arena, sentence, strlen(sentence))};
    if (f.tensor == NULL || f.text == NULL ||
        !nib__reserve(v->job->allocator, &list, &v->finding_capacity, v->finding_count + 1,
                      sizeof f))
        return nib__fail_memory(v->err, sizeof f, "the list of findings");
    v->findings = list;
    v->findings[v->finding_count++] = f;
    return NIB_OK;
}

static nib_status progress(nib_verifying *v, uint64_t bytes)
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
    nib_verifying *v;
} span;

/* Elements that are NaN or infinite: of floats by their value, of 8-bit floats by their code. */
static void scan(void *ctx, int worker, int64_t begin, int64_t end)
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

static bool has_bad_values(nib_type type)
{
    return nib__type_is_float(type) || type == NIB_TYPE_E4M3 || type == NIB_TYPE_E5M2 ||
           type == NIB_TYPE_E8M0;
}

static nib_status look_at(nib_verifying *v, const nib_tensor *t, nib_hash *hash)
{
    const int threads = nib__pool_threads(v->job->pool);
    nib_hasher *hasher = nib__hasher_open();
    int64_t first = INT64_MAX, many = 0;
    nib_status status = hasher == NULL ? nib__fail_memory(v->err, 1024, "a hash") : NIB_OK;
    for (uint64_t at = 0; at < t->bytes && status == NIB_OK; at += BLOCK) {
        const uint64_t left = t->bytes - at, some = left < BLOCK ? left : BLOCK;
        const int64_t width = nib__type_bits(t->type) / 8;
        nib__hasher_add(hasher, t->data + at, (size_t)some);
        if (has_bad_values(t->type)) {
            span s = {t->data + at, t->type, v};
            for (int i = 0; i < threads; i++)
                v->bad[i] = INT64_MAX, v->many[i] = 0;
            nib__pool_run(v->job->pool, (int64_t)some / width, GRAIN, false, scan, &s);
            for (int i = 0; i < threads; i++) {
                if (v->bad[i] != INT64_MAX)
                    first = nib__min(first, (int64_t)at / width + v->bad[i]);
                many += v->many[i];
            }
        }
        nib__checkpoint_release(v->job->checkpoint, t->data + at, some);
        status = progress(v, some);
    }
    if (hasher != NULL)
        *hash = nib__hasher_finish(hasher);
    if (status == NIB_OK && many != 0)
        status = find(v, "not-finite", t->name,
                      "%" PRId64 " value%s not finite, the first at index %" PRId64, many,
                      many == 1 ? " is" : "s are", first);
    return status;
}

static nib_status check_tensors(nib_verifying *v)
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
        v->total += nib__checkpoint_at(cp, i)->bytes;
    for (size_t i = 0; i < count; i++)
        NIB_TRY(look_at(v, nib__checkpoint_at(cp, i), &v->hashes[i]));
    return NIB_OK;
}

/* ---- against the manifest ---- */

static nib_status check_hashes(nib_verifying *v)
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
            NIB_TRY(
                find(v, "not-in-manifest", name, "is stored, but %s does not list it", m->path));
            continue;
        }
        seen[at] = true;
        if (!nib__hash_equal(m->tensors[at].hash, v->hashes[i]))
            NIB_TRY(find(v, "hash", name, "hashes to %s, %s says %s: the bytes have changed",
                         nib__hash_text(found, v->hashes[i]), m->path,
                         nib__hash_text(stated, m->tensors[at].hash)));
    }
    for (size_t i = 0; i < m->tensor_count; i++)
        if (!seen[i])
            NIB_TRY(
                find(v, "missing", m->tensors[i].name, "is listed in %s, but not stored", m->path));
    return NIB_OK;
}

static nib_status check_files(nib_verifying *v)
{
    const nib_manifest *m = &v->manifest;
    for (size_t i = 0; i < m->file_count; i++) {
        const char *name = m->files[i].name;
        const char *directory = nib__checkpoint_directory(v->job->checkpoint);
        nib_map map;
        if (strpbrk(name, "/\\") != NULL || directory == NULL) {
            NIB_TRY(find(v, "file-name", name, "is listed in %s, but is no file beside the weights",
                         m->path));
            continue;
        }
        const char *path = nib__path_join(&v->arena, directory, name);
        if (path == NULL)
            return nib__fail_memory(v->err, strlen(name), "a path");
        if (nib__map_open(&map, path, NULL) != NIB_OK) {
            NIB_TRY(
                find(v, "missing-file", name, "is listed in %s, but cannot be opened", m->path));
            continue;
        }
        const bool same = nib__hash_equal(
            m->files[i].hash,
            nib__hash_bytes(map.size == 0 ? (const uint8_t *)"" : map.at, map.size));
        nib__map_close(&map);
        v->files_compared++;
        if (!same)
            NIB_TRY(find(v, "file-hash", name, "has changed since %s was written", m->path));
    }
    return NIB_OK;
}

/* ---- what weights mean ---- */

/* Groups whose scale makes all of their codes one value, though they differ. Of integers only: the
 * scales of others cannot be 0, or e8m0 has none. */
static int64_t count_lost(const nib_weight *w)
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

static nib_status check_bias_scales(nib_verifying *v, const nib_entry *e)
{
    const nib_weight *w = &e->weight;
    const int64_t bytes = nib__type_bits(w->bias_scale_type) / 8;
    int64_t bad = 0;
    for (int64_t g = 0; w->bias_scales != NULL && g < nib__ceil_div(w->n, NIB_BIAS_GROUP); g++) {
        float scale;
        nib__to_f32(&scale, (const uint8_t *)w->bias_scales + g * bytes, w->bias_scale_type, 1);
        bad += scale <= 0;
    }
    return bad == 0 ? NIB_OK
                    : find(v, "scale", e->name,
                           "%" PRId64 " scales of its bias are 0 or negative, which no quantizer "
                           "here writes",
                           bad);
}

static nib_status check_weights(nib_verifying *v)
{
    for (size_t i = 0; i < v->count; i++) {
        const nib_entry *e = &v->entries[i];
        nib_err why = {NIB_OK, ""};
        if (e->problem != NULL)
            NIB_TRY(find(v, "unreadable", e->name, "%s", e->problem));
        if (e->module == NULL)
            continue;
        /* Values that are no numbers were counted tensor by tensor, but for those of blocks. */
        const bool look =
            e->weight.scheme.code == NIB_CODE_I4 || nib__weight_holds_scales(&e->weight);
        const nib_status status =
            look ? nib__weight_check_codes(&e->weight, e->module, &why) : NIB_OK;
        if (status == NIB_BAD_INPUT)
            NIB_TRY(find(v, nib__weight_holds_scales(&e->weight) ? "not-finite" : "code-range",
                         e->name, "%s", why.text));
        else if (status != NIB_OK)
            return nib__fail(v->err, status, "%s", why.text);
        const int64_t lost = count_lost(&e->weight);
        if (lost != 0)
            NIB_TRY(find(v, "scale", e->name,
                         "%" PRId64 " groups have a scale of 0 and codes that are not: their "
                         "values are lost",
                         lost));
        NIB_TRY(check_bias_scales(v, e));
    }
    return NIB_OK;
}

/* ---- completeness ---- */

/* The parts of a weight that is there but cannot be read, which is told already. */
static bool claim_unreadable(const nib_verifying *v, const char *module, bool *claimed)
{
    const size_t first = nib__name_index_find(&v->by_part, v->parts, module);
    if (first == SIZE_MAX)
        return false;
    for (size_t i = first + 1; i != 0; i = v->next_part[i - 1])
        claimed[i - 1] = true;
    return true;
}

static size_t find_entry(const nib_verifying *v, const char *name)
{
    return nib__name_index_find(&v->by_name, v->items, name);
}

/* The bias of a vector, as a norm may have one, is an entry of its own. */
static bool claim_bias(const nib_verifying *v, const nib_expected *x, bool *claimed)
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

static nib_status check_expected(nib_verifying *v, const nib_expected *x, bool *claimed)
{
    char name[512];
    const char *by = nib__checkpoint_described(v->job->checkpoint);
    if (snprintf(name, sizeof name, "%s.weight", x->name) >= (int)sizeof name)
        return NIB_OK;
    size_t at = find_entry(v, name);
    const nib_meta *alias = nib__checkpoint_alias(v->job->checkpoint, name);
    if (at == SIZE_MAX && alias != NULL)
        at = find_entry(v, alias->value);
    if (at == SIZE_MAX && claim_unreadable(v, x->name, claimed))
        return NIB_OK;
    if (at == SIZE_MAX)
        return x->optional ? NIB_OK
                           : find(v, "missing", name, "%s implies it, but it is not stored", by);
    claimed[at] = true;
    const nib_entry *e = &v->entries[at];
    const bool vector = x->k == 0;
    char has[256], wanted[256];
    const nib_entry implied = {.rank = vector ? 1 : 2, .shape = {x->n, x->k}};
    if (e->rank != implied.rank || e->shape[0] != x->n || (!vector && e->shape[1] != x->k))
        NIB_TRY(find(v, "shape", name, "is %s, but %s implies %s", nib__entry_shape(has, e), by,
                     nib__entry_shape(wanted, &implied)));
    if (x->bias && !e->bias && !claim_bias(v, x, claimed))
        NIB_TRY(find(v, "bias", name, "%s implies a bias, but none is stored", by));
    if (!x->bias && e->bias)
        NIB_TRY(find(v, "bias", name,
                     "has a bias that %s does not imply; other programs may drop it", by));
    return NIB_OK;
}

/* Every implied weight is there once, and nothing else is. A bias is part of its weight's line; a
 * bias whose weight is missing stands alone and is surplus. */
static nib_status check_completeness(nib_verifying *v)
{
    bool *claimed = nib__arena_take(&v->arena, v->count, sizeof *claimed);
    if (v->job->expected_count == 0)
        return NIB_OK;
    if (claimed == NULL)
        return nib__fail_memory(v->err, v->count, "the list of weights");
    for (size_t i = 0; i < v->job->expected_count; i++)
        NIB_TRY(check_expected(v, &v->job->expected[i], claimed));
    for (size_t i = 0; i < v->count; i++)
        if (!claimed[i] && !nib__is_rotary_table(v->entries[i].name))
            NIB_TRY(find(v, "surplus", v->entries[i].name, "is stored, but %s does not imply it",
                         nib__checkpoint_described(v->job->checkpoint)));
    return NIB_OK;
}

/* ---- against another checkpoint ---- */

static nib_status add_distance(nib_verifying *v, const char *name, double sqnr_db)
{
    nib_ledger_layer *line = nib__ledger_add_layer(&v->ledger, name);
    if (line == NULL)
        return nib__fail_memory(v->err, sizeof *line, "the ledger");
    line->sqnr_db = sqnr_db;
    return NIB_OK;
}

static nib_status compare_tensor(nib_verifying *v, const char *name)
{
    const nib_tensor *a = nib__checkpoint_find(v->job->checkpoint, name);
    const nib_tensor *b = nib__checkpoint_find(v->job->against, name);
    if (a == NULL || b == NULL)
        return a == b || nib__is_rotary_table(name)
                   ? NIB_OK
                   : find(v, "against", name, "is in one of the checkpoints only");
    if (a->rank != b->rank || memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return find(v, "against", name, "has another shape in the other checkpoint");
    if (nib__type_is_float(a->type) && nib__type_is_float(b->type))
        return add_distance(v, name, nib__tensor_distance(a, b));
    const bool same = a->type == b->type && memcmp(a->data, b->data, (size_t)a->bytes) == 0;
    return same ? NIB_OK : find(v, "against", name, "has other bytes in the other checkpoint");
}

/* By its values, in whatever forms: files may keep them in another order, too. */
static nib_status compare_bias(nib_verifying *v, const nib_entry *e, const nib_weight *other)
{
    double db;
    if (e->weight.bias == NULL && other->bias == NULL)
        return NIB_OK;
    const char *name = nib__ledger_text(&v->ledger, "%s.bias", e->module);
    if (name == NULL)
        return nib__fail_memory(v->err, strlen(e->module), "the ledger");
    if (e->weight.bias == NULL || other->bias == NULL)
        return find(v, "against", name, "is in one of the checkpoints only");
    NIB_TRY(nib__bias_distance(&db, &e->weight, other, v->job->allocator, v->err));
    return add_distance(v, name, db);
}

static nib_status compare_weight(nib_verifying *v, const nib_entry *e)
{
    nib_weight other;
    nib_err why = {NIB_OK, ""};
    bool found = true;
    const nib_verify_job *job = v->job;
    const bool was_tied = job->head != NULL && strcmp(e->module, job->head) == 0;
    const char *module = was_tied ? job->against_head : e->module;
    if (nib__checkpoint_weight(&other, &found, job->against, module, NULL, &why) != NIB_OK)
        return find(v, "against", e->name, "the other checkpoint: %s", why.text);
    if (!found)
        return find(v, "against", e->name, "is in one of the checkpoints only");
    if (other.n != e->weight.n || other.k != e->weight.k)
        return find(v, "against", e->name, "is %" PRId64 " x %" PRId64 " in the other checkpoint",
                    other.n, other.k);
    const nib_held here = {job->checkpoint, &e->weight}, there = {job->against, &other};
    double db;
    NIB_TRY(nib__weight_distance(&db, &here, &there, job->pool, job->allocator, v->err));
    NIB_TRY(add_distance(v, e->module, db));
    return compare_bias(v, e, &other);
}

/* An output that is stored by itself there, and is the embedding here. */
static nib_status compare_lone_head(nib_verifying *v, const nib_weight *other)
{
    nib_weight own;
    nib_err why;
    double db;
    const nib_verify_job *job = v->job;
    if (nib__checkpoint_weight(&own, NULL, job->checkpoint, job->tied_head, NULL, &why) != NIB_OK)
        return find(v, "against", job->lone_head, "%s", why.text);
    if (own.n != other->n || own.k != other->k)
        return find(v, "against", job->lone_head,
                    "is %" PRId64 " x %" PRId64
                    " in the other checkpoint, and the embedding, which "
                    "it is here, %" PRId64 " x %" PRId64,
                    other->n, other->k, own.n, own.k);
    const nib_held here = {job->checkpoint, &own}, there = {job->against, other};
    NIB_TRY(nib__weight_distance(&db, &here, &there, job->pool, job->allocator, v->err));
    return add_distance(v, job->lone_head, db);
}

/* What only the other checkpoint has. */
static nib_status find_absent(nib_verifying *v)
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
            NIB_TRY(find(v, "against", others[i].name, "is in the other checkpoint only"));
    }
    return NIB_OK;
}

static nib_status compare(nib_verifying *v)
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
    return find_absent(v);
}

/* ---- the whole ---- */

/* Entry i is a part of a weight that cannot be read: it joins the others. */
static void list_part(nib_verifying *v, size_t i)
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

static nib_status list_entries(nib_verifying *v)
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
            list_part(v, i);
    }
    return NIB_OK;
}

static nib_status run(nib_verifying *v)
{
    const nib_verify_job *job = v->job;
    NIB_TRY(list_entries(v));
    NIB_TRY(nib__manifest_read(&v->manifest, job->checkpoint, &v->arena, job->allocator, v->err));
    NIB_TRY(check_tensors(v));
    if (v->manifest.path != NULL) {
        NIB_TRY(check_hashes(v));
        NIB_TRY(check_files(v));
    }
    NIB_TRY(check_weights(v));
    NIB_TRY(check_completeness(v));
    return compare(v);
}

nib_status nib__verify_render(const nib_verify_job *job, nib_form form, nib_text *out,
                              size_t *problems, nib_err *err)
{
    nib_verifying v = {.job = job, .err = err};
    nib__arena_init(&v.arena, job->allocator, nib__inspect_limit(job->checkpoint));
    nib__ledger_init(&v.ledger, job->allocator);
    const nib_status status = run(&v);
    if (status == NIB_OK) {
        *problems = v.finding_count + v.more;
        if (form == NIB_FORM_JSON)
            nib__verify_json(&v, out);
        else
            nib__verify_text(&v, out);
    }
    nib__release(job->allocator, v.findings);
    nib__ledger_free(&v.ledger);
    nib__arena_free(&v.arena);
    return status;
}
