/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of the methods gptq and qronos: second moments, their factor, and the sweep over a
 * row, with each instruction set; their store of codes.
 */
enum { K = 200 };
#include "../sweeping.h"

static void sum_moments(double *h, const nib_moments_rows *rows, int64_t parts)
{
    static float scratch[NIB_MOMENTS_SCRATCH / sizeof(float)];
    const int64_t tiles = nib__moments_tiles(K, false);
    memset(h, 0, K * K * sizeof *h);
    for (int64_t t = 0; t < TOKENS; t += NIB_MOMENTS_TOKENS) {
        const nib_moments_add a = {
            .h = h, .x = x[t], .k = K, .ld = K, .m = nib__min(NIB_MOMENTS_TOKENS, TOKENS - t)};
        for (int64_t p = 0; p < parts; p++)
            rows->add(&a, tiles * p / parts, tiles * (p + 1) / parts, scratch);
    }
}

static void test_moments(void **state)
{
    static double h[K * K], best[K * K];
    (void)state;
    sum_moments(h, &nib__moments__ref, 1);
    sum_moments(best, nib__moments_best(nib__cpu_isa()), 3);
    assert_memory_equal(h, best, sizeof h);
    for (int i = 0; i < K; i++)
        for (int j = 0; j < K; j++) {
            const double off = fabs(h[i * K + j] - (j >= i ? want[i * K + j] : 0));
            if (!(off <= 1e-6 * sqrt(want[i * K + i] * want[j * K + j])))
                fail_msg("H[%d][%d] is off by %g", i, j, off);
        }
}

static void sum_difference(double *h, const nib_moments_rows *rows, int64_t parts)
{
    static float scratch[NIB_MOMENTS_SCRATCH / sizeof(float)];
    const int64_t tiles = nib__moments_tiles(K, true);
    memset(h, 0, K * K * sizeof *h);
    for (int64_t t = 0; t < TOKENS; t += NIB_MOMENTS_TOKENS) {
        const nib_moments_add a = {.h = h,
                                   .x = apart[t],
                                   .y = x[t],
                                   .k = K,
                                   .ld = K,
                                   .ld_y = K,
                                   .m = nib__min(NIB_MOMENTS_TOKENS, TOKENS - t)};
        for (int64_t p = 0; p < parts; p++)
            rows->add(&a, tiles * p / parts, tiles * (p + 1) / parts, scratch);
    }
}

static void test_difference(void **state)
{
    static double h[K * K], best[K * K];
    (void)state;
    sum_difference(h, &nib__moments__ref, 1);
    sum_difference(best, nib__moments_best(nib__cpu_isa()), 5);
    assert_memory_equal(h, best, sizeof h);
    for (int i = 0; i < K; i++)
        for (int j = 0; j < K; j++) {
            const double sum = (double)difference[i * K + j];
            if (!(fabs(h[i * K + j] - sum) <=
                  1e-6 * sqrt(want[i * K + i] * want[j * K + j]) + 1e-3))
                fail_msg("D[%d][%d] is %g, not %g", i, j, h[i * K + j], sum);
        }
}

static void test_factor(void **state)
{
    static double h[K * K], r[K * K], best[K * K];
    nib_pool *pool;
    (void)state;
    copy_moments(h);
    memcpy(r, h, sizeof h);
    memcpy(best, h, sizeof h);
    const nib_allocator a = nib__allocator_default();
    assert_int_equal(nib__pool_open(&pool, 3, &a, NULL), NIB_OK);
    static double after[K * NIB_MOMENTS_PANEL];
    assert_true(nib__moments_factor(r, K, after, &nib__moments__ref, pool));
    assert_true(nib__moments_factor(best, K, after, nib__moments_best(nib__cpu_isa()), pool));
    nib__pool_close(pool);
    assert_memory_equal(r, best, sizeof r);
    for (int i = 0; i < K; i++)
        for (int j = i; j < K; j++) {
            double sum = 0;
            for (int l = j; l < K; l++)
                sum += r[i * K + l] * r[j * K + l];
            if (!(fabs(sum - h[i * K + j]) <= 1e-12 * sqrt(h[i * K + i] * h[j * K + j])))
                fail_msg("(R R^T)[%d][%d] is %.17g, not %.17g", i, j, sum, h[i * K + j]);
        }
    h[3 * K + 3] = -1;
    assert_int_equal(nib__pool_open(&pool, 1, &a, NULL), NIB_OK);
    assert_false(nib__moments_factor(h, K, after, &nib__moments__ref, pool));
    nib__pool_close(pool);
}

/* Moments that no text gives: [[1, off], [off, 1]] is not positive definite for off > 1, and its
 * factor is that of the same with more on the diagonal. */
static void test_damping(void **state)
{
    static const struct {
        double off, damping; /* damping 0: refused */
    } rows[] = {{0.5, 0.01}, {1.005, 0.01}, {1.05, 0.1}, {1.5, 1}, {5, 10}, {50, 0}};
    const nib_allocator a = nib__allocator_default();
    nib_pool *pool;
    (void)state;
    assert_int_equal(nib__pool_open(&pool, 2, &a, NULL), NIB_OK);
    for (size_t i = 0; i < COUNT(rows); i++) {
        double h[4] = {1, rows[i].off, 0, 1};
        nib_gptq_factor f;
        nib_arena arena;
        nib_err err;
        nib__arena_init(&arena, &a, 0);
        assert_int_equal(nib__gptq_moments(&f, h, 2, "a layer", pool, &arena, &err), NIB_OK);
        const nib_status status = nib__gptq_factor(&f, (nib_order_rule){NIB_INPUTS_ASCENDING, 2},
                                                   &nib__moments__ref, pool, &err);
        assert_int_equal(status, rows[i].damping > 0 ? NIB_OK : NIB_CHECK_FAILED);
        if (status == NIB_OK) {
            const double corner = 1 + rows[i].damping;
            assert_true(fabs(f.damping - rows[i].damping) < 1e-15);
            assert_true(fabs(f.diagonal[1] - corner) < 1e-12);
            assert_true(fabs(f.factor[1] - (rows[i].off / corner)) < 1e-6);
            assert_true(fabs(f.diagonal[0] - (corner - rows[i].off * rows[i].off / corner)) <
                        1e-12);
        } else {
            assert_non_null(strstr(err.text, "a layer: the second moments of its input are not "
                                             "positive definite, even with 10 times their mean"));
        }
        nib__arena_free(&arena);
    }
    nib__pool_close(pool);
}

/* A factor that needs more on the diagonal is that of the given moments with it. */
static void test_damped_again(void **state)
{
    static double h[K * K], r[K * K], after[K * NIB_MOMENTS_PANEL];
    const nib_allocator a = nib__allocator_default();
    nib_pool *pool;
    nib_gptq_factor f;
    nib_arena arena;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    assert_int_equal(nib__pool_open(&pool, 2, &a, NULL), NIB_OK);
    for (int i = 0; i < K; i++)
        for (int j = i; j < K; j++)
            h[i * K + j] = i == j ? 1 : 1.002 * pow(0.999, j - i) + (i == 3) * 0.02;
    memcpy(r, h, sizeof r);
    assert_int_equal(nib__gptq_moments(&f, h, K, "a layer", pool, &arena, NULL), NIB_OK);
    assert_int_equal(nib__gptq_factor(&f, (nib_order_rule){NIB_INPUTS_ASCENDING, K},
                                      &nib__moments__ref, pool, NULL),
                     NIB_OK);
    assert_true(f.damping > 0.05);
    for (int j = 0; j < K; j++)
        r[j * K + j] += f.damping;
    assert_true(nib__moments_factor(r, K, after, &nib__moments__ref, pool));
    for (int i = 0; i < K; i++)
        for (int j = i + 1; j < K; j++)
            assert_true(fabs(r[i * K + j] / r[j * K + j] - (double)f.factor[i * K + j]) < 1e-5);
    nib__pool_close(pool);
    nib__arena_free(&arena);
}

/* ---- the store ---- */

static char out_path[64];

static nib_gptq_store *open_store(const char *key, const char *other)
{
    const nib_allocator a = nib__allocator_default();
    const char *found;
    nib_gptq_store *store;
    assert_int_equal(nib__gptq_store_open(&store, out_path, key, 3, &found, &a, NULL), NIB_OK);
    if (other == NULL)
        assert_null(found);
    else
        assert_string_equal(found, other);
    return store;
}

/* A part of two weights, of which the second has no zeros. */
static void put_part(nib_gptq_store *store, size_t part)
{
    int8_t codes[6] = {1, -2, 3, -4, 5, (int8_t)part};
    float scales[2] = {0.5F, 0.25F}, zeros[2] = {7, 8};
    nib_gptq_codes c = {.site = 4, .n = 2, .k = 3, .scale_bytes = 8, .zero_bytes = 8, .tokens = 99};
    c.damping = 0.1;
    c.codes = (nib_codes){
        .codes = codes, .scales = scales, .zeros = zeros, .objective = {3, 2}, .tensor_scale = 9};
    assert_int_equal(nib__gptq_store_begin(store, part, NULL), NIB_OK);
    assert_int_equal(nib__gptq_store_put(store, &c, NULL), NIB_OK);
    c.site = 5;
    c.zero_bytes = 0;
    c.codes.zeros = NULL;
    assert_int_equal(nib__gptq_store_put(store, &c, NULL), NIB_OK);
    assert_int_equal(nib__gptq_store_end(store, NULL), NIB_OK);
}

static void expect_part(nib_gptq_store *store, size_t part)
{
    nib_gptq_codes c;
    uint64_t offset = 0;
    assert_true(nib__gptq_store_has(store, part, NULL));
    for (size_t i = 0; i < 2; i++) {
        assert_true(nib__gptq_store_next(store, part, &offset, &c));
        assert_int_equal(c.site, 4 + i);
        assert_true(c.n == 2 && c.k == 3 && c.tokens == 99 && c.damping == 0.1);
        assert_true(c.codes.objective[0] == 3 && c.codes.objective[1] == 2);
        assert_true(c.codes.tensor_scale == 9);
        assert_int_equal(c.codes.codes[1], -2);
        assert_int_equal(c.codes.codes[5], part);
        assert_true(((const float *)c.codes.scales)[1] == 0.25F);
        if (i == 0)
            assert_true(((const float *)c.codes.zeros)[1] == 8);
        else
            assert_null(c.codes.zeros);
    }
    assert_false(nib__gptq_store_next(store, part, &offset, &c));
}

/* Changes a byte of a part, or cuts it off. */
static void damage(size_t part, long at, bool cuts)
{
    char path[96];
    snprintf(path, sizeof path, "%s.codes/layer-%05zu", out_path, part);
    if (cuts) {
        assert_int_equal(truncate(path, at), 0);
        return;
    }
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(0x55, f), 0x55);
    assert_int_equal(fclose(f), 0);
}

static void test_store(void **state)
{
    const nib_allocator a = nib__allocator_default();
    char directory[] = "/tmp/nib-gptq-XXXXXX";
    const char *found;
    bool damaged;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(out_path, sizeof out_path, "%s/out", directory);
    nib_gptq_store *store = open_store("a: 1\nb: 2\n", NULL), *second;
    put_part(store, 0);
    put_part(store, 2);
    assert_int_equal(nib__gptq_store_begin(store, 1, NULL), NIB_OK); /* and does not end */
    expect_part(store, 0);
    nib_err err;
    assert_int_equal(nib__gptq_store_open(&second, out_path, "a: 1\nb: 2\n", 3, &found, &a, &err),
                     NIB_EXISTS); /* it is open */
    nib__gptq_store_close(store);

    store = open_store("a: 1\nb: 2\n", NULL);
    expect_part(store, 2);
    expect_part(store, 0);
    assert_false(nib__gptq_store_has(store, 1, &damaged));
    assert_false(damaged);
    nib__gptq_store_close(store);

    damage(0, 200, false);
    damage(2, 300, true);
    store = open_store("a: 1\nb: 2\n", NULL);
    for (size_t part = 0; part < 3; part += 2) {
        assert_false(nib__gptq_store_has(store, part, &damaged));
        assert_true(damaged);
    }
    for (int i = 0; i < 2; i++) { /* the second replaces the first */
        put_part(store, 0);
        expect_part(store, 0);
    }
    nib__gptq_store_close(store);

    nib__gptq_store_close(open_store("a: 1\nb: 3\n", "b"));
    store = open_store("a: 1\nb: 3\n", NULL);
    assert_false(nib__gptq_store_has(store, 0, NULL));
    nib__gptq_store_close(store);
    nib__gptq_store_close(open_store("a: 1\n", "key"));
    nib__gptq_store_close(open_store("a: 1\nc: 1\n", "c"));
    assert_int_equal(nib__gptq_store_remove(open_store("a: 1\nc: 1\n", NULL), NULL), NIB_OK);
    assert_int_equal(rmdir(directory), 0); /* nothing is left, not even a lock */
}

static void test_schemes(void **state)
{
    const char *const names[] = {"int4wo",    "int4wo-sym", "int4wo-g24", "8da4w",
                                 "8da4w-row", "int8wo",     "fp8wo",      "mxfp8",
                                 "mxfp4",     "nvfp4",      "int8dq",     "int4wo-ggml"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        for (int ascending = 0; ascending < 2; ascending++)
            (void)check_scheme(names[i], rule_of(names[i], ascending == 1), NULL);
}

/* The same codes against the target that qronos moves; rounding is further from it. */
static void test_moved(void **state)
{
    const char *const names[] = {"int4wo", "int4wo-sym", "8da4w-row", "mxfp4", "nvfp4"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        for (int ascending = 0; ascending < 2; ascending++)
            (void)check_scheme(names[i], rule_of(names[i], ascending == 1), difference);
}

/* ---- the order of inputs ---- */

static void expect_order(nib_order_rule rule, const double *squares, int64_t k,
                         const int64_t *want_order)
{
    int64_t order[8];
    nib_ranked room[8];
    nib__order_inputs(order, rule, squares, k, room);
    for (int64_t j = 0; j < k; j++)
        if (order[j] != want_order[j])
            fail_msg("%s: place %d has input %d", nib__order_names[rule.kind], (int)j,
                     (int)order[j]);
}

/* Ties keep the order of inputs, groups stay whole, and a short last group counts by its mean. */
static void test_order(void **state)
{
    const double squares[8] = {1, 2, 5, 0, 3, 3, 0, 3};
    (void)state;
    expect_order((nib_order_rule){NIB_INPUTS_ASCENDING, 3}, squares, 8,
                 (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 7});
    expect_order((nib_order_rule){NIB_INPUTS_ONE_BY_ONE, 3}, squares, 8,
                 (const int64_t[]){2, 4, 5, 7, 1, 0, 3, 6});
    expect_order((nib_order_rule){NIB_INPUTS_BY_GROUP, 3}, squares, 8,
                 (const int64_t[]){2, 1, 0, 4, 5, 3, 7, 6});
    expect_order((nib_order_rule){NIB_INPUTS_BY_GROUP, 4}, squares, 7,
                 (const int64_t[]){2, 1, 0, 3, 4, 5, 6});
    expect_order((nib_order_rule){NIB_INPUTS_BY_GROUP, 3}, (const double[]){1, 1, 1, 1, 1, 1, 2}, 7,
                 (const int64_t[]){6, 0, 1, 2, 3, 4, 5});
}

/* What each scheme takes, and that scales of whole rows are chosen first in any order. */
static void test_rules(void **state)
{
    static const struct {
        const char *name;
        nib_order_kind kind;
        int64_t group;
        bool scales_first;
    } rows[] = {
        {"int4wo", NIB_INPUTS_ONE_BY_ONE, 32, true},
        {"int4wo-g24", NIB_INPUTS_ONE_BY_ONE, 24, true},
        {"nvfp4", NIB_INPUTS_ASCENDING, 16, false},
        {"mxfp4", NIB_INPUTS_BY_GROUP, 32, false},
        {"mxfp8", NIB_INPUTS_BY_GROUP, 32, false},
        {"8da4w-row", NIB_INPUTS_ONE_BY_ONE, K, true},
        {"int8wo", NIB_INPUTS_ONE_BY_ONE, K, true},
        {"int4wo-g256", NIB_INPUTS_ONE_BY_ONE, K, true},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const nib_order_rule rule = rule_of(rows[i].name, false), old = rule_of(rows[i].name, true);
        assert_int_equal(rule.kind, rows[i].kind);
        assert_int_equal(rule.group, rows[i].group);
        assert_int_equal(nib__order_has_scales_first(rule, K), rows[i].scales_first);
        assert_int_equal(old.kind, NIB_INPUTS_ASCENDING);
        assert_int_equal(nib__order_has_scales_first(old, K), rows[i].group == K);
    }
}

/* A factor of moments that an earlier factor left in another order is the same. */
static void test_orders_follow(void **state)
{
    static float before[K * K];
    static double diagonal[K];
    const nib_order_rule groups = {NIB_INPUTS_BY_GROUP, 32}, inputs = {NIB_INPUTS_ONE_BY_ONE, 32};
    (void)state;
    set_order(groups);
    memcpy(before, factor.factor, sizeof before);
    memcpy(diagonal, factor.diagonal, sizeof diagonal);
    for (int64_t j = 0; j < K; j++)
        assert_int_equal(factor.place[factor.order[j]], j);
    set_order(inputs);
    for (int64_t j = 1; j < K; j++)
        assert_true(factor.squares[factor.order[j - 1]] >= factor.squares[factor.order[j]]);
    set_order(groups);
    assert_memory_equal(before, factor.factor, sizeof before);
    assert_memory_equal(diagonal, factor.diagonal, sizeof diagonal);
}

/* On these inputs, some of which are 8 times as large, the largest first lose less. */
static void test_order_helps(void **state)
{
    const char *const names[] = {"int4wo-sym", "8da4w-row"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const double old = check_scheme(names[i], rule_of(names[i], true), NULL),
                     now = check_scheme(names[i], rule_of(names[i], false), NULL);
        if (!(now < old))
            fail_msg("%s: %g of rounding's error is left, in ascending order %g", names[i], now,
                     old);
    }
}

/* A row that is not finite is named. */
static void test_not_finite(void **state)
{
    static coded out;
    const nib_quantizer q = quantizer_of("int4wo");
    const nib_order_rule rule = rule_of("int4wo", false);
    (void)state;
    const float before = weights[20][150];
    weights[20][150] = NAN;
    set_order(rule);
    sweep(&out, &q, rule, NULL, nib__quant_sweep_best(nib__cpu_isa()), 16);
    weights[20][150] = before;
    for (int i = 0; i < N; i++)
        assert_int_equal(out.failed[i] != 0, i == 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moments),     cmocka_unit_test(test_factor),
        cmocka_unit_test(test_damping),     cmocka_unit_test(test_damped_again),
        cmocka_unit_test(test_store),       cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_difference),
        cmocka_unit_test(test_moved),       cmocka_unit_test(test_order),
        cmocka_unit_test(test_rules),       cmocka_unit_test(test_orders_follow),
        cmocka_unit_test(test_order_helps),
    };
    return cmocka_run_group_tests(tests, make_factor, free_factor);
}
