//! How much a tokenizer.json may lengthen a text. Its rules are applied one after the other, each
//! to the result of the rule before, so seven short rules can turn one word into gigabytes.
//!
//! The bound is computed from the last rule to the first: for each letter that rules name, how many
//! bytes it may become in the end, and the most for any other letter. A replacement is charged to
//! the first letter that it replaces.

use std::collections::HashMap;

use serde_json::Value;

use crate::charsmap::charsmap_growth;

/// A text may become this many times as long. The bound for known tokenizers is below 300: SentencePiece's
/// table may make 11 bytes of one, and then each blank, and the start, gets a mark of 3 bytes.
const MAX_GROWTH: f64 = 1_000.0;
/// More rules than any tokenizer has. Each reads the whole text.
const MAX_RULES: usize = 256;

/// The most that compositions and decompositions of Unicode make of one byte: U+FDFA has 3 in UTF-8
/// and becomes 18 letters of 33 bytes.
const UNICODE_GROWTH: f64 = 11.0;

/// Fails, with what is wrong, if the rules of a tokenizer.json could lengthen a text beyond all
/// measure, before it is cut into tokens or after it was joined from them.
pub fn check_growth(tokenizer: &Value) -> Result<(), String> {
    let parts = [
        ("normalizer", "normalizers"),
        ("pre_tokenizer", "pretokenizers"),
        ("decoder", "decoders"),
    ];
    for (part, list) in parts {
        let mut rules = Vec::new();
        flatten(&tokenizer[part], list, &mut rules);
        if rules.len() > MAX_RULES {
            let count = rules.len();
            return Err(format!("its {part} has {count} rules, but at most {MAX_RULES} are read"));
        }
        let growth = rules.iter().rev().fold(Growth::none(), |after, rule| after.before(rule));
        // Not `>`: if rules multiply without end, the growth may be NaN.
        let is_bounded = growth.per_byte() <= MAX_GROWTH;
        if !is_bounded {
            return Err(format!("its {part} could make a text more than 1000 times as long"));
        }
    }
    Ok(())
}

/// The rules that are applied in turn. Old files don't name the types of all of them.
fn flatten<'a>(rule: &'a Value, list: &str, rules: &mut Vec<&'a Value>) {
    if rule.is_null() {
        return;
    }
    match rule[list].as_array() {
        Some(parts) => parts.iter().for_each(|part| flatten(part, list, rules)),
        None => rules.push(rule),
    }
}

/// How many bytes a letter may become in the end.
struct Growth {
    /// Growth of letters that a rule names.
    of_letters: HashMap<char, f64>,
    /// Growth of each byte of all others.
    of_others: f64,
}

impl Growth {
    fn none() -> Growth {
        Growth { of_letters: HashMap::new(), of_others: 1.0 }
    }

    fn of_letter(&self, letter: char) -> f64 {
        let other = || self.of_others * letter.len_utf8() as f64;
        self.of_letters.get(&letter).copied().unwrap_or_else(other)
    }

    fn of_text(&self, text: &str) -> f64 {
        text.chars().map(|letter| self.of_letter(letter)).sum()
    }

    fn per_byte(&self) -> f64 {
        let of_letters =
            self.of_letters.iter().map(|(letter, bytes)| bytes / letter.len_utf8() as f64);
        of_letters.fold(self.of_others, f64::max)
    }

    /// The growth of a text to which `rule` is applied before the rest.
    fn before(mut self, rule: &Value) -> Growth {
        if let Some(content) = rule["content"].as_str().filter(|_| !rule["pattern"].is_null()) {
            return self.before_replacement(rule["pattern"]["String"].as_str(), content);
        }
        if let Some(prepended) = rule["prepend"].as_str() {
            // Each letter may be a text by itself, between two special tokens.
            let added = self.of_text(prepended);
            self.add_to_all(added);
            return self;
        }
        if let Some(table) = rule["precompiled_charsmap"].as_str() {
            return self.before_any(charsmap_growth(table));
        }
        // Most of these rules may replace any letter.
        match rule["type"].as_str() {
            Some("NFC" | "NFD" | "NFKC" | "NFKD") => self.before_any(UNICODE_GROWTH),
            // Puts blanks around a Chinese letter, or takes a letter and its accents apart; then
            // lower case.
            Some("BertNormalizer") => self.before_any(6.0),
            Some("Lowercase") => self.before_any(2.0),
            Some("Nmt" | "StripAccents" | "Strip") => self.before_any(1.0),
            // A letter of two bytes for each, or U+FFFD for each; and a blank before a word.
            Some("ByteLevel") => self.before_any(4.0),
            // A mark in place of a blank, and before a word.
            Some("Metaspace") => self.before_any(8.0),
            // Decoders that put a blank between tokens, or in place of a mark.
            Some("BPEDecoder" | "CTC" | "WordPiece") => self.before_any(2.0),
            Some(_) => self,
            None => self.before_any(8.0),
        }
    }

    fn before_replacement(mut self, pattern: Option<&str>, content: &str) -> Growth {
        let bytes = self.of_text(content);
        match pattern.and_then(|pattern| pattern.chars().next()) {
            Some(first) => {
                let bytes = bytes.max(self.of_letter(first));
                self.of_letters.insert(first, bytes);
            }
            // A regular expression may match anything, also nothing between two letters.
            None => self.add_to_all(bytes),
        }
        self
    }

    fn add_to_all(&mut self, bytes: f64) {
        self.of_letters.values_mut().for_each(|letter| *letter += bytes);
        self.of_others += bytes;
    }

    fn before_any(self, factor: f64) -> Growth {
        Growth { of_letters: HashMap::new(), of_others: factor * self.per_byte() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replace(pattern: &str, content: &str) -> Value {
        json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
    }

    fn replace_regex(pattern: &str, content: &str) -> Value {
        json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    }

    fn normalizer(rules: Vec<Value>) -> Value {
        json!({"normalizer": {"type": "Sequence", "normalizers": rules}})
    }

    #[test]
    fn refuses_rules_that_feed_each_other() {
        let check = |tokenizer: Value, part: &str| {
            let found = check_growth(&tokenizer).expect_err(part);
            assert!(found.starts_with(&format!("its {part} could make")), "{found}");
        };
        let bomb = || {
            let first = replace("zq", &"zw".repeat(100));
            [vec![first], vec![replace("zw", &"zw".repeat(100)); 6]].concat()
        };
        check(normalizer(bomb()), "normalizer");
        check(json!({"decoder": {"type": "Sequence", "decoders": bomb()}}), "decoder");
        // Without types, as old files have them, and one sequence in another.
        let mut untyped = bomb();
        untyped.iter_mut().for_each(|rule| drop(rule["type"].take()));
        let nested = json!({"normalizers": [{"normalizers": untyped}]});
        check(json!({"normalizer": nested}), "normalizer");
        check(normalizer(vec![replace("a", "aa"); 24]), "normalizer");
        check(normalizer(vec![replace_regex("(?=a)", "ab"); 12]), "normalizer");
        let prepend = json!({"type": "Prepend", "prepend": "x".repeat(100_000)});
        check(normalizer(vec![prepend; 100]), "normalizer");
        // Replaces a letter that composition makes of others.
        let composed = replace("a", &"a\u{30a}".repeat(40));
        let steps = vec![composed.clone(), json!({"type": "NFC"}), replace("å", &"a".repeat(40))];
        check(normalizer(steps), "normalizer");
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false});
        let all = json!({"type": "Sequence", "pretokenizers": vec![bytes; 40]});
        check(json!({"pre_tokenizer": all}), "pre_tokenizer");
    }

    #[test]
    fn refuses_more_rules_than_any_tokenizer_has() {
        let found = check_growth(&normalizer(vec![replace("a", "b"); 257]));
        assert_eq!(found, Err("its normalizer has 257 rules, but at most 256 are read".to_owned()));
    }

    #[test]
    fn accepts_rules_that_tokenizers_have() {
        let mark = "▁";
        let prepend = || json!({"type": "Prepend", "prepend": mark});
        let kind = |name: &str| json!({"type": name});
        for rules in [
            // Llama 2 and Mistral.
            vec![prepend(), replace(" ", mark)],
            // Gemma.
            vec![replace(" ", mark)],
            // ALBERT.
            vec![
                replace("``", "\""),
                replace("''", "\""),
                kind("NFKD"),
                kind("StripAccents"),
                kind("Lowercase"),
            ],
            // A SentencePiece model without a table of its own.
            vec![
                kind("Nmt"),
                kind("NFKC"),
                replace_regex(" {2,}", " "),
                replace(" ", mark),
                prepend(),
            ],
            // ChatGLM.
            vec![
                replace("\n", "<n>"),
                replace("\t", "<|tab|>"),
                replace("    ", "<|blank_4|>"),
                replace("  ", "<|blank_2|>"),
            ],
            // Many replacements of single letters; none feeds another.
            (0..200u8).map(|n| replace(&char::from(n + 33).to_string(), "▁▁▁")).collect(),
        ] {
            let tokenizer = normalizer(rules);
            assert_eq!(check_growth(&tokenizer), Ok(()), "{tokenizer}");
        }
        for tokenizer in [
            json!({}),
            json!({"normalizer": null, "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}}),
            json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": true},
            ]}}),
            json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": mark},
            ]}}),
            json!({"decoder": {"type": "Sequence", "decoders": [
                replace(mark, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]}}),
        ] {
            assert_eq!(check_growth(&tokenizer), Ok(()), "{tokenizer}");
        }
    }
}
