# SPDX-License-Identifier: Apache-2.0
#
# One prediction for whole steps: plan, --device auto, advise and quantize --for report the same time per token. Numbers are
# compared with each other, not with real speed.
value() { python3 -c 'import json, sys; print("%.4g" % eval(sys.argv[1], {"d": json.load(sys.stdin)}))' "$1"; }
agree() { # agree WHAT PLAN ADVICE: plan and advise give the same times
    equal "$1: time per token of plan and advise" "$(value 'd["predicted_token_s"]' <"$2")" "$(value '1 / d["recipes"][1]["predicted_decode_tokens_per_s"]' <"$3")"
    equal "$1: time per prompt of plan and advise" "$(value 'd["predicted_prefill_s"]' <"$2")" "$(value '512 / d["recipes"][1]["predicted_prefill_tokens_per_s"]' <"$3")"
}
shape=$REPO/configs/shapes/llama-3.2-1b/config.json
for device in h200 mi210 raspberry-pi-5; do
    nibble plan "$shape" --recipe 8da4w --device $device --json >plan.json
    nibble advise "$shape" --device $device 8da4w --json >advice.json
    agree $device plan.json advice.json
    check "$device: a step takes longer than its linear layers" \
        test "$(value 'd["predicted_token_s"] > 1.005 * d["linear_token_s"] > 0 and d["predicted_prefill_s"] > 1.005 * d["linear_prefill_s"] > 0' <plan.json)" = 1
done

devices=(cpu)
if nibble devices opencl >/dev/null 2>&1; then
    devices+=(opencl)
else
    skipped 'predictions, on OpenCL' 'no OpenCL device'
fi
nibble plan "$MODEL" --recipe 8da4w --device auto | tr -s '\n ' ' ' >auto.txt
for device in "${devices[@]}"; do
    nibble plan "$MODEL" --recipe 8da4w --device "$device" --json >plan.json
    nibble advise "$MODEL" --dry-run --device "$device" 8da4w --json >advice.json
    agree "$device" plan.json advice.json
    time=$(nibble plan "$MODEL" --recipe 8da4w --device "$device" | tr -s '\n ' ' ' | sed -n 's/.*note: predicted from [a-z]* [a-z]*: \([0-9.]* [a-z]*\) per token.*/\1/p')
    check "$device: --device auto reports the plan's $time" grep -q "$device: $time per token" auto.txt
done
nibble quantize "$MODEL" q --recipe 8da4w --for h200 --json >for.json 2>/dev/null
nibble plan "$MODEL" --recipe 8da4w --device h200 --json >plan.json
equal 'time per token of plan and quantize --for' "$(value 'd["predicted_token_s"]' <plan.json)" "$(value 'd["for"]["predicted_token_s"]' <for.json)"
