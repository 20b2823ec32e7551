# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method learn: less is lost than by qronos; the same bytes for any threads and after a kill, and again from the
# receipt; what it refuses, and what it leaves as qronos has it.
head -c 2000 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
kl() { tr -s ' \n' ' ' <"$1" | sed -n 's/.*note: [a-z]*: KL divergence from the stored weights on the text.s first [0-9]* tokens \([0-9.e-]*\) nats.*/\1/p'; }
# less WHAT LIMIT: learn's divergence is below this part of qronos'
less() {
    local learned qronos
    learned=$(kl out) qronos=$(kl out2)
    check "$1: learn loses less than qronos: $learned, $qronos nats" awk "BEGIN { exit !($learned < $2 * $qronos) }"
}
options=(--recipe int4wo-sym --method learn --calibrate text.txt)
nibble quantize m want "${options[@]}" --threads 1 >out 2>err
check 'the prediction' grep -q '^learn: [0-9.e+]* multiply-adds, about [0-9]* s at 60 % of this machine.s [0-9.e+]* per second$' err
check 'a layer is by learn' grep -q 'mlp.gate_proj .* by learn$' out
check 'verify codes of learn' nibble verify want
nibble quantize m q --recipe int4wo-sym --method qronos --calibrate text.txt >out2
less int4wo-sym 0.9
check 'the codes are those of qronos; their scales are not' python3 -c '
import json, struct
def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    return {n: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]] for n, t in json.loads(data[8:8 + size]).items() if n != "__metadata__"}
a, b = read("want/model.safetensors"), read("q/model.safetensors")
assert {n for n in a if a[n] != b[n]} == {n for n in a if n.endswith("_weight_scale")}'
rm -r q
check "made again from the receipt" nibble verify want --from m

# killed when all layers have codes, and steps are made: they are made anew
"$NIBBLE" quantize m q "${options[@]}" --quiet >"$seen.out" 2>"$seen.err" &
job=$!
while [ ! -e q.codes/layer-00005 ] && kill -0 $job 2>"$seen.err"; do sleep 0.01; done
kill -KILL $job 2>"$seen.err"
wait $job 2>"$seen.err"
check 'killed before it was complete' [ -e q.codes -a ! -e q ]
nibble quantize m q "${options[@]}" --threads 2 >out 2>err
check 'it says how many layers were there' grep -q 'learn: [0-9]* of [0-9]* layers have codes of an earlier run in q.codes' err
check 'killed, and continued with two threads: the same bytes' diff -r want q
check 'killed: the codes are removed' [ ! -e q.codes ]
rm -r q

# float zeros move, too; powers of two do not
nibble quantize m q --recipe int4wo --method learn --calibrate text.txt --force >out
nibble quantize m q2 --recipe int4wo --method qronos --calibrate text.txt --force >out2
less int4wo 0.9
check 'float zeros move' [ "$(cmp -s q/model.safetensors q2/model.safetensors && echo equal)" = '' ]
nibble quantize m q --recipe mxfp4 --format nibble --method learn --calibrate text.txt --force >out
nibble quantize m q2 --recipe mxfp4 --format nibble --method qronos --calibrate text.txt --force >out2
check 'it says that powers of two stay' grep -q 'learn: scales of 36 layers are powers of two, which do not move' out
check 'codes of mxfp4 are those of qronos' cmp q/model.safetensors q2/model.safetensors

# refusals
refused 2 '*the method learn needs a text*' quantize m r --recipe int4wo-sym --method learn
refused 3 '*learn moves *8-bit floats*use qronos or gptq' quantize m r --recipe fp8wo --method learn --calibrate text.txt
check 'no codes of what is refused' [ ! -e r.codes ]
rm -rf m want q q2 out out2 err text.txt
