# SPDX-License-Identifier: Apache-2.0
#
# nibble advise --method: rows with other codes than rounding's, each as quantize writes it; both frontiers; files that are
# wrong, missing or of no use; what is left after Ctrl-C and after a kill
mkdir s
head -c 2000 "$MODEL/heldout.txt" >text.txt
tail -c 3000 "$MODEL/heldout.txt" >other.txt
: >empty.txt
# a device elsewhere: losses are measured here, and speeds are not
base="$MODEL int4wo-sym int8wo --text text.txt --scratch s --device raspberry-pi-5"
# shellcheck disable=SC2086 # words are meant
try() { nibble advise $base "$@"; }

# every row is what the command of its options writes
try --method search,gptq,hqq,awq --calibrate other.txt --json --svg f.svg >r.json 2>log.txt
equal 'exit status' 0 $?
members 'advise --method --json' schema=1 'methods[]=str' calibrate=str imatrix=null 'frontier[]=str' \
    'frontier_without_methods[]=str' 'recipes[].method=str|null' 'recipes[].weight_bytes=int|null' <r.json
check 'the scratch directory is empty' rmdir s
mkdir s
check 'said before it starts: the place and its size' grep -q '^quantized models are written to s/nibble-advise.part, one at a time, at most [0-9.]* MB' log.txt
check 'said before it starts: the predicted time' grep -q '^4 rows by gptq, awq: predicted to take about [0-9]* s in all; without a prediction: 2 rows by search, and all measurements$' log.txt
check 'the picture is XML' python3 -c 'import xml.dom.minidom as m; m.parse("f.svg")'
cat >rows.py <<'END'
import json
d = json.load(open("r.json"))
rows = {r["name"]: r for r in d["recipes"]}
print(*rows, sep=", ")
for name in ("int4wo-sym by search", "int4wo-sym by gptq", "int4wo-sym by awq"):
    r, plain = rows[name], rows["int4wo-sym"]
    assert r["loss"] < plain["loss"] and r["bytes"] == plain["bytes"] and r["quantize_seconds"] > 0, r
    assert r["predicted_decode_tokens_per_s"] == plain["predicted_decode_tokens_per_s"], r
    assert (r["predicted_quantize_seconds"] is None) == (r["method"] == "search"), r
    assert r["disk_bytes"] > r["weight_bytes"] / 2 and r["notes"], r
    print(r["recipe"], r["method"], "%.6f" % r["loss"])
for name in ("int4wo-sym by hqq", "int8wo by hqq"):
    r = rows[name]
    assert not r["applicable"] and not r["counts"] and r["loss"] is None and "has none of its own" in r["problem"], r
plain = [r for r in d["recipes"] if r["method"] is None]
assert set(d["frontier_without_methods"]) <= {r["name"] for r in plain}
assert d["frontier"] == [r["name"] for r in d["recipes"] if r["frontier"]]
assert "int4wo-sym" in d["frontier_without_methods"] and "int4wo-sym" not in d["frontier"]
END
python3 rows.py >rows.txt || check 'rows with methods' false
equal 'names of rows' 'none (bf16), int4wo-sym, int4wo-sym by search, int4wo-sym by gptq, int4wo-sym by hqq, int4wo-sym by awq, int8wo, int8wo by search, int8wo by gptq, int8wo by hqq, int8wo by awq' "$(head -n 1 rows.txt)"
for method in search gptq awq; do
    sampled 3 || continue
    nibble quantize "$MODEL" q --recipe int4wo-sym --method $method --calibrate other.txt --quiet >/dev/null 2>&1
    equal "the loss of int4wo-sym by $method is that of what quantize writes" \
        "$(nibble eval q --text text.txt --json --quiet | sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' | xargs printf 'int4wo-sym %s %.6f' $method)" \
        "$(grep "^int4wo-sym $method" rows.txt)"
    rm -r q
done

# the text also compares codes for which it is not needed
nibble advise "$MODEL" int4wo --text text.txt --scratch s --device raspberry-pi-5 --method hqq --calibrate other.txt --json --quiet >r.json
check 'hqq is compared with rounding' grep -q '"hqq: KL divergence from the stored weights on the text.s last [0-9]* tokens' r.json

# rows without a method are as before, and the command that is recommended works
try --method search >out 2>/dev/null
nibble advise "$MODEL" int4wo-sym int8wo --text text.txt --device raspberry-pi-5 >before.txt 2>/dev/null
line() { grep -o "^$2  .*  +[0-9.]*" "$1" | tr -s " "; }
for recipe in int4wo-sym int8wo; do
    equal "the row of $recipe without and with methods" "$(line before.txt $recipe)" "$(line out $recipe)"
done
check 'a recommended method' grep -q '^take int4wo-sym by search: ' out
check 'its output is named after it' grep -q ' nibble-tales-int4wo-sym-search --recipe int4wo-sym --method search$' out
command=$(grep '^  nibble quantize ' out)
eval "$command --quiet" >quantized.txt 2>&1 || check "the recommended command runs: $command" false
rm -rf nibble-tales-int4wo-sym-search
nibble imatrix "$MODEL" i.gguf --calibrate other.txt --quiet >/dev/null 2>&1
try --method search,gptq --imatrix i.gguf --calibrate other.txt --json --quiet >r.json
equal 'an imatrix gives the codes of its text' "$(grep '^int4wo-sym search' rows.txt)" \
    "$(python3 -c 'import json; r = [r for r in json.load(open("r.json"))["recipes"] if r["name"] == "int4wo-sym by search"][0]; print("int4wo-sym search %.6f" % r["loss"])')"

# on this machine: the same kernels have one speed
nibble advise "$MODEL" int4wo-sym --text text.txt --scratch s --method search --json --quiet >r.json
cat >speeds.py <<'END'
import json
plain, searched = json.load(open("r.json"))["recipes"][1:]
print(searched["speed_of_rounding"], all(searched[k] == plain[k] > 0 for k in ("decode_tokens_per_s", "prefill_tokens_per_s")))
END
equal 'measured speeds' 'True True' "$(python3 speeds.py)"

# static activation scales are calibrated, with and without a method; without a text the row says why it is not
cat >static.py <<'END'
import json
rows = json.load(open("r.json"))["recipes"]
print(*("%s %.6f" % (r["name"], r["loss"]) if r["loss"] is not None else r["name"] + ": " + r["problem"] for r in rows[1:]), sep="\n")
END
try int8dq-static --method smooth,hqq --calibrate other.txt --json --quiet >r.json
equal 'exit status with static scales' 0 $?
python3 static.py >rows.txt
for method in '' smooth; do
    # shellcheck disable=SC2086 # no word without a method
    nibble quantize "$MODEL" q --recipe int8dq-static ${method:+--method $method} --calibrate other.txt --quiet >"$seen.out" 2>&1
    equal "the loss of int8dq-static${method:+ by $method} is that of what quantize writes" \
        "$(nibble eval q --text text.txt --json --quiet | sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' | xargs printf '%.6f')" \
        "$(sed -n "s/^int8dq-static${method:+ by $method} \([0-9.]*\)\$/\1/p" rows.txt)"
    rm -r q
done
check 'what hqq cannot do has its own reason' grep -q '^int8dq-static by hqq: .* the method hqq moves float zeros' rows.txt
try int8dq-static --method search --json --quiet >r.json
equal 'exit status without a text for static scales' 0 $?
python3 static.py >rows.txt
check 'without a text: the reason' grep -q '^int8dq-static: its codes need the whole model, or a text; with --method and --calibrate TEXT' rows.txt
check 'without a text: others are measured' grep -q '^int8wo by search [0-9.]*$' rows.txt
nibble advise "$MODEL" int8dq-static --text text.txt --device raspberry-pi-5 >out 2>&1
equal 'exit status without methods' 0 $?
check 'without methods: the reason' grep -q '^int8dq-static: its codes need the whole model' out

# a single file and a GGUF as MODEL
cp -r "$MODEL" one
nibble advise one/model.safetensors int4wo-sym --text text.txt --scratch s --device h200 --method search --quiet >out
check 'a single file' grep -q '^int4wo-sym by search .*frontier' out
nibble convert "$MODEL" m.gguf --format gguf --quiet >/dev/null 2>&1
nibble advise m.gguf int4wo-sym --text text.txt --scratch s --device h200 --method search,awq --calibrate other.txt --quiet >out 2>err
equal 'exit status for a GGUF' 0 $?
check 'what awq cannot do has the reason' told 'int4wo-sym by awq: the method awq changes norms'
check 'search can' grep -q '^int4wo-sym by search .*frontier' out

# refusals
# shellcheck disable=SC2086 # words are meant
{
    refused 2 'method "gtpq" is not one of rtn, search, gptq, hqq, qronos, awq, learn, smooth, rotate' advise $base --method gtpq
    refused 2 'method "" is not one of *' advise $base --method search,
    refused 2 'method rtn has no effect: *' advise $base --method rtn
    refused 2 'method search is given twice' advise $base --method search,search
    refused 2 'the method gptq needs a text to calibrate with; give --calibrate TEXT' advise $base --method search,gptq
    refused 2 '--imatrix i.gguf has no effect: *' advise $base --method hqq --imatrix i.gguf
    for option in calibrate imatrix; do
        refused 2 "--$option has no effect without --method" advise "$MODEL" int8wo --text text.txt --$option other.txt
    done
    refused 3 'empty.txt: the calibration text is empty' advise $base --method gptq --calibrate empty.txt
    refused 6 'no.txt: cannot open it: *' advise $base --method gptq --calibrate no.txt
    refused 2 '--scratch has no effect without --method' advise $base
}
refused 2 '--method search needs a text to measure losses with, *' advise "$MODEL" int8wo --method search
refused 2 '--method search is not tried: --dry-run runs nothing' advise "$MODEL" int8wo --method search --dry-run
refused 6 'none: the directory for quantized models does not exist' advise "$MODEL" int8wo --text text.txt --method search --scratch none
refused 2 '*/nibble-tales: is the directory of the model or in it, *' advise "$MODEL" int8wo --text text.txt --method search --scratch "$MODEL"
if [ "$(df --output=avail /proc 2>/dev/null | tail -n 1)" = 0 ]; then
    refused 6 '/proc: *' advise "$MODEL" int8wo --text text.txt --method search --scratch /proc
fi
check 'the scratch directory is empty after refusals' rmdir s
if in_tmpfs size=1m true 2>"$seen.err"; then
    # shellcheck disable=SC2016 # for another shell
    equal 'too little disk: exit status, and nothing is left' '6 ' \
        "$(in_tmpfs size=1m '"$NIBBLE" advise "$MODEL" int4wo-sym --text text.txt --device h200 --method search --scratch fs >report 2>sentence; echo "$? $(ls -A fs)"')"
    check 'too little disk: the error' grep -q '^nibble: fs: int4wo-sym by search takes [2-9].[0-9] MB while it is measured, and 1.0 MB are free there; --scratch DIR names another directory$' sentence
    check 'too little disk: before anything runs' [ ! -s report ]
else
    skipped 'advise, on a small disk' 'cannot mount a file system here'
fi
mkdir -p full
(ulimit -f 2000 && nibble advise "$MODEL" int4wo-sym --text text.txt --device h200 --method search --scratch full --quiet) >report 2>sentence
equal 'a disk that fills: exit status and error' '6 nibble: full/nibble-advise.part/model.safetensors: cannot write to it: File too large' "$? $(cat sentence)"
check 'a disk that fills: nothing is left' rmdir full
mkdir s

# SIGTERM, like Ctrl-C, amid a method leaves nothing; a kill leaves what the next run removes
slow="$MODEL int4wo-sym --text text.txt --scratch s --device h200 --method learn --calibrate other.txt --quiet"
begin() { # starts one, and waits until it has something in s besides the lock
    # shellcheck disable=SC2086 # words are meant
    "$NIBBLE" advise $slow >cut.txt 2>cut.err &
    pid=$!
    for _ in $(seq 600); do
        [ -e s/nibble-advise.verify.codes ] && return
        sleep 0.05
    done
}
begin
kill -TERM $pid # a shell ignores INT for what it starts in the background
wait $pid
equal 'exit status after SIGTERM' 130 $?
check 'no report after SIGTERM' test ! -s cut.txt
check 'nothing is left after SIGTERM' rmdir s
mkdir s
begin
kill -KILL $pid
wait $pid 2>/dev/null
check 'a kill leaves the codes' test -e s/nibble-advise.verify.codes
check 'the next run' try --method search --quiet
check 'removes them' rmdir s
