# SPDX-License-Identifier: Apache-2.0
#
# What could be silent (tests/SILENT.md) in recipes and written models: keys given twice or not read, lists in both an option
# and a file, options without effect, and the description inside a written model.
model=$MODEL

# done_of MODEL ARGUMENT...: the distinct schemes of its layers
done_of() {
    nibble plan "$@" --json --quiet | python3 -c 'import json, sys; print(*sorted({l["done"].split("@")[0] for l in json.load(sys.stdin)["layers"]}))'
}

# weight-only also applies to the rest
nibble quantize "$model" codes --recipe 8da4w --format nibble --quiet >out 2>err
equal 'weight-only for the rest' 'bf16 int4wo-g32-sym' "$(done_of codes --recipe '{"else": "weight-only"}')"
equal 'weight-only as "recipe"' 'bf16 int4wo-g32-sym' "$(done_of codes --recipe '{"recipe": "weight-only"}')"

# two values of one key, at any depth
int8='{"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}'
refused 3 '*: "group_size" is given twice' plan "$model" --recipe '{"_type": "Int4WeightOnlyConfig", "_version": 2, "_data": {"group_size": 32, "group_size": 64}}'
refused 3 '*: "_type" is given twice' plan "$model" --recipe '{"_type": "Int8WeightOnlyConfig", "_type": "Int4WeightOnlyConfig", "_version": 2, "_data": {}}'
refused 3 '*: "groupsize" is given twice' plan "$model" --recipe '{"linear:int4": {"groupsize": 32, "groupsize": 64}}'
refused 3 '*: "lm_head" is given twice' plan "$model" --recipe "{\"_type\": \"FqnToConfig\", \"_version\": 1, \"_data\": {\"fqn_to_config\": {\"lm_head\": $int8, \"lm_head\": null}}}"
equal 'one key in two objects is accepted' 'bf16 int4wo-g64' "$(done_of "$model" --recipe '{"rules": [{"match": "lm_head", "scheme": "keep"}, {"match": "*.*", "scheme": "int4wo-g64"}]}')"

# torchao's configs: misplaced keys, and two keys for the same setting
refused 3 '*: "group_size" is beside "_type"; settings belong in "_data"' plan "$model" --recipe '{"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}, "group_size": 32}'
refused 3 '*: PerGroup has no setting "groupsize"' plan "$model" --recipe '{"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {"granularity": {"_type": "PerGroup", "_version": 1, "_data": {"groupsize": 32}}}}'
refused 3 '*: group_size and granularity both say what shares a scale; *' plan "$model" --recipe '{"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {"group_size": 32, "granularity": {"_type": "PerRow", "_data": {}}}}'
row='{"_type": "PerRow", "_data": {}}'
refused 3 '*: granularity is a list of more than two items; *' plan "$model" --recipe "{\"_type\": \"Int8DynamicActivationInt8WeightConfig\", \"_version\": 2, \"_data\": {\"granularity\": [$row, {\"_type\": \"PerTensor\", \"_data\": {}}, $row]}}"
refused 3 '*: fqn_to_config and module_fqn_to_config differ; *' plan "$model" --recipe "{\"_type\": \"FqnToConfig\", \"_version\": 1, \"_data\": {\"fqn_to_config\": {\"lm_head\": null}, \"module_fqn_to_config\": {\"_default\": $int8}}}"
equal 'an empty fqn_to_config beside module_fqn_to_config' 'bf16 int8wo' "$(done_of "$model" --recipe "{\"_type\": \"FqnToConfig\", \"_version\": 1, \"_data\": {\"fqn_to_config\": {}, \"module_fqn_to_config\": {\"_default\": $int8}}}")"
refused 3 '*: FqnToConfig version 9 is not supported; *' plan "$model" --recipe "{\"_type\": \"FqnToConfig\", \"_version\": 9, \"_data\": {\"fqn_to_config\": {\"_default\": $int8}}}"
setting 'not as asked: Int8DynamicActivationInt8WeightConfig version 1 (recipe): layers are quantized as by version 2' plan "$model" --recipe '{"_type": "Int8DynamicActivationInt8WeightConfig", "_version": 1, "_data": {}}'
equal 'version 2 of a config is not reported' '' "$(settings plan "$model" --recipe "$int8")"

refused 3 '*: Float8DynamicActivationFloat8WeightConfig: kernel_preference has no value "SCALAR"' plan "$model" --recipe '{"_type": "Float8DynamicActivationFloat8WeightConfig", "_version": 2, "_data": {"kernel_preference": {"_type": "KernelPreference", "_data": "SCALAR"}}}'
refused 3 '*: NVFP4DynamicActivationNVFP4WeightConfig: step has no value "later"' plan "$model" --recipe '{"_type": "NVFP4DynamicActivationNVFP4WeightConfig", "_version": 1, "_data": {"step": "later"}}'

# Hugging Face's object around torchao's configs
refused 3 '*: quant_type holds more than "default"' plan "$model" --recipe "{\"quant_type\": {\"default\": $int8, \"other\": $int8}}"
setting 'without effect: quant_type_kwargs (recipe): quant_type is a config' plan "$model" --recipe "{\"quant_type\": {\"default\": $int8}, \"quant_type_kwargs\": {\"group_size\": 64}}"
refused 3 '*: quant_type_kwargs is neither an object nor null' plan "$model" --recipe '{"quant_type": "int8_weight_only", "quant_type_kwargs": [32]}'
refused 3 '*: "mx" and "float8" can each hold a recipe; *' plan "$model" --recipe '{"mx": {"recipe_name": "mxfp8"}, "float8": {"recipe_name": "rowwise"}}'
cp -r "$model" tied
"$REPO/tests/cli/tensors" tied/model.safetensors drop lm_head.weight
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' tied/config.json
setting 'without effect: untie_embedding_weights true (recipe): lm_head and the embedding stay one tensor' plan tied --recipe "{\"quant_type\": {\"default\": $int8}, \"untie_embedding_weights\": true}"
equal 'untie_embedding_weights is followed if both are quantized' '' "$(settings plan tied --recipe "{\"quant_type\": {\"default\": $int8}, \"untie_embedding_weights\": true, \"include_input_output_embeddings\": true}")"

# only layers that are in both lists
denied '--recipe {*} (option): it quantizes no layer: *' plan "$model" --recipe '{"recipe": "8da4w", "only": ["*.q_proj"]}' --only '*.k_proj' --strict
setting 'without effect: only lm_head (recipe): it quantizes nothing: a tied output is kept' plan tied --recipe '{"recipe": "8da4w", "only": ["lm_head", "*.q_proj"]}'

# a written model describes itself: one made as requested has no settings lines
for made in "convert $model --format safetensors --dtype f32" "convert codes --format safetensors" "quantize $model --recipe f16"; do
    read -r command from rest <<<"$made"
    # shellcheck disable=SC2086 # words are meant
    check "$made" nibble "$command" "$from" made $rest --force --quiet
    equal "no settings after $made" '' "$(settings plan made)"
done
check 'torch_dtype stays if no other type is asked for' grep -q '"torch_dtype": "bfloat16"' codes/config.json
nibble quantize "$model" made --recipe 8da4w+head-f32 --force --quiet >out 2>err
equal 'no settings after quantize --recipe 8da4w+head-f32' '' "$(settings plan made)"
setting 'in part: --dtype f32 (option): 26 norms, biases and other tensors keep their own type' convert "$model" made --format safetensors --dtype f32 --force
equal '--dtype bf16 of a bf16 model is not reported' '' "$(settings convert "$model" made --format safetensors --dtype bf16 --force)"

# activations that a format cannot store
setting 'in part: model.layers.0.self_attn.q_proj 8da4w-g32 (checkpoint): activations of 36 layers are quantized, which the format safetensors' \
    convert codes made --format safetensors --force
nibble quantize "$model" blocks.gguf --recipe int4wo-sym-ggml --format gguf --quiet >out 2>err
setting 'in part: model.layers.0.self_attn.q_proj i4+a8b32-g32 (checkpoint): activations of 36 layers are quantized, which the format nibble' \
    convert blocks.gguf made --format nibble --force
equal 'weight-only drops activations without a line' '' "$(settings quantize blocks.gguf made --recipe weight-only --format nibble --force)"

# options and names without effect, and remedies that a command offers
refused 2 '--tokenizer has no effect: the format torchao has no tokenizer inside*' quantize "$model" out --recipe 8da4w --tokenizer "$model"
refused 2 'out.gguf: the name ends in .gguf, but no format is given; *' quantize "$model" out.gguf --recipe 8da4w
refused 2 'out.gguf: the name ends in .gguf, but the format is nibble; *' convert "$model" out.gguf --format nibble
cp -r "$model" large
"$REPO/tests/cli/tensors" large/model.safetensors put lm_head.weight 0 0048
refused 3 'lm_head.weight: the value 131072 at index 0 is too large for f16; give bf16 or f32' convert large made --format safetensors --dtype f16 --force
refused 3 'lm_head.weight: the value * is too large for f16; * keep the layer with --skip' quantize large made --recipe f16 --force

# files that are not copied to the output
nibble quantize "$model" made --recipe 8da4w --format torchao --force --json >out 2>err
check 'quantize names files that are not copied' grep -q '"2 files beside the weights are not copied: README.md, heldout.txt"' out
nibble convert made again --format nibble --json >out 2>err
equal 'convert copies all files: no note' 0 "$(grep -c 'beside the weights' out)"

# a torchao config with another scheme than the tensors
cp -r made other
sed -i 's/"group_size": 32/"group_size": 16/' other/config.json
setting 'not as asked: model.layers.0.self_attn.q_proj 8da4w-g16 (config): quantization_config and the stored tensors differ on 35 layers; the stored scheme is used: 8da4w-g32' plan other
denied '*quantization_config and the stored tensors differ*--allow quantization-config accepts it' generate other -p x -n 1 --strict --quiet
equal 'settings of convert --dry-run' 'quantization-config=other' "$(settings convert other again --format nibble --dry-run)"
for recipe in int8wo int8wo-tensor int8dq-actasym int4wo int4wo-intzero 8da4w-row fp8dq mxfp8-floor mxfp4dq nvfp4 nvfp4dq-block 8da4w+embed+head-int8wo; do
    nibble quantize tied made --recipe "$recipe" --force --quiet >out 2>err
    equal "no settings after quantize --recipe $recipe" '' "$(settings plan made)"
done
