# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method gptq: killed at any moment, the same command continues after the layers that it finished, and writes
# the same bytes; codes of another run are not used, and that is said; refusals come before the calibration.
options=(--recipe int4wo-sym --method gptq --calibrate text.txt)
head -c 2500 "$MODEL/heldout.txt" >text.txt
head -c 2000 "$MODEL/heldout.txt" >other.txt
cp -r "$MODEL" m
check 'without a kill' nibble quantize m want "${options[@]}" --quiet
equal 'the codes are removed with the last byte written' 'm other.txt text.txt want' "$(ls | tr '\n' ' ' | sed 's/ $//')"

# the cost is predicted before, and both times are in the report
nibble quantize m r "${options[@]}" >out 2>err
check 'the prediction' grep -q '^gptq: [0-9.e+]* multiply-adds, about [0-9]* s at 60 % of this machine.s [0-9.e+]* per second$' err
check 'both times' told 'note: gptq: [0-9.e+]* multiply-adds, predicted to take [0-9.]* s, took [0-9.]* s'
check 'the bytes do not depend on the time' diff -r want r
rm -rf r

continues_after gptq codes 0 2
check 'killed while a layer is written' killed q.codes/layer-00001.part
continues 'killed while a layer is written'

# a damaged layer is coded again
check 'killed for damage' killed q.codes/layer-00001
printf 'X' | dd of=q.codes/layer-00000 bs=1 seek=5000 conv=notrunc 2>"$seen.err"
continues 'damaged'
check 'it says what is damaged' told 'note: gptq: [0-9]* of [0-9]* layers have codes of .*; those of 1 more are damaged, and are coded anew'

# qronos stores a layer after each of its stages, and continues in the same way
mv want by_gptq
options[3]=qronos
check 'qronos without a kill' nibble quantize m want "${options[@]}" --quiet
check 'its bytes are others' [ "$(cmp -s want/model.safetensors by_gptq/model.safetensors && echo equal)" = '' ]
continues_after qronos codes 1
check 'qronos killed before gptq' killed q.codes/layer-00000
options[3]=gptq
nibble quantize m q "${options[@]}" >out 2>err
check 'another method is another recipe' told 'note: gptq: q.codes held codes of a run with another recipe, '
check 'no code of qronos is left' diff -r by_gptq q
rm -rf q want
mv by_gptq want

# codes of another run are not used
check 'killed for another text' killed q.codes/layer-00000
nibble quantize m q "${options[@]/text.txt/other.txt}" >out 2>err
check 'another text is said' told 'note: gptq: q.codes held codes of a run with another text, so they are gone, and all layers are coded anew'
check 'another text gives other codes' [ "$(cmp -s want/model.safetensors q/model.safetensors && echo equal)" = '' ]
rm -rf q
check 'killed for another recipe' killed q.codes/layer-00000
nibble quantize m q --recipe 8da4w --method gptq --calibrate text.txt >out 2>err
check 'another recipe is said' told 'note: gptq: q.codes held codes of a run with another recipe, '
rm -rf q
check 'killed for another source' killed q.codes/layer-00000
touch m/model.safetensors
nibble quantize m q "${options[@]}" >out 2>err
check 'another source is said' told 'note: gptq: q.codes held codes of a run with another source, '
check 'the same bytes as before' diff -r want q

# codes that make the model worse than rounding on the text are not used: inputs of an attention's keys share a part that no
# score depends on, so a smaller error of one layer is not always a better model
head -c 200 text.txt >short.txt
echo '{"rules": [{"match": "*.1.*k_proj", "scheme": "int8wo", "method": "gptq"}], "else": "keep"}' >rule.json
nibble quantize m r --recipe rule.json --calibrate short.txt >out
check 'it says that rounding is better' told 'note: gptq: KL divergence from the stored weights on the text.s first [0-9]* tokens [0-9.e-]* nats, of rounding [0-9.e-]*: worse, so all its layers are rounded to nearest instead'
check 'the layer is not by gptq' [ "$(grep -c 'by gptq' out)" = 0 ]
sed 's/, "method": "gptq"//' rule.json >rounded.json
nibble quantize m rounded --recipe rounded.json --quiet >out
check 'rounding gives the same bytes' cmp r/model.safetensors rounded/model.safetensors
nibble quantize m r --recipe int4wo-sym --method gptq --calibrate text.txt --force >out
check 'it says that rounding is worse' told 'tokens 0.00[0-9]* nats, of rounding 0.0[12][0-9]* '
rm -r r rounded short.txt rule.json rounded.json

# refusals before the calibration: no codes are left; the output stays
refused 6 'q: exists already; --force replaces it' quantize m q "${options[@]}"
check 'the output is unchanged' diff -r want q
check 'no codes' [ ! -e q.codes ]
refused 4 '*' quantize m p "${options[@]}" --format compressed-tensors --strict --bias int32
check 'no codes of a refused format' [ ! -e p.codes ]
mkdir q.codes
echo mine >q.codes/file
refused 6 'q.codes: exists, and holds no codes of an unfinished *' quantize m q "${options[@]}" --force
check 'the file in the folder is unchanged' [ "$(cat q.codes/file)" = mine ]
rm -r q.codes
check '--force replaces it' nibble quantize m q "${options[@]}" --force --quiet
check 'the same bytes by force' diff -r want q
rm -rf m want q out err text.txt other.txt
