# SPDX-License-Identifier: Apache-2.0
#
# Quantized biases: written, shown, verified, run, converted there and back, requested at load, and errors.
cp -r "$MODEL" m
head -c 1500 m/heldout.txt >text.txt
hashes() { python3 -c 'import json, sys; [print(n, h) for n, h in json.load(open(sys.argv[1] + "/nibble.json"))["tensors"].items() if "bias" not in n]' "$1"; }

for recipe in 8da4w 8da4w-asym int4wo fp8dq mxfp8 int8wo 4da4w; do
    check "$recipe with float biases" nibble quantize m f --recipe $recipe --format nibble --quiet
    check "$recipe with int8 biases" nibble quantize m q --recipe $recipe --bias int8 --quiet
    check "$recipe verified" nibble verify q --against f
    check "$recipe run" nibble generate q -n 2
    equal "$recipe: the other tensors" "$(hashes f)" "$(hashes q)"
    nibble eval f --text text.txt --bias int8 --json 2>err | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])' >loaded
    nibble eval q --text text.txt --json 2>err | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])' >stored
    equal "$recipe: quantized at load or before" "$(cat stored)" "$(cat loaded)"
    rm -r f q
done

nibble quantize m q --recipe 8da4w --bias int8 --json 2>err | members 'quantize --bias' 'layers[].bias_form=str|null' 'format="nibble"'
nibble info q --json | members info 'tensors[].bias=bool' 'tensors[].bias_form=str|null'
equal 'info' 3 "$(nibble info q | grep -c 'with an int8 bias')"
equal 'the mark in the table' 3 "$(nibble plan q | grep -c '224 +b8')"
check 'as asked at load' grep -q 'note: 15 of 15 biases are int8' <(nibble plan m --recipe 8da4w --bias int8)
check 'the weights stay floats' grep -q 'without effect: --bias int8 (option): 0 of 15 biases have this type; the others stay floats' <(nibble plan m --bias int8)

# int32: the same text with any instruction set; kept by a conversion
check 'static' nibble quantize m s --recipe int8dq-static --calibrate text.txt --quiet
check 'static, int32' nibble quantize m s32 --recipe int8dq-static --calibrate text.txt --bias int32 --quiet
check 'verified' nibble verify s32 --against s
for isa in ref avx2; do
    equal "int32 with --isa $isa" "$(nibble generate s32 --temp 0 -n 16 -p The --quiet)" "$(nibble generate s32 --temp 0 -n 16 -p The --quiet --isa $isa)"
done
equal 'int32 at load' "$(nibble generate s32 --temp 0 -n 16 -p The --quiet)" "$(nibble generate s --bias int32 --temp 0 -n 16 -p The --quiet)"
equal 'the other tensors' "$(hashes s)" "$(hashes s32)"
check 'converted' nibble convert s32 again --format nibble --quiet
check 'into the same bytes' cmp s32/model.safetensors again/model.safetensors
rm -r again

# a scale that underflows the values
cp -r q zeroed
"$REPO/tests/cli/tensors" zeroed/model.safetensors put model.layers.0.self_attn.q_proj._bias_scale 0 00000000
check 'a bias whose scale is 0' grep -q '1 scales of its bias are 0 or negative' <(nibble verify zeroed 2>&1 | tr -s ' \n' ' ')
rm -r zeroed

# there and back: floats are the values of the codes
check 'back to floats' nibble convert q floats --format nibble --bias float --quiet
same 'the same values' floats q
check 'a format without them' nibble convert q t --format torchao --quiet
same 'their values there' t floats
rm -r floats t
for format in 8da4w compressed-tensors; do
    nibble convert q t --format $format >out
    equal "a line for each in $format" 3 "$(tr -s ' \n' ' ' <out | grep -o "int8 -> f32, largest relative change 0: the format $format has no quantized biases" | wc -l)"
    rm -r t
done

# rows of q and k, and their biases, lie in another order in a llama's GGUF
check 'a llama with int8 biases' nibble convert "$REPO/tests/golden/torch/8da4w_bias" l --format nibble --bias int8 --quiet
check 'into GGUF' nibble convert l l.gguf --format gguf --quiet
equal 'their values there' 7 "$(nibble verify l.gguf --against l | grep -c '\.bias  *equal$')"
rm -r l l.gguf l.gguf.nibble.json

refused 2 'bias "int4" is not one of float, int8, int32' plan m --recipe 8da4w --bias int4
refused 2 'bias "int4" is not one of float, int8, int32' convert q x --format nibble --bias int4
refused 4 'model.layers.0.self_attn.q_proj: 8da4w-g32 takes no int32 bias: its activations have a scale per token*' generate m --recipe 8da4w --bias int32 -n 1
refused 4 'model.layers.0.self_attn.q_proj: 8da4w-g32 takes no int32 bias: *; use --bias int8, *' quantize m x --recipe 8da4w --bias int32
refused 4 'model.layers.0.self_attn.q_proj: 8da4w-g32 takes no int32 bias: *' convert q x --format nibble --bias int32
refused 4 'model.layers.0.self_attn.q_proj.bias: the format torchao cannot hold an int8 bias; --format nibble holds it' quantize m x --recipe 8da4w --bias int8 --strict
rm -f err out loaded stored
only_here m q s s32 text.txt
