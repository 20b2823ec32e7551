# int1wo to int7wo: where they are written, and that every format has the same model; receipts; what is refused
text_of() { nibble generate "$1" --prompt 'The prince' -n 24 --temp 0 --quiet 2>/dev/null; }

for recipe in int3wo int6wo-asym int2wo-floatzero; do
    bits=${recipe#int} bits=${bits%%wo*}
    format=compressed-tensors
    [ $recipe = int2wo-floatzero ] && format=nibble
    nibble quantize "$MODEL" n --recipe "$recipe" >out
    check "$recipe: the smallest format" told " in 1 file, format $format"
    check "$recipe: verify makes the same bytes" nibble verify n --from "$MODEL"
    nibble quantize "$MODEL" c --recipe "$recipe" --format $format >out
    check "$recipe: nothing to say of a format that was asked for" [ "$(grep -c 'not as asked:' out)" = 0 ]
    check "$recipe: the same bytes" cmp n/model.safetensors c/model.safetensors
    size=$(stat -c %s n/model.safetensors) whole=$(stat -c %s "$MODEL/model.safetensors")
    check "$recipe: $size of $whole bytes, codes of $bits bits" [ "$((size * 16))" -lt "$((whole * (bits + 3 + 2)))" ]
    check "$recipe: text" [ "$(text_of n | wc -c)" -gt 20 ]
    rm -r n c
done

nibble quantize "$MODEL" n --recipe int3wo-asym --format nibble >out
for format in torchao compressed-tensors; do
    nibble quantize "$MODEL" c --recipe int3wo-asym --format $format >out
    same "the values in $format" n c
    check "the text of $format" [ "$(text_of n)" = "$(text_of c)" ]
    [ $format = torchao ] && check 'what torchao stores' told "note: torchao's format stores codes of 3 bits, of 36 layers, in 8 bits each; "
    rm -r c
done
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int3wo"}, {"match": "lm_head", "scheme": "int6wo"}], "else": "int8wo"}' >rules.json
nibble quantize "$MODEL" c --recipe rules.json >out
check 'layers of several widths' told 'in 1 file, format compressed-tensors (transformers, vLLM)'
nibble quantize "$MODEL" c --recipe rules.json --format torchao --force >out
check 'which take a byte each in torchao' told "note: torchao's format stores codes of 3 to 6 bits, of 16 layers, in 8 bits each; "

rm -r n c
refused 4 'model.layers.0.self_attn.q_proj: the format gguf cannot hold int3wo-g32 at 224 x 224: *' quantize "$MODEL" n --recipe int3wo --format gguf
refused 2 '*int9wo*' quantize "$MODEL" n --recipe int9wo
refused 3 '*smooth*activations*' quantize "$MODEL" n --recipe int3wo --method smooth --calibrate "$MODEL/heldout.txt"
