//! Imports GGUF files of the llama architecture as MLX model folders, without changing a weight.
//!
//! ```text
//! file.gguf ──▶ GgufFile        file     header checked against the file's length
//!                 │  values · tensors    keys with values · types, shapes, positions
//!                 ├──▶ Llama             config.json, and which tensor becomes which MLX tensor
//!                 │      affine          blocks of 4 and 8 bits as MLX's affine groups
//!                 ├──▶ TokenizerFiles    tokenizer.json, tokenizer_config.json, generation_config.json
//!                 ▼
//!            import_gguf        import   the model folder, visible when it is complete
//! ```
//! Versions 2 and 3 are imported, and the types F32, F16, Q4_0, Q4_1 and Q8_0. Everything else is
//! refused by name: a weight that had to be rounded, or a tensor that was left out, would make a
//! model that runs and answers worse, and nobody could tell why. The formats are those of ggml:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod affine;
mod error;
mod file;
mod import;
mod llama;
mod tensors;
mod tokenizer;
mod values;

pub use error::{GgufError, GgufProblem};
pub use file::GgufFile;
pub use import::{NUM_RANDOM_CHARS, PARTIAL_PREFIX, import_gguf};
pub use llama::{Llama, PlannedTensor};
pub use tensors::{GgmlType, TensorInfo};
pub use tokenizer::{SpecialIds, TokenizerFiles};
