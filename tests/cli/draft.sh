# SPDX-License-Identifier: Apache-2.0
#
# --draft: the same text with a draft model and without, its statistics, its plan, and what is refused.
# text ARGUMENT...: the text, the number of tokens and the finish reason, without times
text() { nibble generate "$TARGET" --json "$@" 2>/dev/null | sed 's/, "first_token_s.*//'; }
# copy NAME SED_EXPRESSION FILE: nibble-tales with one file changed
copy() {
    cp -r "$MODEL" "$1"
    chmod -R u+w "$1"
    sed -i "$2" "$1/$3"
}
# deep NAME LAYERS: nibble-tales with more layers, which add nothing: the same texts, only slower
deep() {
    python3 - "$MODEL" "$1" "$2" <<'END'
import json, shutil, struct, sys
source, to, more = sys.argv[1], sys.argv[2], int(sys.argv[3])
shutil.copytree(source, to)
data = open(source + "/model.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
head, body = json.loads(data[8:8 + size]), data[8 + size:]
config = json.load(open(source + "/config.json"))
layers = config["num_hidden_layers"]
config["num_hidden_layers"] = layers + more
tensors = [(k, v, body[slice(*v["data_offsets"])]) for k, v in head.items() if k != "__metadata__"]
for k, v, values in list(tensors):
    if k.startswith("model.layers.0."):
        tensors += [(k.replace("layers.0.", "layers.%d." % i), v, bytes(len(values)) if "o_proj" in k or "down_proj" in k else values)
                    for i in range(layers, layers + more)]
at, head = 0, {}
for k, v, values in tensors:
    head[k] = dict(v, data_offsets=[at, at + len(values)])
    at += len(values)
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
with open(to + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.writelines(values for _, _, values in tensors)
json.dump(config, open(to + "/config.json", "w"))
END
}

check 'a draft model is quantized' nibble quantize "$MODEL" int4 --recipe int4wo --quiet
deep deep 30
copy short 's/"max_position_embeddings": 512/"max_position_embeddings": 96/' config.json
copy wrong 's/words": 1000,/words": 1001,/; s/"ting": 1001,/"ting": 1000,/' tokenizer.json
copy lines 's/"torch_dtype": "bfloat16"/"torch_dtype": "float32"/' config.json

# a head that the model is stored with
tool=$REPO/build/release/tools/random_checkpoint
[ -x "$tool" ] || tool=$(dirname "$NIBBLE")/tools/random_checkpoint
mkdir shape
sed 's/"vocab_size": [0-9]*/"vocab_size": 2256/' "$REPO"/tests/golden/models/qwen3_5_draft/config.json >shape/config.json
check 'a model with a draft head' "$tool" shape head 7 draft-head
cp "$MODEL"/tokenizer*.json head
for how in '--temp 0 -n 60' '--temp 0.8 --seed 3 -n 60 -t 2' '--temp 0 -n 40 --recipe 8da4w'; do
    read -ra how <<<"$how"
    TARGET=head
    equal "${how[*]}: same text with --draft-head" "$(text -p 'Once upon a time' "${how[@]}" --ignore-eos --lookup 0)" \
        "$(text -p 'Once upon a time' "${how[@]}" --ignore-eos --draft-head --lookup 0)"
done
check 'a GGUF with a draft head' nibble convert head head.gguf --format gguf --quiet
TARGET=head
without=$(text -p 'Once upon a time' --temp 0 -n 60 --ignore-eos --lookup 0)
TARGET=head.gguf
equal 'GGUF: same text with --draft-head as from the directory' "$without" \
    "$(text -p 'Once upon a time' --temp 0 -n 60 --ignore-eos --draft-head --lookup 0)"
mkdir next
sed -z 's/"mlp_only_layers": [[][^]]*]/"mlp_only_layers": []/' "$REPO"/tests/golden/models/qwen3_next_draft/config.json >next/config.json
check 'a Qwen3-Next with a draft head' "$tool" next next_head 7 draft-head
setting 'not as asked: draft head (checkpoint): its 35 tensors are not written: llama.cpp has no names' convert next_head next.gguf --format gguf --dry-run
denied 'draft head (checkpoint): its 35 tensors are not written: *' convert next_head next.gguf --format gguf --strict
nibble plan head --draft-head --recipe 8da4w | tr -s '\n ' ' ' >head.txt
check 'the plan has the head' grep -q 'note: --draft-head: a step checks at most 15 tokens that it drafts, .* mtp.layers.0.mlp.down_proj 48x64 .* 8da4w-g32@cpu as asked' head.txt
check 'the plan says what the head shares' grep -q 'note: 433.2 kB of these weights are the model.s own, and held once' head.txt
nibble plan head --draft-head --recipe 8da4w --draft-recipe int8wo | tr -s '\n ' ' ' >head.txt
nibble plan head --draft-head --recipe 8da4w --only 'model.layers.0.*' | tr -s '\n ' ' ' >only.txt
check 'layers that are named are those of the model' grep -q 'note: --draft-head: the head is as stored, as --skip and --only .* mtp.fc 48x96 9.2 kB bf16@cpu as asked' only.txt
check 'a recipe of its own' grep -q 'mtp.fc 48x96 .* int8wo@cpu as asked' head.txt
refused 3 '*: --draft-head: models of the family qwen2 have no draft head; *' generate "$MODEL" -p x --draft-head
refused 3 '*mtp.fc*' generate "$REPO"/tests/golden/models/qwen3_5 -p x --draft-head
refused 2 '--draft and --draft-head name two draft models; leave one out' generate head -p x --draft-head --draft "$MODEL"

# the same text; the deep model is slow enough that drafts pay
echo '{"type": "array", "items": {"enum": ["wolf", "king"]}, "minItems": 9, "maxItems": 12}' >list.json
for TARGET in "$MODEL" deep; do
    for how in '--temp 0 -n 120 --ignore-eos' '--temp 0.7 --seed 2 -n 120 -t 2' '--temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 3 -n 100' \
        '--temp 0.4 --repeat-penalty 1.2 -n 60' '--temp 0 --stop king --stop wolf' '--temp 0 -n 40 --logprobs 3' '--seed 4 --schema list.json --logprobs 1' '--temp 0 --recipe 8da4w -n 60' '-n 1'; do
        read -ra how <<<"$how"
        without=$(text -p 'Once upon a time' "${how[@]}" --lookup 0)
        check "${how[*]}: text is generated" [ "${#without}" -gt 20 ]
        for draft in "$MODEL" int4 short; do
            sampled 4 || continue
            equal "$TARGET ${how[*]}: same text with --draft $draft" "$without" "$(text -p 'Once upon a time' "${how[@]}" --draft "$draft" --lookup 0)"
        done
        equal "$TARGET ${how[*]}: same text with both kinds of drafts" "$without" "$(text -p 'Once upon a time' "${how[@]}" --draft int4)"
    done
done

# what is counted; whether anything is drafted depends on measured times
nibble generate deep --draft "$MODEL" --json -p 'Once upon a time' --temp 0 --ignore-eos -n 250 --lookup 0 >deep.json 2>/dev/null
check 'counts of drafts agree' python3 - <<'END'
import json
d = json.load(open("deep.json"))
assert d["steps"] + d["accepted"] == 249 and d["drafts"] == 15, d["steps"]
assert d["model_drafted"] == d["drafted"] >= d["accepted"] == d["model_accepted"], d["model_drafted"]
assert (d["model_s"] > 0) == (d["model_drafted"] > 0), d["model_s"]
assert d["vain_s"] >= 0 and d["undrafted_s"] > 0, (d["vain_s"], d["undrafted_s"])
END
nibble generate deep --draft int4 -p 'Once upon a time' -n 60 >/dev/null 2>err
check 'statistics of the draft model' grep -q '^draft model [0-9]* tokens drafted, [0-9]* accepted, [0-9.]* tokens per step, [0-9.]* ms in it$' err
check 'statistics of drafts in vain' grep -q '^in vain     [0-9.]* ms of drafts, [0-9.]* % of [0-9.]* ms without them$' err
check 'the summary of the draft model' grep -q '^draft model: 36 linear layers: 36 asked' err

# a conversation
answers() {
    printf 'Tell me of a wolf\nAgain\n/stats\n' | nibble chat deep --chat-template "$REPO/examples/tales.jinja" -n 60 "$@" 2>stats
}
for how in '--temp 0' '--seed 5'; do
    read -ra how <<<"$how"
    without=$(answers "${how[@]}" --lookup 0)
    equal "chat ${how[*]}: same answers with --draft" "$without" "$(answers "${how[@]}" --draft int4)"
    check "chat ${how[*]}: statistics of drafts" grep -q '^draft model [0-9]* tokens drafted' stats
done

# the plan
nibble plan "$MODEL" --draft "$MODEL" --draft-recipe int4wo --context 128 | tr -s '\n ' ' ' >plan.txt
check 'the plan has the draft model' grep -q 'note: --draft .*: a step checks at most 15 tokens that it drafts, .* draft model .*int4wo-g32@cpu' plan.txt
nibble plan "$MODEL" --draft int4 --json | members 'plan --draft --json' drafts=15
nibble plan "$MODEL" --draft short >plan.txt 2>/dev/null
check 'a shorter context is said' grep -q 'in part: context of --draft 512 (option): the draft model has 96 positions' <(tr -s '\n ' ' ' <plan.txt)
nibble plan "$MODEL" --draft lines --json >lines.json 2>/dev/null
check 'the lines of the draft model are in the plan' python3 -c 'import json; d = json.load(open("lines.json")); assert "torch_dtype" in [s["name"] for s in d["draft"]["settings"]] and not d["settings"], d["settings"]'
nibble generate "$MODEL" --draft lines -p x -n 2 >/dev/null 2>err
check 'the lines of the draft model are printed' grep -A 1 '^draft model lines$' err
refused 4 '--draft lines: --strict: torch_dtype*' generate "$MODEL" --draft lines -p x -n 2 --strict --quiet
check '--allow accepts them' nibble generate "$MODEL" --draft lines -p x -n 2 --strict --allow dtype
nibble plan "$MODEL" --device h200 --draft int4 2>/dev/null | tr -s '\n ' ' ' >h200.txt
check 'h200: the plan says that no drafts are made' grep -q 'without effect: --draft int4 (option): tokens are drawn one by one: linear_' h200.txt
refused 5 'weights, keys and values, with * of the draft model, are *' generate "$MODEL" --draft int4 -p x -n 2 --memory 8MB

# refused, before anything is generated
for command in 'generate -p x' chat serve\ --port\ 0 plan; do
    read -ra command <<<"$command"
    refused 3 '--draft wrong has another vocabulary: token 1000 is "ting", but " words" in *; a draft model must have the same 2256 tokens' \
        "${command[0]}" "$MODEL" "${command[@]:1}" --draft wrong
done
refused 6 'missing: *' generate "$MODEL" -p x --draft missing
refused 2 '--draft-recipe 8da4w has no effect without --draft MODEL or --draft-head; *' generate "$MODEL" -p x --draft-recipe 8da4w
refused 2 '--draft int4: * "x9"*' generate "$MODEL" -p x --draft int4 --draft-recipe x9
refused 2 '--draft is not an option of `nibble eval`; *' eval "$MODEL" --draft int4
refused 2 '--draft int4 has no effect in training, which generates no text; leave it out' plan "$REPO"/configs/llama3_debugmodel_mxfp8_vocab2256.json --draft int4
