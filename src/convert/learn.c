/* SPDX-License-Identifier: Apache-2.0
 *
 * The scales of the method learn. A step runs the model forward over some windows of the text, a
 * layer at a time, and keeps what each layer leaves; then backward, where each layer is run again
 * for the gradients of its weights and inputs, and its scales move at once. So memory holds one
 * layer's weights in f32, or all of them if they are small.
 */
#include "learn_run.h"

#include "arch.h"
#include "learn_scales.h"
#include "learn_slice.h"
#include "portable_math.h"
#include "sample.h"

#include <inttypes.h>
#include <math.h>

/* Of a step's rate at first; it falls to 0. In 50 steps a scale moves by 5.1 % at most. */
static const float first_rate = 0.002F;

enum {
    HELD_BYTES = 1 << 30, /* of slices that stay open */
    EXPONENTIALS = 48,    /* multiply-adds that those of a logit take */
    STORED_STEPS = 5,     /* after so many, the store has what the next one starts from */
    NO_STEPS = -1         /* nor the divergence before them */
};

/* Of a weight with codes. */
typedef struct learned {
    nib_scales scales;
    bool has_codes, moves;
} learned;

typedef struct learning {
    nib_gptq_run *g;
    nib_arena arena;
    nib_learn_text text;
    int64_t layers, width;
    learned *weights;  /* [site_count] */
    nib_slice *slices; /* [layers + 1]; the last is what follows the layers */
    bool *is_open;     /* the same */
    uint64_t held;     /* bytes of open slices */
    float *states;     /* [layers + 1][tokens][width] what each slice reads */
    float *gradient;   /* [tokens][width] of what the slice that runs leaves */
    float *logits;     /* [tokens][vocab] of the model as stored */
    float *left;       /* [tokens][width] where what a slice leaves goes */
    int64_t steps;     /* that are made; NO_STEPS: not even measured what is before them */
    double before;     /* divergence before the first step, in nats per token */
} learning;

bool nib__learn_is_learned(const nib_gptq_run *g, size_t site)
{
    return nib__gptq_is_coded(g, site) && g->job->layers[site].choice.method == NIB_PTQ_LEARN;
}

static bool is_moved(const nib_gptq_run *g, size_t site)
{
    nib_quantizer q;
    return nib__learn_is_learned(g, site) && nib__gptq_quantizer(&q, g, site, NULL) == NIB_OK &&
           nib__scales_move_in(&q);
}

static bool has_any(const nib_gptq_run *g, bool (*is)(const nib_gptq_run *, size_t))
{
    for (size_t i = 0; i < g->model->net.site_count; i++)
        if (is(g, i))
            return true;
    return false;
}

bool nib__learn_any(const nib_gptq_run *g) { return has_any(g, nib__learn_is_learned); }

bool nib__learn_has(const nib_gptq_run *g) { return has_any(g, is_moved); }

/* The part with the result. `candidate`: 1 if it is what the steps began with. */
size_t nib__learn_part(const nib_gptq_run *g) { return (size_t)g->model->net.config.layers + 1; }

/* The part with what a step starts from. For each weight that moves: its scales and float zeros in
 * f32, no codes, the steps that are made as `candidate`, and the divergence before them. */
static size_t steps_part(const nib_gptq_run *g) { return nib__learn_part(g) + 1; }

size_t nib__learn_parts(const nib_gptq_run *g)
{
    return steps_part(g) + 1 + (size_t)g->model->net.config.layers; /* those of learn_rounding.c */
}

/* The `candidate` of a part; otherwise if the store has none. */
static int64_t stored_candidate(const nib_gptq_run *g, size_t part, int64_t otherwise)
{
    nib_gptq_codes c;
    uint64_t offset = 0;
    return nib__gptq_store_has(g->store, part, NULL) &&
                   nib__gptq_store_next(g->store, part, &offset, &c)
               ? c.candidate
               : otherwise;
}

/* Steps of which the store has the result. */
static int64_t stored_steps(const nib_gptq_run *g)
{
    return stored_candidate(g, steps_part(g), NO_STEPS);
}

void nib__learn_found(nib_text *out, const nib_gptq_run *g)
{
    bool is_damaged;
    nib__rounding_found(out, g);
    if (!nib__learn_has(g))
        return;
    (void)nib__gptq_store_has(g->store, steps_part(g), &is_damaged);
    if (nib__gptq_store_has(g->store, nib__learn_part(g), NULL))
        nib__text_format(out, "; its %d steps are made", NIB_LEARN_STEPS);
    else if (stored_steps(g) != NO_STEPS)
        nib__text_format(out, "; its steps go on after %" PRId64 " of %d", stored_steps(g),
                         NIB_LEARN_STEPS);
    else if (is_damaged)
        nib__text_format(out, "; its steps are damaged, and are made anew");
}

void nib__learn_note(const nib_gptq_run *g)
{
    size_t fixed = 0;
    nib__rounding_note(g);
    for (size_t i = 0; i < g->model->net.site_count; i++)
        fixed += nib__learn_is_learned(g, i) && !is_moved(g, i);
    if (nib__learn_has(g) && stored_candidate(g, nib__learn_part(g), 0) != 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "learn: after %d steps the logits are no closer to those of the "
                             "stored weights, so all scales stay as by qronos",
                             NIB_LEARN_STEPS);
    if (fixed > 0)
        nib__ledger_add_note(g->job->ledger, "method",
                             "learn: scales of %zu layers are powers of two, which do not move, so "
                             "they stay as by qronos",
                             fixed);
}

nib_status nib__learn_check(const nib_gptq_run *g, nib_err *err)
{
    const nib_config *c = &g->model->net.config;
    if (nib__family_of(c)->mamba && c->delta_converted)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method learn reads A_log of Mamba-2, in place of which a GGUF has "
                         "-e^A_log; use qronos or gptq, or convert the model first");
    for (int64_t l = 0; l <= g->model->net.config.layers; l++)
        if (!nib__slice_has(&g->model->net, l))
            return nib__slice_fail(l, err);
    return NIB_OK;
}

nib_learn_text nib__learn_text(const nib_gptq_run *g)
{
    const int64_t length = nib__min(g->window, g->count), windows = g->count / length,
                  sequences = nib__min(windows, nib__max(1, NIB_LEARN_TOKENS / length));
    return (nib_learn_text){.length = length,
                            .sequences = sequences,
                            .tokens = sequences * length,
                            .batches = windows / sequences};
}

/* ---- cost ---- */

/* Multiply-adds of a token: of the decoder layers, and of the output layer. */
static void cost_of_token(const nib_gptq_run *g, double of[2])
{
    const size_t head = g->model->net.site_count - 1;
    nib_gptq_cost cost;
    nib__gptq_cost_of(&cost, g, 1, head);
    of[0] = cost.pass;
    nib__gptq_cost_of(&cost, g, head, head + 1);
    of[1] = cost.pass + EXPONENTIALS / 4.0 * (double)g->model->net.config.vocab;
}

static double cost_of_step(const learning *l)
{
    double of[2];
    cost_of_token(l->g, of);
    return (double)l->text.tokens * (4 * of[0] + 4 * of[1]);
}

static double cost_of_loss(const learning *l)
{
    double of[2];
    cost_of_token(l->g, of);
    return (double)l->text.tokens * (of[0] + 2 * of[1]);
}

double nib__learn_cost(const nib_gptq_run *g)
{
    const learning l = {.g = (nib_gptq_run *)(uintptr_t)g, .text = nib__learn_text(g)};
    double of[2];
    if (!nib__learn_has(g))
        return 0;
    cost_of_token(g, of);
    const double again = (double)g->rounded.count * of[0];
    if (nib__gptq_store_has(g->store, nib__learn_part(g), NULL))
        return again;
    const int64_t steps = stored_steps(g), losses = (steps == NO_STEPS ? 2 : 1) * l.text.batches;
    return again + (double)(NIB_LEARN_STEPS - nib__max(steps, 0)) * cost_of_step(&l) +
           (double)losses * cost_of_loss(&l);
}

/* ---- losses ---- */

/* Of a decoder layer: takes what it leaves, or gives the gradient of that. */
static float pass_state(void *ctx, int64_t t, float *out, int64_t columns, float scale,
                        bool gradient)
{
    const learning *l = ctx;
    const size_t bytes = (size_t)columns * sizeof *out;
    (void)scale;
    if (gradient)
        memcpy(out, l->gradient + t * columns, bytes);
    else
        memcpy(l->left + t * columns, out, bytes);
    return 0;
}

/* The KL divergence of a distribution from a reference, both as logits with nib__log_sum; if
 * `gradient`, the logits become `scale` times its gradient, the difference of probabilities. */
static double diverge(float *logits, double all, const float *reference, double reference_all,
                      float scale, bool gradient, int64_t count)
{
    enum { BLOCK = 256 };
    double own[BLOCK], wanted[BLOCK], apart[BLOCK], sum = 0;
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t part = nib__min(BLOCK, count - at);
        for (int64_t i = 0; i < part; i++) {
            own[i] = (double)logits[at + i] - all;
            wanted[i] = (double)reference[at + i] - reference_all;
            apart[i] = wanted[i] - own[i];
        }
        nib__exp_each(wanted, (size_t)part);
        for (int64_t i = 0; i < part; i++)
            sum += wanted[i] > 0 ? wanted[i] * apart[i] : 0;
        if (!gradient)
            continue;
        nib__exp_each(own, (size_t)part);
        for (int64_t i = 0; i < part; i++)
            logits[at + i] = (float)((double)scale * (own[i] - wanted[i]));
    }
    return sum;
}

/* Of what follows the layers. */
static float diverge_token(void *ctx, int64_t t, float *out, int64_t columns, float scale,
                           bool gradient)
{
    const learning *l = ctx;
    const float *reference = l->logits + t * columns;
    int64_t best;
    const double reference_all = nib__log_sum(reference, columns, &best),
                 all = nib__log_sum(out, columns, &best);
    return (float)diverge(out, all, reference, reference_all, scale, gradient, columns);
}

/* ---- slices ---- */

/* The sites of a slice. */
static void find_sites(const learning *l, int64_t slice, size_t *begin, size_t *end)
{
    if (slice < l->layers) {
        nib__gptq_find_sites(l->g, slice, begin, end);
        return;
    }
    *end = l->g->model->net.site_count;
    *begin = *end - 1;
}

typedef struct moving {
    nib_scales *scales;
    const float *gradient;
    float *values, rate;
} moving;

static void move_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const moving *m = ctx;
    (void)worker;
    if (m->gradient != NULL)
        nib__scales_move(m->scales, m->gradient, m->rate, begin, end);
    nib__scales_values(m->scales, m->values, begin, end);
}

/* Gives a slice the values of its codes, whose scales move first if rate is above 0. */
static nib_status set_values(learning *l, int64_t slice, float rate, nib_err *err)
{
    nib_slice *s = &l->slices[slice];
    size_t begin, end;
    find_sites(l, slice, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        learned *w = &l->weights[i];
        const bool moves = rate > 0 && w->moves;
        moving m = {.scales = &w->scales, .values = nib__slice_weight(s, i), .rate = rate};
        if (!w->has_codes || (rate > 0 && !moves))
            continue;
        m.gradient = moves ? nib__slice_gradient(s, i) : NULL;
        nib__pool_run(l->g->model->engine->pool, w->scales.n, 8, false, move_rows, &m);
    }
    return nib__step_cast(&s->step, s->weights, err);
}

static nib_status open_slice(learning *l, int64_t slice, nib_err *err)
{
    const nib_step_loss loss = {.of_token = slice < l->layers ? pass_state : diverge_token,
                                .ctx = l};
    const nib_gptq_run *g = l->g;
    if (!l->is_open[slice]) {
        NIB_TRY(nib__slice_open(&l->slices[slice], &g->model->net, g->runner.plan, slice,
                                l->text.sequences, l->text.length, &loss, err));
        l->is_open[slice] = true;
        l->held += nib__slice_bytes(&l->slices[slice]);
        NIB_TRY(set_values(l, slice, 0, err));
    }
    const uint64_t count = (uint64_t)l->text.tokens * (uint64_t)l->width;
    memcpy(nib__slice_inputs(&l->slices[slice]), l->states + (uint64_t)slice * count,
           count * sizeof(float));
    return NIB_OK;
}

/* Closes a slice if those that are open hold much. */
static void leave_slice(learning *l, int64_t slice)
{
    if (l->held <= HELD_BYTES)
        return;
    l->held -= nib__slice_bytes(&l->slices[slice]);
    nib__slice_close(&l->slices[slice]);
    l->is_open[slice] = false;
}

/* ---- a step ---- */

nib_status nib__learn_embed(nib_gptq_run *g, const nib_learn_text *text, int64_t batch, float *out,
                            nib_err *err)
{
    const int64_t width = g->model->net.config.width;
    nib_slot slots[NIB_CHUNK];
    for (int64_t done = 0; done < text->tokens;) {
        const int64_t at = done % text->length,
                      part = nib__min(nib__min(NIB_CHUNK, text->length - at), text->tokens - done);
        if (at == 0)
            nib__kv_truncate(&g->runner.kv, 0, 0);
        for (int64_t i = 0; i < part; i++)
            slots[i] = (nib_slot){.position = (int32_t)(at + i),
                                  .token = g->ids[batch * text->tokens + done + i]};
        NIB_TRY(nib__runner_part(&g->runner, slots, part, 0, g->first[0], NULL, out + done * width,
                                 err));
        done += part;
    }
    return NIB_OK;
}

/* The logits of the model as stored. */
static nib_status find_logits(learning *l, int64_t batch, nib_err *err)
{
    nib_gptq_run *g = l->g;
    const int64_t vocab = g->model->net.config.vocab;
    for (int64_t done = 0; done < l->text.tokens; done += NIB_CHUNK)
        NIB_TRY(nib__runner_logits(&g->runner, g->first[l->layers],
                                   nib__min(NIB_CHUNK, l->text.tokens - done),
                                   g->stored.state + (batch * l->text.tokens + done) * g->width,
                                   l->logits + done * vocab, err));
    return NIB_OK;
}

/* Runs a batch forward, up to what follows the layers; *loss: the sum of the divergences. rate: of
 * the output layer's scales, after its backward pass; 0: none. */
static nib_status run_forward(learning *l, int64_t batch, float rate, double *loss, nib_err *err)
{
    const uint64_t count = (uint64_t)l->text.tokens * (uint64_t)l->width;
    double none;
    NIB_TRY(nib__learn_embed(l->g, &l->text, batch, l->states, err));
    NIB_TRY(find_logits(l, batch, err));
    for (int64_t i = 0; i < l->layers; i++) {
        l->left = l->states + (uint64_t)(i + 1) * count;
        NIB_TRY(open_slice(l, i, err));
        NIB_TRY(nib__slice_run(&l->slices[i], 0, false, &none, err));
        leave_slice(l, i);
    }
    NIB_TRY(open_slice(l, l->layers, err));
    return nib__slice_run(&l->slices[l->layers], 1.0F / (float)l->text.tokens, rate > 0, loss, err);
}

/* After a backward pass of a slice: keeps the gradient of its inputs, and moves its scales. */
static nib_status take_gradients(learning *l, int64_t slice, float rate, nib_err *err)
{
    memcpy(l->gradient, nib__slice_inputs_gradient(&l->slices[slice]),
           (size_t)(l->text.tokens * l->width) * sizeof *l->gradient);
    NIB_TRY(set_values(l, slice, rate, err));
    leave_slice(l, slice);
    return NIB_OK;
}

static nib_status run_step(learning *l, nib_err *err)
{
    const int64_t step = l->steps;
    const float rate = first_rate * (1 - (float)step / NIB_LEARN_STEPS);
    double loss, none;
    NIB_TRY(run_forward(l, step % l->text.batches, rate, &loss, err));
    if (!isfinite(loss))
        return nib__fail(err, NIB_CHECK_FAILED, "learn: the logits of step %lld are not finite",
                         (long long)step + 1);
    NIB_TRY(take_gradients(l, l->layers, rate, err));
    for (int64_t i = l->layers - 1; i >= 0; i--) {
        NIB_TRY(open_slice(l, i, err));
        NIB_TRY(nib__slice_run(&l->slices[i], 1, true, &none, err));
        NIB_TRY(take_gradients(l, i, rate, err));
    }
    l->steps++;
    return nib__gptq_count(l->g, cost_of_step(l), err);
}

/* The divergence of the text's whole batches, in nats per token. */
static nib_status measure(learning *l, double *mean, nib_err *err)
{
    double sum = 0;
    for (int64_t i = 0; i < l->text.batches; i++) {
        double loss;
        NIB_TRY(run_forward(l, i, 0, &loss, err));
        leave_slice(l, l->layers);
        sum += loss;
        NIB_TRY(nib__gptq_count(l->g, cost_of_loss(l), err));
    }
    *mean = sum / (double)(l->text.batches * l->text.tokens);
    return NIB_OK;
}

/* ---- the whole ---- */

static nib_status open_weights(learning *l, nib_err *err)
{
    const nib_gptq_run *g = l->g;
    for (size_t i = 1; i < g->model->net.site_count; i++) {
        learned *w = &l->weights[i];
        nib_quantizer q;
        const nib_codes *codes = g->job->layers[i].codes;
        if (codes == NULL)
            continue;
        NIB_TRY(nib__gptq_quantizer(&q, g, i, err));
        NIB_TRY(nib__scales_open(&w->scales, &q, g->model->net.sites[i].n, codes, &l->arena, err));
        w->has_codes = true;
        w->moves = is_moved(g, i);
    }
    return NIB_OK;
}

static nib_status open_learning(learning *l, nib_err *err)
{
    const nib_gptq_run *g = l->g;
    const uint64_t slices = (uint64_t)l->layers + 1,
                   state = (uint64_t)l->text.tokens * (uint64_t)l->width,
                   logits = (uint64_t)l->text.tokens * (uint64_t)g->model->net.config.vocab;
    l->weights = nib__arena_take(&l->arena, g->model->net.site_count, sizeof *l->weights);
    l->slices = nib__arena_take(&l->arena, slices, sizeof *l->slices);
    l->is_open = nib__arena_take(&l->arena, slices, sizeof *l->is_open);
    l->states = nib__arena_take(&l->arena, slices * state, sizeof *l->states);
    l->gradient = nib__arena_take(&l->arena, state, sizeof *l->gradient);
    l->logits = nib__arena_take(&l->arena, logits, sizeof *l->logits);
    if (!l->weights || !l->slices || !l->is_open || !l->states || !l->gradient || !l->logits)
        return nib__fail_memory(err, (slices * state + logits) * sizeof(float),
                                "the hidden states of a step");
    return open_weights(l, err);
}

static void close_learning(learning *l)
{
    for (int64_t i = 0; l->is_open != NULL && i <= l->layers; i++)
        if (l->is_open[i])
            nib__slice_close(&l->slices[i]);
    nib__arena_free(&l->arena);
}

/* What the store has of a weight between steps. */
static nib_gptq_codes state_of(const learning *l, size_t site)
{
    const nib_scales *t = &l->weights[site].scales;
    const uint64_t bytes = (uint64_t)t->n * (uint64_t)t->q.groups * sizeof(float);
    return (nib_gptq_codes){
        .site = site,
        .n = t->n,
        .scale_bytes = bytes,
        .zero_bytes = t->zero != NULL ? bytes : 0,
        .codes = {.scales = t->scale, .zeros = t->zero, .objective = {l->before, 0}},
        .candidate = l->steps};
}

static nib_status store_steps(const learning *l, nib_err *err)
{
    nib_gptq_run *g = l->g;
    NIB_TRY(nib__gptq_store_begin(g->store, steps_part(g), err));
    for (size_t i = 0; i < g->model->net.site_count; i++) {
        const nib_gptq_codes state = state_of(l, i);
        if (l->weights[i].moves)
            NIB_TRY(nib__gptq_store_put(g->store, &state, err));
    }
    return nib__gptq_store_end(g->store, err);
}

/* Goes on from the steps that the store has. */
static nib_status load_steps(learning *l, nib_err *err)
{
    const nib_gptq_run *g = l->g;
    const size_t part = steps_part(g);
    uint64_t offset = 0;
    l->steps = stored_steps(g);
    for (size_t i = 0; l->steps != NO_STEPS && i < g->model->net.site_count; i++) {
        const nib_gptq_codes wanted = state_of(l, i);
        nib_gptq_codes c;
        if (!l->weights[i].moves)
            continue;
        if (!nib__gptq_store_next(g->store, part, &offset, &c) || c.site != i || c.n != wanted.n ||
            c.scale_bytes != wanted.scale_bytes || c.zero_bytes != wanted.zero_bytes ||
            c.candidate != l->steps)
            return nib__gptq_fail_part(g, part, err);
        nib__scales_set(&l->weights[i].scales, c.codes.scales, c.codes.zeros);
        l->before = c.codes.objective[0];
    }
    return NIB_OK;
}

static nib_status run_steps(learning *l, bool *is_better, nib_err *err)
{
    double after;
    NIB_TRY(load_steps(l, err));
    if (l->steps == NO_STEPS) {
        NIB_TRY(measure(l, &l->before, err));
        l->steps = 0;
        NIB_TRY(store_steps(l, err));
    }
    while (l->steps < NIB_LEARN_STEPS) {
        NIB_TRY(run_step(l, err));
        if (l->steps % STORED_STEPS == 0)
            NIB_TRY(store_steps(l, err));
    }
    NIB_TRY(measure(l, &after, err));
    *is_better = after < l->before;
    return NIB_OK;
}

static nib_status store(const learning *l, bool is_better, nib_err *err)
{
    nib_gptq_run *g = l->g;
    NIB_TRY(nib__gptq_store_begin(g->store, nib__learn_part(g), err));
    for (size_t i = 0; i < g->model->net.site_count; i++) {
        const nib_scales *t = &l->weights[i].scales;
        if (!l->weights[i].moves)
            continue;
        const nib_gptq_codes codes = {.site = i,
                                      .n = t->n,
                                      .k = t->k,
                                      .scale_bytes = t->scale_bytes,
                                      .zero_bytes = t->zero_bytes,
                                      .codes = is_better ? t->codes : *t->first,
                                      .tokens = g->count,
                                      .candidate = is_better ? 0 : 1};
        NIB_TRY(nib__gptq_store_put(g->store, &codes, err));
    }
    return nib__gptq_store_end(g->store, err);
}

nib_status nib__learn(nib_gptq_run *g, nib_err *err)
{
    const size_t head = g->model->net.site_count - 1;
    learning l = {.g = g,
                  .text = nib__learn_text(g),
                  .layers = g->model->net.config.layers,
                  .width = g->model->net.config.width};
    bool is_better = false;
    nib__arena_init(&l.arena, &g->model->engine->allocator, 0);
    nib_status status = nib__gptq_load_stored(g, head, err);
    if (status == NIB_OK)
        status = open_learning(&l, err);
    if (status == NIB_OK)
        status = run_steps(&l, &is_better, err);
    nib__gptq_unload_sites(g, head, head + 1);
    if (status == NIB_OK)
        status = store(&l, is_better, err);
    close_learning(&l);
    return status;
}
