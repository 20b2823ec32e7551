/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of signed_files.c: statements that are read as they were written, and those that are
 * refused.
 */
#include "signed_files.h"

#include "opening.h"
#include "refused.h"

static const nib_signed_place place = {.directory = "some/model/",
                                       .names = {"model.intoto.json", "x", "y"}};

static void write_statement(nib_text *out, const nib_allocator *a)
{
    nib_digests files = {.count = 0};
    static const char *const names[] = {"b \"quoted\" \xc3\xa9", "a/b", "a"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const nib_digest digest = nib__sha256_bytes(names[i], strlen(names[i]));
        assert_int_equal(nib__digests_add(&files, names[i], &digest, a, NULL), NIB_OK);
    }
    nib__digests_sort(&files);
    nib__text_init(out, a);
    nib__signed_statement_put(out, &place, &files, false);
    nib__digests_free(&files, a);
    assert_false(out->failed);
}

static void test_read_as_written(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_signed_statement s;
    nib_arena arena;
    nib_text text;
    nib_err err;
    write_statement(&text, &a);
    assert_non_null(strstr(text.at, "\"name\": \"model\""));
    nib__arena_init(&arena, &a, 0);
    assert_int_equal(
        nib__signed_statement_read(&s, &place, "s", text.at, text.size, &arena, &a, &err), NIB_OK);
    assert_int_equal(s.files.count, 3);
    assert_int_equal(s.ignored.count, 8);
    assert_string_equal(s.files.items[0].name, "a");
    const nib_named_digest *found = nib__digests_find(&s.files, "a/b");
    const nib_digest wanted = nib__sha256_bytes("a/b", 3);
    assert_non_null(found);
    assert_true(nib__digest_equal(&found->digest, &wanted));
    assert_null(nib__digests_find(&s.files, "c"));
    nib__digests_free(&s.files, &a);
    nib__arena_free(&arena);
    nib__text_free(&text);
}

/* Each replaces the first `from` in a statement. */
static void test_hostile_statements(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        nib_status status;
    } rows[] = {
        {"\"a/b\"", "\"a//b\"", NIB_BAD_INPUT},
        {"\"a/b\"", "\"a/../../b\"", NIB_BAD_INPUT},
        {"\"a/b\"", "\"/etc/passwd\"", NIB_BAD_INPUT},
        {"\"a/b\"", "\"a/\"", NIB_BAD_INPUT},
        {"\"a/b\"", "\".\"", NIB_BAD_INPUT},
        {"\"a/b\"", "\"\"", NIB_BAD_INPUT},
        {"\"a/b\"", "\"a/b\\u0000c\"", NIB_BAD_INPUT},
        {"\"a/b\"", "7", NIB_BAD_INPUT},
        {"\"algorithm\": \"sha256\"", "\"algorithm\": \"blake2b\"", NIB_BAD_INPUT},
        {"\"digest\": \"", "\"digest\": \"0", NIB_BAD_INPUT},
        {"\"digest\": \"", "\"other\": \"", NIB_BAD_INPUT},
        {"\"resources\"", "\"others\"", NIB_BAD_INPUT},
        {"\"method\"", "\"other\"", NIB_BAD_INPUT},
        {"\"files\"", "\"shards\"", NIB_UNSUPPORTED},
        {"signature/v1.0", "signature/v2.0", NIB_UNSUPPORTED},
        {"Statement/v1", "Statement/v9", NIB_UNSUPPORTED},
        {"\"hash_type\": \"sha256\"", "\"hash_type\": \"blake3\"", NIB_UNSUPPORTED},
        {"\"subject\"", "\"object\"", NIB_BAD_INPUT},
        {"\"_type\"", "_type", NIB_BAD_INPUT},
        {"\n}\n", "\n", NIB_BAD_INPUT},
    };
    const nib_allocator a = nib__allocator_default();
    nib_text text, edited;
    write_statement(&text, &a);
    for (size_t i = 0; i < COUNT(rows); i++) {
        nib_signed_statement s;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        const char *at = strstr(text.at, rows[i].from);
        assert_non_null(at);
        nib__text_init(&edited, &a);
        nib__text_put(&edited, text.at, (size_t)(at - text.at));
        nib__text_str(&edited, rows[i].to);
        nib__text_str(&edited, at + strlen(rows[i].from));
        nib__arena_init(&arena, &a, 0);
        refused(
            rows[i].status,
            nib__signed_statement_read(&s, &place, "s", edited.at, edited.size, &arena, &a, &err),
            &err);
        nib__digests_free(&s.files, &a);
        nib__arena_free(&arena);
        nib__text_free(&edited);
    }
    nib__text_free(&text);
}

/* A member that comes again and again takes no more memory. */
static void test_repeated_member(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_signed_statement s;
    nib_arena arena;
    nib_text text, edited;
    write_statement(&text, &a);
    const char *at = strstr(text.at, "\"ignore_paths\"");
    assert_non_null(at);
    nib__text_init(&edited, &a);
    nib__text_put(&edited, text.at, (size_t)(at - text.at));
    for (int i = 0; i < 1000; i++)
        nib__text_str(&edited, "\"ignore_paths\": [],");
    nib__text_str(&edited, at);
    nib__arena_init(&arena, &a, 1 << 18);
    assert_int_equal(
        nib__signed_statement_read(&s, &place, "s", edited.at, edited.size, &arena, &a, NULL),
        NIB_OK);
    assert_int_equal(s.ignored.count, 8);
    nib__digests_free(&s.files, &a);
    nib__arena_free(&arena);
    nib__text_free(&edited);
    nib__text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_as_written),
        cmocka_unit_test(test_hostile_statements),
        cmocka_unit_test(test_repeated_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
