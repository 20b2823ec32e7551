/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights cached beside a checkpoint give the same logits. Every unusable cache file,
 * including one with valid hashes and false records, leads to a note and the same logits.
 */
#include "packed.h"
#include "session.h"

#include "failing.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "refused.h"
#include "skipping.h"
#include "wrapped.h"

WRAPPED(nib_hasher *, nib__hasher_open, (void), (), NULL) /* libxxhash allocates it */
WRAPPED(void *, nib__block_take, (uint64_t bytes), (bytes), NULL)
WRAPPED(nib_status, nib__output_write,
        (nib_output * output, const void *bytes, size_t size, nib_err *err),
        (output, bytes, size, err), nib__fail(err, NIB_IO, "the disk is full"))

enum {
    TOKENS = 5,
    HEAD = 112,
    RECORD = 288,
    OFFSET = 256,
    PROBE_HASH = 272,
    REST = 80,
    SELF = 96,
    DATA = 2 << 20
};

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
        slots[i] = (nib_slot){
            .position = i, .token = 7 * i + 1, .outputs = i == TOKENS - 1 ? NIB_SLOT_LOGITS : 0};
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
    const nib_quantize_options o = {
        .request = &(nib_request){.recipe = "8da4w+head"}, .out = made, .pack = true};
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
                 {12, "has an unsupported version or another byte order"},
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

static void hash_head(char *file)
{
    memset(file + SELF, 0, sizeof(nib_hash));
    const nib_hash self = nib__hash_bytes(file, HEAD);
    memcpy(file + SELF, &self, sizeof self);
}

/* Patches a value and recomputes the hashes, if they are inside the file. */
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
    hash_head(lie);
    put_file(lie, packed_size);
    free(lie);
}

/* Valid, and without a record. */
static void put_empty(void)
{
    char head[HEAD];
    const uint64_t none[2] = {0, 0}; /* records, bytes of data */
    const nib_hash rest = nib__hash_bytes(none, 0);
    memcpy(head, packed, HEAD);
    memcpy(head + 16, none, sizeof none);
    memcpy(head + REST, &rest, sizeof rest);
    hash_head(head);
    put_file(head, HEAD);
    assert_int_equal(truncate(path, DATA), 0);
}

/* So many records that the head has no room for the checksums of the data. */
static void put_crowded(void)
{
    enum { PIECE = 4 << 20, CHECKSUM = 16 };
    char head[HEAD];
    const uint64_t count = (DATA - HEAD) / RECORD, left = DATA - HEAD - count * RECORD;
    const uint64_t bytes = (left / CHECKSUM + 1) * PIECE;
    memcpy(head, packed, HEAD);
    memcpy(head + 16, &count, sizeof count);
    memcpy(head + 24, &bytes, sizeof bytes);
    hash_head(head);
    put_file(head, HEAD);
    assert_int_equal(truncate(path, (off_t)(DATA + bytes)), 0);
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
    static const size_t texts[][2] = {{0, 160}, {160, 32}, {192, 64}}; /* site, packing, scheme */
    for (size_t i = 0; i < COUNT(texts); i++) {
        char kept[160];
        char *const text = packed + HEAD + texts[i][0];
        memcpy(kept, text, texts[i][1]);
        memset(text, 'A', texts[i][1]); /* unterminated */
        put_patched(HEAD + texts[i][0], names);
        memcpy(text, kept, texts[i][1]);
        expect_refused("a record points outside the file");
    }
    put_patched(16, UINT64_MAX);
    expect_refused("has more records than its head has room for");
    put_crowded();
    expect_refused("has more records than its head has room for");
    put_empty();
    expect_refused(": 0 of ");
    /* another scheme, another probe or another layer: that weight is packed again */
    static const size_t places[] = {HEAD + 192, HEAD + PROBE_HASH};
    for (size_t i = 0; i < COUNT(places); i++) {
        put_patched(places[i], names);
        check("packed weights from ", NULL, &used);
        assert_true(used > 0 && lines_logged == 1);
    }
    /* a record of the wrong length: only that weight is packed again, with a log line */
    put_patched(HEAD + OFFSET + 8, 64);
    check("packed weights from ", NULL, &used);
    assert_true(used > 0 && lines_logged == 1);
}

/* ---- without a plan ---- */

static nib_status open_with(nib_packed **out, const opened *o, const nib_allocator *a, nib_err *err)
{
    const nib_status status =
        nib__packed_open(out, path, o->model->net.checkpoint, o->engine->pool, a, err);
    assert_true((status == NIB_OK) == (*out != NULL));
    return status;
}

/* Each allocation fails once, of a file whose weights have other times, so that all is hashed. */
static void test_no_memory_to_open(void **state)
{
    (void)state;
    const nib_allocator heap = nib__allocator_default();
    char weights[96], manifest[96];
    nib_packed *p = NULL;
    nib_err err = {NIB_OK, ""};
    put_file(packed, packed_size);
    opened o = must_open(&(open_how){.path = made, .context = 64});
    snprintf(weights, sizeof weights, "%s/model.safetensors", made);
    const struct timespec times[2] = {{.tv_sec = 2000000000}, {.tv_sec = 2000000000}};
    assert_int_equal(utimensat(AT_FDCWD, weights, times, 0), 0);
    close_opened(&o);
    o = must_open(&(open_how){.path = made, .context = 64});
    nib_status status = NIB_NO_MEMORY;
    for (int n = 0; status != NIB_OK; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        status = open_with(&p, &o, &a, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        nib__packed_close(p);
        assert_int_equal(f.live, 0);
    }
    status = NIB_NO_MEMORY;
    for (int n = 0; status != NIB_OK; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        p = NULL;
        status = nib__packed_parse(&p, (const uint8_t *)packed, packed_size, "x", o.engine->pool,
                                   &a, &err);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        if (status == NIB_OK) /* bytes of the caller's cannot change below it */
            assert_int_equal(nib__packed_check(p, NIB_CANCELLED, &err), NIB_CANCELLED);
        nib__packed_close(p);
        assert_int_equal(f.live, 0);
    }
    status = NIB_NO_MEMORY;
    for (int n = 1; status != NIB_OK; n++) {
        atomic_store(&countdown, n);
        status = open_with(&p, &o, &heap, &err);
        assert_int_equal(status, atomic_load(&countdown) > 0 ? NIB_OK : NIB_NO_MEMORY);
        nib__packed_close(p);
    }
    atomic_store(&countdown, 0);
    /* the description is a folder */
    snprintf(manifest, sizeof manifest, "%s/nibble.json", made);
    char kept[104];
    snprintf(kept, sizeof kept, "%s.kept", manifest);
    assert_int_equal(rename(manifest, kept), 0);
    assert_int_equal(mkdir(manifest, 0777), 0);
    refused(NIB_IO, open_with(&p, &o, &heap, &err), &err);
    assert_int_equal(rmdir(manifest), 0);
    assert_int_equal(rename(kept, manifest), 0);
    /* the cache is a folder */
    assert_int_equal(nib__path_remove(path, &err), NIB_OK);
    assert_int_equal(mkdir(path, 0777), 0);
    refused(NIB_IO, open_with(&p, &o, &heap, &err), &err);
    close_opened(&o);
}

/* Bytes that another process changes while the file is in use are found at the next check, which
 * is at least a second after the last. */
static void test_changes_while_in_use(void **state)
{
    (void)state;
    enum { PIECE = 4 << 20 };
    const nib_allocator heap = nib__allocator_default();
    nib_packed *p = NULL;
    nib_err err = {NIB_OK, ""};
    skip_without_x86_rows();
    put_file(packed, packed_size);
    opened o = must_open(&(open_how){.path = made, .context = 64});
    assert_int_equal(open_with(&p, &o, &heap, &err), NIB_OK);
    assert_int_equal(nib__packed_check(p, NIB_OK, &err), NIB_OK); /* not yet */
    const struct timespec second = {.tv_sec = 1, .tv_nsec = 10000000};
    assert_int_equal(nanosleep(&second, NULL), 0);
    assert_int_equal(nib__packed_check(p, NIB_OK, &err), NIB_OK);
    assert_int_equal(nib__packed_check(p, NIB_CANCELLED, &err), NIB_CANCELLED);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    for (size_t at = DATA; at < packed_size; at += PIECE) { /* whichever piece is next */
        assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
        assert_int_equal(fputc(packed[at] ^ 1, f), (unsigned char)(packed[at] ^ 1));
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(nanosleep(&second, NULL), 0);
    assert_int_equal(nib__packed_check(p, NIB_OK, &err), NIB_IO);
    nib__packed_close(p);
    close_opened(&o);
}

/* A file of several pieces, whose pieces are compared again once a second. */
static void test_several_pieces(void **state)
{
    static const struct timespec second = {.tv_sec = 1, .tv_nsec = 50000000};
    const open_how how = {
        .path = "models/nibble-tales", .dtype = "f32", .threads = 2, .context = 64};
    char written[96];
    enum { PIECE = 4 << 20 };
    nib_packed_report report;
    nib_packed *p = NULL;
    struct stat st;
    nib_err err = {NIB_OK, ""};
    (void)state;
    skip_without_x86_rows();
    opened o = must_open(&how);
    const nib_checkpoint *cp = o.model->net.checkpoint;
    snprintf(written, sizeof written, "%s/large.pack", root);
    if (nib__packed_write(&report, written, &o.model->net, &o.plan->assignment, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(report.bytes > PIECE);
    if (nib__packed_open(&p, written, cp, o.engine->pool, &o.engine->allocator, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nanosleep(&second, NULL);
    assert_int_equal(nib__packed_check(p, NIB_OK, &err), NIB_OK); /* the second piece */
    assert_int_equal(stat(written, &st), 0);
    const int fd = open(written, O_WRONLY);
    assert_true(fd >= 0);
    const uint64_t pieces = (report.bytes + PIECE - 1) / PIECE;
    static const char data[] = "\xa5\x5a";
    /* the piece that is next, with the file's old time */
    assert_int_equal(pwrite(fd, data, 2, DATA + (off_t)(2 % pieces * PIECE)), 2);
    assert_int_equal(pwrite(fd, data, 2, DATA + (off_t)(2 % pieces * PIECE) + 8), 2);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
    nanosleep(&second, NULL);
    assert_int_equal(nib__packed_check(p, NIB_OK, &err), NIB_IO);
    assert_non_null(strstr(err.text, "another process wrote"));
    nib__packed_close(p);
    assert_int_equal(nib__path_remove(written, &err), NIB_OK);
    close_opened(&o);
}

/* ---- writing ---- */

static bool cancel_packing(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx, (void)done, (void)total;
    return strcmp(what, "pack") != 0;
}

static void expect_not_written(const opened *o, const char *to, nib_status status)
{
    nib_packed_report report;
    nib_err err = {NIB_OK, ""};
    refused(status, nib__packed_write(&report, to, &o->model->net, &o->plan->assignment, &err),
            &err);
}

static void test_writing_fails(void **state)
{
    (void)state;
    char to[96], part[104];
    nib_packed_report report;
    nib_err err = {NIB_OK, ""};
    struct rlimit before;
    struct stat st;
    skip_without_x86_rows();
    snprintf(to, sizeof to, "%s/x", made);
    snprintf(part, sizeof part, "%s.part", to);
    opened o = must_open(&(open_how){.path = "tests/golden/gguf/llama.gguf"});
    const nib_allocator heap = o.engine->allocator;
    nib_status status = NIB_NO_MEMORY;
    int allocations = 0;
    for (; status != NIB_OK; allocations++) {
        failing f = {.left = allocations};
        o.engine->allocator = failing_allocator(&f);
        status = nib__packed_write(&report, to, &o.model->net, &o.plan->assignment, &err);
        o.engine->allocator = heap;
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        assert_int_equal(f.live, 0);
        assert_true(access(part, F_OK) != 0 && (access(to, F_OK) == 0) == (status == NIB_OK));
    }
    assert_true(allocations > 10 && report.count > 0);
    status = NIB_NO_MEMORY;
    for (int n = 1; status != NIB_OK; n++) {
        assert_int_equal(nib__path_remove(to, &err), NIB_OK);
        atomic_store(&countdown, n);
        status = nib__packed_write(&report, to, &o.model->net, &o.plan->assignment, &err);
        assert_true((status == NIB_OK) == (atomic_load(&countdown) > 0));
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY || status == NIB_IO);
        assert_true(access(part, F_OK) != 0 && (access(to, F_OK) == 0) == (status == NIB_OK));
    }
    atomic_store(&countdown, 0);
    assert_int_equal(stat(to, &st), 0);
    assert_int_equal(nib__path_remove(to, &err), NIB_OK);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    const rlim_t limits[] = {1000, DATA - 1, DATA + 1, (rlim_t)st.st_size - 1};
    for (size_t i = 0; i < COUNT(limits); i++) {
        const struct rlimit small = {limits[i], before.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        status = nib__packed_write(&report, to, &o.model->net, &o.plan->assignment, &err);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(status, NIB_IO);
        assert_true(access(part, F_OK) != 0 && access(to, F_OK) != 0);
    }
    /* a name that a record has no room for */
    char name[200];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    const char *const kept = o.model->net.sites[1].name;
    o.model->net.sites[1].name = name;
    expect_not_written(&o, to, NIB_UNSUPPORTED);
    o.model->net.sites[1].name = kept;
    o.engine->callbacks.progress = cancel_packing;
    expect_not_written(&o, to, NIB_CANCELLED);
    o.engine->callbacks.progress = NULL;
    expect_not_written(&o, "/nowhere/x", NIB_IO);
    assert_int_equal(access(to, F_OK), -1);
    close_opened(&o);
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
        cmocka_unit_test(test_no_memory_to_open),
        cmocka_unit_test(test_changes_while_in_use),
        cmocka_unit_test(test_several_pieces),
        cmocka_unit_test(test_writing_fails),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
