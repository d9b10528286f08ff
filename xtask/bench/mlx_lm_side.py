"""mlx-lm's side of the CPU benchmark: one model in float32, a random prompt, greedy decoding; JSON on stdout.

    python mlx_lm_side.py MODEL [--prompt-tokens 512] [--generation-tokens 128] [--batch-size 1] [--prefill-step-size 2048] [--num-trials 5]
    python mlx_lm_side.py MODEL … --interactive

It measures as `mlx_lm.benchmark` does: a warm-up, then trials of prompt ids drawn with seed 0; `prompt_tps` is the prompt's length by the time to the
first token, `generation_tps` the tokens after the first by the time from the first to the last, `peak_memory_gb`
MLX's peak during the trial. Weights are dequantized to float32, because MLX's CPU kernels for anything else are scalar.

Without `--interactive`: one object {"prompt_tps", "generation_tps" (means), "peak_memory_gb", "trials", "versions"}.
With it, so that another program can take turns: {"ready": true, "versions"} after the warm-up, then one trial's object for each line "trial" on stdin; it ends with stdin.

`versions.blas` names the BLAS in use; the wheel's own one is some 50 times slower than OpenBLAS, and a comparison with it says nothing.
"""

import argparse
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import global_scale  # noqa: F401
import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step, generation_stream
from mlx_lm.utils import dequantize_model, load_model


def blas_in_use():
    """The file name of the BLAS that MLX is linked to (numpy brings another, under another name), if the system tells."""
    maps = Path("/proc/self/maps")
    paths = {line.split()[-1] for line in maps.read_text().splitlines()} if maps.exists() else set()
    return ", ".join(sorted(Path(path).name for path in paths if Path(path).name.startswith(("libblas", "libopenblas")))) or "unknown"


def load_float32(folder):
    model, config = load_model(Path(folder))
    model.set_dtype(mx.float32)  # first, so that weights are dequantized in float32
    dequantize_model(model)
    mx.eval(model.parameters())
    return model, config


def trial(model, prompt, num_tokens, prefill_step_size):
    mx.reset_peak_memory()
    start = time.perf_counter()
    for n, _ in enumerate(generate_step(prompt, model, max_tokens=num_tokens, prefill_step_size=prefill_step_size), 1):
        if n == 1:
            first = time.perf_counter()
        if n == num_tokens:  # generate_step has launched one step more, which is not part of the measurement
            break
    last = time.perf_counter()
    mx.synchronize(generation_stream)  # nor of the next one; and leaving the process during it would crash
    return {
        "prompt_tps": prompt.size / (first - start),
        "generation_tps": (num_tokens - 1) / (last - first),
        "prompt_seconds": first - start,
        "generation_seconds": last - first,
        "peak_memory_gb": mx.get_peak_memory() / 1e9,
    }


def batch_trial(model, prompts, num_tokens, prefill_step_size):
    """As `trial`, for several prompts at once: generation is measured while all of them are being answered."""
    mx.reset_peak_memory()
    generator = BatchGenerator(model, completion_batch_size=len(prompts), prefill_step_size=prefill_step_size)
    start = time.perf_counter()
    generator.insert(prompts, max_tokens=[num_tokens] * len(prompts))
    remaining, begun, counted = len(prompts), set(), 0
    while remaining:
        _, responses = generator.next()
        now = time.perf_counter()
        was_complete = len(begun) == len(prompts)
        begun.update(response.uid for response in responses)
        if was_complete:
            counted += len(responses)
        elif len(begun) == len(prompts):
            all_began = now
        remaining -= sum(response.finish_reason is not None for response in responses)
    last = time.perf_counter()
    generator.close()
    return {
        "prompt_tps": sum(map(len, prompts)) / (all_began - start),
        "generation_tps": counted / (last - all_began),
        "prompt_seconds": all_began - start,
        "generation_seconds": last - all_began,
        "peak_memory_gb": mx.get_peak_memory() / 1e9,
    }


def main():
    parser = argparse.ArgumentParser(description="mlx-lm's side of the CPU benchmark")
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--generation-tokens", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--prefill-step-size", type=int, default=2048)
    parser.add_argument("--num-trials", type=int, default=5)
    parser.add_argument("--interactive", action="store_true", help='one trial for each line "trial" on stdin')
    args = parser.parse_args()
    if args.generation_tokens < 2:
        parser.error("--generation-tokens must be at least 2: one token takes no decoding step")

    mx.set_default_device(mx.cpu)
    model, config = load_float32(args.model)
    mx.random.seed(0)
    prompts = mx.random.randint(0, config["vocab_size"], (args.batch_size, args.prompt_tokens))

    def run():
        if args.batch_size > 1:
            return batch_trial(model, prompts.tolist(), args.generation_tokens, args.prefill_step_size)
        return trial(model, prompts[0], args.generation_tokens, args.prefill_step_size)

    def say(value):
        print(json.dumps(value), flush=True)

    run()
    versions = {"mlx": version("mlx"), "mlx-lm": version("mlx-lm"), "python": platform.python_version(), "blas": blas_in_use()}
    if args.interactive:
        say({"ready": True, "versions": versions})
        for line in sys.stdin:
            if line.strip() != "trial":
                sys.exit(f'expected a line "trial", got {line.strip()!r}')
            say(run())
        return
    trials = [run() for _ in range(args.num_trials)]
    means = {key: sum(one[key] for one in trials) / len(trials) for key in ("prompt_tps", "generation_tps")}
    say(means | {"peak_memory_gb": trials[-1]["peak_memory_gb"], "trials": trials, "versions": versions})


if __name__ == "__main__":
    main()
