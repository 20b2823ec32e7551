/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the state of a sequence: a head, lines, keys and values. The model's hash and the
 * checksum are filled in, so that fuzzing reaches the code behind them; so are the lines of the
 * session, which depend on the processor, if the head has none, and zeros for the keys and values
 * that it counts. What loads saves as the same bytes and runs on; what is refused changes nothing.
 */
#include "session_handle.h"

#include <stdlib.h>

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 80, AT_WEIGHTS = 16, AT_LINES = 32, AT_LENGTH = 64, AT_FIRST = 72, SUM = 16 };
enum { TEXT = 5 /* tokens of the sequence that a state replaces */, MOST = 1 << 20 };

typedef struct bytes {
    uint8_t *at;
    size_t size;
} bytes;

static void require(bool holds)
{
    if (!holds)
        abort();
}

static nib_session *s;

/* libFuzzer calls it first, and does not count its time. */
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    const nib_engine_options one = {.threads = 1};
    const nib_request request = {.dtype = "f32", .cache = "int8"};
    require(nib_engine_open(&engine, &one, NULL) == NIB_OK);
    require(nib_model_open(&model, engine, "tests/golden/models/exaone4_window", NULL, NULL) ==
            NIB_OK);
    require(nib_plan_open(&plan, model, &request, NULL) == NIB_OK);
    require(nib_session_open(&s, model, plan, 1, NULL) == NIB_OK);
    (void)count, (void)arguments;
    return 0;
}

static nib_status grow(void *ctx, const char *more, size_t size)
{
    bytes *b = ctx;
    b->at = realloc(b->at, b->size + size);
    require(b->at != NULL);
    memcpy(b->at + b->size, more, size);
    b->size += size;
    return NIB_OK;
}

static bytes save(void)
{
    bytes b = {0};
    require(nib_session_save(s, 0, &(nib_sink){grow, &b}, NULL) == NIB_OK);
    return b;
}

/* Runs positions [from, to). */
static void run(int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++) {
        const nib_slot slot = {.sequence = 0, .position = i, .token = i % 7};
        require(nib_session_step(s, &slot, 1, NULL, NULL) == NIB_OK);
    }
}

static int64_t number(const uint8_t *at)
{
    int64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Bytes of keys and values that a head counts, as far as a sequence may have them. */
static size_t counted(const nib_kv *kv, const uint8_t *head)
{
    const int64_t length = number(head + AT_LENGTH), first = number(head + AT_FIRST);
    size_t size = 0;
    if (length < 0 || length > kv->context || first < 0 || first > length)
        return 0;
    for (int64_t i = 0; i < kv->layers; i++)
        size += (size_t)(length - (nib__kv_has_window(kv, i) ? first : 0)) *
                nib__kv_position_bytes(kv, i);
    return nib__min(size, MOST);
}

/* The state that an input stands for; `own`: a state of the session. */
static bytes state_of(const uint8_t *data, size_t size, bytes own, const nib_kv *kv)
{
    uint8_t head[HEAD];
    bytes b = {0};
    memcpy(head, own.at, HEAD);
    memcpy(head + 8, data, nib__min(size, HEAD - 8)); /* begins with the version */
    memcpy(head + AT_WEIGHTS, own.at + AT_WEIGHTS, sizeof(nib_hash));
    const size_t front = nib__min(size, HEAD - 8), lines = (size_t)number(own.at + AT_LINES);
    const bool inserted = number(head + AT_LINES) == 0;
    if (inserted)
        memcpy(head + AT_LINES, own.at + AT_LINES, 8);
    grow(&b, (const char *)head, HEAD);
    if (inserted)
        grow(&b, (const char *)own.at + HEAD, lines);
    grow(&b, (const char *)data + front, size - front);
    const size_t whole = HEAD + (size_t)number(head + AT_LINES) + counted(kv, head);
    if (b.size < whole && whole < 2 * MOST) {
        void *zeros = calloc(whole - b.size, 1);
        require(zeros != NULL);
        grow(&b, zeros, whole - b.size);
        free(zeros);
    }
    const nib_hash sum = nib__hash_bytes(b.at, b.size);
    grow(&b, (const char *)&sum, SUM);
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nib_err err = {NIB_OK, ""};
    int32_t length = -1;
    if (s == NULL)
        (void)LLVMFuzzerInitialize(NULL, NULL);
    const nib_kv *kv = &s->runner.kv;
    require(nib_session_truncate(s, 0, 0, NULL) == NIB_OK);
    run(0, TEXT);
    const bytes before = save(), state = state_of(data, size, before, kv);
    const nib_status status = nib_session_load(s, 0, state.at, state.size, &length, &err);
    const bytes after = save(), *same = status == NIB_OK ? &state : &before;
    require(after.size == same->size && memcmp(after.at, same->at, after.size) == 0);
    require(status == NIB_OK ? length == number(state.at + AT_LENGTH)
                             : length == -1 && err.status == status && err.text[0] != 0);
    if (status == NIB_OK && length < kv->context)
        run(length, length + 1);
    free(before.at);
    free(state.at);
    free(after.at);
    return 0;
}
