#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# torchao, a scale that became float64: the peer's conditions, then the same kernel, text and loss with the change on record.
. "$(dirname "$0")/lib.sh"
section 2

# the wish for CUTLASS, answered with every condition that fails
holds wish.json 'all(l["rung"] == "kernel" for l in d["layers"] if l["role"] != "embed")'
holds wish.json '"layout" in codes(layer("model.layers.0.mlp.up_proj"))'
holds wish.json 'set(codes(candidate("model.layers.0.mlp.up_proj", "torchao-0.10.cutlass_s8s4"))) ==
    {"act_symmetric=yes", "act_scale_type=f32", "scale_type=f32", "group=row"}'
holds wish.json '"slower than bf16 and without a message" in
    candidate("model.layers.0.mlp.up_proj", "torchao-0.10.cutlass_s8s4")["consequence"]'
says 1.out 'the layout CutlassInt4PackedLayout belongs to another engine'
status 2 4
says 2.err '--strict'

# every scale is F64 in the file; each is a line with the change; nothing is substituted
says 3.out '36 scale tensors are F64 now'
holds f64_scales.json 'd["counts"]["substituted"] == 0 and d["counts"]["done"] == 36'
holds f64_scales.json 'len(tensors("_weight_scale")) == 36'
holds f64_scales.json 'all(t["asked"] == "f64" and t["done"] == "f32" for t in tensors("_weight_scale"))'
holds f64_scales.json 'all(math.isclose(t["max_rel_change"], 1e-9, rel_tol=1e-3) for t in tensors("_weight_scale"))'
holds bf16_scales.json 'tensors("_weight_scale") == []'
says 4.err '0 substituted'

# the same integer kernels, which the reference is not
for plan in bf16_scales f64_scales; do
    "$cases/holds" $plan.json 'print([u["kernel"] for l in d["layers"] for u in l["uses"]]) or True' >$plan.kernels
done
cmp bf16_scales.kernels f64_scales.kernels || fail 'the float64 scales run on other kernels'
if grep -qE 'avx2|avx512' /proc/cpuinfo; then
    lacks f64_scales.kernels 'linear_a8t_w4g_f32__ref'
fi

# the peer refuses the weight's scale too
holds f64_peers.json '"scale_type=f32" in codes(candidate("lm_head", "torchao-0.10.cutlass_s8s4"))'
holds f64_peers.json '"is f64, not f32" in str(candidate("lm_head", "torchao-0.10.cutlass_s8s4")["reasons"])'
holds f64_peers.json '"every call dequantizes the whole weight" in candidate("lm_head", "torchao.8da4w_unpacked")["consequence"]'

# on a device, too: nothing substituted, and the same loss; a kernel that it cannot have is refused with its conditions
holds f64_there.json 'd["device"] == "opencl" and d["counts"]["substituted"] == 0 and d["counts"]["done"] == 36'
holds f64_there.json 'all("__ocl" in u["kernel"] for l in d["layers"] for u in l["uses"])'
holds f64_scales_there.json '0 < d["loss"] < 8 and d["predicted"] > 500'
status 8 4
says 8.err 'linear_a8t_w4g_f32__sm80_4x4: '
says 8.err 'the device is opencl, not cuda'

# text and loss were compared in block 6
status 6 0
holds f64_scales_loss.json '0 < d["loss"] < 8 and d["predicted"] > 500'
finish
