//! Bytes from outside, checked once: safetensors headers, GGUF files and prompt-cache files.

pub mod cache_file;
mod excerpt;
mod file;
pub mod gguf;
pub mod safetensors;
#[cfg(any(test, feature = "test-files"))]
pub mod test_files;

pub use file::{FileError, read_file};
