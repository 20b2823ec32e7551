# SPDX-License-Identifier: Apache-2.0
#
# nibble plan as text, for machines with published rates, so that every number is known.
see plan "$MODEL/config.json" --recipe 8da4w --device graviton3
see plan "$MODEL" --recipe 8da4w --layer lm_head --isa avx2
see plan "$MODEL" --recipe int4wo --device mi210
see plan "$MODEL" --recipe int4wo --device apple-m2
see plan "$MODEL" --recipe int4wo --device apple-m2 --without 'linear_*_w4g_*__ocl*'
see plan "$MODEL" --recipe int4wo --device apple-m2 --without 'linear_*_w4g_*__ocl*' --allow device --quiet
see plan "$MODEL" --recipe 8da4w --kernel 'lm_head=linear_a8t_w4g_f32__avx2_4x8' --layer lm_head --device graviton3
see plan "$MODEL" --recipe 8da4w-g7 --strict --only lm_head --layer lm_head --device graviton3
see plan "$MODEL" --recipe int4wo --engine torchao --device a100 --layer lm_head
only_here
