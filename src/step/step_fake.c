/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantization-aware training within a micro-batch: which layers use it, the codes of their weights
 * (made once per step), and loops over rows. The formulas are in fake_quant.h.
 */
#include "step.h"

#include "lower.h"

/* ---- opening ---- */

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

static const nib_scheme *scheme_of(const nib_step_fake *f) { return &f->weight.quantizer.scheme; }

bool nib__step_fake_same(const nib_step *s, size_t a, size_t b)
{
    if (s->fake == NULL)
        return true;
    const nib_step_fake *p = &s->fake[a], *q = &s->fake[b];
    if (p->act == NULL || q->act == NULL)
        return p->act == NULL && q->act == NULL;
    return scheme_of(p)->act_symmetric == scheme_of(q)->act_symmetric &&
           scheme_of(p)->formula == scheme_of(q)->formula;
}

/* Bytes of codes, scales and zeros, each aligned to 64; if at is not NULL, sets their addresses. */
static uint64_t lay_out_weight(nib_fake_weight *f, int64_t n, char *at)
{
    const nib_quantizer *q = &f->quantizer;
    const uint64_t codes = aligned((uint64_t)(n * q->k)),
                   scales = aligned((uint64_t)(n * q->groups) * sizeof(float)); /* an upper bound */
    const bool zeros = q->zero_type != NIB_TYPE_NONE;
    if (at != NULL) {
        f->codes = (int8_t *)at;
        f->scales = at + codes;
        f->zeros = zeros ? at + codes + scales : NULL;
    }
    return codes + scales + (zeros ? scales : 0);
}

static nib_status allocate_codes(nib_step *s, nib_err *err)
{
    uint64_t values = 0, used = 0;
    for (int pass = 0; pass < 2; pass++) {
        used = values;
        for (size_t i = 1; i < s->net->site_count; i++) {
            const nib_site *site = &s->net->sites[i];
            const uint64_t bytes = aligned((uint64_t)(site->n * site->k) * sizeof(float));
            if (!nib__scheme_is_quantized(&s->plan->layers[i].layer->qat))
                continue;
            values = bytes > values ? bytes : values;
            used += lay_out_weight(&s->fake[i].weight, site->n,
                                   pass == 0 ? NULL : s->fake_block + used);
        }
        if (s->options.sizes_only) {
            s->fake_bytes = values + used;
            return NIB_OK;
        }
        if (pass == 0)
            s->fake_block = nib__block_take((uint64_t)(values + used));
        if (s->fake_block == NULL)
            return nib__fail_memory(err, (uint64_t)(values + used), "the codes of weights");
    }
    s->fake_bytes = used;
    return NIB_OK;
}

/* Inputs are quantized in the region for the x side of products. */
static void size_codes(nib_step *s)
{
    uint64_t *most = &s->sides[NIB_SIDE_CPU].region_bytes[NIB_REGION_INPUT];
    for (size_t i = 1; i < s->net->site_count; i++) {
        nib_input codes;
        uint64_t bytes;
        if (s->fake[i].act == NULL)
            continue;
        nib__input_place(&codes, scheme_of(&s->fake[i]), NIB_TYPE_F32, s->m, s->net->sites[i].k,
                         NULL, &bytes);
        *most = bytes > *most ? bytes : *most;
    }
}

nib_status nib__step_fake_open(nib_step *s, nib_err *err)
{
    size_t count = 0;
    for (size_t i = 1; i < s->net->site_count; i++)
        count += nib__scheme_is_quantized(&s->plan->layers[i].layer->qat);
    if (count == 0)
        return NIB_OK;
    /* the codes must equal those of the exported weights */
    const nib_type asked = s->net->train.export_dtype,
                   source = asked == NIB_TYPE_NONE ? NIB_TYPE_F32 : asked;
    s->fake = nib__arena_take(&s->arena, s->net->site_count, sizeof *s->fake);
    if (s->fake == NULL)
        return nib__fail_memory(err, s->net->site_count * sizeof *s->fake, "the list of layers");
    for (size_t i = 1; i < s->net->site_count; i++) {
        const nib_scheme *scheme = &s->plan->layers[i].layer->qat;
        nib_step_fake *f = &s->fake[i];
        if (!nib__scheme_is_quantized(scheme))
            continue;
        f->rounds = true;
        NIB_TRY(nib__quantizer_init(&f->weight.quantizer, scheme, source, s->net->sites[i].k, err));
        NIB_TRY(nib__quantizer_scales(&f->weight.quantizer, s->plan->layers[i].layer->asked_scales,
                                      err));
        f->weight.quantizer.run = nib__quant_w_best(s->engine->isa);
        if (scheme->act == NIB_ACT_FLOAT)
            continue;
        f->act = nib__plan_operand(NIB_OP_QUANT, scheme, NIB_TYPE_F32, NULL,
                                   nib__plan_host(s->plan), &s->plan->without);
        if (f->act == NULL)
            return nib__fail(err, NIB_NOT_AS_ASKED, "%s: no kernel quantizes its inputs",
                             s->net->sites[i].name);
    }
    NIB_TRY(allocate_codes(s, err));
    size_codes(s);
    return NIB_OK;
}

/* ---- running ---- */

typedef struct fake_part {
    const nib_step_fake *fake;
    nib_quant quant; /* FAKE */
    const float *w;
    float *values; /* output, or a gradient changed in place */
    uint8_t *mask;
    const uint8_t *kept;
    int64_t ld, k;
} fake_part;

static void job_weight(void *ctx, int worker, int64_t begin, int64_t end)
{
    const fake_part *p = ctx;
    (void)worker;
    nib__fake_weight_rows(&p->fake->weight, p->w, p->values, begin, end);
}

static void job_dw(void *ctx, int worker, int64_t begin, int64_t end)
{
    const fake_part *p = ctx;
    (void)worker;
    nib__fake_weight_gradient(&p->fake->weight, p->w, p->values, begin, end);
}

static void job_input(void *ctx, int worker, int64_t begin, int64_t end)
{
    const fake_part *p = ctx;
    (void)worker;
    p->fake->act->run.quant(&p->quant, begin, end);
    nib__fake_input_rows(&p->quant, p->values, p->ld, p->mask, begin, end);
}

static void job_dx(void *ctx, int worker, int64_t begin, int64_t end)
{
    const fake_part *p = ctx;
    (void)worker;
    nib__fake_input_gradient(p->kept, p->values, p->ld, p->k, begin, end);
}

static void run_rows(const nib_step *s, int64_t rows, nib_pool_job job, fake_part *p)
{
    nib__pool_run(s->workers.pool, rows, nib__parts_grain(&s->workers, rows, 1), false, job, p);
}

const float *nib__step_fake_weight(nib_step *s, size_t site, const float *w)
{
    fake_part p = {.fake = &s->fake[site], .w = w, .values = (float *)(void *)s->fake_block};
    run_rows(s, s->net->sites[site].n, job_weight, &p);
    return p.values;
}

void nib__step_fake_input(const nib_step *s, size_t site, int64_t count, const float *x,
                          int64_t ldx, char *codes, float *out, int64_t ldo, uint8_t *mask)
{
    const nib_scheme *scheme = scheme_of(&s->fake[site]);
    fake_part p = {
        .fake = &s->fake[site],
        .quant = {.x = x,
                  .ldx = ldx,
                  .symmetric = scheme->act_symmetric,
                  .formula = scheme->formula},
        .values = out,
        .mask = mask,
        .ld = ldo,
    };
    nib__input_place(&p.quant.out, scheme, NIB_TYPE_F32, count, s->net->sites[site].k, codes, NULL);
    run_rows(s, count, job_input, &p);
}

void nib__step_fake_dx(const nib_step *s, size_t site, int64_t count, const uint8_t *mask,
                       float *dx, int64_t ld)
{
    fake_part p = {.values = dx, .kept = mask, .ld = ld, .k = s->net->sites[site].k};
    run_rows(s, count, job_dx, &p);
}

void nib__step_fake_dw(const nib_step *s, size_t site, const float *w, float *gradient)
{
    fake_part p = {.fake = &s->fake[site], .w = w, .values = gradient};
    run_rows(s, s->net->sites[site].n, job_dw, &p);
}
