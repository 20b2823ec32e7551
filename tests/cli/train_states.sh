# SPDX-License-Identifier: Apache-2.0
#
# Models whose layers keep a state in place of keys and values train: short convolutions, gated DeltaNet and Mamba-2. The same losses
# on every machine; what is exported runs; a run resumes where it stopped.
short=(--quiet --training.local_batch_size 1 --training.global_batch_size 2 --training.seq_len 48 --lr_scheduler.warmup_steps 0
    --lr_scheduler.decay_ratio 0 --threads 2)
config=$REPO/configs/qwen3_moe_debugmodel.json
for family in lfm2 qwen3_next qwen3_5 granite_hybrid granite_hybrid_moe; do
    mkdir "$family"
    sed 's/"vocab_size": [0-9]*/"vocab_size": 2048/' "$REPO/tests/golden/models/$family/config.json" >"$family/config.json"
    here=(--model.hf_config "$PWD/$family" --checkpoint.interval 2 --checkpoint.enable)
    check "train $family" nibble train "$config" "${short[@]}" "${here[@]}" --training.steps 3 --job.dump_folder "$PWD/$family-whole" \
        --export "$PWD/$family-model"
    echo "$family"
    sed 's/  memory:.*//; /^model:/d' "$seen.out" | tee whole.lines
    check "generate with the trained $family" nibble generate "$family-model" --prompt Once -n 4
    check "two steps of $family" nibble train "$config" "${short[@]}" "${here[@]}" --training.steps 2 --job.dump_folder "$PWD/$family-half"
    check "one more step of $family" nibble train "$config" "${short[@]}" "${here[@]}" --training.steps 3 \
        --job.dump_folder "$PWD/$family-half"
    sed 's/  memory:.*//' "$seen.out" | tail -n 1 >half.lines
    check "$family resumes with the same loss" diff <(tail -n 1 whole.lines) half.lines
    rm -rf "$family-half" "$family-whole" "$family-model"
done
for recipe in mxfp8 8da4w-g8; do
    qat=()
    if [ $recipe = 8da4w-g8 ]; then
        qat=(--quantize.qat)
    fi
    check "train LFM2 in $recipe" nibble train "$config" "${short[@]}" --model.hf_config "$PWD/lfm2" --training.steps 1 \
        --quantize.recipe=$recipe "${qat[@]}"
    check "dry run of LFM2 in $recipe" nibble train "$config" "${short[@]}" --model.hf_config "$PWD/lfm2" --dry-run \
        --quantize.recipe=$recipe "${qat[@]}"
done
# models to start from
refused 3 '*: a GGUF of qwen3_5_text has weights in another form than other formats, and cannot be trained; *' train "$config" \
    "${short[@]}" --model.hf_config "$PWD/qwen3_5" --checkpoint.initial_load_path "$REPO/tests/golden/gguf/qwen35.gguf"
check 'a model to start from' nibble train "$config" "${short[@]}" --model.hf_config "$PWD/qwen3_5" --training.steps 1 --export from
check 'start from it' nibble train "$config" "${short[@]}" --model.hf_config "$PWD/qwen3_5" --training.steps 1 \
    --checkpoint.initial_load_path from
mkdir heads taps
sed 's/"linear_num_\(key\|value\)_heads": 2/"linear_num_\1_heads": 4/; s/"linear_key_head_dim": 20/"linear_key_head_dim": 10/
     s/"linear_value_head_dim": 72/"linear_value_head_dim": 36/' qwen3_5/config.json >heads/config.json
sed 's/"linear_conv_kernel_dim": 4/"linear_conv_kernel_dim": 3/' qwen3_5/config.json >taps/config.json
refused 3 '*: recurrent layers have 2 heads of keys and 2 of values, but the config*s have 4 and 4' train "$config" "${short[@]}" \
    --model.hf_config "$PWD/heads" --checkpoint.initial_load_path from
refused 3 '*: the model*s norms differ from the config*s' train "$config" "${short[@]}" --model.hf_config "$PWD/taps" \
    --checkpoint.initial_load_path from
