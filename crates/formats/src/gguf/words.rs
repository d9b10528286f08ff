//! How byte-level tokenizers cut text into words, by the names that GGUF has for it.

use serde_json::{Value, json};

use super::error::{quoted, unsupported};
use super::{GgufFile, GgufProblem};

/// Contractions, letters, up to three digits, punctuation, line ends, spaces.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same, where punctuation has no line ends.
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words begin where lower case ends, single digits, and slashes behind punctuation.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with contractions and up to three digits.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same, but Chinese characters are words of their own.
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// DeepSeek V3's: numbers, Chinese and Japanese, then words and signs.
const DEEPSEEK_V3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+",
    r"[!-/:-~&&[^A-Za-z]][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
/// DeepSeek's first and V2's. Letters are those with cases that Unicode had before it was trained, but
/// for some alphabets.
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8f}\x{2d00}-\x{2d2d}\x{a790}-\x{a7fa}\x{ab30}-\x{ab6f}\x{10570}-\x{105bc}\x{16e40}-\x{16e7f}\x{1d400}-\x{1df2a}]]+",
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
    r"\s+$",
    r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+",
    r"\p{N}+",
];
/// DeepSeek Coder's first.
const DEEPSEEK_CODER: &[&str] =
    &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+", r"\p{N}"];

/// One way of cutting text into words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Words {
    cut: Cut,
    /// Whether characters are composed first.
    is_composed: bool,
    /// Whether a word that is a token is taken whole.
    pub ignores_merges: bool,
    /// Whether the begin token is added unless the file says otherwise.
    pub usually_adds_bos: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// GPT-2's words.
    Gpt2,
    /// The same with single digits.
    Digits,
    /// By an expression.
    At(&'static str),
    /// By several, each within what the former have left.
    Each(&'static [&'static str]),
}

const fn words(cut: Cut) -> Words {
    Words { cut, is_composed: false, ignores_merges: false, usually_adds_bos: false }
}

const LLAMA3_WORDS: Words =
    Words { ignores_merges: true, usually_adds_bos: true, ..words(Cut::At(LLAMA3)) };

/// The names that are known, in order.
const NAMED: &[(&str, Words)] = &[
    ("chatglm-bpe", words(Cut::At(LLAMA3))),
    ("codeshell", words(Cut::Digits)),
    ("command-r", Words { is_composed: true, ..words(Cut::Digits) }),
    ("dbrx", words(Cut::At(LLAMA3))),
    ("deepseek-coder", words(Cut::Each(DEEPSEEK_CODER))),
    ("deepseek-llm", words(Cut::Each(DEEPSEEK_LLM))),
    ("deepseek-r1-qwen", Words { is_composed: true, ..words(Cut::At(QWEN2)) }),
    ("deepseek-v3", words(Cut::Each(DEEPSEEK_V3))),
    ("default", words(Cut::Gpt2)),
    ("exaone", words(Cut::Digits)),
    ("exaone4", words(Cut::Gpt2)),
    ("falcon3", LLAMA3_WORDS),
    ("glm4", words(Cut::At(LLAMA3))),
    ("gpt-2", words(Cut::Gpt2)),
    ("gpt-4o", words(Cut::At(GPT_4O))),
    ("kimi-k2", words(Cut::At(KIMI))),
    ("llama-bpe", LLAMA3_WORDS),
    ("llama-v3", LLAMA3_WORDS),
    ("llama3", LLAMA3_WORDS),
    ("llama4", words(Cut::At(GPT_4O))),
    ("olmo", words(Cut::Gpt2)),
    ("phi-2", words(Cut::Gpt2)),
    ("pixtral", LLAMA3_WORDS),
    ("qwen2", Words { is_composed: true, ..words(Cut::At(QWEN2)) }),
    ("refact", words(Cut::Digits)),
    ("seed-coder", words(Cut::At(SEED))),
    ("smaug-bpe", words(Cut::At(LLAMA3))),
    ("smollm", words(Cut::Digits)),
    ("stablelm2", words(Cut::At(QWEN2))),
    ("starcoder", words(Cut::Digits)),
    ("tekken", Words { ignores_merges: true, usually_adds_bos: true, ..words(Cut::At(TEKKEN)) }),
];

impl Words {
    /// The way that a file names; without a name GPT-2's.
    pub fn read(gguf: &GgufFile) -> Result<Words, GgufProblem> {
        const KEY: &str = "tokenizer.ggml.pre";
        let name = gguf.text(KEY)?.unwrap_or("default");
        Words::named(name).ok_or_else(|| {
            let names: Vec<&str> = NAMED.iter().map(|(known, _)| *known).collect();
            unsupported(KEY, quoted(name), &names.join(", "))
        })
    }

    /// The way with this name.
    pub fn named(name: &str) -> Option<Words> {
        NAMED.iter().find(|(known, _)| *known == name).map(|(_, words)| *words)
    }

    /// What is done to text first.
    pub fn normalizer(self) -> Value {
        if self.is_composed { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// What cuts text into words of bytes.
    pub fn pre_tokenizer(self) -> Value {
        let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let mut parts = match self.cut {
            Cut::Gpt2 => return byte_level(true),
            Cut::Digits => vec![json!({"type": "Digits", "individual_digits": true})],
            Cut::At(pattern) => vec![split(&pattern)],
            Cut::Each(patterns) => patterns.iter().map(split).collect(),
        };
        parts.push(byte_level(self.cut == Cut::Digits));
        json!({"type": "Sequence", "pretokenizers": parts})
    }
}

/// Bytes as letters; with GPT-2's words or without.
pub fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}
