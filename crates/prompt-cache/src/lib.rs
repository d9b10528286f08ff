//! What the prompt cache stores, and why: its records, and the policy over them.
//!
//! A prompt's keys and values are stored in chunks of at most [`MAX_CHUNK_TOKENS`] tokens. A chunk
//! continues its parent; conversations with the same beginning share the chunks of it. This crate
//! says which chunks there are, what a prompt can take from them, what is to be saved of it, what is
//! evicted first, and why something was not found. It knows no MLX, file, thread or clock: times
//! come in as milliseconds since the Unix epoch.
//!
//! ```text
//!              ChunkRecord ── Namespace (model, KvFormat, Provenance), Tokens, ChunkFile
//!                   │ parent: ChunkKey
//!  rows ──▶ ChunkIndex ──▶ RestorePlan     what a prompt can take
//!                   │ ───▶ PlannedChunk    what is to be saved of it
//!                   │ ───▶ Miss            why not more was found
//!                   │ ───▶ CacheChange     what to do with files, rows and watchers
//!               CacheRef ── RefName (Owner), Loss
//! ```
//!
//! The engine keeps the mechanism: contents in memory, files, the thread that writes them. The store
//! keeps tables whose columns are these records.
//!
//! # Example
//!
//! ```
//! use cairn_prompt_cache::*;
//!
//! let budgets = Budgets { disk_bytes: 1 << 30, memory_bytes: 1 << 20 };
//! let (mut index, rejected) = ChunkIndex::new(budgets, Vec::new(), Vec::new());
//! assert!(rejected.is_empty());
//!
//! // A prompt of a system prompt and a question, and its answer.
//! let namespace = Namespace::computed("0123456789abcdef", KvFormat::Plain);
//! let tokens = PromptTokens::known([1, 2, 3, 4, 5, 6, 7]);
//! let boundaries = [(3, ChunkKind::System), (5, ChunkKind::User)];
//! for planned in index.write_plan(&namespace, &tokens, &boundaries, &[], RestoreNeeds::default()) {
//!     let record = ChunkRecord {
//!         key: planned.key,
//!         parent: planned.parent,
//!         namespace: namespace.clone(),
//!         kind: planned.kind,
//!         start: planned.start,
//!         held_from: planned.start,
//!         tokens: planned.tokens,
//!         has_state: false,
//!         file: None,
//!         hits: 0,
//!         created_at_ms: 0,
//!         last_used_at_ms: 0,
//!     };
//!     index.insert(record, 4096);
//! }
//!
//! // Another prompt that begins alike.
//! let other = PromptTokens::known([1, 2, 3, 4, 9]);
//! let plan = index.restore_plan(&namespace, &other, RestoreNeeds::default());
//! assert_eq!((plan.num_tokens, plan.chunks.len()), (4, 2));
//! ```

mod error;
mod index;
mod key;
mod namespace;
mod owner;
mod reason;
mod record;
mod tokens;

pub use error::PromptCacheError;
pub use index::{
    Budgets, Chunk, ChunkIndex, Lookup, MemoryChanges, PlannedChunk, RefUsage, RestoreNeeds,
    RestorePlan,
};
pub use key::ChunkKey;
pub use namespace::{FileHash, KvFormat, ModelFingerprint, Namespace, Provenance};
pub use owner::{Owner, RefName};
pub use reason::{ChunkProblem, LossReason, Miss, MissReason};
pub use record::{
    CacheChange, CacheRef, ChunkFile, ChunkKind, ChunkRecord, Loss, MAX_CHUNK_BYTES,
    MAX_CHUNK_TOKENS,
};
pub use tokens::{PromptTokens, Tokens};
