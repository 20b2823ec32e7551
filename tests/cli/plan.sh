# SPDX-License-Identifier: Apache-2.0
#
# nibble plan as text, for machines with published rates, so that every number is known.
see plan "$MODEL/config.json" --recipe 8da4w --device graviton3
see plan "$MODEL" --recipe 8da4w --layer lm_head --isa avx2
see plan "$MODEL" --recipe int4wo --device mi210
see plan "$MODEL" --recipe int4wo --device apple-m2
see plan "$MODEL" --recipe int4wo --device apple-m2 --without 'linear_*_w4g_*__ocl*'
see plan "$MODEL" --recipe int4wo --device apple-m2 --without 'linear_*_w4g_*__ocl*' --allow device --quiet
see plan "$MODEL" --recipe 8da4w --kernel 'lm_head=linear_a8t_w4g_f32__avx2_4x16' --layer lm_head --device graviton3
see plan "$MODEL" --recipe 8da4w-g7 --strict --only lm_head --layer lm_head --device graviton3
see plan "$MODEL" --recipe int4wo --engine torchao --device a100 --layer lm_head
# scales that a recipe asks for are made, not kept
cat >scales.json <<'END'
{"_type": "IntxWeightOnlyConfig", "_version": 2, "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
 "granularity": {"_type": "PerGroup", "_version": 1, "_data": {"group_size": 32}},
 "scale_dtype": {"_type": "torch.dtype", "_data": "float32"}}}
END
nibble plan "$MODEL" --recipe scales.json --device graviton3 --json >plan.json
check 'scales of the type that the recipe asks for' python3 -c '
import json
assert "scale-type" not in [s["code"] for s in json.load(open("plan.json"))["settings"]]'
rm scales.json plan.json
only_here
