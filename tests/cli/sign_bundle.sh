# SPDX-License-Identifier: Apache-2.0
#
# nibble sign with a key in PEM, and nibble verify with its public key: model-signing's bundle, whose parts are checked here by plain
# openssl; what is changed, by another key or not a bundle is named. tools/oracle/signed_bundles.py has model-signing itself do it.

nibble quantize "$MODEL" q --recipe 8da4w --quiet >"$seen.out"
before=$(ls -A q)
printf -- '-----BEGIN PRIVATE KEY-----\n' >k
printf -- '-----BEGIN PUBLIC KEY-----\n' >p
if ! command -v openssl >/dev/null; then
    refused 3 'openssl is not installed, *' sign q --key k
    refused 3 'openssl is not installed, *' verify q --signers p
    skipped 'signatures of openssl' 'openssl is not installed'
    exit
fi
status=0
PATH=$PWD "$NIBBLE" sign q --key k 2>report || status=$?
equal 'status without openssl' 3 "$status"
check 'a sentence says so' grep -q '^nibble: openssl is not installed, ' report
refused 3 'k: openssl cannot read the key: *' sign q --key k
refused 3 'p: openssl cannot read the key: *' verify q --signers p
refused 3 'p: is not a key of OpenSSH, as *, nor a private key in PEM' sign q --key p
openssl genpkey -algorithm ed25519 -out other.pem
refused 3 'other.pem: is not a key on the curves P-256, P-384 or P-521, *' sign q --key other.pem
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes128 -pass pass:secret -out locked.pem
status=0
nibble sign q --key locked.pem 2>report </dev/null || status=$?
[ -t 0 ] || equal 'a key whose passphrase nobody gives' 3 "$status"
equal 'nothing was written' "$before" "$(ls -A q)"

# person NAME CURVE: a key
person() {
    openssl ecparam -name "$2" -genkey -noout -out "$1.pem"
    openssl pkey -in "$1.pem" -pubout -out "$1.pub"
}
person alice prime256v1
person bob prime256v1
person carol secp384r1
person dave secp521r1

# plain DIR NAME HASH: openssl accepts what the bundle says was signed, and the bundle names the key
plain() {
    python3 -c 'import base64, hashlib, json, sys
b = json.load(open(sys.argv[1]))
assert b["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
assert b["verificationMaterial"] == {"publicKey": {"hint": hashlib.sha256(open(sys.argv[2], "rb").read()).hexdigest()}, "tlogEntries": []}
e = b["dsseEnvelope"]
assert set(e) == {"payload", "payloadType", "signatures"} and len(e["signatures"]) == 1 and e["signatures"][0]["keyid"] == ""
payload = base64.b64decode(e["payload"], validate=True)
assert e["payloadType"] == "application/vnd.in-toto+json" and json.loads(payload)["predicateType"] == "https://model_signing/signature/v1.0"
open("signed", "wb").write(b"DSSEv1 28 application/vnd.in-toto+json %d " % len(payload) + payload)
open("signature", "wb").write(base64.b64decode(e["signatures"][0]["sig"], validate=True))
print("".join("%s  %s\n" % (r["digest"], r["name"]) for r in json.loads(payload)["predicate"]["resources"]), end="")' "$1/model.sig" "$2.pub" >resources
    check "openssl accepts the signature of $2" openssl dgst "-$3" -verify "$2.pub" -signature signature signed
    (cd "$1" && find . -type f ! -name model.sig | sed 's|^\./||' | LC_ALL=C sort | xargs -d '\n' sha256sum) >sums
    check "all files of $1 are listed" cmp sums resources
}
nibble sign q --key alice.pem >report
equal 'what sign says' 'signed 6 files of q: q/model.sig' "$(cat report)"
plain q alice sha256
sound "*note: model.sig: signed by alice.pub, P-256 key SHA-256 $(sha256sum <alice.pub | cut -c1-64); 6 files are listed *0 problems " q --signers alice.pub
sound '*all 5 files are the same bytes ' q --from "$MODEL" --signers alice.pub
sound '*note: model.sig lists 6 files; who signed it was not checked: --signers FILE does *' q
refused 2 '--signer has no effect with a public key as --signers' verify q --signers alice.pub --signer alice
refused 6 'q/model.sig: exists already; --force replaces it' sign q --key bob.pem
cp -r q c
nibble sign c --key carol.pem --force --json | members sign schema=1 'path="c"' files=6 'statement="c/model.sig"' 'signature="c/model.sig"'
plain c carol sha384
sound '*signed by carol.pub, P-384 key *' c --signers carol.pub
check 'P-521' nibble sign c --key dave.pem --force
plain c dave sha512
sound '*signed by dave.pub, P-521 key *' c --signers dave.pub

one='*; 1 problem '
found q "*signer: model.sig: is by the key with SHA-256 *, and that of bob.pub is *$one" --signers bob.pub
# changed EDIT: a fresh copy of q whose bundle b, with envelope e and payload p, was edited
changed() {
    rm -rf c
    cp -r q c
    python3 -c 'import base64, json, sys
b = json.load(open("c/model.sig"))
e = b["dsseEnvelope"]
p = base64.b64decode(e["payload"])
q = p
exec(sys.argv[1])
if p != q:
    e["payload"] = base64.b64encode(p).decode()
json.dump(b, open("c/model.sig", "w"))' "$1"
}
changed ''
sound '*signed by alice.pub*' c --signers alice.pub
changed 'del b["verificationMaterial"]["publicKey"]["hint"]'
sound '*signed by alice.pub*' c --signers alice.pub
found c "*signature: model.sig: is not a signature of its statement by this key: one of them was changed (openssl: *)$one" --signers bob.pub
found c '*signature: model.sig: is not a signature *' --signers dave.pub
changed 'p = p.replace(b"\"name\": \"config.json\"", b"\"name\": \"confix.json\"")'
found c "*signature: model.sig: is not a signature of its statement by this key: *$one" --signers alice.pub
changed 's = base64.b64decode(e["signatures"][0]["sig"]); e["signatures"][0]["sig"] = base64.b64encode(s[:-1] + bytes([s[-1] ^ 1])).decode()'
found c "*signature: model.sig: is not a signature of its statement by this key: *$one" --signers alice.pub
for edit in 'b["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.2"' 'b["verificationMaterial"] = {"certificate": {"rawBytes": ""}}' \
    'e["payloadType"] = "text/plain"' 'e["signatures"] = []' 'e["signatures"] *= 2' 'e["payload"] = "a"' 'e["payload"] = "a=aa"' 'e["payload"] = "aaa*"' \
    'e["signatures"][0]["sig"] = ""' 'e["signatures"][0]["sig"] = "aaaa" * 100' 'del b["dsseEnvelope"]' 'e["payload"] = 7' 'b["verificationMaterial"] = []'; do
    changed "$edit"
    found c "*signature: model.sig: *$one" --signers alice.pub
    found c "*signature: model.sig: *$one"
done
changed ''
rm c/model.sig
found c "*unsigned: model.sig: is not there: *$one" --signers alice.pub
changed ''
echo >>c/generation_config.json
found c '*signed-file: generation_config.json: has SHA-256 *' --signers alice.pub
found c '*signed-file: generation_config.json: has SHA-256 *'
changed ''
echo x >c/modeling.py
found c "*not-signed: modeling.py: is not among the signed files: it was added afterwards$one" --signers alice.pub

# a single file, and --sign
nibble convert "$MODEL" c.gguf --format gguf --sign alice.pem --quiet >"$seen.out" 2>report
equal 'what --sign says' 'signed 2 files of c.gguf: c.gguf.sig' "$(cat report)"
sound '*note: c.gguf.sig: signed by alice.pub, *; 2 files are listed *' c.gguf --signers alice.pub
