/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of attention as training runs it: keys and values stored in the KV cache, attention
 * with its log-sum-exp, then dq, dk and dv. Compared with central differences of a forward pass in
 * double, and with PyTorch's float64 gradients (tests/golden/attn_dx.txt).
 */
#include "kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "skipping.h"

/* A batch: m tokens of several documents; each token's row holds all its heads. */
typedef struct batch {
    int64_t documents, m, heads, kv_heads, dim;
    int64_t wide; /* dimensions of a value; less than dim: values are the first of the keys' */
    int32_t start[8];
    float scale, cap;
    int64_t window;
    bool chunked;
    float *q, *dout, *out, *dq; /* [m][heads * dim]; dout and out [m][heads * wide] */
    float *k, *v, *dk, *dv;     /* [m][kv_heads * dim]; k and v as the cache holds them */
    float *lse;                 /* [m][heads] */
} batch;

static float *floats(int64_t count)
{
    float *values = calloc((size_t)count + 1, sizeof *values);
    assert_non_null(values);
    return values;
}

static void batch_make(batch *b, const int32_t *lengths, int64_t documents, int64_t heads,
                       int64_t kv_heads, int64_t dim)
{
    *b = (batch){
        .documents = documents, .heads = heads, .kv_heads = kv_heads, .dim = dim, .wide = dim};
    b->scale = 1.0F / sqrtf((float)dim);
    for (int64_t i = 0; i < documents; i++)
        b->start[i + 1] = b->start[i] + lengths[i];
    b->m = b->start[documents];
    float **const wide[] = {&b->q, &b->dout, &b->out, &b->dq};
    float **const narrow[] = {&b->k, &b->v, &b->dk, &b->dv};
    for (size_t i = 0; i < COUNT(wide); i++)
        *wide[i] = floats(b->m * heads * dim), *narrow[i] = floats(b->m * kv_heads * dim);
    b->lse = floats(b->m * heads);
}

static bool is_latent(const batch *b) { return b->wide < b->dim; }

static void batch_free(batch *b)
{
    float *const all[] = {b->q, b->dout, b->out, b->dq, b->k, b->v, b->dk, b->dv, b->lse};
    for (size_t i = 0; i < COUNT(all); i++)
        free(all[i]);
}

static uint32_t random_next(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static void randomize(float *values, int64_t count, uint32_t *state)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(int32_t)random_next(state) * 0x1p-31F;
}

/* ---- the rows ---- */

static const nib_kernel *row(const char *name)
{
    const nib_kernel *found = nib__kernel_find(name);
    assert_non_null(found);
    return found;
}

/* 64-byte aligned, filled with values that no sum may read. */
static void *dirty(size_t bytes)
{
    void *memory = aligned_alloc(64, (size_t)nib__round_up((int64_t)bytes + 1, 64));
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

/* A cache with blocks in descending order. Stores k and v, then reads them back as rounded. */
static nib_cache stored(batch *b, nib_type type, int32_t *sequence, int32_t *position)
{
    int64_t blocks = 1;
    for (int64_t i = 0; i < b->documents; i++)
        for (int32_t t = b->start[i]; t < b->start[i + 1]; t++) {
            sequence[t] = (int32_t)i, position[t] = t - b->start[i];
            blocks = nib__max(blocks, position[t] / NIB_CACHE_BLOCK + 1);
        }
    const int64_t wide = b->kv_heads * b->dim;
    const size_t bytes = (size_t)(b->documents * blocks * NIB_CACHE_BLOCK * wide) * 4;
    int32_t *tables = dirty((size_t)(b->documents * blocks) * sizeof *tables);
    for (int64_t i = 0; i < b->documents * blocks; i++)
        tables[i] = (int32_t)(b->documents * blocks - 1 - i);
    const nib_cache cache = {.keys = dirty(bytes),
                             .values = is_latent(b) ? NULL : dirty(bytes),
                             .value_dim = is_latent(b) ? b->wide : 0,
                             .types = nib__kv_both(type),
                             .tables = tables,
                             .table_ld = blocks,
                             .kv_heads = b->kv_heads,
                             .head_dim = b->dim,
                             .block_bytes = b->kv_heads * nib__cache_bytes(type, b->dim, 64)};
    const nib_store_kv store = {.k = b->k,
                                .v = is_latent(b) ? NULL : b->v,
                                .ld = wide,
                                .m = b->m,
                                .sequence = sequence,
                                .position = position,
                                .cache = cache};
    row("copy_f32__ref")->run.store_kv(&store, 0, b->m);
    float *const both[] = {b->k, b->v};
    for (size_t i = 0; i < COUNT(both); i++) {
        uint16_t half;
        for (int64_t j = 0; type != NIB_TYPE_F32 && j < b->m * wide; j++) {
            nib__from_f32(&half, type, both[i] + j, 1);
            nib__to_f32(both[i] + j, &half, type, 1);
        }
    }
    return cache;
}

static void run_rows(batch *b, nib_type type)
{
    int32_t *sequence = dirty((size_t)b->m * 4), *position = dirty((size_t)b->m * 4);
    const int64_t wide = b->heads * b->dim;
    const nib_cache cache = stored(b, type, sequence, position);
    const nib_attn forward = {.q = b->q,
                              .out = b->out,
                              .ldq = wide,
                              .ldo = b->heads * b->wide,
                              .m = b->m,
                              .heads = b->heads,
                              .sequence = sequence,
                              .position = position,
                              .cache = cache,
                              .scale = b->scale,
                              .lse = b->lse,
                              .window = b->window,
                              .chunked = b->chunked,
                              .cap = b->cap};
    const nib_attn_dx backward = {.q = b->q,
                                  .out = b->out,
                                  .dout = b->dout,
                                  .lse = b->lse,
                                  .dq = b->dq,
                                  .dk = b->dk,
                                  .dv = is_latent(b) ? NULL : b->dv,
                                  .ldq = wide,
                                  .ldo = b->heads * b->wide,
                                  .ldkv = b->kv_heads * b->dim,
                                  .m = b->m,
                                  .heads = b->heads,
                                  .documents = b->documents,
                                  .start = b->start,
                                  .cache = cache,
                                  .scale = b->scale,
                                  .window = b->window,
                                  .chunked = b->chunked,
                                  .cap = b->cap};
    const nib_kernel *attn = row("attn_f32__ref"), *attn_dx = row("attn_dx_f32__ref");
    void *scratch = dirty(attn->scratch(&forward)), *more = dirty(attn_dx->scratch(&backward));
    attn->run.attn(&forward, 0, b->m * b->heads, scratch);
    attn_dx->run.attn_dx(&backward, 0, b->documents * b->kv_heads, more);
    void *const all[] = {cache.keys, cache.values, (void *)(intptr_t)cache.tables, scratch, more,
                         sequence,   position};
    for (size_t i = 0; i < COUNT(all); i++)
        free(all[i]);
}

/* ---- the loss in double ---- */

/* One input value, and how far it is moved. */
typedef struct moved {
    const float *at;
    double by;
} moved;

static double at(const float *p, moved x) { return (double)*p + (p == x.at ? x.by : 0.0); }

/* dout . out of one head of a query, or its log-sum-exp. */
static double query_loss(const batch *b, int64_t document, int64_t token, int64_t head, moved x,
                         double *lse)
{
    const int64_t dim = b->dim, kv_head = head / (b->heads / b->kv_heads);
    const float *q = b->q + (token * b->heads + head) * dim;
    const float *dout = b->dout + (token * b->heads + head) * b->wide;
    const float *v = is_latent(b) ? b->k : b->v;
    double sum = 0.0, loss = 0.0;
    const int64_t first = b->start[document];
    int64_t j = first;
    while (b->window > 0 && (b->chunked ? (j - first) / b->window != (token - first) / b->window
                                        : token - j >= b->window))
        j++;
    for (; j <= token; j++) {
        const int64_t from = (j * b->kv_heads + kv_head) * dim;
        double score = 0.0, product = 0.0;
        for (int64_t d = 0; d < dim; d++) {
            score += at(q + d, x) * at(b->k + from + d, x);
            product += d < b->wide ? (double)dout[d] * at(v + from + d, x) : 0;
        }
        score *= (double)b->scale;
        if (b->cap > 0)
            score = (double)b->cap * tanh(score / (double)b->cap);
        const double e = exp(score); /* scores are small, so no maximum is subtracted */
        sum += e;
        loss += e * product;
    }
    *lse = log(sum);
    return loss / sum;
}

/* The loss over the queries that see a token, for the query heads of one kv head. */
static double loss_from(const batch *b, int64_t document, int64_t token, int64_t last,
                        int64_t kv_head, moved x)
{
    const int64_t share = b->heads / b->kv_heads;
    double sum = 0.0, lse;
    for (int64_t t = token; t < last; t++)
        for (int64_t h = kv_head * share; h < (kv_head + 1) * share; h++)
            sum += query_loss(b, document, t, h, x, &lse);
    return sum;
}

static double difference(const batch *b, int64_t document, int64_t token, int64_t last,
                         int64_t kv_head, const float *at)
{
    const double step = 0x1p-12;
    const moved up = {at, step}, down = {at, -step};
    return (loss_from(b, document, token, last, kv_head, up) -
            loss_from(b, document, token, last, kv_head, down)) /
           (2 * step);
}

/* Tolerance 1e-4 of the value, or of a hundredth of the largest gradient of its kind where sums
 * cancel; 1e-7 where all sums cancel, as for queries that see one position. */
static void expect_close(const char *what, int64_t i, double got, double want, double largest)
{
    const double size = fmax(fmax(fabs(want), 0.01 * largest), 1e-3);
    if (!(fabs(got - want) <= 1e-4 * size))
        fail_msg("%s[%lld] is %.9g, not %.9g", what, (long long)i, got, want);
}

static double largest_of(const float *values, int64_t count)
{
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

/* Some tokens of a document: both ends, those around block boundaries, and random ones. */
static int64_t pick(int64_t i, int64_t length, uint32_t *state)
{
    const int64_t fixed[] = {0, length - 1, 63, 64, length / 2};
    const int64_t chosen = i < (int64_t)COUNT(fixed) ? fixed[i] : random_next(state) >> 8;
    return chosen % length;
}

static void check_token(const batch *b, int64_t document, int64_t token, uint32_t *state)
{
    const int64_t last = b->start[document + 1], share = b->heads / b->kv_heads;
    const int64_t head = random_next(state) % b->heads, kv_head = head / share;
    const int64_t d = random_next(state) % b->dim;
    const int64_t i = (token * b->heads + head) * b->dim + d;
    const int64_t j = (token * b->kv_heads + kv_head) * b->dim + d;
    const int64_t wide = b->m * b->heads * b->dim, narrow = b->m * b->kv_heads * b->dim;
    double lse;
    query_loss(b, document, token, head, (moved){NULL, 0.0}, &lse);
    assert_true(fabs((double)b->lse[token * b->heads + head] - lse) <= 2e-6 * fmax(1.0, lse));
    expect_close("dq", i, (double)b->dq[i],
                 difference(b, document, token, token + 1, kv_head, b->q + i),
                 largest_of(b->dq, wide));
    expect_close("dk", j, (double)b->dk[j], difference(b, document, token, last, kv_head, b->k + j),
                 largest_of(b->dk, narrow));
    if (is_latent(b))
        return;
    expect_close("dv", j, (double)b->dv[j], difference(b, document, token, last, kv_head, b->v + j),
                 largest_of(b->dv, narrow));
}

static void check_batch(batch *b, const int32_t *lengths, nib_type type, int64_t tokens)
{
    uint32_t state = (uint32_t)(b->heads * 1000 + b->dim);
    randomize(b->q, b->m * b->heads * b->dim, &state);
    randomize(b->dout, b->m * b->heads * b->dim, &state);
    randomize(b->k, b->m * b->kv_heads * b->dim, &state);
    randomize(b->v, b->m * b->kv_heads * b->dim, &state);
    run_rows(b, type);
    for (int64_t i = 0; i < b->documents; i++)
        for (int64_t t = 0; t < tokens && lengths[i] > 0; t++)
            check_token(b, i, b->start[i] + pick(t, lengths[i], &state), &state);
    batch_free(b);
}

static void check_limited(const int32_t *lengths, int64_t documents, int64_t heads,
                          int64_t kv_heads, int64_t dim, nib_type type, int64_t tokens,
                          int64_t window, bool chunked, float cap)
{
    batch b;
    batch_make(&b, lengths, documents, heads, kv_heads, dim);
    b.window = window, b.chunked = chunked, b.cap = cap;
    check_batch(&b, lengths, type, tokens);
}

static void check_differences(const int32_t *lengths, int64_t documents, int64_t heads,
                              int64_t kv_heads, int64_t dim, nib_type type, int64_t tokens)
{
    check_limited(lengths, documents, heads, kv_heads, dim, type, tokens, 0, false, 0.0F);
}

static void test_equals_central_differences(void **state)
{
    (void)state;
    static const int32_t around[] = {63, 1, 64, 0, 65}, long_ones[] = {257, 600};
    check_differences(around, 5, 4, 2, 16, NIB_TYPE_F32, 8);
    check_differences(around, 5, 3, 1, 7, NIB_TYPE_BF16, 8);
    check_differences(around, 5, 2, 2, 33, NIB_TYPE_F16, 8);
    check_differences(around, 5, 2, 1, 80, NIB_TYPE_F32, 8);
    check_differences(around, 5, 5, 1, 1, NIB_TYPE_F32, 8);
    check_differences(long_ones, 2, 7, 1, 16, NIB_TYPE_F32, 6);
    check_differences(long_ones, 2, 2, 2, 32, NIB_TYPE_F32, 6);
    check_differences(long_ones, 2, 1, 1, 48, NIB_TYPE_BF16, 6);
}

/* Windows and chunks around the sizes of tiles and blocks, and past the documents; logit caps. */
static void test_windows_and_caps(void **state)
{
    (void)state;
    static const int32_t around[] = {63, 1, 64, 0, 65}, long_ones[] = {257, 600};
    static const int64_t windows[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 256, 700};
    for (size_t i = 0; i < COUNT(windows); i += (size_t)sampled(3)) {
        const float cap = i % 2 == 0 ? 0.0F : 0.5F;
        check_limited(around, 5, 4, 2, 16, NIB_TYPE_F32, 6, windows[i], false, cap);
        check_limited(long_ones, 2, 2, 1, 5, NIB_TYPE_F32, 6, windows[i], false, cap);
        check_limited(around, 5, 4, 2, 16, NIB_TYPE_F32, 6, windows[i], true, cap);
        check_limited(long_ones, 2, 2, 1, 5, NIB_TYPE_F32, 6, windows[i], true, cap);
    }
    check_limited(around, 5, 3, 1, 7, NIB_TYPE_BF16, 8, 0, false, 0.25F);
    check_limited(long_ones, 2, 2, 2, 32, NIB_TYPE_F32, 6, 0, false, 1.0F);
    check_limited(long_ones, 2, 1, 1, 16, NIB_TYPE_F16, 6, 70, false, 30.0F);
}

/* Values are the first dimensions of the keys: the gradient of a key is also that of its value. */
static void test_values_in_keys(void **state)
{
    (void)state;
    static const int32_t around[] = {63, 1, 64, 0, 65}, long_ones[] = {257, 600};
    static const struct {
        int64_t heads, kv_heads, dim, wide;
        nib_type type;
        float cap;
    } shapes[] = {{4, 1, 24, 18, NIB_TYPE_F32, 0},
                  {6, 2, 40, 32, NIB_TYPE_BF16, 0},
                  {3, 1, 17, 16, NIB_TYPE_F16, 0.5F},
                  {5, 1, 9, 1, NIB_TYPE_F32, 0}};
    for (size_t i = 0; i < 2 * COUNT(shapes); i++) {
        const bool few = i % 2 == 0;
        batch b;
        batch_make(&b, few ? around : long_ones, few ? 5 : 2, shapes[i / 2].heads,
                   shapes[i / 2].kv_heads, shapes[i / 2].dim);
        b.wide = shapes[i / 2].wide, b.cap = shapes[i / 2].cap;
        b.window = few ? 0 : 70;
        check_batch(&b, few ? around : long_ones, shapes[i / 2].type, 6);
    }
}

/* ---- PyTorch ---- */

/* A line: a name, then values. */
static void read_values(FILE *file, const char *name, float *values, int64_t count)
{
    char word[16];
    assert_int_equal(fscanf(file, "%15s", word), 1);
    assert_string_equal(word, name);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(fscanf(file, "%f", values + i), 1);
}

static void expect_golden(FILE *file, const char *name, const float *got, int64_t count)
{
    float *want = floats(count);
    read_values(file, name, want, count);
    const double largest = largest_of(want, count);
    for (int64_t i = 0; i < count; i++)
        expect_close(name, i, (double)got[i], (double)want[i], largest);
    free(want);
}

static void test_equals_pytorch(void **state)
{
    (void)state;
    FILE *file = fopen("tests/golden/attn_dx.txt", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "#%*[^\n]"), 0);
    long long heads, kv_heads, dim, documents, cases = 0;
    while (fscanf(file, " case %lld %lld %lld %lld", &heads, &kv_heads, &dim, &documents) == 4) {
        batch b;
        int32_t lengths[COUNT(b.start) - 1];
        assert_in_range(documents, 1, COUNT(lengths));
        for (long long i = 0; i < documents; i++)
            assert_int_equal(fscanf(file, "%d", &lengths[i]), 1);
        batch_make(&b, lengths, documents, heads, kv_heads, dim);
        long long window = 0;
        if (fscanf(file, " window %lld cap %f", &window, &b.cap) == 2)
            b.window = window;
        const int64_t wide = b.m * heads * dim, narrow = b.m * kv_heads * dim;
        read_values(file, "q", b.q, wide);
        read_values(file, "k", b.k, narrow);
        read_values(file, "v", b.v, narrow);
        read_values(file, "dout", b.dout, wide);
        run_rows(&b, NIB_TYPE_F32);
        expect_golden(file, "out", b.out, wide);
        expect_golden(file, "lse", b.lse, b.m * heads);
        expect_golden(file, "dq", b.dq, wide);
        expect_golden(file, "dk", b.dk, narrow);
        expect_golden(file, "dv", b.dv, narrow);
        batch_free(&b);
        cases++;
    }
    assert_int_equal(cases, 8);
    assert_int_equal(fclose(file), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_central_differences),
        cmocka_unit_test(test_windows_and_caps),
        cmocka_unit_test(test_values_in_keys),
        cmocka_unit_test(test_equals_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
