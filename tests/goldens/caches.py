"""Prompt-cache files as mlx-lm writes them, and what its caches return when they go on from there.

`python tests/goldens/make_goldens.py caches` writes to `tests/goldens/caches/`:

    <case>.safetensors            a file by `save_prompt_cache`, of the caches in CASES, with METADATA
    <case>.expected.safetensors   what the caches of that file, loaded again, return for steps of 1, 3 and 1 tokens:
                                  `<layer>.<step>.<i>`, or `<layer>.<entry>.<step>.<i>` in a CacheList, where i counts keys and values (or
                                  packed keys, their scales, their biases, then the values'); of an ArraysCache its slots, `<layer>.<slot>`
    attention.safetensors         inputs and outputs of `quantized_scaled_dot_product_attention`: `<D>.queries` and so on are inputs,
                                  `<D>.<bits>.<group_size>.<mask>.<L>.<dtype>` an output

With mlx-lm 0.30.4 in place of 0.32.2 it writes only `old-<case>`, the cases that version can save. Tokens are numbered from 0; keys and values
follow from `token`, so that whoever reads a file can go on in the same way.

    python tests/goldens/caches.py FOLDER

continues from the files `<case>.safetensors` (with mlx-lm 0.30.4: `old-<case>.safetensors`) in another folder and compares with what is in
`caches/`. On files that Cairn had loaded and saved again in the layout of each version, mlx-lm 0.32.0 and 0.30.4 found no difference in any case.
"""

import sys
from pathlib import Path

import mlx.core as mx
from mlx_lm.models import cache as kinds
from mlx_lm.models.base import create_causal_mask, quantized_scaled_dot_product_attention
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from oracle import check_versions

OUT = Path(__file__).parent / "caches"
METADATA = {"model": "some/model", "tokenizer_config": "{}", "note": "Grüße", "unknown": "1"}
HEADS = 2


def token(start, stop, dim):
    """Keys [1, HEADS, stop - start, dim] and values of the tokens: small numbers that float32 holds exactly."""
    head, position, channel = mx.arange(HEADS)[:, None, None], mx.arange(start, stop)[None, :, None], mx.arange(dim)[None, None]
    keys = ((7 * position + 3 * channel + 5 * head) % 11 - 5 + position / 64).astype(mx.float32)[None]
    return keys, -keys


def fill(cache, steps, dim=2):
    done = 0
    for length in steps:
        if hasattr(cache, "maybe_trim_front"):
            cache.maybe_trim_front()  # as Llama 4 does before each step
        cache.update_and_fetch(*token(done, done + length, dim))
        done += length
    return cache


def arrays(*slots):
    cache = kinds.ArraysCache(len(slots))
    for index, slot in enumerate(slots):
        cache[index] = slot
    return cache


def ramp(*shape):
    return mx.arange(mx.prod(mx.array(shape)).item(), dtype=mx.float32).reshape(shape) / 8


def trimmed(cache, count):
    cache.trim(count)
    return cache


OLD = {
    "kv": lambda: [fill(kinds.KVCache(), [5]), fill(kinds.KVCache(), [4, 1])],
    "rotating": lambda: [fill(kinds.RotatingKVCache(8, keep=2), steps) for steps in ([3, 1], [5, 4], [10, 1, 1])],
    "quantized": lambda: [fill(kinds.QuantizedKVCache(32, 4), [5], 32)],
    "arrays": lambda: [arrays(ramp(1, 3, 4), ramp(1, 2, 2, 2)), fill(kinds.KVCache(), [5])],
    # That version gives up its own room for tokens once it exceeds the chunk.
    "chunked": lambda: [fill(kinds.ChunkedKVCache(512), [3, 1])],
}
CASES = OLD | {
    "kv": lambda: [fill(kinds.KVCache(), [5]), trimmed(fill(kinds.KVCache(), [7]), 2), kinds.KVCache()],
    "rotating": lambda: [fill(kinds.RotatingKVCache(8, keep=2), steps) for steps in ([3, 1], [5, 4], [10, 1, 1], [12], [])],
    "quantized": lambda: [fill(kinds.QuantizedKVCache(32, bits), [5], 32) for bits in (4, 6)] + [kinds.QuantizedKVCache(64, 8)],
    "arrays": lambda: [arrays(ramp(1, 3, 4), None), fill(kinds.KVCache(), [5])],
    "chunked": lambda: [fill(kinds.ChunkedKVCache(4), steps) for steps in ([3, 1], [6, 1, 1])],
    "list": lambda: [
        kinds.CacheList(fill(kinds.KVCache(), [5]), fill(kinds.RotatingKVCache(4), [4, 1])),
        kinds.CacheList(arrays(ramp(1, 2)), fill(kinds.QuantizedKVCache(32, 3), [5], 32), fill(kinds.ChunkedKVCache(4), [5])),
    ],
    "mixed": lambda: [arrays(ramp(1, 3, 4), ramp(1, 2, 2)), fill(kinds.KVCache(), [7]), fill(kinds.RotatingKVCache(8), [7]), kinds.ArraysCache(1)],
}


def go_on(cache, name):
    """What the cache returns next, by name."""
    if isinstance(cache, kinds.CacheList):
        return {k: v for i, entry in enumerate(cache.caches) for k, v in go_on(entry, f"{name}.{i}").items()}
    if isinstance(cache, kinds.ArraysCache):
        return {f"{name}.{i}": slot for i, slot in enumerate(cache.cache) if slot is not None}
    found, dim = {}, cache.group_size if isinstance(cache, kinds.QuantizedKVCache) else 2
    for step, length in enumerate([1, 3, 1]):
        if hasattr(cache, "maybe_trim_front"):
            cache.maybe_trim_front()
        returned = cache.update_and_fetch(*token(cache.offset, cache.offset + length, dim))
        parts = [part for side in returned for part in (side if isinstance(side, (tuple, list)) else [side])]
        found |= {f"{name}.{step}.{i}": mx.contiguous(part) for i, part in enumerate(parts)}
    return found


def continued(path):
    caches, metadata = load_prompt_cache(str(path), return_metadata=True)
    assert metadata == METADATA, metadata
    return {k: v for layer, cache in enumerate(caches) for k, v in go_on(cache, str(layer)).items()}


def attention():
    """Outputs of quantized attention, four heads on two of keys, seven tokens."""
    found = {}
    cases = [(64, bits, 32, "causal", 3, mx.float32) for bits in (2, 3, 4, 6, 8)]
    cases += [(128, 4, group_size, "causal", 3, mx.float32) for group_size in (64, 128)]
    cases += [(64, 4, 64, mask, 3, mx.float32) for mask in ("none", "window", "rows")]
    cases += [(64, 8, 64, "none", 1, mx.float32), (64, 8, 64, "rows", 1, mx.float32)]
    cases += [(64, 8, 64, "causal", 3, mx.float16), (64, 8, 64, "causal", 3, mx.bfloat16)]
    for dim, bits, group_size, mask_name, length, dtype in cases:
        mx.random.seed(dim)
        inputs = {"queries": mx.random.normal((2, 4, 3, dim)), "keys": mx.random.normal((2, 2, 7, dim)), "values": mx.random.normal((2, 2, 7, dim))}
        found |= {f"{dim}.{name}": array for name, array in inputs.items()}
        queries, keys, values = (array.astype(dtype) for array in inputs.values())
        mask = {
            "none": None,
            "causal": "causal",
            "window": create_causal_mask(length, 7 - length, window_size=2),
            # The second row is padded by two on its left; a row that sees nothing must not become NaN.
            "rows": create_causal_mask(length, 7 - length, left_padding=mx.array([0, 5])),
        }[mask_name]
        output = quantized_scaled_dot_product_attention(
            queries[:, :, :length], mx.quantize(keys, group_size, bits), mx.quantize(values, group_size, bits),
            scale=dim**-0.5, mask=mask, group_size=group_size, bits=bits,
        )  # fmt: skip
        found[f"{dim}.{bits}.{group_size}.{mask_name}.{length}.{'f32' if dtype == mx.float32 else 'f16' if dtype == mx.float16 else 'bf16'}"] = output
    return found


def main():
    is_old = check_versions(allows_old=True)
    OUT.mkdir(exist_ok=True)
    for case, make in (OLD if is_old else CASES).items():
        path = OUT / f"{'old-' if is_old else ''}{case}.safetensors"
        save_prompt_cache(str(path), make(), METADATA)
        mx.save_safetensors(str(path.with_suffix("")) + ".expected.safetensors", continued(path))
    if not is_old:
        mx.save_safetensors(str(OUT / "attention.safetensors"), attention())


def check(folder, cases):
    for case in cases:
        found, expected = continued(folder / f"{case}.safetensors"), mx.load(str(OUT / f"{case}.expected.safetensors"))
        assert found.keys() == expected.keys() and all(mx.array_equal(found[name], expected[name]) for name in expected), case
        print(case, "continues alike")


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    is_old = check_versions(allows_old=True)
    check(Path(sys.argv[1]), [f"old-{case}" for case in OLD] if is_old else CASES)
