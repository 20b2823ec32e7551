/* SPDX-License-Identifier: Apache-2.0
 *
 * What a body of POST /v1/chat/completions or /v1/completions asks, by OpenAI's reference. Every
 * member is honoured or refused by its name, or a setting of the answer says what it does not do
 * (service_settings.c); none is passed over.
 */
#ifndef NIB_API_REQUEST_H
#define NIB_API_REQUEST_H

#include "batch.h"

enum {
    NIB_API_STOPS = 4,     /* stop strings */
    NIB_API_CHOICES = 128, /* of one request, all of its prompts together */
    NIB_API_BIASES = 1024, /* members of logit_bias */
    NIB_API_PROMPTS = 128,
    NIB_API_VARIABLES = 64, /* members of chat_template_kwargs */
    NIB_API_TOOLS = 128,
    NIB_API_TOOLS_BYTES = 1 << 20, /* of the member `tools` */
};

/* What is wrong with a request, as its answer says it. */
typedef struct nib_api_error {
    int http;         /* status of the answer; 0: nothing is wrong */
    char param[160];  /* the member that is wrong; empty: none */
    const char *code; /* NULL: none */
    char text[1024];
} nib_api_error;

typedef struct nib_api_prompt {
    const char *text; /* NULL: given as ids */
    size_t size;
    const int32_t *ids; /* [count] as given */
    size_t count;
} nib_api_prompt;

typedef enum nib_api_format { NIB_API_TEXT, NIB_API_JSON, NIB_API_SCHEMA } nib_api_format;

typedef enum nib_tool_choice {
    NIB_TOOLS_AUTO,
    NIB_TOOLS_NONE,
    NIB_TOOLS_REQUIRED,
    NIB_TOOLS_NAMED,
    NIB_TOOLS_UNSAID,
} nib_tool_choice;

typedef struct nib_api_tool {
    const char *name;
    const char *parameters; /* a JSON schema; NULL: none */
    size_t parameters_size;
} nib_api_tool;

typedef struct nib_api_request {
    nib_route route;
    const char *messages; /* a JSON array, as templates take it; chat only */
    size_t messages_size;
    const char *messages_text; /* the same with arguments of calls as text; NULL: there are none */
    size_t messages_text_size;
    const char *variables; /* chat_template_kwargs, a JSON object; NULL: none */
    size_t variables_size;
    nib_api_prompt *prompts; /* [prompt_count]; of a chat none */
    size_t prompt_count;
    double temperature, top_p, min_p, repeat_penalty; /* negative: not given */
    int64_t top_k;                                    /* negative: not given */
    double presence_penalty, frequency_penalty;
    int64_t max_tokens;   /* negative: not given */
    const char *max_name; /* the member that gives it; NULL: none */
    int64_t n;
    uint64_t seed;
    bool seed_given, stream, include_usage, echo;
    bool ignore_eos;
    int top; /* logprobs: likeliest tokens beside each; negative: no logprobs */
    const char *stops[NIB_API_STOPS];
    size_t stop_count;
    nib_logit_bias *bias; /* [bias_count] */
    size_t bias_count;
    nib_api_format format;
    const char *schema; /* of NIB_API_SCHEMA */
    size_t schema_size;
    const char *tools; /* a JSON array, as it stands in the body; NULL: none */
    size_t tools_size;
    nib_api_tool *tool_list; /* [tool_count] */
    size_t tool_count;
    nib_tool_choice tool_choice;
    size_t tool_named;   /* of NIB_TOOLS_NAMED: which of them */
    bool parallel_calls; /* an answer may have several */
    const char *user;    /* NULL: not given */
} nib_api_request;

/* What a request is held against. */
typedef struct nib_api_limits {
    const char *model; /* the name that "model" may have */
    int64_t vocab;
    size_t context,
        token_longest; /* tokens, and bytes of one, at most; 0: messages are of any size */
} nib_api_limits;

/* Everything lies in the arena. False: *error says what is wrong. */
bool nib__api_request_read(nib_api_request *out, nib_route route, const char *body, size_t size,
                           const nib_api_limits *limits, nib_arena *arena, nib_api_error *error);

/* Its answers may have calls. */
NIB_INLINE bool nib__api_may_call(const nib_api_request *q)
{
    return q->tool_count > 0 && q->tool_choice != NIB_TOOLS_NONE;
}

/* ---- for the files that read members ---- */

/* Of a call, or of what answers one; and the message that it is in. */
typedef struct nib_api_id {
    const char *text;
    size_t message;
} nib_api_id;

typedef struct nib_api_ids {
    nib_api_id *at; /* [count] */
    size_t count, capacity;
} nib_api_ids;

typedef struct nib_api_reader {
    nib_json json;
    nib_api_request *to;
    const nib_api_limits *limits;
    nib_arena *arena;
    nib_api_error *error;
    bool logprobs, top_given; /* of a chat: two members that belong together */
    int64_t top;
    int64_t best_of, old_max;   /* negative: not given */
    const char *old_user;       /* `user`, which safety_identifier takes the place of */
    size_t message;             /* the one that is read */
    nib_api_ids calls, answers; /* of messages so far */
    const char *tool_named;     /* by tool_choice */
} nib_api_reader;

enum { NIB_API_PARAM = sizeof((nib_api_error *)NULL)->param };

/* An object inside the body while it is read. */
typedef struct nib_api_object {
    const char *param;        /* where it is: "messages[3]" */
    const char *const *names; /* [count] of the members that it may have */
    int count;                /* at most 32 */
    uint32_t seen;            /* a bit for each that was there */
} nib_api_object;

enum { NIB_API_LAST = -1, NIB_API_WRONG = -2 };

/* The place in o->names of the object's next member, the first event of whose value is read. What
 * is not known and null is passed over, for it asks for nothing: clients send back an answer with
 * all members that theirs could have. NIB_API_LAST behind the last one; NIB_API_WRONG, with the
 * answer, for one that is broken, not known or there twice. */
int nib__api_member(nib_api_reader *r, nib_api_object *o);

/* The name of a member, "messages[0].tool_calls[1].id"; cut where it is longer than all that are
 * known. */
const char *nib__api_param(char out[NIB_API_PARAM], const char *format, ...) NIB_PRINTF(2, 3);
/* False, with the answer of a member that is wrong. */
bool nib__api_refuse(nib_api_reader *r, const char *param, const char *format, ...)
    NIB_PRINTF(3, 4);
/* False, with what the parser or the arena says. */
bool nib__api_broken(nib_api_reader *r);
bool nib__api_no_memory(nib_api_reader *r);
/* What the event that was just read is, in words: "a string". */
const char *nib__api_found(const nib_api_reader *r);
/* The raw text of the key, string or number that was just read, cut, for a message. */
enum { NIB_API_SHOWN = 48 };
const char *nib__api_token(char out[NIB_API_SHOWN], const nib_api_reader *r);
/* A text that was just read, without NUL; `param` names it. */
const char *nib__api_string(nib_api_reader *r, const char *param, size_t *size);
/* The same, where something else than a string is refused. */
bool nib__api_read_text(nib_api_reader *r, const char *param, const char **out, size_t *size);
/* False, with the answer: memory ran out. */
bool nib__api_note_id(nib_api_reader *r, nib_api_ids *ids, const char *text);
/* An object as it stands in the body; the event OBJECT was just read. */
bool nib__api_raw_object(nib_api_reader *r, const char **out, size_t *size);
/* The member `messages`, whose first event was just read. */
bool nib__api_read_messages(nib_api_reader *r);
/* The member `prompt`, likewise. */
bool nib__api_read_prompt(nib_api_reader *r);

/* ---- api_tools.c ---- */

/* The members `tools`, an array, and `tool_choice`. */
bool nib__api_read_tools(nib_api_reader *r);
bool nib__api_read_tool_choice(nib_api_reader *r);
/* What they say about each other. */
bool nib__api_settle_tools(nib_api_reader *r);
/* The calls of a message, written anew: with arguments as the objects that they hold, and as the
 * text that they are. */
bool nib__api_read_calls(nib_api_reader *r, const char *param, const char *out[2]);
#endif
