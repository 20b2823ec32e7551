# SPDX-License-Identifier: Apache-2.0
#
# nibble info: the contents of plain checkpoints and of each dialect.
nibble quantize "$MODEL" q8 --recipe int8wo --quiet >/dev/null
nibble quantize "$MODEL" q4 --recipe 8da4w-g33 --quiet >/dev/null
see info "$MODEL"
see info q8
see info q4
for model in "$MODEL" "$MODEL/model.safetensors" q8 q4; do
    nibble info "$model" --json | members "info --json of $model" schema=1 tensors[].name=str tensors[].shape=list tensors[].format=str \
        tensors[].scheme=str 'tensors[].group=int|null' tensors[].bias=bool tensors[].bytes=int
done
# sum MODEL: bytes of all tensors
sum() { nibble info "$1" --json | python3 -c 'import json, sys; print(sum(t["bytes"] for t in json.load(sys.stdin)["tensors"]))'; }
# data MODEL: bytes after the header
data() { python3 -c 'import sys; f = open(sys.argv[1] + "/model.safetensors", "rb"); n = int.from_bytes(f.read(8), "little"); print(f.seek(0, 2) - 8 - n)' "$1"; }
for model in "$MODEL" q8 q4; do
    equal "every byte of $model is listed" "$(data "$model")" "$(sum "$model")"
done
