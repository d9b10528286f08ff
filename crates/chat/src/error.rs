//! The errors of templates, prompts and sampling parameters.

use std::time::Duration;

/// Why a template, a prompt or a sampling parameter was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// A parameter is outside its range.
    #[error("{name} is {value}, but must be {allowed}")]
    OutOfRange {
        /// The parameter as users write it.
        name: &'static str,
        /// What was given.
        value: String,
        /// The allowed range, as text.
        allowed: &'static str,
    },
    /// The model has no chat template.
    #[error(
        "this model has no chat template; put the chat_template.jinja of its original model into its folder and load it again, choose another model, or give it a plain prompt instead of messages"
    )]
    NoTemplate,
    /// A variable was set that the conversation sets.
    #[error("the chat template's variable {name} is set by the conversation: leave it out")]
    ReservedVariable {
        /// The variable.
        name: &'static str,
    },
    /// The template's source is too long.
    #[error("the chat template has {bytes} bytes, but at most {limit_bytes} are read")]
    TemplateTooLong {
        /// Length of the source.
        bytes: usize,
        /// The most that is read.
        limit_bytes: usize,
    },
    /// The template, or the configuration that contains it, is malformed.
    #[error("the chat template cannot be read: {reason}")]
    TemplateSyntax {
        /// What is wrong, with the line where known.
        reason: String,
    },
    /// The template itself refused the messages, through `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// The template's message.
        message: String,
    },
    /// The template failed while it was applied.
    #[error("the chat template failed: {reason}")]
    TemplateFailed {
        /// What failed, with the line where known.
        reason: String,
    },
    /// The template ran for more steps than any sensible template needs.
    #[error("the chat template was stopped after {limit_steps} steps")]
    TemplateTooSlow {
        /// Instructions allowed for one rendering.
        limit_steps: u64,
    },
    /// The template took longer than any sensible template does.
    #[error("the chat template was stopped after {} s", limit.as_secs_f64())]
    TemplateTimeOver {
        /// The time for all renderings of one prompt.
        limit: Duration,
    },
    /// No one waits for the prompt any more.
    #[error("the request was cancelled while its prompt was built")]
    Cancelled,
    /// The template built a text that is longer than any context.
    #[error(
        "the prompt would be a text of more than {} MiB: shorten the conversation",
        limit_bytes >> 20
    )]
    OutputTooLong {
        /// The longest text allowed.
        limit_bytes: usize,
    },
    /// The template handled more data than any sensible template does.
    #[error("the chat template was stopped after handling {limit_bytes} bytes of data")]
    TemplateTooLarge {
        /// Bytes allowed for one rendering.
        limit_bytes: usize,
    },
    /// A turn cannot be left open or continued, because the template does not show the last message
    /// unchanged.
    #[error(
        "the chat template does not show the last message's text, or it is empty: use a plain prompt (--ignore-chat-template)"
    )]
    WordsNotRendered,
    /// A conversation cannot continue cached tokens, because the template does not show the
    /// messages one by one.
    #[error(
        "the chat template cannot continue a saved prompt, because it does not show the messages one by one: start a new chat"
    )]
    NotContinuable,
    /// The tokenizer could not encode a text.
    #[error("{reason}")]
    Encode {
        /// The tokenizer's message.
        reason: String,
    },
    /// The tokenizer could not decode token ids.
    #[error("{reason}")]
    Decode {
        /// The tokenizer's message.
        reason: String,
    },
}

impl ChatError {
    /// Whether a prompt was given up because its time was over or no one waits for it, so that
    /// trying another way would be in vain.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self, ChatError::TemplateTimeOver { .. } | ChatError::Cancelled)
    }
}
