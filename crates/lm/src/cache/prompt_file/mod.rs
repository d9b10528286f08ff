//! Prompt-cache files, which mlx-lm reads and writes too.
//!
//! Their layouts are drawn in [`cairn_formats::cache_file`], which checks a file before its arrays
//! are made here. Both layouts are read; [`PromptFileLayout`] selects the one that is written.

mod load;
mod save;

pub(crate) use cairn_formats::cache_file::{
    CacheClass, KV_BITS, KV_GROUP_SIZES, KvBuffer, LayerState, MAX_TOKENS,
};
pub(crate) use load::FileReading;
pub use load::{PromptFile, load_prompt_cache};
pub(crate) use save::{FileForm, FileTensors};
pub use save::{check_writable, save_prompt_cache};

/// The layouts of prompt-cache files, named after versions of mlx-lm. Neither version reads the
/// other's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PromptFileLayout {
    /// That of mlx-lm 0.32.
    #[default]
    V0_32,
    /// That of mlx-lm 0.30 and 0.31. It cannot hold empty caches, lists of caches, and chunked
    /// caches that have dropped tokens.
    V0_30,
}

impl PromptFileLayout {
    /// All layouts, the default first.
    pub const ALL: [PromptFileLayout; 2] = [PromptFileLayout::V0_32, PromptFileLayout::V0_30];

    /// The version as users write it: "0.32" or "0.30".
    pub fn as_str(self) -> &'static str {
        match self {
            PromptFileLayout::V0_32 => "0.32",
            PromptFileLayout::V0_30 => "0.30",
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
