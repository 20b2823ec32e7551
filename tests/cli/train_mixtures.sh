# SPDX-License-Identifier: Apache-2.0
#
# The debug configs of mixtures train: the same losses, norms of the gradient and loads of experts on every machine.
short=(--training.local_batch_size 1 --training.global_batch_size 2 --training.seq_len 48 --training.steps 3
    --lr_scheduler.warmup_steps 0 --lr_scheduler.decay_ratio 0)
# what is asked for the balance of experts and not done
mkdir v2
sed 's/"vocab_size": 190/"vocab_size": 2048/' "$REPO/tests/golden/models/deepseek_v2/config.json" >v2/config.json
check 'train without a loss for sequences' nibble train "$REPO/configs/deepseek_v3_debugmodel.json" "${short[@]}" --dry-run \
    --model.hf_config "$PWD/v2" --model.load_balance_coeff 0.1 --model.router_aux_loss_coef 0.1
tr -s ' \n' ' ' <"$seen.err" >said
check 'the ledger names the loss of sequences' grep -qF \
    'aux_loss_alpha 0.001 (config): training has no loss for the balance of experts within a sequence' said
check 'the ledger names both keys' grep -qF \
    'model.load_balance_coeff, model.router_aux_loss_coef 0.1 (option): training does not balance the experts of deepseek_v2' said

for config in qwen3_moe_debugmodel qwen3_moe_debugmodel_mxfp8 glm4_moe_debugmodel deepseek_v3_debugmodel gemma4_debugmodel; do
    check "train $config" nibble train "$REPO/configs/$config.json" --quiet "${short[@]}" --job.dump_folder "$PWD/$config"
    echo "$config"
    sed 's/  memory:.*//' "$seen.out"
done
