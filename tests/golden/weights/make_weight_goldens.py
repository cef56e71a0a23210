# SPDX-License-Identifier: Apache-2.0
"""Blocks of every weight format and the floats that the `gguf` Python package makes of them.

  pip install gguf numpy && python3 make_weight_goldens.py

writes one NAME.golden a format beside this script: int32 block count, the blocks' bytes, then the floats (little-endian).
Blocks are random bytes; scales are random too, and the first blocks carry the extreme ones: zero, smallest subnormal,
largest fp16, negative, all codes 0 and all codes 1. Scales that are not finite are left out: a reader of weights refuses them.
"""
import pathlib
import struct

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

BLOCKS = 24
# Byte offsets of the fp16 numbers of a block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}
EXTREMES = [0.0, -0.0, 2.0**-24, -(2.0**-24), 65504.0, -65504.0, 2.0**-14, 1.0]


def blocks_of(name, size, rng):
    raw = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    raw[8:10] = 0
    raw[10:12] = 255
    for at in SCALES[name]:
        values = rng.standard_normal(BLOCKS) * 0.05
        values[:8] = np.roll(EXTREMES, at)
        raw[:, at:at + 2] = values.astype(np.float16).view(np.uint8).reshape(BLOCKS, 2)
    return raw


def plain(name, rng):
    values = np.concatenate([EXTREMES, rng.standard_normal(56) * 10.0**rng.integers(-4, 4, 56)])
    values = values.astype(np.float32)
    if name == "F32":
        return values.view(np.uint8)
    if name == "F16":
        return np.clip(values, -65504, 65504).astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def main():
    here = pathlib.Path(__file__).parent
    for name in ["F32", "F16", "BF16", *SCALES]:
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(int(kind))
        raw = plain(name, rng) if elements == 1 else blocks_of(name, size, rng)
        # The package takes plain types as arrays of their own type; BF16 as bytes.
        source = raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
        floats = dequantize(source, kind).astype(np.float32).reshape(-1)
        blocks = raw.size // size
        assert floats.size == blocks * elements and np.isfinite(floats).all()
        data = struct.pack("<i", blocks) + raw.tobytes() + floats.tobytes()
        (here / f"{name}.golden").write_bytes(data)
        print(name, blocks, len(data))


main()
