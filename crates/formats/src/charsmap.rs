//! SentencePiece's table of characters that are replaced, `precompiled_charsmap`: a trie of UTF-8 bytes
//! whose leaves lead to replacements. What reads it later follows its offsets unchecked, panics where they
//! lead outside, and reserves as much as its first number says, so it is walked whole before.
//!
//! ```text
//! u32            bytes of the trie
//! u32 × units    the trie, a double array (Aoe 1989) as Darts-clone stores it
//! rest           replacements, UTF-8, each ended by a NUL
//! ```

use serde_json::Value;

use crate::base64;

/// The largest of SentencePiece has 0.3 MB.
const MAX_CHARSMAP_BYTES: usize = 4 << 20;
/// The longest of SentencePiece has 33: a text may grow by this factor.
const MAX_REPLACEMENT_BYTES: usize = 128;

/// Fails, with what is wrong, unless every text can be looked up in the tables of a tokenizer.json's
/// `normalizer`.
pub fn check_normalizer(normalizer: &Value) -> Result<(), String> {
    // Old files don't name the type.
    let table = &normalizer["precompiled_charsmap"];
    if normalizer["type"] == "Precompiled" || !table.is_null() {
        return growth_of(table.as_str().unwrap_or_default()).map(drop).map_err(|found| {
            format!("its precompiled_charsmap is {found}; download the model again")
        });
    }
    let parts = normalizer["normalizers"].as_array();
    parts.into_iter().flatten().try_for_each(check_normalizer)
}

/// Returns the most bytes that a table, in base64, makes of one byte. Infinite if the table cannot
/// be used.
pub(crate) fn charsmap_growth(table: &str) -> f64 {
    growth_of(table).unwrap_or(f64::INFINITY)
}

fn growth_of(table: &str) -> Result<f64, &'static str> {
    // A longer one would be decoded only to be refused.
    if table.len() / 4 * 3 > MAX_CHARSMAP_BYTES + 3 {
        return Err("longer than 4 MiB");
    }
    read_charsmap(&base64::decode(table).ok_or("not base64")?)
}

/// Fails, with what is wrong of the table, unless every text can be looked up in it.
pub fn check_charsmap(bytes: &[u8]) -> Result<(), &'static str> {
    read_charsmap(bytes).map(drop)
}

/// Checks a table, and returns the most bytes that it makes of one byte.
fn read_charsmap(bytes: &[u8]) -> Result<f64, &'static str> {
    if bytes.len() > MAX_CHARSMAP_BYTES {
        return Err("longer than 4 MiB");
    }
    let Some((length, rest)) = bytes.split_first_chunk() else { return Err("without a length") };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || !length.is_multiple_of(4) || length > rest.len() {
        return Err("a trie of another length than it says");
    }
    let (trie, replacements) = rest.split_at(length);
    let replacements = std::str::from_utf8(replacements).map_err(|_| "text that is not UTF-8")?;
    let units: Vec<u32> = trie.chunks_exact(4).map(unit).collect();
    check_trie(&units, replacements)
}

fn unit(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// From each unit that a text can lead to, every byte must lead to a unit, and leaves to
/// replacements. Returns the most bytes that one byte becomes.
fn check_trie(units: &[u32], replacements: &str) -> Result<f64, &'static str> {
    const OUTSIDE: &str = "a trie that leads outside";
    // Exclusive or with a number below 256 stays within 256 units.
    let children = |of: usize| of ^ offset(units[of]);
    let mut reached = vec![false; units.len()];
    let mut growth = 1f64;
    // With the bytes that lead there.
    let mut left = vec![(children(0), 0u32)];
    while let Some((base, num_bytes)) = left.pop() {
        if base | 0xff >= units.len() {
            return Err(OUTSIDE);
        }
        for byte in 1..=u8::MAX {
            let child = base ^ usize::from(byte);
            if units[child] & LABEL != u32::from(byte) || reached[child] {
                continue;
            }
            reached[child] = true;
            let next = children(child);
            if units[child] & HAS_LEAF != 0 {
                let leaf = *units.get(next).ok_or(OUTSIDE)?;
                let replacement_bytes = check_replacement(leaf, replacements)?;
                growth = growth.max(replacement_bytes as f64 / f64::from(num_bytes + 1));
            }
            left.push((next, num_bytes + 1));
        }
    }
    Ok(growth)
}

const HAS_LEAF: u32 = 1 << 8;
/// With the bit that only leaves have.
const LABEL: u32 = 1 << 31 | 0xff;

fn offset(unit: u32) -> usize {
    // One bit says that the number is in units of 256.
    ((unit >> 10) as usize) << ((unit & 1 << 9) >> 6)
}

/// Returns how long the replacement is.
fn check_replacement(leaf: u32, replacements: &str) -> Result<usize, &'static str> {
    let position = (leaf & !(1 << 31)) as usize;
    let Some(rest) = replacements.get(position..) else {
        return Err("a leaf that leads to no replacement");
    };
    match rest.bytes().take(MAX_REPLACEMENT_BYTES + 1).position(|byte| byte == 0) {
        None if rest.len() > MAX_REPLACEMENT_BYTES => Err("a replacement longer than 128 bytes"),
        length => Ok(length.unwrap_or(rest.len())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
pub(crate) mod tests {
    use serde_json::json;
    use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

    use super::*;

    /// A table that replaces the letter `from`, with children of the root at 256.
    pub(crate) fn replacing(from: u8, to: &str) -> Vec<u8> {
        let mut units = vec![0u32; 512];
        units[0] = 256 << 10;
        let child = 256 ^ usize::from(from);
        units[child] = u32::from(from) | HAS_LEAF | (child as u32 ^ 300) << 10;
        units[300] = 1 << 31;
        table(&units, &format!("{to}\0").into_bytes())
    }

    fn table(units: &[u32], replacements: &[u8]) -> Vec<u8> {
        let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(replacements);
        bytes
    }

    fn normalize(table: &[u8], text: &str) -> String {
        let json = json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(table)});
        let normalizer: NormalizerWrapper = serde_json::from_value(json).unwrap();
        let mut text = NormalizedString::from(text);
        normalizer.normalize(&mut text).unwrap();
        text.get().to_owned()
    }

    #[test]
    fn an_accepted_table_replaces() {
        let table = replacing(b'a', "AA");
        assert_eq!(check_charsmap(&table), Ok(()));
        assert_eq!(normalize(&table, "banana é"), "bAAnAAnAA é");
    }

    /// A table that SentencePiece made (`charsmap.py`).
    #[test]
    fn texts_become_what_sentence_piece_makes_of_them() {
        const GOLDEN: &str = include_str!("../../../tests/goldens/charsmap.json");
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        let table = base64::decode(golden["table"].as_str().unwrap()).unwrap();
        assert_eq!(check_charsmap(&table), Ok(()));
        for case in golden["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(normalize(&table, text), case["normalized"], "{text:?}");
        }
    }

    #[test]
    fn a_table_that_leads_outside_is_refused() {
        let good = replacing(b'a', "A");
        let changed = |position: usize, unit: u32| {
            let mut bytes = good.clone();
            bytes[4 + 4 * position..][..4].copy_from_slice(&unit.to_le_bytes());
            bytes
        };
        let child = 256 ^ usize::from(b'a');
        let leaf = 1u32 << 31;
        let long = replacing(b'a', &"A".repeat(129));
        let no_text = [good[..good.len() - 2].to_vec(), vec![0xff]].concat();
        for (bytes, expected) in [
            (vec![1, 2, 3], "without a length"),
            (vec![0; 4], "a trie of another length than it says"),
            (vec![0xff; 4], "a trie of another length than it says"),
            (vec![3, 0, 0, 0, 1, 2, 3], "a trie of another length than it says"),
            (table(&[0], b""), "a trie that leads outside"),
            (changed(0, 512 << 10), "a trie that leads outside"),
            (changed(0, u32::MAX), "a trie that leads outside"),
            (changed(child, u32::from(b'a') | 2048 << 10), "a trie that leads outside"),
            (changed(child, u32::from(b'a') | HAS_LEAF | 2048 << 10), "a trie that leads outside"),
            (changed(300, leaf | 3), "a leaf that leads to no replacement"),
            (long, "a replacement longer than 128 bytes"),
            (no_text, "text that is not UTF-8"),
            (vec![0; MAX_CHARSMAP_BYTES + 1], "longer than 4 MiB"),
        ] {
            let start = &bytes[..bytes.len().min(8)];
            assert_eq!(check_charsmap(&bytes), Err(expected), "{start:?}");
        }
        assert_eq!(check_charsmap(&changed(300, leaf | 2)), Ok(()));
        let inside_a_letter = replacing(b'a', "é");
        let mut bytes = inside_a_letter.clone();
        bytes[4 + 4 * 300..][..4].copy_from_slice(&(leaf | 1).to_le_bytes());
        assert_eq!(check_charsmap(&bytes), Err("a leaf that leads to no replacement"));
    }

    #[test]
    fn the_tables_of_a_tokenizer_are_checked() {
        let of = |table: &str| json!({"type": "Precompiled", "precompiled_charsmap": table});
        let good = base64::encode(&replacing(b'a', "A"));
        for (table, expected) in [
            (good.as_str(), Ok(())),
            (
                "/////w==",
                Err(
                    "its precompiled_charsmap is a trie of another length than it says; download the model again",
                ),
            ),
            ("?", Err("its precompiled_charsmap is not base64; download the model again")),
        ] {
            let sequence = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, of(table)]});
            let expected = expected.map_err(str::to_owned);
            assert_eq!(check_normalizer(&of(table)), expected);
            assert_eq!(check_normalizer(&sequence), expected);
        }
        assert_eq!(check_normalizer(&Value::Null), Ok(()));
    }

    /// Whatever is accepted of tables with a few wrong bytes can be looked up in.
    #[test]
    fn no_accepted_table_panics() {
        let good = replacing(b'a', "Aé");
        let mut state = 1u64;
        let mut next = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let interesting = [0, 256 ^ usize::from(b'a'), 256 ^ 0xc3, 256 ^ 0xa9, 300];
        let mut num_accepted = 0;
        for _ in 0..4000 {
            let mut bytes = good.clone();
            for _ in 0..=next(3) {
                let unit = interesting[next(interesting.len())];
                bytes[4 + 4 * unit + next(4)] = next(256) as u8;
            }
            if check_charsmap(&bytes).is_ok() {
                num_accepted += 1;
                normalize(&bytes, "a é banana \u{10ffff}");
            }
        }
        assert!((1000..3900).contains(&num_accepted), "{num_accepted} accepted");
    }
}
