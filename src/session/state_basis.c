/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes a model by samples of its tensors, and describes how a plan computes keys and values.
 */
#include "state_basis.h"

#include <inttypes.h>

/* ---- weights ---- */

enum { SAMPLES = 4, SAMPLE = 4096 /* bytes */ };

/* Hashes a tensor's name, type, shape, and all of its bytes or samples from end to end. */
static nib_hash hash_tensor(const nib_tensor *t)
{
    nib_hash parts[4 + SAMPLES] = {
        nib__hash_bytes(t->name, strlen(t->name)),
        nib__hash_bytes(nib__type_name(t->type), strlen(nib__type_name(t->type))),
        nib__hash_bytes(t->shape, (size_t)t->rank * sizeof *t->shape),
        {t->bytes, 0}};
    const uint64_t span = nib__tensor_span(t);
    if (span <= SAMPLES * SAMPLE) {
        parts[4] = nib__hash_bytes(t->data, span);
    } else {
        const uint64_t step = (span - SAMPLE) / (SAMPLES - 1);
        for (uint64_t i = 0; i < SAMPLES; i++)
            parts[4 + i] = nib__hash_bytes(t->data + i * step, SAMPLE);
    }
    return nib__hash_bytes(parts, sizeof parts);
}

/* The sum does not depend on the order of the tensors, which another sharding changes. */
static nib_hash hash_tensors(const nib_checkpoint *cp)
{
    nib_hash sum = {0, 0};
    for (size_t i = 0; i < nib__checkpoint_count(cp); i++) {
        const nib_hash hash = hash_tensor(nib__checkpoint_at(cp, i));
        sum.low += hash.low;
        sum.high += hash.high;
    }
    return sum;
}

static void put_numbers(nib_text *out, const double *numbers, size_t count)
{
    nib__text_put(out, (const char *)numbers, count * sizeof *numbers);
}

static void put_graph(nib_text *out, const nib_graph *g)
{
    for (size_t i = 0; i < g->weight_count; i++) {
        const nib_graph_weight *w = &g->weights[i];
        const double numbers[] = {w->kind,     (double)w->n, (double)w->k,    w->bias,
                                  w->centered, w->offset,    (double)w->heads};
        nib__text_str(out, w->name);
        put_numbers(out, numbers, COUNT(numbers));
    }
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *n = &g->nodes[i];
        const double numbers[] = {n->in[0],         n->in[1],      n->out,    n->weight,
                                  (double)n->heads, n->scale,      n->cap,    (double)n->window,
                                  n->table,         n->activation, n->chunked};
        nib__text_str(out, nib__op_names[n->op]);
        put_numbers(out, numbers, COUNT(numbers));
        if (n->gated || n->matrix.heads > 0 ||
            n->rates) /* others keep the hash of earlier programs */
            put_numbers(out,
                        (double[]){n->gated, (double)n->matrix.key_heads, (double)n->matrix.heads,
                                   (double)n->matrix.key_dim, (double)n->matrix.value_dim,
                                   n->matrix.by_turns, n->rates},
                        7);
    }
}

/* RoPE's settings as what they do: the rotation of position 1, in short contexts and in long ones,
 * by each table. */
static nib_status put_rope(nib_text *out, const nib_config *c, const nib_allocator *a, nib_err *err)
{
    const uint64_t row = nib__rope_size(c, 1);
    float *table = nib__calloc(a, 2 * row, sizeof *table);
    if (table == NULL)
        return nib__fail_memory(err, 2 * row * sizeof *table, "a RoPE table");
    for (int i = 0; i < nib__config_ropes(c); i++)
        for (int is_long = 0; is_long < 2; is_long++) {
            nib__rope_table(table, c, i, is_long != 0 ? INT64_MAX : 2, 1, 2);
            nib__text_put(out, (const char *)(table + row), (size_t)row * sizeof *table);
        }
    nib__release(a, table);
    return NIB_OK;
}

nib_status nib__basis_weights(nib_hash *out, const nib_network *net, nib_err *err)
{
    const nib_allocator *a = &net->engine->allocator;
    const nib_config *c = &net->config;
    const double numbers[] = {(double)c->heads, (double)c->kv_heads,   (double)c->head_dim,
                              c->norm_eps,      c->rope_interleaved,   (double)c->rope_dims,
                              c->query_beta,    (double)c->query_step, (double)c->query_first};
    nib_text text;
    nib__text_init(&text, a);
    put_graph(&text, &net->graph);
    put_numbers(&text, numbers, COUNT(numbers));
    nib_status status = put_rope(&text, c, a, err);
    if (status == NIB_OK && text.failed)
        status = nib__fail_memory(err, text.size, "the description of a model");
    if (status == NIB_OK) {
        const nib_hash parts[] = {nib__hash_bytes(text.at, text.size),
                                  hash_tensors(net->checkpoint)};
        *out = nib__hash_bytes(parts, sizeof parts);
    }
    nib__text_free(&text);
    return status;
}

/* ---- how a plan computes ---- */

static const char *arithmetic_name(nib_arithmetic arithmetic)
{
    return nib__arithmetic_names[arithmetic];
}

/* The contract of a layer's products; OTHER if quantizing their input has none. */
static nib_arithmetic contract_of(const nib_layer_plan *plan)
{
    for (int i = 0; i < plan->use_count; i++)
        if (plan->uses[i].quant != NULL && plan->uses[i].quant->arithmetic == NIB_ARITHMETIC_OTHER)
            return NIB_ARITHMETIC_OTHER;
    return plan->uses[0].kernel->arithmetic;
}

static void put_layer(nib_text *out, const nib_layer_plan *plan)
{
    char name[64];
    const nib_layer *layer = plan->layer;
    const nib_type scales = nib__layer_scale_type(layer, &plan->done),
                   zeros = nib__layer_zero_type(layer, &plan->done);
    const nib_bias bias = nib__layer_bias(layer, &plan->done);
    nib__text_format(out, "%s\t%s", layer->name, nib__scheme_name(name, &plan->done));
    if (scales != NIB_TYPE_NONE)
        nib__text_format(out, ", scales %s", nib__type_name(scales));
    if (zeros != NIB_TYPE_NONE)
        nib__text_format(out, ", zeros %s", nib__type_name(zeros));
    if (bias != NIB_BIAS_NONE)
        nib__text_format(out, ", bias %s", nib__bias_names[bias]);
    nib__text_format(out, "\t%s\n", arithmetic_name(contract_of(plan)));
}

void nib__basis_write(nib_text *out, const nib_session *session)
{
    const nib_assignment *plan = &session->plan->assignment;
    const nib_config *c = &session->model->net.config;
    nib__text_format(out, "--dtype\t%s\t\n", nib__type_name(plan->dtype));
    nib__text_format(out, "--cache-type\t%s\t\n", nib__cache_name(plan->cache));
    if (c->rope == NIB_ROPE_LONGROPE)
        nib__text_format(out, "--context\t%s %" PRId64 "\t\n",
                         session->plan->context > c->rope_original ? "over" : "at most",
                         c->rope_original);
    for (int i = 0; i < plan->op_count; i++)
        if (plan->ops[i].op != NIB_OP_ROPE_COPY) /* the same as its parts, which are listed */
            nib__text_format(out, "%s\t\t%s\n", nib__op_names[plan->ops[i].op],
                             arithmetic_name(plan->ops[i].row->arithmetic));
    for (size_t i = 0; i + 1 < plan->count; i++) /* no key or value depends on the output layer */
        put_layer(out, &plan->layers[i]);
}

enum { NAME, HOW, CONTRACT, FIELDS };

typedef struct field {
    const char *at;
    int size;
} field;

static const field nothing = {"nothing", 7};

static bool same(field a, field b)
{
    return a.size == b.size && memcmp(a.at, b.at, (size_t)a.size) == 0;
}

/* Takes the next line apart; past the last one, all fields are `nothing`. */
static const char *next_line(const char *at, const char *end, field line[FIELDS])
{
    for (int i = 0; i < FIELDS; i++) {
        const char *stop = memchr(at, i + 1 < FIELDS ? '\t' : '\n', (size_t)(end - at));
        if (stop == NULL) {
            for (int j = 0; j < FIELDS; j++)
                line[j] = nothing;
            return end;
        }
        line[i] = (field){at, (int)(stop - at)};
        at = stop + 1;
    }
    return at;
}

static nib_status check_line(const field saved[FIELDS], const field own[FIELDS], nib_err *err)
{
    static const char then[] = "run the tokens again, or load it into a session like the one that "
                               "saved it";
    const field other = {arithmetic_name(NIB_ARITHMETIC_OTHER), 5};
    if (!same(saved[NAME], own[NAME]))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the state has %.*s where this session has %.*s; %s", saved[NAME].size,
                         saved[NAME].at, own[NAME].size, own[NAME].at, then);
    if (!same(saved[HOW], own[HOW]))
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "the state was computed with %.*s: %.*s, but this session has %.*s; %s",
                         saved[NAME].size, saved[NAME].at, saved[HOW].size, saved[HOW].at,
                         own[HOW].size, own[HOW].at, then);
    if (!same(saved[CONTRACT], own[CONTRACT]) && !same(own[CONTRACT], other))
        return nib__fail(
            err, NIB_NOT_AS_ASKED,
            "the state was computed with the arithmetic %.*s in %.*s, but this session "
            "promises the bits of %.*s; %s",
            saved[CONTRACT].size, saved[CONTRACT].at, saved[NAME].size, saved[NAME].at,
            own[CONTRACT].size, own[CONTRACT].at, then);
    return NIB_OK;
}

nib_status nib__basis_check(const char *saved, size_t size, const nib_text *own, nib_err *err)
{
    const char *a = saved, *b = own->at;
    while (a < saved + size || b < own->at + own->size) {
        field theirs[FIELDS], ours[FIELDS];
        a = next_line(a, saved + size, theirs);
        b = next_line(b, own->at + own->size, ours);
        NIB_TRY(check_line(theirs, ours, err));
    }
    return NIB_OK;
}
