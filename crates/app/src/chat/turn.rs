//! A turn: where its answer is written, and who writes it.

use std::sync::Arc;

use cairn_store::Store;
use serde_json::Value;

use crate::chat::running::Running;
use crate::settings::Settings;

/// The rows of one answer and its question.
pub(crate) struct Turn {
    /// The store that has these rows.
    pub(crate) store: Arc<Store>,
    pub(crate) conversation_id: String,
    /// None for an answer without a question, which only a damaged file has.
    pub(crate) user_message_id: Option<String>,
    pub(crate) message_id: String,
    /// Who answers.
    pub(crate) wanted: Wanted,
}

impl Turn {
    /// The answer as it was, if it goes on.
    pub(crate) fn before(&self) -> Option<&cairn_store::Message> {
        match &self.wanted {
            Wanted::GoesOn(before) => Some(before),
            Wanted::OfChat(_) | Wanted::Model(_) | Wanted::Compared(_) => None,
        }
    }

    /// The model that must answer; none: whichever is loaded.
    pub(super) fn model(&self) -> Option<&str> {
        match &self.wanted {
            Wanted::OfChat(name) => name.as_deref(),
            Wanted::Model(name) => Some(name),
            Wanted::GoesOn(before) => before.model.as_deref(),
            Wanted::Compared(compared) => Some(&compared.model),
        }
    }
}

/// Who answers.
pub(crate) enum Wanted {
    /// The model of the conversation; none: whichever is loaded, or would be.
    OfChat(Option<String>),
    /// A model of this name, which is loaded as if a person had chosen it.
    Model(String),
    /// The model that wrote this answer, which goes on.
    GoesOn(Box<cairn_store::Message>),
    /// A model and settings that are compared with others.
    Compared(Box<Compared>),
}

/// Who writes an answer that is compared.
pub(crate) struct Compared {
    pub(crate) model: String,
    /// Checked settings of this answer only.
    pub(super) overrides: Vec<(&'static str, Value)>,
    /// The answer whose model must stay, if this is the second.
    pub(crate) beside: Option<Arc<Running>>,
}

impl Compared {
    /// Changes the settings of the answer.
    pub(crate) fn set(&self, settings: &mut Settings) {
        for (key, value) in &self.overrides {
            // They were checked when the comparison began.
            if let Err(why) = settings.set(key, value) {
                tracing::warn!("a setting of a comparison is not used: {why}");
            }
        }
    }
}
