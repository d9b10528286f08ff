"""mlx-lm's side of the example `classify`: one token behind each of many prompts with one prefix.

usage: classify_side.py MODEL_FOLDER [NUM_ROWS] [ROW_TOKENS] [PREFIX_TOKENS] [SECONDS]

Two ways, each with a line of JSON: a loop over a prompt cache, which is trimmed after each row, and no
reuse at all (as many rows as take SECONDS, 60 without it). The prompts are those of the example.
"""
import json
import sys
import time

import global_scale  # noqa: F401
import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

folder = sys.argv[1]
numbers = [int(text) for text in sys.argv[2:]]
num_rows, row_tokens, prefix_tokens, no_reuse_s = numbers + [100, 30, 1500, 60][len(numbers):]
model, tokenizer = load(folder)
if mx.default_device() == mx.cpu:
    model.set_dtype(mx.float32)
vocab_size = model.args.vocab_size
state = 1


def ids(count):
    global state
    made = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        made.append(3 + (state >> 33) % (vocab_size - 3))
    return made


def last_logprobs(tokens, cache):
    logits = model(mx.array([tokens]), cache=cache)[:, -1, :]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    token = mx.argmax(logprobs, axis=-1)
    mx.eval(token, logprobs)
    return token.item()


def read(tokens, cache):
    for start in range(0, len(tokens), 2048):
        model(mx.array([tokens[start:start + 2048]]), cache=cache)
        mx.eval([layer.state for layer in cache])


prefix = ids(prefix_tokens)
rows = [ids(row_tokens) for _ in range(num_rows)]
last_logprobs(rows[0], make_prompt_cache(model))

start = time.perf_counter()
cache = make_prompt_cache(model)
read(prefix, cache)
prefix_s = time.perf_counter() - start
start = time.perf_counter()
for row in rows:
    last_logprobs(row, cache)
    trim_prompt_cache(cache, len(row))
seconds = time.perf_counter() - start
print(json.dumps(dict(way="prompt cache", prefix_s=round(prefix_s, 3), rows_s=round(seconds, 3), rows_per_second=round(num_rows / seconds, 2), peak_memory_gb=round(mx.get_peak_memory() / 1e9, 3))), flush=True)

start = time.perf_counter()
done = 0
while done < num_rows and (done == 0 or time.perf_counter() - start < no_reuse_s):
    cache = make_prompt_cache(model)
    read(prefix, cache)
    last_logprobs(rows[done], cache)
    done += 1
seconds = time.perf_counter() - start
print(json.dumps(dict(way="no reuse", rows=done, rows_per_second=round(done / seconds, 3))), flush=True)
