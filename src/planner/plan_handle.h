/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan handle behind nibble.h: a request for a model on a machine, and what will run.
 */
#ifndef NIB_PLAN_HANDLE_H
#define NIB_PLAN_HANDLE_H

#include "cache.h"
#include "cache_costs.h"
#include "model_handle.h"
#include "planner.h"
#include "runner.h"

struct nib_plan {
    nib_holders holders; /* the application and sessions */
    nib_model *model;
    nib_arena arena; /* copies of the request's strings, layers */
    nib_request request;
    nib_recipe *recipe;
    nib_machine machine; /* the one planned for */
    nib_policy policy;
    nib_layer *layers; /* [net.site_count], in the order of the sites */
    nib_assignment assignment;
    int64_t context, sequences;
    int64_t lookup;        /* most tokens that prompt lookup drafts per step; 0: none */
    int64_t drafts;        /* the same of the draft model */
    nib_plan *draft;       /* of the draft model; NULL: none runs */
    uint64_t lent_bytes;   /* of a draft head: weights that it reads in the model's memory */
    uint64_t weight_bytes; /* in memory, predicted, like the cache */
    uint64_t file_bytes;   /* of an embedding whose rows the CPU reads in the file */
    nib_kv_size cache;
    char cache_name[NIB_KV_NAME]; /* its types, as options spell them */
    nib_cache_costs cache_costs;  /* of the model, if its types are not `dtype` */
};

/* Keeps the plan until nib_plan_close is called once more; returns it. */
nib_plan *nib__plan_hold(const nib_plan *plan);
/* NIB_USAGE if a number of the request is negative, or a list has no strings. */
nib_status nib__request_check(const nib_request *request, nib_err *err);
/* NIB_USAGE if the plan is of another model. */
nib_status nib__plan_check_model(const nib_plan *plan, const nib_model *model, nib_err *err);
/* Whether --device auto was asked. */
bool nib__plan_is_auto(const nib_plan *p);
/* Fills p->machine from the request, and the devices that --place may name; "auto" starts with the
 * CPU. */
nib_status nib__choose_machine(nib_plan *p, nib_err *err);
/* Opens the model's packed weights if the plan runs on this machine; and, once the plan is made,
 * notes how many of them it uses. */
void nib__plan_open_packed(nib_plan *p);
void nib__plan_note_packed(nib_plan *p);
/* Whether the file of packed weights has layer i in every layout that the plan reads. */
bool nib__plan_is_packed(const nib_plan *p, size_t i);
/* Writes packed weights and tokenizer tables to the model's cache directory, if due, and maps the
 * weights. A failure is logged, and is an error if the request is strict. */
nib_status nib__plan_keep(nib_model *m, const nib_plan *p, nib_err *err);
/* Plans the layers for p->machine; with "auto" for every device of this machine, keeping the plan
 * with the fastest token among those that fit. */
nib_status nib__plan_machines(nib_plan *p, nib_err *err);
/* Notes the memory that a plan needs. If a device has less, the plan is denied, with advice on what
 * fits and what the host could run. This machine's CPU can page, so there it is only a note unless
 * --memory set a limit. */
nib_status nib__plan_memory(nib_plan *p, nib_err *err);
/* Whether the plan fits the memory of its machine. */
bool nib__plan_fits(const nib_plan *p);
/* What the plan's cache must hold, with keys and values of these types. */
nib_kv_shape nib__plan_kv_shape(const nib_plan *p, nib_kv_types types);
/* Bytes of keys and values per token. */
uint64_t nib__plan_token_bytes(const nib_plan *p);
/* Bytes that the plan needs on its machine: weights, KV cache and, on a device, buffers. */
uint64_t nib__plan_needs(const nib_plan *p);
/* The code of notes on what a device refused; nib_plan_summary repeats them. */
#define NIB_NOTE_REFUSED "refused"
/* Fills p->lookup, and notes whether a request for drafts can be met. */
nib_status nib__plan_lookup(nib_plan *p, nib_err *err);
/* A row with a device's own arithmetic, whose bits may depend on the other tokens in a step, so
 * that drafts could change the text; NULL: the rows of each layer share one contract for any number
 * of tokens. */
const nib_kernel *nib__plan_device_arithmetic(const nib_plan *p);
/* Plans the draft model of the request, if it has one: fills p->draft and p->drafts. NIB_BAD_INPUT:
 * its token ids mean other texts. */
nib_status nib__plan_draft_model(nib_plan *p, nib_err *err);
/* How the request names its draft model: "--draft PATH", or "--draft-head". */
const char *nib__plan_draft_name(nib_plan *p);

/* What a device refused of earlier plans. */
typedef struct nib_retry {
    const nib_refused *refused;
    size_t refused_count;
    uint64_t weight_bytes_limit;
    const char *limit_message; /* NULL: memory did not run out */
} nib_retry;
/* retry NULL: nothing was refused yet. */
nib_status nib__plan_make(nib_plan **out, nib_model *model, const nib_request *request,
                          const nib_retry *retry, nib_err *err);
/* For nib__plan_make: exclude what was refused, and note it once the plan is made. */
nib_status nib__plan_exclude_refused(nib_plan *p, const nib_retry *retry, nib_err *err);
void nib__plan_note_refused(nib_plan *p);
/* Opens what runs a plan. If the device refuses part of it, fails and fills *refusal. */
typedef nib_status (*nib_plan_opener)(void *ctx, const nib_plan *plan, nib_refusal *refusal,
                                      nib_err *err);
/* Calls `open` with *plan. While the device refuses something, plans the same request again without
 * it and retries; the ledger notes each refusal in the driver's words. *plan is then the last plan,
 * as is *owned, which belongs to the caller and starts as NULL. */
nib_status nib__plan_open(nib_plan_opener open, void *ctx, const nib_plan **plan, nib_plan **owned,
                          nib_err *err);
/* The names of kernels that match one of the patterns; NIB_USAGE for a pattern without a match. */
nib_status nib__choose_without(nib_strings *out, const nib_strings *patterns, nib_arena *arena,
                               const nib_allocator *a, nib_err *err);
/* Adds a setting line if an option overrules what a recipe or config asks; a NULL value: not
 * given. */
void nib__report_overruled(nib_ledger *ledger, const nib_ledger_setting *asked, const char *option,
                           const char *done);
/* For a training config: fail on requests that no training plan can meet; add lines for keys that
 * are not done as written; add notes on what layers are trained for. */
nib_status nib__plan_check_training(nib_plan *p, nib_err *err);
void nib__plan_tell_training(nib_plan *p);
void nib__plan_note_training(nib_plan *p);

/* A note on how many biases have the requested form; asked NULL: no note. others: why not all have
 * it. */
void nib__report_biases(nib_ledger *ledger, const char *asked, const char *others);

/* Writes the members of a plan's JSON into the open object of w. */
void nib__plan_json(const nib_plan *plan, nib_jsonw *w);

#endif
