/* SPDX-License-Identifier: Apache-2.0
 *
 * A service and its calls (requests), from arrival to the last byte of the answer. One lock guards
 * what the running thread shares with the threads that open and read calls. Only the running thread
 * touches the batch and the jobs.
 */
#ifndef NIB_SERVICE_H
#define NIB_SERVICE_H

#include "api_request.h"
#include "stream_text.h"
#include "token_trie.h"
#include "tool_format.h"

#include <pthread.h>

/* Logprobs as JSON, not yet in the answer: objects in `tokens` for a chat, four parallel arrays for
 * a completion; without the arrays' brackets. */
typedef struct nib_logprobs {
    nib_text tokens, values, tops, offsets;
} nib_logprobs;

/* Tool calls in an answer. */
enum { NIB_CALL_ID = 24 };
typedef struct nib_answer_calls {
    nib_constraint_state *state; /* after the tokens so far; NULL: no calls, or not running */
    nib_text name, arguments;    /* of the latest call; in a stream, what was not sent yet */
    nib_text done;               /* not streamed: finished calls, without the array's brackets */
    char id[NIB_CALL_ID];
    int64_t count;
    bool open; /* the latest call is not finished */
} nib_answer_calls;

typedef struct nib_token_counts {
    int64_t prompt, made;
    int64_t cached;     /* of the prompt: continued from, as the cache had them */
    int64_t recomputed; /* of the prompt: the cache had them, but could not be continued there */
    nib_recompute why;
} nib_token_counts;

/* One choice of a request. */
typedef struct nib_answer {
    nib_call *call;
    int64_t index, prompt; /* of the choice; of its prompt in the call */
    nib_job job;
    nib_text_out text;
    nib_text whole; /* the text, if not streamed */
    nib_answer_calls calls;
    nib_logprobs logprobs;
    nib_detok told;     /* tokens whose logprobs are written; while they belong to the prompt it
                             keeps special tokens, as the echoed text does */
    size_t told_prompt; /* how many of them belong to the prompt */
    int64_t characters; /* in their text, for offsets */
    int64_t echoed;     /* characters of the echoed prompt; 0: not echoed */
    nib_token_counts tokens; /* of the job as of its last token, readable under the lock */
    bool begun, ended;       /* has had a sequence; is finished */
    nib_finish finish;
    nib_err failed; /* status NIB_OK: no failure */
} nib_answer;

typedef struct nib_call_prompt {
    int32_t *ids; /* [count] */
    size_t count;
    size_t added;       /* leading ids that do not come from the text, such as BOS */
    int64_t max_tokens; /* new tokens; INT64_MAX: until the context is full */
    bool owned;         /* ids come from the tokenizer and are freed with it */
} nib_call_prompt;

struct nib_call {
    nib_service *service;
    nib_call *next; /* in the list of unfinished or of unprepared calls, in order of arrival */
    nib_arena arena;
    nib_api_request request;
    nib_call_options options; /* the body is the call's copy */
    char *body;               /* until the call is prepared */
    nib_arena said;           /* until then: what the request points to in its body */
    char id[48];
    uint64_t user;                 /* hash of the request's user; 0: none given */
    uint64_t turn;                 /* of preparation */
    uint64_t seed, unique;         /* unique: the number in the id */
    const nib_tool_format *format; /* of calls, if answers may have them */
    nib_call_prompt *prompts;      /* [prompt_count] */
    nib_answer *choices;           /* [choice_count], grouped by prompt */
    int64_t prompt_count, choice_count, begun, ended;
    nib_constraint *constraint; /* on the answers; NULL: none */
    nib_ledger settings;        /* settings not done as asked */
    bool settings_told;         /* they are in the answer */
    bool notes_told;            /* so are the notes, which an answer gets when it is over */
    nib_text out;               /* bytes of the answer; those before `read` were read */
    size_t read;
    int http, retry_s;
    bool stream, over, closed; /* closed: nib_call_close was called */
    bool notified;             /* `ready` was called since the answer was last read to its end */
    nib_api_error error;
    uint64_t came_ns, begun_ns, first_ns, last_ns, over_ns; /* 0: not yet */
};

/* A Prometheus histogram of times in seconds. */
enum { NIB_BUCKETS = 14 };
typedef struct nib_histogram {
    uint64_t counts[NIB_BUCKETS + 1];
    double sum;
} nib_histogram;

typedef struct nib_service_counts {
    uint64_t requests[NIB_ROUTES][6]; /* by first digit of the status; [0]: closed before the end */
    uint64_t prompt_tokens, cached_tokens, new_tokens;
    nib_histogram queued, first_token, next_token, total;
} nib_service_counts;

/* How the template shows tools and writes calls. Filled in by the first request with tools; only
 * the preparer touches it. */
typedef struct nib_service_tools {
    nib_arena arena;
    bool known;
    nib_err shown, found; /* status NIB_OK: it shows tools; its format of calls was found */
    nib_tool_format format;
} nib_service_tools;

struct nib_service {
    nib_holders holders; /* the application and its calls */
    nib_session *session;
    const nib_tokenizer *tokenizer;
    nib_token_trie *trie; /* spellings of tokens */
    nib_service_tools tools;
    nib_service_options options;
    char name[256];
    int64_t created; /* time of the first request, seconds since 1970; 0: none yet */
    pthread_mutex_t lock;
    pthread_cond_t wake, fresh;
    bool lock_made, wake_made, fresh_made, running;
    /* Tokenizes prompts on its own thread, so that a long one does not delay streams. */
    pthread_t preparer;
    bool has_preparer, closing;
    nib_call *unprepared, *preparing; /* the list, and the call taken from it */
    uint64_t turn;                    /* of the last call taken */
    size_t longest;                   /* bytes of the longest token */
    int stopping;                     /* 1: refuse new requests; more: also end running ones */
    nib_err lost; /* status NIB_IO: a file of the model changed, and nothing runs any more */
    nib_call *calls;
    int64_t waiting; /* calls with choices that have not started */
    uint64_t number; /* calls so far */
    nib_batch *batch;
    nib_state_cache *states;       /* on disk; NULL: none */
    nib_batch_counts batch_counts; /* for reports */
    nib_service_counts counts;
    nib_text plan; /* as JSON */
    int statm;     /* for nib__resident_read; negative: none */
};

/* NIB_USAGE in a forked child, where another thread may have held the lock and none runs. */
nib_status nib__service_check(const nib_service *s, nib_err *err);

/* Call the following under the lock. */

/* Whether the call is in the list of unfinished calls. */
bool nib__service_has(const nib_service *s, const nib_call *call);
/* Removes the call from the batch and the list, and frees it. */
void nib__service_drop(nib_service *s, nib_call *call);
/* False, with the error set, if its time is up, the service stops or a model file changed. */
bool nib__service_goes_on(const nib_service *s, nib_call *call);

/* ---- service_prepare.c ---- */

nib_status nib__preparer_open(nib_service *s, nib_err *err);
void nib__preparer_close(nib_service *s);
/* Enqueues a call for preparation in its client's next turn. Under the lock. */
void nib__prepare_later(nib_service *s, nib_call *call);
/* Ends unprepared calls that may not continue (nib__service_goes_on). Under the lock. */
void nib__prepare_cut(nib_service *s);
/* Removes the call from the unprepared ones; false: it is not one of them. Under the lock. */
bool nib__prepare_drop(nib_service *s, const nib_call *call);
/* Sets the error that answers a call and returns false. */
bool nib__call_refuse(nib_call *call, int http, const char *param, const char *code,
                      const char *text);
/* The same from an error of the library: 400 if the client can fix it, else 503 or 500. */
bool nib__call_refuse_status(nib_call *call, const char *param, const nib_err *err);
bool nib__call_no_memory(nib_call *call);

/* The template's inputs from the request. */
nib_chat_options nib__call_chat_options(const nib_call *call);

/* ---- service_tools.c ---- */

/* If the request has tools or calls, finds how the template writes calls. */
bool nib__call_find_tools(nib_call *call);
/* Makes the constraint for answers that may or must have calls. */
bool nib__call_constrain_tools(nib_call *call);

/* ---- service_settings.c ---- */

/* Fills in the call's settings. With --strict, refuses settings that are not allowed. */
bool nib__call_settings(nib_call *call);
/* Adds notes on how the cache served the call, once its choices have ended. */
void nib__call_note_cache(nib_call *call);

/* ---- service_call.c ---- */

/* Moves a prepared call to the running ones, or ends it if not `good`. Frees a closed one. */
void nib__call_join(nib_call *call, bool good);
extern const nib_job_calls nib__answer_calls;
/* Allocates the constraint state of a starting choice; false: out of memory, none allocated. */
bool nib__answer_constrain(nib_answer *choice);
/* Releases what a choice needs only while it runs. */
void nib__answer_release(nib_answer *choice);
/* Whether its text continues the prompt's. */
bool nib__answer_continues(const nib_answer *choice);

uint64_t nib__mix(uint64_t a, uint64_t b); /* a hash of both */
/* Appends the text that is ready to the answer, except for the last `held` bytes. */
void nib__call_give_text(nib_answer *c, bool all, size_t held);
/* Calls `ready` if there is something new to read. */
void nib__call_tell(nib_call *call);
void nib__call_free(nib_call *call);
/* Token counts of all answers; a prompt with several answers counts once. */
nib_token_counts nib__call_tokens(const nib_call *call);
/* Notes what the answer's job found in the cache. */
void nib__answer_note_cache(nib_answer *c);

/* ---- api_report.c ---- */

void nib__histogram_add(nib_histogram *h, double seconds);
/* Adds a finished call to the service's counts. */
void nib__call_count(nib_call *call);

/* ---- api_answer.c: append to answers ---- */

void nib__answer_error(nib_text *out, const nib_api_error *error);
/* Starts an answer: the first chunks of a streamed chat, else nothing. */
void nib__answer_begin(nib_call *call);
/* Appends the prompt to a choice that starts, if echo is set. */
void nib__answer_echo(nib_answer *choice);
void nib__answer_token(nib_answer *choice, const nib_new_token *token);
void nib__answer_text(nib_answer *choice, const char *text, size_t size);
/* In a stream: the start of a call, and a piece of its arguments. */
void nib__answer_call(nib_answer *choice);
void nib__answer_arguments(nib_answer *choice, const char *text, size_t size);
/* Not in a stream: a finished or interrupted call. */
void nib__answer_keep_call(nib_answer *choice);
void nib__answer_end(nib_answer *choice);
void nib__answer_over(nib_call *call);
const char *nib__answer_finish(const nib_answer *choice);

/* ---- api_calls.c: answers that may have calls ---- */

void nib__answer_take(nib_answer *choice, int32_t id); /* a token of the answer */
/* Ends an open call after the last token. */
void nib__answer_calls_end(nib_answer *choice);

#endif
