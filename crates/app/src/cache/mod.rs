//! The saved context of conversations and the starting points: commands, rows, files.
//!
//! ```text
//! commands    what the saved-context page and a conversation's row ask for
//! follow      changes by eviction, by other programs and at the start
//! rows        the engine's cache events, written to the database
//! saved       what is saved of a conversation, as its row shows it
//! owners      the names under which the engine keeps references
//! prefix      the starting point that a conversation begins with
//! excerpts    the beginning and end of a saved prompt, as text
//! imports     prompt-cache files: preview, import, export
//! previews    files that are previewed and not yet imported
//! transfers   uploads and downloads of such files
//! offline     the same data folder from another process (`cairn cache`)
//! ```

pub(crate) mod commands;
pub(crate) mod excerpts;
pub(crate) mod follow;
pub(crate) mod imports;
pub(crate) mod offline;
pub(crate) mod owners;
pub(crate) mod prefix;
pub(crate) mod previews;
pub(crate) mod rows;
pub(crate) mod saved;
pub(crate) mod transfers;

pub use offline::{CachedEntry, CachedItem, ChunkSummary, OfflineCaches, OfflineImport};
pub use previews::OwnFile;
pub use transfers::{Download, Upload};
