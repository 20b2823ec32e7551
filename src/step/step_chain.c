/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains: consecutive operations that compute each row (token) independently. A worker takes a few
 * rows through the whole chain before it takes others, so data stays in its caches from one
 * operation to the next, and threads synchronize once per chain. Kernels run on other ranges of
 * rows and otherwise unchanged, so results are bit-identical.
 */
#include "step_experts.h"

#include "operation.h"

/* False for quantizers by columns, gradients of weights, attention, and experts, whose rows are in
 * another order: they mix rows. */
static bool is_by_rows(const nib_train_node *n)
{
    return n->side == NIB_SIDE_CPU && nib__ops[n->op].by_tokens && !nib__step_of_experts(n->of);
}

/* The number of parts: equal numbers of whole tiles, and a multiple of the threads. */
static int64_t count_parts(const nib_step *s)
{
    const int64_t threads = nib__pool_threads(s->engine->pool);
    return nib__round_up(nib__ceil_div(s->m, NIB_CHAIN_ROWS), threads);
}

static int64_t first_row(const nib_step *s, int64_t part)
{
    const int64_t tiles = nib__ceil_div(s->m, NIB_CHAIN_TILE);
    return nib__min(s->m, part * tiles / count_parts(s) * NIB_CHAIN_TILE);
}

/* Whether a product reads its x side from the scratch of quantized inputs. */
static bool reads_input(const nib_step *s, const nib_train_node *n)
{
    return (n->op == NIB_OP_LINEAR || n->op == NIB_OP_LINEAR_DX || n->op == NIB_OP_LINEAR_DW) &&
           s->products[n->site][n->product].quant != NULL;
}

/* ---- which operations, which buffers ---- */

/* A chain quantizes into its workers' scratch, which the next chain overwrites. So all products
 * that read a quantized input are in the chain of its quantizer. */
static size_t chain_end(const nib_step *s, size_t first, size_t limit)
{
    size_t end = first, last = SIZE_MAX; /* the last quantizer */
    const size_t most = limit - first < NIB_CHAIN_NODES ? limit : first + NIB_CHAIN_NODES;
    if (nib__ceil_div(s->m, NIB_CHAIN_TILE) < count_parts(s))
        return first + 1;
    for (; end < most && is_by_rows(&s->nodes[end]); end++) {
        if ((reads_input(s, &s->nodes[end]) && last == SIZE_MAX) ||
            (end > first && nib__ops[s->nodes[end].op].gathers))
            break;
        if (s->nodes[end].op == NIB_OP_QUANT)
            last = end;
    }
    size_t next = end;
    while (next < s->count && !reads_input(s, &s->nodes[next]) &&
           s->nodes[next].op != NIB_OP_QUANT && s->nodes[next].op != NIB_OP_QUANT_T)
        next++;
    if (next < s->count && reads_input(s, &s->nodes[next]) && last != SIZE_MAX)
        end = last;
    return end > first ? end : first + 1;
}

/* Moves buffers that only this chain uses into the workers' scratch, for the rows of one part, so
 * that they stay in the caches. Buffers beyond `most` bytes would not fit there. `list`: index in
 * nib_step.chains. */
static void place_in_scratch(nib_step *s, nib_chain *c, int list)
{
    const uint64_t most = UINT64_C(4) << 20;
    const int64_t rows = nib__min(s->m, NIB_CHAIN_ROWS);
    for (size_t i = c->first; i < c->end && c->end - c->first > 1; i++)
        for (int j = 0; j < NIB_TRAINING_OUTPUTS; j++) {
            nib_step_buffer *p = s->nodes[i].out[j] >= 0 ? &s->buffers[s->nodes[i].out[j]] : NULL;
            if (p == NULL || p->columns == 0 || p->first != i || p->last[list] >= c->end)
                continue;
            const uint64_t bytes =
                ((uint64_t)(rows * p->columns) * sizeof(float) + 63) & ~UINT64_C(63);
            if (bytes > most - c->scratch_bytes)
                continue;
            p->scratch_at[list] = c->scratch_bytes;
            c->scratch_bytes += bytes;
        }
}

static nib_status make_chains(nib_step *s, int list, size_t limit, nib_err *err)
{
    nib_chains *out = &s->chains[list];
    out->items = nib__arena_take(&s->arena, limit, sizeof *out->items);
    if (!out->items)
        return nib__fail_memory(err, limit * sizeof *out->items, "chains of operations");
    for (size_t first = 0; first < limit; first = out->items[out->count++].end) {
        nib_chain *c = &out->items[out->count];
        *c = (nib_chain){.first = first, .end = chain_end(s, first, limit)};
        place_in_scratch(s, c, list);
    }
    return NIB_OK;
}

nib_status nib__step_make_chains(nib_step *s, nib_err *err)
{
    const size_t threads = (size_t)nib__pool_threads(s->engine->pool);
    s->spent_ns = nib__arena_take(&s->arena, threads, NIB_CHAIN_NODES * sizeof *s->spent_ns);
    if (!s->spent_ns)
        return nib__fail_memory(err, threads * NIB_CHAIN_NODES * sizeof *s->spent_ns,
                                "the times of operations");
    NIB_TRY(make_chains(s, 0, s->forward_end, err));
    return make_chains(s, 1, s->count, err);
}

uint64_t nib__step_chain_scratch(const nib_step *s)
{
    uint64_t most = 0;
    for (int i = 0; i < 2; i++)
        for (size_t c = 0; c < s->chains[i].count; c++)
            most = s->chains[i].items[c].scratch_bytes > most ? s->chains[i].items[c].scratch_bytes
                                                              : most;
    return most;
}

/* ---- running ---- */

typedef struct chain_job {
    nib_step *s;
    int list;
    const nib_chain *chain;
} chain_job;

static void job_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const chain_job *r = ctx;
    const nib_chain *c = r->chain;
    nib_step copy = *r->s;
    uint64_t *spent = r->s->spent_ns + (int64_t)worker * NIB_CHAIN_NODES;
    copy.workers.pool = NULL;
    copy.workers.scratch += (uint64_t)worker * copy.workers.scratch_bytes;
    for (int64_t part = begin; part < end; part++) {
        copy.rows = (nib_step_rows){.is_part = true,
                                    .first = first_row(r->s, part),
                                    .end = first_row(r->s, part + 1),
                                    .list = r->list,
                                    .scratch = copy.workers.scratch + copy.rows_scratch};
        uint64_t from = nib__now_ns();
        for (size_t i = c->first; i < c->end; i++) {
            (void)nib__step_node(&copy, &copy.nodes[i], NULL);
            const uint64_t now = nib__now_ns();
            spent[i - c->first] += now - from;
            from = now;
        }
    }
}

/* Divides the time of a chain among its operations by what the workers spent on each. */
static void share_time(nib_step *s, const nib_chain *c, uint64_t took)
{
    const int threads = nib__pool_threads(s->engine->pool);
    const size_t count = c->end - c->first;
    double each[NIB_CHAIN_NODES] = {0}, all = 0;
    for (int w = 0; w < threads; w++)
        for (size_t i = 0; i < count; i++) {
            const double spent = (double)s->spent_ns[(size_t)w * NIB_CHAIN_NODES + i];
            each[i] += spent;
            all += spent;
        }
    for (size_t i = 0; i < count && all > 0; i++)
        s->node_ns[c->first + i] += (uint64_t)((double)took * each[i] / all);
}

void nib__step_chain(nib_step *s, int list, size_t i)
{
    const nib_chain *c = &s->chains[list].items[i];
    chain_job r = {s, list, c};
    const size_t threads = (size_t)nib__pool_threads(s->engine->pool);
    const uint64_t from = nib__now_ns();
    memset(s->spent_ns, 0, threads * NIB_CHAIN_NODES * sizeof *s->spent_ns);
    nib__pool_run(s->engine->pool, count_parts(s), 1, false, job_rows, &r);
    share_time(s, c, nib__now_ns() - from);
}
