# SPDX-License-Identifier: Apache-2.0
#
# A model in one GGUF file, with its tokenizer, through every command; and errors.
golden=$REPO/tests/golden/gguf
cp "$golden"/*.gguf .
see info llama.gguf
see plan qwen2.gguf --device graviton3
nibble info llama.gguf --json | members 'info llama.gguf --json' schema=1 tensors[].name=str tensors[].shape=list tensors[].format=str \
    tensors[].scheme=str 'tensors[].group=int|null' tensors[].bias=bool tensors[].bytes=int

printf 'the cat in the hat and the rat on the mat\n\nhere and there\n' >text.txt
# loss ARGUMENT...
loss() { nibble eval "$@" --text text.txt --window 32 --json --quiet | python3 -c 'import json, sys; print("%.6f" % json.load(sys.stdin)["loss"])'; }
text() { nibble generate "$@" --quiet -p 'the cat' --temp 0 -n 24 | od -c | head -c 400; }
for model in llama qwen2; do
    for dtype in f32 bf16; do
        want=$(text $model.gguf --dtype $dtype --isa ref)
        check "$model $dtype: text is generated" [ ${#want} -gt 40 ]
        for isa in avx2 avx512 avx512bf16; do
            nibble devices cpu --isa $isa >/dev/null 2>&1 || continue # not every machine has them all
            equal "$model $dtype: same text with --isa $isa" "$want" "$(text $model.gguf --dtype $dtype --isa $isa)"
        done
    done
    equal "$model: same loss with one thread" "$(loss $model.gguf -t 1)" "$(loss $model.gguf)"
done
nibble plan llama.gguf --json >plan.json
check 'the plan needs no substitution' python3 -c 'import json, sys; sys.exit(json.load(open("plan.json"))["counts"]["substituted"])'
check 'verify finds no fault' nibble verify llama.gguf
check 'bench runs a GGUF' nibble bench llama.gguf --prompt-tokens 32 -n 4 --quiet
# a config.json beside it belongs to another model
echo '{"model_type": "nonsense"}' >config.json
check 'config.json beside a GGUF is not read' nibble plan llama.gguf --quiet
rm config.json

refused 4 'model.layers.0.self_attn.q_proj: asked int8wo*codes are not quantized again*' generate llama.gguf --recipe int8wo -n 1
head -c 70000 llama.gguf >cut.gguf
refused 3 'cut.gguf: tensor "*" has * bytes from byte * of the data, which ends at *: the file is cut short, or its header is wrong' plan cut.gguf
# bytes after the end of a file do not get into the output
for command in 'quantize --recipe 8da4w' 'convert --format torchao' 'convert --format gguf'; do
    # shellcheck disable=SC2086 # words are meant
    refused 3 'cut.gguf: tensor "*: the file is cut short, or its header is wrong' $command cut.gguf out
done
cp -r "$MODEL" tales && head -c 3000000 tales/model.safetensors >short && mv short tales/model.safetensors
for command in 'quantize --recipe 8da4w' 'convert --format gguf'; do
    # shellcheck disable=SC2086 # words are meant
    refused 3 'tales/model.safetensors: *data_offsets end at *the file is cut short*' $command tales out
done
check 'truncated files leave no output' test ! -e out -a ! -e out.part
sed 's/\(general.architecture.\{12\}\)qwen3/\1qwen9/' qwen3.gguf >other.gguf
refused 3 'other.gguf: the architecture "qwen9" is not supported; *' plan other.gguf
check 'info lists an unsupported architecture' nibble info other.gguf
refused 3 'other.gguf: the architecture "qwen9" is not supported; *' generate other.gguf -n 1

# GGUF has no key for layers without rope: llama.cpp assumes every fourth.
golden=$REPO/tests/golden
refused 3 '*no_rope_layers names layers other than every fourth, which a GGUF of smollm3 cannot record*' \
    convert "$golden/models/smollm3" o.gguf --format gguf
[ ! -e o.gguf ] || check 'a refused GGUF leaves no file' false
refused 3 '*attention scores are scaled by 0.158*, but a GGUF of gemma2 has no key for that, so readers use 0.176*' \
    convert "$golden/models/gemma2" o.gguf --format gguf
refused 3 '*cannot write a GGUF of ministral3; --format nibble keeps config.json beside the weights' \
    convert "$golden/models/ministral3" o.gguf --format gguf
cp -r "$golden/models/llama_yarn" unrounded
sed -i 's/"type": "yarn"/"type": "yarn", "truncate": false/' unrounded/config.json
refused 3 '*truncate is false, but readers of a GGUF of llama round the range of pairs that yarn changes; *' convert unrounded o.gguf --format gguf
setting 'without effect: sliding_window 37 (config): a GGUF of llama has no key for it, so readers attend to all positions' \
    convert "$golden/models/mistral_window" o.gguf --format gguf --tokenizer "$golden/gguf/olmo2.gguf" --dry-run
setting 'without effect: sliding_window 37 (config): a GGUF of phi3 records it, but llama.cpp attends to all positions' \
    convert "$golden/models/phi3" o.gguf --format gguf --tokenizer "$golden/gguf/olmo2.gguf" --dry-run
for family in qwen2_yarn smollm3 olmo2 granite gemma2 gemma3 cohere2 starcoder2 stablelm stablelm_norms phi3 glm4 \
    granitemoe gpt-oss glm4moe llama4; do
    check "$family: convert to nibble" nibble convert "$golden/gguf/$family.gguf" "$family" --format nibble --quiet
    check "$family: convert back to GGUF" nibble convert "$family" "again-$family.gguf" --format gguf --quiet
    same "$family: same weights after nibble and back" "again-$family.gguf" "$golden/gguf/$family.gguf"
done
# A mixture's floats survive a GGUF, whatever stacks its files have; gpt-oss's GGUF implies a limit of the activation.
cp -r "$golden/models/gpt_oss" oss
refused 3 '*swiglu_limit is 1.5, but a GGUF of gpt_oss has no key for it, so readers use 7; *' convert oss o.gguf --format gguf
sed -i 's/"swiglu_limit": 1.5/"swiglu_limit": 7/' oss/config.json
setting 'not as asked: truncate false (config): a GGUF has no key for it: nibble takes it as false for gpt_oss, but llama.cpp' \
    convert oss o.gguf --format gguf --tokenizer "$golden/gguf/olmo2.gguf" --dry-run
cp -r "$golden/models/gpt_oss" rounded
sed -i 's/"truncate": false/"truncate": true/; s/"swiglu_limit": 1.5/"swiglu_limit": 7/' rounded/config.json
refused 3 '*truncate is true, but readers of a GGUF of gpt_oss do not round the range of pairs*' convert rounded o.gguf --format gguf
refused 3 '*attention_chunk_size or layer_types give other chunks than a GGUF of llama4_text implies, which are 8192 positions*' \
    convert "$golden/models/llama4" o.gguf --format gguf
refused 3 '*layer 1 has no experts, which a GGUF of qwen3_moe cannot record; --format nibble *' convert "$golden/models/qwen3_moe" o.gguf --format gguf
check 'qwen3moe: convert to nibble' nibble convert "$golden/gguf/qwen3moe.gguf" weighed --format nibble --quiet
sed -i 's/"norm_topk_prob": true/"norm_topk_prob": false/' weighed/config.json
refused 3 '*norm_topk_prob is false, which a GGUF of qwen3_moe cannot record; --format nibble *' convert weighed o.gguf --format gguf
for from in oss "$golden/models/glm4_moe" "$golden/models/granitemoe"; do
    name=$(basename "$from")
    check "$name: convert to GGUF" nibble convert "$from" "floats-$name.gguf" --format gguf --quiet
    check "$name: verify the GGUF" nibble verify "floats-$name.gguf"
    check "$name: convert back to floats" nibble convert "floats-$name.gguf" "floats-$name" --format safetensors --quiet
    same "$name: the same values after GGUF and back" "floats-$name" "$from"
done
# every type that is written, from floats as transformers has them
for family in gpt-oss glm4moe granitemoe llama4 granitehybrid_moe lfm2moe qwen35 qwen3next; do
    check "$family: convert to floats" nibble convert "$golden/gguf/$family.gguf" "from-$family" --format safetensors --quiet
    for recipe in int8wo-g32-ggml int4wo-sym-ggml int4wo-ggml mxfp4; do
        check "$family: quantize to $recipe" nibble quantize "from-$family" codes.gguf --format gguf --recipe $recipe --quiet --force
        check "$family: verify $recipe" nibble verify codes.gguf --against "from-$family"
        check "$family: run $recipe" nibble bench codes.gguf --prompt-tokens 8 -n 2 --quiet
    done
done
# GLM-4.5's last block is a draft head, which a line says; here it is not whole
nibble plan glm4moe.gguf | tr -s '\n ' ' ' >glm4moe.txt
check "a draft head is said" grep -q "note: a draft head is stored beside the model's layers; --draft-head drafts with it" glm4moe.txt
refused 3 '*model.layers.3.self_attn.q_proj.weight: the checkpoint has no such tensor' plan glm4moe.gguf --draft-head
# Phi-3 stores q, k and v as one tensor, in GGUF and in the files of transformers
check 'phi3: convert to floats' nibble convert phi3 phi3-floats --format safetensors --quiet
check 'phi3: one tensor for q, k and v' grep -q 'layers.1.self_attn.qkv_proj.weight' phi3-floats/model.safetensors
check 'phi3: no tensor for q alone' sh -c '! grep -q self_attn.q_proj.weight phi3-floats/model.safetensors'
nibble quantize phi3-floats phi3-codes --recipe int8wo | tr -s ' \n' ' ' >said.txt
check 'phi3: quantize says that readers expect them fused' grep -q 'expect them fused, for example as model.layers.0.self_attn.qkv_proj' said.txt
refused 4 'blk.0.attn_q.weight: a GGUF of this architecture stores it in one tensor with blk.0.attn_k.weight, so both must have the same type; *' \
    quantize phi3-floats o.gguf --format gguf --recipe int8wo-g32-ggml --skip '*layers.0.*q_proj*'
check 'phi3: quantize q, k and v alike' nibble quantize phi3-floats o.gguf --format gguf --recipe int8wo-g32-ggml --quiet
check 'phi3: verify the GGUF' nibble verify o.gguf
sed 's/rope_factors_long/rope_factors_lung/' phi3.gguf >other.gguf
refused 3 'other.gguf: rope_factors_short.weight is stored, but rope_factors_long.weight is missing' plan other.gguf
sed 's/phi3.rope.scaling.original/phi3.rope.scaling.0riginal/' phi3.gguf >other.gguf
refused 3 '*"phi3.rope.scaling.original_context_length" is missing*' plan other.gguf
# Command R+ has a norm per head
check 'norms of heads: convert to GGUF' nibble convert "$golden/models/cohere_norms" heads.gguf --format gguf --quiet
check 'norms of heads: verify the GGUF' nibble verify heads.gguf
check 'norms of heads: convert back to floats' nibble convert heads.gguf heads --format safetensors --quiet
same 'norms of heads: the same values as the original' heads "$golden/models/cohere_norms"
# StableLM 2 12B stores one tensor per head, but one weight in a GGUF
apart=$golden/models/stablelm_norms
norm=layers.1.self_attn.q_layernorm.norms.4.weight
check 'a norm tensor per head: convert to GGUF' nibble convert "$apart" apart.gguf --format gguf --quiet
check 'a norm tensor per head: one weight in the GGUF' grep -q blk.1.attn_q_norm.weight apart.gguf
check 'a norm tensor per head: verify the GGUF' nibble verify apart.gguf
check 'a norm tensor per head: convert back to floats' nibble convert apart.gguf apart --format safetensors --quiet
check 'a norm tensor per head: separate again in floats' grep -q "$norm" apart/model.safetensors
same 'a norm tensor per head: the same values as the original' apart "$apart"
check 'a norm tensor per head: quantize' nibble quantize "$apart" apart-codes --recipe int8wo --quiet
check 'a norm tensor per head: separate beside codes' grep -q "$norm" apart-codes/model.safetensors
check 'a norm tensor per head: verify codes against the original' nibble verify apart-codes --against "$apart"
check 'a norm tensor per head: convert codes to nibble' nibble convert apart-codes apart-floats --format nibble --quiet
