# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize: the device that computes the codes, and the machine that will run them.
quantize() { nibble quantize "$MODEL" "$@"; }

# the result is planned before it is written: the plan is printed, noted in the ledger and stored in the manifest
quantize for --recipe 8da4w --for h200 >printed 2>/dev/null
check '--for prints a plan' grep -q '^planned for h200$' printed
check 'the plan names its machine' grep -q '^machine  h200: ' printed
check "the manifest has the plan's summary" grep -q 'planned for h200: 36 linear layers: 36 asked 8da4w-g32, 36 done on h200/' for/nibble.json
quantize plain --recipe 8da4w --quiet >/dev/null
check '--for does not change the weights' cmp for/model.safetensors plain/model.safetensors
# Meta's order of rows, which the host reads one by one
for device in cpu opencl; do
    check "Meta's model on $device" nibble quantize "$REPO"/tests/golden/torch/meta_float meta-$device --recipe 8da4w --device $device --quiet
done
check "Meta's model: CPU and device give the same weights" cmp meta-cpu/model.safetensors meta-opencl/model.safetensors

quantize dry --recipe 8da4w --for h200 --dry-run --json 2>/dev/null |
    members '--for --dry-run --json' schema=1 'for.device="h200"' 'for.layers[].asked=str' for.predicted_token_s=num for.counts.denied=0

# a machine that would not run the result as requested: nothing is written, unless allowed
sed 's/"sm": {"value": 80/"sm": {"value": 70/; 0,/"title".*/s//&\n  "host": "graviton3",/' "$REPO/machines/a100.json" >v100.json
refused 4 "--for ./v100.json: *: asked bf16@v100 (and 42 more)*--allow device: done bf16@graviton3, *" quantize "$MODEL" v100 --recipe 8da4w --for ./v100.json
check 'a refused plan writes nothing' [ ! -e v100 ]
check '--for with --allow device' quantize v100 --recipe 8da4w --for ./v100.json --allow device
check 'the manifest counts the substituted layers' grep -q 'planned for v100: 36 linear layers: 36 asked 8da4w-g32, 36 substituted' v100/nibble.json
refused 4 '--for ./v100.json: *--strict: *' quantize "$MODEL" m3 --recipe 8da4w --for ./v100.json --allow device --strict
refused 2 '--for h2000: device "h2000" is not known; did you mean h200*' quantize "$MODEL" x --recipe 8da4w --for h2000

# the CPU computes the codes: as requested, or with a ledger line
check 'quantize --device cpu' quantize here --recipe 8da4w --device cpu --quiet
check '--device cpu gives the same weights' cmp here/model.safetensors plain/model.safetensors
refused 4 '--device h200: weights are quantized on this device, but this machine does not have it; --for h200 plans the result for it' \
    quantize "$MODEL" x --recipe 8da4w --device h200
refused 2 '--allow device has no effect: *' quantize "$MODEL" x --recipe 8da4w --allow device
refused 2 '--allow device has no effect: *' quantize "$MODEL" x --recipe 8da4w --allow device --device cpu
refused 2 '--allow nonsense has no effect: *' quantize "$MODEL" x --recipe 8da4w --allow nonsense --device cpu
if ! nibble devices opencl >/dev/null 2>&1; then
    skipped 'quantize_device, on OpenCL' 'no OpenCL device'
    exit
fi

# the device's codes, scales and zeros equal the CPU's, in every formula
for recipe in 8da4w 8da4w-g100 8da4w-asym 8da4w-ao017 int8wo int8wo-asym int8wo-tensor int4wo int4wo-intzero int4wo-tinygemm fp8wo fp8wo-tensor \
    mxfp8 mxfp8-floor mxfp4 mxfp4-floor nvfp4 nvfp4-block int8wo-g32-ggml int4wo-g32-ggml int4wo-g32-sym-ggml 8da4w+head+embed; do
    sampled 3 || continue
    quantize by-cpu --recipe $recipe --quiet --force >/dev/null
    check "$recipe on the device" quantize by-device --recipe $recipe --device opencl --quiet --force
    check "$recipe: the same weights" cmp by-cpu/model.safetensors by-device/model.safetensors
    check "$recipe: the same errors" cmp <(grep sqnr_db by-cpu/nibble.json) <(grep sqnr_db by-device/nibble.json)
    check "$recipe: the manifest names the device" grep -q '"done": "codes@opencl"' by-device/nibble.json
done
head -c 1500 "$MODEL/heldout.txt" >text.txt
biased() { quantize "$@" --recipe int8dq-static --calibrate text.txt --bias int32 --quiet; }
biased biased-cpu >/dev/null
check '--bias int32 on the device' biased biased --device opencl
check '--bias int32: the same weights and biases' cmp biased/model.safetensors biased-cpu/model.safetensors

# other sources than bf16 rows
for type in f32 f16; do
    nibble convert "$MODEL" as-$type --format safetensors --dtype $type --quiet >/dev/null
    nibble quantize as-$type $type-cpu --recipe nvfp4 --quiet >/dev/null
    check "from $type on the device" nibble quantize as-$type $type-device --recipe nvfp4 --device opencl --quiet
    check "from $type: the same weights" cmp $type-cpu/model.safetensors $type-device/model.safetensors
done

quantize dry --recipe 8da4w --device opencl --dry-run --json >printed 2>/dev/null
check 'a dry run reports copies and predicted time' grep -q '"codes@opencl: 36 of 36 weights by quant_w__ocl, 6.2 MB to it and 3.6 MB back, .* predicted' printed
check 'a dry run writes nothing' [ ! -e dry ]

# an unquantizable weight gives the same error, and no output is left
mkdir broken
cp "$MODEL"/config.json broken
broken() { # broken HEX RECIPE: puts two values at the end of the last row, and quantizes on the CPU and on the device
    cp "$MODEL"/model.safetensors broken/model.safetensors
    "$REPO/tests/cli/tensors" broken/model.safetensors put lm_head.weight $((2 * 2256 * 224 - 4)) "$1"
    nibble quantize broken by-cpu-x --recipe "$2" 2>cpu.err >/dev/null
    check "$2: exit status of the CPU" [ $? = 3 ]
    nibble quantize broken by-device-x --recipe "$2" --device opencl 2>device.err >/dev/null
    check "$2: exit status of the device" [ $? = 3 ]
    check "$2: CPU and device print the same error" cmp cpu.err device.err
    check "$2: the error names the row" grep -q 'lm_head.weight: row 2255' cpu.err
    check "$2: no output is left" [ ! -e by-device-x ]
}
broken 0000c07f 8da4w
broken 80ff0000 int8wo-tensor
broken 78ff787f int8wo-asym
