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

# on a short text: killed before the first step, then each time when five more are stored, then with the result: it goes on there
head -c 500 text.txt >short.txt
options[5]=short.txt
rm -r want
check 'without a kill' nibble quantize m want "${options[@]}" --quiet
steps=q.codes/layer-00007
replaced() { [ -e $steps ] && [ ! $steps -ef before ]; }
went_on() { check "it goes on after the steps that are stored" grep -q "learn: 6 of 6 layers have codes of an earlier run in q.codes; its steps go on after $1 of 50" "$seen.killed"; }
check 'killed before the first step' killed_when replaced
for made in 5 10; do
    ln -f $steps before
    check "killed after $made steps" killed_when replaced
    went_on '[0-9]*[05]'
done
check 'killed with the result' killed q.codes/layer-00006
went_on '[1-4][05]'
check 'no output yet' [ ! -e q ]
continues 'killed four times'
check 'it says that the steps are made' told 'note: learn: 6 of 6 layers have codes of an earlier run in q.codes; its 50 steps are made'

# steps that are damaged are made anew
check 'killed for damage' killed $steps
printf 'X' | dd of=$steps bs=1 seek=200 conv=notrunc 2>"$seen.err"
continues 'damaged'
check 'it says what is damaged' told 'note: learn: 6 of 6 layers have codes of an earlier run in q.codes; its steps are damaged, and are made anew'

# float zeros move, too; powers of two do not
nibble quantize m q --recipe int4wo --method learn --calibrate text.txt --force >out
nibble quantize m q2 --recipe int4wo --method qronos --calibrate text.txt --force >out2
less int4wo 0.9
check 'float zeros move' [ "$(cmp -s q/model.safetensors q2/model.safetensors && echo equal)" = '' ]
nibble quantize m q --recipe mxfp4 --format nibble --method learn --calibrate text.txt --force >out
nibble quantize m q2 --recipe mxfp4 --format nibble --method qronos --calibrate text.txt --force >out2
check 'it says that powers of two stay' grep -q 'learn: scales of 36 layers are powers of two, which do not move' out
check 'codes of mxfp4 are those of qronos' cmp q/model.safetensors q2/model.safetensors

# steps that do not help
head -c 300 "$REPO/tests/data/corpus.jsonl" >other.txt
nibble quantize m q --recipe nvfp4 --format nibble --method learn --calibrate other.txt --force >out
check 'it says that they did not' told 'note: learn: after 50 steps the logits are no closer to those of the stored weights, so all scales stay as by qronos'
nibble quantize m q2 --recipe nvfp4 --format nibble --method qronos --calibrate other.txt --force >out2
check 'codes and scales are those of qronos' cmp q/model.safetensors q2/model.safetensors

# refusals
refused 2 '*the method learn needs a text*' quantize m r --recipe int4wo-sym --method learn
refused 3 '*learn moves *8-bit floats*use qronos or gptq' quantize m r --recipe fp8wo --method learn --calibrate text.txt
check 'no codes of what is refused' [ ! -e r.codes ]
rm -rf m want q q2 before out out2 err text.txt short.txt other.txt
