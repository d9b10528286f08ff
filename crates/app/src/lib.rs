//! What Cairn does, as one list of commands and events. A desktop shell, a server and a test drive
//! the same [`App`]; it knows none of them.
//!
//! ```text
//! Command ──► App::call ──► commands.rs ──► store (rows first) ──► Reply
//!                               │
//!                               └─► answering.rs: one task for each running answer
//!                                     engine.generate ─► progress.rs (what is due when) ─► Event::Delta, saved text
//! Event  ◄── App::subscribe ◄── answers, status.rs (engine and memory), commands that changed something
//! ```
//!
//! - [`wire`] is the whole surface: plain data, of which the TypeScript twin is generated
//!   ([`typescript`]).
//! - [`App`] owns the store, the engine, the settings and the list of running answers, and the lock
//!   on the data folder.
//! - [`Places`] says where things lie. One process at a time owns a data folder.
//! - [`OfflineCaches`] are its prompt caches for other processes, also while it is owned.
//!
//! The engine never sees the database: it is given the rows of the prompt cache at start and tells
//! what became of its files; `cache_rows.rs` writes that down.

mod answering;
mod answers;
mod app;
mod bindings;
mod cache_followers;
mod cache_rows;
mod caches;
mod commands;
mod convert;
mod error;
mod excerpts;
mod imports;
mod kept;
mod lifecycle;
mod models;
mod offline_caches;
mod owners;
mod places;
mod platform;
mod prefix;
mod previews;
mod progress;
mod prompt;
mod settings;
mod status;
mod transfers;
#[expect(missing_docs, reason = "many variants and fields say by their names what they hold")]
pub mod wire;

pub use app::{App, Options};
pub use bindings::typescript;
pub use cairn_hub::CacheVariables;
pub use error::OpenError;
pub use offline_caches::{Kept, KeptCache, KeptChunk, OfflineCaches, OfflineImport};
pub use places::Places;
pub use previews::OwnFile;
pub use transfers::{Download, Upload};
