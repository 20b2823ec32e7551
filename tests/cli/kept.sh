# SPDX-License-Identifier: Apache-2.0
#
# --cache-dir: a run saves packed weights and tokenizer tables there, and the next one maps them; nothing is written beside the
# model.
nibble quantize "$MODEL" model --recipe 8da4w --format nibble --quiet >/dev/null 2>&1
ls -l --time-style=full-iso model >before.txt
run() { nibble generate model -p 'Once upon a time' -n 24 --temp 0 "$@"; }
file_count() { find kept -type f | wc -l; }

run --quiet >without.txt
check 'no directory without --cache-dir' [ ! -e kept ]
plan_note() { nibble plan model --cache-dir kept --json --quiet | grep -o 'packed weights [^"]*'; }
equal 'the plan says that a run will write packed weights' 'packed weights are not in kept yet: a run writes them there' "$(plan_note)"
check 'a plan writes nothing' [ ! -e kept ]

# the first run writes the files, the next ones map them
run --cache-dir kept >first.txt 2>first.err
check 'first run: same text' cmp first.txt without.txt
equal 'first run: both files are reported' 2 "$(grep -c '^kept: kept/[0-9a-f]*\.\(pack\|tokens\): ' first.err)"
equal 'first run: two files are written' 2 "$(file_count)"
find kept -type f -exec stat -c '%n %i %y' {} + | sort >files.txt
run --cache-dir kept >second.txt 2>second.err
check 'second run: same text' cmp second.txt without.txt
equal 'second run: nothing is written' '' "$(grep '^kept' second.err; find kept -type f -exec stat -c '%n %i %y' {} + | sort | diff files.txt -)"
equal 'the plan maps all 36 packed weights' 36 "$(plan_note | sed 's/.*: \([0-9]*\) of \([0-9]*\)$/\1/')"
equal 'nothing is written beside the model' '' "$(ls -l --time-style=full-iso model | diff before.txt -)"
check 'NIBBLE_CACHE_DIR instead of --cache-dir' test "$(NIBBLE_CACHE_DIR=kept nibble plan model --json --quiet | grep -c 'packed weights from kept/')" = 1

# unusable files are written again
pack=$(ls kept/*.pack) tokens=$(ls kept/*.tokens)
rewritten() { # WHAT WHY: the plan says why the file is unusable, and the next run writes it again
    check "$1: the plan says why" grep -q "$2; it will be written again" <(nibble plan model --cache-dir kept 2>&1 | tr -s ' \n' ' ')
    run --cache-dir kept >text.txt 2>text.err
    check "$1: same text" cmp text.txt without.txt
    check "$1: the run writes them again" grep -q "^kept: $pack: " text.err
    equal "$1: the next plan maps them" 1 "$(plan_note | grep -c ': 36 of 36')"
}
truncate -s 3000000 "$pack"
rewritten 'truncated packed weights' 'its size does not match its head'
printf x | dd of="$pack" bs=1 seek=2500000 conv=notrunc status=none
rewritten 'damaged packed weights' 'its weights were modified after they were written'
nibble quantize "$MODEL" model --recipe 8da4w-g64 --format nibble --force --quiet >/dev/null 2>&1
run --quiet >without.txt
rewritten 'packed weights of another model' 'was made from different weights'
printf x >>"$tokens"
run --cache-dir kept >text.txt 2>text.err
check 'changed tokenizer tables: same text' cmp text.txt without.txt
check 'changed tokenizer tables: the run writes them again' grep -q "^kept: $tokens: " text.err

# two runs at once, and a run that cannot write there
rm -r kept
run --cache-dir kept >one.txt 2>one.err &
run --cache-dir kept >two.txt 2>two.err
wait
check 'two runs at once: text of the first' cmp one.txt without.txt
check 'two runs at once: text of the second' cmp two.txt without.txt
equal 'two runs at once: no .part file is left' '' "$(find kept -name '*.part*')"
check 'two runs at once: the next plan maps their file' test "$(plan_note | grep -c '36 of 36')" = 1
run --cache-dir model/config.json/x >text.txt 2>text.err
check 'unusable --cache-dir: same text' cmp text.txt without.txt
check 'unusable --cache-dir: it is reported' grep -q '^without effect: --cache-dir model/config.json/x (option): a file of this name is in the way' text.err
refused 4 '--strict: --cache-dir * accepts it' generate model -n 1 --cache-dir model/config.json/x --strict --quiet
check 'unusable --cache-dir: --allow cache accepts it' nibble generate model -n 1 --cache-dir model/config.json/x --strict --allow cache --quiet

# a model in a single file, which has no directory of its own
nibble generate "$REPO/tests/golden/gguf/llama.gguf" -p a -n 4 --temp 0 --cache-dir kept >lone.txt 2>lone.err
check 'a run of a GGUF writes packed weights' grep -q '^kept: .*\.pack: ' lone.err
check 'the plan maps packed weights of a GGUF' grep -q 'packed weights from kept/' <(nibble plan "$REPO/tests/golden/gguf/llama.gguf" --cache-dir kept --json --quiet)
