# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method rotate: rotations merged into weights, with and without a text; the function of floats stays; the same
# bytes for any number of threads, and by verify, from the seed in the receipt; GGUF; tied output layers; refusals.
head -c 1500 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
tiny=$REPO/tests/golden/models
kl_of() { nibble eval "$1" --against m --text text.txt --quiet | sed -n 's/^KL  *\([0-9.]*\) nats per token$/\1/p'; }

nibble quantize m q --recipe int4wo-sym --method rotate --calibrate text.txt --threads 1 >out
check 'the stream' told 'note: rotate: the residual stream is rotated by a Hadamard matrix with random signs of 224, seed 0, merged into 37 layers; 11 norms become 1, and their weights part of the layers after them'
check 'the values' told 'note: rotate: the values of attention are rotated in 5 layers, each head by a Hadamard matrix with random signs of 16'
check 'the function' told 'note: rotate: with rotated weights in f32, the logits of 64 tokens differ by [0-9.]*e-0[67] of their range from those of the stored weights; f32 arithmetic explains up to'
check 'the codes' told 'note: rotate: 36 layers; their weighted squared error is [12][0-9]*.[0-9] % below that of rounding rotated weights, on average'
nibble quantize m q2 --recipe int4wo-sym --method rotate --calibrate text.txt --threads 2 --quiet >out
check 'threads change no byte' diff -r q q2
check 'the receipt has the seed' grep -q '"seed": 0' q/nibble.json
check 'verify' nibble verify q
check 'verify makes it again' nibble verify q --from m
sed -i 's/"seed": 0/"seed": 1/' q/nibble.json
check 'another seed gives other bytes' test "$(nibble verify q --from m >out 2>err || echo $?)" = 8

# in int8 nearly nothing is lost, so it is the stored model, also as a GGUF
nibble quantize m eight --recipe int8wo --method rotate --quiet >out
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
rm -rf m q g out err text.txt rules.json mixed.json all.json
