# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method smooth: scales that make activations easier to code, also for static scales; the same bytes for any
# number of threads, and by verify; refusals.
head -c 1500 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
options=(--recipe int8dq-static --method smooth --format nibble --calibrate text.txt)

nibble quantize m q "${options[@]}" --threads 1 >out 2>err
check 'the prediction' grep -q '^smooth: [0-9.e+]* multiply-adds, about [0-9]* s at 60 % of this machine.s [0-9.e+]* per second$' err
check 'inputs have scales' told 'note: smooth: [1-9][0-9]* inputs have scales, folded into what makes them; without scales [0-9]* lose least of their layer.s output by searched codes, and [0-9]* by rounding'
check 'the output layer has none, by name' told 'note: smooth: the inputs of 1 layer have no scales, as they are outside of the decoder layers: lm_head'
check 'static scales fit the text' told 'note: smooth: the activation scales of [1-9][0-9]* layers fit this text, and larger inputs of another are clipped; measure the result on another text with nibble eval --against'
check 'the parts of the text' told "note: smooth: scales are made of the text's first 224 tokens, chosen by the next 112, and checked by the last 112"
check 'the whole model is checked' told "note: smooth: KL divergence from the stored weights on the text's last 112 tokens [0-9.e-]* nats, of rounding [0-9.e-]*"
check 'the receipt names the tokens held out' grep -q '"held_out": 112,$' q/nibble.json
gained=$(tr -s ' \n' ' ' <out | sed -n "s/.*note: smooth: [0-9]* layers, whose error of the layer's output is \([0-9]*\)\.[0-9] % below that of rounding, on average.*/\1/p")
check "outputs of layers lose less: $gained %" [ "${gained:-0}" -ge 10 ]
nibble quantize m q2 "${options[@]}" --threads 2 --quiet >out
check 'threads change no byte' diff -r q q2
check 'verify' nibble verify q
check 'verify makes it again' nibble verify q --from m
nibble quantize m r --recipe int8dq-static --calibrate text.txt --quiet >out
kl_of() { nibble eval "$1" --against m --text text.txt --quiet | sed -n 's/^KL  *\([0-9.]*\) nats per token$/\1/p'; }
smooth=$(kl_of q) rounding=$(kl_of r)
check "KL $smooth of smooth, $rounding of rounding" awk -v a="${smooth:-9}" -v b="${rounding:-0}" 'BEGIN { exit !(a < b) }'

# scales that lose on the end of the text, which is of another kind, are not used
{ yes 'to be, or not to be' | head -n 60; echo 'Then said the fox: 1805 pounds, "Anna Pavlovna!" and Rostov gave CORIOLANUS the golden key; what a frog.'; } >other.txt
nibble quantize m kept --recipe int8dq-static --skip lm_head --method smooth --calibrate other.txt >out
check 'rounding is kept' told "note: smooth: KL divergence from the stored weights on the text's last [0-9]* tokens [0-9.e-]* nats, of rounding [0-9.e-]*: worse, so all its layers are rounded to nearest instead"
check 'no layer is by smooth' [ "$(grep -c ' by smooth' out)" = 0 ]
nibble quantize m r --recipe int8dq-static --skip lm_head --calibrate other.txt --force --quiet >out
check 'the bytes are those of rounding' cmp kept/model.safetensors r/model.safetensors
check 'verify makes rounding again' nibble verify kept --from m
rm -r kept other.txt

# receipts of programs that checked nothing name no tokens held out; such scales are made again, to the bytes of those programs
sed -i '/^ *"held_out": /d; s/"model.safetensors": "[0-9a-f]\{64\}"/"model.safetensors": "d004534cee534b555722b8156d8a81a11b4d52b2dd36856f8dd4da9f61a28685"/' q/nibble.json
nibble verify q --from m >out || :
check 'an old receipt is made again' told 'altered: model.safetensors: .*and from what source and options give, which are the same.*note: it names no tokens held out, so scales of inputs are chosen by the whole text, '

# layers whose activations are floats keep their inputs; one rule can have the method
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int8wo", "method": "smooth"}, {"match": "*self_attn*", "scheme": "8da4w", "method": "smooth"}], "else": "int8dq"}' >rules.json
head -c 3000 "$MODEL/heldout.txt" >more.txt
nibble quantize m s --recipe rules.json --calibrate more.txt >out
check 'floats have no scales' told 'no scales, as its activations are floats: model.layers.0.mlp.gate_proj, '
nibble plan m --recipe rules.json >out
check 'a plan says that a run is refused' grep -q '^note: smooth: 35 layers need a calibration text' out

printf 'a' >tiny.txt
refused 3 'the calibration text has [12] tokens; the last 1 check the whole model, *' quantize m r --recipe 8da4w --method smooth --calibrate tiny.txt --force
rm -rf q2 r s tiny.txt more.txt
refused 6 'q: exists already; --force replaces it' quantize m q "${options[@]}"
refused 2 '*the method smooth needs a text to calibrate with; give --calibrate TEXT' quantize m r --recipe 8da4w --method smooth
refused 3 'the method smooth makes activations easier to code, and here they are floats in all layers; use awq, or a recipe like 8da4w or int8dq' quantize m r --recipe int4wo --method smooth --calibrate text.txt
rm -rf m q out err text.txt rules.json
