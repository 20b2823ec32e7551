/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs operations that keep a state, and their gradients: each worker takes its channels through
 * all tokens in order.
 */
#include "step_states.h"

static float *rows(const nib_step *s, int buffer) { return nib__step_rows(s, buffer); }
static int64_t ld(const nib_step *s, int buffer) { return nib__step_ld(s, buffer); }

static float *gradient_of(const nib_step *s, const nib_train_node *n)
{
    return s->gradients + s->params->items[n->param].at;
}

static float *state_of(const nib_step *s)
{
    return (float *)(void *)nib__step_region(s, NIB_SIDE_CPU, NIB_REGION_STATE);
}

uint64_t nib__step_state_bytes(const nib_step *s)
{
    const nib_graph *g = &s->net->graph;
    int64_t most = 0;
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NIB_OP_SHORT_CONV)
            most = nib__max(most, g->weights[g->nodes[i].weight].n);
        else if (g->nodes[i].op == NIB_OP_GATED_DELTA || g->nodes[i].op == NIB_OP_SSM)
            most = nib__max(most, nib__matrix_values(&g->nodes[i].matrix));
    return (uint64_t)most * sizeof(float);
}

nib_status nib__step_open_states(nib_step *s, nib_err *err)
{
    if (nib__step_state_bytes(s) == 0)
        return NIB_OK;
    const uint64_t m = (uint64_t)s->m;
    s->zeros = nib__arena_take(&s->arena, m, sizeof *s->zeros);
    s->slots = nib__arena_take(&s->arena, m, sizeof *s->slots);
    s->runs = nib__arena_take(&s->arena, m, sizeof *s->runs);
    for (int64_t i = 0; s->slots != NULL && i < s->m; i++)
        s->slots[i] = (int32_t)i;
    return s->zeros != NULL && s->slots != NULL && s->runs != NULL
               ? NIB_OK
               : nib__fail_memory(err, m * sizeof *s->runs, "the documents of states");
}

/* ---- short convolutions ---- */

static int64_t taps_of(const nib_step *s, const nib_train_node *n)
{
    return s->net->graph.weights[n->of->weight].taps;
}

static int64_t channels_of(const nib_step *s, const nib_train_node *n)
{
    return s->net->graph.weights[n->of->weight].n / taps_of(s, n);
}

/* The columns of a convolution in rows that begin at `first`; before and after NULL: no gates. */
typedef struct columns {
    float *x, *before, *after;
} columns;

static columns columns_of(const nib_step *s, const nib_train_node *n, float *first)
{
    const int64_t channels = channels_of(s, n);
    if (!n->of->gated)
        return (columns){.x = first + n->of->channel};
    return (columns){.x = first + 2 * channels, .before = first, .after = first + channels};
}

static const float *bias_of(const nib_step *s, const nib_train_node *n)
{
    return n->of->biased ? nib__step_vector(s, n->of->weight + 1) : NULL;
}

void nib__step_short_conv(nib_step *s, const nib_train_node *n)
{
    const columns from = columns_of(s, n, rows(s, n->in[0]));
    const nib_short_conv a = {.x = from.x,
                              .before = from.before,
                              .after = from.after,
                              .weight = nib__step_vector(s, n->of->weight),
                              .bias = bias_of(s, n),
                              .silu = !n->of->gated,
                              .out = rows(s, n->out[0]),
                              .m = s->m,
                              .channels = channels_of(s, n),
                              .taps = taps_of(s, n),
                              .ldx = ld(s, n->in[0]),
                              .ldo = ld(s, n->out[0]),
                              .sequence = s->zeros,
                              .position = s->position,
                              .state = state_of(s),
                              .room = taps_of(s, n)};
    nib__step_run_parts(s, n->row, &a, a.channels, NIB_LANES);
}

void nib__step_short_conv_dx(nib_step *s, const nib_train_node *n)
{
    const columns from = columns_of(s, n, rows(s, n->in[1])),
                  to = columns_of(s, n, rows(s, n->out[0]));
    const nib_short_conv_dx a = {.x = from.x,
                                 .before = from.before,
                                 .after = from.after,
                                 .weight = nib__step_vector(s, n->of->weight),
                                 .bias = bias_of(s, n),
                                 .dy = rows(s, n->in[0]),
                                 .dx = to.x,
                                 .dbefore = to.before,
                                 .dafter = to.after,
                                 .dsum = rows(s, n->out[1]),
                                 .m = s->m,
                                 .channels = channels_of(s, n),
                                 .taps = taps_of(s, n),
                                 .ldx = ld(s, n->in[1]),
                                 .ldy = ld(s, n->in[0]),
                                 .lddx = ld(s, n->out[0]),
                                 .ldd = ld(s, n->out[1]),
                                 .position = s->position,
                                 .silu = !n->of->gated};
    if (!n->of->gated)
        nib__step_clear_others(s, n->out[0], n->of->channel, a.channels);
    nib__step_run_parts(s, n->row, &a, a.channels, NIB_LANES);
}

void nib__step_short_conv_dw(nib_step *s, const nib_train_node *n)
{
    const columns from = columns_of(s, n, rows(s, n->in[1]));
    const nib_short_conv_dw a = {.x = from.x,
                                 .before = from.before,
                                 .dsum = rows(s, n->in[0]),
                                 .dw = gradient_of(s, n),
                                 .m = s->m,
                                 .channels = channels_of(s, n),
                                 .taps = taps_of(s, n),
                                 .ldx = ld(s, n->in[1]),
                                 .ldd = ld(s, n->in[0]),
                                 .position = s->position};
    nib__step_run_parts(s, n->row, &a, a.channels, NIB_LANES);
}

/* ---- gates ---- */

void nib__step_delta_gates(nib_step *s, const nib_train_node *n)
{
    const nib_delta_gates a = {.b = rows(s, n->in[0]),
                               .a = rows(s, n->in[1]),
                               .a_log = nib__step_vector(s, n->of->weight),
                               .dt_bias = nib__step_vector(s, n->of->weight + 1),
                               .rates = n->of->rates,
                               .out = rows(s, n->out[0]),
                               .m = s->m,
                               .heads = ld(s, n->in[0]),
                               .ldb = ld(s, n->in[0]),
                               .lda = ld(s, n->in[1]),
                               .ldo = ld(s, n->out[0])};
    nib__step_run_tokens(s, n->row, &a, 1);
}

void nib__step_delta_gates_dx(nib_step *s, const nib_train_node *n)
{
    const nib_delta_gates_dx a = {.dgates = rows(s, n->in[0]),
                                  .b = rows(s, n->in[1]),
                                  .a = rows(s, n->in[2]),
                                  .a_log = nib__step_vector(s, n->of->weight),
                                  .dt_bias = nib__step_vector(s, n->of->weight + 1),
                                  .rates = n->of->rates,
                                  .db = rows(s, n->out[0]),
                                  .da = rows(s, n->out[1]),
                                  .dlog = rows(s, n->out[2]),
                                  .m = s->m,
                                  .heads = ld(s, n->in[1]),
                                  .ldg = ld(s, n->in[0]),
                                  .ldb = ld(s, n->in[1]),
                                  .lda = ld(s, n->in[2])};
    nib__step_run_tokens(s, n->row, &a, 1);
}

void nib__step_ssm_gates(nib_step *s, const nib_train_node *n)
{
    const nib_ssm_gates a = {.x = rows(s, n->in[0]) + n->of->channel,
                             .rate = nib__step_vector(s, n->of->weight),
                             .dt_bias = nib__step_vector(s, n->of->weight + 1),
                             .out = rows(s, n->out[0]),
                             .least = n->of->scale,
                             .most = n->of->cap,
                             .m = s->m,
                             .heads = ld(s, n->out[0]) / 2,
                             .ldx = ld(s, n->in[0]),
                             .ldo = ld(s, n->out[0])};
    nib__step_run_tokens(s, n->row, &a, 1);
}

/* The columns of all steps get what is kept for the sum over tokens. */
static void spread_dz(const nib_step *s, const nib_train_node *n)
{
    const int64_t heads = ld(s, n->out[1]), all = ld(s, n->out[0]),
                  first = s->rows.is_part ? s->rows.first : 0,
                  end = s->rows.is_part ? s->rows.end : s->m;
    const float *dz = rows(s, n->out[1]);
    float *dx = rows(s, n->out[0]) + n->of->channel;
    nib__step_clear_others(s, n->out[0], n->of->channel, heads);
    for (int64_t i = first; i < end; i++)
        memcpy(dx + i * all, dz + i * heads, (size_t)heads * sizeof *dx);
}

void nib__step_ssm_gates_dx(nib_step *s, const nib_train_node *n)
{
    const nib_ssm_gates_dx a = {.dgates = rows(s, n->in[0]),
                                .x = rows(s, n->in[1]) + n->of->channel,
                                .rate = nib__step_vector(s, n->of->weight),
                                .dt_bias = nib__step_vector(s, n->of->weight + 1),
                                .dz = rows(s, n->out[1]),
                                .dlog = rows(s, n->out[2]),
                                .least = n->of->scale,
                                .most = n->of->cap,
                                .m = s->m,
                                .heads = ld(s, n->out[1]),
                                .ldg = ld(s, n->in[0]),
                                .ldx = ld(s, n->in[1]),
                                .ldz = ld(s, n->out[1])};
    nib__step_run_tokens(s, n->row, &a, 1);
    spread_dz(s, n);
}

/* ---- recurrences over matrices ---- */

static const float *skip_of(const nib_step *s, const nib_train_node *n)
{
    return n->of->op == NIB_OP_SSM ? nib__step_vector(s, n->of->weight) : NULL;
}

void nib__step_recurrence(nib_step *s, const nib_train_node *n)
{
    const nib_matrix_size *size = &n->of->matrix;
    const nib_recurrence a = {.x = rows(s, n->in[0]),
                              .gates = rows(s, n->in[1]),
                              .skip = skip_of(s, n),
                              .out = rows(s, n->out[0]),
                              .ldx = ld(s, n->in[0]),
                              .ldg = ld(s, n->in[1]),
                              .ldo = ld(s, n->out[0]),
                              .size = *size,
                              .slots = s->slots,
                              .runs = s->runs,
                              .count = s->batch->documents};
    for (int64_t d = 0; d < a.count; d++) /* the state is never written */
        s->runs[d] = (nib_matrix_run){.state = state_of(s),
                                      .empty = true,
                                      .first = s->batch->start[d],
                                      .end = s->batch->start[d + 1]};
    const int64_t each = n->op == NIB_OP_SSM ? NIB_SSM_COLUMNS : NIB_DELTA_COLUMNS;
    nib__step_run_parts(s, n->row, &a, size->heads * nib__matrix_blocks(size, each), 1);
}

void nib__step_recurrence_dx(nib_step *s, const nib_train_node *n)
{
    const nib_recurrence_dx a = {.x = rows(s, n->in[1]),
                                 .gates = rows(s, n->in[2]),
                                 .skip = skip_of(s, n),
                                 .dy = rows(s, n->in[0]),
                                 .dx = rows(s, n->out[0]),
                                 .dgates = rows(s, n->out[1]),
                                 .dskip = n->out[2] >= 0 ? rows(s, n->out[2]) : NULL,
                                 .ldx = ld(s, n->in[1]),
                                 .ldg = ld(s, n->in[2]),
                                 .ldy = ld(s, n->in[0]),
                                 .lddx = ld(s, n->out[0]),
                                 .lddg = ld(s, n->out[1]),
                                 .documents = s->batch->documents,
                                 .longest = s->options.length,
                                 .start = s->batch->start,
                                 .size = n->of->matrix};
    nib__step_run_items(s, n->row, &a, a.documents * a.size.key_heads);
}

uint64_t nib__step_states_scratch(const nib_step *s)
{
    uint64_t most = 0;
    for (size_t i = 0; i < s->count; i++) {
        const nib_train_node *n = &s->nodes[i];
        if (n->op != NIB_OP_GATED_DELTA_DX && n->op != NIB_OP_SSM_DX)
            continue;
        const nib_recurrence_dx a = {.longest = s->options.length, .size = n->of->matrix};
        const uint64_t bytes = n->row->scratch(&a);
        most = bytes > most ? bytes : most;
    }
    return most;
}
