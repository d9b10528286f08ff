//! Tokenizer files of tiktoken: lines with a token in base64 and its rank, which is its id.
//!
//! Such a file becomes a `tokenizer.json`. tiktoken joins the two neighbours whose union is the token
//! of the lowest rank; `tokenizers` has a list of the pairs that may be joined, in order. That list is
//! made here of all ways to cut a token into two others, by the token's rank.
//!
//! Reference: tiktoken's `src/lib.rs`; the file is described by its `load.py`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::base64;
use crate::byte_letters::byte_letters;
use crate::excerpt::excerpt;
use crate::gguf::{Words, byte_level};

/// The names of such files, with the way in which their models cut text into words.
const KINDS: &[(&str, &str)] = &[
    // Kimi and its kin.
    ("tiktoken.model", "kimi-k2"),
    ("qwen.tiktoken", "qwen2"),
    // Llama 3 and GLM-4. SentencePiece's files have this name too.
    ("tokenizer.model", "llama-bpe"),
];

/// Special tokens of a model whose tokenizer_config.json lists none, from the first id behind the
/// tokens of the file.
const UNLISTED: &[(&str, &[&str])] =
    &[("qwen.tiktoken", &["<|endoftext|>", "<|im_start|>", "<|im_end|>"])];

/// The most tokens; the largest vocabularies have 260,000.
const MAX_TOKENS: usize = 1 << 20;
/// The longest token; known ones have up to 128 bytes, most of them blanks.
const MAX_TOKEN_BYTES: usize = 512;
/// The most bytes of all pairs that make tokens; those of 200,000 tokens have 8 million.
const MAX_PAIR_BYTES: usize = 32 << 20;

/// Why a file is no list of tokens.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TiktokenError {
    /// A line is something else.
    #[error(
        "line {line} is no token in base64 with its rank, as in tiktoken's files; Cairn reads SentencePiece's from tokenizer.json"
    )]
    Line {
        /// The line, counted from 1.
        line: usize,
    },
    /// A token is longer than any has reason to be.
    #[error("line {line} has a token of more than {MAX_TOKEN_BYTES} bytes")]
    TooLong {
        /// The line, counted from 1.
        line: usize,
    },
    /// Two lines have the same token or rank.
    #[error("line {line} repeats a token or a rank")]
    Repeated {
        /// The line, counted from 1.
        line: usize,
    },
    /// The tokens, or the ways to make them of others, are too many.
    #[error("it has more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The most that is read.
        limit: usize,
    },
    /// Text with this byte could not be encoded.
    #[error("no token is the single byte {byte:#04x}")]
    NoByte {
        /// The byte.
        byte: u8,
    },
    /// An entry of `added_tokens_decoder` in tokenizer_config.json is none.
    #[error(
        "added_tokens_decoder in tokenizer_config.json has {id:?} without content, or for a token that is there already"
    )]
    AddedToken {
        /// The entry's key.
        id: String,
    },
}

/// The names of files that [`tokenizer_json`] reads, the first first.
pub fn file_names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(file, _)| *file)
}

/// The `tokenizer.json` of the file with this name, with the special tokens that the value of a
/// `tokenizer_config.json` lists in `added_tokens_decoder`.
pub fn tokenizer_json(
    file_name: &str,
    contents: &[u8],
    config: &Value,
) -> Result<Value, TiktokenError> {
    let words = KINDS.iter().find(|(file, _)| *file == file_name).map_or("gpt-2", |kind| kind.1);
    let tokens = read(contents)?;
    let ranks: HashMap<&[u8], u32> =
        tokens.iter().map(|(rank, token)| (token.as_slice(), *rank)).collect();
    if let Some(byte) = (0..=u8::MAX).find(|byte| !ranks.contains_key([*byte].as_slice())) {
        return Err(TiktokenError::NoByte { byte });
    }
    let letters = byte_letters();
    let spelled =
        |bytes: &[u8]| -> String { bytes.iter().map(|&b| letters[usize::from(b)]).collect() };
    let (mut merges, mut pair_bytes) = (Vec::new(), 0);
    for (_, token) in &tokens {
        for (left, right) in (1..token.len()).map(|at| token.split_at(at)) {
            if ranks.contains_key(left) && ranks.contains_key(right) {
                merges.push(json!([spelled(left), spelled(right)]));
                pair_bytes += token.len();
            }
        }
        if pair_bytes > MAX_PAIR_BYTES {
            let what = "bytes in pairs of tokens";
            return Err(TiktokenError::TooMany { what, limit: MAX_PAIR_BYTES });
        }
    }
    let vocabulary: Map<String, Value> =
        tokens.iter().map(|(rank, token)| (spelled(token), json!(rank))).collect();
    let added = added_tokens(file_name, &tokens, config)?;
    let words = Words::named(words);
    Ok(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": words.map(Words::pre_tokenizer),
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "ignore_merges": true, "byte_fallback": false, "fuse_unk": false,
            "vocab": vocabulary, "merges": merges,
        },
    }))
}

/// The tokens by rank.
fn read(contents: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, TiktokenError> {
    let mut tokens: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut lines_of: HashMap<Vec<u8>, usize> = HashMap::new();
    let lines = contents.split(|&byte| byte == b'\n').zip(1..);
    for (text, line) in lines.filter(|(text, _)| !text.trim_ascii().is_empty()) {
        if tokens.len() == MAX_TOKENS {
            return Err(TiktokenError::TooMany { what: "tokens", limit: MAX_TOKENS });
        }
        let (token, rank) = entry(text).ok_or(TiktokenError::Line { line })?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TiktokenError::TooLong { line });
        }
        if lines_of.insert(token.clone(), line).is_some() {
            return Err(TiktokenError::Repeated { line });
        }
        tokens.push((rank, token));
    }
    tokens.sort_unstable();
    if let Some(pair) = tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(TiktokenError::Repeated { line: lines_of[&pair[1].1] });
    }
    Ok(tokens)
}

/// The token and rank of a line. Ids of embeddings are below 2³¹.
fn entry(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let (token, rank) = std::str::from_utf8(line).ok()?.trim_end().split_once(' ')?;
    let rank = rank.parse().ok().filter(|rank| *rank <= i32::MAX as u32)?;
    Some((base64::decode(token)?, rank)).filter(|(token, _)| !token.is_empty())
}

/// Special tokens in the form of tokenizer.json.
fn added_tokens(
    file_name: &str,
    tokens: &[(u32, Vec<u8>)],
    config: &Value,
) -> Result<Vec<Value>, TiktokenError> {
    let added = |id: u32, content: &str, is_special: bool| {
        json!({
            "id": id, "content": content, "special": is_special,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let Some(listed) = config.get("added_tokens_decoder").and_then(Value::as_object) else {
        let unlisted = UNLISTED.iter().find(|(file, _)| *file == file_name);
        let first = tokens.last().map_or(0, |(rank, _)| rank + 1);
        let contents = unlisted.into_iter().flat_map(|(_, contents)| contents.iter());
        return Ok((first..).zip(contents).map(|(id, content)| added(id, content, true)).collect());
    };
    if listed.len() > MAX_TOKENS {
        return Err(TiktokenError::TooMany { what: "added tokens", limit: MAX_TOKENS });
    }
    let mut all = Vec::with_capacity(listed.len());
    for (key, entry) in listed {
        let refuse = || TiktokenError::AddedToken { id: excerpt(key) };
        let id: u32 = key.parse().map_err(|_| refuse())?;
        let content = entry.get("content").and_then(Value::as_str).filter(|text| !text.is_empty());
        let is_taken = tokens.binary_search_by_key(&id, |(rank, _)| *rank).is_ok();
        match content {
            Some(content) if !is_taken => {
                let is_special = entry.get("special").and_then(Value::as_bool).unwrap_or(true);
                all.push((id, added(id, content, is_special)));
            }
            _ => return Err(refuse()),
        }
    }
    all.sort_unstable_by_key(|(id, _)| *id);
    Ok(all.into_iter().map(|(_, token)| token).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// All bytes, then these tokens.
    fn file(tokens: &[&str]) -> String {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        let all = bytes.chain(tokens.iter().map(|token| token.as_bytes().to_vec()));
        all.zip(0..).map(|(token, rank)| format!("{} {rank}\n", base64::encode(&token))).collect()
    }

    #[test]
    fn pairs_are_all_ways_to_cut_a_token_by_its_rank() {
        let json =
            tokenizer_json("tiktoken.model", file(&["ab", "bc", "abc"]).as_bytes(), &Value::Null);
        let json = json.unwrap();
        let expected = json!([["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"]]);
        assert_eq!(json["model"]["merges"], expected);
        assert_eq!(
            (&json["model"]["vocab"]["abc"], &json["model"]["vocab"]["Ġ"]),
            (&json!(258), &json!(32))
        );
        assert_eq!(json["added_tokens"], json!([]));
    }

    /// What tiktoken computes from the same file (`tests/goldens/ranks.py`).
    #[test]
    fn texts_get_the_ids_that_tiktoken_gives_them() {
        let folder = std::path::Path::new("../../tests/goldens/tiktoken");
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let config = serde_json::from_slice(&read("tokenizer_config.json")).unwrap();
        let json = tokenizer_json("tiktoken.model", &read("tiktoken.model"), &config).unwrap();
        let tokenizer = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        let expected: Value = serde_json::from_slice(&read("expected.json")).unwrap();
        let cases = expected["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 88);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids = tokenizer.encode_fast(text, true).unwrap().get_ids().to_vec();
            assert_eq!(json!(ids), case["ids"], "{text:?}");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
    }

    #[test]
    fn special_tokens_are_those_that_the_config_lists() {
        let ids = |name: &str, config: Value| {
            let json = tokenizer_json(name, file(&["ab"]).as_bytes(), &config).unwrap();
            let added = json["added_tokens"].as_array().unwrap().iter();
            added.map(|token| (token["id"].clone(), token["content"].clone())).collect::<Vec<_>>()
        };
        let listed = json!({ "added_tokens_decoder": {
            "300": {"content": "[EOS]", "special": true}, "257": {"content": "[BOS]"},
        }});
        let expected = [(json!(257), json!("[BOS]")), (json!(300), json!("[EOS]"))];
        assert_eq!(ids("tiktoken.model", listed), expected);
        assert_eq!(ids("qwen.tiktoken", Value::Null)[2], (json!(259), json!("<|im_end|>")));
    }

    #[test]
    fn other_files_are_refused_with_the_line() {
        let check = |contents: &str, config: Value, expected: &str| {
            let error =
                tokenizer_json("tokenizer.model", contents.as_bytes(), &config).unwrap_err();
            assert_eq!(error.to_string(), expected, "{contents:.40}");
        };
        let no_entry = |line| {
            format!(
                "line {line} is no token in base64 with its rank, as in tiktoken's files; Cairn reads SentencePiece's from tokenizer.json"
            )
        };
        let whole = file(&["ab"]);
        check("\n\u{e}\n\u{5}<unk>\u{15}", Value::Null, &no_entry(2));
        check("IQ==", Value::Null, &no_entry(1));
        check("IQ== -1", Value::Null, &no_entry(1));
        check("IQ== 4294967295", Value::Null, &no_entry(1));
        check(&format!("{whole}!!!! 300"), Value::Null, &no_entry(258));
        check(&format!("{whole}IQ== 300"), Value::Null, "line 258 repeats a token or a rank");
        check(&format!("{whole}YWJj 256"), Value::Null, "line 258 repeats a token or a rank");
        check("IQ== 0", Value::Null, "no token is the single byte 0x00");
        check("", Value::Null, "no token is the single byte 0x00");
        let long = base64::encode(&[b' '; 600]);
        check(&format!("{long} 0"), Value::Null, "line 1 has a token of more than 512 bytes");
        let config = json!({ "added_tokens_decoder": { "256": {"content": "[BOS]"} } });
        check(
            &whole,
            config,
            "added_tokens_decoder in tokenizer_config.json has \"256\" without content, or for a token that is there already",
        );
    }

    #[test]
    fn what_is_made_of_a_hostile_file_is_bounded() {
        // A run of one byte can be cut everywhere.
        let runs: Vec<String> = (2..=512).map(|length| "a".repeat(length)).collect();
        let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
        let error =
            tokenizer_json("tiktoken.model", file(&runs).as_bytes(), &Value::Null).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 33554432 bytes in pairs of tokens");
        let lines = (0..=MAX_TOKENS).map(|rank| {
            let token = [1, (rank >> 16) as u8, (rank >> 8) as u8, rank as u8];
            format!("{} {rank}\n", base64::encode(&token))
        });
        let many: String = lines.collect();
        let error = tokenizer_json("tiktoken.model", many.as_bytes(), &Value::Null).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 1048576 tokens");
    }
}
