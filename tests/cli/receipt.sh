# SPDX-License-Identifier: Apache-2.0
#
# Receipts: what nibble.json says of an output, by Python's own SHA-256; one receipt for any threads and instruction sets.
head -c 20000 "$MODEL/heldout.txt" >text.txt
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
nibble quantize "$MODEL" a --recipe 8da4w --quiet >"$seen.out"
receipt a a/nibble.json '["command"]="quantize"' '["options"]["recipe"]="8da4w"' '["layers"]={"rtn": 36}' '["calibrate"]=null' '["seed"]=null' '["device"]=null'
echo '{"rules": [{"match": "*.mlp.*", "scheme": "int8wo", "method": "rtn"}, {"match": "*", "scheme": "int4wo"}]}' >rules.json
nibble quantize "$MODEL" b --recipe rules.json --method gptq --calibrate text.txt --skip lm_head --pack --quiet >"$seen.out"
receipt b b/nibble.json '["options"]["skip"]=["lm_head"]' '["options"]["method"]="gptq"' '["layers"]={"rtn": 15, "gptq": 20}' '["calibrate"]["path"]="text.txt"'
check 'a receipt holds the text of its recipe file' python3 -c 'import json; assert json.load(open("b/nibble.json"))["receipt"]["options"]["recipe"] == open("rules.json").read()'
nibble convert "$MODEL" c.gguf --format gguf --quiet >"$seen.out"
receipt c.gguf c.gguf.nibble.json '["command"]="convert"' '["options"]["format"]="gguf"'

# the output and its manifest are the same bytes for any number of threads and any instruction set
for options in '--recipe int4wo' '--recipe 8da4w --method search --calibrate text.txt' '--recipe int4wo --method gptq --calibrate text.txt'; do
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
