#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds kvring: build/release/bin/kvring. Usage: launch/build.sh [--yes] [CMAKE-OPTION...]
#   --yes   install missing packages without asking
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

options=()
for argument; do
  case "$argument" in
    --yes) KVRING_YES=1 ;;
    -h | --help) sed -n '3,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -D*) options+=("$argument") ;;
    *) die "build.sh: unknown argument '$argument' (known: --yes, -DNAME=VALUE)" ;;
  esac
done

ensure_packages build
configure "${options[@]}"
say "Building kvring (Release) in $KVRING_BUILD ..."
start=$SECONDS
build_targets kvring
say "Built $KVRING_BUILD/bin/kvring in $((SECONDS - start)) s"
