/* SPDX-License-Identifier: Apache-2.0
 *
 * A training config with torchtitan's sections and names: what the trainer does, and what a plan of
 * a training step needs. The model's dimensions become a nib_config; converters and the quantize
 * section become a recipe in JSON.
 */
#ifndef NIB_TRAIN_CONFIG_H
#define NIB_TRAIN_CONFIG_H

#include "config.h"
#include "training.h"

typedef enum nib_decay { NIB_DECAY_LINEAR, NIB_DECAY_SQRT, NIB_DECAY_COSINE } nib_decay;

/* How a key was given, for messages of a plan. */
typedef struct nib_train_asked {
    const char *key;   /* NULL: not given */
    const char *value; /* as shown in messages */
    nib_asker by;
} nib_train_asked;

/* Strings are in the parser's arena; NULL: not given. */
typedef struct nib_train_config {
    /* job */
    const char *dump_folder; /* folder of checkpoints and metrics: "outputs" */
    /* model */
    const char *tokenizer; /* tokenizer.json or its directory */
    bool print_after_conversion;
    /* Of a mixture of experts: the step of biases that only choose, of families that have them; and
     * the coefficient of the load-balancing loss, negative: as config.json says */
    double load_balance, aux_loss;
    double draft_weight; /* of the draft head's loss; 0: the model trains without one */
    bool document_mask;  /* attn_mask_type "block_causal": attention stays within a document */
    const char *recipe;  /* recipe from the quantize section or converters; NULL: none */
    bool wgrad_with_hp;  /* weight gradients of quantized layers in bf16 */
    bool qat;            /* quantization-aware training for the recipe: float products see its
                           rounding */
    /* training */
    const char *dataset;     /* a text or .jsonl */
    int64_t batch, sequence; /* of a micro-batch: local_batch_size, seq_len */
    /* sequences per step; 0: the smallest power of two of micro-batches with at least one per
     * rank */
    int64_t global_batch;
    int64_t steps;
    double max_norm; /* of the gradient; 0: no clipping */
    uint64_t seed;
    nib_type dtype; /* mixed_precision_param: type of products, F32 or BF16 */
    nib_ac checkpointing;
    /* optimizer: AdamW */
    double rate, beta1, beta2, eps, weight_decay;
    /* lr_scheduler: warm-up, stable, decay */
    int64_t warmup;
    double decay_ratio; /* share of the steps in which the rate decays; negative: all after the
                           warm-up */
    nib_decay decay;
    double min_factor; /* final rate as a share of the peak rate */
    /* checkpoint */
    bool save;
    const char *folder; /* in dump_folder */
    int64_t interval, keep;
    const char *initial_load; /* a model to start from */
    int64_t load_step;        /* -1: the last; not an error if there is none */
    bool export_last;         /* last_save_in_hf */
    nib_type export_dtype;
    /* metrics */
    int64_t log_every;
    const char *metrics; /* JSON lines; NULL: none */
    bool count_casts;    /* counts saturated and underflowed values of every cast */
    double spike;        /* a loss over this multiple of the running mean is a spike; 0: off */
    double norm_spike;   /* the same for the gradient's norm, which varies more; 0: off */
    bool skip_bad_steps; /* otherwise a step that is not finite stops the run */
    /* validation */
    const char *validation;                     /* a text or .jsonl; NULL: none */
    int64_t validation_every, validation_steps; /* steps -1: all of the text */
    /* parallelism */
    int64_t replicas; /* data_parallel_replicate_degree: ranks; 0: any number */
    int64_t shards;   /* data_parallel_shard_degree: ranks per replica; 0: one; -1: any number */
    /* comm */
    double timeout_s; /* how long a rank waits for another */
    /* how keys were given that a plan checks against options, or that are checked against a
     * checkpoint */
    struct {
        nib_train_asked replicas, shards, dtype, tokenizer, wgrad_with_hp, export_dtype, seed,
            initial_load;
    } asked;
} nib_train_config;

/* The learning-rate schedule in steps, as torchtitan fits it into a run: a warm-up no longer than
 * the run, and a decay that fits after the warm-up. */
typedef struct nib_train_stages {
    int64_t warmup, decay;
    int64_t asked_decay; /* by decay_ratio */
} nib_train_stages;
nib_train_stages nib__train_stages(const nib_train_config *config);

/* Whether a JSON text is a training config: an object that has a section with an object, and no
 * "model_type" as a model's config has. */
bool nib__train_config_is(const char *text, size_t size);

typedef struct nib_train_source {
    const char *name; /* path of the config, for messages and for relative paths in it */
    const char *text; /* [size] */
    size_t size;
    nib_strings options; /* "section.key=value", or "section.key" for a flag; options take
                            precedence */
    nib_arena *arena;    /* of the config's strings */
    nib_ledger *notes;   /* keys without effect; NULL: not reported */
} nib_train_source;

/* NIB_USAGE: an option is wrong. */
nib_status nib__train_config_parse(nib_train_config *out, nib_config *model,
                                   const nib_train_source *source, nib_err *err);

/* Prints the table of keys. */
void nib__train_keys_render(nib_form form, nib_text *out);
/* Writes the settings as members of the open object, with torchtitan's names: "training.seq_len":
 * 2048. */
void nib__train_config_put(nib_jsonw *w, const nib_train_config *config);

#endif
