"""mlx_lm.server, with its own flags, on an MLX that needs `global_scale`."""

import global_scale  # noqa: F401
from mlx_lm.server import main

main()
