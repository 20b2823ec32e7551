# nibble imatrix: what it writes, reads back as the same weights of inputs, and is refused for
cp -r "$MODEL" m
head -c 8000 "$MODEL/heldout.txt" >text.txt

check 'it is written' nibble imatrix m im.gguf --calibrate text.txt --threads 1
words='wrote im.gguf: 36 entries of 36 layers, from * tokens in * chunks of 512'
# shellcheck disable=SC2053 # a glob is meant
[[ $(cat "$seen.out") == $words ]] || equal 'its summary' "$words" "$(cat "$seen.out")"
nibble imatrix m two.gguf --calibrate text.txt --threads 2 --quiet >out
check 'threads change no byte' cmp im.gguf two.gguf
nibble imatrix m two.gguf --calibrate text.txt --force --json 2>err | members imatrix schema=1 'out="two.gguf"' entries=36 matrices=36 tokens=int \
    chunks=int chunk_size=512 'notes=list'
equal 'imatrix --json prints nothing on stderr' '' "$(cat err)"

# the text and the file give the same codes, of every kind
for recipe in int4wo-sym 'int4wo-g16' mxfp4 8da4w; do
    nibble quantize m a --recipe $recipe --method search --calibrate text.txt --quiet >out
    nibble quantize m b --recipe $recipe --method search --imatrix im.gguf --quiet >out
    check "$recipe: codes by the file and by the text" cmp a/model.safetensors b/model.safetensors
    nibble quantize m c --recipe $recipe --method search --quiet >out
    check "$recipe: without either they differ" eval '! cmp -s a/model.safetensors c/model.safetensors'
    rm -rf a b c
done

# experts have a count each; those without tokens are said
mixture=$REPO/models/nibble-tales-moe
head -c 150 text.txt >short.txt
nibble imatrix "$mixture" moe.gguf --calibrate short.txt >out
notes=$(tr '\n' ' ' <out | tr -s ' ')
check 'experts without tokens are said' grep -q 'note: short.txt has no inputs of [0-9]* of 117 layers, so their counts are 0: ' <<<"$notes"
check 'a text too short is said' grep -q 'note: short.txt is short: [^ ]* saw [0-9]* tokens, fewer than its [0-9]* inputs' <<<"$notes"
nibble quantize "$mixture" a --recipe int4wo-g32 --method search --calibrate short.txt --quiet >out
nibble quantize "$mixture" b --recipe int4wo-g32 --method search --imatrix moe.gguf --quiet >out
check 'codes of experts by the file and by the text' cmp a/model.safetensors b/model.safetensors

# refusals leave nothing and replace nothing
cp im.gguf before
refused 6 'im.gguf: exists already; --force replaces it' imatrix m im.gguf --calibrate text.txt
refused 6 'a: is a directory; name a file' imatrix m a --calibrate text.txt --force
refused 2 '*`nibble imatrix` needs MODEL and OUT' imatrix m --calibrate text.txt
refused 2 '*`nibble imatrix` needs a text to run the model on: --calibrate FILE' imatrix m n.gguf
refused 6 '*nosuch.txt: *' imatrix m n.gguf --calibrate nosuch.txt
: >empty.txt
refused 3 'empty.txt: the calibration text is empty' imatrix m n.gguf --calibrate empty.txt
refused 2 'text.txt: the output is the text' imatrix m text.txt --calibrate text.txt --force
refused 3 '*GGUF has no architecture for glm, *' imatrix "$REPO/tests/golden/models/glm" n.gguf --calibrate text.txt
refused 6 'nowhere/n.gguf: cannot create it: *' imatrix m nowhere/n.gguf --calibrate text.txt
check 'the file that exists stays' cmp im.gguf before
equal 'nothing else is left' '' "$(ls -d n.gguf* ./*.part* 2>/dev/null)"
