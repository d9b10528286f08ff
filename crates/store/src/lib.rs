//! What Cairn remembers between runs, in one SQLite file: conversations, the models used, settings,
//! and the index of the prompt cache.
//!
//! A [`Store`] is opened once and shared. Every method is one transaction: when it returns, what it
//! wrote is on the disk, and a crash or a dropped future before that leaves the file as it was. The
//! caller passes the time; the crate itself asks a clock only for file names.
//!
//! ```text
//! cairn.db                    SQLite, write-ahead log, every commit synced
//! ├── conversations           a title, a system prompt, settings, the end of the branch on screen, and the named prompt cache it begins with
//! │   ├── messages            a tree: each names the message it follows; ordered by number, never by time
//! │   ├── message_deletions   deletions of messages that can be undone
//! │   └── documents           files that stand before questions, as text; message_documents says before which
//! ├── folders                 of conversations, and what those that are begun in one begin with
//! │   └── folder_documents    files that they begin with, as text; conversation_documents says which have begun with which
//! ├── message_search          the words of messages (FTS5), for search; search_progress says of which
//! ├── document_passages       the texts of documents in parts, which document_search has the words of; documents_to_index says which are left
//! ├── models                  which model folders were used, newest last
//! ├── model_settings          what a person has set for a model, by its name
//! ├── model_checks            what opening a model's files once has shown
//! ├── model_folders           folders of models that were added
//! ├── downloads               models that are being downloaded, to which folder, and whether they are paused
//! ├── settings                JSON texts by key
//! ├── api_keys                names of the keys that programs use, and the hash of each
//! ├── jobs                    questions that are asked about many texts, and whether they go on
//! │   └── job_rows            the texts, and what was answered about each
//! ├── unclean_ends            how many runs have ended without being closed while a model or a job was at work
//! ├── monitor_minutes         speeds and memory of the minutes of the last two days in which there was something to note
//! ├── work                    what each request of the last two days has computed; the totals are its sums
//! ├── read_ahead              what was read for questions that are not sent yet
//! ├── answer_savings          how much reading each answer saved; purged_savings has the sum of chats that are gone
//! ├── chunks                  the files of the prompt cache: key, tokens, size, hash
//! ├── cache_refs              the chunk up to which a conversation or a named prompt cache is saved, and what was lost of it
//! └── named_caches            prompt caches with a name, to begin conversations with
//! cairn.db-wal, cairn.db-shm  SQLite's own, removed by a clean close
//! cairn.db-runs/
//! ├── opening                 locked while a program opens the database
//! ├── tables.json             where the tables begin in the file, for a recovery
//! ├── suspect                 exists from when damage is found until the database is checked
//! └── <run id>                locked for as long as that program has the database open
//! cairn.backup-v1-<time>.db   the database before a migration; the newest three
//! cairn.damaged-<time>.db     a damaged database that was replaced; never removed
//! cairn.saved-<time>.db       a copy that was saved when another file took the place of cairn.db; never removed
//! cairn.saving.db             such a copy until it is complete; after a kill the next start names or removes it
//! ```
//!
//! Several programs may have one file open: the app, and commands beside it. Rows that only one
//! program can finish, which are streaming answers and deletions that can be undone, name the run of
//! that program. A program that opens the file finishes the rows of runs that have ended: their
//! streaming messages become interrupted, with the text saved so far, and the conversations and
//! named prompt caches that they deleted are purged. A run has ended when its lock is free; the rows
//! of other runs are left alone. [`Store::changes_by_others`] says whether another program may have
//! changed the database.
//!
//! The life of an answer: [`Store::begin_turn`] saves the question and an empty streaming answer,
//! [`Store::save_progress`] saves its text now and then, and [`Store::finish_turn`] closes it with
//! the token ids of both. [`Store::branch`] reads the conversation back, from its first message to
//! the end of the current branch.
//!
//! Nothing in a tree is overwritten. [`Store::begin_edited_turn`] and [`Store::begin_sibling_answer`]
//! add another version beside a message, [`Store::show_version`] moves the end of the branch, and
//! [`Store::delete_messages`] hides messages until the run of this program has ended.
//! [`Store::resume_answer`] lets the last answer stream again: it only grows. The end of the branch is
//! never hidden, nothing that is there follows it, and a conversation is without one only while it has
//! no message.
//!
//! # Example
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), cairn_store::StoreError> {
//! let folder = tempfile::tempdir().unwrap();
//! let store = cairn_store::Store::open(&folder.path().join("cairn.db")).await?;
//! let conversation = store.create_conversation(0).await?;
//! store.rename_conversation(&conversation.id, "Stones").await?;
//! assert_eq!(store.conversations().await?[0].title, "Stones");
//! store.close().await
//! # }
//! ```
//!
//! The rows of the prompt cache are the records of [`cairn_prompt_cache`], as they are. Nothing
//! outside this crate knows SQL. A file that cannot be used is refused with a [`StoreError`] that
//! names it, and is not changed. [`Store::open_or_recover`] replaces a damaged file by a new one with
//! everything that can still be read, and renames the damaged one. A lost page takes no more than the
//! rows on it, whichever page it is; `tables.json` says which table a page belongs to if SQLite's
//! own list of tables is lost.

mod api_keys;
mod backup;
mod branches;
mod cache_changes;
mod cache_columns;
mod cache_refs;
mod chunks;
mod context_cuts;
mod conversations;
mod deletion;
mod displaced;
mod document_passages;
mod documents;
mod downloads;
mod ended_runs;
mod error;
mod folder_documents;
mod folders;
mod garbled_texts;
mod ids;
mod job_rows;
mod jobs;
mod lost_rows;
mod messages;
mod model_checks;
mod model_folders;
mod model_origins;
mod model_settings;
mod models;
mod monitor;
mod named_caches;
mod other_writers;
mod page_owners;
mod pages;
mod personas;
mod presets;
mod read_ahead;
mod records;
mod recovery;
mod result_code;
mod run;
mod savings;
mod search;
mod search_documents;
mod search_fill;
mod search_results;
mod search_text;
mod settings;
mod store;
mod table_roots;
mod title;
mod token_ids;
mod transfer;
mod transfer_extend;
mod tree;
mod unclean_ends;
mod work;

#[cfg(test)]
mod tests;

pub use api_keys::ApiKeyRow;
pub use branches::MessageDeletion;
pub use context_cuts::ContextCut;
pub use conversations::{Conversation, Prefix};
pub use displaced::SavedCopy;
pub use document_passages::DocumentIndexer;
pub use documents::{Document, DocumentKind, NewDocument};
pub use downloads::DownloadRow;
pub use error::StoreError;
pub use folders::Folder;
pub use ids::new_id;
pub use job_rows::{AnsweredRow, JobAnswer, JobRow, JobRowOrder};
pub use jobs::{Job, JobState, NewJob};
pub use messages::{FinishedMessage, Message, MessageStatus};
pub use model_origins::ModelOrigin;
pub use named_caches::{ListedNamedCache, NamedCacheKind, NamedCacheRow};
pub use personas::Persona;
pub use presets::Preset;
pub use read_ahead::{AheadRange, AheadSource};
pub use recovery::Recovery;
pub use savings::{AnsweredWith, Savings};
pub use search_results::{FoundConversation, FoundDocument};
pub use store::Store;
pub use transfer::{Imported, ImportedConversation, ImportedMessage};
pub use tree::Versions;
pub use unclean_ends::{UncleanEnds, UncleanSubject};
pub use work::{Work, WorkSpan, WorkSums};
