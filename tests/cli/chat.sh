# SPDX-License-Identifier: Apache-2.0
#
# nibble chat through a pipe: messages, slash commands, saved files; answers equal those after prefilling the whole
# conversation.
template=$REPO/examples/tales.jinja
talk() { nibble chat "$MODEL" --recipe 8da4w --chat-template "$template" -n 12 --temp 0 "$@"; }

printf 'Once upon a time\nThe wolf\\\nand the king\n/save talk.json\n' | talk -q >answers 2>err
equal 'nothing on stderr with -q' '' "$(cat err)"
check '/save writes JSON' python3 -m json.tool talk.json
equal '/save writes both turns' 'user assistant user assistant' "$(sed -n 's/.*"role": "\(.*\)",/\1/p' talk.json | tr '\n' ' ' | sed 's/ $//')"
check 'a backslash continues a line' grep -q '"content": "The wolf\\nand the king"' talk.json
# memory is filled with non-text bytes, so that a missing terminator shows
printf 'The wolf' | talk -q >whole 2>&1
for end in '\' '\\n'; do
    printf "The wolf\\$end" | MALLOC_PERTURB_=85 talk -q >cut 2>&1
    check "input ends after a continued line: $end" cmp whole cut
done
status=0
talk -q </ >cut 2>failed || status=$?
equal 'an input that cannot be read' '6 nibble: the input: Is a directory' "$status $(cat failed)"
check 'answers are printed' [ "$(wc -c <answers)" -gt 20 ]

# a turn from the cache equals the turn of a loaded conversation
printf 'Once upon a time\nThe wolf\nThen\n/save a.json\n' | talk -q >first 2>/dev/null
python3 - <<'PY'
import json
all_ = json.load(open("a.json"))
json.dump(all_[:4], open("b.json", "w"))
PY
printf '/load b.json\nThen\n/save c.json\n' | talk -q >second 2>/dev/null
check 'same answer after /load as from the cache' cmp a.json c.json
printf 'Once upon a time\nThe wolf\n/stats\n' | talk 2>stats >/dev/null
check '/stats counts cached tokens of the prompt' grep -Eq '^prompt  +[0-9]+ tokens, ([1-9][0-9]*) of them cached' stats
check "the ledger's line at the end" grep -q '^36 linear layers: 36 asked 8da4w' stats

printf 'Once\n/system Be a king.\nTwice\n/reset\n/save d.json\n' | talk -q >/dev/null 2>&1
equal '/reset keeps the system message' '[ { "role": "system", "content": "Be a king." } ]' "$(tr -s '\n ' ' ' <d.json | sed 's/ $//')"
printf '/system\n/save e.json\n' | talk -q --system 'Be a wolf.' >/dev/null 2>&1
equal '/system without text removes the system message' '[]' "$(cat e.json)"
printf '/plan\n/help\n/quit\nnever said\n' | talk >out 2>err
equal 'commands and lines after /quit get no answer' '' "$(cat out)"
check '/plan prints the plan' grep -q 'lm_head' err
check '/help lists the commands' grep -q '^/system TEXT' err

# errors are printed and the chat continues; the first error decides the exit status
status=0
printf '/sistem x\n/save\n/load none.json\nOnce\n' | talk -q >out 2>err || status=$?
equal 'exit status of an unknown command' 2 "$status"
check 'an unknown command gets a suggestion' grep -q "unknown command /sistem; did you mean /system?" err
check '/save without FILE' grep -q '/save needs FILE' err
check '/load of a missing file' grep -q 'none.json: No such file' err
status=0
printf 'Once upon\n/load nosuch.json\n/save no/such/place.json\nThe wolf\n/save on.json\n' | talk -q >out 2>err || status=$?
equal 'exit status of a failed /load' 6 "$status"
check '/save into a missing folder' grep -q 'no/such/place.json: No such file' err
equal 'the chat continues after a failed /load or /save' 'user assistant user assistant' \
    "$(sed -n 's/.*"role": "\(.*\)",/\1/p' on.json | tr '\n' ' ' | sed 's/ $//')"
cp on.json before.json
mkdir on.json.part
status=0
printf 'Once\n/save on.json\n' | talk -q >/dev/null 2>err || status=$?
equal 'exit status of a /save that cannot write' 6 "$status"
check 'it keeps the old file' cmp on.json before.json
rmdir on.json.part
ln -s on.json link.json
printf 'Once\n/save link.json\n/save /dev/stdout\n' | talk -q >out 2>err
check '/save through a symbolic link writes its target' test -L link.json -a ! -e link.json.part
check 'it replaces the conversation' bash -c '! cmp -s on.json before.json'
check '/save /dev/stdout prints it' grep -q '"role": "assistant"' out
for bad in '{}' '[{"role": "king", "content": "x"}]' '[{"role": "user"}]' '[{"role": "user", "content": 5}]' '[' '[] x' \
    '[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]' '[{"role": "user", "content": "a", "mood": 1}]'; do
    printf '%s' "$bad" >bad.json
    status=0
    printf '/load bad.json\n' | talk -q >out 2>err || status=$?
    equal "exit status of /load: $bad" 3 "$status"
    check "the error names the file: $bad" grep -q 'bad.json' err
done
truncate -s $((64 << 20 | 1)) big.json
status=0
printf '/load big.json\n' | talk -q >out 2>err || status=$?
equal 'exit status of /load of too large a file' 3 "$status"
check 'the error names the limit of /load' grep -q 'big.json: larger than the 64 MiB that /load reads' err
rm big.json
python3 -c "print('word ' * 700)" >long
status=0
talk -q <long >out 2>err || status=$?
equal 'exit status of a message over the context' 2 "$status"
check 'the error has the numbers of tokens' grep -Eq 'the conversation has [0-9]+ tokens, but the context is 512' err
{ printf 'Once upon a time\n/stats\n'; cat long; printf '/stats\n'; } | talk >out 2>err
check '/stats after a refused turn describes the last answer' [ "$(grep -Ec '^answer  +12 tokens, [0-9.]+ tokens/s' err)" = 2 ]
equal '/stats after a refused turn has the same numbers' 1 "$(grep '^answer' err | sort -u | wc -l)"
{ cat long; printf '/stats\n'; } | talk >out 2>err
check '/stats before any answer' grep -q '^no answer yet' err
refused 3 '*chat template*' chat "$MODEL"
refused 2 '*needs MODEL*' chat

# the model's own answer length, which -n overrides
cp -r "$MODEL" short
echo '{"max_new_tokens": 5}' >short/generation_config.json
equal 'max_new_tokens limits the answer' 'answer 5 tokens,' "$(printf 'The wolf\n/stats\n' | nibble chat short --chat-template "$template" --ignore-eos 2>&1 >out | grep -o '^answer *5 tokens,' | tr -s ' ')"
equal '-n overrides max_new_tokens' 'answer 7 tokens,' "$(printf 'The wolf\n/stats\n' | nibble chat short --chat-template "$template" --ignore-eos -n 7 2>&1 >out | grep -o '^answer *7 tokens,' | tr -s ' ')"

# Ctrl-C stops the answer but not the program
mkfifo words
nibble chat "$MODEL" --chat-template "$template" --isa ref -t 1 --dtype f32 --ignore-eos -q <words >out 2>err &
chat=$!
exec 9>words
echo 'Once upon a time' >&9
for _ in $(seq 2000); do [ -s out ] && break; sleep 0.05; done
kill -INT $chat
echo '/save stopped.json' >&9
exec 9>&-
wait $chat
equal 'exit status after a stopped answer' 0 $?
check 'the stopped answer is kept' grep -q '"role": "assistant"' stopped.json
