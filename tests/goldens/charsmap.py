"""Writes charsmap.json: a table of replaced characters that SentencePiece compiles from a few rules,
and the texts that it makes of others.

    pip install sentencepiece
    python tests/goldens/charsmap.py
"""

import base64
import io
import json
import tempfile
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

RULES = {"Ａ": "A", "ﬁ": "fi", "½": "1⁄2", "e\u0301": "é", "\u200b": "", "a\u0308": "ä", "…": "..."}
TEXTS = ["", "plain", "ＡＡ Ｂ", "ﬁne ½…", "cafe\u0301 a\u0308", "zero\u200bwidth", "日本語 🙂"]


def main():
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        for source, target in RULES.items():
            rules.write("\t".join(" ".join(f"{ord(char):X}" for char in text) for text in (source, target)) + "\n")
        rules.flush()
        target = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 4), model_writer=target, vocab_size=40, normalization_rule_tsv=rules.name,
            remove_extra_whitespaces=False, add_dummy_prefix=False, hard_vocab_limit=False,
            minloglevel=2, num_threads=1,
        )  # fmt: skip
    proto = sentencepiece_model_pb2.ModelProto.FromString(target.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_proto=target.getvalue())
    golden = {
        "table": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode(),
        "texts": [{"text": text, "normalized": model.normalize(text).replace("\u2581", " ")} for text in TEXTS],
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


main()
