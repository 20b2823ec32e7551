/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_bench_operations: where the time of a prompt and of a new token goes. Each operation is
 * waited for and timed, so the sum exceeds the time of an unobserved step.
 *
 * Bytes are those of the weights once per pass, of the rows that an operation reads and writes, of
 * the keys and values that attention reads, and of the matrices that gated DeltaNet reads and
 * writes; savings by caches are ignored.
 */
#include "bench.h"
#include "op_table.h"
#include "operation.h"
#include "public_struct.h"

#include <inttypes.h>
#include <math.h>

/* The work of `passes` passes with `tokens` tokens in total, spread over the first `length`
 * positions of a sequence. */
typedef struct work {
    double passes, tokens, length, outputs; /* outputs: tokens whose logits are made */
} work;

typedef struct bench {
    nib_session *session;
    nib_bench_options options;
    nib_machine here;
    nib_op_table prefill, decode;
} bench;

static void count_linear(const nib_runner *r, const nib_node *n, double tokens, work of,
                         nib_op_line *out)
{
    const nib_weight *w = &r->weights[n->site].w;
    const bool has_experts = n->op == NIB_OP_LINEAR_EXPERTS;
    const double heads = n->op == NIB_OP_LINEAR_HEADS ? (double)n->of->heads : 1,
                 rows = tokens * (has_experts ? (double)n->of->routing->top_k : heads);
    double read =
        heads; /* weights that a pass reads; of experts as many as it chooses, if evenly */
    if (has_experts)
        read = (double)n->of->routing->experts *
               (1 - pow(1 - nib__layer_share(n->uses->layer), tokens / of.passes));
    out->operations = 2 * rows * (double)w->n * (double)w->k;
    out->bytes = of.passes * read * (double)r->weights[n->site].bytes +
                 rows * (double)(w->n + w->k) * sizeof(float);
}

/* Positions that all tokens attend to: for each, itself and those before it, or a window of them,
 * or those of its chunk. */
static double positions_seen(work of, const nib_graph_node *attention)
{
    const double window = (double)attention->window;
    const double rising = window > 0 ? fmin(of.length, window) : of.length;
    const double chunks = attention->chunked ? floor(of.length / rising) : 1;
    const double rest = of.length - chunks * rising;
    const double seen = attention->chunked ? rest * (rest + 1) / 2 : rest * rising;
    return of.tokens / of.length * (chunks * rising * (rising + 1) / 2 + seen);
}

static void count_attention(const nib_runner *r, const nib_node *n, work of, nib_op_line *out)
{
    const nib_cache cache = nib__kv_layer(&r->kv, n->layer);
    const double seen = positions_seen(of, n->of),
                 dims = (double)(cache.head_dim + nib__cache_value_dim(&cache));
    out->operations = 2 * seen * (double)n->of->heads * dims;
    out->bytes = seen * (double)nib__kv_position_bytes(&r->kv, n->layer);
}

/* Bytes of f32 rows that an operation reads and writes. */
static double row_bytes(const nib_runner *r, const nib_node *n)
{
    const double to = (double)r->ops.ld[n->to], from = (double)r->ops.ld[n->from];
    double values = nib__ops[n->op].values * (n->op == NIB_OP_EMBED ? to : from);
    if (n->op == NIB_OP_ROPE_COPY) /* rows of queries, and of keys */
        values = nib__ops[n->op].values * to + 4 * from;
    return values * sizeof(float);
}

/* Each pass reads and writes the matrices of a sequence. */
static void count_recurrence(const nib_runner *r, const nib_node *n, work of, nib_op_line *out)
{
    const double values = (double)nib__matrix_values(&n->of->matrix);
    out->bytes = of.tokens * row_bytes(r, n) + 2 * of.passes * values * sizeof(float);
}

static nib_op_line line_of(const bench *b, const nib_node *n, int64_t m, work of)
{
    const nib_runner *r = &b->session->runner;
    const bool is_linear = n->op == NIB_OP_LINEAR || n->weight_count > 0,
               on_device = n->side == NIB_SIDE_GPU;
    const bool is_last = n->to == NIB_BUFFER_LOGITS; /* the head, and the scaling of logits */
    const double tokens = n->wanted_only || is_last ? of.outputs : of.tokens;
    const nib_machine *machine = on_device ? r->plan->gpu : &b->here;
    nib_op_line l = {.name = nib__op_names[n->op],
                     .layers = nib__layer_kind(r->net, is_linear ? n->site : SIZE_MAX),
                     .device = machine->name};
    if (is_last) /* a pass without outputs ends before it */
        of.passes = fmin(of.passes, of.outputs);
    if (is_linear)
        count_linear(r, n, tokens, of, &l);
    else if (n->op == NIB_OP_ATTN)
        count_attention(r, n, of, &l);
    else if (n->op == NIB_OP_GATED_DELTA || n->op == NIB_OP_SSM)
        count_recurrence(r, n, of, &l);
    else
        l.bytes = tokens * row_bytes(r, n);
    if (!on_device || machine->measured) {
        l.bandwidth = machine->bytes_per_s;
        l.peak = is_linear ? machine->rate[nib__use_at(n->uses, m)->kernel->unit] : 0;
    }
    return l;
}

static void fill_table(const bench *b, nib_op_table *t, const uint64_t *ns, int64_t m, work of,
                       double runs)
{
    const nib_runner *r = &b->session->runner;
    for (size_t i = 0; i < r->ops.count; i++) {
        nib_op_line l = line_of(b, &r->ops.nodes[i], m, of);
        l.seconds = (double)ns[i] * 1e-9 / runs;
        t->seconds += l.seconds;
        nib__op_table_add(t, &l);
    }
    nib__op_table_sort(t);
}

static nib_status time_both(bench *b, uint64_t *ns, nib_err *err)
{
    nib_runner *r = &b->session->runner;
    const nib_bench_options *o = &b->options;
    const double prompt = (double)o->prompt_tokens, fresh = (double)o->new_tokens;
    const double passes = (double)nib__ceil_div(o->prompt_tokens, (int64_t)NIB_CHUNK);
    double seconds;
    NIB_TRY(nib__bench_prefill(b->session, nib__min(o->prompt_tokens, 16), &seconds, err));
    r->node_ns = ns;
    for (int i = 0; i < o->repeats; i++)
        NIB_TRY(nib__bench_prefill(b->session, o->prompt_tokens, &seconds, err));
    fill_table(b, &b->prefill, ns, nib__min(o->prompt_tokens, NIB_CHUNK),
               (work){passes, prompt, prompt, 1}, o->repeats);
    memset(ns, 0, r->ops.count * sizeof *ns);
    for (int i = 0; i < o->repeats; i++)
        NIB_TRY(nib__bench_decode(b->session, o->new_tokens, &seconds, err));
    fill_table(b, &b->decode, ns, 1, (work){1, 1, fresh, 1}, o->repeats * fresh);
    return NIB_OK;
}

static void write_json(const bench *b, nib_text *text)
{
    nib_jsonw w;
    nib__jsonw_report(&w, text);
    nib__jsonw_pair_int(&w, "prompt_tokens", b->options.prompt_tokens);
    nib__jsonw_pair_int(&w, "new_tokens", b->options.new_tokens);
    nib__jsonw_pair_double(&w, "read_gb_per_s", b->here.bytes_per_s * 1e-9);
    nib__jsonw_key(&w, "prefill");
    nib__op_table_json(&b->prefill, &w);
    nib__jsonw_key(&w, "decode");
    nib__op_table_json(&b->decode, &w);
    nib__ledger_json(&b->session->plan->assignment.ledger, &w);
    nib__jsonw_report_end(&w);
}

static void write_text(const bench *b, bool markdown, nib_text *text)
{
    nib__text_format(text, "a prompt of %" PRId64 " tokens\n%s", b->options.prompt_tokens,
                     markdown ? "\n" : "");
    nib__op_table_text(&b->prefill, markdown, text);
    nib__text_format(text, "\n%" PRId64 " new tokens, one by one\n%s", b->options.new_tokens,
                     markdown ? "\n" : "");
    nib__op_table_text(&b->decode, markdown, text);
}

nib_status nib_bench_operations(nib_session *session, const nib_bench_options *options,
                                nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "session", session);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_OPTIONS(nib_bench_options, o, options, err);
    NIB_TRY(nib__session_check_idle(session, err));
    nib_engine *engine = session->model->engine;
    nib_runner *r = &session->runner;
    bench b = {.session = session,
               .options = o,
               .here = engine->here,
               .prefill.each = "prompt",
               .decode.each = "token"};
    NIB_TRY(nib__bench_complete(&b.options, session, err));
    uint64_t *ns = nib__calloc(&engine->allocator, r->ops.count, sizeof *ns);
    if (ns == NULL)
        return nib__fail_memory(err, r->ops.count * sizeof *ns, "times of operations");
    nib_status status = nib__machine_measure(&b.here, engine->pool, NULL, &engine->allocator, err);
    if (status == NIB_OK)
        status = nib__model_check_files(session->model, time_both(&b, ns, err), err);
    r->node_ns = NULL;
    nib__release(&engine->allocator, ns);
    if (status != NIB_OK)
        return status;
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    if (form == NIB_FORM_JSON)
        write_json(&b, &text);
    else
        write_text(&b, form == NIB_FORM_MARKDOWN, &text);
    status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}
