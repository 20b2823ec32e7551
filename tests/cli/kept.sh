# SPDX-License-Identifier: Apache-2.0
#
# --cache-dir: a run saves packed weights and tokenizer tables there, and the next one maps them; nothing is written beside the
# model.
nibble quantize "$MODEL" model --recipe 8da4w --format nibble --quiet >/dev/null 2>&1
ls -l --time-style=full-iso model >before.txt
run() { nibble generate model -p 'Once upon a time' -n 24 --temp 0 "$@"; }
kept() { find kept -type f | wc -l; } # number of files

run --quiet >without.txt
check 'no option, no directory' [ ! -e kept ]
says_plan() { nibble plan model --cache-dir kept --json --quiet | grep -o 'packed weights [^"]*'; }
equal 'a plan writes nothing' 'packed weights are not in kept yet: a run writes them there' "$(says_plan)"
check 'nothing is there' [ ! -e kept ]

# the first run writes the files, the next ones map them
run --cache-dir kept >first.txt 2>first.err
check 'the same text' cmp first.txt without.txt
equal 'what was kept is said' 2 "$(grep -c '^kept: kept/[0-9a-f]*\.\(pack\|tokens\): ' first.err)"
equal 'two files' 2 "$(kept)"
find kept -type f -exec stat -c '%n %i %y' {} + | sort >files.txt
run --cache-dir kept >second.txt 2>second.err
check 'the same text again' cmp second.txt without.txt
equal 'nothing was written' '' "$(grep '^kept' second.err; find kept -type f -exec stat -c '%n %i %y' {} + | sort | diff files.txt -)"
equal 'all are mapped' 36 "$(says_plan | sed 's/.*: \([0-9]*\) of \([0-9]*\)$/\1/')"
equal 'nothing lies beside the model' '' "$(ls -l --time-style=full-iso model | diff before.txt -)"
check 'by the environment' test "$(NIBBLE_CACHE_DIR=kept nibble plan model --json --quiet | grep -c 'packed weights from kept/')" = 1

# unusable files are written again
pack=$(ls kept/*.pack) tokens=$(ls kept/*.tokens)
anew() { # WHAT WHY: said by the plan, and the next run writes it
    check "$1: said" grep -q "$2; it will be written again" <(nibble plan model --cache-dir kept 2>&1 | tr -s ' \n' ' ')
    run --cache-dir kept >text.txt 2>text.err
    check "$1: the same text" cmp text.txt without.txt
    check "$1: written" grep -q "^kept: $pack: " text.err
    equal "$1: serves again" 1 "$(says_plan | grep -c ': 36 of 36')"
}
truncate -s 3000000 "$pack"
anew 'cut short' 'its size does not match its head'
printf x | dd of="$pack" bs=1 seek=2500000 conv=notrunc status=none
anew 'damaged' 'its weights were modified after they were written'
nibble quantize "$MODEL" model --recipe 8da4w-g64 --format nibble --force --quiet >/dev/null 2>&1
run --quiet >without.txt
anew 'another model at its place' 'was made from different weights'
printf x >>"$tokens"
run --cache-dir kept >text.txt 2>text.err
check 'tables that were changed' cmp text.txt without.txt
check 'are written anew' grep -q "^kept: $tokens: " text.err

# two runs at once, and a run that cannot write there
rm -r kept
run --cache-dir kept >one.txt 2>one.err &
run --cache-dir kept >two.txt 2>two.err
wait
check 'two at once' cmp one.txt without.txt
check 'the other' cmp two.txt without.txt
equal 'and no part is left' '' "$(find kept -name '*.part*')"
check 'one of them serves' test "$(says_plan | grep -c '36 of 36')" = 1
run --cache-dir model/config.json/x >text.txt 2>text.err
check 'a directory that cannot be: the same text' cmp text.txt without.txt
check 'and it is said' grep -q '^without effect: --cache-dir model/config.json/x (option): a file of this name is in the way' text.err
refused 4 '--strict: --cache-dir * accepts it' generate model -n 1 --cache-dir model/config.json/x --strict --quiet
check 'unless it is allowed' nibble generate model -n 1 --cache-dir model/config.json/x --strict --allow cache --quiet

# a model in a single file, which has no directory of its own
nibble generate "$REPO/tests/golden/gguf/llama.gguf" -p a -n 4 --temp 0 --cache-dir kept >lone.txt 2>lone.err
check 'a GGUF' grep -q '^kept: .*\.pack: ' lone.err
check 'is mapped' grep -q 'packed weights from kept/' <(nibble plan "$REPO/tests/golden/gguf/llama.gguf" --cache-dir kept --json --quiet)
