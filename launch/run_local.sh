#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# N ranks on this host, whoever the user is and however few the cores. Usage: launch/run_local.sh N run -m FILE ...
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case "${1:-}" in
  -h | --help) sed -n '3s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  '' | *[!0-9]* | 0) die "run_local.sh: the first argument is the number of ranks, 1 or more" ;;
esac
ranks=$1
shift
kvring=$KVRING_BUILD/bin/kvring
[ -x "$kvring" ] || die "$kvring is not built yet: type $KVRING_ROOT/launch/build.sh"
command -v mpirun >/dev/null || die "mpirun is not installed: type sudo apt-get install openmpi-bin"
mpi_environment
exec mpirun --quiet -n "$ranks" "$kvring" "$@" </dev/null
