"""Whether mlx-lm goes on from Cairn's files as Cairn does. By hand, in a venv holding `mlx[cpu]==0.32.2` and `mlx-lm==0.32.2`:

    cargo run -p cairn-engine --example exports -- MODEL_FOLDER OUT_FOLDER
    python tests/goldens/check_exports.py OUT_FOLDER

The prompt is continued by `mlx_lm.generate --prompt-cache-file`, the conversation through `load_prompt_cache` and `generate_step`. Equal on
`llama/tiny-chat` and on SmolLM2-135M-Instruct (a CPU, float32).
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm import generate, load
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import load_prompt_cache


def prompt(folder, expected):
    """What the command prints."""
    sys.argv = ["mlx_lm.generate", "--prompt-cache-file", str(folder / "prompt.safetensors"), "--prompt", expected["question"],
                "--max-tokens", str(expected["max_tokens"]), "--temp", "0", "--verbose", "False"]  # fmt: skip
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        sys.modules[generate.__module__].main()
    return printed.getvalue().rstrip("\n")


def conversation(folder, expected, model_name):
    model, tokenizer = load(model_name)
    model.update(tree_map(lambda w: w.astype(mx.float32) if mx.issubdtype(w.dtype, mx.floating) else w, model.parameters()))
    cache, metadata = load_prompt_cache(str(folder / "conversation.safetensors"), return_metadata=True)
    assert metadata["cairn_kind"] == "conversation" and metadata["model"] == model_name, metadata
    tokens = []
    for token, _ in generate_step(mx.array(expected["more"]), model, max_tokens=len(expected["tokens"]), prompt_cache=cache):
        if int(token) in tokenizer.eos_token_ids:
            break
        tokens.append(int(token))
    return tokens


def main():
    mx.set_default_device(mx.cpu)
    folder = Path(sys.argv[1])
    expected = json.loads((folder / "exports.json").read_text())
    is_equal = True
    for kind, found, wanted in [
        ("prompt", prompt(folder, expected["prompt"]), expected["prompt"]["text"].rstrip("\n")),
        ("conversation", conversation(folder, expected["conversation"], expected["model"]), expected["conversation"]["tokens"]),
    ]:
        print(f"{kind}: {'equal' if found == wanted else 'different'}\n  mlx-lm {found!r}\n  Cairn  {wanted!r}")
        is_equal &= found == wanted
    sys.exit(not is_equal)


if __name__ == "__main__":
    main()
