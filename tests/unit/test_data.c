/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed sequences: compared with those packed in Python (tests/golden/train/batches.txt), resumed
 * from every position, repeated passes over short files, and refused files and vocabularies.
 */
#include "data.h"
#include "failing.h"
#include "metered.h"
#include "tokenizing.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "refused.h"

static char root[] = "/tmp/nibble-data-XXXXXX";
static nib_tokenizer *shipped;

enum { LENGTH_MAX = 4096 };

/* ---- files and streams ---- */

static const char *in_root(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static const char *write_bytes(const char *name, const void *bytes, size_t size)
{
    const char *path = in_root(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    return path;
}

static const char *write_string(const char *name, const char *text)
{
    return write_bytes(name, text, strlen(text));
}

/* Copies a file of JSON lines under a name that makes it one text. */
static const char *as_text(const char *path)
{
    size_t size;
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    const char *text = read_text(&arena, path, &size);
    const char *copy = write_bytes("whole.txt", text, size);
    nib__arena_free(&arena);
    return copy;
}

typedef struct log_text {
    char text[2048];
    int lines;
} log_text;

static void keep_line(void *ctx, const char *line)
{
    log_text *log = ctx;
    log->lines++;
    strncat(log->text, line, sizeof log->text - strlen(log->text) - 2);
    strncat(log->text, "\n", 2);
}

/* An engine with only what a stream reads. */
static nib_engine engine_of(nib_allocator a, log_text *log)
{
    nib_engine engine = {.allocator = a};
    if (log)
        engine.callbacks = (nib_callbacks){.ctx = log, .log = keep_line};
    return engine;
}

static nib_data_options options_of(const char *path, int64_t length)
{
    return (nib_data_options){.path = path, .tokenizer = shipped, .vocab = 2048, .length = length};
}

static void must_open_data(nib_data *d, const nib_engine *engine, const nib_data_options *options)
{
    nib_err err;
    if (nib__data_open(d, engine, options, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void must_next(nib_data *d, int32_t *ids, bool *first)
{
    nib_err err;
    if (nib__data_next(d, ids, first, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

/* Opens a text and reads this many sequences. */
static nib_status read_data(const nib_data_options *options, int count, nib_err *err)
{
    int32_t ids[LENGTH_MAX + 1];
    bool first[LENGTH_MAX + 1];
    const nib_engine engine = engine_of(nib__allocator_default(), NULL);
    nib_data d;
    nib_status status = nib__data_open(&d, &engine, options, err);
    for (int i = 0; i < count && status == NIB_OK; i++)
        status = nib__data_next(&d, ids, first, err);
    nib__data_close(&d);
    return status;
}

static void expect_refused_after(const nib_data_options *options, int count)
{
    nib_err err;
    refused(NIB_BAD_INPUT, read_data(options, count, &err), &err);
}

/* On opening, before the first step of a run. */
static void expect_refused(const nib_data_options *options) { expect_refused_after(options, 0); }

static void expect_bytes_refused(const char *name, const char *bytes, size_t size)
{
    const nib_data_options options = options_of(write_bytes(name, bytes, size), 8);
    expect_refused(&options);
}

/* ---- against Python ---- */

static uint64_t hash_of(const int32_t *ids, int64_t count)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < count; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)ids[i] >> shift & 255)) * UINT64_C(0x100000001b3);
    return h;
}

/* Formats a sequence as a line of the golden file. */
static void sequence_text(nib_text *out, const nib_data *d, const int32_t *ids, const bool *first,
                          bool hashed)
{
    const int64_t count = d->options.length + 1;
    bool any = false;
    nib__text_clear(out);
    nib__text_format(out, "%" PRId64 " ", d->position.pass);
    for (int64_t i = 0; i < count; i++)
        if (first[i]) {
            nib__text_format(out, any ? ",%" PRId64 : "%" PRId64, i);
            any = true;
        }
    nib__text_str(out, any ? "" : "-");
    if (hashed)
        nib__text_format(out, " =%016" PRIx64, hash_of(ids, count));
    for (int64_t i = 0; i < count && !hashed; i++)
        nib__text_format(out, " %" PRId32, ids[i]);
    nib__text_put(out, "", 0);
}

/* Opens the stream that a line "@ FILE AS LENGTH" describes. */
static void open_named(nib_data *d, const nib_engine *engine, const char *line)
{
    static char path[128];
    char how[8];
    long length;
    assert_int_equal(sscanf(line, "@ %127s %7s %ld", path, how, &length), 3);
    assert_in_range(length, 1, LENGTH_MAX);
    const nib_data_options options =
        options_of(strcmp(how, "text") == 0 ? as_text(path) : path, length);
    must_open_data(d, engine, &options);
}

static void test_golden(void **state)
{
    (void)state;
    static char line[1024];
    static int32_t ids[LENGTH_MAX + 1];
    static bool first[LENGTH_MAX + 1];
    const nib_allocator a = nib__allocator_default();
    const nib_engine engine = engine_of(a, NULL);
    nib_data d = {0};
    nib_text text;
    nib__text_init(&text, &a);
    FILE *f = fopen("tests/golden/train/batches.txt", "r");
    assert_non_null(f);
    int sequences = 0;
    for (int number = 1; fgets(line, sizeof line, f); number++) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#')
            continue;
        if (line[0] == '@') {
            nib__data_close(&d);
            open_named(&d, &engine, line);
            continue;
        }
        must_next(&d, ids, first);
        sequence_text(&text, &d, ids, first, strchr(line, '=') != NULL);
        if (strcmp(text.at, line) != 0)
            fail_msg("batches.txt, line %d: %s\n  instead of: %s", number, text.at, line);
        sequences++;
    }
    fclose(f);
    nib__data_close(&d);
    nib__text_free(&text);
    assert_int_equal(sequences, 674);
}

/* ---- positions ---- */

static void expect_same_place(const nib_data_position *a, const nib_data_position *b)
{
    assert_int_equal(a->sequences, b->sequences);
    assert_int_equal(a->pass, b->pass);
    assert_int_equal(a->begin, b->begin);
    assert_int_equal(a->line, b->line);
    assert_int_equal(a->piece, b->piece);
    assert_int_equal(a->used, b->used);
}

/* Both streams give the same `count` sequences. */
static void expect_same_stream(nib_data *a, nib_data *b, int count)
{
    static int32_t ids[2][LENGTH_MAX + 1];
    static bool first[2][LENGTH_MAX + 1];
    const size_t wanted = (size_t)a->options.length + 1;
    expect_same_place(&a->position, &b->position);
    for (int i = 0; i < count; i++) {
        must_next(a, ids[0], first[0]);
        must_next(b, ids[1], first[1]);
        assert_memory_equal(ids[0], ids[1], wanted * sizeof ids[0][0]);
        assert_memory_equal(first[0], first[1], wanted * sizeof first[0][0]);
        expect_same_place(&a->position, &b->position);
    }
}

/* Resumes at every `stride`th of `count` sequences, by seeking and by skipping, in new streams and
 * in a used one. */
static void try_places(const char *path, int64_t length, int count, int stride, int ahead)
{
    static int32_t ids[LENGTH_MAX + 1];
    static bool first[LENGTH_MAX + 1];
    const nib_engine engine = engine_of(nib__allocator_default(), NULL);
    const nib_data_options options = options_of(path, length);
    nib_data straight, used;
    must_open_data(&straight, &engine, &options);
    must_open_data(&used, &engine, &options);
    for (int k = 0; k < count; k += stride) {
        nib_data again, skipped;
        const nib_data_position place = straight.position;
        assert_int_equal(place.sequences, k);
        must_open_data(&again, &engine, &options);
        must_open_data(&skipped, &engine, &options);
        assert_int_equal(nib__data_seek(&again, &place, NULL), NIB_OK);
        assert_int_equal(nib__data_skip(&skipped, k / 3, NULL), NIB_OK);
        assert_int_equal(nib__data_skip(&skipped, 0, NULL), NIB_OK);
        assert_int_equal(nib__data_skip(&skipped, k - k / 3, NULL), NIB_OK);
        expect_same_stream(&again, &skipped, ahead);
        assert_int_equal(nib__data_seek(&used, &place, NULL), NIB_OK);
        assert_int_equal(nib__data_seek(&again, &used.position, NULL), NIB_OK);
        assert_int_equal(nib__data_seek(&again, &again.position, NULL), NIB_OK);
        expect_same_stream(&used, &again, ahead);
        nib__data_close(&again);
        nib__data_close(&skipped);
        for (int i = 0; i < stride; i++)
            must_next(&straight, ids, first);
    }
    /* Seeking gives the same as reading in order. */
    assert_int_equal(nib__data_seek(&used, &straight.position, NULL), NIB_OK);
    expect_same_stream(&straight, &used, ahead);
    nib__data_close(&straight);
    nib__data_close(&used);
}

static void test_resumes_at_every_position(void **state)
{
    (void)state;
    const char *const documents = "tests/golden/train/documents.jsonl";
    try_places(documents, 15, 40, 1, 30);
    try_places(documents, 1, 320, 1, 4);
    try_places(documents, 300, 9, 1, 3);
    try_places(write_string("one.txt", "a single document"), 4, 40, 1, 9);
    try_places("tests/data/heldout.jsonl", 2048, 20, 3, 2);
}

static void test_resumes_in_pieces(void **state)
{
    (void)state;
    try_places(as_text("tests/data/corpus.jsonl"), 4096, 120, 23, 2);
}

static void expect_no_place(nib_data *d, nib_data_position place)
{
    nib_err err;
    refused(NIB_BAD_INPUT, nib__data_seek(d, &place, &err), &err);
}

static void test_refuses_wrong_positions(void **state)
{
    (void)state;
    const nib_engine engine = engine_of(nib__allocator_default(), NULL);
    const nib_data_options options =
        options_of(write_string("two.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"cd\"}\n"), 2);
    nib_data d;
    must_open_data(&d, &engine, &options);
    const nib_data_position good = {.sequences = 1, .begin = 16, .line = 3, .used = 2};
    assert_int_equal(nib__data_seek(&d, &good, NULL), NIB_OK);
    /* The second pass counts lines from the beginning again. */
    assert_int_equal(nib__data_skip(&d, 3, NULL), NIB_OK);
    assert_int_equal(d.position.pass, 1);
    assert_int_equal(d.position.line, d.position.begin == 0 ? 1 : 3);
    nib_data_position p = good;
    p.used = 9;
    expect_no_place(&d, p);
    p = good, p.used = -1;
    expect_no_place(&d, p);
    p = good, p.begin = 15; /* the blank line */
    expect_no_place(&d, p);
    p = good, p.begin = 1 << 20, p.pass = 3; /* past the end, where no pass can begin */
    expect_no_place(&d, p);
    p = good, p.begin = -1;
    expect_no_place(&d, p);
    p = good, p.piece = 3;
    expect_no_place(&d, p);
    p = good, p.sequences = -1;
    expect_no_place(&d, p);
    p = good, p.begin = 18; /* amid a line */
    expect_no_place(&d, p);
    /* After a refused seek the stream can still seek. */
    int32_t ids[3];
    bool first[3];
    assert_int_equal(nib__data_seek(&d, &good, NULL), NIB_OK);
    must_next(&d, ids, first);
    assert_int_equal(ids[1], 2047);
    assert_int_equal(ids[2], 2046);
    assert_true(first[2]);
    nib__data_close(&d);
}

/* Where the second piece of a text of `size` bytes begins. */
static int64_t second_piece(const char *text, size_t size)
{
    int32_t ids[2];
    bool first[2];
    const nib_engine engine = engine_of(nib__allocator_default(), NULL);
    const nib_data_options options = options_of(write_bytes("pieces.txt", text, size), 1);
    nib_data d;
    must_open_data(&d, &engine, &options);
    do
        must_next(&d, ids, first);
    while (d.position.piece == 0 && d.position.pass == 0);
    const int64_t piece = d.position.piece;
    nib__data_close(&d);
    return piece;
}

/* Pieces end at a line end, else a blank, else a character, and only in the second half. */
static void test_pieces(void **state)
{
    (void)state;
    enum { SIZE = NIB_DATA_PIECE + 3, HALF = NIB_DATA_PIECE / 2 };
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = "\xe4\xb8\xad"[i % 3];
    assert_int_equal(second_piece(text, SIZE - 4), 0); /* only one piece */
    assert_int_equal(second_piece(text, SIZE - 1), NIB_DATA_PIECE - 1);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = "abcdefgh"[i % 8];
    memcpy(text + HALF - 20, " x\ny", 4);
    assert_int_equal(second_piece(text, SIZE), NIB_DATA_PIECE);
    memcpy(text + HALF + 200, "  x", 3);
    assert_int_equal(second_piece(text, SIZE), HALF + 200);
    memcpy(text + HALF + 100, "\n\ty", 3);
    assert_int_equal(second_piece(text, SIZE), HALF + 200);
    memcpy(text + HALF + 50, "\n\ny\nz", 5);
    assert_int_equal(second_piece(text, SIZE), HALF + 54);
    free(text);
}

/* ---- passes ---- */

static void test_passes(void **state)
{
    (void)state;
    int32_t ids[101];
    bool first[101];
    log_text log = {.lines = 0};
    const nib_engine engine = engine_of(nib__allocator_default(), &log);
    const nib_data_options options = options_of(write_string("short.txt", "ab"), 100);
    nib_data d;
    must_open_data(&d, &engine, &options);
    must_next(&d, ids, first);
    /* BOS, "ab" in one or two ids, EOS, and again. */
    int64_t period = 1;
    while (!first[period])
        period++;
    assert_in_range(period, 3, 4);
    for (int64_t i = 0; i < 101; i++) {
        assert_int_equal(first[i], i % period == 0);
        assert_int_equal(ids[i], ids[i % period]);
    }
    assert_int_equal(ids[0], 2046);
    assert_int_equal(ids[period - 1], 2047);
    assert_int_equal(d.position.pass, 100 / period);
    nib__data_close(&d);
    char expected[2048];
    snprintf(expected, sizeof expected,
             "%s begins again: pass 2\n%s begins again: pass 3\n%s begins again: pass 5\n"
             "%s begins again: pass 9\n%s begins again: pass 17\n",
             options.path, options.path, options.path, options.path, options.path);
    assert_memory_equal(log.text, expected, strlen(expected));
    assert_in_range(log.lines, 5, 6); /* of 25 or 33 passes */
}

/* ---- refusals ---- */

static void test_empty(void **state)
{
    (void)state;
    expect_bytes_refused("a.txt", "", 0);
    expect_bytes_refused("a.jsonl", "", 0);
    expect_bytes_refused("b.jsonl", "\n \r\n\t\n", 6);
    expect_bytes_refused("c.jsonl", "\xef\xbb\xbf", 3);
    const char nothing[] = "{\"text\": \"\"}\n{\"text\": \"\"}";
    expect_bytes_refused("d.jsonl", nothing, strlen(nothing));
    const nib_data_options missing = options_of(in_root("missing.txt"), 8);
    const nib_data_options folder = options_of(root, 8);
    nib_err err;
    refused(NIB_IO, read_data(&missing, 0, &err), &err);
    refused(NIB_IO, read_data(&folder, 0, &err), &err);
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "text",
        "[1]",
        "{\"text\": 1}",
        "{\"text\": null}",
        "{\"Text\": \"a\"}",
        "{}",
        "{\"text\": \"a\"",
        "{\"text\": \"a\"} {\"text\": \"b\"}",
        "{\"text\": \"a\xff\"}",
        "{\"text\": \"\\ud800\"}",
    };
    for (size_t i = 0; i < COUNT(lines); i++) {
        char bytes[256];
        snprintf(bytes, sizeof bytes, "{\"text\": \"good\"}\r\n\n%s\n", lines[i]);
        expect_bytes_refused("bad.jsonl", bytes, strlen(bytes));
    }
}

static void test_not_utf8(void **state)
{
    (void)state;
    expect_bytes_refused("bad.txt", "good \xc3\xa9, \xe9t\xe9", 12);
    /* Also past the first piece. */
    enum { SIZE = 2 * NIB_DATA_PIECE };
    const nib_allocator a = nib__allocator_default();
    char *text = nib__calloc(&a, SIZE, 1);
    assert_non_null(text);
    memset(text, 'a', SIZE);
    text[SIZE - 2] = '\x80';
    expect_bytes_refused("long.txt", text, SIZE);
    nib__release(&a, text);
}

static nib_tokenizer *made_tokenizer(const char *specials, const char *model)
{
    char json[1024];
    snprintf(json, sizeof json,
             "{\"added_tokens\": [%s], \"normalizer\": null, \"pre_tokenizer\": null, "
             "\"post_processor\": null, \"decoder\": null, \"model\": {\"type\": \"BPE\", %s}}",
             specials, model);
    return parse_text(json, NULL);
}

#define ADDED(id, content, special)                                                                \
    "{\"id\": " #id ", \"content\": \"" content "\", \"single_word\": false, \"lstrip\": false, "  \
    "\"rstrip\": false, \"normalized\": false, \"special\": " #special "}"

static void test_vocabulary(void **state)
{
    (void)state;
    nib_data_options o = options_of("tests/data/heldout.jsonl", 64);
    o.vocab = 2256;
    assert_int_equal(read_data(&o, 20, NULL), NIB_OK);
    o.vocab = 2047;
    expect_refused(&o);
    o.vocab = 2046;
    expect_refused(&o);
    o.vocab = 300;
    expect_refused(&o);

    /* Padding beyond the model's ids never occurs in text; an unknown character may. */
    const char model[] = "\"unk_token\": \"<unk>\", \"vocab\": {\"a\": 0, \"b\": 1, \"<unk>\": 4}, "
                         "\"merges\": []";
    nib_tokenizer *padded =
        made_tokenizer(ADDED(4, "<unk>", true) ", " ADDED(5, "<pad>", true), model);
    o = (nib_data_options){
        .path = write_string("abc.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"abc\"}\n"),
        .tokenizer = padded,
        .vocab = 2,
        .length = 3};
    expect_refused_after(&o, 20);
    o.path = write_string("ab.txt", "abba");
    assert_int_equal(read_data(&o, 20, NULL), NIB_OK);
    nib__tokenizer_close(padded);
    nib_tokenizer *named =
        made_tokenizer(ADDED(4, "<unk>", true) ", " ADDED(5, "<name>", false), model);
    o.tokenizer = named;
    expect_refused(&o);
    nib__tokenizer_close(named);
}

/* ---- memory ---- */

/* Memory is bounded by the ids of a piece, not of the file. */
static void test_memory(void **state)
{
    (void)state;
    enum { SIZE = 8 * NIB_DATA_PIECE };
    static int32_t ids[LENGTH_MAX + 1];
    static bool first[LENGTH_MAX + 1];
    meter m = {0};
    const nib_engine engine = engine_of(metered_allocator(&m), NULL);
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = "wolf and king "[i % 14];
    const nib_data_options options = options_of(write_bytes("big.txt", text, SIZE), LENGTH_MAX);
    free(text);
    nib_data d;
    must_open_data(&d, &engine, &options);
    while (d.position.pass == 0)
        must_next(&d, ids, first);
    assert_in_range(m.peak, SIZE, SIZE + 4 * (NIB_DATA_PIECE + 2) + 4096);
    nib__data_close(&d);
    assert_int_equal(m.now, 0);
}

static void test_no_memory(void **state)
{
    (void)state;
    const nib_data_options options = options_of("tests/golden/train/documents.jsonl", 200);
    int32_t ids[201];
    bool first[201];
    for (int left = 0;; left++) {
        failing f = {.left = left};
        const nib_engine engine = engine_of(failing_allocator(&f), NULL);
        nib_data d;
        nib_err err;
        nib_status status = nib__data_open(&d, &engine, &options, &err);
        for (int i = 0; i < 4 && status == NIB_OK; i++)
            status = nib__data_next(&d, ids, first, &err);
        nib__data_close(&d);
        assert_int_equal(f.live, 0);
        if (status == NIB_OK)
            return;
        assert_int_equal(status, NIB_NO_MEMORY);
        assert_true(left < 1000);
    }
}

static int open_all(void **state)
{
    (void)state;
    shipped =
        open_path("configs/tokenizer/tokenizer.json", "configs/tokenizer/tokenizer_config.json");
    return mkdtemp(root) == NULL;
}

static int close_all(void **state)
{
    (void)state;
    nib__tokenizer_close(shipped);
    nib_err err;
    return nib__path_remove(root, &err) != NIB_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_resumes_at_every_position),
        cmocka_unit_test(test_resumes_in_pieces),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_refuses_wrong_positions),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
