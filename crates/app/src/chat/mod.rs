//! Turns: beginning one, running its answer, saving what it writes.
//!
//! ```text
//! answering   one task for each running answer
//! running     which conversations are being answered, and how to stop them
//! deletion    the end of what was deleted, when that can no longer be undone
//! progress    what of an answer is due when: events, saved text
//! prompt      a conversation's messages as the engine's input
//! ```

pub(crate) mod answering;
pub(crate) mod deletion;
pub(crate) mod progress;
pub(crate) mod prompt;
pub(crate) mod running;
