//! Where the tests of behaviour across crates find their models.

use std::path::PathBuf;

/// A tiny checkpoint made by `goldens/make_llama.py`.
pub fn golden(case: &str) -> PathBuf {
    goldens().join("llama").join(case)
}

/// The folder of goldens.
pub fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens")
}
