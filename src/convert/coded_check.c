/* SPDX-License-Identifier: Apache-2.0
 *
 * What codes stand for, of weights and inputs, and the check of the whole model with them.
 */
#include "coded_check.h"

#include "plan_handle.h"
#include "quantizer.h"

/* ---- inputs ---- */

const float *nib__coded_replace(void *check, size_t site, const float *x, int64_t ld, int64_t m,
                                int64_t k)
{
    nib_coded_check *c = check;
    const nib_coded_input *input = &c->inputs[site];
    const nib_quantize_layer *l = &c->layers[site];
    const float *columns = input->columns;
    nib_act_codes codes = input->codes;
    if (codes.row == NULL || (c->g->kind == NIB_GPTQ_STORED && !input->is_coded))
        return NULL;
    if (c->g->kind != NIB_GPTQ_STORED) {
        const bool is_rounded = c->g->kind == NIB_GPTQ_ROUNDED;
        columns = is_rounded ? NULL : l->fold.columns;
        codes.static_scale = is_rounded ? input->rounded_scale : l->act_scale;
        codes.static_zero = is_rounded ? input->rounded_zero : l->act_zero;
    }
    float *rows = c->rows[c->next++ % (int)COUNT(c->rows)];
    nib__act_codes_rows(&codes, columns, x, ld, m, k, rows, c->room, c->g->model->engine->pool);
    return rows;
}

static nib_status find_codes(nib_coded_check *c, const nib_plan *plan,
                             bool (*is_changed)(const nib_quantize_layer *), nib_err *err)
{
    for (size_t i = 0; i < c->g->model->net.site_count; i++) {
        const nib_quantize_layer *l = &c->layers[i];
        c->inputs[i].is_changed = is_changed(l);
        if (!c->inputs[i].is_changed || !nib__layer_is_quantized(l) ||
            l->choice.scheme.act == NIB_ACT_FLOAT)
            continue;
        NIB_TRY(nib__act_codes_find(&c->inputs[i].codes, &l->choice.scheme, &plan->assignment,
                                    l->name, err));
    }
    return NIB_OK;
}

/* The largest room that coding a chunk of a site's inputs needs. */
static uint64_t most_room(const nib_coded_check *c)
{
    uint64_t most = 1;
    for (size_t i = 0; i < c->g->model->net.site_count; i++)
        if (c->inputs[i].codes.row != NULL) {
            const uint64_t bytes = nib__act_codes_room(c->inputs[i].codes.scheme, NIB_CHUNK,
                                                       c->g->model->net.sites[i].k);
            most = bytes > most ? bytes : most;
        }
    return most;
}

nib_status nib__coded_open(nib_coded_check *c, const nib_plan *plan,
                           bool (*is_changed)(const nib_quantize_layer *), nib_arena *arena,
                           nib_err *err)
{
    const nib_network *net = &c->g->model->net;
    uint64_t widest = 0;
    for (size_t i = 0; i < net->site_count; i++)
        widest = (uint64_t)net->sites[i].k > widest ? (uint64_t)net->sites[i].k : widest;
    c->inputs = nib__arena_take(arena, net->site_count, sizeof *c->inputs);
    if (c->inputs == NULL)
        return nib__fail_memory(err, net->site_count * sizeof *c->inputs, "inputs");
    NIB_TRY(find_codes(c, plan, is_changed, err));
    c->room = nib__arena_take(arena, most_room(c), 1);
    for (size_t i = 0; i < COUNT(c->rows); i++)
        if ((c->rows[i] = nib__arena_take(arena, NIB_CHUNK * widest, sizeof(float))) == NULL)
            return nib__fail_memory(err, NIB_CHUNK * widest, "inputs");
    c->g->runner.observer = (nib_observer){.replace = nib__coded_replace, .ctx = c};
    return c->room != NULL ? NIB_OK : nib__fail_memory(err, most_room(c), "inputs");
}

/* ---- weights ---- */

typedef struct coding {
    const nib_weight *from;
    nib_quantizer q;
    nib_fold fold;
    float *out; /* [n][k] */
    char *room; /* [threads][room_bytes] */
    uint64_t room_bytes;
    nib_err *errs; /* [threads] of the first failure; status NIB_OK: none */
} coding;

static void read_scaled(const coding *c, int64_t i, float *row)
{
    nib__weight_row(c->from, i, row);
    nib__fold_row(&c->fold, i, row, c->q.k, c->q.source);
}

/* Takes the scales out of row i. */
static void unscale_row(const nib_fold *fold, int64_t i, float *row, int64_t k)
{
    for (int64_t j = 0; j < k && fold->columns != NULL; j++)
        row[j] /= fold->columns[j];
    for (int64_t j = 0; j < k && fold->rows != NULL; j++)
        row[j] /= fold->rows[i];
}

/* Rows become what their codes stand for, without the scales. */
static void code_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const coding *c = ctx;
    const int64_t k = c->q.k;
    float *row = (float *)(void *)(c->room + (uint64_t)worker * c->room_bytes);
    int8_t *codes = (int8_t *)(row + k);
    char *scales = (char *)codes + nib__round_up(k, 8), *zeros = scales + 4 * c->q.groups;
    for (int64_t i = begin; i < end && c->errs[worker].status == NIB_OK; i++) {
        nib_quantized to = {.codes = codes,
                            .scales = scales,
                            .zeros = c->q.zero_type == NIB_TYPE_NONE ? NULL : zeros};
        nib_weight w;
        read_scaled(c, i, row);
        if (nib__quantizer_quantize_rows(&c->q, row, i, 1, &to, &c->errs[worker]) != NIB_OK)
            return;
        if (nib__quantizer_is_one(&c->q))
            nib__quantizer_store_tensor_scale(&c->q, scales, to.zeros);
        nib__quantizer_describe_weight(&w, &c->q, 1, codes, scales, to.zeros);
        nib__weight_row(&w, 0, c->out + i * k);
        unscale_row(&c->fold, i, c->out + i * k, k);
    }
}

static nib_status find_range(coding *c, float *row, nib_err *err)
{
    float range[2] = {0, 0};
    for (int64_t i = 0; i < c->from->n; i++) {
        read_scaled(c, i, row);
        NIB_TRY(nib__quantizer_scan(&c->q, row, i, 1, range, err));
    }
    return nib__quantizer_set_range(&c->q, range, err);
}

/* Values as a type stores them. */
static void round_values(float *values, uint64_t count, nib_type type)
{
    enum { SOME = 256 };
    uint8_t stored[SOME * sizeof(float)];
    for (uint64_t at = 0; at < count && type != NIB_TYPE_F32; at += SOME) {
        const int64_t some = nib__min(SOME, (int64_t)(count - at));
        nib__from_f32(stored, type, values + at, some);
        nib__to_f32(values + at, stored, type, some);
    }
}

nib_status nib__coded_turn(nib_weight *out, const nib_turn *turn, nib_type type, nib_engine *engine,
                           nib_arena *arena, nib_err *err)
{
    const uint64_t n = (uint64_t)turn->from->n, count = n * (uint64_t)turn->from->k;
    float *values = nib__arena_take(arena, count, sizeof *values),
          *bias = nib__arena_take(arena, n, sizeof *bias);
    double *room = nib__arena_take(arena, n + NIB_ROTATION_BASE, sizeof *room);
    if (!values || !bias || !room)
        return nib__fail_memory(err, count * sizeof *values, "a rotated weight");
    NIB_TRY(nib__turn_weight(values, turn, engine->pool, &engine->allocator, err));
    round_values(values, count, type);
    nib__turn_describe(out, turn, values);
    if (turn->from->bias == NULL)
        return NIB_OK;
    nib__turn_bias(bias, turn, room);
    out->bias = (const void *)bias;
    out->bias_type = NIB_TYPE_F32;
    return NIB_OK;
}

/* Codes the rows of c->from into c->out. */
static nib_status code_weight(coding *c, nib_coded_check *check, const char *name, nib_err *err)
{
    nib_engine *engine = check->g->model->engine;
    const uint64_t threads = (uint64_t)nib__pool_threads(engine->pool);
    const int64_t n = c->from->n, k = c->q.k;
    c->q.run = nib__quant_w_best(engine->isa);
    c->room_bytes = (uint64_t)nib__round_up(k * 6 + 16 + 8 * c->q.groups, 64);
    c->out = nib__arena_take(&check->held, (uint64_t)n * (uint64_t)k, sizeof *c->out);
    c->room = nib__arena_take(&check->held, threads, c->room_bytes);
    c->errs = nib__arena_take(&check->held, threads, sizeof *c->errs);
    if (!c->out || !c->room || !c->errs)
        return nib__fail_memory(err, (uint64_t)n * (uint64_t)k * sizeof *c->out, name);
    if (nib__quantizer_needs_scan(&c->q))
        NIB_TRY(find_range(c, (float *)(void *)c->room, err));
    nib__pool_run(engine->pool, n, 4, false, code_rows, c);
    for (uint64_t i = 0; i < threads; i++)
        if (c->errs[i].status != NIB_OK)
            return nib__fail(err, c->errs[i].status, "%s: %s", name, c->errs[i].text);
    return NIB_OK;
}

/* Loads a site with another weight than the stored one. */
static nib_status load_weight(nib_coded_check *check, size_t site, const nib_weight *weight,
                              nib_err *err)
{
    nib_site *at = &check->g->model->net.sites[site];
    const nib_weight stored = at->weight;
    at->weight = *weight;
    const nib_status status = nib__gptq_load_stored(check->g, site, err);
    at->weight = stored;
    return status;
}

/* As nib__coded_load, with the codes of `from`. */
static nib_status load_codes(nib_coded_check *check, size_t site, const nib_weight *from,
                             const nib_coded_as *as, nib_err *err)
{
    const nib_site *at = &check->g->model->net.sites[site];
    const nib_quantize_layer *l = &check->layers[site];
    coding c = {.from = from, .fold = as->fold};
    NIB_TRY(nib__quantizer_init(&c.q, &l->choice.scheme, nib__float_type(at->weight.scheme.code),
                                at->k, err));
    NIB_TRY(nib__quantizer_method(&c.q, as->method, as->importance, err));
    NIB_TRY(nib__quantizer_scales(&c.q, l->choice.scale_type, err));
    NIB_TRY(code_weight(&c, check, at->name, err));
    const nib_weight coded = {.scheme = {.code = NIB_CODE_F32, .symmetric = true},
                              .n = at->n,
                              .k = at->k,
                              .layout = NIB_LAYOUT_FLOAT,
                              .codes = (const void *)c.out,
                              .bias = from->bias,
                              .bias_type = from->bias_type};
    return load_weight(check, site, &coded, err);
}

nib_status nib__coded_load(nib_coded_check *check, size_t site, const nib_coded_as *as,
                           nib_err *err)
{
    const nib_weight stored = check->g->model->net.sites[site].weight;
    return load_codes(check, site, &stored, as, err);
}

/* ---- the check ---- */

static bool is_changed(const void *ctx, size_t site)
{
    const nib_coded_check *c = ctx;
    return c->inputs[site].is_changed;
}

/* Loads the weight of the output: turned, coded by the method, or both. */
static nib_status load_output(nib_coded_check *c, size_t site, nib_err *err)
{
    const nib_site *at = &c->g->model->net.sites[site];
    const nib_quantize_layer *l = &c->layers[site];
    const nib_coded_as as = {l->choice.method, l->importance, l->fold};
    const bool is_coded = nib__layer_is_quantized(l);
    const nib_type type = is_coded ? NIB_TYPE_F32 : nib__float_type(at->stored.code);
    nib_weight turned = at->weight;
    if (l->turn != NULL)
        NIB_TRY(nib__coded_turn(&turned, l->turn, type, c->g->model->engine, &c->held, err));
    return is_coded ? load_codes(c, site, &turned, &as, err) : load_weight(c, site, &turned, err);
}

static nib_status load_kind(void *ctx, size_t site, nib_gptq_kind kind, nib_err *err)
{
    nib_coded_check *c = ctx;
    const nib_coded_as rounding = {.method = NIB_PTQ_RTN};
    if (kind == NIB_GPTQ_CODED)
        return load_output(c, site, err);
    return nib__layer_is_quantized(&c->layers[site]) ? nib__coded_load(c, site, &rounding, err)
                                                     : nib__gptq_load_stored(c->g, site, err);
}

static void enter(void *ctx, nib_gptq_kind kind)
{
    nib_coded_check *c = ctx;
    if (c->norms != NULL)
        nib__rotate_set_norms(c->norms, &c->g->runner, kind == NIB_GPTQ_CODED);
}

nib_status nib__coded_begin(nib_coded_check *c, int64_t tokens, nib_arena *arena, nib_err *err)
{
    nib_gptq_run *g = c->g;
    nib_gptq_stream *const streams[] = {&g->coded, &g->stored, &g->rounded};
    const uint64_t floats = (uint64_t)tokens * (uint64_t)g->width;
    g->loader = (nib_gptq_loader){.has = is_changed, .load = load_kind, .enter = enter, .ctx = c};
    for (size_t i = 0; i < COUNT(streams); i++) {
        *streams[i] = (nib_gptq_stream){.state = nib__arena_take(arena, floats, sizeof(float)),
                                        .count = tokens,
                                        .first = g->count - tokens};
        if (streams[i]->state == NULL)
            return nib__fail_memory(err, floats * sizeof(float), "the hidden states of a text");
    }
    return NIB_OK;
}

nib_status nib__coded_check_layer(nib_coded_check *c, size_t layer, size_t begin, size_t end,
                                  nib_err *err)
{
    nib_gptq_run *g = c->g;
    nib__arena_init(&c->held, &g->model->engine->allocator, 0);
    nib_status status = nib__gptq_check_layer(g, layer, begin, end, err);
    if (status == NIB_OK)
        status = nib__gptq_check_kind(g, NIB_GPTQ_CODED, layer, begin, end, err);
    nib__gptq_unload_sites(g, begin, end);
    if (layer == 0 && c->inputs[0].is_changed)
        nib__gptq_unload_sites(g, 0, 1); /* nothing looks up tokens any more */
    nib__arena_free(&c->held);
    return status;
}

nib_status nib__coded_end(nib_coded_check *c, bool *is_worse, nib_err *err)
{
    nib_gptq_run *g = c->g;
    const size_t head = g->model->net.site_count - 1;
    nib__arena_init(&c->held, &g->model->engine->allocator, 0);
    nib__gptq_cost_of(&g->cost, g, head, head + 1);
    const nib_status status = nib__gptq_check(g, err);
    nib__arena_free(&c->held);
    *is_worse = status == NIB_OK && nib__gptq_is_worse(g, "last");
    return status;
}
