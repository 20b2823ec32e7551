/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of converted models: conversion, and the logits of a model's last token.
 */
#ifndef NIB_LAST_LOGITS_H
#define NIB_LAST_LOGITS_H

#include "session.h"

#include "nibble_tools.h"

static nib_status ignore(void *ctx, const char *text, size_t size)
{
    (void)ctx, (void)text, (void)size;
    return NIB_OK;
}

/* Converts the model at `path` into `out`, also over what is there. */
static void must_convert(const char *path, const char *out, const char *format)
{
    nib_err err;
    const nib_sink sink = {ignore, NULL};
    opened o = must_open(&(open_how){.path = path, .dtype = "f32"});
    const nib_convert_options options = {
        .out = out, .format = format, .force = true, .strict = false};
    if (nib_convert(o.model, &options, NIB_FORM_JSON, &sink, &err) != NIB_OK)
        fail_msg("%s as %s: %s", path, format, err.text);
    close_opened(&o);
}

/* Fills out with the logits of the last of LENGTH tokens. */
static void run_opened(float *out, const opened *o, size_t room)
{
    enum { LENGTH = 70 };
    nib_slot slots[LENGTH];
    const float *logits;
    nib_err err;
    const int64_t vocab = nib_session_vocab(o->session);
    assert_true((size_t)vocab <= room);
    for (int i = 0; i < LENGTH; i++)
        slots[i] =
            (nib_slot){0, i, (7 * i + 3) % (int32_t)vocab, i == LENGTH - 1 ? NIB_SLOT_LOGITS : 0};
    if (nib_session_step(o->session, slots, LENGTH, &logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
    memcpy(out, logits, (size_t)vocab * sizeof *out);
}

/* The same of a model that is opened so. */
static void run_model(float *out, const open_how *how, size_t room)
{
    opened o = must_open(how);
    run_opened(out, &o, room);
    close_opened(&o);
}

/* 5e-5: yarn_log_multiplier is an f32, and 0.0707 as such changes scores by 4e-8 of themselves. */
static void assert_close(const char *model, const char *form, const float *want, const float *got,
                         size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(want[i] - got[i]) <= 5e-5F))
            fail_msg("%s as %s: logit %zu is %g, not %g", model, form, i, (double)got[i],
                     (double)want[i]);
}

#endif
