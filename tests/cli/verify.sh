# SPDX-License-Identifier: Apache-2.0
#
# nibble verify: a changed byte, a NaN, a missing tensor, files that do not match the manifest.
nibble quantize "$MODEL" q --recipe 8da4w --format torchao --quiet >/dev/null
damage() { "$REPO/tests/cli/tensors" "$@"; }
see verify q
nibble verify q --json | members verify schema=1 tensors[].name=str tensors[].shape=list tensors[].scheme=str tensors[].bytes=int

# found GLOB MODEL: exit 8, and the glob matches a line of the report
found() {
    local status=0 line
    nibble verify "$2" >report 2>sentence || status=$?
    equal "exit status of verify $2" 8 "$status"
    check "the error of verify $2 counts problems" grep -q "^nibble: $2: [0-9]* problems\? w" sentence
    while IFS= read -r line; do
        # shellcheck disable=SC2053 # a glob is meant
        [[ $line == $1 ]] && return
    done < <(echo "$(tr '\n' ' ' <report | sed 's/  */ /g')")
    equal "report of verify $2" "$1" "$(cat report)"
}
cp -r q flipped
damage flipped/model.safetensors flip model.layers.3.mlp.up_proj._weight_qdata 1234
found '*model.layers.3.mlp.up_proj._weight_qdata*hash*' flipped
cp -r q scale
damage scale/model.safetensors put model.layers.0.mlp.up_proj._weight_scale 10 c07f
found 'not-finite: model.layers.0.mlp.up_proj._weight_scale: 1 value is not finite, the first at index 5 *' scale
cp -r q tokens
sed -i 's/the/teh/' tokens/tokenizer.json
found '*tokenizer.json*' tokens
cp -r "$MODEL" nan
damage nan/model.safetensors put model.layers.2.mlp.down_proj.weight 2000 c07f
found '*model.layers.2.mlp.down_proj.weight*index 1000*' nan
cp -r "$MODEL" infinite
damage infinite/model.safetensors put model.norm.weight 6 80ff
found '*model.norm.weight*index 3*' infinite
check 'exit status of quantize with a NaN' test 3 = "$(nibble quantize nan x --recipe int8wo >/dev/null 2>err; echo $?)"
check 'quantize names the weight with a NaN' grep -q 'model.layers.2.mlp.down_proj' err
cp -r "$MODEL" integers
damage integers/model.safetensors type model.norm.weight I16
found 'type: model.norm.weight: is I16, but config.json implies floats*' integers
cp -r "$MODEL" missing
damage missing/model.safetensors drop model.layers.4.self_attn.v_proj.bias
found 'bias: model.layers.4.self_attn.v_proj.weight: config.json implies a bias, but none is stored*' missing
refused 3 'missing: model.layers.4.self_attn.v_proj.bias is missing; *' generate missing -n 1
damage missing/model.safetensors drop model.layers.1.self_attn.q_proj.weight
found '*missing: model.layers.1.self_attn.q_proj.weight: config.json implies it, but it is not stored*' missing
refused 3 'missing: model.layers.1.self_attn.q_proj.weight*no such tensor' generate missing -n 1
check 'info lists a model with missing tensors' nibble info missing
cp -r q range
code=$(damage range/model.safetensors offset model.layers.0.mlp.up_proj._weight_qdata)
printf '\x09' | dd of=range/model.safetensors bs=1 seek="$code" conv=notrunc status=none
found '*code-range: model.layers.0.mlp.up_proj.weight: code at row 0, column 0 is 9, outside -8 to 7 for int4*' range
rm flipped/nibble.json
check 'without a manifest a changed code is accepted' nibble verify flipped

nibble quantize "$MODEL" q8 --recipe int8wo --quiet >/dev/null
check 'verify --against itself' nibble verify q --against q
nibble verify q --against q8 >report
check '--against gives the distance of each weight' grep -q '^lm_head  *[0-9.]* dB' report
check '--against compares the models on text' grep -Eq '^as models: 63 tokens, KL divergence 0\.[0-9]+ nats per token, the same top token in [0-9.]+ %$' report
nibble verify q --against q --json | members models models.tokens=63 models.kl=0 models.top1_agreement=1
rm q/config.json q/nibble.json
check 'verify without config.json' nibble verify q
check 'info without config.json' nibble info q/model.safetensors
refused 6 'q/config.json: cannot open it: *' generate q -n 1

# signs of a broken calibration: a problem where a tensor contradicts the config, else a note
nibble quantize "$MODEL" ct --recipe 8da4w --format compressed-tensors --quiet >/dev/null
rm ct/nibble.json
check 'a sound checkpoint has no signs' test 0 = "$(nibble verify ct | grep -c '^note:')"
cat >break.py <<'END'
import json, sys
mode, folder, model = sys.argv[1:]
def load(path):
    data = open(path + "/model.safetensors", "rb").read()
    size = int.from_bytes(data[:8], "little") + 8
    header = json.loads(data[8:size])
    header.pop("__metadata__", None)
    return {k: [t["dtype"], t["shape"], data[size + t["data_offsets"][0]:size + t["data_offsets"][1]]] for k, t in header.items()}
tensors, module = load(folder), "model.layers.2.mlp.up_proj"
if mode == "default":
    name = next(k for k in tensors if k.startswith(module) and "scale" not in k and "shape" not in k)
    tensors[name][2] = bytes(len(tensors[name][2]))
else:
    for k in [k for k in tensors if k.startswith(module + ".")]:
        del tensors[k]
    tensors[module + ".weight"] = load(model)[module + ".weight"]
    config = json.load(open(folder + "/config.json"))
    config["quantization_config"]["ignore"].append("model.layers.9.nothing")
    json.dump(config, open(folder + "/config.json", "w"))
header, at = {}, 0
for k, (dtype, shape, data) in tensors.items():
    header[k] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
    at += len(data)
text = json.dumps(header).encode()
with open(folder + "/model.safetensors", "wb") as f:
    f.write(len(text).to_bytes(8, "little") + text + b"".join(t[2] for t in tensors.values()))
END
cp -r ct floats
python3 break.py floats floats "$MODEL"
found 'config: model.layers.2.mlp.up_proj: 1 weights are stored as floats and run as such, although quantization_config says codes note: model.layers.9.nothing: the first of 1 in *' floats
cp -r ct default
python3 break.py default default "$MODEL"
found 'default-codes: model.layers.2.mlp.up_proj.weight: all of its 136192 codes are the same*' default
nibble quantize "$MODEL" four --recipe int4wo-sym --quiet >/dev/null
nibble convert four floats4 --format safetensors --dtype f32 --quiet >/dev/null
nibble quantize floats4 eight --recipe int8wo-g32 --quiet >/dev/null
nibble verify eight >report
check 'codes of codes are noted' test 36 = "$(tr '\n' ' ' <report | sed 's/  */ /g' | grep -o 'note: [a-z_0-9.]*: each of its [0-9]* groups has at most 16 distinct codes of 8 bits' | wc -l)"
echo '{"rules": [{"match": "lm_head", "scheme": "8da4w-g56"}], "else": "8da4w"}' >head.json
nibble quantize "$MODEL" head --recipe head.json --quiet >/dev/null
nibble verify head >report
check 'a head in other groups is noted' grep -q '^note: lm_head.weight: has groups of 56 inputs, and the other 35 weights of 32 ' report
