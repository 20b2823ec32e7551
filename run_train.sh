#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# torchtitan's line, for `nibble train`: NGPU ranks, a config, and keys of the config as options, with their values after
# a space or "=".
#   NGPU=4 ./run_train.sh --model.converters mx --mx.recipe_name "mxfp8" --mx.filter_fqns "output"
# NGPU: ranks on this machine, started by mpirun; default 1, without it. CONFIG_FILE: instead of the debug model with an
# output 2256 wide. COMM_MODE: comm.mode of the config. NIBBLE: the program, instead of build/release/nibble, which is built if
# it is missing. Torchtitan's other variables are refused with values that would have to do something.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
ranks=${NGPU:-1}
config=${CONFIG_FILE:-$here/configs/llama3_debugmodel_mxfp8_vocab2256.json}
program=${NIBBLE:-$here/build/release/nibble}

fail() {
    echo "run_train.sh: $2" >&2
    exit "$1"
}

[ "${LOG_RANK:-0}" = 0 ] || fail 2 "LOG_RANK is \"$LOG_RANK\"; rank 0 writes the steps, so leave it out"
[[ ${TRAIN_FILE:-torchtitan.train} =~ ^(torchtitan[./]train(\.py)?)$ ]] ||
    fail 2 "TRAIN_FILE is \"$TRAIN_FILE\"; \`nibble train\` is what runs here, so leave it out"
for name in MODULE CONFIG TORCHFT_LIGHTHOUSE; do
    [ -z "${!name:-}" ] || fail 2 "$name is \"${!name}\", which nothing here reads; CONFIG_FILE names a config, so leave it out"
done
[ -z "${COMM_MODE:-}" ] || set -- "--comm.mode=$COMM_MODE" "$@"

[[ $ranks =~ ^[1-9][0-9]{0,3}$ ]] || fail 2 "NGPU is \"$ranks\"; a number of ranks from 1 to 9999 is wanted"
if [ ! -x "$program" ]; then
    [ -z "${NIBBLE:-}" ] || fail 6 "NIBBLE is $program, which is no program"
    echo "run_train.sh: $program is not there yet; building it" >&2
    make -s -C "$here" -j "$(nproc)" build/release/nibble >&2 || fail 1 "the build failed; tools/setup says what it needs"
fi
[ "$ranks" -gt 1 ] || exec "$program" train "$config" "$@"

command -v mpirun >/dev/null || fail 4 "NGPU is $ranks, but there is no mpirun; install Open MPI (Debian: openmpi-bin)"
# in a container everything runs as root, which mpirun asks about
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# ranks share the cores themselves
exec mpirun --oversubscribe --bind-to none -n "$ranks" "$program" train "$config" --ranks "$ranks" "$@"
