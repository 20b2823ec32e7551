# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize: every recipe, written, verified, run; errors; a dry run writes nothing.
cp -r "$MODEL" m
for recipe in int8wo int8wo-g32 int8dq int4wo int4wo-sym int4wo-intzero int4wo-row-intzero 8da4w 8da4w-asym-ao017 8da4w-actsym 8da4w-g33 \
    4da4w fp8wo fp8dq fp8dq-tensor mxfp8 mxfp8+head 8da4w+embed int8dq+embed-int8wo; do
    check "quantize to $recipe" nibble quantize m q --recipe $recipe --quiet
    check "verify $recipe" nibble verify q
    check "run $recipe" nibble generate q -n 2
    rm -rf q
done
head -c 1500 m/heldout.txt >text.txt
check 'quantize with --calibrate' nibble quantize m q --recipe int8dq-static --calibrate text.txt
check 'a model with static scales runs' nibble generate q -n 2
rm -rf q
refused 2 '*static*--calibrate TEXT' quantize m q --recipe int8dq-static
refused 2 '--calibrate text.txt has no effect: *' quantize m q --recipe int8wo --calibrate text.txt
refused 2 '--calibrate text.txt has no effect: *' quantize m q --recipe int8wo --calibrate text.txt --dry-run
refused 6 'nosuch: *' quantize m q --recipe int8dq-static --calibrate nosuch
refused 2 '*static*--calibrate TEXT' quantize m q --recipe int8dq-static --dry-run
nibble plan m --recipe int8dq-static >out
check 'a plan with static scales says that a run is refused' grep -q '^note: static activation scales: 36 layers need a calibration text, so a run' out
rm out
refused 2 '*static activation scales need a calibration text*' generate m --recipe int8dq-static -n 1
refused 6 'nosuch: *' quantize m q --recipe int8dq-static --calibrate nosuch --dry-run
check 'a dry run with --calibrate' nibble quantize m q --recipe int8dq-static --calibrate text.txt --dry-run

# methods: the ledger has both errors; the same bytes for any number of threads; a rule has a method of its own
nibble quantize m q --recipe int4wo-sym --method search --calibrate text.txt --json --threads 1 >q.json
equal 'layers by search' 36 "$(grep -o '"method": *"search"' q.json | wc -l)"
equal 'their errors, of rounding and of search' 72 "$(grep -o -E '"weighted_error(_of_rounding)?": *[0-9]' q.json | wc -l)"
check 'search says how much better it is' grep -q 'search: 36 layers, whose weighted squared error is [0-9.]* % below that of rounding' q.json
nibble quantize m q2 --recipe int4wo-sym --method search --calibrate text.txt --quiet --threads 2
check 'threads change no byte' cmp q/model.safetensors q2/model.safetensors
check 'verify codes of search' nibble verify q
rm -rf q q2
echo '{"rules": [{"match": "*.mlp.*", "scheme": "mxfp4", "method": "search"}], "else": "8da4w"}' >rules.json
nibble quantize m q --recipe rules.json >out
check 'a rule has a method' grep -q 'mlp.gate_proj .* by search$' out
refuted=$(grep -c 'q_proj .* by search$' out)
equal 'other rules round' 0 "$refuted"
check 'without a text it says so' grep -q 'search: all inputs count the same' out
rm -rf q out
echo '{"method": "search", "recipe": "8da4w"}' >all.json
nibble quantize m q --recipe all.json >out
check 'the method of all rules' grep -q 'q_proj .* by search$' out
nibble generate m --recipe all.json -n 8 --temp 0 --quiet >a 2>/dev/null
nibble generate q -n 8 --temp 0 --quiet >b 2>/dev/null
check 'loading by search gives the same text as quantizing' cmp a b
rm -rf q out a b
# hqq: float zeros without data; a rule may have it; the same text when it is done at loading
nibble quantize m q --recipe int4wo --method hqq --threads 1 --json >q.json
check 'hqq says how much less it loses' grep -q 'hqq: 36 layers, whose error to the power 11/16 is [0-9.]* % below that of rounding, on average' q.json
equal 'layers by hqq' 36 "$(grep -o '"method": *"hqq"' q.json | wc -l)"
nibble quantize m q2 --recipe int4wo --method hqq --quiet --threads 2
check 'threads change no byte of hqq' cmp q/model.safetensors q2/model.safetensors
check 'verify codes of hqq' nibble verify q
check 'verify makes codes of hqq again' nibble verify q --from m
rm -r q2
echo '{"method": "hqq", "recipe": "int4wo"}' >hqq.json
nibble generate m --recipe hqq.json -n 8 --temp 0 --quiet >a 2>/dev/null
nibble generate q -n 8 --temp 0 --quiet >b 2>/dev/null
check 'loading by hqq gives the same text as quantizing' cmp a b
nibble plan m --recipe hqq.json >out
check 'a plan names the method' grep -q 'q_proj .* by hqq$' out
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int4wo", "method": "hqq"}, {"match": "*.o_proj", "scheme": "8da4w", "method": "search"}], "else": "8da4w"}' >rules.json
nibble quantize m q --recipe rules.json --force >out
check 'a rule by hqq has its own note' grep -q '^note: hqq: 15 layers, ' out
check 'and one by search has its own' grep -q '^note: search: 5 layers, whose weighted squared error' out
rm -rf q out a b hqq.json
refused 3 '*the method hqq moves float zeros, and 8da4w-g32 has none of its own; use search, or a scheme like int4wo' quantize m q --recipe 8da4w --method hqq
# gptq: layer by layer; the same bytes for any number of threads; less is lost than by search
nibble quantize m q --recipe int4wo-sym --method gptq --calibrate text.txt --threads 1 >out
check 'gptq says which tokens it uses' grep -q "^note: gptq: [0-9]* of the text's [0-9]* tokens, in windows of 512" out
gained=$(sed -n 's/^note: gptq: 36 layers, whose weighted squared error is \([0-9]*\)\.[0-9] % below that of rounding, on average/\1/p' out)
check "gptq loses a third less than rounding: $gained %" [ "${gained:-0}" -ge 33 ]
nibble quantize m q2 --recipe int4wo-sym --method gptq --calibrate text.txt --quiet --threads 2
check 'too few tokens are said' grep -q '^note: gptq: [0-9]* inputs saw fewer tokens than they have columns' out
check 'threads change no byte of gptq' cmp q/model.safetensors q2/model.safetensors
check 'verify codes of gptq' nibble verify q
rm -rf q q2 out
# qronos: the same, and less is lost than by gptq
nibble quantize m q --recipe int4wo-sym --method qronos --calibrate text.txt --threads 1 --force >out
kl() { tr -s ' \n' ' ' <"$1" | sed -n 's/.*note: [a-z]*: KL divergence from the stored weights on the text.s first [0-9]* tokens \([0-9.e-]*\) nats.*/\1/p'; }
qronos=$(kl out)
nibble quantize m q2 --recipe int4wo-sym --method gptq --calibrate text.txt --force >out2
gptq=$(kl out2)
check "qronos loses less than gptq: $qronos, $gptq nats" awk "BEGIN { exit !($qronos < 0.9 * $gptq) }"
nibble quantize m q2 --recipe int4wo-sym --method qronos --calibrate text.txt --quiet --threads 2 --force
check 'threads change no byte of qronos' cmp q/model.safetensors q2/model.safetensors
refused 2 '*the method qronos needs a text*' quantize m r --recipe int4wo-sym --method qronos
rm -rf q q2 out out2
refused 2 '*the method gptq needs a text*' quantize m q --recipe int4wo-sym --method gptq
refused 3 '*one scale for the whole tensor*' quantize m q --recipe int8wo-tensor --method gptq --calibrate text.txt
echo '{"method": "gptq", "recipe": "8da4w"}' >gptq.json
nibble plan m --recipe gptq.json >out
check 'a plan says that a run is refused' grep -q '^note: gptq: 36 layers need a calibration text' out
rm out
refused 2 '*the method gptq needs a calibration text; run nibble quantize*' generate m --recipe gptq.json -n 1
refused 2 'method "nosuch" is not one of rtn, search, gptq, hqq, qronos, awq, learn, smooth, rotate' quantize m q --recipe 8da4w --method nosuch
refused 3 '*one scale for the whole tensor*' quantize m q --recipe int8wo-tensor --method search
refused 2 '--method search has no effect: *' quantize m q --recipe all.json --method search
echo '{"rules": [{"match": "*", "scheme": "keep", "method": "search"}]}' >keep.json
refused 3 '*rules\[0\] has a method, but keeps its layers as stored' quantize m q --recipe keep.json
echo '{"method": "serach", "recipe": "8da4w"}' >typo.json
refused 3 '*method "serach" is unknown; did you mean search' quantize m q --recipe typo.json

nibble quantize m q --recipe 8da4w --json 2>err | members quantize schema=1 'format="nibble"' bytes_before=int bytes_after=int weights=int bits_per_weight=num files=1 layers[].name=str \
    layers[].asked=str layers[].done=str counts.substituted=0
equal 'quantize --json prints nothing on stderr' '' "$(cat err)"
members manifest schema=1 source.xxh3_128=str source.bytes=int recipe=str 'format="nibble"' ledger.layers[].asked=str ledger.layers[].done=str \
    ledger.counts.asked=int files=object tensors=object <q/nibble.json
equal 'files of the output' 'config.json generation_config.json model.safetensors nibble.json tokenizer.json tokenizer_config.json' "$(ls q | tr '\n' ' ' | sed 's/ $//')"
cp -r q before

# packed weights are used and reported, and give the same text; a single file cannot have them
check 'quantize --pack' nibble quantize m p --recipe 8da4w --pack --quiet
check 'nibble.pack is written' [ -s p/nibble.pack ]
check 'verify a model with packed weights' nibble verify p
nibble plan p >plan
check 'the plan names nibble.pack' grep -q '^note: packed weights from p/nibble.pack: ' plan
nibble generate q --prompt 'Once' -n 24 --temp 0 --quiet >a 2>/dev/null
nibble generate p --prompt 'Once' -n 24 --temp 0 --quiet >b 2>/dev/null
check 'packed weights give the same text' cmp a b
check 'nibble.tokens is written' [ -s p/nibble.tokens ]
equal 'the plan has no note on nibble.tokens' '' "$(grep nibble.tokens plan)"
printf '\n' >>p/tokenizer.json
nibble plan p >plan
check 'nibble.tokens of another tokenizer: tokenizer.json is read instead' grep -q '^note: p/nibble.tokens: it was made from another tokenizer.json' plan
nibble generate p --prompt 'Once' -n 24 --temp 0 --quiet >b 2>/dev/null
check 'without nibble.tokens the text is the same' cmp a b
check 'convert --pack' nibble convert p c --format nibble --pack --quiet
nibble plan c >plan
check 'the plan of the converted model names nibble.pack' grep -q '^note: packed weights from c/nibble.pack: ' plan
refused 2 '*packed weights need the directory of a model*' quantize m/model.safetensors l.safetensors --recipe 8da4w --pack
refused 2 '*packed weights need the directory of a model*' convert p l.gguf --format gguf --pack
rm -rf p c a b plan

# an existing output is not touched without --force
refused 6 'q: exists already; --force replaces it' quantize m q --recipe int8wo
check 'the existing output is unchanged' diff -r q before
check '--force replaces an output' nibble quantize m q/ --recipe int8wo --force --quiet
check 'the new output is valid' nibble verify q
refused 2 '*the output equals, contains or is inside the source*' quantize m m --recipe int8wo --force
refused 2 '*the output equals, contains or is inside the source*' quantize m ./m/../m --recipe int8wo --force
refused 2 '*the output equals, contains or is inside the source*' quantize m m/q --recipe int8wo
refused 2 '*the output equals, contains or is inside the source*' quantize m . --recipe int8wo --force
ln -s m link
refused 2 '*the output equals, contains or is inside the source*' quantize m link --recipe int8wo --force
refused 2 '*the output equals, contains or is inside the source*' quantize link m/model.safetensors --recipe int8wo --force
rm link
mkdir -p full/sub
refused 6 'full: *' quantize m full --recipe int8wo --force
check '--force keeps a directory with subdirectories' [ -d full/sub ]
rm -r full
mkdir letters
echo 'Dear' >letters/1
refused 6 'letters: is a directory without a config.json, *' quantize m letters --recipe int8wo --force
check '--force keeps a directory that is not a model' [ -s letters/1 ]
rm letters/1
check '--force replaces an empty directory' nibble quantize m letters --recipe int8wo --force --quiet
mkdir letters/sub
refused 6 'letters: not removed, because it holds the directory sub; *' quantize m letters --recipe int8wo --force
check '--force keeps a model with a subdirectory' nibble verify letters
rm -r letters
# files that others made stay, whatever their names; replacing a manifest needs --force
for name in out.part out.old out.part.json out.gguf.part out.gguf.part.json; do echo mine >$name; done
ln -s nowhere out.gguf.part.lock
refused 6 'out.gguf.part.lock: is a symbolic link, *' quantize m out.gguf --recipe int8wo-g32-ggml --allow activations --format gguf
rm out.gguf.part.lock
check 'quantize to a directory' nibble quantize m out --recipe int8wo --quiet
check 'quantize over that directory with --force' nibble quantize m out --recipe int4wo --quiet --force
check 'quantize to a GGUF file' nibble quantize m out.gguf --recipe int8wo-g32-ggml --allow activations --format gguf --quiet
rm out.gguf
refused 6 'out.gguf.nibble.json: exists already, *' quantize m out.gguf --recipe int8wo-g32-ggml --allow activations --format gguf
check '--force replaces a manifest' nibble quantize m out.gguf --recipe int8wo-g32-ggml --allow activations --format gguf --quiet --force
equal 'files that others made are unchanged' 'mine mine mine mine mine' "$(cat out.part out.old out.part.json out.gguf.part out.gguf.part.json | tr '\n' ' ' | sed 's/ $//')"
check 'no symbolic link is followed' [ ! -e nowhere ]
rm -r out out.*
refused 6 'nosuch/q.part: cannot create it: No such file or directory' quantize m nosuch/q --recipe int8wo
refused 2 'the name of the output is empty' quantize m '' --recipe int8wo
refused 3 '*is already quantized*' quantize before again --recipe int8wo
refused 2 '*only a config was given*' quantize m/config.json again --recipe int8wo
check 'the source is unchanged' diff -r m "$MODEL"

# a single file
check 'quantize a single file to a single file' nibble quantize m/model.safetensors one.safetensors --recipe int8wo --quiet
check 'a single file has a manifest' [ -s one.safetensors.nibble.json ]
refused 6 'one.safetensors: exists already*' quantize m/model.safetensors one.safetensors --recipe int8wo
check '--force replaces a single file' nibble quantize m/model.safetensors one.safetensors --recipe 8da4w --quiet --force
cp m/*.json .
check 'verify a single file' nibble verify one.safetensors
rm ./*.json one.safetensors

# formats, --strict, dry runs
refused 4 '*the format torchao cannot hold 8da4w-g33 at 224 x 224: k = 224 is not a multiple of the group size 33 (36 of 36 layers)*' quantize m x --recipe 8da4w-g33 --format torchao
refused 4 '*the format safetensors cannot hold int8wo at 224 x 224: it holds plain floats, and only nibble convert turns codes into floats (36 of 36 layers)*' quantize m x --recipe int8wo --format safetensors
check 'the format safetensors holds f32' nibble quantize m x --recipe f32 --format safetensors --dry-run
nibble quantize m x --recipe 8da4w-g33 --dry-run >out
check 'a dry run says what torchao cannot hold' told "note: written as nibble: torchao's format cannot hold 36 of 36 layers; the first is model.layers.0.self_attn.q_proj, "
check 'which --strict allows: no format was asked for' nibble quantize m x --recipe 8da4w-g33 --dry-run --strict --quiet
check 'a dry run reports the sizes' grep -q '^would write: 7.3 MB -> .* MB (.* %, 6.* bits per weight) in 1 file, format nibble' out
rm err
only_here before m out q text.txt
nibble quantize m q --recipe 8da4w --dry-run --json | members 'a dry run' dry_run=true bytes_after=int
equal 'a dry run predicts the size of the file' "$(stat -c %s before/model.safetensors)" "$(nibble quantize m x --recipe 8da4w --dry-run --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["bytes_after"])')"
nibble quantize m x --recipe 8da4w --dry-run --json >written.json
nibble quantize m x --recipe 8da4w --dry-run --json --format torchao >other.json
check 'and what it would be in another format, but for the header' python3 -c 'import json
a, b = (json.load(open(f)) for f in ("written.json", "other.json"))
assert list(a["elsewhere"]) == ["torchao", "compressed-tensors"], a
assert abs(a["elsewhere"]["torchao"] - b["bytes_after"]) < 300 * 41, (a, b)'
nibble quantize m x --recipe 8da4w --dry-run >out
check 'who reads it' told 'format nibble elsewhere: torchao (transformers, vLLM) [0-9.]* MB, compressed-tensors (transformers, vLLM) [0-9.]* MB'
nibble quantize m t1 --recipe 8da4w -t 1 --isa ref --quiet >/dev/null
nibble quantize m t2 --recipe 8da4w -t 2 --quiet >/dev/null
check 'threads and instruction sets do not change a byte' cmp t1/model.safetensors t2/model.safetensors
check 'nor do the default threads and instruction set' cmp t1/model.safetensors before/model.safetensors
