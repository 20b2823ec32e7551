/* SPDX-License-Identifier: Apache-2.0
 *
 * The model handle behind nibble.h: an opened checkpoint, its network, tokenizer and chat template,
 * and what follows from these alone.
 */
#ifndef NIB_MODEL_HANDLE_H
#define NIB_MODEL_HANDLE_H

#include "network.h"
#include "sample.h"
#include "template.h"

typedef struct nib_chat nib_chat;

struct nib_model {
    nib_holders holders; /* the application, plans and sessions */
    nib_engine *engine;
    nib_network net;
    nib_tokenizer *tokenizer;  /* NULL until needed */
    bool tables_asked;         /* its prebuilt tables were looked for */
    nib_chat *chat;            /* its template; NULL until needed */
    char *tokenizer_path;      /* as given; NULL: beside the weights */
    struct nib_packed *packed; /* NULL: none, or none that is valid */
    const char *packed_path;   /* where the file is, or where a session must write it; NULL: nowhere
                                  */
    bool packed_asked;
    bool packed_due;       /* a session must write it */
    const char *cache_dir; /* as given; NULL: none */
    const char *tables;    /* where a session must write the tokenizer's tables; NULL: nowhere */
    int32_t ends[NIB_EOS_MAX]; /* of nib_model_facts */
};

/* Opens the model of another handle once more, with its weights in the order that the other
 * container has (head_order.h). */
nib_status nib__model_reordered(nib_model **out, const nib_model *like, nib_err *err);
/* gguf_order.c: the model with its weights in the order that a GGUF has, or other formats: *own is
 * to be used in its place, and closed; NULL: the model has that order. */
nib_status nib__model_ordered(nib_model **own, const nib_model *model, bool in_gguf, nib_err *err);
/* Replaces the source of a checkpoint by one in the checkpoint's order, if they differ. */
nib_status nib__source_order(nib_model **source, const nib_model *model, nib_err *err);
/* Keeps the model until nib_model_close is called once more. */
void nib__model_hold(nib_model *model);

/* NIB_USAGE for a model opened only for inspection or conversion. */
nib_status nib__model_runs(const nib_model *model, nib_err *err);
/* Returns `status`, or NIB_IO naming a mapped file of the model (weights, packed weights, tokenizer
 * tables) that another process changed. Call it before reporting a result computed from them. */
nib_status nib__model_check_files(nib_model *model, nib_status status, nib_err *err);
/* The file that a tokenizer path means: the path itself, or in a directory tokenizer.json, or the
 * tokenizer.gguf that converting a GGUF leaves there. It need not exist. */
nib_status nib__tokenizer_file(const char **out, const char *at, nib_arena *arena, nib_err *err);
/* Adds settings for what the tokenizer's files ask and Nibble does not do. */
void nib__model_say_tokenizer(const nib_model *model, nib_ledger *ledger);
/* Opens the tokenizer from the tables beside it, once. If the tables cannot be used, a note says
 * why, and nib_model_tokenizer opens it without them. */
void nib__model_tables(nib_model *model);
void nib__chat_close(nib_chat *chat);
/* Opens the model's chat template; fails if it has none that can be used. */
nib_status nib__chat_check(nib_model *model, nib_err *err);
/* The template for these options. *own is the template of the options, if any; the caller closes
 * it. */
nib_status nib__chat_template(const nib_template **out, nib_template **own, nib_model *model,
                              const nib_chat_options *options, nib_err *err);
/* `out` must be empty. */
nib_status nib__chat_render(nib_model *model, const nib_chat_options *options,
                            nib_template_output *out, nib_err *err);
/* Like nib_chat_encode, within the limits of an encoding. */
nib_status nib__chat_encode(nib_model *model, const nib_chat_options *options,
                            const nib_encoding *limits, int32_t **ids, size_t *count, nib_err *err);
/* Adds settings for what does not change the prompt: messages that the template leaves out and
 * names of messages, the first of each role; and variables that the template does not read. */
nib_status nib__chat_settings(nib_ledger *ledger, nib_model *model, const nib_chat_options *options,
                              nib_asker by, nib_err *err);
/* Whether there is a tokenizer to open, sound or not. */
nib_status nib__model_has_tokenizer(bool *out, const nib_model *model, nib_err *err);
/* The model's GGUF and its path; NULL, with *path unchanged, if it has none or a tokenizer was
 * named instead. */
const nib_gguf *nib__model_gguf(const nib_model *model, const char **path);
/* The model's chat template as text, whether it can be used or not; NULL: none. Fails only if its
 * files cannot be read, or memory runs out. */
nib_status nib__chat_text(const char **out, nib_model *model, nib_err *err);
/* What options ask of sampling: negative is not given, and what is turned off has its value for
 * that. */
nib_sampling nib__asked_sampling(const nib_generate_options *options);
/* Sampling parameters: those asked for, else generation_config.json, else llama.cpp's defaults. */
nib_sampling nib__model_sampling(const nib_model *model, const nib_sampling *asked);
/* Adds settings for sampling options without effect at temperature 0. */
void nib__report_sampling(nib_ledger *ledger, const nib_model *model, const nib_sampling *asked,
                          nib_asker by);
/* Adds a setting if the context has no room for `most` new tokens after the prompt. */
void nib__report_max_tokens(nib_ledger *ledger, const char *name, int64_t most, int64_t prompt,
                            int64_t context, nib_asker by);
/* *out: most new tokens after a prompt, INT64_MAX without a limit; `asked` as in
 * nib_generate_options. NIB_BAD_INPUT: the prompt uses up the file's max_length. */
nib_status nib__model_max_tokens(int64_t *out, const nib_model *model, int64_t asked,
                                 int64_t prompt_count, nib_err *err);
/* The tokens that end a text, from the model's files, else from its open tokenizer; returns their
 * number. */
int nib__model_ends(const nib_model *model, int32_t ids[NIB_EOS_MAX]);

/* The path DIR/HASH.END of `what` in the model's cache directory; NULL: out of memory. */
const char *nib__kept_path(nib_model *m, nib_hash what, const char *end);
/* Adds a setting if torchao's quantization_config differs from the stored tensors. */
nib_status nib__report_stored_config(nib_model *model, nib_err *err);
/* Loads the request's recipe for the model's layers; *layers [net.site_count] in the arena are the
 * layers as recipes see them. */
nib_status nib__model_recipe(nib_recipe **out, const nib_recipe_layer **layers,
                             const nib_model *model, const nib_request *request, nib_arena *arena,
                             nib_err *err);

/* Logs the settings from index `first` on, formatted as by nib_plan_ledger_write. */
void nib__log_settings(const nib_engine *engine, const nib_ledger *ledger, size_t first);

#endif
