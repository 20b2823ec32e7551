# SPDX-License-Identifier: Apache-2.0
#
# models/nibble-tales-moe, the shipped mixture of experts: what it has learned survives every recipe and format, a GPU's arithmetic,
# its windows and drafts.
mixture=$REPO/models/nibble-tales-moe
head -c 6000 "$MODEL/heldout.txt" >text.txt # about 1,900 tokens; the windows have 128

# at_most WHAT LOSS MOST
at_most() { check "$1: loss $2, at most $3" awk -v a="$2" -v b="$3" 'BEGIN { exit !(a > 0 && a <= b) }'; }
plain=$(text_loss "$mixture")
at_most 'as trained' "$plain" 4.0
while read -r recipe more; do
    loss=$(text_loss "$mixture" --recipe "$recipe" --strict)
    at_most "$recipe" "$loss" "$(awk -v a="$plain" -v b="$more" 'BEGIN { print a + b }')"
    check "$recipe: quantize" nibble quantize "$mixture" stored --recipe "$recipe" --force --quiet
    equal "$recipe: stored, it has the same loss" "$loss" "$(text_loss stored --strict)"
done <<'END'
int8wo 0.01
int8dq 0.01
int4wo 0.12
8da4w 0.12
fp8dq 0.02
mxfp8 0.02
mxfp4 0.3
nvfp4 0.2
END

# GGUF, as gpt-oss is published: experts in MXFP4
check 'to GGUF in MXFP4' nibble quantize "$mixture" mxfp4.gguf --recipe mxfp4 --format gguf --quiet
equal 'GGUF: the same loss' "$(text_loss "$mixture" --recipe mxfp4)" "$(text_loss mxfp4.gguf --recipe weight-only)"
check 'back to safetensors' nibble convert mxfp4.gguf floats --format safetensors --quiet
near 'floats of the codes' "$(text_loss mxfp4.gguf --recipe weight-only)" "$(text_loss floats --dtype bf16)"
check 'stacks, as published' grep -aq '"model.layers.0.mlp.experts.gate_up_proj": ' floats/model.safetensors

# one prompt past the windows, at once and token by token; alone and in a batch
written() { nibble generate "$mixture" -f prompt.txt -n 60 "$@" 2>/dev/null; }
head -c 1200 "$MODEL/heldout.txt" >prompt.txt
alone=$(written --temp 0 --lookup 0)
check 'it writes' [ ${#alone} -gt 100 ]
equal 'prompt lookup changes no token' "$alone" "$(written --temp 0 --lookup 7)"
equal "nibble-tales's drafts change no token" "$alone" "$(written --temp 0 --lookup 0 --draft "$MODEL")"
equal 'nor sampled ones' "$(written --temp 0.9 --seed 5 --lookup 0)" "$(written --temp 0.9 --seed 5 --lookup 0 --draft "$MODEL")"

if nibble devices opencl >/dev/null 2>&1; then
    head -c 1500 "$MODEL/heldout.txt" >text.txt
    for recipe in bf16 int4wo; do
        near "$recipe by OpenCL" "$(text_loss "$mixture" --recipe $recipe)" "$(text_loss "$mixture" --recipe $recipe --device opencl)"
    done
else
    skipped 'the mixture by OpenCL' 'no OpenCL device'
fi
