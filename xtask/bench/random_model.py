"""Writes a model folder with random 4-bit weights for any architecture that mlx-lm has, for decode_speed and gpu_mlx_lm.py to measure.

usage: random_model.py CONFIG FOLDER [--larger] [--layers N]     Written for mlx-lm 0.32.2 on MLX 0.32.2.

CONFIG is a config.json; models/ has those of published models. `--larger` multiplies its sizes by eight, its heads by four: the small models of
tests/goldens become large enough for the kernels of a GPU. `--layers` takes so many layers only. Weights are drawn as mlx-lm's modules
begin, in bf16, and quantized as mlx-lm quantizes: 4 bits affine, routers as each architecture wants them, and the experts of gpt-oss in mxfp4.
"""

import argparse
import json
import pathlib

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, quantize_model

SIZES = ("hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size")
SIZES += ("intermediate_size_mlp", "vocab_size", "vocab_size_per_layer_input", "hidden_size_per_layer_input")
HEADS = ("num_attention_heads", "num_key_value_heads", "linear_num_value_heads", "linear_num_key_heads")
DIMS = ("head_dim", "global_head_dim", "linear_key_head_dim", "linear_value_head_dim")


def enlarge(config):
    for names, factor in ((SIZES, 8), (HEADS, 4), (DIMS, 2)):
        for name in names:
            if isinstance(config.get(name), int):
                config[name] *= factor
    for inner in config.values():
        if isinstance(inner, dict) and "hidden_size" in inner:
            enlarge(inner)


def quantized(model, config):
    """The model in 4 bits, and its config with what is stored how."""
    wanted = getattr(model, "quant_predicate", None) or (lambda path, module: True)

    def predicate(path, module):
        if config["model_type"] == "gpt_oss" and ".experts." in path:
            return {"group_size": 32, "bits": 4, "mode": "mxfp4"}
        return wanted(path, module)

    return quantize_model(model, config, 64, 4, quant_predicate=predicate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--larger", action="store_true")
    parser.add_argument("--layers", type=int)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    config.pop("quantization", None)
    config.pop("quantization_config", None)
    if options.larger:
        enlarge(config)
    if options.layers:
        (config.get("text_config") or config)["num_hidden_layers"] = options.layers
    mx.random.seed(7)
    model_class, arguments_class = _get_classes(config)
    model = model_class(arguments_class.from_dict(config))
    model.set_dtype(mx.bfloat16)
    model, config = quantized(model, config)
    weights = dict(tree_flatten(model.parameters()))
    # One at a time: the weights before they are quantized would not fit together.
    for weight in weights.values():
        mx.eval(weight)
    options.folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(options.folder / "model.safetensors"), weights, {"format": "mlx"})
    (options.folder / "config.json").write_text(json.dumps(config))
