"""Makes reference_vectors.npy: the texts' vectors by a plain float32 numpy pass over the published weights.

Run by hand: python tests/judgment_weights/reference.py
"""

from __future__ import annotations

import math
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TEXTS = HERE / "reference_texts.txt"
VECTORS = HERE / "reference_vectors.npy"
BUILD = HERE.parents[1] / "packages" / "judgment-weights" / "hatch_build.py"


def vector(tensors: dict[str, Any], ids: list[int]) -> Any:
    """The unit vector [384] of one text's token ids."""

    def norm(x: Any, name: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def dense(x: Any, name: str) -> Any:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    gelu = np.vectorize(lambda value: 0.5 * value * (1 + math.erf(value / math.sqrt(2))), otypes=[np.float32])
    x = tensors["embeddings.word_embeddings.weight"][ids]
    x = x + tensors["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(6):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            dense(x, f"{at}.attention.self.{part}").reshape(len(ids), 12, 32).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(32)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        mixed = (weights @ v).transpose(1, 0, 2).reshape(len(ids), 384)
        x = norm(x + dense(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        wide = gelu(dense(x, f"{at}.intermediate.dense"))
        x = norm(x + dense(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def main() -> None:
    from judgment_weights import TOKENIZER
    from tokenizers import Tokenizer

    build = runpy.run_path(str(BUILD))
    with tempfile.TemporaryDirectory() as folder:
        weights, _ = build["read_source"](build["fetch"](Path(folder)))
    tensors = build["read_safetensors"](weights)
    tokenizer = Tokenizer.from_str(TOKENIZER.read_text(encoding="utf-8"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    texts = TEXTS.read_text(encoding="utf-8").splitlines()
    vectors = np.array([vector(tensors, tokenizer.encode(text).ids) for text in texts])
    np.save(VECTORS, vectors.astype(np.float16))
    print(f"{len(texts)} vectors in {VECTORS}", file=sys.stderr)


if __name__ == "__main__":
    main()
