# shellcheck shell=bash
# Types of the KV cache: what is refused, what rounding and rotation change, what `advise --cache` measures and plans print, and
# keys that do not bear their type.
MODEL=$REPO/models/nibble-tales
head -c 1500 "$MODEL/heldout.txt" >text.txt
# what is measured here is kept apart from other scripts' plans
mkdir -p cache/nibble
cp "$XDG_CACHE_HOME/nibble/machine.json" cache/nibble/ 2>err
export XDG_CACHE_HOME=$PWD/cache
eval_() { nibble eval "$@" --text text.txt --json --quiet; }
number() { python3 -c 'import json, sys; v = json.load(sys.stdin)[sys.argv[1]]; print(v if isinstance(v, str) else "%.9g" % v)' "$1"; }
less() { python3 -c 'import sys; print(all(float(a) < float(b) for a, b in zip(sys.argv[1:], sys.argv[2:])))' "$@"; }

# A rotation alone changes only roundings: this is the check, without int4, that it computes the same.
float=$(eval_ "$MODEL" --dtype f32 --cache-type f32-hadamard --against "$MODEL" | number kl)
equal 'a rotated f32 cache computes the same' True "$(less "$float" 1e-9)"
equal 'rotated keys alone, too' True "$(less "$(eval_ "$MODEL" --dtype f32 --cache-type f32-hadamard:f32 --against "$MODEL" | number kl)" 1e-9)"
kl=()
for type in int8 int8:int4 int4; do
    kl+=("$(eval_ "$MODEL" --cache-type $type --against "$MODEL" | number kl)")
done
equal 'fewer bits cost more' True "$(less 0 "${kl[@]}" 0.1)"
for type in int4 int4-hadamard int8:int4-hadamard; do
    sampled 3 || continue
    equal "$type: same loss with any threads and instruction set" "$(eval_ "$MODEL" --cache-type $type -t 1 --isa ref | number loss)" "$(eval_ "$MODEL" --cache-type $type | number loss)"
done

# plans
nibble plan "$MODEL" --cache-type int8:int4 >plan.txt 2>err
check 'a plan says both types, their bytes and that nothing is known' grep -qF 'in int8:int4 with 320 B a token (KL not measured; `nibble advise --cache` does)' <(tr -s '\n ' ' ' <plan.txt)
equal 'JSON has the name' int8:int4 "$(nibble plan "$MODEL" --cache-type int8:int4 --json 2>err | number cache_type)"
equal 'one type is named once' int4 "$(nibble plan "$MODEL" --cache-type int4:int4 --json 2>err | number cache_type)"
refused 4 '*attn*the KV cache type is int4, not one of*' generate "$MODEL" -p x --device h100 --cache-type int4

# advise
nibble advise "$MODEL" --cache --text text.txt --json 2>err >advised.json
equal 'types from more to fewer bits' 'int8 int8-hadamard int8:int4 int8:int4-hadamard int4 int4-hadamard' "$(python3 -c 'import json; print(*(c["cache_type"] for c in json.load(open("advised.json"))["caches"]))')"
equal 'the KL is that of eval' "${kl[0]} ${kl[1]} ${kl[2]}" "$(python3 -c 'import json; c = {c["cache_type"]: c["kl"] for c in json.load(open("advised.json"))["caches"]}; print(*("%.9g" % c[t] for t in ("int8", "int8:int4", "int4")))')"
nibble plan "$MODEL" --cache-type int4 >plan.txt 2>err
check 'a plan prints the KL' grep -q '(KL [0-9.e-]* from bf16, measured 20[0-9-]* on [0-9,]* tokens of text.txt)' <(tr -s '\n ' ' ' <plan.txt)
equal 'so does its JSON' "${kl[2]}" "$(nibble plan "$MODEL" --cache-type int4 --json 2>err | number cache_kl)"
check 'another dtype was not measured' grep -qF 'KL not measured' <(nibble plan "$MODEL" --dtype f32 --cache-type int4 2>err | tr -s '\n ' ' ')
cp -r "$MODEL" copy
check 'a copy of the model is known' grep -qF ' from bf16, measured ' <(nibble plan copy --cache-type int4 2>err | tr -s '\n ' ' ')
nibble advise copy f16:int4 int8:int4 --cache --text text.txt >out 2>err
check 'types that are named' grep -qE '^f16:int4 +[0-9]+ +[0-9]+ %' out
for type in f16:int4 int8:int4 int4-hadamard; do
    check "$type: measured, now or before" grep -qF ' from bf16, measured ' <(nibble plan copy --cache-type $type 2>err | tr -s '\n ' ' ')
done
refused 2 'cache types are compared on a text; *' advise "$MODEL" --cache
refused 2 'cache type "int5" is not one of *' advise "$MODEL" int5 --cache --text text.txt
refused 2 '--cache-type int8 and a comparison of cache types; leave one out' advise "$MODEL" --cache --cache-type int8 --text text.txt
refused 4 'a KV cache in int8 does not run on h100; *' advise "$MODEL" --cache --device h100 --text text.txt
refused 4 'the plan is for h100, which is not this machine*' advise "$MODEL" f16 --cache --device h100 --text text.txt
nibble advise "$MODEL" int8 --cache --device auto --text text.txt --json 2>err >auto.json
equal 'the device that every type runs on' "cpu ${kl[0]}" "$(number device <auto.json) $(python3 -c 'import json; print("%.9g" % json.load(open("auto.json"))["caches"][0]["kl"])')"
refused 2 'of the options for recipes, *' advise "$MODEL" --cache --text text.txt --memory 1GB
refused 2 '* has no weights; *' advise "$MODEL/config.json" --cache --text text.txt

costs=cache/nibble/cache_costs.json
for damage in '{' '{"schema": 2, "models": []}' '{"schema": 1, "models": [{"types": [{"kl": "much"}]}]}'; do
    cp "$costs" kept.json
    echo "$damage" >"$costs"
    check 'a damaged file counts as empty' grep -qF 'KL not measured' <(nibble plan copy --cache-type int4 2>err | tr -s '\n ' ' ')
    cp kept.json "$costs"
done

# Keys with an outlier channel: the same model in floats, and not in int8; said once, on the first text.
chmod -R u+w copy
"$REPO/tests/cli/outlier" copy 2 7
cp -r copy larger
"$REPO/tests/cli/outlier" larger 2 2 # 2^9 in all, which int8 does not bear; it bears 2^7
equal 'the outlier changes nothing in f32' True "$(less "$(eval_ copy --dtype f32 --against "$MODEL" | number kl)" 1e-9)"
said() { nibble "$@" 2>&1 >out | grep -c 'do not bear'; }
for type in int8 int4 int8:f32 int4:int8; do
    equal "$type: detected and said once" 1 "$(said eval larger --text text.txt --cache-type $type)"
    equal "$type: the model without it bears" 0 "$(said eval "$MODEL" --text text.txt --cache-type $type)"
done
check 'with the layer and what to do' grep -qE 'larger: the keys of layer 2 do not bear --cache-type int8: .*--cache-type bf16' <(nibble eval larger --text text.txt --cache-type int8 2>&1 >out)
for type in bf16 bf16:int8; do
    equal "$type has nothing to say" 0 "$(said eval larger --text text.txt --cache-type $type)"
done
equal 'int4 does not bear a smaller one' 1 "$(said eval copy --text text.txt --cache-type int4)"
equal 'int8 does' 0 "$(said eval copy --text text.txt --cache-type int8)"
equal 'rotated int8 bears the larger one' 0 "$(said eval larger --text text.txt --cache-type int8-hadamard)"
equal 'a short prompt is continued by what is generated' 1 "$(said generate larger -p Once -n 80 --ignore-eos --temp 0 --cache-type int8)"

# the same sentence in the ledgers of the run and of a request
printf 'Once upon a time\n/plan\n' | nibble chat larger --chat-template "$REPO/examples/tales.jinja" -n 80 --ignore-eos --temp 0 --cache-type int8 >out 2>err
check 'in the ledger of the run' grep -q 'note: .*larger: the keys of layer 2 do not bear' <(tr -s '\n ' ' ' <err)
# served TYPE MODEL BODY: the answer of a server with this type to the body
served() {
    rm -f log
    touch log
    "$NIBBLE" serve "$2" --port 0 --cache-type "$1" >out 2>log &
    server=$!
    trap 'kill -9 $server 2>/dev/null || true' EXIT
    until address=$(sed -n 's|.* at \(http://.*\)/$|\1|p' log) && [ -n "$address" ]; do
        kill -0 $server || break
        sleep 0.01
    done
    curl -s "$address/v1/completions" -d "$3" >answer.json
    curl -s "$address/v1/completions" -d "$3" >again.json
    kill $server
    wait $server || true
}
member() { python3 -c 'import json, sys; print(eval(sys.argv[2], json.load(open(sys.argv[1]))))' "$@"; }
served int8 larger '{"prompt": "Once", "max_tokens": 80, "ignore_eos": true}'
check 'in the ledger of a request' grep -qx 'keys .*larger: the keys of layer 2 do not bear --cache-type int8: .*' <(member answer.json 'notes[0]["code"] + " " + notes[0]["text"]')

# one text, from generate, with drafts of both kinds, from a conversation's cache and from a server
long='Once upon a time there was a wolf who said to the king that he would come to the king when the wolf said to the king '
long="${long}${long}${long}and said"
for type in int8:int4 int4-hadamard; do
    sampled 2 || continue
    how=(--cache-type $type --temp 0 --ignore-eos -n 40)
    text=$(nibble generate "$MODEL" -p "$long" "${how[@]}" --lookup 0 2>err)
    equal "$type: with prompt lookup" "$text" "$(nibble generate "$MODEL" -p "$long" "${how[@]}" --lookup 15 2>err)"
    equal "$type: with a draft model" "$text" "$(nibble generate "$MODEL" -p "$long" "${how[@]}" --lookup 0 --draft "$MODEL" 2>err)"
    served $type "$MODEL" '{"prompt": "'"$long"'", "max_tokens": 40, "temperature": 0, "ignore_eos": true}'
    equal "$type: from a server" "$text" "$(member answer.json 'choices[0]["text"]')"
    equal "$type: and from its cache" "$(member answer.json 'choices[0]["text"]') True" "$(member again.json 'choices[0]["text"] + " " + str(usage["prompt_tokens_details"]["cached_tokens"] > 0)')"
    printf 'Once upon a time\nThe wolf\n/save a.json\n' | nibble chat "$MODEL" --chat-template "$REPO/examples/tales.jinja" "${how[@]}" -q >out 2>err
    python3 -c 'import json; json.dump(json.load(open("a.json"))[:2], open("b.json", "w"))'
    printf '/load b.json\nThe wolf\n/save c.json\n' | nibble chat "$MODEL" --chat-template "$REPO/examples/tales.jinja" "${how[@]}" -q >out 2>err
    check "$type: a turn from the cache is the turn of a conversation that is read" cmp a.json c.json
done
