"""Counts the graph nodes that mlx-lm evaluates for the hidden states of one token, in its layers, for node_counts.json.

usage: node_counts.py [FAMILY/NAME]...      checkpoints of this folder; only their config.json is read. Others keep their counts

MLX's CPU backend writes its fused operations (norms, RoPE, attention, dequantizing) out as many nodes. There each is replaced by one node
of the same inputs and shape, as it is on a GPU; the first five names give the same numbers on both. An inner function that
mlx-lm compiles is one, for which the CPU needs a C++ compiler. Made with mlx==0.32.2 and mlx-lm==0.32.2.
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
from mlx_lm.utils import MODEL_REMAPPING
from oracle import GOLDENS, check_versions

NAMES = [
    "llama/quant4-tied", "qwen3/quant4-tied", "gemma3_text/quant4", "qwen3_moe/quant4", "qwen3_next/quant4", "cohere/quant4", "cohere2/quant4",
    "deepseek_v2/quant4", "deepseek_v3/quant4", "ernie4_5/quant4", "exaone4/quant4", "gemma/quant4", "gemma2/quant4", "gemma4_text/quant4",
    "glm/quant4", "glm4/quant4", "glm4_moe/quant4", "glm4_moe_lite/quant4", "granite/quant4", "internlm3/quant4", "mistral3/ministral-quant4",
    "mixtral/quant4", "olmo2/quant4", "olmo3/quant4", "olmoe/quant4", "phi3/quant4", "qwen2/quant4", "qwen2_moe/quant4", "qwen3_5/quant4",
    "qwen3_5_moe/quant4", "seed_oss/quant4", "smollm3/quant4", "stablelm/quant4", "stablelm/parallel-quant", "starcoder2/quant4",
    "falcon_h1/quant4", "granitemoehybrid/quant4", "jamba/quant4", "lfm2/quant4", "lfm2_moe/quant4", "mamba2/quant4", "nemotron_h/quant4",
    "ernie4_5_moe/quant4", "gemma4_text/quant-experts", "gpt_oss/quant4", "granitemoe/quant4", "helium/quant4", "llama4/quant4",
    "llama4_text/quant4", "mimo/quant4", "minicpm/quant4", "ministral3/quant4", "phimoe/quant4",
]  # fmt: skip


def as_one_node(function):
    def replacement(*inputs, **options):
        arrays = [value for value in (*inputs, *options.values()) if isinstance(value, mx.array)]
        result = function(*inputs, **options)
        output = mx.zeros(result.shape, result.dtype)
        mx.eval(output)
        return mx.depends([output], arrays)[0]

    return replacement


def model_of(name):
    config = json.loads((GOLDENS / name / "config.json").read_text())
    if mx.default_device() == mx.gpu:
        # MLX's fused attention needs a head size that models have.
        config |= {"head_dim": 64}
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(config['model_type'], config['model_type'])}")
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
    whole = getattr(model, "language_model", model)
    decoder = whole.model if "model" in whole else whole.backbone
    embed = decoder.embed_tokens if "embed_tokens" in decoder else decoder.embeddings
    cache = make_prompt_cache(model)
    for tokens in ([1, 2, 3, 4], [5]):
        mx.eval(decoder(mx.array([tokens]), cache=cache), [entry.state for entry in cache])
    token = mx.array([[6]])
    nodes = operations(decoder(token, cache=cache))
    outside = len(operations(embed(token))) + 1  # the last norm
    counts = dict(sorted(collections.Counter(nodes).items()))
    num_layers = config.get("text_config", config)["num_hidden_layers"]
    return {"num_layers": num_layers, "in_layers": len(nodes) - outside, "operations": counts}


if __name__ == "__main__":
    check_versions()
    if mx.default_device() != mx.gpu:
        for fused in ("rms_norm", "layer_norm", "rope", "scaled_dot_product_attention"):
            setattr(mx.fast, fused, as_one_node(getattr(mx.fast, fused)))
        mx.dequantize = as_one_node(mx.dequantize)
    file = GOLDENS / "node_counts.json"
    others = json.loads(file.read_text()) if sys.argv[1:] else {}
    counts = others | {name: count(name) for name in sys.argv[1:] or NAMES}
    file.write_text(json.dumps(counts, indent=1) + "\n")
