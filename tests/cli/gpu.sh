# SPDX-License-Identifier: Apache-2.0
#
# A real NVIDIA GPU, with a program of `make CUDA=1`: every recipe and family next to the CPU, sampling and packing on the device,
# files quantized there, and training's curves. `make test-gpu` runs it.
if ! ls /dev/nvidia[0-9]* >device.txt 2>&1 || ! nibble devices cuda >device.txt 2>"$seen.err"; then
    skipped 'gpu' 'this machine has no NVIDIA GPU, or the program no CUDA'
    exit
fi
head -c 1500 "$MODEL/heldout.txt" >text.txt

# the whole step on the device
for recipe in f32 f16 bf16 int8wo int4wo int4wo-intzero fp8wo mxfp4 nvfp4; do
    option=(--recipe "$recipe")
    near "$recipe" "$(text_loss "$MODEL" "${option[@]}")" "$(text_loss "$MODEL" --device cuda "${option[@]}")"
done
# With quantized activations the last bit of a sum may change a code, so that losses agree only over more tokens.
head -c 24000 "$MODEL/heldout.txt" >text.txt
for recipe in int8dq 8da4w fp8dq mxfp8 mxfp4dq; do
    option=(--recipe "$recipe")
    near "$recipe" "$(text_loss "$MODEL" "${option[@]}")" "$(text_loss "$MODEL" --device cuda "${option[@]}")"
done
# A changed 4-bit code changes everything after it, so long texts cannot be compared: of eight short ones in f32, six must have the
# CPU's loss, and the others one near it.
for recipe in nvfp4dq; do
    option=(--recipe "$recipe" --dtype f32)
    alike=0
    for part in 1 2 3 4 5 6 7 8; do
        tail -c +$((part * 2000)) "$MODEL/heldout.txt" | head -c 60 >text.txt
        here=$(text_loss "$MODEL" "${option[@]}") there=$(text_loss "$MODEL" --device cuda "${option[@]}")
        awk -v a="$here" -v b="$there" 'BEGIN { exit !(a > 0 && b > 0 && a - b < 1e-5 && b - a < 1e-5) }' && alike=$((alike + 1))
        check "$recipe: loss $here, $there with the device" awk -v a="$here" -v b="$there" 'BEGIN { exit !(a > 0 && b > 0 && a - b < 0.05 && b - a < 0.05) }'
    done
    check "$recipe: $alike of 8 short texts have the CPU's loss" [ $alike -ge 6 ]
done
head -c 1500 "$MODEL/heldout.txt" >text.txt
for cache in f32 f16 bf16; do
    option=(--recipe int4wo --cache-type "$cache")
    near "cache $cache" "$(text_loss "$MODEL" "${option[@]}")" "$(text_loss "$MODEL" --device cuda "${option[@]}")"
done

# families with olmo2's 272 tokens; tests/unit/test_network.c compares the logits of all
for file in "$REPO"/tests/golden/gguf/*.gguf; do
    case $file in */deepseek_v[23].gguf) continue ;; esac
    option=(--recipe weight-only --tokenizer "$REPO/tests/golden/gguf/olmo2.gguf")
    near "$(basename "$file")" "$(text_loss "$file" "${option[@]}")" "$(text_loss "$file" --device cuda "${option[@]}")"
done

# the device samples the CPU's tokens from the same logits, with weights packed on the device or the host
drawn() { nibble generate "$MODEL" -p 'Once upon a time' -n 48 --device cuda --recipe 8da4w "$@" 2>drawn.err; }
for how in '--temp 0' '--temp 1 --top-k 50 --seed 3' '--temp 0.7 --top-k 256 --top-p 0.9 --min-p 0.02'; do
    read -ra how <<<"$how"
    there=$(drawn "${how[@]}")
    check "${how[*]}: sampled on the device" grep -q '^drawn by    sample_f32__sm80' drawn.err
    check "${how[*]}: all layers run on the device" grep -q '36 done on cuda/sm80, 0 substituted$' drawn.err
    equal "${how[*]}: same tokens when the CPU samples and packs" "$there" "$(drawn "${how[@]}" --without 'sample_f32__sm*' --without pack__sm80)"
done

# weights quantized on the device
for recipe in int8wo int4wo 8da4w fp8wo mxfp8 mxfp4 nvfp4; do
    check "quantize to $recipe on the device" nibble quantize "$MODEL" there-$recipe --recipe $recipe --device cuda --quiet
    check "quantize to $recipe on the CPU" nibble quantize "$MODEL" here-$recipe --recipe $recipe --quiet
    check "$recipe: same weights as on the CPU" cmp there-$recipe/model.safetensors here-$recipe/model.safetensors
done

# the golden curves, with linear layers on the device
curves=$REPO/tests/golden/train/curves
for name in bf16 fp8 fp8_tensorwise mxfp8_2256; do
    "$curves/run" "$NIBBLE" $name 2 3 --device cuda >there.txt 2>err || cat err
    check "$name: three steps are logged" [ "$(wc -l <there.txt)" = 3 ]
    near_curve "$name" "$curves/${name}_2x256.txt" there.txt
done
