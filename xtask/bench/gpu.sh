#!/usr/bin/env bash
# Cairn against mlx-lm on a CUDA device: random weights, 4-bit but for the shapes that end in -bf16, of several architectures, both sides
# in turn from the same folder, and the ratios at the end, above 1 where Cairn is better. First, the kernels are compared with the
# plain forms.
# usage: gpu.sh [SHAPE]...     the shapes of crates/lm/examples/decode_speed/shapes.rs, by default all but the largest two; the
#                              models of xtask/bench/models; and check=NAME, which only compares the kernels with the plain forms
#                              in a small model of the family tests/goldens/NAME
#   PYTHON         has mlx[cuda13]==0.32.2 and mlx-lm==0.32.2                                            (python3)
#   DECODE_SPEED   crates/lm/examples/decode_speed, built with --release                                 (built here)
# Our side runs on the libmlx.so that it finds first: LD_LIBRARY_PATH must name the CUDA wheel's lib folder and CUDA's libraries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if [ -z "${DECODE_SPEED:-}" ]; then
  (cd "$here/../.." && cargo build --release -p cairn-lm --example decode_speed)
  DECODE_SPEED=$here/../../target/release/examples/decode_speed
fi
shapes=("$@")
[ $# -gt 0 ] || shapes=(smollm2-135m llama-3.2-1b qwen3-0.6b gemma-3-1b qwen3-next-12)
# MLX 0.32.2 gives up for good after 800 misses of its graph cache, however many hits there were. The same on both sides.
export MLX_ENABLE_CACHE_THRASHING_CHECK=0
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
"$DECODE_SPEED" check
touch "$results/cairn" "$results/mlx_lm"
for shape in "${shapes[@]}"; do
  if [[ $shape == check=* ]]; then
    family=${shape#check=}
    config=$(ls "$here/../../tests/goldens/$family"/*/config.json | head -1)
    "$python" "$here/random_model.py" "$config" "$results/model" --larger
    "$DECODE_SPEED" check-folder "$family" "$results/model" "$("$python" "$here/gpu_mlx_lm.py" --rounding "$results/model")"
    rm -r "$results/model"
    continue
  fi
  if [ -e "$here/models/$shape.json" ]; then
    "$python" "$here/random_model.py" "$here/models/$shape.json" "$results/model"
  else
    "$DECODE_SPEED" write "$shape" "$results/model"
  fi
  "$python" "$here/gpu_mlx_lm.py" "$shape" "$results/model" | tee -a "$results/mlx_lm"
  rounding=$("$python" "$here/gpu_mlx_lm.py" --rounding "$results/model")
  "$DECODE_SPEED" measure "$shape" "$results/model" "$rounding" | tee -a "$results/cairn"
  rm -r "$results/model"
done
"$python" - "$results/cairn" "$results/mlx_lm" <<'P'
import json, sys

cairn, mlx_lm = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
rows = (("decode_tps", "decode, tok/s"), ("ttft_ms", "first token, ms"), ("prefill_tps", "prefill, tok/s"), ("batch_tps", "decode, tok/s"), ("peak_gb", "peak memory, GB"))
print(f"{'':16}{'':30}{'Cairn':>9}{'mlx-lm':>9}{'ratio':>8}")
for ours in cairn:
    theirs = next(line for line in mlx_lm if line["model"] == ours["model"] and line.get("batch") == ours.get("batch"))
    label = f"{ours['batch']} streams, " if "batch" in ours else f"{ours['form']}, "
    for key, what in rows:
        if key in ours:
            less_is_better = key in ("ttft_ms", "peak_gb")
            ratio = theirs[key] / ours[key] if less_is_better else ours[key] / theirs[key]
            print(f"{ours['model']:16}{label + what:30}{ours[key]:9.1f}{theirs[key]:9.1f}{ratio:8.2f}")
P
