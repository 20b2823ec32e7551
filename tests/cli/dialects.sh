# SPDX-License-Identifier: Apache-2.0
#
# Checkpoints of other tools: shown, verified, converted and run; unsupported architectures are not run.
golden=$REPO/tests/golden/dialects

# gpt-oss: experts are stacked in the file
# a few weights of it, without the sizes that its config.json would need: as of an architecture that is not known
cp -r "$golden/gpt_oss" oss
chmod -R u+w oss
sed -i 's/"gpt_oss"/"gpt_oss_text"/' oss/config.json
check 'info reads gpt_oss' nibble info oss
equal 'info lists gate, up and down of three mxfp4 experts, with biases' 9 \
    "$(nibble info oss --json | tr -d '\n ' | grep -o '"format":"mxfp4","scheme":"[^"]*","group":32,"bias":true' | wc -l)"
check 'verify gpt_oss' nibble verify oss
refused 3 '*the architecture "gpt_oss_text" is not supported; *' plan oss
refused 3 '*the architecture "gpt_oss_text" is not supported; *' eval oss --text /dev/null
for format in nibble safetensors; do
    check "convert gpt_oss to $format" nibble convert oss out --format $format --quiet --force
    check "verify gpt_oss as $format" nibble verify out
    same "gpt_oss as $format has the same weights" out oss
done
refused 4 'model.layers.0.mlp.experts.0.*: the format 8da4w cannot hold *' convert oss none --format 8da4w

# DeepSeek's blocks of 128 x 128
mkdir deepseek
cp "$golden/fp8_block/model.safetensors" deepseek
sed 's/^{/{"model_type": "deepseek_v3_text",/' "$golden/fp8_block/config.json" >deepseek/config.json
check 'convert blocks to floats' nibble convert deepseek out --format safetensors --quiet --force
same 'blocks as floats have the same values' out deepseek
check 'convert blocks to compressed-tensors' nibble convert deepseek blocks --format compressed-tensors --quiet
equal 'config.json of compressed-tensors describes the blocks' 1 "$(tr -d '\n ' <blocks/config.json | grep -c '"strategy":"block","group_size":null,"block_structure":\[128,128\]')"
same 'blocks in compressed-tensors have the same values' blocks deepseek

# GPTQ with act-order can be planned; an unsupported quant_method is named
nibble plan "$golden/gptq_model" >plan.txt
check 'the plan notes act-order' grep -q '^note: 7 weights have their columns in act-order' plan.txt
# a recipe with the same integer zero points keeps the codes and uses the same kernels
kernels() { nibble plan "$@" --layer '*.o_proj' | grep -o 'RUNS *linear_[^ ]*' | sort -u; }
check 'the plan names the kernels of o_proj' [ -n "$(kernels "$golden/gptq_model")" ]
equal 'same kernels with a recipe of the same scheme' "$(kernels "$golden/gptq_model")" "$(kernels "$golden/gptq_model" --recipe int4wo-g32-intzero --skip lm_head)"
equal 'same kernels for floats quantized to that scheme' "$(kernels "$golden/gptq_model")" "$(kernels "$MODEL" --recipe int4wo-g32-intzero)"
cp -r "$golden/gptq_model" m
sed -i 's/"gptq",/"hqq",/' m/config.json
refused 3 '*quant_method "hqq" is not supported; read it with transformers with hqq*' info m
check 'convert act-order to nibble' nibble convert "$golden/gptq_model" kept --format nibble --quiet
same 'act-order as nibble has the same weights' kept "$golden/gptq_model"
refused 4 '*act-order*; --format nibble holds it' convert "$golden/gptq_model" none --format torchao
refused 4 '*k = 140 is not a multiple of the group size 32*; --format nibble holds it' convert "$golden/gptq_model" none --format compressed-tensors
