# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method search and hqq: the whole model compared with rounding on the end of the text, and rounding where that is
# better; the same bytes for any number of threads, and by verify; old receipts; models and options for which it does not run.
head -c 1500 "$MODEL/heldout.txt" >text.txt
cp -r "$MODEL" m
tiny=$REPO/tests/golden/models
compared="KL divergence from the stored weights on the text's last 112 tokens [0-9.e-]* nats, of rounding [0-9.e-]*"

for method in search hqq; do
    nibble quantize m q --recipe int4wo --method $method --calibrate text.txt --threads 1 >out
    check "$method is compared with rounding" told "note: $method: $compared"
    check 'the receipt names the tokens that checked' grep -q '"checked": 112,$' q/nibble.json
    nibble quantize m q2 --recipe int4wo --method $method --calibrate text.txt --threads 2 --quiet >out
    check 'threads change no byte' diff -r q q2
    check 'verify makes it again' nibble verify q --from m
    sed -i '/^ *"checked": /d' q2/nibble.json
    nibble verify q2 --from m >out || :
    check 'an old receipt is made again without it' told 'note: it names no tokens that checked the codes by search and hqq, so they are not compared with rounding'
    rm -r q q2
done
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int4wo", "method": "hqq"}, {"match": "*.o_proj", "scheme": "8da4w", "method": "search"}], "else": "8da4w"}' >both.json
nibble quantize m q --recipe both.json --calibrate text.txt >out
check 'both in one recipe are compared together' told "note: search and hqq: $compared"
rm -r q

# an imatrix has the squares, and the text only compares
nibble imatrix m im.gguf --calibrate text.txt --quiet >out
nibble quantize m q --recipe int4wo-sym --method search --imatrix im.gguf >out
check 'without a text' told 'note: search: without a text the whole model is not compared with rounding; with --calibrate TEXT it is, and rounding is kept if it is better'
nibble quantize m q2 --recipe int4wo-sym --method search --imatrix im.gguf --calibrate text.txt >out
check 'with an imatrix and a text' told "note: search: $compared"
check 'the codes are the same' cmp q/model.safetensors q2/model.safetensors
check 'verify makes it again' nibble verify q2 --from m
rm -r q q2

# rounding is kept where it is better: on a text of a few tokens
echo 'And so it was.' >few.txt
nibble quantize m kept --recipe mxfp4 --method search --calibrate few.txt >out
check 'rounding is kept' told "note: search: KL divergence from the stored weights on the text's last token [0-9.e-]* nats, of rounding [0-9.e-]*: worse, so all its layers are rounded to nearest instead"
check 'no layer is by search' [ "$(grep -c -e ' by search' out)" = 0 ]
nibble quantize m r --recipe mxfp4 --quiet >out
check 'the bytes are those of rounding' cmp kept/model.safetensors r/model.safetensors
check 'verify makes rounding again' nibble verify kept --from m
sed -i 's/^\( *"checked": \)[0-9]*/\19000/' kept/nibble.json
refused 3 'the calibration text has * tokens, and 9000 of them are to check the whole model' verify kept --from m
rm -r kept r

# the embedding, of whose inputs gptq has no moments, is searched and compared after it
nibble quantize m q --recipe int4wo-sym+embed --method gptq --calibrate text.txt >out
check 'gptq leaves the embedding to search' told 'note: gptq: the text has no inputs of 1 layer, so only scales are searched there: model.embed_tokens'
check 'which is compared' told "note: search: $compared"
check 'its receipt names the tokens that checked' grep -q '"checked": 112,$' q/nibble.json
check 'verify makes it again' nibble verify q --from m
echo 'the king said' >few.txt
nibble quantize m kept --recipe mxfp4+embed --method gptq --calibrate few.txt >out
check 'rounding is kept in the embedding' told 'note: search: KL divergence from the stored weights on the text.s last token [0-9.e-]* nats, of rounding [0-9.e-]*: worse, so all its layers are rounded to nearest instead'
check 'and only there' [ "$(grep -c ' by search' out) $(grep -c ' by gptq' out)" = '0 8' ]
check 'verify makes that again' nibble verify kept --from m
rm -r q kept

# every kind of codes, and a text that is too short for nothing
for recipe in int8dq-static fp8wo mxfp4 nvfp4dq int2wo 8da4w+embed+head; do
    nibble quantize m q --recipe $recipe --method search --calibrate text.txt --format nibble >out
    check "$recipe is compared" told "note: search: KL divergence from the stored weights on the text's last 112 tokens"
    rm -r q
done
nibble quantize m q.gguf --recipe iq4_nl --format gguf --method search --calibrate text.txt >out
check 'a GGUF is compared' told "note: search: $compared"
echo >one.txt
nibble quantize m q --recipe int4wo --method search --calibrate one.txt >out
check 'one token is compared' told "note: search: KL divergence from the stored weights on the text's last token [0-9.e-]* nats"
rm -r q

# random models with tied output layers, biases and experts: the check finds what an evaluation of the output does
agrees_with_eval search llama3 llama_bias qwen3_moe granitemoe

# layers that read the keys of others do not run alone
cp -r "$tiny/gemma4_shared" shared && letters_tokenizer >shared/tokenizer.json
nibble quantize shared q --recipe int4wo-g16 --format nibble --method search --calibrate letters.txt >out
check 'shared keys' told 'note: search: the last [0-9]* layers of this model read the keys of earlier ones, so the whole model is not compared with rounding'
check 'verify makes it again' nibble verify q --from shared
