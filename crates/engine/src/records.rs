//! Stored prompt caches as a caller's database sees them: rows, and how they change.

use std::path::PathBuf;

/// The stored prompt caches at start.
#[derive(Debug)]
pub struct CacheOptions {
    /// The folder of chunk files.
    pub folder: PathBuf,
    /// The most bytes that chunk files may take together.
    pub budget_bytes: u64,
    /// What is known to be there. Files that no record names are removed.
    pub chunks: Vec<ChunkRecord>,
}

/// What is known about a stored chunk: a row of whatever database the caller keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Hash over the parent's key and the token ids, in hex: the file's name.
    pub key: String,
    /// The chunk that this one continues; none for the first of a conversation.
    pub parent_key: Option<String>,
    /// The model that it was computed with.
    pub fingerprint: String,
    /// Position of its first token.
    pub start: usize,
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// Length of the file.
    pub bytes: u64,
    /// BLAKE3 of the file, in hex.
    pub file_hash: String,
    /// When it was last read or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

/// A change of the stored chunks, for the caller's database. Files come first: a chunk is on disk when `Filed` is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// A chunk was written.
    Filed(ChunkRecord),
    /// Chunks are gone, or can no longer be used.
    Removed {
        /// Their keys.
        keys: Vec<String>,
        /// Why, in words.
        reason: String,
    },
    /// Chunks were read.
    Touched {
        /// Their keys.
        keys: Vec<String>,
        /// When.
        at_ms: i64,
    },
}
