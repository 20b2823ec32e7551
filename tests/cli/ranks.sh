# SPDX-License-Identifier: Apache-2.0
#
# Ranks: any number of ranks and threads gives the same losses, weights and moments; if a rank is killed, stops or fails, the
# run ends with an error that names it, and no process is left.
refused 4 '4 ranks are asked for, but this is one process; start it with `mpirun -n 4 nibble train ...`*' train c.json --ranks 4
if ! command -v mpirun >/dev/null; then
    skipped 'ranks' 'no mpirun (apt-get install openmpi-bin)'
    exit
fi
# containers run as root; there may be fewer cores than ranks
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

cat >c.json <<END
{"model": {"name": "llama3", "flavor": "debugmodel", "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2,
           "vocab_size": 2048, "multiple_of": 32, "norm_eps": 1e-5, "rope_theta": 10000, "max_seq_len": 64,
           "tokenizer_path": "$REPO/configs/tokenizer/tokenizer.json", "converters": ["mx"]},
 "training": {"dataset_path": "$REPO/tests/data/corpus.jsonl", "local_batch_size": 1, "global_batch_size": 8,
              "seq_len": 64, "steps": 4},
 "mx": {"recipe_name": "mxfp8", "filter_fqns": []},
 "checkpoint": {"enable": true, "interval": 2},
 "metrics": {"log_freq": 1}}
END

# train RANKS FOLDER ARGUMENT...: writes the log without measured values to FOLDER.lines
train() {
    local ranks=$1 folder=$2 status=0
    shift 2
    timeout 60 mpirun -n "$ranks" "$NIBBLE" train "${config:-c.json}" --quiet --ranks "$ranks" --job.dump_folder "$PWD/$folder" "$@" \
        >"$folder.out" 2>"$folder.err" || status=$?
    sed 's/  memory:.*//' "$folder.out" >"$folder.lines"
    return $status
}
check 'replicate degree 2 on 2 ranks is as asked' train 2 replicas --parallelism.data_parallel_replicate_degree 2 --strict --training.steps 1
check 'shard degree -1 is accepted by --strict' train 2 open --parallelism.data_parallel_shard_degree=-1 --strict --training.steps 1
mpirun -n 2 "$NIBBLE" train c.json --job.dump_folder "$PWD/open" --parallelism.data_parallel_shard_degree=-1 --training.steps 1 >open.out 2>open.err
check 'shard degree -1 is reported as in part' grep -q 'in part: parallelism.data_parallel_shard_degree -1' <(tr -s ' \n' ' ' <open.err)
status=0
train 2 shards --parallelism.data_parallel_shard_degree 2 --strict --training.steps 1 || status=$?
equal 'exit status of shard degree 2 with --strict' 4 "$status"
check 'train in one process' nibble train c.json --quiet --threads 1 --job.dump_folder "$PWD/alone"
cp "$seen.out" alone.out
sed 's/  memory:.*//' alone.out >alone.lines
check 'one process logs each step' [ "$(wc -l <alone.lines)" = 4 ]
for threads in 1 2; do
    for ranks in 1 2 3 4; do
        sampled 3 || continue
        check "$ranks ranks of $threads threads" train "$ranks" many --threads "$threads"
        check "$ranks ranks of $threads threads: the same losses" diff alone.lines many.lines
        for part in model moments; do
            check "$ranks ranks of $threads threads: the same $part" \
                cmp {alone,many}/checkpoint/step-00000004/$part.safetensors
        done
        rm -rf many
    done
done

# mixtures of experts, whose load crosses ranks behind the gradients: one with a load-balancing loss, one with latent attention,
# a bias that balances and a loss of each sequence, smaller than the debug model, one with heads of two widths
mkdir latent
sed 's/"num_hidden_layers": 6/"num_hidden_layers": 2/; s/"num_\(attention\|key_value\)_heads": 16/"num_\1_heads": 4/
     s/"hidden_size": 256/"hidden_size": 64/; s/"kv_lora_rank": 512/"kv_lora_rank": 48/; s/"q_lora_rank": null/"q_lora_rank": 40/
     s/"qk_nope_head_dim": 128/"qk_nope_head_dim": 24/' "$REPO/configs/shapes/deepseek-v3-debugmodel/config.json" >latent/config.json
for name in qwen3_moe deepseek_v3 gemma4; do
    config=$REPO/configs/${name}_debugmodel.json
    small=(--training.seq_len 32 --training.local_batch_size 1 --training.global_batch_size 4 --training.steps 2
        --checkpoint.enable --checkpoint.interval 2 --threads 1)
    if [ $name != gemma4 ]; then
        small+=(--model.router_aux_loss_coef 0.01)
    fi
    if [ $name = deepseek_v3 ]; then
        small+=(--model.hf_config "$PWD/latent")
    fi
    check "$name in one process" nibble train "$config" --quiet "${small[@]}" --job.dump_folder "$PWD/$name"
    sed 's/  memory:.*//' "$seen.out" >$name.lines
    check "$name in one process logs each step" [ "$(grep -c '^step:' $name.lines)" = 2 ]
    check "$name in one process logs the load of its experts" [ "$(grep -c '^experts:' $name.lines)" = 2 ]
    for ranks in 1 2 4; do
        sampled 2 || continue
        check "$name, $ranks ranks" train "$ranks" mixture "${small[@]}"
        check "$name, $ranks ranks: the same losses and load" diff $name.lines mixture.lines
        for part in model moments; do
            check "$name, $ranks ranks: the same $part" cmp {$name,mixture}/checkpoint/step-00000002/$part.safetensors
        done
        rm -rf mixture
    done
    rm -rf "$name"
done

# layers with a state in place of keys and values, and a draft head
config=$REPO/configs/qwen3_moe_debugmodel.json
for name in lfm2 qwen3_5 granite_hybrid; do
    mkdir "$name"
    sed 's/"vocab_size": [0-9]*/"vocab_size": 2048/' "$REPO/tests/golden/models/$name/config.json" >"$name/config.json"
    small=(--training.seq_len 48 --training.local_batch_size 1 --training.global_batch_size 4 --training.steps 2
        --checkpoint.enable --checkpoint.interval 2 --model.hf_config "$PWD/$name")
    if [ $name = qwen3_5 ]; then
        small+=(--model.draft_head.loss_weight 0.3)
    fi
    check "$name in one process" nibble train "$config" --quiet "${small[@]}" --threads 1 --job.dump_folder "$PWD/$name-alone"
    sed 's/  memory:.*//' "$seen.out" >$name.lines
    for ranks in 1 2 4; do
        sampled 2 || continue
        check "$name, $ranks ranks" train "$ranks" state "${small[@]}" --threads 2
        check "$name, $ranks ranks: the same losses" diff $name.lines state.lines
        for part in model moments; do
            check "$name, $ranks ranks: the same $part" cmp {$name-alone,state}/checkpoint/step-00000002/$part.safetensors
        done
        rm -rf state
    done
    rm -rf "$name-alone"
done
unset config

# two steps on two ranks, two more on three
check 'two steps on two ranks' train 2 half --training.steps 2
check 'two more steps on three ranks' train 3 half
check 'resumed on other ranks: the same losses' diff <(tail -n 2 alone.lines) half.lines
check 'resumed on other ranks: the same weights' cmp {alone,half}/checkpoint/step-00000004/model.safetensors

# a dry run on ranks reports the memory of each, including the sum received from another
check 'dry run of one process' nibble train c.json --quiet --dry-run --training.global_batch_size=1
cp "$seen.out" dry.out
check 'dry run of one process: memory' grep -q '^memory of a run: .* and 1 sum of gradients' dry.out
check 'dry run on two ranks' train 2 dry --dry-run --training.global_batch_size=2
check 'dry run on two ranks: memory of each' grep -q '^memory of each rank: .* and 2 sums of gradients' dry.out
check 'dry run on two ranks: memory is printed once' [ "$(grep -c '^memory of' dry.out)" = 1 ]

# an error on all ranks, or on one, is printed once, with its exit status
status=0
train 2 bad --training.stepz 3 || status=$?
check "an unknown key ends all ranks ($status)" [ "$status" = 2 ]
check 'an unknown key is reported once' [ "$(grep -c '^nibble: rank 0: .*training.stepz' bad.err)" = 1 ]
status=0
train 4 bad --training.global_batch_size 2 || status=$?
check "exit status of too few sequences for the ranks ($status)" [ "$status" = 3 ]
check 'too few sequences: the error gives the number of ranks' grep -q '^nibble: rank 0: .*fewer than the 4 ranks' bad.err
# two ARGUMENTS ARGUMENTS: runs a rank with each; prints the status
two() {
    local status=0 run=(-n 1 "$NIBBLE" train c.json --quiet --ranks 2 --job.dump_folder "$PWD/two")
    # shellcheck disable=SC2086 # arguments are meant
    timeout 60 mpirun "${run[@]}" $1 : "${run[@]}" $2 >two.out 2>two.err || status=$?
    rm -rf two
    echo "$status"
}
# mismatch WHAT STATUS SENTENCE ARGUMENTS ARGUMENTS: the two ranks refuse to train together
mismatch() {
    local status
    status=$(two "$4" "$5")
    check "$1: exit status ($status)" [ "$status" = "$2" ]
    check "$1: rank 1 reports it" grep -q "^nibble: rank 1: $3" two.err
}
head -c 20000 "$REPO/tests/data/corpus.jsonl" | sed '$d' >short.jsonl
cp -r "$REPO/configs/tokenizer" tok
echo >>tok/tokenizer.json
mismatch 'another learning rate' 3 'this rank.s config differs from rank 0' '' --optimizer.lr=1e-3
mismatch 'validation on one rank' 3 'this rank.s config differs from rank 0' '' \
    '--validation.enable --validation.dataset_path=short.jsonl'
mismatch 'export on one rank' 3 'this rank.s config differs from rank 0' '--export m' ''
mismatch 'another recipe' 3 'the schemes of this rank.s layers differ from rank 0' '' --mx.filter_fqns=output
mismatch 'another text' 3 'this rank.s text differs from rank 0' '' --training.dataset_path=short.jsonl
cp short.jsonl short.txt
mismatch 'plain text instead of JSON lines' 3 'this rank.s text differs from rank 0' \
    --training.dataset_path={short.jsonl,short.txt}
valid='--validation.enable --validation.steps=-1 --validation.dataset_path='
head -c 10000 short.txt >shorter.txt
mismatch 'another validation text' 3 'this rank validates on another text than rank 0' \
    "${valid}short.txt" "${valid}shorter.txt"
mismatch 'another tokenizer' 3 'this rank.s tokenizer differs from rank 0' '' --model.tokenizer_path=tok
mismatch 'other initial weights' 3 'this rank starts with other weights than rank 0' \
    --checkpoint.initial_load_path={alone/checkpoint/step-00000002,alone/checkpoint/step-00000004}
cp "$REPO/tests/data/corpus.jsonl" copy.jsonl
status=$(two --training.steps=1 '--training.steps=1 --training.dataset_path=copy.jsonl')
check "another path of the same text is accepted ($status)" [ "$status" = 0 ]
status=0
mpirun -n 2 "$NIBBLE" train c.json --ranks 3 >bad.out 2>bad.err || status=$?
check "exit status of fewer ranks than asked ($status)" [ "$status" = 4 ]
check 'fewer ranks than asked: the error gives both numbers' grep -q '^nibble: 3 ranks are asked for, but the run has 2' bad.err

# a skipped step does not end the run: a later error on rank 0 still reaches the others
mkdir -p skip/checkpoint/step-00000004.part/something
status=0
train 2 skip --training.skip_bad_steps --training.steps=12 --checkpoint.interval=4 --comm.train_timeout_seconds=20 \
    --optimizer.lr=1000 --optimizer.weight_decay=1000 --lr_scheduler.warmup_steps=0 || status=$?
check "a failure after a skipped step ends all ranks ($status)" [ "$status" = 6 ]
check 'the log shows the skipped step' grep -q '^step:  3 .*  skipped' skip.out
check 'the failure after a skipped step is reported' grep -q '^nibble: rank 0: cannot write the checkpoint of step 4: ' skip.err

# if rank 0's disk is full when it writes the plan, the others do not hang
status=0
full=(train c.json --quiet --ranks 2 --model.print_after_conversion --comm.train_timeout_seconds=20)
# shellcheck disable=SC2016 # the inner shell expands them
timeout 60 mpirun -n 1 bash -c 'exec "$0" "$@" >/dev/full' "$NIBBLE" "${full[@]}" : -n 1 "$NIBBLE" "${full[@]}" \
    >full.out 2>full.err || status=$?
check "a plan that cannot be written ends all ranks ($status)" [ "$status" = 6 ]
check 'a plan that cannot be written is reported' grep -q '^nibble: the output could not be written' full.err

# rank_of PID: its rank; ours: the processes of this test's run
rank_of() { tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'; }
ours() {
    local p
    for p in $(pgrep -x nibble); do
        [ "$(readlink "/proc/$p/cwd")" = "$PWD" ] && echo "$p"
    done
}
# hurt SIGNAL RANK: signals a rank after the second step; the run fails in time, and no process is left
hurt() {
    local status=0 i p
    train 3 hurt --training.steps 1000000 --checkpoint.interval 1000000 --comm.train_timeout_seconds 2 &
    for i in $(seq 1000); do
        grep -q '^step:  2' hurt.out 2>/dev/null && break
        sleep 0.1
    done
    for p in $(ours); do
        [ "$(rank_of "$p")" = "$2" ] && kill -"$1" "$p"
    done
    SECONDS=0
    wait $! || status=$?
    check "SIG$1 to rank $2: the run fails" [ "$status" != 0 ]
    check "SIG$1 to rank $2: the run ends in time ($SECONDS s)" [ "$SECONDS" -le 20 ]
    check "SIG$1 to rank $2: no process is left" [ -z "$(ours)" ]
    cp hurt.err "hurt.$1.$2"
    rm -rf hurt hurt.out
}
hurt KILL 1
check 'the killed rank is named' grep -q 'rank 1 .*signal 9' hurt.KILL.1
hurt STOP 2
check 'the stopped rank is named' grep -Eq '^nibble: .*timed out after .*, and rank 2 does not answer' hurt.STOP.2
hurt STOP 0
check 'the stopped first rank is named' grep -Eq '^nibble: .*timed out after .*, and rank 0 does not answer' hurt.STOP.0

# other MPI libraries
fake() { # fake LINE...: builds libmpi.so.40 from these lines of C
    printf '%s\n' "$@" >fake.c
    "${CC:-cc}" -shared -fPIC -o fake/libmpi.so.40 fake.c
}
mkdir fake
export OMPI_COMM_WORLD_SIZE=2
objects='int ompi_mpi_comm_world, ompi_mpi_byte, ompi_mpi_errors_return;'
calls=$(printf 'int MPI_%s(void) { return 0; }\n' Init_thread Initialized Finalized Finalize Abort Comm_rank Comm_size \
    Comm_set_errhandler Get_processor_name Isend Irecv Test Iprobe)
version='int MPI_Get_library_version(char *t, int *n) { *n = 16; for (int i = 0; (t[i] = "Open MPI v3.1.6"[i]); i++); return 0; }'
: >fake/libmpi.so.40
LD_LIBRARY_PATH=$PWD/fake refused 4 'ranks need Open MPI, which does not load (*file too short); install Open MPI*' train c.json
fake "$objects"
LD_LIBRARY_PATH=$PWD/fake refused 4 "libmpi.so.40 has no symbol MPI_Get_library_version, so it is not Open MPI; *" train c.json
fake "$objects" "$calls" "$version"
LD_LIBRARY_PATH=$PWD/fake refused 4 'libmpi.so.40 is "Open MPI v3.1.6", but only Open MPI 4 and 5 are supported; *' train c.json
unset OMPI_COMM_WORLD_SIZE
refused 4 '3 ranks are asked for, but this is one process*' train c.json --ranks 3

# messages between ranks, and the tree's sum, in each process
tests=$(dirname "$NIBBLE")/tests/test_ranks
if [ -x "$tests" ]; then
    for ranks in 2 3 5; do
        check "test_ranks in $ranks processes" timeout 60 mpirun -n "$ranks" "$tests"
    done
    status=0
    timeout 60 mpirun -n 4 "$tests" hang >hang.out 2>hang.err || status=$?
    check "exit status of ranks that wait for each other ($status)" [ "$status" = 7 ]
    check 'the error names the rank at the end of the chain' grep -q 'rank 0 timed out after .*, and rank 3 does not answer' hang.err
    status=0
    timeout 60 mpirun -n 2 "$tests" memory >memory.out 2>memory.err || status=$?
    check "memory that runs out during a sum ends all ranks ($status)" [ "$status" = 5 ]
fi
