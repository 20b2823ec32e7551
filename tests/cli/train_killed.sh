# SPDX-License-Identifier: Apache-2.0
#
# Training killed at random moments resumes from its last checkpoint and ends with the bytes of an uninterrupted run. 10 kills;
# KILLS=100 tests/cli/run train_killed runs more. A checkpoint that does not fit on the disk leaves the previous one.
kills=${KILLS:-10}
cat >tiny.json <<END
{"model": {"name": "llama3", "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 2048, "multiple_of": 16,
  "tokenizer_path": "$REPO/configs/tokenizer"},
 "optimizer": {"lr": 1e-3},
 "training": {"dataset_path": "$REPO/tests/data/corpus.jsonl", "local_batch_size": 2, "seq_len": 64, "steps": 60},
 "checkpoint": {"enable": true, "interval": 2, "keep_latest_k": 2, "last_save_in_hf": true},
 "metrics": {"path": "metrics.jsonl", "log_freq": 1}}
END
run() { nibble train tiny.json -t 1 --quiet "$@"; }
begin=$(date +%s%N)
check 'an uninterrupted run' run --job.dump_folder=whole
took=$((($(date +%s%N) - begin) / 1000000))
RANDOM=11
killed=0 ended=0
for round in $(seq "$kills"); do
    # restart from scratch now and then, to hit every part of a run, including its first checkpoint and its export
    [ $((round % 4)) != 0 ] || rm -rf parts
    ms=$((RANDOM * 10 % (took + took / 10) + 5)) status=0
    timeout --preserve-status -s KILL "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))" \
        "$NIBBLE" train tiny.json -t 1 --quiet --job.dump_folder=parts >"$seen.report" 2>"$seen.err" || status=$?
    [ "$status" = 0 ] && ended=$((ended + 1)) || killed=$((killed + 1))
    check "round $round ended or was killed ($status)" [ "$status" = 0 -o "$status" = 137 ]
    # every checkpoint with a manifest is complete
    for step in parts/checkpoint/step-????????; do
        [ ! -e "$step/nibble.json" ] || check "round $round: verify $step" nibble verify "$step"
    done
done
check 'some runs were killed' [ "$killed" -gt 0 ]
check 'the last run resumes' run --job.dump_folder=parts
check 'weights equal those of the uninterrupted run' cmp parts/checkpoint/step-00000060/model.safetensors whole/checkpoint/step-00000060/model.safetensors
check 'moments equal those of the uninterrupted run' cmp parts/checkpoint/step-00000060/moments.safetensors whole/checkpoint/step-00000060/moments.safetensors
equal 'checkpoints that are kept' 'model step-00000058 step-00000060' "$(cd parts/checkpoint && echo *)"
equal 'the metrics have every step once' "$(seq 60)" "$(sed -n 's/^{"step": \([0-9]*\),.*/\1/p' parts/metrics.jsonl)"
equal 'losses equal those of the uninterrupted run' "$(sed -n 's/.*"loss": \([^,]*\),.*/\1/p' whole/metrics.jsonl)" "$(sed -n 's/.*"loss": \([^,]*\),.*/\1/p' parts/metrics.jsonl)"
check 'verify the exported model' nibble verify parts/checkpoint/model
check 'the exported model generates text' nibble generate parts/checkpoint/model -p 'The ' -n 4
check 'plot both runs' nibble plot whole parts --smooth 5 -o loss.svg
check 'the plot is valid XML' python3 -c "import xml.dom.minidom; xml.dom.minidom.parse('loss.svg')"
check 'no .part, .lock or .old is left' [ -z "$(find . -name '*.part' -o -name '*.lock' -o -name '*.old')" ]

# a disk that fills up during a checkpoint: the previous checkpoint stays
size=$(stat -c %s whole/checkpoint/step-00000060/moments.safetensors)
status=0
(ulimit -f $((size / 1024 - 8)) && run --job.dump_folder=cut) >"$seen.report" 2>"$seen.err" || status=$?
equal 'a disk that is full at the first checkpoint' '6 nibble: cannot write the checkpoint of step 2: cut/checkpoint/step-00000002.part/moments.safetensors: cannot write to it: File too large' \
    "$status $(cat "$seen.err")"
status=0
(ulimit -f $((size / 1024 - 8)) && run --job.dump_folder=parts --training.steps=70) >"$seen.report" 2>"$seen.err" || status=$?
equal 'a disk that is full at a later checkpoint' '6 nibble: cannot write the checkpoint of step 62 (that of step 60 is intact): parts/checkpoint/step-00000062.part/moments.safetensors: cannot write to it: File too large' \
    "$status $(cat "$seen.err")"
check 'the previous checkpoint is intact' nibble verify parts/checkpoint/step-00000060
refused 3 '*training.seq_len is 64 in the checkpoint, but 32 here*' train tiny.json --quiet --job.dump_folder=parts --training.seq_len=32
refused 3 '*checkpoint.load_step 7 names no checkpoint; there are 2, from step 58 to 60' train tiny.json --quiet --job.dump_folder=parts --checkpoint.load_step=7
refused 6 'parts/checkpoint/model: exists already; *' train tiny.json --quiet --job.dump_folder=parts --export parts/checkpoint/model
check 'train from a checkpoint' run --job.dump_folder=next --training.steps=2 --checkpoint.initial_load_path=whole/checkpoint/step-00000060
