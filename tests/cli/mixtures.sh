# SPDX-License-Identifier: Apache-2.0
#
# Mixtures of experts: written in every format and read back; files and configs that do not fit, with nothing left behind.
models=$REPO/tests/golden/models
tensors() { "$REPO/tests/cli/tensors" "$@"; }

# written and read back: the same values, in every format that can hold them
for family in qwen3_moe mixtral glm4_moe granitemoe gpt_oss granite_hybrid granite_hybrid_moe; do
    for format in nibble torchao compressed-tensors; do
        rm -rf codes back
        check "$family: int8 in $format" nibble quantize "$models/$family" codes --recipe int8wo --format $format --quiet
        check "$family: verify int8 in $format" nibble verify codes
        check "$family: $format runs as stored" nibble plan codes --strict --quiet
        check "$family: $format to nibble" nibble convert codes back --format nibble --quiet
        same "$family: $format as nibble has the same values" back codes
    done
    rm -rf floats
    check "$family: to safetensors" nibble convert "$models/$family" floats --format safetensors --quiet
    same "$family: safetensors have the same values" floats "$models/$family"
done
check 'gpt_oss: 8da4w, whose experts are of whole groups' nibble quantize "$models/gpt_oss" codes8 --recipe 8da4w-g32 --format 8da4w --quiet
check 'gpt_oss: 8da4w is read back' nibble verify codes8
# what a format cannot hold is said, with the expert, its shape and the format that holds it
refused 4 'model.layers.0.mlp.experts.0.down_proj: the format 8da4w cannot hold 8da4w-g32 at 64 x 36: k = 36 *--format nibble holds it' \
    quantize "$models/qwen3_moe" no --recipe 8da4w-g32 --format 8da4w
refused 4 'model.layers.0.block_sparse_moe.experts.0.w2: the format compressed-tensors cannot hold 8da4w-g32 at 64 x 52*--format nibble holds it' \
    quantize "$models/mixtral" no --recipe 8da4w-g32 --format compressed-tensors
# the router is left alone, and the config says so
check 'compressed-tensors lists the routers' grep -q '"model.layers.2.mlp.gate"' <(nibble quantize "$models/qwen3_moe" listed --recipe int8wo \
    --format compressed-tensors --quiet && cat listed/config.json)

# bad GLOB: every command refuses the model, and leaves nothing behind
bad() {
    for command in plan 'quantize out --recipe int8wo' 'convert out --format nibble'; do
        # shellcheck disable=SC2086 # words are meant
        refused 3 "$1" ${command%% *} bad ${command#"${command%% *}"}
    done
    check 'nothing half done' [ ! -e out ]
}
# change KEY FROM TO: a copy of the model with another number in its config
change() {
    rm -rf bad
    cp -r "$models/qwen3_moe" bad
    chmod -R u+w bad
    [ $# = 0 ] || sed -i "s/\"$1\": $2/\"$1\": $3/" bad/config.json
}
change num_experts 9 12
bad 'bad: model.layers.0.mlp.gate.weight is \[9\]\[64\], but config.json implies \[12\]\[64\]'
change num_experts 9 8
bad 'bad: model.layers.0.mlp.gate.weight is \[9\]\[64\], but config.json implies \[8\]\[64\]'
change num_experts_per_tok 3 10
bad 'bad/config.json: each token chooses 10 experts, but there are only 9'
change moe_intermediate_size 36 0
bad 'bad/config.json: moe_intermediate_size is 0; a whole number from 1 to 16777216 is expected for qwen3_moe'
change norm_topk_prob true 2
bad 'bad/config.json: norm_topk_prob is 2; true or false is expected for qwen3_moe'
change moe_intermediate_size 36 40
bad 'bad: model.layers.0.mlp.experts.0.gate_proj.weight is \[36\]\[64\], but config.json implies \[40\]\[64\]'
change
tensors bad/model.safetensors drop model.layers.2.mlp.experts.4.up_proj.weight
bad 'bad: model.layers.2.mlp.experts.4.up_proj.weight: the checkpoint has no such tensor'
change
tensors bad/model.safetensors put model.layers.2.mlp.gate.weight 6 c07f
refused 3 'model.layers.2.mlp.gate.weight: the value at index 3 is not finite*' quantize bad out --recipe int8wo
check 'nothing half done' [ ! -e out ]
# a value for each expert or head: of another number, or no floats
vector() { # FAMILY EDIT TENSOR TYPE FOUND WANTED
    rm -rf bad
    cp -r "$models/$1" bad
    chmod -R u+w bad
    # shellcheck disable=SC2086 # words are meant
    tensors bad/model.safetensors ${2%% *} "$3" ${2#"${2%% *}"}
    bad "bad: $3 is $4 \\[$5\\], but config.json implies floats of shape \\[$6\\]"
    nibble verify bad >report 2>/dev/null
    check "verify finds $3" grep -q "$3: is .*, but config.json implies" report
}
vector deepseek_v3 cut model.layers.1.mlp.gate.e_score_correction_bias F32 15 16
vector gpt_oss cut model.layers.0.self_attn.sinks BF16 3 4
vector gpt_oss 'type I16' model.norm.weight I16 64 64
# a shard that lacks an expert which the index puts there
change
mv bad/model.safetensors bad/model-00001-of-00001.safetensors
tensors bad/model-00001-of-00001.safetensors names |
    sed 's/.*/"&": "model-00001-of-00001.safetensors"/' | paste -sd, | sed 's/.*/{"weight_map": {&}}/' >bad/model.safetensors.index.json
check 'the shard and its index' nibble plan bad
tensors bad/model-00001-of-00001.safetensors drop model.layers.0.mlp.experts.8.down_proj.weight
bad 'model-00001-of-00001.safetensors: tensor "model.layers.0.mlp.experts.8.down_proj.weight" is missing*'

# other engines, on the published sizes: Qwen3-30B-A3B, and gpt-oss, whose 2880 is not a multiple of 128 or 256
verdict() { # ENGINE LAYER ARGUMENT...: "kernel verdict codes" of each of the engine's kernels
    local engine=$1 layer=$2
    shift 2
    nibble plan "$@" --engine "$engine" --layer "$layer" --json | python3 -c '
import json, sys
layer = next(l for l in json.load(sys.stdin)["layers"] if l["name"] == sys.argv[1])
for c in layer["candidates"]:
    if c.get("engine"):
        print(c["kernel"], c["verdict"], *(r["code"] for r in c["reasons"]))' "$layer" | paste -sd';'
}
qwen=$REPO/configs/shapes/qwen3-30b-a3b-4layers/config.json
sed 's/"hidden_size": 64/"hidden_size": 2880/; s/"intermediate_size": [0-9]*/"intermediate_size": 2880/' "$models/gpt_oss/config.json" >oss.json
down=model.layers.0.mlp.experts.0.down_proj
equal 'vLLM takes int4 experts of Qwen3-30B-A3B' 'vllm.marlin_experts_down runs' "$(verdict vllm $down "$qwen" --recipe int4wo-g128 --device a100)"
equal 'vLLM does not take int4 experts of gpt-oss' 'vllm.marlin_experts_down no n%128' "$(verdict vllm $down oss.json --recipe int4wo-g32 --device a100)"
equal 'vLLM multiplies NVFP4 experts as such on Blackwell only' 'vllm.nvfp4_experts no sm>=100' "$(verdict vllm $down "$qwen" --recipe nvfp4 --device h100)"
equal 'llama.cpp falls back from Q4_K for gpt-oss' 'llama.cpp.quantize_q4_k_experts no k%256;llama.cpp.quantize_q4_0_experts runs' \
    "$(verdict llama.cpp $down oss.json --recipe int4wo-g32)"
equal 'llama.cpp takes Qwen3-30B-A3B' 'llama.cpp.quantize_q4_k_experts runs;llama.cpp.quantize_q4_0_experts runs' \
    "$(verdict llama.cpp $down "$qwen" --recipe int4wo-g32)"
equal 'torchao does not see the experts' 'torchao.quantize_experts_int4 no expert=no' "$(verdict torchao $down "$qwen" --recipe int4wo-g32 --device h100)"
equal 'ModelOpt exports them' 'modelopt.nvfp4_experts runs' "$(verdict modelopt $down "$qwen" --recipe nvfp4 --device h100)"
equal 'rows about experts are not about attention' 'torchao.int4_weight_only runs' \
    "$(verdict torchao model.layers.0.self_attn.q_proj "$qwen" --recipe int4wo-g32 --device h100)"
check 'layers without a row of the engine are counted' grep -q '^ *21  other layers: Nibble has no row of vllm about them;' \
    <(nibble plan "$REPO/configs/shapes/qwen3-moe-debugmodel/config.json" --recipe int4wo-g32 --device h100 --engine vllm | cat)

# gpt-oss as published: MXFP4 experts, planned without weights
sed 's/"quantization_config": null,//; s/"hidden_act"/"quantization_config": {"quant_method": "mxfp4"}, "hidden_act"/' oss.json >mxfp4.json
nibble plan mxfp4.json --strict 2>/dev/null | tr -s '\n ' ' ' >plan.txt
check 'its experts are planned in MXFP4' grep -q 'mlp.experts.\*.down_proj 2880x2880 +b [0-9.]* MB mxfp4@cpu as asked' plan.txt
check 'a note says so' grep -q 'quantization_config (mxfp4) says that 36 weights are stored as mxfp4: without --recipe they are planned so' plan.txt
check 'advice takes floats, as a plan with a recipe does' nibble advise mxfp4.json --device h100
sed 's/"hidden_act"/"quantization_config": {"quant_method": "mxfp4"}, "hidden_act"/' "$REPO/configs/shapes/llama-160m/config.json" >dense.json
nibble plan dense.json 2>/dev/null | tr -s '\n ' ' ' >plan.txt
check 'MXFP4 without experts leaves nothing to plan' grep -q 'quantization_config (config): without the weights, layers are planned as if unquantized' plan.txt
sed 's/"hidden_act"/"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.99.mlp"]}, "hidden_act"/' \
    "$REPO/configs/shapes/llama-160m/config.json" >fp8.json
nibble plan fp8.json 2>/dev/null | tr -s '\n ' ' ' >plan.txt
check 'an entry that names nothing is noted' grep -q '1 entry of quantization_config.s list of modules to leave unquantized matches no weight here; the first is model.layers.99.mlp' plan.txt
