#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# gpt-fast, int4 on an MI210: why it could not run, what it should cost, 4-bit products, and the recipe done here.
. "$(dirname "$0")/lib.sh"
section 3

says 1.err '225 asked int4wo-g32, 225 done on mi210/ocl_gfx90a, 0 substituted'
holds int4wo.json 'd["device"] == "mi210" and note("declared") != ""'
holds int4wo.json 'layer("lm_head")["uses"][0]["kernel"] == "linear_bf16_w4g_f32__ocl_gfx90a"'

# predicted: faster than bf16 by the bytes; the peer's kernel was measured 2.7 times slower
holds int4wo.json '1.9 < d["predicted_bf16_token_s"] / d["predicted_token_s"] < 3'
holds int4wo.json '4.1e-3 < d["linear_token_s"] < 4.5e-3'
holds int4wo.json '"maker=nvidia" in codes(candidate("lm_head", "pytorch-2.3.int4pack_cuda"))'
holds int4wo.json '"not available for build" in candidate("lm_head", "pytorch-2.3.int4pack_cuda")["consequence"]'
holds int4wo.json 'candidate("lm_head", "pytorch-2.5.int4pack_rocm")["verdict"] == "runs"'
holds int4wo.json '"2.7 times slower than bf16" in candidate("lm_head", "pytorch-2.5.int4pack_rocm")["consequence"]'
holds int4wo.json 'candidate("lm_head", "gpt-fast.int4")["verdict"] == "runs"'

# 4-bit dot products: there, and used where activations have 4 bits
holds int4wo.json '"v_dot8_i32_i4" in note("dot4") and "--recipe 4da4w-g32 does" in note("dot4")'
holds 4da4w.json 'layer("lm_head")["uses"][0]["kernel"] == "linear_a4t_w4g_f32__ocl_gfx90a_1x64"'
holds 4da4w.json '"225 layers use them" in note("dot4")'
holds 4da4w.json '"slower than bf16 in a prompt" in note("slower-than-bf16")'

status 4 2
says 4.err 'device "mi200" is not known'
says 4.err 'mi210'
status 5 4
says 5.err 'the plan is for mi210, which is not this machine'
says 5.err '--device cpu runs here'
[ ! -s 5.out ] || fail 'text was generated for a machine that is not here'

says 6.err '36 asked int4wo-g32, 36 done on cpu/'
says 6.err '0 substituted'
[ "$(wc -c <6.out)" -gt 20 ] || fail 'no text was generated'

# a device that is here and has no int4 kernel: an error with the CPU's price; allowed, predicted and measured time
status 7 4
says 7.err 'asked int4wo-g32@opencl'
says 7.err '--without leaves it out'
says 7.err '--allow device: done int4wo-g32@cpu, '
says 7.err 'per token predicted; in bf16 '
[ ! -s 7.out ] || fail 'text was generated before the error'
status 8 0
says 8.err '36 asked int4wo-g32, 36 substituted'
says 8.err ' ms predicted, '
says 8.err ' ms measured'
[ "$(wc -c <8.out)" -gt 20 ] || fail 'no text was generated'
finish
