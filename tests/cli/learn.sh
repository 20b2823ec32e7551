# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method learn: less is lost than by qronos; the same bytes for any threads and after a kill, and again from the
# receipt, also from an older one; what it refuses, and what it leaves as qronos has it.
head -c 1300 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
kl() { tr -s ' \n' ' ' <"$1" | sed -n 's/.*note: [a-z]*: KL divergence from the stored weights on the text.s first [0-9]* tokens \([0-9.e-]*\) nats.*/\1/p'; }
# less WHAT LIMIT: learn's divergence is below this part of qronos'
less() {
    local learned qronos
    learned=$(kl out) qronos=$(kl out2)
    check "$1: learn loses less than qronos: $learned, $qronos nats" awk "BEGIN { exit !($learned < $2 * $qronos) }"
}
options=(--recipe int4wo-sym --method learn --calibrate text.txt)
nibble quantize m want "${options[@]}" --format torchao --threads 1 >out 2>err
check 'the prediction' grep -q '^learn: [0-9.e+]* multiply-adds, about [0-9]* s at 60 % of this machine.s [0-9.e+]* per second$' err
check 'a layer is by learn' grep -q 'mlp.gate_proj .* by learn$' out
check 'verify codes of learn' nibble verify want
nibble quantize m q --recipe int4wo-sym --method qronos --format torchao --calibrate text.txt >out2
less int4wo-sym 0.9
cat >compare.py <<'END'
# layers whose codes, and whose scales, differ
import json, re, struct
def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    return {n: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]] for n, t in json.loads(data[8:8 + size]).items() if n != "__metadata__"}
a, b = read("want/model.safetensors"), read("q/model.safetensors")
differ = {n for n in a if a[n] != b[n]}
assert all(n.endswith(("_weight_scale", "_weight_qdata")) for n in differ)
layers = {int(re.search(r"layers\.(\d)", n)[1]) for n in differ if n.endswith("qdata") and "layers" in n}
first = min(layers)
assert first > 0 and layers == set(range(first, 5)), layers # those behind a tuned layer are coded on what it leaves
assert {n for n in a if n.endswith("_weight_scale")} <= differ
END
check 'codes differ from the first tuned layer on, and all scales do' python3 compare.py
check 'it says how many layers are tuned' told 'note: learn: in [1-4] of 5 decoder layers 50 steps of rounding lower the squared error of what the layer leaves, by [0-9.]* % on average; the others keep the codes of qronos'
rm -r q

cp -r want edited
sed -i 's/"rounding_steps": 50/"rounding_steps": 51/' edited/nibble.json
refused 3 '*edited/nibble.json: *51*50*' verify edited --from m
# receipts of programs that kept the codes name no steps of rounding; their bytes are made again
if full; then
    cp want/nibble.json edited
    sed -i '/"rounding_steps"/d; s/"model.safetensors": "[0-9a-f]\{64\}"/"model.safetensors": "8113608c28f44bf3f485d97b6b3cec32c621be7fe284613a3ceffc32694149d1"/' edited/nibble.json
    nibble verify edited --from m >out
    check 'the bytes of an older program' told 'altered: model.safetensors: .* and from what source and options give, which are the same'
    check 'it says which' told 'note: it names no steps of rounding, so learn moves scales and keeps the codes of qronos, as programs did before receipts named them'
fi
rm -r edited

# on a short text: killed before the first step, then each time when five more are stored, then with the result: it goes on there
head -c 400 text.txt >short.txt
options[5]=short.txt
rm -r want
check 'without a kill' nibble quantize m want "${options[@]}" --quiet
check 'made again from the receipt' nibble verify want --from m
steps=q.codes/layer-00007
replaced() { [ -e $steps ] && [ ! $steps -ef before ]; }
went_on() { check "it goes on after the steps that are stored" grep -q "learn: 6 of 6 layers have codes of an earlier run in q.codes; its steps go on after $1 of 50" "$seen.killed"; }
check 'killed after the rounding of two layers' killed q.codes/layer-00009
check 'killed before the first step' killed_when replaced
check 'it goes on after them' grep -q 'learn: 2 of 6 layers have codes of an earlier run in q.codes; the rounding of 2 of 5 decoder layers is tuned' "$seen.killed"
for made in 5 10; do
    ln -f $steps before
    check "killed after $made steps" killed_when replaced
    went_on '[0-9]*[05]'
done
check 'killed with the result' killed q.codes/layer-00006
went_on '[1-4][05]'
check 'no output yet' [ ! -e q ]
continues 'killed five times'
check 'it says that the steps are made' told 'note: learn: 6 of 6 layers have codes of an earlier run in q.codes; its 50 steps are made'

# what is damaged is made anew
check 'killed for damage' killed $steps
for part in $steps q.codes/layer-00011; do printf 'X' | dd of=$part bs=1 seek=200 conv=notrunc 2>"$seen.err"; done
continues 'damaged'
check 'it says what is damaged' told 'note: learn: 6 of 6 layers have codes of an earlier run in q.codes; the rounding of 4 of 5 decoder layers is tuned; its steps are damaged, and are made anew'

# neither codes nor scales that are better
if sampled 3; then
    options=(--recipe nvfp4 --format nibble --only 'model.layers.0.*' --calibrate other.txt --force)
    head -c 300 "$REPO/tests/data/corpus.jsonl" >other.txt
    nibble quantize m q "${options[@]}" --method learn >out
    check 'it says that no code is tuned' told 'note: learn: 50 steps of rounding lower the squared error of no decoder layer, so all codes are those of qronos'
    check 'it says that the steps did not help' told 'note: learn: after 50 steps the logits are no closer to those of the stored weights, so all scales stay as by qronos'
    nibble quantize m q2 "${options[@]}" --method qronos >out2
    check 'codes and scales are those of qronos' cmp q/model.safetensors q2/model.safetensors
fi

# float zeros move, too; powers of two do not
if sampled 3; then
    nibble quantize m q --recipe int4wo --method learn --calibrate text.txt --force >out
    nibble quantize m q2 --recipe int4wo --method qronos --calibrate text.txt --force >out2
    less int4wo 0.9
    check 'float zeros move' [ "$(cmp -s q/model.safetensors q2/model.safetensors && echo equal)" = '' ]
fi
if sampled 3; then
    head -c 2000 "$MODEL/heldout.txt" >longer.txt
    nibble quantize m q --recipe mxfp4 --format nibble --method learn --calibrate longer.txt --force >out
    nibble quantize m q2 --recipe mxfp4 --format nibble --method qronos --calibrate longer.txt --force >out2
    check 'codes of mxfp4 are tuned' [ "$(cmp -s q/model.safetensors q2/model.safetensors && echo equal)" = '' ]
    check 'it says that powers of two stay' told 'note: learn: scales of 36 layers are powers of two, which do not move, so they stay as by qronos'
fi

# refusals
refused 2 '*the method learn needs a text*' quantize m r --recipe int4wo-sym --method learn
refused 3 '*learn moves *8-bit floats*use qronos or gptq' quantize m r --recipe fp8wo --method learn --calibrate text.txt
check 'no codes of what is refused' [ ! -e r.codes ]
rm -rf m want q q2 before compare.py out out2 err text.txt short.txt longer.txt other.txt
