/* SPDX-License-Identifier: Apache-2.0
 *
 * The `nibble` program, which includes only nibble.h of the library. One option table drives
 * parsing, --help, manual pages and completions. Results go to stdout, everything else to stderr;
 * progress bars only to a terminal.
 */
#ifndef NIB_CLI_H
#define NIB_CLI_H

#include "nibble_tools.h"

#include <stdio.h>

typedef struct list {
    const char **items;
    size_t count, capacity;
} list;

/* Every option of every command. */
typedef struct settings {
    list arguments; /* MODEL, OUT, ... */
    const char *model, *recipe, *device, *dtype, *engine, *layer, *bias, *format, *method,
        *calibrate, *imatrix, *budget, *rules, *against, *from, *save_logits, *logits_format, *out,
        *value, *prompt, *prompt_file, *text, *tokenizer, *isa, *svg, *speed, *for_device, *sweep,
        *peer, *peer_model, *cache_type, *cache_dir, *host, *key_file, *name, *chat_template,
        *schema, *sandbox, *state_cache, *draft, *draft_recipe, *sign_key, *signers, *signer,
        *scratch;
    unsigned long long seed, memory;
    unsigned long long body_limit;
    list skip, only, allow, kernel, place, without, stop, origins;
    list overrides; /* "section.key=value" of a training config; each string is allocated */
    long long threads, context, max_tokens, top_k, window, prompt_tokens, repeats, smooth, ranks,
        lookup, snapshots, logprobs, batch, port, parallel, queue, connections;
    double temperature, top_p, min_p, repeat_penalty, loss_budget, time_limit;
    bool caches, json, markdown, quiet, no_color, strict, force, dry_run, pack, ignore_eos, kernels,
        predict, by_layer, operations, measure, train, keys, alone, clear, insecure, share_prefixes,
        draft_head, help;
} settings;

typedef struct command {
    const char *name, *arguments, *summary, *description;
    const char *examples; /* command lines */
    int least, most;      /* number of arguments */
    int (*run)(const settings *s);
} command;

enum { COMMANDS_MAX = 32 };
extern const command commands[];
extern const size_t command_count;

/* ---- cli_options.c ---- */

/* Reads a size, such as 6GB or 8GiB. Returns false if the text is not a size. */
bool parse_bytes(unsigned long long *out, const char *value);
/* Parses argv[0..argc) for a command. Returns 0, or prints an error and returns the exit status. */
int parse_options(settings *out, const command *c, int argc, char **argv);
void free_settings(settings *s);

typedef struct option_given {
    const char *name;
    bool is_given;
} option_given;
/* strtod without hexadecimal, which is most likely a typing error. False: not a number. */
bool parse_number(double *out, const char *value, char **end);
/* The first given option; NULL if none was given. */
const char *first_given(const option_given *options, size_t count);
/* The first given option that has an effect only with a MODEL; NULL if there is none. */
const char *first_model_option(const settings *s);
void print_help(FILE *to, const command *c); /* c NULL: help of the program */
int print_manual(const char *name);          /* troff of nibble(1) or nibble-NAME(1) */
int print_markdown(void);                    /* docs/commands.md */
int print_completion(const char *shell);
/* "; did you mean PREFIXname?" with the name most similar to `wrong`, or an empty string. */
const char *did_you_mean(char out[128], const char *wrong, const char *prefix,
                         const char *const *names, size_t count);

/* ---- terminal.c ---- */

/* Prints "nibble: error" to stderr and returns the error's exit status. */
int fail(const nib_err *err);
int fail_usage(const char *format, ...) NIB_PRINTF(1, 2);
nib_sink stdout_sink(void);
nib_sink report_sink(const settings *s); /* stdout, coloured if the terminal and settings allow */
nib_sink stderr_sink(void);
void open_standard_files(void); /* opens closed standard streams; call before opening any file */
/* Flushes stdout. Returns `status`, or 6 if it is 0 and stdout could not be written. */
int finish_stdout(int status);
void watch_interrupts(void);
bool consume_interrupt(void); /* whether Ctrl-C was pressed; clears it, so that work can continue */
void watch_files(void);       /* reports an error if another process truncates a mapped file */
int help_width(FILE *to);     /* columns to wrap at */
nib_callbacks terminal_callbacks(const settings *s); /* progress bar, log, Ctrl-C */
void clear_progress(void);

/* ---- cli_ranks.c ---- */

/* *out is NULL if this process is the whole run. Drops stdout of all ranks but the first. Returns
 * 0, or prints an error and returns the exit status. */
int join_ranks(nib_ranks **out, const settings *s);
/* Returns the exit status of the run and prints its error once. If the other ranks cannot be
 * notified, terminates them. */
int leave_ranks(nib_ranks *ranks, nib_status status, const nib_err *err);

/* ---- shared by commands ---- */

/* Returns 0, or prints an error and returns the exit status. */
int open_engine(nib_engine **out, const settings *s);
/* Opens the engine and the model named by -m or the first argument, calls `use` and closes both.
 * The tokenizer comes from the settings, not from `options`. `usage` is the error if no model is
 * named. */
int with_model(const settings *s, const char *usage, nib_model_options options,
               int (*use)(nib_model *model, nib_engine *engine, const settings *s));
int open_model(nib_model **out, nib_engine *engine, const settings *s, const char *path,
               nib_model_options options);
/* As open_engine, but leaves the error to the caller. ranks NULL: one process. */
nib_status start_engine(nib_engine **out, const settings *s, const nib_ranks *ranks, nib_err *err);
nib_model_options model_options_of(const settings *s, nib_model_options options);
nib_request request_of(const settings *s);
/* An option that is negative if it was not given, as the library takes it: 0 is its default. */
double or_default(double value);
nib_generate_options generate_options_of(const settings *s, const char *prompt);
nib_form form_of(const settings *s);
const char *model_path(const settings *s); /* -m, or the first argument */

/* A model with its plan and session. */
typedef struct run_context {
    nib_model *model, *draft; /* draft: of --draft, or NULL */
    nib_plan *plan;
    nib_session *session;
} run_context;

/* Returns 0, or prints an error, closes everything and returns the exit status. */
int open_run(run_context *out, nib_engine *engine, const settings *s, const char *path,
             const nib_request *request);
void close_run(run_context *r);
/* Reads a whole file, or stdin for "-", into an allocated string. Returns 0, or prints an error
 * that calls the file `what` and returns the exit status. */
int read_file(char **out, const char *path, const char *what);
/* After a file was made or renamed: its name survives a power cut. */
void sync_parent(const char *path);
void print_json_string(FILE *to, const char *text, size_t size); /* in quotes */
/* Prints a member after others; JSON has no infinities and no NaN: null. */
void print_json_number(const char *key, double value);
const char *finish_word(nib_finish finish); /* "stop", "length", "cancelled", "context" */
/* Opens the draft model of --draft, or the draft head of the model at `path`, as the request's.
 * Returns 0, or prints an error and returns the exit status. */
int open_draft(nib_model **out, nib_engine *engine, const settings *s, const char *path,
               nib_request *request);
/* Prints counts of drafts, and which device kernel sampled the tokens, to stderr. */
void print_sampling_stats(const nib_generate_stats *stats);
/* If the model has several chat templates, prints which one is not used. */
void print_chat_note(const run_context *r, const settings *s);
/* Prints the ledger's summary of what ran, to stderr. */
int print_summary(const run_context *r, const settings *s);
/* Prints the settings of the plan that are not done as asked, to stderr. Call before running. */
int print_settings(const nib_plan *plan, const settings *s);
/* Appends the ledger's members to an open JSON object on stdout. */
int print_ledger_members(const nib_plan *plan);

/* ---- cmd_bench.c ---- */

/* Marks the start of the process, from which `nibble bench` counts the time to the first token.
 * Call first in main. */
void record_start(void);

int run_info(const settings *s);
int run_verify(const settings *s);
int run_sign(const settings *s);
int run_devices(const settings *s);
int run_kernels(const settings *s);
int run_recipes(const settings *s);
int run_formats(const settings *s);
int run_models(const settings *s);
int run_explain(const settings *s);
int write_training_keys(const settings *s); /* nibble train --keys */
int run_plan(const settings *s);
int run_advise(const settings *s);
int run_quantize(const settings *s);
int run_convert(const settings *s);
int run_imatrix(const settings *s);
int run_generate(const settings *s);
int run_chat(const settings *s);
int run_serve(const settings *s);
int run_eval(const settings *s);
int run_bench(const settings *s);
int run_tune(const settings *s);
int run_train(const settings *s);
int run_plot(const settings *s);
int run_manual(const settings *s);
int run_completion(const settings *s);

#endif
