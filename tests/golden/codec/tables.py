# SPDX-License-Identifier: Apache-2.0
"""Tables of the codecs, from their definitions: prints the constants of kernels/codec/lloyd_max.cc,
tc_levels.cc and nf.cc.

Lloyd-Max: the 2^b levels that minimize E (x - q(x))^2 for x ~ N(0,1), found by Lloyd's iteration on the half line (the
optimum is symmetric). Stored as int8 with the largest level at 127; unit = largest level / 127.
Normal float: quantiles of N(0,1), 2^(b-1) positive, 2^(b-1)-1 negative, an exact 0, scaled to [-1, 1] (Dettmers et al.,
"QLoRA", 2023; the offset is their mean of the two ends' probabilities, written for any b).
Needs the standard library only.
"""
import math
from statistics import NormalDist

NORMAL = NormalDist()


def lloyd_max(bits):
    half = 2 ** (bits - 1)
    level = [(i + 0.5) * 3.0 / half for i in range(half)]
    for _ in range(200000):
        edge = [0.0] + [(a + b) / 2 for a, b in zip(level, level[1:])]
        new = []
        for i in range(half):
            lo, hi = edge[i], edge[i + 1] if i + 1 < half else math.inf
            mass = (NORMAL.cdf(hi) if hi < math.inf else 1.0) - NORMAL.cdf(lo)
            tail = NORMAL.pdf(hi) if hi < math.inf else 0.0
            new.append((NORMAL.pdf(lo) - tail) / mass)
        change = max(abs(a - b) for a, b in zip(new, level))
        level = new
        if change < 1e-14:
            break
    return level


def mse(level):
    """E (x - q(x))^2 of a symmetric code with these positive levels and nearest-level decisions."""
    edge = [0.0] + [(a + b) / 2 for a, b in zip(level, level[1:])] + [math.inf]
    total = 0.0
    for i, t in enumerate(level):
        lo, hi = edge[i], edge[i + 1]
        p = (NORMAL.cdf(hi) if hi < math.inf else 1.0) - NORMAL.cdf(lo)
        m1 = NORMAL.pdf(lo) - (NORMAL.pdf(hi) if hi < math.inf else 0.0)
        m2 = p + lo * NORMAL.pdf(lo) - (hi * NORMAL.pdf(hi) if hi < math.inf else 0.0)
        total += 2 * (m2 - 2 * t * m1 + t * t * p)
    return total


def normal_float(bits):
    end = 1 - 0.5 * (0.5 / (2 ** bits - 1) + 0.5 / 2 ** bits)

    def side(n):  # n quantiles from `end` towards one half, the half itself left out
        return [NORMAL.inv_cdf(end + (0.5 - end) * i / n) for i in range(n)]

    top = side(2 ** (bits - 1))
    bottom = side(2 ** (bits - 1) - 1)
    scale = max(top + bottom)
    return sorted([x / scale for x in top] + [0.0] + [-x / scale for x in bottom])


def main():
    for bits in range(1, 7):
        level = lloyd_max(bits)
        unit = level[-1] / 127
        q = [round(x / unit) for x in level]
        print(f"lloyd_max {bits}: unit {unit:.9g} levels {[-x for x in reversed(q)] + q}")
        print(f"  mse exact {mse(level):.6f}, with int8 levels {mse([x * unit for x in q]):.6f}")
    for bits in (2, 3, 4):
        print(f"normal_float {bits}: " + ", ".join(f"{x:.9g}f" for x in normal_float(bits)))


if __name__ == "__main__":
    main()
