#!/usr/bin/env bash
# Rows behind a prefix, log-probabilities, questions about one text, schemas and the server on a CUDA device, with random 4-bit
# weights; both sides in turns. One JSON line or table row a measurement.
# usage: gpu_asks.sh TOKENIZER_FOLDER [SHAPE]...    a folder with tokenizer.json and a chat template; by default 135M and 1B
#   PYTHON   has mlx[cuda13]==0.32.2 and mlx-lm==0.32.2                                              (python3)
#   GENLM    a command that measures genlm-backend's AsyncMlxLM with a model folder                  (left out)
#   ONLY     which parts: classify logprobs decisions schema server                                  (all)
# The release builds of cairn, xtask and the examples are in target/release. Our side runs on the libmlx.so that it finds first:
# LD_LIBRARY_PATH must name the CUDA wheel's lib folder and CUDA's libraries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
built=$here/../../target/release
python=${PYTHON:-python3}
tokenizer=$1
shift
shapes=("$@")
[ $# -gt 0 ] || shapes=(smollm2-135m llama-3.2-1b)
export MLX_ENABLE_CACHE_THRASHING_CHECK=0
models=$(mktemp -d)
trap 'rm -rf "$models"' EXIT
does() { [[ " ${ONLY:-classify logprobs decisions schema server} " == *" $1 "* ]]; }
for shape in "${shapes[@]}"; do
  model=$models/$shape
  "$built/examples/decode_speed" write "$shape" "$model"
  "$python" "$here/gpu_tokenizer.py" "$tokenizer" "$model"
  echo "== $shape"
  if does classify; then
    for turn in 1 2; do
      "$python" "$here/classify_side.py" "$model" 1000 30 1500 8
      for rows in 32 128; do "$built/examples/classify" "$model" 1000 30 1500 $rows; done
    done
    # Ten times the rows: the peak stays.
    "$built/examples/classify" "$model" 10000 30 1500 128
  fi
  if does logprobs; then
    for turn in 1 2 3; do
      [ -z "${GENLM:-}" ] || $GENLM "$model"
      "$built/examples/async_lm_speed" "$model"
    done
  fi
  if does decisions; then "$built/examples/decisions" "$model" 1500; fi
  if does schema; then "$built/examples/constrained_speed" "$model" 8; fi
  if does server; then "$built/xtask" bench-server --model "$model" --python "$(command -v "$python")"; fi
  rm -r "$model"
done
