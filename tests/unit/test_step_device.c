/* SPDX-License-Identifier: Apache-2.0
 *
 * Training on a device, if there is one (PoCL in CI): the products of one layer and a whole
 * micro-batch against the CPU, with all or some layers on the device. The copies that the plan
 * reports are those that the micro-batch makes.
 */
#include "skipping.h"
#include "step_fixture.h"

#include "cast.h"
#include "sample.h"

/* One for all tests, so that each kernel is compiled once. */
static nib_engine *shared;
static const char *device, *no_device = SKIP_OPENCL;

static int find_device(void **state)
{
    const nib_engine_options options = {.threads = 1};
    nib_err err;
    (void)state;
    if (SANITIZED) {
        no_device = SKIP_SANITIZED;
        return 0;
    }
    ok(nib_engine_open(&shared, &options, &err), &err);
    ok(nib__engine_find_gpus(shared, &err), &err);
    for (size_t i = 0; i < shared->gpu_count && device == NULL; i++)
        if (shared->gpus[i].machine.facts.fact[NIB_FACT_DEVICE] == NIB_DEVICE_OPENCL)
            device = shared->gpus[i].name;
    return 0;
}

static int leave_device(void **state)
{
    (void)state;
    nib_engine_close(shared);
    return 0;
}

/* sqrt(sum (a - b)^2 / sum b^2) */
static double relative_error(const float *a, const float *b, size_t count)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        const double d = (double)a[i] - (double)b[i];
        off += d * d, all += (double)b[i] * (double)b[i];
    }
    return sqrt(off / all);
}

/* ---- one layer: both sides have the same operands, so only the order of sums differs ---- */

enum { M = 70, N = 141, K = 100 }; /* short last blocks in each product's direction */

typedef struct layer {
    nib_engine *engine;
    nib_gpu *gpu;
    nib_assignment here, there;
    bool wgrad_with_hp;
    float *x, *w, *dy; /* [M][K], [N][K], [M][N] */
} layer;

static float *make_values(int64_t count, int64_t sequence)
{
    float *to = malloc((size_t)count * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)((nib__random(7, sequence, i) - 0.5) * (i % 97 == 0 ? 20 : 1));
    return to;
}

static void plan_on(nib_assignment *out, const nib_layer *l, const nib_machine *machine,
                    nib_type dtype, bool hp, nib_engine *engine)
{
    nib_err err;
    const nib_policy policy = {.dtype = dtype, .training = true, .m = M, .wgrad_with_hp = hp};
    ok(nib__plan_layers(out, l, 1, machine, &policy, &engine->allocator, &err), &err);
    ok(out->denied.status, &out->denied);
}

static void *upload(const layer *l, const void *from, size_t bytes)
{
    nib_err err;
    void *to;
    ok(nib__gpu_alloc(l->gpu, bytes, "a test", &to, &err), &err);
    if (from)
        ok(nib__gpu_write(l->gpu, to, from, bytes, &err), &err);
    return to;
}

/* One product into y [rows][n]. */
static void run_product(const layer *l, const nib_assignment *plan, int which, float *y)
{
    nib_err err;
    nib_product p;
    uint64_t form_bytes;
    const bool dw = which == NIB_PRODUCT_DW;
    const int64_t rows = dw ? N : M, columns = which == NIB_PRODUCT_Y ? K : N;
    ok(nib__product_find(&p, plan, &plan->layers[0], which, M, l->wgrad_with_hp, &err), &err);
    const size_t y_bytes = (size_t)(rows * p.shape.n) * sizeof(float),
                 packed_bytes = (size_t)nib__cast_bytes(p.row, &p.shape);
    nib__product_input(&p, rows, NULL, &form_bytes);
    float *left = which == NIB_PRODUCT_Y ? l->x : l->dy, *right = dw ? l->x : l->w, *to = y;
    const size_t right_rows = dw ? M : N;
    const bool is_there = p.row->gpu != NULL;
    const uint64_t scratch = nib__product_scratch(&p, rows);
    nib_workers workers = {.pool = l->engine->pool, .gpu = l->gpu, .scratch_bytes = scratch};
    char *form, *packed;
    float *amax;
    if (is_there) {
        left = upload(l, left, (size_t)(M * columns) * sizeof(float));
        right = upload(l, right, right_rows * K * sizeof(float));
        to = upload(l, NULL, y_bytes);
        form = upload(l, NULL, form_bytes + 1), packed = upload(l, NULL, packed_bytes);
        amax = upload(l, NULL, 64);
    } else {
        form = nib__block_take(form_bytes + 1), packed = nib__block_take(packed_bytes);
        amax = nib__block_take(64), workers.scratch = nib__block_take(scratch + 1);
    }
    nib_input x = nib__product_input(&p, rows, form, NULL);
    if (p.x_amax)
        ok(nib__product_amax(p.amax, &workers, left, M, columns, columns, amax, &err), &err);
    if (p.quant)
        ok(nib__product_quant(&p, &workers, left, columns, amax, &x, &err), &err);
    else
        x.f32 = left, x.ld = columns;
    if (p.w_amax)
        ok(nib__product_amax(p.amax, &workers, right, (int64_t)right_rows, K, K, amax, &err), &err);
    ok(nib__product_cast(&p, &workers, right, K, amax, packed, &err), &err);
    ok(nib__product_run(&p, &workers, &x, packed, NULL, to, p.shape.n, &err), &err);
    if (is_there) {
        ok(nib__gpu_read(l->gpu, y, to, y_bytes, &err), &err);
        void *all[] = {left, right, to, form, packed, amax};
        for (size_t i = 0; i < COUNT(all); i++)
            nib__gpu_free(l->gpu, all[i]);
    } else {
        nib__block_free(form, form_bytes + 1), nib__block_free(packed, packed_bytes);
        nib__block_free(amax, 64), nib__block_free(workers.scratch, scratch + 1);
    }
}

static void check_layer(layer *l, const char *scheme, nib_type dtype)
{
    static const char *const names[] = {"y", "dx", "dw"};
    static float a[N * K + M * N], b[N * K + M * N];
    const size_t sizes[] = {M * N, M * K, N * K};
    nib_layer of = {.name = "layer", .role = NIB_ROLE_UP, .n = N, .k = K};
    nib_err err;
    ok(nib__scheme_parse(&of.asked, scheme, strlen(scheme), &err), &err);
    of.stored = (nib_scheme){.code = NIB_CODE_F32, .symmetric = true};
    plan_on(&l->here, &of, &l->engine->here, dtype, l->wgrad_with_hp, l->engine);
    plan_on(&l->there, &of, nib__engine_gpu_find(l->engine, device), dtype, l->wgrad_with_hp,
            l->engine);
    for (int p = 0; p < NIB_PRODUCTS; p++) {
        run_product(l, &l->here, p, b);
        run_product(l, &l->there, p, a);
        const double off = relative_error(a, b, sizes[p]);
        if (!(off < 1e-6))
            fail_msg("%s, %s: %g", scheme, names[p], off);
    }
    nib__assignment_free(&l->here);
    nib__assignment_free(&l->there);
}

static void test_one_layer(void **state)
{
    static const char *const schemes[] = {"bf16", "fp8dq", "fp8dq-tensor", "mxfp8", "mxfp8-floor"};
    layer l = {.engine = shared};
    nib_err err;
    (void)state;
    if (device == NULL)
        skip_test(__func__, no_device);
    ok(nib__engine_gpu(&l.gpu, l.engine, nib__engine_gpu_find(l.engine, device), &err), &err);
    l.x = make_values(M * K, 1), l.w = make_values(N * K, 2), l.dy = make_values(M * N, 3);
    check_layer(&l, "f32", NIB_TYPE_F32);
    for (size_t i = 0; i < COUNT(schemes); i++) {
        l.wgrad_with_hp = false;
        check_layer(&l, schemes[i], NIB_TYPE_BF16);
        l.wgrad_with_hp = true;
        check_layer(&l, schemes[i], NIB_TYPE_BF16);
    }
    free(l.x), free(l.w), free(l.dy);
}

/* ---- a micro-batch ---- */

/* Reads the copies from the plan's note. */
static void read_moves_note(const fixture *f, double *copies, char bytes[32])
{
    for (size_t i = 0; i < f->plan->assignment.ledger.note_count; i++) {
        const nib_reason *n = &f->plan->assignment.ledger.notes[i];
        if (strcmp(n->code, "moves") == 0 &&
            sscanf(n->text, "%lf copies of %31[^p]per", copies, bytes) == 2)
            return;
    }
    fail_msg("no note of what moves");
}

static void check_moves(const fixture *f)
{
    const nib_step *s = &f->step;
    double copies, moves = 0, bytes = 0;
    char said[32], moved[32];
    read_moves_note(f, &copies, said);
    for (size_t i = 0; i < s->count; i++) {
        const nib_train_node *n = &s->nodes[i];
        const bool gradient = n->op == NIB_OP_LINEAR_DW && n->side == NIB_SIDE_GPU;
        moves += gradient || n->op == NIB_OP_MOVE;
        if (gradient)
            bytes += 4 * (double)nib__param_size(&f->params.items[n->param]);
        else if (n->op == NIB_OP_MOVE)
            bytes += 4 * (double)s->m * (double)n->columns;
    }
    nib__format_bytes(moved, (uint64_t)bytes);
    said[strlen(moved)] = '\0'; /* without the trailing blank */
    if (moves != copies || strcmp(said, moved) != 0)
        fail_msg("%.0f moves of %s, but %.0f of %s are said", moves, moved, copies, said);
}

/* Loss and gradients of `s` on the device equal the CPU's, except where sums in another order make
 * a cast round differently. */
static void check_device(const setting *s, double limit)
{
    fixture here, there;
    setting on = *s;
    on.engine = shared;
    open_fixture(&there, &on);
    on.device = on.place = NULL;
    open_fixture(&here, &on);
    check_moves(&there);
    const double want = run(&here, here.gradients), loss = run(&there, there.gradients);
    if (!(fabs(loss - want) < limit * want))
        fail_msg("%s %s: loss %.9g, not %.9g", s->name, s->recipe ? s->recipe : "f32", loss, want);
    const double off = relative_error(there.gradients, here.gradients, here.params.total);
    if (!(off < limit))
        fail_msg("%s %s %s: gradients are off by %g", s->name, s->recipe ? s->recipe : "f32",
                 s->place ? s->place : "", off);
    assert_true(run(&there, NULL) == loss);
    close_fixture(&here);
    close_fixture(&there);
}

/* Norms before and after blocks, per head and over all heads; a norm shared by attention and the
 * MLP; an MLP without a gate; scaled logits. */
static const char *const families[] = {"llama",  "qwen2",   "qwen3",      "olmo2",
                                       "gemma2", "cohere2", "starcoder2", "granite"};

static void test_micro_batch(void **state)
{
    static const char *const recipes[] = {
        "bf16",
        "mxfp8+head",
        "mxfp8-floor+head",
        "fp8dq+head",
        "fp8dq-tensor+head",
        ("{\"rules\": [{\"match\": \"*k_proj\", \"scheme\": \"bf16\"}, {\"match\": \"*up_proj\", "
         "\"scheme\": \"bf16\"}], \"else\": \"mxfp8\"}")};
    (void)state;
    if (device == NULL)
        skip_test(__func__, no_device);
    for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++) {
        for (size_t i = 0; i < COUNT(families); i++)
            check_device(
                &(setting){.name = families[i], .device = device, .checkpointing = (nib_ac)ac},
                1e-5);
        for (size_t i = 0; i < COUNT(recipes); i++)
            check_device(&(setting){.name = "qwen2",
                                    .device = device,
                                    .dtype = "bf16",
                                    .recipe = recipes[i],
                                    .wgrad_with_hp = ac == NIB_AC_SELECTIVE,
                                    .checkpointing = (nib_ac)ac},
                         2e-2);
    }
}

/* Some layers on the device: layers that share an input are on both sides. */
static void test_some_layers(void **state)
{
    static const char *const patterns[] = {"*k_proj", "*down_proj", "*up_proj", "*o_proj",
                                           "lm_head"};
    (void)state;
    if (device == NULL)
        skip_test(__func__, no_device);
    for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++)
        for (size_t i = 0; i < COUNT(patterns); i++) {
            char place[64];
            snprintf(place, sizeof place, "%s=%s", patterns[i], device);
            check_device(&(setting){.name = "llama", .place = place, .checkpointing = (nib_ac)ac},
                         1e-5);
            check_device(&(setting){.name = "gemma2", .place = place, .checkpointing = (nib_ac)ac},
                         1e-5);
        }
}

/* The host makes the codes and the device multiplies their values. */
static void test_qat(void **state)
{
    (void)state;
    if (device == NULL)
        skip_test(__func__, no_device);
    for (int ac = NIB_AC_NONE; ac <= NIB_AC_FULL; ac++)
        check_device(&(setting){.name = "qwen2",
                                .device = device,
                                .recipe = "8da4w-g8+head",
                                .qat = "qat_8da4w",
                                .checkpointing = (nib_ac)ac},
                     1e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_layer),
        cmocka_unit_test(test_micro_batch),
        cmocka_unit_test(test_some_layers),
        cmocka_unit_test(test_qat),
    };
    return cmocka_run_group_tests(tests, find_device, leave_device);
}
