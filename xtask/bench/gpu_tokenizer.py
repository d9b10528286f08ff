"""Gives a model folder of random weights a tokenizer with as many tokens as its config says.

usage: gpu_tokenizer.py TOKENIZER_FOLDER MODEL_FOLDER

The tokens beyond those of TOKENIZER_FOLDER are pairs of its words without merges: no text is encoded
with them, but what a model of random weights answers is full of them.
"""
import json
import pathlib
import sys

source, model = map(pathlib.Path, sys.argv[1:])
vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
tokenizer = json.loads((source / "tokenizer.json").read_text())
vocabulary = tokenizer["model"]["vocab"]
num_known = max(max(vocabulary.values()), *(token["id"] for token in tokenizer["added_tokens"])) + 1
words = sorted(vocabulary, key=vocabulary.get)
begins = [word for word in words if word.startswith("Ġ") and len(word) > 4]
ends = [word for word in words if word.isascii() and word.isalpha() and word.islower()]
index, next_id = 0, num_known
while next_id < vocab_size:
    pair = begins[index % len(begins)] + ends[(index * 7919 + index // 1000) % len(ends)]
    if pair not in vocabulary:
        vocabulary[pair] = next_id
        next_id += 1
    index += 1
(model / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
for name in ("tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json"):
    if (source / name).exists():
        (model / name).write_bytes((source / name).read_bytes())
