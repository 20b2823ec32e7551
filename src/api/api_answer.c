/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes answers in OpenAI's form, whole or as chunks of a stream, to the end of call->out. If
 * memory runs out, the text is marked as failed, which ends the call.
 */
#include "service.h"

#include <math.h>

const char *nib__answer_finish(const nib_answer *c)
{
    const bool cut = c->finish == NIB_FINISH_LENGTH || c->finish == NIB_FINISH_CONTEXT;
    return cut ? "length" : c->calls.count > 0 ? "tool_calls" : "stop";
}

static bool is_chat(const nib_call *call) { return call->options.route == NIB_ROUTE_CHAT; }

/* ---- errors ---- */

static const char *error_type(int http)
{
    return http == 401   ? "authentication_error"
           : http == 429 ? "rate_limit_error"
           : http == 503 ? "unavailable_error"
           : http >= 500 ? "server_error"
                         : "invalid_request_error";
}

void nib__answer_error(nib_text *out, const nib_api_error *error)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "error");
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "message", error->text);
    nib__jsonw_pair_string(&w, "type", error_type(error->http));
    nib__jsonw_pair_string(&w, "param", *error->param != 0 ? error->param : NULL);
    nib__jsonw_pair_string(&w, "code", error->code);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
}

/* ---- logprobs ---- */

/* Starts the next value of an array that is kept without its brackets. */
static nib_jsonw next_value(nib_text *text)
{
    nib_jsonw w;
    if (text->size > 0)
        nib__text_str(text, ", ");
    nib__jsonw_init(&w, text, 0);
    return w;
}

static void write_named(nib_jsonw *w, const nib_call *call, int32_t id, double logprob)
{
    nib_text piece;
    size_t size;
    const uint8_t *bytes = nib__token_spelling(call->service->trie, id, &size);
    nib__text_init(&piece, call->out.allocator);
    nib__token_text(call->service->tokenizer, id, &piece);
    nib__jsonw_key(w, "token");
    nib__jsonw_string_n(w, piece.size > 0 ? piece.at : "", piece.size);
    nib__jsonw_pair_double(w, "logprob", logprob);
    nib__jsonw_key(w, "bytes");
    if (size == 0) { /* a special token */
        nib__jsonw_null(w);
    } else {
        nib__jsonw_array(w);
        for (size_t i = 0; i < size; i++)
            nib__jsonw_int(w, bytes[i]);
        nib__jsonw_array_end(w);
    }
    nib__text_free(&piece);
}

static void chat_token(nib_answer *c, const nib_new_token *t)
{
    nib_jsonw w = next_value(&c->logprobs.tokens);
    nib__jsonw_object(&w);
    write_named(&w, c->call, t->id, t->logprob);
    nib__jsonw_key(&w, "top_logprobs");
    nib__jsonw_array(&w);
    for (int i = 0; i < t->top_count; i++) {
        nib__jsonw_object(&w);
        write_named(&w, c->call, t->top[i].id, t->top[i].logprob);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
}

/* The most likely tokens and the chosen one as an object; of tokens with equal text only the most
 * likely. */
static void completion_tops(nib_answer *c, const nib_new_token *t)
{
    nib_text pieces[NIB_LOGPROBS_MOST + 1];
    nib_jsonw w = next_value(&c->logprobs.tops);
    nib__jsonw_object(&w);
    for (int i = 0; i <= t->top_count; i++) {
        const bool chosen = i == t->top_count;
        bool twice = false;
        nib__text_init(&pieces[i], c->call->out.allocator);
        nib__token_text(c->call->service->tokenizer, chosen ? t->id : t->top[i].id, &pieces[i]);
        nib__text_put(&pieces[i], "", 1);
        for (int j = 0; j < i && !pieces[i].failed; j++)
            twice = twice || (pieces[j].size == pieces[i].size &&
                              memcmp(pieces[j].at, pieces[i].at, pieces[i].size) == 0);
        if (!twice && !pieces[i].failed)
            nib__jsonw_pair_double(&w, pieces[i].at, chosen ? t->logprob : t->top[i].logprob);
    }
    nib__jsonw_object_end(&w);
    for (int i = 0; i <= t->top_count; i++)
        nib__text_free(&pieces[i]);
}

static int64_t count_characters(const char *text, size_t size)
{
    int64_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* The token's character offset in the answer's text. A token without text there (those added before
 * the prompt, new special tokens) has the offset of the next one. A normalizer may change the
 * number of characters of the prompt; new text begins after the characters of the echoed prompt. */
static int64_t text_offset(nib_answer *c, const nib_new_token *t)
{
    const nib_call *call = c->call;
    nib_text piece;
    if (!t->of_prompt && !c->told.skip_special) {
        nib__detok_free(&c->told);
        nib__detok_init(&c->told, call->service->tokenizer, true);
        if (nib__answer_continues(c))
            nib__detok_continue(&c->told);
        c->characters = c->echoed;
    }
    const int64_t most = t->of_prompt ? c->echoed : INT64_MAX, place = c->characters;
    if (t->of_prompt && c->told_prompt++ < call->prompts[c->prompt].added)
        return place;
    nib__text_init(&piece, call->out.allocator);
    nib__detok_put(&c->told, t->id, &piece);
    c->characters = nib__min(most, place + count_characters(piece.at, piece.size));
    c->logprobs.offsets.failed = c->logprobs.offsets.failed || piece.failed;
    nib__text_free(&piece);
    return place;
}

static void completion_token(nib_answer *c, const nib_new_token *t)
{
    nib_text piece;
    nib_jsonw w = next_value(&c->logprobs.offsets);
    nib__jsonw_int(&w, text_offset(c, t));
    nib__text_init(&piece, c->call->out.allocator);
    nib__token_text(c->call->service->tokenizer, t->id, &piece);
    w = next_value(&c->logprobs.tokens);
    nib__jsonw_string_n(&w, piece.size > 0 ? piece.at : "", piece.size);
    w = next_value(&c->logprobs.values);
    nib__jsonw_double(&w, t->logprob);
    nib__text_free(&piece);
    if (!isnan(t->logprob)) {
        completion_tops(c, t);
        return;
    }
    w = next_value(&c->logprobs.tops); /* the first token of a prompt has no logprob */
    nib__jsonw_null(&w);
}

void nib__answer_token(nib_answer *c, const nib_new_token *token)
{
    if (!is_chat(c->call))
        completion_token(c, token); /* also the end token: clients count tokens by logprobs */
    else if (!token->end)
        chat_token(c, token);
}

static void write_array(nib_jsonw *w, const char *key, nib_text *values)
{
    nib__jsonw_key(w, key);
    nib__jsonw_array(w);
    if (values->size > 0)
        nib__jsonw_number(w, values->at);
    nib__jsonw_array_end(w);
    nib__text_clear(values);
}

static void write_logprobs(nib_jsonw *w, nib_answer *c)
{
    nib__jsonw_key(w, "logprobs");
    if (c->job.top < 0) {
        nib__jsonw_null(w);
        return;
    }
    nib__jsonw_object(w);
    if (is_chat(c->call)) {
        write_array(w, "content", &c->logprobs.tokens);
        nib__jsonw_key(w, "refusal");
        nib__jsonw_null(w);
    } else {
        write_array(w, "tokens", &c->logprobs.tokens);
        write_array(w, "token_logprobs", &c->logprobs.values);
        write_array(w, "top_logprobs", &c->logprobs.tops);
        write_array(w, "text_offset", &c->logprobs.offsets);
    }
    nib__jsonw_object_end(w);
}

/* ---- parts of all answers ---- */

static void write_head(nib_jsonw *w, nib_call *call)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "id", call->id);
    nib__jsonw_pair_string(w, "object",
                           !is_chat(call) ? "text_completion"
                           : call->stream ? "chat.completion.chunk"
                                          : "chat.completion");
    nib__jsonw_pair_int(w, "created", call->options.now);
    nib__jsonw_pair_string(w, "model", call->service->name);
    nib__jsonw_pair_string(w, "system_fingerprint", "nibble-" NIB_VERSION);
    if (is_chat(call))
        nib__jsonw_pair_string(w, "service_tier", "default");
    if (!call->settings_told && call->settings.setting_count > 0)
        nib__ledger_settings_json(&call->settings, w);
    call->settings_told = true; /* in a stream only the first chunk has them */
    if (!call->notes_told && (call->settings.note_count > 0 || call->settings.failed)) {
        nib__ledger_notes_json(&call->settings, w);
        call->notes_told = true;
    }
    nib__jsonw_key(w, "choices");
    nib__jsonw_array(w);
}

static void write_usage(nib_jsonw *w, const nib_call *call)
{
    const nib_token_counts tokens = nib__call_tokens(call);
    nib__jsonw_key(w, "usage");
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "prompt_tokens", tokens.prompt);
    nib__jsonw_pair_int(w, "completion_tokens", tokens.made);
    nib__jsonw_pair_int(w, "total_tokens", tokens.prompt + tokens.made);
    nib__jsonw_key(w, "prompt_tokens_details");
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "cached_tokens", tokens.cached);
    nib__jsonw_pair_int(w, "recomputed_tokens", tokens.recomputed);
    if (tokens.recomputed > 0)
        nib__jsonw_pair_string(w, "recomputed_because", nib__recompute_names[tokens.why]);
    nib__jsonw_pair_int(w, "audio_tokens", 0);
    nib__jsonw_object_end(w);
    nib__jsonw_key(w, "completion_tokens_details");
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "reasoning_tokens", 0);
    nib__jsonw_pair_int(w, "audio_tokens", 0);
    nib__jsonw_pair_int(w, "accepted_prediction_tokens", 0);
    nib__jsonw_pair_int(w, "rejected_prediction_tokens", 0);
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
}

/* ---- a stream ---- */

/* Begins a chunk of one choice, inside "delta" for a chat. */
static nib_jsonw begin_chunk(nib_answer *c)
{
    nib_call *call = c->call;
    nib_jsonw w;
    nib__text_str(&call->out, "data: ");
    nib__jsonw_init(&w, &call->out, 0);
    write_head(&w, call);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "index", c->index);
    if (is_chat(call)) {
        nib__jsonw_key(&w, "delta");
        nib__jsonw_object(&w);
    }
    return w;
}

/* finish: NULL except in the last chunk. */
static void end_chunk(nib_answer *c, nib_jsonw *w, const char *finish)
{
    nib_call *call = c->call;
    if (is_chat(call))
        nib__jsonw_object_end(w);
    write_logprobs(w, c);
    nib__jsonw_pair_string(w, "finish_reason", finish);
    nib__jsonw_object_end(w);
    nib__jsonw_array_end(w);
    if (call->request.include_usage) {
        nib__jsonw_key(w, "usage");
        nib__jsonw_null(w);
    }
    nib__jsonw_object_end(w);
    nib__text_str(&call->out, "\n\n");
}

static void put_chunk(nib_answer *c, const char *text, size_t size, const char *finish)
{
    nib_jsonw w = begin_chunk(c);
    if (!is_chat(c->call) || finish == NULL) {
        nib__jsonw_key(&w, is_chat(c->call) ? "content" : "text");
        nib__jsonw_string_n(&w, text, size);
    }
    end_chunk(c, &w, finish);
}

/* The first chunk of a chat. Content is null if a call may come instead of text. */
static void put_role(nib_answer *c)
{
    nib_jsonw w = begin_chunk(c);
    nib__jsonw_pair_string(&w, "role", "assistant");
    nib__jsonw_pair_string(&w, "content", nib__api_may_call(&c->call->request) ? NULL : "");
    end_chunk(c, &w, NULL);
}

/* Begins a chunk with the latest call, up to its function. */
static nib_jsonw begin_call_chunk(nib_answer *c)
{
    nib_jsonw w = begin_chunk(c);
    nib__jsonw_key(&w, "tool_calls");
    nib__jsonw_array(&w);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "index", c->calls.count - 1);
    return w;
}

static void end_call_chunk(nib_answer *c, nib_jsonw *w)
{
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
    nib__jsonw_array_end(w);
    end_chunk(c, w, NULL);
}

/* Writes the latest call up to its arguments. */
static void write_call(nib_jsonw *w, const nib_answer *c)
{
    nib__jsonw_pair_string(w, "id", c->calls.id);
    nib__jsonw_pair_string(w, "type", "function");
    nib__jsonw_key(w, "function");
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", c->calls.name.at);
}

void nib__answer_call(nib_answer *c)
{
    nib_jsonw w = begin_call_chunk(c);
    write_call(&w, c);
    nib__jsonw_pair_string(&w, "arguments", "");
    end_call_chunk(c, &w);
}

void nib__answer_arguments(nib_answer *c, const char *text, size_t size)
{
    nib_jsonw w = begin_call_chunk(c);
    nib__jsonw_key(&w, "function");
    nib__jsonw_object(&w);
    nib__jsonw_key(&w, "arguments");
    nib__jsonw_string_n(&w, text, size);
    end_call_chunk(c, &w);
}

static void put_last(nib_call *call)
{
    nib_jsonw w;
    if (call->error.http != 0) {
        nib__text_str(&call->out, "event: error\ndata: ");
        nib__answer_error(&call->out, &call->error);
        nib__text_str(&call->out, "\n\n");
        return;
    }
    if (call->request.include_usage) {
        nib__text_str(&call->out, "data: ");
        nib__jsonw_init(&w, &call->out, 0);
        write_head(&w, call);
        nib__jsonw_array_end(&w);
        write_usage(&w, call);
        nib__jsonw_object_end(&w);
        nib__text_str(&call->out, "\n\n");
    }
    nib__text_str(&call->out, "data: [DONE]\n\n");
}

/* ---- whole answers ---- */

static bool must_call(const nib_call *call)
{
    return nib__api_may_call(&call->request) && call->request.tool_choice != NIB_TOOLS_AUTO;
}

void nib__answer_keep_call(nib_answer *c)
{
    const nib_text *arguments = &c->calls.arguments;
    nib_jsonw w = next_value(&c->calls.done);
    nib__jsonw_object(&w);
    write_call(&w, c);
    nib__jsonw_key(&w, "arguments");
    nib__jsonw_string_n(&w, arguments->size > 0 ? arguments->at : "", arguments->size);
    nib__jsonw_object_end(&w);
    nib__jsonw_object_end(&w);
}

static void write_choice(nib_jsonw *w, nib_answer *c)
{
    const char *text = c->whole.size > 0 ? c->whole.at : "";
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "index", c->index);
    if (is_chat(c->call)) {
        nib__jsonw_key(w, "message");
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "role", "assistant");
        nib__jsonw_key(w, "content");
        if (c->whole.size == 0 && (c->calls.count > 0 || must_call(c->call)))
            nib__jsonw_null(w);
        else
            nib__jsonw_string_n(w, text, c->whole.size);
        nib__jsonw_key(w, "refusal");
        nib__jsonw_null(w);
        if (c->calls.count > 0)
            write_array(w, "tool_calls", &c->calls.done);
        nib__jsonw_object_end(w);
    } else {
        nib__jsonw_key(w, "text");
        nib__jsonw_string_n(w, text, c->whole.size);
    }
    write_logprobs(w, c);
    nib__jsonw_pair_string(w, "finish_reason", nib__answer_finish(c));
    nib__jsonw_object_end(w);
}

static void put_whole(nib_call *call)
{
    nib_jsonw w;
    nib__jsonw_init(&w, &call->out, 0);
    write_head(&w, call);
    for (int64_t i = 0; i < call->choice_count; i++)
        write_choice(&w, &call->choices[i]);
    nib__jsonw_array_end(&w);
    write_usage(&w, call);
    nib__jsonw_object_end(&w);
}

/* ---- events of an answer, in order ---- */

/* Done only when a choice starts: waiting choices would each hold a copy of the prompt. */
void nib__answer_echo(nib_answer *c)
{
    const nib_call *call = c->call;
    const nib_api_prompt *from = &call->request.prompts[c->prompt];
    nib_text text;
    if (!call->request.echo)
        return;
    nib__text_init(&text, call->out.allocator);
    if (from->text != NULL)
        nib__text_put(&text, from->text, from->size);
    else if (nib__tokenizer_decode(call->service->tokenizer, from->ids, from->count, false, &text,
                                   NULL) != NIB_OK)
        text.failed = true;
    c->text.held.failed = c->text.held.failed || text.failed;
    c->echoed = count_characters(text.at, text.size);
    if (call->request.top >= 0)
        nib__answer_token(
            c, &(nib_new_token){.id = c->job.prompt[0], .of_prompt = true, .logprob = NAN});
    nib__answer_text(c, text.at, text.size);
    nib__text_free(&text);
}

void nib__answer_begin(nib_call *call)
{
    call->http = call->stream ? 200 : 0;
    for (int64_t i = 0; i < call->choice_count && call->stream && is_chat(call); i++)
        put_role(&call->choices[i]);
}

void nib__answer_text(nib_answer *c, const char *text, size_t size)
{
    if (!c->call->stream)
        nib__text_put(&c->whole, text, size);
    else if (size > 0 || c->logprobs.tokens.size > 0)
        put_chunk(c, size > 0 ? text : "", size, NULL);
}

void nib__answer_end(nib_answer *c)
{
    if (c->call->stream && c->call->error.http == 0)
        put_chunk(c, "", 0, nib__answer_finish(c));
}

static bool has_failed(const nib_call *call)
{
    bool failed = call->out.failed;
    for (int64_t i = 0; i < call->choice_count; i++) {
        const nib_answer *c = &call->choices[i];
        failed = failed || c->whole.failed || c->logprobs.tokens.failed ||
                 c->logprobs.values.failed || c->logprobs.tops.failed ||
                 c->logprobs.offsets.failed || c->calls.name.failed || c->calls.arguments.failed ||
                 c->calls.done.failed;
    }
    return failed;
}

void nib__answer_over(nib_call *call)
{
    static const char short_error[] = "{\"error\": {\"message\": \"out of memory for this "
                                      "request; send a shorter one, or retry later\", \"type\": "
                                      "\"unavailable_error\", \"param\": null, \"code\": null}}";
    if (call->stream && call->http != 0)
        put_last(call);
    else if (call->error.http != 0)
        nib__answer_error(&call->out, &call->error);
    else
        put_whole(call);
    if (call->http == 0)
        call->http = call->error.http != 0 ? call->error.http : 200;
    if (call->http == 503 && call->retry_s == 0)
        call->retry_s = 1;
    if (has_failed(call)) { /* the answer is incomplete: send an error, or end the stream */
        if (!call->stream)
            call->http = 503;
        call->error.http = 503;
        nib__text_free(&call->out);
        nib__text_init(&call->out, &call->service->session->model->engine->allocator);
        call->read = 0;
        if (!call->stream)
            nib__text_str(&call->out, short_error);
    }
    call->over = true;
    nib__call_count(call);
}
