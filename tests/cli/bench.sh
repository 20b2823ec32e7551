# SPDX-License-Identifier: Apache-2.0
#
# nibble bench: its fields; numbers are for people and docs/speed.md.
nibble bench "$MODEL" --repeats 1 --prompt-tokens 16 -n 4 --json 2>err | members bench schema=1 prefill_tokens_per_s=num decode_tokens_per_s=num peak_bytes=int \
    bandwidth_share=num arithmetic_share=num weight_bytes=int predicted_prefill_tokens_per_s=num predicted_decode_tokens_per_s=num \
    predicted_bytes=int device_bytes=0
check "the ledger's line" grep -q '36 linear layers: 36 asked bf16, .* 0 substituted' err
nibble bench "$MODEL" --repeats 1 --prompt-tokens 16 -n 4 --recipe 8da4w >out 2>err
for word in 'prefill  *[0-9.]* tokens/s, [0-9]* % of [0-9]* GOP/s' 'decode  *[0-9.]* tokens/s, [0-9]* % of [0-9.]* GB/s' 'memory  *[0-9.]* MB weights' \
    'predicted  *[0-9.]* tokens/s prefill, [0-9.]* tokens/s decode, [0-9.]* MB'; do
    check "in words: $word" grep -q "$word" out
done
check 'where the time goes' nibble bench "$MODEL" --operations --repeats 1 --prompt-tokens 16 -n 4
cp "$seen.out" operations
for word in 'a prompt of 16 tokens' 'operation  *layers  *ms/prompt .*' '4 new tokens, one by one' 'operation  *layers  *ms/token .*' \
    'linear  *output  *[0-9.]*  *[0-9.]* % .*' 'attn  *[0-9.]*  *[0-9.]* % .*'; do
    check "in words: $word" grep -qx "$word *" operations
done
nibble bench "$MODEL" --operations --repeats 1 --prompt-tokens 16 -n 4 --json 2>err |
    members operations schema=1 prompt_tokens=16 new_tokens=4 'prefill[].operation=str' 'decode[].seconds=num' 'decode[].device="cpu"'
refused 2 '--operations has no effect with --kernels' bench --kernels --operations
refused 2 '600 prompt and 4 new tokens do not each fit the context of 512*' bench "$MODEL" --prompt-tokens 600 -n 4
refused 2 '`nibble bench` wants MODEL, --kernels or --predict' bench
refused 2 '--predict times layers without a model; leave out *nibble-tales, or --predict' bench "$MODEL" --predict
refused 2 'mi210 is not here, so nothing of it can be measured' bench --predict --device mi210
refused 2 'a prompt of 9000 tokens is over the limit of 8192' bench --predict --prompt-tokens 9000
refused 2 '--kernels, --predict and --train each time something else; give one' bench --kernels --predict
refused 2 '--recipe has no effect with --predict' bench --predict --recipe 8da4w
refused 2 '--device has no effect with --kernels' bench --kernels --device opencl

# layers beside what is predicted of them: three shapes, four recipes, one token and a prompt
check 'layers are timed' nibble bench --predict --prompt-tokens 17 --json
cp "$seen.out" layers.json
members layers schema=1 device='"cpu"' 'layers[].recipe=str' 'layers[].predicted_us=num' 'layers[].measured_us=num' worst=num <layers.json
check 'each shape and recipe' test "$(grep -c predicted_us layers.json)" = 24
refused 2 '--kernels times kernels without a model; leave out *nibble-tales, or --kernels' bench "$MODEL" --kernels

# steps of a training config
tiny=(--model.n_layers=1 --model.dim 64 --model.n_heads 4 --model.n_kv_heads 2 --training.seq_len=32 --training.local_batch_size=1)
debug=$REPO/configs/llama3_debugmodel_mxfp8_vocab2256.json
check 'bench --train' nibble bench --train "$debug" "${tiny[@]}" --repeats 1
grep -q '^linear_dw  *output ' "$seen.out" || { echo 'FAIL no product of the output layer' && failures=1; }
check 'bench --train --json' nibble bench --train "$debug" "${tiny[@]}" --repeats 1 --json
grep -q '"tokens_per_step": 32,' "$seen.out" || { echo 'FAIL tokens_per_step' && failures=1; }
