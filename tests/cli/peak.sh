# SPDX-License-Identifier: Apache-2.0
#
# Peak memory of commands that inspect or rewrite a model, against its size: they read it in blocks of rows, f64 like any other
# type, and release what they have read.
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
below 80 quantize big q --recipe 8da4w -t 2 # copies the tied embedding
below 60 convert q back --format compressed-tensors -t 2
below 60 convert big half --format safetensors --dtype bf16 -t 2
# a run: pages of the embedding and of all-zero zero points are released
below 80 quantize half p --recipe 8da4w+head -t 2
peak=$(nibble bench p --alone -t 2 --prompt-tokens 512 -n 1 --repeats 1 --json --quiet | sed -n 's/.*"peak_bytes": \([0-9]*\)[0-9]\{6\},.*/\1/p')
check "a run of 512 tokens: $peak MB, at most 104" test "${peak:-9999}" -le 104
