//! Imports GGUF files as MLX model folders.
//!
//! ```text
//! file.gguf ──▶ GgufFile        file       header checked against the file's length
//!                 │  values · tensors      keys with values · types, shapes, positions
//!                 ├──▶ Model               config.json, and which tensor becomes which MLX tensor
//!                 │      architectures     a table for each: names of tensors, norms, heads
//!                 │      sizes · rope · settings     its keys: shared ones, rotation, a family's own
//!                 │      blocks · affine   quantized blocks, and MLX's affine groups
//!                 ├──▶ TokenizerFiles      tokenizer.json, tokenizer_config.json, generation_config.json
//!                 │      words · pieces    byte-level BPE · SentencePiece and unigram
//!                 ├──▶ RoundingChoice  choices     what it would become, before anything is written
//!                 ▼
//!            import_gguf        import     the model folder, visible when it is complete
//! ```
//! Versions 2 and 3 are imported, also models in several files. Most types keep every weight; those that cannot are rounded, which is
//! counted ([`Rounding`]). Everything else is refused by name: a tensor that was left out would make a
//! model that runs and answers worse, and nobody could tell why. The formats are those of ggml:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod affine;
mod architecture;
mod architectures;
mod blocks;
mod choices;
mod error;
mod exact_copy;
mod file;
mod import;
mod model;
mod pieces;
mod rope;
mod rounded_weights;
mod settings;
mod sizes;
mod tensors;
mod token_kinds;
mod tokenizer;
mod values;
mod words;

pub use affine::{RoundTo, Rounding};
pub use architectures::architecture_names;
#[cfg(any(test, feature = "test-files"))]
pub(crate) use blocks::weights;
pub use choices::RoundingChoice;
pub use error::{GgufError, GgufProblem};
pub use exact_copy::ExactCopy;
pub use file::{GgufFile, model_name};
pub use import::{
    GgufImport, ImportedGguf, NUM_RANDOM_CHARS, PARTIAL_PREFIX, folder_name, import_gguf,
};
pub use model::{Model, PlannedTensor};
pub use rounded_weights::{PerplexityChange, RoundedWeights};
pub use tensors::{GgmlType, TensorInfo};
pub use tokenizer::{SpecialIds, TokenizerFiles};
pub(crate) use words::{Words, byte_level};
