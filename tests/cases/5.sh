#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# torchtitan, MXFP8 and an output layer 2256 wide: every product planned, where the peer stopped, filters that must match.
. "$(dirname "$0")/lib.sh"
section 5

# asked for all 43 layers, with three products each
holds b200.json 'all(d["counts"][k] == n for k, n in {"asked": 43, "done": 43, "substituted": 0, "denied": 0, "embeddings_not_as_asked": 0}.items())'
holds b200.json 'layer("lm_head")["asked"] == "mxfp8-floor@b200" and layer("lm_head")["n"] == 2256'
holds b200.json '[(u["phase"], u["kernel"]) for u in layer("lm_head")["uses"]] ==
    [("forward", "linear_mx8_mx8_f32__sm100"), ("backward", "linear_dx_mx8_mx8_f32__sm100"),
     ("backward", "linear_dw_mx8_mx8_f32__sm100")]'
holds b200.json 'all(u["m_min"] == u["m_max"] == 8 * 2048 for u in layer("lm_head")["uses"])'

# the filter passes, the cast of the backward pass does not; a layer of 256 passes both
holds b200.json 'candidate("lm_head", "torchtitan.mx_filter")["verdict"] == "runs"'
holds b200.json 'codes(candidate("lm_head", "torchao.to_mxfp8_dim1_of_weight")) == ["n%128"]'
holds b200.json 'codes(candidate("lm_head", "torchao.to_mxfp8_dim1_of_gradient")) == ["n%128"]'
holds b200.json 'candidate("lm_head", "torchao.to_mxfp8_dim1_of_weight")["phase"] == "backward"'
holds b200.json 'candidate("model.layers.0.self_attn.q_proj", "torchao.to_mxfp8_dim1_of_weight")["verdict"] == "runs"'
holds b200.json '"PR 2520" in candidate("lm_head", "torchtitan-2026.mx_converter")["consequence"]'
says 1.out '2256, not a multiple of 128 (next: 2304)'
says 1.out 'then AssertionError: "unsupported" in loss.backward()'

# cost
holds b200.json '0 < d["predicted_token_s"] < d["predicted_bf16_token_s"] < 1'

# the fix, torchtitan's and the recipe's own
holds skip_output_plan.json 'layer("lm_head")["asked"] == "bf16@b200"'
holds skip_output_plan.json 'sum(l["asked"] == "mxfp8-floor@b200" for l in d["layers"]) == 42'
holds skip_output_plan.json 'not any(r["verdict"] == "no" for l in d["layers"] for r in l.get("candidates", []))'
holds own_recipe.json 'layer("lm_head")["rule"] == "mxfp8 keeps the output layer"'

status 4 2
says 4.err '"lm_haed" matches no layer'
says 4.err 'did you mean lm_head'
status 5 2
says 5.err '"outputs" matches no layer'

status 6 0
holds here.json 'not layer("lm_head")["denied"]'

# the line of the report trains, with the output kept and converted
status 7 0
says 7.err '43 linear layers: 42 asked mxfp8-floor, 1 asked bf16, 43 done on cpu/'
status 8 0
says 8.err '43 linear layers: 43 asked mxfp8-floor, 43 done on cpu/'
says 8.out 'step: 3 loss:'

# the same line trains a model with biases, and its export becomes a prequantized checkpoint that runs
status 9 0
says 9.err '36 linear layers: 36 asked mxfp8-floor, 36 done on cpu/'
says 9.out 'step: 2 loss:'
status 10 0
says 10.out '15 of 15 biases are int8'
says 10.out '0 problems'
says 10.err '36 asked 8da4w-g32, 36 done on cpu/'
status 11 0
says 11.err '36 asked mxfp8, 36 done on cpu/'
says 11.err '0 substituted'
[ "$(wc -c <11.out)" -gt 20 ] || fail 'no text was generated'
finish
