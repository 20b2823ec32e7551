# SPDX-License-Identifier: Apache-2.0
#
# Requests of a model's own files (tests/SILENT.md): config.json, generation_config.json, the tokenizer's files, GGUF keys,
# quantization_config and the files beside the weights. Whatever is not done exactly as requested is reported, in text and JSON.

# fresh [MODEL]: makes m a copy of it
fresh() {
    rm -rf m
    cp -r "${1:-$MODEL}" m
    chmod -R u+w m
    rm -f m/nibble.json
}

# config PYTHON, generation PYTHON, tokens PYTHON: change one file of m
config() { fresh && edit m/config.json "$1"; }
generation() { fresh && edit m/generation_config.json "$1"; }
tokens() { fresh && edit m/tokenizer_config.json "$1"; }

# strictly ALLOW COMMAND...: refused with --strict, done with --allow
strictly() {
    local code=$1 status=0
    shift
    nibble "$@" --strict >"$seen.out" 2>"$seen.err" || status=$?
    equal "--strict refuses: $*" 4 "$status"
    check "--allow $code accepts: $*" nibble "$@" --strict --allow "$code"
}

# rope: set in two places, or with numbers that its type does not use
config 'd["rope_scaling"] = {"rope_type": "default", "factor": 4.0}'
setting 'without effect: rope_scaling.factor 4 (config): the rope type "default" does not use it' plan m
strictly rope plan m
config 'd["rope_scaling"] = {"factor": 4.0}'
equal 'rope_scaling.factor without rope_type' 'rope=without effect' "$(settings plan m)"
config 'd["rope_scaling"] = {"rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0}'
setting 'without effect: rope_scaling.low_freq_factor 1 (config): the rope type "linear" does not use it' plan m
config 'd.update(rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 4.0})'
setting 'not as asked: rope_parameters.factor 4 (config): rope_scaling says 2 and takes precedence' plan m
config 'd["rope_parameters"] = {"rope_theta": 1e6}'
setting 'not as asked: rope_theta 10000 (config): rope_parameters says 1000000 and takes precedence' plan m
inside=$(nibble generate m -p 'Once upon a time' -n 24 --temp 0 -q)
config 'd["rope_theta"] = 1e6'
equal 'rope_theta in rope_parameters takes precedence' "$(nibble generate m -p 'Once upon a time' -n 24 --temp 0 -q)" "$inside"
config 'o = dict(d); d.clear(); d.update(rope_parameters={"rope_theta": 1e6}, **o)'
equal 'rope_parameters first: its rope_theta takes precedence' "$inside" "$(nibble generate m -p 'Once upon a time' -n 24 --temp 0 -q)"
config 'd["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}'
equal 'linear rope scaling is done and not reported' '' "$(settings plan m)"

# the architecture, its class, its windows and biases
config 'd["architectures"] = ["Qwen2ForSequenceClassification"]'
setting 'not as asked: architectures Qwen2ForSequenceClassification (config): model_type is "qwen2", which selects Qwen2ForCausalLM' plan m
config 'd["architectures"] = ["Other", "Qwen2ForCausalLM"]'
equal 'architectures may name other classes, too' '' "$(settings plan m)"
config 'd["attention_bias"] = False'
setting 'not as asked: attention_bias false (config): qwen2 always has biases on q, k and v' plan m
config 'd["attention_bias"] = True'
setting 'in part: attention_bias true (config): qwen2 has biases on q, k and v, but not on o' plan m
config 'd["layer_types"] = ["sliding_attention"] * 5'
refused 3 '*: layer_types names "sliding_attention", but use_sliding_window is not true' plan m
config 'd.update(model_type="llama", architectures=["LlamaForCausalLM"], sliding_window=64)'
setting 'without effect: sliding_window 64 (config): llama has no window; every position attends to all earlier ones' plan m
config 'd["is_encoder_decoder"] = True'
refused 3 '*"is_encoder_decoder" changes the result and is not supported for qwen2' plan m
config 'd["task_specific_params"] = {"text-generation": {"do_sample": False}}'
setting 'without effect: task_specific_params (config): config.json has this key, and Nibble does not read it' plan m
config 'd["model_max_length"] = 64'
setting 'not as asked: model_max_length 64 (config): max_position_embeddings sets the longest context' plan m
config 'd["dtype"] = "bfloat16"; d["torch_dtype"] = "float32"'
setting 'not as asked: torch_dtype f32 (config): dtype, its newer name, takes precedence' plan m
equal 'torch_dtype beside dtype is the only setting' 'dtype=other' "$(settings plan m)"
config 'd["_attn_implementation"] = "flash_attention_2"'
setting "equivalent: _attn_implementation flash_attention_2 (config): attention runs in Nibble's own kernels" plan m
config 'd.update(trust_remote_code=False, auto_map={}, pruned_heads={}, is_encoder_decoder=False)'
equal 'neutral keys of config.json are not reported' '' "$(settings plan m)"

# ids and rows against the vocabulary
config 'd["vocab_size"] = 2000'
setting 'not as asked: vocab_size 2000 (config): model.embed_tokens stores 2256 rows, all of which are used' plan m
config 'd["eos_token_id"] = 99999'
setting 'without effect: eos_token_id 99999 (config): the vocabulary has only 2256 tokens' plan m
generation 'd["eos_token_id"] = [2255, 77777]'
setting 'without effect: eos_token_id 77777 (config): the vocabulary has only 2256 tokens' plan m

# generation_config.json: a neutral number is not a request; one out of range is an error in the file
generation 'd.update(num_beams=1, num_return_sequences=1, length_penalty=1.0, no_repeat_ngram_size=0, min_length=0, typical_p=1.0, guidance_scale=1.0, bad_words_ids=[], suppress_tokens=[])'
equal 'defaults of transformers are not reported' '' "$(settings plan m)"
generation 'd["num_beams"] = 2'
equal 'num_beams 2 is reported' 'generation-key=without effect' "$(settings plan m)"
for wrong in '"temperature"] = -1.0' '"temperature"] = 1e9' '"top_p"] = 1.5' '"min_p"] = -1' '"repetition_penalty"] = -1.0' '"max_new_tokens"] = 0' '"max_length"] = 0'; do
    generation "d[$wrong"
    refused 3 '*generation_config.json: line *, column *: *' generate m -n 1
done

# the tokenizer's files
tokens 'd["add_bos_token"] = True'
setting 'without effect: add_bos_token true (config): the post_processor of tokenizer.json begins texts with no token' generate m -n 1
strictly tokenizer generate m -n 1
setting 'add_bos_token true' plan m
tokens 'd["add_eos_token"] = True'
setting 'without effect: add_eos_token true (config): ' plan m
tokens 'd.update(add_bos_token=False, add_eos_token=False, split_special_tokens=False, sp_model_kwargs={})'
equal 'neutral keys of tokenizer_config.json are not reported' '' "$(settings plan m)"
tokens 'd["add_prefix_space"] = True'
setting 'without effect: add_prefix_space true (config): tokenizer.json puts no space before a text' plan m
tokens 'd["clean_up_tokenization_spaces"] = True'
equal 'clean_up_tokenization_spaces is equivalent with BPE' 'tokenizer=equivalent' "$(settings plan m)"
edit m/tokenizer.json 'd["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}'
setting 'without effect: clean_up_tokenization_spaces true (config): spaces before punctuation stay' plan m
tokens 'd["split_special_tokens"] = True'
setting 'without effect: split_special_tokens true (config): special tokens in a text stay whole' plan m
tokens 'd["do_lower_case"] = True'
setting 'without effect: do_lower_case true (config): tokenizer.json has no Lowercase' plan m
tokens 'd["auto_map"] = {"AutoTokenizer": ["a.B", None]}'
setting 'without effect: auto_map (config): tokenizer_config.json names Python code, which is not run' plan m
fresh && edit m/tokenizer.json 'd["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}'
setting 'without effect: truncation (config): tokenizer.json truncates texts; Nibble reads the whole text' plan m
fresh && edit m/tokenizer.json 'd["padding"] = {"strategy": {"Fixed": 16}, "pad_id": 0}'
setting 'without effect: padding (config): tokenizer.json pads texts' plan m
fresh && edit m/tokenizer.json 'd["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True'
setting 'not as asked: add_prefix_space false (config): tokenizer.json puts a space before a text' plan m
fresh && edit m/tokenizer.json 'd["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [2255], "tokens": ["<|endoftext|>"]}}}'
edit m/tokenizer_config.json 'd["add_bos_token"] = False'
setting 'not as asked: add_bos_token false (config): the post_processor of tokenizer.json begins texts with a token' plan m

# unread files, and adapters
fresh && cp m/model.safetensors m/consolidated.safetensors && printf 'PK\003\004' >m/pytorch_model.bin
setting 'in part: pytorch_model.bin, consolidated.safetensors (checkpoint): model.safetensors is read instead of this file' generate m -n 1
check '--strict accepts unread files of weights' nibble plan m --strict
equal 'settings of info' 'extra-tensor=narrower, extra-tensor=narrower' "$(settings info m)"
fresh && echo '{"peft_type": "LORA"}' >m/adapter_config.json
setting 'without effect: adapter_config.json (checkpoint): adapters are not applied; merge it' plan m
strictly extra-tensor plan m
rm m/model.safetensors
refused 3 'm: has an adapter but no model; merge it into the weights of its base model first, *' plan m

# unread tensors: codes beside a plain weight, and a rope table with other values
add() { # add NAME DTYPE SHAPE HEX: adds a tensor to m
    python3 - m/model.safetensors "$@" <<'PYTHON'
import json, struct, sys
path, name, dtype, shape, values = sys.argv[1:]
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body, values = json.loads(data[8:8 + size]), data[8 + size:], bytes.fromhex(values)
header[name] = {"dtype": dtype, "shape": json.loads(shape), "data_offsets": [len(body), len(body) + len(values)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + body + values)
PYTHON
}
fresh && add model.layers.0.self_attn.q_proj.qweight I32 '[2,2]' "$(printf '00%.0s' {1..16})"
setting 'without effect: model.layers.0.self_attn.q_proj.qweight (checkpoint): qwen2 has no such tensor' plan m
floats() { python3 -c 'import struct, sys; print(struct.pack("<8f", *eval(sys.argv[1])).hex())' "$1"; }
fresh && add model.layers.0.self_attn.rotary_emb.inv_freq F32 '[8]' "$(floats '[10000 ** (-i / 8) for i in range(8)]')"
equal 'inv_freq of the same rotation is not reported' '' "$(settings plan m)"
fresh && add model.layers.0.self_attn.rotary_emb.inv_freq F32 '[8]' "$(floats '[500000 ** (-i / 8) for i in range(8)]')"
setting 'without effect: model.layers.0.self_attn.rotary_emb.inv_freq (checkpoint): qwen2 has no such tensor' plan m

# quantization_config against the stored tensors
gptq=$REPO/tests/golden/dialects/gptq_model
asks() { fresh "$gptq" && edit m/config.json "q = d['quantization_config']; $1"; }
asks 'pass'
equal 'the unchanged GPTQ model has no settings' '' "$(settings plan m)"
asks 'q.update(damp_percent=0.1, true_sequential=True, static_groups=False, meta={"quantizer": "x"}, dataset="c4")'
equal 'keys on how codes were computed are not reported' '' "$(settings plan m)"
asks 'q["adapter"] = {"rank": 8}'
setting 'without effect: quantization_config.adapter (config): config.json has this key, and Nibble does not read it' plan m
strictly quantization-config plan m
asks 'q["sym"] = True'
setting 'not as asked: sym true (config): asymmetric zero points are stored, and they are used' plan m
asks 'q["desc_act"] = False'
setting 'not as asked: desc_act false (config): the stored g_idx is not in column order, and it is followed' plan m
asks 'q["modules_to_not_convert"] = ["mlp", "self_attn.q_proj"]'
setting 'not as asked: model.layers.0.mlp.down_proj floats (config): 4 weights are stored as codes and run as such, although quantization_config says floats' plan m
asks 'q["modules_to_not_convert"] = ["vision_tower", "proj"]'
equal 'modules_to_not_convert matches whole parts of names' '' "$(settings plan m)"
asks 'pass'
for part in qweight qzeros scales g_idx; do
    "$REPO/tests/cli/tensors" m/model.safetensors drop model.layers.0.self_attn.q_proj.$part
done
add model.layers.0.self_attn.q_proj.weight BF16 '[64,64]' "$(python3 -c 'print("803f" * 4096)')"
setting 'not as asked: model.layers.0.self_attn.q_proj codes (config): 1 weights are stored as floats and run as such, although quantization_config says codes' plan m
edit m/config.json 'd["quantization_config"]["lm_head"] = False' # as GPTQ's tools write it; it must not hide the line
setting 'not as asked: model.layers.0.self_attn.q_proj codes (config): 1 weights are stored as floats and run as such, although quantization_config says codes' plan m
edit m/config.json 'd["quantization_config"]["modules_to_not_convert"] = ["q_proj"]'
equal 'layers of modules_to_not_convert are not reported' '' "$(settings plan m)"
check 'quantize to torchao' nibble quantize "$MODEL" codes --recipe int8wo --quiet
fresh codes && edit m/config.json 'd["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}'
setting 'not as asked: quant_method gptq (config): 36 weights are stored in the format of torchao and run as such; the first is model.layers.0.self_attn.q_proj' plan m
strictly quantization-config plan m
asks 'q["rotation"] = "hadamard"'
refused 3 '*quantization_config: rotation of weights and inputs is not supported; GPTQModel supports it' plan m

# GGUF: sampling as in llama.cpp, unread keys, and a rope factor without its type
check 'convert to GGUF' nibble convert "$MODEL" model.gguf --format gguf --quiet
key() { # key NAME f|u|b|s VALUE...: writes m.gguf, which is model.gguf with these keys added
    python3 - model.gguf m.gguf "$@" <<'PYTHON'
import struct, sys
data, out, keys = open(sys.argv[1], "rb").read(), sys.argv[2], sys.argv[3:]
sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
tensors, count = struct.unpack_from("<QQ", data, 8)
at = 24
def string(at): return at + 8 + struct.unpack_from("<Q", data, at)[0]
def value(at, kind):
    if kind == 8: return string(at)
    if kind != 9: return at + sizes[kind]
    kind, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind != 8: return at + n * sizes[kind]
    for _ in range(n): at = string(at)
    return at
for _ in range(count):
    at = string(at)
    at = value(at + 4, struct.unpack_from("<I", data, at)[0])
infos = at
for _ in range(tensors):
    at = string(at)
    at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
more = b""
for name, kind, text in zip(keys[::3], keys[1::3], keys[2::3]):
    more += struct.pack("<Q", len(name)) + name.encode()
    more += {"f": lambda: struct.pack("<If", 6, float(text)), "u": lambda: struct.pack("<II", 4, int(text)),
             "b": lambda: struct.pack("<IB", 7, int(text)),
             "s": lambda: struct.pack("<IQ", 8, len(text)) + text.encode()}[kind]()
head = data[:16] + struct.pack("<Q", count + len(keys) // 3) + data[24:infos] + more + data[infos:at]
body = data[(at + 31) // 32 * 32:]
open(out, "wb").write(head + b"\0" * (-len(head) % 32) + body)
PYTHON
}
likeliest=$(nibble generate model.gguf -p 'Once upon a time' -n 12 --temp 0 -q)
key general.sampling.top_k u 1 general.sampling.temp f 0.9
equal 'sampling keys of a GGUF are followed' "$likeliest" "$(nibble generate m.gguf -p 'Once upon a time' -n 12 -q --seed 5)"
equal 'sampling keys that are followed are not reported' '' "$(settings plan m.gguf)"
key general.sampling.temp f -1
refused 3 'm.gguf: general.sampling.temp is -1; 0 to 100 is expected' generate m.gguf -n 1
key general.sampling.penalty_repeat f 1.5 general.sampling.penalty_last_n u 64 general.sampling.xtc_probability f 0
equal 'penalty_repeat of a GGUF is reported' 'generation-key=without effect' "$(settings plan m.gguf)"
setting 'without effect: general.sampling.penalty_repeat (config): the GGUF has this key' plan m.gguf
key tokenizer.ggml.add_sep_token b 1
setting 'without effect: tokenizer.ggml.add_sep_token (config): the GGUF has this key, and Nibble does not read it' plan m.gguf
key tokenizer.ggml.add_sep_token b 0 tokenizer.ggml.mask_token_id u 3
equal 'neutral keys of a GGUF are not reported' '' "$(settings plan m.gguf)"
key qwen2.rope.scaling.type s none qwen2.rope.scaling.factor f 4
setting 'without effect: qwen2.rope.scaling.factor 4 (config): rope.scaling.type is "none"' plan m.gguf
key qwen2.rope.scaling.factor f 4 qwen2.rope.scale_linear f 2
setting 'without effect: qwen2.rope.scale_linear 2 (config): rope.scaling.factor, its newer name, takes precedence' plan m.gguf
