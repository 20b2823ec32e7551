# SPDX-License-Identifier: Apache-2.0
#
# nibble quantize: the device that computes codes, and the machine that will run them.
quantize() { nibble quantize "$MODEL" "$@"; }

# the result is planned before it is written: the plan is printed, noted in the ledger and kept in the manifest
quantize for --recipe 8da4w --for h200 >printed 2>/dev/null
check 'the plan is printed' grep -q '^planned for h200$' printed
check 'its machine is' grep -q '^machine  h200: ' printed
check 'the manifest has its summary' grep -q 'planned for h200: 36 linear layers: 36 asked 8da4w-g32, 36 done on h200/' for/nibble.json
quantize plain --recipe 8da4w --quiet >/dev/null
check 'the weights are the same' cmp for/model.safetensors plain/model.safetensors
quantize dry --recipe 8da4w --for h200 --dry-run --json 2>/dev/null |
    members 'a plan inside' schema=1 'for.device="h200"' 'for.layers[].asked=str' for.predicted_token_s=num for.counts.denied=0

# a machine that would not run it as asked: nothing is written, unless that is allowed
refused 4 "--for apple-m2: *: asked bf16@apple-m2 (and 36 more)*--allow device: done bf16@apple-m2-cpu, *" quantize "$MODEL" m2 --recipe 8da4w --for apple-m2
check 'nothing was written' [ ! -e m2 ]
check 'allowed' quantize m2 --recipe 8da4w --for apple-m2 --allow device
check 'and said' grep -q 'planned for apple-m2: 36 linear layers: 36 asked 8da4w-g32, 36 substituted' m2/nibble.json
refused 4 '--for apple-m2: *--strict: *' quantize "$MODEL" m3 --recipe 8da4w --for apple-m2 --allow device --strict
refused 2 '--for h2000: device "h2000" is not known; did you mean h200*' quantize "$MODEL" x --recipe 8da4w --for h2000

# codes are computed by the CPU: asked = done, or said
check 'asked for the CPU' quantize here --recipe 8da4w --device cpu --quiet
check 'the same weights' cmp here/model.safetensors plain/model.safetensors
refused 4 '--device h200 says where weights are quantized, and that machine is not here; --for h200 plans the result for it' \
    quantize "$MODEL" x --recipe 8da4w --device h200
refused 2 '--allow device has no effect: *' quantize "$MODEL" x --recipe 8da4w --allow device
refused 2 '--allow device has no effect: *' quantize "$MODEL" x --recipe 8da4w --allow device --device cpu
refused 2 '--allow nonsense has no effect: *' quantize "$MODEL" x --recipe 8da4w --allow nonsense --device cpu
if ! nibble devices opencl >/dev/null 2>&1; then
    echo 'skipped: quantizing for a device that is here (none of OpenCL is)'
    exit
fi
refused 4 'quantize: asked codes@opencl: no kernel: the table has no quantizer of weights on opencl; --allow device: done codes@cpu*' \
    quantize "$MODEL" x --recipe 8da4w --device opencl
check 'nothing was written' [ ! -e x ]
quantize moved --recipe 8da4w --device opencl --allow device >printed 2>/dev/null
check 'a line says so' grep -q 'substituted: asked codes@opencl, done codes@cpu; rung device, allowed by --allow device' printed
check 'and so does the manifest' grep -q '"codes@opencl"' moved/nibble.json
check 'the same weights' cmp moved/model.safetensors plain/model.safetensors
refused 4 'quantize: --strict: asked codes@opencl: *' quantize "$MODEL" y --recipe 8da4w --device opencl --allow device --strict
