# SPDX-License-Identifier: Apache-2.0
#
# nibble advise: on machines with published rates, so that every number is known; then on this machine, where losses are
# compared, which are the same everywhere, but not speeds.
shape=$REPO/configs/shapes/llama-3.2-1b/config.json
see advise "$shape" --device h200
see advise "$shape" --device mi210 --memory 1.2GB --speed prefill int8wo 8da4w 4da4w int4wo+head+embed
for word in prefill prompt; do # two words for one speed
    nibble advise "$shape" --device mi210 --speed "$word" int8wo 8da4w >"$word.txt" 2>&1
done
check '--speed prompt means --speed prefill' cmp prefill.txt prompt.txt
rm -f prefill.txt prompt.txt
refused 2 '--speed: "fill" is not decode or prefill' advise "$shape" --speed fill
see advise "$shape" --device raspberry-pi-5 --memory 500MB 8da4w+head+embed int8wo
see advise "$shape" --device apple-m2 int4wo 8da4w mxfp8
sed 's/"sm": {"value": 80/"sm": {"value": 70/; 0,/"title".*/s//&\n  "host": "graviton3",/' "$REPO/machines/a100.json" >v100.json
see advise "$shape" --device ./v100.json int4wo 8da4w mxfp8

# usage errors
see advise "$shape" --device h2000
see advise "$shape" --device h200 --memory 6XB
see advise "$shape" int9wo
see advise "$shape" --text "$MODEL/heldout.txt"
see advise "$shape" --loss-budget 0.1
see advise "$shape" --window 64
see advise "$MODEL" --device auto
see advise "$MODEL" --dry-run --text text.txt
for place in . '' none/f.svg; do
    see advise "$shape" int8wo --device h200 --svg "$place"
done
refused 2 '*/llama3_debugmodel.json: is a training config, and advice is about running a model; use *' advise "$REPO/configs/llama3_debugmodel.json"
for size in 0 -1GB GB 1e30GB 0x10 0x10GB; do
    refused 2 "--memory: \"$size\" is not a size, *" advise "$shape" --memory "$size" int8wo
done
: >empty.txt
see advise "$MODEL" --text empty.txt
nibble quantize "$MODEL" q --recipe 8da4w --quiet >/dev/null 2>&1
see advise q
only_here empty.txt q v100.json
rm -r empty.txt q

# on this machine: its losses equal those of `nibble eval`, and the command that it recommends works
head -c 20000 "$MODEL/heldout.txt" >text.txt
nibble advise "$MODEL" int8wo 8da4w 4da4w --text text.txt --window 128 --svg f.svg --memory 6MB >out.txt 2>err.txt
equal 'advise prints nothing on stderr' '' "$(cat err.txt)"
loss() { nibble eval "$MODEL" --text text.txt --window 128 --json --quiet "$@" | sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' | xargs printf '%.4f'; }
check 'the loss of the stored model equals that of eval' grep -q "^none (bf16) .* $(loss)  *+0.0000  .* too large$" out.txt
for recipe in int8wo 8da4w 4da4w; do
    check "the loss of $recipe equals that of eval" grep -q "^$recipe .* $(loss --recipe $recipe) " out.txt
done
check 'the report says that speeds are measured' grep -q '^speed   tokens/s, measured here' out.txt
check 'the picture is XML with 8 circles' python3 -c 'import xml.dom.minidom as m; t = m.parse("f.svg"); assert len(t.getElementsByTagName("circle")) == 8'
command=$(grep '^  nibble quantize ' out.txt)
eval "$command --quiet" >quantized.txt 2>&1 || check "the recommended command runs: $command" false
check 'the quantized model runs' nibble generate nibble-tales-* -p 'The king' -n 2 --temp 0 --quiet

# a picture that cannot be written is an error after the report
touch late.svg.part late.svg.part-{2..100}
nibble advise "$shape" int8wo --device h200 --svg late.svg >out.txt 2>err.txt
equal 'exit status when --svg cannot be written' 6 $?
check 'the report is printed when --svg cannot be written' grep -q '^take int8wo' out.txt
equal '--memory 1.5GiB in bytes' 1610612736 "$(nibble advise "$shape" int8wo --device h200 --memory 1.5GiB --json 2>&1 | sed -n 's/^  "memory": \([0-9]*\),/\1/p')"

# JSON, and the choice under other budgets
# The QAT suggestion follows from the measured speeds: among recipes with too much loss the fastest, and among equally fast ones
# the one with the least loss.
cat >taken.py <<'END'
import json
EQUAL_TIMES = 0.05  # src/advise/advise.h
d = json.load(open("taken.json"))
least = d["recipes"][0]["loss"] + d["loss_budget"]
dear = [r for r in d["recipes"] if r["counts"] and r["loss"] > least and r["name"] != "4da4w"]  # 4da4w has no QAT
fastest = max(r["decode_tokens_per_s"] for r in dear)
near = [r for r in dear if r["decode_tokens_per_s"] * (1 + EQUAL_TIMES) >= fastest]
right = d["train_for"] == min(near, key=lambda r: r["loss"])["name"]
print(d["taken"], d["within_budget"], "right" if right else (d["train_for"], [(r["name"], r["decode_tokens_per_s"]) for r in dear]))
END
taken() {
    nibble advise "$MODEL" int8wo 8da4w 4da4w --text text.txt --window 128 --memory 6MB --json --quiet "$@" >taken.json
    python3 taken.py
}
nibble advise "$MODEL" int8wo --dry-run --json | members 'advise --dry-run --json' schema=1 device=str here=true 'recipes[].bytes=int' \
    'recipes[].predicted_decode_tokens_per_s=num' 'recipes[].decode_tokens_per_s=null' 'recipes[].estimated_error=num' \
    'recipes[].frontier=bool' taken=str 'command=str|null'
equal 'recipe within a budget of 0.005, and the QAT suggestion' 'int8wo True right' "$(taken --loss-budget 0.005)"
equal 'no recipe is within the budget: the one with the least loss' 'int8wo False right' "$(taken --loss-budget 0)"

# the suggested training
nibble advise "$MODEL" 8da4w --text text.txt --window 128 --loss-budget 0.001 >out.txt 2>err.txt
training=$(grep '^  echo ' out.txt)
eval "$training" || check "the suggested config is written: $training" false
training=$(grep '^  nibble train qat.json' out.txt)
eval "${training/TEXT/text.txt} --training.steps=1 --training.local_batch_size=1 --training.seq_len=64 --quiet" >train.txt 2>&1 || {
    check "the suggested training runs: $training" false
    tail -n 3 train.txt
}
check 'the training writes a quantized model' test -e outputs/checkpoint/model-quantized/config.json

# Ctrl-C: the exit status, and no report
timeout --preserve-status -s INT 1 "$NIBBLE" advise "$MODEL" --text "$MODEL/heldout.txt" --svg cut.svg >cut.txt 2>cut.err
equal 'exit status after Ctrl-C' 130 $?
check 'no report and no picture after Ctrl-C' test ! -s cut.txt -a ! -e cut.svg
