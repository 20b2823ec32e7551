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
mkdir shared
sed 's/"num_kv_shared_layers": 0/"num_kv_shared_layers": 1/' "$gemma/config.json" >shared/config.json
refused 3 '*num_kv_shared_layers is 1; only 0 is supported for gemma4_text' plan shared
