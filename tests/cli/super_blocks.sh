# q2_k to q6_k and iq4_nl: the GGUF has the values that were quantized, for any threads and instruction set; what is refused
mkdir wide
cp "$MODEL"/tokenizer*.json wide
python3 - "$MODEL/config.json" <<'END'
import array, json, random, sys
random.seed(7)
vocab = json.load(open(sys.argv[1]))["vocab_size"]
json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": 256, "intermediate_size": 512,
           "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512,
           "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
           "torch_dtype": "float32"}, open("wide/config.json", "w"))
layer = "model.layers.0."
shapes = {"model.embed_tokens": (vocab, 256), "lm_head": (vocab, 256), "model.norm": (256,), layer + "input_layernorm": (256,),
          layer + "post_attention_layernorm": (256,), layer + "mlp.gate_proj": (512, 256), layer + "mlp.up_proj": (512, 256),
          layer + "mlp.down_proj": (256, 512), layer + "self_attn.q_proj": (256, 256), layer + "self_attn.k_proj": (128, 256),
          layer + "self_attn.v_proj": (128, 256), layer + "self_attn.o_proj": (256, 256)}
header, data = {}, b""
for name, shape in shapes.items():
    rows = 1 if len(shape) == 1 else shape[0]
    values = array.array("f", (1.0 if len(shape) == 1 else random.gauss(0, 0.05) * random.expovariate(1) for _ in range(rows * shape[-1])))
    header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
    data += values.tobytes()
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open("wide/model.safetensors", "wb") as f:
    f.write(len(text).to_bytes(8, "little") + text + data)
END
head -c 2000 "$MODEL/heldout.txt" >text.txt
head -c 1200 text.txt >short.txt
check 'an imatrix of the model' nibble imatrix wide im.gguf --calibrate text.txt

# write RECIPE FILE ARGUMENT...
write() { nibble quantize wide "$2" --recipe "$1" --format gguf --force "${@:3}" >out 2>err; }
hashes() { # of a file's tensors, from its manifest
    python3 -c 'import json, sys; [print(t) for t in sorted(map(str, json.load(open(sys.argv[1]))["tensors"].items()))]' "$1.nibble.json"
}
weighed() { # KL divergence of a.gguf from the stored weights on the text
    nibble eval a.gguf --recipe weight-only --against wide --text short.txt --quiet | sed -n 's/^KL  *\([0-9.e-]*\) nats per token$/\1/p'
}
generate() { nibble generate "$@" --prompt 'Once upon' -n 12 --temp 0 --quiet 2>/dev/null; }
least() { # of rounding's error that search removes, in %
    case $1 in q2_k) echo 40 ;; q3_k | q6_k | iq4_nl) echo 8 ;; *) echo 16 ;; esac
}
for recipe in q2_k q3_k q4_k q5_k q6_k iq4_nl; do
    sampled 3 || continue
    check "$recipe: quantize" write $recipe a.gguf
    check "$recipe: verify" nibble verify a.gguf
    check "$recipe: info names the type" grep -q "gguf $recipe " <(nibble info a.gguf)
    write $recipe b.gguf --threads 1 --isa ref
    check "$recipe: threads and instruction sets change no byte" cmp a.gguf b.gguf
    equal "$recipe: the file gives the text of the quantized weights" "$(generate wide --recipe $recipe)" \
        "$(generate a.gguf --recipe weight-only --dtype f32)"
    check "$recipe: search" write $recipe a.gguf --method search --imatrix im.gguf
    gained=$(sed -n 's/^note: search: 8 layers, whose weighted squared error is \([0-9]*\)\.[0-9] % below that of rounding.*/\1/p' out)
    check "$recipe: search removes $(least $recipe) % of rounding's error: $gained %" [ "${gained:-0}" -ge "$(least $recipe)" ]
    write $recipe b.gguf --method search --calibrate text.txt --threads 1
    check "$recipe: the same by the text, on one thread" cmp a.gguf b.gguf
    write $recipe b.gguf --method search --calibrate text.txt --only '*self_attn*'
    write $recipe c.gguf --method search --calibrate text.txt --only '*self_attn*' --isa ref
    check "$recipe: search gives the same on every instruction set" cmp b.gguf c.gguf
    check "$recipe: verify what search chose" nibble verify a.gguf
    searched=$(weighed)
    for method in gptq qronos; do
        check "$recipe: $method" write $recipe a.gguf --method $method --calibrate short.txt
        check "$recipe: $method is nearer than search on the text" awk -v a="$(weighed)" -v b="$searched" 'BEGIN { exit !(a > 0 && a < b) }'
        check "$recipe: verify what $method chose" nibble verify a.gguf --from wide --threads 1
    done
    check "$recipe: nibble's own format" nibble quantize wide own --recipe $recipe --format nibble --force
    equal "$recipe: its text" "$(generate wide --recipe $recipe)" "$(generate own)"
    nibble quantize wide a.gguf --recipe $recipe --format gguf --force >/dev/null
    check "$recipe: from GGUF to GGUF" nibble convert a.gguf kept.gguf --format gguf --force
    equal "$recipe: the same bytes" "$(hashes a.gguf)" "$(hashes kept.gguf)"
    check "$recipe: to GGUF" nibble convert own b.gguf --format gguf --force
    same "$recipe: the same values" a.gguf b.gguf
done

refused 3 'model.layers.0.self_attn.q_proj: q4_k has super-blocks of 256 inputs, and 224 is not a multiple of that; *' \
    quantize "$MODEL" no.gguf --recipe q4_k --format gguf
refused 4 '*torchao has no super-blocks*' quantize wide no --recipe q6_k --format torchao
refused 4 '*torchao has no codes from a table of levels*' quantize wide no --recipe iq4_nl --format torchao
refused 3 '*the method learn moves the scale of each group, and those of q5_k are integer multiples in super-blocks; use qronos or gptq' \
    quantize wide no.gguf --recipe q5_k --format gguf --method learn --calibrate text.txt
refused 2 '*' quantize wide no.gguf --recipe q4_k-g64 --format gguf
echo '{"rules": [{"match": "*.down_proj", "scheme": "q6_k"}], "else": "q4_k"}' >mix.json
check 'a mix by rules' write mix.json mix.gguf
equal 'its types' 'gguf q4_k gguf q6_k' "$(nibble info mix.gguf | grep -o "gguf q[0-9]_k" | sort -u | paste -sd ' ')"
# llama.cpp's mixes: blocks 0 to 15 of a tied Llama, and the model of this test with 1 block
mix_of() { # RECIPE ROLE: the blocks of a role with other types than the rest
    nibble plan "$REPO/configs/shapes/llama-3.2-1b/config.json" --recipe "$1" --json --quiet --device apple-m1-cpu | python3 -c '
import json, sys
rest = {"q3": "q3_k", "q4": "q4_k", "q5": "q5_k"}[sys.argv[1][:2]]
of = [(l["name"].split(".")[2], l["asked"].split("@")[0]) for l in json.load(sys.stdin)["layers"] if l["name"].endswith(sys.argv[2])]
print(*[f"{t}:" + ",".join(i for i, s in of if s == t) for t in sorted({s for _, s in of if s != rest})])' "$1" "$2"
}
equal 'q4_k_m: v' 'q6_k:0,1,4,7,10,13,14,15' "$(mix_of q4_k_m v_proj)"
equal 'q4_k_m: down' 'q6_k:0,1,4,7,10,13,14,15' "$(mix_of q4_k_m down_proj)"
equal 'q4_k_m: o' '' "$(mix_of q4_k_m o_proj)"
equal 'q4_k_s: v' 'q5_k:0,1,2,3' "$(mix_of q4_k_s v_proj)"
equal 'q4_k_s: down' 'q5_k:0,1' "$(mix_of q4_k_s down_proj)"
equal 'q5_k_m: v' 'q6_k:0,1,4,7,10,13,14,15' "$(mix_of q5_k_m v_proj)"
equal 'q3_k_m: v' 'q4_k:2,3,4,5,6,7,8,9,10,11,12,13,14,15 q5_k:0,1' "$(mix_of q3_k_m v_proj)"
equal 'q3_k_m: down' 'q4_k:1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 q5_k:0' "$(mix_of q3_k_m down_proj)"
equal 'q3_k_l: o' 'q5_k:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15' "$(mix_of q3_k_l o_proj)"
check 'q4_k_m' write q4_k_m mix.gguf
equal 'q4_k_m: its output, v and down' 3 "$(nibble info mix.gguf | grep -c 'gguf q6_k')"
equal 'q4_k_m: the rest, and the embedding' 6 "$(nibble info mix.gguf | grep -c 'gguf q4_k')"
check 'the ledger names the rule' grep -q 'q4_k_m: ' out
check 'q4_k_m by gptq, its embedding by search' write q4_k_m mix.gguf --method gptq --calibrate short.txt
check 'both are said' told 'by search .* by gptq '
check 'verify makes them again, with plain C' nibble verify mix.gguf --from wide --isa ref --threads 1
check 'q4_k by awq' write q4_k mix.gguf --method awq --calibrate short.txt
check 'verify makes it again' nibble verify mix.gguf --from wide
# file_type RECIPE WANTED: llama.cpp's number of the mix
file_type() {
    nibble quantize wide type.gguf --recipe "$1" --format gguf --force --quiet >"$seen.out"
    equal "general.file_type of $1" "$2" "$(python3 -c 'import struct
data, key = open("type.gguf", "rb").read(), b"general.file_type"
print(struct.unpack_from("<II", data, data.index(key) + len(key))[1])')"
}
while read -r recipe number; do file_type "$recipe" "$number"; done <<'END'
q3_k_s 11
q3_k_m 12
q3_k_l 13
q4_k_s 14
q4_k_m 15
q5_k_s 16
q5_k_m 17
q4_k 14
q6_k 18
END
equal 'mixes are listed' 'q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m' "$(nibble recipes --json | python3 -c 'import json, sys; print(*[r["name"] for r in json.load(sys.stdin)["recipes"] if "mix" in r["weights"]])')"
refused 2 '*' quantize wide no.gguf --recipe q4_k_m+head --format gguf
refused 3 '*has super-blocks of 256 inputs*' quantize "$MODEL" no.gguf --recipe q4_k_m --format gguf

# every type that is read, as llama.cpp stores them
check 'all types from GGUF to GGUF' nibble convert "$REPO/tests/golden/gguf/llama.gguf" all.gguf --format gguf
types() { nibble info "$1" | grep -o 'gguf *[a-z0-9_]* ' | sort | uniq -c; }
equal 'all types stay' "$(types "$REPO/tests/golden/gguf/llama.gguf")" "$(types all.gguf)"
same 'all values stay' "$REPO/tests/golden/gguf/llama.gguf" all.gguf
equal 'refusals leave nothing' '' "$(ls -d no* 2>/dev/null)"
