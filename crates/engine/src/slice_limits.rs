//! What a slice of a task may take.

use cairn_lm::{ModelMemory, PassSizes};

/// What a slice of a task may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SliceLimits<'a> {
    pub(crate) max_tokens: usize,
    /// What passes take, and how much is free for one that begins; none without a limit.
    pub(crate) memory: Option<(&'a ModelMemory, u64)>,
}

impl SliceLimits<'_> {
    /// What a pass takes, if that matters.
    pub(crate) fn bytes_of(&self, pass: &PassSizes) -> u64 {
        self.memory.map_or(0, |(memory, _)| memory.pass_bytes(pass))
    }
}
