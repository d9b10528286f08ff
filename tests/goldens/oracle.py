"""What the scripts that make tiny random checkpoints share: mlx-lm 0.32.0 on MLX 0.32.2 (CPU, float32) and the numbers it computes.

Needs a venv holding `mlx[cpu]==0.32.2` and `mlx-lm==0.32.0`. Each script gives `make_all` its cases; a case becomes a folder with an MLX / Hugging Face
model and `expected.safetensors`, which holds

    tokens   i32 [T]          a random prompt (T is 24 unless the case says otherwise)
    logits   f32 [T, vocab]   one forward pass over it without a cache
    greedy   i32 [16]         its greedy continuation by `generate_step`
    tokens2  i32 [24]         another prompt, run through one cache as 16 tokens, then 8
    logits2  f32 [8, vocab]   what the second of these two calls returns

The oracle loads the folder as any other (so what is stored is what counts), casts every floating-point parameter to float32 and keeps
quantized weights quantized. Each case takes the first seed with which no greedy choice is a near tie (MIN_GAP) and the continuation is not one token
over and over. On one machine two runs give the same bytes; elsewhere the last bits of the logits differ.
"""

import itertools
import json
import shutil
import sys
from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

ORACLE = {"mlx": "0.32.2", "mlx-lm": "0.32.0"}
MIN_GAP = 0.01  # between the two best logprobs, at every greedy step
MAX_BYTES = 200_000  # of a folder
NUM_GREEDY = 16


def quantization(bits, group_size=32, **layers):
    """The config entry; a layer is named with `__` for `.`, and takes False or (bits, group_size)."""
    entry = {"group_size": group_size, "bits": bits, "mode": "affine"}
    for name, choice in layers.items():
        entry[name.replace("__", ".")] = choice and {"bits": choice[0], "group_size": choice[1]}
    return entry


def random_model(module, config, weight, seed):
    """A model of this configuration; `weight(name, unit)` makes each array from uniform numbers of -1 to 1 in its shape."""
    model = module.Model(module.ModelArgs.from_dict(config))
    mx.random.seed(seed)
    shapes = sorted((name, w.shape) for name, w in tree_flatten(model.parameters()))
    model.update(tree_unflatten([(name, weight(name, mx.random.uniform(-1.0, 1.0, shape))) for name, shape in shapes]))
    return model


def like_inputs(unit, gain=1.5):
    """A matrix whose outputs are `gain` times its inputs' size, so that logits lie well apart."""
    return gain * (3 / unit.shape[-1]) ** 0.5 * unit


def quantize(model, entry):
    """Quantizes as the config entry says; what it does not name takes its defaults."""
    nn.quantize(
        model, group_size=entry["group_size"], bits=entry["bits"],
        class_predicate=lambda name, layer: entry.get(name, True) if hasattr(layer, "to_quantized") else False,
    )


def expected(model, tokens, tokens2):
    """The arrays of `expected.safetensors`, and the smallest gap between the two best logprobs on the greedy path."""
    cache = make_prompt_cache(model)
    model(tokens2[None, :16], cache=cache)
    steps = list(generate_step(tokens, model, mx.default_stream(mx.cpu), max_tokens=NUM_GREEDY))
    best = mx.sort(mx.stack([logprobs for _, logprobs in steps]), axis=-1)[:, -2:]
    arrays = {
        "tokens": tokens,
        "logits": model(tokens[None])[0],
        "greedy": mx.array([token for token, _ in steps], mx.int32),
        "tokens2": tokens2,
        "logits2": model(tokens2[None, 16:], cache=cache)[0],
    }
    assert arrays["logits"].dtype == arrays["logits2"].dtype == mx.float32
    return arrays, mx.min(best[:, 1] - best[:, 0]).item()


def write_folder(folder, model, config, stored):
    """A model folder; `stored` may rename its weights to another layout that mlx-lm reads."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if config["torch_dtype"] == "bfloat16":
        model.set_dtype(mx.bfloat16)
    if entry := config.get("quantization"):
        quantize(model, entry)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = stored(dict(tree_flatten(model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def make(folder, module, config, weight, stored=lambda weights: weights, num_tokens=24):
    """Writes one case."""
    for seed in itertools.count():
        write_folder(folder, random_model(module, config, weight, seed), config, stored)
        model, _ = load_model(folder)
        model.set_dtype(mx.float32)
        mx.random.seed(seed + 1_000_000)
        tokens, tokens2 = (mx.random.randint(3, config["vocab_size"], (length,), mx.int32) for length in (num_tokens, 24))
        arrays, gap = expected(model, tokens, tokens2)
        greedy = arrays["greedy"].tolist()
        if gap > MIN_GAP and len(set(greedy)) >= 8 and len(set(greedy[NUM_GREEDY // 2 :])) >= 4:
            break
    mx.save_safetensors(str(folder / "expected.safetensors"), arrays)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    assert num_bytes < MAX_BYTES, f"{folder.name}: {num_bytes} bytes"
    print(f"{folder.name}: seed {seed}, smallest gap {gap:.4f}, {len(set(greedy))} distinct greedy tokens, {num_bytes} bytes")


def make_all(out, module, cases, weight):
    """Writes the cases named on the command line, or all. A case is its config, or that and a dict of `make`'s other arguments."""
    for package, wanted in ORACLE.items():
        assert version(package) == wanted, f"{package} {wanted} is needed, this is {version(package)}"
    mx.set_default_device(mx.cpu)
    mx.disable_compile()  # compiled kernels on the CPU need a C++ compiler at run time
    for case in sys.argv[1:] or cases:
        config, extra = cases[case] if isinstance(cases[case], tuple) else (cases[case], {})
        make(out / case, module, config, weight, **extra)
