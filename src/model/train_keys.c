/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows, section by section in torchtitan's order.
 */
#include "train_keys.h"

/* Why a key changes nothing. Keys with the same sentence share a line of the ledger. */
#define AHEAD "every kernel is compiled ahead of the run"
#define BOARDS "metrics are JSON lines, metrics.path; no files for TensorBoard or W&B are written"
#define PROFILER "no profiler is built in"
#define STREAM "documents are read as they are needed, in the step that needs them"
#define NO_PYTHON "there is no Python whose garbage is collected"
#define SAME_BITS "every run is deterministic"
#define IN_MEMORY "weights and moments are in main memory"
#define WHOLE_RANKS "each rank holds all weights, and shares the data with the other ranks"
#define OWN_KERNELS "it is about torchtitan's own kernels"
#define BETWEEN "a checkpoint is written whole between two steps"
#define FULL_STATE "every checkpoint is whole, so that training goes on from any of them"
#define BY_FILE "what a file holds is read from the file"
#define AC_EVEN "what is kept is the same in every layer, and no mode changes a bit of the result"
#define DRY_RUN "`nibble train --dry-run` says what memory a run takes"
#define MESSAGES "messages between ranks are not traced"

#define DATASET                                                                                    \
    "no text is known by a name, and nothing is downloaded: dataset_path names a file of text or " \
    "JSON lines; c4_test is tests/assets/c4_test/data.json of torchtitan, c4 is allenai/c4 (en) "  \
    "of "                                                                                          \
    "Hugging Face"

/* What is built, of keys that would change the result. */
#define DATA_PARALLEL "ranks split the data, and each holds the whole model"
#define BY_SEED "first values come from training.seed alone, on any number of ranks"

#define OUT(member) offsetof(nib_train_draft, out.member)
#define DRAFT(member) offsetof(nib_train_draft, member)
#define NOWHERE NIB_KEY_NOWHERE
#define MANY 1099511627776.0 /* 2^40 */

/* Rows: name, type, place, least, most, words, meaning, instead. */
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
/* Any value is taken, and changes nothing: without effect here, or as a run is anyway. */
#define IDLE(name, type, instead)                                                                  \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, NULL, NULL, instead, NIB_SETTING_NONE                    \
    }
#define MET(name, type, instead)                                                                   \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, NULL, NULL, instead, NIB_SETTING_EQUIVALENT              \
    }
/* The same, but for values that ask for what is done anyway: they have no line. */
#define IDLE_BUT(name, type, values, instead)                                                      \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, values, NULL, instead, NIB_SETTING_NONE                  \
    }
#define MET_BUT(name, type, values, instead)                                                       \
    {                                                                                              \
        name, type, NOWHERE, -MANY, MANY, values, NULL, instead, NIB_SETTING_EQUIVALENT            \
    }
/* Only one value is built. */
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
         "folder of what a run writes, from where the program runs"),
    MET("job.description", NIB_KEY_TEXT, NULL),
    MET("job.use_for_integration_test", NIB_KEY_FLAG, NULL),
    IDLE("job.print_args", NIB_KEY_FLAG, "`nibble train --keys` prints all keys"),
    IDLE("job.print_config", NIB_KEY_FLAG, "`nibble train --keys` prints all keys"),
    OFF("job.config_file", NIB_KEY_TEXT,
        "the config is the argument of `nibble train`, and CONFIG_FILE of run_train.sh"),

    /* ---- model ---- */
    WORD("model.name", NOWHERE, "llama3", "whose flavors are meant; hf_config takes others"),
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
          "width of the feed-forward part; else two thirds of 4 dim, rounded up"),
    WHOLE("model.multiple_of", DRAFT(multiple_of), 1, MANY, "what hidden_dim is rounded up to"),
    REAL("model.ffn_dim_multiplier", DRAFT(ffn_multiplier), 0, 1e9,
         "what hidden_dim is multiplied with before"),
    REAL("model.norm_eps", DRAFT(model.norm_eps), 0, 1, "of the RMS norms"),
    REAL("model.rope_theta", DRAFT(model.rope_theta), 1, 1e12, "base of the rotary positions"),
    WHOLE("model.max_seq_len", DRAFT(model.context), 1, MANY, "positions that the model is for"),
    FLAG("model.enable_weight_tying", DRAFT(model.tied), "the output is the embedding's matrix"),
    WORD("model.attn_mask_type", DRAFT(attention), "causal|block_causal",
         "block_causal: attention and positions stay within a document"),
    IDLE("model.use_flex_attn", NIB_KEY_FLAG, "model.attn_mask_type alone says what attends"),
    ONLY("model.norm_type", "rmsnorm", "no other norm has kernels"),
    TEXT("model.tokenizer_path", NIB_KEY_READ, OUT(tokenizer),
         "tokenizer.json, its directory, or a GGUF"),
    TEXT("model.hf_assets_path", NIB_KEY_READ, OUT(tokenizer), NULL),
    TEXT("model.converters", NIB_KEY_LIST, DRAFT(converters),
         "mx or float8: train with the recipe of that section"),
    FLAG("model.print_after_conversion", OUT(print_after_conversion),
         "write the plan's layers before the first step"),

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
    OFF("float8.moe_fqns_prototype", NIB_KEY_LIST, "no layer has experts"),

    /* ---- quantize: a recipe of Nibble's, and torchtitan's later places of mx and float8 ---- */
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
         "quantization-aware: bf16 products of values that are rounded as the recipe says"),
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
    ONLY("optimizer.name", "AdamW", "its two moments are what a checkpoint holds"),
    REAL("optimizer.lr", OUT(rate), 0, 1e3, "rate at the top of the schedule"),
    REAL("optimizer.beta1", OUT(beta1), 0, 0.9999999, "of the first moments"),
    REAL("optimizer.beta2", OUT(beta2), 0, 0.9999999, "of the second moments"),
    REAL("optimizer.eps", OUT(eps), 1e-30, 1, "added to the root of the second moment"),
    REAL("optimizer.weight_decay", OUT(weight_decay), 0, 1e3, "of all parameters, as AdamW's"),
    MET("optimizer.implementation", NIB_KEY_TEXT, "AdamW is one pass over each parameter"),
    OFF("optimizer.early_step_in_backward", NIB_KEY_FLAG,
        "a step is taken when the whole gradient is known, so that its norm can be"),
    WHOLE("lr_scheduler.warmup_steps", OUT(warmup), 0, MANY, "steps to the full rate"),
    {"lr_scheduler.decay_ratio", NIB_KEY_REAL, OUT(decay_ratio), 0, 1, "null",
     "share of the steps that decay, at the end; null: all after the warm-up", NULL,
     NIB_SETTING_EQUIVALENT},
    WORD("lr_scheduler.decay_type", DRAFT(decay), "linear|sqrt|cosine", "how the rate falls"),
    REAL("lr_scheduler.min_lr_factor", OUT(min_factor), 0, 1, "share of the rate at the end"),
    REAL("lr_scheduler.lr_min", OUT(min_factor), 0, 1, NULL),

    /* ---- training ---- */
    TEXT("training.dataset_path", NIB_KEY_READ, OUT(dataset),
         "a text, or JSON lines with a `text` key (.jsonl, .json)"),
    IDLE("training.dataset", NIB_KEY_TEXT, DATASET),
    WHOLE("training.local_batch_size", OUT(batch), 1, 2147483648.0, "sequences of a micro-batch"),
    WHOLE("training.batch_size", OUT(batch), 1, 2147483648.0, NULL),
    WHOLE(
        "training.global_batch_size", OUT(global_batch), -1, MANY,
        "sequences of a step; -1: the least power of two of micro-batches with one for each rank"),
    WHOLE("training.seq_len", OUT(sequence), 1, 1073741824.0, "tokens of a sequence"),
    WHOLE("training.steps", OUT(steps), 1, MANY, "steps of the run"),
    REAL("training.max_norm", OUT(max_norm), 0, 1e30,
         "the gradient is clipped to this norm; 0: not clipped"),
    WHOLE("training.seed", OUT(seed), 0, 9007199254740992.0, "of the first values"),
    WORD("training.mixed_precision_param", DRAFT(param_type), "bfloat16|float32",
         "of products and attention"),
    ONLY("training.mixed_precision_reduce", "float32", "gradients are added in f32"),
    ONLY("training.dtype", "float32", "master weights are f32"),
    REAL("training.spike_factor", OUT(spike), 0, 1e30,
         "a loss over this many times its running mean ends the run; 0: none does"),
    REAL("training.norm_spike_factor", OUT(norm_spike), 0, 1e30,
         "a gradient's norm over this many times its running mean is a spike; 0: none is"),
    FLAG("training.skip_bad_steps", OUT(skip_bad_steps),
         "leave out a step that is not finite or spikes, and go on"),
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
          "ranks with all weights each; `mpirun -n N` starts them, and another number is said"),
    WHOLE("parallelism.data_parallel_shard_degree", OUT(shards), -1, MANY,
          "ranks that share the data, which hold all weights each; -1: those that run"),
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
    FLAG("checkpoint.enable", OUT(save), "save while training, and go on from what is there"),
    FLAG("checkpoint.enable_checkpoint", OUT(save), NULL),
    TEXT("checkpoint.folder", NIB_KEY_TEXT, OUT(folder),
         "folder below job.dump_folder, or an absolute path"),
    WHOLE("checkpoint.interval", OUT(interval), 1, MANY, "steps between two"),
    WHOLE("checkpoint.keep_latest_k", OUT(keep), 0, MANY, "how many stay; 0: all"),
    WHOLE("checkpoint.load_step", OUT(load_step), -1, MANY, "which to go on from; -1: the last"),
    TEXT("checkpoint.initial_load_path", NIB_KEY_READ, OUT(initial_load),
         "a model to start from, where there is no checkpoint"),
    FLAG("checkpoint.last_save_in_hf", OUT(export_last),
         "write the model at the end, too, as Hugging Face lays it out"),
    WORD("checkpoint.export_dtype", DRAFT(export_type), "float32|bfloat16|float16",
         "of the floats of that model"),
    MET("checkpoint.initial_load_in_hf", NIB_KEY_FLAG, BY_FILE),
    MET("checkpoint.initial_load_in_hf_quantized", NIB_KEY_FLAG, BY_FILE),
    MET("checkpoint.initial_load_model_only", NIB_KEY_FLAG,
        "a model to start from has no moments to load"),
    IDLE("checkpoint.last_save_model_only", NIB_KEY_FLAG, FULL_STATE),
    IDLE("checkpoint.model_weights_only", NIB_KEY_FLAG, FULL_STATE),
    MET_BUT("checkpoint.async_mode", NIB_KEY_TEXT, "disabled", BETWEEN),
    OFF("checkpoint.exclude_from_loading", NIB_KEY_LIST, FULL_STATE),
    OFF("checkpoint.enable_first_step_checkpoint", NIB_KEY_FLAG,
        "checkpoints come each checkpoint.interval steps, and at the end"),
    OFF("checkpoint.create_seed_checkpoint", NIB_KEY_FLAG, BY_SEED),
    OFF("checkpoint.load_only", NIB_KEY_FLAG,
        "checkpoint.initial_load_path starts from a model without saving"),
    WORD("activation_checkpoint.mode", DRAFT(checkpointing), "none|selective|full",
         "how much is computed again in the backward pass, to save memory"),
    MET("activation_checkpoint.selective_ac_option", NIB_KEY_TEXT, AC_EVEN),
    MET("activation_checkpoint.early_stop", NIB_KEY_FLAG, AC_EVEN),
    MET("activation_checkpoint.preserve_rng_state", NIB_KEY_FLAG, AC_EVEN),
    MET("activation_checkpoint.determinism_check", NIB_KEY_TEXT, AC_EVEN),
    MET("activation_checkpoint.debug", NIB_KEY_FLAG, AC_EVEN),

    /* ---- metrics, profiling ---- */
    WHOLE("metrics.log_freq", OUT(log_every), 1, MANY, "steps between two lines"),
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
    FLAG("validation.enable", DRAFT(validate), "measure the loss of another text"),
    FLAG("validation.enabled", DRAFT(validate), NULL),
    TEXT("validation.dataset_path", NIB_KEY_READ, OUT(validation), "that text, or JSON lines"),
    IDLE("validation.dataset", NIB_KEY_TEXT, DATASET),
    WHOLE("validation.freq", OUT(validation_every), 1, MANY, "steps between two measurements"),
    WHOLE("validation.steps", OUT(validation_steps), -1, MANY,
          "micro-batches of a measurement; -1: of the whole text"),
    WHOLE("validation.local_batch_size", DRAFT(validation_batch), 1, MANY,
          "as training's, the only one that is built"),
    WHOLE("validation.seq_len", DRAFT(validation_length), 1, MANY,
          "as training's, the only one that is built"),
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
