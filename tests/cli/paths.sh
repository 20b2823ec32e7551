# SPDX-License-Identifier: Apache-2.0
#
# Unusual file names: blanks, a line break, quotes, invalid UTF-8, a leading dash.
for name in 'with blanks' $'line\nbreak' "quote'\"s" $'no utf-8 \xff\xfe' -m '*' '$HOME' 'ünïcödé' "$(printf 'long%.0s' $(seq 60))"; do
    cp -r "$MODEL" "./$name"
    check "info: $name" nibble info -- "$name"
    check "plan: $name" nibble plan "./$name/config.json"
    check "quantize: $name" nibble quantize "./$name" "./$name.q" --recipe int8wo --quiet
    check "verify: $name" nibble verify "./$name.q"
    check "generate: $name" nibble generate "./$name.q" -n 1
    nibble info --json -- "$name" | members "info --json: $name" schema=1
    rm -rf "./$name"
    refused 6 '*there is no such file or directory' plan "./$name"
    rm -rf "./$name.q"
done
status=0
nibble plan "$(printf 'x%.0s' $(seq 5000))" >out 2>err || status=$?
equal 'exit status for a path that is too long' 6 "$status"
equal 'a path that is too long: lines on stderr' 1 "$(wc -l <err)"
equal 'control characters of a path stay off the terminal' 0 "$(nibble plan $'a\033[31m\nb' 2>&1 >/dev/null | head -n 1 | grep -c $'\033')"
refused 2 '`nibble plan` takes at most 1 argument (MODEL); "--recipe" is one too many' plan -- "$MODEL" --recipe
