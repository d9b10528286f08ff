//! Prompt-cache files, which mlx-lm reads and writes too.
//!
//! ```text
//! <name>.safetensors, layout of mlx-lm 0.32.0
//! ├── __metadata__
//! │   ├── 0.<key>          user metadata; Cairn's own is CacheFileMetadata
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
//! In the layout of 0.30.4 `2.<layer>` is the class, `1.<key>` is user metadata, and the state's
//! numbers are strings:
//!
//! ```text
//! <name>.safetensors, layout of mlx-lm 0.30.4
//! ├── __metadata__
//! │   ├── 0.<layer>        empty, for a class without numbers
//! │   ├── 0.<layer>.<i>    RotatingKVCache: keep, max_size, offset, index; QuantizedKVCache: offset, group_size, bits;
//! │   │                    ChunkedKVCache: chunk_size, start_position
//! │   ├── 1.<key>          user metadata
//! │   └── 2.<layer>        the cache's class
//! └── <layer>.<i>          keys and values, cut to the offset; of an ArraysCache its slots
//! ```
//!
//! [`CacheFile`] is the whole file, [`LayerState`] what one layer holds. Neither layout records how
//! many tokens a recurrent state has read; it gets the offset of the other layers. mlx-lm's loader
//! treats dots in a user's key as nesting, so keys should have none.

mod class;
mod error;
mod file;
mod layers;
mod layout;
mod metadata;
mod origin;

pub use class::CacheClass;
pub use error::CacheFileError;
pub use file::CacheFile;
pub use layers::{KV_BITS, KV_GROUP_SIZES, KvBuffer, LayerState, MAX_TOKENS, QuantizedBuffers};
pub use metadata::{CacheFileMetadata, MetadataError, PromptKind};
pub use origin::{ModelMismatch, ModelOrigin, ModelParts};
