"""A tokenizer file of tiktoken, and the ids that the package tiktoken 0.14.0 gives to odd texts.

`python tests/goldens/ranks.py`, in a venv with `tiktoken==0.14.0`, trains a small vocabulary on the project's pages with Kimi's way of cutting words
and writes to `tests/goldens/tiktoken/`:

    tiktoken.model          tokens in base64 with their ranks
    tokenizer_config.json   the special tokens, as `added_tokens_decoder`
    expected.json           pattern, texts with their ids, special tokens recognized
"""

import base64
import json
import random
from pathlib import Path

import tiktoken
from tiktoken._educational import bpe_train

ROOT = Path(__file__).parents[2]
OUT = Path(__file__).parent / "tiktoken"
NUM_TOKENS = 1600
LETTER = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{LETTER}]*[\p{{Ll}}{LETTER}]+{ENDING}",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{LETTER}]+[\p{{Ll}}{LETTER}]*{ENDING}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip
SPECIAL = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>"]
SOURCES = ["README.md", "docs/architecture.md", "docs/decisions/0030-families.md", "crates/lm/src/tokenizer.rs"]
CHINESE = "你好，世界。模型把中文字符看成单独的词。月は東に日は西に。안녕하세요 세계. " * 20
TEXTS = [
    "", " ", "  ", "\n", "\r\n", " \n\n\t x", "a", "Hello, world!", "HELLO world's they'LL it'd O'Neil", "MixedCaseWords andMORE",
    "1234567890 3.14 ٣٤٥ ⅷ", "你好world世界 你好", "日本語とカタカナ、한국어 텍스트", "naïve café e\u0301 ﬁ", "🪨🪨👩‍👩‍👧‍👦 🇩🇪", "ℵ∞≠ ∑x² → y",
    "{\n    \"a\": [1, 2],\n}\n", "if (x) {\n\treturn  y;   \n}", "aaaaaaaaaaaaaaa", "-" * 37, " " * 100, "\u00a0\u2003 \u200b\ufeff", "Ǆ ǅ ǆ ʰʱ", "\u0000\u0001\u007f",
    "[BOS]a[EOS]", "<|im_user|>user<|im_end|>x", "<|im_ end|>", "the the the The THE",
]  # fmt: skip


def odd_texts(seed):
    """Texts of pieces that meet where nobody would put them."""
    draw = random.Random(seed)
    pieces = [text for text in TEXTS if text and "[" not in text and "<|" not in text]
    return ["".join(draw.choice(pieces)[: draw.randint(1, 9)] for _ in range(12)) for _ in range(60)]


def main():
    corpus = "\n".join((ROOT / source).read_text() for source in SOURCES) + CHINESE
    # The trainer cuts with `regex`, which wants version 1 for intersections of sets.
    ranks = bpe_train(corpus, NUM_TOKENS, "(?V1)" + PATTERN, visualise=None)
    special = {token: NUM_TOKENS + index for index, token in enumerate(SPECIAL)}
    encoding = tiktoken.Encoding("golden", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    OUT.mkdir(exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda entry: entry[1])]
    (OUT / "tiktoken.model").write_text("".join(lines))
    added = {str(id): {"content": token, "special": True} for token, id in special.items()}
    config = {"bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added}
    (OUT / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    texts = [*TEXTS, *odd_texts(0)]
    cases = [{"text": text, "ids": encoding.encode(text, allowed_special="all")} for text in texts]
    text = "".join(f"  {json.dumps(case, ensure_ascii=True)},\n" for case in cases)
    (OUT / "expected.json").write_text('{"tiktoken": "0.14.0", "cases": [\n' + text.rstrip(",\n") + "\n]}\n")
    print(len(ranks), "tokens,", len(cases), "texts,", sum(len(case["ids"]) for case in cases), "ids")


if __name__ == "__main__":
    main()
