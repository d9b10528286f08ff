//! Why a safetensors file, or the weight files of a model, were refused.

use std::path::PathBuf;

use super::dtype::Dtype;
use super::header::{MAX_RANK, MAX_TENSORS};
use super::weight_files::MAX_MODEL_TENSORS;
use crate::excerpt::message_excerpt;
use crate::file::FileError;

/// Why a safetensors file, or a folder of them, was refused.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// It cannot be opened or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its header breaks a rule.
    #[error("{path} is {state}: {problem}; download or import it again", path = path.display(), state = problem.state())]
    Header {
        /// The file.
        path: PathBuf,
        /// The rule.
        problem: HeaderProblem,
    },
    /// No tensor has this name.
    #[error("{path} has no tensor {name:?}", path = path.display())]
    NoSuchTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// A model folder without weights.
    #[error("{folder} has no model.safetensors or model*.safetensors: download or import the model again", folder = folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// The index of a model's weight files is not the JSON it should be.
    #[error("{path} is no index of weight files: {reason}; download or import the model again", path = path.display(), reason = message_excerpt(source))]
    Index {
        /// The index file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The index names a file that is not in the folder, or not a plain file name.
    #[error("{index} names {file:?}, which is not in the folder; download or import the model again", index = index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The name in it.
        file: String,
    },
    /// The files of one model have more tensors together than any model.
    #[error("the weight files in {folder} have more than {MAX_MODEL_TENSORS} tensors, the most that are read of a model", folder = folder.display())]
    TooManyTensors {
        /// The model's folder.
        folder: PathBuf,
    },
    /// A tensor occurs in two files of one model.
    #[error("tensor {name:?} is in {first} and in {second}; download or import the model again", first = first.display(), second = second.display())]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// The file that has it.
        first: PathBuf,
        /// The file that has it again.
        second: PathBuf,
    },
}

/// The rule that a header breaks. Names from the file are cut to an excerpt.
#[derive(Debug, thiserror::Error)]
pub enum HeaderProblem {
    /// The file ends before what its header promises.
    #[error("it has {found_bytes} bytes, but should have at least {expected_bytes}")]
    Truncated {
        /// What its header promises.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// Bytes follow the last tensor.
    #[error("it has {found_bytes} bytes, but its last tensor ends at {expected_bytes}")]
    TrailingBytes {
        /// Where the last tensor ends.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// The header is longer than the limit.
    #[error("its header claims {found_bytes} bytes, at most {allowed_bytes} are allowed")]
    TooLong {
        /// What it claims.
        found_bytes: u64,
        /// The limit.
        allowed_bytes: u64,
    },
    /// More tensors than any model has in one file.
    #[error("it has more than {MAX_TENSORS} tensors, the most that are read of a file")]
    TooManyTensors,
    /// The header is not the JSON it should be, or a name occurs twice in it.
    #[error("unreadable header: {reason}", reason = message_excerpt(source))]
    Json {
        /// Where and why.
        source: serde_json::Error,
    },
    /// A dtype outside the list.
    #[error("tensor {name:?} has dtype {found:?}; allowed are {allowed}", allowed = Dtype::names())]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// The dtype found.
        found: String,
    },
    /// A dimension is outside its range, there are too many, or their product overflows.
    #[error("tensor {name:?} has shape {shape:?}; each dimension must be from {least} to {max}, with {MAX_RANK} dimensions at most", max = i32::MAX)]
    BadShape {
        /// The tensor.
        name: String,
        /// The shape, cut after the allowed number of dimensions.
        shape: Vec<u64>,
        /// The least length of a dimension.
        least: u64,
    },
    /// The offsets do not continue where the tensor before ended, or do not fit the shape.
    #[error("tensor {name:?} lies at bytes {found:?}, expected {expected:?}")]
    BadOffsets {
        /// The tensor.
        name: String,
        /// The offsets found, counted from the end of the header.
        found: (u64, u64),
        /// The offsets that fit.
        expected: (u64, u64),
    },
}

impl HeaderProblem {
    /// What the problem makes of the file.
    fn state(&self) -> &'static str {
        match self {
            HeaderProblem::Truncated { .. } => "incomplete",
            HeaderProblem::TooManyTensors => "no file of a model that Cairn knows",
            _ => "damaged or no safetensors file",
        }
    }
}
