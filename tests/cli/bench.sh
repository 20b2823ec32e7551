# SPDX-License-Identifier: Apache-2.0
#
# nibble bench: the fields of its output, not their values.
nibble bench "$MODEL" --repeats 1 --prompt-tokens 16 -n 4 --json 2>err | members 'bench --json' schema=1 prefill_tokens_per_s=num decode_tokens_per_s=num peak_bytes=int \
    bandwidth_share=num arithmetic_share=num weight_bytes=int predicted_prefill_tokens_per_s=num predicted_decode_tokens_per_s=num \
    predicted_bytes=int device_bytes=0
check "the ledger's line is on stderr" grep -q '36 linear layers: 36 asked bf16, .* 0 substituted' err
nibble bench "$MODEL" --repeats 1 --prompt-tokens 16 -n 4 --recipe 8da4w >out 2>err
for word in 'prefill  *[0-9.]* tokens/s, [0-9]* % of [0-9]* GOP/s' 'decode  *[0-9.]* tokens/s, [0-9]* % of [0-9.]* GB/s' 'memory  *[0-9.]* MB weights' \
    'predicted  *[0-9.]* tokens/s prefill, [0-9.]* tokens/s decode, [0-9.]* MB'; do
    check "the report has: $word" grep -q "$word" out
done
check 'bench --operations' nibble bench "$MODEL" --operations --repeats 1 --prompt-tokens 16 -n 4
cp "$seen.out" operations
for word in 'a prompt of 16 tokens' 'operation  *layers  *ms/prompt .*' '4 new tokens, one by one' 'operation  *layers  *ms/token .*' \
    'linear  *output  *[0-9.]*  *[0-9.]* % .*' 'attn  *[0-9.]*  *[0-9.]* % .*'; do
    check "the report has: $word" grep -qx "$word *" operations
done
nibble bench "$MODEL" --operations --repeats 1 --prompt-tokens 16 -n 4 --json 2>err |
    members 'bench --operations --json' schema=1 prompt_tokens=16 new_tokens=4 'prefill[].operation=str' 'decode[].seconds=num' 'decode[].device="cpu"'

# batches, contexts, the comparison with floats, the first token, and the header
nibble bench "$MODEL" --repeats 2 --prompt-tokens 16 -n 4 --recipe 8da4w --batch 3 --sweep 0,32 --json 2>err | members 'bench --batch --sweep --json' schema=1 \
    batch.sequences=3 batch.tokens_per_s=num batch.each_tokens_per_s=num 'contexts[].positions=int' 'contexts[].empty_tokens_per_s=num' \
    'floats_name="bf16"' floats.decode_tokens_per_s=num cold_start.tokens=16 cold_start.first_token_s=num cold_start.plan_s=num \
    cold_start.tokenizer_s=num 'rounds[].own.decode_tokens_per_s=num' 'rounds[].floats.prefill_tokens_per_s=num' 'model="nibble-tales"' \
    'recipe="8da4w"' machine=str threads=int date=str cache_bytes=int file_bytes=int
nibble bench "$MODEL" --repeats 1 --prompt-tokens 16 -n 4 --recipe 8da4w --batch 3 --sweep 32,0 >out 2>err
for word in 'batch  *[0-9.]* tokens/s of 3 sequences together, [0-9.]* each, [0-9.]*x one alone' \
    'context  *[0-9.]* tokens/s after 32 positions, [0-9.]*x of [0-9.]* after none' ' *[0-9.]* tokens/s after 0 positions, .*' \
    'in bf16  *[0-9.]* tokens/s prefill, [0-9.]* tokens/s decode; above: [0-9.]*x and [0-9.]*x of these' \
    'cold start  [0-9.]* s to the first token of 16: program [0-9.]*, threads [0-9.]*, open [0-9.]*, plan [0-9.]*, weights [0-9.]*, tokenizer [0-9.]*, prompt [0-9.]*' \
    'memory  *[0-9.]* MB weights, [0-9.]* MB KV cache, [0-9.]* MB peak'; do
    check "the report has: $word" grep -qx "$word" out
done
check 'quantize to 8da4w' nibble quantize "$MODEL" codes --recipe 8da4w -q
nibble bench codes --repeats 1 --prompt-tokens 16 -n 4 >out 2>err
check 'the report says why floats are not timed' grep -qx 'in floats   not timed: .* is stored as 8da4w-g32; name the checkpoint of floats with --against' out
nibble bench codes --repeats 1 --prompt-tokens 16 -n 4 --against "$MODEL" >out 2>err
check 'floats named by --against are timed' grep -q '^in bf16  *[0-9.]* tokens/s prefill' out
nibble bench "$MODEL" --repeats 1 --prompt-tokens 16 -n 4 --recipe 8da4w --alone >out 2>err
check '--alone times no floats' test "$(grep -c '^in ' out)" = 0
refused 2 'codes: *is stored as 8da4w-g32; --against needs a checkpoint of floats only' bench codes --against codes
refused 2 '--sweep: "1,,2" is not a comma-separated list of numbers*' bench "$MODEL" --sweep 1,,2
refused 2 '--sweep: "1,x" is not a comma-separated list of numbers*' bench "$MODEL" --sweep 1,x
refused 2 '4 new tokens after 510 positions do not fit the context of 512*' bench "$MODEL" --sweep 510 -n 4
refused 2 'a batch of 600 sequences is not between 0 and 512' bench "$MODEL" --batch 600 -n 4 --prompt-tokens 4 --context 16
refused 2 '--batch has no effect with --kernels' bench --kernels --batch 2
refused 2 '--sweep has no effect with --operations' bench "$MODEL" --operations --sweep 0
refused 2 '--alone has no effect with --train' bench --train "$REPO/configs/llama3_debugmodel_mxfp8_vocab2256.json" --alone

# a peer, which runs in turn with nibble: here a script that imitates llama-bench and logs its options
check 'convert to GGUF' nibble convert codes q.gguf --format gguf -q
cat >peer <<'END'
#!/bin/sh
echo "$*" >>peer.log
echo "said while loading" >&2
echo "an engine that prints first"
echo '[{"build_commit": "abc", "model_type": "tales", "n_prompt": 16, "n_gen": 0, "avg_ts": 100.5},'
echo ' {"n_prompt": 0, "n_gen": 4, "avg_ns": 40000000}]'
END
printf '#!/bin/sh\necho "first" >&2; echo "error: unknown model" >&2; exit 1\n' >broken
printf '#!/bin/sh\necho "no json"\n' >other
chmod +x peer broken other
nibble bench codes --repeats 2 --prompt-tokens 16 -n 4 -t 2 --against "$MODEL" --peer ./peer --peer-model q.gguf >out 2>err
for word in 'peer        peer (abc, tales), 2 rounds in turn, 2 threads each' '  bf16  *[0-9.]*  *[0-9.]*' '  nibble  *[0-9.]*  *[0-9.]*  *[0-9.]* MB  *[0-9.]* MB' \
    '  peer  *100.5  *100.0  *[0-9.]* MB  *[0-9.]* MB' '  ratio  *[0-9.]*x  *[0-9.]*x  *[0-9.]*x  *[0-9.]*x' \
    '  read  *[0-9.]* GB/s: [0-9.]* and [0-9.]*, [0-9.]* and [0-9.]*, before and after each round'; do
    check "the report has: $word" grep -qx "$word" out
done
equal 'the options that the peer gets' '-m q.gguf -t 2 -p 16 -n 4 -r 1 -o json' "$(sort -u peer.log)"
equal 'the peer runs once in each round' 2 "$(wc -l <peer.log)"
nibble bench codes --repeats 1 --prompt-tokens 16 -n 4 --peer ./peer --peer-model q.gguf --json 2>err | members 'bench --peer --json' peer.prefill_tokens_per_s=100.5 \
    peer.decode_tokens_per_s=100 'peer_name="abc, tales"' peer_token_bytes=int peer_file_bytes=int 'rounds[].peer.decode_tokens_per_s=100' 'rounds[].read_gb_per_s=list'
check 'convert a mixture to GGUF' nibble convert "$REPO/models/nibble-tales-moe" moe.gguf --format gguf -q
nibble bench moe.gguf --repeats 1 --prompt-tokens 16 -n 4 --peer ./peer --peer-model moe.gguf --json 2>err | members 'a token reads 2 of 8 experts' peer_file_bytes=7997408 \
    peer_token_bytes=2727840
refused 1 './broken ended with status 1: error: unknown model' bench codes --repeats 1 --prompt-tokens 16 -n 4 --peer ./broken --peer-model q.gguf
refused 3 './other: its output has no JSON list; is it llama-bench*' bench codes --repeats 1 --prompt-tokens 16 -n 4 --peer ./other --peer-model q.gguf
refused 6 './gone: cannot start it: No such file or directory' bench codes --repeats 1 --prompt-tokens 16 -n 4 --peer ./gone --peer-model q.gguf
refused 2 '--peer PROGRAM and --peer-model FILE.gguf need each other; --peer-model is missing' bench codes --peer ./peer
refused 2 '--operations has no effect with --kernels' bench --kernels --operations
refused 2 '600 prompt and 4 new tokens do not each fit the context of 512*' bench "$MODEL" --prompt-tokens 600 -n 4
refused 2 '`nibble bench` needs MODEL, --kernels or --predict' bench
refused 2 'h100 is not present*' bench "$MODEL" --predict --device h100
refused 2 'layers are timed for inference, but this is the plan of a training step*' bench "$REPO"/configs/llama3_debugmodel.json --predict
refused 2 'mi210 is not present, so it cannot be measured' bench --predict --device mi210
refused 2 'a prompt of 9000 tokens is over the limit of 8192' bench --predict --prompt-tokens 9000
refused 2 '--kernels, --predict and --train exclude each other; give one' bench --kernels --predict
refused 2 '--recipe has no effect with --predict without MODEL' bench --predict --recipe 8da4w
refused 2 '--device has no effect with --kernels' bench --kernels --device opencl
refused 2 '1001 repeats are over the limit of 1000' bench --train "$REPO/configs/llama3_debugmodel_mxfp8_vocab2256.json" --repeats 1001
refused 2 '*/nibble-tales is a model, not a training config' bench --train "$MODEL"

refused 2 '--repeats has no effect with --predict' bench "$MODEL" --predict --repeats 3
nibble bench "$REPO"/configs/shapes/llama-3.2-1b --predict --prompt-tokens 17 --recipe 8da4w --only '*.self_attn.k_proj' --skip lm_head --json >shapes.json 2>err
members 'bench MODEL --predict --json' schema=1 device='"cpu"' 'times[].recipe=str' 'times[].kernel=str' 'times[].n=num' worst=num 'layers[].asked=str' <shapes.json
check 'each shape is timed once with each recipe' test "$(grep -c '"m": 17' shapes.json)" = 6
check '8da4w for k_proj, which --only names' test "$(grep -A 1 '"recipe": "8da4w-g32"' shapes.json | grep -c '"n": 512')" = 2

# measured and predicted layers: three shapes, four recipes, one token and a prompt
check 'bench --predict --json' nibble bench --predict --prompt-tokens 17 --json
cp "$seen.out" layers.json
members 'bench --predict --json' schema=1 device='"cpu"' 'times[].recipe=str' 'times[].predicted_us=num' 'times[].measured_us=num' worst=num <layers.json
check 'every shape is timed with every recipe' test "$(grep -c predicted_us layers.json)" = 24
refused 2 '--kernels times kernels without a model; leave out *nibble-tales, or --kernels' bench "$MODEL" --kernels

# steps of a training config
tiny=(--model.n_layers=1 --model.dim 64 --model.n_heads 4 --model.n_kv_heads 2 --training.seq_len=32 --training.local_batch_size=1)
debug=$REPO/configs/llama3_debugmodel_mxfp8_vocab2256.json
check 'bench --train' nibble bench --train "$debug" "${tiny[@]}" --repeats 1
grep -q '^linear_dw  *output ' "$seen.out" || { echo 'FAIL bench --train lists linear_dw of the output layer' && failures=1; }
check 'bench --train --json' nibble bench --train "$debug" "${tiny[@]}" --repeats 1 --json
grep -q '"tokens_per_step": 32,' "$seen.out" || { echo 'FAIL bench --train --json has 32 tokens_per_step' && failures=1; }

# results saved per chip
for file in "$REPO"/bench/*.json; do
    members "$(basename "$file")" schema=1 machine=str isa=str threads=int date=str model=str 'recipe=str|null' prefill_tokens_per_s=num \
        decode_tokens_per_s=num weight_bytes=int read_gb_per_s=num floats.decode_tokens_per_s=num batch.tokens_per_s=num \
        'contexts[].tokens_per_s=num' cold_start.first_token_s=num 'rounds[].own.decode_tokens_per_s=num' <"$file"
done
