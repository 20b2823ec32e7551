# SPDX-License-Identifier: Apache-2.0
#
# Output streams, and errors when they are full, closed or gone; --quiet; colour only if wanted.
for command in "info $MODEL" "advise $REPO/configs/shapes/llama-3.2-1b/config.json --device h200 int8wo" "advise $MODEL int8wo --dry-run --json" \
    "plan $MODEL" "plan $MODEL --json" devices kernels recipes "verify $MODEL" "quantize $MODEL x --recipe int8wo --dry-run" \
    "generate $MODEL -n 3" "generate $MODEL -n 3 --json" "eval $MODEL --text text.txt --window 32" "eval $MODEL --text text.txt --window 32 --json" \
    "bench $MODEL --repeats 1 --prompt-tokens 8 -n 2" --help --version 'plan --help' manual 'manual plan' 'completion bash'; do
    [ -e text.txt ] || head -c 300 "$MODEL/heldout.txt" >text.txt
    status=0
    # shellcheck disable=SC2086 # words are meant
    nibble $command --quiet >/dev/full 2>err || status=$?
    case $command in --* | manual* | completion*) # shellcheck disable=SC2086
        status=0
        nibble $command >/dev/full 2>err || status=$?
        ;;
    esac
    equal "$command to a full disk" '6 nibble: the output could not be written: No space left on device' "$status $(cat err)"
done
for command in "info $MODEL" kernels "plan $MODEL --json" "generate $MODEL -n 40"; do
    # shellcheck disable=SC2086
    nibble $command --quiet 2>err | head -c 1 >/dev/null
    equal "$command to a pipe that its reader closes" '' "$(cat err)"
    # shellcheck disable=SC2086
    (trap '' PIPE; nibble $command --quiet 2>err) | head -c 1 >/dev/null
    equal "$command to a pipe that its reader closes, SIGPIPE ignored" '' "$(cat err)"
done
status=0
nibble plan "$MODEL" >&- 2>err || status=$?
equal 'plan with stdout closed' '6 nibble: the output could not be written: Bad file descriptor' "$status $(cat err)"
check 'generate with stdin closed' nibble generate "$MODEL" -n 1 <&-
check 'generate with stderr closed' nibble generate "$MODEL" -n 1 2>&-
# with stdout closed, the first opened file must not become stdout
status=0
nibble quantize "$MODEL" q --recipe int8wo >&- 2>err || status=$?
equal 'exit status of quantize with stdout closed' 6 "$status"
check 'with stdout closed the checkpoint is complete' nibble verify q
check 'quantize with all streams closed' bash -c '"$NIBBLE" quantize "$MODEL" q --force --recipe int8wo <&- >&- 2>&-; [ $? = 6 ] && "$NIBBLE" verify q'

for command in "plan $MODEL" "generate $MODEL -n 2" "eval $MODEL --text text.txt" "bench $MODEL --repeats 1 --prompt-tokens 8 -n 2" "verify $MODEL"; do
    # shellcheck disable=SC2086
    nibble $command --quiet >out 2>err
    equal "$command --quiet prints nothing on stderr" '' "$(cat err)"
    check "$command has no escapes in a pipe" test 0 = "$(grep -c $'\033' out)"
done

# on_terminal VARIABLE=VALUE... -- ARGUMENT...: prints what nibble writes to a terminal
on_terminal() {
    python3 - "$@" <<'END'
import os, pty, sys, termios
split = sys.argv.index("--")
def read(fd):
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
pid, fd = pty.fork()
if pid == 0:
    termios.tcsetwinsize(0, (24, 80))
    os.environ["TERM"] = "xterm"
    os.environ.update(a.split("=", 1) for a in sys.argv[1:split])
    os.execv(os.environ["NIBBLE"], ["nibble"] + sys.argv[split + 1:])
while data := read(fd):
    sys.stdout.buffer.write(data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
}
colours() { on_terminal "$@" | grep -c $'\033\[3'; }
denied=(plan "$MODEL" --recipe int4wo --device apple-m2 --without 'linear_*_w4g_*__ocl*')
check 'colour on a terminal' test 3 -lt "$(colours -- "${denied[@]}")"
equal 'no colour with NO_COLOR' 0 "$(colours NO_COLOR=1 -- "${denied[@]}")"
check 'colour with an empty NO_COLOR' test 3 -lt "$(colours NO_COLOR= -- "${denied[@]}")"
equal 'no colour with TERM=dumb' 0 "$(colours TERM=dumb -- "${denied[@]}")"
equal 'no colour with --no-color' 0 "$(colours -- "${denied[@]}" --no-color)"
equal 'no colour with --json' 0 "$(colours -- "${denied[@]}" --json)"
equal 'colour does not change the text' "$(nibble "${denied[@]}" 2>&1)" "$(on_terminal -- "${denied[@]}" | sed 's/\x1b\[[0-9]*m//g; s/\r//')"
equal 'generated text has no colour' 0 "$(colours -- generate "$MODEL" -n 3)"
for columns in 0 1 40 200; do
    check "plan --help with COLUMNS=$columns" on_terminal COLUMNS=$columns -- plan --help
done

# Numbers have a decimal point in any locale.
if [ -d "${LOCPATH:-}/de_DE.UTF-8" ]; then
    german() { LC_ALL=de_DE.UTF-8 "$NIBBLE" "$@"; }
    equal 'plan in a locale with a decimal comma' "$(nibble plan "$MODEL" --recipe 8da4w-g7 --device graviton3)" "$(german plan "$MODEL" --recipe 8da4w-g7 --device graviton3)"
    german plan "$MODEL" --json 2>err | members 'plan --json in a German locale' predicted_token_s=num
    equal 'generated text in a German locale' "$(nibble generate "$MODEL" -n 20 -q --temp 0.9 --top-p 0.9)" "$(german generate "$MODEL" -n 20 -q --temp 0.9 --top-p 0.9)"
    german eval "$MODEL" --text text.txt --json 2>err | members 'eval --json in a German locale' loss=num
else
    skipped 'streams, with a decimal comma' 'no German locale (apt-get install locales)'
fi
