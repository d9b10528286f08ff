//! Vocabularies of pieces with scores: SentencePiece's BPE, which falls back to bytes, and unigram.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::GgufProblem;
use super::error::unsupported;
use super::token_kinds::{BYTE, NORMAL, UNKNOWN, USER_DEFINED};
use crate::base64;

/// What stands for a space.
const SPACE: &str = "\u{2581}";
/// Longer pieces would take time that grows with the square of their length, and no model has any.
const MAX_PIECE_BYTES: usize = 1024;
/// Of all merges together: a longer tokenizer.json is not loaded.
const MAX_MERGE_BYTES: usize = 64 << 20;

/// A vocabulary whose lists are of one length.
pub struct Pieces<'a> {
    pub tokens: &'a [&'a str],
    pub kinds: &'a [i64],
    pub scores: &'a [f64],
    /// The token of what is in no other, by the file's key.
    pub unknown: Option<usize>,
    /// Whether text begins with a space.
    pub add_space: bool,
    /// Whether several spaces count as one, and none at the ends.
    pub removes_extra_spaces: bool,
}

impl Pieces<'_> {
    /// What `tokenizer.json` says of SentencePiece's BPE.
    ///
    /// It joins the pair whose piece has the highest score, the first of equal ones. As ranked merges
    /// that is each way to make a piece of two others, the higher scores first.
    pub fn sentence_piece(&self) -> Result<Value, GgufProblem> {
        let vocab: Map<String, Value> = self
            .tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (token.to_string(), json!(id)))
            .collect();
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let mut normalizers = vec![replace(" ", SPACE)];
        let mut decoders =
            vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if self.add_space {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": self.unknown_id().map(|id| self.tokens[id]),
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": true,
                "byte_fallback": true,
                "ignore_merges": false,
                "vocab": vocab,
                "merges": self.merges()?,
            },
        }))
    }

    fn merges(&self) -> Result<Vec<[&str; 2]>, GgufProblem> {
        let is_text = |kind: i64| [NORMAL, USER_DEFINED].contains(&kind);
        let texts = self.tokens.iter().zip(self.kinds).filter(|(_, kind)| is_text(**kind));
        let id_of: HashMap<&str, usize> =
            self.tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
        let mut merges: Vec<(usize, [&str; 2])> = Vec::new();
        let mut num_bytes = 0;
        for (piece, _) in texts {
            if piece.len() > MAX_PIECE_BYTES {
                let found = format!("{} bytes long", piece.len());
                let allowed = format!("pieces of at most {MAX_PIECE_BYTES} bytes");
                return Err(unsupported("tokenizer.ggml.tokens", found, &allowed));
            }
            for (at, _) in piece.char_indices().skip(1) {
                let (left, right) = piece.split_at(at);
                let known = |part: &str| id_of.get(part).is_some_and(|id| is_text(self.kinds[*id]));
                if known(left) && known(right) {
                    merges.push((id_of[piece], [left, right]));
                    num_bytes += piece.len();
                }
            }
            if num_bytes > MAX_MERGE_BYTES {
                let found = format!("{num_bytes} bytes of merges");
                let allowed = format!("pieces with at most {MAX_MERGE_BYTES}");
                return Err(unsupported("tokenizer.ggml.tokens", found, &allowed));
            }
        }
        // Stable: of equal scores the first piece comes first.
        merges.sort_by(|(a, _), (b, _)| self.scores[*b].total_cmp(&self.scores[*a]));
        Ok(merges.into_iter().map(|(_, pair)| pair).collect())
    }

    /// What `tokenizer.json` says of a unigram model. `charsmap` replaces characters first.
    pub fn unigram(&self, charsmap: Option<&[u8]>) -> Result<Value, GgufProblem> {
        let Some(unknown) = self.unknown_id() else {
            let key = "tokenizer.ggml.unknown_token_id".to_owned();
            return Err(GgufProblem::MissingKey { key });
        };
        let vocab: Vec<(&str, f64)> =
            self.tokens.iter().copied().zip(self.scores.iter().copied()).collect();
        let replace = |pattern: Value, to: &str| json!({"type": "Replace", "pattern": pattern, "content": to});
        let mut normalizers = Vec::new();
        if let Some(bytes) = charsmap {
            let map = base64::encode(bytes);
            normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": map}));
        }
        if self.removes_extra_spaces {
            normalizers.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
            normalizers.push(replace(json!({"Regex": " {2,}"}), " "));
        }
        normalizers.push(replace(json!({"String": " "}), SPACE));
        if self.add_space {
            // A metaspace that adds one leaves text alone that begins with a space.
            normalizers.push(json!({"type": "Prepend", "prepend": SPACE}));
        }
        let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
        let spaces = |scheme: &str| json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true});
        let mut decoder = spaces(if self.add_space { "always" } else { "never" });
        let has_bytes = self.kinds.contains(&BYTE);
        if has_bytes {
            decoder = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, decoder]});
        }
        Ok(json!({
            "normalizer": normalizer,
            "pre_tokenizer": spaces("never"),
            "decoder": decoder,
            "model": {
                "type": "Unigram",
                "unk_id": unknown,
                "vocab": vocab,
                "byte_fallback": has_bytes,
            },
        }))
    }

    /// By its key or its kind.
    fn unknown_id(&self) -> Option<usize> {
        self.unknown.or_else(|| self.kinds.iter().position(|kind| *kind == UNKNOWN))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use tokenizers::Tokenizer;

    use super::super::GgufFile;
    use super::super::tokenizer::TokenizerFiles;
    use super::*;
    use crate::charsmap::tests::replacing;
    use crate::test_files::gguf::{TestGguf, file_with};

    /// Control tokens, 256 bytes, and pieces with scores.
    fn sample(model: &str, pieces: &[(&str, f32)]) -> TestGguf {
        let mut file = TestGguf { version: 3, keys: Vec::new(), tensors: Vec::new() };
        let mut tokens: Vec<(String, f32, i32)> =
            [("<unk>", 2), ("<s>", 3), ("</s>", 3)].map(|(t, kind)| (t.into(), 0.0, kind)).into();
        tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
        tokens.extend(pieces.iter().map(|(piece, score)| ((*piece).into(), *score, 1)));
        file.set_text("tokenizer.ggml.model", model);
        let texts: Vec<String> = tokens.iter().map(|(text, ..)| text.clone()).collect();
        file.set_texts("tokenizer.ggml.tokens", &texts);
        let scores = tokens.iter().flat_map(|(_, score, _)| score.to_le_bytes()).collect();
        file.set_array("tokenizer.ggml.scores", 6, tokens.len(), scores);
        let kinds = tokens.iter().flat_map(|(_, _, kind)| kind.to_le_bytes()).collect();
        file.set_array("tokenizer.ggml.token_type", 5, tokens.len(), kinds);
        file.set_u32("tokenizer.ggml.bos_token_id", 1);
        file.set_u32("tokenizer.ggml.eos_token_id", 2);
        file
    }

    fn tokenizer(file: &TestGguf) -> Tokenizer {
        let (_folder, path) = file_with(&file.bytes());
        let files = TokenizerFiles::read(&GgufFile::open(&path).unwrap(), 1000, 128).unwrap();
        Tokenizer::from_bytes(files.tokenizer.to_string()).unwrap()
    }

    /// The pieces of a text, and the text that they are decoded to.
    fn check(tokenizer: &Tokenizer, text: &str, expected: &[&str], decoded: &str) {
        let encoding = tokenizer.encode(text, true).unwrap();
        assert_eq!(encoding.get_tokens(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), decoded, "{text:?}");
    }

    const PIECES: &[(&str, f32)] = &[
        ("\u{2581}", -9.0),
        ("a", -8.0),
        ("b", -8.5),
        ("ab", -3.0),
        ("\u{2581}a", -2.0),
        ("ba", -1.0),
        ("\u{2581}ab", -4.0),
        ("\u{2581}\u{2581}", -5.0),
    ];

    #[test]
    fn pairs_are_joined_by_score_and_the_rest_becomes_bytes() {
        let file = sample("llama", PIECES);
        let tokenizer = tokenizer(&file);
        check(&tokenizer, "ab", &["<s>", "\u{2581}ab"], "ab");
        // "ba" has the highest score, so the first letter stays alone.
        check(&tokenizer, "aba", &["<s>", "\u{2581}a", "ba"], "aba");
        check(&tokenizer, "a é", &["<s>", "\u{2581}a", "\u{2581}", "<0xC3>", "<0xA9>"], "a é");
        check(&tokenizer, "a</s>b", &["<s>", "\u{2581}a", "</s>", "\u{2581}", "b"], "a b");
    }

    #[test]
    fn a_file_says_whether_text_begins_with_a_space_or_a_token() {
        let mut file = sample("llama", PIECES);
        file.set_flag("tokenizer.ggml.add_space_prefix", false);
        file.set_flag("tokenizer.ggml.add_bos_token", false);
        let tokenizer = tokenizer(&file);
        check(&tokenizer, "ab", &["ab"], "ab");
        check(&tokenizer, "  ab", &["\u{2581}", "\u{2581}ab"], "  ab");
        check(&tokenizer, "b  b", &["b", "\u{2581}\u{2581}", "b"], "b  b");
    }

    #[test]
    fn unigram_takes_the_likeliest_pieces() {
        let mut file = sample("t5", PIECES);
        let tokenizer_of = |file: &TestGguf| tokenizer(file);
        let tokenizer = tokenizer_of(&file);
        // "▁a" and "ba" are likelier than "▁ab" and "a".
        check(&tokenizer, "aba", &["\u{2581}a", "ba", "</s>"], "aba");
        check(&tokenizer, "ab a", &["\u{2581}ab", "\u{2581}a", "</s>"], "ab a");
        check(&tokenizer, "aé", &["\u{2581}a", "<0xC3>", "<0xA9>", "</s>"], "aé");
        let table = replacing(b'c', "a");
        file.set_array("tokenizer.ggml.precompiled_charsmap", 0, table.len(), table);
        let tokenizer = tokenizer_of(&file);
        check(&tokenizer, "cbc", &["\u{2581}a", "ba", "</s>"], "aba");
    }

    /// Vocabularies that SentencePiece trained, and the ids that it gives (`gguf_pieces.py`).
    #[test]
    fn texts_become_the_ids_that_sentence_piece_gives() {
        const GOLDENS: &str = include_str!("../../../../tests/goldens/gguf_pieces.json");
        let goldens: Value = serde_json::from_str(GOLDENS).unwrap();
        for (model, golden) in goldens.as_object().unwrap() {
            let list = |key: &str| golden[key].as_array().unwrap().clone();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let tokens: Vec<String> = list("tokens").iter().map(text).collect();
            let kinds: Vec<i64> = list("kinds").iter().map(|k| k.as_i64().unwrap()).collect();
            let scores: Vec<f64> = list("scores").iter().map(|s| s.as_f64().unwrap()).collect();
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let pieces = Pieces {
                tokens: &tokens,
                kinds: &kinds,
                scores: &scores,
                unknown: None,
                add_space: true,
                removes_extra_spaces: false,
            };
            let json = match model.as_str() {
                "llama" => pieces.sentence_piece().unwrap(),
                _ => pieces.unigram(None).unwrap(),
            };
            let tokenizer = Tokenizer::from_bytes(json.to_string()).unwrap();
            for case in list("texts") {
                let source = text(&case["text"]);
                let encoding = tokenizer.encode(source.as_str(), false).unwrap();
                assert_eq!(json!(encoding.get_ids()), case["ids"], "{model}: {source:?}");
            }
        }
    }

    #[test]
    fn scores_and_pieces_have_limits() {
        let refused = |change: &dyn Fn(&mut TestGguf), expected: &str| {
            let mut file = sample("llama", PIECES);
            change(&mut file);
            let (_folder, path) = file_with(&file.bytes());
            let found = TokenizerFiles::read(&GgufFile::open(&path).unwrap(), 1000, 128);
            let found = found.err().map_or("no refusal".into(), |error| error.to_string());
            assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
        };
        refused(&|file| file.remove("tokenizer.ggml.scores"), "it has no tokenizer.ggml.scores");
        refused(
            &|file| file.set_array("tokenizer.ggml.scores", 6, 1, vec![0; 4]),
            "tokenizer.ggml.scores is 1 entries",
        );
        let charsmap = |kind: u32, count: usize, bytes: Vec<u8>| {
            move |file: &mut TestGguf| {
                file.set_text("tokenizer.ggml.model", "t5");
                file.set_array("tokenizer.ggml.precompiled_charsmap", kind, count, bytes.clone());
            }
        };
        refused(
            &charsmap(0, 4, vec![0xff; 4]),
            "tokenizer.ggml.precompiled_charsmap is a trie of another length than it says",
        );
        refused(&charsmap(5, 1, vec![0; 4]), "precompiled_charsmap is not an array of bytes");
        let endless = [("a".repeat(1025), 0.0_f32)];
        let pieces: Vec<(&str, f32)> = endless.iter().map(|(p, s)| (p.as_str(), *s)).collect();
        let (_folder, path) = file_with(&sample("llama", &pieces).bytes());
        let found = TokenizerFiles::read(&GgufFile::open(&path).unwrap(), 1000, 128);
        assert!(found.unwrap_err().to_string().contains("at most 1024 bytes"));
        // Each of these can be made in as many ways as it has letters.
        let nested: Vec<String> = (1..=1024).map(|length| "a".repeat(length)).collect();
        let pieces: Vec<(&str, f32)> = nested.iter().map(|p| (p.as_str(), 0.0)).collect();
        let (_folder, path) = file_with(&sample("llama", &pieces).bytes());
        let found = TokenizerFiles::read(&GgufFile::open(&path).unwrap(), 2000, 128);
        assert!(found.unwrap_err().to_string().contains("bytes of merges"));
    }
}
