# SPDX-License-Identifier: Apache-2.0
#
# nibble chat on a terminal: line editing, the history of this run and of the previous one, Ctrl-C at the prompt and in an
# answer, Ctrl-D.
export XDG_STATE_HOME=$PWD/state HOME=$PWD TERM=xterm
talk() { "$REPO/tests/cli/terminal" chat "$MODEL" --chat-template "$REPO/examples/tales.jinja" --temp 0 "$@"; }
messages() { python3 -c 'import json, sys; print(*(m["content"] for m in json.load(open(sys.argv[1])) if m["role"] == "user"), sep="|")' "$1"; }

status=0
talk --recipe 8da4w -n 12 >shown <<'STEPS' || status=$?
wait Ctrl-D exits
wait >\x20
type nce\x01O\x05 uponn\x7f\r
wait upon
wait >\x20
type half a line\x03
wait (Ctrl-D or /quit to exit)
wait >\x20
type whole\r
wait whole
wait >\x20
type \x1b[A\x1b[A\r
wait Once upon
wait >\x20
type /save talk.json\r
wait >\x20
type \x04
STEPS
equal 'exit status after Ctrl-D' 0 "$status"
equal 'messages: edited, not the dropped one, from the history' 'Once upon|whole|Once upon' "$(messages talk.json)"
equal 'one prompt after Ctrl-C' 1 "$(tr -d '\r' <shown | sed -n '/or \/quit to exit/,/whole/p' | grep -o '> ' | wc -l)"
check "the ledger's line at the end" grep -q '^36 linear layers: 36 asked 8da4w' shown
check 'the history is saved' grep -q whole state/nibble/chat_history
equal 'only the owner can read the history' 600 "$(stat -c %a state/nibble/chat_history)"

status=0
talk -n 400 --ignore-eos --isa ref -t 1 --dtype f32 -q >shown <<'STEPS' || status=$?
wait >\x20
type \x1b[A\x1b[A\r
wait Once upon
wait e
wait a
type \x03
wait (stopped)
wait >\x20
type /stats\r
wait prompt
wait >\x20
type /save stopped.json\r
wait >\x20
type /quit\r
STEPS
equal 'exit status after /quit' 0 "$status"
equal 'the history has messages of the previous run' 'Once upon' "$(messages stopped.json)"
check 'Ctrl-C stops the answer' [ "$(sed -n 's/^answer  *\([0-9]*\) tokens.*/\1/p' shown)" -lt 400 ]

# non-ASCII characters in every locale; Ctrl-D after a continued line ends only its message
for locale in C C.UTF-8 xx_XX.ISO-8859-1; do
    status=0
    LC_ALL=$locale talk --recipe 8da4w -n 4 -q >shown <<'STEPS' || status=$?
wait >\x20
type \xc3\xa9t\xc3\xa9x\x7f \xe2\x82\xac\xc3\xb6\x7f\r
wait >\x20
type half\\\r
wait >\x20
type \x04
wait >\x20
type /stats\r
wait temp 0,
type /save past.json\r
wait >\x20
type \x04
STEPS
    equal "$locale: exit status" 0 "$status"
    equal "$locale: non-ASCII characters, and a line that Ctrl-D ends" 'été €|half' "$(messages past.json)"
    rm past.json
done
