/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations without weights in a plan. Copies between a device and its host are counted and
 * priced. An operation without a row is denied with its price and option, allowed by rung and
 * pattern, and refused under --strict.
 */
#include "graphs.h"
#include "options.h"
#include "variant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "refused.h"

enum { WIDTH = 64, KV = 32, FFN = 128, VOCAB = 96, DECODERS = 2, LAYERS = 2 + 7 * DECODERS };

static nib_machine host, device;
static nib_layer layers[LAYERS];
static nib_allocator plain;
static nib_arena arena;
static const nib_graph *graph;

static int set_up(void **state)
{
    static const struct {
        nib_role role;
        int64_t n, k;
    } sites[] = {{NIB_ROLE_Q, WIDTH, WIDTH}, {NIB_ROLE_K, KV, WIDTH},     {NIB_ROLE_V, KV, WIDTH},
                 {NIB_ROLE_O, WIDTH, WIDTH}, {NIB_ROLE_GATE, FFN, WIDTH}, {NIB_ROLE_UP, FFN, WIDTH},
                 {NIB_ROLE_DOWN, WIDTH, FFN}};
    static const char *const names[LAYERS] = {
        "embed",       "0.q_proj",    "0.k_proj",    "0.v_proj", "0.o_proj", "0.gate_proj",
        "0.up_proj",   "0.down_proj", "1.q_proj",    "1.k_proj", "1.v_proj", "1.o_proj",
        "1.gate_proj", "1.up_proj",   "1.down_proj", "lm_head"};
    const nib_scheme bf16 = {.code = NIB_CODE_BF16, .symmetric = true};
    (void)state;
    nib__machine_here(&host, 0, 1);
    device = (nib_machine){.name = "opencl",
                           .title = "a device of tests",
                           .here = true,
                           .host = &host,
                           .bytes_per_s = 100e9,
                           .launch_s = 5e-6,
                           .copy_s = 10e-6,
                           .copy_bytes_per_s = 1e9};
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        device.rate[unit] = 1e12;
    device.facts.fact[NIB_FACT_DEVICE] = NIB_DEVICE_OPENCL;
    for (size_t i = 0; i < LAYERS; i++) {
        const bool is_embed = i == 0, is_head = i == LAYERS - 1;
        layers[i] = (nib_layer){.name = names[i],
                                .role = is_embed  ? NIB_ROLE_EMBED
                                        : is_head ? NIB_ROLE_HEAD
                                                  : sites[(i - 1) % 7].role,
                                .n = is_embed || is_head ? VOCAB : sites[(i - 1) % 7].n,
                                .k = is_embed || is_head ? WIDTH : sites[(i - 1) % 7].k,
                                .stored = bf16,
                                .asked = bf16};
    }
    return 0;
}

static nib_layer *layer_named(const char *name)
{
    size_t i = 0;
    while (strcmp(layers[i].name, name) != 0)
        i++;
    return &layers[i];
}

typedef struct asked {
    const char *allow, *without[2], *place, *detail;
    bool strict, training;
    const nib_refused *refused; /* of without[0] */
} asked;

static nib_assignment plan_of(const nib_machine *machine, const asked *a)
{
    static nib_allocator allocator;
    allocator = nib__allocator_default();
    const nib_policy policy = {
        .graph = graph,
        .dtype = NIB_TYPE_BF16,
        .allow = {&a->allow, a->allow != NULL},
        .place = {&a->place, a->place != NULL},
        .without = {a->without, (size_t)((a->without[0] != NULL) + (a->without[1] != NULL))},
        .strict = a->strict,
        .detail = a->detail,
        .training = a->training,
        .m = 64,
        .declared = !machine->here,
        .refused = a->refused,
        .refused_count = a->refused != NULL};
    nib_assignment plan;
    nib_err err = {NIB_OK, ""};
    if (nib__plan_layers(&plan, layers, LAYERS, machine, &policy, &allocator, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return plan;
}

static const nib_ledger_layer *line_of(const nib_assignment *plan, const char *name)
{
    for (size_t i = 0; i < plan->ledger.layer_count; i++)
        if (strcmp(plan->ledger.layers[i].name, name) == 0)
            return &plan->ledger.layers[i];
    return NULL;
}

static const char *note_of(const nib_assignment *plan, const char *code)
{
    for (size_t i = 0; i < plan->ledger.note_count; i++)
        if (strcmp(plan->ledger.notes[i].code, code) == 0)
            return plan->ledger.notes[i].text;
    return "none";
}

static const char *moves_of(const nib_assignment *plan) { return note_of(plan, "moves"); }

static void expect_words(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, words);
}

static void expect_copies(const asked *a, int copies, int values)
{
    char expected[96], bytes[32];
    nib_assignment plan = plan_of(&device, a);
    snprintf(expected, sizeof expected, "%d cop%s of %s per token between opencl and its host",
             copies, copies == 1 ? "y" : "ies", nib__format_bytes(bytes, 4 * (uint64_t)values));
    expect_words(moves_of(&plan), expected);
    nib__assignment_free(&plan);
}

/* ---- crossings ---- */

static void plans_count_the_copies_of_a_step(void **state)
{
    (void)state;
    const asked whole = {0}, head = {.place = "lm_head=cpu"}, down = {.place = "*down_proj=cpu"},
                qkv = {.place = "re:^[01].[qkv]_proj=cpu"};
    expect_copies(&whole, 1, VOCAB); /* the logits, for sampling */
    expect_copies(&head, 1, WIDTH);
    expect_copies(&down, 1 + 2 * DECODERS, VOCAB + DECODERS * (FFN + WIDTH));
    /* the input is copied to the device once, the three outputs back */
    expect_copies(&qkv, 1 + 4 * DECODERS, VOCAB + DECODERS * (2 * WIDTH + 2 * KV));
}

static void copies_cost_what_the_machine_file_says(void **state)
{
    (void)state;
    const asked whole = {0}, head = {.place = "lm_head=cpu"};
    nib_assignment a = plan_of(&device, &whole), b;
    const nib_machine rates = device;
    device.copy_s = 0, device.copy_bytes_per_s = INFINITY;
    b = plan_of(&device, &whole);
    device = rates;
    /* the logits, and the overhead of a step */
    const double seconds = 2 * rates.copy_s + 4 * VOCAB / rates.copy_bytes_per_s;
    assert_true(fabs(a.predicted_token_s - b.predicted_token_s - seconds) < 1e-9);
    nib__assignment_free(&a);
    nib__assignment_free(&b);
    a = plan_of(&host, &head); /* a CPU alone copies nothing */
    assert_string_equal(moves_of(&a), "none");
    nib__assignment_free(&a);
}

/* ---- drawing, packing ---- */

static void drawing_a_token_is_an_operation(void **state)
{
    (void)state;
    char words[96], bytes[32], time[32];
    nib_assignment plan = plan_of(&device, &(asked){0}); /* which cannot sample without fp64 */
    assert_string_equal(plan.draw.row->name, "sample_f32__ref");
    assert_true(plan.draw.machine == &host && plan.draw.bytes == 4 * VOCAB);
    assert_true(fabs(plan.draw.move_s - device.copy_s - 4 * VOCAB / device.copy_bytes_per_s) <
                1e-12);
    snprintf(words, sizeof words,
             "drawn by sample_f32__ref on cpu: %s of logits copied per token, %s",
             nib__format_bytes(bytes, 4 * VOCAB),
             nib__format_seconds(time, plan.draw.move_s + plan.draw.draw_s));
    expect_words(note_of(&plan, "drawn"), words);
    nib__assignment_free(&plan);
    device.facts.fact[NIB_FACT_FP64] = 1;
    plan = plan_of(&device, &(asked){0});
    assert_true(plan.draw.row->gpu != NULL && plan.draw.bytes == sizeof(int32_t));
    expect_words(note_of(&plan, "drawn"),
                 "requests that it cannot handle by sample_f32__ref on cpu");
    nib__assignment_free(&plan);
    plan =
        plan_of(&device, &(asked){.place = "lm_head=cpu"}); /* sampling runs where the logits are */
    assert_string_equal(plan.draw.row->name, "sample_f32__ref");
    assert_true(plan.draw.bytes == 0 && plan.draw.move_s == 0);
    assert_string_equal(note_of(&plan, "drawn"), "none");
    nib__assignment_free(&plan);
    device.facts.fact[NIB_FACT_FP64] = 0;
}

/* The device packs weights if the stored form fits beside all packed weights. */
static void packing_needs_room(void **state)
{
    (void)state;
    uint64_t largest = 0, least = UINT64_MAX;
    for (size_t i = 0; i < LAYERS; i++) {
        const uint64_t bytes = nib__staging_bytes(&layers[i], &layers[i].asked);
        layers[i].plain = true;
        largest = bytes > largest ? bytes : largest;
        least = bytes < least ? bytes : least;
    }
    nib_assignment plan = plan_of(&device, &(asked){0}); /* of any size */
    const uint64_t packed = plan.gpu_bytes;
    const uint64_t room[] = {largest, largest - 1, least, least - 1};
    nib__assignment_free(&plan);
    for (size_t r = 0; r < COUNT(room); r++) {
        size_t there = 0, fit = 0;
        device.memory = packed + room[r];
        plan = plan_of(&device, &(asked){0});
        for (size_t i = 0; i < LAYERS; i++) {
            there += plan.layers[i].pack != NULL;
            fit += nib__staging_bytes(&layers[i], &layers[i].asked) <= room[r];
        }
        assert_int_equal(there, fit);
        assert_int_equal(there == LAYERS, r == 0);
        assert_int_equal(there == 0, r == COUNT(room) - 1);
        if (r > 0)
            expect_words(note_of(&plan, "packing"),
                         "on the host because opencl has no room for them as stored");
        nib__assignment_free(&plan);
    }
    device.memory = 0;
}

static void a_cpu_plan_has_every_operation_and_no_note(void **state)
{
    (void)state;
    nib_assignment plan = plan_of(&host, &(asked){0});
    assert_int_equal(plan.ledger.layer_count, LAYERS);
    assert_true(plan.op_count > 7); /* a Llama has no experts and scales nothing */
    for (int i = 0; i < plan.op_count; i++)
        assert_true(plan.ops[i].row != NULL && plan.ops[i].machine == &host);
    assert_int_equal(plan.denied.status, NIB_OK);
    nib__assignment_free(&plan);
}

/* ---- the norm and the row that makes the input form ---- */

/* The ledger line of a layer names the one row that makes its input form. */
static const nib_candidate *maker_of(const nib_ledger_layer *line)
{
    const nib_candidate *maker = NULL;
    for (size_t i = 0; i < line->candidate_count; i++) {
        const nib_candidate *c = &line->candidates[i];
        const nib_op op = nib__kernel_find(c->kernel)->op;
        if (c->verdict != NIB_VERDICT_RUNS || (op != NIB_OP_QUANT && op != NIB_OP_NORM_QUANT))
            continue;
        assert_null(maker);
        maker = c;
    }
    assert_non_null(maker);
    for (size_t u = 0; u < line->use_count; u++)
        assert_string_equal(line->uses[u].quant, maker->kernel);
    return maker;
}

/* Why the fused row of norm and quantizer is not chosen. */
static const char *why_apart(const nib_ledger_layer *line)
{
    const char *why = NULL;
    for (size_t i = 0; i < line->candidate_count; i++) {
        const nib_candidate *c = &line->candidates[i];
        if (strcmp(c->kernel, "norm_quant_f32_a8t__ref") != 0)
            continue;
        assert_int_equal(c->verdict, NIB_VERDICT_COULD);
        why = c->reasons[0].text;
    }
    assert_non_null(why);
    return why;
}

static void the_ledger_names_the_row_that_makes_the_input(void **state)
{
    static const char *const names[] = {"0.q_proj", "0.k_proj", "0.v_proj"};
    (void)state;
    for (size_t i = 1; i < LAYERS - 1; i++) {
        assert_int_equal(nib__scheme_parse(&layers[i].asked, "8da4w-g32", 9, NULL), NIB_OK);
        layers[i].stored = layers[i].asked;
    }
    const asked all = {.detail = "0.*"},
                apart = {.detail = "0.*", .without = {"norm_quant_f32_a8t__ref"}};
    nib_assignment plan = plan_of(&host, &all);
    for (size_t i = 0; i < COUNT(names); i++)
        assert_string_equal(maker_of(line_of(&plan, names[i]))->kernel, "norm_quant_f32_a8t__ref");
    assert_string_equal(maker_of(line_of(&plan, "0.o_proj"))->kernel, "quant_f32_a8t__ref");
    nib__assignment_free(&plan);
    plan = plan_of(&host, &apart);
    for (size_t i = 0; i < COUNT(names); i++)
        assert_string_equal(maker_of(line_of(&plan, names[i]))->kernel, "quant_f32_a8t__ref");
    nib__assignment_free(&plan);
    layer_named("0.v_proj")->ordered = true; /* only v_proj gathers from the norm's output */
    plan = plan_of(&host, &all);
    for (size_t i = 0; i < COUNT(names); i++) {
        const nib_ledger_layer *line = line_of(&plan, names[i]);
        assert_string_equal(maker_of(line)->kernel, "quant_f32_a8t__ref");
        expect_words(why_apart(line), "0.v_proj has its columns in act-order");
    }
    assert_string_equal(maker_of(line_of(&plan, "0.up_proj"))->kernel, "norm_quant_f32_a8t__ref");
    nib__assignment_free(&plan);
    layer_named("0.v_proj")->ordered = false;
    layer_named("0.k_proj")->asked.act = NIB_ACT_FLOAT;
    plan = plan_of(&host, &all);
    expect_words(why_apart(line_of(&plan, "0.q_proj")),
                 "0.k_proj needs the norm's output in another form");
    nib__assignment_free(&plan);
    set_up(NULL);
}

/* ---- operations without a row ---- */

/* Queries, keys and values are copied to the host, and heads back. */
enum { MORE_COPIES = 4 * DECODERS, MORE_VALUES = DECODERS * (2 * WIDTH + 2 * KV) };

static void a_missing_operation_is_denied_with_its_price(void **state)
{
    (void)state;
    char words[96], bytes[32], time[32];
    nib_assignment plan = plan_of(&device, &(asked){.without = {"attn_f32__ocl"}});
    const nib_ledger_layer *line = line_of(&plan, "attn");
    assert_non_null(line);
    assert_string_equal(line->role, NIB_LEDGER_OPERATION);
    assert_string_equal(line->asked, "f32@opencl");
    assert_true(line->denied && line->done == NULL && line->rung == NIB_RUNG_NONE);
    assert_string_equal(line->reasons[0].code, "offered=yes");
    expect_words(line->reasons[0].text,
                 "attn_f32__ocl: this run lacks this kernel: --without leaves it out");
    assert_string_equal(line->advice[0].option, "--allow 'attn=device'");
    snprintf(words, sizeof words,
             "%d more copies of %s per token between opencl and cpu, %s predicted: ", MORE_COPIES,
             nib__format_bytes(bytes, 4 * MORE_VALUES),
             nib__format_seconds(time, MORE_COPIES * device.copy_s +
                                           4 * MORE_VALUES / device.copy_bytes_per_s));
    expect_words(line->advice[0].text, words);
    expect_words(line->advice[0].text, "done f32@cpu by attn_");
    expect_words(line->advice[0].text, " tokens/s, and ");
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    assert_null(nib__plan_operation(&plan, NIB_OP_ATTN)->row);
    nib__assignment_free(&plan);
}

static void the_driver_error_is_the_reason(void **state)
{
    (void)state;
    const nib_refused attn = {"attn_f32__ocl", "the driver says no", false};
    nib_assignment plan =
        plan_of(&device, &(asked){.without = {"attn_f32__ocl"}, .refused = &attn});
    const nib_ledger_layer *line = line_of(&plan, "attn");
    assert_string_equal(line->reasons[0].code, "refused");
    assert_string_equal(line->reasons[0].text, "attn_f32__ocl: the driver says no");
    nib__assignment_free(&plan);
}

static void rung_and_pattern_allow_the_host(void **state)
{
    (void)state;
    static const char *const allowances[] = {"device", "attn=device", "at*=device", "*=device"};
    for (size_t i = 0; i < COUNT(allowances); i++) {
        nib_assignment plan =
            plan_of(&device, &(asked){.without = {"attn_f32__ocl"}, .allow = allowances[i]});
        const nib_ledger_layer *line = line_of(&plan, "attn");
        assert_int_equal(plan.denied.status, NIB_OK);
        assert_int_equal(line->rung, NIB_RUNG_DEVICE);
        assert_string_equal(line->done, "f32@cpu");
        expect_words(line->allowed, allowances[i]);
        assert_string_equal(line->uses[0].device, "cpu");
        const double us =
            1e6 * (MORE_COPIES * device.copy_s + 4 * MORE_VALUES / device.copy_bytes_per_s);
        assert_true(fabs(line->uses[0].predicted_us - us) < 1e-3);
        const nib_op_plan *attn = nib__plan_operation(&plan, NIB_OP_ATTN),
                          *copy = nib__plan_operation(&plan, NIB_OP_STORE_KV);
        assert_ptr_equal(attn->machine, &host);
        assert_ptr_equal(copy->machine, &host); /* the KV cache is where attention reads it */
        assert_null(line_of(&plan, "copy"));
        const nib_ledger_counts counts = nib__ledger_count(&plan.ledger);
        assert_int_equal(counts.operations, 1);
        assert_int_equal(counts.substituted, 0);
        nib__assignment_free(&plan);
    }
}

static void another_pattern_does_not_allow_the_host(void **state)
{
    (void)state;
    static const char *const allowances[] = {"norm=device", "*_proj=device", "attn=dequant"};
    for (size_t i = 0; i < COUNT(allowances); i++) {
        nib_assignment plan =
            plan_of(&device, &(asked){.without = {"attn_f32__ocl"}, .allow = allowances[i]});
        assert_true(line_of(&plan, "attn")->denied);
        refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
        nib__assignment_free(&plan);
    }
}

static void strict_denies_it_even_if_allowed(void **state)
{
    (void)state;
    nib_assignment plan =
        plan_of(&device, &(asked){.without = {"attn_f32__ocl"}, .allow = "device", .strict = true});
    assert_true(line_of(&plan, "attn")->denied);
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    nib__assignment_free(&plan);
}

/* One option covers all missing operations. */
static void two_missing_operations_need_one_option(void **state)
{
    (void)state;
    nib_assignment plan = plan_of(&device, &(asked){.without = {"attn_f32__ocl", "norm_f32__ocl"}});
    assert_string_equal(line_of(&plan, "attn")->advice[0].option, "--allow device");
    assert_string_equal(line_of(&plan, "norm")->advice[0].option, "--allow device");
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    nib__assignment_free(&plan);
}

static void a_pattern_that_matches_nothing_suggests_near_names(void **state)
{
    (void)state;
    static const char *const wrong[] = {"atn=device"};
    const nib_allocator allocator = nib__allocator_default();
    const nib_policy policy = {.dtype = NIB_TYPE_BF16, .allow = {wrong, 1}};
    nib_assignment plan;
    nib_err err;
    refused(NIB_USAGE, nib__plan_layers(&plan, layers, LAYERS, &device, &policy, &allocator, &err),
            &err);
}

/* ---- a training step ---- */

static const nib_op of_step[] = {NIB_OP_NORM,     NIB_OP_ATTN,    NIB_OP_ADD,     NIB_OP_XENT,
                                 NIB_OP_NORM_DX,  NIB_OP_NORM_DW, NIB_OP_ATTN_DX, NIB_OP_SWIGLU_DX,
                                 NIB_OP_EMBED_DW, NIB_OP_BIAS_DW, NIB_OP_SQUARES, NIB_OP_ADAMW};

static nib_assignment plan_step(const char *const *without, size_t count)
{
    const nib_policy policy = {
        .dtype = NIB_TYPE_BF16, .training = true, .m = 32, .without = {without, count}};
    nib_assignment plan;
    nib_err err;
    if (nib__plan_layers(&plan, layers, LAYERS, &host, &policy, &plain, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return plan;
}

/* Excluding a row selects the next one; excluding the last gives an error with all reasons. */
static void a_step_falls_back_row_by_row(void **state)
{
    (void)state;
    layers[1].bias = true; /* so that one bias has a gradient */
    for (size_t i = 0; i < COUNT(of_step); i++) {
        const char *without[16], *name = nib__op_names[of_step[i]];
        size_t count = 0;
        nib_assignment plan = plan_step(without, count);
        for (const nib_kernel *row; (row = nib__plan_operation(&plan, of_step[i])->row) != NULL;) {
            assert_int_equal(row->op, of_step[i]);
            assert_null(line_of(&plan, name));
            assert_int_equal(plan.denied.status, NIB_OK);
            assert_true(count < COUNT(without));
            without[count++] = row->name;
            nib__assignment_free(&plan);
            plan = plan_step(without, count);
        }
        const nib_ledger_layer *line = line_of(&plan, name);
        assert_non_null(line);
        assert_true(count > 0 && line->denied && line->reason_count >= count);
        for (size_t j = 0; j < count; j++) {
            char words[96];
            bool said = false;
            snprintf(words, sizeof words, "%s: this run lacks this kernel: --without leaves it out",
                     without[j]);
            for (size_t k = 0; k < line->reason_count; k++)
                said = said || strcmp(line->reasons[k].text, words) == 0;
            assert_true(said);
        }
        assert_int_equal(plan.denied.status, NIB_NOT_AS_ASKED);
        nib__assignment_free(&plan);
    }
    layers[1].bias = false;
}

/* Copies are f32 in every recipe, so bf16 layers copy as much as other recipes. */
static void a_step_in_bf16_copies_as_much(void **state)
{
    (void)state;
    nib_assignment plan = plan_of(&device, &(asked){.training = true});
    expect_words(moves_of(&plan), " per micro-batch between opencl and its host");
    expect_words(note_of(&plan, "predicted"), "; with copies ");
    assert_true(plan.predicted_token_s > 1.5 * plan.linear_token_s);
    assert_true(fabs(plan.predicted_bf16_token_s - plan.predicted_token_s) < 1e-9);
    nib__assignment_free(&plan);
}

/* ---- another machine ---- */

static nib_machine far_machine(void)
{
    nib_machine m = {.name = "far",
                     .title = "a GPU of tests",
                     .host = &host,
                     .bytes_per_s = 1e12,
                     .copy_s = NIB_CAUTIOUS_COPY_S,
                     .copy_bytes_per_s = NIB_CAUTIOUS_COPY_BYTES_PER_S};
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        m.rate[unit] = 1e12;
    m.facts.fact[NIB_FACT_DEVICE] = NIB_DEVICE_CUDA;
    m.facts.fact[NIB_FACT_SM] = 90;
    return m;
}

static void another_machines_operations_are_planned(void **state)
{
    (void)state;
    const nib_machine far = far_machine();
    nib_assignment plan = plan_of(&far, &(asked){0});
    assert_int_equal(plan.denied.status, NIB_OK);
    expect_words(note_of(&plan, "drawn"),
                 "tokens are drawn by sample_f32__sm80 on far: 4 B copied");
    expect_words(moves_of(&plan), "1 copy of 4 B per token between far and its host");
    nib__assignment_free(&plan);
    plan = plan_of(&far, &(asked){.without = {"attn_f32__sm80", "sample_f32__sm80"}});
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    expect_words(note_of(&plan, "drawn"), "tokens are drawn by sample_f32__ref on cpu");
    assert_non_null(line_of(&plan, "attn"));
    nib__assignment_free(&plan);
    plan = plan_of(&far, &(asked){.without = {"attn_f32__sm80"}, .allow = "attn=device"});
    assert_int_equal(plan.denied.status, NIB_OK);
    assert_string_equal(line_of(&plan, "attn")->done, "f32@cpu");
    nib__assignment_free(&plan);
}

static void training_on_another_machine_needs_its_casts(void **state)
{
    (void)state;
    const nib_machine far = far_machine();
    nib_assignment plan = plan_of(&far, &(asked){.training = true});
    assert_int_equal(plan.denied.status, NIB_OK);
    expect_words(note_of(&plan, "host"),
                 "in training far does the products of linear layers and their "
                 "casts, and adds the gradients that it computed; embedding");
    expect_words(note_of(&plan, "host"), "the optimizer run on cpu");
    nib__assignment_free(&plan);
    plan = plan_of(&far, &(asked){.training = true, .without = {"cast_t_f32_bf16__sm80"}});
    refused(NIB_NOT_AS_ASKED, plan.denied.status, &plan.denied);
    assert_string_equal(note_of(&plan, "host"), "none");
    nib__assignment_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_count_the_copies_of_a_step),
        cmocka_unit_test(copies_cost_what_the_machine_file_says),
        cmocka_unit_test(drawing_a_token_is_an_operation),
        cmocka_unit_test(packing_needs_room),
        cmocka_unit_test(a_cpu_plan_has_every_operation_and_no_note),
        cmocka_unit_test(the_ledger_names_the_row_that_makes_the_input),
        cmocka_unit_test(a_missing_operation_is_denied_with_its_price),
        cmocka_unit_test(the_driver_error_is_the_reason),
        cmocka_unit_test(rung_and_pattern_allow_the_host),
        cmocka_unit_test(another_pattern_does_not_allow_the_host),
        cmocka_unit_test(strict_denies_it_even_if_allowed),
        cmocka_unit_test(two_missing_operations_need_one_option),
        cmocka_unit_test(a_pattern_that_matches_nothing_suggests_near_names),
        cmocka_unit_test(a_step_falls_back_row_by_row),
        cmocka_unit_test(a_step_in_bf16_copies_as_much),
        cmocka_unit_test(another_machines_operations_are_planned),
        cmocka_unit_test(training_on_another_machine_needs_its_casts),
    };
    plain = nib__allocator_default();
    nib__arena_init(&arena, &plain, 0);
    graph = llama_graph(&arena, DECODERS, WIDTH, KV, FFN, VOCAB);
    const int failed = cmocka_run_group_tests(tests, set_up, NULL);
    nib__arena_free(&arena);
    return failed;
}
