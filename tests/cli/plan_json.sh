# SPDX-License-Identifier: Apache-2.0
#
# nibble plan --json: the members that architecture.md defines, and the matching exit status.
layer=(schema=1 layers[].name=str layers[].role=str layers[].asked=str layers[].done=str layers[].rung=str 'layers[].rule=str|null'
    layers[].bytes=int layers[].reasons=list layers[].uses=list tensors=list counts.asked=int counts.done=int counts.substituted=int)
uses=(layers[].uses[].phase=str layers[].uses[].m_min=int 'layers[].uses[].m_max=int|null' layers[].uses[].kernel=str
    layers[].uses[].device=str 'layers[].uses[].predicted_us=num|null')
# planned STATUS NAME ARGUMENT...: leaves NAME.json
planned() {
    local wanted=$1 name=$2 status=0
    shift 2
    nibble plan "$@" --json >"$name.json" 2>"$name.err" || status=$?
    equal "exit status of plan $name" "$wanted" "$status"
}
# ask NAME EXPRESSION: evaluates a Python expression over the object
ask() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); L = d["layers"]; print(eval(sys.argv[2]))' "$1.json" "$2"; }

planned 0 own "$MODEL"
members own "${layer[@]}" "${uses[@]}" <own.json
equal 'number of layers' 37 "$(ask own 'len(L)')"
equal 'without a recipe, layers run as stored' "{'bf16@cpu'}" "$(ask own '{l["done"] for l in L}')"
planned 0 8da4w "$MODEL" --recipe 8da4w
members 8da4w "${layer[@]}" "${uses[@]}" <8da4w.json
equal '8da4w: layers asked, done and substituted' "36 36 0" "$(ask 8da4w '"%d %d %d" % (d["counts"]["asked"], d["counts"]["done"], d["counts"]["substituted"])')"
equal '8da4w: ranges of m' "[(1, 1), (2, 16), (17, None)]" "$(ask 8da4w '[(u["m_min"], u["m_max"]) for u in L[1]["uses"]]')"
equal '8da4w: summary on stderr' '36 linear layers: 36 asked 8da4w-g32, 36 done on cpu/*, 0 substituted' "$(sed 's|cpu/[a-z0-9]*|cpu/*|' 8da4w.err)"

planned 0 config "$MODEL/config.json" --recipe 8da4w
equal 'config.json alone gives the same plan' "$(ask 8da4w '[(l["name"], l["asked"], l["done"], l["bytes"]) for l in L]')" "$(ask config '[(l["name"], l["asked"], l["done"], l["bytes"]) for l in L]')"
planned 0 detail "$MODEL" --recipe 8da4w --layer lm_head
equal '--layer lists the candidates' True "$(ask detail 'len([l for l in L if l["name"] == "lm_head"][0]["candidates"]) > 3')"

planned 0 substituted "$MODEL" --recipe 8da4w-g7
equal 'rung of layers that another kernel does' "{'kernel'}" "$(ask substituted '{l["rung"] for l in L if l["role"] != "embed"}')"
equal 'a reason has the code group%' True "$(ask substituted 'any(r["code"].startswith("group%") for r in L[1]["reasons"])')"
equal 'number of substituted layers' 36 "$(ask substituted 'd["counts"]["substituted"]')"
planned 4 strict "$MODEL" --recipe 8da4w-g7 --strict
equal '--strict: "done" is null exactly for denied layers' True "$(ask strict 'all((l["done"] is None) == l["denied"] for l in L)')"
equal '--strict: the counts' '36 0 0 36 0' "$(ask strict '" ".join(str(d["counts"][k]) for k in ("asked", "done", "substituted", "denied", "embeddings_not_as_asked"))')"
equal '--strict: all linear layers are denied' True "$(ask strict 'all(l["denied"] for l in L if l["role"] != "embed")')"
check '--strict: the error names layer and group size' grep -q '^nibble: model.layers.0.self_attn.q_proj: --strict: .*group size is 7.*' strict.err
planned 4 bound "$MODEL" --recipe 8da4w --kernel linear_a8t_w4g_f32__i8mm_8x8
equal 'all failed conditions of a --kernel are listed' True "$(ask bound 'len({r["code"] for r in L[1]["reasons"]}) > 1')"
planned 0 ref "$MODEL" --recipe 8da4w --kernel 'lm_head=linear_a8t_w4g_f32__ref'
equal 'the kernel of --kernel is used' "{'linear_a8t_w4g_f32__ref'}" "$(ask ref '{u["kernel"] for l in L if l["name"] == "lm_head" for u in l["uses"]}')"
planned 0 m2_opencl "$MODEL" --recipe int4wo --device apple-m2
equal 'kernel of an Apple GPU' "{'linear_bf16_w4g_f32__ocl'}" "$(ask m2_opencl '{u["kernel"] for l in L if l["role"] != "embed" for u in l["uses"]}')"
m2=(--recipe int4wo --device apple-m2 --without 'linear_*_w4g_*__ocl*')
planned 4 m2 "$MODEL" "${m2[@]}"
planned 0 m2_allowed "$MODEL" "${m2[@]}" --allow device
equal 'rung of layers that the host does' "{'device'}" "$(ask m2_allowed '{l["rung"] for l in L if l["role"] != "embed"}')"
planned 4 m2_one "$MODEL" "${m2[@]}" --allow 'lm_head=device'
equal '--allow lm_head=device allows that layer alone' "['lm_head']" "$(ask m2_one '[l["name"] for l in L if not l["denied"] and l["role"] != "embed"]')"
for machine in mi210 a100 h200 b200 graviton3 raspberry-pi-5; do
    planned 0 "$machine" "$MODEL" --recipe int8wo --device $machine
    members "$machine" "${layer[@]}" "${uses[@]}" <$machine.json
done
for machine in opencl mi210 apple-m2 intel-arc h200 b200; do # on any machine, these have no attention over an int8 cache
    planned 4 cache "$MODEL" --cache-type int8 --device $machine
    equal "$machine: attention over an int8 cache is denied" "['attn']" "$(ask cache '[l["name"] for l in L if l["denied"]]')"
    planned 0 cache "$MODEL" --cache-type int8 --device $machine --allow device
    equal "$machine: its host does attention if allowed" "['attn']" "$(ask cache '[l["name"] for l in L if l["rung"] == "device"]')"
done
planned 0 training "$REPO/configs/llama3_debugmodel_mxfp8_vocab2256.json" --device b200
equal 'a plan of training has forward and backward kernels' True "$(ask training '{"forward", "backward"} <= {u["phase"] for l in L for u in l["uses"]}')"
for engine in torchao gpt-fast torchchat torchtitan executorch vllm llama.cpp modelopt; do
    planned 0 $engine "$MODEL" --recipe 8da4w --engine $engine
done
equal 'exit status of generate --strict' 4 "$(nibble generate "$MODEL" -n 1 --recipe 8da4w-g7 --strict >/dev/null 2>&1; echo $?)"
refused 4 '*' generate "$MODEL" -n 1 --device mi210 --recipe int4wo

# a plan that is too large: the advice fits, and costs as little as possible
# advised MEMORY OPTION...
advised() {
    local memory=$1
    shift
    nibble plan "$MODEL" -c 512 --memory "$memory" --json >plan.json 2>err
    check "advice for $memory: $*" grep -q -- "; $* needs [^ ]* .B and fits" plan.json
    nibble plan "$MODEL" -c 512 --memory "$memory" "$@" --json >plan.json 2>err || true
    check "$* fits in $memory" test "$(grep -c too-large plan.json)" = 0
}
advised 6500KB --cache-type int8
advised 3MB --recipe 8da4w
advised 2600KB --recipe 8da4w+head+embed
advised 2500KB --recipe 8da4w+head+embed --cache-type int8
nibble plan "$MODEL" -c 512 --memory 100KB --json >plan.json 2>err
check 'nothing fits in 100 KB' grep -q '; no 4-bit recipe fits either' plan.json
