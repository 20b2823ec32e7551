# SPDX-License-Identifier: Apache-2.0
#
# A model on an OpenCL device (PoCL in CI): the whole step on the device, layers and operations on both sides; a masked
# operation runs on the host only if allowed, with its cost.
if ! nibble devices opencl >device.txt 2>"$seen.err"; then
    skipped 'opencl' 'no OpenCL device'
    exit
fi
check 'nibble devices opencl names its host' grep -q 'host  *cpu: layers may run there with --allow device' device.txt

loss() { text_loss "$MODEL" "$@"; }
head -c 800 "$MODEL/heldout.txt" >text.txt
summary() { nibble generate "$MODEL" -p 'Once upon a time' -n 4 --temp 0 "$@" 2>&1 >/dev/null | tail -n 1; }

# the whole step on the device: the loss equals the CPU's within the device's rounding
for recipe in '' int8wo 8da4w int8dq int4wo int4wo-intzero fp8wo mxfp8; do
    sampled 2 || continue
    option=()
    [ -z "$recipe" ] || option=(--recipe "$recipe")
    near "${recipe:-bf16}" "$(loss "${option[@]}")" "$(loss --device opencl "${option[@]}")"
done
case $(summary --device opencl --recipe 8da4w) in
*'36 done on opencl/ocl, 0 substituted') ;;
*) check 'no layer is substituted on the device' false ;;
esac

# families with another order of operations, or with more operations
for family in olmo2 gemma2 cohere2 starcoder2; do
    sampled 2 || continue
    model=(--recipe weight-only --tokenizer "$REPO/tests/golden/gguf/olmo2.gguf")
    near "$family" "$(MODEL=$REPO/tests/golden/gguf/$family.gguf loss "${model[@]}")" \
        "$(MODEL=$REPO/tests/golden/gguf/$family.gguf loss "${model[@]}" --device opencl)"
done

# some layers on the device, some on the host
near 'down_proj on the device' "$(loss --dtype f32)" "$(loss --dtype f32 --place '*down_proj=opencl')"
near 'head and q_proj on the CPU' "$(loss --dtype f32)" \
    "$(loss --dtype f32 --device opencl --place lm_head=cpu --place '*q_proj=cpu')"
refused 2 '--place *: this plan has only the device cpu' plan "$MODEL" --place '*down_proj=opencl:9'

# one operation masked: refused before the first token, or run on the host with its cost reported
masked=(--device opencl --without 'attn_*__ocl*')
refused 4 'attn: asked f32@opencl, but nothing allowed does it: attn_f32__ocl: this run lacks this kernel: --without leaves it out*; --allow '"'"'attn=device'"'"': done f32@cpu by attn_*; 20 more copies of 10.2 kB per token *' \
    generate "$MODEL" -p x -n 2 "${masked[@]}" --quiet
near 'attention on the CPU' "$(loss --dtype f32)" "$(loss --dtype f32 "${masked[@]}" --allow device)"
case $(summary "${masked[@]}" --allow device) in
*'0 substituted; 1 operation without weights not as asked') ;;
*) check 'the summary counts attention as not as asked' false ;;
esac
refused 4 'attn: asked f32@opencl, but nothing allowed does it: attn_f32__ocl: the KV cache type is int8, not one of f32, f16, bf16: it keeps keys and values as floats*' \
    generate "$MODEL" -p x -n 2 --device opencl --cache-type int8 --quiet
near 'attention over an int8 cache on the CPU' "$(loss --dtype f32 --cache-type int8)" "$(loss --dtype f32 --device opencl --cache-type int8 --allow device)"
refused 4 'attn: --strict: *' generate "$MODEL" -p x -n 2 "${masked[@]}" --allow device --strict --quiet
refused 2 '--without attn_f32__oc: no kernel matches; did you mean attn_f32__ocl*' plan "$MODEL" --without attn_f32__oc
refused 2 'device "opencll" is not known; did you mean opencl; here: cpu, opencl; known: *' generate "$MODEL" -p x --device opencll

# the device samples the CPU's tokens from the same logits
drawn() { nibble generate "$MODEL" -p 'Once upon a time' -n 24 --device opencl "$@" 2>drawn.err; }
for how in '--temp 0' '--temp 1 --top-k 50 --seed 3' '--temp 0.7 --top-k 256 --top-p 0.9 --min-p 0.02'; do
    read -ra how <<<"$how"
    there=$(drawn "${how[@]}")
    check "${how[*]}: sampled on the device" grep -q '^drawn by    sample_f32__ocl' drawn.err
    here=$(drawn "${how[@]}" --without 'sample_f32__ocl*')
    check "${how[*]}: sampled on the CPU" grep -q '^drawn by    sample_f32__ref' drawn.err
    check "${how[*]}: device and CPU sample the same tokens" test "$there" = "$here"
done
drawn --top-k 0 >all.txt
check '--top-k 0: the copied logits and the reason are reported' grep -q '9.0 kB of logits copied per token, .* predicted: .*sample_f32__ocl: .*top-k' drawn.err
drawn --repeat-penalty 1.1 >penalized.txt
check '--repeat-penalty: the copied logits and the reason are reported' grep -q 'of logits copied per token, .* predicted: .*repetition penalty' drawn.err
echo '{"type": "boolean"}' >bool.json
drawn --schema bool.json >bool.txt
check '--schema: the copied logits and the reason are reported' grep -q 'of logits copied per token, .* predicted: the tokens that a schema allows are chosen on the CPU' drawn.err
check '--schema: the output is a boolean' grep -Eq '^ *(true|false) *$' bool.txt
nibble plan "$MODEL" --device opencl >plan.txt 2>&1
check 'the plan copies one token, not its logits' grep -q 'note: 1 copy of 4 B per token' plan.txt

# weights packed on the device equal those packed on the host
packed() { nibble plan "$1" --device opencl "${@:2}" 2>/dev/null | grep -A 1 '^note: packed' | tr -s '\n ' ' '; }
case $(packed "$MODEL" --recipe 8da4w) in
*'37 weights on opencl by pack__ocl, '*' as stored; '*' predicted with the copies '*) ;;
*) check 'all weights are packed on the device' false ;;
esac
case $(packed "$MODEL" --recipe 8da4w --without pack__ocl) in
*'37 on the host because no kernel of opencl reads them as stored, '*) ;;
*) check 'without pack__ocl all weights are packed on the host' false ;;
esac
there=$(drawn --recipe 8da4w --temp 0)
check 'packing on device or host gives the same text' test "$there" = "$(drawn --recipe 8da4w --temp 0 --without pack__ocl)"
nibble quantize "$MODEL" blocks.gguf --recipe int4wo-sym-ggml --format gguf --quiet >quantized.txt
case $(packed blocks.gguf) in
*' 1 weight on opencl by pack__ocl, '*'; 36 on the host because no kernel of opencl reads them as stored, '*) ;;
*) check "GGUF blocks are packed on the host:  $(packed blocks.gguf)" false ;;
esac
