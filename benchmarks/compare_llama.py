#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode at depth, prefill and peak memory beside llama.cpp: same machine, same GGUF, same threads, its flash attention on.

    benchmarks/compare_llama.py --llama-bench PATH -m MODEL.gguf --json FILE [--depths 4K,32K] [--prefill 512,8K]

Builds nothing of theirs: give the path of an installed `llama-bench`. Ours is `bench_context` of this build; its contexts are
synthetic (rows that went through append and encode), while llama-bench reads every depth through the model first: with 2
cores and a model of 135M parameters some 8 minutes at 32K with f16, and an hour with q4_0. --types, --depths and
--timeout choose what to afford; what ran out of time says so.

The two take turns: ours is run before and after each run of theirs, and its figure is the median of all its tokens, so what else
the machine does meets both. Ratios are ours over the best of their types at the same depth. The JSON keeps every sample and
every command.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time


def length(text):
    match = re.fullmatch(r"(\d+)([KM]?)", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is no length: use a number, or one with K or M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20}[match[2]]


def lengths(text):
    return [length(part) for part in text.split(",") if part]


def names(text):
    return [part for part in text.split(",") if part]


# How threads of OpenMP wait changes llama.cpp's decoding twofold: both programs run with their own defaults.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


class Runner:
    """Runs one command at a time, and remembers how each was called and what it took."""

    def __init__(self, timeout):
        self.timeout = timeout
        self.environment = {k: v for k, v in os.environ.items() if k not in WAITING}
        self.calls = []

    def run(self, command):
        """Standard output and peak bytes of a command; None when it ran out of time."""
        print("+", " ".join(command), file=sys.stderr, flush=True)
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as out:
            child = subprocess.Popen(command, stdout=out, env=self.environment)
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() - start > self.timeout:
                    child.kill()
                    os.wait4(child.pid, 0)
                    self.calls.append({"command": command, "timed_out_after_s": self.timeout})
                    return None
                time.sleep(0.05)
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            text = out.read()
        seconds = time.monotonic() - start
        peak = usage.ru_maxrss * 1024
        self.calls.append({"command": command, "seconds": round(seconds, 2), "peak_rss_bytes": peak})
        if child.returncode != 0:
            sys.exit(f"{command[0]} failed with exit code {child.returncode}")
        return text, peak


class Figures:
    """Samples of one row (who, which cache type), and the most memory that any run of it took."""

    def __init__(self):
        self.samples, self.peak = [], 0

    def add(self, samples, peak):
        self.samples += samples
        self.peak = max(self.peak, peak)


class Comparison:
    def __init__(self, args):
        self.args = args
        self.runner = Runner(args.timeout)
        self.facts, self.their_build = {}, None

    def ours(self, what, size, rows):
        """what: depths or prefill. Each codec in a process of its own, so that its peak of memory is its own."""
        for kv in self.args.kv:
            self.our_codec(kv, what, size, rows)

    def our_codec(self, kv, what, size, rows):
        a = self.args
        command = [a.bench_context, "-m", a.model, "-t", str(a.threads), "--kv", kv, "--math", a.math,
                   "--attention-math", a.attention_math, "--json", "-"]
        command += ["--depths", str(size), "-n", str(a.tokens), "--rounds", "1"] if what == "depths" else [
            "--depths", "none", "--prefill", str(size), "--prefill-rounds", "1"]
        done = self.runner.run(command)
        if done is None:
            return
        result = json.loads(done[0])
        self.facts = {k: result[k] for k in ("commit", "cpu", "cores", "simd", "huge_pages", "numerics")}
        self.facts.setdefault("load", result["load"])
        for subject in result["subjects"]:
            row = subject["decode"][0] if what == "depths" else subject["prefill"][0]
            rows.setdefault(("kvring", subject["kv"]), Figures()).add([row["tokens_per_s"]], result["peak_rss_bytes"])

    def theirs(self, kv, what, size, rows):
        a = self.args
        command = [a.llama_bench, "-m", a.model, "-t", str(a.threads), "-fa", "1", "-ctk", kv, "-ctv", kv, "-o", "json"]
        command += ["-p", "0", "-n", str(a.tokens), "-d", str(size), "-r", str(a.repeats)] if what == "depths" else [
            "-p", str(size), "-n", "0", "-r", str(a.repeats)]
        done = self.runner.run(command)
        if done is None:
            rows.setdefault(("llama.cpp", kv), Figures())
            return
        for result in json.loads(done[0]):
            self.their_build = {k: result.get(k) for k in ("build_commit", "build_number", "cpu_info", "n_batch", "n_ubatch")}
            rows.setdefault(("llama.cpp", kv), Figures()).add(result["samples_ts"], done[1])

    def measure(self, what, size):
        rows = {}
        self.ours(what, size, rows)
        for kv in self.args.types:
            self.theirs(kv, what, size, rows)
            self.ours(what, size, rows)
        return self.table(rows)

    @staticmethod
    def table(rows):
        best = max((statistics.median(f.samples) for (side, _), f in rows.items() if side == "llama.cpp" and f.samples),
                   default=None)
        table = []
        for (side, kv), figures in rows.items():
            row = {"side": side, "kv": kv, "tokens_per_s": None, "samples": figures.samples, "peak_rss_bytes": figures.peak}
            if figures.samples:
                row["tokens_per_s"] = statistics.median(figures.samples)
                if side == "kvring" and best:
                    row["over_best_llama"] = row["tokens_per_s"] / best
            table.append(row)
        return table


def show(kind, size, table):
    for row in table:
        speed = f"{row['tokens_per_s']:9.2f} tokens/s" if row["tokens_per_s"] else "  out of time"
        ratio = f"  {row['over_best_llama']:.2f} x the best of llama.cpp" if "over_best_llama" in row else ""
        print(f"{kind} {size:7d}  {row['side']:9s} {row['kv']:6s} {speed}  {row['peak_rss_bytes'] / 1e6:7.0f} MB{ratio}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", required=True, help="an installed llama-bench")
    parser.add_argument("--bench-context", default="build/release/bin/bench_context")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--depths", type=lengths, default=lengths("4K,16K,32K,64K"), help="of decoding; '' for none")
    parser.add_argument("--prefill", type=lengths, default=lengths("512,4K,8K,32K"), help="tokens; '' for none")
    parser.add_argument("--types", type=names, default=names("f16,q8_0,q4_0"), help="of their cache")
    parser.add_argument("--kv", type=names, default=names("rot4,rot3,f16"), help="codecs of ours")
    parser.add_argument("--math", default="auto", help="of our linear layers")
    parser.add_argument("--attention-math", default="int8", help="of ours; f16 is read by tiles anyway")
    parser.add_argument("-n", "--tokens", type=int, default=32, help="to decode at each depth")
    parser.add_argument("--repeats", type=int, default=3, help="of theirs in one run")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds of one run")
    parser.add_argument("--json", help="file to write")
    args = parser.parse_args()

    comparison = Comparison(args)
    result = {"program": "compare_llama", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "model": os.path.basename(args.model), "threads": args.threads, "decode": [], "prefill": []}
    for depth in args.depths:
        table = comparison.measure("depths", depth)
        show("decode ", depth, table)
        result["decode"].append({"depth": depth, "rows": table})
    for size in args.prefill:
        table = comparison.measure("prefill", size)
        show("prefill", size, table)
        result["prefill"].append({"tokens": size, "rows": table})
    result.update(comparison.facts)
    result["llama_cpp"] = comparison.their_build
    result["calls"] = comparison.runner.calls
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
