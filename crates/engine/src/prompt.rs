//! Builds the tokens of a prompt.

use cairn_chat::{
    Cancel, ChatError, ChatTemplate, Encode, Ending, Message, Prompt, Role, Thinking, assemble,
    assemble_after, assemble_turns,
};
use cairn_formats::cache_file::PromptKind;
use cairn_lm::{LmError, LoadedModel};
use serde_json::{Map, Value};

use crate::EngineError;
use crate::request::{PromptInput, PromptPrefix};

/// More tokens than templates write between two messages, so enough to recognize how an answer
/// ends.
const TAIL_TOKENS: usize = 64;

/// Builds the tokens of a prompt, with the boundaries of its messages. Unknown tokens are zeros. Fails
/// with [`EngineError::Closed`] if it was cancelled.
pub(crate) fn prompt_tokens(
    model: &LoadedModel,
    prompt: &PromptInput,
    template_variables: &Map<String, Value>,
    thinking: Option<Thinking>,
    cancel: Cancel,
) -> Result<Prompt, EngineError> {
    let prompt = assembled(model, prompt, template_variables, thinking, cancel);
    prompt.map_err(|error| match error {
        EngineError::Prompt(ChatError::Cancelled) => EngineError::Closed,
        error => error,
    })
}

fn assembled(
    model: &LoadedModel,
    prompt: &PromptInput,
    template_variables: &Map<String, Value>,
    thinking: Option<Thinking>,
    cancel: Cancel,
) -> Result<Prompt, EngineError> {
    let plain = |tokens: Vec<u32>| Prompt {
        new_from: 0,
        last_from: 0,
        boundaries: vec![tokens.len()],
        roles: vec![Role::User],
        breakpoints: Vec::new(),
        tokens,
        text: String::new(),
    };
    let tokenizer = model.tokenizer.as_ref();
    let template = || {
        let template = tokenizer.chat_template().cloned().ok_or(ChatError::NoTemplate)?;
        let template = template.with_variables(template_variables.clone())?;
        let template = thinking.into_iter().fold(template, ChatTemplate::with_thinking);
        Ok::<_, ChatError>(template.with_cancel(cancel.clone()))
    };
    match prompt {
        PromptInput::Messages(messages) => Ok(assemble(&template()?, messages, tokenizer)?),
        PromptInput::Turns(prompt) => Ok(assemble_turns(&template()?, prompt, tokenizer)?),
        PromptInput::Assembled(prompt) => Ok(prompt.clone()),
        PromptInput::After { prefix, messages } => after(model, &template()?, prefix, messages),
        // Templates write the beginning-of-sequence token themselves.
        PromptInput::OpenTurn(messages) => {
            Ok(plain(tokenizer.encode(&template()?.render_open(messages)?, false)?))
        }
        PromptInput::Continuation(messages) => {
            Ok(plain(tokenizer.encode(&template()?.render_continuation(messages)?, false)?))
        }
        PromptInput::Text(text) => Ok(plain(tokenizer.encode_prompt(text)?)),
        PromptInput::MoreText(text) => Ok(plain(tokenizer.encode(text, false)?)),
        PromptInput::Tokens(tokens) => Ok(plain(tokens.clone())),
    }
}

/// Builds the tokens of a prompt that is to be computed from its first token. A prefix whose tokens
/// are unknown is refused.
pub(crate) fn known_tokens(
    model: &LoadedModel,
    prompt: &PromptInput,
    cancel: Cancel,
) -> Result<Vec<u32>, EngineError> {
    match prompt.opaque_prefix() {
        Some(_) => Err(EngineError::BeginningLost),
        None => Ok(prompt_tokens(model, prompt, &Map::new(), None, cancel)?.tokens),
    }
}

fn after(
    model: &LoadedModel,
    template: &ChatTemplate,
    prefix: &PromptPrefix,
    messages: &[Message],
) -> Result<Prompt, EngineError> {
    let tokenizer = model.tokenizer.as_ref();
    let mut tokens = match &prefix.token_ids {
        // A file of chats names tokens of a model that may be another one.
        Some(token_ids) if token_ids.iter().any(|&id| id as usize >= model.model.vocab_size()) => {
            return Err(EngineError::OtherVocabulary);
        }
        Some(token_ids) => token_ids.clone(),
        None => {
            // Such a file was not imported. Checked because the line below allocates memory for
            // each token.
            if !prefix.provenance.is_opaque() || prefix.num_tokens >= model.model.context_length() {
                return Err(EngineError::BeginningLost);
            }
            vec![0; prefix.num_tokens]
        }
    };
    let num_before = tokens.len();
    let tail = prefix
        .token_ids
        .as_ref()
        .map(|ids| tokenizer.decode(&ids[ids.len().saturating_sub(TAIL_TOKENS)..]))
        .transpose()?;
    let ending = match prefix.kind {
        PromptKind::Prompt => Ending::OpenUserTurn,
        PromptKind::Conversation => Ending::Answer { tail: tail.as_deref() },
    };
    let following = assemble_after(template, ending, messages, tokenizer)?;
    if following.tokens.is_empty() {
        return Err(LmError::EmptyPrompt.into());
    }
    tokens.extend(following.tokens);
    let first = (num_before > 0).then_some((num_before, Role::System));
    let shifted = following
        .boundaries
        .into_iter()
        .zip(following.roles)
        .map(|(boundary, role)| (num_before + boundary, role));
    let (boundaries, roles) = first.into_iter().chain(shifted).unzip();
    Ok(Prompt {
        tokens,
        new_from: num_before + following.new_from,
        last_from: num_before + following.last_from,
        boundaries,
        roles,
        breakpoints: Vec::new(),
        text: following.text,
    })
}
