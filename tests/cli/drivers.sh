# SPDX-License-Identifier: Apache-2.0
#
# Drivers that are missing, too old, or lack a function: the error says what to install, and replacing an unusable device is a
# substitution like any other.
mkdir none old
driver() { # driver FOLDER LIBRARY SOURCE...
    cc -shared -fPIC -x c -w -o "$1/$2" "${@:3}"
}

# a library without a required function
echo 'int nothing;' >nothing.c
driver none libcuda.so.1 nothing.c
driver none libOpenCL.so.1 nothing.c
LD_LIBRARY_PATH=$PWD/none refused 2 'device "cuda" is not here; CUDA: libcuda.so.1 has no *; install a newer driver; here: cpu*' \
    plan "$MODEL" --device cuda
LD_LIBRARY_PATH=$PWD/none refused 2 'device "opencl" is not here; OpenCL: libOpenCL.so.1 has no cl*; install one for OpenCL 1.2 or later; here: cpu' \
    plan "$MODEL" --device opencl
[ -e /dev/nvidia0 ] || [ -n "$(ldconfig -p 2>/dev/null | grep libcuda.so.1)" ] ||
    refused 2 'device "cuda:1" is not here; CUDA: libcuda.so.1 not found; install NVIDIA'"'"'s driver; here: cpu*' \
        plan "$MODEL" --device cuda:1

# OpenCL 1.1: the whole device is refused when opened, with the driver's name and version
grep -o 'X(cl[A-Za-z]*)' "$REPO/src/device/opencl.c" | tr -d 'X()' | sort -u |
    grep -vxF -e clGetPlatformIDs -e clGetDeviceIDs -e clGetDeviceInfo | sed 's/.*/int &(void) { return -59; }/' >others.c
driver old libOpenCL.so.1 "$REPO/tests/cli/stub_opencl.c" others.c
export LD_LIBRARY_PATH=$PWD/old
check 'devices lists the old device' nibble devices opencl
words='the driver 9.9.1 of Old GPU supports OpenCL 1.1 of old, but Nibble needs 1.2 or later; update the driver'
refused 4 "*: asked *@opencl*opencl: $words*--allow device: done *@cpu, *" \
    generate "$MODEL" -p x -n 2 --device opencl --recipe 8da4w --quiet
nibble generate "$MODEL" -p 'Once upon a time' -n 4 --temp 0 --device opencl --recipe 8da4w --allow device >text 2>said
check 'generate says that it leaves out the device' grep -qF "planned again without the device: opencl: $words" said
check 'the ledger counts the 36 moved layers' grep -q '36 asked 8da4w-g32, 36 substituted' said
nibble generate "$MODEL" -p 'Once upon a time' -n 4 --temp 0 --recipe 8da4w >here 2>/dev/null
check 'same text as on the CPU' cmp text here
refused 4 '*--strict: *' generate "$MODEL" -p x -n 2 --device opencl --recipe 8da4w --allow device --strict --quiet

# training too, before its first step
small=("$REPO/configs/llama3_debugmodel_mxfp8.json" --device opencl --model.n_layers=1 --training.local_batch_size=1
    --training.seq_len=32 --training.steps=1)
refused 4 "*: asked *@opencl*opencl: $words*--allow device: done *@cpu, *" train "${small[@]}" --quiet
nibble train "${small[@]}" --allow device >steps 2>said
check 'train takes a step on the CPU' grep -q '^step:  1 ' steps
check 'train reports the left-out device at once and in the ledger' [ "$(grep -cF "planned again without the device: opencl: $words" said)" = 2 ]
check 'the ledger of train counts the 8 moved layers' grep -q '8 linear layers: .*, 8 substituted' said
