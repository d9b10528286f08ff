"""Heads that predict the token after the next, of Qwen3-Next and Qwen3.5: which tensors they have, and what they compute.

mlx-lm has no such heads, so this is a computation of its own, in numpy and float64, from the formula that vLLM's `qwen3_next_mtp.py` states:

    x    = fc [norm(embedding of token t + 1), norm(hidden state of token t)]
    x    = x + gated attention(norm(x)), with the pairs before as keys and values;  x = x + feed-forward(norm(x))
    out  = norm(x), of which the model's output layer makes the logits of token t + 2

The hidden state is what the model's last norm returns. A further token is predicted from `out` in the hidden state's place.
"""

import mlx.core as mx
import numpy as np
from draw import Tensor

HEAD = "mtp."
NORMS = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")


def with_head(stored, *, less_one=False):
    """The tensors of a checkpoint with a head like the model's second layer, which attends; its gates and `fc` are never quantized."""

    def of(tensors):
        head = {}
        for name, tensor in tensors.items():
            if ".layers.1." in name:
                tensor = tensor.with_shape(*tensor.shape)
                if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
                    tensor.bits = tensor.group_size = None
                head[f"{HEAD}layers.0.{name.partition('.layers.1.')[2]}"] = tensor
        norm = next(tensor for name, tensor in head.items() if name.endswith("input_layernorm.weight"))
        width, dtype = norm.shape[0], norm.dtype
        bound = (3 / width) ** 0.5
        head[f"{HEAD}fc.weight"] = Tensor((width, 2 * width), -bound, bound, dtype)
        published = stored(tensors | head)
        own = {f"{HEAD}{name}.weight": norm.with_shape(width) for name in NORMS}
        return published | {name: tensor.shifted(-1.0) if less_one else tensor for name, tensor in own.items()}

    return of


def has_head(weights):
    """Whether a head can be computed. Some cases have only a tensor or two below its name, which are not read."""
    return any(name.startswith(f"{HEAD}layers.0.self_attn.q_proj.") for name in weights["tensors"])


class Head:
    """A head's numbers, from the tensors of a drawn checkpoint."""

    def __init__(self, config, weights, stored):
        self.config = {**config, **config.get("text_config", {})}
        rope = self.config.get("rope_parameters") or {}
        self.theta = rope.get("rope_theta") or self.config.get("rope_theta") or 100000.0
        self.rotated = int(self.config["head_dim"] * (rope.get("partial_rotary_factor") or self.config.get("partial_rotary_factor") or 0.25))
        self.entries, self.stored = weights["tensors"], stored
        self.less_one = self.tensor(f"{HEAD}layers.0.input_layernorm.weight").mean() < 0.6

    def tensor(self, name):
        dtype, shape, data = self.stored[name]
        if dtype == "U32":
            entry, layer = self.entries[name], name.removesuffix(".weight")
            packed = mx.array(np.frombuffer(data, "<u4").reshape(shape))
            scales, biases = (mx.array(self.tensor(f"{layer}.{part}").astype(np.float32)) for part in ("scales", "biases"))
            return np.array(mx.dequantize(packed, scales, biases, entry["group_size"], entry["bits"])).astype(np.float64)
        if dtype == "BF16":
            words = np.frombuffer(data, "<u2").astype("<u4") << 16
            return words.view("<f4").reshape(shape).astype(np.float64)
        return np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)

    def norm(self, name, x):
        weight = self.tensor(f"{HEAD}{name}.weight") + self.less_one
        return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])

    def linear(self, name, x):
        y = x @ self.tensor(f"{HEAD}layers.0.{name}.weight").T
        return y + self.tensor(f"{HEAD}layers.0.{name}.bias") if f"{HEAD}layers.0.{name}.bias" in self.stored else y

    def rotate(self, x):
        """`[T, heads, head_dim]`, of which the first dimensions are rotated by their halves."""
        half = self.rotated // 2
        angles = np.arange(len(x))[:, None, None] * self.theta ** (-np.arange(half) / half)
        one, other = x[..., :half], x[..., half : self.rotated]
        turned = [one * np.cos(angles) - other * np.sin(angles), other * np.cos(angles) + one * np.sin(angles)]
        return np.concatenate([*turned, x[..., self.rotated :]], -1)

    def attention(self, x):
        heads, kv_heads, dim = (self.config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        queries, gate = np.split(self.linear("self_attn.q_proj", x).reshape(len(x), heads, 2 * dim), 2, -1)
        keys = self.linear("self_attn.k_proj", x).reshape(len(x), kv_heads, dim)
        values = self.linear("self_attn.v_proj", x).reshape(len(x), kv_heads, dim)
        queries = self.rotate(self.norm("layers.0.self_attn.q_norm", queries))
        keys = self.rotate(self.norm("layers.0.self_attn.k_norm", keys))
        keys, values = (np.repeat(part, heads // kv_heads, 1) for part in (keys, values))
        scores = np.einsum("qhd,khd->hqk", queries, keys) * dim**-0.5
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", shares, values) * sigmoid(gate)
        return self.linear("self_attn.o_proj", attended.reshape(len(x), -1))

    def gated(self, path, x):
        gate = self.linear(f"{path}.gate_proj", x)
        return self.linear(f"{path}.down_proj", gate * sigmoid(gate) * self.linear(f"{path}.up_proj", x))

    def expert(self, expert, name):
        path = f"{HEAD}layers.0.mlp"
        if f"{path}.switch_mlp.{name}.weight" in self.stored:
            return self.tensor(f"{path}.switch_mlp.{name}.weight")[expert]
        if f"{path}.experts.{expert}.{name}.weight" in self.stored:
            return self.tensor(f"{path}.experts.{expert}.{name}.weight")
        if name == "down_proj":
            return self.tensor(f"{path}.experts.down_proj")[expert]
        halves = np.split(self.tensor(f"{path}.experts.gate_up_proj")[expert], 2)
        return halves[name == "up_proj"]

    def experts(self, x):
        shares = np.exp(self.linear("mlp.gate", x))
        shares /= shares.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for row, share in enumerate(shares):
            chosen = np.argsort(-share)[: self.config["num_experts_per_tok"]]
            total = share[chosen].sum() if self.config.get("norm_topk_prob", True) else 1.0
            for expert in chosen:
                gate = self.expert(expert, "gate_proj") @ x[row]
                inner = gate * sigmoid(gate) * (self.expert(expert, "up_proj") @ x[row])
                y[row] += share[expert] / total * (self.expert(expert, "down_proj") @ inner)
        return y + sigmoid(self.linear("mlp.shared_expert_gate", x)) * self.gated("mlp.shared_expert", x)

    def run(self, embeddings, hidden):
        """`[T, D]` of pairs from the first one on, to `[T, D]`."""
        both = [self.norm("pre_fc_norm_embedding", embeddings), self.norm("pre_fc_norm_hidden", hidden)]
        x = np.concatenate(both, -1) @ self.tensor(f"{HEAD}fc.weight").T
        x = x + self.attention(self.norm("layers.0.input_layernorm", x))
        normed = self.norm("layers.0.post_attention_layernorm", x)
        x = x + (self.experts(normed) if f"{HEAD}layers.0.mlp.gate.weight" in self.stored else self.gated("mlp", normed))
        return self.norm("norm", x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected(model, config, weights, stored, tokens):
    """The logits of the head behind each two tokens, and those one further behind the last two, with the likeliest token between."""
    text = getattr(model, "language_model", model)
    embed, head = text.model.embed_tokens, Head(config, weights, stored)

    def logits(hidden):
        hidden = mx.array(hidden.astype(np.float32))
        return text.lm_head(hidden) if hasattr(text, "lm_head") else embed.as_linear(hidden)

    embeddings = np.array(embed(tokens)).astype(np.float64)
    hidden = np.array(text.model(tokens[None])[0]).astype(np.float64)
    pairs = [embeddings[1:], hidden[:-1]]
    first = head.run(*pairs)
    likeliest = mx.argmax(logits(first[-1:]), -1)
    further = [np.array(embed(likeliest)).astype(np.float64), first[-1:]]
    second = head.run(*(np.concatenate(parts) for parts in zip(pairs, further, strict=True)))
    return {"mtp_logits": logits(first), "mtp_further": logits(second[-1:])}
