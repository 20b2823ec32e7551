# SPDX-License-Identifier: Apache-2.0
#
# The debug configs of mixtures train: the same losses, norms of the gradient and loads of experts on every machine.
short=(--training.local_batch_size 1 --training.global_batch_size 2 --training.seq_len 48 --training.steps 3
    --lr_scheduler.warmup_steps 0 --lr_scheduler.decay_ratio 0)
for config in qwen3_moe_debugmodel qwen3_moe_debugmodel_mxfp8 glm4_moe_debugmodel deepseek_v3_debugmodel; do
    check "train $config" nibble train "$REPO/configs/$config.json" --quiet "${short[@]}" --job.dump_folder "$PWD/$config"
    echo "$config"
    sed 's/  memory:.*//' "$seen.out"
done
