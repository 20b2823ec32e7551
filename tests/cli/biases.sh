# SPDX-License-Identifier: Apache-2.0
#
# Quantized biases: written, shown, verified, run, converted there and back, requested at load, and errors.
cp -r "$MODEL" m
head -c 1500 m/heldout.txt >text.txt
hashes() { python3 -c 'import json, sys; [print(n, h) for n, h in json.load(open(sys.argv[1] + "/nibble.json"))["tensors"].items() if "bias" not in n]' "$1"; }

for recipe in 8da4w 8da4w-asym int4wo fp8dq mxfp8 int8wo 4da4w; do
    check "quantize to $recipe with float biases" nibble quantize m f --recipe $recipe --format nibble --quiet
    check "quantize to $recipe with int8 biases" nibble quantize m q --recipe $recipe --bias int8 --quiet
    check "$recipe: verify int8 biases against floats" nibble verify q --against f
    check "$recipe: generate with int8 biases" nibble generate q -n 2
    equal "$recipe: --bias int8 changes only biases" "$(hashes f)" "$(hashes q)"
    nibble eval f --text text.txt --bias int8 --json 2>err | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])' >loaded
    nibble eval q --text text.txt --json 2>err | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])' >stored
    equal "$recipe: same loss with biases quantized at load" "$(cat stored)" "$(cat loaded)"
    rm -r f q
done

nibble quantize m q --recipe 8da4w --bias int8 --json 2>err | members 'quantize --bias' 'layers[].bias_form=str|null' 'format="nibble"'
nibble info q --json | members info 'tensors[].bias=bool' 'tensors[].bias_form=str|null'
equal 'info lists 3 int8 biases' 3 "$(nibble info q | grep -c 'with an int8 bias')"
equal 'the plan marks 3 int8 biases with +b8' 3 "$(nibble plan q | grep -c '224 +b8')"
check 'the plan notes int8 biases at load' grep -q 'note: 15 of 15 biases are int8' <(nibble plan m --recipe 8da4w --bias int8)
check 'the plan says that --bias int8 needs quantized weights' grep -q 'without effect: --bias int8 (option): 0 of 15 biases have this type; the others stay floats' <(nibble plan m --bias int8)

# int32: the same text with any instruction set; kept by a conversion
check 'quantize to int8dq-static' nibble quantize m s --recipe int8dq-static --format nibble --calibrate text.txt --quiet
check 'quantize to int8dq-static with int32 biases' nibble quantize m s32 --recipe int8dq-static --calibrate text.txt --bias int32 --quiet
check 'verify int32 biases against floats' nibble verify s32 --against s
for isa in ref avx2; do
    equal "int32 biases: same text with --isa $isa" "$(nibble generate s32 --temp 0 -n 16 -p The --quiet)" "$(nibble generate s32 --temp 0 -n 16 -p The --quiet --isa $isa)"
done
equal 'int32 biases: same text when quantized at load' "$(nibble generate s32 --temp 0 -n 16 -p The --quiet)" "$(nibble generate s --bias int32 --temp 0 -n 16 -p The --quiet)"
equal '--bias int32 changes only biases' "$(hashes s)" "$(hashes s32)"
check 'convert int32 biases' nibble convert s32 again --format nibble --quiet
check 'the conversion of int32 biases keeps all bytes' cmp s32/model.safetensors again/model.safetensors
rm -r again

# a scale that underflows the values
cp -r q zeroed
"$REPO/tests/cli/tensors" zeroed/model.safetensors put model.layers.0.self_attn.q_proj._bias_scale 0 00000000
check 'verify reports a bias with a scale of 0' grep -q '1 scales of its bias are 0 or negative' <(nibble verify zeroed 2>&1 | tr -s ' \n' ' ')
rm -r zeroed

# converted to floats, biases have the values of their codes
check 'convert int8 biases to floats' nibble convert q floats --format nibble --bias float --quiet
same 'int8 biases as floats have the same values' floats q
check 'convert int8 biases to torchao, which has none' nibble convert q t --format torchao --quiet
same 'int8 biases in torchao have the same values' t floats
rm -r floats t
for format in 8da4w compressed-tensors; do
    nibble convert q t --format $format >out
    equal "$format: a line for each int8 bias" 3 "$(tr -s ' \n' ' ' <out | grep -o "int8 -> f32, largest relative change 0: the format $format has no quantized biases" | wc -l)"
    rm -r t
done

# rows of q and k, and their biases, lie in another order in a llama's GGUF
check 'convert a llama to int8 biases' nibble convert "$REPO/tests/golden/torch/8da4w_bias" l --format nibble --bias int8 --quiet
check 'convert int8 biases to GGUF' nibble convert l l.gguf --format gguf --quiet
equal 'all 7 biases are equal in the GGUF' 7 "$(nibble verify l.gguf --against l | grep -c '\.bias  *equal$')"
rm -r l l.gguf l.gguf.nibble.json

refused 2 'bias "int4" is not one of float, int8, int32' plan m --recipe 8da4w --bias int4
refused 2 'bias "int4" is not one of float, int8, int32' convert q x --format nibble --bias int4
refused 4 'model.layers.0.self_attn.q_proj: 8da4w-g32 takes no int32 bias: its activations have a scale per token*' generate m --recipe 8da4w --bias int32 -n 1
refused 4 'model.layers.0.self_attn.q_proj: 8da4w-g32 takes no int32 bias: *; use --bias int8, *' quantize m x --recipe 8da4w --bias int32
refused 4 'model.layers.0.self_attn.q_proj: 8da4w-g32 takes no int32 bias: *' convert q x --format nibble --bias int32
refused 4 'model.layers.0.self_attn.q_proj.bias: the format torchao cannot hold an int8 bias; --format nibble holds it' quantize m x --recipe 8da4w --bias int8 --format torchao --strict
rm -f err out loaded stored
only_here m q s s32 text.txt
