# SPDX-License-Identifier: Apache-2.0
#
# Models train with a draft head: the same losses on every machine, with any number of threads and any activation checkpointing; the
# head that is exported drafts, and eval says how often it is right; a run resumes with it, and only with it.
short=(--quiet --training.local_batch_size 1 --training.global_batch_size 2 --training.seq_len 48 --lr_scheduler.warmup_steps 0
    --lr_scheduler.decay_ratio 0)
config=$REPO/configs/qwen3_moe_debugmodel.json
head -c 1500 "$MODEL/heldout.txt" >text.txt
lines() { sed 's/  memory:.*//' "$seen.out"; }
right() { nibble eval "$1" --text text.txt --window 40 --draft-head --json --quiet "${@:2}" | grep -o '"draft_guesses.*right": [0-9.]*'; }
for family in qwen3_5 deepseek_v3; do
    mkdir "$family"
    sed 's/"vocab_size": [0-9]*/"vocab_size": 2048/' "$REPO/tests/golden/models/$family/config.json" >"$family/config.json"
    here=(--model.hf_config "$PWD/$family" --model.draft_head.loss_weight 0.3 --checkpoint.interval 2 --checkpoint.enable)
    check "train $family" nibble train "$config" "${short[@]}" "${here[@]}" --training.steps 3 --job.dump_folder "$PWD/whole" --threads 1 \
        --export model --metrics.path metrics.jsonl
    echo "$family"
    lines | sed '/^model:/d' | tee whole.lines
    check "metrics of $family" grep -q '"loss": [0-9.]*, "draft_loss": [0-9.]*' whole/metrics.jsonl
    check "two steps of $family" nibble train "$config" "${short[@]}" "${here[@]}" --training.steps 2 --job.dump_folder "$PWD/half" \
        --threads 2 --activation_checkpoint.mode none
    check "one more step of $family" nibble train "$config" "${short[@]}" "${here[@]}" --training.steps 3 --job.dump_folder "$PWD/half" \
        --threads 2 --activation_checkpoint.mode full
    lines >half.lines
    check "$family resumes with the same losses" diff <(grep '^step:  3' whole.lines) <(grep '^step:  3' half.lines)
    check "$family: the same weights" cmp {whole,half}/checkpoint/step-00000003/model.safetensors
    equal "$family: the same text with its head" "$(nibble generate model -p Once -n 12 --temp 0 --quiet)" \
        "$(nibble generate model -p Once -n 12 --temp 0 --quiet --draft-head --lookup 0)"
    equal "$family: as often right with other threads" "$(right model -t 1)" "$(right model -t 2)"
    check "$family: how often its head is right" grep -qx '"draft_guesses": [0-9]*, "draft_head_right": [0-9.]*' <(right model -t 1)
    mv model "$family-model"
    mv half "$family-half"
    rm -rf whole
done
here=(--model.hf_config "$PWD/deepseek_v3")
refused 3 '*: the number of draft heads (model.draft_head.loss_weight) is 1 in the checkpoint, but 0 here; *' train "$config" \
    "${short[@]}" "${here[@]}" --checkpoint.enable --training.steps 4 --job.dump_folder "$PWD/deepseek_v3-half"
check 'start from a model with its head' nibble train "$config" "${short[@]}" "${here[@]}" --training.steps 1 \
    --model.draft_head.loss_weight 0.1 --checkpoint.initial_load_path deepseek_v3-model
refused 3 '*mtp.fc*' train "$config" "${short[@]}" --model.hf_config "$PWD/qwen3_5" --training.steps 1 \
    --model.draft_head.loss_weight 0.1 --checkpoint.initial_load_path "$REPO/tests/golden/models/qwen3_5"

# the loss of a held-out text; recipes; quantization-aware training, whose quantized model keeps the head in float
here=(--model.hf_config "$PWD/qwen3_5" --model.draft_head.loss_weight 0.3 --training.steps 1 --threads 2)
check 'validation' nibble train "$config" "${short[@]}" "${here[@]}" --validation.enable --validation.steps 1 \
    --validation.dataset_path "$REPO/tests/data/heldout.jsonl" --quantize.recipe mxfp8
lines >held.lines
check 'the losses of a held-out text' grep -Eq '^validate step:  1  loss:  [0-9.]+  draft_loss: +[0-9.]+$' held.lines
check 'a dry run' nibble train "$config" "${short[@]}" "${here[@]}" --dry-run --quantize.recipe 8da4w-g8 --quantize.qat
check 'quantization-aware training' nibble train "$config" "${short[@]}" "${here[@]}" --quantize.recipe 8da4w-g8 --quantize.qat --export qat
check 'draft with a quantized model' nibble generate qat-quantized -p Once -n 4 --draft-head --draft-recipe int8wo
nibble plan "$config" "${here[@]:0:4}" --quantize.recipe 8da4w-g8 --quantize.qat | tr -s ' ' >plan.txt
check 'the plan has the layers of the head' grep -q '^ 1 mtp.fc .* qat 8da4w-g8' plan.txt

refused 3 '*: model.draft_head.loss_weight: models of the family llama have no draft head to train; leave the key out, or set it to 0' \
    train "$REPO/configs/llama3_debugmodel.json" "${short[@]}" --model.draft_head.loss_weight 0.3
sed 's/"num_nextn_predict_layers": 1/"num_nextn_predict_layers": 2/' deepseek_v3/config.json >qwen3_5/two.json
refused 3 '*: num_nextn_predict_layers is 2, but one draft head is trained; set it to 1' train "$config" "${short[@]}" \
    --model.hf_config "$PWD/qwen3_5/two.json" --model.draft_head.loss_weight 0.3
refused 2 '--model.draft_head.loss_weight is "-1"; a number from 0 to 1000 is expected' train "$config" "${short[@]}" \
    --model.draft_head.loss_weight -1
check 'a weight of 0 trains no head' nibble train "$config" "${short[@]}" --model.hf_config "$PWD/qwen3_5" --training.steps 1 \
    --model.draft_head.loss_weight 0
lines >none.lines
check 'without a head there is no loss of one' [ "$(grep -c 'loss:.*draft_loss' none.lines)" = 0 ]
