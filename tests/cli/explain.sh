# SPDX-License-Identifier: Apache-2.0
#
# nibble explain: codes of all kinds and of kernels' conditions have a meaning; one code may have several.
check 'explain lists codes of each kind' test "$(nibble explain | cut -d ' ' -f 1 | sort -u | tr -d '\n')" = advicenotereasonsetting
check 'explain activations' nibble explain activations
equal 'activations is a setting, advice and a note' 'advice note setting ' "$(awk '/^[a-z]/ { print $1 }' "$seen.out" | sort | tr '\n' ' ')"
check 'n%128 is explained and names its kernels' grep -qz 'reason   n%128 *n a multiple of 128 (.*torchao.to_mxfp8_dim1_of_weight' <(nibble explain n%128)
equal 'explain --json lists each kernel once' "$(nibble kernels --json | python3 -c '
import json, sys
rows = json.load(sys.stdin)
print(sum(any(c["code"] == "subgroups=yes" for c in r["conditions"]) for r in rows["kernels"]))')" "$(nibble explain subgroups=yes --json | python3 -c '
import json, sys
names = [n for c in json.load(sys.stdin)["codes"] for n in c["kernels"]]
assert len(names) == len(set(names))
print(len(names))')"
check 'conditions of every kernel are explained' nibble explain offered=yes
check 'conditions of every kernel are explained' nibble explain built=yes
refused 2 'unknown code tye; did you mean tie; `nibble explain` lists all codes' explain tye
refused 2 'unknown code n%127; *' explain n%127
only_here
