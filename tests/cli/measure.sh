# SPDX-License-Identifier: Apache-2.0
#
# nibble devices --measure: times kernels and saves the rates; plans predict from them and say so; another machine's entry is
# kept. No check depends on speed.
export POCL_CACHE_DIR=$XDG_CACHE_HOME/pocl/kcache # PoCL's compilation cache
export XDG_CACHE_HOME=$PWD/cache
kept=$XDG_CACHE_HOME/nibble/machine.json
says() { nibble plan "$MODEL" --recipe 8da4w "$@" 2>&1 | grep -c "^note: predicted from $words:"; }

words='measured rates'
check 'a plan times no kernels' test "$(says -t 1)" = 1
check 'measure the CPU' nibble devices cpu --measure -t 1
words='measured kernels'
check 'the plan predicts from measured kernels' test "$(says -t 1)" = 1
check 'machine.json has measured kernels' grep -q '"linear_a8t_w4g_f32__' "$kept"
words='measured rates'
check 'kernels measured with 1 thread do not count for 2' test "$(says -t 2)" = 1
refused 2 'mi210 is not present, so it cannot be measured' devices mi210 --measure
refused 2 'device "cpuu" is not known; did you mean cpu*' devices cpuu --measure

if ! nibble devices opencl >/dev/null 2>&1; then
    skipped 'measure, on OpenCL' 'no OpenCL device'
    exit
fi
if [ -z "${NIBBLE_TEST_ALL:-}" ]; then
    skipped 'measure, on OpenCL' 'left to make matrix, because the device compiles for a minute'
    exit
fi
words='cautious rates'
check 'opencl: the plan predicts from cautious rates' test "$(says --device opencl)" = 1
nibble plan "$MODEL" --device opencl >plan.txt 2>&1
check 'opencl: the plan says how to measure it' grep -q '^note: opencl is faster than its cautious rates: `nibble devices opencl --measure`' plan.txt
check 'measure opencl' nibble devices opencl --measure
words='measured kernels'
check 'opencl: the plan predicts from measured kernels' test "$(says --device opencl)" = 1
check "measured kernels of the CPU are kept" test "$(says -t 1)" = 1
