# SPDX-License-Identifier: Apache-2.0
#
# Paths that are not models, and damaged files: an error that names the file, and the documented exit status.
tensors() { "$REPO/tests/cli/tensors" "$@"; }
cp -r "$MODEL" m
for command in info verify plan 'generate -n 1' 'eval --text m/heldout.txt' 'bench --repeats 1' 'quantize x --recipe int8wo'; do
    # shellcheck disable=SC2086 # words are meant
    refused 6 'nosuch: there is no such file or directory' ${command%% *} -m nosuch ${command#"${command%% *}"}
done
refused 2 '--without: a pattern may not be empty*' plan "$MODEL" --without ''
refused 2 '--layer: pattern `re:[`: premature end of char-class' plan "$MODEL" --layer 're:['
refused 6 '"": there is no such file or directory' plan ''
refused 6 '/dev/null: is neither a file nor a directory' info /dev/null
refused 6 '/dev/zero: is neither a file nor a directory' plan /dev/zero
mkfifo pipe
refused 6 'pipe: is neither a file nor a directory' plan pipe
refused 6 'pipe: is a pipe, not a regular file' eval m --text pipe
mkdir empty
refused 6 'empty/config.json: cannot open it: No such file or directory' plan empty
refused 3 'empty: has no model.safetensors, model.safetensors.index.json, pytorch_model.bin (or its index)*' info empty
cp m/config.json empty
refused 3 'empty: has no model.safetensors, *their file, or plan without weights: nibble plan empty/config.json' plan empty
check 'config.json without weights can be planned' nibble plan empty/config.json --recipe int8wo
mkfifo empty/model.safetensors
refused 6 'empty/model.safetensors: is a pipe, not a regular file' plan empty
rm empty/model.safetensors
: >empty/pytorch_model.bin
refused 3 'empty/pytorch_model.bin: 0 bytes are too few*' plan empty
printf '\200\2}q.' >empty/pytorch_model.bin
refused 3 'empty/pytorch_model.bin is a pickle outside a zip file*' plan empty
mkdir lone
cp m/model.safetensors lone
refused 3 'lone/model.safetensors: there is no config.json beside it*' plan lone/model.safetensors
check 'info lists weights without config.json' nibble info lone/model.safetensors
printf 'GGUF\3\0\0\0' >model.gguf
refused 3 'model.gguf: the file is cut short: it ends at byte 8, inside the count of tensors' info model.gguf
printf 'PK\3\4......' >model.pt
refused 3 'model.pt: the zip file does not end with its end record*' info model.pt
cp -r m pointer
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n' | tee pointer/model.safetensors >pointer/tokenizer.json
refused 3 'pointer/model.safetensors is a Git LFS pointer*`git lfs pull`*' plan pointer
cp m/model.safetensors pointer
refused 3 'pointer/tokenizer.json is a Git LFS pointer*`git lfs pull`*' generate pointer -n 1
rm -r pointer
refused 3 'm/tokenizer.json: *"version" is not a key of a training config*' plan m/tokenizer.json
refused 2 'm/: only a config was given, which can be planned but not run; *' generate m/config.json -n 1
refused 2 'm/: only a config was given*' info m/config.json

# cut GLOB SIZE: truncates the weights
cp -r m t
cut() {
    head -c "$2" m/model.safetensors >t/model.safetensors
    refused 3 "t/model.safetensors: $1" plan t
    refused 3 "t/model.safetensors: $1" verify t
}
cut '0 bytes are too few*' 0
cut '7 bytes are too few*' 7
cut '*the file is cut short' 100
cut '*the file is cut short or its header is wrong' 1000000
cut '*the file is cut short or its header is wrong' $(($(stat -c %s m/model.safetensors) - 1))
{ cat m/model.safetensors; echo; } >t/model.safetensors
refused 3 't/model.safetensors: *' plan t
printf '\xff\xff\xff\xff\xff\xff\xff\x7f{}' >t/model.safetensors
refused 3 't/model.safetensors: header of 9223372036854775807 bytes*' plan t
printf '\x02\0\0\0\0\0\0\0[]' >t/model.safetensors
refused 3 't/model.safetensors: *' plan t
truncate -s 16T t/model.safetensors 2>"$seen.err" && refused 3 't/model.safetensors: *' plan t
rm t/model.safetensors

# config.json, edited: config GLOB SED_EXPRESSION
cp m/model.safetensors t
config() {
    sed "$2" m/config.json >t/config.json
    cmp -s m/config.json t/config.json && check "the edit changes config.json: $2" false
    refused 3 "$1" generate t -n 1
}
config 't/config.json: the architecture "gpt_neo" is not supported; llama, mistral, qwen2, * and lfm2_moe are' 's/"qwen2"/"gpt_neo"/'
config 't/config.json: hidden_size is missing; *' '/"hidden_size"/d'
config 't/config.json: hidden_size 225 is not a multiple of num_attention_heads 14*' 's/"hidden_size": 224/"hidden_size": 225/'
config 't: model.embed_tokens.weight is \[2256]\[224], but config.json implies \[3000]\[224]' 's/"vocab_size": 2256/"vocab_size": 3000/'
config 't: model.layers.5.self_attn.q_proj.weight: *no such tensor' 's/"num_hidden_layers": 5/"num_hidden_layers": 6/'
config 't/config.json: *num_key_value_heads*' 's/"num_key_value_heads": 2/"num_key_value_heads": 3/'
config 't/config.json: rms_norm_eps is nan*' 's/"rms_norm_eps": 1e-06/"rms_norm_eps": NaN/'
config 't/config.json: *rope_theta*' 's/"rope_theta": 10000.0/"rope_theta": -1/'
config 't/config.json: *hidden_act*' 's/"silu"/"relu6"/'
config 't/config.json: *rope*' 's/"rope_scaling": null/"rope_scaling": {"rope_type": "nonsense", "factor": 2.0}/'
config 't/config.json: line 1, column 1: *' '1s/{/[/'
config 't/config.json: *' '$d'
printf '{"a":%.0s' $(seq 3000) >t/config.json
refused 3 't/config.json: *' plan t
: >t/config.json
refused 3 't/config.json: *' plan t
config 't: model.layers.4.input_layernorm.weight is stored, but num_hidden_layers in config.json is 4' 's/"num_hidden_layers": 5/"num_hidden_layers": 4/'
config 't: config.json has a quantization_config, but no weight is stored quantized; *' 's/"vocab_size"/"quantization_config": {"quant_method": "torchao"}, "vocab_size"/'
config 't/config.json: quantization_config: quant_method "bitsandbytes" is not supported; *' 's/"vocab_size"/"quantization_config": {"quant_method": "bitsandbytes"}, "vocab_size"/'
config 't: config.json has a quantization_config, but no weight is stored quantized; *' 's/"vocab_size"/"quantization_config": {"quant_method": "torchao"}, "vocab_size"/'
cp m/config.json t

# the tokenizer beside the model
rm t/tokenizer.json
refused 6 't/tokenizer.json: no tokenizer found; name one with --tokenizer FILE or DIR' generate t -n 1
check '--tokenizer FILE instead of a missing tokenizer' nibble generate t -n 1 --tokenizer m/tokenizer.json
check '--tokenizer DIR instead of a missing tokenizer' nibble generate t -n 1 --tokenizer m
head -c 5000 m/tokenizer.json >t/tokenizer.json
refused 3 't/tokenizer.json: *' generate t -n 1
sed 's/"ByteLevel"/"Nonsense"/' m/tokenizer.json >t/tokenizer.json
refused 3 't/tokenizer.json: *Nonsense*' generate t -n 1
sed 's/"vocab": {/"vocab": {"zzzzzz": 2256,/' m/tokenizer.json >t/tokenizer.json
refused 3 't/tokenizer.json: the tokenizer has ids up to 2256, but the model has 2256 tokens; *' generate t -n 1
cp m/tokenizer.json t
edit t/tokenizer.json 'd["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+[bc]"}, "behavior": "Isolated", "invert": False}'
refused 3 "the tokenizer's regular expression \"(a+)+\[bc]\" takes too long on this text; it is made to be slow, so use another tokenizer.json" \
    generate t -n 1 -p aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
cp m/tokenizer.json t
edit t/tokenizer.json 'd["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 60}'
refused 3 'a Replace of this tokenizer.json makes more than 64 bytes of each byte of text, which is made to be slow; use another one' \
    generate t -n 1 -p aaaa
cp m/tokenizer.json t
echo '[' >t/generation_config.json
refused 3 't/generation_config.json: *' generate t -n 1

# shards
cp -r m s
printf '{"metadata": {"total_size": 1}, "weight_map": {"lm_head.weight": "../m/model.safetensors"}}' >s/model.safetensors.index.json
rm s/model.safetensors
refused 3 's/model.safetensors.index.json: *"../m/model.safetensors"*' plan s
printf '{"weight_map": {"lm_head.weight": "part-1.safetensors"}}' >s/model.safetensors.index.json
refused 3 's: shard "part-1.safetensors" is missing*' plan s
