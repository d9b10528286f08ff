//! Stored prompt caches as a caller's database sees them: rows, and how they change.

use std::fs::File;
use std::path::PathBuf;

/// The stored prompt caches at start.
#[derive(Debug)]
pub struct CacheOptions {
    /// The folder of chunk files.
    pub folder: PathBuf,
    /// The most bytes that chunk files may take together; 0 keeps nothing on disk.
    pub disk_budget_bytes: u64,
    /// The most bytes that chunks in memory may take together, beside the conversation that ran
    /// last.
    pub memory_budget_bytes: u64,
    /// What is known to be there.
    pub chunks: Vec<ChunkRecord>,
    /// Who holds which place.
    pub refs: Vec<CacheRef>,
    /// A lock that says that no other program is adding files: while it is held, at the start,
    /// files that no record names are removed. None removes nothing.
    pub cleanup_lock: Option<File>,
}

/// What keys and values depend on beside their tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    /// The model that computed them.
    pub fingerprint: String,
    /// How they are kept where that is not as computed, such as "kv8g64", and where they come from
    /// where nobody has checked it, such as "kv8g64@<hash>" of the file; or "file:<hash>" where
    /// what a file holds is not known as tokens. Empty otherwise.
    pub variant: String,
}

impl Namespace {
    /// What the variants of files begin with.
    const FILE: &str = "file:";
    /// Between how they are kept and the hash of a file.
    const APART: char = '@';

    /// What follows a file of this hash that does not say its tokens.
    pub fn after_file(fingerprint: &str, hash: &str) -> Namespace {
        Namespace {
            fingerprint: fingerprint.to_owned(),
            variant: format!("{}{hash}", Namespace::FILE),
        }
    }

    /// The same, apart: for what came from a file of this hash, or follows it, and was never
    /// computed here. Nothing else that begins with the same tokens comes upon it.
    pub fn apart(&self, hash: &str) -> Namespace {
        Namespace { variant: format!("{}{}{hash}", self.variant, Namespace::APART), ..self.clone() }
    }

    /// Whether its first tokens only stand for what a file held without saying.
    pub fn is_opaque(&self) -> bool {
        is_opaque(&self.variant)
    }

    /// The part of [`Namespace::KV format`] that says how keys and values are kept.
    pub(crate) fn kept_as(variant: &str) -> &str {
        if is_opaque(variant) {
            ""
        } else {
            variant.split(Namespace::APART).next().unwrap_or_default()
        }
    }

    /// Where what follows a prefix of `prefix_variant` belongs that is kept as this namespace says.
    pub(crate) fn following(self, prefix_variant: Option<&str>) -> Namespace {
        match prefix_variant {
            Some(variant) if is_opaque(variant) => {
                Namespace { variant: variant.to_owned(), ..self }
            }
            Some(variant) => match variant.split_once(Namespace::APART) {
                Some((_, hash)) => self.apart(hash),
                None => self,
            },
            None => self,
        }
    }
}

fn is_opaque(variant: &str) -> bool {
    variant.starts_with(Namespace::FILE)
}

/// Whose words a chunk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkKind {
    /// The beginning that conversations with one system prompt share.
    System,
    /// A question, with all that a template puts around it.
    User,
    /// An answer.
    Assistant,
}

/// What is known about a stored chunk: a row of whatever database the caller keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Hash over the parent's key and the token ids, in hex: the file's name.
    pub key: String,
    /// The chunk that this one continues; none for the first of a conversation.
    pub parent_key: Option<String>,
    /// What else it depends on.
    pub namespace: Namespace,
    /// Whose words they are.
    pub kind: ChunkKind,
    /// Position of its first token.
    pub start: usize,
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// The first token of which sliding-window layers still held keys and values; `start` where
    /// there are no such layers.
    pub held_from: usize,
    /// Whether it holds recurrent states behind its last token.
    pub has_state: bool,
    /// Length of the file; of the contents while there is none.
    pub bytes: u64,
    /// BLAKE3 of the file, in hex; empty while there is none.
    pub file_hash: String,
    /// How often a conversation went on from it.
    pub hits: u64,
    /// When it was last used or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

impl ChunkRecord {
    /// The position behind its last token.
    pub fn stop(&self) -> usize {
        self.start + self.token_ids.len()
    }
}

/// A place in the stored prompt caches that somebody holds, such as the end of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRef {
    /// Who: a name of the caller's choice.
    pub owner: String,
    /// Where its chunks belong.
    pub namespace: Namespace,
    /// The name under which the model was loaded.
    pub model: String,
    /// The last chunk before the place; none where nothing is left of them.
    pub chunk_key: Option<String>,
    /// The tokens up to that chunk's end.
    pub num_tokens: usize,
    /// Whether the chunks before it are kept whatever the budgets say.
    pub is_pinned: bool,
    /// What it had to give up since it was set.
    pub loss: Option<Loss>,
}

/// What a reference no longer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The tokens up to the place that it once held.
    pub num_tokens: usize,
    /// Why, in words.
    pub reason: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// A change of the stored chunks, for the caller's database. Files come first: a chunk is on disk
/// when `Written` is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// A chunk was written.
    Written(ChunkRecord),
    /// Chunks are gone, or can no longer be used.
    Removed {
        /// Their keys.
        keys: Vec<String>,
        /// Why, in words.
        reason: String,
    },
    /// Chunks were used.
    Touched {
        /// Their keys.
        keys: Vec<String>,
        /// When.
        at_ms: i64,
    },
    /// A reference was set, or has changed.
    RefSet(CacheRef),
    /// A reference is gone.
    RefRemoved {
        /// Whose it was.
        owner: String,
    },
}
