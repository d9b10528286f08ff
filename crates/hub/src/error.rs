//! What can go wrong when a model is asked for.

use crate::ModelProblem;
use std::path::PathBuf;

/// Why no model folder can be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubError {
    /// Nothing goes by that name.
    #[error(
        "there is no model {wanted:?}: it is not a folder, and it is not in {}; \
         `cairn models list` shows what is there, `cairn models import` adds a folder or a .gguf file",
        .searched.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
    )]
    NotFound {
        /// The path or name as it was given.
        wanted: String,
        /// Where models were looked for.
        searched: Vec<PathBuf>,
    },
    /// The folder is there, but no model can be loaded from it.
    #[error("{} is not a complete model: {problem}; download or import it again", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: ModelProblem,
    },
    /// The name would lead out of the models folder, or hide the model.
    #[error(
        "a model cannot be named {name:?}: use a plain name without slashes that does not begin with a dot"
    )]
    BadName {
        /// The name as it was given.
        name: String,
    },
    /// A model of that name is there already.
    #[error("{} exists already: choose another name, or delete it first", path.display())]
    Exists {
        /// Where it lies.
        path: PathBuf,
    },
    /// A file of the model is a link that leads out of its folder.
    #[error(
        "{} is a link to a file outside of the model's folder: replace it with that file to import the model",
        path.display()
    )]
    LinkOut {
        /// The link.
        path: PathBuf,
    },
    /// The model could not be copied; nothing of it is left behind.
    #[error("cannot copy the model to {}: {reason}", path.display())]
    Copy {
        /// Where it was to lie.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
