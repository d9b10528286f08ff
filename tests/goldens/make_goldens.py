"""The goldens: tiny random checkpoints of every architecture, and what mlx-lm 0.32.2 on MLX 0.32.2 (CPU, float32) computes from them.

In a venv holding `mlx[cpu]==0.32.2` and `mlx-lm==0.32.2`:

    python tests/goldens/make_goldens.py [NAME]...

A NAME is a model (`llama/quant4-tied`), a family (`llama`), or one of what stands in files of its own beside this: `caches`, `convert`,
`embeddings`, `perplexity`, `prompts`, `sampling`, `templates`. Without a NAME it makes all of these. `starter` needs a folder too: see `starter.py`. A new family is one entry of FAMILIES.

No checkpoint is committed: `draw.py` draws it from a seed, and so does the Rust crate `tests/tiny-models`. A model has a folder with

    config.json            of an MLX / Hugging Face model folder
    weights.json           the seed, what to draw, and a digest of the drawn checkpoint
    expected.safetensors   tokens   i32 [T]          a random prompt (T is 24 unless the case says otherwise)
                           logits   f32 [T, vocab]   one forward pass over it without a cache
                           greedy   i32 [16]         its greedy continuation by `generate_step` (tiny-chat: [400])
                           tokens2  i32 [24]         another prompt, run through one cache as 16 tokens, then 8
                           logits2  f32 [8, vocab]   what the second of these two calls returns
                           long     i32 [300]        a longer prompt
                           last     f32 [4, vocab]   the last logits of its first 1, 5, 40 and 300 tokens
                           last_kv8 f32 [1, vocab]   of its first 40 with keys and values quantized to 8 bits, where mlx-lm can
                           mtp_logits f32 [23, vocab], mtp_further f32 [1, vocab]   of a head that predicts further tokens, behind each
                                                     two of tokens2, where there is one: see `mtp.py`

The oracle loads the drawn folder as any other, casts every floating-point parameter to float32 and keeps quantized weights quantized. Each case
takes the first seed with which no greedy choice is a near tie and the continuation is not one token over and over. On one machine two runs give
the same bytes; elsewhere the last bits of the logits differ: OpenBLAS's kernels for other processors moved them by up to 1e-5.

`llama/tiny-chat` is a model to chat with: ids 0–255 are the bytes, then come <|endoftext|>, <|im_start|>, <|im_end|> (`tokenizer/`). Its weights
favour lower-case letters and spaces, so that greedy answers are printable and go on without an end-of-sequence token. Its `tokens` are the
rendered chat [{"role": "user", "content": "Hello"}] with the generation prompt.
"""

import importlib
import itertools
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import mtp
import numpy as np
from draw import Tensor, digest, draw, integers, quantize, uniform
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache
from mlx_lm.utils import load_tokenizer
from mtp import HEAD, has_head, with_head
from oracle import GOLDENS, check_versions, load_float32, write_checkpoint, write_json

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
LETTERS = b"abcdefghijklmnopqrstuvwxyz "
LENGTHS = [1, 5, 40, 300]  # the last is past every window
DENSE_KEYS_ONLY = ["gemma2", "stablelm", "deepseek_v3", "glm4_moe_lite", "joyai_llm_flash", "kimi_k2", "kimi_k25", "kimi_vl"]  # attention of their own in mlx-lm
MIN_GAP = 0.01  # between the two best logprobs, at every greedy step


# ---------------------------------------------------------------- What a family's weights are


def like_inputs(shape, gain=1.5):
    """A matrix whose outputs are `gain` times its inputs' size, so that logits lie well apart."""
    bound = gain * (3 / shape[-1]) ** 0.5
    return -bound, bound


def usual(name, shape):
    """The bounds of a weight."""
    if name.endswith("norm.weight") or ".norms." in name:
        return 0.5, 1.5
    if name.endswith(".bias"):
        return -0.5, 0.5
    if "embed_tokens" in name:  # small beside what the layers add, or a tied model only repeats its last token
        return -0.6, 0.6
    return like_inputs(shape)


def gemmas(name, shape):
    name = name.removeprefix("language_model.")
    if name == "model.norm.weight":  # stored less one; tied logits are small without it
        return 2.5, 3.5
    if name.endswith("norm.weight"):
        return -0.5, 0.5
    if "embed_tokens" in name:  # the model multiplies by the root of its width: small beside what the layers add
        bound = 1.2 * shape[-1] ** -0.5
        return -bound, bound
    return like_inputs(shape)


def smaller_gemmas(name, shape):
    """Where attention changes little (it is capped, or the model wider), what a layer reads of the last token has to be smaller beside it."""
    low, high = gemmas(name, shape)
    if name.endswith("model.norm.weight"):
        return 9.0, 11.0
    return (low / 4, high / 4) if "embed_tokens" in name else (low, high)


def gemma4_bounds(name, shape):
    name = name.removeprefix("language_model.")
    if name == "model.norm.weight":  # tied logits are small without it
        return 3.5, 4.5
    if name.endswith("layer_scalar"):
        return 0.5, 1.0
    if name.endswith("router.scale"):  # divided by the root of the width: logits as far from each other as inputs
        return 6.0, 10.0
    if name.endswith(("per_expert_scale", "layernorm_1.weight", "layernorm_2.weight")):
        return 0.5, 1.5
    return gemmas(name, shape) if "embed_tokens" in name else usual(name, shape)


def qwen3_next(name, shape):
    if name.endswith("A_log"):
        return -1.0, 1.0
    if name.endswith("dt_bias"):  # states that fade within a few tokens beside states that last the whole prompt
        return -5.0, 1.0
    if name.endswith("conv1d.weight"):
        return -0.5, 0.5
    return usual(name, shape)


def short_conv(name, shape):
    """LFM2's convolution has no activation behind it: it is a sum of a few products."""
    return (-1.0, 1.0) if name.endswith("conv.weight") else usual(name, shape)


def short_conv_corrected(name, shape):
    return (0.0, 0.6) if name.endswith("expert_bias") else short_conv(name, shape)


def state_space(name, shape):
    if name.endswith("e_score_correction_bias"):
        return 0.0, 0.6
    if name.endswith(("dt_proj.weight", "dt_proj.bias")):  # of Jamba's short vectors
        return (-5.0, 1.0) if name.endswith("bias") else like_inputs(shape)
    if name.endswith((".D", "A_log")):
        return (0.5, 1.5) if name.endswith(".D") else (-1.0, 1.0)
    if name.endswith("dt_bias"):  # states that fade within a few tokens beside states that last the whole prompt
        return -5.0, 1.0
    if name.endswith(("conv1d.weight", "conv1d.bias")):
        return -0.5, 0.5
    if name.endswith("norm_f.weight"):
        return 0.5, 1.5
    return usual("embed_tokens" if "embeddings" in name else name, shape)


def corrected(name, shape):
    """What is added to sigmoids when experts are chosen: enough to change the choice, and not to make it. None becomes less than the zeros of
    experts in closed groups, which are all alike."""
    return (0.0, 0.6) if name.endswith("e_score_correction_bias") else usual(name, shape)


# ---------------------------------------------------------------- How a checkpoint is stored


def as_loaded(tensors):
    return tensors


def tied(tensors):
    """Without the matrix that mlx-lm makes for a model that has none."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head.")}


def older_and_tied(tensors):
    """With RoPE frequencies, as tools wrote them once, and an output matrix beside tied embeddings: nobody reads either."""
    unread = {"model.layers.0.self_attn.rotary_emb.inv_freq": Tensor((4,), 0, 0), "lm_head.weight": Tensor((8, 16), 0, 0)}
    return tensors | unread


def unstacked(tensors):
    """Each expert by itself, as Hugging Face stores them."""
    stored = {}
    for name, tensor in tensors.items():
        if ".switch_mlp." in name:
            experts = range(tensor.shape[0])
            stored |= {name.replace("switch_mlp", f"experts.{expert}"): tensor.with_shape(*tensor.shape[1:]) for expert in experts}
        else:
            stored[name] = tensor
    return stored


def with_further_layers(number):
    """Tensors of a layer that predicts further tokens, which nobody reads."""
    prefix = f"model.layers.{number}"
    unread = {f"{prefix}.eh_proj.weight": Tensor((8, 16), 0, 0), f"{prefix}.self_attn.q_a_proj.weight": Tensor((8, 16), 0, 0)}
    return lambda tensors: unstacked(tensors) | unread


def joined_heads(tensors):
    """The matrices of keys and of values as one, in place of one for each and head."""
    stored = {}
    for name, tensor in tensors.items():
        if name.endswith("embed_q.weight"):
            values = tensors[name.replace("embed_q", "unembed_out")]
            heads, rank, keys = tensor.shape
            stored[name.replace("embed_q", "kv_b_proj")] = values.with_shape(heads * (keys + values.shape[1]), rank)
        elif not name.endswith("unembed_out.weight"):
            stored[name] = tensor
    return stored


def deepseek_as_published(number):
    return lambda tensors: joined_heads(with_further_layers(number)(tensors))


def mixtral_names(tensors):
    """Each expert by itself, under the names of Mixtral's paper."""
    stored = {}
    for name, tensor in unstacked(tensors).items():
        for ours, theirs in [("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")]:
            name = name.replace(f".{ours}.", f".{theirs}.") if ".experts." in name else name
        stored[name] = tensor
    return stored


def mixtral_as_published(tensors):
    """With an output matrix that nobody reads."""
    return {"lm_head.weight": Tensor((8, 64), 0, 0)} | mixtral_names(tensors)


def qwen3_next_as_published(tensors):
    """Each expert by itself, norm weights less one, convolution weights turned, and tensors that predict further tokens, which nobody reads."""
    stored = {"mtp.norm.weight": Tensor((8,), 0, 0), "mtp.fc.weight": Tensor((8, 16), 0, 0)}
    for name, tensor in unstacked(tensors).items():
        if name.endswith("conv1d.weight"):
            stored[name] = tensor.with_shape(tensor.shape[0], tensor.shape[2], tensor.shape[1])
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            stored[name] = tensor.shifted(-1.0)
        else:
            stored[name] = tensor
    return stored


def qwen3_5_as_published(tensors):
    """As Qwen3-Next, but for the experts, which are two stacks with the gates before the rest; beside what sees images."""
    stored = {"mtp.norm.weight": Tensor((8,), 0, 0), "model.visual.patch_embed.proj.weight": Tensor((8, 16), 0, 0)}
    for name, tensor in tensors.items():
        name = name.removeprefix("language_model.").replace("model.", "model.language_model.", 1)
        if name.endswith("conv1d.weight"):
            tensor = tensor.with_shape(tensor.shape[0], tensor.shape[2], tensor.shape[1])
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            tensor = tensor.shifted(-1.0)
        elif name.endswith("switch_mlp.gate_proj.weight"):
            name = name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")
            tensor = tensor.with_shape(tensor.shape[0], 2 * tensor.shape[1], tensor.shape[2])
        elif name.endswith("switch_mlp.up_proj.weight"):
            continue
        elif name.endswith("switch_mlp.down_proj.weight"):
            name = name.replace("switch_mlp.down_proj.weight", "experts.down_proj")
        stored[name] = tensor
    return stored


def turned_convolutions(tensors):
    """Convolution weights as PyTorch stores them."""

    def turned(tensor):
        return tensor.with_shape(tensor.shape[0], tensor.shape[2], tensor.shape[1])

    return {name: turned(tensor) if name.endswith(("conv.weight", "conv1d.weight")) else tensor for name, tensor in tensors.items()}


def beside_images(tensors):
    """Tied, and with a tensor that sees images, which nobody reads."""
    text = {name: tensor for name, tensor in tensors.items() if "lm_head." not in name}
    return text | {"vision_tower.patch.weight": Tensor((8, 16), 0, 0), "multi_modal_projector.norm.weight": Tensor((8,), 0, 0)}


def beside(projector):
    """With tensors that see images, which nobody reads."""
    return lambda tensors: tensors | {f"{part}.weight": Tensor((8, 16), 0, 0) for part in ("vision_tower.patch", projector)}


def beside_images_as_published(tensors):
    """The names that newer checkpoints have."""
    stored = {"model.vision_tower.patch.weight": Tensor((8, 16), 0, 0)}
    for name, tensor in tensors.items():
        name = name.removeprefix("language_model.")
        stored[f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name] = tensor
    return stored


def gemma4_as_published(tensors):
    """The names of newer checkpoints, beside parts for images and sound, and what mlx-lm drops of layers that share keys and values."""
    unread = ["vision_tower.patch", "audio_tower.norm", "embed_vision.embedding_projection", "language_model.layers.2.self_attn.k_proj"]
    unread += ["language_model.layers.3.self_attn.v_proj", "language_model.layers.3.self_attn.k_norm"]
    stored = {f"model.{name}.weight": Tensor((8, 16), 0, 0) for name in unread}
    stored["model.language_model.layers.0.mlp.up_proj.input_max"] = Tensor((1,), 0, 0)
    return stored | {name.replace("language_model.model.", "model.language_model."): tensor for name, tensor in tensors.items()}


def gemma4_experts_as_published(tensors):
    """Gates and the rest of all experts as one tensor."""
    stored = {}
    for name, tensor in tensors.items():
        name = name.replace("language_model.model.", "model.language_model.")
        if name.endswith("switch_glu.up_proj.weight"):
            continue
        if name.endswith("switch_glu.gate_proj.weight"):
            name = name.replace("switch_glu.gate_proj.weight", "gate_up_proj")
            tensor = tensor.with_shape(tensor.shape[0], 2 * tensor.shape[1], tensor.shape[2])
        elif name.endswith("switch_glu.down_proj.weight"):
            name = name.replace("switch_glu.down_proj.weight", "down_proj")
        stored[name] = tensor
    return stored


def favouring_letters(tensors):
    """Makes the first hidden dimension a constant that no layer writes to: letters and spaces ask for it, all else is pushed away by it."""
    vocab = tensors["lm_head.weight"].shape[0]
    tensors["model.embed_tokens.weight"].patches = [[0, vocab, 0, 1, 2.0, 2.0]]
    likely = [[32, 33, 0, 1, 5.0, 5.0], [97, 123, 0, 1, 5.0, 5.0]]
    tensors["lm_head.weight"].patches = [[0, vocab, 0, 1, -5.0, -5.0], *likely]
    tensors["model.norm.weight"].patches = [[0, 1, 0, 1, 1.0, 1.0]]
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.patches = [[0, 1, 0, tensor.shape[1], 0.0, 0.0]]
    return tensors


# ---------------------------------------------------------------- The families and their cases


@dataclass
class Case:
    config: dict
    stored: object = as_loaded  # the tensors as mlx-lm has them, {name: Tensor}, to the tensors of the file
    num_tokens: int = 24
    num_greedy: int = 16
    num_distinct: int = 8  # greedy tokens at least
    min_gap: float = MIN_GAP
    alphabet: bytes | None = None  # what greedy tokens are among
    num_shards: int = 1
    prompt: str | None = None  # a chat's message in place of random tokens
    generation_config: dict | None = None


@dataclass
class Family:
    module: str  # of mlx_lm.models
    bounds: object  # of a weight, by its name and shape
    cases: dict


def quantization(bits, group_size=32, mode="affine", **layers):
    """The config entry; a layer is named with `__` for `.`, and takes False or (bits, group_size) or these with a mode."""
    entry = {"group_size": group_size, "bits": bits, "mode": mode}
    for name, choice in layers.items():
        entry[name.replace("__", ".")] = choice and dict(zip(("bits", "group_size", "mode"), choice, strict=False))
    return entry


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def llama_of_long_groups(quant):
    """Groups of 128, one or two to a row; scales and biases in each dtype of half the length."""
    small = quant | dict(hidden_size=128, intermediate_size=256, vocab_size=24)
    return {
        "quant4-group128": Case(small | dict(quantization=quantization(4, 128), torch_dtype="float16"), num_tokens=8),
        "quant8-group128": Case(small | dict(quantization=quantization(8, 128), torch_dtype="bfloat16"), num_tokens=8),
    }


def llama_of_small_floats(quant):
    """Few tokens: what is new is how matrices are stored."""
    small = quant | dict(vocab_size=24)
    mixed = quantization(
        4, 32, "mxfp4", lm_head=(8, 32, "mxfp8"), model__embed_tokens=(4, 16, "nvfp4"), model__layers__0__self_attn__k_proj=(4, 32),
        model__layers__0__self_attn__v_proj=(4, 16, "nvfp4"), model__layers__0__mlp__gate_proj=(8, 32, "mxfp8"),
        model__layers__0__mlp__up_proj=(8, 32), model__layers__0__mlp__down_proj=False,
    )  # fmt: skip
    formats = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
    entries = {mode: quantization(*sizes, mode) for mode, sizes in formats.items()} | {"mxfp4-mixed": mixed}
    return {name: Case(small | dict(quantization=entry), num_tokens=8) for name, entry in entries.items()}


def llama():
    dense = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=4096, tie_word_embeddings=False,
        hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    quant = dense | dict(hidden_size=64, intermediate_size=96)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    mixed = quantization(
        4, 32, lm_head=(6, 64), model__embed_tokens=(8, 32), model__layers__0__self_attn__v_proj=(8, 64),
        model__layers__0__mlp__down_proj=(8, 32), model__layers__1__self_attn__o_proj=False,
    )  # fmt: skip
    tiny_chat = quant | dict(
        vocab_size=259, bos_token_id=None, eos_token_id=[258, 256], quantization=quantization(4, 32, model__embed_tokens=(8, 32), lm_head=(8, 32))
    )
    mistral = dict(architectures=["MistralForCausalLM"], model_type="mistral", head_dim=16, sliding_window=None, rope_theta=1000000.0)
    return Family("llama", usual, {
        "dense-tied": Case(dense | dict(tie_word_embeddings=True)),
        "dense-untied": Case(dense),
        "dense-bf16": Case(dense | dict(torch_dtype="bfloat16")),
        "dense-f16": Case(dense | dict(torch_dtype="float16")),
        "quant4-tied": Case(quant | dict(tie_word_embeddings=True, quantization=quantization(4))),
        "quant4-untied": Case(quant | dict(intermediate_size=128, quantization=quantization(4, 64))),
        "quant-mixed": Case(quant | dict(quantization=mixed)),
        "quant-bias": Case(quant | dict(attention_bias=True, mlp_bias=True, quantization=quantization(4))),
        **{f"quant{bits}": Case(quant | dict(quantization=quantization(bits))) for bits in (2, 3, 5, 6, 8)},
        # mlx_lm.convert writes the entry under both keys; this folder has the second only.
        "quantization-config": Case(quant | dict(quantization_config=quantization(4))),
        **llama_of_long_groups(quant),
        **llama_of_small_floats(quant),
        "rope-llama3": Case(quant | dict(rope_scaling=llama3, quantization=quantization(4)), num_tokens=72),
        "rope-linear": Case(dense | dict(rope_scaling={"type": "linear", "factor": 2.0})),
        "rope-traditional": Case(dense | dict(rope_traditional=True)),
        "head-dim": Case(dense | dict(head_dim=16)),
        "bias": Case(dense | dict(attention_bias=True, mlp_bias=True)),
        "mistral": Case(dense | mistral),
        "gqa": Case(dense | dict(num_key_value_heads=1)),
        "sharded": Case(dense | dict(torch_dtype="bfloat16", num_hidden_layers=3), num_shards=2),
        # Over 400 steps the smallest gap is smaller; it still is a hundred times what another order of summation changes.
        "tiny-chat": Case(
            tiny_chat, favouring_letters, num_greedy=400, num_distinct=14, min_gap=MIN_GAP / 10, alphabet=LETTERS, prompt="Hello",
            generation_config={"eos_token_id": [258, 256], "pad_token_id": 256},
        ),
        **llama_with_windows(),
    })  # fmt: skip


def gemma3_text_family():
    """Every prompt is longer than twice the sliding window."""
    dense = dict(
        architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_size=32, intermediate_size=40, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=128, rms_norm_eps=1e-6, rope_theta=1000000.0,
        rope_local_base_freq=10000.0, query_pre_attn_scalar=12, sliding_window=8, sliding_window_pattern=2, max_position_embeddings=4096,
        rope_scaling=None, hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=None, final_logit_softcapping=None,
        torch_dtype="float32", bos_token_id=2, eos_token_id=1,
    )  # fmt: skip
    quant = dense | dict(hidden_size=64, intermediate_size=96, head_dim=16)
    mixed = quantization(4, model__embed_tokens=(8, 64), model__layers__0__mlp__up_proj=(8, 32), model__layers__1__self_attn__k_proj=False)
    # As Gemma 3 270M's config, which lists the layers; the reference takes its default pattern of 6.
    layer_types = without(dense, "sliding_window_pattern") | dict(
        num_hidden_layers=6, layer_types=["sliding_attention"] * 5 + ["full_attention"], sliding_window=10, torch_dtype="bfloat16"
    )
    long_prompt = dense | dict(sliding_window=5, rope_scaling={"rope_type": "linear", "factor": 8.0})
    return Family("gemma3_text", gemmas, {
        "dense": Case(dense, tied),
        "dense-bf16": Case(dense | dict(torch_dtype="bfloat16"), tied),
        "pattern3": Case(dense | dict(num_hidden_layers=5, sliding_window_pattern=3, num_key_value_heads=1), tied),
        "layer-types": Case(layer_types, tied),
        "long-prompt": Case(long_prompt, tied, num_tokens=72),
        "untied": Case(dense),
        "quant4": Case(quant | dict(quantization=quantization(4)), tied),
        "quant-mixed": Case(quant | dict(quantization=mixed), tied),
    })  # fmt: skip


def qwen2():
    dense = dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=4096, tie_word_embeddings=False,
        use_sliding_window=False, sliding_window=4096, max_window_layers=2, hidden_act="silu", torch_dtype="float32", bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    # Keys that a config may leave out, and what the reference takes then: tied embeddings and a base of a million.
    defaults = without(dense, "rope_theta", "max_position_embeddings", "tie_word_embeddings", "use_sliding_window", "sliding_window")
    quant = dense | dict(hidden_size=64, intermediate_size=96)
    mixed = quantization(
        4, model__embed_tokens=(8, 64), model__layers__0__self_attn__k_proj=(8, 32), model__layers__1__self_attn__v_proj=False
    )
    return Family("qwen2", usual, {
        "dense": Case(dense),
        "dense-bf16": Case(dense | dict(torch_dtype="bfloat16")),
        "tied": Case(dense | dict(tie_word_embeddings=True), older_and_tied),
        "defaults": Case(defaults, num_tokens=72),
        "gqa": Case(dense | dict(num_key_value_heads=1)),
        "rope-linear": Case(dense | dict(rope_theta=50000.0, rope_scaling={"type": "linear", "factor": 2.0})),
        "rope-traditional": Case(dense | dict(rope_traditional=True)),
        "quant4": Case(quant | dict(quantization=quantization(4))),
        "quant4-tied": Case(quant | dict(tie_word_embeddings=True, quantization=quantization(4))),
        "quant-mixed": Case(quant | dict(quantization=mixed)),
    })  # fmt: skip


def qwen3():
    dense = dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=128, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
        max_position_embeddings=4096, tie_word_embeddings=False, hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    # Configs of newer tools say it here and not under rope_theta.
    nested = dict(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0}, torch_dtype="bfloat16")
    quant4 = dict(hidden_size=64, intermediate_size=96, tie_word_embeddings=True, quantization=quantization(4))
    return Family("qwen3", usual, {
        "dense": Case(dense),
        "rope-parameters": Case(without(dense, "rope_theta", "rope_scaling") | nested),
        "quant4-tied": Case(dense | quant4),
    })  # fmt: skip


def qwen3_moe():
    """A prompt of 24 tokens makes 72 pairs of a token and an expert, enough for the reference to sort them; steps of 16 or fewer stay unsorted."""
    dense = dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=16, vocab_size=128, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
        max_position_embeddings=4096, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, decoder_sparse_step=1, mlp_only_layers=[],
        norm_topk_prob=True, tie_word_embeddings=False, hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    quant = dense | dict(hidden_size=64, head_dim=32, moe_intermediate_size=32)
    # Conversions keep routers at 8 bits.
    routers = dict(model__layers__0__mlp__gate=(8, 64), model__layers__1__mlp__gate=(8, 64))
    # Gate and up of different kinds cannot be one product.
    mixed = quantization(4, model__layers__0__mlp__switch_mlp__up_proj=(8, 32), model__layers__1__mlp__gate=False)
    return Family("qwen3_moe", usual, {
        "dense": Case(dense),
        "plain-scores": Case(dense | dict(norm_topk_prob=False, tie_word_embeddings=True)),
        "mlp-only": Case(dense | dict(mlp_only_layers=[0])),
        "sparse-step": Case(dense | dict(num_hidden_layers=3, decoder_sparse_step=2, torch_dtype="bfloat16")),
        "unstacked": Case(dense | dict(torch_dtype="bfloat16"), unstacked),
        "quant4": Case(quant | dict(quantization=quantization(4, **routers))),
        "quant-mixed": Case(quant | dict(quantization=mixed)),
    })  # fmt: skip


def qwen3_next_family():
    """In `dense` and `quant4` the prompt of 150 tokens is more than two chunks of the gated delta rule, and its experts are sorted."""
    dense = dict(
        architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=32, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, partial_rotary_factor=0.25, rope_theta=10000.0, rope_scaling=None,
        full_attention_interval=2, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=12,
        linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=12,
        shared_expert_intermediate_size=16, norm_topk_prob=True, rms_norm_eps=1e-6, vocab_size=80, max_position_embeddings=4096,
        tie_word_embeddings=False, attention_bias=False, hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    # mlx_lm.convert keeps what chooses experts at eight bits.
    gates = {f"model__layers__{layer}__mlp__{gate}": (8, 64) for layer in range(2) for gate in ("gate", "shared_expert_gate")}
    quant = dense | dict(
        hidden_size=64, intermediate_size=64, linear_value_head_dim=8, moe_intermediate_size=32, shared_expert_intermediate_size=32,
        quantization=quantization(4, 32, **gates),
    )  # fmt: skip
    # The default interval: three layers of the gated delta rule, then one that attends.
    interval = without(dense, "full_attention_interval") | dict(num_hidden_layers=4, num_experts=3)
    return Family("qwen3_next", qwen3_next, {
        "dense": Case(dense, num_tokens=150),
        "tied": Case(dense | dict(tie_word_embeddings=True, attention_bias=True)),
        "equal-heads": Case(dense | dict(linear_num_key_heads=4, num_key_value_heads=2, linear_conv_kernel_dim=3)),
        "interval": Case(interval | dict(norm_topk_prob=False, torch_dtype="bfloat16")),
        "some-experts": Case(dense | dict(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], torch_dtype="bfloat16")),
        "hugging-face": Case(dense, qwen3_next_as_published),
        "quant4": Case(quant, num_tokens=150),
        "quant4-tied": Case(quant | dict(tie_word_embeddings=True)),
        "head": Case(dense, with_head(as_loaded)),
        "head-published": Case(dense, with_head(qwen3_next_as_published, less_one=True)),
        "head-quant4": Case(quant, with_head(as_loaded)),
    })  # fmt: skip


def qwen3_5(model_type, **experts):
    """Short prompts and few tokens: Qwen3-Next's cases compare the same layers at length. `published` has the keys that may be left out."""
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    text = dict(
        model_type=f"{model_type}_text", hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, full_attention_interval=2, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=4,
        linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4, rms_norm_eps=1e-6, vocab_size=32,
        max_position_embeddings=4096, rope_parameters=rope, attn_output_gate=True, **experts,
    )  # fmt: skip
    whole = dict(model_type=model_type, text_config=text, torch_dtype="float32", bos_token_id=1, eos_token_id=2)
    tied_text = text | dict(tie_word_embeddings=True, linear_num_key_heads=4)
    gates = ("mlp__gate", "mlp__shared_expert_gate") if experts else ()
    kept = {f"language_model__model__layers__{layer}__{gate}": (8, 64) for layer in range(2) for gate in gates}
    quant = dict(text_config=tied_text, torch_dtype="bfloat16", quantization=quantization(4, **kept))
    left_out = ["rope_parameters", "layer_types", "attn_output_gate"] + (["intermediate_size"] if experts else [])
    published = without(text, *left_out) | dict(attention_bias=True)
    return Family(model_type, qwen3_next, {
        "dense": Case(whole, num_tokens=4),
        "quant4": Case(whole | quant, num_tokens=4),
        "published": Case(whole | dict(text_config=published), qwen3_5_as_published, num_tokens=4),
        "head": Case(whole, with_head(as_loaded), num_tokens=4),
        "head-published": Case(whole | dict(text_config=published), with_head(qwen3_5_as_published, less_one=True), num_tokens=4),
    })  # fmt: skip


def qwen3_5_moe():
    return qwen3_5(
        "qwen3_5_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
    )  # fmt: skip


def small(model_type, **config):
    """A config with the keys that most families have. Its heads are long enough for quantized keys."""
    usual = dict(
        model_type=model_type, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=96, rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=4096, torch_dtype="float32", bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return usual | config


def cases(dense, stored=as_loaded, **others):
    """The config as it is, in bfloat16 with four bits, and others."""
    quant = dense | dict(quantization=quantization(4), torch_dtype="bfloat16")
    return {"dense": Case(dense, stored), "quant4": Case(quant, stored)} | {name.replace("_", "-"): case for name, case in others.items()}


def windows(num_layers, every):
    return ["full_attention" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(num_layers)]


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def llama_with_windows():
    config = small("mistral", head_dim=32, num_hidden_layers=3, sliding_window=8, layer_types=windows(3, 2), tie_word_embeddings=False)
    return {
        "mistral-windows": Case(config),
        "rope-yarn": Case(small("llama", rope_scaling=YARN), num_tokens=72),
        "rope-yarn-mscale": Case(small("llama", rope_scaling=YARN | {"mscale": 1.5, "mscale_all_dim": 0.5, "beta_fast": 8.0})),
        "rope-longrope": Case(small("llama", rope_scaling={
            "rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0] * 16,
            "long_factor": [1.0 + 0.5 * pair for pair in range(16)],
        })),
        "rope-dynamic": Case(small("llama", rope_scaling={"type": "dynamic", "factor": 4.0})),
        "iquestcoder": Case(small("iquestcoder", tie_word_embeddings=False)),
        "xverse": Case(small("xverse", tie_word_embeddings=False)),
    }  # fmt: skip


def smollm3():
    dense = small("smollm3", num_hidden_layers=4, tie_word_embeddings=True)
    named = dense | dict(num_hidden_layers=2, no_rope_layers=[0, 1], tie_word_embeddings=False)
    return Family("smollm3", usual, cases(dense, no_rope_layers=Case(named)))


def seed_oss():
    dense = small("seed_oss", head_dim=32, attention_bias=True, tie_word_embeddings=False)
    out = dense | dict(attention_bias=False, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True)
    return Family("seed_oss", usual, cases(dense, out_bias=Case(out | dict(rope_scaling={"rope_type": "default"}))))


def helium():
    dense = small("helium", head_dim=32, attention_bias=False, mlp_bias=False, tie_word_embeddings=False)
    bias = dense | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    return Family("helium", usual, cases(dense, bias=Case(bias)))


def mimo():
    dense = small("mimo", tie_word_embeddings=False)
    published = dense | dict(num_nextn_predict_layers=1, rope_theta=640000, tie_word_embeddings=True)
    return Family("mimo", usual, cases(dense, published=Case(published, with_mtp_layers)))


def with_mtp_layers(tensors):
    """Tensors of a layer that predicts further tokens, which nobody reads."""
    return tensors | {"model.mtp_layers.0.input_proj.weight": Tensor((8, 16), 0, 0)}


def minicpm():
    dense = small("minicpm", dim_model_base=48, scale_emb=2, scale_depth=1.4, tie_word_embeddings=False)
    return Family("minicpm", usual, cases(dense, without_output=Case(dense, tied)))


def ernie4_5():
    dense = small("ernie4_5", head_dim=32, use_bias=False, tie_word_embeddings=True)
    return Family("ernie4_5", usual, cases(dense, bias=Case(dense | dict(use_bias=True, tie_word_embeddings=False))))


def internlm3():
    dense = small("internlm3", qkv_bias=False, bias=False)
    dynamic = dense | dict(qkv_bias=True, bias=True, rope_scaling={"factor": 6.0, "rope_type": "dynamic"}, tie_word_embeddings=True)
    return Family("internlm3", usual, cases(dense, bias=Case(dynamic)))


def granite():
    dense = small(
        "granite", attention_multiplier=0.125, embedding_multiplier=0.8, residual_multiplier=1.25, logits_scaling=1.25, attention_bias=False,
        mlp_bias=False, tie_word_embeddings=True,
    )  # fmt: skip
    # As mlx-lm converts it: what is added to the residual stream keeps eight bits.
    added = {f"model__layers__{layer}__{name}": (8, 32) for layer in range(2) for name in ("self_attn__o_proj", "mlp__down_proj")}
    mixed = dense | dict(quantization=quantization(4, **added), attention_bias=True, mlp_bias=True)
    return Family("granite", usual, cases(dense, untied=Case(dense | dict(tie_word_embeddings=False)), quant_mixed=Case(mixed)))


def gemma():
    dense = small("gemma", head_dim=32, hidden_act="gelu_pytorch_tanh")
    return Family("gemma", gemmas, cases(dense))


def gemma2():
    """Caps that are reached."""
    dense = small(
        "gemma2", head_dim=32, num_attention_heads=4, num_key_value_heads=2, query_pre_attn_scalar=24, attn_logit_softcapping=4.0,
        final_logit_softcapping=10.0, hidden_activation="gelu_pytorch_tanh",
    )  # fmt: skip
    defaults = without(dense, "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "rope_theta")
    return Family("gemma2", smaller_gemmas, cases(dense, defaults=Case(defaults)))


def phi3():
    dense = small("phi3", tie_word_embeddings=False, rope_scaling=None)
    factors = dict(short_factor=[1.0] * 12, long_factor=[1.0 + 0.25 * pair for pair in range(12)])
    long = dict(partial_rotary_factor=0.75, original_max_position_embeddings=64)
    return Family("phi3", usual, cases(
        dense,
        longrope=Case(dense | long | dict(rope_scaling={"type": "longrope", **factors}, tie_word_embeddings=True)),
        su_short=Case(dense | long | dict(rope_scaling={"type": "su", **factors}, max_position_embeddings=64)),
        linear=Case(dense | dict(rope_scaling={"type": "linear", "long_factor": [], "factor": 2.0}, partial_rotary_factor=0.5)),
    ))  # fmt: skip


def glm():
    dense = small("glm", head_dim=32, attention_bias=True, tie_word_embeddings=False)
    return Family("glm", usual, cases(dense, tied=Case(dense | dict(attention_bias=False, tie_word_embeddings=True), older_and_tied)))


def glm4():
    dense = small("glm4", head_dim=32, attention_bias=False, partial_rotary_factor=0.5)
    return Family("glm4", usual, cases(dense, bias=Case(dense | dict(attention_bias=True, rope_traditional=False))))


def olmo2():
    dense = small("olmo2", num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=False)
    return Family("olmo2", usual, cases(dense, bias=Case(dense | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True))))


def olmo3():
    dense = small("olmo3", num_hidden_layers=4, sliding_window=8, head_dim=32, rope_scaling=YARN | {"attention_factor": 1.0})
    types = dense | dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], attention_bias=True, tie_word_embeddings=True)
    return Family("olmo3", usual, cases(dense, layer_types=Case(types)))


def exaone4():
    dense = small("exaone4", num_hidden_layers=3, head_dim=32, sliding_window=8, sliding_window_pattern="LG", rope_scaling=LLAMA3,
                  tie_word_embeddings=False)  # fmt: skip
    full = dense | dict(num_hidden_layers=2, sliding_window=None, sliding_window_pattern=None, tie_word_embeddings=True)
    return Family("exaone4", usual, cases(dense, full=Case(full)))


def starcoder2():
    dense = small("starcoder2", norm_epsilon=1e-5, use_bias=True, tie_word_embeddings=True)
    return Family("starcoder2", usual, cases(without(dense, "rms_norm_eps"), untied=Case(dense | dict(tie_word_embeddings=False))))


def stablelm():
    dense = small("stablelm", layer_norm_eps=1e-5, use_qkv_bias=True, partial_rotary_factor=0.25)
    parallel = dense | dict(use_parallel_residual=True, qk_layernorm=True, use_qkv_bias=False, num_attention_heads=4, num_key_value_heads=2)
    return Family("stablelm", usual, cases(dense, parallel=Case(parallel), parallel_quant=Case(parallel | dict(quantization=quantization(4)))))


def cohere():
    dense = small("cohere", layer_norm_eps=1e-5, logit_scale=1.0)
    normed = dense | dict(use_qk_norm=True, layer_norm_bias=True, attention_bias=True, num_attention_heads=4, num_key_value_heads=2)
    return Family("cohere", usual, cases(dense, normed=Case(normed), normed_quant=Case(normed | dict(quantization=quantization(4)))))


def cohere2():
    dense = small("cohere2", layer_norm_eps=1e-5, logit_scale=0.75, head_dim=32, num_hidden_layers=3, sliding_window=8, sliding_window_pattern=2)
    return Family("cohere2", usual, cases(dense, bias=Case(dense | dict(attention_bias=True, layer_norm_bias=True, num_hidden_layers=2))))


def gemma3():
    text = small("gemma3_text", head_dim=32, num_hidden_layers=3, sliding_window=8, sliding_window_pattern=2, query_pre_attn_scalar=12)
    layers = dict(num_attention_heads=2, num_key_value_heads=1)
    dense = dict(
        architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", vocab_size=96, torch_dtype="float32", eos_token_id=[1, 2],
        text_config=without(text, "vocab_size", "torch_dtype") | layers, vision_config=dict(model_type="siglip_vision_model", hidden_size=8),
    )  # fmt: skip
    mixed = quantization(4, language_model__model__embed_tokens=(8, 32), language_model__model__layers__0__mlp__up_proj=False)
    # The heads of Gemma 3 4B, which its config leaves out.
    usual_heads = dense | dict(text_config=without(dense["text_config"], *layers) | dict(num_hidden_layers=2, head_dim=8))
    return Family("gemma3", smaller_gemmas, {
        "dense": Case(dense, beside_images),
        "quant-mixed": Case(dense | dict(quantization=mixed, torch_dtype="bfloat16"), beside_images),
        "usual-heads": Case(usual_heads, beside_images),
    })  # fmt: skip


# Queries of Ministral grow after 16 tokens.
MINISTRAL_ROPE = YARN | dict(rope_theta=10000.0, llama_4_scaling_beta=0.5, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)


def ministral3():
    dense = without(small("ministral3", head_dim=32), "rope_theta", "tie_word_embeddings") | dict(rope_parameters=MINISTRAL_ROPE)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    windows = dict(num_hidden_layers=3, layer_types=kinds, sliding_window=10, tie_word_embeddings=False)
    return Family("ministral3", usual, cases(dense, windows=Case(dense | windows)))


def mistral3():
    text = without(small("mistral", head_dim=32), "torch_dtype")
    grows = without(text, "rope_theta") | dict(model_type="ministral3", rope_parameters=MINISTRAL_ROPE, tie_word_embeddings=True)
    whole = dict(
        architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", torch_dtype="float32", text_config=text,
        vision_config=dict(model_type="pixtral", hidden_size=8),
    )  # fmt: skip
    quant4 = dict(text_config=grows, quantization=quantization(4), torch_dtype="bfloat16")
    return Family("mistral3", usual, {
        "dense": Case(whole, beside_images_as_published),
        "ministral": Case(whole | dict(text_config=grows), beside_images),
        "ministral-quant4": Case(whole | quant4, beside_images),
    })  # fmt: skip


def with_experts(model_type, **config):
    """A small config, and its cases after a prompt of four tokens: lists of experts are long enough."""
    dense = small(model_type, intermediate_size=32, num_experts_per_tok=2, **(dict(vocab_size=20) | config))

    def cases_of(**others):
        quant = dense | dict(quantization=quantization(4), torch_dtype="bfloat16")
        found = {"dense": Case(dense), "quant4": Case(quant)} | others
        return {name.replace("_", "-"): replace(case, num_tokens=4) for name, case in found.items()}

    return dense, cases_of


def ernie4_5_moe_as_published(tensors):
    """Each expert by itself, a correction of scores (the reference drops it, so it is none), and a part that predicts further tokens."""
    stored = unstacked(tensors) | {"model.mtp_block.0.norm.weight": Tensor((8,), 0, 0), "model.mtp_linear_proj.0.weight": Tensor((8, 16), 0, 0)}
    bias = {f"model.layers.{layer}.mlp.moe_statics.e_score_correction_bias": Tensor((1, 3), 0, 0) for layer in (1, 2)}
    return stored | bias


def ernie4_5_moe():
    """The first layer has no experts."""
    moe = dict(
        head_dim=32, use_bias=False, tie_word_embeddings=True, moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=2,
        moe_layer_start_index=1,
    )  # fmt: skip
    dense, cases_of = with_experts("ernie4_5_moe", **moe)
    dense = without(dense, "num_experts_per_tok")
    published = dense | dict(
        num_hidden_layers=3, moe_num_experts=3, moe_gate_act="sigmoid", moe_layer_start_index=[1, 2], moe_layer_end_index=[2, 2],
        moe_num_shared_experts=1, tie_word_embeddings=False, torch_dtype="bfloat16",
    )  # fmt: skip
    bias = without(dense, "moe_layer_start_index", "moe_intermediate_size") | dict(moe_layer_interval=2, use_bias=True)
    return Family("ernie4_5_moe", usual, cases_of(published=Case(published, ernie4_5_moe_as_published), bias=Case(bias)))


def gpt_oss_as_published(tensors):
    """Experts as blocks of 4 bits, with rows of gates and of the rest by turns."""
    stored = {}
    for name, tensor in tensors.items():
        if ".experts." in name:
            path, _, part = name.rpartition(".")
            if path.endswith("up_proj"):
                continue
            if path.endswith("gate_proj"):
                path = path.replace("gate_proj", "gate_up_proj")
                tensor = tensor.with_shape(tensor.shape[0], 2 * tensor.shape[1], *tensor.shape[2:])
            name = f"{path}_{part.replace('weight', 'blocks')}"
            if part == "weight":
                first = [[0, tensor.shape[1], 0, 32, tensor.low / 3, tensor.high / 3]]
                tensor = replace(tensor, bits=4, group_size=32, mode="mxfp4", patches=first)
        stored[name] = tensor
    return stored


def gpt_oss():
    """As published: packed experts, and the modules that are not."""
    dense, cases_of = with_experts(
        "gpt_oss", num_local_experts=4, head_dim=32, sliding_window=8, layer_types=windows(2, 2), rope_theta=150000.0,
        rope_scaling=YARN | {"truncate": False}, swiglu_limit=7.0,
    )  # fmt: skip
    routers = {f"model__layers__{layer}__mlp__router": (8, 64, "affine") for layer in range(2)}
    small_floats = dense | dict(quantization=quantization(4, 32, "mxfp4", **routers), torch_dtype="bfloat16")
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    published = without(dense, "layer_types", "rms_norm_eps", "rope_theta") | dict(
        num_local_experts=3, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": left}, torch_dtype="bfloat16"
    )
    # Chats are tried with it too.
    letters = dense | dict(vocab_size=128)
    return Family("gpt_oss", usual, cases_of(
        dense=Case(letters), mxfp4=Case(small_floats), published=Case(published, gpt_oss_as_published),
    ))  # fmt: skip


def granitemoe_as_published(tensors):
    """Gates and the rest as one stack, and an output matrix beside tied embeddings."""
    stored = {"lm_head.weight": Tensor((8, 64), 0, 0)}
    for name, tensor in tensors.items():
        if name.endswith("switch_mlp.gate_proj.weight"):
            tensor = tensor.with_shape(tensor.shape[0], 2 * tensor.shape[1], tensor.shape[2])
        elif name.endswith("switch_mlp.up_proj.weight"):
            continue
        name = name.replace("switch_mlp.gate_proj", "input_linear").replace("switch_mlp.down_proj", "output_linear")
        stored[name] = tensor
    return stored


def granitemoe():
    dense, cases_of = with_experts(
        "granitemoe", num_local_experts=4, attention_multiplier=0.125, embedding_multiplier=0.8, residual_multiplier=1.25, logits_scaling=1.25,
        attention_bias=False, tie_word_embeddings=False,
    )  # fmt: skip
    published = dense | dict(num_local_experts=3, attention_bias=True, tie_word_embeddings=True, torch_dtype="bfloat16")
    return Family("granitemoe", usual, cases_of(published=Case(published, granitemoe_as_published)))


def llama4_as_published(tensors):
    """Experts as two stacks, turned, with the gates before the rest; beside what sees images."""
    stored = {}
    beside = {"vision_model.patch_embedding.weight": Tensor((8, 16), 0, 0), "multi_modal_projector.linear_1.weight": Tensor((8, 8), 0, 0)}
    for name, tensor in (tensors | beside).items():
        if ".experts." in name:
            if name.endswith("up_proj.weight"):
                continue
            experts, outputs, inputs = tensor.shape
            if name.endswith("gate_proj.weight"):
                name, outputs = name.replace("gate_proj", "gate_up_proj"), 2 * outputs
            name, tensor = name.removesuffix(".weight"), tensor.with_shape(experts, inputs, outputs)
        stored[name] = tensor
    return stored


def llama4():
    """Every prompt is longer than two chunks, and queries grow within them."""
    text = without(small("llama4_text", hidden_size=64, intermediate_size=32, vocab_size=20), "torch_dtype", "bos_token_id", "eos_token_id") | dict(
        attention_bias=False, attention_chunk_size=10, head_dim=32, interleave_moe_layer_step=2, intermediate_size_mlp=64, num_hidden_layers=4,
        num_local_experts=4, num_experts_per_tok=1, rope_scaling=LLAMA3, use_qk_norm=True, floor_scale=16, attn_scale=0.5,
    )  # fmt: skip
    whole = dict(
        architectures=["Llama4ForConditionalGeneration"], model_type="llama4", torch_dtype="float32", text_config=text,
        vision_config=dict(model_type="llama4_vision_model", hidden_size=8), eos_token_id=2,
    )  # fmt: skip
    published = text | dict(
        interleave_moe_layer_step=1, num_local_experts=2, use_qk_norm=False, attention_bias=True, attn_temperature_tuning=False, rope_scaling=None,
    )  # fmt: skip
    quant4 = whole | dict(quantization=quantization(4), torch_dtype="bfloat16")
    return Family("llama4", usual, {
        "dense": Case(whole),
        "quant4": Case(quant4),
        "published": Case(whole | dict(text_config=published, torch_dtype="bfloat16"), llama4_as_published, num_tokens=4),
    })  # fmt: skip


def llama4_text():
    dense = small(
        "llama4_text", head_dim=32, intermediate_size_mlp=96, num_hidden_layers=3, no_rope_layers=[1, 0, 1], use_qk_norm=True,
        tie_word_embeddings=True, attention_chunk_size=4096, vocab_size=48,
    )  # fmt: skip
    # The reference multiplies with the embeddings as they are stored.
    quant4 = dense | dict(quantization=quantization(4, model__embed_tokens=False), torch_dtype="bfloat16")
    untied = dense | dict(tie_word_embeddings=False, quantization=quantization(4, output=(8, 64)), torch_dtype="bfloat16")
    return Family("llama4_text", usual, {"dense": Case(dense), "quant4": Case(quant4), "untied": Case(untied)})


def mixtral():
    dense, cases_of = with_experts("mixtral", num_local_experts=4)
    published = without(dense, "rms_norm_eps", "rope_theta", "num_experts_per_tok") | dict(
        num_local_experts=3, tie_word_embeddings=True, torch_dtype="bfloat16"
    )
    return Family("mixtral", usual, cases_of(published=Case(published, mixtral_as_published)))


def olmoe():
    dense, cases_of = with_experts("olmoe", num_experts=4, tie_word_embeddings=False)
    other = dense | dict(num_experts=3, norm_topk_prob=True, tie_word_embeddings=True, torch_dtype="bfloat16")
    return Family("olmoe", usual, cases_of(unstacked=Case(other, unstacked)))


def phimoe():
    """Scaled by what the config says, by what follows from the context, and not at all, as Phi-mini's rotation is. `plain-rope` has noise so large
    that SparseMixer often shares between several experts."""
    rope = dict(type="longrope", short_factor=[1.0] * 16, long_factor=[1.0 + 0.5 * pair for pair in range(16)])
    scaled = rope | dict(short_mscale=1.1, long_mscale=1.25)
    dense, cases_of = with_experts("phimoe", num_local_experts=4, original_max_position_embeddings=64, rope_scaling=scaled)
    published = without(dense, "num_experts_per_tok", "rope_theta", "rms_norm_eps") | dict(
        num_local_experts=3, rope_scaling=rope | dict(type="su", short_mscale=None, long_mscale=None), torch_dtype="bfloat16"
    )
    plain_rope = dense | dict(rope_scaling=None, router_jitter_noise=0.2)
    return Family("phimoe", usual, cases_of(published=Case(published, mixtral_names), plain_rope=Case(plain_rope)))


def qwen2_moe():
    dense, cases_of = with_experts("qwen2_moe", vocab_size=16, num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=64)
    return Family("qwen2_moe", usual, cases_of(unstacked=Case(dense | dict(num_experts=2, torch_dtype="bfloat16"), unstacked)))


def with_groups(model_type, **config):
    """As `with_experts`: a dense layer, and one whose experts are chosen as DeepSeek-V3 does."""
    groups = dict(
        n_routed_experts=4, n_shared_experts=2, moe_intermediate_size=32, n_group=2, topk_group=1, routed_scaling_factor=1.5,
        first_k_dense_replace=1, norm_topk_prob=True, tie_word_embeddings=False,
    )  # fmt: skip
    return with_experts(model_type, **(groups | config))


def glm4_moe():
    dense, cases_of = with_groups(
        "glm4_moe", head_dim=32, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, rope_scaling=None, n_shared_experts=1,
        n_group=1, topk_group=1,
    )  # fmt: skip
    published = dense | dict(
        n_group=2, n_routed_experts=6, num_experts_per_tok=1, attention_bias=False, use_qk_norm=False, torch_dtype="bfloat16"
    )
    return Family("glm4_moe", corrected, cases_of(published=Case(published, with_further_layers(2))))


LATENT = dict(kv_lora_rank=32, q_lora_rank=32, qk_rope_head_dim=32, qk_nope_head_dim=32, v_head_dim=32)


def deepseek_v2():
    yarn = YARN | dict(mscale=0.5, mscale_all_dim=1.5)
    dense, cases_of = with_groups("deepseek_v2", **LATENT, rope_scaling=yarn, topk_method="group_limited_greedy", norm_topk_prob=False)
    lite = dense | dict(q_lora_rank=None, attention_bias=True, topk_method="greedy", v_head_dim=48, torch_dtype="bfloat16")
    return Family("deepseek_v2", corrected, cases_of(lite=Case(lite, unstacked)))


def deepseek_v3():
    dense, cases_of = with_groups("deepseek_v3", **LATENT, rope_scaling=YARN | dict(mscale=1.0, mscale_all_dim=1.0))
    published = dense | dict(attention_bias=True, v_head_dim=48, torch_dtype="bfloat16")
    kimi = dense | dict(model_type="kimi_k2", n_group=1, topk_group=1, quantization=quantization(4))
    # All experts: what eight bits change does not change the choice.
    joyai = dense | dict(
        model_type="joyai_llm_flash", q_lora_rank=None, rope_scaling=None, n_shared_experts=None, n_group=1, topk_group=1, num_experts_per_tok=4,
        torch_dtype="bfloat16",
    )  # fmt: skip
    return Family("deepseek_v3", corrected, cases_of(
        dense=Case(dense | dict(vocab_size=128)),  # chats in tests of the engine
        published=Case(published, deepseek_as_published(61)),
        # Packed as older tools did.
        kimi=Case(kimi, joined_heads),
        joyai=Case(joyai),
    ))  # fmt: skip


def kimi(model_type, projector):
    text, _ = with_groups("deepseek_v3", **LATENT, rope_scaling=None)
    whole = dict(model_type=model_type, torch_dtype="bfloat16", eos_token_id=[1, 2], text_config=without(text, "torch_dtype"))
    return Family(model_type, corrected, {"dense": Case(whole, beside(projector), num_tokens=4)})


def glm4_moe_lite():
    dense, cases_of = with_groups("glm4_moe_lite", **LATENT, rms_norm_eps=1e-3, rope_scaling=None)
    return Family("glm4_moe_lite", corrected, cases_of(published=Case(dense | dict(torch_dtype="bfloat16"), deepseek_as_published(2))))


def gemma4_layers(model_type):
    """A layer of each type, and two that take their keys and values."""
    rope = dict(
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1000000.0),
        sliding_attention=dict(rope_type="default", rope_theta=10000.0),
    )  # fmt: skip
    return without(small(
        model_type, num_hidden_layers=4, intermediate_size=32, vocab_size=20, head_dim=32, global_head_dim=64, num_kv_shared_layers=2,
        layer_types=windows(4, 2), sliding_window=8, hidden_size_per_layer_input=32, vocab_size_per_layer_input=24, rope_parameters=rope,
        final_logit_softcapping=10.0,
    ), "rope_theta")  # fmt: skip


def gemma4_experts(model_type):
    """As 26B-A4B: experts beside each network, values that are keys in layers with full attention."""
    return gemma4_layers(model_type) | dict(
        num_hidden_layers=2, layer_types=windows(2, 2), num_kv_shared_layers=0, hidden_size_per_layer_input=0, attention_k_eq_v=True,
        num_global_key_value_heads=2, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32,
    )  # fmt: skip


def gemma4_text():
    dense = gemma4_layers("gemma4_text")
    experts = gemma4_experts("gemma4_text")
    router = {f"model__layers__{layer}__router__proj": (8, 64) for layer in range(2)}
    quant_experts = experts | dict(quantization=quantization(4, **router), torch_dtype="bfloat16")
    # As the larger models: values are keys in layers with full attention, and layers are given nothing beside the embeddings.
    large = without(dense, "layer_types", "rope_parameters") | dict(
        num_hidden_layers=2, num_kv_shared_layers=0, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=2,
        sliding_window_pattern=2, final_logit_softcapping=None, tie_word_embeddings=False, torch_dtype="bfloat16",
    )  # fmt: skip
    quant4 = dense | dict(use_double_wide_mlp=False, quantization=quantization(4), torch_dtype="bfloat16")
    chatty = Case(dense | dict(vocab_size=128, vocab_size_per_layer_input=130))  # chats in tests of the engine
    named = {"dense": chatty, "quant4": Case(quant4), "large": Case(large)}
    named |= {"experts": Case(experts), "quant-experts": Case(quant_experts)}
    return Family("gemma4_text", gemma4_bounds, {name: replace(case, num_tokens=4) for name, case in named.items()})


def gemma4():
    def whole(model_type, layers=gemma4_layers):
        text = without(layers("gemma4_text"), "vocab_size", "torch_dtype")
        return dict(model_type=model_type, vocab_size=20, torch_dtype="bfloat16", eos_token_id=[1, 2], text_config=text)

    unified = whole("gemma4_unified") | dict(quantization=quantization(4, language_model__model__embed_tokens_per_layer=(8, 32)))
    return Family("gemma4", gemma4_bounds, {
        "published": Case(whole("gemma4"), gemma4_as_published, num_tokens=4),
        "unified": Case(unified, num_tokens=4),
        "experts-published": Case(whole("gemma4", gemma4_experts), gemma4_experts_as_published, num_tokens=4),
    })  # fmt: skip


def lfm2():
    dense = without(small("lfm2", vocab_size=20), "rms_norm_eps", "intermediate_size", "tie_word_embeddings") | dict(
        num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], norm_eps=1e-5, conv_bias=False, conv_L_cache=3, block_dim=64,
        block_ff_dim=64, block_multiple_of=32, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True, rope_theta=1000000.0,
    )  # fmt: skip
    published = without(dense, "layer_types", "block_ff_dim", "rope_theta") | dict(
        full_attn_idxs=[0, 2], intermediate_size=32, block_auto_adjust_ff_dim=False, conv_bias=True, conv_L_cache=4,
        rope_parameters=dict(rope_theta=500000.0, rope_type="default"), torch_dtype="bfloat16",
    )  # fmt: skip
    quant4 = Case(dense | dict(quantization=quantization(4), torch_dtype="bfloat16"), num_tokens=4)
    chatty = Case(dense | dict(vocab_size=128), num_tokens=4)  # chats in tests of the engine
    named = {"dense": chatty, "quant4": quant4, "published": Case(published, turned_convolutions, num_tokens=4)}
    return Family("lfm2", short_conv, named)


def lfm2_moe_as_published(tensors):
    """Every matrix of a feed-forward network by its number, and convolution weights turned."""
    stored = {}
    for name, tensor in turned_convolutions(unstacked(tensors)).items():
        for ours, theirs in [("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")]:
            name = name.replace(f".{ours}.", f".{theirs}.")
        stored[name] = tensor
    return stored


def lfm2_moe():
    dense = without(small("lfm2_moe", vocab_size=20, intermediate_size=64), "rms_norm_eps", "tie_word_embeddings") | dict(
        num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], norm_eps=1e-5, conv_bias=False, conv_L_cache=3, num_dense_layers=1,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, use_expert_bias=True, routed_scaling_factor=1.5,
    )  # fmt: skip
    published = dense | dict(
        use_expert_bias=False, norm_topk_prob=False, num_dense_layers=0, layer_types=["full_attention", "conv"], num_hidden_layers=2, num_experts=3,
        routed_scaling_factor=1.0, torch_dtype="bfloat16",
    )  # fmt: skip
    routers = {f"model__layers__{layer}__feed_forward__gate": (8, 64) for layer in (1, 2)}
    quant4 = dense | dict(quantization=quantization(4, **routers), torch_dtype="bfloat16")
    named = {"dense": Case(dense), "quant4": Case(quant4), "published": Case(published, lfm2_moe_as_published)}
    return Family("lfm2_moe", short_conv_corrected, {name: replace(case, num_tokens=4) for name, case in named.items()})


def mamba2():
    dense = dict(
        model_type="mamba2", num_heads=4, head_dim=32, vocab_size=20, hidden_size=64, intermediate_size=128, state_size=16, num_hidden_layers=2,
        layer_norm_epsilon=1e-5, conv_kernel=4, n_groups=2, use_bias=False, use_conv_bias=True, tie_word_embeddings=False,
        time_step_limit=[0.0, float("inf")], time_step_rank=4, max_position_embeddings=4096, torch_dtype="float32", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    published = without(dense, "max_position_embeddings", "time_step_limit") | dict(
        ssm_state_size=8, n_groups=1, use_bias=True, use_conv_bias=False, tie_word_embeddings=True, time_step_rank="auto",
        time_step_limit=[0.05, 0.5], layer_norm_epsilon=1e-3, torch_dtype="bfloat16",
    )  # fmt: skip
    quant4 = dense | dict(quantization=quantization(4), torch_dtype="bfloat16")
    named = {"dense": Case(dense | dict(vocab_size=128)), "quant4": Case(quant4), "published": Case(published, turned_convolutions)}
    return Family("mamba2", state_space, {name: replace(case, num_tokens=4) for name, case in named.items()})


def falcon_h1():
    dense = small("falcon_h1", vocab_size=20) | dict(
        head_dim=32, mamba_d_conv=4, mamba_d_head=32, mamba_d_ssm=128, mamba_d_state=16, mamba_n_groups=2, mamba_n_heads=4, tie_word_embeddings=True,
        embedding_multiplier=2.0, lm_head_multiplier=1.5, attention_out_multiplier=0.75, ssm_out_multiplier=0.5, key_multiplier=0.5,
        attention_in_multiplier=1.25, mlp_multipliers=[0.75, 0.5], ssm_in_multiplier=1.25, ssm_multipliers=[0.5, 0.75, 1.25, 0.5, 1.5],
    )  # fmt: skip
    normed = dense | dict(mamba_rms_norm=True, mamba_conv_bias=False, mamba_proj_bias=True, attention_bias=True)
    published = without(dense, "mamba_n_groups", "rope_theta") | dict(
        mamba_rms_norm=True, mamba_norm_before_gate=True, tie_word_embeddings=False, projectors_bias=True, mlp_bias=True, torch_dtype="bfloat16",
    )  # fmt: skip
    quant4 = normed | dict(quantization=quantization(4), torch_dtype="bfloat16")
    named = {"dense": Case(dense | dict(vocab_size=128)), "quant4": Case(quant4), "published": Case(published, turned_convolutions)}
    return Family("falcon_h1", state_space, {name: replace(case, num_tokens=4) for name, case in named.items()})


STATE_SPACE = dict(mamba_n_heads=4, mamba_d_head=32, mamba_d_state=16, mamba_d_conv=4, mamba_n_groups=2, mamba_conv_bias=True, mamba_proj_bias=False)


def granite4_as_published(tensors):
    """Experts in two matrices, and a dense network as a shared one; convolution weights turned, and an output matrix that nobody reads."""
    stored = {"lm_head.weight": Tensor((8, 64), 0, 0)} if "lm_head.weight" not in tensors else {}
    for name, tensor in turned_convolutions(tensors).items():
        if name.endswith("up_proj.weight"):
            continue
        if name.endswith("gate_proj.weight"):
            tensor = tensor.with_shape(*tensor.shape[:-2], 2 * tensor.shape[-2], tensor.shape[-1])
        name = name.replace("switch_mlp.gate_proj", "input_linear").replace("switch_mlp.down_proj", "output_linear")
        stored[name.replace("mlp.gate_proj", "shared_mlp.input_linear").replace("mlp.down_proj", "shared_mlp.output_linear")] = tensor
    return stored


def granitemoehybrid():
    dense = small("granitemoehybrid", vocab_size=20, intermediate_size=32, **STATE_SPACE) | dict(
        attention_multiplier=0.125, embedding_multiplier=0.8, residual_multiplier=1.25, logits_scaling=1.25, attention_bias=False,
        layer_types=["mamba", "attention"], num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=64,
        position_embedding_type="nope", tie_word_embeddings=False,
    )  # fmt: skip
    published = dense | dict(num_local_experts=2, mamba_proj_bias=True, tie_word_embeddings=True, torch_dtype="bfloat16")
    without_experts = without(dense, "num_local_experts", "num_experts_per_tok", "shared_intermediate_size", "rope_theta") | dict(
        position_embedding_type="rope", time_step_limit=[0.0, float("inf")], rope_parameters=dict(rope_theta=20000.0), attention_bias=True,
    )  # fmt: skip
    quant4 = dense | dict(
        quantization=quantization(4, **{f"model__layers__{layer}__block_sparse_moe__router__layer": (8, 64) for layer in (0, 1)}),
        torch_dtype="bfloat16",
    )  # fmt: skip
    named = {
        "dense": Case(dense | dict(vocab_size=128)),
        "quant4": Case(quant4),
        "published": Case(published, granite4_as_published),
        "without-experts": Case(without_experts),
        "without-experts-published": Case(without_experts | dict(torch_dtype="bfloat16"), granite4_as_published),
    }
    return Family("granitemoehybrid", state_space, {name: replace(case, num_tokens=4) for name, case in named.items()})


def jamba():
    dense = small("jamba", vocab_size=20, intermediate_size=32) | dict(
        num_hidden_layers=3, attn_layer_offset=1, attn_layer_period=3, expert_layer_offset=1, expert_layer_period=2, mamba_d_conv=4,
        mamba_d_state=8, mamba_expand=2, mamba_dt_rank=32, num_experts=4, num_experts_per_tok=2, tie_word_embeddings=False,
    )  # fmt: skip
    published = without(dense, "mamba_dt_rank") | dict(
        layers_block_type=["mamba", "attention"], num_hidden_layers=2, num_experts=3, mamba_proj_bias=True, mamba_conv_bias=False,
        tie_word_embeddings=True, torch_dtype="bfloat16",
    )  # fmt: skip
    quant4 = dense | dict(quantization=quantization(4, model__layers__1__feed_forward__router=(8, 64)), torch_dtype="bfloat16")

    def as_published(tensors):
        return {"lm_head.weight": Tensor((8, 64), 0, 0)} | turned_convolutions(unstacked(tensors))

    named = {"dense": Case(dense | dict(vocab_size=128)), "quant4": Case(quant4), "published": Case(published, as_published)}
    return Family("jamba", state_space, {name: replace(case, num_tokens=4) for name, case in named.items()})


def nemotron_as_published(tensors):
    """Each expert by itself, convolution weights turned, and a tensor that predicts further tokens."""
    stored = {"mtp.layers.0.norm.weight": Tensor((8,), 0, 0)}
    for name, tensor in turned_convolutions(unstacked(tensors)).items():
        in_experts = ".experts." in name
        stored[name.replace(".fc1.", ".up_proj.").replace(".fc2.", ".down_proj.") if in_experts else name] = tensor
    return stored


def nemotron_h():
    dense = without(small("nemotron_h", vocab_size=20), "rms_norm_eps", "rope_theta", "num_hidden_layers") | dict(
        attention_bias=False, mamba_num_heads=4, mamba_head_dim=32, mamba_proj_bias=False, ssm_state_size=16, conv_kernel=4, n_groups=2,
        mlp_bias=False, layer_norm_epsilon=1e-5, use_bias=False, use_conv_bias=True, hybrid_override_pattern="M*-EM", num_hidden_layers=5,
        moe_intermediate_size=32, moe_shared_expert_intermediate_size=64, n_group=1, topk_group=1, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, norm_topk_prob=True, routed_scaling_factor=1.5,
    )  # fmt: skip
    published = without(dense, "hybrid_override_pattern", "num_hidden_layers") | dict(
        layers_block_type=["mamba", "moe", "attention", "mlp"], num_hidden_layers=4, mlp_bias=True, attention_bias=True, mamba_proj_bias=True,
        n_group=2, time_step_limit=[0.0, float("inf")], torch_dtype="bfloat16",
    )  # fmt: skip
    quant4 = dense | dict(quantization=quantization(4), torch_dtype="bfloat16")
    named = {"dense": Case(dense | dict(vocab_size=128)), "quant4": Case(quant4), "published": Case(published, nemotron_as_published)}
    return Family("nemotron_h", state_space, {name: replace(case, num_tokens=4) for name, case in named.items()})


FAMILIES = {
    "llama": llama(),
    "cohere": cohere(),
    "cohere2": cohere2(),
    "deepseek_v2": deepseek_v2(),
    "deepseek_v3": deepseek_v3(),
    "ernie4_5": ernie4_5(),
    "ernie4_5_moe": ernie4_5_moe(),
    "exaone4": exaone4(),
    "falcon_h1": falcon_h1(),
    "gemma": gemma(),
    "gemma2": gemma2(),
    "gemma3": gemma3(),
    "gemma3_text": gemma3_text_family(),
    "gemma4": gemma4(),
    "gemma4_text": gemma4_text(),
    "glm": glm(),
    "glm4": glm4(),
    "glm4_moe": glm4_moe(),
    "glm4_moe_lite": glm4_moe_lite(),
    "gpt_oss": gpt_oss(),
    "granite": granite(),
    "granitemoe": granitemoe(),
    "granitemoehybrid": granitemoehybrid(),
    "helium": helium(),
    "internlm3": internlm3(),
    "jamba": jamba(),
    "kimi_k25": kimi("kimi_k25", "mm_projector.proj"),
    "kimi_vl": kimi("kimi_vl", "multi_modal_projector.linear_1"),
    "lfm2": lfm2(),
    "lfm2_moe": lfm2_moe(),
    "llama4": llama4(),
    "llama4_text": llama4_text(),
    "mamba2": mamba2(),
    "mimo": mimo(),
    "minicpm": minicpm(),
    "ministral3": ministral3(),
    "mistral3": mistral3(),
    "mixtral": mixtral(),
    "nemotron_h": nemotron_h(),
    "olmo2": olmo2(),
    "olmo3": olmo3(),
    "olmoe": olmoe(),
    "phi3": phi3(),
    "phimoe": phimoe(),
    "qwen2": qwen2(),
    "qwen2_moe": qwen2_moe(),
    "qwen3": qwen3(),
    "qwen3_5": qwen3_5("qwen3_5"),
    "qwen3_5_moe": qwen3_5_moe(),
    "qwen3_moe": qwen3_moe(),
    "qwen3_next": qwen3_next_family(),
    "seed_oss": seed_oss(),
    "smollm3": smollm3(),
    "stablelm": stablelm(),
    "starcoder2": starcoder2(),
}


# ---------------------------------------------------------------- Making one


def tensors_of(family, case):
    """What to draw for a case: the entries of `weights.json`."""
    module = importlib.import_module(f"mlx_lm.models.{family.module}")
    model = module.Model(module.ModelArgs.from_dict(case.config))
    dtype = DTYPES[case.config["torch_dtype"]]
    tensors = {name: Tensor(array.shape, *family.bounds(name, array.shape), dtype) for name, array in tree_flatten(model.parameters())}
    entry = case.config.get("quantization") or case.config.get("quantization_config")
    if entry and "quant_method" not in entry:
        for name, layer in model.named_modules():
            if hasattr(layer, "to_quantized") and (choice := entry.get(name, entry)):
                tensor = tensors[f"{name}.weight"]
                tensor.bits, tensor.group_size, mode = choice["bits"], choice["group_size"], choice.get("mode", "affine")
                if mode != "affine":
                    tensor.mode = mode
                    # Otherwise all scales are the same power of two.
                    tensor.patches = [[0, tensor.shape[0] // 2, 0, 32, tensor.low / 3, tensor.high / 3]]
    return {name: tensor.described() for name, tensor in sorted(case.stored(tensors).items())}


def check_quantization(weights, stored):
    """That MLX reads back from the packed words what was packed."""
    for name, entry in weights["tensors"].items():
        if mode := entry.get("mode"):
            is_blocks = name.endswith("_blocks")
            _, shape, scales = stored[name.replace("_blocks", "_scales") if is_blocks else f"{name.removesuffix('.weight')}.scales"]
            scales = np.frombuffer(scales, "u1").reshape(shape)
            words = np.frombuffer(stored[name][2], "<u4").reshape(*shape[:-1], -1)
            found = mx.dequantize(mx.array(words), mx.array(scales), group_size=entry["group_size"], bits=entry["bits"], mode=mode, dtype=mx.float32)
            wanted = np.ldexp(integers(weights["seed"], name, entry).astype(np.float64), entry["exponent"])
            found, largest = np.array(found), np.abs(wanted).max()
            # As far as rounding goes: of 4 bits half of what lies between 4 and 6, of 8 bits half an eighth of a power of two.
            off = np.abs(found.reshape(wanted.shape) - wanted).max()
            assert off <= largest * (1 / 16 if mode == "mxfp8" else 1 / 4) and len(np.unique(scales)) > 1, (name, off, largest)
        elif bits := entry.get("bits"):
            values = integers(weights["seed"], name, entry)
            quants, steps, lowest = quantize(values, bits, entry["group_size"])
            shape = (len(values), -1)
            wanted = quants.reshape(*steps.shape, -1) * steps[..., None] + lowest[..., None]
            packed = mx.array(np.frombuffer(stored[name][2], "<u4")).reshape(shape)
            scales, biases = (mx.array(part.astype(np.float32)) for part in (steps, lowest))
            found = mx.dequantize(packed, scales, biases, entry["group_size"], bits)
            assert np.array_equal(np.array(found), wanted.reshape(values.shape).astype(np.float32)), name


def quantized_caches(model):
    """Caches of 8 bits for all layers; None where mlx-lm or the heads' sizes allow none."""
    caches = make_prompt_cache(model)
    if any(type(cache) is not KVCache for cache in caches) or model.model_type in DENSE_KEYS_ONLY:
        return None
    model(mx.array([[3]]), cache=caches)
    sizes = {part.shape[-1] for cache in caches for part in (cache.keys, cache.values)}
    if any(size % 32 for size in sizes):
        return None
    return [QuantizedKVCache(group_size=32, bits=8) for _ in caches]


def expected(model, tokens, tokens2, long, num_greedy):
    """The arrays of `expected.safetensors`, and the smallest gap between the two best logprobs on the greedy path."""
    cache = make_prompt_cache(model)
    model(tokens2[None, :16], cache=cache)
    steps = list(generate_step(tokens, model, mx.default_stream(mx.cpu), max_tokens=num_greedy))
    best = mx.sort(mx.stack([logprobs for _, logprobs in steps]), axis=-1)[:, -2:]
    arrays = {
        "tokens": tokens,
        "logits": model(tokens[None])[0],
        "greedy": mx.array([token for token, _ in steps], mx.int32),
        "tokens2": tokens2,
        "logits2": model(tokens2[None, 16:], cache=cache)[0],
        "long": long,
        "last": mx.concatenate([model(long[None, :length])[0, -1:] for length in LENGTHS]),
    }
    if cache := quantized_caches(model):
        arrays["last_kv8"] = model(long[None, :40], cache=cache)[0, -1:]
    assert arrays["logits"].dtype == arrays["logits2"].dtype == mx.float32
    return arrays, mx.min(best[:, 1] - best[:, 0]).item()


def attempt(case, weights):
    """The expected arrays with one seed; None where the greedy path does not suit."""
    seed = weights["seed"]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        stored = draw(weights["seed"], weights["tensors"])
        check_quantization(weights, stored)
        # The oracle reads no head, and takes some for what it does not know.
        of_oracle = {name: tensor for name, tensor in weights["tensors"].items() if not (has_head(weights) and name.startswith(HEAD))}
        write_checkpoint(folder, case.config, weights | {"tensors": of_oracle})
        text = case.config.get("text_config", {})
        num_ids = min(case.config.get("vocab_size") or text["vocab_size"], 256)
        tokens, tokens2, long = (
            mx.array(uniform(seed, name, 3, num_ids - 1, (length,)).astype(np.int32))
            for name, length in [("tokens", case.num_tokens), ("tokens2", 24), ("long", LENGTHS[-1])]
        )
        if case.prompt:
            chat = [{"role": "user", "content": case.prompt}]
            tokens = mx.array(load_tokenizer(folder).apply_chat_template(chat, add_generation_prompt=True), mx.int32)
        model, _ = load_float32(folder)
        arrays, gap = expected(model, tokens, tokens2, long, case.num_greedy)
        if has_head(weights):
            arrays |= mtp.expected(model, case.config, weights, stored, tokens2)
    greedy = arrays["greedy"].tolist()
    num_late = len(set(greedy[case.num_greedy // 2 :]))
    suits = gap > case.min_gap and len(set(greedy)) >= case.num_distinct and num_late >= case.num_distinct // 2
    suits = suits and (case.alphabet is None or set(greedy) <= set(case.alphabet))
    return (arrays, gap, digest(stored)) if suits else None


def write_weights(path, weights):
    """JSON with a tensor a line."""
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in weights.items() if key != "tensors")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in weights["tensors"].items())
    path.write_text(f'{{\n{head} "tensors": {{\n{lines}\n }}\n}}\n', encoding="utf-8")


def make(name, family, case):
    """Writes the folder of one model."""
    weights = {"num_shards": case.num_shards} if case.num_shards > 1 else {}
    weights["tensors"] = tensors_of(family, case)
    for seed in itertools.count():
        weights["seed"] = seed
        if found := attempt(case, weights):
            break
    arrays, gap, weights["sha256"] = found
    folder = GOLDENS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", case.config)
    if case.generation_config:
        write_json(folder / "generation_config.json", case.generation_config)
    write_weights(folder / "weights.json", weights)
    mx.save_safetensors(str(folder / "expected.safetensors"), arrays)
    print(f"{name}: seed {seed}, smallest gap {gap:.4f}, {len(set(arrays['greedy'].tolist()))} distinct greedy tokens", flush=True)
    if case.prompt:
        print(f"  {bytes(arrays['greedy'].tolist())!r}")


def main():
    mx.set_default_device(mx.cpu)
    mx.disable_compile()  # compiled kernels on the CPU need a C++ compiler at run time
    beside = ["caches", "convert", "embeddings", "perplexity", "prompts", "sampling", "templates"]
    for name in sys.argv[1:] or [*FAMILIES, *beside]:
        if name == "starter" or (name == "templates" and len(sys.argv) == 3):
            importlib.import_module(name).main(Path(sys.argv[2]))
            return
        if name in beside:
            importlib.import_module(name).main()
            continue
        check_versions()
        family, _, only = name.partition("/")
        for case in [only] if only else FAMILIES[family].cases:
            make(f"{family}/{case}", FAMILIES[family], FAMILIES[family].cases[case])


if __name__ == "__main__":
    main()
