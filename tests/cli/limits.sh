# SPDX-License-Identifier: Apache-2.0
#
# Little memory, small stacks, few file descriptors: commands succeed or end with an error, never a crash.
head -c 300 "$MODEL/heldout.txt" >text.txt
for stack in 256 512; do
    (
        ulimit -s $stack
        check "plan with a stack of $stack kB" nibble plan "$MODEL" --recipe 8da4w
        check "generate with a stack of $stack kB" nibble generate "$MODEL" -n 4 --recipe 8da4w
        check "quantize with a stack of $stack kB" nibble quantize "$MODEL" q$stack --recipe int4wo
        check "eval with a stack of $stack kB" nibble eval "$MODEL" --text text.txt --window 64 -t 2
        check "verify with a stack of $stack kB" nibble verify q$stack
        exit $failures
    ) || failures=$((failures + 1))
done
failed_at=0
for megabytes in 24 32 48 64 96 128 192 256 512 1024; do
    for command in "plan $MODEL --recipe 8da4w" "generate $MODEL -n 2 -t 2" "quantize $MODEL q --recipe int8wo --force" "verify $MODEL" "eval $MODEL --text text.txt"; do
        status=0
        # shellcheck disable=SC2086 # words are meant
        (ulimit -v $((megabytes * 1024)) && nibble $command --quiet) >out 2>err || status=$?
        case $status in
        0) continue ;;
        127) check "exit status 127 only if the program does not load: $(cat err)" grep -q 'cannot\|failed' err ;;
        *) equal "$command in $megabytes MB: exit status and error: $(cat err)" '5 nibble' "$status $(cut -d : -f 1 err)" ;;
        esac
        failed_at=$megabytes
    done
done
check "every command succeeds with 1024 MB, the last failure is at $failed_at MB" test "$failed_at" -gt 0 -a "$failed_at" -lt 1024
nibble quantize "$MODEL" few --recipe int8wo --quiet >out
for files in 4 5 6; do
    status=0
    # shellcheck disable=SC2016 # for the inner shell
    bash -c 'exec >out 2>err; ulimit -n $1; exec "$NIBBLE" quantize "$MODEL" few --recipe 8da4w --force --quiet' files $files || status=$?
    [ $status = 0 ] || equal "$files open files: exit status and error: $(cat err)" '6 nibble' "$status $(cut -d : -f 1 err)"
    check "$files open files: the model is whole, old or new" nibble verify few
done
