#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# torchchat, int4 on an Apple GPU: planned there; without kernels denied with the reason, allowed with the cost; done on this
# CPU; documentation that runs.
. "$(dirname "$0")/lib.sh"
section 1

# OpenCL's rows are found, weights are packed there, and the CPU that draws tokens is said
status 1 0
says 1.out 'packed before the first token: 37 weights on apple-m2 by pack__ocl'
says 1.out 'tokens are drawn by sample_f32__ref on apple-m2-cpu'
says 1.err '36 asked int4wo-g32-tinygemm, 36 done on apple-m2/ocl, 0 substituted'

# without them it is denied
status 2 4
says 2.out 'linear_bf16_w4g_f32__ocl: this run lacks this kernel: --without leaves it out'
says 2.out '> --allow device: done int4wo-g32-tinygemm@apple-m2-cpu'
says 2.err 'nothing allowed does it'
says 2.err '--allow device'

# every linear layer is denied, with reason, advice and no environment variable in the way
holds denied.json 'all(d["counts"][k] == n for k, n in {"asked": 36, "done": 0, "substituted": 0, "denied": 36, "embeddings_not_as_asked": 0}.items())'
holds denied.json 'all(l["denied"] and l["done"] is None and "offered=yes" in codes(l) for l in d["layers"] if l["role"] != "embed")'
holds denied.json '"--allow device" in [a["option"] for a in layer("lm_head")["advice"]]'

# torchchat: no packing for the device in PyTorch 2.3, the CPU in silence later
says 4.out 'pytorch-2.3.int4pack_cuda'
says 4.out "The operator 'aten::_convert_weight_to_int4pack' is not currently implemented for the MPS device"
says 4.out 'weights are packed on the CPU and copied to mps, without a message'
says 4.out 'PYTORCH_ENABLE_MPS_FALLBACK=1 is set for the whole program'

# allowed: said in ledger and summary, with the time that it costs
holds allowed.json 'all(d["counts"][k] == n for k, n in {"asked": 36, "done": 0, "substituted": 36, "denied": 0, "embeddings_not_as_asked": 0}.items())'
holds allowed.json 'all(l["rung"] == "device" and l["allowed"] == "by --allow device" for l in d["layers"] if l["role"] != "embed")'
holds allowed.json 'layer("lm_head")["done"] == "int4wo-g32-tinygemm@apple-m2-cpu"'
holds allowed.json '0 < d["predicted_token_s"] < 1'
holds f32.json 'layer("lm_head")["uses"][0]["kernel"] == "linear_f32_w4g_f32__neon_4x16"'
holds f32.json 'any(n["code"] == "moves" for n in d["notes"])'
says 5.err '36 asked 8da4w-g32, 36 substituted'

# done here, nothing substituted
says 6.err '36 asked int4wo-g32-tinygemm, 36 done on cpu/'
says 6.err '0 substituted'
[ "$(wc -c <6.out)" -gt 20 ] || fail 'no text was generated'

# on a device that is here: packing on the CPU is said, with bytes and time; text is generated there
says 7.out 'packed before the first token: 37 on the host because no kernel of opencl reads them as stored, '
says 7.out ' predicted with the copies'
says 7.err '36 asked int4wo-g32-tinygemm, 36 done on opencl/ocl, 0 substituted'
[ "$(wc -c <there.txt)" -gt 20 ] || fail 'no text was generated on the device'

# an operation that it lacks: stopped before the first token, with reasons, price and option; done where that is allowed
status 8 4
says 8.err 'attn: asked f32@opencl, but nothing allowed does it: attn_f32__ocl: this run lacks this kernel'
says 8.err "--allow 'attn=device': done f32@cpu by attn_"
says 8.err ' more copies of '
says 8.err ' tokens/s, and '
[ ! -s 8.out ] || fail 'text was generated before the error'
holds allowed_here.json 'd["new_tokens"] == 24 and d["token_s"] > 0 and d["predicted_token_s"] > 0'
says 9.err '36 done on opencl/ocl, 0 substituted; 1 operation without weights not as asked'
holds plan_here.json 'layer("attn")["asked"] == "f32@opencl" and layer("attn")["done"] == "f32@cpu"'
holds plan_here.json 'layer("attn")["rung"] == "device" and layer("attn")["allowed"] == "by --allow attn=device"'
holds plan_here.json 'layer("attn")["uses"][0]["predicted_us"] > 0'
status 10 4
says 10.err 'attn: --strict: asked f32@opencl'

# documentation: nothing ran is a failure, and so is a command that fails
says 11.out 'FAIL no block ran'
printf '```sh\nnibble plan models/nibble-tales --device no-such-device\n```\n' >wrong.md
"$REPO/tests/docs/run" wrong.md >wrong.out 2>&1 && fail 'a page with a failing command passed'
says wrong.out '0 passed, 1 failed'
finish
