/* SPDX-License-Identifier: Apache-2.0
 *
 * The public handles behind nibble.h: what a model, a plan and a session hold.
 */
#ifndef NIB_LIBRARY_H
#define NIB_LIBRARY_H

#include "lookup.h"
#include "network.h"
#include "plan.h"
#include "runner.h"
#include "sample.h"
#include "template.h"

typedef struct nib_chat nib_chat;

struct nib_model {
    nib_engine *engine;
    nib_network net;
    nib_tokenizer *tokenizer;  /* NULL until it is needed */
    bool tables_asked;         /* tables of it that were built before, if they serve */
    nib_chat *chat;            /* its template; NULL until it is needed */
    char *tokenizer_path;      /* as given; NULL: beside the weights */
    struct nib_packed *packed; /* NULL: none, or none that serves */
    const char *packed_path;   /* where it lies, or a session is to write it; NULL: nowhere */
    bool packed_asked;
    bool packed_due;       /* a session is to write it */
    const char *cache_dir; /* as given; NULL: none */
    const char *tables;    /* where a session is to write the tokenizer's tables; NULL: nowhere */
};

struct nib_plan {
    nib_model *model;
    nib_arena arena; /* copies of the request's strings, layers */
    nib_request request;
    nib_recipe *recipe;
    nib_machine machine; /* the one planned for */
    nib_policy policy;
    nib_layer *layers; /* [net.site_count], in the order of the sites */
    nib_layers_plan plan;
    int64_t context, sequences;
    int64_t lookup;        /* tokens that generation drafts at most; 0: none */
    uint64_t weight_bytes; /* predicted, as the cache is */
    nib_kv_size cache;
};

struct nib_session {
    nib_model *model;
    const nib_plan *plan;
    nib_plan *own; /* `plan`, where the device refused a part of the one that was given; NULL */
    nib_runner runner;
    nib_step_times times; /* of steps that read no prompt */
};

/* NIB_USAGE for a model that was opened only to look at. */
nib_status nib__model_runs(const nib_model *model, nib_err *err);
/* Returns `status`, or NIB_IO naming a mapped file of the model (weights, packed weights, tokenizer
 * tables) that another process changed. Call it before a result computed from them is reported. */
nib_status nib__model_read(nib_model *model, nib_status status, nib_err *err);
/* The file that a tokenizer's path means: itself, or the tokenizer.json of a directory, or the
 * tokenizer.gguf that a conversion of a GGUF leaves there. It need not be there. */
nib_status nib__tokenizer_place(const char **out, const char *at, nib_arena *arena, nib_err *err);
/* What the tokenizer's files ask for and is not done. */
void nib__model_say_tokenizer(const nib_model *model, nib_ledger *ledger);
/* Opens the tokenizer by the tables beside it, once; where they do not serve a note says why, and
 * it is opened without them when it is asked for. */
void nib__model_tables(nib_model *model);
void nib__chat_close(nib_chat *chat);
/* Opens it; fails where there is none that can be used, as each prompt would. */
nib_status nib__chat_check(nib_model *model, nib_err *err);
/* The template that renders these options; *own, to be closed, if it is that of the options. */
nib_status nib__chat_template(const nib_template **out, nib_template **own, nib_model *model,
                              const nib_chat_options *options, nib_err *err);
/* Fills an output that is empty. */
nib_status nib__chat_render(nib_model *model, const nib_chat_options *options,
                            nib_template_output *out, nib_err *err);
/* As nib_chat_encode, within the limits of an encoding. */
nib_status nib__chat_encode(nib_model *model, const nib_chat_options *options,
                            const nib_encoding *limits, int32_t **ids, size_t *count, nib_err *err);
/* Settings for what the prompt is the same without: messages that the template leaves out, and
 * names of messages, of each role the first one; and variables that it does not read. */
nib_status nib__chat_settings(nib_ledger *ledger, nib_model *model, const nib_chat_options *options,
                              nib_asker by, nib_err *err);
/* Opens the tokenizer when first asked for. */
nib_status nib__model_tokenizer(nib_model *model, const nib_tokenizer **out, nib_err *err);
/* The options, then what generation_config.json says, then llama.cpp's defaults. */
nib_sampling nib__model_sampling(const nib_model *model, const nib_generate_options *options);
/* Settings for what these options ask of drawing, and has no effect at temperature 0. */
void nib__tell_sampling(nib_ledger *ledger, const nib_model *model,
                        const nib_generate_options *options, nib_asker by);
/* A setting for more new tokens than the context has behind a prompt of so many. */
void nib__tell_max_tokens(nib_ledger *ledger, const char *name, int64_t most, int64_t prompt,
                          int64_t context, nib_asker by);
/* *out: the new tokens that may follow a prompt, INT64_MAX without a limit; asked as in
 * nib_generate_options. NIB_BAD_INPUT: the prompt leaves none of the file's max_length. */
nib_status nib__model_max_tokens(int64_t *out, const nib_model *model, int64_t asked,
                                 int64_t prompt_count, nib_err *err);
/* The tokens that end a text, by the model's files, or the tokenizer that was opened; how many. */
int nib__model_ends(const nib_model *model, int32_t ids[NIB_EOS_MAX]);

/* Fills p->machine by the request, and the devices that --place may name; of "auto" the CPU. */
nib_status nib__choose_machine(nib_plan *p, nib_err *err);
/* Opens the model's packed weights if the plan is of a run here; then, of a plan that is made, what
 * they give it. */
void nib__plan_open_packed(nib_plan *p);
void nib__plan_note_packed(nib_plan *p);
/* Writes what is to be kept in the directory that the model was opened with, and maps it. What
 * cannot be written is logged, and is an error of a strict request. */
nib_status nib__session_keep(nib_model *m, const nib_plan *p, nib_err *err);
/* DIR/HASH.END for `what` in the directory that the model was opened with; NULL: memory ran out */
const char *nib__kept_path(nib_model *m, nib_hash what, const char *end);
/* Logs what the load found otherwise: it looks at the bytes, the plan at names. */
void nib__session_say_packed(const nib_session *s);
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
/* A line where torchao's quantization_config says other schemes than the stored tensors have. */
nib_status nib__tell_stored_config(nib_model *model, nib_err *err);
/* The request's recipe against the model's layers, with the layers as the recipe sees them:
 * [net.site_count], in the arena. */
nib_status nib__model_recipe(nib_recipe **out, const nib_recipe_layer **layers,
                             const nib_model *model, const nib_request *request, nib_arena *arena,
                             nib_err *err);

/* What a recipe or a config asks (code, name, value, by whom), where an option says something else;
 * a value or option of NULL: it says nothing. */
void nib__tell_overruled(nib_ledger *ledger, const nib_ledger_setting *asked, const char *option,
                         const char *done);
/* Of a training config: what is asked that no plan of training can be; what its keys ask and is not
 * done so; notes on what its layers are trained for. */
nib_status nib__plan_check_training(nib_plan *p, nib_err *err);
void nib__plan_tell_training(nib_plan *p);
void nib__plan_note_training(nib_plan *p);
/* Logs the settings from number `first` on, as nib_plan_ledger_write renders them. */
void nib__log_settings(const nib_engine *engine, const nib_ledger *ledger, size_t first);

/* A note on how many biases have the asked form; asked NULL: none. others: why not all of them. */
void nib__note_biases(nib_ledger *ledger, const char *asked, const char *others);

/* Members of a plan's JSON into the open object of w. */
void nib__plan_json(const nib_plan *plan, nib_jsonw *w);
struct nib_quant_device;
/* Where the arithmetic of quantizing runs, if a device was asked: a line of the ledger, or the
 * error where that is not allowed. *out, which lies in the ledger's arena, stays NULL where the CPU
 * does it. */
nib_status nib__quantize_where(struct nib_quant_device **out, nib_ledger *ledger, nib_model *model,
                               const nib_quantize_options *options, nib_err *err);
/* The plan of the machine that will run the result, which must have an allowed way for each layer,
 * and its summary as a note; *out stays NULL where none was named. */
nib_status nib__quantize_for(nib_plan **out, nib_ledger *ledger, nib_model *model,
                             const nib_quantize_options *options, nib_err *err);

/* Runs the model as stored over a text and gives the least and the greatest input of every linear
 * layer: ranges[site][2], from {0, 0} on. */
nib_status nib__calibrate(float (*ranges)[2], nib_model *model, const nib_request *request,
                          const char *text_path, nib_err *err);

/* A prompt, and new tokens from an empty cache; seconds of all. */
nib_status nib__bench_prefill(nib_session *session, int64_t count, double *seconds, nib_err *err);
nib_status nib__bench_decode(nib_session *session, int64_t count, double *seconds, nib_err *err);
/* Positions `from` to `to` of a sequence, whose earlier ones stay; new tokens behind such. */
nib_status nib__bench_fill(nib_session *session, int32_t sequence, int64_t from, int64_t to,
                           nib_err *err);
nib_status nib__bench_decode_at(nib_session *session, int32_t sequence, int64_t from, int64_t count,
                                double *seconds, nib_err *err);
/* Each step has a token of each sequence; before them sequence j has nib__bench_batch_start(j)
 * positions. *logits: [sequences][vocab] of the last step. */
nib_status nib__bench_batch(nib_session *session, int64_t sequences, int64_t count,
                            const float **logits, double *seconds, nib_err *err);
int64_t nib__bench_batch_start(const nib_session *session, int64_t sequence, int64_t count);
/* What the options leave open, and whether the context holds it. */
nib_status nib__bench_complete(nib_bench_options *options, const nib_session *session,
                               nib_err *err);
/* Is the row one of a product that runs here on the shape of `bench --kernels`? */
bool nib__bench_takes(const nib_engine *engine, const nib_kernel *row);
/* The speeds of nib_bench, without measuring the machine. */
nib_status nib__bench_speeds(nib_session *session, const nib_bench_options *options,
                             nib_bench_speeds *speeds, nib_err *err);
/* Is no layer of the plan done in codes? */
bool nib__plan_is_floats(const nib_layers_plan *plan);
/* The floats that a session is compared with. */
typedef struct nib_bench_floats {
    nib_model *model; /* opened for it; NULL: the session's own */
    nib_plan *plan;
    nib_session *session; /* NULL: they cannot be had */
} nib_bench_floats;
/* The model at `path` as it is stored, on the session's device; NULL: the session's own model,
 * where `why` gets the reason if it cannot be had. */
nib_status nib__bench_floats_open(nib_bench_floats *out, const nib_session *of, const char *path,
                                  char *why, size_t size, nib_err *err);
void nib__bench_floats_close(nib_bench_floats *floats);

/* Loss of one window of ids, and the distance to another session on them. */
nib_status nib__eval_ids(nib_session *session, nib_session *against, const int32_t *ids,
                         int64_t count, nib_eval_result *result, nib_err *err);

#endif
