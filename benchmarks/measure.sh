#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All speed figures of a machine in one go, as dated JSON and pictures: limits first, then kernels, whole steps, a million tokens, and
# llama.cpp where a llama-bench is given. On an idle machine of 2 cores an hour or so, most of it kernels, without llama.cpp's deep rows.
# Usage: benchmarks/measure.sh MODEL.gguf [OUT_DIR [LLAMA_BENCH]]   (environment: BIN, MATH, DEPTHS and TYPES of the comparison)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
model=$1
out=${2:-$here/results}
llama=${3:-}
bin=${BIN:-$here/../build/release/bin}
math=${MATH:-auto}
day=$(date -u +%F)
mkdir -p "$out"

context() { # NAME FLAG...
  echo "== $1"
  "$bin/bench_context" -m "$model" --math "$math" --json "$out/$day-$1.json" "${@:2}"
}

"$bin/machine_peak" | tee "$out/$day-machine.json"
"$bin/bench_attention" --benchmark_filter='MB:(64|256|1024)' --benchmark_repetitions=3 \
  --benchmark_out="$out/$day-attention.json" --benchmark_out_format=json
context context --kv rot4,rot3,f16 --prefill 512,4K,8K
context context-small-pages --kv rot4,rot3 --depths 32K,64K,128K --small-pages
context million --kv rot3 --depths 1M -n 8
# Copied pages lie otherwise than encoded ones: the same depth both ways says what that is worth.
context encoded-128k --kv rot3 --depths 128K --fill encode
context copied-128k --kv rot3 --depths 128K --fill copy
pictures=("$out/$day-context.json" "$out/$day-attention.json")
if [ -n "$llama" ]; then
  "$here/compare_llama.py" --llama-bench "$llama" --bench-context "$bin/bench_context" -m "$model" --math "$math" \
    --depths "${DEPTHS:-4K,16K,32K}" --types "${TYPES:-f16,q8_0}" --prefill 512,4K,8K --json "$out/$day-llama.json"
  pictures+=("$out/$day-llama.json")
fi
"$here/plot.py" "${pictures[@]}" -o "$out/$day-speed"
