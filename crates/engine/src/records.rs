//! The prompt cache's records as a caller's database stores them, and how they change.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;

use cairn_lm::cache::KvQuantization;

/// The stored prompt caches at start.
#[derive(Debug)]
pub struct CacheOptions {
    /// The folder of chunk files.
    pub folder: PathBuf,
    /// Folders that earlier versions kept chunk files in. Cairn's own files in them are removed.
    pub old_folders: Vec<PathBuf>,
    /// The most bytes that all chunk files may take together; 0 stores nothing on disk.
    pub disk_budget_bytes: u64,
    /// The most bytes of memory that chunks and resident conversations may take together. The
    /// conversation that ran last does not count.
    pub memory_budget_bytes: u64,
    /// The chunks on disk.
    pub chunks: Vec<ChunkRecord>,
    /// The references to them.
    pub refs: Vec<CacheRef>,
    /// A lock that no program holds that is adding files. While this engine holds it, at its start,
    /// it adopts chunk files without a record and removes its own unfinished files. Without the
    /// lock it does neither.
    pub cleanup_lock: Option<File>,
}

/// Everything that keys and values depend on beside their tokens. Chunks of different namespaces
/// never match, even where their tokens are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    /// The fingerprint of the model that computed them.
    pub model: String,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// Who computed them.
    pub provenance: Provenance,
}

/// How keys and values are stored. As text, in database rows and chunk files: `plain`, or for
/// example `kv8g64`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KvFormat {
    /// In the type that the model computes them in.
    #[default]
    Plain,
    /// Quantized in groups.
    Quantized {
        /// Bits of each number.
        bits: i32,
        /// Numbers that share a scale and a bias.
        group_size: i32,
    },
}

/// Who computed the keys and values of a namespace. As text, in database rows and chunk files:
/// `computed`, `import:<hash>` or `opaque:<hash>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Provenance {
    /// This program, from the tokens. All conversations share such chunks.
    #[default]
    Computed,
    /// Whoever made the imported file of this hash; nobody computed them again here. Only
    /// conversations that begin with that import find them.
    Import(String),
    /// As [`Provenance::Import`], from a file that does not name its tokens: the chunks' token ids
    /// are zeros, which only count positions. How the file stores keys and values is written in its
    /// chunks, so the namespace's [`KvFormat`] is always plain.
    OpaqueImport(String),
}

impl Namespace {
    /// The namespace that all conversations of a model share.
    pub fn computed(model: impl Into<String>, kv_format: KvFormat) -> Namespace {
        Namespace { model: model.into(), kv_format, provenance: Provenance::Computed }
    }

    /// Whether token ids are unknown and stand as zeros.
    pub fn is_opaque(&self) -> bool {
        self.provenance.is_opaque()
    }

    /// The namespace of tokens that follow a prefix: what continues an import stays in the
    /// import's own namespace.
    pub(crate) fn following(self, prefix: &Provenance) -> Namespace {
        let kv_format = if prefix.is_opaque() { KvFormat::Plain } else { self.kv_format };
        Namespace { kv_format, provenance: prefix.clone(), ..self }
    }
}

impl Provenance {
    /// Whether the file did not name its tokens.
    pub fn is_opaque(&self) -> bool {
        matches!(self, Provenance::OpaqueImport(_))
    }
}

impl KvFormat {
    /// The quantization, from the first token on; none where keys and values are plain.
    pub fn quantization(self) -> Option<KvQuantization> {
        match self {
            KvFormat::Plain => None,
            KvFormat::Quantized { bits, group_size } => {
                Some(KvQuantization { bits, group_size, start: 0 })
            }
        }
    }
}

impl From<Option<KvQuantization>> for KvFormat {
    fn from(quantization: Option<KvQuantization>) -> Self {
        quantization.map_or(KvFormat::Plain, |KvQuantization { bits, group_size, .. }| {
            KvFormat::Quantized { bits, group_size }
        })
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvFormat::Plain => formatter.write_str("plain"),
            KvFormat::Quantized { bits, group_size } => write!(formatter, "kv{bits}g{group_size}"),
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

/// A text that names no [`KvFormat`] or [`Provenance`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no {what}")]
pub struct UnknownNamespace {
    text: String,
    what: &'static str,
}

impl FromStr for KvFormat {
    type Err = UnknownNamespace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let quantized = |text: &str| {
            let (bits, group_size) = text.strip_prefix("kv")?.split_once('g')?;
            Some(KvFormat::Quantized {
                bits: bits.parse().ok()?,
                group_size: group_size.parse().ok()?,
            })
        };
        match text {
            "plain" => Ok(KvFormat::Plain),
            text => quantized(text)
                .ok_or_else(|| UnknownNamespace { text: text.to_owned(), what: "KV format" }),
        }
    }
}

impl FromStr for Provenance {
    type Err = UnknownNamespace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "computed" => Ok(Provenance::Computed),
            Some(("import", hash)) => Ok(Provenance::Import(hash.to_owned())),
            Some(("opaque", hash)) => Ok(Provenance::OpaqueImport(hash.to_owned())),
            _ => Err(UnknownNamespace { text: text.to_owned(), what: "provenance" }),
        }
    }
}

/// The role of the message that a chunk's tokens belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkKind {
    /// The system prompt, or a starting point: the beginning that conversations share.
    System,
    /// A question, with everything that a template puts around it.
    User,
    /// An answer.
    Assistant,
}

impl ChunkKind {
    /// The kind's name in chunk files.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ChunkKind::System => "system",
            ChunkKind::User => "user",
            ChunkKind::Assistant => "assistant",
        }
    }

    pub(crate) fn named(name: &str) -> Option<ChunkKind> {
        let kinds = [ChunkKind::System, ChunkKind::User, ChunkKind::Assistant];
        kinds.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A stored chunk: a row of whatever database the caller keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Hash of the parent's key and the token ids, in hex: the file's name.
    pub key: String,
    /// The chunk that this one continues; none for the first of a prompt.
    pub parent_key: Option<String>,
    /// What the contents depend on beside the tokens.
    pub namespace: Namespace,
    /// The role that the tokens belong to.
    pub kind: ChunkKind,
    /// Position of the first token in the prompt.
    pub start: usize,
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// The first position whose keys and values sliding-window layers still had when the chunk was
    /// saved; `start` for models without such layers.
    pub held_from: usize,
    /// Whether it contains recurrent states after its last token.
    pub has_state: bool,
    /// Length of the file, or of the contents while there is no file.
    pub bytes: u64,
    /// BLAKE3 of the file, in hex; empty while there is no file.
    pub file_hash: String,
    /// How often a prompt continued from it.
    pub hits: u64,
    /// When it was last used or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

impl ChunkRecord {
    /// The position after its last token.
    pub fn stop(&self) -> usize {
        self.start + self.token_ids.len()
    }
}

/// A reference to a position in the stored chunks, such as the end of a conversation. Referenced
/// chunks are shown as saved; pinned ones are never evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRef {
    /// A name of the caller's choice for what refers to it.
    pub owner: String,
    /// The namespace of its chunks.
    pub namespace: Namespace,
    /// The name under which the model was loaded.
    pub model: String,
    /// The last chunk before the position; none where nothing is stored any more.
    pub chunk_key: Option<String>,
    /// The tokens up to that chunk's end.
    pub num_tokens: usize,
    /// Whether its chunks stay whatever the budgets are.
    pub is_pinned: bool,
    /// What it had to give up since it was set.
    pub loss: Option<Loss>,
}

/// What a reference no longer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The tokens up to the position that it once referred to.
    pub num_tokens: usize,
    /// The reason, in words.
    pub reason: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// A change of the stored chunks, for the caller's database. Files change first: a chunk is on disk
/// when `Written` is sent, and gone from it when `Removed` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// A chunk was written.
    Written(ChunkRecord),
    /// Chunks are gone, or cannot be used any more.
    Removed {
        /// Their keys.
        keys: Vec<String>,
        /// The reason, in words.
        reason: String,
    },
    /// Chunks were used.
    Touched {
        /// Their keys.
        keys: Vec<String>,
        /// When, in milliseconds since the Unix epoch.
        at_ms: i64,
    },
    /// A reference was set, or has changed.
    RefSet(CacheRef),
    /// A reference is gone.
    RefRemoved {
        /// Its owner.
        owner: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_survive_the_way_through_text() {
        for format in [KvFormat::Plain, KvFormat::Quantized { bits: 8, group_size: 64 }] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let hash = || "0f".to_owned();
        for provenance in
            [Provenance::Computed, Provenance::Import(hash()), Provenance::OpaqueImport(hash())]
        {
            assert_eq!(provenance.to_string().parse(), Ok(provenance));
        }
        for text in ["", "kv", "kv8", "kv8gx", "8g64"] {
            assert!(text.parse::<KvFormat>().is_err(), "{text}");
        }
        for text in ["", "import", "computed:", "file:0f"] {
            assert!(text.parse::<Provenance>().is_err(), "{text}");
        }
    }
}
