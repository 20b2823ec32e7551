# SPDX-License-Identifier: Apache-2.0
#
# quantize killed at any moment leaves either the old output or the new one. A full or read-only file system is an error and
# leaves no output.
tool=$REPO/build/release/tools/random_checkpoint
[ -x "$tool" ] || tool=$(dirname "$NIBBLE")/tools/random_checkpoint
if [ ! -x "$tool" ]; then
    skipped 'killed' 'no build/release/tools/random_checkpoint (make tools)'
    exit
fi
mkdir shape
cat >shape/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
 "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
END
"$tool" shape m >"$seen.tool" 2>&1 || check 'random_checkpoint writes a model' false
rm -r shape
begin=$(date +%s%N)
nibble quantize m new --recipe 8da4w --quiet >/dev/null
took=$((($(date +%s%N) - begin) / 1000000))
nibble quantize m old --recipe int8wo --quiet >/dev/null
RANDOM=7

# Exits with 200 plus the signal's number if a signal ended the program, as a shell's 130 could also be the program's own status.
cat >kill.py <<'END'
import signal, subprocess, sys
program = subprocess.Popen(sys.argv[3:])
try:
    program.wait(float(sys.argv[2]))
except subprocess.TimeoutExpired:
    program.send_signal(getattr(signal, "SIG" + sys.argv[1]))
    program.wait()
sys.exit(program.returncode if program.returncode >= 0 else 200 - program.returncode)
END

# killed SIGNAL ARGUMENT...: kills the command after a random part of its run time
killed() {
    local signal=$1 ms=$((RANDOM % (took + took / 4) + 1)) status=0
    shift
    python3 kill.py "$signal" "$(printf '0.%03d' $ms)" "$NIBBLE" quantize "$@" >"$seen.report" 2>"$seen.err" || status=$?
    echo $status
}
ended=0
for round in $(seq 30); do
    [ -e out ] || cp -r old out
    status=$(killed KILL m out --recipe 8da4w --force --quiet)
    [ "$status" != 0 ] || ended=$((ended + 1))
    if cmp -s out/nibble.json old/nibble.json; then
        check "round $round: the old output is unchanged" cmp out/model.safetensors old/model.safetensors
    else
        check "round $round: the new output is complete" cmp out/model.safetensors new/model.safetensors
        check "round $round: verify the new output" nibble verify out
        rm -r out
    fi
done
check 'some of the 30 runs were killed' [ "$ended" -lt 30 ]

# a kill leaves nothing else that could be mistaken for a model, unless it is complete
made=(--recipe int8wo-g32-ggml --allow activations --quiet)
nibble quantize m whole "${made[@]}" >"$seen.out" 2>"$seen.err"
nibble quantize m whole.gguf "${made[@]}" --format gguf >"$seen.out" 2>"$seen.err"
parts=0
for round in $(seq 12); do
    for whole in whole/model.safetensors whole.gguf; do
        out=${whole%/*}
        out=half${out#whole}
        options=("${made[@]}")
        [ $out = half ] || options+=(--format gguf)
        killed KILL m $out "${options[@]}" >/dev/null
        part=$out.part${whole#"${out/half/whole}"}
        if [ -s "$part" ]; then
            parts=$((parts + 1))
            ! nibble info "$part" >"$seen.out" 2>"$seen.err" || check "round $round: $part can be read, so it is whole" cmp "$part" $whole
        fi
        rm -rf half half.*
    done
done
rm -r whole whole.*
check 'some killed runs left a part' [ $parts -gt 3 ]
check 'the next run succeeds beside the output of killed ones' nibble quantize m out --recipe 8da4w --force --quiet
check 'the output of the next run is whole' diff -r -x nibble.json out new
only_here kill.py m new old out
rm -r out

# two runs at once: one is refused, or both succeed; the output is that of one of them
nibble quantize m out --recipe 8da4w --quiet >"$seen.first" 2>&1 &
other=0
nibble quantize m out --recipe int8wo --force --quiet >"$seen.second" 2>&1 || other=$?
first=0
wait $! || first=$?
check "two runs at once: exit statuses $first and $other" [ "$first$other" = 06 -o "$first$other" = 60 -o "$first$other" = 00 ]
check 'two runs at once: verify the output' nibble verify out
only_here kill.py m new old out
rm -r out

cut=0
for signal in INT TERM HUP INT TERM INT TERM HUP INT TERM INT TERM; do
    status=$(killed $signal m out --recipe 8da4w --quiet)
    if [ "$status" = 130 ]; then
        cut=$((cut + 1))
        equal "the error after SIG$signal" 'nibble: cancelled; no output is left' "$(cat "$seen.err")"
        only_here kill.py m new old
    else # before the program handles signals, or after it ended
        check "status $status after SIG$signal is 0 or over 128" [ "$status" = 0 -o "$status" -gt 128 ]
        rm -rf out
    fi
done
check 'some runs were cancelled' [ "$cut" -gt 0 ]
head -c 100000 "$MODEL/heldout.txt" >text.txt
for command in "eval $MODEL --text text.txt" "quantize $MODEL out --recipe int8dq-static --calibrate text.txt" "bench $MODEL --repeats 1000"; do
    status=0
    # shellcheck disable=SC2086 # words are meant
    timeout --preserve-status -s INT 0.3 "$NIBBLE" $command >"$seen.report" 2>"$seen.err" || status=$?
    equal "${command%% *} interrupted: exit status, and one error" '130 1' "$status $(grep -c '^nibble: .*cancelled' "$seen.err")"
done
rm text.txt
only_here kill.py m new old

(ulimit -f 2000 && nibble quantize m out --recipe 8da4w) >"$seen.report" 2>"$seen.err"
equal 'a file-size limit: exit status and error' "6 nibble: out.part/model.safetensors: cannot write to it: File too large" "$? $(cat "$seen.err")"
only_here kill.py m new old
if in_tmpfs size=1m true 2>"$seen.err"; then
    weights=$(($(stat -c %s new/model.safetensors) / 1024))
    for size in $((weights / 2))k $((weights + 8))k; do # too small for the weights, and for the files beside them
        equal "a disk of $size: exit status, and no output" 6 "$(in_tmpfs size=$size '"$NIBBLE" quantize m fs/out --recipe 8da4w >report 2>sentence; echo $? $(ls -A fs)')"
        check "a disk of $size: the error" grep -q '^nibble: fs/out.part/.*: cannot write to it: No space left on device' sentence
    done
    equal 'no room for packed weights: exit status, and no output' 6 "$(in_tmpfs size=$((weights * 3 / 2))k '"$NIBBLE" quantize m fs/out --recipe 8da4w --pack >report 2>sentence; echo $? $(ls -A fs)')"
    check 'no room for packed weights: the error' grep -q '^nibble: fs/out.part/nibble.pack.part: cannot write to it: No space left on device' sentence
    equal 'a read-only file system: exit status' 6 "$(in_tmpfs ro '"$NIBBLE" quantize m fs/out --recipe 8da4w >report 2>sentence; echo $? $(ls -A fs)')"
    check 'a read-only file system: the error' grep -q '^nibble: fs/out.part: cannot create it: Read-only file system' sentence
    check 'quantize and verify on another file system' in_tmpfs size=100m '"$NIBBLE" quantize m fs/out --recipe 8da4w --quiet && "$NIBBLE" verify fs/out'
else
    skipped 'killed, on a full disk' 'cannot mount a file system here'
fi
