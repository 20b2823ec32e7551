# SPDX-License-Identifier: Apache-2.0
#
# The debug configs of mixtures train: the same losses, norms of the gradient and loads of experts on every machine.
short=(--training.local_batch_size 1 --training.global_batch_size 2 --training.seq_len 48 --training.steps 3
    --lr_scheduler.warmup_steps 0 --lr_scheduler.decay_ratio 0)
# what is asked for the balance of experts and not done
mkdir v2
sed 's/"vocab_size": 190/"vocab_size": 2048/' "$REPO/tests/golden/models/deepseek_v2/config.json" >v2/config.json
dry() { # dry MODEL OPTION...: what a dry run says, on one line, in `said`
    check "dry run of $*" nibble train "$REPO/configs/deepseek_v3_debugmodel.json" "${short[@]}" --dry-run --model.hf_config "$@"
    tr -s ' \n' ' ' <"$seen.err" >said
}
dry "$PWD/v2" --model.load_balance_coeff 0.1
check 'the ledger names the loss of sequences' grep -qF \
    'equivalent: aux_loss_alpha 0.001 (config): the load-balancing loss of each sequence has this coefficient' said
check 'the ledger names how experts are balanced instead' grep -qF \
    'model.load_balance_coeff 0.1 (option): the experts of deepseek_v2 are balanced by a loss, model.router_aux_loss_coef' said
dry "$PWD/v2" --model.router_aux_loss_coef 0.1
check 'the ledger names the key that decides' grep -qF \
    'not as asked: aux_loss_alpha 0.001 (config): model.router_aux_loss_coef, which is 0.1, decides' said
mkdir glm
sed 's/^{/{"aux_loss_alpha": 0.001,/' "$REPO/configs/shapes/glm4-moe-debugmodel/config.json" >glm/config.json
dry "$PWD/glm" --model.router_aux_loss_coef 0.1
check 'the ledger names the loss of sequences that a family lacks' grep -qF \
    'aux_loss_alpha 0.001 (config): training has no loss for the balance of experts within a sequence' said
check 'the ledger names a key for nothing' grep -qF \
    'model.router_aux_loss_coef 0.1 (option): the experts of glm4_moe are balanced by a bias' said
sed 's/"aux_loss_alpha": 0.001/"aux_loss_alpha": -1/' v2/config.json >bad.json
refused 3 '*bad.json: aux_loss_alpha is not a number from 0 to 1000, *' \
    train "$REPO/configs/deepseek_v3_debugmodel.json" --model.hf_config bad.json
sed 's/"seq_aux": true/"seq_aux": 1/' v2/config.json >bad.json
refused 3 '*bad.json: seq_aux is not true or false' train "$REPO/configs/deepseek_v3_debugmodel.json" --model.hf_config bad.json

for config in qwen3_moe_debugmodel qwen3_moe_debugmodel_mxfp8 glm4_moe_debugmodel deepseek_v3_debugmodel gemma4_debugmodel; do
    check "train $config" nibble train "$REPO/configs/$config.json" --quiet "${short[@]}" --job.dump_folder "$PWD/$config"
    echo "$config"
    sed 's/  memory:.*//' "$seen.out"
done
