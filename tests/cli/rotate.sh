# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method rotate: rotations merged into weights, with and without a text; the function of floats stays; the same
# bytes for any number of threads, and by verify, from the seed in the receipt; rounding where that is better; GGUF; tied output
# layers; refusals.
head -c 1500 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
tiny=$REPO/tests/golden/models
kl_of() { nibble eval "$1" --against m --text text.txt --quiet | sed -n 's/^KL  *\([0-9.]*\) nats per token$/\1/p'; }

nibble quantize m q --recipe int4wo-sym --method rotate --calibrate text.txt --threads 1 >out
check 'the stream' told 'note: rotate: the residual stream is rotated by a Hadamard matrix with random signs of 224, seed 0, merged into 37 layers; 11 norms become 1, and their weights part of the layers after them'
check 'the values' told 'note: rotate: the values of attention are rotated in 5 layers, each head by a Hadamard matrix with random signs of 16'
check 'the function' told 'note: rotate: with rotated weights in f32, the logits of 64 tokens differ by [0-9.]*e-0[67] of their range from those of the stored weights; f32 arithmetic explains up to'
check 'the codes' told 'note: rotate: 36 layers, whose weighted squared error is [12][0-9]*.[0-9] % below that of rounding rotated weights, on average'
nibble quantize m q2 --recipe int4wo-sym --method rotate --calibrate text.txt --threads 2 --quiet >out
check 'threads change no byte' diff -r q q2
check 'the whole model is checked' told "note: rotate: KL divergence from the stored weights on the text's last 112 tokens [0-9.e-]* nats, of rounding [0-9.e-]*"
check 'the receipt names the tokens held out' grep -q '"held_out": 112,$' q/nibble.json
check 'the receipt has the seed' grep -q '"seed": 0' q/nibble.json
check 'verify' nibble verify q
check 'verify makes it again' nibble verify q --from m
cp -r q bare && rm bare/nibble.json
nibble verify bare --from m >out 2>err || :
check 'without the receipt it is rotated, or unknown' told 'no receipt; 63 tensors: 10 same, [0-9]* rotated, [0-9]* unknown, '
check 'the embedding' told 'rotated: model.embed_tokens.weight: the inner products of its rows have a correlation of [01].[0-9]* with the source.s, as after a rotation; '
check 'both sides' told 'unknown: model.layers.0.self_attn.v_proj.weight: .*, as after a rotation on both sides, and [0-9]* other tensors are rotated'
rm -r bare
sed -i 's/"seed": 0/"seed": 1/' q/nibble.json
check 'another seed gives other bytes' test "$(nibble verify q --from m >out 2>err || echo $?)" = 8

# receipts of programs that compared nothing
nibble quantize m old --recipe int4wo-sym --method rotate --calibrate text.txt --quiet >out
sed -i '/^ *"held_out": /d' old/nibble.json
nibble verify old --from m >out || :
check 'an old receipt is made again without it' told 'note: it names no tokens held out, so the rotated model is not compared with rounding, as by programs before receipts named them'
rm -r old

# rounding is kept where it is better: on a text whose end is of another kind
{ yes 'to be, or not to be' | head -n 60; echo 'Then said the fox: 1805 pounds, "Anna Pavlovna!" and Rostov gave CORIOLANUS the golden key; what a frog.'; } >other.txt
nibble quantize m kept --recipe mxfp4 --method rotate --calibrate other.txt >out
check 'rounding is kept' told "note: rotate: KL divergence from the stored weights on the text's last [0-9]* tokens [0-9.e-]* nats, of rounding [0-9.e-]*: worse, so all its layers are rounded to nearest instead"
check 'no layer is by rotate' [ "$(grep -c -e ' by rotate' -e 'is rotated by' out)" = 0 ]
nibble quantize m r --recipe mxfp4 --quiet >out
check 'the bytes are those of rounding' cmp kept/model.safetensors r/model.safetensors
check 'verify makes rounding again' nibble verify kept --from m
rm -r kept r other.txt

# in int8 nearly nothing is lost, so it is the stored model, also as a GGUF
nibble quantize m eight --recipe int8wo --method rotate >out
check 'without a text' told 'note: rotate: without a text the whole model is not compared with rounding; with --calibrate TEXT it is, and rounding is kept if it is better'
nibble quantize m eight.gguf --recipe int8wo-g32-ggml --format gguf --method rotate --quiet >out
for one in eight eight.gguf; do
    kl=$(kl_of $one)
    check "$one is the stored model: KL $kl" awk -v kl="${kl:-1}" 'BEGIN { exit !(kl < 0.001) }'
done

# an output layer that shares the embedding's tensor gets its own
nibble quantize "$tiny/llama3" tied --recipe int8wo --method rotate >out
check 'untied' told 'note: rotate: the output layer shares the embedding.s tensor, and only one of them takes the final norm.s weights, so they become two tensors; 27008 bytes more'
check 'the config says so' grep -q '"tie_word_embeddings": false' tied/config.json
check 'a tied one is whole' nibble verify tied

# random models with tied output layers, biases and experts: the check finds what an evaluation of the output does
agrees_with_eval rotate llama3 llama_bias qwen3_moe granitemoe

# what cannot rotate is said
nibble quantize "$tiny/gemma2" g --recipe int4wo --method rotate --dry-run >out
check 'a norm behind a layer' told 'note: rotate: the residual stream is not rotated, as a norm with weights is between a linear layer and the stream: model.layers.0.post_attention_layernorm'
check 'the values alone' told 'note: rotate: the values of attention are rotated in'

echo '{"rules": [{"match": "*.mlp.*", "scheme": "int4wo", "method": "search"}], "else": "int4wo"}' >rules.json
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int4wo", "method": "gptq"}], "else": "int4wo"}' >mixed.json
echo '{"rules": [], "else": "int4wo", "method": "rotate"}' >all.json
rm -rf q2 eight eight.gguf tied
refused 3 'the method rotate rotates the residual stream of the whole model, and model.layers.0.mlp.gate_proj, which reads or writes it, is quantized by search; give all layers the method rotate, or keep that one as floats' quantize m r --recipe rules.json --method rotate
refused 3 'the methods gptq and rotate do not mix: *' quantize m r --recipe mixed.json --method rotate --calibrate text.txt
refused 3 'the method rotate finds nothing to rotate in this model: *' quantize "$tiny/cohere" r --recipe int4wo --only '*.gate_proj' --method rotate
refused 2 '--imatrix none.dat has no effect: the method rotate mixes the inputs, *' quantize m r --recipe int4wo --method rotate --imatrix none.dat
refused 2 '*the method rotate changes the weights of the whole model; run nibble quantize first' generate m --recipe all.json --prompt a
rm -rf m q g out err text.txt letters.txt end.txt rules.json mixed.json all.json
