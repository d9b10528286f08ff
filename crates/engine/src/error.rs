//! What can go wrong with a job: each displays as one sentence for a person.

use cairn_chat::ChatError;
use cairn_lm::LmError;

/// Why the engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nothing is loaded.
    #[error("no model is loaded: choose one first")]
    NoModel,
    /// A model could not be loaded.
    #[error("cannot load {name}: {source}")]
    Load {
        /// The model.
        name: String,
        /// Why.
        source: LmError,
    },
    /// The conversation could not be turned into a prompt.
    #[error("cannot build the prompt: {0}")]
    Prompt(#[from] ChatError),
    /// The prompt does not suit the model.
    #[error(transparent)]
    Refused(LmError),
    /// An answer or score could not be computed.
    #[error("the model failed: {0}")]
    Model(LmError),
    /// A job hit a bug. The engine goes on.
    #[error("the engine hit a bug while {during}: {message}")]
    Panicked {
        /// What it was doing.
        during: &'static str,
        /// The panic's words.
        message: String,
    },
    /// The engine has been shut down.
    #[error("the engine has been shut down")]
    Closed,
}

impl From<LmError> for EngineError {
    fn from(error: LmError) -> Self {
        match error {
            // What was asked is at fault, not the model.
            LmError::EmptyPrompt
            | LmError::PromptTooLong { .. }
            | LmError::TokenOutOfRange { .. }
            | LmError::OutOfRange { .. }
            | LmError::Parameter(_)
            | LmError::ParameterToken { .. }
            | LmError::CacheSetting { .. } => EngineError::Refused(error),
            _ => EngineError::Model(error),
        }
    }
}
