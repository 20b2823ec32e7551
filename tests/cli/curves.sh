# SPDX-License-Identifier: Apache-2.0
#
# Three steps of every golden curve and all ten of one, bit for bit: loss and gradient norm of the debug model in f32,
# bf16, fp8, MXFP8 with 2048 and 2256 outputs, with the 2256 output converted or kept, and quantization-aware training.
curves=$REPO/tests/golden/train/curves
while read -r name _; do
    steps=3
    [ "$name" != mxfp8_2256 ] || steps=10
    "$curves/run" "$NIBBLE" "$name" 2 $steps >"$name.txt" 2>err || cat err
    check "$name: same bits as the golden curve" cmp "$name.txt" <(head -n $steps "$curves/${name}_2x256.txt")
done <"$curves/list"
"$curves/run" "$NIBBLE" mxfp8_2256 2 3 --isa avx2 -t 1 >other.txt
check 'mxfp8_2256: same bits with AVX2 and one thread' cmp other.txt <(head -n 3 "$curves/mxfp8_2256_2x256.txt")
