#!/usr/bin/env bash
# Cairn against mlx-lm on a CUDA device: random 4-bit weights of three llama shapes, both sides in turn, and the ratios at the
# end, above 1 where Cairn is better.
# usage: gpu.sh [SHAPE]...                     shapes: smollm2-135m llama-3.2-1b llama-3.1-8b; all by default
#   PYTHON         has mlx[cuda13]==0.32.2 and mlx-lm==0.32.0                                            (python3)
#   DECODE_SPEED   crates/lm/examples/decode_speed.rs, built with --release                              (built here)
# Our side runs on the libmlx.so that it finds first: LD_LIBRARY_PATH must name the CUDA wheel's lib folder and CUDA's libraries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if [ -z "${DECODE_SPEED:-}" ]; then
  (cd "$here/../.." && cargo build --release -p cairn-lm --example decode_speed)
  DECODE_SPEED=$here/../../target/release/examples/decode_speed
fi
shapes=("$@")
[ $# -gt 0 ] || shapes=(smollm2-135m llama-3.2-1b llama-3.1-8b)
# MLX 0.32.2 gives up for good after 800 misses of its graph cache, however many hits there were. The same on both sides.
export MLX_ENABLE_CACHE_THRASHING_CHECK=0
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for shape in "${shapes[@]}"; do
  "$python" "$here/gpu_mlx_lm.py" "$shape" | tee -a "$results/mlx_lm"
  "$DECODE_SPEED" "$shape" | tee -a "$results/cairn"
done
"$python" - "$results/cairn" "$results/mlx_lm" <<'P'
import json, sys

cairn, mlx_lm = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
rows = (("decode_tps", "decode, tok/s"), ("ttft_ms", "first token, ms"), ("aggregate_tps", "tok/s"), ("peak_gb", "peak memory, GB"))
print(f"{'':16}{'':28}{'Cairn':>9}{'mlx-lm':>9}{'ratio':>8}")
for ours, theirs in zip(cairn, mlx_lm, strict=True):
    streams = f"{ours['batch']} streams, " if "batch" in ours else ""
    for key, what in rows:
        if key in ours:
            less_is_better = key in ("ttft_ms", "peak_gb")
            ratio = theirs[key] / ours[key] if less_is_better else ours[key] / theirs[key]
            print(f"{ours['model']:16}{streams + what:28}{ours[key]:9.1f}{theirs[key]:9.1f}{ratio:8.2f}")
P
