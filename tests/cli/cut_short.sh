# SPDX-License-Identifier: Apache-2.0
#
# Another process truncates the weights during a read, appends to them or replaces them: an error that names the file, exit 6,
# no output left, never SIGBUS. A file replaced by rename is read to its end.
tool=$REPO/build/release/tools/random_checkpoint
[ -x "$tool" ] || tool=$(dirname "$NIBBLE")/tools/random_checkpoint
if [ ! -x "$tool" ]; then
    skipped 'cut_short' 'no build/release/tools/random_checkpoint (make tools)'
    exit
fi
cp -r "$MODEL" shape
sed -i 's/"hidden_size": 224/"hidden_size": 448/; s/"intermediate_size": 608/"intermediate_size": 2432/' shape/config.json
"$tool" shape m >"$seen.tool" 2>&1 || check 'random_checkpoint writes a model' false
cp shape/tokenizer*.json m
head -c 3000 shape/heldout.txt >text.txt
rm -r shape

# ended HOW MOMENT COMMAND ARGUMENT...: the command ends with the error and leaves no output
ended() {
    local said='nibble: m/model.safetensors: another process wrote to the file while it was being read (' status
    status=$("$REPO/tests/cli/meanwhile" m/model.safetensors "$@" --quiet -t "$threads")
    equal "$3 fails when the weights change: $1" "6 1 $said" "$status $(wc -l <err) $(head -c ${#said} err)"
    rm -f out err other
    only_here m text.txt
}
# The first page is lost; part of the last page is lost, which reads as zeros without a signal; extra bytes.
for how in 60000 -100 append; do
    threads=1
    ended $how out generate m -n 400 --ignore-eos
    ended $how o.part/model.safetensors quantize m o --recipe 8da4w --isa ref
    ended $how m verify m
    ended $how m eval m --text text.txt --window 64
done
# The reader of the page may be a worker thread.
for threads in 2 4; do
    ended 60000 out generate m -n 400 --ignore-eos
    ended 60000 o.part/model.safetensors quantize m o --recipe 8da4w --isa ref
    ended 60000 m eval m --text text.txt --window 64
done
threads=1
ended 60000 m bench m --repeats 100 --prompt-tokens 64 -n 8
ended 60000 m bench m --operations --repeats 100 --prompt-tokens 64 -n 8
equal 'exit status when the file is replaced by rename' 0 "$("$REPO/tests/cli/meanwhile" m/model.safetensors replace o.part/model.safetensors quantize m o --recipe 8da4w -t 1)"
check 'the output is whole when the file is replaced by rename' nibble verify o

# A chat that waits for its next line has read the file already: the next message gets an error.
mkfifo lines
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:" >chat.jinja
nibble chat m --chat-template chat.jinja -n 1 --quiet <lines >out 2>err &
exec 3>lines
echo one >&3
for _ in $(seq 2000); do
    [ "$(wc -l <out)" != 0 ] && break # the answer is whole
    sleep 0.05
done
sleep 0.2
size=$(wc -c <out)
truncate -s 60000 m/model.safetensors
echo two >&3
exec 3>&-
status=0
wait $! || status=$?
equal 'exit status of the chat' 6 "$status"
equal 'the chat prints no more of an answer' "$size" "$(wc -c <out)"
check 'the error of the chat names the file' grep -q '^nibble: m/model.safetensors: another process wrote to the file' err
