//! Streamed text: the joined pieces equal the decoded text, whatever the tokens.

use std::path::Path;
use std::sync::Arc;

use cairn_chat::Encode;
use cairn_lm::Tokenizer;
use serde_json::json;

use crate::scripted::{text_ids, text_of};

fn byte_level() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::load(&cairn_tests::tiny_model("llama/tiny-chat")).expect("the tokenizer"))
}

/// A tokenizer like Llama 2's: words begin with "▁", and bytes without a token of their text are
/// tokens of their own. `<0xHH>` has id HH.
fn byte_fallback() -> Arc<Tokenizer> {
    let decoder = json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
        { "type": "ByteFallback" }, { "type": "Fuse" },
        { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
    ] });
    bytes_and_words(decoder, |vocab| {
        let vocab: serde_json::Map<_, _> =
            vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
        json!({ "type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": [] })
    })
}

/// A unigram model of the same tokens, with the decoder of models that SentencePiece trained.
fn unigram(prepend_scheme: &str) -> Arc<Tokenizer> {
    let decoder = json!({ "type": "Sequence", "decoders": [
        { "type": "ByteFallback" },
        { "type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend_scheme, "split": true },
    ] });
    bytes_and_words(decoder, |vocab| {
        let vocab: Vec<_> = vocab.into_iter().map(|token| json!([token, -1.0])).collect();
        json!({ "type": "Unigram", "unk_id": 256, "vocab": vocab, "byte_fallback": true })
    })
}

/// A tokenizer of 256 bytes, some words, and a special token at the end.
fn bytes_and_words(
    decoder: serde_json::Value,
    model: impl FnOnce(Vec<String>) -> serde_json::Value,
) -> Arc<Tokenizer> {
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["<unk>", "▁", "a", "▁b", "</s>"].map(str::to_owned);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{ "id": 260, "content": "</s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true }],
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": model(bytes.chain(words).collect()),
    });
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string())
        .expect("tokenizer.json");
    Arc::new(Tokenizer::load(folder.path()).expect("the tokenizer"))
}

/// A file of tiktoken: bytes have ids of their own, and 1600 to 1603 are special tokens.
fn ranks() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/tiktoken");
    Arc::new(Tokenizer::load(&folder).expect("the tokenizer"))
}

fn pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.stream();
    let mut pieces: Vec<String> =
        ids.iter().map(|&id| stream.push(id).expect("a piece").visible).collect();
    pieces.push(stream.finish().expect("the rest").visible);
    pieces
}

#[test]
fn a_piece_is_emitted_when_its_character_is_complete() {
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(pieces(&byte_level(), &text_ids(text)), expected, "{text:?}");
    }
    check("ab", &["a", "b", ""]);
    check("é!", &["", "é", "!", ""]);
    check("a😀", &["a", "", "", "", "😀", ""]);
    check("a\n€\n", &["a", "\n", "", "", "€", "\n", ""]);
    check("👩‍👧", &["", "", "", "👩", "", "", "\u{200d}", "", "", "", "👧", ""]);
    // A character that is never completed is shown at the end.
    assert_eq!(pieces(&byte_level(), &[97, 0xf0, 0x9f]), ["a", "", "", "\u{fffd}"]);
    assert_eq!(pieces(&byte_level(), &[0xff, 97]), ["", "\u{fffd}a", ""]);
}

#[test]
fn pieces_of_any_bytes_join_to_the_decoded_text() {
    // Numbers of a linear congruential generator: any fixed sequence would do.
    let mut state = 11_u64;
    let mut next = move |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let tokenizer = byte_level();
    let emoji: Vec<u32> = text_ids("😀👩‍👧é€\n");
    for round in 0..300 {
        let length = next(120);
        let ids: Vec<u32> = match round % 3 {
            0 => (0..length).map(|_| next(259) as u32).collect(),
            1 => (0..length).map(|_| emoji[next(emoji.len() as u64) as usize]).collect(),
            _ => (0..length).map(|_| [10, 0xf0, 0x9f, 0x98, 0x80, 97][next(6) as usize]).collect(),
        };
        let pieces = pieces(&tokenizer, &ids);
        assert_eq!(pieces.concat(), text_of(&ids), "{ids:?}");
        assert!(
            pieces.iter().rev().skip(1).all(|piece| !piece.ends_with('\u{fffd}')),
            "{ids:?} gave half a character"
        );
    }
}

#[test]
fn long_lines_and_many_lines_join_to_the_decoded_text() {
    let tokenizer = byte_level();
    for text in [
        "word ".repeat(600),
        "line\n".repeat(600),
        "\n".repeat(600),
        "長い行".repeat(200),
        "👩‍👧".repeat(100),
    ] {
        assert_eq!(pieces(&tokenizer, &text_ids(&text)).concat(), text);
    }
    // "▁b", and "€" in bytes, which must not be split.
    let (tokenizer, b) = (byte_fallback(), 259);
    assert_eq!(pieces(&tokenizer, &[b; 600]).concat(), format!("b{}", " b".repeat(599)));
    assert_eq!(pieces(&tokenizer, &[0xe2, 0x82, 0xac].repeat(200)).concat(), "€".repeat(200));
}

#[test]
fn pieces_and_whole_characters_in_bytes_join_to_the_decoded_text() {
    let mut state = 5_u64;
    let mut next = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let tokenizer = byte_fallback();
    // Words with and without a space, the unknown token, and characters of one to four bytes.
    let units: Vec<Vec<u32>> = [256, 257, 258, 259]
        .map(|id| vec![id])
        .into_iter()
        .chain(["\n", "é", "€", "😀"].map(text_ids))
        .collect();
    for _ in 0..300 {
        let length = next(80);
        let ids: Vec<u32> = (0..length).flat_map(|_| units[next(units.len())].clone()).collect();
        let whole = tokenizer.decode(&ids).expect("decodes");
        assert_eq!(pieces(&tokenizer, &ids).concat(), whole, "{ids:?}");
    }
}

#[test]
fn words_that_carry_their_space_join_to_the_decoded_text() {
    fn check(ids: &[u32], expected: &str) {
        let tokenizer = byte_fallback();
        assert_eq!(tokenizer.decode(ids).expect("decodes"), expected, "{ids:?} as a whole");
        assert_eq!(pieces(&tokenizer, ids).concat(), expected, "{ids:?} in pieces");
    }
    let (a, b, newline) = (258, 259, 10);
    check(&[b, a, b], "ba b");
    check(&[b, newline, b, newline, newline, b, a], "b\n b\n\n ba");
    check(&[b, 0xe2, 0x82, 0xac, b], "b€ b");
    check(&[newline, 0xe2, 0x82, 0xac, newline, a], "\n€\na");
}

#[test]
fn a_broken_character_changes_and_delays_nothing_else() {
    let (a, b, newline) = (258, 259, 10);
    let ids = [a, newline, 0xff, a, b, newline, b];
    let tokenizer = byte_fallback();
    assert_eq!(pieces(&tokenizer, &ids), ["a", "\n", "", "\u{fffd}a", " b", "\n", " b", ""]);
    assert_eq!(tokenizer.decode(&ids).expect("decodes"), "a\n\u{fffd}a b\n b");
    // The start of "€", and a whole one behind it.
    let ids = [0xe2, 0x82, 0xe2, 0x82, 0xac];
    assert_eq!(pieces(&tokenizer, &ids).concat(), "\u{fffd}€");
    assert_eq!(tokenizer.decode(&ids).expect("decodes"), "\u{fffd}€");
}

/// Whatever a model writes, with special tokens and without them.
#[test]
fn pieces_of_any_tokens_join_to_the_decoded_text() {
    let mut state = 17_u64;
    let mut next = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let parts_of_characters = [0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0xc3, 0xa9, 0x0a, 0x61];
    // With the id behind those of its tokens and some that it does not have.
    let tokenizers = [
        (byte_level(), 262),
        (byte_fallback(), 262),
        (unigram("always"), 262),
        (unigram("never"), 262),
        (ranks(), 1606),
    ];
    for (tokenizer, end) in tokenizers {
        for round in 0..300 {
            // Longer than what is decoded again with each token.
            let length = next(200);
            let ids: Vec<u32> = (0..length)
                .map(|_| match (round % 3, next(3)) {
                    (0, _) => next(end) as u32,
                    (1, 0) | (2, 0 | 1) => parts_of_characters[next(11)],
                    _ => (end - 6 + next(5)) as u32,
                })
                .collect();
            let mut stream = tokenizer.stream();
            let mut pieces: Vec<_> =
                ids.iter().map(|&id| stream.push(id).expect("a piece")).collect();
            pieces.push(stream.finish().expect("the rest"));
            let whole: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            assert_eq!(whole, tokenizer.decode(&ids).expect("decodes"), "{ids:?}");
            let shown: String = pieces.iter().map(|piece| piece.visible.as_str()).collect();
            let special: Vec<u32> =
                tokenizer.special_tokens().iter().map(|(_, special)| *special).collect();
            let others: Vec<u32> = ids.iter().copied().filter(|id| !special.contains(id)).collect();
            assert_eq!(shown, tokenizer.decode(&others).expect("decodes"), "{ids:?}");
        }
    }
}

#[test]
fn a_token_by_itself_has_its_leading_space() {
    let check = |tokenizer: &Arc<Tokenizer>, token: u32, text: &str| {
        assert_eq!(tokenizer.token_text(token).expect("a text"), text, "{token}");
    };
    let fallback = byte_fallback();
    check(&fallback, 257, " ");
    check(&fallback, 258, "a");
    check(&fallback, 259, " b");
    check(&fallback, 0x0A, "\n");
    check(&fallback, 0xE2, "\u{fffd}");
    let bytes = byte_level();
    check(&bytes, 32, " ");
    check(&bytes, 0xE2, "\u{fffd}");
    check(&bytes, 258, "<|im_end|>");
}

#[test]
fn a_file_of_ranks_has_its_special_tokens() {
    let tokenizer = ranks();
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("[BOS]"), Some("[EOS]")));
    assert_eq!(tokenizer.token_to_id("<|im_user|>"), Some(1603));
    let ids = tokenizer.encode("[BOS]a<|im_end|>", true).expect("encodes");
    assert_eq!(ids, [1600, 97, 1602]);
    assert_eq!(pieces(&tokenizer, &ids).concat(), "a");
    let plain = tokenizer.encode_plain("[BOS]").expect("encodes");
    assert!(!plain.contains(&1600), "{plain:?}");
    assert_eq!(tokenizer.decode(&plain).expect("decodes"), "[BOS]");
}
