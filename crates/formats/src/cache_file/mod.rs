//! Prompt-cache files: what they say that their layers hold, and what they say about themselves.

mod checked;
mod metadata;

pub use checked::{
    CheckedFile, Class, KV_BITS, KV_GROUP_SIZES, LayerState, MAX_TOKENS, QuantizedRows, Refusal,
    Rows,
};
pub use metadata::{Imprint, Origin, Parts, PromptKind};
