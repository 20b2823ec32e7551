# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method smooth: scales that make activations easier to code, also for static scales; the same bytes for any
# number of threads, and by verify; refusals.
head -c 1500 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
options=(--recipe int8dq-static --method smooth --calibrate text.txt)

nibble quantize m q "${options[@]}" --threads 1 >out 2>err
check 'the prediction' grep -q '^smooth: [0-9.e+]* multiply-adds, about [0-9]* s at 60 % of this machine.s [0-9.e+]* per second$' err
check 'inputs have scales' told 'note: smooth: [1-9][0-9]* inputs have scales, folded into what makes them; without scales [0-9]* lose least of their layer.s output by searched codes, and [0-9]* by rounding'
check 'the output layer has none, by name' told 'note: smooth: the inputs of 1 layers have no scales, as they are outside of the decoder layers: lm_head'
check 'static scales fit the text' told 'note: smooth: the activation scales of [1-9][0-9]* layers fit this text, and larger inputs of another are clipped; measure the result on another text with nibble eval --against'
gained=$(tr -s ' \n' ' ' <out | sed -n "s/.*note: smooth: [0-9]* layers; their error of the layer's output is \([0-9]*\)\.[0-9] % below that of rounding, on average.*/\1/p")
check "outputs of layers lose less: $gained %" [ "${gained:-0}" -ge 10 ]
nibble quantize m q2 "${options[@]}" --threads 2 --quiet >out
check 'threads change no byte' diff -r q q2
check 'verify' nibble verify q
check 'verify makes it again' nibble verify q --from m
nibble quantize m r --recipe int8dq-static --calibrate text.txt --quiet >out
kl_of() { nibble eval "$1" --against m --text text.txt --quiet | sed -n 's/^KL  *\([0-9.]*\) nats per token$/\1/p'; }
smooth=$(kl_of q) rounding=$(kl_of r)
check "KL $smooth of smooth, $rounding of rounding" awk -v a="${smooth:-9}" -v b="${rounding:-0}" 'BEGIN { exit !(a < b) }'

# layers whose activations are floats keep their inputs; one rule can have the method
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int8wo", "method": "smooth"}, {"match": "*self_attn*", "scheme": "8da4w", "method": "smooth"}], "else": "int8dq"}' >rules.json
nibble quantize m s --recipe rules.json --calibrate text.txt >out
check 'floats have no scales' told 'no scales, as its activations are floats: model.layers.0.mlp.gate_proj, '
nibble plan m --recipe rules.json >out
check 'a plan says that a run is refused' grep -q '^note: smooth: 35 layers need a calibration text' out

rm -rf q2 r s
refused 6 'q: exists already; --force replaces it' quantize m q "${options[@]}"
refused 2 '*the method smooth needs a text to calibrate with; give --calibrate TEXT' quantize m r --recipe 8da4w --method smooth
refused 3 'the method smooth makes activations easier to code, and here they are floats in all layers; use awq, or a recipe like 8da4w or int8dq' quantize m r --recipe int4wo --method smooth --calibrate text.txt
rm -rf m q out err text.txt rules.json
