# SPDX-License-Identifier: Apache-2.0
#
# What lies beside the weights when a GGUF becomes a directory: the tokenizer, its template and the settings of sampling, as
# transformers names them; and what stays in tokenizer.gguf, with the reason.
text() { nibble generate "$@" --quiet -p 'Once upon a time, "the king" said: 12345' --temp 0 -n 16; }
nibble convert "$MODEL" x.gguf --format gguf >/dev/null
want=$(text x.gguf)

# a template, sampling and the end of a turn, in place of a name of the same length
cat >keys.py <<'END'
import struct, sys
data = bytearray(open("x.gguf", "rb").read())
def string(s):
    return struct.pack("<Q", len(s)) + s
added = {b"tokenizer.chat_template": (8, string("{{ messages[0].content }}ü".encode())), b"tokenizer.chat_template.tool_use": (8, string(b"x")),
         b"general.sampling.temp": (6, struct.pack("<f", 0.7)), b"general.sampling.top_k": (5, struct.pack("<i", 40)),
         b"tokenizer.ggml.eot_token_id": (4, struct.pack("<I", 5)), b"tokenizer.ggml.padding_token_id": (4, struct.pack("<I", 3))}
keys = b"".join(string(k) + struct.pack("<I", kind) + value for k, (kind, value) in added.items())
keys += string(b"general.padding") + struct.pack("<I", 8)  # tensors begin at a multiple of 32
keys += string(b" " * (-(len(keys) + 8) % 32))
data[16:24] = struct.pack("<Q", struct.unpack("<Q", data[16:24])[0] + len(added) + 1)
data[24:24] = keys
open("more.gguf", "wb").write(data)
open("kind.gguf", "wb").write(bytes(data).replace(b".pre" + struct.pack("<I", 8) + string(b"qwen2"), b".pre" + struct.pack("<I", 8) + string(b"qwenX")))
END
python3 keys.py
nibble convert more.gguf dir --format safetensors >out
for name in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json config.json; do
    check "the directory has $name" [ -s "dir/$name" ]
done
check 'and no keys of the GGUF' [ ! -e dir/tokenizer.gguf ]
check 'what is left out is said' told 'note: the chat template tool_use of the GGUF is left out'
equal 'the template' '{{ messages[0].content }}ü' "$(cat dir/chat_template.jinja)"
equal 'the settings' '{"bos_token_id":2255,"do_sample":true,"eos_token_id":[2255,5],"pad_token_id":3,"temperature":0.7,"top_k":40}' "$(tr -d ' \n' <dir/generation_config.json)"
see_config() { python3 -c 'import json, sys; c = json.load(open(sys.argv[1])); print(*(c[k] for k in sys.argv[2:]))' "$@"; }
equal 'numbers are as short as they can be' '1e-06 10000.0' "$(see_config dir/config.json rms_norm_eps rope_theta)"
equal 'the same text' "$want" "$(text dir --ignore-eos)"
nibble convert dir back.gguf --format gguf >/dev/null
equal 'and again as a GGUF' "$want" "$(text back.gguf --ignore-eos)"

# vocabularies that a tokenizer.json cannot hold, or that are not read
nibble convert kind.gguf kept --format safetensors >out
check 'another way to split words' told 'the vocabulary stays in tokenizer.gguf, which only nibble reads: .*tokenizer.ggml.pre "qwenX" is not known'
check 'its keys stay' [ -s kept/tokenizer.gguf ]
check 'its template stays' cmp kept/chat_template.jinja dir/chat_template.jinja
check 'and no tokenizer.json' [ ! -e kept/tokenizer.json ]
refused 4 '*tokenizer.ggml.pre "qwenX" is not known*' convert kind.gguf strict --format safetensors --strict
