# SPDX-License-Identifier: Apache-2.0
"""Gradients of the mean next-token loss with respect to keys before RoPE and values, by PyTorch's autograd in float64.

usage: make_gradients.py KVRING > gradients.txt      (KVRING: the program, whose make-model writes the tiny models)
Needs torch, numpy, gguf. The forward pass is written from the definition of the Llama and Qwen2 architectures and reads
nothing from kvring but the weights in the files; RoPE scalings are written from their papers.
"""
import math
import os
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch

IDS = [7, 100, 42, 258, 3, 42, 9, 200, 131, 7, 55, 12]
SHAPE = ["--hidden", "32", "--ffn", "48", "--vocab", "259", "--heads", "4", "--kv-heads", "2", "--head-dim", "8"]
SCALED = ["--rope-base", "100", "--rope-factor", "4", "--rope-original-context", "64"]
CASES = {
    "plain": ["--seed", "11", "--value-dim", "12"],
    "qwen2": ["--seed", "12", "--arch", "qwen2", "--output-head", "own"],
    "linear": ["--seed", "13", "--rope-scaling", "linear"] + SCALED,
    "llama3": ["--seed", "14", "--rope-scaling", "llama3"] + SCALED,
    "yarn": ["--seed", "15", "--rope-scaling", "yarn"] + SCALED,
}


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        self.tensors = {t.name: torch.tensor(numpy.array(t.data), dtype=torch.float64) for t in reader.tensors}
        self.arch = self.fields["general.architecture"]

    def get(self, key, absent=None):
        return self.fields.get(self.arch + "." + key, absent)

    def rope(self):
        """Frequencies of the planes and the factor of cos and sin."""
        d, base = self.get("rope.dimension_count"), self.get("rope.freq_base")
        freq = torch.tensor([base ** (-2.0 * i / d) for i in range(d // 2)], dtype=torch.float64)
        if "rope_freqs.weight" in self.tensors:
            freq = freq / self.tensors["rope_freqs.weight"]
        kind, factor = self.get("rope.scaling.type", "none"), self.get("rope.scaling.factor", 1.0)
        if kind == "linear":
            return freq / factor, 1.0
        if kind == "yarn":
            # Peng et al. 2023: planes are numbered by how often they turn within the original length.
            length = self.get("rope.scaling.original_context_length")
            plane = lambda turns: d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
            low, high = max(math.floor(plane(32)), 0), min(math.ceil(plane(1)), d - 1)
            ramp = ((torch.arange(d // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
            return freq / factor * ramp + freq * (1 - ramp), 0.1 * math.log(factor) + 1.0
        return freq, 1.0

    def rotate(self, x):
        """x: [tokens][heads][d]. Llama files pair channels (2i, 2i+1), Qwen2 (i, i + d/2)."""
        freq, scale = self.rope()
        angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * freq
        cos, sin = (angle.cos() * scale)[:, None, :], (angle.sin() * scale)[:, None, :]
        half = x.shape[-1] // 2
        pairs = (slice(0, half), slice(half, None)) if self.arch == "qwen2" else (slice(0, None, 2), slice(1, None, 2))
        a, b = x[..., pairs[0]], x[..., pairs[1]]
        out = torch.empty_like(x)
        out[..., pairs[0]], out[..., pairs[1]] = a * cos - b * sin, a * sin + b * cos
        return out

    def norm(self, x, name):
        epsilon = self.get("attention.layer_norm_rms_epsilon")
        return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * self.tensors[name]

    def project(self, x, name, heads):
        y = x @ self.tensors[name + ".weight"].T
        if name + ".bias" in self.tensors:
            y = y + self.tensors[name + ".bias"]
        return y.reshape(x.shape[0], heads, -1)

    def loss(self, ids):
        """The loss, and the keys and values of every layer as leaves of the graph."""
        heads, kv_heads = self.get("attention.head_count"), self.get("attention.head_count_kv")
        x, taken = self.tensors["token_embd.weight"][ids].requires_grad_(), []
        mask = torch.full((len(ids), len(ids)), -math.inf, dtype=torch.float64).triu(1)
        for layer in range(self.get("block_count")):
            blk = f"blk.{layer}."
            h = self.norm(x, blk + "attn_norm.weight")
            q = self.project(h, blk + "attn_q", heads)
            k = self.project(h, blk + "attn_k", kv_heads)
            v = self.project(h, blk + "attn_v", kv_heads)
            k.retain_grad()
            v.retain_grad()
            taken.append((k, v))
            group = heads // kv_heads
            scores = torch.einsum("thd,shd->hts", self.rotate(q), self.rotate(k).repeat_interleave(group, 1))
            weights = (scores / math.sqrt(q.shape[-1]) + mask).softmax(-1)
            out = torch.einsum("hts,shd->thd", weights, v.repeat_interleave(group, 1))
            x = x + out.reshape(len(ids), -1) @ self.tensors[blk + "attn_output.weight"].T
            h = self.norm(x, blk + "ffn_norm.weight")
            act = torch.nn.functional.silu(h @ self.tensors[blk + "ffn_gate.weight"].T)
            x = x + (act * (h @ self.tensors[blk + "ffn_up.weight"].T)) @ self.tensors[blk + "ffn_down.weight"].T
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        logits = self.norm(x, "output_norm.weight") @ head.T
        return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])), taken


def main():
    torch.set_num_threads(1)
    print("ids", len(IDS), *IDS)
    for name, options in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tiny.gguf")
            subprocess.run([sys.argv[1], "make-model", "--quiet", "-o", path] + SHAPE + options, check=True)
            loss, taken = Model(path).loss(IDS)
        loss.backward()
        print("case", name, f"{loss.item():.12g}")
        for layer, pair in enumerate(taken):
            for side, tensor in zip("kv", pair):
                numbers = tensor.grad.flatten().tolist()
                print(layer, side, len(numbers), *(f"{x:.7g}" for x in numbers))


main()
