/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble.h - engine, model, plan, session and generation: what an application needs to run a model.
 * nibble_tools.h has the rest.
 *
 * The library quantizes, checks, plans, runs and trains low-bit language models, and reports for
 * every layer what was asked and what is done. It never prints, exits, reads the environment or
 * keeps globals.
 *
 * Conventions. A call that can fail returns nib_status, returns its result in *out, the first
 * argument (unchanged on failure), and takes `nib_err *err` last (NULL allowed). No other pointer
 * may be NULL, except options, arrays of 0 items, and where a comment says so: a call with NULL is
 * NIB_USAGE or, if it returns no status, does nothing and returns 0 or NULL. Strings are UTF-8
 * (paths as the system has them), end with a zero, and belong to the caller unless a comment says
 * otherwise. n = outputs, k = inputs, m = tokens. Arrays are row-major; shapes are in brackets.
 *
 * Handles. What an _open or _make call returns is closed exactly once, by the matching _close or
 * _free, which accept NULL; after that the handle must not be used. The order does not matter: an
 * object keeps what it was made from, so a session still runs when its model and engine have been
 * closed, and their memory is released with the last object. What a call returns from inside an
 * object (a string, an array, a plan) lives until the object is closed.
 *
 * Options. 0 is the default of every member, so a struct that is zeroed, or initialized with the
 * few members that matter, asks for the defaults in the rest, and so does NULL for the whole
 * struct. The first member, `size`, is sizeof the struct or 0, which means its size in version 1.
 * With it, structs may grow: members that an application does not know have their default, and
 * members that the library does not know are NIB_UNSUPPORTED if they are set. `reserved` stays 0.
 * The library copies options; what they point to is read during the call only, unless a comment
 * says otherwise.
 *     nib_generate_options o = {.size = sizeof o, .prompt = "Once", .max_tokens = 8};
 * Results are structs of the same kind: set `size`, or zero them; the library fills in as many
 * members as fit. Structs without a size never change. A bool is one byte, 0 or 1. The values of an
 * enum never change, but later versions may return new ones. An option that is not a value of its
 * enum, a count that is negative where no comment gives that a meaning, and NaN are NIB_USAGE.
 *
 * Threads. An engine and everything opened with it may be used by one thread at a time, unless a
 * comment says otherwise; several engines may be used at once. A child process that was forked
 * (while no call ran) has no worker threads: there, calls that run or measure something with an
 * engine of its parent are NIB_USAGE. It may read what is open, close it, and open an engine of its
 * own.
 *
 * Callbacks are called on the thread that called the library, unless a comment says otherwise. They
 * must return: an exception or longjmp through the library loses memory, and a session that was
 * running can then only be closed (calls that would run it are NIB_USAGE). They may call only
 * functions whose objects are const, and nib_tokens_free; above all, they must not close what the
 * call uses. To end a call, return false from progress or a status from a sink.
 *
 * Every call may return NIB_NO_MEMORY; a call that reads a file, NIB_IO and NIB_BAD_INPUT; one that
 * reports progress, NIB_CANCELLED; one with a sink, the sink's status. Other statuses are listed at
 * the call.
 */
#ifndef NIBBLE_H
#define NIBBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_VERSION "0.1.0"

#define NIB_VERSION_NUMBER 100 /* major * 10000 + minor * 100 + patch */

/* NIB_API: exported from the shared library. NIB_CHECKED: the same, and the compiler warns if the
 * status is ignored. */
#if defined(__GNUC__)
#define NIB_API __attribute__((visibility("default")))
#define NIB_MUST_CHECK __attribute__((warn_unused_result))
#define NIB_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define NIB_API
#define NIB_MUST_CHECK
#define NIB_PRINTF(f, a)
#endif
#define NIB_CHECKED NIB_API NIB_MUST_CHECK

/* ---- status and error ------------------------------------------------------------------------ */

typedef enum nib_status {
    NIB_OK = 0,
    NIB_FAILED = 1,       /* the operation failed */
    NIB_USAGE = 2,        /* an option or argument is wrong */
    NIB_BAD_INPUT = 3,    /* a file or value breaks its format */
    NIB_UNSUPPORTED = 4,  /* the input is valid but not supported */
    NIB_NOT_AS_ASKED = 5, /* what was asked cannot be done, and nothing allowed a substitute */
    NIB_NO_MEMORY = 6,    /* out of memory, or a limit was reached */
    NIB_IO = 7,           /* a file could not be read or written */
    NIB_EXISTS = 8,       /* the output exists */
    NIB_CHECK_FAILED = 9, /* a check failed */
    NIB_CANCELLED = 10    /* a callback cancelled */
} nib_status;

/* An error: status and a message with place, value, limit and remedy. Filled in on failure only.
 * The message is UTF-8, but for names of files and options that are not. */
typedef struct nib_err {
    nib_status status;
    char text[1024];
} nib_err;

/* May be called by any thread. The strings are constants of the library. */
NIB_API const char *nib_status_name(nib_status status); /* "BAD_INPUT"; else "UNKNOWN" */
NIB_API const char *nib_status_text(nib_status status); /* "a file or value breaks its format" */
NIB_API const char *nib_version(void); /* of the library; NIB_VERSION is that of the header */
NIB_API int nib_version_number(void);  /* to compare with NIB_VERSION_NUMBER */
/* The exit status of the program `nibble` for this status. */
NIB_API int nib_status_exit(nib_status status);

/* Zeroes a struct of options or results and sets its size, for languages without initializers:
 * nib_init(&o, sizeof o). */
NIB_API void nib_init(void *options, size_t size);

/* ---- callbacks and common types -------------------------------------------------------------- */

/* Receives text, JSON or generated bytes: bytes [size], not ended by a zero. A status other than
 * NIB_OK stops the call, which returns it. */
typedef struct nib_sink {
    nib_status (*write)(void *ctx, const char *bytes, size_t size);
    void *ctx;
} nib_sink;

/* MARKDOWN is for tables (kernels, devices, recipes, timings); other reports write TEXT for it. */
typedef enum nib_form { NIB_FORM_TEXT = 0, NIB_FORM_JSON = 1, NIB_FORM_MARKDOWN = 2 } nib_form;

/* resize(ctx, NULL, n) allocates, resize(ctx, p, 0) frees and returns NULL, else reallocates.
 * Results are aligned to 16 bytes; NULL for a positive size means out of memory. Called by one
 * thread at a time, unless a service is open, or several threads use a tokenizer or render
 * chats. */
typedef struct nib_allocator {
    void *(*resize)(void *ctx, void *old, size_t size);
    void *ctx;
} nib_allocator;

/* All optional. progress returns false to cancel; `what` names the stage, whose unit (bytes,
 * layers, tokens) done and total count; total 0: unknown. log gets a line without its end. Strings
 * live until the callback returns. Called until the last object of the engine is closed. */
typedef struct nib_callbacks {
    bool (*progress)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void (*log)(void *ctx, const char *line);
    void *ctx;
} nib_callbacks;

typedef struct nib_strings {
    const char *const *items; /* [count]; NULL if there are none */
    size_t count;
} nib_strings;

/* ---- engine: threads, instruction set, memory ------------------------------------------------ */

typedef struct nib_engine nib_engine;

/* AUTO: as much as this system has; ON: all of it, else NIB_NOT_AS_ASKED. */
typedef enum nib_sandbox {
    NIB_SANDBOX_OFF = 0,
    NIB_SANDBOX_AUTO = 1,
    NIB_SANDBOX_ON = 2
} nib_sandbox;

typedef struct nib_engine_options {
    size_t size;
    int threads;     /* 0: as many as this process may run on */
    const char *isa; /* highest instruction set to use: "ref", "avx2", "avx512", "avx512vnni",
                        "avx512bf16", "neon", "dotprod", "i8mm"; NULL: the best available */
    const nib_allocator *allocator; /* NULL: malloc; its ctx must live as long as the callbacks' */
    nib_callbacks callbacks;
    const char *cache_path; /* file of this machine's measurements, read and written; NULL: none */
    /* If several processes share the cores of a machine, this one uses slice `slice` of `slices`,
     * counted from 0; slices 0 or 1: all cores. The thread that opens the engine moves to the
     * slice. With more slices than cores, `threads` 0 means one thread, and no thread is pinned or
     * spins. */
    int slice, slices;
    /* nib_service_open and nib_verify, once their files are open, restrict the whole process for
     * good: no thread can open a file, program or connection. The plan's notes and the report of
     * nib_verify say what is forbidden and what this system lacks. Not for a program that does
     * other work. */
    nib_sandbox sandbox;
    uint64_t reserved[4];
} nib_engine_options;

/* Starts the threads. options NULL: all defaults. NIB_USAGE: more threads than the limit of 1,024,
 * no such slice, or an unknown isa; NIB_NOT_AS_ASKED: this processor lacks the isa. */
NIB_CHECKED nib_status nib_engine_open(nib_engine **out, const nib_engine_options *options,
                                       nib_err *err);
NIB_API void nib_engine_close(nib_engine *engine);

/* ---- model: a checkpoint, its config and tokenizer ------------------------------------------- */

typedef struct nib_model nib_model;

typedef struct nib_model_options {
    size_t size;
    /* tokenizer.json, its directory or a GGUF, opened with the model unless inspect or convert is
     * set; NULL: the model's own, opened when needed */
    const char *tokenizer;
    bool config_only;      /* read only config.json, which is enough to plan */
    bool inspect;          /* only for nib_info_write and nib_verify, which report weights that do
                              not fit config.json, or a missing config.json, instead of failing */
    bool convert;          /* to convert or run: accepts an unknown architecture, with which only
                              nib_convert works */
    nib_strings overrides; /* of a training config: "section.key=value", or "section.key" for a
                              flag */
    /* A directory for packed weights and tokenizer tables, created if missing. A session writes
     * there what is not stored with the model, and later sessions map it. NULL: none */
    const char *cache_dir;
    /* 1: opens the draft head that the checkpoint stores beside its layers, alone, as the draft of
     * the model (nib_request.draft); NIB_UNSUPPORTED, NIB_BAD_INPUT: there is none. 0: the model */
    int64_t draft_head;
    uint64_t reserved[3];
} nib_model_options;

/* path: a Hugging Face directory, its config.json, a weights file (safetensors, GGUF, or a
 * torch.save file with its config.json or params.json next to it), or a training config, to plan
 * and to train. Weights stay mapped from the files until nib_model_close. All rules of the format
 * are checked before this returns. If another process writes to a mapped file, the call that reads
 * it returns NIB_IO; if the file is truncated, SIGBUS may be raised first, which the program must
 * handle (as src/cli/terminal.c does). options NULL: all defaults. NIB_UNSUPPORTED: an unknown
 * architecture, or an unknown key of config.json that would change the result. */
NIB_CHECKED nib_status nib_model_open(nib_model **out, nib_engine *engine, const char *path,
                                      const nib_model_options *options, nib_err *err);
NIB_API void nib_model_close(nib_model *model);

/* What a model is, known without a session. Strings and arrays belong to the model. */
typedef struct nib_model_facts {
    size_t size;
    /* The class in transformers, "LlamaForCausalLM"; of a GGUF general.architecture, "llama" */
    const char *architecture;
    int64_t context; /* positions that the model was made for */
    int64_t vocab;   /* logits per token */
    int64_t width;   /* values per hidden state */
    int64_t layers, heads, kv_heads, head_dim;
    const int32_t *ends; /* [end_count] tokens that end a text */
    size_t end_count;
    const char *chat_template; /* Jinja; NULL: none */
} nib_model_facts;
/* Opens the tokenizer and reads the chat template, if there are any; if they cannot be read, fails
 * as nib_model_tokenizer and nib_chat_open do. NIB_USAGE: the model was opened only to inspect, or
 * to convert an unknown architecture. */
NIB_CHECKED nib_status nib_model_facts_get(nib_model *model, nib_model_facts *out, nib_err *err);

/* ---- tokenizer ------------------------------------------------------------------------------- */

/* An open tokenizer never changes: any number of threads may use it at once, if the engine's
 * allocator allows it. */
typedef struct nib_tokenizer nib_tokenizer;

/* Opens a tokenizer without a model. path: a tokenizer.json, a directory that has one, or a GGUF.
 * Tables that `nibble quantize --pack` put beside a tokenizer.json are used; if they cannot be, the
 * log says why, and tokenizer.json is read. NIB_UNSUPPORTED: not BPE, or a component that is not
 * supported. */
NIB_CHECKED nib_status nib_tokenizer_open(nib_tokenizer **out, nib_engine *engine, const char *path,
                                          nib_err *err);
NIB_API void nib_tokenizer_close(nib_tokenizer *tokenizer);
/* The model's own, which belongs to the model and must not be closed. NIB_IO: it has none; other
 * errors as above; NIB_BAD_INPUT: it has ids that the model does not have; NIB_USAGE as
 * nib_model_facts_get. */
NIB_CHECKED nib_status nib_model_tokenizer(const nib_tokenizer **out, nib_model *model,
                                           nib_err *err);

typedef struct nib_tokenizer_facts {
    size_t size;
    int64_t vocab;    /* largest id + 1, added tokens included; some ids may have no token */
    int32_t bos, eos; /* -1: none */
    bool adds_bos;    /* NIB_TOKENIZE_ADD_SPECIAL puts BOS first */
} nib_tokenizer_facts;
NIB_API void nib_tokenizer_facts_get(const nib_tokenizer *tokenizer, nib_tokenizer_facts *out);

enum {
    /* Adds the special tokens that belong around a text, such as BOS. */
    NIB_TOKENIZE_ADD_SPECIAL = 1,
    /* Special tokens spelled in the text ("<s>") become those tokens. Not for text from a user. */
    NIB_TOKENIZE_PARSE_SPECIAL = 2
};
/* Token ids of `size` bytes of text: *ids [*count], released by nib_tokens_free. flags: 0 or
 * NIB_TOKENIZE_*. NIB_BAD_INPUT: not UTF-8 (err has the byte); NIB_USAGE: an unknown flag. */
NIB_CHECKED nib_status nib_tokenize(const nib_tokenizer *tokenizer, const char *text, size_t size,
                                    uint32_t flags, int32_t **ids, size_t *count, nib_err *err);
/* Releases ids that nib_tokenize or nib_chat_encode returned for objects of this engine, which must
 * still be open; ids NULL: nothing. May be called by any thread, if the engine's allocator allows
 * it. */
NIB_API void nib_tokens_free(nib_engine *engine, int32_t *ids);
/* Writes the text of ids [count] to the sink in one call, none if it is empty, with special tokens
 * spelled out. Invalid UTF-8 and ids without a token become U+FFFD. */
NIB_CHECKED nib_status nib_detokenize(const nib_tokenizer *tokenizer, const int32_t *ids,
                                      size_t count, const nib_sink *sink, nib_err *err);

/* ---- conversations --------------------------------------------------------------------------- */

/* A conversation and the inputs of its chat template. */
typedef struct nib_chat_options {
    size_t size;
    const char *messages; /* [messages_size] JSON array of {"role": ..., "content": ..., ...} */
    size_t messages_size;
    const char *tools; /* [tools_size] JSON array; NULL: none */
    size_t tools_size;
    /* [variables_size] JSON object: more variables of the template; NULL: none */
    const char *variables;
    size_t variables_size;
    const char *template_text; /* Jinja; NULL: the model's */
    bool no_generation_prompt; /* do not end the text with the start of an answer */
    int64_t now;               /* seconds since 1970, in the time zone that templates see */
    uint64_t reserved[4];
} nib_chat_options;

/* Opens the tokenizer and the model's chat template, if it has one: chat_template.jinja beside the
 * tokenizer, the GGUF's, or that of tokenizer_config.json. After this, until the model is closed,
 * nib_chat_encode and nib_chat_write may be called by any thread at any time, if the engine's
 * allocator allows it. They call it themselves if needed. */
NIB_CHECKED nib_status nib_chat_open(nib_model *model, nib_err *err);
/* A sentence that names the unused one of several different templates; NULL: there is only one, or
 * nib_chat_open was not called. */
NIB_API const char *nib_chat_note(const nib_model *model);
/* Token ids of a conversation: *ids [*count], released by nib_tokens_free. Text of messages, tools
 * and variables never becomes special tokens. NIB_UNSUPPORTED: the model has no template, or the
 * template uses an unsupported feature; NIB_BAD_INPUT: the template refuses the conversation (err
 * has its message) or fails (err has the line); NIB_NO_MEMORY: it exceeds the limit of time or
 * memory. */
NIB_CHECKED nib_status nib_chat_encode(nib_model *model, const nib_chat_options *options,
                                       int32_t **ids, size_t *count, nib_err *err);
/* The text of those ids. */
NIB_CHECKED nib_status nib_chat_write(nib_model *model, const nib_chat_options *options,
                                      const nib_sink *sink, nib_err *err);

/* ---- plan: what will run, why, and at what cost ---------------------------------------------- */

typedef struct nib_plan nib_plan;

/* A request to plan. */
typedef struct nib_request {
    size_t size;
    const char *recipe;     /* a recipe name, or the path of a recipe file; NULL: as stored */
    nib_strings skip, only; /* patterns of layers: do not quantize, or quantize only these */
    /* "cpu", "auto" (the fastest present device that the model fits), a name from `nibble devices`,
     * present or not, or the path of a machine's file, which has a slash or ends in .json; NULL:
     * this machine */
    const char *device;
    const char *dtype; /* activations: "f32", "f16", "bf16"; NULL: the stored type */
    /* KV cache: "f32", "f16", "bf16", "int8" or "int4", each also with "-hadamard"; or
     * "KEYS:VALUES" of these; NULL: as dtype */
    const char *cache;
    nib_strings allow;   /* [PATTERN=]RUNG: kernel, device, dequant, unquantized; with strict also
                            the code of a setting that may differ from what was asked */
    nib_strings kernel;  /* [PATTERN=]NAME: required kernels */
    nib_strings place;   /* [PATTERN=]DEVICE */
    nib_strings without; /* excluded kernels: names or patterns */
    bool strict;         /* any substitution is an error, and any setting that differs from what was
                            asked or has no effect */
    const char *engine;  /* explain with this peer's kernels; NULL: none */
    const char *layer;   /* only this layer, with every candidate; NULL: all */
    const char *bias;    /* of quantized layers: "float", "int8", "int32"; NULL: as stored */
    int64_t context;     /* tokens per sequence; 0: the smaller of the model's and 4,096 */
    int64_t sequences;   /* concurrent, each with its own KV cache; 0: 1. Only to predict memory and
                            speed: nib_session_open opens as many as it is told */
    uint64_t memory;     /* bytes of device memory that a run may use; 0: all */
    /* Generation: most tokens, up to 64, that prompt lookup drafts and checks in one step, without
     * changing the text. 0: 15 where steps of several tokens give the same bits (on the CPU), else
     * none; negative: none */
    int64_t lookup;
    int ranks;    /* training: number of ranks; 0: 1 */
    bool exports; /* training: nib_train_options.out will name a directory */
    /* The options of the nib_generate call to come, so that the ledger lists those without effect;
     * prompt and stop strings are not read. NULL: unknown. */
    const struct nib_generate_options *generation;
    /* Generation: a smaller model with the same token ids, of the same engine, that drafts tokens
     * for this one to check, without changing the text; or the model's own draft head, opened with
     * nib_model_options.draft_head. The plan keeps it; a session opens it, too. It runs on the CPU,
     * with a recipe of its own (NULL: as stored; a draft head: `recipe`, unless skip or only name
     * layers), and with cache, dtype, strict, without and the rungs of `allow` that have no
     * pattern. NULL: none. */
    nib_model *draft;
    const char *draft_recipe;
    /* Copies of the states of layers without keys, kept per sequence at earlier positions, from
     * which a prompt that begins like an earlier one continues. 0: 4; negative: none */
    int64_t snapshots;
    uint64_t reserved[13];
} nib_request;

/* Plans without running anything; request NULL: all defaults. Makes a plan even if a layer has no
 * allowed way to run: nib_plan_status then returns NIB_NOT_AS_ASKED. NIB_USAGE: an unknown recipe,
 * device, engine, layer or kernel, or a pattern without a match; err suggests similar names. */
NIB_CHECKED nib_status nib_plan_open(nib_plan **out, nib_model *model, const nib_request *request,
                                     nib_err *err);
NIB_API void nib_plan_close(nib_plan *plan);
/* The plan of the draft model, which belongs to `plan`; NULL: none runs. */
NIB_API const nib_plan *nib_plan_draft(const nib_plan *plan);
/* NIB_NOT_AS_ASKED: something in the plan has no allowed way to run (err has the reasons and the
 * option that would allow it), or a strict request met a setting that is not done as asked. */
NIB_CHECKED nib_status nib_plan_status(const nib_plan *plan, nib_err *err);
/* Every layer with its kernel, cost and reasons, then the ledger (docs/formats.md). */
NIB_CHECKED nib_status nib_plan_write(const nib_plan *plan, nib_form form, const nib_sink *sink,
                                      nib_err *err);
/* Only the ledger. JSON: an object with the members that every report has: layers, tensors,
 * settings, notes, counts (docs/formats.md). Text: a line per setting that is not done as asked. */
NIB_CHECKED nib_status nib_plan_ledger_write(const nib_plan *plan, nib_form form,
                                             const nib_sink *sink, nib_err *err);
/* The one-line summary that ends every run, after a line for each thing that the device refused
 * when the session was opened. */
NIB_CHECKED nib_status nib_plan_summary(const nib_plan *plan, const nib_sink *sink, nib_err *err);

/* ---- the plan as data ------------------------------------------------------------------------ */

/* Everything here belongs to the plan and lives as long. Indexes begin at 0. Numbers equal those of
 * nib_plan_write's JSON (docs/formats.md). */

/* Kinds of substitution, mildest first. */
typedef enum nib_rung {
    NIB_RUNG_NONE = 0,       /* as asked */
    NIB_RUNG_KERNEL = 1,     /* the reference kernel */
    NIB_RUNG_DEVICE = 2,     /* on the CPU */
    NIB_RUNG_DEQUANT = 3,    /* weights dequantized for a float kernel */
    NIB_RUNG_UNQUANTIZED = 4 /* not quantized */
} nib_rung;

typedef enum nib_verdict {
    NIB_VERDICT_RUNS = 0,
    NIB_VERDICT_COULD = 1, /* another is ranked higher */
    NIB_VERDICT_NO = 2
} nib_verdict;

/* How the result relates to the request. */
typedef enum nib_setting_relation {
    NIB_SETTING_EQUIVALENT = 0, /* another way to the same result */
    NIB_SETTING_NARROWER = 1,   /* done for a part of the request only */
    NIB_SETTING_OTHER = 2,      /* something else is done */
    NIB_SETTING_NONE = 3        /* without effect: nothing done serves its purpose */
} nib_setting_relation;

/* Where a setting came from. */
typedef enum nib_asker {
    NIB_BY_OPTION = 0,
    NIB_BY_RECIPE = 1,     /* a recipe file, or another tool's config */
    NIB_BY_CHECKPOINT = 2, /* stored tensors and their metadata */
    NIB_BY_CONFIG = 3,     /* config.json and similar files, a training config */
    NIB_BY_DEFAULT = 4,
    NIB_BY_REQUEST = 5 /* a member of a request to a service */
} nib_asker;

/* The names of their values: "kernel", "could", "without effect", "option". An unknown value:
 * "unknown". */
NIB_API const char *nib_rung_name(nib_rung rung);
NIB_API const char *nib_verdict_name(nib_verdict verdict);
NIB_API const char *nib_setting_relation_name(nib_setting_relation relation);
NIB_API const char *nib_asker_name(nib_asker asker);

/* A failed condition, or a note: a stable code, such as "n%128", and a sentence with the values.
 * nib_codes_write explains codes. */
typedef struct nib_reason {
    const char *code, *text;
} nib_reason;

typedef struct nib_plan_facts {
    size_t size;
    const char *recipe, *device, *dtype, *cache; /* recipe NULL: as stored */
    int64_t context, sequences;                  /* tokens per sequence; sequences */
    int64_t lookup;                              /* most drafted tokens per step */
    uint64_t weight_bytes, cache_bytes;
    /* Predicted seconds: of a token, of one with bf16 weights, of a prompt of 512 tokens; NaN:
     * unknown. */
    double token_s, bf16_token_s, prefill_s;
    size_t layers, settings, notes; /* numbers of entries, for nib_plan_layer_get and so on */
    size_t asked, done, substituted, denied; /* linear layers; asked is the sum of the others */
} nib_plan_facts;
NIB_API void nib_plan_facts_get(const nib_plan *plan, nib_plan_facts *out);

/* A weight, or an operation without weights (role "operation"). */
typedef struct nib_plan_layer {
    size_t size;
    const char *name, *role;
    const char *asked, *done; /* "8da4w-g32@cpu"; done NULL: denied */
    const char *rule;         /* what decided: "recipe", "--skip lm_head" */
    const char *allowed;      /* what allowed the substitution; NULL: nothing had to */
    nib_rung rung;
    bool denied; /* no allowed way to run it */
    bool bias;
    const char *bias_form; /* "float", "int8", "int32"; NULL: no bias, or unknown */
    int64_t n, k;
    uint64_t bytes;
    const nib_reason *reasons; /* [reason_count] why it is not done as asked */
    size_t reason_count;
    size_t uses, advice, candidates; /* numbers of entries, for nib_plan_use_get and so on */
} nib_plan_layer;

/* A kernel for a range of tokens. */
typedef struct nib_plan_use {
    size_t size;
    const char *phase;    /* "infer", "forward", "backward" */
    int64_t m_min, m_max; /* tokens; m_max 0: no limit */
    const char *kernel, *device;
    const char *quant;   /* the kernel that quantizes the input; NULL: none */
    double predicted_us; /* NaN: unknown */
    double tuned_us;     /* of the kernel alone, as `nibble tune` measured it; 0: not measured */
} nib_plan_use;

/* How to get what was asked; planned again with this one change. */
typedef struct nib_plan_advice {
    size_t size;
    const char *code;
    const char *option; /* "--recipe int8dq"; NULL: no option helps */
    const char *text;   /* what it gains */
} nib_plan_advice;

/* A kernel that was considered; only with nib_request.layer or engine. */
typedef struct nib_plan_candidate {
    size_t size;
    const char *kernel, *phase;
    const char *engine; /* "torchao 0.10"; NULL: Nibble */
    nib_verdict verdict;
    const nib_reason *reasons; /* [reason_count] every failed condition */
    size_t reason_count;
    const char *consequence; /* what that engine then does; NULL: nothing known */
    const char *source;      /* "commit:path"; NULL: none */
} nib_plan_candidate;

/* A request that is not done exactly as asked, other than a layer's scheme and device. */
typedef struct nib_plan_setting {
    size_t size;
    const char *code, *name;
    const char *asked, *done; /* NULL: no value; nothing */
    nib_asker by;
    nib_setting_relation relation;
    const char *text; /* why, and how to get what was asked */
    bool allowed;     /* by nib_request.allow */
} nib_plan_setting;

/* NIB_USAGE: no such entry. */
NIB_CHECKED nib_status nib_plan_layer_get(const nib_plan *plan, size_t layer, nib_plan_layer *out,
                                          nib_err *err);
NIB_CHECKED nib_status nib_plan_use_get(const nib_plan *plan, size_t layer, size_t use,
                                        nib_plan_use *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_advice_get(const nib_plan *plan, size_t layer, size_t advice,
                                           nib_plan_advice *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_candidate_get(const nib_plan *plan, size_t layer, size_t candidate,
                                              nib_plan_candidate *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_setting_get(const nib_plan *plan, size_t setting,
                                            nib_plan_setting *out, nib_err *err);
NIB_CHECKED nib_status nib_plan_note_get(const nib_plan *plan, size_t note, nib_reason *out,
                                         nib_err *err);

/* ---- run ------------------------------------------------------------------------------------- */

/* A generator, a chat session or a service has the session to itself until it is closed: until then
 * other calls that run the session or change its sequences are NIB_USAGE. */
typedef struct nib_session nib_session;

/* Packs the weights as planned and allocates the KV cache for `sequences` sequences (at least 1) of
 * the plan's context; all are empty. On a device it first allocates all memory and compiles every
 * kernel. If the device refuses something, it plans the same request again with another kernel or
 * an allowed rung, or fails with all reasons. NIB_NOT_AS_ASKED: a layer of the plan has no allowed
 * kernel, or the plan is for another machine; NIB_USAGE: the model was opened only to plan or to
 * inspect, or the plan is of another model. */
NIB_CHECKED nib_status nib_session_open(nib_session **out, nib_model *model, const nib_plan *plan,
                                        int sequences, nib_err *err);
/* The plan that runs: the given one, or its replacement, whose ledger says what the device refused.
 * Belongs to the session. */
NIB_API const nib_plan *nib_session_plan(const nib_session *session);
NIB_API void nib_session_close(nib_session *session);

enum {
    NIB_SLOT_LOGITS = 1, /* logits of the next token */
    NIB_SLOT_HIDDEN = 2  /* the hidden state, after the final norm */
};
/* One token of a ragged batch. */
typedef struct nib_slot {
    int32_t sequence; /* 0 <= sequence < sequences */
    int32_t position; /* the next position of its sequence, in order */
    int32_t token;
    uint32_t outputs; /* NIB_SLOT_*: what to compute for it, besides its keys and values */
} nib_slot;

/* Runs one forward step over slots [count]: any sequences, each with its next positions in order.
 * *logits: f32 [slots with NIB_SLOT_LOGITS][vocab], in slot order, valid until the next call that
 * runs the session; not set, and may be NULL, if no slot asks for logits. Their memory, and that of
 * hidden states, moves only if a call needs more rows of them than every earlier call. On failure
 * the sequences are unchanged, except that a sequence with more than 512 slots may be empty if the
 * model has attention windows. NIB_USAGE: no such sequence, a position that is not its next, or an
 * unknown output; NIB_BAD_INPUT: a token outside the vocabulary; NIB_NO_MEMORY: the context is
 * exceeded. */
NIB_CHECKED nib_status nib_session_step(nib_session *session, const nib_slot *slots, size_t count,
                                        const float **logits, nib_err *err);
/* Hidden states of the last step: f32 [slots with NIB_SLOT_HIDDEN][width], in slot order, valid
 * until the next step; NULL: no slot asked. The output layer multiplies these. */
NIB_API const float *nib_session_hidden(const nib_session *session);
/* Rolls a sequence back to `position`, which becomes its next one; a position after its end changes
 * nothing. NIB_USAGE: no such sequence, or layers with a window no longer hold the keys and values
 * before `position`, or layers without keys what they need. Rolling back 512 positions, or all,
 * always works; in a model with short convolutions 64, and with matrices (gated DeltaNet in
 * Qwen3-Next and Qwen3.5, Mamba-2 in Granite 4) the slots of the last step, at most 64. */
NIB_CHECKED nib_status nib_session_truncate(nib_session *session, int32_t sequence,
                                            int32_t position, nib_err *err);
/* Positions that a sequence holds, which is its next position; -1: no such sequence. */
NIB_API int32_t nib_session_length(const nib_session *session, int32_t sequence);
/* Logits per token. */
NIB_API int64_t nib_session_vocab(const nib_session *session);
/* For log-probabilities of tokens that the caller chose. logits [rows][vocab] are those of a step,
 * or any others. Of each row, sums [rows] gets log(sum(exp(row))), and likeliest [rows], which may
 * be NULL, the token with the largest logit, of equal ones the smallest. log p(token) is
 * (double)logits[row][token] - sums[row], the bits of nib_token_logprob and nib_eval. On failure
 * both arrays are unspecified. NIB_CHECK_FAILED: a row has no probabilities, because a logit is NaN
 * or positive infinity, or all are negative infinity (err names the row). */
NIB_CHECKED nib_status nib_session_log_sums(double *sums, int32_t *likeliest, nib_session *session,
                                            const float *logits, size_t rows, nib_err *err);

/* Writes the state of a sequence to the sink: its keys and values, and what they belong to
 * (docs/formats.md). NIB_USAGE: no such sequence. */
NIB_CHECKED nib_status nib_session_save(nib_session *session, int32_t sequence,
                                        const nib_sink *sink, nib_err *err);
/* Replaces the state of a sequence by `size` such bytes. Its next position is *length. Any bytes
 * are safe to load. On failure the sequence is unchanged, or empty if the device failed.
 * NIB_BAD_INPUT: not a whole state; NIB_UNSUPPORTED: a later format; NIB_NOT_AS_ASKED: of other
 * weights, or computed in other types or arithmetic than the session's (err names both);
 * NIB_NO_MEMORY: longer than the context. */
NIB_CHECKED nib_status nib_session_load(nib_session *session, int32_t sequence, const void *bytes,
                                        size_t size, int32_t *length, nib_err *err);

/* A token and the natural logarithm of its probability in the model's own distribution, before
 * temperature, filters and penalties. */
typedef struct nib_token_logprob {
    int32_t id;
    double logprob;
    const char *text; /* [text_size] bytes, then a zero: as it reads after other text; an incomplete
                         character is U+FFFD */
    size_t text_size;
} nib_token_logprob;

enum { NIB_LOGPROBS_MOST = 20 };

typedef struct nib_generate_options {
    size_t size;
    const char *prompt; /* special tokens spelled in it ("<s>") become those tokens; NULL: empty */
    const nib_chat_options
        *chat;          /* in place of a prompt: a conversation, whose answer the text is */
    int64_t max_tokens; /* new tokens; 0: max_new_tokens or max_length of generation_config.json,
                           otherwise until the context is full, as for a negative number */
    /* Sampling. 0: generation_config.json, otherwise the number in parentheses; negative: off. */
    double temperature;    /* (0.8), up to 100; off: greedy */
    int64_t top_k;         /* (40) */
    double top_p;          /* (0.95) */
    double min_p;          /* (0.05) */
    double repeat_penalty; /* (1.0), up to 100 */
    uint64_t seed;
    nib_strings stop;   /* text that ends generation and is not written */
    bool ignore_eos;    /* tokens that end a text are not ends; not with a schema */
    const char *schema; /* JSON schema of the text; NULL: none */
    /* 1 to NIB_LOGPROBS_MOST: on_logprobs is called with each new token, before its text is
     * written, and with this many of the most likely tokens at its position, likeliest [count]; 0:
     * on_logprobs must be NULL. */
    int64_t logprobs;
    void (*on_logprobs)(void *ctx, const nib_token_logprob *token,
                        const nib_token_logprob *likeliest, size_t count);
    void *on_logprobs_ctx;
    uint64_t reserved[16];
} nib_generate_options;

/* Draws tokens from logits as nib_generate does, for programs with a loop of their own. */
typedef struct nib_sampler nib_sampler;

/* Of the options, temperature, top_k, top_p, min_p, repeat_penalty and seed count; the others must
 * be 0 (NIB_USAGE), because a sampler could not follow them. */
NIB_CHECKED nib_status nib_sampler_open(nib_sampler **out, nib_session *session,
                                        const nib_generate_options *options, nib_err *err);
NIB_API void nib_sampler_close(nib_sampler *sampler);
/* *token: the one that nib_generate would draw from logits [vocab] after tokens [count], which
 * are the prompt and the tokens drawn so far; ids outside the vocabulary are ignored. The same
 * arguments give the same token. NIB_CHECK_FAILED: a logit is not a number (err names its
 * token). */
NIB_CHECKED nib_status nib_sampler_draw(nib_sampler *sampler, const float *logits,
                                        const int32_t *tokens, size_t count, int32_t *token,
                                        nib_err *err);

/* STOP: a stop string or an end-of-text token, or the schema's value is complete; LENGTH:
 * max_tokens; CONTEXT: the context is full; CANCELLED: progress returned false. */
typedef enum nib_finish {
    NIB_FINISH_STOP = 0,
    NIB_FINISH_LENGTH = 1,
    NIB_FINISH_CANCELLED = 2,
    NIB_FINISH_CONTEXT = 3
} nib_finish;

typedef struct nib_generate_stats {
    size_t size;
    int64_t prompt_tokens, new_tokens;
    int64_t cached_tokens; /* prompt tokens of a chat that were in the KV cache */
    double first_token_s, prefill_s, decode_s;
    double token_s, predicted_token_s;  /* time per token after the first, measured and planned;
                                          NaN: no such token, or unknown */
    double decode_gb_per_s;             /* weights and cache read */
    int64_t steps;                      /* after the prompt */
    int64_t lookup, drafted, accepted;  /* most tokens drafted per step; total drafted, accepted */
    uint64_t weight_bytes, cache_bytes; /* of the session */
    uint64_t peak_bytes;                /* of the process */
    nib_finish finish;
    double temperature, top_p, min_p, repeat_penalty; /* as used */
    int64_t top_k;
    uint64_t seed;
    const char *sampler;   /* logits on a device: the kernel that sampled the tokens; else NULL.
                              Belongs to the library */
    char sampler_why[512]; /* why no kernel of the device did, and what was copied; or empty */
    /* Drafts of a draft model: of the drafted and accepted tokens, those that are its own, and the
     * seconds of its steps. */
    int64_t drafts, model_drafted, model_accepted; /* drafts: most tokens per step; 0: no model */
    double model_s;
    /* Seconds lost to drafts of any kind that gains did not make up for, at most 3 % of
     * undrafted_s, the time that the text would have taken without drafts. */
    double vain_s, undrafted_s;
    /* Prompt tokens of a chat that were in the KV cache, and were computed again because it could
     * not be continued from there; why: "state" (layers keep states at a few positions only) or
     * "window"; NULL: none */
    int64_t recomputed_tokens;
    const char *recomputed_why;
} nib_generate_stats;

/* Generates from the start of sequence 0 and streams the text to sink in whole code points.
 * Afterwards sequence 0 has an unspecified length (nib_session_length): truncate it to 0 before you
 * step it. The text
 * continues the prompt, including the space between them if there is one. If progress cancels, the
 * text so far is valid and the call succeeds, unless the prompt was still being read
 * (NIB_CANCELLED). stats may be NULL; they are filled in on failure, too. NIB_USAGE: an option is
 * out of range, or the prompt is longer than the context; NIB_BAD_INPUT: the schema is invalid;
 * NIB_UNSUPPORTED: the schema has something that cannot be enforced; NIB_CHECK_FAILED: a logit is
 * not a number; for a conversation also the errors of nib_chat_encode, and NIB_NOT_AS_ASKED: the
 * template drops a part of it, and the request is strict. */
NIB_CHECKED nib_status nib_generate(nib_session *session, const nib_generate_options *options,
                                    const nib_sink *sink, nib_generate_stats *stats, nib_err *err);

/* ---- generation, piece by piece -------------------------------------------------------------- */

/* The same text as nib_generate writes for the same options, in pieces that the caller takes when
 * it wants them. */
typedef struct nib_generator nib_generator;

typedef struct nib_piece {
    size_t size;
    const char *text; /* [text_size] bytes, then a zero: whole code points, perhaps none, because
                         part of a character and the start of a stop string are held back */
    size_t text_size;
    int32_t token;  /* -1: none; at the end, text that was held back, or nothing */
    double logprob; /* of the token; NaN: nib_generate_options.logprobs is 0 */
    const nib_token_logprob *likeliest; /* [likeliest_count], the likeliest first */
    size_t likeliest_count;
    bool over;         /* the text is complete: this piece has no token and no text */
    nib_finish finish; /* if over: why */
} nib_piece;

/* Strings of the options must live until the generator is closed, except the prompt and the
 * conversation. Errors as nib_generate; NIB_USAGE also if on_logprobs is set. */
NIB_CHECKED nib_status nib_generator_open(nib_generator **out, nib_session *session,
                                          const nib_generate_options *options, nib_err *err);
/* Runs the model until there is a piece, which is valid until the next call. Once piece->over is
 * set, so is that of every later piece. A failed call fails again. Progress is reported while the
 * prompt is read, and may cancel it (NIB_CANCELLED). */
NIB_CHECKED nib_status nib_generator_next(nib_generator *generator, nib_piece *piece, nib_err *err);
/* Statistics so far; at any time. */
NIB_API void nib_generator_stats_get(nib_generator *generator, nib_generate_stats *out);
/* May be called before the text is over. */
NIB_API void nib_generator_close(nib_generator *generator);

/* ---- chat: one conversation ------------------------------------------------------------------ */

/* A conversation, and a KV cache of its unchanged beginning. */
typedef struct nib_chat_session nib_chat_session;

/* Empties all sequences of the session. template_text: a chat template to use instead of the
 * model's, which must live until nib_chat_session_close, and which the first nib_chat_session_say
 * parses; NULL: the model's. NIB_UNSUPPORTED: the model has none. */
NIB_CHECKED nib_status nib_chat_session_open(nib_chat_session **out, nib_session *session,
                                             const char *template_text, nib_err *err);
NIB_API void nib_chat_session_close(nib_chat_session *chat);
/* Adds `text` as a user message, streams the answer to the sink and adds it to the conversation, or
 * the part generated before progress cancelled it. now: seconds since 1970, for templates that
 * print the date. On failure the conversation is unchanged. Parts that the template drops are
 * logged first; for a strict request they are NIB_NOT_AS_ASKED. NIB_USAGE: the conversation is
 * longer than the context, the template writes nothing, or the options have a prompt or a chat of
 * their own; NIB_BAD_INPUT: the text is not UTF-8; other errors as nib_generate and
 * nib_chat_encode. */
NIB_CHECKED nib_status nib_chat_session_say(nib_chat_session *chat, const char *text,
                                            const nib_generate_options *options, int64_t now,
                                            const nib_sink *sink, nib_generate_stats *stats,
                                            nib_err *err);
/* Clears the conversation but keeps the system prompt. */
NIB_API void nib_chat_session_reset(nib_chat_session *chat);
/* Sets the system prompt and keeps the conversation; NULL: none. NIB_BAD_INPUT: not UTF-8. */
NIB_CHECKED nib_status nib_chat_session_system(nib_chat_session *chat, const char *text,
                                               nib_err *err);
/* Writes the conversation as JSON, in the form of OpenAI's `messages`. */
NIB_CHECKED nib_status nib_chat_session_save(nib_chat_session *chat, const nib_sink *sink,
                                             nib_err *err);
/* Replaces the conversation with `size` bytes of such JSON; `name` is for error messages.
 * NIB_BAD_INPUT: not such JSON; the conversation is unchanged. */
NIB_CHECKED nib_status nib_chat_session_load(nib_chat_session *chat, const char *name,
                                             const char *text, size_t size, nib_err *err);

#ifdef __cplusplus
}
#endif
#endif
