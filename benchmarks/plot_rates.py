#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bits against loss of every codec, as PNG and SVG, from the JSON of `kvring eval` runs. Needs matplotlib.

    benchmarks/plot_rates.py -o docs/images/rates --neighbours tests/golden/reference/nats.json \\
        --panel wiki "WikiText-2 test" WIKI.json ... --panel moby "Moby Dick" MOBY.json ...

One panel a text: its name in the file of neighbours, its title, and runs over the same windows. Codecs of a family are joined
by a line; those calibrated on more than one text are a family of their own. llama.cpp's cache types stand in nats over its own
f16 cache, since no logits of it were kept.
"""
import argparse
import os
import re
import statistics

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib import patheffects  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

from eval_table import calibration_texts, neighbours, read_runs  # noqa: E402

# Family, names that belong to it, colour (Okabe and Ito's, told apart by colour-blind readers too), marker.
FAMILIES = [
    ("tc", r"tc(@)?[\d.]+", "#0072b2", "o"),
    ("tc:adapt", r"tc(@)?[\d.]+:adapt", "#d55e00", "D"),
    ("rot", r"rot\d", "#009e73", "s"),
    ("nuq-1%", r"nuq\d-1%", "#cc79a7", "^"),
    ("nuq", r"nuq\d", "#a6761d", "v"),
    ("int", r"int\d", "#555555", "P"),
    ("nf", r"nf\d", "#56b4e9", "X"),
]
LLAMA = "llama.cpp, in nats"
HALO = [patheffects.withStroke(linewidth=2.5, foreground="white")]  # names stay legible on lines
DIRECTIONS = [(0.71, 0.71), (-0.71, -0.71), (0.71, -0.71), (-0.71, 0.71), (1, 0), (-1, 0), (0, 1), (0, -1)]


def family_of(kv):
    for name, pattern, colour, marker in FAMILIES:
        if re.fullmatch(pattern, kv):
            return name, colour, marker
    return None


def read_series(paths, wanted):
    """{(family, several texts): [(bits, kl, kv)]}, in the order of FAMILIES; of the wanted families, all when none is named."""
    read_runs(paths)  # refuses runs over different windows
    series = {}
    for path in paths:
        info, rows = read_runs([path])
        for row in rows:
            family = family_of(row["kv"])
            if family is None or (wanted and family[0] not in wanted):
                continue
            several = len(calibration_texts(info, row["kv"])) > 1
            points = series.setdefault((family[0], several), {})
            points.setdefault(row["kv"], (row["bits"], row["kl"], row["kv"]))
    names = [family[0] for family in FAMILIES]
    order = sorted(series, key=lambda key: (names.index(key[0]), key[1]))
    return {key: sorted(series[key].values()) for key in order}


def overlap(a, b):
    return max(0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0, min(a.y1, b.y1) - max(a.y0, b.y0))


def place_labels(axes, points, lines):
    """points: [(x, y, text, colour)], lines: [[(x, y)]], whose ends are markers. Each label goes where it hides least: labels before it, markers, lines."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    scale = figure.dpi / 72
    to_pixels = axes.transData.transform
    inside = axes.get_window_extent(renderer)
    marks = [Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale)
             for x, y in (to_pixels(p) for p in {p[:2] for p in points}.union(*lines))]
    on_lines = []
    for line in lines:
        pixels = [to_pixels(p) for p in line]
        for (x0, y0), (x1, y1) in zip(pixels, pixels[1:]):
            steps = max(2, int(max(abs(x1 - x0), abs(y1 - y0)) / (2 * scale)))
            on_lines += [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1)]
    taken = []
    for x, y, text, colour in points:
        px, py = to_pixels((x, y))
        best = None
        for reach in (7, 11, 16, 24, 34):
            for dx, dy in DIRECTIONS:
                label = axes.annotate(text, (x, y), (dx * reach, dy * reach), textcoords="offset points", fontsize=8,
                                      color=colour, zorder=5, ha={1: "left", -1: "right", 0: "center"}[(dx > 0) - (dx < 0)],
                                      va={1: "bottom", -1: "top", 0: "center"}[(dy > 0) - (dy < 0)])
                box = label.get_window_extent(renderer)
                cost = sum(4 * overlap(box, other) for other in taken) + sum(3 * overlap(box, m) for m in marks)
                cost += 6 * scale**2 * sum(box.x0 < lx < box.x1 and box.y0 < ly < box.y1 for lx, ly in on_lines)
                cost += 50 * (box.width * box.height - overlap(box, inside))
                cost += 0.15 * scale**2 * reach**2  # near its point, all else equal
                label.remove()
                if best is None or cost < best[0]:
                    best = (cost, dx * reach, dy * reach, label.get_ha(), label.get_va(), box)
        _, ox, oy, ha, va, box = best
        far = abs(ox) + abs(oy) > 20
        axes.annotate(text, (x, y), (ox, oy), textcoords="offset points", fontsize=8, color=colour, zorder=5, ha=ha, va=va,
                      path_effects=HALO,
                      arrowprops={"arrowstyle": "-", "lw": 0.5, "color": colour, "shrinkB": 3} if far else None)
        taken.append(box)


def inverse(x):
    """Bits to the share of fp16 and back; matplotlib also asks for it at 0."""
    return 16 / np.maximum(np.asarray(x, float), 1e-9)


def draw_panel(axes, title, series, others, limits, labels):
    """Returns what lies outside the limits."""
    (left, right), (low, high) = limits
    points, lines, outside = [], [], []
    for (name, several), values in series.items():
        _, _, colour, marker = next(f for f in FAMILIES if f[0] == name)
        shown = [(bits, kl) for bits, kl, _ in values if left < bits < right and low < kl < high]
        outside += [f"{kv} ({bits:.4g} bits, {kl:.1g})" for bits, kl, kv in values
                    if kl > 0 and not (left < bits < right and low < kl < high)]
        axes.plot(*zip(*shown), color=colour, marker=marker, ms=6, lw=1.6, ls="--" if several else "-",
                  mfc="white" if several else colour, zorder=3,
                  label=name + (", mixed texts" if several else ""))
        lines.append(shown)
        if not several:  # dashed lines have the names of the solid ones above them
            points += [(bits, kl, kv, colour) for bits, kl, kv in values if (bits, kl) in shown]
    shown = [o for o in others if left < o[1] < right and low < o[2] < high]
    outside += [f"{name} ({bits:.4g} bits, {nats:.1g})" for name, bits, nats, _ in others if (name, bits, nats, _) not in shown]
    if shown:
        axes.plot([o[1] for o in shown], [o[2] for o in shown], "*", color="black", ms=9, mfc="white", zorder=3, label=LLAMA)
        points += [(bits, nats, name, "black") for name, bits, nats, _ in shown]
    axes.set(title=title, xlim=(left, right), ylim=(low, high), yscale="log", xscale="log")
    ticks = [t for t in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if left <= t <= right]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("bits an element, as allocated")
    losses = [t for t in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2) if low <= t <= high]
    axes.set_yticks(losses, [f"{t:g}" for t in losses])
    axes.set_yticks([], minor=True)
    axes.grid(True, which="major", color="#dddddd", lw=0.8)
    axes.set_axisbelow(True)
    top = axes.secondary_xaxis("top", functions=(inverse, inverse))
    shares = [s for s in (2, 2.5, 3, 4, 5, 6, 8, 10) if left < 16 / s < right]
    top.set_xticks(shares, [f"{s:g}x" for s in shares])
    top.set_xticks([], minor=True)
    top.set_xlabel("smaller than fp16 by", fontsize=9)
    if labels:
        axes.figure.canvas.draw()
        # The crowded points first: they have the fewest places for a name.
        centre = statistics.median(p[0] for p in points)
        place_labels(axes, sorted(points, key=lambda p: abs(p[0] - centre)), lines)
    return outside


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panel", nargs="+", action="append", required=True, metavar=("TEXT", "TITLE RUN.json"))
    parser.add_argument("--neighbours")
    parser.add_argument("--bits", nargs=2, type=float, default=(1.25, 6.5), help="limits of the x axis")
    parser.add_argument("--kl", nargs=2, type=float, default=(0.005, 1.6), help="limits of the y axis")
    parser.add_argument("--families", nargs="+", default=[], choices=[f[0] for f in FAMILIES], help="these alone")
    parser.add_argument("--no-labels", action="store_true")
    parser.add_argument("-o", "--output", required=True, help="without its ending: .png and .svg are written")
    args = parser.parse_args()
    plt.rcParams.update({"svg.hashsalt": "kvring", "font.size": 10, "axes.titlesize": 11, "savefig.facecolor": "white",
                         "svg.fonttype": "none"})
    figure, panels = plt.subplots(1, len(args.panel), figsize=(6.4 * len(args.panel), 7), sharey=True, squeeze=False, dpi=150)
    panels[0][0].set_ylabel("KL from f16, nats a token")
    figure.subplots_adjust(left=0.75 / (6.4 * len(args.panel)), right=1 - 0.2 / (6.4 * len(args.panel)), top=0.87, bottom=0.19, wspace=0.04)
    notes = []
    for axes, (text, title, *paths) in zip(panels[0], args.panel):
        tokens = read_runs(paths[:1])[0]["window"] - 1
        others = neighbours(args.neighbours, text, tokens) if args.neighbours else []
        outside = draw_panel(axes, title, read_series(paths, args.families), others, (args.bits, args.kl), not args.no_labels)
        if outside:
            notes.append(f"Outside the frame, {title.split(',')[0]}: " + ", ".join(outside))
    handles = {}
    for axes in panels[0]:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=5 if len(args.panel) > 1 else 3, frameon=False, bbox_to_anchor=(0.5, 0.035), fontsize=9)
    figure.text(0.5, 0.01, ("   " if len(args.panel) > 1 else "\n").join(notes), ha="center", fontsize=7.5, color="#444444", wrap=True)
    os.makedirs(os.path.dirname(args.output) or ".", exist_ok=True)
    figure.savefig(args.output + ".png", metadata={"Software": None})
    figure.savefig(args.output + ".svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
