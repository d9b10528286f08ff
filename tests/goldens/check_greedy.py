"""Whether Cairn continues texts with the same 64 tokens as mlx-lm, on the same imported weights.

`cargo xtask gemma` runs it: `python tests/goldens/check_greedy.py MODEL_FOLDER CAIRN`. The oracle computes as `starter.py` says: scales and biases as
float32, then dequantized. A step in which its two best logprobs are nearer than MIN_GAP may go either way, so that is where a comparison ends.
"""

import json
import subprocess
import sys

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import dequantize_model, load
from oracle import check_versions

TEXTS = ["The history of the lighthouse begins", "Water boils at a lower temperature on a mountain because"]
NUM_TOKENS = 64
MIN_GAP = 1e-3


def of_oracle(model, tokenizer, text):
    """The prompt's tokens, those that follow, and by how much each was the best."""
    prompt, tokens, gaps = tokenizer.encode(text), [], []
    for token, logprobs in generate_step(mx.array(prompt), model, mx.default_stream(mx.cpu), max_tokens=NUM_TOKENS):
        second, best = sorted(mx.topk(logprobs, 2).tolist())
        tokens.append(token)
        gaps.append(best - second)
    mx.synchronize()  # generate_step has launched a step more; leaving the process during it would crash
    return prompt, tokens, gaps


def of_cairn(cairn, folder, prompt):
    flags = ["--prompt-tokens", ",".join(map(str, prompt)), "--max-tokens", str(NUM_TOKENS), "--json"]
    return json.loads(subprocess.run([cairn, "generate", "--model", folder, *flags], check=True, stdout=subprocess.PIPE).stdout)["tokens"]


def main(folder, cairn):
    check_versions()
    mx.set_default_device(mx.cpu)
    mx.disable_compile()
    model, tokenizer = load(folder)
    model.set_dtype(mx.float32)
    dequantize_model(model)
    mx.eval(model.parameters())
    for text in TEXTS:
        prompt, tokens, gaps = of_oracle(model, tokenizer, text)
        sure = next((step for step, gap in enumerate(gaps) if gap < MIN_GAP), len(gaps))
        found = of_cairn(cairn, folder, prompt)
        assert found[:sure] == tokens[:sure], f"{text!r}: {found} in place of {tokens}"
        assert sure == NUM_TOKENS, f"{text!r}: a near tie at step {sure}: choose another text"
        print(f"{text!r}: {sure} tokens are mlx-lm's; smallest gap {min(gaps):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
