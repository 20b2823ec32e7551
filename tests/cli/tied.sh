# SPDX-License-Identifier: Apache-2.0
#
# A tied table that is quantized: stored, read, converted and made again once; twice where the format cannot, or the schemes differ.
cp -r "$MODEL" tied
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' tied/config.json
"$REPO/tests/cli/tensors" tied/model.safetensors drop lm_head.weight
rm -f tied/nibble.json
head -c 2000 tied/heldout.txt >text.txt
size_of() { stat -c %s "$1"; }
heads() { nibble info "$1" | grep -c '^ *1  lm_head.weight '; }

want=$(text_loss tied --recipe 8da4w+head+embed)
for format in torchao nibble compressed-tensors; do
    nibble quantize tied q --recipe 8da4w+head+embed --format $format --force >out
    check "$format: verify makes it again" nibble verify q --from tied
    equal "$format: the loss of tables that are quantized at load" "$want" "$(text_loss q)"
    once=1
    [ $format = compressed-tensors ] && once=0
    equal "$format: heads" "$((1 - once))" "$(heads q)"
    equal "$format: config.json" "$once" "$(grep -c '"tie_word_embeddings": true' q/config.json)"
    equal "$format: said" "$((1 - once))" "$(tr -s ' \n' ' ' <out | grep -c 'equivalent: lm_head.weight (checkpoint): it shared the tensor model.embed_tokens.weight; .*--format nibble stores them once')"
done
nibble quantize tied q --recipe 8da4w+head+embed --force >out
check 'the default is the smallest' told 'in 1 file, format nibble,'
check 'it has four and a half bits per weight' told '4.[56][0-9]* bits per weight'
nibble plan q >out
check 'the plan counts the table once' told 'weights [0-9.]* MB as planned (4.[5-7][0-9]* bits per weight)'
for format in torchao compressed-tensors; do
    check "convert to $format" nibble convert q c --format $format --quiet --force
    equal "$format: the same loss" "$want" "$(text_loss c)"
done

nibble quantize tied q.gguf --recipe int4wo-sym-ggml+head+embed --format gguf --quiet >out
equal 'GGUF: heads' 0 "$(heads q.gguf)"
check 'GGUF: verify makes it again' nibble verify q.gguf --from tied
check 'GGUF to a directory' nibble convert q.gguf c --format nibble --quiet --force
same 'a directory of a GGUF: the same weights' c q.gguf
equal 'and one table' 0 "$(heads c)"

nibble quantize tied q --recipe 8da4w+head+embed-int8wo --format nibble --force >out
equal 'two schemes: two tables' 1 "$(heads q)"
check 'said' told 'equivalent: lm_head.weight (checkpoint): it shared the tensor model.embed_tokens.weight; it is written as a tensor of its own'
equal 'and no format would store one' 0 "$(grep -c 'stores them once' out)"
