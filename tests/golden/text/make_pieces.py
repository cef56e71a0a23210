# SPDX-License-Identifier: Apache-2.0
"""Makes pieces.json: how Hugging Face `tokenizers` (0.23.3) cuts texts before merging, as lengths in bytes.

    pip install tokenizers==0.23.3 && python make_pieces.py > pieces.json

The patterns are the ones that the tokenizer.json files of the models hold (SmolLM2, GPT-2, Llama 3, Qwen 2). The texts are
those of hostile.json and random strings out of an alphabet of hard characters, all assigned before Unicode 14.
"""
import json
import pathlib
import random

from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, Sequence, Split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LINEWISE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+")


def split(pattern):
    return Split(Regex(pattern), "isolated")


PRE_TOKENIZERS = {
    "smollm": Sequence([Digits(individual_digits=True), split(GPT2)]),
    "gpt-2": split(GPT2),
    "llama-bpe": split(LINEWISE % "{1,3}"),
    "qwen2": split(LINEWISE % ""),
}
ALPHABET = list("abzABZ019 '\"-_.,!?()") + ["  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u180e", "\u0085",
    "'s", "'T", "'Re", "'ll", "'D", "\u00e9", "e\u0301", "\u00df", "\u0416", "\u4e2d", "\u0e44", "\u0664", "\u00bd", "\u2167",
    "\U0001f9d1\u200d\U0001f91d", "\ufeff", "\x00", "\x1d", "\u0345", "\U00020000", "\U0010fffd"]


def texts():
    here = pathlib.Path(__file__).parent
    yield from (case["text"] for case in json.loads((here / "hostile.json").read_text())["same"])
    rng = random.Random(1)
    for _ in range(60):
        yield "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 60)))


cases = []
for text in texts():
    cuts = {name: [len(piece.encode()) for piece, _ in pre.pre_tokenize_str(text)] for name, pre in PRE_TOKENIZERS.items()}
    cases.append({"text": text, **cuts})
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
