/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes a model by its graph and by samples of its tensors.
 */
#include "network_hash.h"

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

nib_status nib__network_hash(nib_hash *out, const nib_network *net, nib_err *err)
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
