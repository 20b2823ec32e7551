# SPDX-License-Identifier: Apache-2.0
#
# Manual pages, completions and tables.
commands=$(nibble --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
check 'nibble --help lists at least 12 commands' [ "$(echo "$commands" | wc -l)" -ge 12 ]
mkdir man
nibble manual >man/nibble.1
for command in $commands; do
    nibble manual "$command" >"man/nibble-$command.1" || check "manual $command" false
    check "$command is in nibble(1)" grep -q "nibble.*-$command" man/nibble.1
done
if command -v groff >/dev/null; then
    for page in man/*.1; do
        groff -ww -man -Tutf8 -P-cbou "$page" >"$seen.page" 2>"$seen.warnings" || check "groff $page" false
        equal "warnings of $page" '' "$(cat "$seen.warnings")"
        for heading in NAME SYNOPSIS; do
            check "$heading in $page" grep -q "$heading" "$seen.page"
        done
    done
    groff -man -Tascii -P-cbou man/nibble-plan.1 >page
    check 'nibble-plan(1) has --layer NAME' grep -q -e '--layer NAME' page
    check 'nibble-plan(1) describes --layer' grep -q 'show  *every  *candidate' page # groff justifies lines
else
    skipped 'pages, as groff shows them' 'no groff (apt-get install groff-base)'
fi

# Every option of a command is in its help, its page and the completions.
nibble completion bash >bash.completion
nibble completion zsh >zsh.completion
nibble completion fish >fish.completion
check 'the bash completion parses' bash -n bash.completion
# shellcheck disable=SC2016 # for the inner shell
equal 'bash completes --la' '--layer' "$(bash -c '. ./bash.completion
COMP_WORDS=(nibble plan --la) COMP_CWORD=2; _nibble; echo "${COMPREPLY[@]}"')"
# shellcheck disable=SC2016
equal 'bash completes qu' 'quantize' "$(bash -c '. ./bash.completion
COMP_WORDS=(nibble qu) COMP_CWORD=1; _nibble; echo "${COMPREPLY[@]}"')"
# An apostrophe would end single quotes: except for \', each line has an even number of them.
equal 'fish completion: lines with an odd number of quotes' '' "$(sed "s/\\\\'//g; s/[^']//g" fish.completion | grep -vx "\(''\)*" || true)"
if command -v zsh >/dev/null; then check 'the zsh completion parses' zsh -n zsh.completion; fi
if command -v fish >/dev/null; then check 'the fish completion parses' fish -n fish.completion; fi
for command in $commands; do
    nibble "$command" --help >help
    equal "trailing blanks in $command --help" '' "$(grep -n ' $' help)"
    equal "lines of $command --help beyond 80 columns" '' "$(grep -n '.\{81\}' help)"
    for option in $(grep -o '^  ....\?--[a-z-]*' help | grep -o -e '--.*'); do
        check "$option is in the page of $command" grep -q -e "$(echo "$option" | sed 's/-/\\\\-/g')" "man/nibble-$command.1"
        check "bash completes $option of $command" grep -q "^ *$command).* ${option}[ \"]" bash.completion
        check "fish completes $option of $command" grep -q "_from $command' -l ${option#--}" fish.completion
    done
done

nibble devices --json | members devices schema=1 devices[].name=str devices[].here=bool
nibble kernels --json | members kernels schema=1 kernels[].name=str kernels[].built=bool kernels[].reference=str\|null kernels[].conditions=list
for table in devices kernels recipes; do
    check "nibble $table prints a table" grep -q . <(nibble $table)
    check "nibble $table --markdown prints a table" grep -q '|' <(nibble $table --markdown)
done
for machine in mi210 mi300x apple-m1 apple-m4 a100 h100 h200 b200 rtx4090 intel-arc graviton4 xeon-spr epyc-turin raspberry-pi-5; do
    check "$machine is listed" grep -q "^$machine " <(nibble devices)
done
check 'devices mi210 shows dot4 and its instruction' grep -q 'dot4 .*yes: v_dot8_i32_i4' <(nibble devices mi210)
check 'devices mi210 --markdown shows dot4' grep -q '^| \*\*dot4\*\* | yes' <(nibble devices mi210 --markdown)
nibble devices mi210 --json >mine.json
check 'devices mi210 --json prints machines/mi210.json' cmp "$REPO/machines/mi210.json" mine.json
check 'devices shows a device from a file' grep -q '^mine  *AMD' <(nibble devices mine.json)
check 'plan for a device from a file' grep -q '^machine  *mine: AMD' <(nibble plan "$MODEL" --device ./mine.json --recipe int4wo 2>/dev/null)
nibble devices cpu --json >here.json
check 'plan for this machine, from a file' nibble plan "$MODEL" --device here.json --recipe 8da4w
refused 2 'device "mi220" is not known; did you mean mi210; *' devices mi220
refused 6 'none.json: *' devices none.json
sed 's/"f32"/"f33"/' mine.json >wrong.json
refused 3 'wrong.json: line *, column 5: a machine has no rate "f33"; did you mean f32*' plan "$MODEL" --device wrong.json
check 'manual --markdown has at least 12 commands' test 12 -le "$(nibble manual --markdown | grep -c '^## nibble ')"
refused 2 '--markdown prints all commands; leave out "plan"' manual plan --markdown
