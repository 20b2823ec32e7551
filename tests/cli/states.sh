# SPDX-License-Identifier: Apache-2.0
#
# Models whose layers keep states (short convolutions, gated DeltaNet, Mamba-2), small and random, with the tokenizer of
# nibble-tales: what a conversation computes again, and such models as draft models.
tool=$REPO/build/release/tools/random_checkpoint
[ -x "$tool" ] || tool=$(dirname "$NIBBLE")/tools/random_checkpoint
if [ ! -x "$tool" ]; then
    skipped 'states' 'no build/release/tools/random_checkpoint (make tools)'
    exit
fi
template=$REPO/examples/tales.jinja
for family in lfm2 qwen3_next granite_hybrid; do
    mkdir shape
    sed -E 's/"(vocab_size": )[0-9]+/"\12256/' "$REPO/tests/golden/models/$family/config.json" >shape/config.json
    "$tool" shape $family >"$seen.tool" 2>&1 || check "$family: random_checkpoint writes a model" false
    cp "$MODEL"/tokenizer*.json $family
    rm -r shape
done

# a conversation says once that it computes cached tokens again
for family in lfm2 granite_hybrid; do
    printf '%s\n' 'The wolf said to the king' /reset 'The wolf said to the queen' /reset 'The wolf said no' /stats |
        nibble chat $family --chat-template "$template" -n 90 --temp 0 --ignore-eos >out 2>err
    equal "$family: said once" 1 "$(grep -c 'prompt tokens, and [0-9]* of these were computed again: layers with a state keep it at a few positions only' err)"
    check "$family: /stats has the numbers" grep -qE '^prompt +[0-9]+ tokens, [0-9]+ of them cached, [1-9][0-9]* recomputed \(state\)' err
done

# draft models with states, for models with states and without: the same text, also in a conversation and sampled
say() { printf 'Once upon a time\nThe wolf\n' | nibble chat "$@" --chat-template "$template" -n 60 --ignore-eos 2>err; }
check 'a GGUF of Granite 4' nibble convert granite_hybrid granite.gguf --format gguf --quiet
for pair in "granite_hybrid granite.gguf" "qwen3_next lfm2" "$MODEL qwen3_next" "lfm2 $MODEL"; do
    read -r model draft <<<"$pair"
    for how in '--temp 0' '--seed 5'; do
        sampled 3 || continue
        read -ra how <<<"$how --lookup 0"
        text=$(nibble generate "$model" -p 'Once upon a time' -n 120 --ignore-eos "${how[@]}" 2>err)
        equal "$pair: the same text" "$text" "$(nibble generate "$model" -p 'Once upon a time' -n 120 --ignore-eos "${how[@]}" --draft "$draft" 2>err)"
        check "$pair: drafts were asked for" grep -q '^draft model ' err
        equal "$pair: the same conversation" "$(say "$model" "${how[@]}")" "$(say "$model" "${how[@]}" --draft "$draft")"
    done
done
