//! Imports GGUF files of the llama architecture as MLX model folders, without changing a weight.
//!
//! `parse` reads the header and believes no length in it; `llama` turns its keys into a
//! `config.json` and says which GGUF tensor becomes which MLX tensor; `convert` re-packs blocks of
//! weights; `tokenizer` writes `tokenizer.json` from the vocabulary in the file; `import` puts the
//! folder together and makes it visible in one step. Nothing here links MLX.
//!
//! What is imported: versions 2 and 3, F32, F16, Q4_0, Q4_1 and Q8_0. Everything else is refused by
//! name: a weight that had to be rounded, or a tensor that was left out, would make a model that
//! runs and answers worse, and nobody could tell why. The block formats are those of ggml:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod convert;
mod import;
mod llama;
mod parse;
#[cfg(test)]
mod test_files;
mod tokenizer;

use std::io;
use std::path::PathBuf;

pub use import::import_gguf;

/// Why a GGUF file was not imported.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder, a pipe or a device stands where a file should.
    #[error("{path} is not a regular file", path = path.display())]
    NotAFile {
        /// The offending path.
        path: PathBuf,
    },
    /// The file does not begin with `GGUF`.
    #[error("{path} is not a GGUF file", path = path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
    },
    /// A version, or a byte order, other than those read.
    #[error("{path} is GGUF version {found}; Cairn imports little-endian versions 2 and 3", path = path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
    },
    /// The file ends before what it promises.
    #[error("{path}: expected at least {expected_bytes} bytes, found {found_bytes}; download it again", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What it promises.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// A count, length or number in the header is beyond what any real file has.
    #[error("{path}: {what} is {found}; allowed is {allowed}", path = path.display())]
    OutOfBounds {
        /// The file.
        path: PathBuf,
        /// Which number.
        what: String,
        /// Its value.
        found: u64,
        /// The rule it breaks.
        allowed: String,
    },
    /// Text that is not UTF-8.
    #[error("{path}: {what} is not UTF-8", path = path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Which text.
        what: String,
    },
    /// A key or tensor name occurs twice.
    #[error("{path}: the name {name:?} occurs twice", path = path.display())]
    DuplicateName {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap in the file")]
    OverlappingTensors {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins inside it.
        second: String,
    },
    /// A key that the import needs is absent.
    #[error("the file has no {key}")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key holds another kind of value.
    #[error("{key} is not {wanted}")]
    WrongKind {
        /// The key.
        key: String,
        /// The kind needed.
        wanted: &'static str,
    },
    /// A key's value is outside what is imported.
    #[error("{key} is {found}; Cairn imports {allowed}")]
    UnsupportedValue {
        /// The key.
        key: String,
        /// Its value, cut if long.
        found: String,
        /// What is imported.
        allowed: String,
    },
    /// A tensor in a format that has no exact MLX form here.
    #[error("tensor {tensor} is stored as {found}; Cairn imports F32, F16, Q4_0, Q4_1 and Q8_0")]
    UnsupportedTensorType {
        /// The tensor.
        tensor: String,
        /// The name of its format.
        found: String,
    },
    /// A quantized tensor where MLX has no quantized form.
    #[error("tensor {tensor} is stored as {found}; a vector must be F32 or F16")]
    QuantizedVector {
        /// The tensor.
        tensor: String,
        /// The name of its format.
        found: String,
    },
    /// A tensor of the architecture is absent.
    #[error("the file has no tensor {tensor}")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the architecture does not have; leaving it out would change the model.
    #[error("tensor {tensor} is not part of a llama model as Cairn knows it")]
    UnexpectedTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape contradicts the file's own keys.
    #[error("tensor {tensor} has shape {found:?}, expected {expected:?}")]
    WrongShape {
        /// The tensor.
        tensor: String,
        /// Row-major shape in the file.
        found: Vec<usize>,
        /// Row-major shape that the keys ask for.
        expected: Vec<usize>,
    },
    /// A weight or a block scale is infinite or not a number.
    #[error("tensor {tensor} holds a value that is not finite; download the file again")]
    NotFinite {
        /// The tensor.
        tensor: String,
    },
    /// RoPE factors that are not those of any Llama 3 model.
    #[error(
        "tensor rope_freqs.weight holds factors other than Llama 3's; they cannot be written into a config.json"
    )]
    UnknownRopeFactors,
    /// A merge that is not two known tokens making a third.
    #[error(
        "merge {index} of the tokenizer, {merge:?}, is not two tokens of the vocabulary that make a third"
    )]
    BadMerge {
        /// Its position.
        index: usize,
        /// The merge, cut if long.
        merge: String,
    },
    /// A name of which nothing remains that could name a folder.
    #[error("{name:?} cannot name a model folder")]
    BadName {
        /// The name given or found.
        name: String,
    },
    /// The folder exists.
    #[error("{path} already exists; delete it or choose another name", path = path.display())]
    AlreadyExists {
        /// The folder.
        path: PathBuf,
    },
}
