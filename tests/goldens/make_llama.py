"""Tiny random llama checkpoints with the numbers mlx-lm 0.32.0 on MLX 0.32.2 (CPU, float32) computes from them.

One command, in a venv holding `mlx[cpu]==0.32.2`, `mlx-lm==0.32.0` and `tokenizers`:

    python tests/goldens/make_llama.py [CASE]...

It writes `tests/goldens/llama/<case>/`: an MLX / Hugging Face model folder and `expected.safetensors` with

    tokens   i32 [T]          a random prompt (T is 24, in rope-llama3 72)
    logits   f32 [T, vocab]   one forward pass over it without a cache
    greedy   i32 [16]         its greedy continuation by `generate_step` (tiny-chat: [400])
    tokens2  i32 [24]         another prompt, run through one cache as 16 tokens, then 8
    logits2  f32 [8, vocab]   what the second of these two calls returns

The oracle loads the folder as any other (so what is stored is what counts), casts every floating-point parameter to
float32 and keeps quantized weights quantized. Weights, scales and biases are stored as float32, but for `dense-bf16`
and `sharded`, which store bfloat16: their numbers are those of the bfloat16 values cast to float32.
Each case takes the first seed with which no greedy choice is a near tie (MIN_GAP) and the continuation is not one token over and over.

`tiny-chat` is a model to chat with: ids 0–255 are the bytes, then come <|endoftext|>, <|im_start|>, <|im_end|>. Its weights
favour lower-case letters and spaces, so that greedy answers are printable and go on without an end-of-sequence token.
`tokens` is there the rendered chat [{"role": "user", "content": "Hello"}] with the generation prompt.

On one machine two runs give the same bytes. Elsewhere the last bits of the logits differ: OpenBLAS's kernels for other processors moved them by up to 1e-5.
"""

import itertools
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import generate_step
from mlx_lm.models import llama
from mlx_lm.utils import load_model, load_tokenizer

ORACLE = {"mlx": "0.32.2", "mlx-lm": "0.32.0"}
OUT = Path(__file__).parent / "llama"
MIN_GAP = 0.01  # between the two best logprobs, at every greedy step

# float32 weights take four bytes each, so dense cases are narrower than quantized ones.
DENSE = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=128, rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=4096, tie_word_embeddings=False,
    hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
)
QUANT = DENSE | dict(hidden_size=64, intermediate_size=96)


def quantization(bits, group_size=32, **layers):
    """The config entry; a layer is named with `__` for `.`, and takes False or (bits, group_size)."""
    entry = {"group_size": group_size, "bits": bits, "mode": "affine"}
    for name, choice in layers.items():
        entry[name.replace("__", ".")] = choice and {"bits": choice[0], "group_size": choice[1]}
    return entry


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
MIXED = quantization(
    4, 32, lm_head=(6, 64), model__embed_tokens=(8, 32), model__layers__0__self_attn__v_proj=(8, 64),
    model__layers__0__mlp__down_proj=(8, 32), model__layers__1__self_attn__o_proj=False,
)
TINY_CHAT = QUANT | dict(
    vocab_size=259, bos_token_id=None, eos_token_id=[258, 256],
    quantization=quantization(4, 32, model__embed_tokens=(8, 32), lm_head=(8, 32)),
)
CASES = {
    "dense-tied": DENSE | dict(tie_word_embeddings=True),
    "dense-untied": DENSE,
    "dense-bf16": DENSE | dict(torch_dtype="bfloat16"),
    "quant4-tied": QUANT | dict(tie_word_embeddings=True, quantization=quantization(4)),
    "quant4-untied": QUANT | dict(intermediate_size=128, quantization=quantization(4, 64)),
    "quant-mixed": QUANT | dict(quantization=MIXED),
    "quant-bias": QUANT | dict(attention_bias=True, mlp_bias=True, quantization=quantization(4)),
    "quant2": QUANT | dict(quantization=quantization(2)),
    "quant3": QUANT | dict(quantization=quantization(3)),
    "quant5": QUANT | dict(quantization=quantization(5)),
    "quant6": QUANT | dict(quantization=quantization(6)),
    "quant8": QUANT | dict(quantization=quantization(8)),
    # mlx_lm.convert writes the entry under both keys; this folder has the second only.
    "quantization-config": QUANT | dict(quantization_config=quantization(4)),
    "rope-llama3": QUANT | dict(rope_scaling=LLAMA3, quantization=quantization(4)),
    "rope-linear": DENSE | dict(rope_scaling={"type": "linear", "factor": 2.0}),
    "rope-traditional": DENSE | dict(rope_traditional=True),
    "head-dim": DENSE | dict(head_dim=16),
    "bias": DENSE | dict(attention_bias=True, mlp_bias=True),
    "mistral": DENSE | dict(architectures=["MistralForCausalLM"], model_type="mistral", head_dim=16, sliding_window=None, rope_theta=1000000.0),
    "gqa": DENSE | dict(num_key_value_heads=1),
    "sharded": DENSE | dict(torch_dtype="bfloat16", num_hidden_layers=3),
    "tiny-chat": TINY_CHAT,
}


def random_model(config, seed):
    """A model of this configuration with uniform weights; no normal distribution, whose last bits would depend on the machine."""
    model = llama.Model(llama.ModelArgs.from_dict(config))
    mx.random.seed(seed)
    weights = []
    for name, shape in sorted((name, w.shape) for name, w in tree_flatten(model.parameters())):
        unit = mx.random.uniform(-1.0, 1.0, shape)
        if name.endswith("norm.weight"):
            weights.append((name, 1.0 + 0.5 * unit))
        elif name.endswith(".bias"):
            weights.append((name, 0.5 * unit))
        elif "embed_tokens" in name:  # small beside what the layers add, or a tied model only repeats its last token
            weights.append((name, 0.6 * unit))
        else:  # outputs 1.5 times the inputs' size, so that logits lie well apart
            weights.append((name, 1.5 * (3 / shape[-1]) ** 0.5 * unit))
    model.update(tree_unflatten(weights))
    return model


def favour_letters(model):
    """Makes the first hidden dimension a constant that no layer writes to: letters and spaces ask for it, all else is pushed away by it."""
    likely = mx.zeros((model.args.vocab_size,))
    likely[mx.array(list(b"abcdefghijklmnopqrstuvwxyz "))] = 6.0
    model.model.embed_tokens.weight[:, 0] = 2.0
    model.lm_head.weight[:, 0] = likely - 3.0
    model.model.norm.weight[0] = 1.0
    for layer in model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0


def quantize(model, entry):
    """Quantizes as the config entry says; what it does not name takes its defaults."""
    nn.quantize(
        model, group_size=entry["group_size"], bits=entry["bits"],
        class_predicate=lambda name, layer: entry.get(name, True) if hasattr(layer, "to_quantized") else False,
    )


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_weights(folder, weights, num_shards):
    """One `model.safetensors`, or shards by position with their index."""
    if num_shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
        return
    names = sorted(weights)
    size = -(-len(names) // num_shards)
    index = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = names[shard * size : (shard + 1) * size]
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in part}, metadata={"format": "mlx"})
        index |= dict.fromkeys(part, file)
    total = sum(w.nbytes for w in weights.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def write_tokenizer(folder):
    """A byte-level BPE without merges (id = byte), three special tokens and a ChatML template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # Byte-level BPE writes a byte that has no printable Latin-1 character as the next code point from 256 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(256)
    alphabet = [chr(byte if byte in printable else next(spare)) for byte in range(256)]
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: byte for byte, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "chat_template":
            "{%- for turn in messages -%}{{ '<|im_start|>' + turn['role'] + '\\n' + turn['content'] + '<|im_end|>\\n' }}{%- endfor -%}"
            "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}",
    })
    write_json(folder / "generation_config.json", {"eos_token_id": [258, 256], "pad_token_id": 256})


def load_as_float32(folder, config):
    # mlx-lm takes a bare `quantization_config` for another program's format, so the entry is handed to it under its own key.
    extra = {"quantization": config["quantization_config"]} if "quantization_config" in config else None
    model, _ = load_model(folder, model_config=extra)
    model.set_dtype(mx.float32)
    return model


def expected(model, tokens, tokens2, num_greedy):
    """The arrays of `expected.safetensors`, and the smallest gap between the two best logprobs on the greedy path."""
    cache = model.make_cache()
    model(tokens2[None, :16], cache=cache)
    steps = list(generate_step(tokens, model, mx.default_stream(mx.cpu), max_tokens=num_greedy))
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


def write_folder(folder, case, config, seed):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = random_model(config, seed)
    if case == "tiny-chat":
        favour_letters(model)
        write_tokenizer(folder)
    if config["torch_dtype"] == "bfloat16":
        model.set_dtype(mx.bfloat16)
    if entry := config.get("quantization") or config.get("quantization_config"):
        quantize(model, entry)
    write_json(folder / "config.json", config)
    write_weights(folder, dict(tree_flatten(model.parameters())), 2 if case == "sharded" else 1)


def make(case, config):
    folder = OUT / case
    # Over 400 steps the smallest gap is smaller; it still is a hundred times what another order of summation changes.
    num_greedy, num_distinct, min_gap = (400, 10, MIN_GAP / 10) if case == "tiny-chat" else (16, 8, MIN_GAP)
    for seed in itertools.count():
        write_folder(folder, case, config, seed)
        mx.random.seed(seed + 1_000_000)
        tokens = mx.random.randint(3, min(config["vocab_size"], 256), (72 if case == "rope-llama3" else 24,), mx.int32)
        tokens2 = mx.random.randint(3, min(config["vocab_size"], 256), (24,), mx.int32)
        if case == "tiny-chat":
            tokenizer = load_tokenizer(folder)
            tokens = mx.array(tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True), mx.int32)
        arrays, gap = expected(load_as_float32(folder, config), tokens, tokens2, num_greedy)
        greedy = arrays["greedy"].tolist()
        varied = len(set(greedy)) >= num_distinct and len(set(greedy[num_greedy // 2 :])) >= num_distinct // 2
        if gap > min_gap and varied and not {256, 257, 258} & set(greedy):
            break
    mx.save_safetensors(str(folder / "expected.safetensors"), arrays)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    assert num_bytes < 150_000, f"{case}: {num_bytes} bytes"
    print(f"{case}: seed {seed}, smallest gap {gap:.4f}, {len(set(greedy))} distinct greedy tokens, {num_bytes} bytes")
    if case == "tiny-chat":
        print(f"  {bytes(greedy)!r}")


def main():
    for package, wanted in ORACLE.items():
        assert version(package) == wanted, f"{package} {wanted} is needed, this is {version(package)}"
    mx.set_default_device(mx.cpu)
    mx.disable_compile()  # compiled kernels on the CPU need a C++ compiler at run time
    for case in sys.argv[1:] or CASES:
        make(case, CASES[case])


if __name__ == "__main__":
    main()
