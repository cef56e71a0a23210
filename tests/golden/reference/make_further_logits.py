#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities at the last position of further prompts, from a plain numpy forward pass in fp32.

Usage: make_further_logits.py MODEL.gguf IDS.txt > further_logits.json   (packages: gguf, numpy)
IDS.txt holds the ids of moby-dick.txt, one a line, as `kvring tokenize --ids` prints them. Nothing of kvring is used.
"""
import json
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

SPANS = [(10, 11), (30000, 30017), (100000, 100065), (200000, 200600)]


def field(reader, key):
    part = reader.fields[key]
    return part.parts[part.data[0]][0]


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.w = {}
        for t in reader.tensors:
            shape = [int(n) for n in reversed(t.shape)]
            self.w[t.name] = dequantize(t.data, t.tensor_type).reshape(shape).astype(np.float32)
        self.layers = int(field(reader, "llama.block_count"))
        self.heads = int(field(reader, "llama.attention.head_count"))
        self.kv_heads = int(field(reader, "llama.attention.head_count_kv"))
        self.base = float(field(reader, "llama.rope.freq_base"))
        self.epsilon = np.float32(field(reader, "llama.attention.layer_norm_rms_epsilon"))

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.w[name]

    def rotate(self, x):  # [tokens, heads, d], pairs (2i, 2i+1)
        d = x.shape[-1]
        angles = np.arange(len(x))[:, None] * self.base ** (-np.arange(0, d, 2, dtype=np.float64) / d)
        turn = np.exp(1j * angles)[:, None].astype(np.complex64)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(np.float32)

    def attention(self, h, p):
        n, w = len(h), self.w
        q = self.rotate((h @ w[p + "attn_q.weight"].T).reshape(n, self.heads, -1))
        k = self.rotate((h @ w[p + "attn_k.weight"].T).reshape(n, self.kv_heads, -1))
        v = (h @ w[p + "attn_v.weight"].T).reshape(n, self.kv_heads, -1)
        group = self.heads // self.kv_heads
        scores = np.einsum("nhd,mhd->hnm", q, np.repeat(k, group, 1)) / np.float32(np.sqrt(q.shape[-1]))
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hnm,mhd->nhd", weights, np.repeat(v, group, 1)).reshape(n, -1)
        return out @ w[p + "attn_output.weight"].T

    def log_probabilities(self, ids):
        x = self.w["token_embd.weight"][ids]
        for layer in range(self.layers):
            p = f"blk.{layer}."
            x = x + self.attention(self.norm(x, p + "attn_norm.weight"), p)
            h = self.norm(x, p + "ffn_norm.weight")
            gate = h @ self.w[p + "ffn_gate.weight"].T
            up = h @ self.w[p + "ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.w[p + "ffn_down.weight"].T
        logits = (self.norm(x[-1], "output_norm.weight") @ self.w["token_embd.weight"].T).astype(np.float64)
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def main():
    model = Model(sys.argv[1])
    text = [int(line) for line in open(sys.argv[2])]
    prompts = []
    for begin, end in SPANS:
        p = model.log_probabilities(text[begin:end])
        top = np.argsort(-p)[:20]
        prompts.append({"ids": text[begin:end], "top_ids": [int(i) for i in top], "logprob": [round(float(p[i]), 6) for i in top]})
    note = "log-probabilities at the last position of stretches of Moby Dick, made by make_further_logits.py"
    print(json.dumps({"note": note, "prompts": prompts}, separators=(",", ":")))


if __name__ == "__main__":
    main()
