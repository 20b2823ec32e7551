/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_bench_train: tokens per second of a training config, the time of each phase and operation of
 * a step, and their shares of this machine's arithmetic rate and bandwidth, both measured in the
 * same run. Writes no files.
 *
 * Bytes are the f32 rows and codes that an operation must read and write, ignoring savings by
 * caches. A multiply-add of a product counts as two operations. Attention is not counted, since its
 * work depends on where documents begin.
 */
#include "op_table.h"
#include "public_struct.h"
#include "operation.h"
#include "trainer.h"

#include <inttypes.h>

enum { STEPS_MAX = 1000 };

typedef struct bench {
    nib_trainer trainer;
    nib_machine here;
    nib_op_table table;
    int steps;
    double seconds[STEPS_MAX];
    double median;
    uint64_t predicted_bytes, used_bytes; /* of memory */
} bench;

/* ---- measuring ---- */

static double code_bytes(const nib_product *p)
{
    return nib__code_bits(p->shape.scheme.code) / 8.0;
}

/* Operations and bytes of one run of a node. */
static void measure_node(const bench *b, const nib_train_node *n, nib_op_line *out)
{
    const nib_step *s = &b->trainer.step;
    const double m = (double)s->m;
    const nib_product *p = n->site == SIZE_MAX ? NULL : &s->products[n->site][n->product];
    switch (n->op) {
    case NIB_OP_LINEAR:
    case NIB_OP_LINEAR_DX:
    case NIB_OP_LINEAR_DW: {
        const double rows =
            (double)nib__product_rows(s->plan->layers[n->site].layer, n->product, s->m);
        const double outputs = (double)p->shape.n, sums = (double)p->shape.k;
        out->operations = 2 * rows * outputs * sums;
        out->bytes = (rows + outputs) * sums * code_bytes(p) + rows * outputs * sizeof(float);
        break;
    }
    case NIB_OP_QUANT:
    case NIB_OP_QUANT_T:
    case NIB_OP_CAST_T:
        out->bytes = m * (double)n->columns * (sizeof(float) + code_bytes(p));
        break;
    default: out->bytes = nib__ops[n->op].values * m * (double)n->columns * sizeof(float);
    }
}

/* A line for this CPU, or for the device, whose rates are not measured here. */
static nib_op_line line_of(const bench *b, const char *name, bool on_device, nib_unit unit)
{
    if (on_device)
        return (nib_op_line){
            .name = name, .layers = "", .device = b->trainer.plan->assignment.gpu->name};
    return (nib_op_line){.name = name,
                         .layers = "",
                         .device = b->here.name,
                         .peak = unit < NIB_UNIT_COUNT ? b->here.rate[unit] : 0,
                         .bandwidth = b->here.bytes_per_s};
}

/* The phases of a step beside its operations. AdamW reads four blocks and writes three. */
static void add_phases(bench *b, double operations)
{
    const nib_trainer *t = &b->trainer;
    const double block = (double)t->params.total * sizeof(float),
                 sums = (double)(t->micro_batches - 1);
    static const char *const names[NIB_SPENT_COUNT] = {
        [NIB_SPENT_CAST] = "cast of weights",           [NIB_SPENT_DATA] = "data",
        [NIB_SPENT_MICRO_BATCHES] = "sum of gradients", [NIB_SPENT_SUM] = "sum over ranks",
        [NIB_SPENT_NORM] = "norm of gradients",         [NIB_SPENT_UPDATE] = "adamw"};
    const double bytes[NIB_SPENT_COUNT] = {
        [NIB_SPENT_CAST] = 2 * block + (double)t->step.sides[NIB_SIDE_CPU].packed_bytes,
        [NIB_SPENT_MICRO_BATCHES] = 3 * sums * block,
        [NIB_SPENT_NORM] = block,
        [NIB_SPENT_UPDATE] = 7 * block};
    for (int i = 0; i < NIB_SPENT_COUNT; i++) {
        nib_op_line l = line_of(b, names[i], false, NIB_UNIT_COUNT);
        l.bytes = bytes[i];
        l.seconds = (double)t->spent_ns[i] * 1e-9 / b->steps;
        if (i == NIB_SPENT_MICRO_BATCHES)
            l.seconds = l.seconds > operations ? l.seconds - operations : 0;
        if (l.seconds > 0)
            nib__op_table_add(&b->table, &l);
    }
}

static void add_lines(bench *b)
{
    const nib_step *s = &b->trainer.step;
    double seconds = 0;
    for (size_t i = 0; i < s->count; i++) {
        const nib_train_node *n = &s->nodes[i];
        const bool on_device = n->side == NIB_SIDE_GPU || n->op == NIB_OP_MOVE;
        nib_op_line counted = {0};
        measure_node(b, n, &counted);
        nib_op_line l = line_of(b, nib__op_names[n->op], on_device,
                                counted.operations > 0 ? n->row->unit : NIB_UNIT_COUNT);
        l.layers = nib__layer_kind(&b->trainer.model->net, n->site);
        l.seconds = (double)s->node_ns[i] * 1e-9 / b->steps;
        l.operations = counted.operations * (double)b->trainer.micro_batches;
        l.bytes = counted.bytes * (double)b->trainer.micro_batches;
        seconds += l.seconds;
        nib__op_table_add(&b->table, &l);
    }
    add_phases(b, seconds);
    b->table.seconds = b->median;
    b->table.each = "step";
    nib__op_table_sort(&b->table);
}

static nib_status run_steps(bench *b, nib_err *err)
{
    nib_trainer *t = &b->trainer;
    nib_step_report report;
    NIB_TRY(nib__trainer_step(t, &report, err)); /* warm-up */
    memset(t->step.node_ns, 0, t->step.count * sizeof *t->step.node_ns);
    memset(t->spent_ns, 0, sizeof t->spent_ns);
    for (int i = 0; i < b->steps; i++) {
        if (!nib__engine_progress(t->engine, "bench", (uint64_t)i, (uint64_t)b->steps))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        NIB_TRY(nib__trainer_step(t, &report, err));
        b->seconds[i] = report.seconds;
    }
    b->median = nib__median(b->seconds, b->steps);
    return NIB_OK;
}

static nib_status measure(bench *b, nib_model *model, const nib_plan *plan, nib_err *err)
{
    const uint64_t before = nib__resident_bytes();
    NIB_TRY(nib__trainer_open(&b->trainer, model, plan, NULL, err));
    b->predicted_bytes = nib__trainer_bytes(&b->trainer);
    b->trainer.step.timed = true;
    NIB_TRY(run_steps(b, err));
    const uint64_t after = nib__resident_bytes();
    b->used_bytes = after > before ? after - before : 0;
    b->here = model->engine->here;
    NIB_TRY(
        nib__machine_measure(&b->here, model->engine->pool, NULL, &model->engine->allocator, err));
    add_lines(b);
    return NIB_OK;
}

/* ---- writing ---- */

static double peak_of(const bench *b)
{
    return b->here
        .rate[b->trainer.plan->policy.dtype == NIB_TYPE_F32 ? NIB_UNIT_F32 : NIB_UNIT_BF16];
}

static double tokens_per_s(const bench *b)
{
    return (double)(b->trainer.micro_batches * b->trainer.step.m) / b->median;
}

static void write_json(const bench *b, nib_text *text)
{
    const nib_trainer *t = &b->trainer;
    const double flops = tokens_per_s(b) * nib__trainer_flops(t), peak = peak_of(b);
    nib_jsonw w;
    nib__jsonw_report(&w, text);
    nib__jsonw_pair_int(&w, "parameters", (int64_t)t->params.values);
    nib__jsonw_pair_int(&w, "tokens_per_step", t->micro_batches * t->step.m);
    nib__jsonw_pair_int(&w, "threads", nib__pool_threads(t->engine->pool));
    nib__jsonw_pair_int(&w, "steps", b->steps);
    nib__jsonw_pair_double(&w, "step_s", b->median);
    nib__jsonw_pair_double(&w, "tokens_per_s", tokens_per_s(b));
    nib__jsonw_pair_double(&w, "tflops", flops * 1e-12);
    nib__jsonw_pair_double(&w, "mfu", peak > 0 ? flops / peak : 0);
    nib__jsonw_pair_double(&w, "peak_gop_per_s", peak * 1e-9);
    nib__jsonw_pair_double(&w, "read_gb_per_s", b->here.bytes_per_s * 1e-9);
    nib__jsonw_pair_int(&w, "memory_said_bytes", (int64_t)b->predicted_bytes);
    nib__jsonw_pair_int(&w, "memory_taken_bytes", (int64_t)b->used_bytes);
    nib__jsonw_key(&w, "operations");
    nib__op_table_json(&b->table, &w);
    nib__ledger_json(&t->plan->assignment.ledger, &w);
    nib__jsonw_report_end(&w);
}

static void write_text(const bench *b, bool markdown, nib_text *text)
{
    const nib_trainer *t = &b->trainer;
    const double flops = tokens_per_s(b) * nib__trainer_flops(t), peak = peak_of(b);
    char parameters[32], tokens[32], said[32], taken[32];
    const char *end = markdown ? "\n\n" : "\n";
    nib__text_format(text,
                     "%s parameters, %" PRId64 " x %" PRId64 " x %" PRId64
                     " tokens per step, %d thread%s%s",
                     nib__format_count(parameters, t->params.values), t->micro_batches,
                     t->config->batch, t->config->sequence, nib__pool_threads(t->engine->pool),
                     nib__pool_threads(t->engine->pool) == 1 ? "" : "s", end);
    nib__text_format(
        text,
        "speed       %s tokens/s, %.3f s per step (median of %d), %.1f G operations/s, "
        "%.0f %% of %.0f%s",
        nib__format_count(tokens, (uint64_t)tokens_per_s(b)), b->median, b->steps, flops * 1e-9,
        peak > 0 ? 100 * flops / peak : 0, peak * 1e-9, end);
    nib__text_format(text, "memory      %s predicted, %s used; %.1f GB/s measured%s",
                     nib__format_bytes(said, b->predicted_bytes),
                     nib__format_bytes(taken, b->used_bytes), b->here.bytes_per_s * 1e-9, end);
    nib__op_table_text(&b->table, markdown, text);
    if (nib__step_device_bytes(&t->step) > 0)
        nib__text_format(text, "\nrates without a share are for %s, or for copies to and from it\n",
                         t->plan->assignment.gpu->name);
}

nib_status nib_bench_train(nib_model *model, const nib_plan *plan, int steps, nib_form form,
                           const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model, plan", model, plan);
    NIB_TRY(nib__report_check(form, sink, err));
    NIB_TRY(nib__engine_check(model->engine, err));
    if (!model->net.training)
        return nib__fail(err, NIB_USAGE, "%s is a model, not a training config", model->net.path);
    NIB_TRY(nib__number_check("steps", steps, err));
    if (steps > STEPS_MAX)
        return nib__fail(err, NIB_USAGE, "%d repeats are over the limit of %d", steps, STEPS_MAX);
    NIB_TRY(nib__plan_check_model(plan, model, err));
    NIB_TRY(nib_plan_status(plan, err));
    NIB_TRY(nib__train_check_machine(plan, err));
    bench *b = nib__calloc(&model->engine->allocator, 1, sizeof *b);
    if (!b)
        return nib__fail_memory(err, sizeof *b, "the bench");
    nib_text text;
    nib__text_init(&text, &model->engine->allocator);
    b->steps = steps > 0 ? steps : 5;
    nib_status status = measure(b, model, plan, err);
    if (status == NIB_OK && form == NIB_FORM_JSON)
        write_json(b, &text);
    else if (status == NIB_OK)
        write_text(b, form == NIB_FORM_MARKDOWN, &text);
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    nib__trainer_close(&b->trainer);
    nib__release(&model->engine->allocator, b);
    return status;
}
