/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the settings of a training config, for checkpoints and metrics to say how they were made.
 */
#include "train_config.h"

static const char *type_name(nib_type type)
{
    return type == NIB_TYPE_BF16 ? "bfloat16" : type == NIB_TYPE_F16 ? "float16" : "float32";
}

void nib__train_config_put(nib_jsonw *w, const nib_train_config *c)
{
    static const char *const checkpointing[] = {
        [NIB_AC_NONE] = "none", [NIB_AC_SELECTIVE] = "selective", [NIB_AC_FULL] = "full"};
    static const char *const decays[] = {
        [NIB_DECAY_LINEAR] = "linear", [NIB_DECAY_SQRT] = "sqrt", [NIB_DECAY_COSINE] = "cosine"};
    nib__jsonw_pair_string(w, "model.attn_mask_type", c->document_mask ? "block_causal" : "causal");
    nib__jsonw_pair_string(w, "quantize", c->recipe);
    nib__jsonw_pair_bool(w, "quantize.wgrad_with_hp", c->wgrad_with_hp);
    nib__jsonw_pair_bool(w, "quantize.qat", c->qat);
    if (c->qat) /* it is trained for the codes of what is exported */
        nib__jsonw_pair_string(w, "checkpoint.export_dtype", type_name(c->export_dtype));
    nib__jsonw_pair_string(w, "training.dataset_path", c->dataset);
    nib__jsonw_pair_int(w, "training.local_batch_size", c->batch);
    nib__jsonw_pair_int(w, "training.global_batch_size", c->global_batch);
    nib__jsonw_pair_int(w, "training.seq_len", c->sequence);
    nib__jsonw_pair_int(w, "training.steps", c->steps);
    nib__jsonw_pair_double(w, "training.max_norm", c->max_norm);
    nib__jsonw_pair_int(w, "training.seed", (int64_t)c->seed);
    nib__jsonw_pair_string(w, "training.mixed_precision_param", type_name(c->dtype));
    nib__jsonw_pair_string(w, "activation_checkpoint.mode", checkpointing[c->checkpointing]);
    nib__jsonw_pair_double(w, "optimizer.lr", c->rate);
    nib__jsonw_pair_double(w, "optimizer.beta1", c->beta1);
    nib__jsonw_pair_double(w, "optimizer.beta2", c->beta2);
    nib__jsonw_pair_double(w, "optimizer.eps", c->eps);
    nib__jsonw_pair_double(w, "optimizer.weight_decay", c->weight_decay);
    nib__jsonw_pair_int(w, "lr_scheduler.warmup_steps", c->warmup);
    if (c->decay_ratio < 0)
        nib__jsonw_pair_string(w, "lr_scheduler.decay_ratio", NULL);
    else
        nib__jsonw_pair_double(w, "lr_scheduler.decay_ratio", c->decay_ratio);
    nib__jsonw_pair_string(w, "lr_scheduler.decay_type", decays[c->decay]);
    nib__jsonw_pair_double(w, "lr_scheduler.min_lr_factor", c->min_factor);
    nib__jsonw_pair_string(w, "checkpoint.initial_load_path", c->initial_load);
}
