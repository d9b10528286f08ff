"""Writes a llama of a known shape with random 4-bit weights as a model folder, for measurements that need one.

usage: gpu_model.py SHAPE TOKENIZER_FOLDER OUT     shapes as in gpu_mlx_lm.py; any tokenizer does, for no text is read.
                                                   Written for mlx-lm 0.32.0 on MLX 0.32.2.
"""

import json
import pathlib
import shutil
import sys

import mlx.core as mx
from gpu_mlx_lm import SHAPES, random_model
from mlx.utils import tree_flatten

shape, tokenizer, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
out.mkdir(parents=True, exist_ok=True)
mx.save_safetensors(str(out / "model.safetensors"), dict(tree_flatten(random_model(SHAPES[shape]).parameters())), {"format": "mlx"})
config = dict(model_type="llama", rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True, max_position_embeddings=131072, eos_token_id=2)
config |= SHAPES[shape] | {"quantization": {"group_size": 64, "bits": 4}}
(out / "config.json").write_text(json.dumps(config))
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(tokenizer / name, out / name)
