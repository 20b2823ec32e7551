# SPDX-License-Identifier: Apache-2.0
#
# nibble convert: every format and back, what is kept and lost, what a format cannot hold; and models without config.json.
cp -r "$MODEL" m
head -c 2000 m/heldout.txt >text.txt
nibble quantize m q --recipe 8da4w --format torchao --quiet >/dev/null
before=$(text_loss q)
for format in torchao nibble compressed-tensors; do
    check "convert 8da4w to $format" nibble convert q c --format $format --quiet
    check "verify $format" nibble verify c
    same "$format has the same weights" c q
    equal "$format gives the same loss" "$before" "$(text_loss c)"
    check "convert $format back to torchao" nibble convert c back --format torchao --quiet
    equal "same info after $format and back" "$(nibble info q --json | grep -v '"file"')" "$(nibble info back --json | grep -v '"file"')"
    check "same bytes after $format and back" cmp q/model.safetensors back/model.safetensors
    rm -rf c back
done
check 'convert to floats' nibble convert q floats --format safetensors
equal 'exit status of verifying floats against codes' '0' "$(nibble verify floats --against q >/dev/null; echo $?)"
check 'convert to bf16' nibble convert q half --format safetensors --dtype bf16 --json
nibble convert q half --format safetensors --dtype bf16 --force --json --quiet | members 'convert --dtype bf16 --json' schema=1 'format="safetensors"' \
    layers[].kept=str layers[].asked=str notes[].code=str
nibble convert q c --format nibble --dry-run --json --quiet | members 'convert --dry-run --json' dry_run=true bytes_after=int
check 'a dry run writes nothing' test ! -e c

# what a format cannot hold is an error that names the layer, without output
nibble quantize m i --recipe int4wo --quiet >/dev/null
refused 4 'model.layers.0.self_attn.q_proj: the format compressed-tensors cannot hold int4wo-g32 at 224 x 224: its zero points are integers (36 of 36 layers); --format nibble holds it' \
    convert i c --format compressed-tensors
check 'a refused conversion leaves no output' test ! -e c
refused 4 '*: the format 8da4w cannot hold int4wo-g32 at *' convert i c --format 8da4w

# integer zero points convert exactly to every format that has them
nibble quantize m z --recipe int4wo-intzero --quiet >/dev/null
for format in compressed-tensors nibble torchao; do
    check "convert integer zero points to $format" nibble convert z c --format $format --quiet --force
    same "integer zero points: same weights in $format" c z
done
refused 4 '*: the format gguf cannot hold int4wo-g32-intzero at 224 x 224: its blocks have 32 codes: symmetric int8*' convert z z.gguf --format gguf
refused 4 '*: the format 8da4w cannot hold int4wo-g32-intzero at 224 x 224: its int4 layers have asymmetric int8 activations*' \
    convert z c --format 8da4w --force
rm -rf z c
refused 2 'format "zip" is not one of gguf, nibble, torchao, compressed-tensors, 8da4w, safetensors*' convert q c --format zip
refused 2 '`nibble convert` needs --format, for example *' convert q c
refused 2 '`nibble convert` needs MODEL and OUT*' convert q --format nibble
refused 2 '*the format nibble keeps codes*' convert q c --format nibble --dtype bf16
refused 2 'dtype "f8" is not one of f32, f16, bf16' convert q c --format safetensors --dtype f8
refused 6 'half: exists already; --force replaces it' convert q half --format nibble

refused 4 '*: the format gguf cannot hold mxfp4dq at 224 x 224: it cannot record quantized activations*' \
    quantize m c --recipe mxfp4dq --format gguf
refused 4 '*: the format gguf cannot hold int8wo-g32 at 224 x 224: its scales are f16*' quantize m c --recipe int8wo-g32 --format gguf

# GGUF: the model, its biases and its tokenizer in one file, and back
check 'convert to GGUF' nibble convert m m.gguf --format gguf --quiet
check 'verify GGUF' nibble verify m.gguf
same 'GGUF has the same weights' m.gguf m
equal 'GGUF gives the same loss' "$(text_loss m)" "$(text_loss m.gguf)"
equal 'GGUF gives the same text' "$(nibble generate m -p 'The king' -n 8 --temp 0 -q)" "$(nibble generate m.gguf -p 'The king' -n 8 --temp 0 -q)"
check 'convert GGUF to torchao' nibble convert m.gguf middle --format torchao --quiet
check 'convert torchao back to GGUF' nibble convert middle m2.gguf --format gguf --quiet
same 'same weights after torchao and back' m2.gguf m.gguf
equal 'same loss after torchao and back' "$(text_loss m.gguf)" "$(text_loss m2.gguf)"
mkdir bare && cp m/config.json m/model.safetensors bare
check 'convert to GGUF with --tokenizer FILE.gguf' nibble convert bare m3.gguf --format gguf --tokenizer m.gguf --quiet
equal 'the tokenizer of FILE.gguf is in the GGUF' "$(nibble generate m -p 'The king' -n 8 --temp 0 -q)" "$(nibble generate m3.gguf -p 'The king' -n 8 --temp 0 -q)"
cp m/tokenizer.json named.json
check 'convert to GGUF with --tokenizer named.json' nibble convert bare m5.gguf --format gguf --tokenizer named.json --quiet
equal 'the tokenizer of named.json is in the GGUF' "$(nibble generate m -p 'The king' -n 8 --temp 0 -q)" "$(nibble generate m5.gguf -p 'The king' -n 8 --temp 0 -q)"
refused 6 '*absent.json*' convert bare m6.gguf --format gguf --tokenizer absent.json
refused 2 '--tokenizer has no effect: the format nibble has no tokenizer inside*' convert bare c --format nibble --tokenizer named.json
cp -r m jinja && printf '{{ messages }}' >jinja/chat_template.jinja
check 'convert to GGUF with chat_template.jinja' nibble convert jinja jinja.gguf --format gguf --quiet
equal 'chat_template.jinja is in the GGUF' 1 "$(grep -ac '{{ messages }}' jinja.gguf)"
rm jinja/chat_template.jinja
printf '{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "{{ messages }}"}]}' \
    >jinja/tokenizer_config.json
nibble convert jinja list.gguf --format gguf --quiet >report
equal 'the default one of several templates is in the GGUF' 1 "$(grep -ac '{{ messages }}' list.gguf)"
equal 'the report says that a GGUF holds one template' 1 "$(tr -s '\n ' '  ' <report | grep -c 'but a GGUF holds only one template and gets the default one')"
check 'convert GGUF to nibble' nibble convert m.gguf first --format nibble --quiet
check 'convert GGUF through nibble to torchao' nibble convert first second --format torchao --quiet
equal 'same loss after GGUF, nibble and torchao' "$(text_loss m)" "$(text_loss second)"
nibble convert bare m4.gguf --format gguf --quiet >report
check 'the report says that the GGUF has no tokenizer' grep -q 'the GGUF has no tokenizer' report
check 'convert GGUF back to torchao' nibble convert m.gguf again --format torchao --quiet
same 'same weights back from GGUF' again m
equal 'same loss back from GGUF' "$(text_loss m)" "$(text_loss again)"
check 'quantize a GGUF' nibble quantize m.gguf q8 --recipe int8wo-g32 --format torchao --quiet
check 'convert to Q8_0' nibble convert q8 q8.gguf --format gguf --quiet
equal 'all 36 layers are in Q8_0 blocks' 36 "$(nibble info q8.gguf --json | grep -c '"format": "gguf q8_0"')"
same 'Q8_0 has the same weights' q8.gguf q8
for recipe in int8wo-g32-ggml int4wo-sym-ggml+head int4wo-ggml mxfp4; do
    check "quantize to $recipe as GGUF" nibble quantize m g.gguf --recipe $recipe --format gguf --force --quiet
    check "verify $recipe as GGUF" nibble verify g.gguf
    nibble quantize m g --recipe $recipe --format nibble --force --quiet >/dev/null
    same "$recipe: same weights as GGUF and as nibble" g.gguf g
    check "generate with $recipe as GGUF" nibble generate g.gguf -n 2
done
nibble quantize m i64 --recipe 8da4w-g64 --quiet >/dev/null
refused 4 '*: the format gguf cannot hold 8da4w-g64 *' convert i64 out.gguf --format gguf
check 'codes that a GGUF cannot hold leave no file' test ! -e out.gguf

# a scale that blocks cannot hold is an error, not an infinity
cp -r q8 far
"$REPO/tests/cli/tensors" far/model.safetensors put model.layers.1.mlp.up_proj._weight_scale 0 804f
refused 4 'model.layers.1.mlp.up_proj._weight_scale: row 0, group 0 has scale 4.2949673e+09 and zero point 0, beyond what f16 holds; --format nibble holds them' \
    convert far far.gguf --format gguf
check 'a scale beyond f16 leaves no file' test ! -e far.gguf

# a GGUF has to describe the model, so an unknown architecture is refused
cp -r m strange
sed -i 's/"model_type": *"[a-z0-9_]*"/"model_type": "strange"/; s/ForCausalLM/ForStrangeThings/' strange/config.json
refused 3 "strange: the model's architecture is unknown, and a GGUF has to describe it; *" convert strange s.gguf --format gguf
check 'an unknown architecture leaves no file' test ! -e s.gguf

# activations that a format cannot describe are reported
nibble quantize m a8 --recipe 8da4w --quiet >/dev/null
check 'the report says that GGUF has no activations' grep -q 'the format gguf cannot record that' \
    <(nibble convert a8 a8.gguf --format gguf --quiet | tr '\n' ' ' | sed 's/  */ /g')
equal 'all 36 layers are written as int4wo-g32-sym' 36 "$(nibble convert a8 a8.gguf --format gguf --force --json | grep -c '"done": "int4wo-g32-sym"')"

# a single file stays a single file
check 'convert a single file' nibble convert q/model.safetensors c.safetensors --format nibble --quiet
check 'a single file has a manifest beside it' test -f c.safetensors.nibble.json
refused 4 'd.safetensors: a single file cannot be in the format compressed-tensors, which needs a config.json; give *' \
    convert q/model.safetensors d.safetensors --format compressed-tensors
check 'a refused single file is not written' test ! -e d.safetensors
equal 'config.json of floats has no quantization_config' 0 "$(grep -c quantization_config floats/config.json)"
