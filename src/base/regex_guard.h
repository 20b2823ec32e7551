/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles regular expressions from untrusted input: configs, recipes, options and tokenizers. One
 * guard refuses what Oniguruma does not bound itself.
 */
#ifndef NIB_REGEX_GUARD_H
#define NIB_REGEX_GUARD_H

#include "text.h"

#include <oniguruma.h>

enum {
    NIB_REGEX_BYTES = 16384,  /* of one expression */
    NIB_REGEX_BRACKETS = 128, /* round and square, of one expression */
};

typedef enum nib_regex_dialect {
    NIB_REGEX_PYTHON,    /* as re.compile takes them */
    NIB_REGEX_ONIGURUMA, /* as tokenizer.json files have them */
} nib_regex_dialect;

/* Compiles an expression; free it with onig_free. NIB_UNSUPPORTED: it is too large, or uses a
 * feature whose cost is not bounded. NIB_BAD_INPUT: its syntax is wrong. The caller adds the
 * expression and its file to the message. */
nib_status nib__regex_compile(OnigRegex *out, const char *text, size_t size,
                              nib_regex_dialect dialect, nib_err *err);

/* Limits of one search or match: stack entries and backtracking steps. NULL: out of memory. */
OnigMatchParam *nib__regex_limits(unsigned stack, unsigned long steps);
void nib__regex_set_steps(OnigMatchParam *limits, unsigned long steps);

#endif
