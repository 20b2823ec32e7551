# SPDX-License-Identifier: Apache-2.0
#
# For N.sh: `section N` runs that section of docs/cases.md in a scratch folder, the others check what its blocks printed.
# Words are compared with line breaks and indents folded, because the program wraps its sentences.
set -uo pipefail
cases=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$cases/../.." && pwd)
export NIBBLE=${NIBBLE:-$REPO/build/release/nibble}
export LC_ALL=C XDG_CACHE_HOME=${XDG_CACHE_HOME:-$REPO/build/test-cache}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
checked=0 failed=0

fail() {
    echo "FAIL $*"
    failed=$((failed + 1))
}

section() {
    "$cases/section" "$1" "$scratch" || failed=$((failed + 1))
    cd "$scratch" || exit 1
}

# says FILE TEXT: block output N.out, N.err, or any file of the folder
says() {
    checked=$((checked + 1))
    tr -s ' \n' ' ' <"$1" | grep -F -- "$2" >/dev/null || fail "$1 lacks: $2"
}

lacks() {
    checked=$((checked + 1))
    ! tr -s ' \n' ' ' <"$1" | grep -F -- "$2" >/dev/null || fail "$1 has: $2"
}

# holds FILE CONDITION, see the program of that name
holds() {
    checked=$((checked + 1))
    "$cases/holds" "$1" "$2" || failed=$((failed + 1))
}

# status BLOCK N: the block's last command ended so
status() {
    checked=$((checked + 1))
    [ "$(cat "$1.status" 2>/dev/null)" = "$2" ] || fail "block $1: exit status $(cat "$1.status" 2>/dev/null), wanted $2"
}

finish() {
    echo "$checked checks, $failed failed"
    [ "$checked" -gt 0 ] && [ "$failed" -eq 0 ]
    exit
}
