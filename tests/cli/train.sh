# SPDX-License-Identifier: Apache-2.0
#
# nibble train: configs, their keys as options, run_train.sh, and errors before the first step.
configs=$REPO/configs
debug=$configs/llama3_debugmodel_mxfp8_vocab2256.json
small=(--training.local_batch_size 1 --training.seq_len=32 --training.steps 2)

# says WHAT GLOB FILE: some line of the file matches
says() {
    local line
    while IFS= read -r line; do
        # shellcheck disable=SC2053 # a glob is meant
        [[ $line == $2 ]] && return
    done <"$3"
    failures=$((failures + 1))
    echo "FAIL $1: no line is $2"
    tail -n 3 "$3"
}

# every shipped config is planned, for this machine and for another
for config in "$configs"/llama3_*.json; do
    check "plan of $config" nibble plan "$config" --quiet
    check "plan of $config for a B200" nibble plan "$config" --device b200 --allow dequant
done

# configs of the debug model train
for name in '' _mxfp8 _fp8 _mxfp8_vocab2256 _qat_8da4w; do
    check "train llama3_debugmodel$name" nibble train "$configs/llama3_debugmodel$name.json" "${small[@]}"
    says "llama3_debugmodel$name logs two steps" 'step:  2  loss: *  grad_norm: *  memory: *GiB(*%)  tps: *  tflops: *  mfu: *%' "$seen.out"
    says "the summary of llama3_debugmodel$name" '43 linear layers: *43 done on *, 0 substituted' "$seen.err"
done

# quantization-aware training exports a quantized model
check 'the exported quantized model runs' nibble generate outputs/checkpoint/model-quantized -p 'Once' -n 4
rm -rf outputs

# a dry run takes no step and writes nothing
rm -rf outputs # the exported model of quantization-aware training
check 'train --dry-run' nibble train "$debug" "${small[@]}" --dry-run
says 'the dry run lists lm_head' 'lm_head: 1 of n 2256, k 256, m 32, mxfp8-floor' "$seen.out"
grep -q '^step:' "$seen.out" && echo 'FAIL a dry run takes no step' && failures=1
[ -z "$(ls)" ] || { echo "FAIL a dry run writes nothing: $(ls)" && failures=1; }

check 'dry run with --kernel for one layer' nibble train "$configs/llama3_debugmodel.json" "${small[@]}" --dry-run \
    --kernel model.layers.0.self_attn.q_proj=linear_bf16_bf16_f32__ref
says 'the dry run lists the layer of --kernel' 'model.layers.0.self_attn.q_proj: 1 of n 256, k 256, m 32, bf16' "$seen.out"
says 'the dry run lists the kernel of --kernel' '  y * linear_bf16_bf16_f32__ref' "$seen.out"
says 'the dry run lists the other layers together' 'model.layers.0.self_attn.k_proj: 23 of n 256, k 256, m 32, bf16' "$seen.out"

# torchtitan's command line, verbatim and shortened
line=(--model.print_after_conversion --training.compile --training.steps 2 --model.converters mx --mx.recipe_name "mxfp8")
check "torchtitan's command line" env NGPU=1 "$REPO/run_train.sh" "${line[@]}" --mx.filter_fqns "output" "${small[@]:0:3}"
says 'filter_fqns keeps the output layer' '* lm_head * bf16@cpu * as asked (filter_fqns "output")' "$seen.out"
says 'the plan comes before the steps' 'step:  1  loss: *' <(sed '/lm_head/,$!d' "$seen.out")
check "torchtitan's command line without filter_fqns" env NGPU=1 "$REPO/run_train.sh" "${line[@]}" "${small[@]:0:3}"
says 'without filter_fqns the output layer is converted' '* lm_head * mxfp8-floor@cpu * as asked (recipe_name)' "$seen.out"
says 'the summary counts 43 layers in mxfp8-floor' '43 linear layers: 43 asked mxfp8-floor*' "$seen.err"
check 'run_train.sh with CONFIG_FILE' env CONFIG_FILE="$configs/llama3_debugmodel.json" "$REPO/run_train.sh" "${small[@]}"
says 'run_train.sh uses CONFIG_FILE' '43 linear layers: 43 asked bf16*' "$seen.err"
NGPU=four "$REPO/run_train.sh" 2>"$seen.err" && echo 'FAIL NGPU=four is refused' && failures=1
says 'the error of NGPU=four' 'run_train.sh: NGPU is "four"; a number of ranks from 1 to 9999 is wanted' "$seen.err"

# a step is the same whether its keys come from options or the file
echo '{"model": {"flavor": "debugmodel", "n_layers": 1, "tokenizer_path": "tok"}, "training": {"dataset_path": "t.txt",
"local_batch_size": 2, "seq_len": 16, "steps": 1}}' >a.json
ln -s "$configs/tokenizer" tok
printf 'once upon a time there was a wolf %.0s' {1..40} >t.txt
first=$(nibble train a.json --model.converters mx 2>/dev/null | grep -o 'loss: *[0-9.]*  grad_norm: *[0-9.]*')
mkdir b
sed 's/"tok"/"..\/tok"/; s/"t.txt"/"..\/t.txt"/; s/"n_layers": 1/"n_layers": 1, "converters": ["mx"]/' a.json >b/b.json
second=$(nibble train b/b.json 2>/dev/null | grep -o 'loss: *[0-9.]*  grad_norm: *[0-9.]*')
[ -n "$first" ] && [ "$first" = "$second" ] || { echo "FAIL keys from options or the file give the same step: $first, $second" && failures=1; }

# wgrad_with_hp has an effect only with quantized products
check 'plan with wgrad_with_hp' nibble plan a.json --quantize.wgrad_with_hp
says 'wgrad_with_hp without quantized products is reported' 'without effect: quantize.wgrad_with_hp true (option): no linear layer has quantized products' "$seen.out"
check 'plan with wgrad_with_hp and QAT' nibble plan a.json --quantize.wgrad_with_hp --quantize.recipe=8da4w-g32 --quantize.qat
says 'wgrad_with_hp with QAT is reported' 'without effect: quantize.wgrad_with_hp true (option): no linear layer has quantized products*' "$seen.out"
check 'plan with wgrad_with_hp and mxfp8' nibble plan a.json --quantize.wgrad_with_hp --quantize.recipe=mxfp8
grep -q wgrad_with_hp "$seen.out" && echo 'FAIL wgrad_with_hp with mxfp8 is not reported' && failures=1

# a model by its config.json: biases, tied embeddings, grouped heads, scaled positions
mkdir qwen
cat >qwen/config.json <<'END'
{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu",
 "tie_word_embeddings": true, "rope_theta": 10000, "rope_scaling": {"rope_type": "linear", "factor": 2}}
END
echo '{"model": {"hf_config": "qwen", "tokenizer_path": "tok"}, "training": {"dataset_path": "t.txt", "local_batch_size": 2,
"seq_len": 16, "steps": 2}}' >qwen.json
check 'train a Qwen2 model' nibble train qwen.json
says 'the Qwen2 model takes two steps' 'step:  2  loss: *' "$seen.out"
# a tied embedding is initialized like an output layer; as an embedding its first loss would be 60
says 'first loss of the Qwen2 model' 'step:  1  loss:  [789].*' "$seen.out"
check 'plan the Qwen2 model' nibble plan qwen.json
says 'the plan of the Qwen2 model has biases' '* model.layers.\*.self_attn.q_proj * 64x64 +b*' "$seen.out"
check 'train from the shipped model' nibble train qwen.json --model.hf_config "$MODEL" \
    --checkpoint.initial_load_path "$MODEL" --model.tokenizer_path "$MODEL" --training.dataset_path "$MODEL/heldout.txt"
refused 3 '*: the model*s layers differ from the config*' train qwen.json --checkpoint.initial_load_path "$MODEL"
# half as many heads of twice the width give weights of the same sizes
mkdir heads
sed 's/"num_attention_heads": 14/"num_attention_heads": 7/; s/"num_key_value_heads": 2/"num_key_value_heads": 1/' \
    "$MODEL/config.json" >heads/config.json
refused 3 "*: a head has 16 channels, but the config's has 32" train qwen.json --model.hf_config heads \
    --checkpoint.initial_load_path "$MODEL" --model.tokenizer_path "$MODEL" --training.dataset_path "$MODEL/heldout.txt"
refused 3 'gemma4_text: a model whose layers share keys and values, or have inputs of their own, runs, but cannot be trained yet' train qwen.json --model.hf_config "$REPO/tests/golden/models/gemma4_shared"
for family in qwen3_moe gemma4; do
    refused 3 '*: a mixture of experts trains on the CPU only, not on h200; *' plan qwen.json --model.hf_config "$REPO/tests/golden/models/$family" --device h200
done
refused 3 '*: model.dim and model.hf_config both define the model; keep one' train qwen.json --model.dim 64
refused 6 'nowhere/config.json: *' train qwen.json --model.hf_config nowhere/config.json

# validation loss
sed 's/"seq_len": 16/"seq_len": 8/' a.json >valid.json
check 'train with validation' nibble train valid.json --validation.enable --validation.dataset_path t.txt --validation.freq 1 --validation.steps=-1
says 'the validation loss is logged' 'validate step: *1  loss: *' "$seen.out"
refused 3 '*validation.enable is set, but validation.dataset_path names no text' train a.json --validation.enable
refused 3 '*the tokenizer has id 2000 (*), but the model has 2000 ids; train with the model*s tokenizer, or a model of 2048 ids' \
    train a.json --model.vocab_size=2000

# keys
refused 2 '--training.step: there is no such key of a training config; did you mean training.steps' train a.json --training.step 5
refused 2 '--training.steps is "ten"; a whole number from 1 to * is expected' train a.json --training.steps ten
refused 2 '--training.steps is nothing; *' train a.json --training.steps
refused 2 '--training.compile is "a.json"; true or false is expected' train a.json --training.compile a.json
refused 2 '--parallelism.tensor_parallel_degree is "2"; only 1 is supported; *' train a.json --parallelism.tensor_parallel_degree=2
refused 2 '--training.steps=5 overrides a key of a training config, but * is a model' plan "$MODEL" --training.steps=5
refused 2 'unknown option --training.steps*' generate "$MODEL" --training.steps=5
refused 2 'pattern "outputs" matches no layer; did you mean output' train a.json --model.converters mx --mx.filter_fqns outputs
refused 2 '* is a model, not a training config' train "$MODEL"
refused 2 '`nibble train` needs CONFIG: a training config (.json)' train
refused 6 'nowhere.json: there is no such file or directory' train nowhere.json
sed 's/"steps"/"stepps"/' a.json >wrong.json
refused 3 'wrong.json: line 2, column *: "training.stepps" is not a key of a training config; did you mean training.steps' train wrong.json
sed 's/"steps": 1/"steps": 0/' a.json >wrong.json
refused 3 'wrong.json: line 2, column *: training.steps is 0; a whole number from 1 to *' train wrong.json

sed 's/"steps": 1}/"steps": 1}, "training": {"steps": 2}/' a.json >wrong.json
refused 3 'wrong.json: line 2, column *: section "training" is given twice' train wrong.json
refused 2 '--optimizer.beta1 is "1"; a number from 0 to 0.9999999 is expected' train a.json --optimizer.beta1=1
refused 2 '--checkpoint.dir: there is no such key of a training config; `nibble train --keys` lists them' train a.json --checkpoint.dir x
# a config may leave the model to options; without them the error names what is missing
sed 's/"model": *{[^}]*}, *//' a.json >wrong.json
refused 3 'wrong.json: model.dim is missing, *' train wrong.json
check 'train a model defined by options' nibble train wrong.json --model.flavor debugmodel --model.n_layers 1 --model.tokenizer_path tok
echo '{}' >wrong.json
refused 3 'wrong.json: "model_type" is missing; it names the architecture (a training config, *' train wrong.json

# the output directory is checked before the first step
refused 6 'nowhere/model.part: cannot create it: *' train a.json --export nowhere/model
refused 6 't.txt: exists already; *' train a.json --export t.txt
refused 6 't.txt: exists already; *' train a.json --export t.txt/
refused 2 'the directory of --export is empty; name one' train a.json --export ''
check 'export to a name that ends in a slash' nibble train a.json --export model/
check 'verify the exported model' nibble verify model

# outputs go below job.dump_folder, unless their path is absolute
check 'train with absolute paths for outputs' nibble train a.json --job.dump_folder=dump --checkpoint.enable --checkpoint.folder="$PWD/away" --metrics.path="$PWD/away.jsonl"
check 'verify the checkpoint in an absolute folder' nibble verify away/step-00000001
[ -s away.jsonl ] && [ ! -e dump ] || { echo "FAIL absolute paths are used: $(ls)" && failures=1; }

# data, vocabulary, batches
refused 6 'nothing.txt: *' train a.json --training.dataset_path nothing.txt
: >empty.txt
refused 3 'empty.txt holds no text to train on; *' train a.json --training.dataset_path empty.txt
sed 's/"dataset_path": "t.txt",//' a.json >wrong.json
refused 3 'training.dataset_path names no text to train on: *' train wrong.json
refused 3 '*the tokenizer has id*but the model has 100*' train a.json --model.vocab_size 100
refused 6 '*no tokenizer found; name one with --model.tokenizer_path FILE or DIR' train a.json --model.tokenizer_path b
refused 3 'training.global_batch_size 3 is not local_batch_size 2 times a power of two; 2 and 4 are' train a.json --training.global_batch_size 3
refused 3 '*training.seq_len 64 is over the model*s limit of 32 positions; raise model.max_seq_len' train a.json --model.max_seq_len 32 --training.seq_len 64

# the table of keys
check 'train --keys --json' nibble train --keys --json
python3 -c 'import json, sys; assert len(json.load(sys.stdin)["keys"]) > 100' <"$seen.out" || failures=1
refused 2 '--keys lists the keys of any config; leave out a.json, or --keys' train a.json --keys

# options without effect
refused 2 '--json needs --keys; --metrics.path=FILE writes *' train a.json --json
refused 2 '--markdown needs --keys; *' train a.json --dry-run --markdown
refused 2 '--dry-run trains nothing to export; leave out --export' train a.json --dry-run --export model2
refused 2 '--keys trains nothing; leave out --dry-run' train --keys --dry-run

# validation, cast losses, and a step that must be refused
rm -rf out
check 'train with validation and count_casts' nibble train "$debug" "${small[@]}" --job.dump_folder=out --metrics.path=m.jsonl \
    --metrics.count_casts --validation.enable --validation.dataset_path="$REPO/tests/data/heldout.jsonl" \
    --validation.freq=2 --validation.steps=2
says 'the validation loss of step 2 is logged' 'validate step:  2  loss: *  memory: *GiB(*%)  tps: *' "$seen.out"
says 'the casts of step 2 are logged' 'casts of step 2: lm_head * dy of dw mxfp8  nonzero *%  saturated *%  underflowed *%' "$seen.out"
says 'the metrics have the validation loss' '{"step": 2, "validation_loss": *' out/m.jsonl
says 'the metrics have the casts' '{"step": 2, "casts": \[{"layer": "model.layers.0.self_attn.q_proj", *' out/m.jsonl
nibble train "$debug" "${small[@]}" --optimizer.lr=900 --training.spike_factor=1.5 >"$seen.out" 2>"$seen.err"
[ $? -eq 8 ] || { echo 'FAIL exit status of a spike is 8' && failures=1; }
says 'the error of a spike' 'nibble: step 2: the loss of * is over 1.5 times its mean of *; the weights are unchanged' "$seen.err"
check 'train with skip_bad_steps' nibble train "$debug" "${small[@]}" --optimizer.lr=900 --training.spike_factor=1.5 \
    --training.skip_bad_steps
says 'the log shows the skipped step' 'step:  2 * skipped' "$seen.out"

# the folders of a run's models
check 'train a QAT config with --export' nibble train "$REPO/configs/llama3_debugmodel_qat_8da4w.json" "${small[@]:0:3}" --training.steps 1 --export qat --quiet
says 'the export is named' 'model: qat' "$seen.out"
says 'the quantized export is named' 'quantized model: qat-quantized' "$seen.out"
check 'the quantized export is written' test -e qat-quantized/nibble.json
