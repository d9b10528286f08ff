"""Counts the graph nodes that mlx-lm evaluates for one token, in all and in its layers, for node_counts.json.

usage: node_counts.py [FAMILY/NAME]...      checkpoints of this folder; only their config.json is read

Needs a GPU, because MLX's CPU backend writes its fused operations (norms, RoPE, attention) out as many nodes; an inner
function that mlx-lm compiles is one. Made with mlx[cuda13]==0.32.2 and mlx-lm==0.32.0.
"""

import collections
import importlib
import json
import pathlib
import re
import sys
import tempfile

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

HERE = pathlib.Path(__file__).parent
NAMES = ["llama/quant4-tied", "qwen3/quant4-tied", "gemma3_text/quant4", "qwen3_moe/quant4", "qwen3_next/quant4"]


def model_of(name):
    # MLX's fused attention needs a head size that models have.
    config = json.loads((HERE / name / "config.json").read_text()) | {"head_dim": 64}
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    settings = config["quantization"]
    nn.quantize(model, group_size=settings["group_size"], bits=settings["bits"])
    mx.eval(model.parameters())
    return model, config


def operations(output):
    with tempfile.NamedTemporaryFile(suffix=".dot") as file:
        mx.export_to_dot(file.name, output)
        return re.findall(r'label ="([^"]*)", shape=rectangle', pathlib.Path(file.name).read_text())


def count(name):
    model, config = model_of(name)
    cache = make_prompt_cache(model)
    for tokens in ([1, 2, 3, 4], [5]):
        mx.eval(model(mx.array([tokens]), cache=cache), [entry.state for entry in cache])
    token = mx.array([[6]])
    nodes = operations(model(token, cache=cache))
    embedding = model.model.embed_tokens(token)
    outside = len(operations(embedding))
    mx.eval(embedding)
    tied = config.get("tie_word_embeddings", True) and not hasattr(model, "lm_head")
    head = model.model.embed_tokens.as_linear if tied else model.lm_head
    outside += len(operations(head(embedding))) + 1  # the last norm
    counts = dict(sorted(collections.Counter(nodes).items()))
    return {"num_layers": config["num_hidden_layers"], "all": len(nodes), "in_layers": len(nodes) - outside, "operations": counts}


if __name__ == "__main__":
    if mx.default_device() != mx.gpu:
        sys.exit("node_counts.py needs a GPU")
    counts = {name: count(name) for name in sys.argv[1:] or NAMES}
    (HERE / "node_counts.json").write_text(json.dumps(counts, indent=1) + "\n")
