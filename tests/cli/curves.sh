# SPDX-License-Identifier: Apache-2.0
#
# The first steps of every golden curve, bit for bit: loss and gradient norm of the debug model in f32, bf16, fp8, MXFP8 with 2048
# and 2256 outputs, with the 2256 output converted or kept, and quantization-aware training. With NIBBLE_TEST_ALL more steps, and
# all ten of one curve.
curves=$REPO/tests/golden/train/curves
few=2 more=3
[ -z "${NIBBLE_TEST_ALL:-}" ] || few=3 more=10
while read -r name _; do
    steps=$few
    [ "$name" != mxfp8_2256 ] || steps=$more
    "$curves/run" "$NIBBLE" "$name" 2 $steps >"$name.txt" 2>err || cat err
    check "$name: same bits as the golden curve" cmp "$name.txt" <(head -n $steps "$curves/${name}_2x256.txt")
done <"$curves/list"
"$curves/run" "$NIBBLE" mxfp8_2256 2 $few --isa avx2 -t 1 >other.txt
check 'mxfp8_2256: same bits with AVX2 and one thread' cmp other.txt <(head -n $few "$curves/mxfp8_2256_2x256.txt")
