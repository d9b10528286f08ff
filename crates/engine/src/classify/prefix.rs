//! The prefix of a request as tokens, and the tokens of rows behind it.

use cairn_chat::{Cancel, ChatError, ChatTemplate, Encode, EncodedPrefix, Message, Thinking};
use cairn_lm::LoadedModel;
use serde_json::{Map, Value};

use crate::EngineError;
use crate::prompt::known_tokens;
use crate::request::PromptInput;

/// How prompts become tokens. Texts that begin with the prefix are encoded from its end on.
pub(super) struct RowEncoder {
    prefix: Option<PromptInput>,
    template: Option<ChatTemplate>,
    encoded: EncodedPrefix,
    /// The special tokens that the tokenizer puts before a text.
    before_text: Vec<u32>,
    tokens: Vec<u32>,
    cancel: Cancel,
}

impl RowEncoder {
    pub(super) fn new(
        model: &LoadedModel,
        prefix: Option<PromptInput>,
        template_variables: Map<String, Value>,
        thinking: Option<Thinking>,
        cancel: Cancel,
    ) -> Result<Self, EngineError> {
        let tokenizer = model.tokenizer.as_ref();
        let template = tokenizer.chat_template().cloned();
        let template = template.map(|template| template.with_variables(template_variables));
        let template = template.transpose()?.map(|template| {
            let template = thinking.into_iter().fold(template, ChatTemplate::with_thinking);
            template.with_cancel(cancel.clone())
        });
        let needed = || template.as_ref().ok_or(ChatError::NoTemplate);
        let mut before_text = Vec::new();
        let encoded = match &prefix {
            Some(PromptInput::Messages(messages)) => {
                EncodedPrefix::of_messages(needed()?, messages, tokenizer)?
            }
            Some(PromptInput::OpenTurn(messages)) => {
                EncodedPrefix::of(&needed()?.render_open(messages)?, tokenizer)?
            }
            Some(PromptInput::Text(text)) => {
                let (all, own) = (tokenizer.encode_prompt(text)?, tokenizer.encode(text, false)?);
                match all.strip_suffix(own.as_slice()) {
                    Some(before) => {
                        before_text = before.to_vec();
                        EncodedPrefix::of(text, tokenizer)?
                    }
                    // Special tokens behind a text are not behind its beginning.
                    None => EncodedPrefix::default(),
                }
            }
            _ => EncodedPrefix::default(),
        };
        let tokens = match &prefix {
            Some(PromptInput::Tokens(tokens)) => tokens.clone(),
            _ if encoded.ids().is_empty() => Vec::new(),
            _ => [before_text.as_slice(), encoded.ids()].concat(),
        };
        Ok(RowEncoder { prefix, template, encoded, before_text, tokens, cancel })
    }

    /// The tokens that rows share.
    pub(super) fn prefix_tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether a row begins with the prefix, as its caller wrote both.
    pub(super) fn is_beginning_of(&self, row: &PromptInput) -> bool {
        match (&self.prefix, row) {
            (None, _) => true,
            (Some(PromptInput::Messages(prefix)), PromptInput::Messages(row)) => {
                row.len() > prefix.len() && begin_alike(prefix, row)
            }
            (Some(PromptInput::OpenTurn(prefix)), PromptInput::Messages(row)) => {
                let Some((open, closed)) = prefix.split_last() else { return true };
                let same = row.get(closed.len()).filter(|last| last.role == open.role);
                begin_alike(closed, row)
                    && same.is_some_and(|last| last.content.starts_with(&open.content))
            }
            (Some(PromptInput::Text(prefix)), PromptInput::Text(row)) => row.starts_with(prefix),
            (Some(PromptInput::Tokens(prefix)), PromptInput::Tokens(row)) => {
                row.starts_with(prefix)
            }
            _ => false,
        }
    }

    /// The tokens of a row, prefix included.
    pub(super) fn encode(
        &self,
        model: &LoadedModel,
        row: &PromptInput,
    ) -> Result<Vec<u32>, EngineError> {
        let tokenizer = model.tokenizer.as_ref();
        match row {
            PromptInput::Messages(messages) => {
                let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
                Ok(self.encoded.encode_messages(template, messages, tokenizer)?)
            }
            PromptInput::Text(text) if !self.encoded.ids().is_empty() => {
                let own = self.encoded.encode(text, tokenizer)?;
                Ok([self.before_text.as_slice(), &own].concat())
            }
            other => known_tokens(model, other, self.cancel.clone()),
        }
    }
}

fn begin_alike(prefix: &[Message], row: &[Message]) -> bool {
    prefix.len() <= row.len()
        && std::iter::zip(prefix, row)
            .all(|(own, other)| own.role == other.role && own.content == other.content)
}
