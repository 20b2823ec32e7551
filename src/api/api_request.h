/* SPDX-License-Identifier: Apache-2.0
 *
 * A parsed body of POST /v1/chat/completions or /v1/completions, after OpenAI's reference. Every
 * member is honoured, refused by name, or reported in the answer's settings (service_settings.c);
 * none is ignored silently.
 */
#ifndef NIB_API_REQUEST_H
#define NIB_API_REQUEST_H

#include "batch.h"

enum {
    NIB_API_STOPS = 4,     /* stop strings */
    NIB_API_CHOICES = 128, /* of one request, over all of its prompts */
    NIB_API_BIASES = 1024, /* members of logit_bias */
    NIB_API_PROMPTS = 128,
    NIB_API_VARIABLES = 64, /* members of chat_template_kwargs */
    NIB_API_TOOLS = 128,
    NIB_API_TOOLS_BYTES = 1 << 20, /* size of the member `tools` */
};

enum { NIB_ROUTES = NIB_ROUTE_COMPLETIONS + 1 };

/* The error that answers a request. */
typedef struct nib_api_error {
    int http;         /* status of the answer; 0: no error */
    char param[160];  /* the member at fault; empty: none */
    const char *code; /* NULL: none */
    char text[1024];
} nib_api_error;

typedef struct nib_api_prompt {
    const char *text; /* [size]; NULL: given as ids */
    size_t size;
    const int32_t *ids; /* [count] */
    size_t count;
} nib_api_prompt;

typedef enum nib_api_format { NIB_API_TEXT, NIB_API_JSON, NIB_API_SCHEMA } nib_api_format;

typedef enum nib_tool_choice {
    NIB_TOOLS_AUTO,
    NIB_TOOLS_NONE,
    NIB_TOOLS_REQUIRED,
    NIB_TOOLS_NAMED,
    NIB_TOOLS_UNSET,
} nib_tool_choice;

typedef struct nib_api_tool {
    const char *name;
    const char *parameters; /* a JSON schema; NULL: none */
    size_t parameters_size;
} nib_api_tool;

typedef struct nib_api_request {
    nib_route route;
    const char *messages; /* a JSON array in the form that templates take; chat only */
    size_t messages_size;
    const char *messages_text; /* messages with call arguments as text; NULL: no calls */
    size_t messages_text_size;
    const char *variables; /* chat_template_kwargs, a JSON object; NULL: none */
    size_t variables_size;
    nib_api_prompt *prompts; /* [prompt_count]; none for a chat */
    size_t prompt_count;
    nib_sampling sampling; /* without the seed; negative: not given */
    double presence_penalty, frequency_penalty;
    int64_t max_tokens;   /* negative: not given */
    const char *max_name; /* the member that sets it; NULL: none */
    int64_t n;
    uint64_t seed;
    bool seed_given, stream, include_usage, echo;
    bool ignore_eos;
    int top; /* logprobs: number of most likely tokens per position; negative: no logprobs */
    const char *stops[NIB_API_STOPS];
    size_t stop_count;
    nib_logit_bias *bias; /* [bias_count] */
    size_t bias_count;
    nib_api_format format;
    const char *schema; /* for NIB_API_SCHEMA */
    size_t schema_size;
    const char *tools; /* a JSON array, unchanged from the body; NULL: none */
    size_t tools_size;
    nib_api_tool *tool_list; /* [tool_count] */
    size_t tool_count;
    nib_tool_choice tool_choice;
    size_t tool_named;   /* for NIB_TOOLS_NAMED: index in tool_list */
    bool parallel_calls; /* an answer may have several calls */
    const char *user;    /* NULL: not given */
} nib_api_request;

/* Limits that a request is checked against. */
typedef struct nib_api_limits {
    const char *model; /* the name that "model" must have */
    int64_t vocab;
    size_t context;       /* tokens */
    size_t token_longest; /* bytes of the longest token; 0: messages may have any size */
} nib_api_limits;

/* Allocates everything in the arena. On false, *error is set. */
bool nib__api_request_read(nib_api_request *out, nib_route route, const char *body, size_t size,
                           const nib_api_limits *limits, nib_arena *arena, nib_api_error *error);

/* Whether answers may contain tool calls. */
NIB_INLINE bool nib__api_may_call(const nib_api_request *q)
{
    return q->tool_count > 0 && q->tool_choice != NIB_TOOLS_NONE;
}

/* ---- for the files that read members ---- */

/* The id of a call, or of the tool message that answers one, and the index of its message. */
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
    bool logprobs, top_given; /* chat: top_logprobs needs logprobs */
    int64_t top;
    int64_t best_of, old_max;   /* negative: not given */
    const char *old_user;       /* `user`, which safety_identifier replaces */
    size_t message;             /* index of the message being read */
    nib_api_ids calls, answers; /* in the messages so far */
    const char *tool_named;     /* in tool_choice */
} nib_api_reader;

enum { NIB_API_PARAM = sizeof((nib_api_error *)NULL)->param };

/* An object inside the body while it is read. */
typedef struct nib_api_object {
    const char *param;        /* where it is: "messages[3]" */
    const char *const *names; /* [count] allowed members */
    int count;                /* at most 32 */
    uint32_t seen;            /* a bit per member that was read */
} nib_api_object;

enum { NIB_API_LAST = -1, NIB_API_ERROR = -2 };

/* Reads the key of the next member and the first event of its value; returns the index in o->names.
 * Skips unknown members that are null: clients send answers back with all members of their own
 * types, and null asks for nothing. NIB_API_LAST: no more members. NIB_API_ERROR, with the error
 * set: the member is malformed, unknown or repeated. */
int nib__api_next_member(nib_api_reader *r, nib_api_object *o);

/* Formats a member's name, such as "messages[0].tool_calls[1].id"; truncates names longer than any
 * known one. */
const char *nib__api_param(char out[NIB_API_PARAM], const char *format, ...) NIB_PRINTF(2, 3);
/* Sets a 400 error about a member and returns false. */
bool nib__api_refuse(nib_api_reader *r, const char *param, const char *format, ...)
    NIB_PRINTF(3, 4);
/* Sets the parser's or allocator's error and returns false. */
bool nib__api_fail_json(nib_api_reader *r);
bool nib__api_no_memory(nib_api_reader *r);
/* The last event in words: "a string". */
const char *nib__api_describe_event(const nib_api_reader *r);
/* The raw text of the last key, string or number, truncated for a message. */
enum { NIB_API_SHOWN = 48 };
const char *nib__api_token(char out[NIB_API_SHOWN], const nib_api_reader *r);
/* The last string, in which NUL is refused; NULL with the error set. `param` names the member. */
const char *nib__api_parse_string(nib_api_reader *r, const char *param, size_t *size);
/* As nib__api_parse_string, but also refuses a value that is not a string. */
bool nib__api_read_text(nib_api_reader *r, const char *param, const char **out, size_t *size);
/* Appends an id; on false, the error is set (out of memory). */
bool nib__api_note_id(nib_api_reader *r, nib_api_ids *ids, const char *text);
/* The raw text of an object whose OBJECT event was just read. */
bool nib__api_raw_object(nib_api_reader *r, const char **out, size_t *size);
/* The member `messages`, whose first event was just read. */
bool nib__api_read_messages(nib_api_reader *r);
/* The member `prompt`, whose first event was just read. */
bool nib__api_read_prompt(nib_api_reader *r);

/* ---- api_tools.c ---- */

/* The members `tools`, an array, and `tool_choice`. */
bool nib__api_read_tools(nib_api_reader *r);
bool nib__api_read_tool_choice(nib_api_reader *r);
/* Checks tools, tool_choice and response_format against each other. */
bool nib__api_settle_tools(nib_api_reader *r);
/* The calls of a message, rewritten as JSON twice: out[0] with arguments as objects, out[1] with
 * arguments as text. */
bool nib__api_read_calls(nib_api_reader *r, const char *param, const char *out[2]);
#endif
