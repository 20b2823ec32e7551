# SPDX-License-Identifier: Apache-2.0
#
# nibble generate: the same text with any thread count and instruction set, and why it ends.
text() { nibble generate "$MODEL" --quiet -p 'Once upon a time' --temp 0 -n 32 "$@"; }
# ended WORD ARGUMENT...
ended() {
    local wanted=$1
    shift
    equal "finish reason with $*" "$wanted" "$(nibble generate "$MODEL" -p 'Once upon a time' "$@" 2>&1 >/dev/null | sed -n 's/.*ended with //p')"
}
first=$(text)
check 'the text has more than 80 bytes' [ "${#first}" -gt 80 ]
equal 'same text with one thread' "$first" "$(text -t 1)"
equal 'same text with two threads' "$first" "$(text -t 2)"
for isa in ref avx2 avx512; do
    nibble devices cpu --isa $isa >/dev/null 2>&1 || continue # not every machine has them all
    equal "same text with --isa $isa" "$first" "$(text --isa $isa)"
done
equal 'same text in another run' "$first" "$(text)"
for recipe in 8da4w int4wo int4wo-intzero int8dq; do
    quantized=$(text --recipe $recipe -t 1 --isa ref)
    equal "$recipe: same text with two threads and the fastest kernels" "$quantized" "$(text --recipe $recipe -t 2)"
done
nibble quantize "$MODEL" q --recipe 8da4w --quiet >/dev/null
equal 'same text with weights quantized at load' "$(text --recipe 8da4w)" "$(nibble generate q --quiet -p 'Once upon a time' --temp 0 -n 32)"

# the format allows tensors at any address
for recipe in '' int8wo int4wo 8da4w-g33 mxfp8; do
    rm -rf odd
    if [ -n "$recipe" ]; then nibble quantize "$MODEL" odd --recipe $recipe --quiet >/dev/null; else cp -r "$MODEL" odd; fi
    even=$(nibble generate odd --quiet -p 'Once upon a time' --temp 0 -n 8)
    "$REPO/tests/cli/tensors" odd/model.safetensors shift
    equal "same text with tensors at odd addresses, ${recipe:-plain}" "$even" "$(nibble generate odd --quiet -p 'Once upon a time' --temp 0 -n 8)"
done

sampled() { nibble generate "$MODEL" --quiet -p 'Once upon a time' -n 30 "$@"; }
equal 'same text with the same seed' "$(sampled --seed 3)" "$(sampled --seed 3 -t 1)"
check 'other text with another seed' [ "$(sampled --seed 3)" != "$(sampled --seed 4)" ]
equal 'the default seed is 0' "$(sampled)" "$(sampled -s 0)"
equal 'top-k 1 is greedy' "${first:0:60}" "$(sampled --top-k 1 | head -c 60)"
check '--repeat-penalty changes the text' [ "$(text)" != "$(text --repeat-penalty 1.5)" ]

# stop strings: the text ends before the first one, also if it spans tokens
for stop in tree 'little tree' 'e tr' "$(printf '%s' "${first:30:12}")"; do
    equal "the text ends before --stop '$stop'" "${first%%"$stop"*}" "$(text --stop "$stop")"
done
equal 'the stop string that occurs first ends the text' "${first%%tree*}" "$(text --stop 'nowhere in it' --stop tree --stop 'tree,')"
seven=()
for stop in 1 2 3 4 5 6 'little'; do seven+=(--stop "$stop"); done
equal 'the last of seven stop strings ends the text' "${first%%'little'*}" "$(text "${seven[@]}")"
equal 'a stop string that does not occur changes nothing' "$first" "$(text --stop 'nowhere in it')"
ended stop -n 40 --temp 0 --stop tree
ended length -n 3
ended context -c 24 --ignore-eos
equal 'prompt and new tokens fill a context of 24' 24 "$(nibble generate "$MODEL" -p 'Once upon a time' -c 24 --ignore-eos --json 2>/dev/null | python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["prompt_tokens"] + d["new_tokens"])')"

# --schema and --logprobs
echo '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "king": {"type": "boolean"}}, "required": ["name", "king"]}' >who.json
for seed in 1 2 3 4 5; do
    nibble generate "$MODEL" -p 'Who are you?' --schema who.json --seed $seed --quiet | python3 -c '
import json, sys
d = json.load(sys.stdin)
assert set(d) >= {"name", "king"} and len(d["name"]) <= 9 and isinstance(d["king"], bool), d' >said 2>&1
    equal "--schema, seed $seed: a value of the schema" '' "$(cat said)"
done
equal 'same text with the schema from stdin' "$(nibble generate "$MODEL" --schema who.json -q)" "$(nibble generate "$MODEL" --schema - -q <who.json)"
nibble generate "$MODEL" -p 'Once upon a time' --temp 0 -n 12 --json --logprobs 4 2>/dev/null | python3 -c '
import json, math, sys
d = json.load(sys.stdin)
told = d["logprobs"]
assert len(told) == d["new_tokens"] == 12, len(told)
assert "".join(t["token"] for t in told) == d["text"], told
for t in told:
    assert len(t["top"]) == 4 and t["top"][0]["id"] == t["id"] and t["top"][0]["logprob"] == t["logprob"], t
    assert sum(math.exp(o["logprob"]) for o in t["top"]) <= 1 and t["logprob"] == max(o["logprob"] for o in t["top"]), t' >said 2>&1
equal '--logprobs 4 describes each token' '' "$(cat said)"
check 'no logprobs unless requested' [ -z "$(nibble generate "$MODEL" -n 2 --json 2>/dev/null | grep -o '"logprobs"')" ]
refused 2 '--logprobs 2 needs --json, whose output has them' generate "$MODEL" --logprobs 2
refused 2 'logprobs 21 is not between 0 and 20' generate "$MODEL" --logprobs 21 --json
refused 2 '--file and --schema both read stdin; name a file for one of them' generate "$MODEL" --file - --schema -
refused 2 'ignore-eos continues past the end of the text, but a schema ends the text when its value is complete; leave one of them out' generate "$MODEL" --schema who.json --ignore-eos
refused 6 'none.json: the schema could not be read: No such file or directory' generate "$MODEL" --schema none.json
echo '{"type": "string", "pattern": "^x"}' >pattern.json
refused 3 'schema.pattern: "pattern" cannot be enforced, *' generate "$MODEL" --schema pattern.json
echo '{' >cut.json
refused 3 'schema: line *' generate "$MODEL" --schema cut.json

# llama.cpp's option letters
equal 'short options mean the long ones' "$(sampled --seed 5 --threads 1 --context 64)" "$(nibble generate -m "$MODEL" -p 'Once upon a time' -n 30 -c 64 -t 1 -s 5 -q)"
nibble generate "$MODEL" -n 5 --json 2>/dev/null | members 'generate --json' schema=1 text=str prompt_tokens=int new_tokens=5 'finish="length"' first_token_s=num \
    prefill_s=num decode_s=num seed=0
nibble generate "$MODEL" -n 5 2>err >/dev/null
for word in 'prompt .*tokens/s, first token after' 'generated .*tokens/s, .*GB/s, ended with length' 'memory .*weights.*KV cache' 'sampling .*seed 0' \
    '36 linear layers: 36 asked bf16, 36 done on cpu/[a-z0-9]*, 0 substituted'; do
    check "the statistics have: $word" grep -q "$word" err
done
