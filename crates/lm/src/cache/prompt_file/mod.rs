//! Prompt-cache files, which mlx-lm reads and writes too.
//!
//! ```text
//! <name>.safetensors, layout of mlx-lm 0.32.0
//! ├── __metadata__
//! │   ├── 0.<key>          user metadata
//! │   ├── 1.<layer>        the cache's class
//! │   ├── 2.0              empty
//! │   └── 2.<n>.0, 2.<n>.1 a tensor's name, and what it encodes: "scalar", "string" (code points) or "none" (no values)
//! └── <layer>.<i>          the cache's state in this order; values that are no arrays are listed under 2
//!     KVCache              keys, values, offset
//!     RotatingKVCache      keys, values, offset, keep, max_size, index
//!     QuantizedKVCache     keys.{0,1,2}, values.{0,1,2}, offset, group_size, bits
//!     ChunkedKVCache       keys, values, offset, chunk_size, start_position
//!     ArraysCache          <0>.<slot>, left_padding, lengths (both none: they belong to batches)
//!     CacheList            <entry>.0 that entry's state, <entry>.1 its class
//! ```
//! The layout of 0.30.4 differs: numbers are strings under `0.<layer>.<i>`, `1.<key>` is user
//! metadata and `2.<layer>` the class. Files of that layout are read, but not written.
//!
//! Neither layout records how many tokens a recurrent state has read; it gets the offset of the
//! other layers. mlx-lm's loader treats dots in a user's key as nesting, so keys should have none.

mod checked;
mod load;
mod save;

pub(crate) use checked::{Class, KV_BITS, KV_GROUP_SIZES, LayerState, MAX_TOKENS, Rows};
pub use load::{PromptFile, load_prompt_cache};
pub use save::{check_writable, save_prompt_cache};

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
