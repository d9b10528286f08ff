//! Writes `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` from the vocabulary
//! in GGUF: byte-level BPE, SentencePiece or unigram.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::error::{quoted, unsupported};
use super::pieces::Pieces;
use super::token_kinds::{CONTROL, NORMAL, USER_DEFINED};
use super::words::{Words, byte_level};
use super::{GgufFile, GgufProblem};
use crate::charsmap::check_charsmap;
use crate::excerpt::excerpt;

/// What ends a turn in files that do not say it, as llama.cpp takes it.
const ENDS_OF_TURN: [&str; 4] = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"];

/// Ids with a meaning for generation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// The token that begins every text.
    pub bos: Option<usize>,
    /// The end of the sequence and, where it is another token, the end of a turn.
    pub eos: Vec<usize>,
    unknown: Option<usize>,
    padding: Option<usize>,
}

impl SpecialIds {
    /// One id as a number, several as a list.
    pub fn eos_value(&self) -> Option<Value> {
        match self.eos.as_slice() {
            [] => None,
            [one] => Some(json!(one)),
            several => Some(json!(several)),
        }
    }
}

/// The contents of the three files.
#[derive(Debug)]
pub struct TokenizerFiles {
    /// `tokenizer.json`
    pub tokenizer: Value,
    /// `tokenizer_config.json`
    pub tokenizer_config: Value,
    /// `generation_config.json`
    pub generation_config: Value,
    /// The ids that `config.json` repeats.
    pub special: SpecialIds,
}

/// How text becomes tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ByteLevel(Words),
    SentencePiece,
    Unigram,
}

impl Kind {
    fn read(gguf: &GgufFile) -> Result<Kind, GgufProblem> {
        const KEY: &str = "tokenizer.ggml.model";
        match required(gguf.text(KEY)?, KEY)? {
            "gpt2" => Words::read(gguf).map(Kind::ByteLevel),
            "llama" => Ok(Kind::SentencePiece),
            "t5" => Ok(Kind::Unigram),
            other => Err(unsupported(
                KEY,
                quoted(other),
                "gpt2 (byte-level BPE), llama (SentencePiece) and t5",
            )),
        }
    }

    /// Whether llama.cpp adds the begin token unless the file says otherwise.
    fn usually_adds_bos(self) -> bool {
        match self {
            Kind::ByteLevel(words) => words.usually_adds_bos,
            Kind::SentencePiece => true,
            Kind::Unigram => false,
        }
    }
}

/// The value of `chat_template`: a text, or a list of named texts if there are several; `None` if
/// there is no template.
fn chat_template(gguf: &GgufFile) -> Result<Option<Value>, GgufProblem> {
    const KEY: &str = "tokenizer.chat_template";
    let default = gguf.text(KEY)?;
    let listed = gguf.texts("tokenizer.chat_templates")?.unwrap_or_default();
    let names: BTreeSet<&str> = listed.into_iter().chain(["tool_use"]).collect();
    let mut named: Vec<Value> = Vec::new();
    for name in names.into_iter().filter(|name| *name != "default") {
        if let Some(template) = gguf.text(&format!("{KEY}.{name}"))? {
            named.push(json!({ "name": name, "template": template }));
        }
    }
    match (default, named.is_empty()) {
        (None, true) => Ok(None),
        (Some(template), true) => Ok(Some(json!(template))),
        (None, false) => Ok(Some(Value::Array(named))),
        (Some(template), false) => {
            named.insert(0, json!({ "name": "default", "template": template }));
            Ok(Some(Value::Array(named)))
        }
    }
}

impl TokenizerFiles {
    /// `vocab_size` is the number of embedding rows; `context_length` becomes `model_max_length`.
    pub fn read(
        gguf: &GgufFile,
        vocab_size: usize,
        context_length: usize,
    ) -> Result<TokenizerFiles, GgufProblem> {
        let kind = Kind::read(gguf)?;
        let tokens = tokens(gguf, vocab_size)?;
        let kinds = token_kinds(gguf, tokens.len())?;
        let special = special_ids(gguf, &tokens, &kinds)?;
        let says = |name: &str, usual: bool| {
            gguf.flag(&format!("tokenizer.ggml.{name}")).map(|flag| flag.unwrap_or(usual))
        };
        let add_bos = says("add_bos_token", kind.usually_adds_bos())? && special.bos.is_some();
        let add_eos = says("add_eos_token", kind == Kind::Unigram)? && !special.eos.is_empty();
        let is_byte_level = matches!(kind, Kind::ByteLevel(_));
        let add_space = says("add_space_prefix", !is_byte_level)? && !is_byte_level;
        let begin = special.bos.filter(|_| add_bos);
        let end = special.eos.first().copied().filter(|_| add_eos);

        let mut tokenizer_config = Map::new();
        tokenizer_config.insert("add_bos_token".into(), json!(add_bos));
        tokenizer_config.insert("add_eos_token".into(), json!(add_eos));
        tokenizer_config.insert("add_prefix_space".into(), json!(add_space));
        for (key, id) in [
            ("bos_token", special.bos),
            ("eos_token", special.eos.first().copied()),
            ("pad_token", special.padding),
            ("unk_token", special.unknown),
        ] {
            if let Some(id) = id {
                tokenizer_config.insert(key.into(), json!(tokens[id]));
            }
        }
        if let Some(template) = chat_template(gguf)? {
            tokenizer_config.insert("chat_template".into(), template);
        }
        tokenizer_config.insert("clean_up_tokenization_spaces".into(), json!(false));
        tokenizer_config.insert("model_max_length".into(), json!(context_length));
        tokenizer_config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        let mut tokenizer = match kind {
            Kind::ByteLevel(words) => byte_level_json(gguf, words, &tokens)?,
            Kind::SentencePiece | Kind::Unigram => {
                let scores = scores(gguf, tokens.len())?;
                let pieces = Pieces {
                    tokens: &tokens,
                    kinds: &kinds,
                    scores: &scores,
                    unknown: special.unknown,
                    add_space,
                    removes_extra_spaces: says("remove_extra_whitespaces", false)?,
                };
                match kind {
                    Kind::Unigram => pieces.unigram(charsmap(gguf)?)?,
                    _ => pieces.sentence_piece()?,
                }
            }
        };
        for (key, value) in [
            ("version", json!("1.0")),
            ("truncation", Value::Null),
            ("padding", Value::Null),
            ("added_tokens", added_tokens(&tokens, &kinds)),
            ("post_processor", post_processor(&tokens, begin, end)),
        ] {
            tokenizer[key] = value;
        }
        Ok(TokenizerFiles {
            tokenizer,
            tokenizer_config: Value::Object(tokenizer_config),
            generation_config: generation_config(&special),
            special,
        })
    }
}

/// What `tokenizer.json` says of a byte-level BPE.
fn byte_level_json(gguf: &GgufFile, words: Words, tokens: &[&str]) -> Result<Value, GgufProblem> {
    let id_of: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_string(), json!(id))).collect();
    Ok(json!({
        "normalizer": words.normalizer(),
        "pre_tokenizer": words.pre_tokenizer(),
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": words.ignores_merges,
            "vocab": vocab,
            "merges": merges(gguf, &id_of)?,
        },
    }))
}

fn generation_config(special: &SpecialIds) -> Value {
    let mut config = Map::new();
    if let Some(bos) = special.bos {
        config.insert("bos_token_id".into(), json!(bos));
    }
    if let Some(eos) = special.eos_value() {
        config.insert("eos_token_id".into(), eos);
    }
    if let Some(padding) = special.padding {
        config.insert("pad_token_id".into(), json!(padding));
    }
    Value::Object(config)
}

/// The vocabulary: different tokens, at most one for each of the `vocab_size` embedding rows.
fn tokens(gguf: &GgufFile, vocab_size: usize) -> Result<Vec<&str>, GgufProblem> {
    const KEY: &str = "tokenizer.ggml.tokens";
    let tokens = required(gguf.texts(KEY)?, KEY)?;
    if tokens.is_empty() || tokens.len() > vocab_size {
        return Err(GgufProblem::UnsupportedValue {
            key: KEY.into(),
            found: tokens.len().to_string(),
            allowed: format!("1 to {vocab_size} tokens, one per embedding row"),
        });
    }
    let mut seen = HashSet::with_capacity(tokens.len());
    match tokens.iter().find(|token| !seen.insert(**token)) {
        Some(token) => Err(GgufProblem::DuplicateName { name: excerpt(token) }),
        None => Ok(tokens),
    }
}

fn required<T>(value: Option<T>, key: &str) -> Result<T, GgufProblem> {
    value.ok_or_else(|| GgufProblem::MissingKey { key: key.into() })
}

/// The merges as pairs; each must be two tokens that make a third, or the tokenizer would fail to
/// load much later.
fn merges(gguf: &GgufFile, id_of: &HashMap<&str, usize>) -> Result<Vec<[String; 2]>, GgufProblem> {
    let merges = required(gguf.texts("tokenizer.ggml.merges")?, "tokenizer.ggml.merges")?;
    let pair = |(index, merge): (usize, &str)| {
        // Byte-level tokens hold no space: it is one of the bytes written as another letter.
        let parts = merge.split_once(' ').filter(|(left, right)| {
            let whole = [*left, *right].concat();
            [left, right, whole.as_str()].iter().all(|token| id_of.contains_key(token))
        });
        let (left, right) =
            parts.ok_or_else(|| GgufProblem::BadMerge { index, merge: excerpt(merge) })?;
        Ok([left.to_string(), right.to_string()])
    };
    merges.into_iter().enumerate().map(pair).collect()
}

fn special_ids(gguf: &GgufFile, tokens: &[&str], kinds: &[i64]) -> Result<SpecialIds, GgufProblem> {
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match gguf.count(&key)? {
            Some(id) if id >= tokens.len() => Err(GgufProblem::UnsupportedValue {
                key,
                found: id.to_string(),
                allowed: format!("ids below {}", tokens.len()),
            }),
            id => Ok(id),
        }
    };
    let end_of_turn = match id("eot")? {
        Some(id) => Some(id),
        None => tokens
            .iter()
            .zip(kinds)
            .position(|(token, kind)| *kind == CONTROL && ENDS_OF_TURN.contains(token)),
    };
    let mut eos: Vec<usize> = Vec::new();
    for end in [id("eos")?, end_of_turn].into_iter().flatten() {
        if !eos.contains(&end) {
            eos.push(end);
        }
    }
    Ok(SpecialIds { bos: id("bos")?, eos, unknown: id("unknown")?, padding: id("padding")? })
}

/// The kind of each token.
fn token_kinds(gguf: &GgufFile, token_count: usize) -> Result<Vec<i64>, GgufProblem> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let kinds = gguf.integers(KEY)?.unwrap_or_else(|| vec![NORMAL; token_count]);
    check_length(KEY, kinds.len(), token_count)?;
    Ok(kinds)
}

/// The score of each token.
fn scores(gguf: &GgufFile, token_count: usize) -> Result<Vec<f64>, GgufProblem> {
    const KEY: &str = "tokenizer.ggml.scores";
    let scores = required(gguf.numbers(KEY)?, KEY)?;
    check_length(KEY, scores.len(), token_count)?;
    Ok(scores)
}

/// SentencePiece's table of characters that are replaced.
fn charsmap(gguf: &GgufFile) -> Result<Option<&[u8]>, GgufProblem> {
    const KEY: &str = "tokenizer.ggml.precompiled_charsmap";
    let Some(bytes) = gguf.bytes(KEY)? else { return Ok(None) };
    match check_charsmap(bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(found) => Err(unsupported(KEY, found, "tables as SentencePiece writes them")),
    }
}

fn check_length(key: &str, found: usize, token_count: usize) -> Result<(), GgufProblem> {
    if found == token_count {
        return Ok(());
    }
    Err(GgufProblem::UnsupportedValue {
        key: key.into(),
        found: format!("{found} entries"),
        allowed: format!("one entry for each of {token_count} tokens"),
    })
}

fn added_tokens(tokens: &[&str], kinds: &[i64]) -> Value {
    let added =
        tokens.iter().zip(kinds).enumerate().filter(|(_, (token, kind))| {
            [CONTROL, USER_DEFINED].contains(kind) && !token.is_empty()
        });
    added
        .map(|(id, (token, kind))| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == CONTROL,
            })
        })
        .collect()
}

/// Puts the begin and end tokens around a text, where the file asks for them.
fn post_processor(tokens: &[&str], begin: Option<usize>, end: Option<usize>) -> Value {
    if begin.is_none() && end.is_none() {
        return Value::Null;
    }
    let special = |id: Option<usize>, type_id: u8| {
        id.map(|id| json!({"SpecialToken": {"id": tokens[id], "type_id": type_id}}))
    };
    let around = |sequence: &str, type_id: u8| -> Vec<Value> {
        let text = json!({"Sequence": {"id": sequence, "type_id": type_id}});
        [special(begin, type_id), Some(text), special(end, type_id)].into_iter().flatten().collect()
    };
    let known: Map<String, Value> = [begin, end]
        .into_iter()
        .flatten()
        .map(|id| {
            (tokens[id].to_string(), json!({"id": tokens[id], "ids": [id], "tokens": [tokens[id]]}))
        })
        .collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    json!({"type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": known})
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::test_files::gguf::{TestGguf, file_with};

    fn read(change: impl FnOnce(&mut TestGguf)) -> Result<TokenizerFiles, GgufProblem> {
        let mut sample = TestGguf::tiny();
        change(&mut sample);
        let (_folder, path) = file_with(&sample.bytes());
        TokenizerFiles::read(&GgufFile::open(&path).unwrap(), 300, 128)
    }

    fn refused(change: impl FnOnce(&mut TestGguf), expected: &str) {
        let found = read(change).err().map_or("no refusal".into(), |error| error.to_string());
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    }

    const BOS: u32 = 261;
    const END: u32 = 262;
    const HELLO: u32 = 259;
    const TWELVE: u32 = 260;

    #[test]
    fn text_goes_through_the_written_tokenizer_and_back() {
        let byte = u32::from;
        let check = |pre: &str, text: &str, expected: &[u32]| {
            let files = read(|sample| sample.set_text("tokenizer.ggml.pre", pre)).unwrap();
            let tokenizer = tokenizers::Tokenizer::from_bytes(files.tokenizer.to_string()).unwrap();
            let encoding = tokenizer.encode(text, true).unwrap();
            assert_eq!(encoding.get_ids(), expected, "{pre}: {text:?}");
            let plain = text.replace("<|end|>", "");
            assert_eq!(
                tokenizer.decode(encoding.get_ids(), true).unwrap(),
                plain,
                "{pre}: {text:?}"
            );
        };
        check("smollm", "hello", &[HELLO]);
        check("smollm", "hello hello", &[HELLO, byte(b' '), HELLO]);
        check("smollm", "12", &[byte(b'1'), byte(b'2')]);
        check("smollm", "hello<|end|>12", &[HELLO, END, byte(b'1'), byte(b'2')]);
        check("smollm", "\né\u{1f642}", &[10, 0xc3, 0xa9, 0xf0, 0x9f, 0x99, 0x82]);
        check("gpt-2", "12 hello", &[TWELVE, byte(b' '), HELLO]);
        check("default", "112", &[byte(b'1'), TWELVE]);
        check("llama-bpe", "hello1212", &[BOS, HELLO, TWELVE, byte(b'1'), byte(b'2')]);
        check("llama-bpe", "<|end|>", &[BOS, END]);
        check("qwen2", "hello12", &[HELLO, byte(b'1'), byte(b'2')]);
        check("glm4", "1212", &[TWELVE, byte(b'1'), byte(b'2')]);
        check("gpt-4o", "hello12", &[HELLO, TWELVE]);
        check("tekken", "hello12", &[BOS, HELLO, byte(b'1'), byte(b'2')]);
        check("seed-coder", "hello12", &[HELLO, byte(b'1'), byte(b'2')]);
        check("deepseek-v3", "hello1212", &[HELLO, TWELVE, byte(b'1'), byte(b'2')]);
        check("deepseek-llm", "hello1212", &[HELLO, TWELVE, TWELVE]);
        check("deepseek-coder", "hello12", &[HELLO, byte(b'1'), byte(b'2')]);
    }

    #[test]
    fn begin_and_end_tokens_are_added_as_the_file_says() {
        let check = |bos: bool, eos: bool, expected: &[u32]| {
            let files = read(|sample| {
                sample.set_flag("tokenizer.ggml.add_bos_token", bos);
                sample.set_flag("tokenizer.ggml.add_eos_token", eos);
            });
            let files = files.unwrap();
            let tokenizer = tokenizers::Tokenizer::from_bytes(files.tokenizer.to_string()).unwrap();
            assert_eq!(tokenizer.encode("hello", true).unwrap().get_ids(), expected);
            assert_eq!(tokenizer.encode("hello", false).unwrap().get_ids(), [HELLO]);
            assert_eq!(
                (
                    &files.tokenizer_config["add_bos_token"],
                    &files.tokenizer_config["add_eos_token"]
                ),
                (&json!(bos), &json!(eos))
            );
        };
        check(false, false, &[HELLO]);
        check(true, false, &[BOS, HELLO]);
        check(false, true, &[HELLO, END]);
        check(true, true, &[BOS, HELLO, END]);
    }

    #[test]
    fn special_tokens_and_the_template_reach_the_configs() {
        let files = read(|sample| {
            sample.set_u32("tokenizer.ggml.eot_token_id", HELLO);
            sample.set_u32("tokenizer.ggml.padding_token_id", END);
        })
        .unwrap();
        let expected =
            json!({"bos_token_id": BOS, "eos_token_id": [END, HELLO], "pad_token_id": END});
        assert_eq!(files.generation_config, expected);
        let config = &files.tokenizer_config;
        for (key, value) in [
            ("bos_token", "<|begin|>"),
            ("eos_token", "<|end|>"),
            ("pad_token", "<|end|>"),
            ("chat_template", "{{ messages }}"),
        ] {
            assert_eq!(config[key], value, "{key}");
        }
        assert_eq!(
            (&config["unk_token"], &config["model_max_length"]),
            (&Value::Null, &json!(128))
        );
        // A file that does not say what ends a turn has a token of a known name.
        let found = read(|sample| sample.set_u32("tokenizer.ggml.eos_token_id", HELLO)).unwrap();
        assert_eq!(found.generation_config["eos_token_id"], json!([HELLO, END]));
        let same = read(|sample| sample.set_u32("tokenizer.ggml.eot_token_id", END)).unwrap();
        assert_eq!(same.generation_config["eos_token_id"], json!(END));
    }

    #[test]
    fn named_templates_become_a_list() {
        let template = |change: &dyn Fn(&mut TestGguf)| {
            read(|sample| change(sample)).unwrap().tokenizer_config["chat_template"].clone()
        };
        let tools = ("tokenizer.chat_template.tool_use", "{{ tools }}");
        let expected = json!([
            {"name": "default", "template": "{{ messages }}"},
            {"name": "tool_use", "template": "{{ tools }}"},
        ]);
        assert_eq!(template(&|sample| sample.set_text(tools.0, tools.1)), expected);
        let listed = template(&|sample| {
            sample.set_text(tools.0, tools.1);
            sample.set_text("tokenizer.chat_template.rag", "{{ documents }}");
            let names = ["tool_use", "rag", "absent"].map(String::from);
            sample.set_texts("tokenizer.chat_templates", &names);
        });
        assert_eq!(listed[1], json!({"name": "rag", "template": "{{ documents }}"}));
        assert_eq!(listed[2], expected[1]);
        assert_eq!(template(&|sample| sample.remove("tokenizer.chat_template")), Value::Null);
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        refused(
            |sample| sample.set_text("tokenizer.ggml.model", "rwkv"),
            r#"tokenizer.ggml.model is "rwkv"; Cairn imports gpt2"#,
        );
        refused(
            |sample| sample.set_text("tokenizer.ggml.pre", "viking"),
            r#"tokenizer.ggml.pre is "viking"; Cairn imports chatglm-bpe, "#,
        );
        refused(
            |sample| sample.set_text("tokenizer.ggml.model", "llama"),
            "it has no tokenizer.ggml.scores",
        );
        refused(|sample| sample.remove("tokenizer.ggml.model"), "it has no tokenizer.ggml.model");
        refused(|sample| sample.remove("tokenizer.ggml.merges"), "it has no tokenizer.ggml.merges");
        refused(
            |sample| sample.set_u32("tokenizer.ggml.eos_token_id", 263),
            "tokenizer.ggml.eos_token_id is 263; Cairn imports ids below 263",
        );
        let merge = |merge: &'static str| {
            move |sample: &mut TestGguf| {
                sample.set_texts("tokenizer.ggml.merges", &["h e".into(), merge.into()])
            }
        };
        for bad in ["he", "h", "", "h  e", "z z", "h zz"] {
            refused(merge(bad), &format!("merge 1 of the tokenizer, {bad:?}"));
        }
        refused(
            |sample| sample.set_array("tokenizer.ggml.token_type", 5, 1, vec![0; 4]),
            "token_type is 1 entries",
        );
        refused(
            |sample| sample.set_texts("tokenizer.ggml.tokens", &[]),
            "tokenizer.ggml.tokens is 0",
        );
        refused(
            |sample| sample.set_texts("tokenizer.ggml.tokens", &vec!["a".into(); 2]),
            r#"the name "a" occurs twice"#,
        );
        refused(
            |sample| sample.set_texts("tokenizer.ggml.tokens", &vec!["a".into(); 301]),
            "tokenizer.ggml.tokens is 301",
        );
    }
}
