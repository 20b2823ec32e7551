/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of logits: llama.cpp's layout byte by byte, both ways; Nibble's, whose logits return with
 * their bits; damaged files; texts that a file does not belong to; unfinished files.
 */
#include "logits_file.h"

#include "safetensors_build.h"
#include "sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

typedef struct place {
    char directory[256], path[300];
    nib_allocator allocator;
} place;

static place make_place(void)
{
    place p = {.allocator = nib__allocator_default()};
    make_directory(p.directory);
    snprintf(p.path, sizeof p.path, "%s/a.logits", p.directory);
    return p;
}

static void put(uint8_t *file, size_t *size, const void *bytes, size_t count)
{
    memcpy(file + *size, bytes, count);
    *size += count;
}

enum { LLAMA_BYTES = 20 + 2 * 4 * 4 + 2 * 16, VOCAB = 3, WINDOW = 4 };
static const int32_t llama_ids[2 * WINDOW] = {1, 2, 0, 1, 2, 2, 1, 0};

/* 2 windows of 4 tokens, 3 tokens in the vocabulary: 1 row per window, of 3 codes and a filler. */
static void build_llama(uint8_t file[LLAMA_BYTES])
{
    static const int32_t sizes[] = {WINDOW, VOCAB, 2};
    static const float ranges[2][2] = {{1.0f / 4096, -17}, {1.0f / 65536, -1.5f}};
    static const uint16_t codes[2][4] = {{65535, 0, 4096, 0xffff}, {32768, 65535, 0, 0xffff}};
    size_t size = 0;
    put(file, &size, "_logits_", 8);
    put(file, &size, sizes, sizeof sizes);
    put(file, &size, llama_ids, sizeof llama_ids);
    for (size_t i = 0; i < 2; i++) {
        put(file, &size, ranges[i], sizeof ranges[i]);
        put(file, &size, codes[i], sizeof codes[i]);
    }
    assert_int_equal(size, LLAMA_BYTES);
}

static nib_status see(nib_logits_file *f, const int32_t *ids, int64_t count, bool bos, nib_err *err)
{
    static int64_t number;
    return nib__logits_see(
        f, &(nib_token_window){.ids = ids, .count = count, .number = ++number, .bos = bos}, err);
}

static void test_reads_llama_cpp(void **state)
{
    (void)state;
    uint8_t file[LLAMA_BYTES];
    float space[VOCAB];
    nib_logits_file f;
    nib_err err;
    place p = make_place();
    build_llama(file);
    assert_false(nib_is_logits_file(p.path));
    write_bytes(p.path, file, sizeof file);
    assert_true(nib_is_logits_file(p.path));
    assert_int_equal(nib__logits_open(&f, p.path, &err), NIB_OK);
    assert_int_equal(f.format, NIB_LOGITS_LLAMA_CPP);
    assert_true(f.vocab == VOCAB && f.window == WINDOW && f.windows == 2 && f.rows == 2);
    assert_int_equal(nib__logits_first(f.format, f.window), 2);
    assert_int_equal(nib__logits_check(&f, 0, 2, &err), NIB_OK);
    static const float wanted[2][VOCAB] = {{-17 + 65535.0f / 4096, -17, -16},
                                           {-1, -1.5f + 65535.0f / 65536, -1.5f}};
    for (int64_t row = 0; row < 2; row++)
        assert_memory_equal(nib__logits_row(&f, row, space), wanted[row], sizeof wanted[row]);
    /* BOS replaces the first id of a window, whatever the file has there */
    int32_t ids[WINDOW];
    memcpy(ids, llama_ids, sizeof ids);
    assert_int_equal(see(&f, ids, WINDOW, false, &err), NIB_OK);
    memcpy(ids, llama_ids + WINDOW, sizeof ids);
    ids[0] = 0;
    assert_int_equal(see(&f, ids, WINDOW, true, &err), NIB_OK);
    assert_int_equal(nib__logits_see_end(&f, &err), NIB_OK);
    nib__logits_close(&f);
    assert_int_equal(nib__logits_open(&f, p.path, &err), NIB_OK);
    refused(NIB_BAD_INPUT, nib__logits_see_end(&f, &err), &err);
    memcpy(ids, llama_ids, sizeof ids);
    ids[3] = 2;
    refused(NIB_BAD_INPUT, see(&f, ids, WINDOW, true, &err), &err);
    ids[0] = 0;
    refused(NIB_BAD_INPUT, see(&f, ids, WINDOW, false, &err), &err);
    nib__logits_close(&f);
    drop_directory(p.directory);
}

/* Logits of `rows` tokens over a range of more than 16 nats. */
static void fill(float *logits, int64_t count, int64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        logits[i] = (float)(5 * nib__random_normal(3, seed, i));
}

static nib_logits_writer *must_write(const place *p, nib_logits_format format, int64_t vocab,
                                     int64_t window)
{
    nib_logits_writer *w;
    nib_err err;
    if (nib__logits_writer_open(&w, p->path, format, vocab, window, &p->allocator, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return w;
}

static void see_written(nib_logits_writer *w, const int32_t *ids, int64_t count, bool bos)
{
    const nib_token_window window = {.ids = ids, .count = count, .bos = bos, .replaced = 77};
    assert_int_equal(nib__logits_writer_see(w, &window, NULL), NIB_OK);
}

static void test_writes_llama_cpp(void **state)
{
    (void)state;
    enum { CODES = 301 /* odd */, ROW = 2 * (302 + 4), ROWS = 2 };
    static float logits[2 * ROWS][CODES], space[CODES];
    static const int32_t ids[6] = {5, 1, 2, 3, 4, 6};
    uint64_t bytes;
    int64_t rows;
    nib_pool *pool;
    nib_logits_file f;
    nib_err err;
    place p = make_place();
    assert_int_equal(nib__pool_open(&pool, 2, &p.allocator, &err), NIB_OK);
    fill(logits[0], 2 * ROWS * CODES, 1);
    for (int64_t v = 0; v < CODES; v++)
        logits[3][v] = 2; /* all equal: a scale of 0 */
    nib_logits_writer *w = must_write(&p, NIB_LOGITS_LLAMA_CPP, CODES, 6);
    see_written(w, ids, 6, true);
    see_written(w, ids, 6, false);
    assert_int_equal(nib__logits_writer_see_end(w, &bytes, &rows, &err), NIB_OK);
    assert_int_equal(rows, 2 * ROWS); /* positions 3 and 4 of 0 to 5 */
    assert_int_equal(bytes, 20 + 12 * 4 + 4 * ROW);
    assert_int_equal(nib__logits_writer_add(w, logits[0], 3, pool, &err), NIB_OK);
    assert_int_equal(nib__logits_writer_add(w, logits[3], 1, pool, &err), NIB_OK);
    assert_int_equal(nib__logits_writer_add(w, logits[3], 1, pool, &err), NIB_FAILED);
    assert_int_equal(nib__logits_writer_finish(w, &err), NIB_OK);
    assert_int_equal(nib__logits_open(&f, p.path, &err), NIB_OK);
    static const int32_t head[] = {6, CODES, 2, 77, 1, 2, 3, 4, 6, 5, 1};
    assert_memory_equal(f.map.at, "_logits_", 8);
    assert_memory_equal(f.map.at + 8, head, sizeof head);
    assert_int_equal(nib__logits_check(&f, 0, 4, &err), NIB_OK);
    for (int64_t row = 0; row < 4; row++) {
        double most = -INFINITY, sum = 0;
        for (int64_t v = 0; v < CODES; v++)
            most = fmax(most, (double)logits[row][v]);
        for (int64_t v = 0; v < CODES; v++)
            sum += exp((double)logits[row][v] - most);
        const float *read = nib__logits_row(&f, row, space);
        for (int64_t v = 0; v < CODES; v++) {
            const double exact = fmax((double)logits[row][v], most - 16) - most - log(sum);
            /* half a step of 16 / 65535, and the rounding of f32 */
            assert_true(fabs((double)read[v] - exact) < 8.0 / 65535 + 4e-6);
        }
    }
    nib__logits_close(&f);
    nib__pool_close(pool);
    drop_directory(p.directory);
}

static const int32_t some_ids[5] = {4, 0, 2, 1, 3};

/* Windows of 5 and 3 ids: 4 and 2 rows. */
static void write_nibble(const place *p, const float *logits, int64_t vocab)
{
    uint64_t bytes;
    int64_t rows;
    nib_logits_writer *w = must_write(p, NIB_LOGITS_NIBBLE, vocab, 5);
    see_written(w, some_ids, 5, false);
    see_written(w, some_ids + 1, 3, true);
    assert_int_equal(nib__logits_writer_see_end(w, &bytes, &rows, NULL), NIB_OK);
    assert_int_equal(rows, 6);
    assert_int_equal(bytes, 64 + 6 * 4 * vocab);
    assert_int_equal(nib__logits_writer_add(w, logits, 4, NULL, NULL), NIB_OK);
    assert_int_equal(nib__logits_writer_add(w, logits + 4 * vocab, 2, NULL, NULL), NIB_OK);
    assert_int_equal(nib__logits_writer_finish(w, NULL), NIB_OK);
}

static void test_nibble_round_trip(void **state)
{
    (void)state;
    enum { TOKENS = 7 };
    float logits[6][TOKENS];
    nib_logits_file f;
    nib_err err;
    place p = make_place();
    fill(logits[0], 6 * TOKENS, 2);
    logits[2][3] = -INFINITY;
    write_nibble(&p, logits[0], TOKENS);
    assert_true(nib_is_logits_file(p.path));
    assert_int_equal(nib__logits_open(&f, p.path, &err), NIB_OK);
    assert_true(f.format == NIB_LOGITS_NIBBLE && f.vocab == TOKENS && f.window == 5);
    assert_int_equal(see(&f, some_ids, 5, false, &err), NIB_OK);
    assert_int_equal(see(&f, some_ids + 1, 3, true, &err), NIB_OK);
    assert_int_equal(nib__logits_see_end(&f, &err), NIB_OK);
    for (int64_t row = 0; row < 6; row++)
        assert_memory_equal(nib__logits_row(&f, row, NULL), logits[row], sizeof logits[row]);
    nib__logits_close(&f);
    static const struct {
        int64_t first, second; /* counts */
        int32_t id;            /* the last of the first window */
    } others[] = {{5, 3, 4}, {4, 4, 3}, {5, 2, 3}, {5, 0, 3}};
    for (size_t i = 0; i < COUNT(others); i++) {
        int32_t ids[5];
        memcpy(ids, some_ids, sizeof ids);
        ids[4] = others[i].id;
        assert_int_equal(nib__logits_open(&f, p.path, &err), NIB_OK);
        assert_int_equal(see(&f, ids, others[i].first, false, &err), NIB_OK);
        if (others[i].second > 0)
            assert_int_equal(see(&f, some_ids + 1, others[i].second, true, &err), NIB_OK);
        refused(NIB_BAD_INPUT, nib__logits_see_end(&f, &err), &err);
        nib__logits_close(&f);
    }
    drop_directory(p.directory);
}

static void assert_damaged(const place *p, const uint8_t *file, size_t size)
{
    nib_logits_file f;
    nib_err err;
    write_bytes(p->path, file, size);
    refused(NIB_BAD_INPUT, nib__logits_open(&f, p->path, &err), &err);
    nib__logits_close(&f);
}

typedef struct patch {
    size_t offset, size;
    uint64_t value;
} patch;

/* Each patch alone, and the file cut off and continued. */
static void assert_patches_refused(const place *p, const uint8_t *file, size_t size,
                                   const patch *patches, size_t count)
{
    uint8_t changed[512];
    assert_true(size < sizeof changed);
    for (size_t i = 0; i < count; i++) {
        memcpy(changed, file, size);
        memcpy(changed + patches[i].offset, &patches[i].value, patches[i].size);
        assert_damaged(p, changed, size);
    }
    memcpy(changed, file, size);
    changed[size] = 0;
    assert_damaged(p, changed, size + 1);
    for (size_t cut = 0; cut < size; cut += cut + 1 < 24 ? 1 : 13)
        assert_damaged(p, file, cut);
}

static void test_damaged_files(void **state)
{
    (void)state;
    static const patch llama[] = {
        {0, 1, 'x'},                                                      /* magic */
        {8, 4, 2},   {8, 4, 5},  {8, 4, UINT32_MAX},  {8, 4, INT32_MAX},  /* window */
        {12, 4, 0},  {12, 4, 5}, {12, 4, UINT32_MAX}, {12, 4, INT32_MAX}, /* vocabulary */
        {16, 4, 0},  {16, 4, 3}, {16, 4, UINT32_MAX}, {16, 4, INT32_MAX}, /* windows */
    };
    static const patch nibble[] = {
        {7, 1, 'T'},
        {8, 4, 2}, /* magic, version */
        {12, 4, 0},
        {12, 4, 8},
        {12, 4, UINT32_MAX}, /* vocabulary */
        {16, 8, 1},
        {16, 8, (uint64_t)INT32_MAX + 1}, /* window */
        {24, 8, UINT64_MAX},              /* windows */
        {32, 8, 5},
        {32, 8, UINT64_MAX},
        {32, 8, (uint64_t)1 << 62}, /* rows */
    };
    uint8_t file[LLAMA_BYTES];
    float logits[6 * 7];
    char *written;
    size_t size;
    place p = make_place();
    build_llama(file);
    assert_patches_refused(&p, file, sizeof file, llama, COUNT(llama));
    assert_int_equal(nib__path_remove(p.path, NULL), NIB_OK);
    fill(logits, COUNT(logits), 4);
    write_nibble(&p, logits, 7);
    assert_int_equal(nib__file_read(&written, &size, p.path, 1000, &p.allocator, NULL), NIB_OK);
    assert_patches_refused(&p, (const uint8_t *)written, size, nibble, COUNT(nibble));
    nib__release(&p.allocator, written);
    drop_directory(p.directory);
}

/* Rows of llama.cpp's codes that no distribution has. */
static void test_damaged_rows(void **state)
{
    (void)state;
    static const float ranges[][2] = {{NAN, -1},     {-0.001f, -1},       {INFINITY, -1},
                                      {0.001f, NAN}, {0.001f, -INFINITY}, {0.001f, -65}};
    uint8_t file[LLAMA_BYTES];
    nib_logits_file f;
    nib_err err;
    place p = make_place();
    build_llama(file);
    memcpy(file + LLAMA_BYTES - 32, (const float[]){0.0002f, -13.2f}, 2 * sizeof(float));
    for (size_t i = 0; i < COUNT(ranges); i++) {
        memcpy(file + LLAMA_BYTES - 16, ranges[i], sizeof ranges[i]);
        write_bytes(p.path, file, sizeof file);
        assert_int_equal(nib__logits_open(&f, p.path, &err), NIB_OK);
        assert_int_equal(nib__logits_check(&f, 0, 1, &err), NIB_OK);
        refused(NIB_BAD_INPUT, nib__logits_check(&f, 0, 2, &err), &err);
        nib__logits_close(&f);
    }
    drop_directory(p.directory);
}

static void test_unfinished_files(void **state)
{
    (void)state;
    uint64_t bytes;
    int64_t rows;
    nib_err err;
    nib_logits_writer *w;
    place p = make_place();
    for (int format = NIB_LOGITS_NIBBLE; format <= NIB_LOGITS_LLAMA_CPP; format++) {
        w = must_write(&p, (nib_logits_format)format, VOCAB, 5);
        see_written(w, some_ids, 5, false);
        nib__logits_writer_abandon(w);
        assert_true(nib__directory_is_empty(p.directory));
        w = must_write(&p, (nib_logits_format)format, VOCAB, 5);
        see_written(w, some_ids, 5, false);
        assert_int_equal(nib__logits_writer_see_end(w, &bytes, &rows, &err), NIB_OK);
        assert_int_equal(nib__logits_writer_finish(w, &err), NIB_FAILED); /* no rows */
        assert_true(nib__directory_is_empty(p.directory));
    }
    refused(NIB_USAGE,
            nib__logits_writer_open(&w, p.path, NIB_LOGITS_LLAMA_CPP, VOCAB, 2, &p.allocator, &err),
            &err);
    write_bytes(p.path, "mine", 4);
    refused(NIB_EXISTS,
            nib__logits_writer_open(&w, p.path, NIB_LOGITS_NIBBLE, VOCAB, 5, &p.allocator, &err),
            &err);
    refused(
        NIB_EXISTS,
        nib__logits_writer_open(&w, p.directory, NIB_LOGITS_NIBBLE, VOCAB, 5, &p.allocator, &err),
        &err);
    drop_directory(p.directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_llama_cpp),   cmocka_unit_test(test_writes_llama_cpp),
        cmocka_unit_test(test_nibble_round_trip), cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_damaged_rows),      cmocka_unit_test(test_unfinished_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
