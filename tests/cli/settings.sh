# SPDX-License-Identifier: Apache-2.0
#
# What could be silent (tests/SILENT.md): whatever is not done exactly as requested is a line of the ledger, in every
# command and in its JSON, and --strict refuses it unless --allow names it.
model=$MODEL

# a model whose files contradict its tensors
cp -r "$model" odd
head -c 1500 "$model/heldout.txt" >text.txt
edit odd/config.json 'd.update(tie_word_embeddings=True, mood=3)'
edit odd/generation_config.json 'd.update(num_beams=4)'
for command in 'plan odd' 'generate odd -p x -n 1' 'eval odd --text text.txt --window 64' 'bench odd --prompt-tokens 4 -n 2 --repeats 1 --alone'; do
    # shellcheck disable=SC2086 # words are meant
    setting 'without effect: mood 3 (config): config.json has this key' $command
    # shellcheck disable=SC2086
    setting 'without effect: num_beams 4 (config): generation_config.json has this key' $command
    # shellcheck disable=SC2086
    setting 'not as asked: tie_word_embeddings true (config): a head is stored beside the embedding' $command
    # shellcheck disable=SC2086
    denied 'mood 3 (config): * --allow config-key accepts it; 2 more are not as asked' $command --strict --quiet
done
said='config-key=without effect, generation-key=without effect, tie=other'
equal 'settings of plan' "$said" "$(settings plan odd)"
equal 'settings of generate' "$said" "$(settings generate odd -n 1)"
equal 'settings of eval' "$said" "$(settings eval odd --text text.txt --window 64)"
equal 'settings of bench' "$said" "$(settings bench odd --prompt-tokens 4 -n 2 --repeats 1 --alone)"
equal 'settings of quantize' "$said" "$(settings quantize odd out --recipe 8da4w --dry-run)"
equal 'settings of convert' "$said" "$(settings convert odd out --format safetensors --dry-run)"
denied 'mood 3 (config): *' quantize odd out --recipe 8da4w --strict --quiet
check '--strict runs if every code is allowed' nibble generate odd -n 1 --strict --allow config-key --allow generation-key --allow tie
check 'plan --json marks the allowed setting' test "$(nibble plan odd --json --allow tie 2>err | python3 -c 'import json, sys; print(*(s["code"] for s in json.load(sys.stdin)["settings"] if s["allowed"]))')" = tie
check 'the summary counts settings not as asked' grep -q '; 3 settings not as asked$' <(nibble generate odd -n 1 2>&1 >out)
check 'chat reports num_beams' grep -q 'num_beams' <(nibble chat odd </dev/null 2>&1)
edit odd/config.json 'd.update(tie_word_embeddings=False); del d["mood"]'

edit odd/generation_config.json 'del d["num_beams"]'
equal 'no settings without the added keys' '' "$(settings plan odd)"

# types: config.json against stored weights, and float64 values that float32 cannot hold
edit odd/config.json 'd.update(torch_dtype="float32")'
setting 'not as asked: torch_dtype f32 (config): the linear weights are stored as bf16' generate odd -n 1
equal '--dtype decides, so torch_dtype is not reported' '' "$(settings plan odd --dtype bf16)"
python3 - odd/model.safetensors <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body, out, at = json.loads(data[8:8 + size]), data[8 + size:], b"", 0
for name, t in sorted(((n, t) for n, t in header.items() if n != "__metadata__"), key=lambda x: x[1]["data_offsets"]):
    part = body[slice(*t["data_offsets"])]
    if name == "model.norm.weight":
        words = struct.unpack("<%dH" % (len(part) // 2), part)
        part = b"".join(struct.pack("<d", struct.unpack("<f", struct.pack("<I", w << 16))[0] * (1 + 1e-12)) for w in words)
        t["dtype"] = "F64"
    t["data_offsets"] = [len(out), len(out) + len(part)]
    out += part
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + out)
END
setting 'in part: model.norm.weight f64 (checkpoint): 1 tensors are read as f32' generate odd --dtype bf16 -n 1

# filters and rules
denied '--recipe 8da4w (option): it quantizes no layer: *' plan "$model" --recipe 8da4w --skip '*' --strict
for filter in "--skip *" "--only *.q_proj --skip *.q_proj"; do
    set -f
    # shellcheck disable=SC2086
    setting 'without effect: --recipe 8da4w (option): it quantizes no layer' quantize "$model" out --recipe 8da4w --dry-run $filter
    set +f
done
setting 'without effect: --skip lm_* (option): earlier rules decide every layer that it matches' plan "$model" --recipe 8da4w --skip lm_head --skip 'lm_*'
echo '{"precision": {"dtype": "fp32"}, "executor": {"accelerator": "cpu"}, "linear:int8": {"groupsize": 0}, "linear:int4": {"groupsize": 32}}' >chat.json
setting 'without effect: linear:int4 (recipe): earlier rules decide' plan "$model" --recipe chat.json
setting 'not as asked: precision f32 (recipe): --dtype bf16 overrules it' generate "$model" --recipe chat.json --dtype bf16 -n 1
check '--dtype f32 is the precision of the recipe: no line' test "$(settings plan "$model" --recipe chat.json --dtype f32)" = 'filter=without effect'
setting 'without effect: precision f32 (recipe): it is not stored; pass --dtype f32' quantize "$model" out --recipe chat.json --dry-run

# torchao's configs: its kernels, packed layouts, and the version it applies
ao() { # ao TYPE FIELDS: a config as a recipe
    echo "{\"_type\": \"$1\", \"_version\": 2, \"_data\": {$2}}" >ao.json
}
ao Int8WeightOnlyConfig '"set_inductor_config": false'
setting 'equivalent: set_inductor_config false (recipe): it only affects torchao' quantize "$model" out --recipe ao.json --dry-run
ao Int8WeightOnlyConfig '"set_inductor_config": true, "group_size": null'
equal "a config's default values are not reported" '' "$(settings quantize "$model" out --recipe ao.json --dry-run)"
ao Float8DynamicActivationFloat8WeightConfig '"granularity": {"_type": "PerRow", "_data": {}}, "mm_config": {"_type": "Float8MMConfig", "_data": {"emulate": true}}'
setting 'equivalent: mm_config Float8MMConfig (recipe): it only affects torchao' plan "$model" --recipe ao.json
ao Int4WeightOnlyConfig '"group_size": 32, "int4_packing_format": "PRESHUFFLED"'
setting 'equivalent: layout PRESHUFFLED (recipe): codes of 36 layers are stored plain' quantize "$model" out --recipe ao.json --dry-run
ao Int8DynamicActivationInt8WeightConfig '"layout": {"_type": "SemiSparseLayout", "_data": {}}'
setting 'not as asked: layout SemiSparseLayout (recipe): Nibble does not make weights 2:4 sparse' plan "$model" --recipe ao.json
ao Int4WeightOnlyConfig '"group_size": 32, "version": 1'
sed 's/"version": 1/"version": 3/' ao.json >later.json
refused 3 '*: Int4WeightOnlyConfig version 3 is not supported; versions 1 and 2 are' plan "$model" --recipe later.json
check 'version 1 of a config gives its scheme' grep -q 'int4wo-g32-tinygemm' <(nibble plan "$model" --recipe ao.json)

# a checkpoint that requests other activations
nibble quantize "$model" codes --recipe int8dq --quiet >out 2>err
nibble convert codes described --format compressed-tensors --quiet >out 2>err
rm described/nibble.json
edit described/config.json 'next(iter(d["quantization_config"]["config_groups"].values()))["output_activations"] = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}'
setting 'not as asked: group_0 output_activations (config): this config group asks for quantized outputs' plan described
edit described/config.json 'g = next(iter(d["quantization_config"]["config_groups"].values())); g["output_activations"] = None; g["input_activations"]["strategy"] = "tensor"'
setting 'not as asked: model.layers.0.self_attn.q_proj.weight int activations of 8 bits per tensor (checkpoint): 36 weights' plan described
denied 'model.layers.0.self_attn.q_proj.weight int activations *' plan described --strict

# lengths that a model requests are followed, unless an option overrides them
cp -r "$model" short
edit short/generation_config.json 'd.update(max_new_tokens=3, max_length=9)'
length() { # length N LABEL ARGUMENT...: N tokens are generated
    local wanted=$1 label=$2
    shift 2
    equal "$label" "$wanted" "$(nibble generate short -p 'Once upon a time' --ignore-eos --json -q "$@" | grep -o '"new_tokens": [0-9]*' | grep -o '[0-9]*$')"
}
equal 'max_new_tokens and max_length are not reported' '' "$(settings generate short)"
length 3 'max_new_tokens is followed'
length 5 '-n overrides max_new_tokens' -n 5
length 11 '-n 0 overrides max_new_tokens' -n 0 --context 16
edit short/generation_config.json 'del d["max_new_tokens"]'
length 4 'max_length is followed'
refused 3 'the prompt has * tokens, and generation_config.json ends a text at max_length 9; *' generate short -p 'Once upon a time there was a wolf and a king'

# a missing tensor is reported before a run
python3 - odd/model.safetensors <<'END'
import sys
data = open(sys.argv[1], "rb").read()
open(sys.argv[1], "wb").write(data.replace(b'"model.norm.weight"', b'"model.narm.weight"', 1))
END
refused 3 '*: model.norm.weight is missing; config.json (qwen2) implies it' plan odd
refused 3 '*: model.norm.weight is missing; config.json (qwen2) implies it' quantize odd out --recipe int8wo

# --strict in a conversion
edit short/generation_config.json 'd.update(num_beams=4)'
denied 'num_beams 4 (config): *' convert short strict --format nibble --strict
check 'a denied conversion writes nothing' test ! -e strict
check 'convert --strict --allow generation-key' nibble convert short strict --format nibble --strict --allow generation-key
refused 2 '--allow kernel has no effect: *' convert short strict --format nibble --allow kernel --force
rm -rf strict

# with --strict, a change of a bias is refused before anything is written
denied '--bias int8 (option): *' quantize "$model" strict --recipe int8wo --only lm_head --bias int8 --format nibble --strict
check 'a denied --bias writes nothing' test ! -e strict

# options
refused 2 '--recipe is given twice, as "int8wo" and as "8da4w"' plan "$model" --recipe int8wo --recipe 8da4w
check 'an option given twice with the same value' nibble plan "$model" --recipe int8wo --recipe int8wo
setting 'equivalent: --threads 64 (option): this process may use only ' generate "$model" -n 1 --threads 64
setting 'without effect: --bias int8 (option): 0 of 15 biases have this type' generate "$model" -n 1 --bias int8
setting 'without effect: --top-k 5 (option): at temperature 0 the likeliest token is taken' generate "$model" -n 1 --temp 0 --top-k 5
denied '--top-p 0.5 (option): at temperature 0 *' generate "$model" -n 1 --temp 0 --top-p 0.5 --min-p 0.1 --strict --quiet
check 'generate --strict --allow sampling' nibble generate "$model" -n 1 --temp 0 --top-p 0.5 --strict --allow sampling
equal 'neutral sampling options are not reported' '' "$(settings generate "$model" -n 1 --temp 0 --top-p 1 --top-k 0 --seed 7)"
setting 'in part: --max-tokens 600 (option): the context of 512 tokens ends the text first' generate "$model" -n 600 --stop e
check 'the largest seed' grep -q '"seed": 18446744073709551615' <(nibble generate "$model" -n 1 --seed 18446744073709551615 --json 2>err)
refused 2 '--seed: "18446744073709551616" is not a whole number from 0 to 2^64 - 1' generate "$model" --seed 18446744073709551616
refused 2 '--seed: "-1" is not a whole number from 0 to 2^64 - 1' generate "$model" --seed -1
check 'the finish of a text that -n ends is length' grep -q '"finish": "length"' <(nibble generate "$model" -p x -n 4 --ignore-eos --json -q)
check 'the finish of a text that the context ends is context' grep -q '"finish": "context"' <(nibble generate "$model" -p x --context 16 --ignore-eos --json -q)

for option in --threads --context '--window'; do
    refused 2 "$option: \"0\" is not a whole number of 1 or more" eval "$model" --text x "$option" 0
done
refused 2 '--max-tokens: "0" is not a whole number of 1 or more' bench "$model" -n 0

setting 'without effect: num_beams 4 (config)' bench --predict short --prompt-tokens 4
equal 'settings of bench --predict' 'generation-key=without effect' "$(settings bench --predict short --prompt-tokens 4)"

# training
config=$REPO/configs/llama3_debugmodel.json
setting 'not as asked: parallelism.data_parallel_replicate_degree 3 (option): this run has 1 rank; start 3 with `mpirun -n 3 nibble train`' plan "$config" --parallelism.data_parallel_replicate_degree 3
equal 'one replica on one rank is not reported' '' "$(settings plan "$config" --parallelism.data_parallel_replicate_degree 1)"
denied 'parallelism.data_parallel_replicate_degree 3 (option): *' train "$config" --parallelism.data_parallel_replicate_degree 3 --strict --dry-run --quiet
refused 2 '--training.steps is given twice, as 1 and as 2' plan "$config" --training.steps 1 --training.steps=2
refused 2 '--training.local_batch_size is 2, but --training.batch_size, another name of it, is 1' plan "$config" --training.batch_size 1 --training.local_batch_size 2
check 'a training key given twice with the same value' nibble plan "$config" --training.steps 1 --training.steps 1
setting 'without effect: checkpoint.interval 3 (option): checkpoint.enable is not set' plan "$config" --checkpoint.interval 3
setting 'without effect: validation.freq 2 (option): validation.enable is not set' plan "$config" --validation.freq 2
equal 'checkpoint.interval with checkpoint.enable is not reported' '' "$(settings plan "$config" --checkpoint.interval 3 --checkpoint.enable)"
tiny=(--model.dim 64 --model.n_layers 1 --model.n_heads 2 --model.n_kv_heads 2 --training.local_batch_size 1 --training.seq_len 16)
setting 'not as asked: parallelism.data_parallel_replicate_degree 2' bench --train "$config" "${tiny[@]}" --parallelism.data_parallel_replicate_degree 2 --repeats 1
equal 'settings of bench --train' 'training-key=other' "$(settings bench --train "$config" "${tiny[@]}" --parallelism.data_parallel_replicate_degree 2 --repeats 1)"
setting 'without effect: training.dataset "c4_test" (option): there are no built-in datasets' plan "$config" --training.dataset c4_test
setting 'equivalent: training.compile true (option): every kernel is compiled' plan "$config" --training.compile
setting 'without effect: mx.recipe_name (option): model.converters does not name mx' plan "$config" --mx.recipe_name mxfp8
setting 'without effect: float8.recipe_name (option): model.converters does not name float8' plan "$config" --float8.recipe_name rowwise
denied 'training.dataset "c4_test" (option): *' train "$config" --training.dataset c4_test --strict --dry-run --quiet
check '--strict accepts an equivalent' nibble plan "$config" --training.compile --strict

# weight-only: codes of a format with int8 activations run with float ones, or a line says why not
nibble quantize "$MODEL" eights --recipe 8da4w --format nibble --quiet >/dev/null 2>&1
check 'quantize codes to weight-only' nibble quantize eights fours --recipe weight-only --format nibble --json
equal 'weight-only: schemes in the JSON of quantize' 36 "$(grep -c '"done": "int4wo-g32-sym"' "$seen.out")"
equal 'weight-only: schemes in the plan' 36 "$(nibble plan fours --json --quiet | grep -c '"asked": "int4wo-g32-sym@cpu"')"
same 'weight-only has the same codes' fours eights
denied 'model.layers.0.self_attn.q_proj int8wo-g32-ggml (recipe): GGUF readers multiply*' quantize "$MODEL" blocks.gguf --recipe int8wo-g32-ggml --format gguf --strict
check 'a denied GGUF is not written' [ ! -e blocks.gguf ]
setting 'not as asked: model.layers.0.self_attn.q_proj int8wo-g32-ggml (recipe): GGUF readers multiply' quantize "$MODEL" blocks.gguf --recipe int8wo-g32-ggml --format gguf
setting 'not as asked: model.layers.0.self_attn.q_proj int4wo-g32-sym (checkpoint): GGUF readers' convert fours again.gguf --format gguf

# torchchat's executors
echo '{"executor": {"accelerator": "mps"}, "linear:int4": {"groupsize": 32}}' >mps.json
refused 2 "the recipe's executor is mps, an Apple GPU, but this machine has none: --device cpu runs the recipe here, *" plan "$MODEL" --recipe mps.json
setting 'not as asked: executor mps (recipe): --device apple-m2 overrules it' plan "$MODEL" --recipe mps.json --device apple-m2

# a tied output is kept, even if a pattern names it
cp -r "$MODEL" tied
edit tied/config.json 'd["tie_word_embeddings"] = True'
"$REPO/tests/cli/tensors" tied/model.safetensors drop lm_head.weight
rm -f tied/nibble.json
setting 'without effect: --recipe 8da4w (option): it quantizes no layer' plan tied --recipe 8da4w --only lm_head
setting 'without effect: --only lm_head (option): it quantizes nothing: a tied output is kept without +head' plan tied --recipe 8da4w --only lm_head --only '*.q_proj'
check '+head quantizes a tied output without a line' test "$(settings plan tied --recipe 8da4w+head --only lm_head --only '*.q_proj')" = ''

# a recipe in addition to that of a training config
setting 'not as asked: recipe {"recipe_name"' plan "$REPO/configs/llama3_debugmodel_mxfp8.json" --recipe fp8dq
setting '--recipe fp8dq overrules it' plan "$REPO/configs/llama3_debugmodel_mxfp8.json" --recipe fp8dq
denied 'recipe {*' plan "$REPO/configs/llama3_debugmodel_mxfp8.json" --recipe fp8dq --strict
setting 'c4_test is tests/assets/c4_test/data.json of torchtitan' plan "$config" --training.dataset c4_test
