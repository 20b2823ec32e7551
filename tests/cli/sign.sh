# SPDX-License-Identifier: Apache-2.0
#
# nibble sign, --sign, and nibble verify --signers: plain ssh-keygen accepts the signature; a missing or wrong one, one by somebody
# else, and files that were changed, removed or added afterwards are named.

# without a key of OpenSSH nothing is written
nibble quantize "$MODEL" q --recipe 8da4w --pack --quiet >"$seen.out"
before=$(ls -A q)
refused 2 '`nibble sign` needs a key: *' sign q
refused 2 '`nibble sign` needs MODEL' sign --key k
refused 6 'k: *' sign q --key k
echo 'no key' >k
refused 3 'k: is not a key of OpenSSH, as *' sign q --key k
refused 3 'k: is not a key of OpenSSH, as *' quantize "$MODEL" never --recipe 8da4w --sign k
refused 2 '--sign has no effect with --dry-run' quantize "$MODEL" never --recipe 8da4w --sign k --dry-run
refused 2 '--signer has no effect without --signers' verify q --signer alice
refused 6 'nobody: *' verify q --signers nobody
equal 'nothing was written' "$before" "$(ls -A q)"
check 'nothing was quantized' test ! -e never
printf -- '-----BEGIN OPENSSH PRIVATE KEY-----\n' >k
if ! command -v ssh-keygen >/dev/null; then
    refused 3 'ssh-keygen is not installed, *openssh-client' sign q --key k
    skipped 'signatures of ssh-keygen' 'ssh-keygen is not installed'
    exit
fi
status=0
PATH=$PWD "$NIBBLE" sign q --key k 2>report || status=$?
equal 'status without ssh-keygen' 3 "$status"
check 'a sentence says so' grep -q '^nibble: ssh-keygen is not installed, .*openssh-client$' report
refused 1 'k: ssh-keygen cannot sign with it: *' sign q --key k
equal 'a key that is none writes nothing' "$before" "$(ls -A q)"

# person NAME [OPTION]...: a key, and a line of allowed_signers
person() {
    ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$1.key"
    echo "$1@example.org ${2:-}$(cat "$1.key.pub")" >"$1.signers"
}
person alice
person bob
cat alice.signers bob.signers >signers

# signed DIR FILES: a signature that plain ssh-keygen accepts, of all files
signed() {
    check "ssh-keygen accepts the signature of $1" ssh-keygen -q -Y verify -f signers -I alice@example.org -n file \
        -s "$1/model.intoto.json.sig" <"$1/model.intoto.json"
    (cd "$1" && find . -type f ! -name 'model.intoto.json*' | sed 's|^\./||' | LC_ALL=C sort | xargs -d '\n' sha256sum) >sums
    python3 -c 'import json, sys; print("".join("%s  %s\n" % (r["digest"], r["name"]) for r in json.load(open(sys.argv[1] + "/model.intoto.json"))["predicate"]["resources"]), end="")' "$1" >resources
    check "all files of $1 are listed, with the hashes of sha256sum" cmp sums resources
    equal "files of $1" "$2" "$(wc -l <sums)"
}
cp -r q plain
nibble sign q --key alice.key >report
equal 'what sign says' 'signed 8 files of q: q/model.intoto.json.sig' "$(cat report)"
signed q 8
by='*note: model.intoto.json.sig: signed by alice@example.org, ED25519 key SHA256:*; 8 files are listed *'
sound "$by 0 problems " q --signers signers
sound "$by 0 problems " q --signers signers --signer alice@example.org
sound "$by all 5 files are the same bytes " q --from "$MODEL" --signers signers
sound '*note: model.intoto.json lists 8 files; who signed it was not checked: --signers FILE does *' q
nibble sign plain --key bob.key --json | members sign schema=1 'path="plain"' files=8 'statement="plain/model.intoto.json"' 'signature="plain/model.intoto.json.sig"'
refused 6 'plain/model.intoto.json.sig: exists already; --force replaces it' sign plain --key alice.key
check 'with --force' nibble sign plain --key alice.key --force
cp -r plain again
check 'once more' nibble sign plain --key alice.key --force
check 'the same bytes' diff -r plain again
check 'the model runs as before' nibble generate q -p 'Once' -n 2 --quiet

one='*; 1 problem '
found q "*signer: model.intoto.json.sig: is by alice@example.org, by the ED25519 key SHA256:*, not by bob@example.org$one" --signers signers --signer bob@example.org
found q "*signer: model.intoto.json.sig: is by the ED25519 key SHA256:*, which bob.signers does not list$one" --signers bob.signers
sed 's/^alice@example.org /&namespaces="git" /' alice.signers >other.signers
found q "*signer: model.intoto.json.sig: is by the ED25519 key SHA256:*$one" --signers other.signers
sed 's/^alice@example.org /&valid-before="20200101" /' alice.signers >other.signers
found q "*signer: model.intoto.json.sig: is by the ED25519 key SHA256:*$one" --signers other.signers

# changed DIR: a fresh copy of q
changed() {
    rm -rf "$1"
    cp -r q "$1"
}
changed c
rm c/model.intoto.json.sig
found c "*unsigned: model.intoto.json.sig: is not there: nobody signed the checkpoint, or the signature was removed$one" --signers signers
changed c
rm c/model.intoto.json
found c "*unsigned: model.intoto.json.sig: is there, but model.intoto.json, which it signs, is not$one" --signers signers
changed c
sed -i 's/"program": "nibble [0-9.]*"/"program": "nibble 9.9.9"/' c/nibble.json
found c "*signed-file: nibble.json: has SHA-256 *, but * was signed: the receipt was changed afterwards$one" --signers signers
found c "*signed-file: nibble.json: has SHA-256 *, but * was signed: the receipt was changed afterwards$one"
sed -i "s/$(sha256sum <q/nibble.json | cut -c1-64)/$(sha256sum <c/nibble.json | cut -c1-64)/" c/model.intoto.json
found c "*signature: model.intoto.json.sig: is not a signature of model.intoto.json: one of them was changed (ssh-keygen: *)$one" --signers signers
found c "*signature: model.intoto.json: contradicts itself: *$one"
changed c
cp "$REPO/README.md" c/model.intoto.json.sig
found c "*signature: model.intoto.json.sig: is not a signature of model.intoto.json: *$one" --signers signers
changed c
rm c/generation_config.json
found c '*signed-file: generation_config.json: was signed, but is not there any more*' --signers signers
for file in generation_config.json sub/dir/modeling.py; do
    changed c
    mkdir -p c/sub/dir c/.git
    echo >>c/$file
    echo x >c/.git/config
    case $file in gen*) glob='signed-file: generation_config.json: has SHA-256 *' ;; *) glob="not-signed: $file: is not among the signed files: it was added afterwards" ;; esac
    found c "*$glob*" --signers signers
done
printf x | dd of=c/nibble.pack bs=1 seek=100 conv=notrunc status=none
found c '*signed-file: nibble.pack: has SHA-256 *' --signers signers

# statements that cannot be believed
for edit in 's|"name": "config.json"|"name": "../config.json"|' 's|"algorithm": "sha256"|"algorithm": "blake3"|' 's|https://model_signing/signature/v1.0|https://slsa.dev/provenance/v1|' \
    's|"method": "files"|"method": "shards"|' 's|"name": "config.json"|"name": "nibble.json"|' 's|"resources"|"none"|' '$d'; do
    changed c
    sed -i "$edit" c/model.intoto.json
    found c "*signature: model.intoto.json: *$one"
done

# what a statement cannot cover
changed c
ln -s /usr c/usr
refused 3 'c/usr: is a link to a directory, whose files a signature cannot cover' sign c --key alice.key --force
rm c/usr
mkfifo c/pipe
refused 3 'c/pipe: is neither a file nor a directory' sign c --key alice.key --force
rm c/pipe
ln -s "$PWD/q/config.json" c/linked.json
check 'a link to a file' nibble sign c --key alice.key --force
check 'says that it is there' grep -q '"allow_symlinks": true' c/model.intoto.json
sound "*9 files are listed *" c --signers signers

# killed at any moment: signed or not, and the next run signs
for hundredths in 0 1 2 3 5 8; do
    rm -rf c
    cp -r q c
    rm c/model.intoto.json*
    python3 -c 'import subprocess, sys; p = subprocess.Popen(sys.argv[2:], stdout=-3, stderr=-3)
try: p.wait(float(sys.argv[1]) / 100)
except subprocess.TimeoutExpired: p.kill(); p.wait()' $hundredths "$NIBBLE" sign c --key alice.key
    nibble verify c --signers signers >report 2>sentence || grep '^unsigned: ' report >/dev/null || equal "after a kill, $hundredths hundredths in" unsigned "$(cat report sentence)"
    nibble sign c --key alice.key --force >report
    whole=$(find c -name '*.part' | wc -l) # killed between its last byte and its name: a file like others
    sound "${by/8 files/$((8 + whole)) files} 0 problems " c --signers signers
done

# a single file with its receipt; quantize and convert sign what they wrote; a public key needs an agent
nibble convert "$MODEL" c.gguf --format gguf --sign alice.key --quiet >"$seen.out" 2>report
equal 'what --sign says' 'signed 2 files of c.gguf: c.gguf.intoto.json.sig' "$(cat report)"
sound '*note: c.gguf.intoto.json.sig: signed by alice@example.org, *; 2 files are listed *' c.gguf --signers signers
sed -i 's/"command": "convert"/"command": "quantize"/' c.gguf.nibble.json
found c.gguf '*signed-file: c.gguf.nibble.json: *the receipt was changed afterwards*' --signers signers
cp c.gguf part-00001-of-00002.gguf
refused 3 'part-00001-of-00002.gguf: is one of several files of a checkpoint, *' sign part-00001-of-00002.gguf --key alice.key
cp alice.key.pub lone.pub
refused 1 'lone.pub: ssh-keygen cannot sign with it: *' sign plain --key lone.pub --force
if command -v ssh-agent >/dev/null; then
    check 'with an agent' ssh-agent sh -c 'ssh-add -q alice.key && "$0" sign plain --key lone.pub --force' "$NIBBLE"
    sound "$by*" plain --signers signers
fi
ssh-keygen -q -t ed25519 -N secret -f locked.key
status=0
nibble quantize "$MODEL" kept --recipe 8da4w --sign locked.key --quiet >"$seen.out" 2>report </dev/null || status=$?
[ -t 0 ] || equal 'a key whose passphrase nobody gives' 1 "$status"
check 'the output stays' nibble verify kept
check 'and that it is not signed is said' grep -q '^nibble: kept is complete, but not signed: locked.key: ssh-keygen cannot sign with it: ' report
