//! The errors of finding and importing models.

use std::path::{Path, PathBuf};

use cairn_formats::{MAX_MODEL_NAME_BYTES, NoDiskSpace};

use crate::{ModelProblem, ModelProblemKind};

/// An error of [`crate::ModelFolders`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubError {
    /// There is no such folder, and no model of that name.
    #[error(
        "there is no model {wanted:?}: it is not a folder, and it is not in {}; \
         `cairn models list` shows what is there, `cairn models download OWNER/NAME` fetches one, `cairn \
         models import` adds a folder or a .gguf file",
        .searched.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" or ")
    )]
    NotFound {
        /// The path or name that was given.
        wanted: String,
        /// The folders that were searched.
        searched: Vec<PathBuf>,
    },
    /// The folder exists, but no model can be loaded from it: it is to be fetched again or, where it
    /// may be whole but cannot be read now, to be made readable.
    #[error("{}", unusable(path, problem))]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: ModelProblem,
    },
    /// The name would lead out of the models folder, or hide the model.
    #[error(
        "a model cannot be named {name:?}: use a plain name without slashes that does not begin with a \
         dot and has at most {MAX_MODEL_NAME_BYTES} bytes"
    )]
    BadName {
        /// The name that was given.
        name: String,
    },
    /// A model of that name exists already.
    #[error("{} exists already: choose another name, or delete it first", path.display())]
    Exists {
        /// Its folder.
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
    /// A download of the model is running, here or in another program.
    #[error("{name} is being downloaded: end that download first")]
    Downloading {
        /// The model.
        name: String,
    },
    /// The model is in LM Studio's folder or in one that a person added.
    #[error(
        "Cairn only reads {}: delete {name} with the program that put it there", path.display()
    )]
    ReadOnly {
        /// The model.
        name: String,
        /// Its folder.
        path: PathBuf,
    },
    /// What was chosen to be imported is no model.
    #[error("{name} is neither a GGUF file nor a model's folder: choose another")]
    NoModelFile {
        /// Its name.
        name: String,
    },
    /// A GGUF file could not be imported.
    #[error("{reason}")]
    Gguf {
        /// The sentence of the import.
        reason: String,
    },
    /// The caller ended the import; nothing of it is left.
    #[error("the import was cancelled")]
    Cancelled,
    /// The model could not be deleted, or not all of it.
    #[error("cannot delete {}: {reason}", path.display())]
    Delete {
        /// Its folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The disk of the imported models has no room for the model.
    #[error("the model cannot be imported: {0}")]
    NoSpace(#[from] NoDiskSpace),
    /// The model could not be copied; the incomplete copy was removed.
    #[error("cannot copy the model to {}: {reason}", path.display())]
    Copy {
        /// The folder that it was to be copied to.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Why no model can be loaded from a folder, and what helps.
fn unusable(path: &Path, problem: &ModelProblem) -> String {
    let path = path.display();
    match problem.kind() {
        ModelProblemKind::Incomplete | ModelProblemKind::Broken => {
            format!("{path} is not a complete model: {problem}; download or import it again")
        }
        ModelProblemKind::Unreadable => format!(
            "{path} cannot be loaded now: {problem}; check that you may read it and that its disk \
             is connected, then try again"
        ),
    }
}
