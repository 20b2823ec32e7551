/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls in an answer: splits the bytes of its tokens into text, names and arguments. A
 * separate constraint state follows the tokens, which fit because sampling was masked.
 */
#include "service.h"

#include "tool_format.h"

#include <inttypes.h>
#include <stdio.h>

/* A unique id from the call's number, the choice and the index among its calls. */
static const char *make_id(char out[NIB_CALL_ID], const nib_answer *c)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t number =
        nib__mix(nib__mix(c->call->unique, (uint64_t)c->index), (uint64_t)c->calls.count);
    if (!c->call->format->short_ids) {
        snprintf(out, NIB_CALL_ID, "call_%016" PRIx64, number);
        return out;
    }
    for (int i = 0; i < NIB_SHORT_ID; i++, number /= sizeof letters - 1)
        out[i] = letters[number % (sizeof letters - 1)];
    out[NIB_SHORT_ID] = 0;
    return out;
}

/* ---- calls ---- */

static void begin_call(nib_answer *c)
{
    nib__text_clear(&c->calls.arguments);
    make_id(c->calls.id, c);
    c->calls.count++;
    c->calls.open = true;
    if (c->call->stream)
        nib__answer_call(c);
}

/* Sends the arguments so far to a stream, in whole characters. */
static void stream_arguments(nib_answer *c, bool all)
{
    nib_text *text = &c->calls.arguments;
    const size_t size = all || text->size == 0 ? text->size : nib__utf8_check(text->at, text->size);
    if (!c->call->stream || size == 0)
        return;
    nib__answer_arguments(c, text->at, size);
    memmove(text->at, text->at + size, text->size - size);
    text->size -= size;
}

static void end_call(nib_answer *c)
{
    c->calls.open = false;
    if (c->call->stream)
        stream_arguments(c, true);
    else
        nib__answer_keep_call(c);
}

/* A byte that is not free text. */
static void process_byte(nib_answer *c, uint8_t byte)
{
    nib_constraint_state *s = c->calls.state;
    const nib_call_part was = nib__calls_part(s);
    const char at = (char)byte;
    (void)nib__constraint_step(s, byte);
    const nib_call_part is = nib__calls_part(s);
    if (was == NIB_CALL_ARGUMENTS) {
        nib__text_put(&c->calls.arguments, &at, 1);
        if (is != NIB_CALL_ARGUMENTS)
            end_call(c);
    } else if (is == NIB_CALL_NAME) {
        if (was != NIB_CALL_NAME)
            nib__text_clear(&c->calls.name);
        nib__text_put(&c->calls.name, &at, 1);
    } else if (is == NIB_CALL_ARGUMENTS) {
        begin_call(c);
    }
}

/* ---- free text ---- */

/* Bytes at the end of the text that may turn out to open a call. */
static size_t count_held(const nib_answer *c)
{
    const nib_call_format *f = &c->call->format->calls;
    const nib_text *text = &c->text.held;
    size_t size = nib__calls_held(c->calls.state), gap = f->gap_size;
    if (size > text->size)
        return text->size;
    const size_t end = text->size - size;
    while (gap > end || (gap > 0 && memcmp(text->at + end - gap, f->gap, gap) != 0))
        gap--;
    return size + gap;
}

/* A call begins: flushes the held text without the call's opening and the gap before it.
 * `unprocessed`: bytes of the token that are not yet processed. */
static void end_text(nib_answer *c, size_t unprocessed)
{
    const nib_call_format *f = &c->call->format->calls;
    nib_text *text = &c->text.held;
    const size_t opening = nib__calls_opening(c->call->constraint) + unprocessed;
    text->size -= opening < text->size ? opening : text->size;
    if (f->gap_size > 0 && f->gap_size <= text->size &&
        memcmp(text->at + text->size - f->gap_size, f->gap, f->gap_size) == 0)
        text->size -= f->gap_size;
    nib__call_give_text(c, true, 0);
}

static void process_text(nib_answer *c, int32_t id, const uint8_t *bytes, size_t size)
{
    nib_constraint_state *s = c->calls.state;
    size_t i = 0;
    nib__text_out_put(&c->text, id);
    if (size == 0)
        (void)nib__constraint_accept(s, id);
    while (i < size && nib__calls_part(s) == NIB_CALL_FREE)
        (void)nib__constraint_step(s, bytes[i++]);
    if (nib__calls_part(s) == NIB_CALL_FREE) {
        nib__call_give_text(c, false, count_held(c));
        return;
    }
    end_text(c, size - i);
    for (; i < size && !c->text.stopped; i++)
        process_byte(c, bytes[i]);
}

/* ---- tokens ---- */

void nib__answer_take(nib_answer *c, int32_t id)
{
    size_t size;
    const uint8_t *bytes = nib__token_spelling(c->call->service->trie, id, &size);
    if (nib__calls_part(c->calls.state) == NIB_CALL_FREE) {
        process_text(c, id, bytes, size);
    } else if (size == 0) {
        (void)nib__constraint_accept(c->calls.state, id);
    } else {
        for (size_t i = 0; i < size; i++)
            process_byte(c, bytes[i]);
    }
    if (c->calls.open)
        stream_arguments(c, false);
    nib__answer_text(c, "", 0); /* sends logprobs of tokens without text */
}

void nib__answer_calls_end(nib_answer *c)
{
    if (c->calls.open) /* interrupted */
        end_call(c);
}
