/* SPDX-License-Identifier: Apache-2.0
 *
 * The safetensors format, rule by rule: legal files are read, others are refused with an error that
 * names the place.
 */
#include "failing.h"
#include "pool.h"
#include "safetensors.h"
#include "safetensors_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

typedef struct parsed {
    nib_allocator allocator;
    nib_arena arena;
    nib_container st;
    nib_err err;
    nib_status status;
    uint8_t *file;
} parsed;

static void parse_bytes(parsed *p, uint8_t *file, size_t size)
{
    p->allocator = nib__allocator_default();
    nib__arena_init(&p->arena, &p->allocator, 2 * size + (64 << 20));
    p->err = (nib_err){NIB_OK, ""};
    p->file = file;
    p->st = (nib_container){0};
    p->status = nib__safetensors_parse(&p->st, file, size, "x.safetensors", 3, &p->arena, &p->err);
}

static void parse(parsed *p, const char *header, size_t data_size)
{
    size_t size;
    uint8_t *file = build_file(header, strlen(header), NULL, data_size, &size);
    parse_bytes(p, file, size);
}

static void drop(parsed *p)
{
    nib__arena_free(&p->arena);
    free(p->file);
}

static void expect_error(parsed *p, nib_status status)
{
    refused(status, p->status, &p->err);
    assert_null(p->st.tensors);
    drop(p);
}

/* ---- legal files ---- */

static void test_two_tensors(void **state)
{
    (void)state;
    parsed p;
    /* The header may list tensors in another order than the data, and be padded with spaces. */
    parse(&p,
          "{\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[12,17]},"
          "\"__metadata__\":{\"format\":\"pt\",\"k\\u00e9y\":\"v\\\"\"},"
          "\"a\":{\"data_offsets\":[0,12],\"shape\":[2,3],\"dtype\":\"BF16\"}}    ",
          17);
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.st.count, 2);
    const nib_tensor *a = p.st.tensors[0], *b = p.st.tensors[1];
    assert_string_equal(a->name, "a");
    assert_int_equal(a->type, NIB_TYPE_BF16);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 2);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->bytes, 12);
    assert_int_equal(a->file, 3);
    assert_string_equal(b->name, "b");
    assert_ptr_equal(b->data, a->data + 12);
    assert_int_equal(p.st.meta_count, 2);
    assert_string_equal(p.st.metas[0]->key, "format");
    assert_string_equal(p.st.metas[1]->key, "k\xc3\xa9y");
    assert_string_equal(p.st.metas[1]->value, "v\"");
    drop(&p);
}

static void test_legal(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
    } cases[] = {
        {"{}", 0},
        {"{\"__metadata__\":{}}", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4},    /* a scalar */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0}, /* no element */
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"F32\","
         "\"shape\":[0],"
         "\"data_offsets\":[0,0]},\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1,1]}}",
         1},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2},
        {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3},
        {"{\"o\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[1,5]}}",
         5}, /* an odd address */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        parse(&p, cases[i].header, cases[i].data);
        if (p.status != NIB_OK)
            fail_msg("%s: %s", cases[i].header, p.err.text);
        drop(&p);
    }
}

static void test_every_type(void **state)
{
    (void)state;
#define X(id, stored, name, bits) {NIB_TYPE_##id, stored, bits},
    static const struct {
        nib_type type;
        const char *stored;
        int bits;
    } types[] = {NIB_TYPES(X)};
#undef X
    for (size_t i = 1; i < COUNT(types); i++) {
        char header[200];
        parsed p;
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%d]}}",
                 types[i].stored, types[i].bits);
        parse(&p, header, (size_t)types[i].bits);
        assert_int_equal(p.status, NIB_OK);
        assert_int_equal(p.st.tensors[0]->type, types[i].type);
        drop(&p);
    }
}

/* ---- illegal files ---- */

static void test_prefix(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        size_t size;
    } cases[] = {
        {0, 0},
        {0, 7},
        {0, 8},
        {1, 9},
        {100, 50}, /* cut short */
        {UINT64_C(1) << 63, 100},
        {UINT64_MAX, 100},
        {100000001, 100}, /* the format allows 100000000 */
        {100000000, 100},
        {1000, 1007},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        uint8_t *file = calloc(1, cases[i].size + 1);
        for (size_t b = 0; b < 8 && b < cases[i].size; b++)
            file[b] = (uint8_t)(cases[i].n >> (8 * b));
        if (cases[i].size > 8)
            file[8] = '{';
        parse_bytes(&p, file, cases[i].size);
        expect_error(&p, NIB_BAD_INPUT);
    }
}

#define U8(name, offsets)                                                                          \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" offsets "]}"

static void test_rejects_bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
    } cases[] = {
        /* JSON */
        {" {}", 0},
        {"\xef\xbb\xbf{}", 0},
        {"[]", 0},
        {"        ", 0},
        {"{", 1},
        {"{\"a\"}", 0},
        {"{} {}", 0},
        {"{}\n", 0},
        {"{}\t ", 0},
        {"{\"a\xff\":1}", 0},
        {"{\"a\\ud800\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":[[[[[[[[[[1]]]]]]]]]]}", 0},
        /* metadata */
        {"{\"__metadata__\":{\"a\":1}}", 0},
        {"{\"__metadata__\":{\"a\":null}}", 0},
        {"{\"__metadata__\":[]}", 0},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0},
        /* entries */
        {"{\"a\":1}", 0},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1},
        {"{" U8("a", "0,1") "," U8("a", "1,2") "}", 2},
        {"{" U8("a", "0,1") "," U8("\\u0061", "1,2") "}", 2},
        /* types */
        {"{\"a\":{\"dtype\":\"F128\",\"shape\":[1],\"data_offsets\":[0,16]}}", 16},
        {"{\"a\":{\"dtype\":\"F8_E3M4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"bf16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2},
        {"{\"a\":{\"dtype\":\"\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,2]}}", 2},
        /* shapes */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}", 0},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1e3],\"data_offsets\":[0,1000]}}", 1000},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[+1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1},
        /* sizes that overflow, or are no whole number of bytes */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2097152,2097152,2097152],\"data_offsets\":[0,1]}}",
         1},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[288230376151711744],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2},
        {"{\"a\":{\"dtype\":\"F6_E3M2\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3},
        /* offsets */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1},
        /* another size than the shape's, and past the end */
        {"{" U8("a", "0,2") "}", 2},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4},
        {"{" U8("a", "0,1") "}", 0},
        {"{" U8("a", "9223372036854775806,9223372036854775807") "}", 1},
        /* holes, overlaps, bytes after the last tensor */
        {"{" U8("a", "1,2") "}", 2},
        {"{" U8("a", "0,1") "," U8("b", "2,3") "}", 3},
        {"{" U8("a", "0,1") "," U8("b", "0,1") "}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}," U8("b", "2,3") "}", 4},
        {"{" U8("a", "0,1") "}", 2},
        {"{}", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        parsed p;
        parse(&p, cases[i].header, cases[i].data);
        if (p.status == NIB_OK)
            fail_msg("accepted: %s", cases[i].header);
        expect_error(&p, NIB_BAD_INPUT);
    }
}

static void test_nul_padding(void **state)
{
    (void)state;
    parsed p;
    size_t size;
    uint8_t *file = build_file("{}\0\0\0\0\0\0", 8, NULL, 0, &size);
    parse_bytes(&p, file, size);
    expect_error(&p, NIB_BAD_INPUT);
}

static void test_names_are_escaped(void **state)
{
    (void)state;
    parsed p;
    parse(&p, "{\"a\\u001b[31m\\n\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2);
    assert_null(strchr(p.err.text, '\x1b'));
    assert_null(strchr(p.err.text, '\n'));
    expect_error(&p, NIB_BAD_INPUT);
}

/* A name of 1 MiB is legal, and shortened in messages. */
static void test_long_name(void **state)
{
    (void)state;
    const size_t length = 1 << 20;
    char *header = malloc(length + 200);
    for (int good = 0; good < 2; good++) {
        parsed p;
        header[0] = '{';
        header[1] = '"';
        memset(header + 2, 'n', length);
        snprintf(header + 2 + length, 190,
                 "\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,1]}}", 2 - good);
        parse(&p, header, 1);
        if (good) {
            assert_int_equal(p.status, NIB_OK);
            assert_int_equal(strlen(p.st.tensors[0]->name), length);
            drop(&p);
        } else {
            assert_true(strlen(p.err.text) < 600);
            expect_error(&p, NIB_BAD_INPUT);
        }
    }
    free(header);
}

static void test_depth(void **state)
{
    (void)state;
    const size_t depth = 10000;
    char *header = malloc(2 * depth + 100);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', depth);
    memset(header + 5 + depth, ']', depth);
    memcpy(header + 5 + 2 * depth, "}", 2);
    parsed p;
    parse(&p, header, 0);
    expect_error(&p, NIB_BAD_INPUT);
    free(header);
}

/* A file cut at any byte is never read as a whole file and never crashes. */
static void test_truncation(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"}," U8(
        "a", "0,1") ",\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],"
                    "\"data_offsets\":[1,9]}}  ";
    size_t size;
    uint8_t *file = build_file(header, sizeof header - 1, NULL, 9, &size);
    for (size_t cut = 0; cut < size; cut++) {
        parsed p;
        uint8_t *part = malloc(cut + 1);
        memcpy(part, file, cut);
        parse_bytes(&p, part, cut);
        assert_int_equal(p.status, NIB_BAD_INPUT);
        drop(&p);
    }
    free(file);
}

/* Changing any one byte of the header gives an error or a valid container. */
static void test_mutation(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"}," U8(
        "a", "0,1") ",\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],"
                    "\"data_offsets\":[1,9]}}  ";
    static const char others[] = "0 9-\"{}[],:\\\x7f";
    for (size_t at = 0; at < sizeof header - 1; at++)
        for (size_t o = 0; o < sizeof others; o++) {
            char changed[sizeof header];
            parsed p;
            size_t size;
            memcpy(changed, header, sizeof header);
            changed[at] = others[o];
            uint8_t *file = build_file(changed, sizeof header - 1, NULL, 9, &size);
            parse_bytes(&p, file, size);
            if (p.status == NIB_OK)
                for (size_t i = 0; i < p.st.count; i++) {
                    assert_true(p.st.tensors[i]->data >= file);
                    assert_true(p.st.tensors[i]->data + p.st.tensors[i]->bytes <= file + size);
                }
            drop(&p);
        }
}

/* ---- large headers ---- */

typedef struct meter {
    size_t held, most;
} meter;

static void *metered_resize(void *ctx, void *old, size_t size)
{
    meter *m = ctx;
    size_t *block = old == NULL ? NULL : (size_t *)old - 2;
    if (block != NULL)
        m->held -= block[0];
    if (size == 0) {
        free(block);
        return NULL;
    }
    block = realloc(block, size + 2 * sizeof *block);
    block[0] = size;
    m->held += size;
    m->most = m->held > m->most ? m->held : m->most;
    return block + 2;
}

/* Very many entries take linear time, and memory of at most twice the file plus 64 MiB. */
static void test_many_entries(void **state)
{
    (void)state;
    const size_t counts[] = {200000, (1 << 20) + 1};
    for (size_t c = 0; c < COUNT(counts); c++) {
        char *header = malloc(counts[c] * 64 + 10);
        size_t size = 0;
        header[size++] = '{';
        for (size_t i = 0; i < counts[c]; i++)
            size += (size_t)snprintf(
                header + size, 64,
                "%s\"%zx\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                i == 0 ? "" : ",", i);
        header[size++] = '}';
        meter m = {0, 0};
        const nib_allocator a = {metered_resize, &m};
        nib_arena arena;
        nib_container st = {0};
        nib_err err = {NIB_OK, ""};
        size_t file_size;
        uint8_t *file = build_file(header, size, NULL, 0, &file_size);
        nib__arena_init(&arena, &a, 0);
        const uint64_t start = nib__worked_ns();
        const nib_status status =
            nib__safetensors_parse(&st, file, file_size, "x", 0, &arena, &err);
        assert_true(nib__worked_ns() - start < UINT64_C(5000000000));
        assert_true(m.most < 2 * file_size + (64 << 20));
        if (c == 0) {
            assert_int_equal(status, NIB_OK);
            assert_int_equal(st.count, counts[c]);
        } else {
            refused(NIB_BAD_INPUT, status, &err);
        }
        nib__arena_free(&arena);
        free(file);
        free(header);
    }
}

/* A small file that claims a hundred thousand times its size. */
static void test_aliases(void **state)
{
    (void)state;
    enum { TENSORS = 100000, BYTES = 4096 };
    char *header = malloc(TENSORS * 72);
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++)
        at += (size_t)snprintf(header + at, 72,
                               "%c\"%x\":{\"dtype\":\"U8\",\"shape\":[%d],"
                               "\"data_offsets\":[0,%d]}",
                               i == 0 ? '{' : ',', (unsigned)i, BYTES, BYTES);
    memcpy(header + at, "}", 2);
    parsed p;
    parse(&p, header, BYTES);
    expect_error(&p, NIB_BAD_INPUT);
    free(header);
}

/* Every allocation fails once: NIB_NO_MEMORY each time, nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    size_t size;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"}," U8("b", "1,2") "," U8("a", "0,1") "}";
    uint8_t *file = build_file(header, sizeof header - 1, NULL, 2, &size);
    nib_status status = NIB_NO_MEMORY;
    for (int n = 0; status != NIB_OK; n++) {
        failing f = {n, 0};
        const nib_allocator a = failing_allocator(&f);
        nib_arena arena;
        nib_container st;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &a, 0);
        status = nib__safetensors_parse(&st, file, size, "x", 0, &arena, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        nib__arena_free(&arena);
        assert_int_equal(f.live, 0);
        assert_true(n < 100);
    }
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_tensors),
        cmocka_unit_test(test_legal),
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_rejects_bad_headers),
        cmocka_unit_test(test_nul_padding),
        cmocka_unit_test(test_names_are_escaped),
        cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_mutation),
        cmocka_unit_test(test_many_entries),
        cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
