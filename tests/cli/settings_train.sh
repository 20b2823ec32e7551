# SPDX-License-Identifier: Apache-2.0
#
# What could be silent (tests/SILENT.md) in training and in plans for other machines: keys that do less than requested, options
# that override keys, a resumed run, data, variables of run_train.sh, and machine files.
config=$REPO/configs/llama3_debugmodel.json
tiny=(--model.dim 64 --model.n_layers 1 --model.n_heads 2 --model.n_kv_heads 2 --training.local_batch_size 1 --training.seq_len 16)
quiet=(--job.dump_folder out --metrics.path metrics.jsonl --quiet)

# rates STEPS OPTION...: the learning rates of a run as fractions of the highest, to four places
rates() {
    rm -rf out
    nibble train "$config" "${tiny[@]}" "${quiet[@]}" --optimizer.lr 1 --training.steps "$@" >log 2>err
    python3 -c 'import json; print(*("%.4f" % s["rate"] for s in map(json.loads, open("out/metrics.jsonl")) if "loss" in s))'
}

# the schedule is shortened to fit the run as in torchtitan, with a line
equal 'learning rates: a warm-up longer than the run' '0.3333 0.6667 1.0000' "$(rates 3 --lr_scheduler.warmup_steps 10)"
equal 'learning rates: a decay longer than the run' '0.5000 1.0000 1.0000' "$(rates 3)"
setting 'in part: lr_scheduler.warmup_steps 10 (option): shortened to the steps of the run' plan "$config" --training.steps 3 --lr_scheduler.warmup_steps 10
setting 'in part: lr_scheduler.decay_ratio 0.8 (config): 1 of 3 steps are left for the decay' plan "$config" --training.steps 3
check '--strict accepts a shortened schedule' nibble plan "$config" --training.steps 3 --strict
equal 'a schedule that fits is not reported' '' "$(settings plan "$config" --training.steps 10)"
setting 'without effect: lr_scheduler.decay_type "sqrt" (option): no step of this run decays' plan "$config" --lr_scheduler.decay_ratio 0 --lr_scheduler.decay_type sqrt
refused 2 '--lr_scheduler.decay_ratio is given twice, as null and as 0.5' plan "$config" --lr_scheduler.decay_ratio null --lr_scheduler.decay_ratio 0.5

# keys that another key makes ineffective
setting 'without effect: checkpoint.export_dtype "float16" (option): no model is written' plan "$config" --checkpoint.export_dtype float16
equal 'export_dtype with last_save_in_hf is not reported' '' "$(settings plan "$config" --checkpoint.export_dtype float16 --checkpoint.last_save_in_hf)"
check '--strict accepts export_dtype with --export' nibble train "$config" "${tiny[@]}" "${quiet[@]}" --checkpoint.export_dtype float16 --training.steps 10 --export half --strict
check '--export writes export_dtype' grep -q '"F16"' half/model.safetensors
setting 'without effect: checkpoint.folder "elsewhere" (option): checkpoint.enable is not set' plan "$config" --checkpoint.folder elsewhere
equal 'checkpoint.folder with last_save_in_hf is not reported' '' "$(settings plan "$config" --checkpoint.folder elsewhere --checkpoint.last_save_in_hf)"
setting 'without effect: model.multiple_of 64 (option): model.hidden_dim is given' plan "$config" --model.multiple_of 64 --model.hidden_dim 100
equal "hidden_dim overrides the file's multiple_of without a line" '' "$(settings plan "$config" --model.hidden_dim 100)"
setting 'without effect: quantize.wgrad_with_hp true (option): no linear layer has quantized products' plan "$config" --quantize.wgrad_with_hp
refused 3 '*: float8.recipe_name asks for gradients of weights in bf16, and quantize.wgrad_with_hp is false; keep one' plan "$config" --model.converters float8 --float8.recipe_name rowwise_with_gw_hp --quantize.wgrad_with_hp=false
setting 'without effect: recipe {"recipe_name": "mxfp8", "filter_fqns": ["output", "layers"]} (config): it quantizes no layer' plan "$config" --model.converters mx --mx.filter_fqns output,layers
cp "$config" whole.json
edit whole.json 'd["quantize"] = {"linear:a8w4dq": {"groupsize": 32}}; d["model"].pop("tokenizer_path")'
refused 3 "*: the section quantize is another tool's config, which is complete by itself; *" plan whole.json --quantize.skip lm_head

# keys that request the default behaviour have no line: those of torchtitan's own files
cp "$config" usual.json
edit usual.json 'd["parallelism"] = {"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "fsdp_reshard_after_forward": "default", "tensor_parallel_degree": 1, "pipeline_parallel_schedule": "1F1B"}; d["checkpoint"].update(async_mode="disabled"); d["profiling"] = {"enable_profiling": False, "save_traces_folder": "traces", "profile_freq": 100}; d["metrics"].update(enable_tensorboard=False, save_tb_folder="tb"); d["compile"] = {"enable": False, "components": ["model"]}'
equal "torchtitan's defaults on one rank are not reported" '' "$(settings plan usual.json)"
check "--strict accepts torchtitan's defaults" nibble plan usual.json --strict
setting 'equivalent: checkpoint.async_mode "async" (option)' plan usual.json --checkpoint.async_mode async
setting 'without effect: profiling.profile_freq 100 (config): no profiler' plan usual.json --profiling.enable_profiling
setting 'not as asked: parallelism.data_parallel_shard_degree 2 (option): this run has 1 rank; start 2 with `mpirun -n 2 nibble train`' plan "$config" --parallelism.data_parallel_shard_degree 2
setting 'parallelism.data_parallel_shard_degree 2 (option): this run has 1 rank; start 6 with `mpirun -n 6 nibble train`' plan "$config" --parallelism.data_parallel_shard_degree 2 --parallelism.data_parallel_replicate_degree 3

# options that override keys
setting 'not as asked: training.mixed_precision_param f32 (option): --dtype bf16 overrules it' bench --train "$config" "${tiny[@]}" --repeats 1 --training.mixed_precision_param float32 --dtype bf16 --allow kernel --recipe fp8dq
setting "not as asked: model.tokenizer_path $REPO/configs/tokenizer (config): --tokenizer $MODEL overrules it" plan "$config" --tokenizer "$MODEL"
denied 'model.tokenizer_path *' plan "$config" --tokenizer "$MODEL" --strict
equal "--dtype with the config's type is not reported" '' "$(settings plan "$config" --dtype bf16)"
refused 2 '--context 8 has no effect in training, *' plan "$config" --context 8
refused 2 '--memory has no effect in training on the CPU; *' plan "$config" --memory 1KB
refused 2 '--prompt-tokens has no effect with --train' bench --train "$config" --prompt-tokens 7
refused 2 '--max-tokens has no effect with --train' bench --train "$config" -n 7
refused 4 'the plan is for h100, which is not this machine: *' bench --train "$config" --device h100

# training settings in a model's config
cp -r "$MODEL" dropping
edit dropping/config.json 'd.update(attention_dropout=0.1, initializer_range=0.02)'
echo '{"model": {"hf_config": "dropping"}}' >hf.json
setting 'not as asked: attention_dropout 0.1 (config): training uses no dropout' plan hf.json --training.seq_len 64
setting 'not as asked: initializer_range 0.02 (config): weights are initialized as in torchtitan' plan hf.json --training.seq_len 64
equal 'loaded weights: initializer_range is not reported' 'config-key=other' "$(settings plan hf.json --training.seq_len 64 --checkpoint.initial_load_path "$MODEL")"
edit dropping/config.json 'd.update(attention_dropout=0.0)'
equal 'attention_dropout 0 is not reported' '' "$(settings plan hf.json --training.seq_len 64 --checkpoint.initial_load_path "$MODEL")"
equal 'keys of training are not reported by a plan to generate' '' "$(settings plan dropping)"

# start-up keys have no effect in a resumed run
run=("${tiny[@]}" --job.dump_folder saved --checkpoint.enable --lr_scheduler.decay_ratio 0.3)
check 'train with checkpoints' nibble train "$config" "${run[@]}" --training.steps 4 --quiet --export first
setting 'without effect: training.seed 7 (option): training resumes from a checkpoint of a run that had 0' train "$config" "${run[@]}" --training.steps 5 --training.seed 7
denied 'checkpoint.initial_load_path "first" (option): training resumes from a checkpoint of a run *' train "$config" "${run[@]}" --training.steps 6 --checkpoint.initial_load_path first --strict
check 'resume with --strict --allow training-key' nibble train "$config" "${run[@]}" --training.steps 6 --training.seed 7 --strict --allow training-key

# JSON lines may be in .json files too, like torchtitan's c4_test
for i in 1 2 3 4 5 6; do echo "{\"id\": $i, \"text\": \"Once upon a time there was a king who had $i daughters and no son\"}"; done >lines.jsonl
cp lines.jsonl lines.json
for end in jsonl json; do
    rm -rf out
    check "train on lines.$end" nibble train "$config" "${tiny[@]}" "${quiet[@]}" --training.steps 2 --training.dataset_path "lines.$end"
    grep -o '"loss": [^,]*' out/metrics.jsonl >"of_$end"
done
check 'lines.jsonl and lines.json give the same losses' cmp of_jsonl of_json
printf '[{"text": "a"}]' >array.json
refused 3 'array.json: line 1, column 1: expected an object, found an array' train "$config" "${tiny[@]}" "${quiet[@]}" --training.steps 10 --training.dataset_path array.json

# torchtitan's configs in TOML
printf '[model]\nname = "llama3"\nflavor = "debugmodel"\n' >torchtitan.toml
refused 3 'torchtitan.toml: a training config is read as JSON, with the sections and keys of TOML: python3 *' plan torchtitan.toml

# torchtitan's variables
line() { # line GLOB VARIABLE...: the output of run_train.sh with these variables matches
    local glob=$1 said
    shift
    said=$(env NIBBLE="$NIBBLE" "$@" "$REPO/run_train.sh" --training.steps 1 2>&1)
    # shellcheck disable=SC2053 # a glob is meant
    [[ $said == $glob ]] || { failures=$((failures + 1)); echo "FAIL wanted $glob; got $said: $*"; }
}
line 'run_train.sh: LOG_RANK is "1"; *' LOG_RANK=1
line 'run_train.sh: TRAIN_FILE is "mine.train"; *' TRAIN_FILE=mine.train
line 'run_train.sh: CONFIG is "llama3_debugmodel", *' CONFIG=llama3_debugmodel
line 'nibble: --comm.mode is "fake_backend"; *' COMM_MODE=fake_backend NGPU=1
check "run_train.sh accepts torchtitan's own values" env NIBBLE="$NIBBLE" LOG_RANK=0 TRAIN_FILE=torchtitan.train COMM_MODE= "$REPO/run_train.sh" "${tiny[@]}" "${quiet[@]}" --training.steps 1

# options for this machine's CPU have no effect in plans for other machines
setting 'without effect: --threads 4 (option): the plan is for xeon-spr, not for this machine' plan "$MODEL" --device xeon-spr --threads 4
setting 'without effect: --isa avx2 (option): the plan is for xeon-spr, not for this machine' plan "$MODEL" --device xeon-spr --isa avx2
denied '--threads 4 (option): *' plan "$MODEL" --device xeon-spr --threads 4 --strict
equal 'a plan for another machine without these options' '' "$(settings plan "$MODEL" --device xeon-spr)"

# a machine file that contradicts itself
machine() { # machine FILE PYTHON: writes the machine file of an MI210, changed
    nibble devices mi210 --json >"$1"
    edit "$1" "$2"
}
machine host.json 'd["host"] = "h100"'
refused 3 './host.json: its host "h100" is a GPU; it must be a CPU' plan "$MODEL" --device ./host.json
machine sm.json 'd["facts"]["sm"] = {"value": 90, "source": "sheet"}'
refused 3 './sm.json: sm is a fact of NVIDIA GPUs, *' plan "$MODEL" --device ./sm.json
machine cdna.json 'd["facts"]["maker"]["value"] = "intel"'
refused 3 './cdna.json: cdna is a fact of AMD GPUs, *' plan "$MODEL" --device ./cdna.json
machine isa.json 'd["facts"]["isa"] = {"value": ["avx2"], "source": "sheet"}'
refused 3 './isa.json: isa is a fact of CPUs, *' plan "$MODEL" --device ./isa.json
machine fp8.json 'd["rates"]["fp8"] = {"value": 1e15, "source": "sheet"}'
refused 3 './fp8.json: it has the rate fp8, but fp8_unit is false' plan "$MODEL" --device ./fp8.json
machine cpu.json 'pass'
refused 2 './cpu.json: a machine is named after its file, and "cpu" is taken; *' plan "$MODEL" --device ./cpu.json
