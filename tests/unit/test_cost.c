/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan's predictions: from published or measured rates, and from timed kernels. A shared input is
 * quantized once, and only one token of a prompt computes logits. If quantizing is slower, the plan
 * says at which batch size and names a faster recipe. Machines are data here: nothing is timed.
 */
#include "graphs.h"
#include "variant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "skipping.h"

static nib_allocator allocator;

enum { K = 4096, SITES = 9 };

static const nib_scheme bf16 = {.code = NIB_CODE_BF16, .symmetric = true};
static nib_policy infer = {.dtype = NIB_TYPE_BF16};

static nib_scheme scheme_of(const char *name)
{
    nib_scheme scheme;
    assert_int_equal(nib__scheme_parse(&scheme, name, strlen(name), NULL), NIB_OK);
    return scheme;
}

static nib_layer layer_of(nib_role role, int64_t n, const char *recipe)
{
    return (nib_layer){.name = nib__role_name(role),
                       .role = role,
                       .shares_input =
                           role == NIB_ROLE_K || role == NIB_ROLE_V || role == NIB_ROLE_UP,
                       .n = n,
                       .k = K,
                       .stored = bf16,
                       .asked = scheme_of(recipe),
                       .rule = "recipe",
                       .scale_type = NIB_TYPE_BF16,
                       .act_scale_type = NIB_TYPE_F32};
}

/* A model of one decoder layer. */
static void make_layers(nib_layer layers[SITES], const char *recipe)
{
    static const nib_role roles[SITES] = {NIB_ROLE_EMBED, NIB_ROLE_Q,    NIB_ROLE_K,
                                          NIB_ROLE_V,     NIB_ROLE_O,    NIB_ROLE_GATE,
                                          NIB_ROLE_UP,    NIB_ROLE_DOWN, NIB_ROLE_HEAD};
    for (size_t i = 0; i < SITES; i++)
        layers[i] = layer_of(roles[i], K, roles[i] == NIB_ROLE_EMBED ? "bf16" : recipe);
}

static nib_machine here(void)
{
    nib_machine m;
    nib__machine_here(&m, nib__cpu_isa(), 1);
    return m;
}

static nib_variant way_of(const nib_layer *layer, const nib_machine *m)
{
    nib_variant way;
    nib__variant_find(&way, layer, &layer->asked, m, &infer, NULL);
    assert_true(way.runs);
    return way;
}

/* Adds timings of a scheme's products: seconds per weight at each of nib__points. */
static void add_product(nib_machine *m, const char *recipe, double one, double many)
{
    const nib_layer layer = layer_of(NIB_ROLE_O, K, recipe);
    const nib_variant way = way_of(&layer, m);
    const double bytes = (double)nib__row_bytes(way.uses[0].kernel, &layer, &layer.asked);
    nib_measured p = {.code = layer.asked.code,
                      .act = layer.asked.act,
                      .memory_s = one,
                      .weight_bytes = bytes / ((double)K * K)};
    for (int i = 0; i < NIB_POINTS; i++)
        p.at[i] = (nib_point){
            .row = nib__variant_use(&way, nib__points[i])->kernel,
            .size_count = 1,
            .outputs = {K},
            .k_s = {K * (i == 0 ? one / 4 : many * (double)nib__points[i])},
            .quant_s = 1e-12,
        };
    m->products[m->product_count++] = p;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6 * fabs(b)))
        fail_msg("%g is not %g", a, b);
}

static double seconds(const nib_layer *layer, const nib_machine *m, double weights, int64_t tokens)
{
    const nib_policy policy = {.dtype = NIB_TYPE_BF16, .weights = weights};
    const nib_variant way = way_of(layer, m);
    return nib__variant_seconds(&way, layer, &policy, tokens);
}

/* ---- from timed kernels ---- */

static void timings_override_rates(void **state)
{
    (void)state;
    const double weights = (double)K * K;
    const nib_layer layer = layer_of(NIB_ROLE_O, K, "8da4w"),
                    small = layer_of(NIB_ROLE_O, 64, "8da4w"),
                    other = layer_of(NIB_ROLE_O, K, "int8dq");
    nib_machine m = here();
    const double by_rates = seconds(&other, &m, 0, 1);
    add_product(&m, "8da4w", 4e-11, 1e-12);
    const double input = K * 1e-12 + m.launch_s;
    assert_near(seconds(&layer, &m, 0, 1), weights * 4e-11 + m.launch_s + input);
    assert_near(seconds(&small, &m, 0, 1), 64.0 * K * 4e-11 + m.launch_s + input);
    /* few tokens lie on one line, many on another and beyond it; the bytes set a minimum */
    assert_near(seconds(&layer, &m, 0, 64), weights * 64e-12 + m.launch_s + 63 * K * 1e-12 + input);
    assert_near(seconds(&layer, &m, 0, 512),
                weights * 512e-12 + m.launch_s + 511 * K * 1e-12 + input);
    assert_near(seconds(&layer, &m, 0, 2), weights * 4e-11 + m.launch_s + K * 1e-12 + input);
    /* a scheme without timings uses rates */
    assert_near(seconds(&other, &m, 0, 1), by_rates);
    /* and so does another row: timings belong to the named row */
    m.products[0].at[0].row = nib__kernel_find("linear_a8t_w4g_f32__ref");
    assert_true(nib__kernel_is_ref(way_of(&layer, &m).uses[0].kernel) ||
                seconds(&layer, &m, 0, 1) != weights * 4e-11 + m.launch_s + input);
    /* for up to 16 tokens, the row of the second point */
    const double timed = seconds(&layer, &m, 0, 8);
    m.products[0].at[1].row = m.products[0].at[0].row;
    assert_true(nib__kernel_is_ref(way_of(&layer, &m).uses[0].kernel) ||
                seconds(&layer, &m, 0, 8) != timed);
}

/* Loops of multiplications alone measure the peak of a unit, which products of many tokens do not
 * reach. */
static void untimed_products_do_not_reach_the_peak(void **state)
{
    (void)state;
    const nib_layer layer = layer_of(NIB_ROLE_O, K, "bf16");
    nib_machine m = here();
    m.bytes_per_s = 1e18;
    m.launch_s = 0;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        m.rate[unit] = 1e9;
    const double one = 2.0 * K * K / 1e9;
    m.measured = false; /* low guesses */
    const double many = seconds(&layer, &m, 0, 512), token = seconds(&layer, &m, 0, 1);
    m.measured = true;
    assert_near(seconds(&layer, &m, 0, 512) - many, 512 * one * (1 / 0.6 - 1));
    assert_near(seconds(&layer, &m, 0, 1), token);
    add_product(&m, "8da4w", 4e-11, 1e-12); /* now the rates are those of products */
    assert_near(seconds(&layer, &m, 0, 512), many);
}

/* Where int8's rate is that of a matrix unit, rows without it are not chosen for it: groups of 16
 * do not fill its tiles. */
static void a_matrix_unit_lends_no_rate(void **state)
{
    (void)state;
    const int64_t isa = NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AMX;
    const int64_t groups[] = {16, 32};
    static const char *const rows[] = {"linear_a8b256_w8g_f32__avx512vnni_6x32",
                                       "linear_a8b256_w8g_f32__amx_16x32"};
    nib_machine m;
    skip_without_x86_rows();
    nib__machine_here(&m, isa, 1);
    m.measured = true;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        m.rate[unit] = unit == NIB_UNIT_I8 ? 1e13 : 1e12;
    for (size_t i = 0; i < COUNT(groups); i++) {
        nib_layer layer = layer_of(NIB_ROLE_O, K, "int8wo");
        layer.asked = (nib_scheme){
            .code = NIB_CODE_I8, .act = NIB_ACT_I8_BLOCK256, .group = groups[i], .symmetric = true};
        const nib_variant way = way_of(&layer, &m);
        assert_string_equal(nib__variant_use(&way, 512)->kernel->name, rows[i]);
    }
}

/* A product with few outputs does not fill a device, and one with many may be compiled differently:
 * timings of several sizes hold for each, and sizes in between are interpolated. */
static void times_are_interpolated_between_sizes(void **state)
{
    (void)state;
    static const struct {
        int64_t n;
        double k_s;
    } cases[] = {{256, 1e-9},   {640, 2.5e-9}, {1024, 4e-9},
                 {2048, 12e-9}, {4096, 28e-9}, {8192, 56e-9}};
    nib_machine m = here();
    add_product(&m, "8da4w", 4e-11, 1e-12);
    nib_point *one = &m.products[0].at[0];
    m.products[0].memory_s = 1e-13;
    one->size_count = 3;
    one->outputs[0] = 256, one->outputs[1] = 1024, one->outputs[2] = 4096;
    one->k_s[0] = 1e-9, one->k_s[1] = 4e-9, one->k_s[2] = 28e-9;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const nib_layer layer = layer_of(NIB_ROLE_O, cases[i].n, "8da4w");
        assert_near(seconds(&layer, &m, 0, 1), K * (cases[i].k_s + 1e-12) + 2 * m.launch_s);
    }
    /* below the smallest: at least its share, and no less than the line to the next size */
    const nib_layer tiny = layer_of(NIB_ROLE_O, 64, "8da4w");
    assert_near(seconds(&tiny, &m, 0, 1), K * (1e-9 / 4 + 1e-12) + 2 * m.launch_s);
    one->k_s[0] = 2e-9;
    assert_near(seconds(&tiny, &m, 0, 1), K * (1.5e-9 + 1e-12) + 2 * m.launch_s);
    /* memory-bound if the bytes take longer */
    m.products[0].memory_s = 1e-11;
    const nib_layer layer = layer_of(NIB_ROLE_O, 1024, "8da4w");
    assert_near(seconds(&layer, &m, 0, 1), K * (1024e-11 + 1e-12) + 2 * m.launch_s);
}

/* 17 tokens use the row of 64 and were timed as well; neither count fills a tile. */
static void short_prompts_use_their_own_timing(void **state)
{
    (void)state;
    const nib_layer layer = layer_of(NIB_ROLE_O, K, "int4wo");
    nib_machine m = here();
    add_product(&m, "int4wo", 4e-11, 1e-12);
    nib_point *at = m.products[0].at;
    at[2].k_s[0] = at[3].k_s[0]; /* 17 takes as long as 64: one tile */
    const double tile = K * at[3].k_s[0] + m.launch_s;
    for (int64_t tokens = 17; tokens <= 64; tokens += 47)
        assert_near(seconds(&layer, &m, 0, tokens),
                    tile + m.launch_s + (double)(tokens * K) * 1e-12);
}

static void caches_keep_small_models(void **state)
{
    (void)state;
    skip_without_x86_rows();
    const double weights = (double)K * K;
    const nib_layer layer = layer_of(NIB_ROLE_O, K, "8da4w");
    nib_machine m = here();
    m.cache_bytes_per_s = 8 * m.bytes_per_s;
    const double cold = seconds(&layer, &m, 0, 1);
    m.cache_bytes = 1e9;
    const double bytes = seconds(&layer, &m, weights, 1),
                 half = seconds(&layer, &m, 128 * weights, 1);
    assert_near(seconds(&layer, &m, 1e12, 1), cold);
    assert_true(bytes < half && half < cold);
    /* the same with timed kernels: in the caches a quarter */
    add_product(&m, "8da4w", 4e-11, 1e-12);
    const double launches = 2 * m.launch_s + K * 1e-12;
    assert_near(seconds(&layer, &m, weights, 1), weights * 1e-11 + launches);
    assert_near(seconds(&layer, &m, 1e12, 1), weights * 4e-11 + launches);
}

static void bytes_depend_on_the_group_size(void **state)
{
    (void)state;
    const nib_layer small = layer_of(NIB_ROLE_O, K, "8da4w"),
                    large = layer_of(NIB_ROLE_O, K, "8da4w-g256");
    nib_machine m = here();
    add_product(&m, "8da4w", 4e-11, 1e-15);
    assert_true(seconds(&large, &m, 0, 1) < 0.95 * seconds(&small, &m, 0, 1));
}

/* ---- the plan ---- */

static void plan_of(nib_assignment *plan, nib_layer layers[SITES], const nib_machine *m,
                    const char *recipe)
{
    make_layers(layers, recipe);
    assert_int_equal(nib__plan_layers(plan, layers, SITES, m, &infer, &allocator, NULL), NIB_OK);
    assert_int_equal(plan->denied.status, NIB_OK);
}

static void shared_inputs_are_quantized_once(void **state)
{
    (void)state;
    const nib_machine m = here();
    nib_layer layers[SITES];
    nib_assignment plan;
    plan_of(&plan, layers, &m, "8da4w");
    const nib_layer_plan *l = plan.layers;
    const double product = l[2].uses[0].predicted_s, quant = l[1].uses[0].predicted_s - product;
    assert_true(quant > 0);
    assert_near(l[3].uses[0].predicted_s, product);            /* v, after q and k */
    assert_near(l[4].uses[0].predicted_s, product + quant);    /* o */
    assert_near(l[6].uses[0].predicted_s, product);            /* up, after gate */
    assert_near(plan.linear_token_s, 8 * product + 5 * quant); /* q, o, gate, down, head */
    nib__assignment_free(&plan);
    /* k runs in another scheme, so v quantizes the input again */
    make_layers(layers, "8da4w");
    layers[2].asked = bf16;
    assert_int_equal(nib__plan_layers(&plan, layers, SITES, &m, &infer, &allocator, NULL), NIB_OK);
    assert_near(plan.layers[3].uses[0].predicted_s, product + quant);
    assert_true(plan.layers[3].own_input && !plan.layers[6].own_input);
    nib__assignment_free(&plan);
}

static void a_prompt_computes_logits_once(void **state)
{
    (void)state;
    nib_machine m = here();
    nib_layer layers[SITES];
    nib_assignment plan;
    add_product(&m, "8da4w", 4e-11, 1e-12);
    plan_of(&plan, layers, &m, "8da4w");
    const double quant = NIB_PREFILL_TOKENS * K * 1e-12 + m.launch_s;
    const double one = (double)K * K * 4e-11 + K * 1e-12 + 2 * m.launch_s;
    assert_near(plan.linear_prefill_s,
                7 * ((double)K * K * NIB_PREFILL_TOKENS * 1e-12 + m.launch_s) + 4 * quant + one);
    /* a step does more than products, and more still with more positions */
    const double token = nib__plan_step_seconds(&plan, &infer, 1, 1, 1),
                 late = nib__plan_step_seconds(&plan, &infer, 1, 1, 100000),
                 prompt = nib__plan_step_seconds(&plan, &infer, NIB_PREFILL_TOKENS, 1, 256);
    assert_true(token > plan.linear_token_s && late > 1.2 * token);
    assert_true(prompt > plan.linear_prefill_s);
    /* the plan predicts whole steps, including sampling */
    assert_near(plan.predicted_prefill_s, prompt);
    assert_near(plan.predicted_token_s,
                nib__plan_step_seconds(&plan, &infer, 1, 1, NIB_PREFILL_TOKENS) + plan.draw.draw_s);
    assert_true(plan.draw.draw_s > 0 && plan.draw.move_s == 0 && plan.draw.bytes == 0);
    nib__assignment_free(&plan);
}

/* ---- slower than bf16 ---- */

static const char *note_of(const nib_assignment *plan, const char *words)
{
    for (size_t i = 0; i < plan->ledger.note_count; i++)
        if (strcmp(plan->ledger.notes[i].code, "slower-than-bf16") == 0 &&
            strstr(plan->ledger.notes[i].text, words) != NULL)
            return plan->ledger.notes[i].text;
    return "";
}

static void assert_says(const nib_assignment *plan, const char *batch, const char *words)
{
    if (strstr(note_of(plan, batch), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", note_of(plan, batch), words);
}

/* On this machine bf16 is fast in prompts and int8dq faster; int4wo is fast for one token. */
static void notes_name_the_fastest_recipe_per_batch(void **state)
{
    (void)state;
    static const char *const others[] = {"8da4w", "int8wo", "fp8dq", "fp8wo", "mxfp8"};
    nib_machine m = here();
    nib_layer layers[SITES];
    nib_assignment plan;
    add_product(&m, "bf16", 10e-12, 4e-12);
    add_product(&m, "int4wo", 3e-12, 8e-12);
    add_product(&m, "int8dq", 12e-12, 2e-12);
    for (size_t i = 0; i < COUNT(others); i++)
        add_product(&m, others[i], 20e-12, 9e-12);
    plan_of(&plan, layers, &m, "int4wo"); /* better for one token, worse in prompts */
    assert_string_equal(note_of(&plan, "per token"), "");
    assert_says(&plan, "in a prompt of 512 tokens",
                "7 quantized layers; --recipe int8dq is fastest");
    nib__assignment_free(&plan);
    plan_of(&plan, layers, &m, "int8dq"); /* the other way round */
    assert_says(&plan, "per token", "8 quantized layers; --recipe int4wo is fastest there");
    assert_string_equal(note_of(&plan, "in a prompt"), "");
    nib__assignment_free(&plan);
    plan_of(&plan, layers, &m, "fp8wo"); /* worse in both */
    assert_says(&plan, "per token", "--recipe int4wo is fastest there");
    assert_says(&plan, "in a prompt", "--recipe int8dq is fastest there");
    nib__assignment_free(&plan);
    for (int i = 0; i < m.product_count; i++) /* now bf16 is the fastest in a prompt */
        if (m.products[i].code == NIB_CODE_I8)
            for (int point = 2; point < NIB_POINTS; point++)
                m.products[i].at[point].k_s[0] *= 4;
    plan_of(&plan, layers, &m, "int4wo");
    assert_says(&plan, "in a prompt", "; bf16 is fastest there");
    nib__assignment_free(&plan);
}

/* The time that a note gives for a recipe equals the prediction of that recipe's own plan. */
static void notes_agree_with_the_faster_plan(void **state)
{
    (void)state;
    nib_machine m = here();
    nib_layer layers[SITES];
    nib_assignment plan;
    char words[96], prompt[32], token[32];
    add_product(&m, "bf16", 10e-12, 4e-12);
    add_product(&m, "fp8wo", 20e-12, 9e-12);
    add_product(&m, "int4wo", 3e-12, 8e-12);
    add_product(&m, "int8dq", 12e-12, 2e-12);
    plan_of(&plan, layers, &m, "int8dq");
    nib__format_seconds(prompt, plan.predicted_prefill_s);
    nib__assignment_free(&plan);
    plan_of(&plan, layers, &m, "int4wo");
    nib__format_seconds(token, plan.predicted_token_s);
    nib__assignment_free(&plan);
    plan_of(&plan, layers, &m, "fp8wo");
    snprintf(words, sizeof words, "--recipe int8dq is fastest there, %s", prompt);
    assert_says(&plan, "in a prompt", words);
    snprintf(words, sizeof words, "--recipe int4wo is fastest there, %s", token);
    assert_says(&plan, "per token", words);
    nib__assignment_free(&plan);
}

/* Devices are compared in the same way, from the same data. */
static void notes_hold_on_every_device(void **state)
{
    (void)state;
    nib_machine cpu = here();
    nib_machine m = {
        .name = "opencl", .title = "a device", .here = true, .measured = true, .host = &cpu};
    nib_layer layers[SITES];
    nib_assignment plan;
    m.facts.fact[NIB_FACT_DEVICE] = NIB_DEVICE_OPENCL;
    m.bytes_per_s = 100e9, m.launch_s = 5e-6, m.copy_s = 1e-5, m.copy_bytes_per_s = 1e10;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        m.rate[unit] = 1e12;
    add_product(&m, "bf16", 10e-12, 4e-12);
    add_product(&m, "int4wo", 30e-12, 2e-12);
    plan_of(&plan, layers, &m, "int4wo");
    assert_says(&plan, "per token", "8 quantized layers; --recipe ");
    assert_string_equal(note_of(&plan, "in a prompt"), "");
    nib__assignment_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timings_override_rates),
        cmocka_unit_test(untimed_products_do_not_reach_the_peak),
        cmocka_unit_test(a_matrix_unit_lends_no_rate),
        cmocka_unit_test(times_are_interpolated_between_sizes),
        cmocka_unit_test(short_prompts_use_their_own_timing),
        cmocka_unit_test(caches_keep_small_models),
        cmocka_unit_test(bytes_depend_on_the_group_size),
        cmocka_unit_test(shared_inputs_are_quantized_once),
        cmocka_unit_test(a_prompt_computes_logits_once),
        cmocka_unit_test(notes_name_the_fastest_recipe_per_batch),
        cmocka_unit_test(notes_agree_with_the_faster_plan),
        cmocka_unit_test(notes_hold_on_every_device),
    };
    nib_arena arena;
    allocator = nib__allocator_default();
    nib__arena_init(&arena, &allocator, 0);
    infer.graph = llama_graph(&arena, 1, K, K, K, K);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nib__arena_free(&arena);
    return failed;
}
