/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble_tools.h - what is done with a model besides running it: reports, quantizing, converting,
 * measuring, advice, serving with OpenAI's API, training. The conventions of nibble.h hold here.
 */
#ifndef NIBBLE_TOOLS_H
#define NIBBLE_TOOLS_H

#include "nibble.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tables that need no model --------------------------------------------------------------- */

/* The kernels, with their conditions. */
NIB_CHECKED nib_status nib_kernels_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
/* The devices here and the machines known by name, with their facts. The first call measures this
 * machine, like the first plan. */
NIB_CHECKED nib_status nib_devices_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
/* One device, by name or by the path of its file. The JSON form is a file that nib_request.device
 * accepts. NIB_USAGE: an unknown name; err suggests similar ones. */
NIB_CHECKED nib_status nib_device_write(nib_engine *engine, const char *name, nib_form form,
                                        const nib_sink *sink, nib_err *err);
/* Measures a CPU or device that is present (name NULL: all of them): copies, launches, and products
 * by the kernels that a plan uses. Takes some seconds each. Stores the results at the engine's
 * cache_path, if it has one; plans predict from them. NIB_USAGE: an unknown name, or a machine that
 * is not present. */
NIB_CHECKED nib_status nib_devices_measure(nib_engine *engine, const char *name, nib_err *err);
/* The recipes, with what they mean. */
NIB_CHECKED nib_status nib_recipes_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);
/* The supported model families: names in config.json and GGUF, and whether they train. */
NIB_CHECKED nib_status nib_models_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                        nib_err *err);
/* The checkpoint formats: what each holds, and whether it is read and written. */
NIB_CHECKED nib_status nib_formats_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);

/* The meaning of ledger codes: settings, reasons, advice and notes. code NULL: all codes. The code
 * of a kernel condition ("n%128") also lists the kernels that have it. NIB_USAGE: unknown code; err
 * suggests similar ones. */
NIB_CHECKED nib_status nib_codes_write(nib_engine *engine, const char *code, nib_form form,
                                       const nib_sink *sink, nib_err *err);

/* ---- reports on a model ---------------------------------------------------------------------- */

/* Tensors with shape, format, scheme, group, bias and bytes. */
NIB_CHECKED nib_status nib_info_write(nib_model *model, nib_form form, const nib_sink *sink,
                                      nib_err *err);

/* Checks hashes, ranges, NaN and Inf by tensor and index, and completeness against config.json.
 * With `against` also compares tensor by tensor, whatever the formats, and, if both models can run,
 * their divergence and agreement over 64 arbitrary ids. NIB_CHECK_FAILED: it found an error; the
 * report is written in either case. */
NIB_CHECKED nib_status nib_verify(nib_model *model, nib_model *against, nib_form form,
                                  const nib_sink *sink, nib_err *err);

typedef struct nib_verify_options {
    size_t size;
    nib_model *against;  /* as in nib_verify; NULL: none */
    const char *signers; /* who may sign: a file of allowed_signers, as ssh-keygen(1) describes it,
                            or a public key in PEM; NULL: who signed is not checked */
    const char *signer;  /* who of the former must have signed; NULL: any */
    uint64_t reserved[4];
} nib_verify_options;

/* nib_verify, and the signature that nib_signature_write makes. If a statement on the files is
 * there, compares every file with it. With signers, a missing or wrong signature, one by somebody
 * else, and a file that was changed, removed or added afterwards are errors. NIB_UNSUPPORTED:
 * ssh-keygen, or openssl for a key in PEM, is not installed. */
NIB_CHECKED nib_status nib_verify_with(nib_model *model, const nib_verify_options *options,
                                       nib_form form, const nib_sink *sink, nib_err *err);

typedef struct nib_signature_options {
    size_t size;
    const char *key; /* required: a private key of OpenSSH, a public one whose private half an
                        ssh-agent has, or a private key in PEM on an elliptic curve */
    bool force;      /* replace an existing signature */
    bool dry_run;    /* only look whether key is one */
    uint64_t reserved[4];
} nib_signature_options;

/* Signs all files of a checkpoint, given by its directory or its single file: writes
 * model.intoto.json, an in-toto statement with their SHA-256, and model.intoto.json.sig, the SSH
 * signature of it in the namespace "file"; with a key in PEM model.sig, the bundle of OpenSSF
 * model-signing with such a statement and its signature. Runs ssh-keygen or openssl, which asks for
 * a passphrase itself. NIB_EXISTS: there is one, and force is not set; NIB_UNSUPPORTED: the program
 * is not installed, the file is one of several, or the curve is not P-256, P-384 or P-521;
 * NIB_FAILED: the program cannot sign with the key. */
NIB_CHECKED nib_status nib_signature_write(nib_engine *engine, const char *path,
                                           const nib_signature_options *options, nib_form form,
                                           const nib_sink *sink, nib_err *err);

typedef struct nib_verify_from_options {
    size_t size;
    const char *source;    /* required: what the model was made from, as nib_model_open takes it */
    const char *calibrate; /* where the calibration text, */
    const char *imatrix;   /* the importance matrix */
    const char *tokenizer; /* and the tokenizer are now; NULL: where the receipt says */
    const char *signers, *signer; /* as in nib_verify_options */
    uint64_t reserved[2];
} nib_verify_from_options;

/* Checks a checkpoint against the receipt in its manifest (docs/quantization.md): compares the
 * source with the hashes in the receipt, makes the output again beside the checkpoint, which takes
 * its size on the disk, compares every file and names the tensors that differ, and removes it.
 * Without a receipt it gives a verdict on each tensor, from the source alone: rounded from it by
 * which formula, with searched scales, altered at which places, not from it, or unknown.
 * NIB_CHECK_FAILED: something differs or is unknown, and the report, which is written in either
 * case, says what; NIB_BAD_INPUT: the receipt cannot be read. */
NIB_CHECKED nib_status nib_verify_from(nib_model *model, const nib_verify_from_options *options,
                                       nib_form form, const nib_sink *sink, nib_err *err);

/* ---- quantize -------------------------------------------------------------------------------- */

/* What a quantized model may take: exactly one of bits, memory and speed is above 0. A mixture of
 * schemes that keeps to it is then chosen layer by layer, with the least predicted loss. */
typedef struct nib_budget {
    size_t size;
    double bits;       /* per weight, of the linear layers in the written file */
    uint64_t memory;   /* bytes of weights, KV cache and buffers on the machine of the plan */
    double speed;      /* predicted tokens per second on that machine, at least */
    const char *rules; /* file to write the chosen recipe to; NULL: OUT/recipe.json, or
                          OUT.recipe.json beside a single file */
    uint64_t reserved[4];
} nib_budget;

typedef struct nib_quantize_options {
    size_t size;
    const nib_request *request; /* required, with a recipe; its device computes the same codes as
                                   the CPU, and device NULL means the CPU */
    const char *for_device;     /* also plan the result for this machine; NULL: none */
    const char *out;            /* required: a directory if the model is one, else a file */
    const char *format;         /* "torchao", "nibble", "8da4w", "compressed-tensors", "gguf"; NULL:
                           torchao, or nibble with a ledger line */
    const char *calibrate;      /* text file for -static recipes and methods; NULL: none */
    bool force;   /* replace an existing OUT: a file, a model directory or an empty one */
    bool dry_run; /* sizes and ledger only */
    bool pack;    /* also write OUT/nibble.pack, weights packed for this machine, and
                           OUT/nibble.tokens, the tokenizer's tables */
    /* How codes are chosen where the recipe does not say: "rtn", round to nearest; "search", the
     * scale with the least squared error, in which each input counts by the mean of its squares on
     * the text `calibrate`, or all the same without it; "gptq", which also lets each code make up
     * for the errors of those before it, by the second moments of the inputs on `calibrate`, layer
     * by layer on the activations of the quantized layers before; "qronos", whose codes also make
     * up for what those layers changed of the inputs; "learn", whose scales are then trained, so
     * that the logits on `calibrate` come closer to those of the model as stored; "hqq", the float
     * zero with the least sum of |error|^(11/16), for schemes with float zeros; "awq", "search"
     * after scales of inputs were folded into the norms or rows that make them, chosen by what a
     * layer's output on `calibrate` loses; "smooth", the same with scales for activations that
     * become codes; "rotate", "search" after orthogonal matrices were merged into the weights, so
     * that the model computes the same function of floats, which is checked (NIB_CHECK_FAILED).
     * NULL: "rtn" */
    const char *method;
    /* llama.cpp's importance matrix, for the method search instead of a text; NULL: none */
    const char *imatrix;
    /* Mixed precision: the request's recipe is then a list of schemes, "int4wo,int8wo,keep" (NULL:
     * "int4wo-g128,int4wo,int8wo,keep"), `calibrate` is also the text on which the loss of layers
     * is measured, and for_device the machine that memory and speed are about. NULL: none.
     * NIB_UNSUPPORTED: no mixture keeps to it. */
    const nib_budget *budget;
    uint64_t reserved[1];
} nib_quantize_options;

/* Streams the checkpoint through the recipe into options->out, which appears complete or not at
 * all. Writes the ledger, sizes in bytes and SQNR per layer in dB to sink. NIB_EXISTS: out exists
 * and force is not set, or another process is writing it; NIB_NOT_AS_ASKED: a layer cannot be
 * quantized as asked, and no substitute is allowed. */
NIB_CHECKED nib_status nib_quantize(nib_model *model, const nib_quantize_options *options,
                                    nib_form form, const nib_sink *sink, nib_err *err);

/* ---- convert --------------------------------------------------------------------------------- */

typedef struct nib_convert_options {
    size_t size;
    const char *out;    /* required: a directory if the model is one, else a file */
    const char *format; /* required: "torchao", "nibble", "8da4w", "compressed-tensors", "gguf", or
                           "safetensors" for plain floats */
    const char *dtype;  /* of weights as plain floats: "f32", "f16", "bf16"; NULL: "f32" for
                           quantized ones. Norms and biases keep their type; the ledger says so */
    bool force;         /* replace an existing OUT */
    bool dry_run;       /* sizes and ledger only */
    const char *bias;   /* of quantized layers: "float", "int8", "int32"; NULL: as stored */
    bool pack;          /* as in nib_quantize_options */
    bool strict;       /* a setting that differs from what was asked or has no effect is an error */
    nib_strings allow; /* with strict: codes of settings that are accepted */
    uint64_t reserved[4];
} nib_convert_options;

/* Streams the checkpoint into another format, atomically. Codes are kept: for every weight the
 * ledger says "lossless" (same values and types), "exact after a change of layout" (same values) or
 * "lossy" with the error. Biases are copied bit for bit unless `bias` asks for another form or the
 * format cannot hold theirs, which the ledger reports. NIB_NOT_AS_ASKED: the format cannot hold a
 * weight; err names it and the reason. */
NIB_CHECKED nib_status nib_convert(nib_model *model, const nib_convert_options *options,
                                   nib_form form, const nib_sink *sink, nib_err *err);

/* ---- imatrix --------------------------------------------------------------------------------- */

typedef struct nib_imatrix_options {
    size_t size;
    const char *out;       /* required: a file */
    const char *calibrate; /* required: the text file that the model runs on */
    bool force;            /* replace an existing OUT */
    uint64_t reserved[4];
} nib_imatrix_options;

/* Writes llama.cpp's importance matrix as GGUF, atomically: for each weight the sums of the squares
 * of its inputs on the text, f32 [k], and the number of tokens; for each expert of a stack its own.
 * The model runs as stored, in windows of at most 2048 tokens. nib_quantize_options.imatrix and
 * llama-quantize read it. NIB_EXISTS: out exists and force is not set; NIB_UNSUPPORTED: GGUF has no
 * names for the model's family. */
NIB_CHECKED nib_status nib_imatrix_write(nib_model *model, const nib_imatrix_options *options,
                                         nib_form form, const nib_sink *sink, nib_err *err);

/* ---- eval: the loss of a text ---------------------------------------------------------------- */

enum {
    NIB_EVAL_POSITIONS = 6, /* never changes: nib_eval_result has so many */
    NIB_EVAL_RESAMPLES = 2000,
    NIB_EVAL_UNITS = 10 /* fewer windows or documents have no intervals */
};

typedef struct nib_eval_options {
    size_t size;
    const char *text_path; /* required: a text, or JSON lines with a `text` key (.jsonl) */
    int64_t window;        /* tokens; 0: that of against_logits, without one min(context, 4,096) */
    const char *against_logits; /* file of logits to compare with in place of a session; NULL: none.
                                   Its text and tokenizer must be these */
    const char *save_logits;    /* file that gets the logits of the session; NULL: none. It must not
                                   exist, and appears complete or not at all */
    const char *logits_format;  /* of save_logits: "nibble", logits in f32; "llama.cpp", what its
                                   llama-perplexity writes and reads, log-probabilities in 16 bits
                                   down to 16 nats below the largest. NULL: nibble */
    uint64_t reserved[1];
} nib_eval_options;

typedef struct nib_eval_result {
    size_t size;
    double loss; /* nats per predicted token */
    double perplexity;
    int64_t predicted;     /* tokens */
    double kl;             /* nats per predicted token, from the other session's distribution; 0
                              without another session, as the next */
    double top1_agreement; /* share of positions with the same most likely token, 0 to 1 */
    double seconds;
    int64_t first_scored; /* position in a window from which predictions count: 0, or the middle if
                             a file of llama.cpp is read or written, whose windows are also whole
                             ones only */
    bool documents;       /* units are documents: the text is JSON lines */
    /* What follows compares with the other model; 0 without one. The KL divergence of a token is
     * the sum over the vocabulary, in f64, of p_ref (log p_ref - log p); its percentiles are values
     * of nearest rank, within 0.03 %, and below 2^-40 they are 0. A unit is a window of the text,
     * counted from 1, or the document of a line of JSON lines. */
    double kl_median, kl_p99, kl_p999, kl_largest; /* nats */
    int64_t kl_largest_unit, kl_largest_position;  /* where: the position, from 0 in its window, of
                                                      the token before the predicted one */
    int64_t kl_largest_token;                      /* id of the predicted token */
    double against_loss;                           /* nats per predicted token */
    double loss_difference;                        /* loss - against_loss */
    double perplexity_ratio;                       /* exp(loss_difference) */
    /* By the position of the token before the predicted one: from position_begin[i] to before
     * position_begin[i + 1]; the last has no end. */
    int64_t position_begin[NIB_EVAL_POSITIONS], position_predicted[NIB_EVAL_POSITIONS];
    double position_kl[NIB_EVAL_POSITIONS]; /* mean, nats; 0 if nothing was predicted there */
    /* 95 % intervals, lower and upper end, from resamples of whole units with replacement. With
     * fewer than NIB_EVAL_UNITS units `resamples` is 0, and so are they; else it is
     * NIB_EVAL_RESAMPLES. The seed is fixed: equal texts and models give equal bits, with any
     * number of threads. */
    int64_t units, resamples;
    double kl_interval[2], loss_difference_interval[2], perplexity_ratio_interval[2],
        top1_agreement_interval[2];
    /* Of a session whose plan drafts with the model's draft head, else 0: the positions at which
     * the head, beside the text and the model's hidden states of it, guesses the token after the
     * next; and the share of them, 0 to 1, at which its most likely token is the model's. */
    int64_t draft_guesses;
    double draft_right;
} nib_eval_result;

/* Measures the loss of a text, in sequence 0. against: a session of another model with the same
 * vocabulary to compare with, or NULL. Logits are read and written as in docs/formats.md; before a
 * file is written, the log gets its size. NIB_USAGE: no text, the window does not fit a context,
 * the vocabularies differ, or two things to compare with; NIB_BAD_INPUT: a file of logits is
 * damaged or belongs to another text, tokenizer, window or vocabulary; NIB_EXISTS: save_logits
 * exists; NIB_CHECK_FAILED: a loss is not finite. */
NIB_CHECKED nib_status nib_eval(nib_session *session, nib_session *against,
                                const nib_eval_options *options, nib_eval_result *result,
                                nib_err *err);
/* Whether a file begins as a file of logits that nib_eval reads; false if it cannot be read. */
NIB_API bool nib_is_logits_file(const char *path);

/* ---- bench: time and predict ----------------------------------------------------------------- */

enum {
    NIB_BENCH_CONTEXTS = 16, /* never changes: nib_bench_result has so many */
    NIB_BENCH_BATCH = 512,   /* most sequences and rounds */
    NIB_BENCH_ROUNDS = 1000
};

typedef struct nib_bench_speeds {
    double prefill_tokens_per_s, decode_tokens_per_s;
} nib_bench_speeds;

/* One round of a bench, which times everything in turn. */
typedef struct nib_bench_round {
    nib_bench_speeds own, floats, peer;
    double batch_tokens_per_s;
    double read_gb_per_s[2]; /* of this CPU before and after the round; 0 without a peer */
} nib_bench_round;

/* llama.cpp's llama-bench, or a program with the same options and JSON output. */
typedef struct nib_bench_peer {
    size_t size;
    const char *program; /* required: a path, or a name to look up in PATH */
    const char *model;   /* required: GGUF */
    /* Its environment: "NAME=value", ending with NULL; NULL: none. */
    const char *const *environment;
    uint64_t reserved[4];
} nib_bench_peer;

/* Decoding after this many positions, in turn with an empty cache. */
typedef struct nib_bench_context {
    int64_t positions;
    double tokens_per_s, empty_tokens_per_s;
} nib_bench_context;

typedef struct nib_bench_options {
    size_t size;
    int64_t prompt_tokens; /* 0: 512 */
    int64_t new_tokens;    /* 0: 64 */
    int repeats;           /* rounds; 0: 5 */
    int64_t batch;         /* also decode this many sequences together: at most NIB_BENCH_BATCH and
                              the session's sequences; 0: none */
    /* [context_count], at most NIB_BENCH_CONTEXTS: also time decode after this many positions. The
     * session must have two sequences. */
    const int64_t *contexts;
    size_t context_count;
    /* If layers are quantized: also time, in turn, the model's stored floats or those of another
     * checkpoint of floats only. */
    bool beside;
    const char *against;        /* path of that checkpoint; NULL: the model's own floats */
    const nib_bench_peer *peer; /* also timed in turn, with the same threads; NULL: none */
    nib_bench_round *rounds;    /* [repeats, or 5], filled in; NULL: not needed */
    uint64_t reserved[4];
} nib_bench_options;

typedef struct nib_bench_result {
    size_t size;
    char machine[64], isa[16], date[16]; /* "AMD EPYC", "avx512bf16", "2026-11-20" */
    int threads;
    double prefill_tokens_per_s, decode_tokens_per_s; /* medians */
    double batch_tokens_per_s; /* of all sequences of the batch together; 0: no batch */
    uint64_t weight_bytes, peak_bytes;
    uint64_t cache_bytes; /* KV cache of full contexts of all the session's sequences */
    /* Rates of the machine that runs the layers (the CPU's are measured in the same run), and the
     * shares of them, 0 to 1, that decode and prefill reach; 0 for a device not yet measured. */
    double copy_gb_per_s, bandwidth_share;
    double peak_gop_per_s, arithmetic_share;
    /* The plan's predictions; 0: unknown. */
    double predicted_prefill_tokens_per_s, predicted_decode_tokens_per_s;
    uint64_t predicted_bytes; /* weights, cache and buffers: of peak_bytes, or of device_bytes */
    uint64_t device_bytes;    /* allocated on the device; 0: no device */
    nib_bench_context contexts[NIB_BENCH_CONTEXTS];
    size_t context_count;
    nib_bench_speeds floats; /* medians; 0: not timed */
    char floats_name[64];    /* "bf16"; empty: not timed */
    char floats_why[512];    /* why not; empty if not asked for, or no layer is quantized */
    nib_bench_speeds peer;   /* medians; 0: no peer */
    char peer_name[192];     /* version and model as the peer reports: "0c1e570, llama 1B Q4_0" */
    double read_gb_per_s;    /* median of the rates before and after the rounds; 0: no peer */
    /* Sizes of the files, and bytes that the peer reads per token (weight_bytes for this model), or
     * of all its tensors if only the peer knows their format; 0: unknown. */
    uint64_t file_bytes, peer_file_bytes, peer_token_bytes;
} nib_bench_result;

/* NIB_USAGE: the tokens do not fit the context; too many repeats, contexts or sequences; `against`
 * is quantized, or given for a model that is not. The peer: NIB_IO: cannot be started; NIB_FAILED:
 * failed, with its last line in err; NIB_BAD_INPUT: its output cannot be parsed. */
NIB_CHECKED nib_status nib_bench(nib_session *session, const nib_bench_options *options,
                                 nib_bench_result *result, nib_err *err);

/* Breaks down the time of prefill and decode by operation, with shares of the machine's rates.
 * Errors as nib_bench. */
NIB_CHECKED nib_status nib_bench_operations(nib_session *session, const nib_bench_options *options,
                                            nib_form form, const nib_sink *sink, nib_err *err);
/* Times every kernel that runs here, the best of a few, with shares of the machine's rates. */
NIB_CHECKED nib_status nib_bench_kernels(nib_engine *engine, nib_form form, const nib_sink *sink,
                                         nib_err *err);

/* Times layers of an 8B model on a present device (NULL: the CPU) next to a plan's predictions.
 * prompt_tokens 0: 512. */
NIB_CHECKED nib_status nib_bench_predict(nib_engine *engine, const char *device,
                                         int64_t prompt_tokens, nib_form form, const nib_sink *sink,
                                         nib_err *err);
/* The same for a plan's distinct linear layers. NIB_USAGE: a plan of training; as nib_plan_status
 * if a layer has no allowed kernel. */
NIB_CHECKED nib_status nib_bench_layers(const nib_plan *plan, int64_t prompt_tokens, nib_form form,
                                        const nib_sink *sink, nib_err *err);

/* ---- tune: choose kernels by measurement ----------------------------------------------------- */

/* Times, for every shape of the model's linear layers and every range of tokens, the kernels of one
 * arithmetic contract that can run it on this CPU, and stores their order for this machine next to
 * the engine's cache_path. Later plans use the fastest, which changes no bit, and say so. Logs the
 * plan's settings first, then writes the results; JSON includes the settings. NIB_USAGE: the
 * request is for another device, or the engine has no cache_path. */
NIB_CHECKED nib_status nib_tune(nib_model *model, const nib_request *request, nib_form form,
                                const nib_sink *sink, nib_err *err);
/* Writes the stored results of this machine; says so if there are none, or if they are not used. */
NIB_CHECKED nib_status nib_tune_show(nib_engine *engine, nib_form form, const nib_sink *sink,
                                     nib_err *err);
/* Deletes the stored results of this machine for all thread counts; *found: whether any existed. */
NIB_CHECKED nib_status nib_tune_clear(nib_engine *engine, bool *found, nib_err *err);

/* ---- advise: choose a recipe ----------------------------------------------------------------- */

/* Methods that are compared with rounding. Each recipe is quantized by each of them into `scratch`,
 * measured as rounding is, and removed. */
typedef struct nib_advise_methods {
    size_t size;
    nib_strings methods;   /* required: of nib_quantize_options.method, all but "rtn" */
    const char *calibrate; /* text file for the methods, and for recipes with static activation
                              scales or methods of their own; NULL: none */
    const char *imatrix;   /* as in nib_quantize_options; for those that take one; NULL: none */
    const char *scratch;   /* directory with room for one quantized model; NULL: the current one */
    uint64_t reserved[4];
} nib_advise_methods;

typedef struct nib_advise_options {
    size_t size;
    const nib_request *request; /* only device (not "auto"), dtype and context are used; NULL: all
                                   defaults */
    nib_strings recipes;        /* to compare with the model as stored; none: every base of `nibble
                            recipes` but GGUF's own blocks, with other group sizes, outputs and
                            embeddings */
    const char *text_path;      /* measure the loss of this text; NULL: do not */
    int64_t window;             /* as in nib_eval_options */
    uint64_t memory;            /* bytes of device memory that may be used; 0: all */
    double loss_budget; /* nats per token over the model as stored; 0: 0.02; negative: no more loss
                           than the model as stored */
    bool by_prefill;    /* rank by prefill speed, not decode speed */
    bool dry_run;       /* predict without running */
    const char *svg;    /* file for a plot of the frontier, overwritten; NULL: none */
    const char *name;   /* name of the model in printed commands; NULL: its path */
    /* Needs text_path; NULL: rounding only */
    const nib_advise_methods *methods;
    /* Compare types of the KV cache (nib_request.cache) instead of recipes, on text_path, on the
     * CPU; an empty list: those with fewer bits than the activations. NULL: recipes */
    const nib_strings *caches;
    uint64_t reserved[2];
} nib_advise_options;

/* Plans recipes for a device. If the device is present, times those that it runs as asked and
 * measures their losses. Logs each setting of the plans once. Writes the frontier of loss, speed
 * and memory, the recommended recipe, its command, and a training config that makes up for
 * rounding; JSON includes the settings. A method that cannot be applied to a recipe has a row with
 * the reason, and so has a recipe that needs a text that is not given. The report is written even
 * if no recipe can be recommended: NIB_NO_MEMORY: nothing fits, and by how much; NIB_NOT_AS_ASKED:
 * the device runs nothing as asked. NIB_USAGE: an unknown device, recipe or method;
 * NIB_UNSUPPORTED: the model is already quantized; NIB_IO: the scratch directory cannot be written,
 * or has too little room, and how much is needed. With `caches`: writes the KL divergence of each
 * type from a cache in the type of the activations beside its bytes per token, and keeps it for the
 * plans of this model, if the engine has a cache_path. */
NIB_CHECKED nib_status nib_advise(nib_model *model, const nib_advise_options *options,
                                  nib_form form, const nib_sink *sink, nib_err *err);

/* ---- service: concurrent requests with OpenAI's API ------------------------------------------ */

/* Serves requests (calls) with a session's sequences. One thread runs them (nib_service_run); any
 * others may open, read and close calls, write reports and stop the service, at any time. The
 * answer to a request does not depend on other requests. In a forked child they can only be
 * closed. */
typedef struct nib_service nib_service;
typedef struct nib_call nib_call;

typedef struct nib_service_options {
    size_t size;
    const char *name;          /* of the model, in answers; NULL: the last part of its path */
    const char *chat_template; /* instead of the model's; must live as long; NULL: the model's */
    /* Most requests that may wait; 0: 64. A quarter more, at least one, may come from clients that
     * have no waiting request. */
    int64_t queue;
    double limit_s; /* time limit of a request from arrival to end; 0: none */
    uint64_t seed;  /* seeds of requests without one are derived from it */
    /* A directory for the states of prompts, which a later service of the same model and plan
     * continues from, and the size of its file, allocated at once; NULL: none. One service at a
     * time has it. */
    const char *state_cache;
    uint64_t state_cache_bytes;
    uint64_t reserved[2];
} nib_service_options;

/* Empties all sequences of the session. NIB_USAGE: the session is in use, or the queue or the time
 * limit is negative, or the state cache too small for a file; NIB_EXISTS: another process has the
 * state cache; NIB_IO: it cannot be written, or its disk is full. */
NIB_CHECKED nib_status nib_service_open(nib_service **out, nib_session *session,
                                        const nib_service_options *options, nib_err *err);
/* Call after nib_service_run has returned. Calls that are still open can then be read and
 * closed. */
NIB_API void nib_service_close(nib_service *service);
/* Runs requests on this thread until nib_service_stop. If a step fails, its requests end with the
 * error, which is also logged. */
NIB_API void nib_service_run(nib_service *service);
/* NIB_OK; NIB_IO, naming a mapped file of the model that another process wrote to: from then on
 * every request is refused with 503, because results would be invalid; or NIB_USAGE:
 * nib_service_run returned at once, in a forked child. */
NIB_CHECKED nib_status nib_service_status(nib_service *service, nib_err *err);
/* Refuses new requests and lets nib_service_run return once the current ones are done; a second
 * call ends them at once. */
NIB_API void nib_service_stop(nib_service *service);

typedef enum nib_route { NIB_ROUTE_CHAT = 0, NIB_ROUTE_COMPLETIONS = 1 } nib_route;

typedef struct nib_call_options {
    size_t size;
    nib_route route;
    const char *body; /* [body_size] JSON */
    size_t body_size;
    uint64_t client; /* the waiting client with the fewest running requests goes first */
    /* Cached prompt prefixes are not shared between tenants, who could otherwise find out what
     * others asked. */
    uint64_t tenant;
    int64_t now; /* seconds since 1970 */
    /* Called when there is more to read, on a thread of the service or the one that runs it; NULL:
     * nobody waits. It must not call the service. */
    void (*ready)(void *ctx);
    void *ctx;
    uint64_t reserved[4];
} nib_call_options;

/* Errors in a request become its answer; this fails only if memory runs out, or in a forked child
 * (NIB_USAGE). */
NIB_CHECKED nib_status nib_call_open(nib_call **out, nib_service *service,
                                     const nib_call_options *options, nib_err *err);
/* Ends the call in any state; generation stops within a step. */
NIB_API void nib_call_close(nib_call *call);

typedef struct nib_call_state {
    size_t size;
    int http;    /* status of the answer; 0: not known yet */
    bool stream; /* text/event-stream, else application/json */
    int retry_s; /* with 429 and 503: seconds until a retry */
    size_t left; /* bytes to read now */
    bool over;   /* no more bytes will come */
} nib_call_state;
/* The state of the answer so far. */
NIB_API void nib_call_look(nib_call *call, nib_call_state *out);
/* Moves the next bytes of the answer, at most `size`, to out; returns their number, 0 if none are
 * ready. */
NIB_API size_t nib_call_read(nib_call *call, char *out, size_t size);

typedef struct nib_call_stats {
    size_t size;
    const char *id, *finish; /* finish, once the answer is over: of the first choice, or "error" */
    int64_t prompt_tokens, cached_tokens; /* cached: prompt tokens that were in the KV cache */
    int64_t new_tokens;
    int64_t seed;
    int64_t settings; /* of the request: number done otherwise (NIB_SETTING_OTHER) or without
                         effect (NIB_SETTING_NONE), which the answer lists */
    double queued_s, first_token_s, total_s; /* since arrival; NaN: never happened */
    /* Prompt tokens that were in the KV cache, and were computed again because the cache could not
     * be continued from there: "state" (layers keep states at a few positions only), "window",
     * "block" (another answer writes the last block) or "disk" (a state there cannot be read);
     * NULL: none */
    int64_t recomputed_tokens;
    const char *recomputed_why;
} nib_call_stats;
/* Statistics of a call so far; the strings belong to the call. */
NIB_API void nib_call_stats_get(nib_call *call, nib_call_stats *out);

typedef enum nib_report {
    NIB_REPORT_MODELS = 0,  /* GET /v1/models */
    NIB_REPORT_MODEL = 1,   /* GET /v1/models/NAME */
    NIB_REPORT_HEALTH = 2,  /* {"status": "ok"}, or "stopping" */
    NIB_REPORT_METRICS = 3, /* Prometheus text format */
    NIB_REPORT_PLAN = 4     /* the plan as JSON, as from `nibble plan --json` */
} nib_report;
/* Writes a report. */
NIB_CHECKED nib_status nib_service_write(nib_service *service, nib_report report,
                                         const nib_sink *sink, nib_err *err);
/* Writes the body of an error in OpenAI's form, for requests that never become calls. param, code:
 * NULL becomes null. May be called by any thread. */
NIB_CHECKED nib_status nib_error_write(int http, const char *message, const char *param,
                                       const char *code, const nib_sink *sink, nib_err *err);
/* The name under which the model is served. Belongs to the service. */
NIB_API const char *nib_service_name(const nib_service *service);

/* ---- train ----------------------------------------------------------------------------------- */

/* The processes that mpirun started for one run. Only this loads Open MPI. A process has at most
 * one and must open it before its engine. */
typedef struct nib_ranks nib_ranks;

typedef struct nib_ranks_options {
    size_t size;
    int asked;                      /* minimum number of ranks; 0: any */
    double timeout_s;               /* how long a rank waits for another; 0: 100 */
    const nib_allocator *allocator; /* NULL: malloc */
    uint64_t reserved[4];
} nib_ranks_options;

/* NIB_USAGE: ranks were open before in this process; NIB_NOT_AS_ASKED: Open MPI is missing (err
 * says what to install), or there are too few ranks. */
NIB_CHECKED nib_status nib_ranks_open(nib_ranks **out, const nib_ranks_options *options,
                                      nib_err *err);
/* After this the process cannot open ranks again. */
NIB_API void nib_ranks_close(nib_ranks *ranks);
NIB_API int nib_ranks_rank(const nib_ranks *ranks);  /* from 0; 0 for NULL: one process */
NIB_API int nib_ranks_count(const nib_ranks *ranks); /* 1 for NULL */
/* This rank's slice of the host's cores, for nib_engine_options: ranks that may run on the same
 * cores get one slice each. */
NIB_API void nib_ranks_slice(const nib_ranks *ranks, int *slice, int *slices);

/* Exchanges statuses: every rank passes its own, and its error in err, and all return those of the
 * first rank that failed, with "rank 2: " before its message; NIB_OK: none failed. So all ranks end
 * with the same error. */
NIB_CHECKED nib_status nib_ranks_agree(nib_ranks *ranks, nib_status mine, nib_err *err);
/* Whether a rank did not answer or failed in the middle of a step. Then the ranks can no longer
 * communicate and have to be aborted. */
NIB_API bool nib_ranks_broken(const nib_ranks *ranks);
/* Ends every process of the run at once, including this one. */
NIB_API void nib_ranks_abort(nib_ranks *ranks, int exit_status);

typedef struct nib_train_options {
    size_t size;
    bool dry_run;     /* one layer of each distinct shape, forward and backward */
    nib_ranks *ranks; /* NULL: one process */
    const char *out;  /* new directory for the trained model in Hugging Face layout; NULL: as the
                         config says */
    nib_plan **ran;   /* if not NULL: *ran is the plan that ran if the device refused a part of the
                         given one (free it with nib_plan_close), else NULL */
    uint64_t reserved[4];
} nib_train_options;

/* Writes every key of a training config: its values, and what it does or why it has no effect. */
NIB_CHECKED nib_status nib_train_keys_write(nib_engine *engine, nib_form form, const nib_sink *sink,
                                            nib_err *err);

/* Trains from the model's config and its plan; writes a line per step to sink. If the device
 * refuses a part of the plan, plans again without it, as nib_session_open does. NIB_CHECK_FAILED: a
 * loss or gradient is not finite; the step did not change the weights. */
NIB_CHECKED nib_status nib_train(nib_model *model, const nib_plan *plan,
                                 const nib_train_options *options, const nib_sink *sink,
                                 nib_err *err);
/* Runs `steps` steps (0: 5) of a training config and writes tokens per second, the time of every
 * operation with shares of this machine's rates, and predicted and used memory. Saves nothing. */
NIB_CHECKED nib_status nib_bench_train(nib_model *model, const nib_plan *plan, int steps,
                                       nib_form form, const nib_sink *sink, nib_err *err);

typedef struct nib_plot_options {
    size_t size;
    nib_strings runs;  /* required: metrics files, or directories with a metrics.jsonl */
    const char *value; /* the metric to draw; NULL: "loss" */
    int64_t smooth;    /* also draw the mean of this many points up to each; 0: none */
    const char *out;   /* a file, overwritten; NULL: write to sink */
    uint64_t reserved[4];
} nib_plot_options;

/* Draws a metric of runs over their steps as one SVG. NIB_BAD_INPUT: a line is not a line of
 * metrics (err names it), or a run does not have the metric; NIB_USAGE: no run, or too many. */
NIB_CHECKED nib_status nib_plot(nib_engine *engine, const nib_plot_options *options,
                                const nib_sink *sink, nib_err *err);

#ifdef __cplusplus
}
#endif
#endif
