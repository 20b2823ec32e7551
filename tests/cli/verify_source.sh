# SPDX-License-Identifier: Apache-2.0
#
# nibble verify OUT --from SOURCE without a receipt: a verdict for every tensor, in every dialect; changed codes, scales and
# values are found and named; another source is never a yes.
damage() { "$REPO/tests/cli/tensors" "$@"; }

# judged OUT SOURCE CONDITION: on the report d, t(NAME) the tensor of that name, v the counts of verdicts
judged() {
    local status=0
    nibble verify "$1" --from "$2" --json >report 2>sentence || status=$?
    python3 -c 'import json, sys
d = json.load(open("report"))
t = lambda name: next(x for x in d["tensors"] if x["name"] == name)
v = {k: n for k, n in d["verdicts"].items() if n}
sys.exit(not (eval(sys.argv[1]) and int(sys.argv[2]) == (8 if d["problems"] else 0)))' "$3" "$status" ||
        equal "judgement of $1" "$3" "$status $(cat report sentence)"
}

# without FORMAT RECIPE OUT: quantized in that format, without the receipt
without() {
    nibble quantize "$MODEL" "$3" --recipe "$2" --format "$1" --quiet >/dev/null
    rm -f "$3/nibble.json" "$3.nibble.json"
}

without torchao 8da4w a
nibble verify a --from "$MODEL" >report
check 'a verdict for each tensor' test 36 = "$(grep -c '^rounded: ' report)"
check 'all are counted' grep -q '^no receipt; 63 tensors: 27 same, 36 rounded, 0 problems$' report
check 'what is not shown is said' grep -q '^note: nothing here vouches for ' report
nibble verify a --from "$MODEL" --json | members verify-from-source schema=1 receipt=null manifest=null source=str tensors[].name=str tensors[].verdict=str \
    tensors[].text=str tensors[].differing=int tensors[].places=list verdicts.rounded=36 findings=list problems=0 notes=list
check 'the same report for other threads' test "$(nibble verify a --from "$MODEL" -t 1 | sha256sum)" = "$(nibble verify a --from "$MODEL" -t 2 | sha256sum)"

# every dialect that is written
for format in compressed-tensors nibble; do
    without $format 8da4w-asym d
    judged d "$MODEL" 'v == {"same": 27, "rounded": 36}'
    rm -r d
done
without compressed-tensors int8wo d
judged d "$MODEL" 'v == {"same": 27, "rounded": 36}'
rm -r d
without gguf int4wo-g32-sym-ggml d.gguf
judged d.gguf "$MODEL" 'v["rounded"] == 36 and d["problems"] == 0'
rm d.gguf

# changed places, by row and column
cp -r a altered
damage altered/model.safetensors flip model.layers.3.mlp.up_proj._weight_qdata 1234
judged altered "$MODEL" '(v == {"same": 27, "rounded": 35, "altered": 1} and t("model.layers.3.mlp.up_proj.weight")["places"][0]["row"] == 5
    and t("model.layers.3.mlp.up_proj.weight")["places"][0]["column"] == 114 and t("model.layers.3.mlp.up_proj.weight")["differing"] == 1)'
check 'the code is named with what is expected' grep -q 'row 5, column 114: found ' report
damage altered/model.safetensors put model.norm.weight 6 803f
judged altered "$MODEL" 'v["altered"] == 2 and t("model.norm.weight")["places"] == [{"row": 0, "column": 3, "scale": False, "found": 1, "expected": t("model.norm.weight")["places"][0]["expected"]}]'
rm -r altered
cp -r a altered
damage altered/model.safetensors put model.layers.0.mlp.up_proj._weight_scale 11 3f
judged altered "$MODEL" 't("model.layers.0.mlp.up_proj.weight")["verdict"] == "altered" and t("model.layers.0.mlp.up_proj.weight")["places"][0]["scale"]'
rm -r altered

# what is missing, surplus or of another source
cp -r a less
damage less/model.safetensors drop model.norm.weight
judged less "$MODEL" '[f["code"] for f in d["findings"]] == ["missing"]'
rm -r less
cp -r "$MODEL" source
damage source/model.safetensors drop model.norm.weight
judged a source 't("model.norm.weight")["verdict"] == "other" and d["problems"] == 1'
cp "$MODEL/model.safetensors" source
python3 -c 'import sys
data = bytearray(open(sys.argv[1], "rb").read())
size = int.from_bytes(data[:8], "little") + 8
for i in range(size, len(data) - 1, 2): # another order of the values
    data[i + 1] ^= (i * 2654435761 >> 7 & 1) << 7
open(sys.argv[1], "wb").write(data)' source/model.safetensors
judged a source 'v.get("rounded", 0) + v.get("searched", 0) + v.get("same", 0) == 0'
rm -r source

# factors that another tensor undoes, of layer 0: doubled FOLDER NAME... doubles every other input (rows: output) of bf16 tensors
doubled() {
    python3 -c 'import json, struct, sys
path = sys.argv[1] + "/model.safetensors"
data = bytearray(open(path, "rb").read())
size = int.from_bytes(data[:8], "little")
header = json.loads(data[8:8 + size])
for argument in sys.argv[2:]:
    name, axis, step = argument.split("/")
    t = header["model.layers.0." + name]
    k = t["shape"][-1]
    for i in range(t["data_offsets"][0], t["data_offsets"][1], 2):
        at = (i - t["data_offsets"][0]) // 2
        value, = struct.unpack_from("<H", data, 8 + size + i)
        if (at // k if axis == "rows" else at % k) % 2 and value & 0x7f80:
            struct.pack_into("<H", data, 8 + size + i, value + 0x80 * int(step))
open(path, "wb").write(data)' "$@"
}
without compressed-tensors int4wo-sym a4
cp -r "$MODEL" source
doubled source input_layernorm.weight/columns/1 self_attn.q_proj.weight/columns/-1 self_attn.k_proj.weight/columns/-1 self_attn.v_proj.weight/columns/-1 \
    mlp.up_proj.weight/rows/1 mlp.down_proj.weight/columns/-1
judged a4 source 'v == {"same": 26, "rounded": 31, "folded": 6} and "inputs times 1 to 2" in t("model.layers.0.self_attn.q_proj.weight")["text"]'
damage a4/model.safetensors flip model.layers.0.self_attn.q_proj.weight_packed 1234
judged a4 source 'v == {"same": 26, "rounded": 31, "folded": 4, "altered": 1, "unknown": 1}' # the norm, too: not all that read it follow
cp "$MODEL/model.safetensors" source
doubled source input_layernorm.weight/columns/1 self_attn.q_proj.weight/columns/-1 self_attn.v_proj.weight/columns/-1
judged a4 source 'v.get("folded", 0) == 1 and d["problems"] >= 2' # k does not follow the norm
cp "$MODEL/model.safetensors" source
doubled source mlp.down_proj.weight/columns/-1
judged a4 source 'v.get("folded", 0) == 0 and "does not undo" in t("model.layers.0.mlp.down_proj.weight")["text"]'
rm -r source a4

# another source is no rotation of this one: its few levels alone bring the correlation of 2-bit codes below 0.9
drawn() {
    cp -r "$MODEL" "$1"
    python3 -c 'import json, random, struct, sys
path = sys.argv[1] + "/model.safetensors"
data = bytearray(open(path, "rb").read())
size, = struct.unpack_from("<Q", data)
rng = random.Random(1)
for name, t in sorted(json.loads(data[8:8 + size]).items()):
    for i in range(*t["data_offsets"], 2) if "_proj" in name else ():
        value = rng.gauss(0, 1) + float(sys.argv[2]) * rng.gauss(0, 1)
        data[8 + size + i:10 + size + i] = struct.pack("<f", value)[2:]
open(path, "wb").write(data)' "$@"
}
drawn source 0
drawn other 0.05
nibble quantize source a2 --recipe int2wo --format nibble --quiet >/dev/null
rm a2/nibble.json
judged a2 source 'v == {"same": 27, "rounded": 36}'
judged a2 other 'v == {"same": 12, "rounded": 1, "unknown": 50}'
rm -r source other a2

# conversions
nibble convert "$MODEL" c --format safetensors --dtype f16 --quiet >/dev/null
rm c/nibble.json
judged c "$MODEL" 'd["problems"] == 0 and v == {"same": v["same"], "cast": 63 - v["same"]} and v["cast"] > 0'

# the chat template
printf '{{ messages[0].content }}' >a/chat_template.jinja
cp -r "$MODEL" source
printf '{{ messages[0].contents }}' >source/chat_template.jinja
judged a source '[f["code"] for f in d["findings"]] == ["chat-template"] and "byte 22 on" in d["findings"][0]["text"]'
