# SPDX-License-Identifier: Apache-2.0
#
# Follows every piece of advice in plans: its option does what the advice says, or it has no option.
recipes=(8da4w 8da4w-g7 int4wo-g7 int4wo-intzero int8wo-g7 4da4w mxfp8 nvfp4dq)
cp -r "$MODEL" odd # widths that the group size does not divide
sed -i 's/"intermediate_size": [0-9]*/"intermediate_size": 601/; s/"vocab_size": [0-9]*/"vocab_size": 2251/' odd/config.json
nibble quantize "$MODEL" codes --recipe int8wo-g32-ggml --format nibble --quiet 2>err || check 'quantize to int8wo-g32-ggml' false
{
    for recipe in "${recipes[@]}"; do
        for device in cpu opencl mi210 a100 b200 apple-m2 graviton3; do
            sampled 3 || continue
            echo "$MODEL --recipe $recipe --device $device"
            echo "odd/config.json --recipe $recipe --device $device --strict"
        done
    done
    for more in '--kernel linear_a8t_w4g_f32__i8mm_8x8' "--without 'linear_a8t*'" '--cache-type int8' \
        "--without 'attn_*' --without 'norm_*'" '--dtype f16' '--dtype f32 --strict'; do
        for device in cpu opencl mi210 apple-m2 h200; do
            sampled 3 || continue
            echo "$MODEL --recipe 8da4w --device $device $more"
            echo "$MODEL --recipe 8da4w --device $device $more --strict"
        done
    done
    for model in llama3_debugmodel_mxfp8_vocab2256 llama3_8b_mxfp8; do
        for device in cpu opencl b200 h200; do
            echo "$REPO/configs/$model.json --device $device"
            echo "$REPO/configs/$model.json --device $device --without 'linear_d?_mx8*'"
        done
    done
    echo "codes --recipe int8dq"
    echo "$REPO/tests/golden/gguf/llama.gguf --layer '*'"
    echo "$REPO/tests/golden/gguf/llama.gguf --recipe weight-only --layer '*'"
    echo "$REPO/configs/llama3_8b_mxfp8.json --dtype f16"
    echo "codes --recipe 8da4w --device mi210"
} >plans.txt
"$REPO/tests/cli/follow" <plans.txt >followed.txt || cat followed.txt
equal 'all advice works' ' 0 failed' "$(sed 's/.*,//' followed.txt | tail -n 1)"
equal 'plans give every kind of advice' 'kinds: activations allow dtype kernel recipe slower' "$(grep '^kinds' followed.txt)"
# text and JSON say the same; with --layer the text covers only that layer
grep -v -e --layer plans.txt | "$REPO/tests/cli/same_words" >words.txt || cat words.txt
equal 'text says what JSON says' ' 0 missing' "$(sed 's/.*,//' words.txt | tail -n 1)"
