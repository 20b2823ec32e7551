# SPDX-License-Identifier: Apache-2.0
#
# Invalid option values: an error with the value and the expected form, exit 2.
for value in -1 x 1.5 '' 99999999999999999999; do
    for option in max-tokens top-k; do
        refused 2 "--$option: \"$value\" is not a whole number of 0 or more" generate "$MODEL" --$option "$value"
    done
    for option in threads context; do
        refused 2 "--$option: \"$value\" is not a whole number of 1 or more" generate "$MODEL" --$option "$value"
    done
    refused 2 "--seed: \"$value\" is not a whole number from 0 to 2^64 - 1" generate "$MODEL" --seed "$value"
done
for value in -1 x nan inf 1e999 0x1 '' '0,5'; do
    for option in temp min-p; do
        refused 2 "--$option: \"$value\" is not a number of 0 or more" generate "$MODEL" --$option "$value"
    done
    for option in top-p repeat-penalty; do
        refused 2 "--$option: \"$value\" is not a number above 0" generate "$MODEL" --$option "$value"
    done
done
for value in 0 0.0 -0 1e-400; do
    refused 2 "--top-p: \"$value\" is not a number above 0" generate "$MODEL" --top-p "$value"
    refused 2 "--repeat-penalty: \"$value\" is not a number above 0" chat "$MODEL" --repeat-penalty "$value"
done
refused 2 'the repetition penalty 101 is out of range: it must be above 0 and at most 100' generate "$MODEL" --repeat-penalty 101
refused 2 '4097 threads: must be 0 (all cores) to 1024' plan "$MODEL" -t 4097
refused 2 'temperature 1e+06 is not between 0 and 100' generate "$MODEL" --temp 1e6
refused 2 'top-p 1.5 is out of range: it must be above 0 and at most 1' generate "$MODEL" --top-p 1.5
refused 2 'min-p 2 is not between 0 and 1' generate "$MODEL" --min-p 2
refused 2 'a context of 513 is over the model'\''s limit of 512; lower --context' generate "$MODEL" -c 513
refused 2 'a window of 1 is not between 2 and the context of 512' eval "$MODEL" --text "$MODEL/heldout.txt" --window 1
refused 2 'a window of 513 is not between 2 and the context of 512' eval "$MODEL" --text "$MODEL/heldout.txt" --window 513
refused 2 'dtype "f8" is not one of f32, f16, bf16' plan "$MODEL" --dtype f8
refused 2 'cache type "q8_0" is not one of f32, f16, bf16, int8, int4, one of these with -hadamard, or two as KEYS:VALUES; int8 has *' generate "$MODEL" --cache-type q8_0
for type in int2 int4- :int4 int8:int4:int4 int4-hadamard64 hadamard int8:; do
    refused 2 "cache type \"$type\" is not one of f32, f16, bf16, int8, int4, one of these with -hadamard, or two as KEYS:VALUES" plan "$MODEL" --cache-type $type
done
refused 2 '--cache-type int8 has no effect in training*' plan "$REPO/configs/nibble_tales.json" --cache-type int8
refused 2 '--isa sse9: unknown instruction set; choose one of ref, *avx512vnni*' plan "$MODEL" --isa sse9
refused 2 '--engine nonsense: no such engine; known are *torchao*executorch, vllm, llama.cpp, modelopt' plan "$MODEL" --engine nonsense
refused 2 'device "mi220" is not known; did you mean mi210; *' plan "$MODEL" --device mi220
refused 2 '--layer nonsense: no layer matches' plan "$MODEL" --layer nonsense
refused 2 '--layer lm_heat: no layer matches; did you mean lm_head' plan "$MODEL" --layer lm_heat
refused 2 '--kernel linear_a8t_w4g_f32__avx2_4x9: no kernel of that name; did you mean linear_a8t_w4g_f32__avx2_4x16*' plan "$MODEL" --kernel linear_a8t_w4g_f32__avx2_4x9
refused 2 '--skip lm_head has no effect without a recipe*' generate "$MODEL" -n 1 --skip lm_head
refused 2 '--only lm_head has no effect without a recipe*' plan "$MODEL" --only lm_head
refused 2 '--allow nonsense: no such rung; known are kernel, device, dequant and unquantized*' plan "$MODEL" --allow nonsense
refused 2 '--allow nonsense: no layer or operation matches*' plan "$MODEL" --allow nonsense=device
refused 2 '--kernel nonsense: no kernel of that name*' plan "$MODEL" --kernel nonsense
refused 2 '--kernel lm_head=nonsense: no kernel of that name*' plan "$MODEL" --kernel lm_head=nonsense
refused 2 '--place nonsense: this plan has only the device cpu' plan "$MODEL" --place nonsense
refused 2 'format "zip" is not one of gguf, nibble, *' quantize "$MODEL" out --recipe int8wo --format zip
refused 4 '*: the format gguf cannot hold int8wo at *: its blocks have 32 codes*' quantize "$MODEL" out --recipe int8wo --format gguf
refused 4 '*: the format gguf cannot hold int8wo-g32 at *add -ggml*' quantize "$MODEL" out --recipe int8wo-g32 --format gguf
refused 2 'stop string 1 is empty*' generate "$MODEL" --stop ''
refused 2 'stop string 2 is not valid UTF-8 at byte 0' generate "$MODEL" --stop a --stop $'\xff'
only_here
