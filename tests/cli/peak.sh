# SPDX-License-Identifier: Apache-2.0
#
# What the commands that only look and those that rewrite cost in memory, held against the size of a model: they read it
# by blocks of rows, f64 like any other type, and let go of what they have read.
size=$("$REPO/tests/cli/peak" make big)
check "the model is large: $size MB" test "$size" -gt 300
# below MEGABYTES ARGUMENT...
below() {
    local most=$1 peak
    shift
    peak=$("$REPO/tests/cli/peak" run "$NIBBLE" "$@" --quiet) || peak=99999
    check "nibble $*: $peak MB, at most $most" test "$peak" -le "$most"
}
below 40 info big
below 40 verify big
below 80 quantize big q --recipe 8da4w -t 2 # copies the embedding, which is tied
below 60 convert q back --format compressed-tensors -t 2
below 60 convert big half --format safetensors --dtype bf16 -t 2
