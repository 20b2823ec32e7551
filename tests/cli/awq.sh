# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method awq: scales folded into norms and rows; the same bytes for any number of threads, and by verify; the
# ledger names every layer without scales and why; norms of Gemma; refusals.
head -c 1500 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
options=(--recipe int4wo --method awq --calibrate text.txt)

nibble quantize m q "${options[@]}" --threads 1 >out 2>err
check 'the prediction' grep -q '^awq: [0-9.e+]* multiply-adds, about [0-9]* s at 60 % of this machine.s [0-9.e+]* per second$' err
check 'both times' told 'note: awq: [0-9.e+]* multiply-adds, predicted to take [0-9.]* s, took [0-9.]* s'
check 'its tokens' told "note: awq: 448 of the text's 448 tokens, in windows of 512"
check 'the parts of the text' told "note: awq: scales are made of the text's first 224 tokens, chosen by the next 112, and checked by the last 112"
check 'the whole model is checked' told "note: awq: KL divergence from the stored weights on the text's last 112 tokens [0-9.e-]* nats, of rounding [0-9.e-]*"
check 'most inputs have scales' told 'note: awq: 1[0-9] inputs have scales, folded into what makes them; without scales [0-9]* lose least of their layer.s output by searched codes, and [0-9]* by rounding'
check 'the output layer has none, by name' told 'note: awq: the inputs of 1 layer have no scales, as they are outside of the decoder layers: lm_head'
gained=$(tr -s ' \n' ' ' <out | sed -n "s/.*note: awq: [0-9]* layers, whose error of the layer's output is \([0-9]*\)\.[0-9] % below that of rounding, on average.*/\1/p")
check "outputs of layers lose a sixth less: $gained %" [ "${gained:-0}" -ge 16 ]
nibble quantize m q2 "${options[@]}" --threads 2 --quiet >out
check 'threads change no byte' diff -r q q2
check 'verify' nibble verify q
check 'verify makes it again' nibble verify q --from m
nibble verify q --against m >out
check 'norms are other ones' grep -q 'input_layernorm.*dB' out

# the folded model computes the same function: in int8, nearly nothing is lost
nibble quantize m eight --recipe int8wo --method awq --calibrate text.txt --quiet >out
nibble eval eight --against m --text text.txt --quiet >out
kl=$(sed -n 's/^KL  *\([0-9.]*\) nats per token$/\1/p' out)
check "int8 with scales is the stored model: KL $kl" awk -v kl="${kl:-1}" 'BEGIN { exit !(kl < 0.0005) }'

# norms of 1 + w: a random Gemma 2 with a tokenizer of letters
cp -r "$REPO/tests/golden/models/gemma2" gemma && rm gemma/logits.safetensors
letters_tokenizer >gemma/tokenizer.json
letters_of text.txt >letters.txt
gemma_kl() { # RECIPE [OPTION...]: KL divergence of Gemma quantized so
    nibble quantize gemma g --recipe "$@" --force >out
    nibble eval g --against gemma --text letters.txt --quiet | sed -n 's/^KL  *\([0-9.]*\) nats per token$/\1/p'
}
rounding=$(gemma_kl int4wo) eight=$(gemma_kl int8wo --method awq --calibrate letters.txt)
scaled=$(gemma_kl int4wo --method awq --calibrate letters.txt)
check 'Gemma: norms have scales' told 'note: awq: [1-9][0-9]* inputs have scales, folded into what makes them'
check "Gemma: KL $scaled, by rounding $rounding" awk -v a="${scaled:-9}" -v b="${rounding:-0}" 'BEGIN { exit !(a < b) }'
check "Gemma in int8 with scales is the stored model: KL $eight" awk -v kl="${eight:-1}" 'BEGIN { exit !(kl < 0.0005) }'
check 'Gemma: verify makes it again' nibble verify g --from gemma
rm -rf gemma g letters.txt

# layers of other methods keep their inputs, and so do those that read the same
echo '{"rules": [{"match": "*k_proj", "scheme": "int8wo", "method": "rtn"}, {"match": "*.mlp.*", "scheme": "int4wo", "method": "awq"}], "else": "int4wo", "method": "awq"}' >rules.json
nibble quantize m r --recipe rules.json --calibrate text.txt >out
check 'a rule without the method' told 'no scales, as a layer that reads the same input is not of the same method: model.layers.0.self_attn.q_proj, model.layers.0.self_attn.v_proj, '
nibble plan m --recipe rules.json >out
check 'a plan says that a run is refused' grep -q '^note: awq: 31 layers need a calibration text' out
refused 2 '*the method awq needs a calibration text; run nibble quantize*' generate m --recipe rules.json -n 1

rm -rf r q2 eight
refused 6 'q: exists already; --force replaces it' quantize m q "${options[@]}"
refused 2 '*the method awq needs a text to calibrate with; give --calibrate TEXT' quantize m r --recipe int4wo --method awq
refused 3 '*the method awq chooses scales of groups or rows*' quantize m r --recipe int8wo-tensor --method awq --calibrate text.txt
echo '{"rules": [{"match": "*k_proj", "scheme": "int4wo", "method": "gptq"}], "else": "int4wo", "method": "awq"}' >both.json
refused 3 'the methods gptq and awq do not mix: *' quantize m r --recipe both.json --calibrate text.txt
rm -rf m q out err text.txt rules.json both.json
