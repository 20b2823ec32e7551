/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the whole model is better with the scales than rounded, on tokens of the text's end that
 * no scale was chosen by. The layers run as the output will: weights by their codes, and inputs by
 * theirs, under the scales of activations that the earlier tokens gave.
 */
#include "quantizer.h"
#include "scales_run.h"

/* ---- inputs ---- */

const float *nib__scales_replace(void *run, size_t site, const float *x, int64_t ld, int64_t m,
                                 int64_t k)
{
    nib_scales_run *w = run;
    const nib_scales_input *input = &w->inputs[site];
    const nib_quantize_layer *l = &w->job->layers[site];
    const float *columns = input->columns;
    nib_act_codes codes = input->codes;
    if (codes.row == NULL || (w->g.kind == NIB_GPTQ_STORED && !input->is_coded))
        return NULL;
    if (w->g.kind != NIB_GPTQ_STORED) {
        const bool is_rounded = w->g.kind == NIB_GPTQ_ROUNDED;
        columns = is_rounded ? NULL : l->fold.columns;
        codes.static_scale = is_rounded ? input->rounded_scale : l->act_scale;
        codes.static_zero = is_rounded ? input->rounded_zero : l->act_zero;
    }
    float *rows = w->rows[w->next++ % (int)COUNT(w->rows)];
    nib__act_codes_rows(&codes, columns, x, ld, m, k, rows, w->room, w->g.model->engine->pool);
    return rows;
}

/* ---- weights ---- */

static bool is_scaled(const void *ctx, size_t site)
{
    const nib_scales_run *w = ctx;
    return w->inputs[site].is_scaled;
}

static nib_status load_kind(void *ctx, size_t site, nib_gptq_kind kind, nib_err *err)
{
    nib_scales_run *w = ctx;
    const nib_quantize_layer *l = &w->job->layers[site];
    nib_scales_coding as = {.method = NIB_PTQ_RTN};
    if (kind == NIB_GPTQ_CODED)
        as = (nib_scales_coding){l->choice.method, l->importance, l->fold};
    return nib__scales_load(w, site, &as, err);
}

static nib_status run_coded(nib_scales_run *w, size_t layer, size_t begin, size_t end, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    for (size_t site = begin; site < end; site++)
        if (is_scaled(w, site))
            NIB_TRY(load_kind(w, site, NIB_GPTQ_CODED, err));
    g->kind = NIB_GPTQ_CODED;
    const nib_status status = nib__gptq_run_layer(g, &g->coded, layer, false, err);
    g->kind = NIB_GPTQ_STORED;
    return status;
}

nib_status nib__scales_check_layer(nib_scales_run *w, size_t layer, size_t begin, size_t end,
                                   nib_err *err)
{
    const nib_allocator *a = &w->g.model->engine->allocator;
    if (w->job->held_out == 0)
        return NIB_OK;
    nib__arena_init(&w->held, a, 0);
    nib_status status = nib__gptq_check_layer(&w->g, layer, begin, end, err);
    if (status == NIB_OK)
        status = run_coded(w, layer, begin, end, err);
    nib__gptq_unload_sites(&w->g, begin, end);
    nib__arena_free(&w->held);
    return status;
}

/* ---- the decision ---- */

static void round_all(nib_scales_run *w)
{
    for (size_t i = 0; i < w->g.model->net.site_count; i++) {
        nib_quantize_layer *l = &w->job->layers[i];
        if (!w->inputs[i].is_scaled)
            continue;
        l->choice.method = NIB_PTQ_RTN;
        l->importance = NULL;
        l->objective = NULL;
        l->fold = (nib_fold){0};
        if (l->choice.scheme.act == NIB_ACT_I8_STATIC)
            nib__compute_static_scale(&l->act_scale, &l->act_zero, &l->choice.scheme,
                                      w->job->stats[i].range);
    }
    w->job->vector_count = 0;
}

nib_status nib__scales_check_end(nib_scales_run *w, nib_err *err)
{
    const size_t head = w->g.model->net.site_count - 1;
    if (w->job->held_out == 0)
        return NIB_OK;
    nib__arena_init(&w->held, &w->g.model->engine->allocator, 0);
    nib__gptq_cost_of(&w->g.cost, &w->g, head, head + 1);
    const nib_status status = nib__gptq_check(&w->g, err);
    nib__arena_free(&w->held);
    NIB_TRY(status);
    w->job->keeps_rounding = nib__gptq_is_worse(&w->g, "last");
    if (w->job->keeps_rounding)
        round_all(w);
    return NIB_OK;
}

/* Scales of activations by the text's first part. */
static void find_static(nib_scales_run *w)
{
    for (size_t i = 0; i < w->g.model->net.site_count; i++) {
        nib_quantize_layer *l = &w->job->layers[i];
        nib_scales_input *input = &w->inputs[i];
        if (!input->is_scaled || l->choice.scheme.act != NIB_ACT_I8_STATIC ||
            w->job->stats[i].extremes == NULL)
            continue;
        nib__scales_static(w, i, NULL, &l->act_scale, &l->act_zero);
        input->rounded_scale = l->act_scale;
        input->rounded_zero = l->act_zero;
    }
}

nib_status nib__scales_check_open(nib_scales_run *w, nib_arena *arena, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    nib_gptq_stream *const streams[] = {&g->coded, &g->stored, &g->rounded};
    nib_text_parts parts;
    NIB_TRY(nib__text_parts(&parts, w->job->held_out, g->count, err));
    w->job->held_out = parts.third;
    w->chosen.count = nib__min(g->count, NIB_SCALES_TOKENS);
    if (parts.third == 0)
        return NIB_OK;
    w->chosen = (nib_gptq_stream){.count = parts.second, .first = parts.first};
    g->loader = (nib_gptq_loader){.has = is_scaled, .load = load_kind, .ctx = w};
    find_static(w);
    for (size_t i = 0; i < COUNT(streams); i++) {
        const uint64_t floats = (uint64_t)parts.third * (uint64_t)g->width;
        *streams[i] = (nib_gptq_stream){.state = nib__arena_take(arena, floats, sizeof(float)),
                                        .count = parts.third,
                                        .first = g->count - parts.third};
        if (streams[i]->state == NULL)
            return nib__fail_memory(err, floats * sizeof(float), "the hidden states of a text");
    }
    nib__ledger_add_note(g->job->ledger, "method",
                         "%s: scales are made of the text's first %lld tokens, chosen by the next "
                         "%lld, and checked by the last %lld",
                         g->job->name, (long long)parts.first, (long long)parts.second,
                         (long long)parts.third);
    return NIB_OK;
}
