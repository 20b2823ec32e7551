/* SPDX-License-Identifier: Apache-2.0
 *
 * Calibrates an available machine, the CPU or a device: the times of products with the rows that
 * the planner chooses for common recipes; for a device also the cost of copies and launches. For
 * other sizes or group sizes the planner scales these times (cost.c).
 */
#include "bench.h"
#include "public_struct.h"
#include "timing.h"
#include "variant.h"

static const struct {
    const char *scheme;
    nib_act act; /* activations as the tools of the format multiply them; FLOAT: as in the scheme */
    nib_type dtype;
} products[] = {
    {"bf16", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"f32", NIB_ACT_FLOAT, NIB_TYPE_F32},
    {"f16", NIB_ACT_FLOAT, NIB_TYPE_F16},
    {"int8wo", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"int4wo", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"fp8wo", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"mxfp4", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"int8dq", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"8da4w", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"4da4w", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"fp8dq", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"mxfp8", NIB_ACT_FLOAT, NIB_TYPE_BF16},
    {"int8wo-g32-ggml", NIB_ACT_I8_BLOCK32, NIB_TYPE_BF16},
    {"int4wo-sym-ggml", NIB_ACT_I8_BLOCK32, NIB_TYPE_BF16},
    {"mxfp4", NIB_ACT_I8_BLOCK32, NIB_TYPE_BF16},
};
_Static_assert(COUNT(products) <= NIB_MEASURED_MAX, "raise NIB_MEASURED_MAX");

enum {
    K = 4096,
    N_LEAST = 256,
    N_STEP = 4, /* factor from one number of outputs to the next */
    N_MOST = 16384,
    TURNS = 3,       /* over all products: disturbances last longer than one product */
    NEAR_SHARE = 4,  /* part of the caches: weights of this size stay there */
    FAR_WEIGHTS = 4, /* at least so many weights pass through the caches */
};
_Static_assert(N_LEAST *N_STEP *N_STEP *N_STEP == N_MOST && NIB_SIZES == 4, "all have room");

static const double long_enough_s = 8e-3; /* for one product: enough to fill threads and tiles */
static const double too_long_s = 0.1;

/* ---- one product ---- */

typedef struct calibration {
    nib_machine *machine;
    nib_timed timed;
    nib_layer layer;
    nib_variant variant;
    nib_measured (*turns)[NIB_MEASURED_MAX]; /* [TURNS] */
} calibration;

/* Limit of the weights: with one token they must stay in the caches, if any. */
static uint64_t most_bytes(const calibration *c, int64_t m)
{
    const uint64_t near = (uint64_t)(c->machine->cache_bytes / NEAR_SHARE);
    const uint64_t all = c->timed.weight_bytes;
    return m == 1 && near > 0 && near < all ? near : all;
}

static nib_status time_size(calibration *c, nib_point *p, int i, int64_t m, nib_err *err)
{
    const nib_use *use = nib__variant_use(&c->variant, m);
    double seconds;
    NIB_TRY(
        nib__timed_linear(&c->timed, use->kernel, (int64_t)p->outputs[i], m, false, &seconds, err));
    p->k_s[i] = nib__seconds_without_launch(seconds, c->machine->launch_s) / K;
    return NIB_OK;
}

/* Times more and more outputs, until a product beyond the first size takes long enough. */
static nib_status time_sizes(calibration *c, nib_point *p, int64_t m, nib_err *err)
{
    const nib_use *use = nib__variant_use(&c->variant, m);
    const uint64_t most = most_bytes(c, m);
    for (int64_t n = N_LEAST; n <= N_MOST; n *= N_STEP) {
        const int i = p->size_count;
        if (i > 0 && nib__timed_bytes(&c->timed, use->kernel, n) > most)
            break;
        const double last_s = i > 0 ? p->k_s[i - 1] * K : 0;
        if (last_s * N_STEP > too_long_s || (i > 1 && last_s >= long_enough_s))
            break;
        p->outputs[i] = (double)n;
        NIB_TRY(time_size(c, p, i, m, err));
        p->size_count++;
    }
    return NIB_OK;
}

/* before: the point of the turn before, whose sizes are timed again; NULL: the first turn */
static nib_status time_point(calibration *c, nib_point *p, const nib_point *before, int64_t m,
                             nib_err *err)
{
    const nib_use *use = nib__variant_use(&c->variant, m);
    double seconds;
    if (before != NULL)
        *p = *before;
    p->row = use->kernel;
    if (before == NULL)
        NIB_TRY(time_sizes(c, p, m, err));
    for (int i = 0; before != NULL && i < p->size_count; i++)
        NIB_TRY(time_size(c, p, i, m, err));
    if (use->quant == NULL)
        return NIB_OK;
    NIB_TRY(nib__timed_quant(&c->timed, use->quant, m, &seconds, err));
    p->quant_s = nib__seconds_without_launch(seconds, c->machine->launch_s) / (double)(m * K);
    return NIB_OK;
}

/* The largest timed number of outputs of which several weights pass through the caches. */
static int far_size(const calibration *c, const nib_point *one)
{
    int i = one->size_count - 1;
    while (i > 0 && nib__timed_bytes(&c->timed, one->row, (int64_t)one->outputs[i]) * FAR_WEIGHTS >
                        c->timed.weight_bytes)
        i--;
    return i;
}

static nib_status time_far(calibration *c, nib_measured *p, nib_err *err)
{
    const nib_point *one = &p->at[0];
    const int64_t n = (int64_t)one->outputs[far_size(c, one)];
    double seconds;
    NIB_TRY(nib__timed_linear(&c->timed, one->row, n, 1, true, &seconds, err));
    p->memory_s = nib__seconds_without_launch(seconds, c->machine->launch_s) / (double)(n * K);
    p->weight_bytes = (double)nib__timed_bytes(&c->timed, one->row, n) / (double)(n * K);
    return NIB_OK;
}

/* False: the machine has no kernel for it, or cannot quantize its inputs. */
static bool set_product(calibration *c, size_t i, nib_policy *policy)
{
    nib_scheme scheme;
    const char *name = products[i].scheme;
    if (nib__scheme_parse(&scheme, name, strlen(name), NULL) != NIB_OK)
        return false;
    if (products[i].act != NIB_ACT_FLOAT)
        scheme.act = products[i].act, scheme.act_symmetric = true;
    *policy = (nib_policy){.dtype = products[i].dtype};
    c->layer = (nib_layer){.name = name,
                           .role = NIB_ROLE_O,
                           .n = N_LEAST,
                           .k = K,
                           .asked = scheme,
                           .stored = {.code = NIB_CODE_BF16, .symmetric = true},
                           .scale_type = NIB_TYPE_BF16,
                           .act_scale_type = NIB_TYPE_F32};
    nib__variant_find(&c->variant, &c->layer, &scheme, c->machine, policy, NULL);
    return c->variant.runs && !nib__kernel_is_ref(c->variant.uses[0].kernel);
}

static nib_status measure_product(calibration *c, const nib_policy *policy, int turn, int at,
                                  nib_err *err)
{
    const int64_t m_most = nib__points[NIB_POINTS - 1];
    nib_measured *p = &c->turns[turn][at];
    const nib_measured *before = turn > 0 ? &c->turns[turn - 1][at] : NULL;
    *p = (nib_measured){.code = c->layer.asked.code, .act = c->layer.asked.act};
    NIB_TRY(
        nib__timed_set(&c->timed, &c->layer, &c->layer.asked, policy->dtype, N_MOST, m_most, err));
    for (int i = 0; i < NIB_POINTS; i++)
        NIB_TRY(
            time_point(c, &p->at[i], before != NULL ? &before->at[i] : NULL, nib__points[i], err));
    return time_far(c, p, err);
}

/* ---- all turns ---- */

/* The medians over the turns. */
static nib_measured join_turns(const calibration *c, int at)
{
    nib_measured p = c->turns[0][at];
    double of[TURNS];
#define MEDIAN(what)                                                                               \
    do {                                                                                           \
        for (int turn_ = 0; turn_ < TURNS; turn_++)                                                \
            of[turn_] = c->turns[turn_][at].what;                                                  \
        p.what = nib__median(of, TURNS);                                                           \
    } while (0)
    MEDIAN(memory_s);
    for (int i = 0; i < NIB_POINTS; i++) {
        MEDIAN(at[i].quant_s);
        for (int size = 0; size < p.at[i].size_count; size++)
            MEDIAN(at[i].k_s[size]);
    }
#undef MEDIAN
    return p;
}

static nib_status run_turn(calibration *c, int turn, int *count, nib_err *err)
{
    nib_engine *engine = c->timed.engine;
    nib_policy policy;
    *count = 0;
    c->timed.compiled = turn > 0;
    for (size_t i = 0; i < COUNT(products); i++) {
        if (!nib__engine_progress(engine, "measure", (size_t)turn * COUNT(products) + i,
                                  TURNS * COUNT(products)))
            return nib__fail(err, NIB_CANCELLED, "measuring was cancelled");
        if (set_product(c, i, &policy))
            NIB_TRY(measure_product(c, &policy, turn, (*count)++, err));
    }
    return NIB_OK;
}

/* ---- a machine ---- */

/* Sets the rates of a device from its products, for products that were not timed. */
static void set_rates(nib_machine *m)
{
    const int last = NIB_POINTS - 1;
    double rate[NIB_UNIT_COUNT] = {0};
    for (int i = 0; i < m->product_count; i++) {
        const nib_measured *p = &m->products[i];
        const nib_point *many = &p->at[last];
        const int most = many->size_count - 1;
        const double r = 2 * (double)nib__points[last] * many->outputs[most] / many->k_s[most];
        const nib_unit unit = many->row->unit;
        rate[unit] = r > rate[unit] ? r : rate[unit];
    }
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        if (rate[unit] > 0)
            m->rate[unit] = rate[unit];
        else if (rate[NIB_UNIT_F32] > 0)
            m->rate[unit] = rate[NIB_UNIT_F32];
}

static nib_status measure_products(nib_engine *engine, nib_machine *machine, nib_gpu *gpu,
                                   nib_err *err)
{
    calibration c = {.machine = machine};
    int count = 0;
    c.turns = nib__calloc(&engine->allocator, TURNS, sizeof *c.turns);
    if (c.turns == NULL)
        return nib__fail_memory(err, TURNS * sizeof *c.turns, "measurements");
    nib_status status = nib__timed_open(&c.timed, engine, gpu, nib__timed_weights(machine), err);
    c.timed.in_turns = true;
    machine->product_count = 0; /* so that plans use rates, and each turn has the same rows */
    for (int turn = 0; turn < TURNS && status == NIB_OK; turn++)
        status = run_turn(&c, turn, &count, err);
    for (int i = 0; i < count && status == NIB_OK; i++)
        machine->products[machine->product_count++] = join_turns(&c, i);
    nib__engine_progress(engine, "measure", TURNS * COUNT(products), TURNS * COUNT(products));
    nib__timed_close(&c.timed);
    nib__release(&engine->allocator, c.turns);
    return status;
}

/* Saves the measurements for later runs. */
static nib_status save(const nib_engine *engine, const nib_machine *m, const char *driver,
                       nib_err *err)
{
    if (engine->cache_path == NULL)
        return NIB_OK;
    const nib_status status =
        nib__measured_keep(m, driver, engine->cache_path, &engine->allocator, err);
    return status == NIB_OK ? NIB_OK
                            : nib__fail_in(err, status, "the measurements could not be saved");
}

static nib_status measure_cpu(nib_engine *engine, nib_err *err)
{
    nib_machine m = engine->here;
    NIB_TRY(nib__machine_measure(&m, engine->pool, NULL, &engine->allocator, err));
    NIB_TRY(measure_products(engine, &m, NULL, err));
    engine->here = m;
    engine->measured = true;
    return save(engine, &m, "", err);
}

static nib_status measure_device(nib_engine *engine, nib_gpu_found *found, nib_err *err)
{
    nib_machine m;
    nib_gpu *gpu;
    NIB_TRY(nib__engine_machine_here(engine, &m, &gpu, found->name, err));
    const nib_kernel *add = nib__plan_op(NIB_OP_ADD, NIB_TYPE_F32, &m, NULL);
    if (add == NULL)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "%s: there are no kernels for it, so there is nothing to measure", m.name);
    nib_status status = nib__gpu_measure(&m, gpu, add, err);
    if (status == NIB_OK)
        status = measure_products(engine, &m, gpu, err);
    if (status != NIB_OK)
        return nib__fail_in(err, status, m.name);
    set_rates(&m);
    found->machine = m;
    return save(engine, &m, found->driver_version, err);
}

nib_status nib_devices_measure(nib_engine *engine, const char *name, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    nib_machine named;
    nib_gpu *gpu;
    NIB_TRY(nib__engine_find_gpus(engine, err));
    if (name != NULL)
        NIB_TRY(nib__engine_machine_here(engine, &named, &gpu, name, err));
    if (name == NULL || strcmp(name, engine->here.name) == 0)
        NIB_TRY(measure_cpu(engine, err));
    for (size_t i = 0; i < engine->gpu_count; i++)
        if (name == NULL || strcmp(name, engine->gpus[i].name) == 0)
            NIB_TRY(measure_device(engine, &engine->gpus[i], err));
    return NIB_OK;
}
