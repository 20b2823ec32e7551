/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_verify_from without a receipt: a verdict on every tensor, from the source alone, and what
 * follows from all of them.
 */
#include "chat_files.h"
#include "convert.h"
#include "findings.h"
#include "gguf_vocab.h"
#include "info.h"
#include "judge_folds.h"
#include "portable_math.h"
#include "renames.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct check {
    nib_model *model, *source;
    const char *source_path;
    const nib_allocator *allocator;
    nib_arena arena;
    nib_ledger notes;
    nib_findings findings;
    nib_entry *entries;
    size_t entry_count;
    nib_judged *judged; /* [capacity] */
    size_t count, capacity;
    size_t verdicts[NIB_ORIGIN_COUNT];
    nib_err *err;
} check;

static const nib_checkpoint *stored_of(const check *c) { return c->model->net.checkpoint; }

static const nib_checkpoint *source_of(const check *c) { return c->source->net.checkpoint; }

static nib_judged *add_judged(check *c, const char *name)
{
    nib_judged *j = &c->judged[c->count++];
    *j = (nib_judged){.name = name, .judgement = {.verdict = NIB_ORIGIN_UNKNOWN}};
    return j;
}

static void set_text(nib_judgement *j, nib_origin verdict, const char *format, ...)
    NIB_PRINTF(3, 4);

static void set_text(nib_judgement *j, nib_origin verdict, const char *format, ...)
{
    va_list args;
    j->verdict = verdict;
    va_start(args, format);
    nib__vformat(j->text, sizeof j->text, format, args);
    va_end(args);
}

/* ---- one tensor ---- */

/* The module of the source that this one comes from: an output may be tied there. */
static const char *source_module(const check *c, const char *module)
{
    const nib_network *net = &c->model->net, *source = &c->source->net;
    if (net->site_count == 0 || source->site_count == 0 || !source->tied || net->tied)
        return module;
    return strcmp(module, nib__network_head(net)->name) == 0 ? nib__network_embed(source)->name
                                                             : module;
}

static nib_status judge_bias(check *c, const nib_entry *e, const nib_weight *source)
{
    const nib_weight *w = &e->weight;
    if (w->bias == NULL && source->bias == NULL)
        return NIB_OK;
    const char *name = nib__ledger_text(&c->notes, "%s.bias", e->module);
    if (name == NULL)
        return nib__fail_memory(c->err, strlen(e->module), "the report");
    nib_judged *j = add_judged(c, name);
    if (w->bias == NULL || source->bias == NULL) {
        set_text(&j->judgement, NIB_ORIGIN_OTHER, "%s",
                 w->bias == NULL ? "the source has a bias, and it is missing here"
                                 : "the source has no such bias");
        return NIB_OK;
    }
    float *values = nib__calloc(c->allocator, 2 * (uint64_t)w->n, sizeof *values);
    if (values == NULL)
        return nib__fail_memory(c->err, 2 * (uint64_t)w->n * sizeof *values, "a comparison");
    nib__weight_bias(w, values);
    nib__weight_bias(source, values + w->n);
    nib__judge_values(&j->judgement, values, w->bias_type, values + w->n, source->bias_type, w->n);
    nib__release(c->allocator, values);
    return NIB_OK;
}

static nib_status judge_module(check *c, const nib_entry *e)
{
    nib_weight source;
    nib_err why = {NIB_OK, ""};
    bool found = true;
    nib_judged *j = add_judged(c, e->name);
    const char *module = source_module(c, e->module);
    if (nib__checkpoint_weight(&source, &found, source_of(c), module, NULL, &why) != NIB_OK) {
        set_text(&j->judgement, NIB_ORIGIN_UNKNOWN, "the source cannot be read: %s", why.text);
        return NIB_OK;
    }
    if (!found || source.n != e->weight.n || source.k != e->weight.k) {
        if (!found)
            set_text(&j->judgement, NIB_ORIGIN_OTHER, "the source has no such weight");
        else
            set_text(&j->judgement, NIB_ORIGIN_OTHER,
                     "is %" PRId64 " x %" PRId64 ", but the source's is %" PRId64 " x %" PRId64,
                     e->weight.n, e->weight.k, source.n, source.k);
        return NIB_OK;
    }
    const nib_judge_pair pair = {.checkpoint = stored_of(c),
                                 .source_checkpoint = source_of(c),
                                 .weight = &e->weight,
                                 .source = &source,
                                 .pool = c->model->engine->pool,
                                 .allocator = c->allocator};
    NIB_TRY(nib__judge_weight(&j->judgement, &pair, c->err));
    return judge_bias(c, e, &source);
}

/* Compares two tensors of floats; `add` is added to the source's, or, with `rates`, it is A_log and
 * t has -e^A_log. */
static nib_status judge_floats(check *c, nib_judgement *out, const nib_tensor *t,
                               const nib_tensor *source, float add, bool rates)
{
    const int64_t count = (int64_t)t->bytes / (nib__type_bits(t->type) / 8);
    float *values = nib__calloc(c->allocator, 2 * (uint64_t)count, sizeof *values);
    if (values == NULL)
        return nib__fail_memory(c->err, 2 * (uint64_t)count * sizeof *values, "a comparison");
    nib__to_f32(values, t->data, t->type, count);
    nib__to_f32(values + count, source->data, source->type, count);
    for (int64_t i = count; i < 2 * count; i++)
        values[i] = rates ? (float)-nib__exp((double)values[i]) : values[i] + add;
    nib__judge_values(out, values, t->type, values + count, source->type, count);
    nib__release(c->allocator, values);
    return NIB_OK;
}

static nib_status judge_tensor(check *c, const nib_tensor *t)
{
    const nib_tensor *source = nib__checkpoint_find(source_of(c), t->name);
    nib_judged *j = add_judged(c, t->name);
    if (source == NULL) {
        set_text(&j->judgement, NIB_ORIGIN_OTHER, "the source has no such tensor");
        return NIB_OK;
    }
    if (t->rank != source->rank || memcmp(t->shape, source->shape, sizeof t->shape) != 0) {
        set_text(&j->judgement, NIB_ORIGIN_OTHER, "has another shape than the source's");
        return NIB_OK;
    }
    if (!nib__type_is_float(t->type) || !nib__type_is_float(source->type)) {
        const bool same = t->type == source->type && t->bytes == source->bytes &&
                          memcmp(t->data, source->data, (size_t)t->bytes) == 0;
        set_text(&j->judgement, same ? NIB_ORIGIN_SAME : NIB_ORIGIN_UNKNOWN, "%s",
                 same ? "all bytes" : "its bytes differ from the source's");
        return NIB_OK;
    }
    NIB_TRY(judge_floats(c, &j->judgement, t, source, 0, false));
    if (nib__origins[j->judgement.verdict].accounted)
        return NIB_OK;
    nib_judgement again; /* as GGUF stores some norms, and rates of recurrences */
    const bool rates = nib__rename_is_rates(t->name);
    NIB_TRY(judge_floats(c, &again, t, source, 1, rates));
    if (nib__origins[again.verdict].accounted)
        set_text(&j->judgement, again.verdict, rates ? "%s, each as -e^A_log" : "%s, each plus 1",
                 again.text);
    return NIB_OK;
}

static nib_status judge_entry(check *c, const nib_entry *e)
{
    if (e->module != NULL)
        return judge_module(c, e);
    if (e->part_of == NULL)
        return nib__is_rotary_table(e->name) ? NIB_OK : judge_tensor(c, e->tensor);
    if (e->problem != NULL) {
        nib_judged *j = add_judged(c, e->part_of);
        set_text(&j->judgement, NIB_ORIGIN_UNKNOWN, "it cannot be read: %s", e->problem);
    }
    return NIB_OK;
}

/* ---- all tensors ---- */

static nib_status report_progress(const check *c, size_t done)
{
    const nib_callbacks *b = &c->model->engine->callbacks;
    if (b->progress == NULL || b->progress(b->ctx, "verify", done, c->entry_count))
        return NIB_OK;
    return nib__fail(c->err, NIB_CANCELLED, "cancelled");
}

static nib_status judge_all(check *c)
{
    NIB_TRY(nib__entries_list(&c->entries, &c->entry_count, stored_of(c), &c->arena, NULL, c->err));
    c->capacity = 2 * c->entry_count; /* a weight and its bias */
    c->judged = nib__arena_take(&c->arena, c->capacity, sizeof *c->judged);
    if (c->judged == NULL)
        return nib__fail_memory(c->err, c->capacity * sizeof *c->judged, "the list of weights");
    for (size_t i = 0; i < c->entry_count; i++) {
        NIB_TRY(judge_entry(c, &c->entries[i]));
        NIB_TRY(report_progress(c, i + 1));
    }
    return NIB_OK;
}

static bool is_entry(const check *c, const char *name)
{
    for (size_t i = 0; i < c->entry_count; i++)
        if (strcmp(c->entries[i].name, name) == 0)
            return true;
    return false;
}

/* Reports what only the source has. A tied output needs no weight here if it has none there. */
static nib_status find_missing(check *c)
{
    nib_entry *list;
    size_t count;
    NIB_TRY(nib__entries_list(&list, &count, source_of(c), &c->arena, NULL, c->err));
    for (size_t i = 0; i < count; i++)
        if (list[i].part_of == NULL && !nib__is_rotary_table(list[i].name) &&
            !is_entry(c, list[i].name) && nib__checkpoint_alias(stored_of(c), list[i].name) == NULL)
            NIB_TRY(nib__findings_add(&c->findings, "missing", list[i].name,
                                      "the source has it, but it is not stored"));
    return NIB_OK;
}

static const char *describe_place(char out[200], const nib_judge_place *p)
{
    nib__format(out, 200, "row %" PRId64 ", column %" PRId64 ": found %s%.9g, expected %.9g",
                p->row, p->column, p->is_scale ? "the scale or zero " : "", (double)p->found,
                (double)p->expected);
    return out;
}

static nib_status find_unaccounted(check *c)
{
    char places[NIB_JUDGE_PLACES * 200], place[200];
    for (size_t i = 0; i < c->count; i++) {
        const nib_judgement *j = &c->judged[i].judgement;
        size_t used = 0;
        places[0] = '\0';
        c->verdicts[j->verdict]++;
        if (nib__origins[j->verdict].accounted)
            continue;
        for (size_t p = 0; p < j->place_count && p < 3; p++)
            used += (size_t)snprintf(places + used, sizeof places - used, "; %s",
                                     describe_place(place, &j->places[p]));
        NIB_TRY(nib__findings_add(&c->findings, nib__origins[j->verdict].name, c->judged[i].name,
                                  "%s%s", j->text, places));
    }
    return NIB_OK;
}

/* ---- chat templates ---- */

/* *text NULL: it has none. */
static nib_status read_template(const check *c, const nib_checkpoint *cp, nib_arena *arena,
                                const char **text, size_t *size)
{
    const nib_gguf *gguf = nib__checkpoint_gguf(cp);
    const char *directory = nib__checkpoint_directory(cp);
    nib_chat_files files;
    *text = NULL;
    if (gguf != NULL)
        return nib__gguf_chat_template(text, size, gguf, c->err);
    if (directory == NULL)
        return NIB_OK;
    NIB_TRY(nib__chat_files_read(&files, directory, arena, c->err));
    const nib_named_text *found =
        files.own.text.text != NULL ? &files.own.text : &files.config.text;
    *text = found->text;
    *size = found->size;
    return NIB_OK;
}

static nib_status compare_templates(check *c)
{
    const char *stored, *source;
    size_t size = 0, source_size = 0, at = 0;
    NIB_TRY(read_template(c, stored_of(c), &c->arena, &stored, &size));
    NIB_TRY(read_template(c, source_of(c), &c->arena, &source, &source_size));
    if (stored == NULL && source == NULL)
        return NIB_OK;
    if (stored == NULL || source == NULL)
        return nib__findings_add(&c->findings, "chat-template", "chat template",
                                 stored == NULL ? "the source has one, and this has none"
                                                : "the source has none, and this has one");
    while (at < size && at < source_size && stored[at] == source[at])
        at++;
    if (at == size && at == source_size)
        return NIB_OK;
    return nib__findings_add(
        &c->findings, "chat-template", "chat template",
        "differs from the source's from byte %zu on; it has %zu bytes, and the "
        "source's %zu",
        at, size, source_size);
}

/* A rotation on both sides leaves neither values nor products of rows or columns. So where some
 * tensors are rotated, others without correlation may come from the source, too. */
static void doubt_others(check *c)
{
    size_t rotated = 0;
    for (size_t i = 0; i < c->count; i++)
        rotated += c->judged[i].judgement.verdict == NIB_ORIGIN_ROTATED;
    for (size_t i = 0; i < c->count && rotated > 0; i++) {
        nib_judgement *j = &c->judged[i].judgement;
        const size_t used = strlen(j->text);
        if (j->verdict != NIB_ORIGIN_OTHER || !j->is_uncorrelated)
            continue;
        j->verdict = NIB_ORIGIN_UNKNOWN;
        snprintf(j->text + used, sizeof j->text - used,
                 ", as after a rotation on both sides, and %zu other tensors are rotated", rotated);
    }
}

/* What follows, and what does not. */
static void conclude(check *c)
{
    const size_t exact = c->verdicts[NIB_ORIGIN_SAME] + c->verdicts[NIB_ORIGIN_CAST] +
                         c->verdicts[NIB_ORIGIN_ROUNDED];
    const size_t searched = c->verdicts[NIB_ORIGIN_SEARCHED];
    char a[NIB_SHOWN];
    if (exact != 0)
        nib__ledger_add_note(&c->notes, "verdicts",
                             "%zu of %zu tensors follow from the source alone: another value, code "
                             "or scale in them would have been found",
                             exact, c->count);
    if (searched != 0)
        nib__ledger_add_note(&c->notes, "verdicts",
                             "in %zu, the codes follow from the source and the scales, but not the "
                             "choice of the scales",
                             searched);
    if (c->verdicts[NIB_ORIGIN_FOLDED] != 0)
        nib__ledger_add_note(
            &c->notes, "verdicts",
            "in %zu, factors were moved between tensors: they undo each other, but "
            "nothing says how they were chosen",
            c->verdicts[NIB_ORIGIN_FOLDED]);
    if (c->verdicts[NIB_ORIGIN_FEEDBACK] != 0)
        nib__ledger_add_note(&c->notes, "verdicts",
                             "in %zu, codes lie within the bounds of error feedback; a few planted "
                             "changes within these bounds would not have been found",
                             c->verdicts[NIB_ORIGIN_FEEDBACK]);
    nib__ledger_add_note(&c->notes, "verdicts",
                         "nothing here vouches for %s itself, or says which program wrote the "
                         "checkpoint, or on which text scales were chosen",
                         nib__escape_string(a, c->source_path));
}

static nib_status run_check(check *c, const nib_verify_from_options *o)
{
    const nib_model_options options = {.size = sizeof options, .inspect = true};
    const char *useless = o->calibrate != NULL ? o->calibrate
                          : o->imatrix != NULL ? o->imatrix
                                               : o->tokenizer;
    if (useless != NULL)
        return nib__fail(c->err, NIB_USAGE,
                         "--%s %s has no effect: %s has no receipt that names such a file",
                         o->calibrate != NULL ? "calibrate"
                         : o->imatrix != NULL ? "imatrix"
                                              : "tokenizer",
                         useless, nib__checkpoint_path(stored_of(c)));
    NIB_TRY(nib_model_open(&c->source, c->model->engine, o->source, &options, c->err));
    if (c->source->net.checkpoint == NULL)
        return nib__fail(c->err, NIB_USAGE, "%s: is a config without weights, not a source",
                         o->source);
    NIB_TRY(nib__source_order(&c->source, c->model, c->err));
    NIB_TRY(nib__verify_signature(c->model, o, &c->findings, &c->notes, c->err));
    NIB_TRY(judge_all(c));
    NIB_TRY(nib__judge_folds(c->judged, c->count, &c->model->net, &c->source->net,
                             c->model->engine->pool, c->err));
    doubt_others(c);
    NIB_TRY(find_unaccounted(c));
    NIB_TRY(find_missing(c));
    NIB_TRY(compare_templates(c));
    conclude(c);
    const nib_status status = nib__checkpoint_check_files(source_of(c), NIB_OK, c->err);
    return nib__checkpoint_check_files(stored_of(c), status, c->err);
}

/* ---- the report ---- */

static void json_judged(const nib_judged *j, nib_jsonw *w)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", j->name);
    nib__jsonw_pair_string(w, "verdict", nib__origins[j->judgement.verdict].name);
    nib__jsonw_pair_string(w, "text", j->judgement.text);
    nib__jsonw_pair_int(w, "differing", j->judgement.altered);
    nib__jsonw_key(w, "places");
    nib__jsonw_array(w);
    for (size_t p = 0; p < j->judgement.place_count; p++) {
        const nib_judge_place *place = &j->judgement.places[p];
        nib__jsonw_object(w);
        nib__jsonw_pair_int(w, "row", place->row);
        nib__jsonw_pair_int(w, "column", place->column);
        nib__jsonw_pair_bool(w, "scale", place->is_scale);
        nib__jsonw_pair_double(w, "found", (double)place->found);
        nib__jsonw_pair_double(w, "expected", (double)place->expected);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_object_end(w);
}

static void render_json(const check *c, const char *manifest, nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "receipt", NULL);
    nib__jsonw_pair_string(&w, "manifest", manifest);
    nib__jsonw_pair_string(&w, "source", c->source_path);
    nib__jsonw_key(&w, "tensors");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < c->count; i++)
        json_judged(&c->judged[i], &w);
    nib__jsonw_array_end(&w);
    nib__jsonw_key(&w, "verdicts");
    nib__jsonw_object(&w);
    for (int v = 0; v < NIB_ORIGIN_COUNT; v++)
        nib__jsonw_pair_int(&w, nib__origins[v].name, (int64_t)c->verdicts[v]);
    nib__jsonw_object_end(&w);
    nib__findings_json(&c->findings, &c->notes, &w);
    nib__jsonw_report_end(&w);
}

static void render_text(const check *c, nib_text *out)
{
    char head[256], shown[NIB_SHOWN];
    for (size_t i = 0; i < c->count; i++) {
        const nib_judgement *j = &c->judged[i].judgement;
        if (!nib__origins[j->verdict].accounted)
            continue; /* a finding */
        snprintf(head, sizeof head, "%s: %s: ", nib__origins[j->verdict].name,
                 nib__escape_string(shown, c->judged[i].name));
        nib__ledger_wrap(out, head, "    ", 100, j->text);
    }
    nib__findings_text(&c->findings, &c->notes, out);
    nib__text_format(out, "no receipt; %zu tensors:", c->count);
    for (int v = 0; v < NIB_ORIGIN_COUNT; v++)
        if (c->verdicts[v] != 0)
            nib__text_format(out, " %zu %s,", c->verdicts[v], nib__origins[v].name);
    nib__text_format(out, " %zu problem%s\n", c->findings.count, c->findings.count == 1 ? "" : "s");
}

static nib_status report(check *c, const char *manifest, nib_form form, const nib_sink *sink)
{
    nib_text text;
    nib__text_init(&text, c->allocator);
    if (form == NIB_FORM_JSON)
        render_json(c, manifest, &text);
    else
        render_text(c, &text);
    nib_status status = c->notes.failed ? nib__fail_memory(c->err, 0, "the report")
                                        : nib__text_flush(&text, sink, c->err);
    nib__text_free(&text);
    if (status == NIB_OK && c->findings.count != 0)
        status = nib__fail(c->err, NIB_CHECK_FAILED, "%s: %zu problem%s found",
                           nib__checkpoint_path(stored_of(c)), c->findings.count,
                           c->findings.count == 1 ? " was" : "s were");
    return status;
}

nib_status nib__verify_by_source(nib_model *model, const nib_verify_from_options *options,
                                 const char *manifest, nib_form form, const nib_sink *sink,
                                 nib_err *err)
{
    const nib_allocator *a = &model->engine->allocator;
    check *c = nib__calloc(a, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a check");
    *c = (check){.model = model, .source_path = options->source, .allocator = a, .err = err};
    nib__arena_init(&c->arena, a, 0);
    nib__ledger_init(&c->notes, a);
    c->findings = (nib_findings){.arena = &c->arena, .err = err};
    nib_status status = run_check(c, options);
    if (status == NIB_OK)
        status = report(c, manifest, form, sink);
    nib_model_close(c->source);
    nib__ledger_free(&c->notes);
    nib__arena_free(&c->arena);
    nib__release(a, c);
    return status;
}
