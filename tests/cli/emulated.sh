# SPDX-License-Identifier: Apache-2.0
#
# A processor without AVX-512, and one without AVX2: no illegal instruction, and the same text.
if [ "$(uname -m)" != x86_64 ] || ! command -v qemu-x86_64 >/dev/null; then
    skipped 'emulated' 'no qemu-x86_64 (apt-get install qemu-user)'
    exit
fi
text() { "$@" generate "$MODEL" --recipe 8da4w -p 'Once' --temp 0 -n 3 -t 1 2>err; }
expected=$(text nibble)
for processor in Nehalem:ref Haswell:avx2; do
    equal "${processor%:*}: same text" "$expected" "$(text qemu-x86_64 -cpu ${processor%:*} "$NIBBLE")"
    check "${processor%:*} runs kernels of ${processor#*:}" grep -q "36 done on cpu/${processor#*:}, 0 substituted" err
done
