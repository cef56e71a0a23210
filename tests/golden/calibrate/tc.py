# SPDX-License-Identifier: Apache-2.0
"""Tables of tc for a tiny problem, a second time with numpy in float64, from rotated-and-transform 4.

One layer, one KV head of 8 channels, two windows of 32 tokens that belong to two texts, keys turned to a served context of 96.
Rows are made of integers, so that both sides have the same numbers. Too few gradients for any to be clipped.
    python3 tc.py > tc.txt
"""
import numpy as np

D, WINDOW, WINDOWS, SERVED, SINKS, RIDGE = 8, 32, 2, 96, 4, 0.05


def noise(n, seed):
    i = np.arange(n, dtype=np.uint64) + np.uint64(seed)
    i = (i * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
    i = i ^ (i >> np.uint64(15))
    i = (i * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    return (((i >> np.uint64(13)) & np.uint64(1023)).astype(np.float64) - 512) / 256


def rows(seed):
    """[WINDOWS][WINDOW][D]: channels of unlike size around unlike means, the second half follows the first."""
    x = noise(WINDOWS * WINDOW * D, seed).reshape(WINDOWS, WINDOW, D)
    x = x * (1 + np.arange(D) % 3) / 2 + (np.arange(D) % 5 - 2)
    x[..., D // 2 :] += x[..., : D // 2]
    return x.astype(np.float16).astype(np.float64)


def gradients(seed):
    g = noise(WINDOWS * WINDOW * D, seed).reshape(WINDOWS, WINDOW, D)
    return g * (1 + np.arange(D)) / 4096


def rope(x, position):
    """Interleaved pairs, base 10^4."""
    angle = position * 10000.0 ** (-2.0 * np.arange(D // 2) / D)
    a, b = x[..., 0::2], x[..., 1::2]
    y = np.empty_like(x)
    y[..., 0::2] = a * np.cos(angle) - b * np.sin(angle)
    y[..., 1::2] = a * np.sin(angle) + b * np.cos(angle)
    return y


def served(row, w):
    return (row * WINDOWS + w) * SERVED // (WINDOW * WINDOWS)


def falling(m):
    values, vectors = np.linalg.eigh((m + m.T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    return values, vectors * np.sign(vectors[largest, np.arange(D)])


def tables(x, g, keys):
    x, g = x[:, SINKS:], g[:, SINKS:]
    mean = x.reshape(-1, D).mean(axis=0)
    centred = x - mean.astype(np.float32)
    if keys:
        at = [[served(row, w) for row in range(SINKS, WINDOW)] for w in range(WINDOWS)]
        centred = np.array([[rope(c, n) for c, n in zip(cs, ns)] for cs, ns in zip(centred, at)])
        g = np.array([[rope(c, n) for c, n in zip(cs, ns)] for cs, ns in zip(g, at)])
    centred, g = centred.reshape(-1, D), g.reshape(-1, D)
    covariance, metric = centred.T @ centred / len(centred), g.T @ g / len(g)
    diagonal = np.trace(metric) / D
    weight = diagonal * (1 + RIDGE)
    metric = (metric + RIDGE * diagonal * np.eye(D)) / weight
    values, vectors = falling(metric)
    half = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    variances, turn = falling(half @ covariance @ half)
    return {"mean": mean, "basis": half @ turn, "inverse": turn.T @ np.linalg.inv(half), "lambda": variances,
            "weight": np.array([weight])}


def main():
    for side, seed in (("k", 1000), ("v", 5000)):
        for name, values in tables(rows(seed), gradients(seed + 2000), side == "k").items():
            print(f"{side}_{name}", values.size, *(f"{x:.9g}" for x in values.ravel()))


if __name__ == "__main__":
    main()
