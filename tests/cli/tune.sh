# SPDX-License-Identifier: Apache-2.0
#
# nibble tune: times kernels with the same bits and saves their order; plans use it and say so. No check depends on speed, and
# no text depends on the order.
export XDG_CACHE_HOME=$PWD/cache
kept=$XDG_CACHE_HOME/nibble/tuned.json
tells() { nibble generate "$MODEL" --recipe 8da4w -t 1 -p 'Once upon a time' -n 20 -q "$@"; }
notes() { nibble plan "$MODEL" --recipe 8da4w --json "$@" 2>err | grep -c "\"text\": \".*$words"; }

check 'nothing is kept' nibble tune -t 1
equal 'and it says so' 'nothing was tuned here yet; run `nibble tune MODEL`' "$(cat "$seen.out")"
words='the kernels of .* ordered by times measured here'
equal 'no plan is tuned' 0 "$(notes -t 1)"
tells >before
check 'a model is tuned' nibble tune "$MODEL" --recipe 8da4w -t 1
if grep -q '^no layer has more than one kernel' "$seen.out"; then
    skipped 'tune, the order of kernels' 'this machine has one kernel for each layer'
    exit
fi
cp "$seen.out" table
check 'each shape has a first' grep -q 'linear_a8t_w4g_f32__.*ranks first$' table
check 'and says that no bit depends on it' grep -q ' of [0-9]* shapes and ranges another kernel is faster than the first of the table; results do not change by a bit$' table
equal 'the plan says so' 1 "$(notes -t 1)"
check 'with the times' grep -q ', tuned: [0-9.]* [mu]s$' <(nibble plan "$MODEL" --recipe 8da4w -t 1 2>&1)
nibble plan "$MODEL" --recipe 8da4w -t 1 --layer lm_head 2>&1 | tr -s ' \n' ' ' >layer.txt # lines are wrapped
check 'a layer says which were measured' grep -q 'measured: [0-9.]* [mu]s against [0-9.]* [mu]s from m 1 on' layer.txt
check 'and what the chosen one took' grep -q 'infer m 1 [0-9.]* [mu]s (tuned: [0-9.]* [mu]s)' layer.txt
nibble plan "$MODEL" --recipe 8da4w -t 1 --json 2>err | members plan schema=1 'layers[].uses[].predicted_us=num'
tells >after
check 'the text is the same' cmp before after
check 'shown' nibble tune -t 1
cp "$seen.out" table
check 'as a table' grep -q 'linear_a8t_w4g_f32__' table
nibble tune -t 1 --json 2>err | members tuned schema=1 why=null measured=str 'kernels[].us=num' 'kernels[].kernel=str'
nibble tune "$MODEL" --recipe 8da4w -t 1 --json 2>err | members tune schema=1 threads=1 'kernels[].us=num' 'kernels[].ranks_first=bool'

# a quantized model is tuned in its stored scheme
check 'quantized' nibble quantize "$MODEL" codes --recipe 8da4w -q
check 'codes' nibble tune codes -t 1
equal 'kernels of codes alone' 0 "$(grep -c 'linear_bf16' "$seen.out")"
check 'a bare config' nibble tune "$MODEL/config.json" -t 1

# an order measured with other settings is not used, with a note
words='the measured order of kernels is for 1 thread'
equal 'other threads' 1 "$(notes -t 2)"
sed -i 's/"version": "[^"]*"/"version": "0.0.1"/' "$kept"
words='the order of kernels measured on .* is for other kernels, of version 0.0.1, so it is not used; `nibble tune MODEL` measures again'
equal 'another version' 1 "$(notes -t 1)"
echo '{' >"$kept"
words='.*tuned.json cannot be parsed, so it is not used'
equal 'a file that is no JSON' 1 "$(notes -t 1)"
check 'forgotten' nibble tune --clear
equal 'and it says so' 'deleted the tuning results of this machine' "$(cat "$seen.out")"
check 'the file is gone' test ! -e "$kept"
check 'nothing to forget' nibble tune --clear
equal 'and it says so' 'there are no tuning results of this machine' "$(cat "$seen.out")"
refused 2 '--clear deletes the tuning results of all models on this machine; leave out *' tune "$MODEL" --clear
refused 2 'mi210 is not this machine*' tune "$MODEL" --device mi210
