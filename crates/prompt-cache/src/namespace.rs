//! What keys and values depend on besides tokens.

use std::fmt;
use std::str::FromStr;

use crate::PromptCacheError;

/// A hash of what keys and values depend on in a model folder: configuration, weights, precision
/// and numerics. Hexadecimal in every record that [`crate::ChunkRecord::checked`] accepts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelFingerprint(String);

/// The BLAKE3 hash of a file, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHash(String);

impl ModelFingerprint {
    /// The hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it has the form of a hash. Only then may it name a folder.
    pub(crate) fn is_hash(&self) -> bool {
        (16..=128).contains(&self.0.len()) && is_hex(&self.0)
    }
}

impl FileHash {
    /// The hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it has as many digits as BLAKE3 gives.
    pub(crate) fn is_hash(&self) -> bool {
        self.0.len() == 64 && is_hex(&self.0)
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl<T: Into<String>> From<T> for ModelFingerprint {
    fn from(text: T) -> Self {
        ModelFingerprint(text.into())
    }
}

impl<T: Into<String>> From<T> for FileHash {
    fn from(text: T) -> Self {
        FileHash(text.into())
    }
}

impl fmt::Display for ModelFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for FileHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Everything that keys and values depend on besides tokens. Chunks of two namespaces never match,
/// even where their tokens are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    /// The model that computed them.
    pub model: ModelFingerprint,
    /// How they are stored.
    pub kv_format: KvFormat,
    /// Who computed them.
    pub provenance: Provenance,
}

/// How keys and values are stored. As text, in rows and chunk files: `plain`, or for example
/// `kv8g64` or `snapkv4096`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KvFormat {
    /// In the type that the model computes them in.
    #[default]
    Plain,
    /// Quantized in groups.
    Quantized {
        /// Bits of each number.
        bits: u8,
        /// Numbers that share a scale and a bias.
        group_size: u16,
    },
    /// Only those of the tokens that the last ones of a prompt attend to most. Such a context is stored
    /// whole wherever it can be continued, as a recurrent state is, and never taken for one of all
    /// tokens.
    Compressed {
        /// How many tokens are kept.
        keep_tokens: u32,
    },
}

/// Who computed keys and values. As text, in rows and chunk files: `computed`, `import:<hash>` or
/// `opaque:<hash>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Provenance {
    /// This program, from the tokens. All conversations share such chunks.
    #[default]
    Computed,
    /// Whoever made the imported file of this hash; nobody computed them again here. Only
    /// conversations that begin with that import find them.
    Import(FileHash),
    /// As [`Provenance::Import`], from a file that does not name its tokens: the first chunks hold
    /// [`crate::Tokens::Opaque`]. How the file stores keys and values is written in its chunks, so
    /// the namespace's [`KvFormat`] is always plain.
    OpaqueImport(FileHash),
}

impl Namespace {
    /// The namespace that all conversations of a model share.
    pub fn computed(model: impl Into<ModelFingerprint>, kv_format: KvFormat) -> Namespace {
        Namespace { model: model.into(), kv_format, provenance: Provenance::Computed }
    }

    /// The namespace of tokens that follow a prefix: what continues an import stays in the import's
    /// own namespace.
    pub fn following(self, prefix: &Provenance) -> Namespace {
        let kv_format = if prefix.is_opaque() { KvFormat::Plain } else { self.kv_format };
        Namespace { kv_format, provenance: prefix.clone(), ..self }
    }
}

impl Provenance {
    /// Whether it begins with tokens that nobody named.
    pub fn is_opaque(&self) -> bool {
        matches!(self, Provenance::OpaqueImport(_))
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvFormat::Plain => formatter.write_str("plain"),
            KvFormat::Quantized { bits, group_size } => write!(formatter, "kv{bits}g{group_size}"),
            KvFormat::Compressed { keep_tokens } => write!(formatter, "snapkv{keep_tokens}"),
        }
    }
}

impl FromStr for KvFormat {
    type Err = PromptCacheError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let quantized = || {
            let (bits, group_size) = text.strip_prefix("kv")?.split_once('g')?;
            let (bits, group_size) = (bits.parse().ok()?, group_size.parse().ok()?);
            Some(KvFormat::Quantized { bits, group_size })
        };
        let compressed = || {
            let keep_tokens = text.strip_prefix("snapkv")?.parse().ok()?;
            Some(KvFormat::Compressed { keep_tokens })
        };
        match text {
            "plain" => Ok(KvFormat::Plain),
            _ => quantized()
                .or_else(compressed)
                .ok_or_else(|| PromptCacheError::unknown(text, "KV format")),
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Provenance::Computed => formatter.write_str("computed"),
            Provenance::Import(hash) => write!(formatter, "import:{hash}"),
            Provenance::OpaqueImport(hash) => write!(formatter, "opaque:{hash}"),
        }
    }
}

impl FromStr for Provenance {
    type Err = PromptCacheError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "computed" => Ok(Provenance::Computed),
            Some(("import", hash)) => Ok(Provenance::Import(hash.into())),
            Some(("opaque", hash)) => Ok(Provenance::OpaqueImport(hash.into())),
            _ => Err(PromptCacheError::unknown(text, "provenance")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_survive_the_way_through_text() {
        for format in [
            KvFormat::Plain,
            KvFormat::Quantized { bits: 8, group_size: 64 },
            KvFormat::Compressed { keep_tokens: 4096 },
        ] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        for provenance in [
            Provenance::Computed,
            Provenance::Import("0f".into()),
            Provenance::OpaqueImport("0f".into()),
        ] {
            assert_eq!(provenance.to_string().parse(), Ok(provenance));
        }
        for text in ["", "kv", "kv8", "kv8gx", "8g64", "kv256g64", "kv-8g64"] {
            assert!(text.parse::<KvFormat>().is_err(), "{text}");
        }
        for text in ["", "import", "computed:", "file:0f"] {
            assert!(text.parse::<Provenance>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_continues_an_opaque_import_has_no_format_of_its_own() {
        let quantized = KvFormat::Quantized { bits: 8, group_size: 64 };
        let check = |prefix: Provenance, expected: KvFormat| {
            let following = Namespace::computed("f", quantized).following(&prefix);
            assert_eq!((following.kv_format, following.provenance), (expected, prefix));
        };
        check(Provenance::Computed, quantized);
        check(Provenance::Import("0f".into()), quantized);
        check(Provenance::OpaqueImport("0f".into()), KvFormat::Plain);
    }
}
