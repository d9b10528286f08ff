"""Tiny random Qwen3 checkpoints under `tests/goldens/qwen3/`, with the numbers mlx-lm 0.32.0 computes from them; `oracle.py` beside this says
what is in them and what is needed.

    python tests/goldens/make_qwen3.py [CASE]...
"""

from pathlib import Path

from mlx_lm.models import qwen3
from oracle import like_inputs, make_all, quantization

DENSE = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=128, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None, max_position_embeddings=4096,
    tie_word_embeddings=False, hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
)
QUANT = DENSE | dict(hidden_size=64, intermediate_size=96)
# Configs of newer tools say it here and not under rope_theta.
NESTED = {name: value for name, value in DENSE.items() if not name.startswith("rope_")}
CASES = {
    "dense": DENSE,
    "rope-parameters": NESTED | dict(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0}, torch_dtype="bfloat16"),
    "quant4-tied": QUANT | dict(tie_word_embeddings=True, quantization=quantization(4)),
}


def weight(name, unit):
    if name.endswith("norm.weight"):
        return 1.0 + 0.5 * unit
    if "embed_tokens" in name:  # small beside what the layers add, or a tied model only repeats its last token
        return 0.6 * unit
    return like_inputs(unit)


if __name__ == "__main__":
    make_all(Path(__file__).parent / "qwen3", qwen3, CASES, weight)
