/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner. Over random layers, schemes, machines and policies: every request is done or the
 * plan says why not; every substitution is by an allowed rung; every denial has reasons. Single
 * cases cover rungs, kernel bindings, layout hints, strictness, other engines and texts.
 */
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "machines.h"
#include "refused.h"
#include "skipping.h"

static const nib_scheme bf16 = {.code = NIB_CODE_BF16, .symmetric = true};

static nib_scheme scheme_of(const char *name)
{
    nib_scheme scheme;
    nib_err err = {NIB_OK, ""};
    if (nib__scheme_parse(&scheme, name, strlen(name), &err) != NIB_OK)
        fail_msg("%s", err.text);
    return scheme;
}

static nib_layer layer_of(const char *name, nib_role role, int64_t n, int64_t k, const char *scheme)
{
    return (nib_layer){.name = name,
                       .role = role,
                       .shares_input =
                           role == NIB_ROLE_K || role == NIB_ROLE_V || role == NIB_ROLE_UP,
                       .n = n,
                       .k = k,
                       .stored = bf16,
                       .asked = scheme_of(scheme),
                       .rule = "recipe",
                       .scale_type = NIB_TYPE_F32,
                       .act_scale_type = NIB_TYPE_F32};
}

static nib_strings strings_of(const char *const *items, size_t count)
{
    return (nib_strings){items, count};
}

static nib_machine this_machine(int64_t isa)
{
    nib_machine m;
    nib__machine_here(&m, isa, 2);
    return m;
}

static bool has_reason(const nib_ledger_layer *line, const char *code)
{
    for (size_t i = 0; i < line->reason_count; i++)
        if (strcmp(line->reasons[i].code, code) == 0)
            return true;
    return false;
}

/* ---- the property ---- */

/* splitmix64; the seed is fixed, so a failure repeats. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t pick(uint64_t *state, int64_t count)
{
    return (int64_t)(next_random(state) % (uint64_t)count);
}

static const char *const schemes[] = {
    "bf16",         "f32",        "f16",          "int8wo",     "int8wo-g32",   "int8wo-asym",
    "int8dq",       "int8dq-g64", "int4wo",       "int4wo-sym", "int4wo-g48",   "int4wo-tinygemm",
    "8da4w",        "8da4w-asym", "8da4w-g256",   "8da4w-row",  "8da4w-actsym", "4da4w",
    "8da4w-static", "fp8wo",      "fp8wo-tensor", "fp8dq",      "mxfp8",        "mxfp8-floor",
};

static nib_layer random_layer(uint64_t *state)
{
    static const int64_t steps[] = {1, 1, 8, 16, 32, 64, 128};
    static const nib_type scales[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16, NIB_TYPE_F64};
    const int64_t n_step = steps[pick(state, COUNT(steps))],
                  k_step = steps[pick(state, COUNT(steps))];
    nib_layer layer =
        layer_of("x", (nib_role)pick(state, NIB_ROLE_COUNT), (1 + pick(state, 20)) * n_step,
                 (1 + pick(state, 20)) * k_step, schemes[pick(state, COUNT(schemes))]);
    layer.bias = pick(state, 2) != 0;
    layer.scale_type = scales[pick(state, COUNT(scales))];
    if (pick(state, 4) == 0)
        layer.stored = layer.asked;
    if (pick(state, 4) == 0)
        layer.hint = (nib_layout_hint)pick(state, NIB_HINT_COUNT);
    return layer;
}

static void check_done(const nib_assignment *plan, size_t i, const nib_policy *policy)
{
    const nib_layer_plan *p = &plan->layers[i];
    const nib_ledger_layer *line = &plan->ledger.layers[i];
    assert_true(p->use_count > 0 && line->use_count == (size_t)p->use_count);
    const bool moved = p->rung == NIB_RUNG_DEVICE;
    const nib_machine *machine = moved ? plan->machine->host : plan->machine;
    for (int u = 0; u < p->use_count; u++) {
        const nib_use *use = &p->uses[u];
        nib_query query;
        nib__plan_query(&query, p->layer, &p->done, machine, policy, use->op, use->phase,
                        use->m_min);
        assert_true(use->kernel->peer == NULL);
        assert_true(nib__kernel_keyed(use->kernel, &query));
        assert_true(nib__kernel_holds(use->kernel, &query, !policy->declared));
        assert_true(policy->declared || nib__kernel_built(use->kernel));
        assert_int_equal(use->kernel->arithmetic, p->uses[0].kernel->arithmetic);
        const bool as_it_lies = p->done.act == NIB_ACT_FLOAT &&
                                (policy->declared || (query.fact[NIB_FACT_INPUT] == NIB_TYPE_F32 &&
                                                      p->done.zero != NIB_ZERO_FLOAT));
        assert_true(as_it_lies || use->op == NIB_OP_EMBED || use->quant != NULL);
        assert_true(use->predicted_s > 0 && isfinite(use->predicted_s));
        assert_string_equal(line->uses[u].kernel, use->kernel->name);
    }
    /* no gaps: 1, 2-16, 17 and more */
    if (!policy->training) {
        assert_int_equal(p->uses[0].m_min, 1);
        for (int u = 1; u < p->use_count; u++)
            assert_int_equal(p->uses[u].m_min, p->uses[u - 1].m_max + 1);
        assert_int_equal(p->uses[p->use_count - 1].m_max, 0);
    }
}

static void check_layer(const nib_assignment *plan, size_t i, const nib_policy *policy)
{
    const nib_layer_plan *p = &plan->layers[i];
    const nib_ledger_layer *line = &plan->ledger.layers[i];
    char name[64], expected[128];
    snprintf(expected, sizeof expected, "%s@%s", nib__scheme_name(name, &p->layer->asked),
             plan->machine->name);
    assert_string_equal(line->asked, expected);
    assert_int_equal(line->rung, p->rung);
    assert_int_equal(line->denied, p->denied);
    if (p->denied) {
        assert_int_equal(p->use_count, 0);
        assert_true(line->reason_count > 0);
        assert_int_equal(plan->denied.status, NIB_NOT_AS_ASKED);
        return;
    }
    check_done(plan, i, policy);
    const bool same = nib__scheme_equal(&p->done, &p->layer->asked);
    switch (p->rung) {
    case NIB_RUNG_NONE: assert_true(same && strcmp(line->done, line->asked) == 0); return;
    case NIB_RUNG_KERNEL: assert_true(same && strcmp(line->done, line->asked) == 0); break;
    case NIB_RUNG_DEVICE: assert_true(same && strcmp(line->done, line->asked) != 0); break;
    case NIB_RUNG_DEQUANT: assert_false(nib__scheme_is_quantized(&p->done)); break;
    case NIB_RUNG_UNQUANTIZED: assert_true(nib__scheme_equal(&p->done, &p->layer->stored)); break;
    }
    assert_false(policy->strict);
    assert_non_null(line->allowed);
    assert_true(line->reason_count > 0);
    if (p->rung == NIB_RUNG_KERNEL)
        return;
    bool allowed = false;
    for (size_t a = 0; a < policy->allow.count; a++)
        allowed = allowed || strcmp(policy->allow.items[a], nib__rung_names[p->rung]) == 0;
    assert_true(allowed);
}

/* Every quantizer that rounds to 16 bits. Some rounds leave them out, and layers that need one are
 * denied. */
static nib_strings without_rounding(void)
{
    static const char *names[64];
    size_t count = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const char *name = nib__kernel_at(i)->name;
        if (strncmp(name, "quant_f32_bf16", 14) == 0 || strncmp(name, "quant_f32_f16", 13) == 0)
            names[count++] = name;
        assert_true(count < COUNT(names));
    }
    assert_true(count > 1);
    return strings_of(names, count);
}

static void every_request_is_done_or_explained(void **state)
{
    (void)state;
    static const char *const rungs[] = {"device", "dequant", "unquantized"};
    static const int64_t isas[] = {
        0, NIB_ISA_AVX2, NIB_ISA_AVX2 | NIB_ISA_AVX512,
        NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AVX512BF16,
        NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI | NIB_ISA_AMX};
    static const nib_type dtypes[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    enum { ROUNDS = 400, LAYERS = 12 };
    uint64_t random = 20261120;
    size_t denied = 0, substituted = 0, as_asked = 0;
    for (int round = 0; round < ROUNDS; round++) {
        nib_layer layers[LAYERS];
        nib_assignment plan;
        nib_err err = {NIB_OK, ""};
        for (int i = 0; i < LAYERS; i++)
            layers[i] = random_layer(&random);
        nib_machine local = this_machine(isas[pick(&random, COUNT(isas))]);
        const int64_t which = pick(&random, 2 * (int64_t)machines.count);
        const nib_machine *machine =
            which < (int64_t)machines.count ? &machines.items[which] : &local;
        nib_policy policy = {.dtype = dtypes[pick(&random, COUNT(dtypes))],
                             .strict = pick(&random, 5) == 0,
                             .training = pick(&random, 5) == 0,
                             .m = 1 + pick(&random, 300),
                             .declared = !machine->here};
        const size_t first = (size_t)pick(&random, COUNT(rungs));
        policy.allow =
            strings_of(rungs + first, (size_t)pick(&random, (int64_t)(COUNT(rungs) - first) + 1));
        if (pick(&random, 8) == 0)
            policy.without = without_rounding();
        if (nib__plan_layers(&plan, layers, LAYERS, machine, &policy, &allocator, &err) != NIB_OK)
            fail_msg("round %d: %s", round, err.text);
        assert_int_equal(plan.ledger.layer_count, LAYERS);
        for (size_t i = 0; i < LAYERS; i++)
            check_layer(&plan, i, &policy);
        size_t d = 0, s = 0;
        for (size_t i = 0; i < LAYERS; i++) {
            d += plan.ledger.layers[i].denied;
            s += !plan.ledger.layers[i].denied && plan.ledger.layers[i].rung != NIB_RUNG_NONE;
        }
        const nib_ledger_counts counts = nib__ledger_count(&plan.ledger);
        assert_int_equal(counts.asked, counts.done + counts.substituted + counts.denied);
        assert_int_equal(counts.substituted + counts.denied + counts.embeddings, d + s);
        assert_int_equal(plan.denied.status, d == 0 ? NIB_OK : NIB_NOT_AS_ASKED);
        denied += d, substituted += s, as_asked += LAYERS - d - s;
        nib__assignment_free(&plan);
    }
    /* the sample must contain all three outcomes to prove anything */
    assert_true(denied > 50 && substituted > 50 && as_asked > 500);
}

/* ---- the reference takes every shape ---- */

static void the_cpu_reference_takes_every_shape(void **state)
{
    (void)state;
    uint64_t random = 7;
    nib_machine m = this_machine(0);
    nib_policy policy = {.dtype = NIB_TYPE_F32};
    for (int i = 0; i < 300; i++) {
        nib_layer layer = random_layer(&random);
        nib_assignment plan;
        layer.hint = NIB_HINT_NONE;
        assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
        if (plan.denied.status != NIB_OK)
            fail_msg("%s", plan.denied.text);
        assert_int_equal(plan.layers[0].rung, NIB_RUNG_NONE); /* this isa has no faster row */
        nib__assignment_free(&plan);
    }
}

/* ---- rungs ---- */

static void falling_back_to_the_reference_row_is_reported(void **state)
{
    (void)state;
    skip_without_x86_rows();
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_policy policy = {.dtype = NIB_TYPE_F32};
    nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "int4wo-g12");
    nib_assignment plan;
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    const nib_ledger_layer *line = &plan.ledger.layers[0];
    assert_int_equal(plan.layers[0].rung, NIB_RUNG_KERNEL);
    assert_true(nib__kernel_is_ref(plan.layers[0].uses[0].kernel));
    assert_true(has_reason(line, "group%8"));
    assert_string_equal(line->allowed, "by default");
    assert_true(line->advice_count > 0);
    nib__assignment_free(&plan);
    policy.strict = true;
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    nib__assignment_free(&plan);
}

/* The table's OpenCL linear rows for int4 and int8-token, to exclude with --without. */
static size_t rows_of_8da4w(const char **names, size_t most)
{
    size_t count = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (strncmp(row->name, "linear_a8t_w4g_f32__ocl", 23) == 0 && count < most)
            names[count++] = row->name;
    }
    return count;
}

static void a_denied_layer_names_the_option_that_allows_it(void **state)
{
    (void)state;
    static const char *const allow[] = {"*.up_proj=device"};
    const char *without[8];
    const nib_machine *m2 = nib__machines_find(&machines, "apple-m2");
    nib_policy policy = {.dtype = NIB_TYPE_BF16, .declared = true};
    policy.without = strings_of(without, rows_of_8da4w(without, COUNT(without)));
    nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "8da4w");
    nib_assignment plan;
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, m2, &policy, &allocator, NULL), NIB_OK);
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    assert_true(has_reason(&plan.ledger.layers[0], "offered=yes"));
    nib__assignment_free(&plan);
    policy.allow = strings_of(allow, 1);
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, m2, &policy, &allocator, NULL), NIB_OK);
    assert_int_equal(plan.denied.status, NIB_OK);
    assert_int_equal(plan.layers[0].rung, NIB_RUNG_DEVICE);
    assert_string_equal(plan.ledger.layers[0].done, "8da4w-g32@apple-m2-cpu");
    assert_string_equal(plan.ledger.layers[0].allowed, "by --allow *.up_proj=device");
    nib__assignment_free(&plan);
}

static void a_scheme_without_rows_is_reported(void **state)
{
    (void)state;
    const nib_machine *m2 = nib__machines_find(&machines, "apple-m2");
    const nib_policy policy = {.dtype = NIB_TYPE_F16, .declared = true, .training = true};
    const nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "f16");
    nib_assignment plan;
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, m2, &policy, &allocator, NULL), NIB_OK);
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    assert_true(has_reason(&plan.ledger.layers[0], "no-row"));
    nib__assignment_free(&plan);
}

static void a_layout_hint_reports_the_peers_conditions(void **state)
{
    (void)state;
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_policy policy = {.dtype = NIB_TYPE_BF16};
    nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "8da4w");
    nib_assignment plan;
    layer.hint = NIB_HINT_CUTLASS_INT4;
    layer.hint_text = "CutlassInt4PackedLayout";
    layer.act_scale_type = NIB_TYPE_F64;
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    const nib_ledger_layer *line = &plan.ledger.layers[0];
    assert_int_equal(line->rung, NIB_RUNG_KERNEL);
    assert_true(has_reason(line, "layout") && has_reason(line, "act_scale_type=f32"));
    assert_true(has_reason(line, "group=row") && has_reason(line, "maker=nvidia"));
    nib__assignment_free(&plan);
}

/* ---- --kernel ---- */

static void a_bound_kernel_runs_or_its_reasons_are_given(void **state)
{
    (void)state;
    static const char *const good[] = {"linear_f32_w4g_f32__ref"};
    static const char *const wrong[] = {"*.up_proj=linear_a8t_w4g_f32__ref"};
    static const char *const isa[] = {"linear_f32_w4g_f32__avx512_12x32"};
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_policy policy = {.dtype = NIB_TYPE_F32, .kernel = strings_of(good, 1)};
    nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "int4wo");
    nib_assignment plan;
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    assert_int_equal(plan.layers[0].rung, NIB_RUNG_NONE); /* bound by name */
    for (int u = 0; u < plan.layers[0].use_count; u++)
        assert_string_equal(plan.layers[0].uses[u].kernel->name, good[0]);
    nib__assignment_free(&plan);
    policy.kernel = strings_of(wrong, 1);
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    assert_int_equal(plan.denied.status, NIB_NOT_AS_ASKED);
    assert_true(has_reason(&plan.ledger.layers[0], "act=int8-token"));
    nib__assignment_free(&plan);
    policy.kernel = strings_of(isa, 1);
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    assert_int_equal(plan.denied.status, NIB_NOT_AS_ASKED);
    assert_true(has_reason(&plan.ledger.layers[0], "isa+avx512"));
    nib__assignment_free(&plan);
}

/* Options that an earlier one shadows completely, or that match no layer's product. */
static void an_option_without_effect_is_an_error(void **state)
{
    (void)state;
    static const char *const late[] = {"linear_f32_w4g_f32__ref",
                                       "*.up_proj=linear_f32_w4g_f32__avx2_6x16"},
                             *const early[] = {"a.up_proj=linear_f32_w4g_f32__ref",
                                               "linear_f32_w4g_f32__ref"},
                             *const embed[] = {"embed_f32__ref"};
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_layer layers[] = {layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "int4wo"),
                          layer_of("a.down_proj", NIB_ROLE_DOWN, 64, 96, "int4wo")};
    nib_policy policy = {.dtype = NIB_TYPE_F32, .kernel = strings_of(late, 2)};
    nib_assignment plan;
    nib_err err = {NIB_OK, ""};
    refused(NIB_USAGE, nib__plan_layers(&plan, layers, 2, &m, &policy, &allocator, &err), &err);
    policy.kernel = strings_of(embed, 1);
    refused(NIB_USAGE, nib__plan_layers(&plan, layers, 2, &m, &policy, &allocator, &err), &err);
    policy.kernel = strings_of(early, 2);
    assert_int_equal(nib__plan_layers(&plan, layers, 2, &m, &policy, &allocator, &err), NIB_OK);
    nib__assignment_free(&plan);
}

/* Options accept each name of a layer, as recipes do. */
static void options_take_every_spelling(void **state)
{
    (void)state;
    static const char *const kernel[] = {"layers.3.feed_forward.w3=linear_f32_w4g_f32__ref"};
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_layer layer = layer_of("model.layers.3.mlp.up_proj", NIB_ROLE_UP, 64, 96, "int4wo");
    nib_policy policy = {.dtype = NIB_TYPE_F32,
                         .kernel = strings_of(kernel, 1),
                         .detail = "model.layers.3.mlp.up_proj.weight"};
    nib_assignment plan;
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    assert_string_equal(plan.layers[0].uses[0].kernel->name, "linear_f32_w4g_f32__ref");
    assert_true(plan.ledger.layers[0].detailed);
    nib__assignment_free(&plan);
}

/* ---- quantized weights are not quantized again ---- */

static void a_plan_denies_what_a_run_cannot_do(void **state)
{
    (void)state;
    static const char *const dequant[] = {"dequant"};
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_policy policy = {.dtype = NIB_TYPE_F32, .detail = "*"};
    nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "int8wo");
    nib_assignment plan;
    nib_text text;
    layer.stored = scheme_of("8da4w");
    nib__text_init(&text, &allocator);
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    assert_int_equal(plan.denied.status, NIB_NOT_AS_ASKED);
    assert_true(has_reason(&plan.ledger.layers[0], "stored"));
    for (size_t i = 0; i < plan.ledger.layers[0].advice_count; i++)
        assert_string_not_equal(plan.ledger.layers[0].advice[i].code, "recipe");
    nib__plan_render(&plan, &policy, &text);
    assert_non_null(strstr(text.at, "the weight is stored as 8da4w-g32"));
    nib__assignment_free(&plan);
    policy.allow = strings_of(dequant, 1);
    assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
    assert_int_equal(plan.layers[0].rung, NIB_RUNG_DEQUANT);
    nib__assignment_free(&plan);
    nib__text_free(&text);
}

/* ---- advice ---- */

/* Every advised recipe parses. */
static void advised_recipes_parse(void **state)
{
    (void)state;
    static const char start[] = "--recipe ";
    nib_machine m = this_machine(NIB_ISA_AVX2 | NIB_ISA_AVX512 | NIB_ISA_AVX512VNNI);
    size_t seen = 0;
    for (size_t i = 0; i < COUNT(schemes); i++) {
        nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 65, 97, schemes[i]);
        nib_policy policy = {.dtype = NIB_TYPE_F32};
        nib_assignment plan;
        if (nib__scheme_is_quantized(&layer.asked) && layer.asked.group > 0)
            layer.asked.group = 7;
        assert_int_equal(nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, NULL), NIB_OK);
        for (size_t a = 0; a < plan.ledger.layers[0].advice_count; a++) {
            const nib_ledger_advice *advice = &plan.ledger.layers[0].advice[a];
            if (strcmp(advice->code, "recipe") != 0)
                continue;
            assert_memory_equal(advice->option, start, sizeof start - 1);
            (void)scheme_of(advice->option + sizeof start - 1);
            seen++;
        }
        nib__assignment_free(&plan);
    }
    assert_true(seen > 10);
}

/* ---- options that mean nothing ---- */

typedef struct bad_option {
    const char *option, *text;
} bad_option;

static const bad_option bad_options[] = {
    {"allow", "everything"},
    {"allow", "*.down_proj=device"},
    {"allow", "=device"},
    {"allow", "a.up_prj=device"},
    {"kernel", "linear_f32_w4g_f32__avx51_12x32"},
    {"kernel", "torchao-0.10.cutlass_s8s4"}, /* a peer's, which never runs */
    {"place", "moon"},
    {"engine", "tensorrt"},
    {"layer", "b.*"},
};

static void options_that_mean_nothing_are_errors(void **state)
{
    (void)state;
    nib_machine m = this_machine(0);
    nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "int4wo");
    for (size_t i = 0; i < COUNT(bad_options); i++) {
        const bad_option *bad = &bad_options[i];
        nib_policy policy = {.dtype = NIB_TYPE_F32};
        nib_assignment plan;
        nib_err err = {NIB_OK, ""};
        const nib_strings one = strings_of(&bad->text, 1);
        if (strcmp(bad->option, "allow") == 0)
            policy.allow = one;
        else if (strcmp(bad->option, "kernel") == 0)
            policy.kernel = one;
        else if (strcmp(bad->option, "place") == 0)
            policy.place = one;
        else if (strcmp(bad->option, "engine") == 0)
            policy.engine = bad->text;
        else
            policy.detail = bad->text;
        refused(NIB_USAGE, nib__plan_layers(&plan, &layer, 1, &m, &policy, &allocator, &err), &err);
    }
}

/* ---- founding case 5: the debug model's output layer under MXFP8 ---- */

static const nib_candidate *candidate_of(const nib_ledger_layer *line, const char *kernel)
{
    for (size_t i = 0; i < line->candidate_count; i++)
        if (strcmp(line->candidates[i].kernel, kernel) == 0)
            return &line->candidates[i];
    return NULL;
}

static void the_peer_fails_as_it_did_in_practice(void **state)
{
    (void)state;
    nib_layer layers[] = {layer_of("layers.0.attention.wq", NIB_ROLE_Q, 256, 256, "mxfp8"),
                          layer_of("output", NIB_ROLE_HEAD, 2256, 256, "mxfp8")};
    nib_policy policy = {.dtype = NIB_TYPE_BF16,
                         .training = true,
                         .m = 16384,
                         .declared = true,
                         .engine = "torchtitan"};
    nib_assignment plan;
    assert_int_equal(nib__plan_layers(&plan, layers, 2, nib__machines_find(&machines, "b200"),
                                      &policy, &allocator, NULL),
                     NIB_OK);
    assert_int_equal(plan.denied.status, NIB_OK); /* Nibble's rows have no such condition */
    const nib_ledger_layer *wq = &plan.ledger.layers[0], *output = &plan.ledger.layers[1];
    for (size_t i = 0; i < wq->candidate_count; i++)
        assert_int_equal(wq->candidates[i].verdict, NIB_VERDICT_RUNS);
    assert_int_equal(candidate_of(output, "torchtitan.mx_filter")->verdict, NIB_VERDICT_RUNS);
    const nib_candidate *cast = candidate_of(output, "torchao.to_mxfp8_dim1_of_weight");
    assert_int_equal(cast->verdict, NIB_VERDICT_NO);
    assert_int_equal(cast->reason_count, 1);
    assert_string_equal(cast->reasons[0].code, "n%128");
    assert_non_null(strstr(cast->reasons[0].text, "2256, not a multiple of 128 (next: 2304)"));
    assert_non_null(strstr(cast->consequence, "unsupported"));
    nib__assignment_free(&plan);
    if (!X86_ROWS)
        return;
    /* here, on a CPU, all three products are built */
    nib_machine m = this_machine(NIB_ISA_AVX2);
    policy.declared = false;
    assert_int_equal(nib__plan_layers(&plan, layers, 2, &m, &policy, &allocator, NULL), NIB_OK);
    assert_int_equal(plan.denied.status, NIB_OK);
    static const char *const products[] = {"linear_mx8_mx8_f32__avx2_6x16",
                                           "linear_dx_mx8_mx8_f32__avx2_6x16",
                                           "linear_dw_mx8_mx8_f32__avx2_6x16"};
    assert_int_equal(plan.ledger.layers[1].use_count, COUNT(products));
    for (size_t i = 0; i < COUNT(products); i++)
        assert_string_equal(plan.ledger.layers[1].uses[i].kernel, products[i]);
    nib__assignment_free(&plan);
}

/* ---- words ---- */

static void plans_print_as_text_and_json(void **state)
{
    (void)state;
    nib_layer layers[4];
    char names[4][32];
    nib_policy policies[] = {{.dtype = NIB_TYPE_F32},
                             {.dtype = NIB_TYPE_F32, .engine = "torchao"},
                             {.dtype = NIB_TYPE_F32, .engine = "torchao", .detail = "layers.1.*"}};
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_text text;
    nib__text_init(&text, &allocator);
    for (int i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "layers.%d.mlp.up_proj", i);
        layers[i] = layer_of(names[i], NIB_ROLE_UP, 608, 224, "8da4w-g64");
    }
    for (size_t p = 0; p < COUNT(policies); p++) {
        nib_assignment plan;
        assert_int_equal(nib__plan_layers(&plan, layers, 4, &m, &policies[p], &allocator, NULL),
                         NIB_OK);
        nib__text_clear(&text);
        if (policies[p].detail != NULL) {
            assert_true(plan.ledger.layers[1].use_count > 0);
            plan.ledger.layers[1].uses[0].tuned_us = 250;
        }
        nib__plan_render(&plan, &policies[p], &text);
        assert_false(text.failed);
        if (policies[p].detail != NULL)
            assert_non_null(strstr(text.at, " (tuned: 250 us)"));
        for (const char *line = text.at; *line != 0; line = strchr(line, '\n') + 1)
            if (policies[p].detail == NULL && strcspn(line, "\n") > 100)
                fail_msg("%.200s", line);
        assert_non_null(strstr(text.at, policies[p].detail != NULL ? "layers.1.mlp.up_proj"
                                                                   : "layers.*.mlp.up_proj"));
        if (policies[p].engine != NULL && policies[p].detail == NULL)
            assert_non_null(strstr(text.at, "      4  layers.*.mlp.up_proj  608x224\n"));
        if (policies[p].engine != NULL)
            assert_non_null(
                strstr(text.at, "the group size 64 does not divide the input width k 224"));
        nib__assignment_free(&plan);
    }
    nib__text_free(&text);
}

static void out_of_memory_is_reported(void **state);

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_is_done_or_explained),
        cmocka_unit_test(the_cpu_reference_takes_every_shape),
        cmocka_unit_test(falling_back_to_the_reference_row_is_reported),
        cmocka_unit_test(a_denied_layer_names_the_option_that_allows_it),
        cmocka_unit_test(a_scheme_without_rows_is_reported),
        cmocka_unit_test(a_layout_hint_reports_the_peers_conditions),
        cmocka_unit_test(a_bound_kernel_runs_or_its_reasons_are_given),
        cmocka_unit_test(an_option_without_effect_is_an_error),
        cmocka_unit_test(options_take_every_spelling),
        cmocka_unit_test(a_plan_denies_what_a_run_cannot_do),
        cmocka_unit_test(advised_recipes_parse),
        cmocka_unit_test(options_that_mean_nothing_are_errors),
        cmocka_unit_test(the_peer_fails_as_it_did_in_practice),
        cmocka_unit_test(plans_print_as_text_and_json),
        cmocka_unit_test(out_of_memory_is_reported),
    };
    return RUN_WITH_MACHINES(tests);
}

/* ---- memory ---- */

static void *failing_resize(void *ctx, void *old, size_t size)
{
    int *left = ctx;
    if (size == 0)
        return allocator.resize(allocator.ctx, old, 0);
    return --*left < 0 ? NULL : allocator.resize(allocator.ctx, old, size);
}

static void out_of_memory_is_reported(void **state)
{
    (void)state;
    static const char *const allow[] = {"*.up_proj=dequant"};
    nib_layer layer = layer_of("a.up_proj", NIB_ROLE_UP, 64, 96, "8da4w-g7");
    nib_machine m = this_machine(NIB_ISA_AVX2);
    nib_policy policy = {
        .dtype = NIB_TYPE_F32, .allow = strings_of(allow, 1), .engine = "torchao", .detail = "*"};
    bool worked = false;
    for (int n = 0; n < 2000 && !worked; n++) {
        int left = n;
        const nib_allocator failing = {failing_resize, &left};
        nib_assignment plan;
        nib_err err = {NIB_OK, ""};
        const nib_status status = nib__plan_layers(&plan, &layer, 1, &m, &policy, &failing, &err);
        worked = status == NIB_OK;
        if (worked)
            nib__assignment_free(&plan);
        else
            assert_int_equal(status, NIB_NO_MEMORY);
    }
    assert_true(worked);
}
