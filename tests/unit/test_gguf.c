/* SPDX-License-Identifier: Apache-2.0
 *
 * The GGUF container: valid files, and every way in which a file can be wrong (list G of
 * HOSTILE.md: counts, lengths, ranks, products, types, offsets, overlaps, holes, duplicates,
 * truncation).
 */
#include "gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "gguf_build.h"
#include "refused.h"

/* Parses in an arena of its own, over an allocation that ends exactly with the file. */
typedef struct parsed {
    nib_container contents;
    nib_arena arena;
    nib_allocator a;
    nib_err err;
    uint8_t *bytes;
    nib_status status;
} parsed;

static void parse_bytes(parsed *p, const uint8_t *bytes, size_t size)
{
    *p = (parsed){.a = nib__allocator_default()};
    p->bytes = malloc(size > 0 ? size : 1);
    assert_non_null(p->bytes);
    memcpy(p->bytes, bytes, size);
    nib__arena_init(&p->arena, &p->a, (64 << 20) + 2 * size);
    p->status = nib__gguf_parse(&p->contents, p->bytes, size, "x.gguf", 0, &p->arena, &p->err);
}

static void drop(parsed *p)
{
    nib__arena_free(&p->arena);
    free(p->bytes);
}

static void expect(const gguf_file *f, nib_status status)
{
    parsed p;
    parse_bytes(&p, f->bytes, f->size);
    if (status != NIB_OK)
        refused(status, p.status, &p.err);
    else if (p.status != NIB_OK)
        fail_msg("%s", p.err.text);
    drop(&p);
}

/* ---- valid files ---- */

static void put_good(gguf_file *f)
{
    put_header(f, 3, 3, 9);
    put_key_text(f, "general.architecture", "llama");
    put_key_int(f, "a.u8", NIB_GGUF_U8, 200, 1);
    put_key_int(f, "a.i16", NIB_GGUF_I16, 0xfffe, 2);
    put_key_int(f, "a.u64", NIB_GGUF_U64, UINT64_MAX, 8);
    put_key_f32(f, "a.f32", 0.5F);
    put_key_int(f, "a.bool", NIB_GGUF_BOOL, 1, 1);
    put_key_array(f, "a.texts", NIB_GGUF_STRING, 3);
    put_text(f, "one");
    put_text(f, "");
    put_text(f, "three");
    put_key_array(f, "a.ints", NIB_GGUF_I32, 2);
    put_int(f, 7, 4);
    put_int(f, 0xffffffff, 4);
    put_key_array(f, "a.none", NIB_GGUF_F32, 0);
    /* not in data order, which is allowed */
    put_tensor(f, "b", 8, 64, 2, 32);    /* Q8_0: 2 rows of 68 bytes */
    put_tensor(f, "a", 0, 3, 0, 0);      /* F32: 12 bytes */
    put_tensor(f, "c", 12, 256, 1, 192); /* Q4_K: 144 bytes */
    put_padding(f, 32);
    for (int i = 0; i < 192 + 144; i++)
        put_int(f, (uint64_t)i, 1);
}

static void test_valid_file(void **state)
{
    (void)state;
    static gguf_file f;
    put_good(&f);
    parsed p;
    parse_bytes(&p, f.bytes, f.size);
    assert_int_equal(p.status, NIB_OK);
    const nib_container *c = &p.contents;
    assert_int_equal(c->count, 3);
    assert_string_equal(c->tensors[0]->name, "a");
    assert_string_equal(c->tensors[1]->name, "b");
    assert_int_equal(c->tensors[1]->type, NIB_TYPE_Q8_0);
    assert_int_equal(c->tensors[1]->shape[0], 2);
    assert_int_equal(c->tensors[1]->shape[1], 64);
    assert_int_equal(c->tensors[1]->bytes, 2 * 68);
    assert_int_equal(c->tensors[1]->data[0], 32);
    assert_int_equal(c->tensors[2]->bytes, 144);
    assert_int_equal(c->gguf->version, 3);
    assert_int_equal(c->gguf->alignment, 32);
    assert_string_equal(c->gguf->arch, "llama");
    drop(&p);
    memcpy(f.bytes + 4, "\2\0\0\0", 4); /* version 2 is the same file */
    expect(&f, NIB_OK);
    f.size -= 1; /* the last tensor may not miss even a byte */
    expect(&f, NIB_BAD_INPUT);
}

static void test_values(void **state)
{
    (void)state;
    static gguf_file f;
    put_good(&f);
    parsed p;
    parse_bytes(&p, f.bytes, f.size);
    assert_int_equal(p.status, NIB_OK);
    const nib_gguf *g = p.contents.gguf;
    nib_text keys; /* as another file's, up to its tensors, which are aligned */
    nib__text_init(&keys, &p.a);
    nib__gguf_keys(g, &keys);
    assert_memory_equal(keys.at, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16);
    assert_int_equal(keys.size % 32, 0);
    nib__text_free(&keys);
    nib_err err;
    int64_t whole;
    double number;
    bool flag, found;
    const char *text;
    size_t size;
    assert_int_equal(nib__gguf_int(&whole, NULL, g, "a.u8", &err), NIB_OK);
    assert_int_equal(whole, 200);
    assert_int_equal(nib__gguf_int(&whole, NULL, g, "a.i16", &err), NIB_OK);
    assert_int_equal(whole, -2);
    assert_int_equal(nib__gguf_int(&whole, NULL, g, "a.u64", &err), NIB_OK);
    assert_true(whole == INT64_MAX);
    assert_int_equal(nib__gguf_double(&number, NULL, g, "a.f32", &err), NIB_OK);
    assert_true(number == 0.5);
    assert_int_equal(nib__gguf_double(&number, NULL, g, "a.i16", &err), NIB_OK);
    assert_true(number == -2);
    assert_int_equal(nib__gguf_bool(&flag, NULL, g, "a.bool", &err), NIB_OK);
    assert_true(flag);
    assert_int_equal(nib__gguf_string(&text, &size, NULL, g, "general.architecture", &err), NIB_OK);
    assert_int_equal(size, 5);
    assert_memory_equal(text, "llama", 5);
    /* absent, and of another type */
    whole = 42;
    assert_int_equal(nib__gguf_int(&whole, &found, g, "a.gone", &err), NIB_OK);
    assert_false(found);
    assert_int_equal(whole, 42);
    refused(NIB_BAD_INPUT, nib__gguf_int(&whole, NULL, g, "a.gone", &err), &err);
    refused(NIB_BAD_INPUT, nib__gguf_int(&whole, NULL, g, "a.f32", &err), &err);
    refused(NIB_BAD_INPUT, nib__gguf_int(&whole, NULL, g, "a.ints", &err), &err);
    nib_gguf_array array;
    refused(NIB_BAD_INPUT, nib__gguf_array_of(&array, NULL, g, "a.texts", NIB_GGUF_F64, &err),
            &err);
    /* arrays */
    assert_int_equal(nib__gguf_array_of(&array, &found, g, "a.texts", NIB_GGUF_STRING, &err),
                     NIB_OK);
    assert_true(found);
    static const char *const texts[] = {"one", "", "three"};
    for (int i = 0; i < 3; i++) {
        assert_true(nib__gguf_next_string(&array, &text, &size));
        assert_int_equal(size, strlen(texts[i]));
        assert_memory_equal(text, texts[i], size);
    }
    assert_false(nib__gguf_next_string(&array, &text, &size));
    assert_int_equal(nib__gguf_array_of(&array, &found, g, "a.ints", NIB_GGUF_I64, &err), NIB_OK);
    assert_int_equal(array.count, 2);
    assert_true(nib__gguf_next_int(&array, &whole));
    assert_int_equal(whole, 7);
    assert_true(nib__gguf_next_int(&array, &whole));
    assert_int_equal(whole, -1);
    assert_false(nib__gguf_next_int(&array, &whole));
    assert_int_equal(nib__gguf_array_of(&array, &found, g, "a.none", NIB_GGUF_F64, &err), NIB_OK);
    assert_false(nib__gguf_next_double(&array, &number));
    drop(&p);
}

/* ---- the prefix: G01 to G07 ---- */

static void test_prefix(void **state)
{
    (void)state;
    static gguf_file f;
    f.size = 0;
    expect(&f, NIB_BAD_INPUT);
    put_bytes(&f, "GGU", 3);
    expect(&f, NIB_BAD_INPUT);
    put_bytes(&f, "f\3\0\0\0", 5);
    expect(&f, NIB_BAD_INPUT);
    static const uint32_t versions[] = {0, 1, 4, 0xffffffff, 0x02000000, 0x03000000};
    for (size_t i = 0; i < COUNT(versions); i++) { /* the last two are big-endian */
        put_header(&f, versions[i], 0, 0);
        expect(&f, NIB_UNSUPPORTED);
    }
    static const uint64_t counts[] = {UINT64_MAX, UINT64_C(1) << 63, (UINT64_C(1) << 20) + 1, 1000,
                                      1};
    for (size_t i = 0; i < COUNT(counts); i++) {
        put_header(&f, 3, counts[i], 0);
        expect(&f, NIB_BAD_INPUT);
        put_header(&f, 3, 0, counts[i]);
        expect(&f, NIB_BAD_INPUT);
    }
    put_header(&f, 3, 0, 0);
    expect(&f, NIB_OK);
}

/* ---- key/values: G08 to G18 ---- */

static void test_keys(void **state)
{
    (void)state;
    static gguf_file f;
    static const uint64_t lengths[] = {0, 65536, 1 << 20, (1 << 30) + 1, UINT64_MAX};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        put_header(&f, 3, 0, 1);
        put_int(&f, lengths[i], 8);
        for (int j = 0; j < 40; j++)
            put_bytes(&f, "k", 1);
        expect(&f, NIB_BAD_INPUT);
    }
    put_header(&f, 3, 0, 1);
    put_key_int(&f, "a\xff", NIB_GGUF_U8, 1, 1);
    expect(&f, NIB_BAD_INPUT);
    put_header(&f, 3, 0, 1);
    put_int(&f, 3, 8);
    put_bytes(&f, "a\0b\0\0\0\0\1", 8);
    expect(&f, NIB_BAD_INPUT);
    put_header(&f, 3, 0, 2);
    put_key_int(&f, "a.b", NIB_GGUF_U8, 1, 1);
    put_key_int(&f, "a.b", NIB_GGUF_U8, 1, 1);
    expect(&f, NIB_BAD_INPUT);
}

static void test_kinds(void **state)
{
    (void)state;
    static gguf_file f;
    static const uint32_t kinds[] = {13, 0xffffffff};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        put_header(&f, 3, 0, 1);
        put_key_int(&f, "a.b", kinds[i], 1, 8);
        expect(&f, NIB_BAD_INPUT);
        put_header(&f, 3, 0, 1);
        put_key_array(&f, "a.b", kinds[i], 1);
        put_int(&f, 0, 8);
        expect(&f, NIB_BAD_INPUT);
    }
    put_header(&f, 3, 0, 1);
    put_key_array(&f, "a.b", NIB_GGUF_ARRAY, 1);
    put_int(&f, 0, 8);
    expect(&f, NIB_UNSUPPORTED);
    put_header(&f, 3, 0, 1);
    put_key_int(&f, "a.b", NIB_GGUF_BOOL, 7, 1);
    expect(&f, NIB_BAD_INPUT);
    put_header(&f, 3, 0, 1);
    put_key_int(&f, "a.b", NIB_GGUF_BOOL, 2, 1);
    expect(&f, NIB_BAD_INPUT);
}

static void test_lengths(void **state)
{
    (void)state;
    static gguf_file f;
    static const uint64_t counts[] = {3, UINT64_MAX, UINT64_C(1) << 61};
    for (size_t i = 0; i < COUNT(counts); i++) {
        put_header(&f, 3, 0, 1);
        put_key_array(&f, "a.b", NIB_GGUF_U64, counts[i]);
        put_int(&f, 1, 8);
        put_int(&f, 2, 8);
        expect(&f, NIB_BAD_INPUT);
        put_header(&f, 3, 0, 1);
        put_key_array(&f, "a.b", NIB_GGUF_STRING, counts[i]);
        put_text(&f, "");
        put_text(&f, "");
        expect(&f, NIB_BAD_INPUT);
    }
    put_header(&f, 3, 0, 1); /* each length is wrong */
    put_key_array(&f, "a.b", NIB_GGUF_STRING, 2);
    put_text(&f, "fine");
    put_int(&f, 1000, 8);
    put_bytes(&f, "short", 5);
    expect(&f, NIB_BAD_INPUT);
    put_header(&f, 3, 0, 1);
    put_key_int(&f, "a.b", NIB_GGUF_STRING, (UINT64_C(1) << 30) + 1, 8);
    expect(&f, NIB_BAD_INPUT);
}

static void test_alignment(void **state)
{
    (void)state;
    static gguf_file f;
    static const uint64_t bad[] = {0, 3, 48, UINT64_C(1) << 31};
    for (size_t i = 0; i < COUNT(bad); i++) {
        put_header(&f, 3, 0, 1);
        put_key_int(&f, "general.alignment", NIB_GGUF_U32, bad[i], 4);
        expect(&f, NIB_BAD_INPUT);
    }
    put_header(&f, 3, 0, 1); /* the largest */
    put_key_int(&f, "general.alignment", NIB_GGUF_U32, NIB_GGUF_ALIGNMENT_MAX, 4);
    expect(&f, NIB_OK);
    put_header(&f, 3, 0, 1);
    put_key_int(&f, "general.alignment", NIB_GGUF_U32, 2 * NIB_GGUF_ALIGNMENT_MAX, 4);
    expect(&f, NIB_BAD_INPUT);
    put_header(&f, 3, 0, 1);
    put_key_int(&f, "general.alignment", NIB_GGUF_I32, 32, 4);
    expect(&f, NIB_BAD_INPUT);
    put_header(&f, 3, 0, 1);
    put_key_text(&f, "general.alignment", "32");
    expect(&f, NIB_BAD_INPUT);
    put_header(&f, 3, 0, 1);
    put_key_array(&f, "general.alignment", NIB_GGUF_U32, 1);
    put_int(&f, 32, 4);
    expect(&f, NIB_BAD_INPUT);
    static const uint64_t good[] = {1, 2, 4, 8, 64};
    for (size_t i = 0; i < COUNT(good); i++) {
        put_header(&f, 3, 2, 1);
        put_key_int(&f, "general.alignment", NIB_GGUF_U32, good[i], 4);
        put_tensor(&f, "a", 24, 1, 0, 0);
        put_tensor(&f, "b", 24, 1, 0, good[i]);
        put_padding(&f, (size_t)good[i]);
        for (uint64_t j = 0; j < good[i] + 1; j++)
            put_int(&f, 0, 1);
        expect(&f, NIB_OK);
    }
    put_header(&f, 3, 0, 1);
    put_key_int(&f, "general.architecture", NIB_GGUF_U32, 32, 4);
    expect(&f, NIB_BAD_INPUT);
    for (int size = 64; size <= 65; size++) { /* the longest, and one more */
        char name[66];
        snprintf(name, sizeof name, "%0*d", size, 0);
        put_header(&f, 3, 0, 1);
        put_key_text(&f, "general.architecture", name);
        expect(&f, size == 64 ? NIB_OK : NIB_BAD_INPUT);
    }
}

/* ---- tensors: G19 to G28, G37 ---- */

static void expect_tensor(const char *name, uint32_t rank, const uint64_t *dims, uint32_t type,
                          nib_status status)
{
    static gguf_file f;
    put_header(&f, 3, 1, 0);
    put_text(&f, name);
    put_int(&f, rank, 4);
    for (uint32_t i = 0; i < rank && i < 8; i++)
        put_int(&f, dims[i], 8);
    put_int(&f, type, 4);
    put_int(&f, 0, 8);
    put_padding(&f, 32);
    for (int i = 0; i < 64; i++)
        put_int(&f, 0, 1);
    expect(&f, status);
}

static void test_tensor_names(void **state)
{
    (void)state;
    static const uint64_t one[] = {16};
    expect_tensor("", 1, one, 0, NIB_BAD_INPUT);
    expect_tensor("0123456789012345678901234567890123456789012345678901234567890123", 1, one, 0,
                  NIB_BAD_INPUT);
    expect_tensor("012345678901234567890123456789012345678901234567890123456789012", 1, one, 0,
                  NIB_OK);
    expect_tensor("../../x", 1, one, 0, NIB_OK); /* names are never used as paths */
    expect_tensor("a\xc3", 1, one, 0, NIB_BAD_INPUT);
    static gguf_file f;
    put_header(&f, 3, 2, 0);
    put_tensor(&f, "a", 0, 8, 0, 0);
    put_tensor(&f, "a", 1, 8, 0, 32);
    put_padding(&f, 32);
    for (int i = 0; i < 64; i++)
        put_int(&f, 0, 1);
    expect(&f, NIB_BAD_INPUT);
}

static void test_shapes(void **state)
{
    (void)state;
    static const uint64_t big = UINT64_C(1) << 32;
    static const uint64_t dims[][5] = {{16, 1, 1, 1, 1},
                                       {0, 1, 1, 1, 1},
                                       {UINT64_MAX, 1, 1, 1, 1},
                                       {(UINT64_C(1) << 42) + 1, UINT64_C(1) << 42, 1, 1, 1},
                                       {INT64_MAX, 2, 1, 1, 1},
                                       {big, big, 1, 1, 1},
                                       {1 << 21, 1 << 21, 1 << 21, 1, 1}};
    expect_tensor("a", 0, dims[0], 0, NIB_BAD_INPUT);
    expect_tensor("a", 5, dims[0], 0, NIB_BAD_INPUT);
    expect_tensor("a", 0xffffffff, dims[0], 0, NIB_BAD_INPUT);
    expect_tensor("a", 4, dims[0], 0, NIB_OK);
    for (size_t i = 1; i < COUNT(dims); i++)
        expect_tensor("a", i < 3 ? 1 : i < 6 ? 2 : 3, dims[i], 24, NIB_BAD_INPUT);
    static const uint64_t bytes[] = {INT64_MAX / 2}; /* of f64: more than 64 bits hold */
    expect_tensor("a", 1, bytes, 28, NIB_BAD_INPUT);
    static const uint64_t q4_k[] = {288}, mxfp4[] = {33}; /* not whole blocks */
    expect_tensor("a", 1, q4_k, 12, NIB_BAD_INPUT);
    expect_tensor("a", 1, mxfp4, 39, NIB_BAD_INPUT);
}

static void test_types(void **state)
{
    (void)state;
    static const uint64_t one[] = {16};
    static const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38};
    static const uint32_t foreign[] = {9, 15, 16, 17, 18, 19, 21, 22, 23, 29, 34, 35, 40, 41, 42};
    for (size_t i = 0; i < COUNT(removed); i++)
        expect_tensor("a", 1, one, removed[i], NIB_UNSUPPORTED);
    for (size_t i = 0; i < COUNT(foreign); i++)
        expect_tensor("a", 1, one, foreign[i], NIB_UNSUPPORTED);
    expect_tensor("a", 1, one, 10, NIB_BAD_INPUT); /* not a whole block of Q2_K */
    expect_tensor("a", 1, one, 43, NIB_UNSUPPORTED);
    expect_tensor("a", 1, one, 0xffffffff, NIB_UNSUPPORTED);
}

/* ---- offsets: G25, G29 to G32, G34, G35 ---- */

static void expect_places(uint64_t a, uint64_t b, size_t data, nib_status status)
{
    static gguf_file f;
    put_header(&f, 3, 2, 0);
    put_tensor(&f, "a", 0, 8, 2, a); /* 64 bytes */
    put_tensor(&f, "b", 0, 4, 1, b); /* 16 bytes */
    put_padding(&f, 32);
    for (size_t i = 0; i < data; i++)
        put_int(&f, 0, 1);
    expect(&f, status);
}

static void test_offsets(void **state)
{
    (void)state;
    expect_places(0, 64, 80, NIB_OK);
    expect_places(0, 64, 96, NIB_OK); /* padded, as by writers */
    expect_places(32, 0, 96, NIB_OK);
    expect_places(0, 64, 79, NIB_BAD_INPUT); /* data cut short */
    expect_places(0, 64, 97, NIB_BAD_INPUT); /* more than padding at the end */
    expect_places(0, 68, 96, NIB_BAD_INPUT); /* not aligned */
    expect_places(0, 32, 96, NIB_BAD_INPUT); /* overlaps */
    expect_places(0, 0, 96, NIB_BAD_INPUT);
    expect_places(0, 96, 128, NIB_BAD_INPUT); /* holes */
    expect_places(32, 96, 128, NIB_BAD_INPUT);
    expect_places(0, UINT64_MAX - 31, 96, NIB_BAD_INPUT); /* past the end */
    expect_places(0, 1 << 20, 96, NIB_BAD_INPUT);
}

/* G33: every truncation of header or data is detected. */
static void test_every_truncation_is_found(void **state)
{
    (void)state;
    static gguf_file f;
    put_good(&f);
    for (size_t size = 0; size < f.size; size++) {
        parsed p;
        parse_bytes(&p, f.bytes, size);
        if (p.status != NIB_BAD_INPUT)
            fail_msg("cut at %zu: status %d \"%s\"", size, (int)p.status, p.err.text);
        drop(&p);
    }
}

/* G11: with a million keys, each lookup takes constant time, within the budget. */
static void test_many_keys(void **state)
{
    (void)state;
    enum { KEYS = 1000000, EACH = 8 + 8 + 4 + 1 };
    gguf_file head;
    put_header(&head, 3, 0, KEYS);
    const size_t size = head.size + (size_t)KEYS * EACH;
    uint8_t *bytes = calloc(1, size), *at = bytes + head.size;
    assert_non_null(bytes);
    memcpy(bytes, head.bytes, head.size);
    for (int i = 0; i < KEYS; i++, at += EACH) {
        char key[16];
        snprintf(key, sizeof key, "%08d", i);
        at[0] = 8;
        memcpy(at + 8, key, 8);
    }
    parsed p;
    parse_bytes(&p, bytes, size);
    assert_int_equal(p.status, NIB_OK);
    assert_int_equal(p.contents.gguf->count, KEYS);
    assert_non_null(nib__gguf_find(p.contents.gguf, "00999999"));
    assert_null(nib__gguf_find(p.contents.gguf, "01000000"));
    drop(&p);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid_file), cmocka_unit_test(test_values),
        cmocka_unit_test(test_prefix),     cmocka_unit_test(test_keys),
        cmocka_unit_test(test_kinds),      cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_alignment),  cmocka_unit_test(test_tensor_names),
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_types),
        cmocka_unit_test(test_offsets),    cmocka_unit_test(test_every_truncation_is_found),
        cmocka_unit_test(test_many_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
