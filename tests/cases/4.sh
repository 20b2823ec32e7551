#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# torchao and ExecuTorch, biases in quantized checkpoints: kept bit by bit, loaded as quantized, run.
. "$(dirname "$0")/lib.sh"
section 4

says 1.out '36 asked 8da4w-g32, 36 done, 0 substituted'
says 1.out '0 problems'
holds info.json 'sum(t["bias"] for t in d["tensors"]) == 15'
holds info.json 'all(t["scheme"] == "8da4w-g32" for t in d["tensors"] if t["bias"])'

# byte by byte, by a reader of our own
python3 - "$REPO/models/nibble-tales/model.safetensors" tales-biased/model.safetensors <<'END' || fail 'the biases differ'
import json, struct, sys

def biases(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    return {name: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items() if name.endswith(".bias")}

before, after = biases(sys.argv[1]), biases(sys.argv[2])
sys.exit(not (len(before) == 15 and before == after and any(any(b[2]) for b in before.values())))
END
checked=$((checked + 1))

# why the others failed, and where: only the layers with a bias
q=model.layers.0.self_attn.q_proj o=model.layers.0.self_attn.o_proj
holds executorch.json "codes(candidate('$q', 'executorch-0.5.prequantized_8da4w')) == ['bias=no']"
holds executorch.json "'dropped without a message' in candidate('$q', 'executorch-0.5.prequantized_8da4w')['consequence']"
holds executorch.json "candidate('$o', 'executorch-0.5.prequantized_8da4w')['verdict'] == 'runs'"
holds executorch.json "candidate('$q', 'executorch.prequantized_8da4w')['verdict'] == 'runs'"
holds torchao.json "codes(candidate('$q', 'torchao-0.9.prequantized_8da4w')) == ['bias=no']"
holds torchao.json "candidate('$q', 'torchao-0.10.prequantized_8da4w')['verdict'] == 'runs'"
holds gptfast.json "'bias=no' in codes(candidate('$q', 'gpt-fast.int4'))"
holds executorch.json 'all(d["counts"][k] == n for k, n in {"asked": 36, "done": 36, "substituted": 0, "denied": 0, "embeddings_not_as_asked": 0}.items())'

# it runs as quantized, and what it computes is the model
says 4.err '36 asked 8da4w-g32, 36 done on cpu/'
[ "$(wc -c <4.out)" -gt 20 ] || fail 'no text was generated'
python3 -c 'import json; print(json.dumps({"now": json.load(open("loss.json")), "bf16": json.load(open("bf16_loss.json"))}))' >both.json
holds both.json 'abs(d["now"]["loss"] - d["bf16"]["loss"]) < 0.1 and d["now"]["predicted"] == d["bf16"]["predicted"]'

# quantized biases: one standard call, the same layers as quantized, the other tensors as they were
says 5.out '15 of 15 biases are int8'
says 5.out "written as nibble: torchao's format has no quantized biases (15 here)"
says 5.out '0 problems'
says 5.err '36 asked 8da4w-g32, 36 done on cpu/'
holds int8_info.json 'sum(t["bias_form"] == "int8" for t in d["tensors"]) == 15'
python3 -c 'import json; print(json.dumps({"now": json.load(open("int8_loss.json")), "float": json.load(open("loss.json"))}))' >both.json
holds both.json 'abs(d["now"]["loss"] - d["float"]["loss"]) < 0.005 and d["now"]["predicted"] == d["float"]["predicted"]'

# the codes by the formula, and every other tensor as beside float biases, by a reader of our own
"$NIBBLE" quantize "$REPO/models/nibble-tales" tales-float --recipe 8da4w --format nibble --quiet >/dev/null
python3 - tales-float tales-int8-bias <<'END' || fail 'the codes are not those of the formula, or another tensor has changed'
import json, struct, sys

def tensors(path):
    with open(path + "/model.safetensors", "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    return {n: (t["dtype"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items() if n != "__metadata__"}

f32 = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
before, after = (tensors(p) for p in sys.argv[1:])
biases = [n for n in before if n.endswith(".bias")]
assert len(biases) == 15
assert all(after[n] == before[n] for n in before if n not in biases)
assert len(after) == len(before) + len(biases)
for name in biases:
    module = name[:-len(".bias")]
    values = [struct.unpack("<f", b"\0\0" + before[name][1][i:i + 2])[0] for i in range(0, len(before[name][1]), 2)]
    codes = struct.unpack("%db" % len(values), after[module + "._bias_qdata"][1])
    scales = after[module + "._bias_scale"][1]
    for i, x in enumerate(values):
        group = values[i // 32 * 32:i // 32 * 32 + 32]
        scale = max(f32(max(map(abs, group)) / 127.5), 2.0 ** -126)
        assert struct.pack("<f", scale) == scales[i // 32 * 4:i // 32 * 4 + 4]
        assert codes[i] == max(-128, min(127, round(f32(x * f32(1 / scale)))))
END
checked=$((checked + 1))

says 7.out 'int8 -> f32, largest relative change 0: the format torchao has no quantized biases'
status 8 4
says 8.err 'model.layers.0.self_attn.q_proj: 8da4w-g32 takes no int32 bias: its activations have a scale per token'
says 9.out '15 of 15 biases are int32'
holds int32_loss.json '3 < d["loss"] < 5'
finish
