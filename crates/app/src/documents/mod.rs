//! Documents: files that stand before a question, as text.
//!
//! ```text
//! commands.rs   what an interface asks for: attach, remove, show, read
//! prompt.rs     how documents stand in a prompt, and where they end in it
//! reading.rs    reads the documents of a draft before the question is there
//! ```

pub(crate) mod commands;
pub(crate) mod prompt;
pub(crate) mod reading;
