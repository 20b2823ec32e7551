/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the text, and what the check of the whole model on the last one decides. Activations
 * have the scales that the earlier tokens gave.
 */
#include "quantizer.h"
#include "scales_run.h"

static void round_all(nib_scales_run *w)
{
    for (size_t i = 0; i < w->g.model->net.site_count; i++) {
        nib_quantize_layer *l = &w->job->layers[i];
        if (!w->coded.inputs[i].is_changed)
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
    if (w->job->held_out == 0)
        return NIB_OK;
    NIB_TRY(nib__coded_end(&w->coded, &w->job->keeps_rounding, err));
    if (w->job->keeps_rounding)
        round_all(w);
    return NIB_OK;
}

/* Scales of activations by the text's first part. */
static void find_static(nib_scales_run *w)
{
    for (size_t i = 0; i < w->g.model->net.site_count; i++) {
        nib_quantize_layer *l = &w->job->layers[i];
        nib_coded_input *input = &w->coded.inputs[i];
        if (!input->is_changed || l->choice.scheme.act != NIB_ACT_I8_STATIC ||
            w->job->stats[i].extremes == NULL)
            continue;
        nib__scales_static(w, i, NULL, &l->act_scale, &l->act_zero);
        input->rounded_scale = l->act_scale;
        input->rounded_zero = l->act_zero;
    }
}

nib_status nib__scales_divide(nib_scales_run *w, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    nib_text_parts parts;
    NIB_TRY(nib__text_parts(&parts, w->job->held_out, g->count, err));
    w->job->held_out = parts.third;
    w->chosen.count = nib__min(g->count, NIB_SCALES_TOKENS);
    if (parts.third == 0)
        return NIB_OK;
    w->chosen = (nib_gptq_stream){.count = parts.second, .first = parts.first};
    nib__ledger_add_note(g->job->ledger, "method",
                         "%s: scales are made of the text's first %lld tokens, chosen by the next "
                         "%lld, and checked by the last %lld",
                         g->job->name, (long long)parts.first, (long long)parts.second,
                         (long long)parts.third);
    return NIB_OK;
}

nib_status nib__scales_check_open(nib_scales_run *w, nib_arena *arena, nib_err *err)
{
    NIB_TRY(nib__scales_divide(w, err));
    if (w->job->held_out == 0)
        return NIB_OK;
    find_static(w);
    return nib__coded_begin(&w->coded, w->job->held_out, arena, err);
}
