#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds kvring, gets a small real model and lets four ranks read a chapter of a book and answer a question about it.
# Usage: launch/demo.sh [--yes] [--ranks N] [--kv CODEC] [-f TEXT] [-p QUESTION] [-n N] [-- more flags of `kvring run`]
#   --yes   install missing packages without asking (so does CI=true)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=4
codec=rot4
text=$KVRING_ROOT/launch/texts/great-expectations-08.txt
# The model is tiny: of the questions tried, it answers this one rightly with every codec tried (rot3 to f16) and every form of products.
question="What is the name of the lady in the yellow dress who stopped the clocks?"
tokens=96
more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) KVRING_YES=1 ;;
    --ranks | --kv | -f | -p | -n)
      [ $# -ge 2 ] || die "demo.sh: $1 needs a value"
      case "$1" in --ranks) ranks=$2 ;; --kv) codec=$2 ;; -f) text=$2 ;; -p) question=$2 ;; -n) tokens=$2 ;; esac
      shift ;;
    -h | --help) sed -n '3,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; more=("$@"); break ;;
    *) die "demo.sh: unknown argument '$1' (see --help)" ;;
  esac
  shift
done
[ -r "$text" ] || die "cannot read the text $text"
export KVRING_YES

"$KVRING_ROOT/launch/build.sh"
if ! model=$("$KVRING_ROOT/launch/fetch_model.sh"); then
  model=${XDG_CACHE_HOME:-$HOME/.cache}/kvring/models/made.gguf
  say "Without the real model the demo goes on with a tiny random one: everything runs, the answer is noise."
  mkdir -p "$(dirname "$model")"
  "$KVRING_BUILD/bin/kvring" make-model -o "$model" >&2
fi

say ""
say "Text: ${text#"$KVRING_ROOT"/} ($(wc -c <"$text") bytes). Question: $question"
"$KVRING_ROOT/launch/run_local.sh" "$ranks" run -m "$model" -f "$text" -p "$question" -n "$tokens" --temp 0 --kv "$codec" \
  "${more[@]}"
