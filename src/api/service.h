/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests between the thread that runs them and those that brought them: what a call holds, from
 * its coming to its last byte. One lock guards all that both sides touch; the batch and the jobs
 * are the running thread's alone.
 */
#ifndef NIB_SERVICE_H
#define NIB_SERVICE_H

#include "api_request.h"
#include "stream_text.h"
#include "token_trie.h"
#include "tool_format.h"

#include <pthread.h>

/* Logprobs of tokens as JSON, not yet in an answer: of a chat objects in `tokens`, of a completion
 * four arrays side by side; each without its brackets. */
typedef struct nib_logprobs {
    nib_text tokens, values, tops, offsets;
} nib_logprobs;

/* Calls of tools in an answer. */
enum { NIB_CALL_ID = 24 };
typedef struct nib_answer_calls {
    nib_constraint_state *state; /* behind the tokens that were told; NULL: none, or not running */
    nib_text name, arguments;    /* of the newest; to a stream what was not yet told */
    nib_text done;               /* what is not streamed: objects without the array's brackets */
    char id[NIB_CALL_ID];
    int64_t count;
    bool open; /* the newest is not over */
} nib_answer_calls;

/* One completion of a request. */
typedef struct nib_answer {
    nib_call *call;
    int64_t index, prompt; /* which of the call's prompts */
    nib_job job;
    nib_text_out text;
    nib_text whole; /* what is not streamed */
    nib_answer_calls calls;
    nib_logprobs logprobs;
    nib_detok told;       /* of tokens whose logprobs were told: while they are the prompt's it
                             gives special ones, as that text does */
    size_t told_prompt;   /* how many of the prompt's */
    int64_t characters;   /* of their text, for offsets */
    int64_t echoed;       /* characters of the prompt's text, where that is in the answer */
    int64_t cached, made; /* of the job, which is the running thread's, as of its last token */
    bool begun, ended;    /* has a sequence or had one; is over */
    nib_finish finish;
    nib_err failed; /* status NIB_OK: did not */
} nib_answer;

typedef struct nib_call_prompt {
    int32_t *ids; /* from the tokenizer, or `given` ones of the request */
    size_t count;
    size_t added;       /* of these, before all that the text stands for: BOS */
    int64_t max_tokens; /* new ones after it; INT64_MAX: until the context is full */
    bool owned;
} nib_call_prompt;

struct nib_call {
    nib_service *service;
    nib_call *next; /* of those that are not over, or not yet prepared, in the order in which they
                       came */
    nib_arena arena;
    nib_api_request request;
    nib_call_options options; /* the body is the call's copy */
    char *body;               /* until it was prepared */
    nib_arena said;           /* likewise: all that the request has from its body */
    char id[48];
    uint64_t user;                 /* one of the client's users; 0: none was named */
    uint64_t turn;                 /* in which it is prepared */
    uint64_t seed, unique;         /* unique: the number in its id */
    const nib_tool_format *format; /* where answers may have calls */
    nib_call_prompt *prompts;      /* [prompt_count] */
    nib_answer *choices;           /* [choice_count] prompt after prompt */
    int64_t prompt_count, choice_count, begun, ended;
    nib_constraint *constraint; /* of its answers; NULL: none */
    nib_ledger settings;        /* what of the request is not done as asked */
    bool settings_told;         /* the answer has them */
    nib_text out;               /* bytes of the answer, from `read` on not yet read */
    size_t read;
    int http, retry_s;
    bool stream, over, closed; /* closed: whoever brought it is gone */
    bool told;                 /* there is something that `ready` was not called for */
    nib_api_error error;
    uint64_t came_ns, begun_ns, first_ns, last_ns, over_ns; /* 0: not yet */
};

/* Times in seconds, as Prometheus counts them. */
enum { NIB_BUCKETS = 14 };
typedef struct nib_histogram {
    uint64_t counts[NIB_BUCKETS + 1];
    double sum;
} nib_histogram;

typedef struct nib_service_counts {
    uint64_t requests[NIB_ROUTE_COUNT]
                     [6]; /* by the first digit of their status; [0]: gone before */
    uint64_t prompt_tokens, cached_tokens, new_tokens;
    nib_histogram queued, first_token, next_token, total;
} nib_service_counts;

/* How the template shows tools and writes calls, once a request wanted to know; the preparer's. */
typedef struct nib_service_tools {
    nib_arena arena;
    bool known;
    nib_err shown, found; /* status NIB_OK: it does */
    nib_tool_format format;
} nib_service_tools;

struct nib_service {
    nib_session *session;
    const nib_tokenizer *tokenizer;
    nib_token_trie *trie; /* how tokens are spelled */
    nib_service_tools tools;
    nib_service_options options;
    char name[256];
    int64_t created; /* seconds since 1970, of the first request; 0: none came */
    pthread_mutex_t lock;
    pthread_cond_t wake, fresh;
    bool lock_made, wake_made, fresh_made, running;
    /* Texts become tokens on a thread of their own: a long one keeps no stream waiting. */
    pthread_t preparer;
    bool has_preparer, closing;
    nib_call *unprepared, *preparing; /* the one that is taken from the list */
    uint64_t turn;                    /* of the last one that was taken */
    size_t longest;                   /* bytes of a token, at most */
    int stopping;                     /* 1: no further requests; more: nor those that run */
    nib_err lost; /* status NIB_IO: a file of the model is not what it was, and nothing runs */
    nib_call *calls;
    int64_t waiting; /* calls with choices that have not begun */
    uint64_t number; /* calls so far */
    nib_batch *batch;
    nib_batch_counts batch_counts; /* as reports give them */
    nib_service_counts counts;
    nib_text plan; /* its report */
};

/* All under the lock. */

/* Is it among those that are not over? */
bool nib__service_has(const nib_service *s, const nib_call *call);
/* Takes it from the batch and the list, and frees it. */
void nib__service_drop(nib_service *s, nib_call *call);
/* False, with the answer, for a call whose time is up, or that the service's end cuts. */
bool nib__service_goes_on(const nib_service *s, nib_call *call);

/* ---- service_prepare.c ---- */

nib_status nib__preparer_open(nib_service *s, nib_err *err);
void nib__preparer_close(nib_service *s);
/* Under the lock: in the client's next turn. */
void nib__prepare_later(nib_service *s, nib_call *call);
/* Those that may wait no longer get their answers. Under the lock. */
void nib__prepare_cut(nib_service *s);
/* Takes it from those that are not prepared yet, if it is one of them. Under the lock. */
bool nib__prepare_drop(nib_service *s, const nib_call *call);
/* False, with the answer that a call gets. */
bool nib__call_refuse(nib_call *call, int http, const char *param, const char *code,
                      const char *text);
/* A failure of the library as an answer: what the caller can mend is his. */
bool nib__call_refuse_status(nib_call *call, const char *param, const nib_err *err);
bool nib__call_no_memory(nib_call *call);

/* What the model's template is given of the request. */
nib_chat_options nib__call_chat_options(const nib_call *call);

/* ---- service_tools.c ---- */

/* Finds how the template writes calls, where the request has some or tools. */
bool nib__call_find_tools(nib_call *call);
/* The constraint of answers that may or must call. */
bool nib__call_constrain_tools(nib_call *call);

/* ---- service_settings.c ---- */

/* Fills the call's settings; false, with the answer: the model runs strictly, and one of them is
 * not allowed. */
bool nib__call_settings(nib_call *call);

/* ---- service_call.c ---- */

/* A call that was prepared joins those that run, or is over; one that is closed is freed. */
void nib__call_join(nib_call *call, bool good);
extern const nib_job_calls nib__answer_calls;
/* A choice that begins takes what its constraint needs; false: memory ran out, and it has none. */
bool nib__answer_constrain(nib_answer *choice);
/* It runs no more. */
void nib__answer_release(nib_answer *choice);
/* Its text stands behind the prompt's. */
bool nib__answer_continues(const nib_answer *choice);

/* Mixes a number into another. */
uint64_t nib__mix(uint64_t a, uint64_t b);
/* Puts into the answer what is ready of its text, but for `held` bytes at its end. */
void nib__call_give_text(nib_answer *c, bool all, size_t held);
/* Calls `ready`, if there is something that was not told. */
void nib__call_tell(nib_call *call);
void nib__call_free(nib_call *call);
/* Of a prompt with several answers once. */
void nib__call_tokens(const nib_call *call, int64_t *prompt, int64_t *cached, int64_t *made);

/* ---- api_report.c ---- */

void nib__histogram_add(nib_histogram *h, double seconds);
/* Of a call that is over. */
void nib__call_count(nib_call *call);

/* ---- api_answer.c: bytes of answers; all append ---- */

void nib__answer_error(nib_text *out, const nib_api_error *error);
/* What makes the answer so far: to a stream, chunks; else nothing before the whole. */
void nib__answer_begin(nib_call *call);
/* A choice begins: its prompt, where that is asked for. */
void nib__answer_echo(nib_answer *choice);
void nib__answer_token(nib_answer *choice, const nib_new_token *token);
void nib__answer_text(nib_answer *choice, const char *text, size_t size);
/* In a stream: a call that begins, and a piece of its arguments. */
void nib__answer_call(nib_answer *choice);
void nib__answer_arguments(nib_answer *choice, const char *text, size_t size);
/* Not in a stream: a call that is over, or cut. */
void nib__answer_keep_call(nib_answer *choice);
void nib__answer_end(nib_answer *choice);
void nib__answer_over(nib_call *call);
const char *nib__answer_finish(const nib_answer *choice);

/* ---- api_calls.c: answers that may have calls ---- */

void nib__answer_take(nib_answer *choice, int32_t id);
/* No token comes any more. */
void nib__answer_calls_end(nib_answer *choice);

#endif
