# SPDX-License-Identifier: Apache-2.0
#
# Recipes by name, by patterns and from files: torchchat's, torchao's and Nibble's.
refused 2 'scheme "8da4": unknown name; did you mean 8da4w*' plan "$MODEL" --recipe 8da4
refused 2 'scheme "nonsense": unknown name; the names are f32*' plan "$MODEL" --recipe nonsense
refused 2 '*' plan "$MODEL" --recipe 8da4w-g0
refused 2 '*' plan "$MODEL" --recipe 8da4w-g32-g64
refused 2 '*' plan "$MODEL" --recipe mxfp8-g64
refused 2 '*' plan "$MODEL" --recipe int8wo-floor
refused 2 'pattern "lm_heat" matches no layer; did you mean lm_head*' plan "$MODEL" --recipe 8da4w --skip lm_heat
refused 2 'pattern "lm_heat" matches no layer; did you mean lm_head*' plan "$MODEL" --recipe 8da4w --only lm_heat
refused 2 'pattern "nonsense" matches no layer; *' quantize "$MODEL" out --recipe 8da4w --skip nonsense
refused 3 '*`re:(`*unmatched parenthesis' plan "$MODEL" --recipe 8da4w --skip 're:('

# done_of PATTERN ARGUMENT...: the distinct schemes of the layers whose names match
done_of() {
    local pattern=$1
    shift
    nibble plan "$MODEL" --json --quiet "$@" | python3 -c '
import fnmatch, json, sys
layers = json.load(sys.stdin)["layers"]
print(*sorted({l["done"].split("@")[0] for l in layers if fnmatch.fnmatchcase(l["name"], sys.argv[1])}))' "$pattern"
}
equal 'a recipe name quantizes linear layers' 8da4w-g32 "$(done_of '*_proj' --recipe 8da4w)"
equal 'a recipe name quantizes an untied head' 8da4w-g32 "$(done_of lm_head --recipe 8da4w)"
equal 'a recipe name keeps the embedding' bf16 "$(done_of model.embed_tokens --recipe 8da4w)"
equal '+embed: an embedding has no activations to quantize' int4wo-g32-sym "$(done_of model.embed_tokens --recipe 8da4w+embed)"
equal '+embed-SCHEME' int8wo "$(done_of model.embed_tokens --recipe 8da4w+embed-int8wo)"
equal 'mxfp8 keeps the head' bf16 "$(done_of lm_head --recipe mxfp8)"
equal 'mxfp8+head' mxfp8 "$(done_of lm_head --recipe mxfp8+head)"
equal '--skip keeps the layers that it matches' 'bf16' "$(done_of '*.down_proj' --recipe int8wo --skip '*.down_proj')"
equal '--skip quantizes the others' 'int8wo' "$(done_of '*.up_proj' --recipe int8wo --skip '*.down_proj')"
equal '--only quantizes the layers that it matches' 'int8wo' "$(done_of '*.down_proj' --recipe int8wo --only '*.down_proj')"
equal '--only keeps others' 'bf16' "$(done_of '*.up_proj' --recipe int8wo --only '*.down_proj')"
equal '--skip with re:' 'bf16' "$(done_of 'model.layers.[01].*' --recipe int8wo --skip 're:.*layers\.[01]\..*')"
equal "--skip with torchtitan's name of a layer" 'bf16' "$(done_of lm_head --recipe int8wo --skip output)"

cat >rules.json <<'END'
{"schema": 1, "rules": [{"match": "*.down_proj", "scheme": "int8wo"}, {"match": "lm_head", "scheme": "keep"},
 {"match": "re:.*self_attn.*", "scheme": "int4wo-g64"}], "else": "8da4w-g32"}
END
equal 'rules: glob' int8wo "$(done_of '*.down_proj' --recipe rules.json)"
equal 'rules: re:' int4wo-g64 "$(done_of '*.q_proj' --recipe rules.json)"
equal 'rules: keep' bf16 "$(done_of lm_head --recipe rules.json)"
equal 'rules: else' 8da4w-g32 "$(done_of '*.up_proj' --recipe rules.json)"
echo '{"schema": 1, "rules": [{"match": "*.down_poj", "scheme": "int8wo"}], "else": "keep"}' >rules.json
refused 2 '*"\*.down_poj" matches no layer*' plan "$MODEL" --recipe rules.json
echo '{"schema": 2, "rules": []}' >rules.json
refused 3 'rules.json: *schema*' plan "$MODEL" --recipe rules.json
echo '{"schema": 1, "rules": [{"match": "lm_head", "scheme": "int9"}]}' >rules.json
refused 3 'rules.json: *int9*' plan "$MODEL" --recipe rules.json
echo '{"schema": 1, "rules": [' >rules.json
refused 3 'rules.json: *' plan "$MODEL" --recipe rules.json
refused 6 '*nosuch.json*' plan "$MODEL" --recipe nosuch.json

echo '{"linear:int4": {"groupsize": 32}}' >torchchat.json
equal "torchchat's JSON in a file" int4wo-g32-tinygemm "$(done_of '*.q_proj' --recipe torchchat.json)"
equal "torchchat's JSON as the argument" 8da4w-g64 "$(done_of '*.q_proj' --recipe '{"linear:a8w4dq": {"groupsize": 64}}')"
refused '3' '*linear:int5*' plan "$MODEL" --recipe '{"linear:int5": {}}'
cat >torchao.json <<'END'
{"_type": "Int8DynamicActivationIntxWeightConfig", "_version": 2, "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
 "weight_granularity": {"_type": "PerGroup", "_version": 1, "_data": {"group_size": 64}}}}
END
equal "torchao's config" 8da4w-g64 "$(done_of '*.q_proj' --recipe torchao.json)"
cat >torchao.json <<'END'
{"_type": "IntxWeightOnlyConfig", "_version": 2, "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
 "granularity": {"_type": "PerGroup", "_version": 1, "_data": {"group_size": 32}},
 "mapping_type": {"_type": "MappingType", "_data": "ASYMMETRIC"}, "scale_dtype": {"_type": "torch.dtype", "_data": "float32"}}}
END
equal 'ASYMMETRIC: integer zero points' int4wo-g32-intzero "$(done_of '*.q_proj' --recipe torchao.json)"
# types DIRECTORY: the distinct types of the scales
types() {
    python3 -c '
import json, struct, sys
with open(sys.argv[1] + "/model.safetensors", "rb") as f:
    tensors = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
print(*sorted({t["dtype"] for n, t in tensors.items() if n.endswith("._weight_scale")}))' "$1"
}
nibble quantize "$MODEL" q --recipe torchao.json --format torchao --quiet >/dev/null
equal "scales have the config's scale_dtype" F32 "$(types q)"
equal "config.json keeps the config's scale_dtype" float32 "$(python3 -c '
import json
config = json.load(open("q/config.json"))["quantization_config"]["quant_type"]["default"]
print(config["_data"]["scale_dtype"]["_data"])')"
head -c 3000 "$MODEL/heldout.txt" >text.txt
loss() { nibble eval "$@" --text text.txt --json --quiet | grep -o '"loss": [0-9.]*'; }
equal 'quantized while loading: the same loss' "$(loss q)" "$(loss "$MODEL" --recipe torchao.json)"
bytes() { nibble plan "$@" --json --quiet | grep -o '"weight_bytes": [0-9]*' | sed -n 1p; }
equal 'quantized while loading: the same weight bytes' "$(bytes q)" "$(bytes "$MODEL" --recipe torchao.json)"
nibble plan q --recipe torchao.json >plan
equal 'no line on stored scales of that type' 0 "$(grep -c 'keep their stored' plan)"
nibble quantize "$MODEL" q --recipe int4wo-intzero --format torchao --quiet --force >/dev/null
equal "without scale_dtype, scales have the weight's type" BF16 "$(types q)"
nibble plan q --recipe torchao.json >plan
check 'the plan reports stored scales of another type' grep -q '^not as asked: scale_dtype f32 (recipe): 36 layers keep their stored' plan
refused 4 '--strict: scale_dtype f32 (recipe): 36 layers keep their stored *--allow scale-type accepts it' \
    generate q -p x -n 1 --recipe torchao.json --strict --quiet
python3 - <<'END' >types.json
import json
config = json.load(open("torchao.json"))
other = json.loads(json.dumps(config))
other["_data"]["scale_dtype"] = None
layers = {"lm_head": other, "_default": config}
print(json.dumps({"_type": "FqnToConfig", "_version": 1, "_data": {"fqn_to_config": layers}}))
END
nibble quantize "$MODEL" q --recipe types.json --format torchao --quiet --force >/dev/null
equal 'two configs give scales of two types' 'BF16 F32' "$(types q)"
check 'scales of two types are written as FqnToConfig' grep -q '"_type": "FqnToConfig"' q/config.json
rm -rf q plan text.txt types.json
nibble quantize "$MODEL" q --recipe 8da4w-g32 --format torchao --quiet >/dev/null
equal "a quantized model's config.json" 8da4w-g32 "$(done_of '*.q_proj' --recipe q/config.json)"
only_here q rules.json torchao.json torchchat.json

nibble recipes --json | members recipes schema=1 recipes[].name=str recipes[].weights=str recipes[].activations=str
for recipe in $(nibble recipes --json | python3 -c 'import json, sys; print(*[r["name"] for r in json.load(sys.stdin)["recipes"]])'); do
    case $recipe in
    q?_k | q?_k_?) refused 3 "model.*: q?_k has super-blocks of 256 inputs, and 224 is not a multiple of that; *" \
        plan "$MODEL" --recipe "$recipe" && continue ;;
    esac
    check "plan --recipe $recipe" nibble plan "$MODEL" --recipe "$recipe" --strict
done
