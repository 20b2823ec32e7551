/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes biases to a file. They are short, so each is converted as a whole.
 */
#include "bias_codes.h"
#include "stream.h"

#include <stdio.h>

/* Reports the old and new form of a bias. */
static void report_bias(nib_stream *s, const nib_rewrite *r, nib_bias before, double change)
{
    const char *name = nib__ledger_text(s->ledger, "%s.bias", r->layer->name);
    nib_ledger_tensor *line = name == NULL ? NULL : nib__ledger_add_tensor(s->ledger, name);
    if (line == NULL)
        return;
    line->asked =
        before == NIB_BIAS_FLOAT ? nib__type_name(r->biased->bias_type) : nib__bias_names[before];
    line->done = r->bias_form == NIB_BIAS_FLOAT ? "f32" : nib__bias_names[r->bias_form];
    line->max_rel_change = change;
    line->reason =
        r->bias_form == NIB_BIAS_INT8
            ? "in groups of 32; the change is relative to its largest value"
        : r->bias_form == NIB_BIAS_INT32
            ? "in steps of activation scale times row scale; the change is relative to its "
              "largest value"
            : "dequantized from its codes";
}

static nib_status write_values(nib_stream *s, size_t place, const void *values, nib_type type,
                               int64_t count, nib_err *err)
{
    return place == SIZE_MAX
               ? NIB_OK
               : nib__writer_put(s->writer, place, values,
                                 (size_t)count * (size_t)nib__type_bits(type) / 8, err);
}

/* Reorders floats for a format that keeps rotary pairs together. Such a format has no coded
 * biases. */
static nib_status reorder_rows(nib_weight *w, const int32_t *rows, nib_arena *arena, nib_err *err)
{
    const float *values = w->bias;
    float *moved = nib__arena_take(arena, (uint64_t)w->n, sizeof *moved);
    if (moved == NULL)
        return nib__fail_memory(err, (uint64_t)w->n * sizeof *moved, "a bias");
    for (int64_t i = 0; i < w->n; i++)
        moved[i] = values[rows[i]];
    w->bias = moved;
    return NIB_OK;
}

static nib_status write_bias(nib_stream *s, const nib_rewrite *r, nib_weight *w, nib_arena *arena,
                             nib_err *err)
{
    const bool with = r->kind == NIB_REWRITE_QUANTIZE;
    const int64_t groups = nib__ceil_div(w->n, NIB_BIAS_GROUP);
    const nib_bias before = nib__weight_bias_form(w);
    char shown[160];
    double change;
    const nib_status status = nib__bias_code(w, r->bias_form, &change, arena, err);
    if (status != NIB_OK)
        return nib__fail_in(
            err, status,
            nib__escape_name(shown, sizeof shown, r->layer->name, strlen(r->layer->name)));
    if (r->written_rows != NULL && !with)
        NIB_TRY(reorder_rows(w, r->written_rows, arena, err));
    NIB_TRY(write_values(s, with ? r->bias : r->codes, w->bias, w->bias_type, w->n, err));
    if (!with)
        NIB_TRY(write_values(s, r->scales, w->bias_scales, w->bias_scale_type, groups, err));
    if (!with)
        NIB_TRY(write_values(s, r->zeros, w->bias_zeros, NIB_TYPE_I8, groups, err));
    if (before != r->bias_form && r->bias_form == s->job->bias) /* else already reported */
        report_bias(s, r, before, change);
    return NIB_OK;
}

nib_status nib__bias_run(nib_stream *s, const nib_rewrite *r, nib_err *err)
{
    nib_weight w = *r->biased;
    nib_arena arena;
    nib__arena_init(&arena, s->job->allocator, 0);
    const nib_status status = write_bias(s, r, &w, &arena, err);
    nib__arena_free(&arena);
    return status == NIB_OK ? nib__stream_progress(s, r->from->bytes, err) : status;
}

nib_status nib__bias_run_with(nib_stream *s, const nib_rewrite *r, const void *scales, nib_err *err)
{
    nib_weight w;
    nib_arena arena;
    nib__quantizer_describe_weight(&w, &r->quantizer, r->biased->n, NULL, scales, NULL);
    w.act_scale = &r->layer->act_scale;
    w.bias = r->biased->bias;
    w.bias_type = r->biased->bias_type;
    w.bias_scales = r->biased->bias_scales; /* if the bias is coded */
    w.bias_scale_type = r->biased->bias_scale_type;
    w.bias_zeros = r->biased->bias_zeros;
    nib__arena_init(&arena, s->job->allocator, 0);
    const nib_status status = write_bias(s, r, &w, &arena, err);
    nib__arena_free(&arena);
    return status;
}
