//! Why a prompt-cache file was refused.

use crate::safetensors::SafetensorsError;

/// Why the tensors of a prompt-cache file were refused.
#[derive(Debug, thiserror::Error)]
pub enum CacheFileError {
    /// It is no safetensors file, or cannot be read.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// It is no prompt cache, or one that no sequence of tokens produces. The two parts follow the
    /// name of the file in a sentence.
    #[error("{what}, but {allowed}")]
    Contents {
        /// What the file says.
        what: String,
        /// What is allowed.
        allowed: String,
    },
}

pub(super) fn refusal(what: String, allowed: &str) -> CacheFileError {
    CacheFileError::Contents { what, allowed: allowed.to_owned() }
}

pub(super) fn no_array(name: &str) -> CacheFileError {
    refusal(format!("tensor {name:?} is no array"), "its layer needs one there")
}
