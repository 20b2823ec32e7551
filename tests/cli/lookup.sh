# SPDX-License-Identifier: Apache-2.0
#
# nibble generate --lookup: the same text with and without drafts, and their statistics.
repeated='The wolf said to the king, I will come. The wolf said to the king, I will come. The wolf'
# text ARGUMENT...: the text, the number of tokens and the finish reason, without times
text() { nibble generate "$MODEL" --json "$@" 2>/dev/null | sed 's/, "first_token_s.*//'; }
# number MEMBER ARGUMENT...
number() {
    local member=$1
    shift
    nibble generate "$MODEL" --json "$@" 2>/dev/null | sed "s/.*\"$member\": \([0-9]*\).*/\1/"
}

echo '{"type": "array", "items": {"enum": ["wolf", "king"]}, "minItems": 9, "maxItems": 12}' >list.json
for prompt in "$repeated" 'Once upon a time'; do
    for how in '--temp 0 -n 90' '--temp 0 --recipe 8da4w --ignore-eos -c 200' '--temp 0.7 --seed 2 -n 120 -t 2' '--temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 3 -n 60' \
        '--temp 0.4 --repeat-penalty 1.2 -n 60' '--temp 0 --stop king --stop wolf' '--temp 0 -n 40 --logprobs 3' '--seed 4 --schema list.json --logprobs 1' '--temp 0 --isa avx2 -n 40' '--temp 0 --recipe int4wo --isa ref -n 40' '-n 1' '-n 2 --temp 0'; do
        read -ra how <<<"$how"
        without=$(text -p "$prompt" "${how[@]}" --lookup 0)
        check "${how[*]}: text is generated" [ "${#without}" -gt 40 ]
        for lookup in 1 15 64; do sampled 2 && equal "${how[*]}: same text with --lookup $lookup" "$without" "$(text -p "$prompt" "${how[@]}" --lookup $lookup)"; done
    done
done

# whether anything is drafted depends on measured times (tests/unit/test_prompt_lookup.c sets them); the totals must be consistent
nibble generate "$MODEL" --json -p "$repeated" --temp 0 -n 90 >repeated.json 2>/dev/null
member() { sed "s/.*\"$1\": \([0-9]*\).*/\1/" repeated.json; }
equal 'steps and accepted tokens add up to the text' 89 $(($(member steps) + $(member accepted)))
check 'no more tokens are accepted than drafted' [ "$(member accepted)" -le "$(member drafted)" ]
equal '--lookup 0: a step for each token after the first' 89 "$(number steps -p "$repeated" --temp 0 -n 90 --lookup 0)"
equal '--lookup 0: nothing is drafted' 0 "$(number drafted -p "$repeated" --temp 0 -n 90 --lookup 0)"
equal 'the default of --lookup' 15 "$(number lookup -p x -n 1)"

nibble generate "$MODEL" -p "$repeated" --temp 0 -n 60 >/dev/null 2>err
check 'statistics of drafts' grep -q '^lookup  *[0-9]* tokens drafted, [0-9]* accepted, [0-9.]* tokens per step$' err
nibble generate "$MODEL" -p x -n 3 --lookup 0 >/dev/null 2>err
check '--lookup 0: no statistics of drafts' test -z "$(grep '^lookup' err)"
nibble plan "$MODEL" --lookup 7 | tr -s '\n ' ' ' >plan.txt
check 'the plan predicts the time of a step of 8 tokens' grep -q 'note: --lookup 7: a step checks at most .* a step of 8 tokens is predicted to take [0-9.]* [mu]*s, of one [0-9.]* [mu]*s' plan.txt
nibble plan "$MODEL" --lookup 7 --json | members 'plan --lookup 7 --json' lookup=7
nibble plan "$MODEL" --lookup 0 --json | members 'plan --lookup 0 --json' lookup=0

refused 2 '--lookup 65 is over the limit of 64 tokens at once' generate "$MODEL" -p x --lookup 65
refused 2 '--lookup: "-1" is not a whole number of 0 or more' generate "$MODEL" -p x --lookup -1
refused 2 '--lookup is not an option of `nibble eval`; *' eval "$MODEL" --lookup 4
refused 2 '--lookup 4 has no effect in training, which generates no text; leave it out' plan "$REPO"/configs/llama3_debugmodel_mxfp8_vocab2256.json --lookup 4

# a conversation: turns continue from the cache, which keeps no rejected drafts
answers() {
    printf '%s\n%s again\n/stats\n' "$repeated" "$repeated" |
        nibble chat "$MODEL" --recipe 8da4w --chat-template "$REPO/examples/tales.jinja" -n 60 "$@" 2>stats
}
for how in '--temp 0' '--seed 5' '--temp 0.4 --repeat-penalty 1.2'; do
    read -ra how <<<"$how"
    without=$(answers "${how[@]}" --lookup 0)
    check "chat ${how[*]} --lookup 0: no statistics of drafts" test -z "$(grep '^lookup' stats)"
    for lookup in 1 15 64; do equal "chat ${how[*]}: same answers with --lookup $lookup" "$without" "$(answers "${how[@]}" --lookup $lookup)"; done
    check "chat ${how[*]}: statistics of drafts" grep -q '^lookup  *[0-9]* tokens drafted' stats
done
refused 2 '--lookup 65 is over the limit of 64 tokens at once' serve "$MODEL" --port 0 --lookup 65

# a device's kernels may compute other bits in a step of several tokens: drafts are not used, and a line says so
nibble plan "$MODEL" --device h200 --lookup 8 --json | python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["lookup"], [n["text"] for n in d["settings"] if n["code"] == "lookup"])' >h200.txt
check 'h200: the plan says that drafts are not used' grep -q "^0 \['tokens are drawn one by one: linear_[a-z0-9_]* may compute other bits" h200.txt
check 'h200: --strict refuses --lookup 8' test "$(nibble plan "$MODEL" --device h200 --lookup 8 --strict 2>&1 >/dev/null | cut -c 1-66)" = 'nibble: --strict: --lookup 8 (option): tokens are drawn one by one'
equal 'h200: the plan says nothing without --lookup' "0 []" "$(nibble plan "$MODEL" --device h200 --json | python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["lookup"], [n for n in d["settings"] + d["notes"] if "lookup" in n["code"]])')"
if nibble devices opencl >/dev/null 2>&1; then
    nibble generate "$MODEL" -p x -n 2 --device opencl --lookup 8 >/dev/null 2>err
    check 'opencl: generate says that drafts are not used' grep -q '^without effect: --lookup 8 (option): tokens are drawn one by one: linear_' err
    refused 4 '--strict: --lookup 8 (option): tokens are drawn one by one: linear_*--lookup 0 asks for this; --allow lookup accepts it' generate "$MODEL" -p x -n 2 --device opencl --lookup 8 --strict --quiet
else
    skipped 'lookup, on OpenCL' 'no OpenCL device'
fi
