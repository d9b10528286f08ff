"""What the golden scripts share: the oracle's versions, and a committed model drawn to a folder and loaded as the oracle computes with it."""

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from draw import digest, draw, save_shards
from mlx_lm.utils import load_model

GOLDENS = Path(__file__).parent
sys.path.append(str(GOLDENS.parents[1] / "xtask/bench"))
import global_scale  # noqa: E402, F401

ORACLE = {"mlx": "0.32.2", "mlx-lm": "0.32.2"}
OLD_MLX_LM = "0.30.4"  # whose cache files are read too
TOKENIZER = GOLDENS / "tokenizer"


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_checkpoint(folder, config, weights):
    """A model folder: the drawn checkpoint, its config, and the tokenizer of bytes. Returns the stored tensors."""
    stored = draw(weights["seed"], weights["tensors"])
    write_json(folder / "config.json", config)
    save_shards(folder, stored, weights.get("num_shards", 1))
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    return stored


def load_float32(folder):
    """The model as the oracle computes with it, and its config."""
    config = json.loads((folder / "config.json").read_text())
    # mlx-lm takes a bare `quantization_config` for another program's format, so the entry is handed to it under its own key.
    section = config.get("quantization_config", {})
    extra = {"quantization": section} if section and "quant_method" not in section else None
    model, _ = load_model(folder, model_config=extra)
    model.set_dtype(mx.float32)
    return model, config


def open_model(name, folder):
    """A committed model, drawn to the folder and loaded, and its config."""
    weights, config = (json.loads((GOLDENS / name / file).read_text()) for file in ("weights.json", "config.json"))
    stored = write_checkpoint(Path(folder), config, weights)
    assert digest(stored) == weights["sha256"], name
    return load_float32(Path(folder))


def check_versions(*, allows_old=False):
    """Fails unless the numbers' oracle is installed; says whether it is the old mlx-lm, where that is allowed."""
    is_old = allows_old and version("mlx-lm") == OLD_MLX_LM
    for package, wanted in ORACLE.items():
        found = version(package)
        assert found == wanted or (is_old and package == "mlx-lm"), f"{package} {wanted} is needed, this is {found}"
    return is_old
