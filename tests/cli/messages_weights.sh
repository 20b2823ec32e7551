# SPDX-License-Identifier: Apache-2.0
#
# The sentences of refusals: weights, their formats, quantizing.
messages test_weight test_weight_bias test_bias_codes test_dialects test_dialect_compressed test_dialect_gptq test_dialect_torchao
messages test_quantization test_fused test_experts_split test_experts_dialects test_renames_meta test_quantize test_quantizer test_search test_hqq test_super_blocks test_imatrix test_receipt
messages test_rotation test_rotate
