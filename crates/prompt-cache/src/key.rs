//! Keys of chunks.

use std::fmt::{self, Write};
use std::str::FromStr;

use crate::{Namespace, PromptCacheError, Tokens};

/// The name of a chunk: a hash over everything that its keys and values depend on. Equal beginnings
/// in one namespace therefore have equal keys and are stored once.
///
/// 128 bits of BLAKE3; as text 32 hexadecimal digits, which are the name of its file. They suffice:
/// nobody gains from a collision, and the tokens in the record would reveal one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey([u8; 16]);

impl ChunkKey {
    /// The key that stands for a namespace: the parent of its first chunks.
    pub fn root(namespace: &Namespace) -> ChunkKey {
        let Namespace { model, kv_format, provenance } = namespace;
        hash(b"cairn prompt cache 2", format!("{model}\n{kv_format}\n{provenance}").as_bytes())
    }

    /// The key of the chunk that continues this one with `tokens`.
    pub fn child(&self, tokens: &Tokens) -> ChunkKey {
        hash(&self.to_hex(), &tokens.to_le_bytes())
    }

    /// The key of these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> ChunkKey {
        ChunkKey(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Its text. A start computes the key of every row, so this does without a formatter.
    fn to_hex(self) -> [u8; 32] {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
        std::array::from_fn(|index| {
            let byte = self.0[index / 2];
            digit(if index % 2 == 0 { byte >> 4 } else { byte & 0xf })
        })
    }
}

/// The first half of BLAKE3 over the length of `first`, `first` and `second`.
fn hash(first: &[u8], second: &[u8]) -> ChunkKey {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(first.len() as u64).to_le_bytes());
    hasher.update(first);
    hasher.update(second);
    let mut half = [0; 16];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    ChunkKey(half)
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_hex().iter().try_for_each(|digit| formatter.write_char(char::from(*digit)))
    }
}

impl fmt::Debug for ChunkKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for ChunkKey {
    type Err = PromptCacheError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || PromptCacheError::unknown(text, "chunk key");
        // Lower case only: a file has one name.
        let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_hex) {
            return Err(unknown());
        }
        u128::from_str_radix(text, 16)
            .map(|number| ChunkKey(number.to_be_bytes()))
            .map_err(|_| unknown())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::{KvFormat, Provenance};

    #[test]
    fn keys_are_the_ones_that_name_files_on_disk() {
        // Computed by the version that began `prompt-cache-v2`.
        let check = |namespace: &Namespace, tokens: Tokens, expected: [&str; 2]| {
            let root = ChunkKey::root(namespace);
            assert_eq!([root, root.child(&tokens)].map(|key| key.to_string()), expected);
        };
        let plain = Namespace::computed("0123456789abcdef0123456789abcdef", KvFormat::Plain);
        check(
            &plain,
            Tokens::known([5, 6, 70_000]),
            ["6451c1fe9d5f0fa7f442cc862bda39f7", "3b7c7854910393d97d6fd2f99fa4b4f8"],
        );
        let opaque = Namespace {
            kv_format: KvFormat::Quantized { bits: 8, group_size: 64 },
            provenance: Provenance::OpaqueImport("0f".into()),
            ..plain
        };
        check(
            &opaque,
            Tokens::Opaque { count: 3 },
            ["893acc2d87ae7db119c086b3d2042049", "dec35b6b2af95b1e9c27c77eb02645f7"],
        );
    }

    #[test]
    fn a_key_is_32_hexadecimal_digits_as_text() {
        let text = "00ff0123456789abcdef0123456789ab";
        assert_eq!(text.parse::<ChunkKey>().unwrap().to_string(), text);
        for text in ["", "00ff", &text.to_uppercase(), &text[1..], &format!("+{}", &text[1..])] {
            assert!(text.parse::<ChunkKey>().is_err(), "{text}");
        }
    }
}
