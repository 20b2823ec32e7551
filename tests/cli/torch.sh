# SPDX-License-Identifier: Apache-2.0
#
# PyTorch's files: a prequantized model with biases in one call, converted without loss; Meta's and gpt-fast's layouts;
# the original stories260K.
golden=$REPO/tests/golden/torch

# 8da4w with biases, as pytorch_model.bin
equal 'info: number of layers with a bias' 7 "$(nibble info "$golden/8da4w_bias" | grep -c '8da4w .*with a bias')"
check 'plan 8da4w with biases' nibble plan "$golden/8da4w_bias"
check 'verify 8da4w with biases' nibble verify "$golden/8da4w_bias"
for model in 8da4w_bias 8da4w_plain meta meta_float gptfast_int8/model_int8.pth gptfast_int4/model_int4.g32.pth; do
    for format in torchao nibble; do
        check "convert $model to $format" nibble convert "$golden/$model" out --format $format
        same "$model equals its $format" out "$golden/$model"
        same "$format of $model equals it" "$golden/$model" out
        rm -rf out out.nibble.json
    done
done
check 'convert 8da4w to 8da4w' nibble convert "$golden/8da4w_bias" out --format 8da4w
same '8da4w converted to 8da4w is equal' out "$golden/8da4w_bias"
rm -rf out

# PyTorch's files are not read beside safetensors; unreadable ones are refused with advice
cp -r "$golden/8da4w_plain" both
cp "$golden/8da4w_bias/pytorch_model.bin" both
check 'info says that safetensors are read instead' grep -q 'pytorch_model.bin (checkpoint): model.safetensors is read' <(nibble info both)
cp -r "$golden/meta" parts
cp parts/consolidated.00.pth parts/consolidated.01.pth
refused 3 'parts: the model is split for several devices (consolidated.00.pth, consolidated.01.pth and so on)*' plan parts
rm parts/consolidated.01.pth
sed -i 's/"spinquant": false/"spinquant": true/' parts/params.json
refused 3 'params.json: spinquant is true: *Hadamard*' plan parts
check 'info of a model with spinquant' nibble info parts
rm parts/params.json
refused 3 'parts/consolidated.00.pth: there is no config.json beside it*' plan parts/consolidated.00.pth
refused 3 '*module.pt: data.pkl names torch.nn.modules.linear.Linear*nothing in the file was executed*' info "$golden/module.pt"

# karpathy's 260K Llama, trained with PyTorch: its config is in the file, its tokenizer in the GGUF
if [ -n "${NIBBLE_TEST_DATA:-}" ]; then
    stories=$NIBBLE_TEST_DATA/weights/stories260K
    equal 'stories260K generates the text of its readme' \
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. She wanted to play with it, but it was too high." \
        "$(nibble generate "$stories/stories260K.pt" --tokenizer "$stories/stories260K.gguf" -p '' --temp 0 -n 256 -q | head -n 1)"
    equal 'loss of stories260K' 1.3061 "$(nibble eval "$stories/stories260K.pt" --tokenizer "$stories/stories260K.gguf" \
        --text "$NIBBLE_TEST_DATA/text/tinystories_40.jsonl" --context 256 -q --json | sed -n 's/.*"loss": \([0-9.]\{6\}\).*/\1/p')"
    # the file has rows of q and k in rotary pairs; outputs have them in Hugging Face's order
    loss() {
        nibble eval "$1" --tokenizer "$stories/stories260K.gguf" --text "$NIBBLE_TEST_DATA/text/tinystories_40.jsonl" --context 256 \
            -q --json "${@:2}" | sed -n 's/.*"loss": \([0-9.]\{6\}\).*/\1/p'
    }
    for format in safetensors nibble; do
        check "convert stories260K to $format" nibble convert "$stories/stories260K.pt" out --format $format
        equal "loss of stories260K as $format" 1.3061 "$(loss out)"
        same "stories260K equals its $format" out "$stories/stories260K.pt"
        rm -rf out out.nibble.json
    done
    check 'quantize stories260K' nibble quantize "$stories/stories260K.pt" out --recipe 8da4w
    equal 'quantized to a file or while loading: the same loss' "$(loss "$stories/stories260K.pt" --recipe 8da4w)" "$(loss out)"
else
    skipped 'torch, stories260K' 'data not at hand, see tests/data/README.md'
fi
