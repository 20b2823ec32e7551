# SPDX-License-Identifier: Apache-2.0
#
# Help texts, and errors for invalid command lines.
see --version
see --help
see help quantize
see generate --help
see
see pla
see -m "$MODEL"
see help nonsense
see plan --recip 8da4w
see plan -recipe 8da4w
see plan --seed 1
see plan -x
see generate -n20
see generate -ngl 99
see generate MODEL --temperature 1
see eval -p x
see eval --prompt=x
see plan "$MODEL" --quiet=yes
see plan "$MODEL" --recipe
see plan
see info a b
see generate -m a b
see quantize "$MODEL"
see quantize "$MODEL" OUT
see quantize "$MODEL" OUT --recipe int8wo --method gptq
see eval "$MODEL"
see completion
see completion tcsh
see manual nonsense
see generate "$MODEL" -p a --file b
only_here
