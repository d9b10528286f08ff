//! Counts the tokens of a draft's prompt up to the end of its documents, and says whether a model can
//! read that.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_chat::{ChatError, Prompt, Role, assemble_turns};
use cairn_engine::{EngineError, Tokenizer};
use cairn_store::{ContextCut, Message, NewDocument};

use crate::app::App;
use crate::chat::overflow;
use crate::convert;
use crate::documents::drafts::Draft;
use crate::documents::prompt;
use crate::documents::sizes;
use crate::wire::{DocumentsOf, Failure};

/// What is known of a draft once its tokens are counted.
pub(super) enum Counted {
    /// The prompt up to the end of the documents.
    Fits {
        prompt: Prompt,
        /// The sum of the documents' sizes.
        num_document_tokens: usize,
    },
    /// Their end is not found in the prompt, or the conversation makes room for them when they are sent.
    WithQuestion,
    TooLong {
        exceeds_by: u32,
    },
}

/// Counts the tokens of each document and saves the numbers. `own_length`: the model's context.
pub(super) async fn count(
    app: &App,
    of: &DocumentsOf,
    draft: Draft,
    tokenizer: Arc<Tokenizer>,
    own_length: usize,
) -> Result<Counted, Failure> {
    let model = draft.model.clone();
    let limit =
        draft.settings.context_length.map_or(own_length, |own| own_length.min(own as usize));
    let ids: Vec<String> = draft.documents.iter().map(|(row, _)| row.id.clone()).collect();
    // Long texts take a while, in which the engine's thread can do other things.
    let tokenized = app.blocking(move || tokenize(&tokenizer, draft, limit)).await;
    let Tokenized { sizes, counted } = tokenized.ok_or_else(sizes::fault)??;
    for (id, size) in ids.iter().zip(sizes) {
        match of {
            DocumentsOf::Conversation { id: conversation_id } => {
                let store = app.store_of(conversation_id).await;
                store.set_document_tokens(id, sizes::stored(size), &model).await?;
            }
            DocumentsOf::Folder { .. } => {
                app.store.set_folder_document_tokens(id, sizes::stored(size), &model).await?;
            }
        }
    }
    Ok(counted)
}

/// By how many tokens a prompt is too long for a question and its answer; none: it fits.
fn exceeds(num_tokens: usize, limit: usize) -> Option<u32> {
    // Room for one token of a question and one of its answer.
    (num_tokens + 2 > limit).then(|| convert::tokens(num_tokens + 2 - limit))
}

struct Tokenized {
    /// By the order of the documents.
    sizes: Vec<usize>,
    counted: Counted,
}

/// Counts the tokens of each document of a draft, and those of its prompt.
fn tokenize(tokenizer: &Tokenizer, draft: Draft, limit: usize) -> Result<Tokenized, Failure> {
    let size = |(row, text): &(cairn_store::Document, String)| {
        sizes::num_added_tokens(tokenizer, &row.name, text)
    };
    let sizes = draft
        .documents
        .iter()
        .map(size)
        .collect::<Result<Vec<usize>, _>>()
        .map_err(prompt_failure)?;
    let prompt = prompt_behind(tokenizer, &draft, &draft.branch, &draft.cuts)?;
    let counted = match prompt {
        None => Counted::WithQuestion,
        Some(prompt) => match exceeds(prompt.tokens.len(), limit) {
            None => Counted::Fits { prompt, num_document_tokens: sizes.iter().sum() },
            Some(_) if has_room_without_oldest(tokenizer, &draft, limit)? => Counted::WithQuestion,
            Some(exceeds_by) => Counted::TooLong { exceeds_by },
        },
    };
    Ok(Tokenized { sizes, counted })
}

/// Whether a draft fits once all the turns of its branch are gone that may go.
fn has_room_without_oldest(
    tokenizer: &Tokenizer,
    draft: &Draft,
    limit: usize,
) -> Result<bool, Failure> {
    let at_overflow = draft.settings.at_overflow;
    let Some(rest) = overflow::least_kept(&draft.branch, &draft.cuts, at_overflow) else {
        return Ok(false);
    };
    let prompt = prompt_behind(tokenizer, draft, rest, &HashMap::new())?;
    let for_summary = overflow::summary_tokens(at_overflow, limit);
    Ok(prompt.is_some_and(|prompt| exceeds(prompt.tokens.len() + for_summary, limit).is_none()))
}

/// The prompt up to the end of a draft's documents, behind these messages of its branch; none where that
/// end is not found in it.
fn prompt_behind(
    tokenizer: &Tokenizer,
    draft: &Draft,
    branch: &[Message],
    cuts: &HashMap<String, ContextCut>,
) -> Result<Option<Prompt>, Failure> {
    let template =
        tokenizer.chat_template().ok_or(ChatError::NoTemplate).map_err(prompt_failure)?;
    let thinking = convert::thinking(draft.settings.thinking);
    let template = template.clone().with_thinking(thinking);
    let documents = draft.documents.iter().map(|(row, text)| NewDocument {
        name: row.name.clone(),
        kind: row.kind,
        text: text.clone(),
    });
    let documents = documents.collect();
    let turns = prompt::of_draft(&draft.beginning, branch, cuts, &draft.sent, documents);
    let Some(turns) = turns else { return Ok(None) };
    assemble_turns(&template, &turns, tokenizer).map(up_to_breakpoint).map_err(prompt_failure)
}

pub(super) fn prompt_failure(error: ChatError) -> Failure {
    Failure::from(EngineError::Prompt(error))
}

/// A prompt up to its last breakpoint. There chats with the same documents diverge, so it is the end of
/// what they share, as that of the system prompt is.
fn up_to_breakpoint(mut prompt: Prompt) -> Option<Prompt> {
    let end = prompt.breakpoints.last().copied()?;
    prompt.tokens.truncate(end);
    let earlier = prompt.boundaries.iter().zip(&prompt.roles).filter(|(at, _)| **at < end);
    let (mut boundaries, mut roles): (Vec<usize>, Vec<Role>) =
        earlier.map(|(at, role)| (*at, *role)).unzip();
    boundaries.push(end);
    roles.push(Role::System);
    let breakpoints = prompt.breakpoints.into_iter().filter(|at| *at < end).collect();
    let new_from = prompt.new_from.min(end);
    let last_from = prompt.last_from.min(end);
    Some(Prompt { boundaries, roles, breakpoints, new_from, last_from, ..prompt })
}
