//! What the next turn of a chat will read again, as the engine would find it now: with the system prompt,
//! the template and the settings that the turn would have.

use std::sync::Arc;

use cairn_chat::assemble_turns;
use cairn_engine::{GenerateRequest, PromptInput};
use cairn_store::NewDocument;

use crate::app::App;
use crate::chat::branch_to_answer::BranchToAnswer;
use crate::chat::model;
use crate::chat::prompt::unsent_question;
use crate::chat::savings;
use crate::convert;
use crate::crashes::record::StepKind;
use crate::settings::{Settings, commands as settings};
use crate::wire::{ChatOutlook, Failure, Reply};

/// A question that nobody asks; what it says does not change what is before it.
const ANY_QUESTION: &str = "?";

/// Looks up how much of the next prompt is cached, the documents of the draft included. `None`
/// while the chat's model is not in memory, or if it cannot read the conversation.
pub(crate) async fn get(app: &Arc<App>, conversation_id: &str) -> Result<Reply, Failure> {
    let store = app.store_of(conversation_id).await.clone();
    let row = store.listed_conversation(conversation_id).await?;
    let Some(model) = model::in_memory(app, conversation_id).await else {
        return Ok(Reply::Outlook { outlook: None });
    };
    let model = model.name;
    let mut branch = store.branch(conversation_id).await?;
    branch.push(unsent_question(conversation_id, ANY_QUESTION));
    let settings = settings::for_answer(app, &store, conversation_id, Some(&model)).await?;
    let texts = store.draft_texts(conversation_id).await?.into_iter();
    let draft = texts.map(|(row, text)| NewDocument { name: row.name, kind: row.kind, text });
    let to_answer = BranchToAnswer {
        store: &store,
        conversation_id,
        branch: &branch,
        model: Some(&model),
        draft: &draft.collect::<Vec<_>>(),
    };
    // A starting point of another model, or a chat that is too long for this one.
    let Ok(request) = to_answer.request(app, &settings).await else {
        return Ok(Reply::Outlook { outlook: None });
    };
    let Some(prompt) = assembled(app, &model, request.prompt, &settings).await else {
        return Ok(Reply::Outlook { outlook: None });
    };
    let request = GenerateRequest { model: Some(model.clone()), prompt, ..request };
    let _step = app.begin_step(StepKind::Counting, conversation_id, Some(&model)).await;
    let Ok(outlook) = app.engine.outlook(request).await else {
        return Ok(Reply::Outlook { outlook: None });
    };
    let mut miss = outlook.miss.map(|miss| convert::cache_miss(&miss));
    if let Some(miss) = &mut miss {
        let now = savings::with(app, row.system_prompt, Some(&model)).await;
        savings::name_change(miss, store.answered_with(conversation_id).await?, &now);
    }
    let outlook = ChatOutlook {
        model,
        known_tokens: convert::tokens(outlook.num_known),
        cached_tokens: convert::tokens(outlook.num_cached),
        miss: miss.and_then(convert::stored_miss),
    };
    Ok(Reply::Outlook { outlook: Some(outlook) })
}

/// Turns a prompt with documents into tokens. This takes a while, so the engine's thread does other
/// things meanwhile. `None` if the model cannot read the prompt.
async fn assembled(
    app: &App,
    model: &str,
    prompt: PromptInput,
    settings: &Settings,
) -> Option<PromptInput> {
    let PromptInput::Turns(turns) = prompt else { return Some(prompt) };
    let tokenizer = app.engine.submit(Some(model), |loaded| loaded.tokenizer.clone()).await.ok()?;
    let thinking = convert::thinking(settings.thinking);
    let assemble = move || {
        let template = tokenizer.chat_template()?.clone().with_thinking(thinking);
        assemble_turns(&template, &turns, tokenizer.as_ref()).ok()
    };
    app.blocking(assemble).await.flatten().map(PromptInput::Assembled)
}
