"""mlx-lm's speed on llama shapes with random 4-bit weights, as JSON lines: the other side of crates/lm/examples/decode_speed.rs.

usage: gpu_mlx_lm.py [SHAPE]...     shapes as there; all by default.     Written for mlx-lm 0.32.0 on MLX 0.32.2.
"""

import json
import sys
import time

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.llama import Model, ModelArgs

PROMPT_TOKENS, ANSWER_TOKENS, RUNS = 512, 256, 3
BATCHES, BATCH_ANSWER_TOKENS, BATCH_MAX_HIDDEN = (8, 32), 128, 4096
SHAPES = {
    "smollm2-135m": dict(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536, vocab_size=49152, head_dim=64),
    "llama-3.2-1b": dict(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, intermediate_size=8192, vocab_size=128256, head_dim=64),
    "llama-3.1-8b": dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256, head_dim=128),
}


def random_model(shape):
    model = Model(ModelArgs(model_type="llama", rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True, **shape))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model


def one_run(model, prompt):
    """Decode rate in tokens/s and time to first token in ms."""
    start = time.perf_counter()
    stamps = [time.perf_counter() for _ in generate_step(prompt, model, max_tokens=ANSWER_TOKENS)]
    return (len(stamps) - 1) / (stamps[-1] - stamps[0]), (stamps[0] - start) * 1e3


def one_batch(model, vocab_size, batch):
    """Seconds for as many answers at once, prompts included."""
    prompts = [mx.random.randint(0, vocab_size, (PROMPT_TOKENS,)).tolist() for _ in range(batch)]
    start = time.perf_counter()
    generator = BatchGenerator(model, max_tokens=BATCH_ANSWER_TOKENS, completion_batch_size=batch, prefill_batch_size=8)
    generator.insert(prompts, max_tokens=[BATCH_ANSWER_TOKENS] * batch)
    answered = 0
    while answered < batch * BATCH_ANSWER_TOKENS:
        answered += len(generator.next()[1])
    seconds = time.perf_counter() - start
    generator.close()
    return seconds


if __name__ == "__main__":
    for name in sys.argv[1:] or SHAPES:
        shape = SHAPES[name]
        model = random_model(shape)
        prompt = mx.random.randint(0, shape["vocab_size"], (PROMPT_TOKENS,))
        # The first run compiles kernels and does not count, here and on the other side.
        mx.reset_peak_memory()
        rate, first = max([one_run(model, prompt) for _ in range(RUNS + 1)][1:])
        print(json.dumps({"model": name, "bits": 4, "decode_tps": round(rate, 1), "ttft_ms": round(first, 2), "peak_gb": round(mx.get_peak_memory() / 1e9, 3)}), flush=True)
        for batch in BATCHES if shape["hidden_size"] < BATCH_MAX_HIDDEN else ():
            mx.reset_peak_memory()
            seconds = min([one_batch(model, shape["vocab_size"], batch) for _ in range(3)][1:])
            rate, peak = round(batch * BATCH_ANSWER_TOKENS / seconds, 1), round(mx.get_peak_memory() / 1e9, 3)
            print(json.dumps({"model": name, "bits": 4, "batch": batch, "aggregate_tps": rate, "peak_gb": peak}), flush=True)
        del model
        mx.clear_cache()
