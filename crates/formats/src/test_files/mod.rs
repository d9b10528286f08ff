//! Files for tests: built in memory, small, and easy to spoil.
//!
//! Other crates get this module through the feature `test-files`, for their own tests only.

pub mod gguf;
pub mod growth;
