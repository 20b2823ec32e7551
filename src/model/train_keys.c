/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of keys, section by section in torchtitan's order, and its output: allowed values,
 * default, and the meaning or why the key has no effect.
 */
#include "train_values.h"

#include <stdio.h>

/* Why a key has no effect. Keys with the same reason share a line of the ledger. */
#define AHEAD "every kernel is compiled ahead of the run"
#define BOARDS "metrics are JSON lines, metrics.path; TensorBoard and W&B files are not written"
#define PROFILER "no profiler is built in"
#define STREAM "documents are read when a step needs them"
#define NO_PYTHON "there is no Python garbage collector"
#define SAME_BITS "every run is deterministic"
#define IN_MEMORY "weights and moments are in main memory"
#define WHOLE_RANKS "each rank holds all weights and trains on its own part of the data"
#define OWN_KERNELS "it only concerns torchtitan's kernels"
#define BETWEEN "checkpoints are written synchronously, between steps"
#define FULL_STATE "every checkpoint is complete, so training can resume from any of them"
#define BY_FILE "the file itself tells what it holds"
#define AC_EVEN "all layers keep the same activations, and no mode changes a bit of the result"
#define DRY_RUN "`nibble train --dry-run` reports the memory that a run needs"
#define MESSAGES "messages between ranks are not traced"

#define DATASET                                                                                    \
    "there are no built-in datasets, and nothing is downloaded: dataset_path names a file of "     \
    "text or JSON lines; c4_test is tests/assets/c4_test/data.json of torchtitan, c4 is "          \
    "allenai/c4 (en) of Hugging Face"

/* What is supported, for keys that would change the result. */
#define DATA_PARALLEL "ranks split the data, and each holds the whole model"
#define BY_SEED "initial weights depend only on training.seed, on any number of ranks"

#define OUT(member) offsetof(nib_train_draft, out.member)
#define DRAFT(member) offsetof(nib_train_draft, member)
#define NOWHERE NIB_KEY_NOWHERE
#define MANY 1099511627776.0 /* 2^40 */

/* Rows: name, type, offset, least, most, words, meaning, instead. */
#define FLAG(name, at, means)                                                                      \
    {                                                                                              \
        name, NIB_KEY_FLAG, at, 0, 1, NULL, means, NULL, NIB_SETTING_EQUIVALENT                    \
    }
#define WHOLE(name, at, least, most, means)                                                        \
    {                                                                                              \
        name, NIB_KEY_WHOLE, at, least, most, NULL, means, NULL, NIB_SETTING_EQUIVALENT            \
    }
#define REAL(name, at, least, most, means)                                                         \
    {                                                                                              \
        name, NIB_KEY_REAL, at, least, most, NULL, means, NULL, NIB_SETTING_EQUIVALENT             \
    }
#define WORD(name, at, words, means)                                                               \
    {                                                                                              \
        name, NIB_KEY_WORD, at, 0, 0, words, means, NULL, NIB_SETTING_EQUIVALENT                   \
    }
#define TEXT(name, type, at, means)                                                                \
    {                                                                                              \
        name, type, at, 0, 1, NULL, means, NULL, NIB_SETTING_EQUIVALENT                            \
    }
/* Accepts any value without effect. IDLE: the request is not followed; MET: a run does so
 * anyway. */
#define IDLE(name, type, instead)                                                                  \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, NULL, NULL, instead, NIB_SETTING_NONE                    \
    }
#define MET(name, type, instead)                                                                   \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, NULL, NULL, instead, NIB_SETTING_EQUIVALENT              \
    }
/* The same, but the values in `values` ask for nothing and get no line. */
#define IDLE_BUT(name, type, values, instead)                                                      \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, values, NULL, instead, NIB_SETTING_NONE                  \
    }
#define MET_BUT(name, type, values, instead)                                                       \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, values, NULL, instead, NIB_SETTING_EQUIVALENT            \
    }
/* Accepts only one value. */
#define OFF(name, type, instead)                                                                   \
    {                                                                                              \
        name, type, NOWHERE, 0, 0, NULL, NULL, instead, NIB_SETTING_EQUIVALENT                     \
    }
#define ONE(name, instead)                                                                         \
    {                                                                                              \
        name, NIB_KEY_WHOLE, NOWHERE, 1, 1, NULL, NULL, instead, NIB_SETTING_EQUIVALENT            \
    }
#define ONLY(name, word, instead)                                                                  \
    {                                                                                              \
        name, NIB_KEY_WORD, NOWHERE, 0, 0, word, NULL, instead, NIB_SETTING_EQUIVALENT             \
    }

const nib_train_key nib__train_keys[] = {
    /* ---- job ---- */
    TEXT("job.dump_folder", NIB_KEY_WRITE, OUT(dump_folder),
         "output folder of a run, relative to the working directory"),
    MET("job.description", NIB_KEY_TEXT, NULL),
    MET("job.use_for_integration_test", NIB_KEY_FLAG, NULL),
    IDLE("job.print_args", NIB_KEY_FLAG, "`nibble train --keys` prints all keys"),
    IDLE("job.print_config", NIB_KEY_FLAG, "`nibble train --keys` prints all keys"),
    OFF("job.config_file", NIB_KEY_TEXT,
        "the config is the argument of `nibble train`, and CONFIG_FILE of run_train.sh"),

    /* ---- model ---- */
    WORD("model.name", NOWHERE, "llama3", "the model of the flavors; use hf_config for others"),
    TEXT("model.flavor", NIB_KEY_TEXT, DRAFT(flavor),
         "sizes by name: debugmodel, debugmodel_flex_attn (the same), 8B, 70B, 405B"),
    TEXT("model.hf_config", NIB_KEY_READ, DRAFT(hf_config),
         "config.json of a model, instead of a flavor"),
    WHOLE("model.dim", DRAFT(model.width), 1, MANY, "width"),
    WHOLE("model.n_layers", DRAFT(model.layers), 1, MANY, "decoder layers"),
    WHOLE("model.n_heads", DRAFT(model.heads), 1, MANY, "heads of queries"),
    WHOLE("model.n_kv_heads", DRAFT(model.kv_heads), 1, MANY, "heads of keys and values"),
    WHOLE("model.vocab_size", DRAFT(model.vocab), 1, MANY, "ids, rows of embedding and output"),
    WHOLE("model.hidden_dim", DRAFT(model.ffn), 1, MANY,
          "width of the MLP; default: two thirds of 4 dim, rounded up"),
    WHOLE("model.multiple_of", DRAFT(multiple_of), 1, MANY,
          "hidden_dim is rounded up to a multiple of this"),
    REAL("model.ffn_dim_multiplier", DRAFT(ffn_multiplier), 0, 1e9,
         "factor of hidden_dim before rounding"),
    REAL("model.norm_eps", DRAFT(model.norm_eps), 0, 1, "epsilon of the RMS norms"),
    REAL("model.rope_theta", DRAFT(model.rope_theta), 1, 1e12, "base of RoPE"),
    WHOLE("model.max_seq_len", DRAFT(model.context), 1, MANY,
          "longest context of the model, in tokens"),
    FLAG("model.enable_weight_tying", DRAFT(model.tied),
         "the output layer uses the embedding's matrix"),
    WORD("model.attn_mask_type", DRAFT(attention), "causal|block_causal",
         "block_causal: attention and positions stay within a document"),
    IDLE("model.use_flex_attn", NIB_KEY_FLAG, "model.attn_mask_type alone sets the mask"),
    ONLY("model.norm_type", "rmsnorm", "no other norm has kernels"),
    REAL("model.load_balance_coeff", OUT(load_balance), 0, 1,
         "step of the bias that balances the experts, of families that have one; 0: fixed"),
    REAL("model.router_aux_loss_coef", OUT(aux_loss), 0, 1e3,
         "coefficient of the load-balancing loss of the experts, of families that have one; "
         "default: config.json's, if its output_router_logits is true; DeepSeek's: its "
         "aux_loss_alpha"),
    REAL("model.draft_head.loss_weight", OUT(draft_weight), 0, 1e3,
         "weight of the draft head's loss (multi-token prediction), of families with such a head; "
         "0: "
         "it is not trained"),
    TEXT("model.tokenizer_path", NIB_KEY_READ, OUT(tokenizer),
         "tokenizer.json, its directory, or a GGUF"),
    TEXT("model.hf_assets_path", NIB_KEY_READ, OUT(tokenizer), NULL),
    TEXT("model.converters", NIB_KEY_LIST, DRAFT(converters),
         "mx or float8: train with the recipe of that section"),
    FLAG("model.print_after_conversion", OUT(print_after_conversion),
         "print the plan's layers before the first step"),

    /* ---- mx, float8: recipes of converters ---- */
    TEXT("mx.recipe_name", NIB_KEY_TEXT, DRAFT(mx.recipe_name),
         "mxfp8, mxfp8_cublas (scales rounded down), mxfp8_cublas_rceil, mxfp8_rceil (up)"),
    TEXT("mx.filter_fqns", NIB_KEY_LIST, DRAFT(mx.filter_fqns),
         "layers to keep: parts of their names; without the key the output layer"),
    FLAG("mx.wgrad_with_hp", DRAFT(mx.wgrad_with_hp),
         "gradients of quantized layers' weights in bf16, with the converter mx"),
    MET("mx.use_fp8_dim1_cast_triton_kernel", NIB_KEY_FLAG, OWN_KERNELS),
    MET("mx.mxfp8_dim1_cast_kernel_choice", NIB_KEY_TEXT, OWN_KERNELS),
    TEXT("float8.recipe_name", NIB_KEY_TEXT, DRAFT(float8.recipe_name),
         "tensorwise, rowwise, or rowwise_with_gw_hp"),
    TEXT("float8.filter_fqns", NIB_KEY_LIST, DRAFT(float8.filter_fqns),
         "layers to keep: parts of their names"),
    IDLE("float8.enable_fsdp_float8_all_gather", NIB_KEY_FLAG, WHOLE_RANKS),
    IDLE("float8.precompute_float8_dynamic_scale_for_fsdp", NIB_KEY_FLAG, WHOLE_RANKS),
    MET("float8.force_recompute_fp8_weight_in_bwd", NIB_KEY_FLAG, OWN_KERNELS),
    MET("float8.emulate", NIB_KEY_FLAG, OWN_KERNELS),
    OFF("float8.moe_fqns_prototype", NIB_KEY_LIST,
        "the recipe covers experts like all layers; float8.filter_fqns keeps some"),

    /* ---- quantize: a recipe of Nibble, and torchtitan's later names of mx and float8 ---- */
    TEXT("quantize.recipe", NIB_KEY_TEXT, DRAFT(quantize.recipe),
         "a name of `nibble recipes`, or a recipe file (.json)"),
    TEXT("quantize.recipe_name", NIB_KEY_TEXT, DRAFT(quantize.recipe_name),
         "torchtitan's name of a recipe, as in mx and float8"),
    TEXT("quantize.filter_fqns", NIB_KEY_LIST, DRAFT(quantize.filter_fqns),
         "layers to keep: parts of their names"),
    TEXT("quantize.fqns", NIB_KEY_LIST, DRAFT(quantize.fqns),
         "layers to convert, and no others: parts of their names"),
    TEXT("quantize.skip", NIB_KEY_LIST, DRAFT(quantize.skip), "patterns of layers to keep"),
    TEXT("quantize.only", NIB_KEY_LIST, DRAFT(quantize.only), "patterns of layers to quantize"),
    TEXT("quantize.rules", NIB_KEY_JSON, DRAFT(quantize.rules), "as in a recipe file"),
    TEXT("quantize.else", NIB_KEY_TEXT, DRAFT(quantize.other), "scheme of the other layers"),
    FLAG("quantize.wgrad_with_hp", OUT(wgrad_with_hp),
         "gradients of quantized layers' weights in bf16, with any recipe"),
    FLAG("quantize.qat", OUT(qat),
         "quantization-aware training: bf16 products of values rounded as in the recipe"),
    TEXT("quantize.linear.mx.recipe_name", NIB_KEY_TEXT, DRAFT(mx.recipe_name), NULL),
    TEXT("quantize.linear.mx.filter_fqns", NIB_KEY_LIST, DRAFT(mx.filter_fqns), NULL),
    MET("quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", NIB_KEY_TEXT, OWN_KERNELS),
    TEXT("quantize.linear.float8.recipe_name", NIB_KEY_TEXT, DRAFT(float8.recipe_name), NULL),
    TEXT("quantize.linear.float8.filter_fqns", NIB_KEY_LIST, DRAFT(float8.filter_fqns), NULL),
    IDLE("quantize.linear.float8.enable_fsdp_float8_all_gather", NIB_KEY_FLAG, WHOLE_RANKS),
    IDLE("quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", NIB_KEY_FLAG,
         WHOLE_RANKS),
    MET("quantize.linear.float8.emulate", NIB_KEY_FLAG, OWN_KERNELS),

    /* ---- optimizer, lr_scheduler ---- */
    ONLY("optimizer.name", "AdamW", "checkpoints hold its two moments"),
    REAL("optimizer.lr", OUT(rate), 0, 1e3, "peak learning rate"),
    REAL("optimizer.beta1", OUT(beta1), 0, 0.9999999, "decay rate of the first moments"),
    REAL("optimizer.beta2", OUT(beta2), 0, 0.9999999, "decay rate of the second moments"),
    REAL("optimizer.eps", OUT(eps), 1e-30, 1, "added to the root of the second moment"),
    REAL("optimizer.weight_decay", OUT(weight_decay), 0, 1e3, "decoupled, of all parameters"),
    MET("optimizer.implementation", NIB_KEY_TEXT, "AdamW is one pass over each parameter"),
    OFF("optimizer.early_step_in_backward", NIB_KEY_FLAG,
        "a step needs the whole gradient, to know its norm"),
    WHOLE("lr_scheduler.warmup_steps", OUT(warmup), 0, MANY, "steps up to the peak rate"),
    {"lr_scheduler.decay_ratio", NIB_KEY_REAL, OUT(decay_ratio), 0, 1, "null",
     "share of the steps, at the end, in which the rate decays; null: all after the warm-up", NULL,
     NIB_SETTING_EQUIVALENT},
    WORD("lr_scheduler.decay_type", DRAFT(decay), "linear|sqrt|cosine", "how the rate falls"),
    REAL("lr_scheduler.min_lr_factor", OUT(min_factor), 0, 1,
         "final rate as a share of the peak rate"),
    REAL("lr_scheduler.lr_min", OUT(min_factor), 0, 1, NULL),

    /* ---- training ---- */
    TEXT("training.dataset_path", NIB_KEY_READ, OUT(dataset),
         "a text file, or JSON lines with a `text` key (.jsonl, .json)"),
    IDLE("training.dataset", NIB_KEY_TEXT, DATASET),
    WHOLE("training.local_batch_size", OUT(batch), 1, 2147483648.0, "sequences per micro-batch"),
    WHOLE("training.batch_size", OUT(batch), 1, 2147483648.0, NULL),
    WHOLE("training.global_batch_size", OUT(global_batch), -1, MANY,
          "sequences per step; -1: the smallest power of two of micro-batches with one per rank"),
    WHOLE("training.seq_len", OUT(sequence), 1, 1073741824.0, "tokens per sequence"),
    WHOLE("training.steps", OUT(steps), 1, MANY, "steps of the run"),
    REAL("training.max_norm", OUT(max_norm), 0, 1e30,
         "the gradient is clipped to this norm; 0: no clipping"),
    WHOLE("training.seed", OUT(seed), 0, 9007199254740992.0, "seed of the initial weights"),
    WORD("training.mixed_precision_param", DRAFT(param_type), "bfloat16|float32",
         "type of products and attention"),
    ONLY("training.mixed_precision_reduce", "float32", "gradients are added in f32"),
    ONLY("training.dtype", "float32", "master weights are f32"),
    REAL("training.spike_factor", OUT(spike), 0, 1e30,
         "a loss over this many times its running mean ends the run; 0: off"),
    REAL("training.norm_spike_factor", OUT(norm_spike), 0, 1e30,
         "a gradient's norm over this many times its running mean is a spike; 0: off"),
    FLAG("training.skip_bad_steps", OUT(skip_bad_steps),
         "skip a step that is not finite or spikes, and continue"),
    MET("training.compile", NIB_KEY_FLAG, AHEAD),
    MET("training.deterministic", NIB_KEY_FLAG, SAME_BITS),
    MET("training.enable_cpu_offload", NIB_KEY_FLAG, IN_MEMORY),
    MET("training.gc_freq", NIB_KEY_WHOLE, NO_PYTHON),
    MET("training.gc_debug", NIB_KEY_FLAG, NO_PYTHON),
    MET_BUT("training.dataloader.num_workers", NIB_KEY_WHOLE, "0", STREAM),
    MET("training.dataloader.persistent_workers", NIB_KEY_FLAG, STREAM),
    MET("training.dataloader.pin_memory", NIB_KEY_FLAG, STREAM),
    MET("training.dataloader.prefetch_factor", NIB_KEY_WHOLE, STREAM),
    WHOLE("debug.seed", OUT(seed), 0, 9007199254740992.0, NULL),
    MET("debug.deterministic", NIB_KEY_FLAG, SAME_BITS),
    MET("debug.deterministic_warn_only", NIB_KEY_FLAG, SAME_BITS),
    MET("compile.enable", NIB_KEY_FLAG, AHEAD),
    MET("compile.components", NIB_KEY_LIST, AHEAD),
    MET("compile.backend", NIB_KEY_TEXT, AHEAD),

    /* ---- parallelism ---- */
    WHOLE("parallelism.data_parallel_replicate_degree", OUT(replicas), 1, MANY,
          "ranks, each with all weights; `mpirun -n N` starts them, and a different N is reported"),
    WHOLE("parallelism.data_parallel_shard_degree", OUT(shards), -1, MANY,
          "ranks that share the data, each with all weights; -1: all that run"),
    IDLE_BUT("parallelism.fsdp_reshard_after_forward", NIB_KEY_TEXT, "default", WHOLE_RANKS),
    MET("parallelism.enable_compiled_autograd", NIB_KEY_FLAG, AHEAD),
    ONE("parallelism.tensor_parallel_degree", DATA_PARALLEL),
    ONE("parallelism.pipeline_parallel_degree", DATA_PARALLEL),
    ONE("parallelism.context_parallel_degree", DATA_PARALLEL),
    ONE("parallelism.expert_parallel_degree", DATA_PARALLEL),
    ONE("parallelism.expert_tensor_parallel_degree", DATA_PARALLEL),
    IDLE("parallelism.disable_loss_parallel", NIB_KEY_FLAG, WHOLE_RANKS),
    IDLE("parallelism.enable_async_tensor_parallel", NIB_KEY_FLAG, WHOLE_RANKS),
    IDLE_BUT("parallelism.pipeline_parallel_schedule", NIB_KEY_TEXT, "1F1B", WHOLE_RANKS),
    IDLE_BUT("parallelism.pipeline_parallel_schedule_csv", NIB_KEY_TEXT, "", WHOLE_RANKS),
    IDLE_BUT("parallelism.pipeline_parallel_microbatch_size", NIB_KEY_WHOLE, "1", WHOLE_RANKS),
    IDLE("parallelism.pipeline_parallel_layers_per_stage", NIB_KEY_WHOLE, WHOLE_RANKS),
    IDLE("parallelism.pipeline_parallel_split_points", NIB_KEY_LIST, WHOLE_RANKS),
    IDLE_BUT("parallelism.context_parallel_rotate_method", NIB_KEY_TEXT, "allgather", WHOLE_RANKS),
    IDLE("parallelism.context_parallel_load_balancer", NIB_KEY_TEXT, WHOLE_RANKS),

    /* ---- checkpoint, activation_checkpoint ---- */
    FLAG("checkpoint.enable", OUT(save), "save while training, and resume from a saved checkpoint"),
    FLAG("checkpoint.enable_checkpoint", OUT(save), NULL),
    TEXT("checkpoint.folder", NIB_KEY_TEXT, OUT(folder),
         "folder below job.dump_folder, or an absolute path"),
    WHOLE("checkpoint.interval", OUT(interval), 1, MANY, "steps between two checkpoints"),
    WHOLE("checkpoint.keep_latest_k", OUT(keep), 0, MANY, "checkpoints to keep; 0: all"),
    WHOLE("checkpoint.load_step", OUT(load_step), -1, MANY, "step to resume from; -1: the last"),
    TEXT("checkpoint.initial_load_path", NIB_KEY_READ, OUT(initial_load),
         "initial weights, used if no checkpoint exists"),
    FLAG("checkpoint.last_save_in_hf", OUT(export_last),
         "also write the model at the end, in Hugging Face's layout"),
    WORD("checkpoint.export_dtype", DRAFT(export_type), "float32|bfloat16|float16",
         "type of that model's floats"),
    MET("checkpoint.initial_load_in_hf", NIB_KEY_FLAG, BY_FILE),
    MET("checkpoint.initial_load_in_hf_quantized", NIB_KEY_FLAG, BY_FILE),
    MET("checkpoint.initial_load_model_only", NIB_KEY_FLAG,
        "a model to start from has no moments to load"),
    IDLE("checkpoint.last_save_model_only", NIB_KEY_FLAG, FULL_STATE),
    IDLE("checkpoint.model_weights_only", NIB_KEY_FLAG, FULL_STATE),
    MET_BUT("checkpoint.async_mode", NIB_KEY_TEXT, "disabled", BETWEEN),
    OFF("checkpoint.exclude_from_loading", NIB_KEY_LIST, FULL_STATE),
    OFF("checkpoint.enable_first_step_checkpoint", NIB_KEY_FLAG,
        "checkpoints are written every checkpoint.interval steps and at the end"),
    OFF("checkpoint.create_seed_checkpoint", NIB_KEY_FLAG, BY_SEED),
    OFF("checkpoint.load_only", NIB_KEY_FLAG,
        "checkpoint.initial_load_path starts from a model without saving"),
    WORD("activation_checkpoint.mode", DRAFT(checkpointing), "none|selective|full",
         "how much is recomputed in the backward pass, to save memory"),
    MET("activation_checkpoint.selective_ac_option", NIB_KEY_TEXT, AC_EVEN),
    MET("activation_checkpoint.early_stop", NIB_KEY_FLAG, AC_EVEN),
    MET("activation_checkpoint.preserve_rng_state", NIB_KEY_FLAG, AC_EVEN),
    MET("activation_checkpoint.determinism_check", NIB_KEY_TEXT, AC_EVEN),
    MET("activation_checkpoint.debug", NIB_KEY_FLAG, AC_EVEN),

    /* ---- metrics, profiling ---- */
    WHOLE("metrics.log_freq", OUT(log_every), 1, MANY, "steps between log lines"),
    TEXT("metrics.path", NIB_KEY_WRITE, DRAFT(metrics),
         "JSON lines, below job.dump_folder, or an absolute path"),
    FLAG("metrics.count_casts", OUT(count_casts),
         "count values that saturate and that underflow, layer by layer"),
    MET("metrics.disable_color_printing", NIB_KEY_FLAG, "--no-color is the option"),
    IDLE("metrics.enable_tensorboard", NIB_KEY_FLAG, BOARDS),
    IDLE("metrics.enable_wandb", NIB_KEY_FLAG, BOARDS),
    IDLE("metrics.save_tb_folder", NIB_KEY_TEXT, BOARDS),
    IDLE("metrics.save_for_all_ranks", NIB_KEY_FLAG, BOARDS),
    IDLE("profiling.enable_profiling", NIB_KEY_FLAG, PROFILER),
    IDLE("profiling.save_traces_folder", NIB_KEY_TEXT, PROFILER),
    IDLE("profiling.profile_freq", NIB_KEY_WHOLE, PROFILER),
    IDLE("profiling.profiler_active", NIB_KEY_WHOLE, PROFILER),
    IDLE("profiling.profiler_warmup", NIB_KEY_WHOLE, PROFILER),
    IDLE("profiling.enable_memory_snapshot", NIB_KEY_FLAG, PROFILER),
    IDLE("profiling.save_memory_snapshot_folder", NIB_KEY_TEXT, PROFILER),
    IDLE("memory_estimation.enabled", NIB_KEY_FLAG, DRY_RUN),
    IDLE("memory_estimation.enable", NIB_KEY_FLAG, DRY_RUN),
    IDLE("memory_estimation.disable_fake_mode", NIB_KEY_FLAG, DRY_RUN),

    /* ---- validation, comm ---- */
    FLAG("validation.enable", DRAFT(validate), "measure the loss on another text"),
    FLAG("validation.enabled", DRAFT(validate), NULL),
    TEXT("validation.dataset_path", NIB_KEY_READ, OUT(validation),
         "the text to validate on, or JSON lines"),
    IDLE("validation.dataset", NIB_KEY_TEXT, DATASET),
    WHOLE("validation.freq", OUT(validation_every), 1, MANY, "steps between two measurements"),
    WHOLE("validation.steps", OUT(validation_steps), -1, MANY,
          "micro-batches per measurement; -1: the whole text"),
    WHOLE("validation.local_batch_size", DRAFT(validation_batch), 1, MANY,
          "must be the same as in training"),
    WHOLE("validation.seq_len", DRAFT(validation_length), 1, MANY,
          "must be the same as in training"),
    REAL("comm.train_timeout_seconds", OUT(timeout_s), 0.001, 1e9,
         "how long a rank waits for another"),
    MET("comm.init_timeout_seconds", NIB_KEY_WHOLE,
        "mpirun starts the ranks and says which did not start"),
    IDLE("comm.trace_buf_size", NIB_KEY_WHOLE, MESSAGES),
    IDLE("comm.save_traces_folder", NIB_KEY_TEXT, MESSAGES),
    IDLE("comm.save_traces_file_prefix", NIB_KEY_TEXT, MESSAGES),
    ONLY("comm.mode", "default", "ranks are processes of Open MPI"),
};
const size_t nib__train_key_count = COUNT(nib__train_keys);
_Static_assert(COUNT(nib__train_keys) <= NIB_TRAIN_KEYS_MAX, "raise NIB_TRAIN_KEYS_MAX");

const char *const nib__train_sections[] = {
    "job",
    "model",
    "model.draft_head",
    "mx",
    "float8",
    "quantize",
    "quantize.linear",
    "quantize.linear.mx",
    "quantize.linear.float8",
    "optimizer",
    "lr_scheduler",
    "training",
    "training.dataloader",
    "debug",
    "compile",
    "parallelism",
    "checkpoint",
    "activation_checkpoint",
    "metrics",
    "profiling",
    "memory_estimation",
    "validation",
    "comm",
};
const size_t nib__train_section_count = COUNT(nib__train_sections);
_Static_assert(COUNT(nib__train_sections) <= NIB_TRAIN_SECTIONS_MAX,
               "raise NIB_TRAIN_SECTIONS_MAX");

size_t nib__train_key_find(const char *name)
{
    for (size_t i = 0; i < nib__train_key_count; i++)
        if (strcmp(nib__train_keys[i].name, name) == 0)
            return i;
    return SIZE_MAX;
}

size_t nib__train_section_find(const char *name)
{
    for (size_t i = 0; i < nib__train_section_count; i++)
        if (strcmp(nib__train_sections[i], name) == 0)
            return i;
    return SIZE_MAX;
}

/* ---- the table as text, JSON and Markdown ---- */

static bool is_idle(const nib_train_key *k) { return k->at == NIB_KEY_NOWHERE && k->least < 0; }

static const char *type_text(const nib_train_key *k)
{
    switch (k->type) {
    case NIB_KEY_FLAG: return "true or false";
    case NIB_KEY_WHOLE: return "whole number";
    case NIB_KEY_REAL: return k->words ? "number or null" : "number";
    case NIB_KEY_WORD: return "word";
    case NIB_KEY_TEXT: return "text";
    case NIB_KEY_READ:
    case NIB_KEY_WRITE: return "path";
    case NIB_KEY_LIST: return "list";
    case NIB_KEY_JSON: return "JSON";
    }
    return "";
}

/* Prints whole numbers with all digits: as a float, 2^53 would lose some. */
static void print_limit(nib_text *out, const nib_train_key *k, double limit)
{
    if (k->type == NIB_KEY_WHOLE)
        nib__text_format(out, "%lld", (long long)limit);
    else
        nib__text_double(out, limit);
}

/* Prints "least to most", or the words; nothing if there is no limit. */
static void print_limits(nib_text *out, const nib_train_key *k)
{
    if (k->type == NIB_KEY_WORD) {
        for (const char *w = k->words; *w; w++)
            nib__text_format(out, *w == '|' ? ", " : "%c", *w);
    } else if (k->type == NIB_KEY_WHOLE || k->type == NIB_KEY_REAL) {
        if (is_idle(k))
            return;
        print_limit(out, k, k->least);
        if (k->most > k->least) {
            nib__text_str(out, " to ");
            print_limit(out, k, k->most);
        }
    }
}

/* Prints the default; nothing if there is none. */
static void print_default(nib_text *out, const nib_train_key *k, const nib_train_draft *defaults)
{
    const char *at = (const char *)defaults + k->at;
    int64_t whole;
    double real;
    bool flag;
    int word;
    const char *text;
    if (k->at == NIB_KEY_NOWHERE)
        return;
    if (k->type == NIB_KEY_FLAG) {
        memcpy(&flag, at, sizeof flag);
        nib__text_str(out, flag ? "true" : "false");
    } else if (k->type == NIB_KEY_WHOLE) {
        memcpy(&whole, at, sizeof whole);
        if ((double)whole >= k->least) /* a size of 0 comes from the flavor */
            nib__text_format(out, "%lld", (long long)whole);
    } else if (k->type == NIB_KEY_REAL) {
        memcpy(&real, at, sizeof real);
        nib__text_double(out, real);
    } else if (k->type == NIB_KEY_WORD) {
        memcpy(&word, at, sizeof word);
        const char *w = k->words;
        for (; word > 0; word--)
            w += strcspn(w, "|") + 1;
        nib__text_put(out, w, strcspn(w, "|"));
    } else if (k->type != NIB_KEY_LIST) {
        memcpy(&text, at, sizeof text);
        nib__text_str(out, text ? text : "");
    }
}

/* Prints what the key does, or which key it is another name of. */
static void print_meaning(nib_text *out, size_t row)
{
    const nib_train_key *k = &nib__train_keys[row];
    size_t same = row;
    if (k->means) {
        nib__text_str(out, k->means);
    } else if (k->at != NIB_KEY_NOWHERE) {
        for (same = 0; nib__train_keys[same].at != k->at; same++)
            continue;
        nib__text_format(out, "the same as %s", nib__train_keys[same].name);
    } else if (is_idle(k)) {
        nib__text_format(out, "changes nothing%s%s", k->instead ? ": " : "",
                         k->instead ? k->instead : "");
    } else {
        nib__text_format(out, "%s: %s",
                         k->type == NIB_KEY_FLAG || k->type == NIB_KEY_LIST ||
                                 k->type == NIB_KEY_TEXT
                             ? "not supported"
                             : "nothing else is supported",
                         k->instead);
    }
}

/* Columns of one row. */
typedef struct columns {
    nib_text value, default_value, meaning;
} columns;

static const char *text_of(const nib_text *text) { return text->size > 0 ? text->at : ""; }

static void fill_columns(columns *c, size_t row, const nib_train_draft *defaults)
{
    const nib_train_key *k = &nib__train_keys[row];
    nib__text_clear(&c->value);
    nib__text_clear(&c->default_value);
    nib__text_clear(&c->meaning);
    print_limits(&c->value, k);
    if (c->value.size == 0)
        nib__text_str(&c->value, type_text(k));
    print_default(&c->default_value, k, defaults);
    print_meaning(&c->meaning, row);
}

static void render_json(nib_text *out, columns *c, const nib_train_draft *defaults)
{
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_key(&w, "keys");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < nib__train_key_count; i++) {
        fill_columns(c, i, defaults);
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "key", nib__train_keys[i].name);
        nib__jsonw_pair_string(&w, "type", type_text(&nib__train_keys[i]));
        nib__jsonw_pair_string(&w, "value", text_of(&c->value));
        nib__jsonw_pair_string(&w, "default",
                               c->default_value.size > 0 ? c->default_value.at : NULL);
        nib__jsonw_pair_string(&w, "meaning", text_of(&c->meaning));
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

static void render_markdown(nib_text *out, columns *c, const nib_train_draft *defaults)
{
    nib__text_str(
        out, "# Keys of a training config\n\n"
             "Printed by `nibble train --keys --markdown`; [training.md](training.md) explains how "
             "to set them. Keys that change\nnothing are torchtitan's: a config that has "
             "them is accepted, and the ledger says why.\n\n"
             "| key | value | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < nib__train_key_count; i++) {
        fill_columns(c, i, defaults);
        nib__text_format(out, "| `%s` | %s | %s | %s |\n", nib__train_keys[i].name,
                         text_of(&c->value), text_of(&c->default_value), text_of(&c->meaning));
    }
}

static void render_text(nib_text *out, columns *c, const nib_train_draft *defaults)
{
    for (size_t i = 0; i < nib__train_key_count; i++) {
        fill_columns(c, i, defaults);
        nib__text_format(out, "%s: %s%s%s\n", nib__train_keys[i].name, text_of(&c->value),
                         c->default_value.size > 0 ? "; default " : "", text_of(&c->default_value));
        if (c->meaning.size > 0)
            nib__ledger_wrap(out, "    ", "    ", 100, c->meaning.at);
    }
}

void nib__train_keys_render(nib_form form, nib_text *out)
{
    nib_train_draft defaults;
    columns c;
    nib__train_draft_defaults(&defaults);
    nib__text_init(&c.value, out->allocator);
    nib__text_init(&c.default_value, out->allocator);
    nib__text_init(&c.meaning, out->allocator);
    if (form == NIB_FORM_JSON)
        render_json(out, &c, &defaults);
    else if (form == NIB_FORM_MARKDOWN)
        render_markdown(out, &c, &defaults);
    else
        render_text(out, &c, &defaults);
    out->failed |= c.value.failed || c.default_value.failed || c.meaning.failed;
    nib__text_free(&c.value);
    nib__text_free(&c.default_value);
    nib__text_free(&c.meaning);
}
