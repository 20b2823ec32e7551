/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes llama.cpp's importance matrix of a model on a text, as GGUF: see imatrix.c. A weight that
 * GGUF stores fused has one entry, because its parts read the same inputs, and so has a stack of
 * experts.
 */
#include "arch.h"
#include "config_gguf_states.h"
#include "convert.h"
#include "fused.h"
#include "gguf_write.h"
#include "imatrix.h"
#include "name_index.h"
#include "public_struct.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>

/* One weight of the file. */
typedef struct entry {
    const char *name; /* GGUF's; first, as the index wants it */
    int64_t k, matrices;
    const nib_input_stats **of; /* [matrices] */
} entry;

typedef struct work {
    const nib_imatrix_job *job;
    nib_arena arena;
    entry **entries; /* [count] */
    size_t count;
    nib_name_index by_name;
} work;

/* ---- the entries ---- */

static nib_status name_entry(char out[NIB_FUSED_NAME], int64_t *matrix, const work *w,
                             const char *layer, nib_err *err)
{
    char name[NIB_RENAME_MAX], a[NIB_SHOWN];
    nib_fused_part part;
    if (!nib__imatrix_name(name, matrix, w->job->arch, layer))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: GGUF's architecture %s has no name for this layer, by which an "
                         "imatrix could hold it",
                         nib__escape_string(a, layer), w->job->arch);
    const bool joined =
        nib__fused_part(&part, name, w->job->fused & (NIB_FUSED_QKV | NIB_FUSED_GATE_UP));
    snprintf(out, NIB_FUSED_NAME, "%s", joined ? part.whole : name);
    return NIB_OK;
}

/* The entry of this name, which a first matrix makes. */
static nib_status find_entry(entry **out, work *w, const char *name, int64_t k, nib_err *err)
{
    const size_t at = nib__name_index_find(&w->by_name, (const void *const *)w->entries, name);
    if (at != SIZE_MAX) {
        *out = w->entries[at];
        return NIB_OK;
    }
    *out = w->entries[w->count];
    **out = (entry){.name = nib__arena_copy(&w->arena, name, strlen(name)), .k = k};
    if ((*out)->name == NULL)
        return nib__fail_memory(err, strlen(name), "an imatrix");
    (void)nib__name_index_add(&w->by_name, (const void *const *)w->entries, w->count++);
    return NIB_OK;
}

/* Counts the matrices of each entry, and then, with `place`, lists them. */
static nib_status add_layers(work *w, bool place, nib_err *err)
{
    char name[NIB_FUSED_NAME];
    for (size_t i = 0; i < w->job->count; i++) {
        const nib_imatrix_layer *l = &w->job->layers[i];
        int64_t matrix;
        entry *e = NULL;
        NIB_TRY(name_entry(name, &matrix, w, l->name, err));
        NIB_TRY(find_entry(&e, w, name, l->k, err));
        matrix = nib__max(matrix, 0);
        e->matrices = nib__max(e->matrices, matrix + 1);
        if (place)
            e->of[matrix] = l->stats;
    }
    return NIB_OK;
}

static nib_status list_entries(work *w, nib_err *err)
{
    const size_t count = w->job->count;
    w->entries = nib__container_items(&w->arena, count, sizeof **w->entries);
    if (w->entries == NULL || !nib__name_index_init(&w->by_name, &w->arena, count))
        return nib__fail_memory(err, count * sizeof **w->entries, "an imatrix");
    NIB_TRY(add_layers(w, false, err));
    for (size_t i = 0; i < w->count; i++) {
        entry *e = w->entries[i];
        e->of = nib__arena_take(&w->arena, (uint64_t)e->matrices, sizeof *e->of);
        if (e->of == NULL)
            return nib__fail_memory(err, (uint64_t)e->matrices * sizeof *e->of, "an imatrix");
    }
    return add_layers(w, true, err);
}

/* ---- the file ---- */

static void describe(nib_gguf_head *head, const nib_imatrix_job *job)
{
    const int64_t chunks = nib__ceil_div(job->run.tokens, job->run.window);
    nib__gguf_put_string(head, "general.type", "imatrix", 7);
    nib__gguf_put_array(head, "imatrix.datasets", NIB_GGUF_STRING, 1);
    nib__gguf_item_string(head, job->text, strlen(job->text));
    nib__gguf_put_int(head, "imatrix.chunk_count", NIB_GGUF_U32, chunks);
    nib__gguf_put_int(head, "imatrix.chunk_size", NIB_GGUF_U32, job->run.window);
}

static uint64_t padded(uint64_t floats)
{
    return (4 * floats + NIB_GGUF_ALIGNMENT - 1) / NIB_GGUF_ALIGNMENT * NIB_GGUF_ALIGNMENT;
}

/* Appends the tensors NAME.in_sum2 and NAME.counts to the list; *offset is that of their data. */
static void put_entry(nib_text *out, const entry *e, uint64_t *offset)
{
    char name[NIB_FUSED_NAME + 16];
    snprintf(name, sizeof name, "%s.in_sum2", e->name);
    nib__gguf_entry(out, name, NIB_TYPE_F32, (int64_t[]){e->matrices, e->k}, 2, *offset);
    *offset += padded((uint64_t)(e->matrices * e->k));
    snprintf(name, sizeof name, "%s.counts", e->name);
    nib__gguf_entry(out, name, NIB_TYPE_F32, (int64_t[]){e->matrices, 1}, 2, *offset);
    *offset += padded((uint64_t)e->matrices);
}

static void put_padding(nib_text *out)
{
    static const char zeros[NIB_GGUF_ALIGNMENT];
    nib__text_put(out, zeros, (size_t)-out->size % NIB_GGUF_ALIGNMENT);
}

static void put_f32(nib_text *out, double value)
{
    const float single = (float)value;
    nib__text_put(out, (const char *)&single, sizeof single);
}

static nib_status put_data(nib_text *out, const work *w, const entry *e, nib_err *err)
{
    for (int64_t i = 0; i < e->matrices; i++)
        for (int64_t j = 0; j < e->k; j++) {
            const double square = e->of[i] != NULL ? e->of[i]->squares[j] : 0;
            if (square > (double)FLT_MAX)
                return nib__fail(err, NIB_UNSUPPORTED,
                                 "%s: the squares of input %" PRId64 " sum to %.3g on %s, more "
                                 "than the f32 of an imatrix",
                                 e->name, j, square, w->job->text);
            put_f32(out, square);
        }
    put_padding(out);
    for (int64_t i = 0; i < e->matrices; i++)
        put_f32(out, e->of[i] != NULL ? (double)e->of[i]->tokens : 0);
    put_padding(out);
    return NIB_OK;
}

static nib_status build(nib_text *out, work *w, nib_gguf_head *head, nib_err *err)
{
    uint64_t offset = 0;
    NIB_TRY(list_entries(w, err));
    describe(head, w->job);
    nib__gguf_begin(out, head, 2 * w->count);
    for (size_t i = 0; i < w->count; i++)
        put_entry(out, w->entries[i], &offset);
    put_padding(out);
    for (size_t i = 0; i < w->count; i++)
        NIB_TRY(put_data(out, w, w->entries[i], err));
    return out->failed ? nib__fail_memory(err, offset, "an imatrix") : NIB_OK;
}

nib_status nib__imatrix_build(nib_text *out, size_t *entries, const nib_imatrix_job *job,
                              const nib_allocator *a, nib_err *err)
{
    work w = {.job = job};
    nib_gguf_head head;
    nib__arena_init(&w.arena, a, 0);
    nib__gguf_head_init(&head, a);
    const nib_status status = build(out, &w, &head, err);
    *entries = w.count;
    nib__gguf_head_free(&head);
    nib__arena_free(&w.arena);
    return status;
}

/* ---- the public call ---- */

typedef struct result {
    nib_arena arena;
    nib_ledger ledger;
    nib_input_stats *stats;    /* [sites] */
    nib_imatrix_layer *layers; /* [count] those with inputs: all but embeddings */
    size_t count, entries;
    nib_calibration run;
} result;

static nib_status check_options(const nib_model *model, const nib_imatrix_options *o, nib_err *err)
{
    char a[NIB_SHOWN];
    if (o->out == NULL)
        return nib__fail(err, NIB_USAGE, "no output path is given");
    if (o->calibrate == NULL)
        return nib__fail(err, NIB_USAGE,
                         "an imatrix needs a text to run the model on; give --calibrate TEXT");
    NIB_TRY(nib__model_runs(model, err));
    if (model->net.checkpoint == NULL)
        return nib__fail(err, NIB_USAGE,
                         "%s: only a config was given, without weights to run; give the directory "
                         "or the .safetensors file",
                         model->net.path);
    if (nib__family_of(&model->net.config)->gguf == NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "%s: GGUF has no architecture for %s, whose names of tensors an imatrix "
                         "needs; `nibble quantize --calibrate` takes the text itself",
                         nib__escape_string(a, model->net.path),
                         nib__arch_name(model->net.config.arch));
    if (nib__path_same(o->out, o->calibrate))
        return nib__fail(err, NIB_USAGE, "%s: the output is the text",
                         nib__escape_string(a, o->out));
    NIB_TRY(nib__file_may_replace(o->out, err));
    if (nib__path_kind(o->out) != NIB_PATH_NONE && !o->force)
        return nib__fail(err, NIB_EXISTS, "%s: exists already; --force replaces it",
                         nib__escape_string(a, o->out));
    return NIB_OK;
}

static nib_status list_layers(result *r, const nib_network *net, nib_err *err)
{
    r->stats = nib__arena_take(&r->arena, net->site_count, sizeof *r->stats);
    r->layers = nib__arena_take(&r->arena, net->site_count, sizeof *r->layers);
    if (r->stats == NULL || r->layers == NULL)
        return nib__fail_memory(err, net->site_count * sizeof *r->stats, "the layers");
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *site = &net->sites[i];
        if (site->role == NIB_ROLE_EMBED)
            continue;
        r->stats[i].squares = nib__arena_take(&r->arena, (uint64_t)site->k, sizeof(double));
        if (r->stats[i].squares == NULL)
            return nib__fail_memory(err, (uint64_t)site->k * sizeof(double), "the squares");
        r->layers[r->count++] =
            (nib_imatrix_layer){.name = site->name, .k = site->k, .stats = &r->stats[i]};
    }
    return NIB_OK;
}

static void add_notes(result *r, const char *text)
{
    const nib_imatrix_layer *unseen = NULL, *least = NULL;
    size_t count = 0;
    char a[NIB_SHOWN], b[NIB_SHOWN];
    for (size_t i = r->count; i-- > 0;) {
        const nib_imatrix_layer *l = &r->layers[i];
        if (l->stats->tokens == 0) {
            unseen = l;
            count++;
        } else if (least == NULL || l->stats->tokens <= least->stats->tokens) {
            least = l;
        }
    }
    if (count > 0)
        nib__ledger_add_note(&r->ledger, "imatrix",
                             "%s has no inputs of %zu of %zu layers, so their counts are 0: %s%s",
                             nib__escape_string(a, text), count, r->count,
                             nib__escape_string(b, unseen->name), count > 1 ? ", ..." : "");
    if (least != NULL && least->stats->tokens < least->k)
        nib__ledger_add_note(&r->ledger, "imatrix",
                             "%s is short: %s saw %" PRId64 " tokens, fewer than its %" PRId64
                             " inputs",
                             nib__escape_string(a, text), nib__escape_string(b, least->name),
                             least->stats->tokens, least->k);
}

static nib_status place_file(const nib_imatrix_options *o, const nib_text *file,
                             const nib_allocator *a, nib_err *err)
{
    char part[NIB_PART_PATH];
    NIB_TRY(nib__part_choose(part, o->out, ".part", err));
    NIB_TRY(nib__file_write(part, file->at, file->size, a, err));
    const nib_status status = nib__publish(part, o->out, o->force, err);
    if (status != NIB_OK)
        (void)nib__path_remove(part, NULL);
    return status;
}

static nib_status write_file(result *r, nib_model *model, const nib_imatrix_options *o,
                             nib_err *err)
{
    const nib_allocator *a = &model->engine->allocator;
    const nib_family_row *family = nib__family_of(&model->net.config);
    const nib_imatrix_job job = {.arch = nib__gguf_names(&model->net.config),
                                 .fused = family->fused,
                                 .layers = r->layers,
                                 .count = r->count,
                                 .text = nib__path_name(o->calibrate),
                                 .run = r->run};
    nib_text file;
    nib__text_init(&file, a);
    nib_status status = nib__imatrix_build(&file, &r->entries, &job, a, err);
    if (status == NIB_OK)
        status = nib__model_check_files(model, status, err);
    if (status == NIB_OK)
        status = place_file(o, &file, a, err);
    nib__text_free(&file);
    return status;
}

static void render_json(const result *r, const nib_imatrix_options *o, nib_text *out)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "out", o->out);
    nib__jsonw_pair_int(&w, "entries", (int64_t)r->entries);
    nib__jsonw_pair_int(&w, "matrices", (int64_t)r->count);
    nib__jsonw_pair_int(&w, "tokens", r->run.tokens);
    nib__jsonw_pair_int(&w, "chunks", nib__ceil_div(r->run.tokens, r->run.window));
    nib__jsonw_pair_int(&w, "chunk_size", r->run.window);
    nib__ledger_json(&r->ledger, &w);
    nib__jsonw_report_end(&w);
}

static nib_status render(const result *r, const nib_imatrix_options *o, nib_form form,
                         const nib_sink *sink, const nib_allocator *a, nib_err *err)
{
    nib_text text;
    const int64_t chunks = nib__ceil_div(r->run.tokens, r->run.window);
    nib__text_init(&text, a);
    if (form == NIB_FORM_JSON) {
        render_json(r, o, &text);
    } else {
        nib__text_format(&text,
                         "wrote %s: %zu entries of %zu layers, from %" PRId64 " tokens in %" PRId64
                         " chunk%s of %" PRId64 "\n",
                         o->out, r->entries, r->count, r->run.tokens, chunks,
                         chunks == 1 ? "" : "s", r->run.window);
        nib__ledger_render(&r->ledger, true, &text);
    }
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_imatrix_write(nib_model *model, const nib_imatrix_options *options, nib_form form,
                             const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_OPTIONS(nib_imatrix_options, o, options, err);
    NIB_TRY(nib__engine_check(model->engine, err));
    NIB_TRY(check_options(model, &o, err));
    const nib_allocator *a = &model->engine->allocator;
    const nib_request as_stored = {.size = sizeof as_stored};
    result r = {0};
    nib__arena_init(&r.arena, a, 0);
    nib__ledger_init(&r.ledger, a);
    nib_model *own = NULL;
    nib_status status = nib__model_ordered(&own, model, true, err);
    if (own != NULL)
        model = own;
    if (status == NIB_OK)
        status = list_layers(&r, &model->net, err);
    if (status == NIB_OK)
        status = nib__calibrate(r.stats, &r.run, model, &as_stored, o.calibrate, err);
    if (status == NIB_OK) {
        nib__ledger_append(&r.ledger, &model->net.notes);
        add_notes(&r, o.calibrate);
        status = write_file(&r, model, &o, err);
    }
    if (status == NIB_OK)
        status = render(&r, &o, form, sink, a, err);
    nib_model_close(own);
    nib__ledger_free(&r.ledger);
    nib__arena_free(&r.arena);
    return status;
}
