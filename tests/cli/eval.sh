# SPDX-License-Identifier: Apache-2.0
#
# nibble eval: the loss of a text and of JSON lines, alone and against another model.
head -c 1500 "$MODEL/heldout.txt" >text.txt
python3 -c 'import json; [print(json.dumps({"id": i, "text": t})) for i, t in enumerate(open("text.txt").read().split("\n\n")) if t.strip()]' >text.jsonl
nibble quantize "$MODEL" q --recipe 8da4w --quiet >/dev/null
# loss ARGUMENT...
loss() { nibble eval "$@" --json --quiet | python3 -c 'import json, sys; print("%.6f" % json.load(sys.stdin)["loss"])'; }
for text in text.txt text.jsonl; do
    nibble eval "$MODEL" --text $text --window 64 --json 2>err | members "eval --json of $text" schema=1 loss=num perplexity=num predicted=int
    equal "$text: a single line on stderr" 1 "$(wc -l <err)"
    nibble eval q --text $text --window 64 --against "$MODEL" --json 2>err | members "eval --against --json of $text" schema=1 loss=num kl=num top1_agreement=num
done
one=$(loss "$MODEL" --text text.txt --window 64 -t 1 --isa ref)
equal 'threads and instruction sets do not change the loss' "$one" "$(loss "$MODEL" --text text.txt --window 64)"
equal 'same loss with weights quantized at load' "$(loss q --text text.txt --window 64)" "$(loss "$MODEL" --recipe 8da4w --text text.txt --window 64)"
equal 'KL and agreement of a model against itself' '0.0 1.0' "$(nibble eval "$MODEL" --text text.txt --window 64 --against "$MODEL" --json --quiet | python3 -c 'import json, sys; d = json.load(sys.stdin); print(float(d["kl"]), float(d["top1_agreement"]))')"
equal 'perplexity is exp(loss)' True "$(nibble eval "$MODEL" --text text.txt --json --quiet | python3 -c 'import json, math, sys; d = json.load(sys.stdin); print(abs(math.exp(d["loss"]) / d["perplexity"] - 1) < 1e-6)')"
nibble eval "$MODEL" --text text.txt --window 64 --against q >out 2>err
for word in 'loss  *[0-9.]* nats per token' 'perplexity  *[0-9]' 'predicted  *[0-9]* tokens' 'KL  *[0-9.]* nats per token' 'agreement  *[0-9.]* %'; do
    check "the report has: $word" grep -q "$word" out
done
check "the ledger's line is on stderr" grep -q '36 linear layers: 36 asked bf16, .* 0 substituted' err

# numbers FILE: the comparison in a JSON report, without the ledgers
numbers() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print({k: d[k] for k in d if k.startswith(("kl", "loss", "top1", "perplexity", "against_loss", "intervals", "predicted"))})' "$1"; }
nibble eval "$MODEL" --text text.txt --window 16 --save-logits f32.logits --quiet >/dev/null
nibble eval q --text text.txt --against f32.logits --json --quiet -t 1 >file.json
nibble eval q --text text.txt --window 16 --against "$MODEL" --json --quiet >model.json
check 'the report has intervals' grep -q '"unit": "window", "units": [1-9][0-9], "resamples": 2000, "kl": \[0' model.json
equal 'a file of logits gives the numbers of its model, with any threads' "$(numbers model.json)" "$(numbers file.json)"
nibble eval "$MODEL" --text text.txt --window 32 --save-logits codes.logits --logits-format llama.cpp --quiet >/dev/null
nibble eval q --text text.txt --against codes.logits --json --quiet >file.json
check "llama.cpp's windows count from their middle" grep -q '"first_scored": 16' file.json
nibble eval q --text text.txt --window 32 --save-logits other.logits --logits-format llama.cpp --against "$MODEL" --json --quiet >model.json
equal "llama.cpp's codes change the KL divergence by less than their step" True "$(python3 -c 'import json; a, b = (json.load(open(f)) for f in ("file.json", "model.json")); print(0 < abs(a["kl"] - b["kl"]) < 2.5e-4 and a["loss"] == b["loss"])')"
refused 6 'f32.logits: exists already; *' eval "$MODEL" --text text.txt --save-logits f32.logits
head -c 1000 text.txt >short.txt
refused 3 'f32.logits was written with another text or tokenizer: *' eval "$MODEL" --text short.txt --against f32.logits
refused 3 'f32.logits was written with windows of 16 tokens, not 32' eval "$MODEL" --text text.txt --window 32 --against f32.logits
refused 2 'text.jsonl has documents, but *' eval "$MODEL" --text text.jsonl --against codes.logits
head -c 5000 f32.logits >cut.logits
refused 3 'cut.logits has 5000 bytes, but its header stands for *' eval "$MODEL" --text text.txt --against cut.logits
refused 2 'unknown format of logits "f8"; use nibble or llama.cpp' eval "$MODEL" --text text.txt --save-logits new.logits --logits-format f8
refused 2 'a format of logits needs a file*' eval "$MODEL" --text text.txt --logits-format nibble
check 'nothing half written' test "$(echo *.logits*)" = 'codes.logits cut.logits f32.logits other.logits'

# by layer: each line is what --only this layer gives, and the lines are in the plan's order
layers=(--only '*.layers.0.mlp.*' --only lm_head)
nibble eval "$MODEL" --recipe int4wo-g32 "${layers[@]}" --text text.txt --against f32.logits --by-layer --json 2>err >layers.json
equal 'the cost is said first' 'by layer: the text is evaluated 5 times, once with all of the recipe' "$(head -n 1 err)"
check 'each layer is named as it is evaluated' grep -q '^layer 4 of 4: lm_head$' err
by_layer() { python3 -c 'import json; print(*("%(name)s %(scheme)s %(kl).6f" % l for l in json.load(open("layers.json"))["by_layer"]), sep="\n")'; }
equal 'layers in order' 'model.layers.0.mlp.gate_proj model.layers.0.mlp.up_proj model.layers.0.mlp.down_proj lm_head' "$(by_layer | cut -d ' ' -f 1 | paste -sd ' ')"
alone=$(nibble eval "$MODEL" --recipe int4wo-g32 --only lm_head --text text.txt --against f32.logits --json --quiet | python3 -c 'import json, sys; print("%.6f" % json.load(sys.stdin)["kl"])')
equal 'a layer alone as with --only' "lm_head int4wo-g32@cpu $alone" "$(by_layer | tail -n 1)"
nibble eval "$MODEL" --recipe int4wo-g32 --only lm_head --text text.txt --window 16 --against "$MODEL" --by-layer >out 2>err
check 'the other model runs as often' grep -q 'evaluated 2 times, .* each time the other model runs, too' err
equal 'the same with a model, as text' "$alone" "$(sed -n 's/^sum  *//p' out)"
refused 2 '--by-layer needs --recipe, *' eval q --text text.txt --against f32.logits --by-layer
refused 2 '--by-layer needs --recipe, *' eval "$MODEL" --recipe int8wo --text text.txt --by-layer

nibble eval "$MODEL" --text text.txt --cache-type int8 --against "$MODEL" --json 2>err | python3 -c 'import json, sys; print(0 < json.load(sys.stdin)["kl"] < 1e-3)' >out
equal 'an int8 cache has a small KL' True "$(cat out)"
check 'the ledger names the int8 cache' grep -q '0 substituted; KV cache in int8, 400 B per token$' err
equal 'a bf16 cache changes nothing' 0 "$(nibble eval "$MODEL" --text text.txt --cache-type bf16 --against "$MODEL" --json --quiet | python3 -c 'import json, sys; print(json.load(sys.stdin)["kl"])')"
equal 'int8 cache: same loss with any threads and instruction set' "$(loss "$MODEL" --text text.txt --cache-type int8 -t 1 --isa ref)" "$(loss "$MODEL" --text text.txt --cache-type int8)"

# A final norm of 2^-12: with block scales of 2^-6 and more, every code of the output layer's input is 0, and so are all logits.
cp -r "$MODEL" small
chmod -R u+w small
"$REPO/tests/cli/tensors" small/model.safetensors put model.norm.weight 0 "$(printf '8039%.0s' {1..224})"
head_only() { loss small --text text.txt --recipe "{\"schema\": 1, \"rules\": [{\"match\": \"lm_head\", \"scheme\": \"$1\"}], \"else\": \"keep\"}"; }
equal 'block scales alone lose small activations' 7.721349 "$(head_only nvfp4dq-block)" # ln 2256
equal "a scale per token keeps small activations" True "$(python3 -c 'import sys; print(7.7 < float(sys.argv[1]) < 7.7213)' "$(head_only nvfp4dq)")"

refused 6 'nosuch: cannot open it: No such file or directory' eval "$MODEL" --text nosuch
refused 6 '.: is a directory, not a regular file' eval "$MODEL" --text .
: >empty.txt
refused 3 'empty.txt: *' eval "$MODEL" --text empty.txt
printf 'King \xff' >bytes.txt
refused 3 'bytes.txt: *UTF-8*offset 5*' eval "$MODEL" --text bytes.txt
echo '{"txt": "no"}' >wrong.jsonl
refused 3 'wrong.jsonl, line 1 has no "text"' eval "$MODEL" --text wrong.jsonl
printf '{"text": "Once upon a time"}\n{"text": ' >cut.jsonl
refused 3 'cut.jsonl: line 2, column 10: *' eval "$MODEL" --text cut.jsonl
refused 6 'nosuch: there is no such file or directory' eval "$MODEL" --text text.txt --against nosuch
