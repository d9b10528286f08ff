"""Lets mlx-lm 0.32.2 run experts with quantized weights on MLX 0.32.2. Importing this is enough.

mlx-lm passes `global_scale` to `mx.gather_qmm`, None unless an nvfp4 checkpoint has such scales; MLX 0.32.2 refuses the keyword. This drops
it where it is None. Later versions of MLX know it, and keep their own function.

A script imports it before a model computes. It is no part of target/oracle, because the benchmarks on a GPU and whoever makes goldens bring
a Python of their own.
"""

import functools

import mlx.core as mx


def _without_global_scale(product):
    @functools.wraps(product)
    def call(*arguments, global_scale=None, **options):
        if global_scale is not None:
            raise ValueError("this MLX cannot multiply with a global scale: use one that knows the keyword")
        return product(*arguments, **options)

    return call


if "global_scale" not in (mx.gather_qmm.__doc__ or ""):
    mx.gather_qmm = _without_global_scale(mx.gather_qmm)
