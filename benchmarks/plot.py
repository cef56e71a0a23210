#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of benchmark results, as PNG and SVG.

    benchmarks/plot.py RESULT.json ... -o PREFIX

Reads results of bench_context, compare_llama.py and bench_attention (--benchmark_out=FILE --benchmark_out_format=json), in any mix, and
writes PREFIX-depth.{png,svg}: decode tokens/s against tokens of context, ours by codec, llama.cpp's by cache type; and
PREFIX-bits.{png,svg}: bytes of pages read a second against bits an element, with the machine's read bandwidth. A picture
without points is not written. Needs matplotlib (Debian: python3-matplotlib).
"""
import argparse
import json
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullFormatter  # noqa: E402

# Colours that stay apart for the colour-blind (Okabe and Ito), by codec; llama.cpp's types are grey and told apart by marks.
COLOURS = {"rot8": "#56B4E9", "rot4": "#0072B2", "rot3": "#D55E00", "rot2": "#CC79A7", "f16": "#009E73", "tc3": "#E69F00"}
THEIR_MARKS = {"f16": "o", "q8_0": "s", "q4_0": "^"}


def tokens_text(value, _=None):
    for shift, unit in ((20, "M"), (10, "K")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):g}{unit}"
    return f"{value:g}"


def read(paths):
    """[(side, kv, depth, tokens/s)], [(label, kv, bits, bytes/s)], [(label, read bytes/s)], notes."""
    depth, bits, reads, notes = [], [], [], set()
    for path in paths:
        with open(path) as file:
            result = json.load(file)
        program = result.get("program", "bench_attention" if "benchmarks" in result else "")
        context = result.get("context", {}) if program == "bench_attention" else result
        notes.add(f"{context.get('cpu', 'CPU not stated').split(' (')[0]}, commit {context.get('commit', 'not stated')}")
        if program == "bench_context":
            label = f"all layers, {result['threads']} threads"
            reads.append((label, result["read_bytes_per_s"]))
            for subject in result["subjects"]:
                depth += [("kvring", subject["kv"], r["depth"], r["tokens_per_s"]) for r in subject["decode"]]
                if subject["fit"]:
                    bits.append((label, subject["kv"], subject["bits"], subject["fit"]["bytes_per_s"]))
        elif program == "compare_llama":
            for table in result["decode"]:
                depth += [(r["side"], r["kv"], table["depth"], r["tokens_per_s"]) for r in table["rows"] if r["tokens_per_s"]]
        elif program == "bench_attention":
            points, rates = kernel_points(result)
            bits += points
            reads += rates
        else:
            sys.exit(f"{path}: not a result of bench_context, compare_llama.py or bench_attention")
    return depth, bits, reads, sorted(notes)


def kernel_points(result):
    """Head size 64, groups of 3, 256 MB, the shape of the small model: one core and all of them, each codec in the form that runs."""
    points, rates, runs = [], {}, {}
    for run in result["benchmarks"]:
        match = re.match(r"BenchDecode/(.+?)_(tile|int8|direct)/d:64/group:3/MB:256/huge:1(.*threads)?", run["name"])
        if match and (run.get("run_type") != "aggregate" or run.get("aggregate_name") == "median"):
            runs[match[1], "kernel, all cores" if match[3] else "kernel, one core", match[2]] = run
    for (codec, label, form), run in runs.items():
        if form == "tile" and any((codec, label, other) in runs for other in ("int8", "direct")):
            continue
        bits = run["GB/s"] * 1e3 / run["Mkeys/s"] * 8 / (2 * 64)  # of a key's and a value's elements
        points.append((label, codec, bits, run["GB/s"] * 1e9))
        rates[label] = run["GB/s"] * 1e9 / run["of_read"]
    return points, list(rates.items())


def save(figure, prefix, kind, notes):
    figure.text(0.01, 0.01, "; ".join(notes) + "; contexts are synthetic", fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    for form in ("png", "svg"):
        name = f"{prefix}-{kind}.{form}"
        figure.savefig(name, dpi=150)
        print(name)
    plt.close(figure)


def plot_depth(points, prefix, notes):
    lines = {}
    for side, kv, depth, rate in points:
        lines.setdefault((side, kv), {}).setdefault(depth, []).append(rate)
    figure, axes = plt.subplots(figsize=(8, 5))
    # The fastest at its first depth first, so that the legend's order is that of the lines.
    for (side, kv), by_depth in sorted(lines.items(), key=lambda l: -l[1][min(l[1])][0]):
        depths = sorted(by_depth)
        rates = [sum(by_depth[d]) / len(by_depth[d]) for d in depths]
        ours = side == "kvring"
        axes.plot(depths, rates, "-" if ours else "--", marker="o" if ours else THEIR_MARKS.get(kv, "x"),
                  color=COLOURS.get(kv, "#000000") if ours else "#777777", label=f"{side} {kv}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    depths = sorted({p[2] for p in points})
    axes.set_xticks(depths)
    axes.xaxis.set_major_formatter(FuncFormatter(tokens_text))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: f"{v:g}" if f"{v:.0e}"[0] in "25" else ""))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="both", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("decoded tokens per second")
    axes.set_title("Decode speed against context depth")
    axes.legend(fontsize=9)
    save(figure, prefix, "depth", notes)


def family(codec):
    name = re.sub(r"[0-9.]+", "", codec.split(":")[0].split("-")[0])
    return name + "-1%" if "-1%" in codec else "f16, f32" if name == "f" else name


def plot_bits(points, reads, prefix, notes):
    """A line is a family of codecs read in one way: colours are families, marks and dashes the ways."""
    figure, axes = plt.subplots(figsize=(8, 5))
    families = list(dict.fromkeys(family(p[1]) for p in points))
    colours = dict(zip(families, ("#009E73", "#0072B2", "#E69F00", "#56B4E9", "#000000", "#CC79A7", "#D55E00")))
    for label, mark, dash in zip(sorted({p[0] for p in points}), "osD^vP", ("-", "--", ":", "-.")):
        for name in families:
            own = sorted((bits, rate) for of, kv, bits, rate in points if of == label and family(kv) == name)
            axes.plot([p[0] for p in own], [p[1] * 1e-9 for p in own], mark + dash, color=colours.get(name, "#999999"), markersize=5)
        axes.plot([], [], mark + dash, color="#777777", label=label)
        rates = [rate for of, rate in reads if of == label]
        if rates:
            axes.axhline(max(rates) * 1e-9, color="#777777", linestyle=dash, linewidth=0.8)
            axes.annotate(f"read bandwidth: {label}", (16.4, max(rates) * 1e-9), textcoords="offset points", xytext=(0, 3),
                          ha="right", fontsize=7, color="#777777")
    for name in families:
        axes.plot([], [], "s", color=colours.get(name, "#999999"), label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(True, color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("bits an element, scales included")
    axes.set_ylabel("GB of pages read per second")
    axes.set_title("How fast attention reads packed pages")
    axes.legend(fontsize=8, ncol=2, loc="lower right", bbox_to_anchor=(0.93, 0.02))
    save(figure, prefix, "bits", notes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("-o", "--out", required=True, help="beginning of the pictures' names")
    args = parser.parse_args()
    depth, bits, reads, notes = read(args.results)
    if depth:
        plot_depth(depth, args.out, notes)
    if bits:
        plot_bits(bits, reads, args.out, notes)
    if not depth and not bits:
        sys.exit("nothing to draw in these results")


if __name__ == "__main__":
    main()
