#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of quality against bytes, as Markdown, from the JSON of `kvring eval` runs over the same windows.

    benchmarks/eval_table.py RUN.json ... [--kv tc3,rot3] [--neighbours tests/golden/reference/nats.json --text wiki]
    benchmarks/eval_table.py --compare wiki=A.json mixed=B.json [--kv tc3,tc2]
    benchmarks/eval_table.py RUN.json ... --ratio tc3/nuq3-1% tc2:adapt/tc2
    benchmarks/eval_table.py RUN.json ... --depth [--kv tc3,tc2 | --ratio tc3/nuq3-1%]
    benchmarks/eval_table.py --refresh docs/codecs.md

Runs are joined by their f16 losses: each run's nats over f16, KL and top-1 are against the f16 cache of the same run, and
runs are refused when the windows or the model differ. Where a codec is in several runs, the first counts.
`--neighbours` adds what llama.cpp loses with its own cache types (sums of nats of the windows that it was measured on; no KL,
since its logits were not kept). `--windows N` restricts KL to the first N windows (a second column).
`--compare` sets the same codecs of several runs side by side, over the windows that all have: KL, and its share of the first run's. `--ratio` gives shares of
KL between two codecs. Both with 95 % intervals of a bootstrap over windows, the same draws for both sides. `--depth` gives KL, or
with `--ratio` its shares, by position in the window.
`--refresh` writes every table of a page anew that stands under a line `<!-- eval_table ARGUMENTS -->`, ARGUMENTS as above with
paths from the repository's root. Tables whose runs are not there yet stay as they are, and are named.
"""
import argparse
import contextlib
import io
import json
import os
import random
import re
import shlex
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


def choose(rows, names):
    """The rows that `names` lists, in that order; all by bits when it lists none."""
    if not names:
        return sorted(rows, key=lambda r: (-r["bits"], r["kl"]))
    known = {row["kv"]: row for row in rows}
    missing = [name for name in names.split(",") if name not in known]
    if missing:
        sys.exit(f"no row of {', '.join(missing)}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def calibration_texts(run, kv):
    """Texts that the tables of codec `kv` in this run were made from; none for codecs without tables."""
    name = kv.split(":")[0]
    for used in run.get("calibration") or []:
        if any(c.split(":")[0] == name or (c == "tc" and name.startswith("tc")) for c in used["codecs"]):
            return used["texts"]
    return []


def neighbours(path, text, tokens):
    """llama.cpp's losses over its own f16 cache, with F32 weights: (name, bits, nats, windows)."""
    runs = [r for r in json.load(open(path))["runs"] if r["text"] == text and r["weights"] == "f32"]
    base = {w: s for r in runs if r["kv"] == "f16" for w, s in zip(r["windows"], r["sum_nats"])}
    lines = []
    for run in runs:
        over = [s - base[w] for w, s in zip(run["windows"], run["sum_nats"]) if w in base]
        if run["kv"] in LLAMA_BITS and over:
            lines.append((run["kv"], LLAMA_BITS[run["kv"]], sum(over) / len(over) / tokens, len(over)))
    return sorted(lines, key=lambda line: -line[1])


def share(above, below, draws=2000):
    """mean(above) / mean(below) of windows, and the 95 % interval when windows are drawn anew. Deterministic."""
    source = random.Random(1)
    ratios = []
    for _ in range(draws):
        drawn = source.choices(range(len(above)), k=len(above))
        ratios.append(sum(above[w] for w in drawn) / sum(below[w] for w in drawn))
    ratios.sort()
    return sum(above) / sum(below), ratios[draws * 25 // 1000], ratios[draws * 975 // 1000 - 1]


def describe(above, below):
    return "{:.3f} [{:.3f}, {:.3f}]".format(*share(above, below))


def print_rows(info, rows, args):
    some = min(args.windows, info["windows"])
    print(f"| kv | bits | bytes a token | nats over f16 | 95 % interval | KL | KL, windows 0-{some - 1} | top-1 |")
    print("|---|---:|---:|---:|---|---:|---:|---:|")
    for r in rows:
        kl = sum(r["window_kl"][:some]) / some
        print(f"| `{r['kv']}` | {r['bits']:.3f} | {r['bytes_per_token']:.0f} | {r['nats_over_f16']:+.4f} | "
              f"[{r['ci95'][0]:+.4f}, {r['ci95'][1]:+.4f}] | {r['kl']:.4f} | {kl:.4f} | {100 * r['top1']:.1f} % |")
    if args.neighbours:
        for name, bits, over, windows in neighbours(args.neighbours, args.text, info["window"] - 1):
            print(f"| llama.cpp `{name}` | {bits:.3f} | | {over:+.4f} ({windows} windows) | | | | |")


def print_comparison(named, names):
    labels = [text.split("=", 1)[0] for text in named]
    runs = [json.load(open(text.split("=", 1)[1])) for text in named]
    for label, run in zip(labels, runs):
        for key in ("model", "text", "window", "start", "visibility", "numerics"):
            if run[key] != runs[0][key]:
                sys.exit(f"{label}: {key} is {run[key]}, but {runs[0][key]} in {labels[0]}")
    windows = min(run["windows"] for run in runs)
    common = [r["kv"] for r in runs[0]["rows"] if all(any(o["kv"] == r["kv"] for o in run["rows"]) for run in runs)]
    heads = [f"KL, {labels[0]}"] + [head for label in labels[1:] for head in (f"KL, {label}", f"of {labels[0]}")]
    print("| kv | bits | " + " | ".join(heads) + " |")
    print("|---|" + "---:|" * (len(heads) + 1))
    for rows in zip(*(choose(run["rows"], names or ",".join(common)) for run in runs)):
        losses = [row["window_kl"][:windows] for row in rows]
        cells = [f"{sum(losses[0]) / windows:.4f}"]
        for loss in losses[1:]:
            cells += [f"{sum(loss) / windows:.4f}", describe(loss, losses[0])]
        print(f"| `{rows[0]['kv']}` | {rows[0]['bits']:.3f} | " + " | ".join(cells) + " |")


def print_ratios(rows, pairs):
    print("| kv | against | share of its KL | 95 % interval | windows where it is less |")
    print("|---|---|---:|---|---:|")
    for pair in pairs:
        above, below = choose(rows, pair.replace("/", ","))
        value, low, high = share(above["window_kl"], below["window_kl"])
        less = sum(a < b for a, b in zip(above["window_kl"], below["window_kl"]))
        print(f"| `{above['kv']}` | `{below['kv']}` | {value:.3f} | [{low:.3f}, {high:.3f}] | "
              f"{less} of {len(above['window_kl'])} |")


def print_depth_ratios(rows, pairs):
    ranges = depth_ranges(rows)
    print("| kv | against | " + " | ".join(ranges) + " |")
    print("|---|---|" + "---:|" * len(ranges))
    for pair in pairs:
        above, below = choose(rows, pair.replace("/", ","))
        cells = [describe(a["window_kl"], b["window_kl"]) for a, b in zip(above["by_depth"], below["by_depth"])]
        print(f"| `{above['kv']}` | `{below['kv']}` | " + " | ".join(cells) + " |")


def depth_ranges(rows):
    ranges = rows[0].get("by_depth") or sys.exit("the run has windows of 2048 tokens or fewer: no ranges of positions")
    return [f"{r['begin']}-{r['end']}" for r in ranges]


def print_depth(rows):
    ranges = depth_ranges(rows)
    print("| kv | bits | " + " | ".join(ranges) + " |")
    print("|---|" + "---:|" * (len(ranges) + 1))
    for row in rows:
        print(f"| `{row['kv']}` | {row['bits']:.3f} | " + " | ".join(f"{r['kl']:.4f}" for r in row["by_depth"]) + " |")


def refresh(page):
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    lines, out, at = open(page).read().split("\n"), [], 0
    while at < len(lines):
        out.append(lines[at])
        command = re.fullmatch(r"<!-- eval_table (.*) -->", lines[at])
        at += 1
        if not command:
            continue
        words = shlex.split(command.group(1))
        files = [os.path.join(root, word.split("=")[-1]) for word in words if word.endswith(".json")]
        if not all(os.path.exists(name) for name in files):
            print(f"left as it is, no run yet: {command.group(1)}", file=sys.stderr)
            continue
        while at < len(lines) and (lines[at].startswith("|") or (not lines[at] and lines[at + 1:at + 2] and
                                                               lines[at + 1].startswith("|"))):
            at += 1
        table = io.StringIO()
        with contextlib.redirect_stdout(table), contextlib.chdir(root):
            main(words)
        out += ["", table.getvalue().rstrip("\n")]
    open(page, "w").write("\n".join(out))


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--kv", help="these codecs in this order, separated by commas")
    parser.add_argument("--neighbours")
    parser.add_argument("--text", default="wiki")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--compare", nargs="+", metavar="NAME=RUN.json")
    parser.add_argument("--ratio", nargs="+", metavar="KV/KV")
    parser.add_argument("--depth", action="store_true", help="KL by position in the window")
    parser.add_argument("--refresh", metavar="PAGE.md")
    args = parser.parse_args(words)
    if args.refresh:
        return refresh(args.refresh)
    if args.compare:
        return print_comparison(args.compare, args.kv)
    if not args.runs:
        parser.error("no runs")
    info, rows = read_runs(args.runs)
    if args.ratio and args.depth:
        return print_depth_ratios(rows, args.ratio)
    if args.ratio:
        return print_ratios(rows, args.ratio)
    rows = choose(rows, args.kv)
    return print_depth(rows) if args.depth else print_rows(info, rows, args)


if __name__ == "__main__":
    main()
