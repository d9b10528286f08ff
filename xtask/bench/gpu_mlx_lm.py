"""mlx-lm's speed with a model folder of random weights, as JSON lines: the other side of crates/lm/examples/decode_speed.

usage: gpu_mlx_lm.py NAME FOLDER         a folder that `decode_speed write` or random_model.py made.     Written for mlx-lm 0.32.2 on MLX 0.32.2.
       gpu_mlx_lm.py --rounding FOLDER   by how much the logits of a prompt's last tokens differ when they are read one at a time, as a part of
                                         their norm: the most of a short and a long prompt. With random weights in bf16 that can be a quarter.
"""

import json
import pathlib
import sys
import time

import global_scale  # noqa: F401
import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

PROMPT_TOKENS, ANSWER_TOKENS, RUNS = 512, 256, 3
BATCHES, BATCH_ANSWER_TOKENS, BATCH_MAX_HIDDEN, BATCH_MAX_BYTES = (8, 32), 128, 4096, 2 << 30


def one_run(model, prompt):
    """Decode rate in tokens/s and time to first token in ms."""
    start = time.perf_counter()
    stamps = [time.perf_counter() for _ in generate_step(prompt, model, max_tokens=ANSWER_TOKENS)]
    return (len(stamps) - 1) / (stamps[-1] - stamps[0]), (stamps[0] - start) * 1e3


def one_batch(model, vocab_size, batch):
    """Seconds until each answer has its first token, and from there to the end."""
    prompts = [mx.random.randint(0, vocab_size, (PROMPT_TOKENS,)).tolist() for _ in range(batch)]
    start, begun, first, answered = time.perf_counter(), set(), None, 0
    generator = BatchGenerator(model, max_tokens=BATCH_ANSWER_TOKENS, completion_batch_size=batch, prefill_batch_size=8)
    generator.insert(prompts, max_tokens=[BATCH_ANSWER_TOKENS] * batch)
    while answered < batch * BATCH_ANSWER_TOKENS:
        tokens = generator.next()[1]
        answered += len(tokens)
        begun.update(token.uid for token in tokens)
        if first is None and len(begun) == batch:
            first = time.perf_counter()
    end = time.perf_counter()
    generator.close()
    return first - start, end - first


def rounding(model, vocab_size, length, singles=80):
    prompt = mx.random.randint(0, vocab_size, (1, length))
    at_once = model(prompt, cache=make_prompt_cache(model))[:, -singles:].astype(mx.float32)
    cache = make_prompt_cache(model)
    model(prompt[:, :-singles], cache=cache)
    one_by_one = [model(prompt[:, place : place + 1], cache=cache) for place in range(length - singles, length)]
    one_by_one = mx.concatenate(one_by_one, axis=1).astype(mx.float32)
    return mx.sqrt(mx.square(one_by_one - at_once).sum() / mx.square(at_once).sum()).item()


if __name__ == "__main__":
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    model, config = load_model(folder)
    config = config.get("text_config", config)
    if name == "--rounding":
        print(max(rounding(model, config["vocab_size"], length) for length in (PROMPT_TOKENS, 2200)))
        sys.exit()
    prompt = mx.random.randint(0, config["vocab_size"], (PROMPT_TOKENS,))
    # The first run compiles kernels and does not count, here and on the other side.
    mx.reset_peak_memory()
    rate, first = max([one_run(model, prompt) for _ in range(RUNS + 1)][1:])
    print(json.dumps({"model": name, "form": "kernels", "decode_tps": round(rate, 1), "ttft_ms": round(first, 2), "peak_gb": round(mx.get_peak_memory() / 1e9, 3)}), flush=True)
    is_small = config["hidden_size"] < BATCH_MAX_HIDDEN and (folder / "model.safetensors").stat().st_size < BATCH_MAX_BYTES
    for batch in BATCHES if is_small else ():
        mx.reset_peak_memory()
        prefills, decodes = zip(*[one_batch(model, config["vocab_size"], batch) for _ in range(RUNS + 1)][1:])
        speeds = {"prefill_tps": batch * PROMPT_TOKENS / min(prefills), "batch_tps": batch * (BATCH_ANSWER_TOKENS - 1) / min(decodes)}
        speeds = {key: round(rate, 1) for key, rate in speeds.items()}
        print(json.dumps({"model": name, "batch": batch, **speeds, "peak_gb": round(mx.get_peak_memory() / 1e9, 3)}), flush=True)
