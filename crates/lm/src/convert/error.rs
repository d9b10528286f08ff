//! Why a model is not converted.

use std::io;
use std::path::PathBuf;

use cairn_formats::NoDiskSpace;

/// Why a model is not converted. Each displays as one sentence.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// Something is where the new model was to be.
    #[error("{} already exists: delete it, or choose another folder", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Nothing is left to be quantized.
    #[error(
        "the weights of {} are already quantized, as its config.json says: convert the model that they were made from",
        folder.display()
    )]
    AlreadyQuantized {
        /// The model.
        folder: PathBuf,
    },
    /// Nothing is quantized.
    #[error("the weights of {} are not quantized: there is nothing to dequantize", folder.display())]
    NotQuantized {
        /// The model.
        folder: PathBuf,
    },
    /// No matrix consists of whole groups.
    #[error("no matrix of {} has a number of inputs that {group_size} divides, so none can be quantized with this group size", folder.display())]
    NothingFits {
        /// The model.
        folder: PathBuf,
        /// What was asked for.
        group_size: i32,
    },
    /// A matrix whose settings are the family's own does not consist of such groups.
    #[error(
        "'{path}' has {inputs} inputs, but mlx-lm quantizes matrices of this kind in groups of {group_size}, which do not divide them: choose a --q-group-size that does not divide {inputs} either, and the matrix stays dense"
    )]
    OwnGroups {
        /// The matrix.
        path: String,
        /// Its columns.
        inputs: usize,
        /// Of the settings that the family asks for.
        group_size: i32,
    },
    /// A tensor is of another kind of type than those that belong to the same matrices.
    #[error(
        "'{name}' is stored in another type than the tensors beside it: the model is damaged, or of a layout that Cairn does not know"
    )]
    OtherType {
        /// The tensor.
        name: String,
    },
    /// A recipe asks for matrices that the model has not.
    #[error("the recipe {recipe} asks for matrices called down_proj, and {} has none: convert it without a recipe", folder.display())]
    NoRecipe {
        /// The model.
        folder: PathBuf,
        /// The recipe's name.
        recipe: &'static str,
    },
    /// The new model would not fit on the disk.
    #[error("the model cannot be converted: {0}")]
    NoSpace(#[from] NoDiskSpace),
    /// The disk is full.
    #[error("the disk of {} is full: make space, or choose another disk", path.display())]
    DiskFull {
        /// What was written.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ConvertError {
    /// What happened when `path` was written.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ConvertError {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ConvertError::DiskFull { path }
            }
            _ => ConvertError::Write { path, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_to_be_full() {
        let text = |kind: io::ErrorKind| ConvertError::at("a/model")(kind.into()).to_string();
        assert_eq!(
            text(io::ErrorKind::StorageFull),
            "the disk of a/model is full: make space, or choose another disk"
        );
        assert!(text(io::ErrorKind::PermissionDenied).starts_with("cannot write a/model: "));
    }
}
