#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build of kvring into a scratch folder, builds the consumer against it and runs it: what an embedder does.
# Usage: tests/package/run.sh BUILD-FOLDER
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
build=$(cd "${1:?which build folder?}" && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log" >&2; exit 1; }
# The consumer must not find the headers of the source tree by accident: it is built from a copy elsewhere.
cp "$source_dir/CMakeLists.txt" "$source_dir/consumer.cc" "$work"
cmake -S "$work" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" ||
  { cat "$work/configure.log" >&2; exit 1; }
cmake --build "$work/build" >"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
"$work/build/consumer"
[ ! -x "$build/bin/kvring" ] || "$work/prefix/bin/kvring" --version
