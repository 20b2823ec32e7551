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
holds executorch.json 'd["counts"] == {"asked": 36, "done": 36, "substituted": 0, "denied": 0, "embeddings_not_as_asked": 0}'

# it runs as quantized, and what it computes is the model
says 4.err '36 asked 8da4w-g32, 36 done on cpu/'
[ "$(wc -c <4.out)" -gt 20 ] || fail 'no text was generated'
python3 -c 'import json; print(json.dumps({"now": json.load(open("loss.json")), "bf16": json.load(open("bf16_loss.json"))}))' >both.json
holds both.json 'abs(d["now"]["loss"] - d["bf16"]["loss"]) < 0.1 and d["now"]["predicted"] == d["bf16"]["predicted"]'

status 5 3
says 5.err 'no format holds a quantized bias'
[ ! -e tales-int8-bias ] || fail 'output was left behind'
finish
