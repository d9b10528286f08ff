"""What mlx_lm.convert of mlx-lm 0.32.2 on MLX 0.32.2 (CPU) makes of the tiny models.

`python tests/goldens/make_goldens.py convert` writes `tests/goldens/convert.json`, a list of cases:

    model     the name of a committed model, such as "llama/dense-tied"
    flags     what `convert` was given beside its paths
    sha256    the first half of `draw.digest` over all tensors of the new model
    settings  `quantization` of the new config.json, null where it has none
    config    all of the new config.json, where the case is one of CHOSEN
    tensors   there too: {name: "<dtype> <dimensions joined by x>"}

Every model is converted as it is, and quantized with groups of 64 and of 32; what mlx-lm refuses has no case. The tokenizer is left out:
transformers reads config.json more strictly than mlx-lm does.
"""

import contextlib
import importlib
import io
import json
import tempfile
from pathlib import Path

from draw import digest
from mlx_lm.utils import load_model
from oracle import GOLDENS, check_versions, write_checkpoint

# The package has a function of the same name.
mlx_lm_convert = importlib.import_module("mlx_lm.convert")

PLAIN = [{}, {"quantize": True}, {"quantize": True, "q_group_size": 32}]
CHOSEN = [
    ("llama/dense-bf16", {"dtype": "float16"}),
    ("llama/dense-untied", {"quantize": True, "q_group_size": 32, "dtype": "bfloat16"}),
    ("llama/dense-tied", {"quantize": True, "q_group_size": 32, "q_bits": 8}),
    ("llama/dense-tied", {"quantize": True, "q_mode": "mxfp4"}),
    ("llama/dense-tied", {"quantize": True, "q_mode": "nvfp4"}),
    ("llama/dense-tied", {"quantize": True, "q_mode": "mxfp8"}),
    ("llama/dense-f16", {"quantize": True, "q_group_size": 32, "q_bits": 3}),
    ("llama/quant4-tied", {"dequantize": True}),
    ("llama/quant4-tied", {"dequantize": True, "dtype": "float16"}),
    ("llama/quant-mixed", {"dequantize": True}),
    ("llama/mxfp4-mixed", {"dequantize": True}),
    ("llama/nvfp4", {"dequantize": True}),
    ("llama/mxfp8", {"dequantize": True}),
    ("llama/sharded", {"quantize": True, "q_group_size": 32}),
    ("qwen3_moe/unstacked", {"quantize": True}),
    ("lfm2_moe/published", {"quantize": True, "q_group_size": 32, "q_bits": 4}),
    ("gemma4/experts-published", {"quantize": True, "q_group_size": 32, "dtype": "bfloat16"}),
    ("gpt_oss/published", {"quantize": True, "q_group_size": 32}),
    ("deepseek_v3/published", {"quantize": True, "q_group_size": 32, "dtype": "bfloat16"}),
    ("nemotron_h/published", {"quantize": True, "q_group_size": 32, "dtype": "bfloat16"}),
    ("qwen3_5_moe/published", {"quantize": True, "dtype": "bfloat16"}),
    ("falcon_h1/published", {"quantize": True, "q_group_size": 32, "dtype": "bfloat16"}),
    ("granitemoehybrid/published", {"quantize": True, "q_group_size": 32}),
    *(
        (model, {"quantize": True, "q_group_size": 32, "quant_predicate": recipe})
        for model, recipe in [
            ("llama/dense-tied", "mixed_2_6"),
            ("llama/dense-untied", "mixed_3_4"),
            ("gemma3/dense", "mixed_3_6"),
            ("deepseek_v3/published", "mixed_4_6"),
        ]
    ),
]


class NoTokenizer:
    def save_pretrained(self, folder):
        pass


def load_without_tokenizer(folder, **_):
    model, config = load_model(Path(folder), lazy=True)
    return model, NoTokenizer(), config


def read(folder):
    """The stored tensors of a model's files: {name: (dtype, shape, bytes)}."""
    stored = {}
    for path in folder.glob("model*.safetensors"):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        assert header.pop("__metadata__") == {"format": "mlx"}
        for name, entry in header.items():
            first, end = entry["data_offsets"]
            stored[name] = (entry["dtype"], entry["shape"], data[start + first : start + end])
    return dict(sorted(stored.items()))


def case(name, source, flags, is_chosen):
    """A case, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / "new"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                mlx_lm_convert.convert(str(source), str(new), **flags)
        except (ValueError, KeyError, TypeError) as refusal:
            return f"{type(refusal).__name__}: {str(refusal)[:100]!r}"
        config, stored = json.loads((new / "config.json").read_text()), read(new)
    entry = {"model": name, "flags": flags, "sha256": digest(stored)[:32], "settings": config.get("quantization")}
    if is_chosen:
        tensors = {name: f"{dtype} {'x'.join(map(str, shape))}" for name, (dtype, shape, _) in stored.items()}
        entry |= {"config": config, "tensors": tensors}
    return entry


def main():
    check_versions()
    mlx_lm_convert.load = load_without_tokenizer
    names = sorted(str(path.parent.relative_to(GOLDENS)) for path in GOLDENS.glob("*/*/weights.json"))
    cases = []
    for name in names:
        weights, config = (json.loads((GOLDENS / name / file).read_text()) for file in ("weights.json", "config.json"))
        chosen = [flags for model, flags in CHOSEN if model == name]
        with tempfile.TemporaryDirectory() as source:
            write_checkpoint(Path(source), config, weights)
            if (GOLDENS / name / "generation_config.json").exists():
                (Path(source) / "generation_config.json").write_text((GOLDENS / name / "generation_config.json").read_text())
            for flags, is_chosen in [*((flags, False) for flags in PLAIN), *((flags, True) for flags in chosen)]:
                made = case(name, source, flags, is_chosen)
                if isinstance(made, str):
                    assert not is_chosen, (name, flags, made)
                    print(f"{name} {flags}: {made}")
                else:
                    cases.append(json.dumps(made))
    (GOLDENS / "convert.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")
