"""What mlx-lm 0.32.2 on MLX 0.32.2 (CPU) samples, and what its logits processors return, for random logits.

`python tests/goldens/make_goldens.py sampling` writes `tests/goldens/sampling.json`:

    logits      [2][24]   random, 3 times standard normal
    tokens      [30]      random ids below 24
    samplers    cases of {arguments of make_sampler, seed, draws [8][2]}: eight draws in a row from both rows of logits at once, after
                mx.random.seed(seed)
    processors  cases of {arguments of make_logits_processors, dtype, logits [24]}: the first row, cast to dtype, after all processors with
                the tokens as context
"""

import json
from pathlib import Path

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from oracle import check_versions

SAMPLERS = [
    dict(temp=1.0),
    dict(temp=0.7),
    dict(temp=2.5, top_p=0.8),
    dict(temp=1.5, min_p=0.1),
    dict(temp=3.0, min_p=0.9, min_tokens_to_keep=4),
    dict(temp=2.0, top_k=3),
    dict(temp=1.5, xtc_probability=0.5, xtc_threshold=0.1),
    dict(temp=1.5, xtc_probability=1.0, xtc_threshold=0.05, xtc_special_tokens=[3, 9]),
    dict(temp=2.0, top_p=0.95, min_p=0.02, xtc_probability=0.5, xtc_threshold=0.1, top_k=6),
]
PROCESSORS = [
    dict(logit_bias={0: 5.0, 7: -2.5}),
    dict(repetition_penalty=1.3),
    dict(repetition_penalty=0.8, repetition_context_size=4),
    dict(repetition_penalty=1.3, repetition_context_size=0),
    dict(presence_penalty=0.75, presence_context_size=10),
    dict(frequency_penalty=-0.4),
    dict(frequency_penalty=0.6, frequency_context_size=1000),
    dict(logit_bias={2: 1.5}, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.25),
]


def draws(logits, seed, arguments):
    sampler = make_sampler(**arguments)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.random.seed(seed)
    return [sampler(logprobs).tolist() for _ in range(8)]


def processed(logits, tokens, arguments):
    for processor in make_logits_processors(**arguments):
        logits = processor(tokens, logits)
    return logits[0].astype(mx.float32).tolist()


def main():
    check_versions()
    mx.random.seed(20)
    logits = mx.round(3 * mx.random.normal((2, 24)), decimals=4)
    tokens = mx.random.randint(0, 24, (30,))
    mx.eval(logits, tokens)
    samplers = [
        arguments | dict(seed=seed, draws=draws(logits, seed, arguments)) for arguments in SAMPLERS for seed in (0, 7, 2**40 + 3)
    ]
    processors = [
        arguments | dict(dtype=dtype, logits=processed(logits[:1].astype(getattr(mx, dtype)), tokens, arguments))
        for arguments in PROCESSORS
        for dtype in ("float32", "bfloat16")
    ]
    out = dict(logits=logits.tolist(), tokens=tokens.tolist(), samplers=samplers, processors=processors)
    lines = [f'"{key}": {json.dumps(value)}' for key, value in out.items() if key in ("logits", "tokens")]
    lines += [f'"{key}": [\n' + ",\n".join(json.dumps(case) for case in out[key]) + "\n]" for key in ("samplers", "processors")]
    (Path(__file__).parent / "sampling.json").write_text("{" + ",\n".join(lines) + "}\n")
