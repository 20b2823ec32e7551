# SPDX-License-Identifier: Apache-2.0
#
# Receipts: what nibble.json says of an output, by Python's own SHA-256; one receipt for any threads and instruction sets.
head -c 5000 "$MODEL/heldout.txt" >text.txt
cat >receipt.py <<'END'
import hashlib, json, os, struct, sys
def sha(data): return hashlib.sha256(data).hexdigest()
def tensors(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {n: sha(data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for n, t in header.items() if n != "__metadata__"}
source, out, manifest = sys.argv[1:4]
r = json.load(open(manifest))["receipt"]
def want(what, a, b):
    if a != b: sys.exit(f"{what}: wanted {a}, got {b}")
want("tensors", tensors(source + "/model.safetensors"), r["source"]["tensors"])
want("source files", {n: sha(open(f"{source}/{n}", "rb").read()) for n in r["source"]["files"]}, r["source"]["files"])
names = sorted(set(os.listdir(out)) - {"nibble.json", "nibble.pack", "nibble.tokens"}) if os.path.isdir(out) else [os.path.basename(out)]
path = (lambda n: f"{out}/{n}") if os.path.isdir(out) else (lambda n: out)
want("outputs", {n: sha(open(path(n), "rb").read()) for n in names}, r["outputs"])
for key in ("calibrate", "imatrix", "tokenizer"):
    if r[key]:
        data = open(r[key]["path"], "rb").read()
        want(key, {"path": r[key]["path"], "bytes": len(data), "sha256": sha(data)}, r[key])
for given in sys.argv[4:]:
    key, value = given.split("=", 1)
    want(key, value, json.dumps(eval("r" + key)))
END
# receipt OUT MANIFEST [PATH=VALUE]...: every hash of the receipt is right, and these values are in it
receipt() {
    local out=$1
    shift
    check "the receipt of $out" python3 receipt.py "$MODEL" "$out" "$@"
}
nibble quantize "$MODEL" a --recipe 8da4w --format torchao --quiet >"$seen.out"
receipt a a/nibble.json '["command"]="quantize"' '["options"]["recipe"]="8da4w"' '["layers"]={"rtn": 36}' '["calibrate"]=null' '["seed"]=null' '["device"]=null'
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int8wo", "method": "rtn"}, {"match": "*", "scheme": "int4wo"}]}' >rules.json
nibble quantize "$MODEL" b --recipe rules.json --method gptq --calibrate text.txt --skip lm_head --pack --quiet >"$seen.out"
receipt b b/nibble.json '["options"]["skip"]=["lm_head"]' '["options"]["method"]="gptq"' '["layers"]={"rtn": 15, "gptq": 20}' '["orders"]={"inputs": 20}' '["calibrate"]["path"]="text.txt"'
check 'a receipt holds the text of its recipe file' python3 -c 'import json; assert json.load(open("b/nibble.json"))["receipt"]["options"]["recipe"] == open("rules.json").read()'
nibble convert "$MODEL" c.gguf --format gguf --quiet >"$seen.out"
check 'no orders without gptq' [ "$(grep -c '"orders"' a/nibble.json)" = 0 ]
receipt c.gguf c.gguf.nibble.json '["command"]="convert"' '["options"]["format"]="gguf"'

# the output and its manifest are the same bytes for any number of threads and any instruction set (the plain one is slow, so
# on a short text)
head -c 200 text.txt >short.txt
for options in '--recipe int4wo' '--recipe 8da4w --method search --calibrate short.txt' '--recipe int4wo --method gptq --calibrate short.txt' '--recipe nvfp4 --format nibble --method qronos --calibrate short.txt'; do
    sampled 2 || continue
    # shellcheck disable=SC2086 # words are meant
    nibble quantize "$MODEL" one $options -t 1 --quiet >"$seen.out"
    for isa in ref avx2 native; do
        [ $isa != native ] || isa=
        # shellcheck disable=SC2086
        nibble quantize "$MODEL" two $options -t 2 ${isa:+--isa $isa} --quiet >"$seen.out"
        check "$options: the same bytes with two threads${isa:+ and --isa $isa}" diff -r one two
        rm -r two
    done
    rm -r one
done

# again OUT SOURCE [OPTION...]: made again, and nothing else is left
again() {
    local out=$1 source=$2 before
    shift 2
    before=$(ls -A . "$out")
    nibble verify "$out" --from "$source" "$@" >"$seen.report" 2>&1 || true
    check "$out is made again from its source: $(head -n 3 "$seen.report")" grep -q '^made again from the [0-9]* tensors of .*: all [0-9]* files are the same bytes$' "$seen.report"
    equal "verify $out --from leaves nothing" "$before" "$(ls -A . "$out")"
}
again a "$MODEL"
again b "$MODEL"
again c.gguf "$MODEL"
nibble imatrix "$MODEL" m.gguf --calibrate text.txt --quiet >"$seen.out" 2>"$seen.err"
for options in 'int8dq-static --calibrate text.txt' 'int8wo --format compressed-tensors' '8da4w --format 8da4w --method search' \
    'int8dq-static --calibrate text.txt --format nibble --bias int32' 'int4wo-g32-sym+embed --method search --imatrix m.gguf' 'mxfp4 --format nibble --method gptq --calibrate text.txt'; do
    sampled 3 || continue
    # shellcheck disable=SC2086 # words are meant
    nibble quantize "$MODEL" o --recipe $options --quiet >"$seen.out" 2>"$seen.err"
    again o "$MODEL" -t 1
    rm -r o
done
nibble quantize "$MODEL" o.gguf --recipe int8wo-g32-ggml --allow activations --format gguf --quiet >"$seen.out"
again o.gguf "$MODEL"
nibble convert o.gguf back --format safetensors --dtype bf16 --quiet >"$seen.out"
again back o.gguf
nibble convert a n --format nibble --quiet >"$seen.out"
again n a
cp "$MODEL/model.safetensors" "$MODEL/config.json" .
nibble quantize model.safetensors one.safetensors --recipe int8wo --quiet >"$seen.out"
again one.safetensors model.safetensors
mv one.safetensors two.safetensors
mv one.safetensors.nibble.json two.safetensors.nibble.json
again two.safetensors model.safetensors
rm -r o.gguf* back n two.safetensors* model.safetensors config.json

# differs OUT SOURCE GLOB [OPTION...]: exit 8, and the glob matches the report
differs() {
    local out=$1 source=$2 wanted=$3 status=0 report
    shift 3
    nibble verify "$out" --from "$source" "$@" >report 2>sentence || status=$?
    equal "exit status of verify $out --from" 8 "$status"
    report=$(tr '\n' ' ' <report | sed 's/  */ /g')
    # shellcheck disable=SC2053 # a glob is meant
    [[ $report == $wanted ]] || equal "report of verify $out --from" "$wanted" "$report"
}
damage() { "$REPO/tests/cli/tensors" "$@"; }
cp -r a altered
damage altered/model.safetensors flip model.layers.3.mlp.up_proj._weight_qdata 1234
differs altered "$MODEL" '*altered: model.safetensors: differs from what the receipt names*tensor: model.layers.3.mlp.up_proj*: 1 of its * bytes differ * the first at byte 1234, in row 5 *2 problems '
sed -i 's/"model.safetensors": "[0-9a-f]\{64\}"/"model.safetensors": "'"$(sha256sum altered/model.safetensors | cut -c1-64)"'"/' altered/nibble.json
differs altered "$MODEL" '*not-derived: model.safetensors: is as the receipt names it, but source and options give other bytes*tensor: model.layers.3.mlp.up_proj*'
rm -r altered
cp -r a edited
sed -i 's/"config.json": "[0-9a-f]\{4\}\([0-9a-f]\{60\}\)"/"config.json": "0123\1"/' edited/nibble.json
differs edited "$MODEL" '*source: *: 1 of 4 files has other bytes than the receipt names, the first config.json: *'
cp a/nibble.json edited
sed -i '/"outputs"/,$ s/"config.json": "[0-9a-f]\{4\}/"config.json": "0123/' edited/nibble.json
differs edited "$MODEL" 'receipt: config.json: is what source and options give, but the receipt names other bytes: the receipt was changed 1 problem '
cp a/nibble.json edited
sed -i 's/"recipe": "8da4w"/"recipe": "int4wo"/' edited/nibble.json
differs edited "$MODEL" '*not-derived: model.safetensors: *'
cp a/nibble.json edited
rm edited/generation_config.json
differs edited "$MODEL" 'missing-file: generation_config.json: *1 problem '
cp a/generation_config.json edited
sed -i 's/"program": "nibble [0-9.]*"/"program": "nibble 0.0.9"/' edited/nibble.json
nibble verify edited --from "$MODEL" >report
check 'a receipt of another version is tried, and the version said' grep -q '^note: the receipt is by nibble 0.0.9, and this is nibble' report
sed -i 's/"seed": null/"sead": null/' edited/nibble.json
refused 3 'edited/nibble.json: *a receipt has no member "sead" in version 1' verify edited --from "$MODEL"
rm -r edited

# receipts of programs that coded inputs as stored name no order; such codes are made again, to the bytes of those programs
cp -r b edited
sed -i '/^ *"orders": {$/,/}/d; s/"model.safetensors": "[0-9a-f]\{64\}"/"model.safetensors": "3dfd31d6bc2197d6cf7b113f7c40c4f985954b00f536af8b90b9d34923dfeb06"/' edited/nibble.json
differs edited "$MODEL" '*altered: model.safetensors: *and from what source and options give, which are the same*note: it names no order of inputs, so they are coded as stored, *'
rm -r edited

# the source, or a file that an option named, is another
cp -r "$MODEL" source
again a source
damage source/model.safetensors flip model.norm.weight 7
differs a source '*source: source: 1 of 63 tensors has other bytes than the receipt names, the first model.norm.weight: *not made again*1 problem '
damage source/model.safetensors flip model.norm.weight 7
damage source/model.safetensors shift
differs a source 'source: source: 1 tensor is not in the receipt, the first shifted_by *not made again*1 problem '
rm -r source
mv text.txt moved.txt
differs b "$MODEL" 'calibrate: text.txt: *--calibrate FILE says where it is now *'
again b "$MODEL" --calibrate moved.txt
echo more >>moved.txt
differs b "$MODEL" 'calibrate: moved.txt: has 5005 bytes and SHA-256 * but the receipt names 5000 bytes and *' --calibrate moved.txt
refused 2 '--calibrate moved.txt has no effect: the receipt names no such file' verify a --from "$MODEL" --calibrate moved.txt
refused 2 '--calibrate has no effect without --from*' verify a --calibrate moved.txt
refused 2 '--against has no effect with --from*' verify a --from "$MODEL" --against a
refused 2 '--calibrate text.txt has no effect: * has no receipt that names such a file' verify "$MODEL" --from "$MODEL" --calibrate text.txt
nibble verify a --from "$MODEL" --json | members verify-from schema=1 receipt=str program=str command=str source=str source_tensors=63 files=5 made_again=true \
    findings=list problems=0 notes=list

# what a killed run leaves is removed by the next
nibble quantize "$MODEL" k --recipe 8da4w --method gptq --calibrate moved.txt --quiet >"$seen.out"
for hundredths in 2 5 10 20 40; do
    python3 -c 'import subprocess, sys; p = subprocess.Popen(sys.argv[2:], stdout=-3, stderr=-3)
try: p.wait(float(sys.argv[1]) / 100)
except subprocess.TimeoutExpired: p.kill(); p.wait()' $hundredths "$NIBBLE" verify k --from "$MODEL"
done
check 'verify --from after it was killed' nibble verify k --from "$MODEL"
equal 'verify --from removes what killed runs left' k "$(echo k*)"
mkdir k.verify.codes
echo mine >k.verify.codes/notes
refused 6 '*' verify k --from "$MODEL"
check 'verify --from leaves other files alone' grep -q mine k.verify.codes/notes
