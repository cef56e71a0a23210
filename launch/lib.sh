# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this folder and by .ci/run; sourced, never run. Messages go to standard error.

KVRING_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
KVRING_BUILD=${KVRING_BUILD:-$KVRING_ROOT/build/release}
KVRING_YES=${KVRING_YES:-}  # not empty: install without asking
[ "${CI:-}" = true ] && KVRING_YES=1

say() { printf '%s\n' "$*" >&2; }
die() {
  printf 'kvring: %s\n' "$*" >&2
  exit 1
}

# Packages of the given groups that are not installed, one a line.
missing_packages() {
  local group package _
  while read -r group package _; do
    case " $* " in *" $group "*) ;; *) continue ;; esac
    # pip of another Python does as well as Debian's.
    if [ "$package" = python3-pip ] && python3 -m pip --version >/dev/null 2>&1; then continue; fi
    if [ "$package" = python3 ] && command -v python3 >/dev/null; then continue; fi
    dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
  done <"$KVRING_ROOT/launch/packages.txt"
}

# confirm QUESTION: true for yes. Nobody there to answer counts as no.
confirm() {
  [ -n "$KVRING_YES" ] && return 0
  [ -t 0 ] || return 1
  local answer
  read -r -p "$1 [Y/n] " answer || return 1
  case "$answer" in '' | [Yy]*) return 0 ;; *) return 1 ;; esac
}

# ensure_packages GROUP...: installs what is missing, or says exactly what to type.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "kvring: no apt here; going on with what is installed (launch/packages.txt lists what is needed)"
    return 0
  fi
  local missing
  missing=$(missing_packages "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  local sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "packages are missing and sudo is not there. As root, type:
  apt-get update && apt-get install --no-install-recommends $missing"
    sudo=sudo
  fi
  local by_hand="$sudo apt-get update && $sudo apt-get install --no-install-recommends $missing"
  say "Missing packages: $missing"
  confirm "Install them now?" || die "nothing was installed. Pass --yes to install without a question, or type:
  $by_hand"
  local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  $sudo "${quiet[@]}" update >&2 ||
    die "apt-get update failed: is there a network, and does /etc/apt name a mirror that it reaches? Then run this again, or type:
  $by_hand"
  # shellcheck disable=SC2086  # a list of words
  $sudo "${quiet[@]}" install -y --no-install-recommends $missing >&2 ||
    die "apt-get install failed (the lines above say why). kvring is developed on Debian 12; by hand it is:
  $by_hand"
}

# configure [CMAKE-OPTION...]: the release build folder, with all options as they are unless given.
configure() {
  local log="$KVRING_BUILD/configure.log"
  mkdir -p "$KVRING_BUILD"
  cmake -S "$KVRING_ROOT" -B "$KVRING_BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; die "CMake could not configure $KVRING_BUILD (all of it: $log). If a package is named above, install it; after a change of compilers, remove that folder and run this again."; }
}

# build_targets TARGET...: output only when it fails, or as it comes when standard error is a terminal.
build_targets() {
  if [ -t 2 ]; then
    cmake --build "$KVRING_BUILD" --target "$@" >&2 || die "the build failed; the first error above says where"
    return
  fi
  local log="$KVRING_BUILD/build.log"
  cmake --build "$KVRING_BUILD" --target "$@" >"$log" 2>&1 ||
    { grep -m1 -A60 -E 'FAILED|error:' "$log" >&2 || tail -n 60 "$log" >&2; die "the build failed (all of it: $log)"; }
}

# What Open MPI needs so that ranks on one host start as root, in containers, and on fewer cores than ranks. Binding is
# off since ranks share cores; single copy is off since containers often forbid it, and Open MPI then floods the screen.
mpi_environment() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  export OMP_WAIT_POLICY=passive
}
