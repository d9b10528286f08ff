"""Writes gguf_blocks.json: a few random blocks of each quantized type of GGUF, and the weights that
the `gguf` package computes of them, as the bits of f32.

    pip install gguf
    python tests/goldens/gguf_blocks.py
"""

import json
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

NAMES = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
)
# Where the f16 factors are, in bytes.
FACTORS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "MXFP4": [],
}


def main():
    random = np.random.default_rng(16)
    goldens = {}
    for name in NAMES:
        ggml_type = GGMLQuantizationType[name]
        weights, num_bytes = GGML_QUANT_SIZES[ggml_type]
        count = 2 if weights == 256 else 3
        blocks = random.integers(0, 256, (count, num_bytes), dtype=np.uint8)
        for at in FACTORS[name]:
            factor = (random.standard_normal(count) * 0.02).astype(np.float16)
            blocks[:, at : at + 2] = factor.view(np.uint8).reshape(count, 2)
        if name == "MXFP4":
            # Exponents of small numbers, and the least, which have fewer digits.
            blocks[:, 0] = [121, 1, 0]
        found = dequantize(blocks.reshape(-1), ggml_type).astype(np.float32)
        goldens[name] = {
            "bytes": blocks.tobytes().hex(),
            "weights": found.reshape(-1).view(np.uint32).tolist(),
        }
    rows = (f'"{name}": {json.dumps(golden)}' for name, golden in goldens.items())
    text = "{\n" + ",\n".join(rows) + "\n}\n"
    Path(__file__).with_suffix(".json").write_text(text)


main()
