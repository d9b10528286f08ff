"""Tiny random Qwen3-Next checkpoints with what mlx-lm computes from them: `python tests/goldens/make_qwen3_next.py [CASE]...`; see oracle.py.

In `dense` and `quant4` the prompt of 150 tokens is more than two chunks of the gated delta rule, and its experts are sorted.
`hugging-face` is stored as its makers publish their checkpoints: each expert by itself, norm weights less one, convolution weights turned,
and with tensors that predict further tokens, which nobody reads.
"""

from pathlib import Path

import mlx.core as mx
from mlx_lm.models import qwen3_next
from oracle import like_inputs, make_all, quantization

# float32 weights take four bytes each, so dense cases are narrower than quantized ones.
DENSE = dict(
    architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=32, intermediate_size=40, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, partial_rotary_factor=0.25, rope_theta=10000.0, rope_scaling=None,
    full_attention_interval=2, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=12,
    linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=12,
    shared_expert_intermediate_size=16, norm_topk_prob=True, rms_norm_eps=1e-6, vocab_size=80, max_position_embeddings=4096,
    tie_word_embeddings=False, attention_bias=False, hidden_act="silu", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
)
# mlx_lm.convert keeps what chooses experts at eight bits.
GATES = {f"model__layers__{layer}__mlp__{gate}": (8, 64) for layer in range(2) for gate in ("gate", "shared_expert_gate")}
QUANT = DENSE | dict(
    hidden_size=64, intermediate_size=64, linear_value_head_dim=8, moe_intermediate_size=32, shared_expert_intermediate_size=32,
    quantization=quantization(4, 32, **GATES),
)
# The default interval: three layers of the gated delta rule, then one that attends.
INTERVAL = {name: value for name, value in DENSE.items() if name != "full_attention_interval"} | dict(num_hidden_layers=4, num_experts=3)


def weight(name, unit):
    if name.endswith("norm.weight"):
        return 1.0 + 0.5 * unit
    if name.endswith("A_log"):
        return unit
    if name.endswith("dt_bias"):  # states that fade within a few tokens beside states that last the whole prompt
        return 3.0 * unit - 2.0
    if name.endswith((".bias", "conv1d.weight")):
        return 0.5 * unit
    if "embed_tokens" in name:  # small beside what the layers add, or a tied model only repeats its last token
        return 0.6 * unit
    return like_inputs(unit)


def as_published(weights):
    """Undoes what mlx-lm does to checkpoints from Hugging Face."""
    stored = {"mtp.norm.weight": mx.zeros((8,)), "mtp.fc.weight": mx.zeros((8, 16))}
    for name, array in weights.items():
        if ".switch_mlp." in name:
            stored |= {name.replace("switch_mlp", f"experts.{expert}"): array[expert] for expert in range(array.shape[0])}
        elif name.endswith("conv1d.weight"):
            stored[name] = array.moveaxis(2, 1)
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            stored[name] = array - 1.0
        else:
            stored[name] = array
    return stored


CASES = {
    "dense": (DENSE, dict(num_tokens=150)),
    "tied": DENSE | dict(tie_word_embeddings=True, attention_bias=True),
    "equal-heads": DENSE | dict(linear_num_key_heads=4, num_key_value_heads=2, linear_conv_kernel_dim=3),
    "interval": INTERVAL | dict(norm_topk_prob=False, torch_dtype="bfloat16"),
    "some-experts": DENSE | dict(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], torch_dtype="bfloat16"),
    "hugging-face": (DENSE, dict(stored=as_published)),
    "quant4": (QUANT, dict(num_tokens=150)),
    "quant4-tied": QUANT | dict(tie_word_embeddings=True),
}

if __name__ == "__main__":
    make_all(Path(__file__).parent / "qwen3_next", qwen3_next, CASES, weight)
