/* SPDX-License-Identifier: Apache-2.0
 *
 * How a model writes tool calls, found from its chat template: conversations with known names and
 * arguments are rendered, and the text around these is the format. There is no table of models.
 */
#ifndef NIB_TOOL_FORMAT_H
#define NIB_TOOL_FORMAT_H

#include "constraint_calls.h"

/* Renders conversations with a template. */
typedef struct nib_tool_prober {
    /* messages: a JSON array; tools: a JSON array, NULL: none; prompt: end where the model
     * answers */
    nib_status (*render)(void *ctx, const char *messages, const char *tools, bool prompt,
                         nib_text *out, nib_err *err);
    void *ctx;
    const nib_allocator *allocator;
    const char *const *ends; /* [end_count] the text of the tokens that end an answer */
    size_t end_count;
} nib_tool_prober;

typedef struct nib_tool_format {
    nib_call_format calls;
    bool short_ids;      /* the template requires ids of 9 letters and digits */
    bool text_arguments; /* the format applies if arguments are passed as text, not as objects */
} nib_tool_format;

enum { NIB_SHORT_ID = 9 };

/* NIB_UNSUPPORTED: the template renders a conversation with tools like one without. */
nib_status nib__tool_format_shows(const nib_tool_prober *p, nib_err *err);
/* Texts are allocated in the arena. NIB_UNSUPPORTED, with the reason: the template's format is not
 * supported. */
nib_status nib__tool_format_find(nib_tool_format *out, const nib_tool_prober *p, nib_arena *arena,
                                 nib_err *err);

#endif
