# SPDX-License-Identifier: Apache-2.0
#
# Training with linear layers on an OpenCL device (PoCL in CI): the first steps as on the CPU within a tolerance, in make matrix as the
# golden curves; some layers on the device; the plan's host operations and copies; a dry run, ranks, and errors.
if ! nibble devices opencl >device.txt 2>"$seen.err"; then
    skipped 'opencl_train' 'no OpenCL device'
    exit
fi
curves=$REPO/tests/golden/train/curves
debug=$REPO/configs/llama3_debugmodel_mxfp8_vocab2256.json

# two steps with a sequence of 64, against the CPU
curve() { # curve NAME ARGUMENT...
    local name=$1
    shift
    SEQ_LEN=64 "$curves/run" "$NIBBLE" "$name" 1 2 >here.txt 2>err || cat err
    SEQ_LEN=64 "$curves/run" "$NIBBLE" "$name" 1 2 "$@" >there.txt 2>err || cat err
    check "$name: two steps are logged" [ "$(wc -l <there.txt)" = 2 ]
    near_curve "$name $*" here.txt there.txt
}
# all curves against the golden ones, in make matrix
if full; then
    curve() {
        local name=$1
        shift
        "$curves/run" "$NIBBLE" "$name" 2 3 "$@" >there.txt 2>err || cat err
        check "$name: three steps are logged" [ "$(wc -l <there.txt)" = 3 ]
        near_curve "$name $*" "$curves/${name}_2x256.txt" there.txt
    }
fi
curve mxfp8_2256 --device opencl
curve bf16 --device opencl
curve fp8 --device opencl
curve fp8_tensorwise --device opencl
curve qat_8da4w --place '*down_proj=opencl'

# what stays on the host, and its cost
small=(--training.local_batch_size 1 --training.seq_len=32 --training.steps 2 --lr_scheduler.decay_ratio 0 --model.n_layers 1)
check 'plan training on the device' nibble plan "$debug" --device opencl "${small[@]}"
plan=$(tr '\n' ' ' <"$seen.out" | sed 's/  */ /g')
check 'the plan names kernels of the device' grep -q ' linear_dw_mx8_mx8_f32__ocl backward 32 ' <<<"$plan"
check 'the plan says what the device does in training' grep -q 'in training opencl does the products of linear layers and their casts, and adds the gradients that it computed; ' <<<"$plan"
check 'the plan says how much is copied' grep -q '[0-9]* copies of [0-9.]* [kM]B per micro-batch between opencl and its host, .* predicted; weights: [0-9.]* MB per step, ' <<<"$plan"
check 'plan --device auto' nibble plan "$debug" --device auto "${small[@]}"
auto=$(tr '\n' ' ' <"$seen.out" | sed 's/  */ /g')
check '--device auto gives the predicted time of each device' grep -q -- '--device auto chooses [a-z0-9:]*, predicted: cpu: .* per micro-batch, opencl: .* per micro-batch' <<<"$auto"
check 'train on the device' nibble train "$debug" --device opencl "${small[@]}"
case $(tail -n 1 "$seen.err") in
*'8 linear layers: 8 asked mxfp8-floor, 8 done on opencl/ocl, 0 substituted'*) ;;
*) check "the summary counts 8 layers on the device: $(tail -n 1 "$seen.err")" false ;;
esac
check 'dry run on the device' nibble train "$debug" --device opencl --dry-run "${small[@]}"
cp "$seen.out" dry.txt
check 'the dry run reports memory of the device' grep -q '^memory on opencl: ' dry.txt
check 'the dry run names kernels of the device' grep -q 'error [0-9.e-]*  linear_dx_mx8_mx8_f32__ocl' dry.txt
check 'bench --train on the device' nibble bench --train "$debug" --device opencl --repeats 1 "${small[@]}"
cp "$seen.out" bench.txt
check 'bench: products on the device have no share' grep -Eq '^linear_dx +attention .* [0-9.]+ +- +[0-9.]+ +-$' bench.txt
check 'bench: copies have no share' grep -Eq '^move .* - +- +[0-9.]+ +-$' bench.txt
check 'bench: rates without a share are explained' grep -q '^rates without a share are for opencl, or for copies to and from it$' bench.txt

# every rank uses the device; the losses equal those of one process
if command -v mpirun >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    both=(train "$debug" --device opencl "${small[@]}" --training.global_batch_size=2 --quiet)
    nibble "${both[@]}" 2>&1 | sed 's/  memory:.*//' >one.txt
    timeout 60 mpirun -n 2 "$NIBBLE" "${both[@]}" --ranks 2 2>&1 | sed 's/  memory:.*//' >two.txt
    check 'ranks: one process logs two steps' [ "$(wc -l <one.txt)" = 2 ]
    check 'ranks: two ranks and one process have the same losses' diff one.txt two.txt
    here=("$NIBBLE" train "$debug" "${small[@]}" --training.global_batch_size=2 --quiet --ranks 2)
    timeout 60 mpirun -n 1 "${here[@]}" : -n 1 "${here[@]}" --device opencl >mixed.txt 2>&1
    check 'ranks: different plans are refused' grep -q \
        "^nibble: rank 1: its device runs other layers or kernels than rank 0's; give all ranks " mixed.txt
fi

refused 2 '--place *embed_tokens=opencl: applies to no layer; *' train "$debug" "${small[@]}" --place '*embed_tokens=opencl'
refused 4 'the plan is for apple-m4, which is not this machine*' train "$debug" "${small[@]}" --device apple-m4
refused 4 'the plan is for mi210, which is not this machine: it can be planned, but not run; --device cpu trains here' \
    train "$debug" "${small[@]}" --device mi210
refused 4 '*lm_head*linear_dw_mx8_mx8_f32__ocl: this run lacks this kernel: --without leaves it out*' \
    train "$debug" "${small[@]}" --place lm_head=opencl --without linear_dw_mx8_mx8_f32__ocl
check '--allow device trains without the kernel of lm_head' nibble train "$debug" "${small[@]}" --place lm_head=opencl \
    --without linear_dw_mx8_mx8_f32__ocl --allow device
