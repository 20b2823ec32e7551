/* SPDX-License-Identifier: Apache-2.0
 *
 * Tries single layers. The error of a product is |a - b| / |b| over all its values (Frobenius
 * norms), where b is computed from the same inputs in f32.
 */
#include "dry_run.h"

#include "cast.h"
#include "sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Inputs and results of one layer's products. */
typedef struct trial {
    const nib_plan *plan;
    const nib_layer *layer;
    int64_t m;
    nib_arena arena;
    nib_workers workers;
    float *x, *w, *dy;               /* [m][k], [n][k], [m][n] */
    float *results[NIB_PRODUCTS][2]; /* as planned, and in f32 */
    double seconds[NIB_PRODUCTS][2]; /* of the product, of encoding its sides */
    double errors[NIB_PRODUCTS];
    nib_assignment exact; /* the layer in f32 */
    uint64_t done, all;   /* rows of products, for the progress */
} trial;

static nib_status fail_memory(const trial *t, uint64_t bytes, nib_err *err)
{
    char size[32];
    return nib__fail(err, NIB_NO_MEMORY,
                     "out of memory: cannot allocate %s to try %s with %" PRId64
                     " tokens; lower training.local_batch_size or training.seq_len",
                     nib__format_bytes(size, bytes), t->layer->name, t->m);
}

/* Reports progress; fails if the caller cancels. */
static nib_status report_rows(trial *t, int64_t rows, nib_err *err)
{
    t->done += (uint64_t)rows;
    if (nib__engine_progress(t->plan->model->engine, "try", t->done, t->all))
        return NIB_OK;
    return nib__fail(err, NIB_CANCELLED, "the dry run was cancelled");
}

/* ---- values ---- */

typedef struct fill {
    float *to;
    int64_t sequence;
} fill;

/* Normal values with a few large ones, as activations and gradients have. */
static void job_fill(void *ctx, int worker, int64_t begin, int64_t end)
{
    const fill *f = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        f->to[i] = (float)(nib__random_normal(0, f->sequence, i) * (i % 997 == 0 ? 20.0 : 1.0));
}

static float *random_values(trial *t, int64_t count, int64_t sequence)
{
    fill f = {nib__arena_take(&t->arena, (uint64_t)count, sizeof(float)), sequence};
    if (f.to != NULL)
        nib__pool_run(t->workers.pool, count, 4096, false, job_fill, &f);
    return f.to;
}

static nib_status allocate_values(trial *t, nib_err *err)
{
    const int64_t n = t->layer->n, k = t->layer->k;
    const int64_t sizes[NIB_PRODUCTS] = {t->m * n, t->m * k, n * k};
    const uint64_t all = 3 * (uint64_t)(sizes[0] + sizes[1] + sizes[2]) * sizeof(float);
    t->x = random_values(t, t->m * k, 1);
    t->w = random_values(t, n * k, 2);
    t->dy = random_values(t, t->m * n, 3);
    bool ok = t->x && t->w && t->dy;
    for (int p = 0; p < NIB_PRODUCTS; p++)
        for (int i = 0; i < 2; i++) {
            t->results[p][i] = nib__arena_take(&t->arena, (uint64_t)sizes[p], sizeof(float));
            ok = ok && t->results[p][i] != NULL;
        }
    return ok ? NIB_OK : fail_memory(t, all, err);
}

/* ---- one product ---- */

/* Memory of a product where it runs: its encoded sides, and on a device copies of their f32 sources
 * and of the result. */
typedef struct sides {
    nib_gpu *gpu; /* NULL: the CPU */
    char *form, *packed;
    float *amax, *left, *right, *y;
    size_t form_bytes, packed_bytes, amax_bytes, scratch_bytes;
} sides;

static void free_sides(trial *t, const sides *s)
{
    void *blocks[] = {s->form, s->packed, s->amax, s->left, s->right, s->y};
    for (size_t i = 0; s->gpu != NULL && i < COUNT(blocks); i++)
        nib__gpu_free(s->gpu, blocks[i]);
    if (s->gpu != NULL)
        return;
    nib__block_free(s->form, s->form_bytes);
    nib__block_free(s->packed, s->packed_bytes);
    nib__block_free(s->amax, s->amax_bytes);
    nib__block_free(t->workers.scratch, s->scratch_bytes);
    t->workers.scratch = NULL;
}

static nib_status allocate_host(trial *t, sides *s, nib_err *err)
{
    s->form = nib__block_take(s->form_bytes);
    s->packed = nib__block_take(s->packed_bytes);
    s->amax = nib__block_take(s->amax_bytes);
    t->workers.scratch = nib__block_take(s->scratch_bytes);
    return s->form && s->packed && s->amax && t->workers.scratch
               ? NIB_OK
               : fail_memory(t, s->form_bytes + s->packed_bytes, err);
}

/* The f32 matrices that a product's sides are encoded from. */
typedef struct matrices {
    float *left, *right, *y;          /* in host memory */
    int64_t left_columns, right_rows; /* left is [m][left_columns], right [right_rows][k] */
    size_t left_bytes, right_bytes, y_bytes;
} matrices;

static matrices matrices_of(const trial *t, const nib_product *p, int which, int result)
{
    const nib_layer *l = t->layer;
    const bool y = which == NIB_PRODUCT_Y, dw = which == NIB_PRODUCT_DW;
    matrices m = {.left = y ? t->x : t->dy,
                  .right = dw ? t->x : t->w,
                  .y = t->results[which][result],
                  .left_columns = y ? l->k : l->n,
                  .right_rows = dw ? t->m : l->n};
    m.left_bytes = (size_t)(t->m * m.left_columns) * sizeof(float);
    m.right_bytes = (size_t)(m.right_rows * l->k) * sizeof(float);
    m.y_bytes = (size_t)(nib__product_rows(l, which, t->m) * p->shape.n) * sizeof(float);
    return m;
}

static nib_status allocate_piece(nib_gpu *gpu, uint64_t bytes, char **to, nib_err *err)
{
    void *at;
    NIB_TRY(nib__gpu_alloc(gpu, bytes, "a trial layer", &at, err));
    *to = at;
    return NIB_OK;
}

static nib_status allocate_device(sides *s, const matrices *m, nib_err *err)
{
    char *amax, *left, *right, *y;
    NIB_TRY(allocate_piece(s->gpu, s->form_bytes, &s->form, err));
    NIB_TRY(allocate_piece(s->gpu, s->packed_bytes, &s->packed, err));
    NIB_TRY(allocate_piece(s->gpu, s->amax_bytes, &amax, err));
    s->amax = (float *)(void *)amax;
    NIB_TRY(allocate_piece(s->gpu, m->left_bytes, &left, err));
    s->left = (float *)(void *)left;
    NIB_TRY(allocate_piece(s->gpu, m->right_bytes, &right, err));
    s->right = (float *)(void *)right;
    NIB_TRY(allocate_piece(s->gpu, m->y_bytes, &y, err));
    s->y = (float *)(void *)y;
    NIB_TRY(nib__gpu_write(s->gpu, s->left, m->left, m->left_bytes, err));
    return nib__gpu_write(s->gpu, s->right, m->right, m->right_bytes, err);
}

static nib_status allocate_sides(trial *t, sides *s, const nib_product *p, const matrices *m,
                                 int64_t rows, nib_err *err)
{
    uint64_t bytes;
    nib__product_input(p, rows, NULL, &bytes);
    t->workers.scratch_bytes = (nib__product_scratch(p, rows) + 63) & ~UINT64_C(63);
    *s = (sides){
        .form_bytes = (size_t)bytes + 1,
        .packed_bytes = (size_t)nib__cast_bytes(p->row, &p->shape),
        .amax_bytes = (size_t)(nib__max(t->m, t->layer->n) / NIB_TRAIN_ROWS + 2) * sizeof(float),
        .scratch_bytes =
            (size_t)t->workers.scratch_bytes * (size_t)nib__pool_threads(t->workers.pool) + 1,
        .left = m->left,
        .right = m->right,
        .y = m->y};
    if (p->row->gpu != NULL) {
        s->left = s->right = s->y = NULL;
        s->gpu = t->workers.gpu;
    }
    const nib_status status =
        s->gpu != NULL ? allocate_device(s, m, err) : allocate_host(t, s, err);
    if (status != NIB_OK)
        free_sides(t, s);
    return status;
}

/* Waits for the device. */
static nib_status wait_device(const sides *s, nib_err *err)
{
    return s->gpu != NULL ? nib__gpu_finish(s->gpu, err) : NIB_OK;
}

/* Encodes both sides from f32. If the product takes f32 rows, *x points to them. */
static nib_status encode_sides(trial *t, const sides *s, const nib_product *p, const matrices *m,
                               nib_input *x, nib_err *err)
{
    const int64_t columns = m->left_columns, k = t->layer->k;
    if (p->x_amax)
        NIB_TRY(
            nib__product_amax(p->amax, &t->workers, s->left, t->m, columns, columns, s->amax, err));
    if (p->quant) {
        NIB_TRY(nib__product_quant(p, &t->workers, s->left, columns, s->amax, x, err));
    } else {
        x->f32 = s->left;
        x->ld = columns;
    }
    if (p->w_amax)
        NIB_TRY(
            nib__product_amax(p->amax, &t->workers, s->right, m->right_rows, k, k, s->amax, err));
    NIB_TRY(nib__product_cast(p, &t->workers, s->right, k, s->amax, s->packed, err));
    return wait_device(s, err);
}

static double now(void) { return (double)nib__now_ns() * 1e-9; }

/* Runs the product in pieces of about a second, so that it can be cancelled in between. */
static nib_status run_rows(trial *t, const nib_product *p, const sides *s, const nib_input *x,
                           nib_err *err)
{
    enum { LEAST = 1 << 12 /* rows, enough for all threads */ };
    const double operations = 2.0 * (double)p->shape.n * (double)p->shape.k;
    const int64_t some = nib__max(LEAST, (int64_t)(1e11 / operations));
    for (int64_t at = 0; at < x->m; at += some) {
        const int64_t end = nib__min(at + some, x->m);
        const nib_input rows = nib__product_input_rows(p, x, at, end);
        NIB_TRY(nib__product_run(p, &t->workers, &rows, s->packed, NULL, s->y + at * p->shape.n,
                                 p->shape.n, err));
        NIB_TRY(wait_device(s, err));
        NIB_TRY(report_rows(t, end - at, err));
    }
    return NIB_OK;
}

/* Runs one product twice and times the second, warm run. */
static nib_status run_product(trial *t, const nib_assignment *plan, const nib_layer_plan *uses,
                              int which, int result, nib_err *err)
{
    nib_product p;
    sides s;
    const int64_t rows = nib__product_rows(t->layer, which, t->m);
    NIB_TRY(nib__product_find(&p, plan, uses, which, t->m, t->plan->policy.wgrad_with_hp, err));
    const matrices m = matrices_of(t, &p, which, result);
    NIB_TRY(allocate_sides(t, &s, &p, &m, rows, err));
    nib_status status = NIB_OK;
    for (int i = 0; i < 2 && status == NIB_OK; i++) {
        nib_input x = nib__product_input(&p, rows, s.form, NULL);
        const double start = now();
        status = encode_sides(t, &s, &p, &m, &x, err);
        const double made = now();
        if (status == NIB_OK)
            status = run_rows(t, &p, &s, &x, err);
        if (result == 0) {
            t->seconds[which][0] = now() - made;
            t->seconds[which][1] = made - start;
        }
    }
    if (status == NIB_OK && s.gpu != NULL)
        status = nib__gpu_read(s.gpu, m.y, s.y, m.y_bytes, err);
    free_sides(t, &s);
    return status;
}

static double relative_error(const float *a, const float *b, int64_t count)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = (double)a[i] - (double)b[i];
        off += d * d;
        all += (double)b[i] * (double)b[i];
    }
    return all > 0 ? sqrt(off / all) : 0;
}

/* ---- one layer ---- */

/* Plans the same layer with f32 products on the CPU, for comparison. */
static nib_status plan_f32(trial *t, nib_layer *layer, nib_err *err)
{
    nib_policy policy = t->plan->policy;
    *layer = *t->layer;
    layer->asked = layer->stored =
        (nib_scheme){.code = NIB_CODE_F32, .symmetric = true, .act_symmetric = true};
    layer->scale_type = layer->zero_type = NIB_TYPE_NONE;
    policy.dtype = NIB_TYPE_F32;
    policy.allow = policy.kernel = policy.place = (nib_strings){0};
    policy.detail = NULL;
    return nib__plan_layers(&t->exact, layer, 1, nib__plan_host(&t->plan->assignment), &policy,
                            &t->plan->model->engine->allocator, err);
}

static nib_status run_layer(trial *t, const nib_layer_plan *uses, nib_err *err)
{
    nib_layer layer;
    for (int p = 0; p < NIB_PRODUCTS; p++) /* planned and f32, each twice */
        t->all += 4 * (uint64_t)nib__product_rows(t->layer, p, t->m);
    NIB_TRY(report_rows(t, 0, err));
    NIB_TRY(allocate_values(t, err));
    if (t->plan->assignment.gpu != NULL)
        NIB_TRY(
            nib__engine_gpu(&t->workers.gpu, t->plan->model->engine, t->plan->assignment.gpu, err));
    NIB_TRY(plan_f32(t, &layer, err));
    nib_status status = NIB_OK;
    for (int p = 0; p < NIB_PRODUCTS && status == NIB_OK; p++) {
        const int64_t n = t->layer->n, k = t->layer->k;
        const int64_t size = p == NIB_PRODUCT_Y ? t->m * n : p == NIB_PRODUCT_DX ? t->m * k : n * k;
        status = run_product(t, &t->plan->assignment, uses, p, 0, err);
        if (status == NIB_OK)
            status = run_product(t, &t->exact, &t->exact.layers[0], p, 1, err);
        if (status == NIB_OK)
            t->errors[p] = relative_error(t->results[p][0], t->results[p][1], size);
    }
    nib__assignment_free(&t->exact);
    return status;
}

/* ---- the report ---- */

/* Whether two layers have the same work. --place and --kernel may separate layers of one shape. */
static bool is_same_work(const nib_layer_plan *a, const nib_layer_plan *b)
{
    bool same = a->layer->n == b->layer->n && a->layer->k == b->layer->k &&
                a->machine == b->machine && nib__scheme_equal(&a->done, &b->done);
    for (int u = 0; same && u < NIB_PRODUCTS; u++)
        same = a->uses[u].kernel == b->uses[u].kernel;
    return same;
}

static void write_layer(nib_text *text, const trial *t, const nib_layer_plan *uses, int64_t count)
{
    static const char *const names[NIB_PRODUCTS] = {"y", "dx", "dw"};
    char scheme[64];
    nib__text_format(text, "%s: %" PRId64 " of n %" PRId64 ", k %" PRId64 ", m %" PRId64 ", %s\n",
                     t->layer->name, count, t->layer->n, t->layer->k, t->m,
                     nib__scheme_name(scheme, &uses->done));
    const double operations = 2.0 * (double)t->m * (double)t->layer->n * (double)t->layer->k;
    for (int p = 0; p < NIB_PRODUCTS; p++)
        nib__text_format(text,
                         "  %-2s  %9.3f ms  %7.1f G operations/s  sides %8.3f ms  error %.2e  %s\n",
                         names[p], t->seconds[p][0] * 1e3, operations / t->seconds[p][0] * 1e-9,
                         t->seconds[p][1] * 1e3, t->errors[p], uses->uses[p].kernel->name);
}

/* The number of layers with the work of layer i; 0 if an earlier layer has the same. */
static int64_t count_alike(const nib_assignment *plan, size_t i)
{
    for (size_t j = 1; j < i; j++)
        if (is_same_work(&plan->layers[j], &plan->layers[i]))
            return 0;
    int64_t count = 0;
    for (size_t j = i; j < plan->count; j++)
        count += is_same_work(&plan->layers[j], &plan->layers[i]);
    return count;
}

static nib_status try_layers(nib_model *model, const nib_plan *plan, nib_text *text,
                             const nib_sink *sink, nib_err *err)
{
    double step = 0;
    for (size_t i = 1; i < plan->assignment.count; i++) {
        const nib_layer_plan *uses = &plan->assignment.layers[i];
        const int64_t count = count_alike(&plan->assignment, i);
        if (count == 0)
            continue;
        trial t = {.plan = plan,
                   .layer = uses->layer,
                   .m = plan->policy.m,
                   .workers = {.pool = model->engine->pool}};
        nib__arena_init(&t.arena, &model->engine->allocator, 0);
        const nib_status status = run_layer(&t, uses, err);
        if (status == NIB_OK)
            write_layer(text, &t, uses, count);
        for (int p = 0; p < NIB_PRODUCTS; p++)
            step += (double)count * (t.seconds[p][0] + t.seconds[p][1]);
        nib__arena_free(&t.arena);
        NIB_TRY(status);
        NIB_TRY(nib__text_flush(text, sink, err));
    }
    nib__text_format(text, "linear layers of a micro-batch: %.3f s\n", step);
    return NIB_OK;
}

static nib_status write_memory(const nib_trainer *t, nib_text *text, const nib_sink *sink,
                               nib_err *err)
{
    char all[32], block[32], buffers[32];
    const int sums = nib__trainer_sums(t);
    const uint64_t parameters = t->params.total * sizeof(float);
    nib__text_format(text,
                     "memory of %s: %s (%" PRIu64
                     " parameters, %s each for weights, two moments and %d sum%s of gradients; %s "
                     "for a micro-batch)\n",
                     nib_ranks_count(t->ranks) > 1 ? "each rank" : "a run",
                     nib__format_bytes(all, nib__trainer_bytes(t)), t->params.values,
                     nib__format_bytes(block, parameters), sums, sums == 1 ? "" : "s",
                     nib__format_bytes(buffers, nib__step_bytes(&t->step)));
    if (nib__step_device_bytes(&t->step) > 0)
        nib__text_format(text, "memory on %s: %s\n", t->plan->assignment.gpu->name,
                         nib__format_bytes(all, nib__step_device_bytes(&t->step)));
    return nib__text_flush(text, sink, err);
}

nib_status nib__dry_run(nib_model *model, const nib_plan *plan, nib_ranks *ranks, nib_plan **ran,
                        const nib_sink *sink, nib_err *err)
{
    if (nib_ranks_rank(ranks) > 0) /* only rank 0 tries and reports */
        return NIB_OK;
    nib_trainer t;
    nib_text text;
    NIB_TRY(nib__trainer_measure(&t, model, plan, ranks, err));
    nib__text_init(&text, &model->engine->allocator);
    nib_status status = write_memory(&t, &text, sink, err);
    if (status == NIB_OK)
        status = try_layers(model, t.plan, &text, sink, err);
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    nib__trainer_give_plan(&t, ran);
    nib__trainer_close(&t);
    return status;
}
