#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of speed results, as Markdown.

    benchmarks/speed_table.py RESULT.json ... [--refresh docs/speed.md]

Reads results of machine_peak, bench_context, compare_llama.py and bench_attention in any mix and prints a table of each kind.
With --refresh the lines between `<!-- KIND -->` and `<!-- end -->` of a document are replaced by the table of that kind.
"""
import argparse
import json
import re


def tokens_text(n):
    for shift, unit in ((20, "M"), (10, "K")):
        if n >= 1 << shift and n % (1 << shift) == 0:
            return f"{n >> shift}{unit}"
    return str(n)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def kind_of(result):
    if "benchmarks" in result:
        return "bench_attention"
    return result.get("program", "machine_peak" if "fma_flops_core" in result else "")


def machine(results):
    rows = []
    for r in results:
        core = r["read_bytes_per_s_core"]
        rows += [("multiply-adds of fp32, one core", f"{r['fma_flops_core'] * 1e-9:.0f} Gflop/s"),
                 ("bf16 dot products, one core", f"{r['bf16_flops_core'] * 1e-9:.0f} Gflop/s"),
                 ("u8 x s8 dot products, one core", f"{r['int8_ops_core'] * 1e-9:.0f} Gop/s"),
                 ("reading memory, one core, " + ", ".join(core), ", ".join(f"{v * 1e-9:.1f}" for v in core.values()) + " GB/s"),
                 ("reading memory, all cores", f"{r['read_bytes_per_s_all'] * 1e-9:.1f} GB/s")]
    return table(("limit", "measured"), rows)


def subjects(results):
    return [(r, s) for r in results for s in r["subjects"]]


def decode(results):
    found = subjects(results)
    depths = sorted({row["depth"] for _, s in found for row in s["decode"]})
    rows = []
    for result, s in found:
        if not s["decode"]:
            continue
        rate = {row["depth"]: row["tokens_per_s"] for row in s["decode"]}
        fit = s["fit"]
        line = ("", "", "") if not fit else (
            f"{fit['ns_per_context_token']:.0f}", f"{fit['r2']:.4f}",
            f"{fit['bytes_per_s'] * 1e-9:.1f} of {result['read_bytes_per_s'] * 1e-9:.1f} ({fit['share_of_read_bandwidth']:.0%})")
        memory = f"{result['rss_bytes'] * 1e-9:.1f}" if len(result["subjects"]) == 1 else ""
        rows.append((s["kv"], *(f"{rate[d]:.3g}" if d in rate else "" for d in depths), *line, memory))
    return table(("codec", *(tokens_text(d) for d in depths), "ns a token of context", "R²", "GB/s of pages, of what is read",
                  "process, GB"), rows)


def prefill(results):
    found = [s for _, s in subjects(results) if s["prefill"]]
    sizes = sorted({row["tokens"] for s in found for row in s["prefill"]})
    rates = {}
    for s in found:
        for row in s["prefill"]:
            rates.setdefault(s["kv"], {})[row["tokens"]] = row["tokens_per_s"]
    return table(("codec", *(tokens_text(n) for n in sizes)),
                 [(kv, *(f"{r[n]:.0f}" if n in r else "" for n in sizes)) for kv, r in rates.items()])


def llama(results):
    rows = []
    for what, size in (("decode", "depth"), ("prefill", "tokens")):
        for part in sorted((p for r in results for p in r[what]), key=lambda p: p[size]):
            for row in part["rows"]:
                speed = f"{row['tokens_per_s']:.4g}" if row["tokens_per_s"] else "out of time"
                over = f"{row['over_best_llama']:.1f}" if "over_best_llama" in row else ""
                rows.append((f"{what} {tokens_text(part[size])}", row["side"], row["kv"], speed, over,
                             f"{row['peak_rss_bytes'] * 1e-6:.0f}"))
    return table(("", "", "cache", "tokens/s", "times its best of that run", "peak MB"), rows)


def medians(results, pattern):
    """Groups of the pattern, and the run, of runs whose names match: medians where there are repetitions."""
    for result in results:
        for run in result["benchmarks"]:
            match = re.match(pattern, run["name"])
            if match and (run.get("run_type") != "aggregate" or run.get("aggregate_name") == "median"):
                yield match.groups(), run


def kernel_runs(results):
    """{(codec, form): {(d, group, MB, huge, threads): run}}, in the order of the results."""
    found = {}
    pattern = r"BenchDecode/(.+?)_(tile|int8|direct)/d:(\d+)/group:(\d+)/MB:(\d+)/huge:(\d)(.*/threads:(\d+))?"
    for (name, form, d, group, size, huge, _, threads), run in medians(results, pattern):
        found.setdefault((name, form), {})[d, group, size, huge, int(threads or 1)] = run
    return found


def cell(run):
    return f"{run['of_read']:.0%} ({64e3 / run['Mkeys/s']:.0f})" if run else ""


def kernels(results):
    """One core, 256 MB of pages: share of the read bandwidth at that size, ns a page of 64 keys in brackets."""
    columns = [("64", g, "256", "1", 1) for g in "1348"] + [("128", g, "256", "0", 1) for g in "1348"]
    head = [f"d {d}, group {g}" for d, g, _, _, _ in columns]
    return table(("codec", "read as", *head),
                 [(name, form, *(cell(runs.get(c)) for c in columns)) for (name, form), runs in kernel_runs(results).items()])


def sizes(results):
    """Head size 64, groups of 3, by bytes of pages, one core and all of them; and how many keys a second for one of f16."""
    found = kernel_runs(results)
    threads = max((key[4] for runs in found.values() for key in runs), default=1)
    columns = [("64", "3", size, "1", n) for n in (1, threads) for size in ("64", "256", "1024", "4096")]
    head = [("one core, " if n == 1 else "all, ") + size + " MB" for _, _, size, _, n in columns]
    f16 = found.get(("f16", "direct"), {})
    rows = []
    for (name, form), runs in found.items():
        over = [f"{runs[c]['Mkeys/s'] / f16[c]['Mkeys/s']:.1f}" if c in runs and c in f16 else "" for c in (columns[2], columns[6])]
        if any(c in runs for c in columns):
            rows.append((name, form, *(cell(runs.get(c)) for c in columns), *over))
    return table(("codec", "read as", *head, "times f16, one core", "all cores"), rows)


def plain(results):
    """The same pages by plain loads in the same order, one core, head size 64, huge pages: share and ns as above."""
    sizes, found = ("64", "256", "1024"), {}
    for (name, size), run in medians(results, r"BenchPlainReads/(.+?)/d:64/group:1/MB:(\d+)/huge:1"):
        found.setdefault(name, {})[size] = run
    return table(("pages of", *(size + " MB" for size in sizes)),
                 [(name, *(cell(runs.get(size)) for size in sizes)) for name, runs in found.items()])


KINDS = {"machine": ("machine_peak", machine), "decode": ("bench_context", decode), "prefill": ("bench_context", prefill),
         "llama": ("compare_llama", llama), "kernels": ("bench_attention", kernels),
         "sizes": ("bench_attention", sizes), "plain": ("bench_attention", plain)}


def refresh(path, tables):
    with open(path) as file:
        text = file.read()
    for kind, lines in tables.items():
        mark = f"<!-- {kind} -->\n"
        if mark in text:
            begin = text.index(mark) + len(mark)
            text = text[:begin] + "\n".join(lines) + "\n" + text[text.index("<!-- end -->", begin):]
    with open(path, "w") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--refresh", help="document whose tables are replaced")
    args = parser.parse_args()
    results = {}
    for path in args.results:
        with open(path) as file:
            result = json.load(file)
        results.setdefault(kind_of(result), []).append(result)
    tables = {kind: make(results[program]) for kind, (program, make) in KINDS.items() if program in results}
    if args.refresh:
        return refresh(args.refresh, tables)
    for kind, lines in tables.items():
        print(f"{kind}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
