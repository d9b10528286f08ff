//! How much a model can be told to think, read from its files.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cairn_engine::Tokenizer;

use super::locating;
use crate::app::App;
use crate::convert;
use crate::wire::ThinkingChoices;

/// The choices of each chat template, by the hash of its text: finding them out takes as long as a few
/// dozen prompts.
#[derive(Debug, Default)]
pub(crate) struct KnownThinking(Mutex<HashMap<blake3::Hash, ThinkingChoices>>);

impl KnownThinking {
    /// Reads a model folder. A template that cannot be read has no choice.
    fn of_folder(&self, folder: &Path) -> ThinkingChoices {
        let template = match Tokenizer::read_chat_template(folder) {
            Ok(Some(template)) => template,
            Ok(None) => return ThinkingChoices::default(),
            Err(error) => {
                tracing::debug!("how much a model thinks is not known: {error}");
                return ThinkingChoices::default();
            }
        };
        let key = blake3::hash(template.source().as_bytes());
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(choices) = known().get(&key) {
            return choices.clone();
        }
        let choices = convert::thinking_choices(template.thinking());
        known().insert(key, choices.clone());
        choices
    }
}

/// How much a model on this machine can be told to think; `None` if it is gone.
pub(crate) async fn choices(app: &App, name: &str) -> Option<ThinkingChoices> {
    let folder = locating::folder_of(app, name).await.ok()?;
    let known = app.known_thinking.clone();
    // Reading a file blocks.
    app.blocking(move || known.of_folder(&folder)).await
}
