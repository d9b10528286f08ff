"""The vectors of rows of tokens by mlx-lm 0.32.0 on MLX 0.32.2 (CPU) in float32, pooled as sentence-transformers pools.

`python tests/goldens/make_goldens.py embeddings` writes `tests/goldens/embeddings.json`:

    cases  {model, rows, vectors}: rows of token ids, and for each pooling mode of sentence-transformers a vector per row

The hidden states are what `model.model(tokens)` returns, behind the last norm, of one row at a time. They are pooled in float64 with numpy by the
formulas of sentence-transformers' `Pooling`. The vectors are not scaled to length 1.
"""

import json
import tempfile

import mlx.core as mx
import numpy as np
from oracle import GOLDENS, check_versions, open_model

MODELS = ["qwen3/dense", "llama/dense-untied", "llama/mistral-windows", "gemma3_text/dense"]
LENGTHS = [5, 1, 40, 9, 8]
POOLINGS = {
    "cls": lambda hidden: hidden[0],
    "lasttoken": lambda hidden: hidden[-1],
    "mean": lambda hidden: hidden.mean(axis=0),
    "weightedmean": lambda hidden: np.average(hidden, axis=0, weights=np.arange(1, len(hidden) + 1)),
}


def case(name):
    with tempfile.TemporaryDirectory() as folder:
        model, config = open_model(name, folder)
        draw = np.random.default_rng(0)
        rows = [draw.integers(0, config["vocab_size"], length).tolist() for length in LENGTHS]
        hidden = [np.array(model.model(mx.array([row])))[0].astype(np.float64) for row in rows]
    vectors = {mode: [[float(f"{number:.8g}") for number in pool(states)] for states in hidden] for mode, pool in POOLINGS.items()}
    return {"model": name, "rows": rows, "vectors": vectors}


def main():
    check_versions()
    cases = [case(name) for name in MODELS]
    text = ",\n".join("  " + json.dumps(entry) for entry in cases)
    (GOLDENS / "embeddings.json").write_text('{"cases": [\n' + text + "\n]}\n", encoding="utf-8")
