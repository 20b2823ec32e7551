/* SPDX-License-Identifier: Apache-2.0
 *
 * The program: it sees nibble.h only. One table of options gives parsing, --help, manual pages and
 * completions. Results go to stdout, everything else to stderr; progress bars only to a terminal.
 */
#ifndef NIB_CLI_H
#define NIB_CLI_H

#include "nibble.h"

#include <stdio.h>

typedef struct list {
    const char **items;
    size_t count, capacity;
} list;

/* Every option of every command. */
typedef struct settings {
    list arguments; /* MODEL, OUT, ... */
    const char *model, *recipe, *device, *dtype, *engine, *layer, *bias, *format, *method,
        *calibrate, *against, *out, *value, *prompt, *prompt_file, *text, *tokenizer, *isa, *svg,
        *speed, *for_device, *sweep, *peer, *peer_model, *cache_type, *cache_dir, *host, *key_file,
        *name, *chat_template, *schema;
    unsigned long long seed, memory;
    unsigned long long body_limit;
    list skip, only, allow, kernel, place, without, stop, origins;
    list overrides; /* "section.key=value" of a training config, each allocated */
    long long threads, context, max_tokens, top_k, window, prompt_tokens, repeats, smooth, ranks,
        lookup, logprobs, batch, port, parallel, queue, connections;
    double temperature, top_p, min_p, repeat_penalty, loss_budget, time_limit;
    bool json, markdown, quiet, no_color, strict, force, dry_run, pack, ignore_eos, kernels,
        predict, operations, measure, train, keys, alone, clear, insecure, share_prefixes, help;
} settings;

typedef struct command {
    const char *name, *arguments, *summary, *description;
    const char *examples; /* command lines */
    int least, most;      /* arguments */
    int (*run)(const settings *s);
} command;

enum { COMMANDS_MAX = 32 };
extern const command commands[];
extern const size_t command_count;

/* ---- cli_options.c ---- */

/* Parses argv[0..argc) for a command. 0, or the exit status after the sentence was printed. */
int parse_options(settings *out, const command *c, int argc, char **argv);
void free_settings(settings *s);
/* An option, and whether it was given. */
typedef struct option_given {
    const char *name;
    bool is_given;
} option_given;
/* The first that was given; NULL: none. */
const char *first_given(const option_given *options, size_t count);
/* A given option that only means something for a MODEL; NULL: none. */
const char *option_of_models(const settings *s);
void print_help(FILE *to, const command *c); /* NULL: of the program */
int print_manual(const char *name);          /* troff of nibble(1) or nibble-NAME(1) */
int print_markdown(void);                    /* docs/commands.md */
int print_completion(const char *shell);
/* "; did you mean PREFIXname?" of the name nearest to a wrong one, or an empty string. */
const char *nearest(char out[128], const char *wrong, const char *prefix, const char *const *names,
                    size_t count);

/* ---- terminal.c ---- */

/* "nibble: sentence" on stderr; the exit status that belongs to it. */
int fail(const nib_err *err);
int fail_usage(const char *format, ...) NIB_PRINTF(1, 2);
nib_sink stdout_sink(void);
nib_sink report_sink(const settings *s); /* stdout, with colour where that is wanted */
nib_sink stderr_sink(void);
void open_standard_files(void); /* before any other file: those that are closed */
/* 0, or 6 when stdout could not be written. */
int finish_stdout(int status);
void watch_interrupts(void);
bool take_interrupt(void); /* was there one? What is asked next may go on */
void watch_files(void);    /* that another process cuts short */
int help_width(FILE *to);  /* columns to wrap at */
nib_callbacks terminal_callbacks(const settings *s); /* progress bar, log, Ctrl-C */
void clear_progress(void);

/* ---- cli_ranks.c ---- */

/* *out NULL: this process is the whole run. What ranks but the first would print is dropped. 0, or
 * the exit status after the sentence was printed. */
int join_ranks(nib_ranks **out, const settings *s);
/* The exit status of how the run ended, after the sentence was printed once; ends the other ranks
 * where they cannot be told. */
int leave_ranks(nib_ranks *ranks, nib_status status, const nib_err *err);

/* ---- shared by commands ---- */

/* Engine and model as the settings say; the sentence is printed on failure. */
int open_engine(nib_engine **out, const settings *s);
/* Opens the engine and the model of the first argument, or of -m, hands the model to `use` and
 * closes both. The settings, not the options, name the tokenizer. `wants` ends the sentence of
 * a missing argument. */
int with_model(const settings *s, const char *wants, nib_model_options options,
               int (*use)(nib_model *model, nib_engine *engine, const settings *s));
int open_model(nib_model **out, nib_engine *engine, const settings *s, const char *path,
               nib_model_options options);
/* The same, where the caller says what failed. ranks NULL: one process. */
nib_status start_engine(nib_engine **out, const settings *s, const nib_ranks *ranks, nib_err *err);
nib_model_options model_options_of(const settings *s, nib_model_options options);
nib_request request_of(const settings *s);
nib_generate_options generate_options_of(const settings *s, const char *prompt);
nib_form form_of(const settings *s);
const char *model_path(const settings *s); /* -m, or the first argument */

/* A model ready to run. */
typedef struct ready {
    nib_model *model;
    nib_plan *plan;
    nib_session *session;
} ready;

/* 0, or the exit status after the sentence was printed; nothing is open then. */
int open_ready(ready *out, nib_engine *engine, const settings *s, const char *path,
               const nib_request *request);
void close_ready(ready *r);
/* The whole of a file, "-" being stdin, allocated. 0, or the exit status after the sentence was
 * printed, which calls it `what`. */
int read_file(char **out, const char *path, const char *what);
void print_json_string(FILE *to, const char *text, size_t size); /* in quotes */
const char *finish_word(nib_finish finish); /* "stop", "length", "cancelled", "context" */
/* What was drafted, and what on a device drew the tokens, if anything was; to stderr. */
void print_drawing(const nib_generate_stats *stats);
/* Which of a model's chat templates is not taken, where there are several. */
void say_chat_note(const ready *r, const settings *s);
/* The ledger's line of what ran. */
int summarize(const ready *r, const settings *s);
/* Before anything runs: the settings of the plan that are not done as asked, on stderr. */
int say_settings(const nib_plan *plan, const settings *s);
/* The ledger's members behind those that stand in an object of JSON on stdout already. */
int print_ledger_members(const nib_plan *plan);

/* ---- cmd_bench.c ---- */

/* First of all in a process: where `nibble bench` counts the time to the first token from. */
void note_start(void);

int run_info(const settings *s);
int run_verify(const settings *s);
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
