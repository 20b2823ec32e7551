/* SPDX-License-Identifier: Apache-2.0
 *
 * What applications pass and receive: arguments that must not be NULL, and structs. These begin
 * with their size, so that an application and a library of different versions understand each
 * other: what an older struct lacks has its default, 0, and what a newer one adds must be 0.
 *
 * A new member of options takes whole words of `reserved`, so that their size of version 1 covers
 * it and no padding, whose bytes are arbitrary, becomes significant; a new member of results is
 * appended. tests/unit/test_public_layout.c holds both to it.
 */
#ifndef NIB_PUBLIC_STRUCT_H
#define NIB_PUBLIC_STRUCT_H

#include "base.h"

/* Returns NIB_USAGE from a public function if one of the pointers is NULL; names: theirs in the
 * header, "session, slots". */
#define NIB_NEED(err, names, ...)                                                                  \
    NIB_TRY(nib__need(__func__, (names), (const void *const[]){__VA_ARGS__},                       \
                      COUNT(((const void *const[]){__VA_ARGS__})), (err)))
NIB_MUST_CHECK nib_status nib__need(const char *function, const char *names,
                                    const void *const *pointers, size_t count, nib_err *err);
/* NIB_USAGE: a sink that cannot be called, or also a form that is not a nib_form. */
NIB_MUST_CHECK nib_status nib__sink_check(const nib_sink *sink, nib_err *err);
NIB_MUST_CHECK nib_status nib__report_check(nib_form form, const nib_sink *sink, nib_err *err);
/* NIB_USAGE: an item is NULL, or all are; name: of the member, "nib_request.skip". */
NIB_MUST_CHECK nib_status nib__strings_check(const char *name, const nib_strings *strings,
                                             nib_err *err);

/* NIB_USAGE: a number is negative, where only 0 means the default; name: "nib_request.context". */
NIB_MUST_CHECK nib_status nib__number_check(const char *name, int64_t number, nib_err *err);

/* Copies options to out, a struct of `size` bytes that begins with a size_t and has members up to
 * `used`. given NULL: all defaults; a size of 0: that of version 1. NIB_USAGE: the size cannot be
 * that of a struct; NIB_UNSUPPORTED: something is set that this version does not have. */
NIB_MUST_CHECK nib_status nib__options_read(void *out, size_t size, size_t used, const void *given,
                                            const char *type, nib_err *err);
/* Declares `name`, a copy of the given options; returns from the function if they are refused. */
#define NIB_OPTIONS(type, name, given, err)                                                        \
    type name;                                                                                     \
    NIB_TRY(nib__options_read(&name, sizeof name, offsetof(type, reserved), (given), #type, (err)))

/* Copies a result of `size` bytes to an application's struct, as far as that struct reaches, for a
 * size of 0 to `first`, its size in version 1. out NULL: nothing. */
void nib__result_write(void *out, const void *result, size_t size, size_t first);

/* The end of a struct in version 1, by its last member then. */
#define NIB_ENDED(type, last)                                                                      \
    type:                                                                                          \
    offsetof(type, last) + sizeof(((type *)0)->last)
#define NIB_RESULT(out, result)                                                                    \
    nib__result_write(                                                                             \
        (out), &(result), sizeof(result),                                                          \
        _Generic((result), NIB_ENDED(nib_model_facts, chat_template),                              \
                 NIB_ENDED(nib_tokenizer_facts, adds_bos), NIB_ENDED(nib_plan_facts, denied),      \
                 NIB_ENDED(nib_plan_layer, candidates), NIB_ENDED(nib_plan_use, tuned_us),         \
                 NIB_ENDED(nib_plan_advice, text), NIB_ENDED(nib_plan_candidate, source),          \
                 NIB_ENDED(nib_plan_setting, allowed), NIB_ENDED(nib_generate_stats, sampler_why), \
                 NIB_ENDED(nib_piece, finish), NIB_ENDED(nib_eval_result, seconds),                \
                 NIB_ENDED(nib_bench_result, peer_token_bytes), NIB_ENDED(nib_call_state, over),   \
                 NIB_ENDED(nib_call_stats, total_s)))

#endif
