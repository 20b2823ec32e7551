/* SPDX-License-Identifier: Apache-2.0
 *
 * Tools of a request: how the model's template shows tools and writes calls, and the constraint on
 * the answers.
 */
#include "service.h"

#include "tool_format.h"

#include <stdio.h>

/* ---- the template ---- */

static nib_status append_text(void *ctx, const char *bytes, size_t size)
{
    nib__text_put(ctx, bytes, size);
    return NIB_OK;
}

static nib_status render(void *ctx, const char *messages, const char *tools, bool prompt,
                         nib_text *out, nib_err *err)
{
    const nib_call *call = ctx;
    const nib_service *s = call->service;
    const nib_sink sink = {append_text, out};
    const nib_chat_options options = {.messages = messages,
                                      .messages_size = strlen(messages),
                                      .tools = tools,
                                      .tools_size = tools == NULL ? 0 : strlen(tools),
                                      .template_text = s->options.chat_template,
                                      .no_generation_prompt = !prompt,
                                      .now = call->options.now};
    return nib_chat_write(s->session->model, &options, &sink, err);
}

/* The text of the tokens that end an answer. */
static bool find_ends(const nib_service *s, nib_arena *arena, const char *out[NIB_EOS_MAX],
                      size_t *kept)
{
    int32_t ids[NIB_EOS_MAX];
    const int count = nib__model_ends(s->session->model, ids);
    *kept = 0;
    for (int i = 0; i < count; i++) {
        size_t size = 0;
        const char *text = nib__tokenizer_token(s->tokenizer, ids[i], &size);
        if (text == NULL || size == 0)
            continue;
        out[*kept] = nib__arena_copy(arena, text, size);
        if (out[(*kept)++] == NULL)
            return false;
    }
    return true;
}

/* Probes the template once for all requests, whatever their template variables. */
static bool probe_template(nib_call *call)
{
    nib_service *s = call->service;
    nib_service_tools *t = &s->tools;
    const nib_allocator *a = &s->session->model->engine->allocator;
    const char *ends[NIB_EOS_MAX];
    nib_tool_prober prober = {render, call, a, ends, 0};
    if (t->known)
        return true;
    nib__arena_free(&t->arena); /* left by an attempt that ran out of memory */
    if (!find_ends(s, &t->arena, ends, &prober.end_count))
        return nib__call_no_memory(call);
    t->shown.status = t->found.status = NIB_OK;
    t->shown.status = nib__tool_format_shows(&prober, &t->shown);
    t->found.status = nib__tool_format_find(&t->format, &prober, &t->arena, &t->found);
    t->known = t->shown.status != NIB_NO_MEMORY && t->found.status != NIB_NO_MEMORY;
    return t->known || nib__call_no_memory(call);
}

bool nib__call_find_tools(nib_call *call)
{
    const nib_service_tools *t = &call->service->tools;
    nib_api_request *q = &call->request;
    if (q->tools == NULL && q->messages_text == NULL)
        return true;
    if (!probe_template(call))
        return false;
    if (q->tools != NULL && t->shown.status != NIB_OK)
        return nib__call_refuse_status(call, "tools", &t->shown);
    /* messages with calls are rendered even if the format of calls was not found */
    if (t->found.status != NIB_OK)
        return !nib__api_may_call(q) || nib__call_refuse_status(call, "tools", &t->found);
    call->format = &t->format;
    if (t->format.text_arguments && q->messages_text != NULL) {
        q->messages = q->messages_text;
        q->messages_size = q->messages_text_size;
    }
    return true;
}

/* ---- the constraint ---- */

static bool refuse_schema(nib_call *call, const nib_callable *tools, size_t count,
                          const nib_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const size_t size = strlen(tools[i].schema.name);
        if (strncmp(err->text, tools[i].schema.name, size) == 0 &&
            (err->text[size] == ':' || err->text[size] == '.'))
            return nib__call_refuse_status(call, tools[i].schema.name, err);
    }
    return nib__call_refuse_status(call, "tools", err);
}

bool nib__call_constrain_tools(nib_call *call)
{
    const nib_service *s = call->service;
    const nib_api_request *q = &call->request;
    const bool named = q->tool_choice == NIB_TOOLS_NAMED;
    const size_t first = named ? q->tool_named : 0, count = named ? 1 : q->tool_count;
    nib_callable *tools = nib__arena_take(&call->arena, count, sizeof *tools);
    nib_err err;
    if (tools == NULL)
        return nib__call_no_memory(call);
    for (size_t i = 0; i < count; i++) {
        const nib_api_tool *from = &q->tool_list[first + i];
        char name[64];
        const int size = snprintf(name, sizeof name, "tools[%zu].function.parameters", first + i);
        tools[i] = (nib_callable){.name = from->name,
                                  .schema = {nib__arena_copy(&call->arena, name, (size_t)size),
                                             from->parameters, from->parameters_size}};
        if (tools[i].schema.name == NULL)
            return nib__call_no_memory(call);
    }
    const nib_calls_options options = {.format = &call->format->calls,
                                       .tools = tools,
                                       .count = count,
                                       .free = q->tool_choice == NIB_TOOLS_AUTO,
                                       .several = q->parallel_calls && !named};
    if (nib__calls_open(&call->constraint, s->trie, s->tokenizer, &options,
                        &s->session->model->engine->allocator, &err) != NIB_OK)
        return refuse_schema(call, tools, count, &err);
    return true;
}
