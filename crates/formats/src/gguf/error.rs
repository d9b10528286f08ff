//! Why a GGUF file was not imported.

use std::path::PathBuf;

use crate::excerpt::excerpt;
use crate::file::FileError;
use crate::{MAX_MODEL_NAME_BYTES, NoDiskSpace};

/// Why a GGUF file was not imported: one sentence that names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The GGUF file cannot be opened or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// What the GGUF file holds cannot be imported.
    #[error("{path} cannot be imported: {problem}", path = path.display())]
    Contents {
        /// The GGUF file.
        path: PathBuf,
        /// What is wrong with it.
        problem: GgufProblem,
    },
    /// A name that was found, of which nothing remains that could name a folder.
    #[error("{name:?} cannot name a model folder: choose a name with letters or digits")]
    BadName {
        /// The name.
        name: String,
    },
    /// The name that was given would lead elsewhere, or hide the model.
    #[error(
        "a model cannot be named {name:?}: use a plain name without slashes that does not begin with a \
         dot and has at most {MAX_MODEL_NAME_BYTES} bytes"
    )]
    BadGivenName {
        /// The name.
        name: String,
    },
    /// The folder exists.
    #[error("{path} already exists; delete it or choose another name", path = path.display())]
    AlreadyExists {
        /// The folder.
        path: PathBuf,
    },
    /// The caller ended the import; nothing of it is left.
    #[error("the import of {path} was cancelled", path = path.display())]
    Cancelled {
        /// The GGUF file.
        path: PathBuf,
    },
    /// The disk of the models has no room for it.
    #[error("the model cannot be imported: {0}")]
    NoSpace(#[from] NoDiskSpace),
    /// The model folder cannot be written.
    #[error("cannot write {path}: {source}", path = path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What is wrong with a GGUF file. Texts from the file are cut to an excerpt.
#[derive(Debug, thiserror::Error)]
pub enum GgufProblem {
    /// The system refused to read it.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The file does not begin with `GGUF`.
    #[error("it is not a GGUF file; choose another")]
    NotGguf,
    /// A version, or a byte order, other than those read.
    #[error(
        "it is GGUF version {found}; Cairn imports little-endian versions 2 and 3, choose another file"
    )]
    UnsupportedVersion {
        /// The version found.
        found: u32,
    },
    /// The file ends before what it promises.
    #[error("expected at least {expected_bytes} bytes, found {found_bytes}; download it again")]
    Truncated {
        /// What it promises.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// A count, length or number in the header is beyond what any real file has.
    #[error("{what} is {found}; allowed is {allowed}; download it again")]
    OutOfBounds {
        /// Which number.
        what: String,
        /// Its value.
        found: u64,
        /// The rule it breaks.
        allowed: String,
    },
    /// A part of a split model is not in the first one's folder.
    #[error(
        "it is the first of {count} parts, and {name} is not beside it; put all parts into one folder"
    )]
    MissingPart {
        /// The file that is missing.
        name: String,
        /// How many parts there are.
        count: usize,
    },
    /// A part of a split model, but not the first.
    #[error(
        "it is part {number} of {count}; choose the first, {first}, which takes the others with it"
    )]
    NotTheFirst {
        /// Which part it is, from 1.
        number: usize,
        /// How many parts there are.
        count: usize,
        /// The name of the first.
        first: String,
    },
    /// A part of a split model whose name does not lead to the others.
    #[error(
        "it is one of {count} parts, which must lie in one folder, the first named like {name}"
    )]
    PartWithoutName {
        /// How many parts there are.
        count: usize,
        /// How a first part is named.
        name: String,
    },
    /// What lies in a part's place is another file.
    #[error(
        "it is not part {number} of {count}: {key} is {found}, expected {expected}; download it again"
    )]
    WrongPart {
        /// Which part it should be, from 1.
        number: usize,
        /// How many parts there are.
        count: usize,
        /// The key that differs.
        key: &'static str,
        /// Its value, or that it is absent.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// The parts of a split model have other tensors than the first says.
    #[error("its parts have {found} tensors, expected {expected}; download them again")]
    OtherParts {
        /// How many they have.
        found: usize,
        /// How many the first one promises.
        expected: usize,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8; download it again")]
    NotUtf8 {
        /// Which text.
        what: String,
    },
    /// A key, a tensor's name or a token occurs twice.
    #[error("the name {name:?} occurs twice; download it again")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap; download it again")]
    OverlappingTensors {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins inside it.
        second: String,
    },
    /// A key that the import needs is absent.
    #[error("it has no {key}; choose another file of the model")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key holds another kind of value.
    #[error("{key} is not {wanted}; choose another file of the model")]
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
        /// Its value, a text in quotes.
        found: String,
        /// What is imported.
        allowed: String,
    },
    /// A tensor of a type that is not imported.
    #[error(
        "tensor {tensor} is stored as {found}; Cairn imports F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4: choose a file of these"
    )]
    UnsupportedTensorType {
        /// The tensor.
        tensor: String,
        /// The name of its type.
        found: String,
    },
    /// A quantized tensor where MLX has no quantized form.
    #[error(
        "tensor {tensor} is stored as {found}; a vector must be F32, F16 or BF16: choose another file of the model"
    )]
    QuantizedVector {
        /// The tensor.
        tensor: String,
        /// The name of its type.
        found: String,
    },
    /// A tensor of the architecture is absent.
    #[error("it has no tensor {tensor}; download it again")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the architecture does not have; leaving it out would change the model.
    #[error(
        "tensor {tensor:?} is not part of such a model as Cairn knows it; choose another model"
    )]
    UnexpectedTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape contradicts the file's own keys.
    #[error("tensor {tensor} has shape {found:?}, expected {expected:?}; download it again")]
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
        "tensor rope_freqs.weight holds factors other than Llama 3's, which no config.json can say; choose another model"
    )]
    UnknownRopeFactors,
    /// A merge that is not two known tokens making a third.
    #[error(
        "merge {index} of the tokenizer, {merge:?}, is not two tokens of the vocabulary that make a third; download it again"
    )]
    BadMerge {
        /// Its position.
        index: usize,
        /// The merge.
        merge: String,
    },
}

/// The refusal of a key's value.
pub(super) fn unsupported(key: &str, found: impl ToString, allowed: &str) -> GgufProblem {
    GgufProblem::UnsupportedValue {
        key: key.into(),
        found: found.to_string(),
        allowed: allowed.into(),
    }
}

/// A text of the file as an error shows it.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", excerpt(text))
}
