/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: the order of a family's weights and operations, buffers never shared by two live values,
 * and the operations of a training micro-batch.
 */
#include "arch.h"
#include "buffers.h"
#include "failing.h"
#include "training.h"

#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

static nib_allocator plain;
static nib_arena arena;

static int set_up(void **state)
{
    (void)state;
    plain = nib__allocator_default();
    nib__arena_init(&arena, &plain, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    nib__arena_free(&arena);
    return 0;
}

static nib_config config_of(nib_arch arch)
{
    return (nib_config){.arch = arch,
                        .layers = 2,
                        .width = 64,
                        .ffn = 96,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 16,
                        .vocab = 100,
                        .qk_norm = arch == NIB_ARCH_QWEN3,
                        .qkv_bias = arch == NIB_ARCH_QWEN2};
}

static nib_graph graph_for(nib_config config)
{
    nib_graph graph;
    nib_err err = {NIB_OK, ""};
    if (nib__arch_build(&graph, &config, &arena, &plain, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return graph;
}

static nib_graph graph_of(nib_arch arch) { return graph_for(config_of(arch)); }

/* DeepSeek-V3's attention, with a latent vector of queries if `queries`. */
static nib_graph latent_graph(bool queries)
{
    nib_config config = config_of(NIB_ARCH_DEEPSEEK_V3);
    config.kv_heads = config.heads;
    config.latent = (nib_latent){
        .rank = 24, .query_rank = queries ? 20 : 0, .nope = 12, .rope = 4, .value = 10};
    return graph_for(config);
}

static void expect_weights(const nib_graph *g, const char *const *names, size_t count)
{
    assert_int_equal(g->weight_count, count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(g->weights[i].name, names[i]);
}

static void test_weights(void **state)
{
    static const char *const llama[] = {
        "model.embed_tokens",
        "model.layers.0.input_layernorm",
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.k_proj",
        "model.layers.0.self_attn.v_proj",
        "model.layers.0.self_attn.o_proj",
        "model.layers.0.post_attention_layernorm",
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.up_proj",
        "model.layers.0.mlp.down_proj",
        "model.layers.1.input_layernorm",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.k_proj",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.self_attn.o_proj",
        "model.layers.1.post_attention_layernorm",
        "model.layers.1.mlp.gate_proj",
        "model.layers.1.mlp.up_proj",
        "model.layers.1.mlp.down_proj",
        "model.norm",
        "lm_head",
    };
    (void)state;
    nib_graph g = graph_of(NIB_ARCH_LLAMA);
    expect_weights(&g, llama, COUNT(llama));
    assert_false(nib__graph_weight(&g, NIB_WEIGHT_MATRIX, 1)->bias);
    g = graph_of(NIB_ARCH_QWEN2);
    expect_weights(&g, llama, COUNT(llama));
    assert_true(nib__graph_weight(&g, NIB_WEIGHT_MATRIX, 1)->bias);
    assert_false(nib__graph_weight(&g, NIB_WEIGHT_MATRIX, 4)->bias); /* o */
    g = graph_of(NIB_ARCH_QWEN3);
    assert_int_equal(g.weight_count, COUNT(llama) + 4);
    assert_string_equal(g.weights[5].name, "model.layers.0.self_attn.q_norm");
    assert_int_equal(g.weights[5].n, 16);
    assert_int_equal(g.weights[5].index, 1); /* its index among norms */
}

/* LFM2: a layer with a short convolution, then one with attention. */
static nib_graph convolving_graph(void)
{
    static const bool convolves[] = {true, false};
    nib_config config = config_of(NIB_ARCH_LFM2);
    config.conv_layers = convolves, config.conv_taps = 3;
    config.qk_norm = true;
    return graph_for(config);
}

static void test_convolution(void **state)
{
    static const char *const names[] = {
        "model.embed_tokens",
        "model.layers.0.operator_norm",
        "model.layers.0.conv.in_proj",
        "model.layers.0.conv.conv",
        "model.layers.0.conv.out_proj",
        "model.layers.0.ffn_norm",
        "model.layers.0.feed_forward.w1",
        "model.layers.0.feed_forward.w3",
        "model.layers.0.feed_forward.w2",
        "model.layers.1.operator_norm",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.k_proj",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.self_attn.q_layernorm",
        "model.layers.1.self_attn.k_layernorm",
        "model.layers.1.self_attn.out_proj",
        "model.layers.1.ffn_norm",
        "model.layers.1.feed_forward.w1",
        "model.layers.1.feed_forward.w3",
        "model.layers.1.feed_forward.w2",
        "model.embedding_norm",
        "lm_head",
    };
    (void)state;
    int64_t shape[NIB_NORM_RANK];
    const nib_graph g = convolving_graph();
    expect_weights(&g, names, COUNT(names));
    assert_int_equal(nib__graph_vector_shape(shape, &g.weights[3]), 3);
    assert_true(shape[0] == 64 && shape[1] == 1 && shape[2] == 3);
}

/* Qwen3-Next without experts: a layer with the gated delta rule, then one with attention. */
static nib_graph delta_graph(void)
{
    static const bool recurrent[] = {true, false};
    nib_config config = config_of(NIB_ARCH_QWEN3_NEXT);
    config.conv_layers = recurrent, config.conv_taps = 4;
    config.matrix = (nib_matrix_size){.key_heads = 2, .heads = 6, .key_dim = 8, .value_dim = 12};
    config.qk_norm = true;
    return graph_for(config);
}

static void test_gated_delta(void **state)
{
    static const char *const names[] = {
        "model.embed_tokens",
        "model.layers.0.input_layernorm",
        "model.layers.0.linear_attn.in_proj_qkvz",
        "model.layers.0.linear_attn.in_proj_ba",
        "model.layers.0.linear_attn.conv1d",
        "model.layers.0.linear_attn.A_log",
        "model.layers.0.linear_attn.dt_bias",
        "model.layers.0.linear_attn.norm",
        "model.layers.0.linear_attn.out_proj",
        "model.layers.0.post_attention_layernorm",
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.up_proj",
        "model.layers.0.mlp.down_proj",
        "model.layers.1.input_layernorm",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.k_proj",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.self_attn.q_norm",
        "model.layers.1.self_attn.k_norm",
        "model.layers.1.self_attn.o_proj",
        "model.layers.1.post_attention_layernorm",
        "model.layers.1.mlp.gate_proj",
        "model.layers.1.mlp.up_proj",
        "model.layers.1.mlp.down_proj",
        "model.norm",
        "lm_head",
    };
    (void)state;
    const nib_graph g = delta_graph();
    expect_weights(&g, names, COUNT(names));
    assert_true(g.weights[1].offset == 1 && g.weights[7].offset == 0);
    assert_int_equal(g.weights[14].n, 2 * 64); /* queries and gates */
    for (size_t i = 0; i < g.node_count; i++) {
        const nib_graph_node *n = &g.nodes[i];
        if (n->op != NIB_OP_GATHER || g.values[n->out].columns != 2 * 16 + 72)
            continue; /* of a head of keys: q 8, k 8, v 36, z 36 */
        assert_true(n->order[0] == 0 && n->order[8] == 88 && n->order[16] == 8);
        assert_true(n->order[32] == 16 && n->order[32 + 36] == 88 + 16 && n->order[103] == 139);
    }
}

/* Granite 4 without experts: a layer with Mamba-2, then one with attention. */
static nib_graph mamba_graph(void)
{
    static const bool recurrent[] = {true, false};
    nib_config config = config_of(NIB_ARCH_GRANITE_HYBRID);
    config.conv_layers = recurrent, config.conv_taps = 4, config.conv_bias = true;
    config.matrix = (nib_matrix_size){.key_heads = 2, .heads = 6, .key_dim = 8, .value_dim = 12};
    return graph_for(config);
}

static void test_mamba(void **state)
{
    static const char *const names[] = {
        "model.embed_tokens",
        "model.layers.0.input_layernorm",
        "model.layers.0.mamba.in_proj",
        "model.layers.0.mamba.conv1d",
        "model.layers.0.mamba.conv1d.bias",
        "model.layers.0.mamba.A_log",
        "model.layers.0.mamba.dt_bias",
        "model.layers.0.mamba.D",
        "model.layers.0.mamba.norm",
        "model.layers.0.mamba.out_proj",
        "model.layers.0.post_attention_layernorm",
        "model.layers.0.mlp.shared_expert.gate_proj",
        "model.layers.0.mlp.shared_expert.up_proj",
        "model.layers.0.mlp.shared_expert.down_proj",
        "model.layers.1.input_layernorm",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.k_proj",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.self_attn.o_proj",
        "model.layers.1.post_attention_layernorm",
        "model.layers.1.mlp.shared_expert.gate_proj",
        "model.layers.1.mlp.shared_expert.up_proj",
        "model.layers.1.mlp.shared_expert.down_proj",
        "model.norm",
        "lm_head",
    };
    enum { INNER = 6 * 12, CONV = INNER + 2 * 2 * 8, HEADS = 6 };
    (void)state;
    const nib_graph g = mamba_graph();
    expect_weights(&g, names, COUNT(names));
    assert_int_equal(g.weights[2].n, INNER + CONV + HEADS);
    for (size_t i = 0; i < g.node_count; i++) {
        const nib_graph_node *n = &g.nodes[i];
        const int64_t columns = n->out >= 0 ? g.values[n->out].columns : 0;
        if (n->op == NIB_OP_SHORT_CONV)
            assert_true(n->channel == INNER && columns == CONV && n->biased && !n->gated);
        if (n->op == NIB_OP_SSM_GATES)
            assert_true(n->channel == INNER + CONV && columns == 2 * HEADS);
        if (n->op == NIB_OP_SSM)
            assert_int_equal(columns, INNER);
        if (n->op == NIB_OP_SWIGLU && n->layer == 0 && g.nodes[i + 1].op == NIB_OP_NORM)
            assert_true(columns == INNER && g.nodes[i + 1].heads == 2);
    }
    int64_t shape[NIB_NORM_RANK];
    assert_int_equal(nib__graph_vector_shape(shape, &g.weights[8]), 1); /* of both groups */
    assert_int_equal(shape[0], INNER);
}

/* ---- buffers ---- */

static int last_reader(const nib_graph *g, int value)
{
    int last = g->values[value].writer;
    for (size_t i = 0; i < g->node_count; i++)
        for (int j = 0; j < NIB_NODE_INPUTS; j++)
            if (g->nodes[i].in[j] == value)
                last = (int)i;
    return value == (int)g->value_count - 1 ? (int)g->node_count : last;
}

/* Values that share a buffer are never live at the same time: the later one is written by, or
 * after, the last reader of the earlier one. */
static void expect_apart(const nib_graph *g, const nib_graph_buffers *b)
{
    for (int v = 0; v < (int)g->value_count; v++)
        for (int w = v + 1; w < (int)g->value_count; w++) {
            if (b->of[v] != b->of[w])
                continue;
            const int end = last_reader(g, v), begin = g->values[w].writer;
            const nib_graph_node *node = &g->nodes[begin];
            const bool over = node->in[0] == v || node->in[1] == v;
            assert_int_equal(g->values[v].columns, g->values[w].columns);
            if (end > begin || (end == begin && !over))
                fail_msg("values %d and %d share buffer %d", v, w, b->of[v]);
        }
}

static void test_buffers(void **state)
{
    (void)state;
    const nib_graph mixed[] = {convolving_graph(), delta_graph(), mamba_graph()};
    for (size_t i = 0; i < COUNT(mixed); i++) {
        nib_graph_buffers buffers;
        assert_int_equal(nib__graph_buffers(&buffers, &mixed[i], &arena, NULL), NIB_OK);
        expect_apart(&mixed[i], &buffers);
    }
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_graph g = graph_of((nib_arch)i);
        nib_graph_buffers b;
        assert_int_equal(nib__graph_buffers(&b, &g, &arena, NULL), NIB_OK);
        expect_apart(&g, &b);
        /* the result has its own buffer, the last one */
        assert_int_equal(b.of[g.value_count - 1], b.count - 1);
        assert_int_equal(b.columns[b.count - 1], 100);
        /* residual, normed, q, k, v, gate, up and the result, whatever the number of layers; some
         * families have one fewer or one more; queries with gates are a value of their own */
        assert_in_range(b.count, 7, nib__family_at(i)->output_gate ? 10 : 9);
    }
}

/* ---- training ---- */

static nib_training training_for(const nib_graph *g, nib_ac checkpointing)
{
    nib_training list;
    assert_int_equal(nib__graph_training(&list, g, checkpointing, &arena, NULL), NIB_OK);
    return list;
}

static nib_training training_of(nib_arch arch, nib_ac checkpointing)
{
    const nib_graph g = graph_of(arch);
    return training_for(&g, checkpointing);
}

/* Every value is written once, before it is read. */
static void expect_written_once(const nib_training *list)
{
    bool *written = nib__arena_take(&arena, list->value_count, sizeof *written);
    assert_non_null(written);
    for (size_t i = 0; i < list->count; i++) {
        const nib_training_node *node = &list->nodes[i];
        for (int j = 0; j < NIB_TRAINING_INPUTS; j++)
            assert_true(node->in[j] < 0 || written[node->in[j]]);
        for (int j = 0; j < NIB_TRAINING_OUTPUTS; j++) {
            assert_true(node->out[j] < 0 || !written[node->out[j]]);
            if (node->out[j] >= 0)
                written[node->out[j]] = true;
        }
    }
}

/* Every weight has exactly one gradient, but for biases that only choose experts and numbers of
 * layers. */
static void expect_gradients(const nib_training *list, const nib_graph *g)
{
    size_t count = 0;
    bool *has = nib__arena_take(&arena, g->weight_count, sizeof *has);
    assert_non_null(has);
    for (size_t i = list->forward_end; i < list->count; i++) {
        const nib_training_node *node = &list->nodes[i];
        const int64_t weights = node->of == NULL                        ? 1
                                : node->of->op == NIB_OP_LINEAR_EXPERTS ? node->of->routing->experts
                                : node->of->op == NIB_OP_LINEAR_HEADS   ? node->of->heads
                                                                        : 1;
        if (node->op != NIB_OP_LINEAR_DW && node->op != NIB_OP_NORM_DW &&
            node->op != NIB_OP_EMBED_DW && node->op != NIB_OP_SINKS_DW &&
            node->op != NIB_OP_ROUTE_DW && node->op != NIB_OP_SHORT_CONV_DW &&
            node->op != NIB_OP_BIAS_DW)
            continue;
        for (int64_t e = 0; e < weights; e++) {
            const int64_t weight = node->weight + (e > 0 ? e * node->of->weight_step : 0);
            assert_false(has[weight]);
            has[weight] = true;
            count++;
        }
    }
    for (size_t i = 0; i < g->node_count; i++)
        count += g->nodes[i].weight != NIB_NO_ID &&
                 (g->nodes[i].op == NIB_OP_SCALE ||
                  (g->nodes[i].op == NIB_OP_ROUTE && !g->nodes[i].routing->weight_scales));
    assert_int_equal(count, g->weight_count);
}

/* Gradients read only forward values that the policy keeps: with selective checkpointing no outputs
 * of norms or activations of decoder layers, with full checkpointing only the layers' inputs. */
static void expect_kept(const nib_training *list, nib_ac checkpointing)
{
    for (size_t i = list->forward_end; i < list->count; i++)
        for (int j = 0; j < NIB_TRAINING_INPUTS; j++)
            for (size_t w = 0; w < list->forward_end; w++) {
                const nib_training_node *from = &list->nodes[w];
                const bool is_read =
                    list->nodes[i].in[j] >= 0 &&
                    (from->out[0] == list->nodes[i].in[j] || from->out[1] == list->nodes[i].in[j]);
                if (!is_read || from->layer < 0)
                    continue;
                if (checkpointing == NIB_AC_SELECTIVE)
                    assert_true(from->op != NIB_OP_NORM && from->op != NIB_OP_SWIGLU &&
                                from->op != NIB_OP_DISPATCH && from->op != NIB_OP_GATHER);
                if (checkpointing == NIB_AC_FULL) /* the residual, input of the next layer */
                    assert_true(from->op == NIB_OP_ADD ||
                                (from->op == NIB_OP_SCALE && from->weight != NIB_NO_ID));
            }
}

static void test_training(void **state)
{
    (void)state;
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_graph g = graph_of((nib_arch)i);
        for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++) {
            const nib_training list = training_of((nib_arch)i, (nib_ac)ac);
            expect_written_once(&list);
            expect_gradients(&list, &g);
            expect_kept(&list, (nib_ac)ac);
        }
    }
}

/* Layers with a state: each operation that reads other tokens ends a segment. */
static void test_training_states(void **state)
{
    (void)state;
    const nib_graph graphs[] = {convolving_graph(), delta_graph(), mamba_graph()};
    for (size_t i = 0; i < 3 * COUNT(graphs); i++) {
        const nib_graph *g = &graphs[i / 3];
        const nib_training list = training_for(g, (nib_ac)(i % 3));
        expect_written_once(&list);
        expect_gradients(&list, g);
        expect_kept(&list, (nib_ac)(i % 3));
    }
}

static void test_training_latent(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        const nib_graph g = latent_graph(i % 2 != 0);
        const nib_training list = training_for(&g, (nib_ac)(i / 2));
        expect_written_once(&list);
        expect_gradients(&list, &g);
        expect_kept(&list, (nib_ac)(i / 2));
    }
}

/* Names of operations i to end, separated by spaces. */
static const char *say_list(char out[2048], const nib_training *list, size_t i, size_t end)
{
    size_t used = 0;
    for (; i < end; i++)
        used += (size_t)snprintf(out + used, 2048 - used, "%s ", nib__op_names[list->nodes[i].op]);
    out[used - 1] = '\0';
    return out;
}

/* The operations of a layer in order: sums of gradients (q, k, v; gate, up) follow their terms, and
 * those that sum over tokens come after many that do not. */
static void test_training_order(void **state)
{
    static const char forward[] = "embed norm linear linear linear rope rope copy "
                                  "cast_t cast_t cast_t attn linear add norm linear linear swiglu "
                                  "linear add cast_t cast_t cast_t cast_t ",
                      mlp[] = "linear_dx swiglu_dx linear_dx linear_dx add norm_dx linear_dx "
                              "linear_dw linear_dw linear_dw norm_dw linear_dw ",
                      attention[] = "attn_dx rope rope linear_dx linear_dx add linear_dx add "
                                    "norm_dx linear_dw linear_dw linear_dw norm_dw";
    (void)state;
    char list[2048], wanted[2048];
    const nib_training none = training_of(NIB_ARCH_LLAMA, NIB_AC_NONE);
    assert_memory_equal(say_list(list, &none, 0, none.forward_end), forward, strlen(forward));
    size_t first = none.count;
    while (none.nodes[first - 1].layer != 0) /* skip the embedding's gradient */
        first--;
    for (size_t end = first; none.nodes[first - 1].layer == 0; first--)
        say_list(list, &none, first - 1, end);
    snprintf(wanted, sizeof wanted, "%s%s", mlp, attention);
    assert_string_equal(list, wanted);
}

/* Each family has a complete row and a unique name. */
static void test_family_names_are_unique(void **state)
{
    (void)state;
    for (size_t i = 0; nib__family_at(i) != NULL; i++) {
        const nib_family_row *row = nib__family_at(i);
        assert_true(row->name && row->class_name && row->title && row->build);
        assert_string_equal(nib__arch_name((nib_arch)i), row->name);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(nib__family_at(j)->name, row->name);
    }
}

/* A wide norm is not in place: a fused quantizer reads every input row twice. */
static void test_wide_norms_are_not_in_place(void **state)
{
    (void)state;
    const nib_graph g = graph_of(NIB_ARCH_QWEN3);
    nib_graph_buffers b;
    assert_int_equal(nib__graph_buffers(&b, &g, &arena, NULL), NIB_OK);
    size_t wide = 0, heads = 0;
    for (size_t i = 0; i < g.node_count; i++) {
        const nib_graph_node *node = &g.nodes[i];
        if (node->op != NIB_OP_NORM)
            continue;
        const bool in_place = b.of[node->out] == b.of[node->in[0]];
        assert_int_equal(in_place, node->heads > 1);
        wide += node->heads == 1, heads += node->heads > 1;
    }
    assert_int_equal(wide, 5);
    assert_int_equal(heads, 4);
}

/* An operation that works only in place is refused if its input is read again. */
static void test_refuses_to_overwrite_a_live_value(void **state)
{
    nib_build b;
    nib_graph g;
    nib_graph_buffers buffers;
    nib_err err;
    (void)state;
    nib__build_begin(&b, &arena, &plain);
    const int x = nib__emit_embed(
        &b, nib__build_matrix(&b, NIB_ROLE_EMBED, -1, "model.embed_tokens", 100, 64, false));
    const int turned = nib__emit_rope(&b, x, 4, 0, 0);
    nib__emit_add(&b, turned, x);
    assert_int_equal(nib__build_end(&g, &b, &err), NIB_OK);
    refused(NIB_FAILED, nib__graph_buffers(&buffers, &g, &arena, &err), &err);
}

/* Every allocation fails once: an error, and nothing leaks. */
static void test_no_memory(void **state)
{
    const nib_config config = config_of(NIB_ARCH_QWEN3);
    bool done = false;
    int failures = 0;
    (void)state;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_arena own;
        nib_graph g;
        nib_graph_buffers b;
        nib_training list;
        nib__arena_init(&own, &a, 0);
        nib_status status = nib__arch_build(&g, &config, &own, &a, NULL);
        if (status == NIB_OK)
            status = nib__graph_buffers(&b, &g, &own, NULL);
        if (status == NIB_OK)
            status = nib__graph_training(&list, &g, NIB_AC_FULL, &own, NULL);
        nib__arena_free(&own);
        assert_int_equal(f.live, 0);
        done = status == NIB_OK;
        failures += !done;
        assert_true(done || status == NIB_NO_MEMORY);
    }
    assert_true(failures > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_convolution),
        cmocka_unit_test(test_gated_delta),
        cmocka_unit_test(test_mamba),
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_family_names_are_unique),
        cmocka_unit_test(test_wide_norms_are_not_in_place),
        cmocka_unit_test(test_refuses_to_overwrite_a_live_value),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_training_latent),
        cmocka_unit_test(test_training_states),
        cmocka_unit_test(test_training_order),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
