#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of quality against bytes, as Markdown, from the JSON of `kvring eval` runs over the same windows.

    benchmarks/eval_table.py RUN.json ... [--neighbours tests/golden/reference/nats.json --text wiki]

Runs are joined by their f16 losses: each run's nats over f16, KL and top-1 are against the f16 cache of the same run, and
runs are refused when the windows or the model differ. `--neighbours` adds what llama.cpp loses with its own cache
types (sums of nats of the windows that it was measured on; no KL, since its logits were not kept).
`--windows N` restricts KL to the first N windows (a second column).
"""
import argparse
import json
import sys

LLAMA_BITS = {"q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5}


def read_runs(paths):
    runs = [json.load(open(path)) for path in paths]
    first = runs[0]
    for path, run in zip(paths, runs):
        for key in ("model", "window", "windows", "start", "visibility", "numerics"):
            if run[key] != first[key]:
                sys.exit(f"{path}: {key} is {run[key]}, but {first[key]} in {paths[0]}")
    rows = {}
    for run in runs:
        for row in run["rows"]:
            rows.setdefault(row["kv"], row)
    return first, list(rows.values())


def neighbours(path, text, tokens):
    """llama.cpp's losses over its own f16 cache, with F32 weights."""
    runs = [r for r in json.load(open(path))["runs"] if r["text"] == text and r["weights"] == "f32"]
    base = {w: s for r in runs if r["kv"] == "f16" for w, s in zip(r["windows"], r["sum_nats"])}
    lines = []
    for run in runs:
        over = [s - base[w] for w, s in zip(run["windows"], run["sum_nats"]) if w in base]
        if run["kv"] in LLAMA_BITS and over:
            lines.append((run["kv"], LLAMA_BITS[run["kv"]], sum(over) / len(over) / tokens, len(over)))
    return sorted(lines, key=lambda line: -line[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--neighbours")
    parser.add_argument("--text", default="wiki")
    parser.add_argument("--windows", type=int, default=4)
    args = parser.parse_args()
    info, rows = read_runs(args.runs)
    some = min(args.windows, info["windows"])
    print(f"| kv | bits | bytes a token | nats over f16 | 95 % interval | KL | KL, windows 0-{some - 1} | top-1 |")
    print("|---|---:|---:|---:|---|---:|---:|---:|")
    for r in sorted(rows, key=lambda r: -r["bits"]):
        kl = sum(r["window_kl"][:some]) / some
        print(f"| `{r['kv']}` | {r['bits']:.3f} | {r['bytes_per_token']:.0f} | {r['nats_over_f16']:+.4f} | "
              f"[{r['ci95'][0]:+.4f}, {r['ci95'][1]:+.4f}] | {r['kl']:.4f} | {kl:.4f} | {100 * r['top1']:.1f} % |")
    if args.neighbours:
        for name, bits, over, windows in neighbours(args.neighbours, args.text, info["window"] - 1):
            print(f"| llama.cpp `{name}` | {bits:.3f} | | {over:+.4f} ({windows} windows) | | | | |")


if __name__ == "__main__":
    main()
