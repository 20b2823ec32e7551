/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan handle behind nibble.h: what was asked of a model, on which machine, and what will run.
 */
#ifndef NIB_PLAN_HANDLE_H
#define NIB_PLAN_HANDLE_H

#include "cache.h"
#include "model_handle.h"
#include "planner.h"
#include "runner.h"

struct nib_plan {
    nib_model *model;
    nib_arena arena; /* copies of the request's strings, layers */
    nib_request request;
    nib_recipe *recipe;
    nib_machine machine; /* the one planned for */
    nib_policy policy;
    nib_layer *layers; /* [net.site_count], in the order of the sites */
    nib_assignment assignment;
    int64_t context, sequences;
    int64_t lookup;        /* tokens that generation drafts at most; 0: none */
    uint64_t weight_bytes; /* predicted, as the cache is */
    nib_kv_size cache;
};

/* Fills p->machine by the request, and the devices that --place may name; of "auto" the CPU. */
nib_status nib__choose_machine(nib_plan *p, nib_err *err);
/* Opens the model's packed weights if the plan is of a run here; then, of a plan that is made, what
 * they give it. */
void nib__plan_open_packed(nib_plan *p);
void nib__plan_note_packed(nib_plan *p);
/* Does the model's file have layer i in every layout that the plan reads packed? */
bool nib__plan_is_packed(const nib_plan *p, size_t i);
/* Writes what is to be kept in the directory that the model was opened with, and maps it. What
 * cannot be written is logged, and is an error of a strict request. */
nib_status nib__plan_keep(nib_model *m, const nib_plan *p, nib_err *err);
/* Plans the layers for p->machine; of "auto" for every device that is here, and keeps the plan with
 * the fastest token among those that fit. */
nib_status nib__plan_machines(nib_plan *p, nib_err *err);
/* Says what a plan holds in memory. More than a device has denies the plan, with what would fit and
 * what would be done elsewhere; on this CPU, which pages, it is a note unless a limit was asked. */
nib_status nib__plan_memory(nib_plan *p, nib_err *err);
/* Does the plan fit the memory of its machine? */
bool nib__plan_fits(const nib_plan *p);
/* What people call the type of a cache: "int8" and not "i8". */
const char *nib__cache_name(nib_type type);
/* Bytes of a token's keys and values. */
uint64_t nib__plan_token_bytes(const nib_plan *p);
/* Bytes that it holds there: weights, keys and values and, on a device, buffers. */
uint64_t nib__plan_needs(const nib_plan *p);
/* The code of notes that end a run, too: what a device refused. */
#define NIB_NOTE_REFUSED "refused"
/* Fills p->lookup, and says what a request for drafts comes to. */
nib_status nib__plan_lookup(nib_plan *p, nib_err *err);

/* What a device refused of the plans before. */
typedef struct nib_retry {
    const nib_refused *refused;
    size_t refused_count;
    uint64_t room;
    const char *room_words; /* NULL: its memory did not run out */
} nib_retry;
/* again NULL: nothing was refused yet. */
nib_status nib__plan_make(nib_plan **out, nib_model *model, const nib_request *request,
                          const nib_retry *again, nib_err *err);
/* For nib__plan_make: leaves out what was refused, and says so once the plan is made. */
nib_status nib__plan_take_refused(nib_plan *p, const nib_retry *again, nib_err *err);
void nib__plan_note_refused(nib_plan *p);
/* Opens what runs a plan; *refusal says what of it the device refused, if that is why it fails. */
typedef nib_status (*nib_plan_opener)(void *ctx, const nib_plan *plan, nib_refusal *refusal,
                                      nib_err *err);
/* Calls it with *plan and, as long as a device refuses something, with the plan of the same request
 * and of what was refused so far: its ledger says what, in the driver's words. *plan is the last
 * one then, and *own, too, which is the caller's, and NULL at first. */
nib_status nib__plan_open(nib_plan_opener open, void *ctx, const nib_plan **plan, nib_plan **own,
                          nib_err *err);
/* The names of the kernels that match one of the patterns; a pattern without one is NIB_USAGE. */
nib_status nib__choose_without(nib_strings *out, const nib_strings *patterns, nib_arena *arena,
                               const nib_allocator *a, nib_err *err);
/* What a recipe or a config asks (code, name, value, by whom), where an option says something else;
 * a value or option of NULL: it says nothing. */
void nib__tell_overruled(nib_ledger *ledger, const nib_ledger_setting *asked, const char *option,
                         const char *done);
/* Of a training config: what is asked that no plan of training can be; what its keys ask and is not
 * done so; notes on what its layers are trained for. */
nib_status nib__plan_check_training(nib_plan *p, nib_err *err);
void nib__plan_tell_training(nib_plan *p);
void nib__plan_note_training(nib_plan *p);

/* A note on how many biases have the asked form; asked NULL: none. others: why not all of them. */
void nib__note_biases(nib_ledger *ledger, const char *asked, const char *others);

/* Members of a plan's JSON into the open object of w. */
void nib__plan_json(const nib_plan *plan, nib_jsonw *w);

#endif
