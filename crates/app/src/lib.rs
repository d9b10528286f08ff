//! What Cairn does, as one list of commands and events. The desktop shell, the HTTP server and tests
//! use the same [`App`], which depends on none of them.
//!
//! ```text
//! Command ──► App::call ──► commands.rs ──► store (rows first) ──► Reply
//!                               │
//!                               └─► chat/answering.rs: one task for each running answer
//!                                     engine.generate ─► chat/progress.rs (what is due when) ─► Event::Delta, saved text
//! Event  ◄── App::subscribe ◄── answers, status.rs (engine and memory), commands that changed something
//! ```
//!
//! - [`wire`] is the whole surface: plain data, of which the TypeScript twin is generated
//!   ([`typescript`]). The table of settings is taken over as well ([`typescript_settings`]).
//! - [`App`] owns the store, the engine, the settings and the list of running answers, and the lock
//!   on the data folder.
//! - [`DataFolder`] has the paths of Cairn's own files. One process at a time owns a data folder.
//! - [`OfflineCaches`] gives other processes access to the saved prompt caches, also while an app
//!   owns the data folder; [`OfflineChats`] to the conversations.
//!
//! The engine never sees the database: at the start it is given the rows of the prompt cache, and it
//! reports each change as an event, which `cache/rows.rs` writes to the database.
//!
//! # Example
//!
//! ```
//! use cairn_app::wire::{Command, Reply};
//! use cairn_app::{App, DataFolder, Options};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let home = tempfile::tempdir()?;
//! let options = Options::new(DataFolder::new(home.path()));
//! let app = App::open(options).await?;
//! let reply = app.call(Command::NewConversation).await;
//! assert!(matches!(reply, Ok(Reply::Conversation { .. })));
//! app.close().await;
//! # Ok(())
//! # }
//! ```

mod answer_segment;
mod api;
mod app;
mod bindings;
mod cache;
mod chat;
mod chat_files;
mod clock;
mod commands;
pub mod completion;
mod consent;
mod convert;
mod crashes;
mod data_folder;
mod database_file;
pub mod decisions;
mod diagnostics;
mod documents;
pub mod embeddings;
mod error;
mod finding;
mod folder_lock;
mod folders;
mod jobs;
mod lifecycle;
mod logs;
mod memory_pressure;
mod models;
mod monitor;
mod names;
mod options;
mod panics;
mod personas;
mod platform;
mod presets;
mod recovered;
mod settings;
mod status;
mod undo;
#[expect(missing_docs, reason = "most variants and fields are described by their names")]
pub mod wire;

pub use api::{ApiClient, EndedRequest};
pub use app::{App, Closed};
pub use bindings::{typescript, typescript_settings};
pub use cache::{
    CachedEntry, CachedItem, ChunkSummary, Download, OfflineCaches, OfflineImport, OwnFile, Upload,
};
pub use cairn_engine::Repaired;
pub use cairn_formats::{Replacement, readable};
pub use cairn_hub::CacheVariables;
pub use cairn_store::new_id;
pub use chat_files::{ListedChat, OfflineChats};
pub use consent::Consent;
pub use data_folder::DataFolder;
pub use error::OpenError;
pub use folder_lock::FolderLock;
pub use logs::{LOG_FILTER, LogFile};
pub use models::{CheckedFacts, ModelVerdict, model_title, run_child_if_asked};
pub use options::{
    AnswerDefaults, ForcedKvQuantization, ForcedSpeculation, Options, SavedContextOptions,
};
pub use panics::log_panics;
pub use platform::{KEEPS_MEMORY_LIMIT, exit_now, raise_file_limit};
