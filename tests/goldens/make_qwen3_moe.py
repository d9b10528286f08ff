"""Tiny random Qwen3 checkpoints with experts under `tests/goldens/qwen3_moe/`, with the numbers mlx-lm 0.32.0 computes from them; `oracle.py`
beside this says what is in them and what is needed.

    python tests/goldens/make_qwen3_moe.py [CASE]...

A prompt of 24 tokens makes 72 pairs of a token and an expert, enough for the reference to sort them; steps of 16 or fewer stay unsorted.
"""

from pathlib import Path

from mlx_lm.models import qwen3_moe
from oracle import like_inputs, make_all, quantization

DENSE = dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=3,
    num_key_value_heads=1, head_dim=16, vocab_size=128, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None, max_position_embeddings=4096,
    num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True,
    tie_word_embeddings=False, hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
)
QUANT = DENSE | dict(hidden_size=64, head_dim=32, moe_intermediate_size=32)
# Conversions keep routers at 8 bits.
ROUTERS = dict(model__layers__0__mlp__gate=(8, 64), model__layers__1__mlp__gate=(8, 64))


def unstacked(weights):
    """Each expert by itself, as Hugging Face stores them."""
    stored = {}
    for name, w in weights.items():
        if ".switch_mlp." in name:
            stored |= {name.replace("switch_mlp", f"experts.{expert}"): w[expert] for expert in range(w.shape[0])}
        else:
            stored[name] = w
    return stored


CASES = {
    "dense": DENSE,
    "plain-scores": DENSE | dict(norm_topk_prob=False, tie_word_embeddings=True),
    "mlp-only": DENSE | dict(mlp_only_layers=[0]),
    "sparse-step": DENSE | dict(num_hidden_layers=3, decoder_sparse_step=2, torch_dtype="bfloat16"),
    "unstacked": (DENSE | dict(torch_dtype="bfloat16"), dict(stored=unstacked)),
    "quant4": QUANT | dict(quantization=quantization(4, **ROUTERS)),
    # Gate and up of different kinds cannot be one product.
    "quant-mixed": QUANT | dict(quantization=quantization(4, model__layers__0__mlp__switch_mlp__up_proj=(8, 32), model__layers__1__mlp__gate=False)),
}


def weight(name, unit):
    if name.endswith("norm.weight"):
        return 1.0 + 0.5 * unit
    if "embed_tokens" in name:  # small beside what the layers add, or a tied model only repeats its last token
        return 0.6 * unit
    return like_inputs(unit)


if __name__ == "__main__":
    make_all(Path(__file__).parent / "qwen3_moe", qwen3_moe, CASES, weight)
