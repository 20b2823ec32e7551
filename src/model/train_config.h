/* SPDX-License-Identifier: Apache-2.0
 *
 * A training config in torchtitan's sections and names: what the trainer does, and what a plan of a
 * step needs. The model's dimensions become a nib_config, converters and the quantize section a
 * recipe's JSON.
 */
#ifndef NIB_TRAIN_CONFIG_H
#define NIB_TRAIN_CONFIG_H

#include "config.h"
#include "training.h"

typedef enum nib_decay { NIB_DECAY_LINEAR, NIB_DECAY_SQRT, NIB_DECAY_COSINE } nib_decay;

/* How a key was given, for what a plan says of it. */
typedef struct nib_train_asked {
    const char *key;   /* NULL: it was not given */
    const char *value; /* as a sentence shows it */
    nib_asker by;
} nib_train_asked;

/* Strings lie in the arena of the parse; NULL: not given. */
typedef struct nib_train_config {
    /* job */
    const char *dump_folder; /* where checkpoints and metrics go: "outputs" */
    /* model */
    const char *tokenizer; /* tokenizer.json or its directory */
    bool print_after_conversion;
    bool document_mask; /* attn_mask_type "block_causal": attention stays within a document */
    const char *recipe; /* the text of the quantize section, or of converters; NULL: none */
    bool wgrad_with_hp; /* weights' gradients of quantized layers in bf16 */
    bool qat;           /* the recipe is what is trained for: products of floats see its rounding */
    /* training */
    const char *dataset;     /* a text or .jsonl */
    int64_t batch, sequence; /* of a micro-batch: local_batch_size, seq_len */
    /* sequences per step; 0: of the least power of two of micro-batches with one for each rank */
    int64_t global_batch;
    int64_t steps;
    double max_norm; /* of the gradient; 0: not clipped */
    uint64_t seed;
    nib_type dtype; /* mixed_precision_param: of products; F32 or BF16 */
    nib_ac checkpointing;
    /* optimizer: AdamW */
    double rate, beta1, beta2, eps, weight_decay;
    /* lr_scheduler: warm-up, stable, decay */
    int64_t warmup;
    double decay_ratio; /* share of the steps that decay; negative: all after the warm-up */
    nib_decay decay;
    double min_factor; /* of the rate at the end */
    /* checkpoint */
    bool save;
    const char *folder; /* below dump_folder */
    int64_t interval, keep;
    const char *initial_load; /* a model to start from */
    int64_t load_step;        /* -1: the last; no checkpoint there is none to load */
    bool export_last;         /* last_save_in_hf */
    nib_type export_dtype;
    /* metrics */
    int64_t log_every;
    const char *metrics; /* JSON lines; NULL: none */
    bool count_casts;    /* saturated and underflowed values of every cast */
    double spike;        /* a loss over this many times the running mean is a spike; 0: none */
    double norm_spike;   /* the same of the gradient's norm, which varies more; 0: none */
    bool skip_bad_steps; /* else a step that is not finite stops the run */
    /* validation */
    const char *validation;                     /* a text or .jsonl; NULL: none */
    int64_t validation_every, validation_steps; /* steps -1: all of the text */
    /* parallelism */
    int64_t replicas; /* ranks that data_parallel_replicate_degree asks for; 0: any number */
    int64_t shards;   /* for each of them, of data_parallel_shard_degree; 0: one; -1: any number */
    /* comm */
    double timeout_s; /* that a rank waits for another */
    /* what a plan, which knows the options beside them, or a checkpoint is held against */
    struct {
        nib_train_asked replicas, shards, dtype, tokenizer, wgrad_with_hp, export_dtype, seed,
            initial_load;
    } asked;
} nib_train_config;

/* The schedule of the rate in steps, as torchtitan fits it into a run: a warm-up that is not longer
 * than the run, and a decay that the warm-up leaves room for. */
typedef struct nib_train_stages {
    int64_t warmup, decay;
    int64_t asked_decay; /* of decay_ratio */
} nib_train_stages;
nib_train_stages nib__train_stages(const nib_train_config *config);

/* Whether a JSON text is a training config: an object with one under the name of a section, and
 * without the "model_type" that a model has. */
bool nib__train_config_is(const char *text, size_t size);

typedef struct nib_train_source {
    const char *name; /* path of the config: for messages, and for the paths in it */
    const char *text; /* [size] */
    size_t size;
    nib_strings options; /* "section.key=value", or "section.key" of a flag; they win */
    nib_arena *arena;    /* of what the config holds */
    nib_ledger *notes;   /* keys that change nothing; NULL: not said */
} nib_train_source;

/* NIB_USAGE: an option is wrong. */
nib_status nib__train_config_parse(nib_train_config *out, nib_config *model,
                                   const nib_train_source *source, nib_err *err);

/* The table of keys. */
void nib__train_keys_render(nib_form form, nib_text *out);
/* Its settings as members of the open object, with torchtitan's names: "training.seq_len": 2048. */
void nib__train_config_put(nib_jsonw *w, const nib_train_config *config);

#endif
