#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# NeMo RL and mlx-lm: a claim of the config that no tensor holds, int8 codes that had 4 bits before, and one budget on two runs.
. "$(dirname "$0")/lib.sh"
section 7

# the claim is said by the plan, refused by --strict and found by verify
status 2 4
says 2.err 'kv_cache_scheme (config): config.json asks for quantized keys and values'
status 3 8
says 3.out '; 1 problem'
lacks 3.out 'hash: model'

# codes of codes are never taken for codes of the source
status 4 8
lacks 4.out 'rounded:'
lacks 4.out 'searched:'
lacks 4.out 'feedback:'
says 4.out 'unknown: model.layers.0.mlp.gate_proj'

# one budget: the manifest is the same, too, and the mixture has both schemes
holds run_a/nibble.json 'd["receipt"]["seed"] is None and {l["done"].split("@")[0] for l in d["ledger"]["layers"]} >= {"int4wo-g32-sym", "int8wo"}'
says a.txt '5.2'
finish
