/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: opens and renders a template with its variables in one call.
 */
#ifndef NIB_TESTS_RENDERING_H
#define NIB_TESTS_RENDERING_H

#include "template.h"

#include <string.h>

static const nib_template_token model_tokens[] = {{"bos_token", "<s>", 3},
                                                  {"eos_token", "</s>", 4}};

typedef struct rendering {
    nib_status status;
    nib_err err;
    nib_template_output out;
} rendering;

static inline void render_within(rendering *r, const char *source, size_t size, const char *values,
                                 const nib_template_limits *limits, const nib_allocator *a)
{
    const nib_named_text text = {"chat.jinja", source, size};
    const nib_template_value value = {NULL, values, strlen(values)};
    nib_template_input input = {.tokens = model_tokens,
                                .token_count = COUNT(model_tokens),
                                .values = &value,
                                .value_count = 1,
                                .now = 1700000000};
    nib_template *t = NULL;
    if (limits != NULL)
        input.limits = *limits;
    *r = (rendering){.status = NIB_OK};
    nib__template_output_init(&r->out, a);
    r->status = nib__template_open(&t, &text, a, &r->err);
    if (r->status == NIB_OK)
        r->status = nib__template_render(t, &input, &r->out, &r->err);
    nib__template_close(t);
}

#endif
