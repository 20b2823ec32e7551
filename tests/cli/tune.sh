# SPDX-License-Identifier: Apache-2.0
#
# nibble tune: times kernels with the same bits and saves their order; plans use it and say so. No check depends on speed, and
# no text depends on the order.
export XDG_CACHE_HOME=$PWD/cache
kept=$XDG_CACHE_HOME/nibble/tuned.json
text() { nibble generate "$MODEL" --recipe 8da4w -t 1 -p 'Once upon a time' -n 20 -q "$@"; }
notes() { nibble plan "$MODEL" --recipe 8da4w --json "$@" 2>err | grep -c "\"text\": \".*$words"; }

check 'tune before any tuning' nibble tune -t 1
equal 'tune says that nothing was tuned' 'nothing was tuned here yet; run `nibble tune MODEL`' "$(cat "$seen.out")"
words='the kernels of .* ordered by times measured here'
equal 'untuned: notes in the plan' 0 "$(notes -t 1)"
text >before
check 'tune MODEL' nibble tune "$MODEL" --recipe 8da4w -t 1
if grep -q '^no layer has more than one kernel' "$seen.out"; then
    skipped 'tune, the order of kernels' 'this machine has one kernel for each layer'
    exit
fi
cp "$seen.out" table
check 'the table says which kernel ranks first' grep -q 'linear_a8t_w4g_f32__.*ranks first$' table
check 'tune says that results do not change by a bit' grep -q ' of [0-9]* shapes and ranges another kernel is faster than the first of the table; results do not change by a bit$' table
equal 'tuned: notes in the plan' 1 "$(notes -t 1)"
check 'tuned: the plan shows measured times' grep -q ', tuned: [0-9.]* [mu]s$' <(nibble plan "$MODEL" --recipe 8da4w -t 1 2>&1)
nibble plan "$MODEL" --recipe 8da4w -t 1 --layer lm_head 2>&1 | tr -s ' \n' ' ' >layer.txt # lines are wrapped
check '--layer shows which kernels were measured' grep -q 'measured: [0-9.]* [mu]s against [0-9.]* [mu]s from m 1 on' layer.txt
check '--layer shows the time of the chosen kernel' grep -q 'infer m 1 [0-9.]* [mu]s (tuned: [0-9.]* [mu]s)' layer.txt
nibble plan "$MODEL" --recipe 8da4w -t 1 --json 2>err | members plan schema=1 'layers[].uses[].predicted_us=num'
text >after
check 'tuning does not change the text' cmp before after
check 'tune shows the results' nibble tune -t 1
cp "$seen.out" table
check 'tune shows the results as a table' grep -q 'linear_a8t_w4g_f32__' table
nibble tune -t 1 --json 2>err | members tuned schema=1 why=null measured=str 'kernels[].us=num' 'kernels[].kernel=str'
nibble tune "$MODEL" --recipe 8da4w -t 1 --json 2>err | members tune schema=1 threads=1 'kernels[].us=num' 'kernels[].ranks_first=bool'

# a quantized model is tuned in its stored scheme
check 'quantize the model' nibble quantize "$MODEL" codes --recipe 8da4w -q
check 'tune a quantized model' nibble tune codes -t 1
equal 'a quantized model has no bf16 kernels' 0 "$(grep -c 'linear_bf16' "$seen.out")"
check 'tune config.json' nibble tune "$MODEL/config.json" -t 1

# an order measured with other settings is not used, with a note
words='the measured order of kernels is for 1 thread'
equal 'other threads: notes in the plan' 1 "$(notes -t 2)"
sed -i 's/"version": "[^"]*"/"version": "0.0.1"/' "$kept"
words='the order of kernels measured on .* is for other kernels, of version 0.0.1, so it is not used; `nibble tune MODEL` measures again'
equal 'another version: notes in the plan' 1 "$(notes -t 1)"
echo '{' >"$kept"
words='.*tuned.json cannot be parsed, so it is not used'
equal 'invalid JSON: notes in the plan' 1 "$(notes -t 1)"
check 'tune --clear' nibble tune --clear
equal 'tune --clear says what it deleted' 'deleted the tuning results of this machine' "$(cat "$seen.out")"
check 'tune --clear deletes the file' test ! -e "$kept"
check 'tune --clear with nothing to delete' nibble tune --clear
equal 'tune --clear says that there was nothing' 'there are no tuning results of this machine' "$(cat "$seen.out")"
refused 2 '--clear deletes the tuning results of all models on this machine; leave out *' tune "$MODEL" --clear
refused 2 'mi210 is not this machine*' tune "$MODEL" --device mi210
