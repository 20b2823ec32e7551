# SPDX-License-Identifier: Apache-2.0
#
# Gemma 4: planned as asked, converted to a GGUF and back, quantized, and not trained.
gemma=$REPO/tests/golden/models/gemma4
dense=$REPO/tests/golden/models/gemma4_dense

for model in "$gemma" "$dense" "$REPO/tests/golden/gguf/gemma4.gguf"; do
    check "plan $model as asked" nibble plan "$model" --strict
done
for model in "$gemma" "$dense"; do
    check 'convert to GGUF' nibble convert "$model" as.gguf --format gguf --quiet --force
    same 'the GGUF has the same weights' as.gguf "$model"
    check 'convert the GGUF back' nibble convert as.gguf back --format safetensors --quiet --force
    same 'the model that is back has the same weights' back "$model"
    check 'plan it as asked' nibble plan back --strict
done
# the keys of a GGUF say which layers have which heads
nibble convert "$gemma" as.gguf --format gguf --quiet --force
nibble plan as.gguf --json >gguf.json
nibble plan "$gemma" --json >own.json
equal 'keys and values take as much' "$(grep -o '"cache_bytes": *[0-9]*' own.json)" "$(grep -o '"cache_bytes": *[0-9]*' gguf.json)"
check 'quantize' nibble quantize "$gemma" quantized --recipe 8da4w-g32 --quiet
check 'verify it' nibble verify quantized

# E2B's kind: layers that share keys and values, and have inputs of their own
shared=$REPO/tests/golden/models/gemma4_shared
small=$REPO/tests/golden/gguf/gemma4_shared.gguf
for model in "$shared" "$small"; do
    check "plan $model as asked" nibble plan "$model" --strict
done
check 'plan the layers that share' nibble plan "$shared"
tr -s ' \n' ' ' <"$seen.out" >plan.txt
check 'weights that are not read' grep -q 'layers 5 to 8 share the keys and values of earlier layers, so 12 stored tensors' plan.txt
check 'the cache of 5 of 9 layers' grep -q '384 B a token; 4 of 5 layers keep only 640 positions, for their window; 4 more layers share theirs' plan.txt
check 'quantize' nibble quantize "$shared" quantized --recipe 8da4w-g32+embed --quiet --force
check 'verify it' nibble verify quantized
check 'run it' nibble plan quantized --strict
check 'convert the GGUF' nibble convert "$small" as --format safetensors --quiet --force
check 'convert it back' nibble convert as again.gguf --format gguf --quiet --force
same 'the GGUF that is back has the same weights' again.gguf as
for model in "$small" as again.gguf; do
    nibble plan "$model" --json >plan.json
    grep -o '"cache_bytes": *[0-9]*' plan.json
done >caches
equal 'keys and values take as much' 1 "$(sort -u caches | wc -l)"
refused 3 '*layers that share keys and values would read those of other layers in a GGUF*' convert "$shared" as.gguf --format gguf --force
# more tokens stored than the config has, and fewer rows for their inputs in layers
cp -r "$shared" bad
chmod -R u+w bad
sed -i 's/"vocab_size": 181/"vocab_size": 170/; s/"vocab_size_per_layer_input": 190/"vocab_size_per_layer_input": 170/' bad/config.json
for _ in 1 2 3 4 5 6 7 8 9 10; do
    "$REPO/tests/cli/tensors" bad/model.safetensors cut model.embed_tokens_per_layer.weight
done
refused 3 'bad: model.embed_tokens_per_layer.weight has 180 rows, but model.embed_tokens.weight has 181; each token needs a row' plan bad
