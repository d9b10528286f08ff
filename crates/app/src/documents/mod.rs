//! Documents: files that stand before a question, as text.
//!
//! ```text
//! attached.rs   the documents of a draft or a folder as they are now
//! commands.rs   what an interface asks for: attach, remove, show, read
//! counting.rs   counts the prompt that ends in the documents of a draft, and whether it fits a model
//! drafts.rs     what stands around the documents that are read, and which model reads them
//! limits.rs     what a document may be, and how many there may be
//! placement.rs  documents before the text of a question
//! prompt.rs     how documents stand in a prompt, and where they end in it
//! reading.rs    reads the documents of a draft before the question is there
//! readings.rs   how far each is read
//! sizes.rs      how many tokens each document adds to a prompt
//! ```

pub(crate) mod attached;
pub(crate) mod commands;
mod counting;
mod drafts;
pub(crate) mod limits;
pub(crate) mod placement;
pub(crate) mod prompt;
pub(crate) mod reading;
pub(crate) mod readings;
pub(crate) mod sizes;
