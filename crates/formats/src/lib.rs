//! Bytes from outside, checked once: safetensors headers, GGUF files and prompt-cache files.

pub mod cache_file;
mod excerpt;
mod file;
pub mod gguf;
pub mod safetensors;

pub use file::{FileError, read_file};
