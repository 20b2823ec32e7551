# SPDX-License-Identifier: Apache-2.0
#
# A model on the emulated CUDA device (tests/cuda), whose programs run as C++ on the CPU: a whole token with sampling and
# packing on the device, and training steps with their casts.
emulated=$(dirname "$NIBBLE")/emulated
if [ ! -x "$emulated/nibble" ]; then
    skipped 'cuda' 'no emulated device (make cuda-emulated)'
    exit
fi
here=$NIBBLE
export NIBBLE=$emulated/nibble LD_LIBRARY_PATH=$emulated
check 'the emulated CUDA device is found' nibble devices cuda
# one multiprocessor at 1 GHz; each architecture computes twice as many products as the one before
for rate in '80 2.048' '90 4.096' '100 8.192'; do
    check "bf16 rate of sm_${rate% *}" grep -Eq "^ *bf16 +${rate#* } TFLOP/s\$" <(EMULATED_CUDA_SM=${rate% *} nibble devices cuda)
done

# sampled on the device: the CPU's tokens for the same logits, with weights packed on the device or the host
nibble plan "$MODEL" --device cuda --recipe 8da4w >plan.txt 2>&1
check 'weights are packed on the device' grep -q '37 weights on cuda by pack__sm80, ' plan.txt
drawn() { nibble generate "$MODEL" -p 'Once' -n 2 --device cuda --recipe 8da4w "$@" 2>drawn.err; }
drawn --temp 0 >best.txt
check '--temp 0: sampled on the device' grep -q '^drawn by    sample_f32__sm80_1x1' drawn.err
some=(--temp 0.9 --top-k 50 --seed 3)
there=$(drawn "${some[@]}")
check '--temp 0.9: sampled on the device' grep -q '^drawn by    sample_f32__sm80$' drawn.err
check 'all 36 layers run on the device' grep -q '36 done on cuda/sm80, 0 substituted$' drawn.err
equal 'same tokens when the CPU samples and packs' "$there" "$(drawn "${some[@]}" --without 'sample_f32__sm*' --without pack__sm80)"
check '--without sample_f32__sm*: sampled on the CPU' grep -q '^drawn by    sample_f32__ref' drawn.err

# quantization on the device
for recipe in 8da4w nvfp4; do
    check "quantize to $recipe on the device" nibble quantize "$MODEL" there-$recipe --recipe $recipe --device cuda --quiet
    "$here" quantize "$MODEL" here-$recipe --recipe $recipe --quiet >here.txt
    check "$recipe: same weights as on the CPU" cmp there-$recipe/model.safetensors here-$recipe/model.safetensors
done

# two training steps with each kind of operand, near the CPU's
curves=$REPO/tests/golden/train/curves
for name in bf16 fp8 fp8_tensorwise mxfp8_2256; do
    sampled 3 || continue
    small=("$name" 1 2 --model.dim=64 --model.n_layers=1)
    SEQ_LEN=32 "$curves/run" "$here" "${small[@]}" >here.txt
    SEQ_LEN=32 "$curves/run" "$NIBBLE" "${small[@]}" --device cuda >there.txt 2>err || cat err
    check "$name: the device trains 2 steps" [ "$(wc -l <there.txt)" = 2 ]
    near_curve "$name" here.txt there.txt
done
