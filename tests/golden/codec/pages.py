# SPDX-License-Identifier: Apache-2.0
"""One page of every codec, encoded a second time with numpy in float64 from the layout comments of kernels/codec.

Writes pages.txt: codec, page bytes, FNV-1a 64 of the page, its first 16 bytes. Rows are made of integers, so that both
sides have the same numbers; codes that lie within rounding of a border would show as a difference (none do).
    python3 pages.py > pages.txt
"""
import functools
import pathlib
import re

import numpy as np

import tables

D, BLOCK, TOKENS, QUERY_HEADS, SINKS = 64, 64, 128, 2, 4


def noise(n, seed):
    i = np.arange(n, dtype=np.uint64) + np.uint64(seed)
    i = (i * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
    i = i ^ (i >> np.uint64(15))
    i = (i * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    return (((i >> np.uint64(13)) & np.uint64(1023)).astype(np.float64) - 512) / 256


def rows():
    bias = np.array([(c % 5) - 2 for c in range(D)], dtype=np.float64)
    k = noise(TOKENS * D, 1000).reshape(TOKENS, D) + bias
    v = noise(TOKENS * D, 500000).reshape(TOKENS, D)
    q = noise(TOKENS * QUERY_HEADS * D, 900000).reshape(TOKENS, QUERY_HEADS, D)
    return k, v, q


def half(x):
    return np.asarray(x, dtype=np.float64).astype(np.float32).astype(np.float16).astype(np.float64)


def pack(codes, bits):
    """codes [rows][lanes] -> u32 words [ceil(rows * bits / 32)][lanes], a little-endian bit stream down each column."""
    n, lanes = codes.shape
    words = np.zeros(((n * bits + 31) // 32, lanes), dtype=np.uint32)
    for r in range(n):
        for b in range(bits):
            bit = r * bits + b
            words[bit // 32] |= ((codes[r].astype(np.uint32) >> b) & 1) << np.uint32(bit % 32)
    return words.astype("<u4").tobytes()


def signs(dim):
    out, mask = [], (1 << 64) - 1
    for i in range(dim):
        x = (0x6B7672696E670001 + i + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        out.append(-1.0 if (x ^ (x >> 31)) >> 63 else 1.0)
    return np.array(out)


def rotation():
    h = np.array([[1.0]])
    while len(h) < D:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(D) * signs(D)


def rope(x, position):
    """Interleaved pairs, base 10^4."""
    angle = position * 10000.0 ** (-2.0 * np.arange(D // 2) / D)
    a, b = x[0::2], x[1::2]
    y = np.empty_like(x)
    y[0::2], y[1::2] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return y


def state(k, q):
    k, q = k[SINKS:], q[SINKS:]
    mu = half(k.mean(axis=0))
    ek = ((k - mu) ** 2).mean(axis=0).reshape(-1, 2).sum(axis=1)
    eq = (q**2).mean(axis=(0, 1)).reshape(-1, 2).sum(axis=1)
    w = ((eq + 0.001 * eq.mean()) / (ek + 0.001 * ek.mean())) ** 0.25
    return mu, np.repeat(half(w / np.exp(np.log(w).mean())), 2)


@functools.lru_cache(None)
def lloyd(bits):
    level = tables.lloyd_max(bits)
    unit = level[-1] / 127
    q = [round(x / unit) for x in level]
    return np.array([-x for x in reversed(q)] + q) * unit


def nearest(y, table):
    """Codes by magnitude, so that -y gives the mirrored code; a tie goes to the smaller magnitude, 0 to the positive side."""
    top = table[len(table) // 2:]
    index = np.searchsorted((top[1:] + top[:-1]) / 2, np.abs(y))
    return np.where(y < 0, len(top) - 1 - index, len(top) + index)


def scale_of(e):
    return 2.0 ** ((e - 112) / 8)


def encode_vector(y, bits):
    """codes, e of rotated-and-transform 2."""
    if bits == 8:
        e = int(np.ceil(8 * np.log2(np.abs(y).max() / 127) + 112))
        return np.rint(y / scale_of(e)).astype(int) & 255, e
    table = lloyd(bits)
    best = None
    for s in (np.sqrt((y**2).mean()), np.abs(y).max() / table[-1]):
        for _ in range(3):
            t = table[nearest(y / s, table)]
            s = (y @ t) / (t @ t)
        e = int(np.rint(8 * np.log2(s) + 112))
        codes = nearest(y / scale_of(e), table)
        error = ((y - scale_of(e) * table[codes]) ** 2).sum()
        if best is None or error < best[0]:
            best = (error, codes, e)
    return best[1], best[2]


def rot_page(k, v, q, bits):
    mu, w = state(k, q)
    t = rotation()
    keys = [encode_vector(t @ (w * (k[n] - rope(mu, n))), bits) for n in range(BLOCK, TOKENS)]
    values = [encode_vector(x, bits) for x in v[BLOCK:]]  # rows are taken to be in the value domain already
    page = pack(np.array([c for c, _ in keys]).T, bits) + bytes(e for _, e in keys)
    return page + pack(np.array([c for c, _ in values]), bits) + bytes(e for _, e in values)


def grouped_side(x, bits, numbers):
    """x [groups][n] -> page side, groups as rows."""
    lo, hi = x.min(axis=1), x.max(axis=1)
    scale = half((hi - lo) / (numbers[-1] - numbers[0]))
    offset = half(lo + (hi - lo) * (-numbers[0] / (numbers[-1] - numbers[0])))
    u = (x - offset[:, None]) / scale[:, None]
    # Rows of few integers do meet borders: a tie goes to the larger code in int, to the smaller in nf.
    side = "right" if numbers[0] == 0 else "left"
    codes = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, u, side=side)
    return pack(codes, bits) + scale.astype("<f2").tobytes() + offset.astype("<f2").tobytes()


def grouped_page(k, v, bits, numbers):
    return grouped_side(k[BLOCK:].T, bits, numbers) + grouped_side(v[BLOCK:], bits, numbers)


def nuq_centroids(bits):
    """A datatype for this test alone: uneven, and exact in fp32."""
    x = (2 * np.arange(2.0**bits) + 1) / 2**bits - 1
    return (x * (0.75 + 0.25 * x**2)).astype(np.float32)


def nuq_codes(x, z, s, bits):
    """Nearest entry of s * c + z in fp32, ties to the lower; codes, and what they decode to."""
    lut = s[..., None] * nuq_centroids(bits) + z[..., None]
    codes = np.argmin(np.abs(x[..., None] - lut), axis=-1)
    return codes, np.take_along_axis(lut, codes[..., None], axis=-1)[..., 0]


def nuq_slots(residual, outlier, slots):
    """residual, outlier [tokens][D]: index u16 [slots], value Half [slots], the largest of a token first to be kept."""
    index, value = np.zeros(slots, "<u2"), np.zeros(slots, "<f2")
    used = 0
    for t in range(BLOCK):
        own = [c for c in np.flatnonzero(outlier[t]) if residual[t, c] != 0]
        own = sorted(sorted(own, key=lambda c: -abs(residual[t, c]))[:slots - used])
        for c in own:
            index[used], value[used] = t * D + c, residual[t, c]
            used += 1
    return index.tobytes() + value.tobytes()


def nuq_page(k, v, bits, per_side, k_slots, v_slots):
    """Thresholds 1.9375 around the channel's bias; one KV head, fixed slots (kvquant 4.1, 4.2)."""
    k, v = k[BLOCK:].astype(np.float32), v[BLOCK:].astype(np.float32)
    z = np.tile(np.array([(c % 5) - 2 for c in range(D)], dtype=np.float32), (BLOCK, 1))
    s = np.full_like(z, 1.9375)
    codes, decoded = nuq_codes(k, z, s, bits)
    page = pack(codes.T, bits)
    page += nuq_slots((k - decoded).astype(np.float16), (k < z - s) | (k > z + s), k_slots)
    outlier, scale, middle = np.zeros(v.shape, bool), [], []
    for t in range(BLOCK):
        upper = sorted(range(D), key=lambda c: (-v[t, c], c))[:per_side]
        lower = sorted((c for c in range(D) if c not in upper), key=lambda c: (v[t, c], c))[:per_side]
        outlier[t, upper + lower] = True
        rest = v[t][~outlier[t]]
        scale.append((rest.max() - rest.min()) / 2)
        middle.append((rest.max() + rest.min()) / 2)
    scale, middle = np.array(scale).astype("<f2"), np.array(middle).astype("<f2")
    s, z = (np.repeat(p.astype(np.float32)[:, None], D, axis=1) for p in (scale, middle))
    codes, decoded = nuq_codes(v, z, s, bits)
    page += pack(codes, bits) + scale.tobytes() + middle.tobytes()
    return page + nuq_slots((v - decoded).astype(np.float16), outlier, v_slots)


# tc: tables for this test alone. Basis Hadamard / 8, exact in fp32; deviations powers of two.
TC_MEAN = np.array([(c % 5) - 2 for c in range(D)], dtype=np.float64)
TC_DEVIATION = 2.0 ** (1 - np.arange(D) // 16)
TC_WEIGHT = {"k": 1.0, "v": 0.25}
TC_MSE = [1.0, 0.3634, 0.1175, 0.03454, 0.009497, 0.002499, 0.000641]


def tc_bits(rate):
    """Greedy, bit by bit; ties to the first class. Classes of keys, then of values."""
    energy = [TC_WEIGHT[side] * 8 * TC_DEVIATION[8 * c] ** 2 for side in "kv" for c in range(D // 8)]
    bits = [0] * len(energy)
    for _ in range(int(rate * 2 * D // 8)):
        gain = [e * (TC_MSE[b] - TC_MSE[b + 1]) if b < 6 else -1 for e, b in zip(energy, bits)]
        bits[gain.index(max(gain))] += 1
    return bits[: D // 8], bits[D // 8 :]


def tc_vector(z, bits):
    """Codes of 64 normalized coefficients (those without bits: 0) and the gain byte."""
    tables_of = [lloyd(b) if b else None for b in bits]
    weight = TC_DEVIATION**2
    coded = np.repeat(np.array(bits) > 0, 8)

    def code(gain):
        codes, levels = np.zeros(D, dtype=int), np.zeros(D)
        for c, table in enumerate(tables_of):
            if table is not None:
                at = slice(8 * c, 8 * c + 8)
                codes[at] = nearest(z[at] / gain, table)
                levels[at] = table[codes[at]]
        return codes, levels

    gain = np.sqrt((z[coded] ** 2).mean())
    for _ in range(2):
        _, level = code(gain)
        gain = (weight * z * level).sum() / (weight * level * level).sum()
    middle, best = int(np.rint(8 * np.log2(gain) + 112)), None
    for e in (middle, middle - 1, middle + 1, middle - 2, middle + 2):
        codes, level = code(scale_of(e))
        error = (weight * (z - scale_of(e) * level) ** 2)[coded].sum()
        if best is None or error < best[0]:
            best = (error, codes, e)
    return best[1], best[2]


TWO_AT, ONE_AT = [0, 2, 8, 10, 4, 6, 12, 14], [0, 4, 1, 5, 2, 6, 3, 7]


def tc_planes(codes, bits):
    """codes [elements][8] -> planes of a class."""
    out, low = b"", 0
    for width, dtype, at in ((4, "<u4", range(0, 32, 4)), (2, "<u2", TWO_AT), (1, "u1", ONE_AT)):
        if bits & width:
            words = np.zeros(len(codes), dtype=np.uint32)
            for r in range(8):
                words |= ((codes[:, r].astype(np.uint32) >> low) & ((1 << width) - 1)) << np.uint32(at[r])
            out += words.astype(dtype).tobytes()
            low += width
    return out


def tc_side(z, bits, key):
    coded = [tc_vector(row, bits) for row in z]
    codes = np.array([c for c, _ in coded])
    page = bytes(e for _, e in coded)
    for c, b in enumerate(bits):
        own = codes[:, 8 * c : 8 * c + 8]  # [slot][coefficient]
        if not key:  # eight slots of one coefficient in an element
            own = own.reshape(BLOCK // 8, 8, 8).transpose(0, 2, 1).reshape(BLOCK, 8)
        page += tc_planes(own, b)
    return page


def tc_page(k, v, rate):
    basis = rotation() * signs(D)  # plain Hadamard
    key_bits, value_bits = tc_bits(rate)
    keys = np.array([(k[n] - rope(TC_MEAN, n)) @ basis for n in range(BLOCK, TOKENS)]) / TC_DEVIATION
    return tc_side(keys, key_bits, True) + tc_side(v[BLOCK:] / TC_DEVIATION, value_bits, False)


# Trellis codes. The tables are read from the program: they are data of the format, found by a search, not by a formula.
@functools.lru_cache(None)
def trellis_numbers(bits):
    source = pathlib.Path(__file__).parents[3] / "kernels" / "codec" / "trellis_tables.cc"
    text = source.read_text()
    largest = [float(x) for x in re.search(r"kLargest\[\] = \{(.*?)\}", text, re.S)[1].replace("f", "").split(",")]
    levels = re.findall(r"\{([-\d,\s]+)\}", text[text.index("kLevels"):])
    return largest[bits - 1] / 127 * np.array([int(x) for x in levels[bits - 1].split(",")])


def trellis_path(u, bits, weight):
    """The least weighted squared error, and the codes: windows of seven bits, the newest on top, zeros before the first."""
    least, steps = np.full(128, np.inf), []
    least[0] = 0.0
    for x, b, w in zip(u, bits, weight):
        if b == 0:
            steps.append(None)
            continue
        before = least.reshape(-1, 2**b)  # windows that differ in the bits that leave
        steps.append(before.argmin(axis=1))
        least = np.tile(before.min(axis=1), 2**b) + w * (x - trellis_numbers(b)) ** 2
    window, codes = int(least.argmin()), []
    for b, step in zip(reversed(bits), reversed(steps)):
        codes.append(window >> (7 - b))
        if b:
            kept = window & (2 ** (7 - b) - 1)
            window = kept << b | int(step[kept])
    return least.min(), codes[::-1]


def trellis_vector(z, bits, weight, middle):
    """Stream and gain byte."""
    best = None
    for e in (middle, middle - 1, middle + 1, middle - 2, middle + 2):
        error, codes = trellis_path(z / scale_of(e), bits, weight)
        if best is None or error * scale_of(e) ** 2 < best[0]:
            best = (error * scale_of(e) ** 2, codes, e)
    stream, at = 0, 0
    for code, b in zip(best[1], bits):
        stream |= code << at
        at += b
    return stream.to_bytes((at + 7) // 8, "little"), best[2]


def trellis_side(z, bits, weight, middles):
    coded = [trellis_vector(row, bits, weight, m) for row, m in zip(z, middles)]
    return b"".join(stream for stream, _ in coded) + bytes(e for _, e in coded)


def rot_trellis_page(k, v, q, bits):
    mu, w = state(k, q)
    t = rotation()
    keys = np.array([t @ (w * (k[n] - rope(mu, n))) for n in range(BLOCK, TOKENS)])
    page = b""
    for y in (keys, v[BLOCK:]):
        page += trellis_side(y, [bits] * D, np.ones(D), [encode_vector(row, bits)[1] for row in y])
    return page


def tc_trellis_page(k, v, rate):
    basis = rotation() * signs(D)
    keys = np.array([(k[n] - rope(TC_MEAN, n)) @ basis for n in range(BLOCK, TOKENS)]) / TC_DEVIATION
    page = b""
    for z, bits in zip((keys, v[BLOCK:] / TC_DEVIATION), tc_bits(rate)):
        each = [int(b) for b in np.repeat(bits, 8)]
        page += trellis_side(z, each, TC_DEVIATION**2, [tc_vector(row, bits)[1] for row in z])
    return page


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return h


def main():
    k, v, q = rows()
    pages = {"f16": k[BLOCK:].T.astype("<f2").tobytes() + v[BLOCK:].astype("<f2").tobytes(),
             "f32": k[BLOCK:].T.astype("<f4").tobytes() + v[BLOCK:].astype("<f4").tobytes()}
    for bits in (8, 4, 3, 2):
        pages[f"rot{bits}"] = rot_page(k, v, q, bits)
    for bits in (4, 3, 2):
        pages[f"int{bits}"] = grouped_page(k, v, bits, np.arange(2.0**bits))
        pages[f"nf{bits}"] = grouped_page(k, v, bits, np.array(tables.normal_float(bits)))
    for bits in (4, 3, 2):
        pages[f"nuq{bits}"] = nuq_page(k, v, bits, 0, 0, 0)
        # m(64, f) is 1 at all three. Keys have 94 outliers: 21 and 59 slots run out amid a token whose largest is not its first.
        for share, k_slots in (("0.1", 21), ("0.5", 59), ("1", 100)):
            pages[f"nuq{bits}-{share}%"] = nuq_page(k, v, bits, 1, k_slots, 150)
    for rate in (4, 3, 2.5, 2, 1.5):
        pages[f"tc{rate}"] = tc_page(k, v, rate)
    for bits in (4, 3, 2):
        pages[f"rot{bits}:trellis"] = rot_trellis_page(k, v, q, bits)
    for rate in (4, 3, 2.5, 2, 1.5):
        pages[f"tc{rate}:trellis"] = tc_trellis_page(k, v, rate)
    for name, page in pages.items():
        print(name, len(page), f"{fnv1a(page):016x}", page[:16].hex())


if __name__ == "__main__":
    main()
