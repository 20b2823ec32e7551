# SPDX-License-Identifier: Apache-2.0
#
# --sandbox of verify and serve: what they say of it, the same results with it and without, and kernels that lack a part.
# What the sandbox forbids is attempted in tests/unit/test_sandbox.c.
LANDLOCK=444 SECCOMP=$(python3 -c 'import platform; print({"x86_64": 317, "aarch64": 277}[platform.machine()])')
without() { "$REPO/tests/cli/without_call" "$@"; }
nibble quantize "$MODEL" q --recipe 8da4w --quiet >/dev/null
refused 2 '--sandbox: "maybe" is not auto, on or off' verify q --sandbox maybe
refused 2 '--sandbox: "1" is not auto, on or off' serve q --sandbox 1 --port 0

# reports WHAT ARGUMENT...: verify says the same in the sandbox and outside
reports() {
    local what=$1
    shift
    nibble verify "$@" --sandbox off >off || true
    nibble verify "$@" >auto || true
    check "$what: no line without a sandbox" test "$(grep -c ^sandbox: off)" = 0
    equal "$what" "$(cat off)" "$(grep -v ^sandbox: auto)"
    check "$what: one line with it" test "$(grep -c ^sandbox: auto)" = 1
}
reports 'a model with a manifest' q
reports 'two models' q --against "$MODEL"
reports 'one thread' q --against q --threads 1
reports 'the lowest instruction set' q --against q --isa ref
for file in "$REPO"/tests/golden/gguf/llama*.gguf; do
    reports "$file" "$file"
    break
done
cp -r q changed
sed -i 's/the/teh/' changed/tokenizer.json
reports 'a changed file' changed
mkdir apart links
mv changed/tokenizer.json apart && ln -s ../apart/tokenizer.json changed/tokenizer.json
reports 'a file that is a link' changed
nibble verify q --json >report
check 'JSON has the note' python3 -c 'import json; assert [n["code"] for n in json.load(open("report"))["notes"]] == ["sandbox"]'
nibble verify q --sandbox off --json >report
check 'JSON has no note without it' python3 -c 'import json; assert json.load(open("report"))["notes"] == []'

# Kernels that lack a part: auto says so, on is an error.
lacks() {
    local call=$1 line=$2 status=0
    without "$call" "$NIBBLE" verify q >report
    check "without call $call: $line" grep -q "^sandbox: .*$line" report
    without "$call" "$NIBBLE" verify q --sandbox on >report 2>sentence || status=$?
    equal "exit status without call $call" 4 "$status"
    check "the error without call $call" grep -q "^nibble: --sandbox on: .*$line.*; \`--sandbox auto\` runs with what there is$" sentence
}
lacks "$LANDLOCK" 'no Landlock (this kernel has none)'
lacks "$SECCOMP" 'no seccomp filter (this kernel has none)'
without "$LANDLOCK" "$REPO/tests/cli/without_call" "$SECCOMP" "$NIBBLE" verify q >report
check 'without both' grep -qx 'sandbox: off: no Landlock (this kernel has none), no seccomp filter (this kernel has none)' report

# serve logs the note and has it in its ledger; every thread has the filter. address: of the server whose log this is
serve() {
    "$NIBBLE" serve "$MODEL" --recipe 8da4w --port 0 "$@" 2>log &
    server=$!
    for _ in $(seq 6000); do
        address=$(sed -n 's|.* at \(http://.*\)/$|\1|p' log)
        [ -n "$address" ] && return
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.05
    done
}
stop() {
    kill "$server"
    wait "$server"
}
filters() { cat /proc/"$server"/task/*/status | sed -n 's/^Seccomp:\t//p' | sort -u | paste -s; }
plan_notes() { curl -s "$address/v1/plan" | python3 -c 'import json, sys; print(*(n["text"] for n in json.load(sys.stdin)["notes"] if n["code"] == "sandbox"))'; }
serve
equal 'the log and the plan agree' "$(sed -n 's/^sandbox: //p' log)" "$(plan_notes)"
if nibble verify q --sandbox on >/dev/null 2>&1; then
    equal 'threads of a server are filtered' 2 "$(filters)"
    equal 'and got no new privileges' 1 "$(cat /proc/"$server"/task/*/status | sed -n 's/^NoNewPrivs:\t//p' | sort -u | paste -s)"
else
    skipped 'threads of a server' "$(nibble verify q --sandbox on 2>&1 >/dev/null)"
fi
check 'a server in the sandbox ends well' stop
serve --sandbox off
equal 'no note without a sandbox' '' "$(grep ^sandbox: log || plan_notes)"
equal 'and no filter' 0 "$(filters)"
check 'a server without one ends well' stop
if nibble devices opencl >/dev/null 2>&1; then
    serve --device opencl
    check 'a driver has no sandbox' grep -qx 'sandbox: off: the driver of opencl compiles kernels and opens files at any time' log
    check 'a server with a driver ends well' stop
    check 'a driver and --sandbox on' test 4 = "$(nibble serve "$MODEL" --device opencl --port 0 --sandbox on 2>log; echo $?)"
    check 'says why' grep -q '^nibble: --sandbox on: off: the driver of opencl compiles' log
else
    skipped 'a driver' 'no OpenCL device'
fi
