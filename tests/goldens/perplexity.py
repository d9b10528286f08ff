"""The perplexity that mlx-lm 0.32.2 on MLX 0.32.2 (CPU) measures of `llama/tiny-chat` in float32, by `mlx_lm.perplexity`.

`python tests/goldens/make_goldens.py perplexity` writes `tests/goldens/perplexity.json`:

    model   the name of the model in this folder
    data    name → rows in each of the forms that mlx-lm takes: "text", "messages", or "prompt" and "completion"
    cases   {data, sequence_length, num_samples, batch_size, seed} and what comes of them: samples (rows of tokens), perplexity, standard_error

`load_data` draws the order of the rows from numpy's generator, so the first samples depend on the seed. mlx-lm 0.32.2 has the same file.
"""

import json
import tempfile
from types import SimpleNamespace

import mlx_lm.perplexity as reference
import numpy as np
from mlx_lm.tuner.datasets import create_dataset
from mlx_lm.utils import load_tokenizer
from oracle import GOLDENS, check_versions, open_model

MODEL = "llama/tiny-chat"
PILES = ["a pile of stones", "a mark on a path", "built by whoever passes", "seen from afar in fog", "older than the map", "one stone more"]


def message(role, content):
    return {"role": role, "content": content}


DATA = {
    "texts": [{"text": f"{number}. A cairn is {pile}. " * (1 + number % 3)} for number, pile in enumerate(PILES * 3)],
    "chats": [
        {"messages": [message("system", "Be brief."), message("user", f"Is a cairn {pile}?"), message("assistant", "It is.")]}
        for pile in PILES
    ],
    "completions": [{"prompt": f"What is {pile}?", "completion": f"A cairn: {pile}."} for pile in PILES],
}
CASES = [
    dict(data="texts", sequence_length=64, num_samples=8, batch_size=3, seed=123),
    dict(data="texts", sequence_length=64, num_samples=8, batch_size=8, seed=7),
    dict(data="chats", sequence_length=48, num_samples=5, batch_size=2, seed=123),
    dict(data="completions", sequence_length=32, num_samples=4, batch_size=8, seed=4294967295),
]


def measured(model, tokenizer, case):
    """What `mlx_lm.perplexity` prints, with the rows in place of a dataset of the hub."""
    rows = create_dataset(DATA[case["data"]], tokenizer, SimpleNamespace())
    reference.load_dataset = lambda arguments, tokenizer: [rows]
    np.random.seed(case["seed"])
    data = reference.load_data(tokenizer, "", case["num_samples"], case["sequence_length"])
    perplexity, standard_error = reference.eval_ppl(model, data, case["batch_size"])
    return case | dict(samples=data.tolist(), perplexity=perplexity, standard_error=standard_error)


def main():
    check_versions()
    with tempfile.TemporaryDirectory() as folder:
        model, _ = open_model(MODEL, folder)
        tokenizer = load_tokenizer(folder)
        cases = [measured(model, tokenizer, case) for case in CASES]
    parts = [f' "model": {json.dumps(MODEL)}', f' "data": {json.dumps(DATA)}']
    parts += [' "cases": [\n  ' + ",\n  ".join(json.dumps(case) for case in cases) + "\n ]"]
    (GOLDENS / "perplexity.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
