"""Prompt-cache files that mlx-lm wrote for tiny checkpoints, and how it goes on from them.

`python tests/goldens/make_goldens.py prompts`, where the checkpoints' folders are made already, writes to `tests/goldens/prompts/`, for each
of CASES:

    <case>.safetensors        a prompt of 20 tokens, read and saved as `mlx_lm.cache_prompt` does
    <case>-told.safetensors   the same with the keys beside it by which Cairn knows its tokens and what to call it
    <case>.json               the prompt, 4 tokens more, and the 12 that follow greedily on both by `generate_step`

With mlx-lm 0.30.4 in place of 0.32.2 it writes only `old-<case>.safetensors`, of the cases that version can save.
The model is computed in float32, as Cairn does on a CPU; caches grow by STEP tokens, not by mlx-lm's 256, for the files' size. Each prompt is the first without a near tie on the greedy path.
"""

import json
import tempfile

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, RotatingKVCache, load_prompt_cache, make_prompt_cache, save_prompt_cache
from oracle import GOLDENS, check_versions, open_model

OUT = GOLDENS / "prompts"
CASES = {
    "tiny-chat": "llama/tiny-chat", "gemma3_text": "gemma3_text/long-prompt", "qwen3_next": "qwen3_next/dense", "deepseek_v3": "deepseek_v3/dense",
}  # fmt: skip
OLD = ["tiny-chat", "gemma3_text"]
MODEL_NAME = "goldens/{case}"
MIN_GAP = 0.01
STEP = 32


def load(case):
    with tempfile.TemporaryDirectory() as folder:
        model, config = open_model(CASES[case], folder)
        mx.eval(model.parameters())
    return model, config["vocab_size"]


def cache_prompt(model, prompt):
    cache = make_prompt_cache(model)
    for _ in generate_step(mx.array(prompt), model, max_tokens=0, prompt_cache=cache):
        pass
    return cache


def go_on(model, cache, more):
    """Twelve greedy tokens, and the smallest gap between the two best on the way."""
    steps = list(generate_step(mx.array(more), model, max_tokens=12, prompt_cache=cache))
    best = mx.sort(mx.stack([logprobs for _, logprobs in steps]), axis=-1)[:, -2:]
    return [int(token) for token, _ in steps], mx.min(best[:, 1] - best[:, 0]).item()


def main():
    is_old = check_versions(allows_old=True)
    KVCache.step = RotatingKVCache.step = STEP
    OUT.mkdir(exist_ok=True)
    if is_old:
        for case in OLD:
            model, _ = load(case)
            prompt = json.loads((OUT / f"{case}.json").read_text())["prompt"]
            metadata = {"model": MODEL_NAME.format(case=case), "tokenizer_config": "{}"}
            save_prompt_cache(str(OUT / f"old-{case}.safetensors"), cache_prompt(model, prompt), metadata)
        return
    for case in CASES:
        model, vocab_size = load(case)
        for seed in range(100):
            mx.random.seed(seed)
            prompt, more = (mx.random.randint(2, vocab_size - 3, (count,)).tolist() for count in (20, 4))
            path = OUT / f"{case}.safetensors"
            metadata = {"model": MODEL_NAME.format(case=case), "tokenizer_config": json.dumps({"trust_remote_code": False})}
            save_prompt_cache(str(path), cache_prompt(model, prompt), metadata)
            cache, _ = load_prompt_cache(str(path), return_metadata=True)
            greedy, gap = go_on(model, cache, more)
            if gap >= MIN_GAP and len(set(greedy)) > 2:
                break
        told = metadata | {
            "cairn_format": "1", "cairn_kind": "conversation", "cairn_title": f"What {case} was told", "cairn_made_by": "mlx-lm 0.32.0",
            "cairn_created_at_ms": "1700000000000", "cairn_token_count": str(len(prompt)), "cairn_token_ids": ",".join(map(str, prompt)),
        }  # fmt: skip
        save_prompt_cache(str(OUT / f"{case}-told.safetensors"), cache_prompt(model, prompt), told)
        (OUT / f"{case}.json").write_text(json.dumps({"prompt": prompt, "more": more, "greedy": greedy}) + "\n")
        print(case, "seed", seed, "gap", round(gap, 3))
