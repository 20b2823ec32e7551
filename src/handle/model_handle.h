/* SPDX-License-Identifier: Apache-2.0
 *
 * The model handle behind nibble.h: an opened checkpoint, its network, its tokenizer and its chat
 * template, with what follows from these alone.
 */
#ifndef NIB_MODEL_HANDLE_H
#define NIB_MODEL_HANDLE_H

#include "network.h"
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

/* DIR/HASH.END for `what` in the directory that the model was opened with; NULL: memory ran out */
const char *nib__kept_path(nib_model *m, nib_hash what, const char *end);
/* A line where torchao's quantization_config says other schemes than the stored tensors have. */
nib_status nib__tell_stored_config(nib_model *model, nib_err *err);
/* The request's recipe against the model's layers, with the layers as the recipe sees them:
 * [net.site_count], in the arena. */
nib_status nib__model_recipe(nib_recipe **out, const nib_recipe_layer **layers,
                             const nib_model *model, const nib_request *request, nib_arena *arena,
                             nib_err *err);

/* Logs the settings from number `first` on, as nib_plan_ledger_write renders them. */
void nib__log_settings(const nib_engine *engine, const nib_ledger *ledger, size_t first);

#endif
