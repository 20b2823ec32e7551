# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize --method awq or smooth: killed at any moment, the same command continues after the layers that it finished, and
# writes the same bytes; scales of another run are not used, and that is said.
options=(--recipe int4wo --method awq --calibrate text.txt)
head -c 1500 "$MODEL/heldout.txt" >text.txt
head -c 1200 "$MODEL/heldout.txt" >other.txt
cp -r "$MODEL" m
check 'without a kill' nibble quantize m want "${options[@]}" --quiet
equal 'the scales are removed with the last byte written' 'm other.txt text.txt want' "$(ls | tr '\n' ' ' | sed 's/ $//')"

continues_after awq scales 0 2

# a damaged layer is scaled again
check 'killed for damage' killed q.codes/layer-00001
printf 'X' | dd of=q.codes/layer-00000 bs=1 seek=70 conv=notrunc 2>"$seen.err"
continues 'damaged'
check 'it says what is damaged' told 'note: awq: [0-9] of 5 layers have scales of .*; those of 1 more are damaged, and are scaled anew'

# scales of another run are not used
check 'killed for another text' killed q.codes/layer-00000
nibble quantize m q "${options[@]/text.txt/other.txt}" >out 2>err
check 'another text is said' told 'note: awq: q.codes held scales of a run with another text, so they are gone, and all layers are scaled anew'
rm -rf q
check 'killed before smooth' killed q.codes/layer-00000
mv want by_awq
options=(--recipe int8dq-static --method smooth --calibrate text.txt)
nibble quantize m q "${options[@]}" >out 2>err
check 'another method is another recipe' told 'note: smooth: q.codes held scales of a run with another recipe, '
mv q want
continues_after smooth scales 1

# killed at other moments, too: each time it comes further, and nothing is torn
for delay in 0.3 0.5 0.7 1 1.5; do
    timeout --signal=KILL $delay "$NIBBLE" quantize m q "${options[@]}" --quiet >"$seen.out" 2>"$seen.err"
done
rm -rf q
continues 'killed five times'
rm -rf m want by_awq out err text.txt other.txt
