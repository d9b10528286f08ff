//! Tokenizers of bytes whose tokenizer.json does not say so.
//!
//! A byte-level vocabulary spells each byte as a letter: a space is `Ġ`. Conversions by a program
//! that took the tokenizer for SentencePiece's wrote other steps into tokenizer.json, with which
//! answers have those letters in place of spaces.

use cairn_formats::byte_letters;
use serde_json::{Value, json};

/// Gives a tokenizer.json with a byte-level vocabulary the steps that such a vocabulary needs. Any
/// other stays as it is.
pub(crate) fn complete(tokenizer: &mut Value) {
    let cuts_bytes =
        ["normalizer", "pre_tokenizer"].iter().any(|step| has_byte_level(&tokenizer[step]));
    if !cuts_bytes && !is_byte_level(&tokenizer["model"]) {
        return;
    }
    if !has_byte_level(&tokenizer["decoder"]) {
        tokenizer["decoder"] = byte_level(true);
    }
    if !cuts_bytes {
        // Without this step no text with a space has tokens.
        let pre_tokenizer = tokenizer["pre_tokenizer"].take();
        let has_spaces_of_its_own = pre_tokenizer.to_string().contains("\"Metaspace\"");
        tokenizer["pre_tokenizer"] = match pre_tokenizer.is_null() || has_spaces_of_its_own {
            true => byte_level(true),
            false => json!({
                "type": "Sequence", "pretokenizers": [pre_tokenizer, byte_level(false)],
            }),
        };
    }
}

/// The step that spells bytes as letters, or reads them; with `use_regex` it also cuts words, as in
/// GPT-2.
fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex,
    })
}

fn has_byte_level(step: &Value) -> bool {
    step.to_string().contains("\"ByteLevel\"")
}

/// Whether each byte is a token by its letter, and not by its number as well (`<0x0A>`).
fn is_byte_level(model: &Value) -> bool {
    let Some(vocab) = model["vocab"].as_object() else { return false };
    !vocab.contains_key("<0x0A>")
        && byte_letters().iter().all(|letter| vocab.contains_key(letter.encode_utf8(&mut [0; 4])))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::path::Path;

    use cairn_chat::Encode;

    use super::*;
    use crate::error::read_json;
    use crate::tokenizer::{MAX_TOKENIZER_BYTES, Tokenizer};

    const TEXT: &str = "a stone, é and\n two  more";

    fn stored() -> Value {
        let folder = cairn_tiny_models::tiny_model("llama/tiny-chat");
        read_json(&folder.join("tokenizer.json"), MAX_TOKENIZER_BYTES).unwrap()
    }

    fn loaded(folder: &Path, tokenizer: &Value) -> Tokenizer {
        std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        Tokenizer::load(folder).unwrap()
    }

    #[test]
    fn spaces_are_decoded_whatever_the_file_says() {
        let folder = tempfile::tempdir().unwrap();
        let expected = loaded(folder.path(), &stored()).encode(TEXT, false).unwrap();
        let sentence_piece = json!({ "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" },
        ]});
        for decoder in [json!(null), sentence_piece, json!({ "type": "Fuse" })] {
            let mut changed = stored();
            changed["decoder"] = decoder.clone();
            let tokenizer = loaded(folder.path(), &changed);
            assert_eq!(tokenizer.encode(TEXT, false).unwrap(), expected);
            assert_eq!(tokenizer.decode(&expected).unwrap(), TEXT, "{decoder}");
        }
    }

    #[test]
    fn texts_are_encoded_without_the_step_for_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let metaspace = json!({
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true,
        });
        let digits = json!({ "type": "Digits", "individual_digits": true });
        for pre_tokenizer in [json!(null), metaspace, digits] {
            let mut changed = stored();
            changed["pre_tokenizer"] = pre_tokenizer.clone();
            let tokenizer = loaded(folder.path(), &changed);
            let tokens = tokenizer.encode(TEXT, false).unwrap();
            assert_eq!(tokenizer.decode(&tokens).unwrap(), TEXT, "{pre_tokenizer}");
        }
    }

    #[test]
    fn other_tokenizers_stay_as_they_are() {
        let mut whole = stored();
        complete(&mut whole);
        assert_eq!(whole, stored());
        let mut pieces = stored();
        pieces["model"]["vocab"]["<0x0A>"] = json!(999);
        for step in ["normalizer", "pre_tokenizer", "decoder"] {
            pieces[step] = Value::Null;
        }
        let mut found = pieces.clone();
        complete(&mut found);
        assert_eq!(found, pieces);
    }
}
