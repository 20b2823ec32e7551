# SPDX-License-Identifier: Apache-2.0
#
# German (a decimal comma) and Turkish (I is not the upper case of i) change nothing that Nibble prints, writes or accepts: not from
# the environment, and not in an application that sets its locale, for which a library that calls setlocale is loaded first.
if [ ! -e /usr/share/i18n/locales/tr_TR ]; then
    skipped 'locales, German and Turkish' 'no sources of locales (apt-get install locales)'
    exit
fi
mkdir locales
for name in de_DE tr_TR; do
    localedef -i $name -f UTF-8 "locales/$name.UTF-8" 2>/dev/null
done
export LOCPATH=$PWD/locales
equal 'decimal comma of the German locale' , "$(LC_ALL=de_DE.UTF-8 locale decimal_point)"
equal 'decimal comma of the Turkish locale' , "$(LC_ALL=tr_TR.UTF-8 locale decimal_point)"
echo '#include <locale.h>
__attribute__((constructor)) static void use(void) { setlocale(LC_ALL, ""); }' >application.c
check 'a library that sets the locale' "${CC:-gcc}" -shared -fPIC application.c -o application.so

# abroad LOCALE LIBRARY COMMAND...
abroad() {
    local locale=$1 library=$2
    shift 2
    LC_ALL=$locale.UTF-8 LD_PRELOAD=$library "$@"
}

head -c 300 "$MODEL/heldout.txt" >text.txt
# plans for named machines: the rates of this one vary
# those that begin with - only in the environment: there the program itself reads or prints a fraction, and it sets no locale
while read -r line; do
    [[ $line != -* ]] || only_environment=1
    line=${line#- }
    # shellcheck disable=SC2206 # words
    words=(${line//MODEL/$MODEL})
    plain() { # the output, the errors and the status, without times and measured rates; what was written
        local status=0
        rm -rf q
        "$@" "$NIBBLE" "${words[@]}" >out 2>err </dev/null || status=$?
        echo "status $status"
        case $line in
        eval*) grep -oE '(loss|perplexity)\W+[0-9.,]+' out ;;
        "generate "*--json*) grep -oE '"(text|temperature)": ("[^"]*"|[0-9.,]+)' out | grep -v 'predicted\|keys and values' ;;
        *) sed -E 's/[0-9.,]+ (s|ms|us)\b/TIME/g' out ;;
        esac
        grep '^nibble:' err
        [ ! -d q ] || (cd q && sha256sum -- *)
    }
    wanted=$(plain env)
    for locale in de_DE tr_TR; do
        equal "$line in $locale" "$wanted" "$(plain abroad $locale '')"
        [ -n "${only_environment:-}" ] || equal "$line in an application in $locale" "$wanted" "$(plain abroad $locale "$PWD/application.so")"
    done
    only_environment=
done <<'END'
plan MODEL --recipe 8da4w-g7 --device graviton3
plan MODEL --recipe int4wo --layer lm_head --device h200
plan MODEL --json --device h200
plan MODEL --memory 1GIB --device h200
- plan MODEL --memory 2,5GB --device h200
info MODEL
info MODEL --json
verify MODEL
- generate MODEL -n 20 -q --temp 0.9 --top-p 0.9 --seed 2
- generate MODEL -n 4 -q --temp 1,5
- generate MODEL -n 4 --json --temp 0.5 --seed 2
- eval MODEL --text text.txt --window 32
- eval MODEL --text text.txt --window 32 --json
quantize MODEL q --recipe INT8WO
quantize MODEL q --recipe int8wo
advise MODEL int8wo int4wo --device h200
advise MODEL int8wo int4wo --device h200 --json
devices h200
recipes
kernels
formats
train --keys
END

# numbers and headers of the server
export LIBRARY=$PWD/application.so
for locale in de_DE tr_TR; do
    check "the server in $locale" python3 - $locale.UTF-8 <<'END'
import os, re, sys
sys.path.insert(0, os.environ["REPO"] + "/tests/serve")
from serving import MODEL, Server

def answers(**variables):
    s = Server(MODEL, env=dict(os.environ, **variables))
    asked = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0.7, "seed": 3, "logprobs": 2}
    found = [s.ask("POST", "/v1/completions", asked)[2], s.ask("POST", "/v1/completions", dict(asked, temperature=2.5))[2],
             s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTRANSFER-ENCODING: CHUNKED\r\nContent-Length: 4\r\n\r\n0\r\n\r\n")]
    s.stop()
    return [re.sub(r'"(id|created)": ?("[^"]*"|\d+)|[Dd]ate: .*', "", str(text)) for text in found]

wanted = answers(LC_ALL="C")
for preload in "", os.environ["LIBRARY"]:
    got = answers(LC_ALL=sys.argv[1], LD_PRELOAD=preload)
    assert got == wanted, (got, wanted)
END
done
