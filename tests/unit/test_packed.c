/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights cached beside a checkpoint give the same logits. Every unusable cache file,
 * including one with valid hashes and false records, leads to a note and the same logits.
 */
#include "packed.h"
#include "session.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "skipping.h"

enum { TOKENS = 5, HEAD = 112, RECORD = 288, OFFSET = 256, REST = 80, SELF = 96, DATA = 2 << 20 };

static char root[] = "/tmp/nibble-packed-XXXXXX";
static char made[64], path[96];
static float *wanted; /* [vocab] without the file */
static int64_t vocab;
static char *packed; /* the file as written */
static size_t packed_size;

static nib_status drop(void *ctx, const char *bytes, size_t size)
{
    (void)ctx, (void)bytes, (void)size;
    return NIB_OK;
}

static void put_file(const void *bytes, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_err err;
    assert_int_equal(nib__path_remove(path, &err), NIB_OK);
    assert_int_equal(nib__file_write(path, bytes, size, &a, &err), NIB_OK);
}

static const char *note_of(const nib_plan *plan)
{
    const nib_ledger *l = &plan->assignment.ledger;
    for (size_t i = 0; i < l->note_count; i++)
        if (strcmp(l->notes[i].code, "packed") == 0)
            return l->notes[i].text;
    return "";
}

static int lines_logged;

static void count_line(void *ctx, const char *line)
{
    (void)ctx;
    if (strstr(line, "they were packed at load") == NULL)
        fail_msg("%s", line);
    lines_logged++;
}

/* Opens the model, expects the words in the note, and compares a prompt's last logits; *used:
 * number of weights mapped from the file. */
static void check(const char *words, const char *isa, size_t *used)
{
    opened o;
    nib_err err = {NIB_OK, ""};
    const float *logits = NULL;
    nib_slot slots[TOKENS];
    const open_how how = {
        .path = made, .isa = isa, .threads = 2, .context = 64, .callbacks = {.log = count_line}};
    lines_logged = 0;
    if (try_open(&o, &how, &err) != NIB_OK)
        fail_msg("%s", err.text);
    if (*words == 0 ? *note_of(o.plan) != 0 : strstr(note_of(o.plan), words) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", words, note_of(o.plan));
    for (int i = 0; i < TOKENS; i++)
        slots[i] = (nib_slot){.position = i, .token = 7 * i + 1, .logits = i == TOKENS - 1};
    assert_int_equal(nib_session_step(o.session, slots, TOKENS, &logits, &err), NIB_OK);
    vocab = nib_session_vocab(o.session);
    if (wanted == NULL) {
        wanted = calloc((size_t)vocab, sizeof *wanted);
        assert_non_null(wanted);
        memcpy(wanted, logits, (size_t)vocab * sizeof *wanted);
    }
    assert_memory_equal(logits, wanted, (size_t)vocab * sizeof *wanted);
    size_t mapped = 0;
    for (size_t i = 0; i < o.model->net.site_count; i++)
        for (int j = 0; j < o.session->runner.weights[i].pack_count; j++)
            mapped += o.session->runner.weights[i].packs[j].mapped;
    *used = mapped;
    close_opened(&o);
}

static void expect_refused(const char *words)
{
    size_t used;
    check(words, NULL, &used);
    assert_int_equal(used, 0);
}

static int setup(void **state)
{
    const nib_allocator a = nib__allocator_default();
    const nib_sink sink = {.write = drop};
    nib_engine *engine = NULL;
    nib_model *model = NULL;
    nib_err err = {NIB_OK, ""};
    (void)state;
    if (mkdtemp(root) == NULL)
        return 1;
    snprintf(made, sizeof made, "%s/m", root);
    snprintf(path, sizeof path, "%s/" NIB_PACKED_NAME, made);
    const nib_quantize_options o = {.request = {.recipe = "8da4w+head"}, .out = made, .pack = true};
    nib_status status = nib_engine_open(&engine, NULL, &err);
    if (status == NIB_OK)
        status = nib_model_open(&model, engine, "models/nibble-tales", NULL, &err);
    if (status == NIB_OK)
        status = nib_quantize(model, &o, NIB_FORM_TEXT, &sink, &err);
    nib_model_close(model);
    nib_engine_close(engine);
    if (status == NIB_OK)
        status = nib__file_read(&packed, &packed_size, path, 1 << 30, &a, &err);
    if (status != NIB_OK)
        print_error("%s\n", err.text);
    return status != NIB_OK;
}

static int teardown(void **state)
{
    const nib_allocator a = nib__allocator_default();
    (void)state;
    free(wanted);
    nib__release(&a, packed);
    return nib__path_remove(made, NULL) != NIB_OK || rmdir(root) != 0;
}

static void test_same_logits(void **state)
{
    size_t used;
    (void)state;
    skip_without_x86_rows();
    assert_int_equal(nib__path_remove(path, NULL), NIB_OK);
    check("", NULL, &used);
    assert_int_equal(used, 0);
    put_file(packed, packed_size);
    check("packed weights from ", NULL, &used);
    assert_true(used > 0);
}

static void test_other_rows(void **state)
{
    size_t used;
    (void)state;
    put_file(packed, packed_size);
    check(": not used, no kernel of this plan reads a packed weight", "ref", &used);
    assert_int_equal(used, 0);
}

/* A copy has other file times, so its weights are hashed. */
static void test_changed_file_times(void **state)
{
    char weights[96];
    size_t used;
    (void)state;
    skip_without_x86_rows();
    snprintf(weights, sizeof weights, "%s/model.safetensors", made);
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    put_file(packed, packed_size);
    assert_int_equal(utimensat(AT_FDCWD, weights, times, 0), 0);
    check("packed weights from ", NULL, &used);
    assert_true(used > 0);
}

/* One changed value of a weight, which neither size nor manifest reveals. */
static void test_rejects_other_weights(void **state)
{
    char weights[96];
    uint8_t byte;
    (void)state;
    snprintf(weights, sizeof weights, "%s/model.safetensors", made);
    put_file(packed, packed_size);
    FILE *f = fopen(weights, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0); /* a code of the last layer */
    assert_int_equal(fread(&byte, 1, 1, f), 1);
    const uint8_t other = byte == 0 ? 1 : 0;
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fwrite(&other, 1, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    float *kept = wanted;
    wanted = NULL; /* the weights changed: record new logits */
    expect_refused("was made from different weights; the weights are packed at load");
    free(wanted);
    wanted = kept;
    f = fopen(weights, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fwrite(&byte, 1, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

static void test_rejects_other_manifest(void **state)
{
    char manifest[96];
    (void)state;
    snprintf(manifest, sizeof manifest, "%s/nibble.json", made);
    put_file(packed, packed_size);
    FILE *f = fopen(manifest, "ab");
    assert_non_null(f);
    assert_int_equal(fputc('\n', f), '\n');
    assert_int_equal(fclose(f), 0);
    expect_refused("was made from different weights");
    struct stat st;
    assert_int_equal(stat(manifest, &st), 0);
    assert_int_equal(truncate(manifest, st.st_size - 1), 0);
}

static void test_rejects_corrupted_file(void **state)
{
    static const struct {
        size_t at;
        const char *words;
    } cases[] = {{0, "is not a file of packed weights"},
                 {8, "has an unsupported version or another byte order"},
                 {16, "its head was modified"},
                 {SELF, "its head was modified"},
                 {HEAD + 3, "its records were modified"},
                 {DATA, "its weights were modified after they were written"}};
    (void)state;
    skip_without_x86_rows();
    for (size_t i = 0; i < COUNT(cases); i++) {
        packed[cases[i].at] ^= 1;
        put_file(packed, packed_size);
        packed[cases[i].at] ^= 1;
        expect_refused(cases[i].words);
    }
    packed[packed_size - 1] ^= 1;
    put_file(packed, packed_size);
    packed[packed_size - 1] ^= 1;
    expect_refused("its weights were modified after they were written");
}

static void test_rejects_truncated_file(void **state)
{
    static const struct {
        size_t size;
        const char *words;
    } cases[] = {{0, "is shorter than its head"},
                 {100, "is shorter than its head"},
                 {DATA - 1, "is shorter than its head"},
                 {DATA, "its size does not match its head"}};
    (void)state;
    skip_without_x86_rows();
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_file(packed, cases[i].size);
        expect_refused(cases[i].words);
    }
    put_file(packed, packed_size - 1);
    expect_refused("its size does not match its head");
}

/* Patches a value and recomputes the hashes. */
static void put_patched(size_t at, uint64_t value)
{
    char *lie = malloc(packed_size);
    uint64_t count, bytes;
    assert_non_null(lie);
    memcpy(lie, packed, packed_size);
    memcpy(lie + at, &value, sizeof value);
    memcpy(&count, packed + 16, sizeof count);
    memcpy(&bytes, packed + 24, sizeof bytes);
    const uint64_t pieces = (bytes + (4 << 20) - 1) / (4 << 20);
    const nib_hash rest = nib__hash_bytes(lie + HEAD, count * RECORD + pieces * sizeof rest);
    memcpy(lie + REST, &rest, sizeof rest);
    memset(lie + SELF, 0, sizeof rest);
    const nib_hash self = nib__hash_bytes(lie, HEAD);
    memcpy(lie + SELF, &self, sizeof self);
    put_file(lie, packed_size);
    free(lie);
}

static void test_rejects_false_records(void **state)
{
    static const uint64_t values[] = {UINT64_MAX, UINT64_MAX - 63, INT64_MAX, (uint64_t)1 << 40, 1};
    size_t used;
    uint64_t offset;
    (void)state;
    skip_without_x86_rows();
    memcpy(&offset, packed + HEAD + OFFSET, sizeof offset);
    put_patched(HEAD + OFFSET, offset); /* unchanged: still valid */
    check("packed weights from ", NULL, &used);
    assert_true(used > 0 && lines_logged == 0);
    for (size_t i = 0; i < COUNT(values); i++) {
        put_patched(HEAD + OFFSET, values[i]);
        expect_refused("a record points outside the file");
    }
    for (size_t i = 0; i < 4; i++) {
        put_patched(HEAD + OFFSET + 8, values[i]);
        expect_refused("a record points outside the file");
    }
    put_patched(24, UINT64_MAX);
    expect_refused("its size does not match its head");
    const uint64_t names = UINT64_C(0x4141414141414141);
    char *kept = malloc(RECORD);
    assert_non_null(kept);
    memcpy(kept, packed + HEAD, RECORD);
    memset(packed + HEAD, 'A', 160); /* an unterminated name */
    put_patched(HEAD, names);
    memcpy(packed + HEAD, kept, RECORD);
    free(kept);
    expect_refused("a record points outside the file");
    /* a record of the wrong length: only that weight is packed again, with a log line */
    put_patched(HEAD + OFFSET + 8, 64);
    check("packed weights from ", NULL, &used);
    assert_true(used > 0 && lines_logged == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_other_rows),
        cmocka_unit_test(test_changed_file_times),
        cmocka_unit_test(test_rejects_other_weights),
        cmocka_unit_test(test_rejects_other_manifest),
        cmocka_unit_test(test_rejects_corrupted_file),
        cmocka_unit_test(test_rejects_truncated_file),
        cmocka_unit_test(test_rejects_false_records),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
