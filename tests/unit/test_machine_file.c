/* SPDX-License-Identifier: Apache-2.0
 *
 * Machine files: the library's equal the writer's output; a user's file is read, and errors in it
 * give their position.
 */
#include "failing.h"
#include "file.h"
#include "machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "machines.h"
#include "refused.h"

static void the_writer_reproduces_the_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < machines.count; i++) {
        nib_text text;
        nib__text_init(&text, &allocator);
        nib__machine_write(&machines.items[i], &text);
        assert_false(text.failed);
        assert_string_equal(nib__machine_files[i].name, machines.items[i].name);
        if (text.size != nib__machine_files[i].size ||
            memcmp(text.at, nib__machine_files[i].text, text.size) != 0)
            fail_msg("machines/%s.json is not what `nibble devices %s --json` prints",
                     machines.items[i].name, machines.items[i].name);
        nib__text_free(&text);
    }
}

/* ---- a small machine, valid and with one error ---- */

#define SOURCES "\"sources\":{\"a\":{\"title\":\"A sheet\",\"date\":\"2026-01-02\"}}"
#define FACTS                                                                                      \
    "\"device\":{\"value\":\"opencl\",\"source\":\"a\"},"                                          \
    "\"maker\":{\"value\":\"intel\",\"source\":\"a\"},"                                            \
    "\"dot4\":{\"value\":false,\"source\":\"a\"},"                                                 \
    "\"dot8\":{\"value\":true,\"words\":\"dp4a\",\"source\":\"a\"},"                               \
    "\"matrix_unit\":{\"value\":false,\"source\":\"a\"}"
#define RATES                                                                                      \
    "\"bytes_per_s\":{\"value\":50e9,\"source\":\"a\"},"                                           \
    "\"memory\":{\"value\":8589934592,\"source\":\"a\"},"                                          \
    "\"f32\":{\"value\":1.5e12,\"derived\":\"by hand\",\"source\":\"a\"}"
#define FILE_OF(more, sources, facts, rates)                                                       \
    "{\"schema\":1,\"title\":\"Mine\"," more sources ",\"facts\":{" facts "},\n\"rates\":{" rates  \
    "}}"
#define CPU_FILE(more, facts)                                                                      \
    FILE_OF(more, SOURCES,                                                                         \
            "\"device\":{\"value\":\"cpu\",\"source\":\"a\"},"                                     \
            "\"maker\":{\"value\":\"intel\",\"source\":\"a\"},"                                    \
            "\"dot4\":{\"value\":false,\"source\":\"a\"},"                                         \
            "\"dot8\":{\"value\":true,\"source\":\"a\"},"                                          \
            "\"matrix_unit\":{\"value\":false,\"source\":\"a\"}" facts,                            \
            RATES)
static const char whole[] = FILE_OF("", SOURCES, FACTS, RATES);

static nib_status parse(nib_machine *m, const char *text, nib_arena *arena, nib_err *err)
{
    const char *host;
    return nib__machine_parse(m, &host, "mine", "mine.json", text, strlen(text), arena, err);
}

static void a_small_machine_is_read(void **state)
{
    (void)state;
    nib_machine m;
    nib_arena arena;
    nib_text text;
    nib__arena_init(&arena, &allocator, 0);
    assert_int_equal(parse(&m, whole, &arena, NULL), NIB_OK);
    assert_string_equal(m.name, "mine");
    assert_string_equal(m.title, "Mine");
    assert_int_equal(m.facts.fact[NIB_FACT_DEVICE], NIB_DEVICE_OPENCL);
    assert_int_equal(m.facts.fact[NIB_FACT_MAKER], NIB_MAKER_INTEL);
    assert_int_equal(m.facts.fact[NIB_FACT_DOT8], 1);
    assert_true(m.bytes_per_s == 50e9 && m.rate[NIB_UNIT_F32] == 1.5e12);
    assert_true(m.memory == UINT64_C(8589934592) && m.launch_s == 5e-6);
    assert_int_equal(m.source_count, 8);
    nib__text_init(&text, &allocator);
    nib__device_render(NIB_FORM_TEXT, &m, &text);
    assert_non_null(strstr(text.at, "    dot8           yes: dp4a\n"
                                    "                     2026-01-02, A sheet\n"));
    assert_non_null(strstr(text.at, "    f32            1.5 TFLOP/s\n                     "
                                    "2026-01-02, derived: by hand; A sheet\n"));
    nib__text_free(&text);
    nib__arena_free(&arena);
}

/* Launching takes the time in the file, or else a cautious one; copying likewise. */
static void rates_that_are_not_given(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double launch_s, copy_bytes_per_s;
    } cases[] = {
        {whole, 5e-6, NIB_CAUTIOUS_COPY_BYTES_PER_S},
        {CPU_FILE("", ",\"isa\":{\"value\":[\"avx2\"],\"source\":\"a\"}"), 2e-6, 0},
        {FILE_OF("", SOURCES, FACTS,
                 RATES ",\"launch_s\":{\"value\":1,\"source\":\"a\"},\"copy_bytes_per_s\":{"
                       "\"value\":7e9,\"source\":\"a\"},\"fp8\":{\"value\":1e12,\"source\":\"a\"},"
                       "\"mx8\":{\"value\":1e12,\"source\":\"a\"}"),
         1, 7e9},
        {FILE_OF("", SOURCES,
                 FACTS ",\"fp8_unit\":{\"value\":false,\"source\":\"a\"},\"mx_unit\":{\"value\":"
                       "false,\"source\":\"a\"}",
                 RATES),
         5e-6, NIB_CAUTIOUS_COPY_BYTES_PER_S},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_machine m;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &allocator, 0);
        if (parse(&m, cases[i].text, &arena, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_true(m.launch_s == cases[i].launch_s);
        assert_true(m.copy_bytes_per_s == cases[i].copy_bytes_per_s);
        nib__arena_free(&arena);
    }
}

/* 32 sources, and a text of 400 bytes, are the most. */
static void limits_of_sources_and_texts(void **state)
{
    (void)state;
    for (int past = 0; past < 3; past++) { /* none, the sources, the text */
        nib_machine m;
        nib_arena arena;
        nib_text text;
        nib_err err = {NIB_OK, ""};
        nib__text_init(&text, &allocator);
        nib__text_str(&text, "{\"title\":\"");
        for (int i = 0; i < (past == 2 ? 401 : 400); i++)
            nib__text_str(&text, "t");
        nib__text_str(&text, "\",\"sources\":{\"a\":{\"title\":\"A\",\"date\":\"2026-01-02\"}");
        for (int i = 1; i < (past == 1 ? 33 : 32); i++)
            nib__text_format(&text, ",\"%d\":{\"title\":\"A\",\"date\":\"2026-01-02\"}", i);
        nib__text_str(&text, "},\"facts\":{" FACTS "},\"rates\":{" RATES "}}");
        nib__arena_init(&arena, &allocator, 0);
        const nib_status got = parse(&m, text.at, &arena, &err);
        if (past == 0)
            assert_int_equal(got, NIB_OK);
        else
            refused(NIB_BAD_INPUT, got, &err);
        nib__arena_free(&arena);
        nib__text_free(&text);
    }
}

static void errors_name_their_position(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{\"schema\":2}",
        "{\"tilte\":\"x\"}",
        FILE_OF("", SOURCES, FACTS ",\"dot5\":{}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"op\":{}", RATES), /* a fact of layers, not of machines */
        FILE_OF("", SOURCES, FACTS, RATES ",\"fp9\":{}"),
        FILE_OF("", SOURCES, FACTS ",\"sm\":{\"vlaue\":80}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"sm\":{\"value\":true}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"sm\":{\"value\":-1}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"fp8_unit\":{\"value\":1}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"isa\":{\"value\":[\"avx512vni\"]}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"isa\":{\"value\":\"avx2\"}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"sm\":{\"source\":\"a\"}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"sm\":{\"value\":80}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"dot4\":{}", RATES), /* given twice */
        FILE_OF("", SOURCES, FACTS ",\"sm\":{\"value\":80,\"source\":\"aa\"}", RATES),
        FILE_OF("", SOURCES, FACTS, RATES ",\"bf16\":{\"value\":0,\"source\":\"a\"}"),
        FILE_OF("", SOURCES, FACTS, RATES ",\"launch_s\":{\"value\":5}"), /* seconds */
        FILE_OF("", SOURCES, FACTS, RATES ",\"i8\":{\"value\":1e999}"),
        FILE_OF("\"title\":\"Again\",", SOURCES, FACTS, RATES),
        FILE_OF("\"host\":\"a\\u001bb\",", SOURCES, FACTS, RATES),
        FILE_OF("\"host\":\"\",", SOURCES, FACTS, RATES),
        FILE_OF("", "\"sources\":{\"a\":{\"title\":\"A\",\"date\":\"May 2026\"}}", FACTS, RATES),
        FILE_OF("", "\"sources\":{\"a\":{\"title\":\"A\"}}", FACTS, RATES),
        FILE_OF("", "\"sources\":{\"a\":{\"titel\":\"A\"}}", FACTS, RATES),
        "{\"schema\":1}",
        "{\"title\":\"Mine\"}",
        FILE_OF("", SOURCES, FACTS, "\"f32\":{\"value\":1e12,\"source\":\"a\"}"),
        "{\"title\":\"Mine\"} x",
        FILE_OF("\"host\":\"a\\u007fb\",", SOURCES, FACTS, RATES),
        FILE_OF("\"host\":\"a\\u009fb\",", SOURCES, FACTS, RATES),
        FILE_OF("", "\"sources\":{\"a\":{\"title\":\"A\",\"date\":\"2026-01-0:\"}}", FACTS, RATES),
        FILE_OF("", "\"sources\":{\"a\":{\"title\":\"A\",\"date\":\"2026-01-0/\"}}", FACTS, RATES),
        FILE_OF("", "\"sources\":{\"a\":{\"date\":\"2026-01-01\"}}", FACTS, RATES),
        FILE_OF("", SOURCES ",\"sources\":{\"a\":{}}", FACTS, RATES), /* given twice */
        FILE_OF("", "\"sources\":{}", FACTS, RATES),                  /* none is near */
        FILE_OF("", SOURCES, FACTS ",\"isa\":{\"value\":[7]}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"zzzzzzzzzz\":{}", RATES),
        FILE_OF("", SOURCES, FACTS, RATES ",\"i8\":{\"value\":1e19}"),
        /* facts of other makers' machines, or that contradict a rate */
        FILE_OF("", SOURCES, FACTS ",\"sm\":{\"value\":80,\"source\":\"a\"}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"cdna\":{\"value\":2,\"source\":\"a\"}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"isa\":{\"value\":[],\"source\":\"a\"}", RATES),
        FILE_OF("", SOURCES, FACTS ",\"fp8_unit\":{\"value\":false,\"source\":\"a\"}",
                RATES ",\"fp8\":{\"value\":1e12,\"source\":\"a\"}"),
        FILE_OF("", SOURCES, FACTS ",\"mx_unit\":{\"value\":false,\"source\":\"a\"}",
                RATES ",\"mx8\":{\"value\":1e12,\"source\":\"a\"}"),
        CPU_FILE("\"host\":\"graviton3\",", ""),
        CPU_FILE("", ",\"sm\":{\"value\":80,\"source\":\"a\"}"),
        CPU_FILE("", ",\"cdna\":{\"value\":2,\"source\":\"a\"}"),
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        nib_machine m;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &allocator, 0);
        refused(NIB_BAD_INPUT, parse(&m, texts[i], &arena, &err), &err);
        nib__arena_free(&arena);
    }
}

/* Every truncated file is an error with a message. */
static void a_cut_file_is_refused(void **state)
{
    (void)state;
    for (size_t size = 0; size + 1 < sizeof whole - 1; size++) {
        nib_machine m;
        const char *host;
        nib_arena arena;
        nib__arena_init(&arena, &allocator, 0);
        assert_int_equal(
            nib__machine_parse(&m, &host, "mine", "mine.json", whole, size, &arena, NULL),
            NIB_BAD_INPUT);
        nib__arena_free(&arena);
    }
}

/* ---- files ---- */

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_users_file_is_a_device(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text;
        nib_status status;
    } cases[] = {
        {"my-gpu.json", whole, NIB_OK},
        {"hosted.json", FILE_OF("\"host\":\"graviton3\",", SOURCES, FACTS, RATES), NIB_OK},
        {"lost.json", FILE_OF("\"host\":\"graviton33\",", SOURCES, FACTS, RATES), NIB_BAD_INPUT},
        {"odd.json", FILE_OF("\"host\":\"zzzzzzzzzz\",", SOURCES, FACTS, RATES), NIB_BAD_INPUT},
        {"gpu-hosted.json", FILE_OF("\"host\":\"h100\",", SOURCES, FACTS, RATES), NIB_BAD_INPUT},
        {"a b.json", whole, NIB_USAGE},
        {"a@.json", whole, NIB_USAGE},
        {"[a.json", whole, NIB_USAGE},
        {"{a.json", whole, NIB_USAGE},
        {"`a.json", whole, NIB_USAGE},
        {":a.json", whole, NIB_USAGE},
        {"cpu.json", whole, NIB_USAGE},
        {"auto.json", whole, NIB_USAGE},
        {"My_Gpu.2", whole, NIB_OK},
        {".json", whole, NIB_USAGE},
        {"a23456789-123456789-123456789-123456789-123456789-123456789-123.json", whole, NIB_OK},
        {"a23456789-123456789-123456789-123456789-123456789-123456789-1234.json", whole, NIB_USAGE},
        {"none.json", NULL, NIB_IO},
    };
    char dir[] = "/tmp/nib-machine-XXXXXX", path[160];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_machine m;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &allocator, 0);
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].file);
        if (cases[i].text != NULL)
            write_text(path, cases[i].text);
        assert_true(nib__machine_is_path(path));
        const nib_status status = nib__machine_read(&m, path, &machines, &arena, &err);
        if (cases[i].status == NIB_OK)
            assert_int_equal(status, NIB_OK);
        else
            refused(cases[i].status, status, &err);
        if (i == 0)
            assert_string_equal(m.name, "my-gpu");
        if (i == 1)
            assert_ptr_equal(m.host, nib__machines_find(&machines, "graviton3"));
        nib__arena_free(&arena);
    }
    assert_int_equal(nib__path_remove(dir, NULL), NIB_OK);
    assert_true(nib__machine_is_path("mine.json") && !nib__machine_is_path("mi210"));
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    /* whichever piece of the arena does not fit */
    char dir[] = "/tmp/nib-machine-XXXXXX", path[128];
    size_t needed = SIZE_MAX;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/lost.json", dir);
    write_text(path, FILE_OF("\"host\":\"graviton33\",", SOURCES, FACTS, RATES));
    for (size_t limit = 0; limit < needed; limit += limit == 0 ? 1 : 8) { /* 0: none */
        nib_machine m;
        nib_arena arena;
        nib_err err = {NIB_OK, ""};
        nib__arena_init(&arena, &allocator, limit);
        assert_int_equal(nib__machine_read(&m, path, &machines, &arena, &err),
                         limit == 0 ? NIB_BAD_INPUT : NIB_NO_MEMORY);
        if (limit == 0)
            needed = arena.total;
        nib__arena_free(&arena);
    }
    assert_int_equal(nib__path_remove(dir, NULL), NIB_OK);
    nib_status status = NIB_NO_MEMORY;
    for (int left = 0; status == NIB_NO_MEMORY && left < 2000; left++) {
        failing f = {.left = left};
        nib_allocator a = failing_allocator(&f);
        nib_machines all;
        status = nib__machines_open(&all, &a, NULL);
        if (status == NIB_OK)
            nib__machines_close(&all);
        assert_int_equal(f.live, 0);
    }
    assert_int_equal(status, NIB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_writer_reproduces_the_file),
        cmocka_unit_test(a_small_machine_is_read),
        cmocka_unit_test(rates_that_are_not_given),
        cmocka_unit_test(limits_of_sources_and_texts),
        cmocka_unit_test(errors_name_their_position),
        cmocka_unit_test(a_cut_file_is_refused),
        cmocka_unit_test(a_users_file_is_a_device),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return RUN_WITH_MACHINES(tests);
}
