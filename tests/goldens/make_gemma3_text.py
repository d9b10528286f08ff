"""Tiny random Gemma 3 checkpoints under `tests/goldens/gemma3_text/`, with the numbers mlx-lm 0.32.0 computes from them; `oracle.py` beside
this says what is in them and what is needed.

    python tests/goldens/make_gemma3_text.py [CASE]...

Every prompt is longer than twice the sliding window.
"""

from pathlib import Path

from mlx_lm.models import gemma3_text
from oracle import like_inputs, make_all, quantization

DENSE = dict(
    architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, vocab_size=128, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_local_base_freq=10000.0, query_pre_attn_scalar=12,
    sliding_window=8, sliding_window_pattern=2, max_position_embeddings=4096, rope_scaling=None, hidden_activation="gelu_pytorch_tanh",
    attn_logit_softcapping=None, final_logit_softcapping=None, torch_dtype="float32", bos_token_id=2, eos_token_id=1,
)
QUANT = DENSE | dict(hidden_size=64, intermediate_size=96, head_dim=16)
LAYER_TYPES = dict(num_hidden_layers=6, layer_types=["sliding_attention"] * 5 + ["full_attention"], sliding_window=10, torch_dtype="bfloat16")


def tied(weights):
    return {name: w for name, w in weights.items() if not name.startswith("lm_head.")}


def untied(weights):
    return weights


CASES = {
    "dense": DENSE,
    "dense-bf16": DENSE | dict(torch_dtype="bfloat16"),
    "pattern3": DENSE | dict(num_hidden_layers=5, sliding_window_pattern=3, num_key_value_heads=1),
    # As Gemma 3 270M's config, which lists the layers; the reference takes its default pattern of 6.
    "layer-types": {name: value for name, value in DENSE.items() if name != "sliding_window_pattern"} | LAYER_TYPES,
    "long-prompt": (DENSE | dict(sliding_window=5, rope_scaling={"rope_type": "linear", "factor": 8.0}), dict(num_tokens=72)),
    "untied": (DENSE, dict(stored=untied)),
    "quant4": QUANT | dict(quantization=quantization(4)),
    "quant-mixed": QUANT | dict(
        quantization=quantization(4, model__embed_tokens=(8, 64), model__layers__0__mlp__up_proj=(8, 32), model__layers__1__self_attn__k_proj=False)
    ),
}


def weight(name, unit):
    if name == "model.norm.weight":  # stored less one; tied logits are small without it
        return 3.0 + 0.5 * unit
    if name.endswith("norm.weight"):
        return 0.5 * unit
    if "embed_tokens" in name:  # the model multiplies by the root of its width: small beside what the layers add
        return 1.2 * unit.shape[-1] ** -0.5 * unit
    return like_inputs(unit)


if __name__ == "__main__":
    cases = {case: choice if isinstance(choice, tuple) else (choice, {}) for case, choice in CASES.items()}
    make_all(
        Path(__file__).parent / "gemma3_text", gemma3_text,
        {case: (config, {"stored": tied} | extra) for case, (config, extra) in cases.items()}, weight,
    )
