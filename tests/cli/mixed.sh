# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize by budget: bits, memory, speed; what is written keeps to it, and its rules give the same bytes; refusals
cp -r "$MODEL" m
head -c 1500 m/heldout.txt >text.txt
mix='--format nibble --recipe int4wo-sym,int8wo,keep'
# shellcheck disable=SC2086 # words are meant
{
    nibble quantize m q --budget 5.25bpw $mix --calibrate text.txt --json --quiet >q.json
    members "a report with a budget" budget=object <q.json
    bits=$(python3 -c 'import json; b = json.load(open("q.json"))["budget"]; print(*(o["bits_per_weight"] for o in (b, b["predicted"], b["measured"])))')
    read -r asked predicted measured <<<"$bits"
    equal 'the budget asked for' 5.25 "$asked"
    equal 'as many bits as predicted' "$predicted" "$measured"
    check "within the budget: $measured" awk "BEGIN { exit !($measured <= 5.25 && $measured > 5.1) }"
    check 'the chosen recipe is beside the weights' grep -q '"match": "lm_head", "scheme": "' q/recipe.json
    check 'verify a mixture' nibble verify q
    check 'made again by its receipt' nibble verify q --from m
    check 'its recipe again' nibble quantize m again --format nibble --recipe q/recipe.json --quiet
    check 'gives the same bytes' cmp q/model.safetensors again/model.safetensors
    rm -rf q again
    nibble quantize m q --budget 5.25bpw $mix --rules rules.json --dry-run >out
    check 'a dry run writes the rules' grep -q '"scheme": "int8wo"' rules.json
    check 'and no model' [ ! -e q ]
    check 'without a text it says what counts' grep -q 'without --calibrate TEXT, a layer counts by the relative error' out
    nibble quantize m q --budget 17bpw $mix >out
    check 'a budget that everything keeps to' grep -q 'every mixture keeps to it' out
    rm -rf q
    check 'memory' nibble quantize m q --memory 3.6MB $mix --quiet
    memory=$(nibble plan q --json | grep -o '"\(weight\|cache\)_bytes": *[0-9]*' | awk '{ sum += $2 } END { print sum }')
    check "a plan of it fits: $memory" [ "$memory" -le 3600000 ]
    rm -rf q
    check 'speed, on a machine that is not here' nibble quantize m q --speed 1000tok/s --for h200 $mix --quiet
    rm -rf q
    refused 3 '*no mixture of int4wo-sym,int8wo,keep keeps to a budget of 4.0000 bits per weight: the nearest two have 4.5* and 4.5*' \
        quantize m q --budget 4bpw $mix
    refused 3 '*budget of 1000000 bytes: the nearest two have *' quantize m q --memory 1MB $mix
    refused 3 '*the nearest two have *' quantize m q --speed 1e9tok/s $mix
}
refused 3 '*keeps to a budget of 3.0000 bits per weight: the nearest two have 5.0* and 5.0*; int4wo-g128 is left out: *the format torchao cannot hold int4wo-g128 at 224 x 224*--format nibble holds it' \
    quantize m q --budget 3bpw
refused 2 '--budget: "5" is not a number of bits per weight*' quantize m q --budget 5
refused 2 '--speed: "30" is not a speed*' quantize m q --speed 30
refused 2 '*a budget is one of *; 2 are given' quantize m q --budget 5bpw --speed 30tok/s
refused 2 '--rules has no effect*' quantize m q --recipe int8wo --rules r.json
refused 2 '*int8wo is given twice*' quantize m q --budget 9bpw --recipe int8wo,int8wo
refused 2 '*nosuch*' quantize m q --budget 9bpw --recipe int8wo,nosuch
check 'nothing is left of refusals' [ ! -e q ]
