//! Files that somebody else wrote, checked once, into types that need no further check.
//!
//! Weights, GGUF files and prompt caches come from the internet and from friends. This crate reads
//! them before anything else does: it believes no length, count or offset before it has compared it
//! with the file, repeats only excerpts of a file's words, and refuses with one sentence that names
//! the file, what is wrong and what to do. It links no MLX and knows no engine, so each parser is
//! fuzzed by itself (`cargo xtask fuzz`).
//!
//! ```text
//! path ──▶ read_file                       any small file: a regular one, up to a limit
//!      │     └── python_json               of a config.json with numbers that only Python writes
//!      ──▶ safetensors::SafetensorsFile    header checked; tensors are read from the same handle
//!      │     ├── check_weight_files        all weight files of a model folder
//!      │     └── cache_file::CacheFile     a prompt cache: one LayerState per layer
//!      │           └── CacheFileMetadata   tokens, title, and the model that made it
//!      ├── check_normalizer, check_growth  of a tokenizer.json: tables that are followed unchecked,
//!      │                                   rules that make gigabytes of a word
//!      └──▶ gguf::GgufFile                 header checked
//!            └── import_gguf               a model folder: config, weights, tokenizer
//! ```
//!
//! # Example
//! ```
//! use cairn_formats::safetensors::{Dtype, Limits, SafetensorsFile};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("model.safetensors");
//! let header = br#"{"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
//! let length = (header.len() as u64).to_le_bytes();
//! std::fs::write(&path, [&length[..], header, &[0, 60, 0, 64]].concat())?;
//!
//! let file = SafetensorsFile::open(&path, Limits::MODEL)?;
//! let tensor = file.tensor("w").expect("the header names it");
//! assert_eq!((tensor.dtype, tensor.shape.as_slice()), (Dtype::F16, &[2][..]));
//! assert_eq!(file.read_tensor("w")?, [0, 60, 0, 64]);
//!
//! // Fewer bytes than the header promises: the file is refused, in words for a person.
//! std::fs::write(&path, [&length[..], header, &[0, 60]].concat())?;
//! let refusal = SafetensorsFile::open(&path, Limits::MODEL).unwrap_err().to_string();
//! assert!(refusal.contains("is incomplete") && refusal.contains("download or import it again"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod base64;
mod bfloat16;
mod byte_letters;
pub mod cache_file;
mod charsmap;
mod disk_space;
mod durable;
mod excerpt;
mod file;
pub mod gguf;
mod growth;
mod locked_folder;
mod model_name;
mod python_json;
mod replacement;
pub mod safetensors;
#[cfg(any(test, feature = "test-files"))]
pub mod test_files;
pub mod tiktoken;

pub use base64::encode as base64_text;
pub use bfloat16::bfloat16;
pub use byte_letters::byte_letters;
pub use charsmap::check_normalizer;
pub use disk_space::{NoDiskSpace, RESERVE_BYTES, check_disk_space, free_disk_bytes};
pub use durable::{sync_folder, write_new_file, write_new_json};
pub use excerpt::{printable, readable};
pub use file::{FileError, MAX_CONFIG_BYTES, open_regular, read_file, read_file_into};
pub use growth::check_growth;
pub use locked_folder::make_locked_folder;
pub use model_name::{MAX_MODEL_NAME_BYTES, is_model_name, is_pooling_folder};
pub use python_json::python_json;
pub use replacement::Replacement;
