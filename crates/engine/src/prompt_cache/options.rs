//! What the prompt cache starts with.

use std::fs::File;
use std::path::PathBuf;

use cairn_prompt_cache::{CacheRef, ChunkRecord};

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
