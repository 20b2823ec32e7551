# SPDX-License-Identifier: Apache-2.0
#
# serve --state-cache: a server that is started again, also after it was killed, continues from the states of its prompts, with
# the same answers; a directory that is in use, removed, too small, damaged or full.
trap 'kill -9 $server 2>/dev/null || true' EXIT
# serve OPTION...: starts a server, whose address and log are then known
serve() {
    "$NIBBLE" serve "$MODEL" --recipe 8da4w --port 0 "$@" 2>log &
    server=$!
    listen
}
listen() {
    for _ in $(seq 6000); do
        address=$(sed -n 's|.* at \(http://.*\)/$|\1|p' log)
        [ -z "$address" ] || return 0
        kill -0 $server 2>/dev/null || return 0
        sleep 0.01
    done
}
cat >ask.py <<'END'
# ADDRESS COUNT OTHERS: the answer to a prompt of COUNT tokens, the last OTHERS of which are others, and what the cache had
import json, sys, urllib.request
address, count, others = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
prompt = [(7 * i + i // 11 + (31 if i >= count - others else 0)) % 2000 + 20 for i in range(count)]
body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
request = urllib.request.Request(address + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
print(answer["usage"]["prompt_tokens_details"]["cached_tokens"], json.dumps(answer["choices"][0]["text"]))
open("notes", "w").write("".join(note["code"] + ": " + note["text"] + "\n" for note in answer.get("notes", [])))
END
ask() { python3 ask.py "$address" "$@"; }
ended() {
    local status=0
    wait $server || status=$?
    equal "exit status of the server: $1" "$2" "$status"
}

serve
cold=$(ask 300 10)
kill $server
ended 'without a cache' 0
serve --state-cache states:20MB
equal 'the first prompt is computed' "$(ask 300 0 | cut -d' ' -f1)" 0
kill -9 $server
wait $server || true
serve --state-cache states:20MB
equal 'after a kill: continued at 256, the same answer' "$(ask 300 10)" "256 ${cold#* }"
check 'metrics' grep -qx 'nibble_prompt_tokens_from_disk_total 256' <(curl -s "$address/metrics")

# another server with the same directory; the directory is removed while a server has it
refused 6 '*states/records.lock: another process is writing there*' serve "$MODEL" --recipe 8da4w --port 0 --state-cache states:20MB
rm -r states
equal 'the file is gone, and the server goes on' "$(ask 300 10 | cut -d' ' -f2-)" "${cold#* }"
ask 400 0 >out
check 'it says so' grep -q 'state cache: a state is not kept: states/records: the file was removed while it was open' log
kill $server
ended 'its directory is gone' 0

# computed otherwise: not used; a damaged state: said, and computed again
serve --state-cache states:20MB
ask 300 0 >out
kill $server
ended 'a new directory' 0
serve --state-cache states:20MB --cache-type f32
equal 'another cache type' "$(ask 300 10 | cut -d' ' -f1)" 0
kill $server
ended 'another cache type' 0
python3 - <<'END'
with open("states/records", "r+b") as f:
    for at in range(4096 + 4096 * 64 + 500, 20000000, 4096):
        f.seek(at)
        f.write(b"x")
END
serve --state-cache states:20MB
equal 'a damaged state is computed again' "$(ask 300 10)" "0 ${cold#* }"
check 'it says so' grep -q 'state cache: a state cannot be used: states/records: a record is damaged, and is removed' log
check 'so does the ledger of the request' grep -qx 'recomputed: the cache had 256 of the 300 prompt tokens, and 256 of these were computed again: their state on disk could not be read' notes
check 'metrics of what is lost' grep -qx 'nibble_prompt_tokens_recomputed_total{because="disk"} 256' <(curl -s "$address/metrics")
kill $server
ended 'damaged' 0

# a disk that is full once the server runs: here a limit on the size of files
(trap '' XFSZ && exec "$NIBBLE" serve "$MODEL" --recipe 8da4w --port 0 --state-cache full:20MB 2>log) &
server=$!
listen
prlimit --pid $server --fsize=4096
equal 'a full disk: the same answer' "$(ask 300 10)" "0 ${cold#* }"
check 'it says that the state is not kept' grep -q 'state cache: a state is not kept: full/records: cannot write: File too large' log
kill $server
ended 'a full disk' 0
rm -r full

# a state that is larger than the file is said; what is no directory and size, or none of ours
serve --state-cache small:540kB
equal 'too small for a state' "$(ask 500 0 | cut -d' ' -f1)" 0
check 'it says that it is not kept' grep -q 'state cache: a state is not kept: small/records: a record of [0-9]* bytes does not fit' log
kill $server
ended 'a small file' 0
refused 2 '--state-cache: "states" is not a directory and a size, such as *' serve "$MODEL" --port 0 --state-cache states
refused 2 '--state-cache: ":20MB" is not *' serve "$MODEL" --port 0 --state-cache :20MB
refused 2 '--state-cache: "states:" is not *' serve "$MODEL" --port 0 --state-cache states:
refused 2 '*: 1000 bytes are not between *' serve "$MODEL" --port 0 --state-cache states:1kB
refused 6 '*large/records: cannot allocate its space: *' serve "$MODEL" --port 0 --state-cache large:8000TB
mkdir other
echo mine >other/records
refused 6 'other/records: is not a file of records; remove it, or name another directory*' serve "$MODEL" --port 0 --state-cache other:20MB
check 'it is left' grep -q mine other/records
rm -rf states small other large ask.py log out notes
