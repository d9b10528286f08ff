"""Writes gguf_names.json: for each architecture that is imported, the names that the `gguf` package 0.19.0 has for its tensors, without
layer and suffix.

    pip install gguf==0.19.0
    python tests/goldens/gguf_names.py
"""

import json
from pathlib import Path

from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

NAMES = (
    "llama internlm2 xverse smollm3 granite granitemoe qwen2 qwen2moe qwen3 qwen3moe gemma gemma2 gemma3 phi3 starcoder2 stablelm "
    "olmo2 olmoe command-r cohere2 glm4 exaone4 seed_oss ernie4_5 phimoe gpt-oss glm4moe deepseek2 llama4 mistral3"
).split()


def main():
    by_name = {name: architecture for architecture, name in MODEL_ARCH_NAMES.items()}
    names = {
        name: sorted({TENSOR_NAMES[tensor].removeprefix("blk.{bid}.") for tensor in MODEL_TENSORS[by_name[name]]})
        for name in NAMES
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(tensors)}" for name, tensors in names.items())
    Path(__file__).with_name("gguf_names.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
