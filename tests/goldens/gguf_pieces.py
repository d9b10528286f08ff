"""Writes gguf_pieces.json: small vocabularies that SentencePiece trains on this repository's
documentation, as GGUF stores them, and the ids that it gives to texts.

    pip install sentencepiece
    python tests/goldens/gguf_pieces.py
"""

import io
import json
from pathlib import Path

import sentencepiece

TEXTS = [
    "a", "The model reads a prompt.", "  two  spaces ", "tokens\nand\tlines", "naïve café 🙂",
    "unbelievable tokenization", "1234567890", "", " ", "Ask a question about many texts!!!",
    "llama.cpp, mlx-lm & GGUF (v3)", "日本語",
]
MODELS = {
    "llama": {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False},
    "t5": {"model_type": "unigram", "byte_fallback": False, "remove_extra_whitespaces": False},
}
HERE = Path(__file__).parent


def kind(model, piece):
    if model.is_unknown(piece):
        return 2
    if model.is_control(piece):
        return 3
    return 6 if model.is_byte(piece) else 1


def main():
    lines = [
        line
        for name in ("prompt-cache.md", "glossary.md", "architecture.md")
        for line in (HERE.parent.parent / "docs" / name).read_text().splitlines()
    ]
    goldens = {}
    for name, settings in MODELS.items():
        target = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=target,
            vocab_size=700,
            normalization_rule_name="identity",
            minloglevel=2,
            num_threads=1,
            **settings,
        )
        model = sentencepiece.SentencePieceProcessor(model_proto=target.getvalue())
        ids = range(model.vocab_size())
        goldens[name] = {
            "tokens": [model.id_to_piece(i) for i in ids],
            "scores": [model.get_score(i) for i in ids],
            "kinds": [kind(model, i) for i in ids],
            "texts": [
                {"text": text, "ids": model.encode(text), "decoded": model.decode(model.encode(text))}
                for text in TEXTS
            ],
        }
    text = json.dumps(goldens, ensure_ascii=False, separators=(",", ":"))
    Path(__file__).with_suffix(".json").write_text(text + "\n")


main()
