# SPDX-License-Identifier: Apache-2.0
#
# What could be silent (tests/SILENT.md) when models run: options without effect in a command, files that are named but not
# read, and the settings of every model that a command runs.
model=$MODEL

# a model whose config requests more than is done
cp -r "$model" odd
edit odd/config.json 'd.update(mood=3)'
head -c 1000 "$model/heldout.txt" >text.txt

# eval reports the settings of the reference model too
denied='--strict: mood 3 (config): config.json has this key*'
refused 4 "$denied" eval "$model" --text text.txt --window 64 --against odd --strict -q
check 'eval --against --strict --allow config-key' nibble eval "$model" --text text.txt --window 64 --against odd --strict --allow config-key
equal 'settings of the reference model have its name above' 'against odd' "$(grep -B 1 '^without effect: ' "$seen.err" | head -n 1)"
equal 'settings of the reference model in the JSON' 'config-key' "$(nibble eval "$model" --text text.txt --window 64 --against odd --json -q | python3 -c 'import json, sys; print(*(s["code"] for s in json.load(sys.stdin)["against"]["settings"]))')"

# commands that plan internally print the settings of their plans
setting 'without effect: mood 3 (config): config.json has this key' tune odd
equal 'settings of tune' 'config-key=without effect' "$(settings tune odd)"
setting 'without effect: mood 3 (config): config.json has this key' advise odd --dry-run
equal 'settings of advise' 'config-key=without effect' "$(settings advise odd --dry-run)"
echo '{"linear:int8": {"groupsize": 0}, "linear:int4": {"groupsize": 32}}' >rules.json
setting 'without effect: linear:int4 (recipe): earlier rules decide' advise "$model" rules.json --dry-run
equal 'advise reports settings once for all recipes' 'config-key=without effect, filter=without effect' "$(settings advise odd int8wo rules.json 8da4w --dry-run)"

# a named tokenizer is opened even if no text is tokenized
for command in plan tune 'bench -n 2 --prompt-tokens 4' 'advise --dry-run'; do
    # shellcheck disable=SC2086 # words are meant
    refused 6 'nowhere: no tokenizer found; *' $command "$model" --tokenizer nowhere
    # shellcheck disable=SC2086
    refused 3 '*config.json has no model; it is not a tokenizer.json' $command "$model" --tokenizer "$model/config.json"
done
check '--tokenizer with a valid tokenizer' nibble plan "$model" --tokenizer "$model"

# options of one mode of a command, given with another mode
refused 2 '--markdown needs --kernels, *' bench "$model" --markdown -n 2
refused 2 '--against odd needs a model in codes to compare with, but all layers here are floats; *' bench "$model" --against odd -n 2 --prompt-tokens 4
refused 2 '--against odd compares with another model, but --alone compares with none; *' bench "$model" --recipe 8da4w --against odd --alone -n 2 --prompt-tokens 4
refused 2 '--cache-dir has no effect with --kernels' bench --kernels --cache-dir kept
refused 2 '--cache-dir has no effect with --predict' bench --predict "$model" --cache-dir kept
config=$REPO/configs/llama3_debugmodel.json
refused 2 '--cache-dir has no effect with --train' bench --train "$config" --cache-dir kept
refused 2 '--max-tokens has no effect with --train' bench --train "$config" -n 3
refused 2 '--prompt-tokens has no effect with --train' bench --train "$config" --prompt-tokens 3
check 'bench with a context of 4 tokens' nibble bench "$model" --context 4 -n 2 --prompt-tokens 4 --repeats 1 --json
equal 'prompt tokens of the cold start' 4 "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["cold_start"]["tokens"])' "$seen.out")"
refused 2 '--recipe needs MODEL; *' tune --recipe 8da4w
check 'tune MODEL' nibble tune "$model"
tuned=true # unless this machine has one kernel for each layer
! grep -q '^no layer has more than one kernel' "$seen.out" || tuned=false
refused 2 '--device needs MODEL; *' tune --clear --device cpu
equal 'tune --clear --json' "{\"schema\": 1, \"cleared\": $tuned}" "$(nibble tune --clear --json)"
for command in kernels models recipes formats; do
    refused 2 "--json and --markdown are two forms of one report; choose one" $command --json --markdown
    refused 2 "--isa is not an option of *" $command --isa avx2
    refused 2 "--threads is not an option of *" $command --threads 2
done
refused 2 '--json is not an option of *' chat "$model" --json
refused 2 '--json is not an option of *' serve "$model" --json
refused 2 '--allow-origin: "example.org" is not an origin, *' serve "$model" --allow-origin example.org --port 0
refused 2 '--allow-origin: "https://example.org/" is not an origin, *' serve "$model" --allow-origin https://example.org/ --port 0

# a chat reports what its template drops, before the answer, and how an answer ended
echo "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}" >users.jinja
talk() { # talk LINES ARGUMENT...
    local lines=$1
    shift
    printf '%b' "$lines" | nibble chat "$model" --chat-template "$@" 2>err >out
}
talk 'Hello\n' users.jinja --system 'Be brief.' -n 3
check 'chat reports a dropped system message' grep -q '^without effect: messages\[0\].content Be brief. (option): the chat template leaves it out' err
talk 'Hello\nAnd\n' users.jinja -n 3
equal 'chat reports dropped answers once' 1 "$(grep -c '^without effect: messages\[1\].content' err)"
talk 'Hello\n' users.jinja --system 'Be brief.' -n 3 --strict
equal 'exit status of chat --strict' 4 $?
check 'the error names --allow template' grep -q -- '--allow template accepts it$' err
check 'chat --strict gives no answer' [ ! -s out ]
check 'chat --strict --allow template' talk 'Hello\n' users.jinja --system 'Be brief.' -n 3 --strict --allow template
talk 'Hello\n' "$REPO/examples/tales.jinja" --system 'Be brief.' -n 3
equal 'a system message that the template shows: no line' '' "$(grep 'without effect' err)"
talk 'Hello\n/stats\n' "$REPO/examples/tales.jinja" --context 24 --ignore-eos
check 'chat says that the context is full' grep -q '^(stopped: the context is full' err
check '/stats says that the context ended the answer' grep -q '; ended with context$' err
talk 'Hello\n/stats\n' "$REPO/examples/tales.jinja" -n 3 --ignore-eos
check '/stats says that -n ended the answer' grep -q '; ended with length$' err
talk '/reset now\n' "$REPO/examples/tales.jinja"
equal 'exit status of /reset with an argument' 2 $?
check 'the error of /reset with an argument' grep -q '^nibble: /reset takes no argument; "now" is one too many$' err
