# SPDX-License-Identifier: Apache-2.0
#
# quantize --force killed at many moments: what lies under the name is the old checkpoint or the new one, whole;
# the next run clears what was left.
"$NIBBLE" quantize "$MODEL" out --recipe int8wo --quiet >/dev/null 2>&1
for i in $(seq 40); do
    "$NIBBLE" quantize "$MODEL" out --recipe 8da4w --force --quiet >/dev/null 2>&1 &
    pid=$!
    sleep "0.$(printf %03d $((RANDOM % 70)))"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    "$NIBBLE" verify out >/dev/null 2>verify.err || {
        echo "damaged by kill $i"
        cat verify.err
        exit 1
    }
done
rm -f verify.err
"$NIBBLE" quantize "$MODEL" out --recipe 8da4w --force --quiet >/dev/null 2>&1
echo "status $?"
ls
