#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and runs every test. Usage: launch/test.sh [--yes] [-DNAME=VALUE...] [-- arguments of ctest]
#   --yes   install missing packages without asking (so does CI=true)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) KVRING_YES=1 ;;
    -D*) options+=("$1") ;;
    -h | --help) sed -n '3,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; break ;;
    *) die "test.sh: unknown argument '$1' (known: --yes, -DNAME=VALUE, --)" ;;
  esac
  shift
done
export KVRING_YES

ensure_packages build
configure -DKVRING_BUILD_TESTS=ON "${options[@]}"
say "Building kvring and its tests (Release) in $KVRING_BUILD ..."
start=$SECONDS
build_targets all
say "Built in $((SECONDS - start)) s"
if model=$("$KVRING_ROOT/launch/fetch_model.sh"); then
  export KVRING_TEST_MODEL=${KVRING_TEST_MODEL:-$model}
else
  say "Going on without the real model: the tests that need it report that they were skipped."
fi
# Tests that start ranks ask for both of two cores, so that -j does not starve them.
ctest --test-dir "$KVRING_BUILD" --output-on-failure --no-tests=error -j "$(nproc)" "$@" </dev/null
