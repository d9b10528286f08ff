//! The probabilities of an answer's tokens, computed when somebody looks at them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_chat::Role;
use cairn_engine::{AnswerToken, GenerateRequest, WorkFor, WorkKind};
use cairn_store::{Message, MessageStatus};

use crate::app::App;
use crate::chat::branch_to_answer::BranchToAnswer;
use crate::chat::running_reads::ListedRead;
use crate::convert;
use crate::crashes::record::StepKind;
use crate::models::loaded::loaded_status;
use crate::models::{loading, locating};
use crate::settings::commands as settings;
use crate::wire::{Event, Failure, Gone, Probabilities, Reply};

/// How many alternatives each token has.
const NUM_LIKELIEST: usize = 8;
/// Of a longer answer the first tokens are shown: more are more than a window can draw at once.
const MAX_TOKENS: usize = 4096;
/// Progress is sent at most so often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Reads an answer again. With `loads_model` the model that wrote it is loaded first.
pub(crate) async fn get(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
    read_id: &str,
    loads_model: bool,
) -> Result<Reply, Failure> {
    let listed = ListedRead::new(&app.reads, read_id)?;
    let read = read(app, conversation_id, message_id, read_id, loads_model);
    let probabilities = tokio::select! {
        read = read => read?,
        () = listed.stop.cancelled() => Probabilities::Stopped,
        () = app.closing.cancelled() => Probabilities::Stopped,
    };
    Ok(Reply::Probabilities { probabilities })
}

async fn read(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
    read_id: &str,
    loads_model: bool,
) -> Result<Probabilities, Failure> {
    let store = app.store_of(conversation_id).await.clone();
    let is_private = app.is_private_store(&store);
    let (branch, token_ids, model) = match answer(&store, conversation_id, message_id).await? {
        (branch, Some((token_ids, model))) => (branch, token_ids, model),
        (_, None) => return Ok(Probabilities::NoTokens),
    };
    if locating::require(app, &model).await.is_err() {
        return Ok(Probabilities::NoModel { model });
    }
    if loads_model {
        loading::ensure_loaded_beside(app, &model).await?;
    } else if loaded_status(app, &model).is_none() {
        return Ok(Probabilities::NotLoaded { model });
    }
    let to_answer = BranchToAnswer {
        store: &store,
        conversation_id,
        branch: &branch,
        model: Some(&model),
        draft: &[],
    };
    let settings = settings::for_answer(app, &store, conversation_id, Some(&model)).await?;
    let request = to_answer.request(app, &settings).await?;
    let num_tokens = convert::tokens(token_ids.len());
    let request = GenerateRequest {
        model: Some(model.clone()),
        answer_so_far: token_ids.into_iter().take(MAX_TOKENS).collect(),
        num_top_logprobs: Some(NUM_LIKELIEST),
        work_for: WorkFor::conversation(WorkKind::Probabilities, conversation_id, is_private),
        ..request
    };
    let step = app.begin_step(StepKind::Probabilities, conversation_id, Some(&model)).await;
    let mut last: Option<Instant> = None;
    let tokens = app.engine.probabilities(request, |processed, total| {
        if last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL) {
            last = Some(Instant::now());
            app.emit(Event::ProbabilitiesRead {
                read_id: read_id.to_owned(),
                processed_tokens: convert::tokens(processed),
                total_tokens: convert::tokens(total),
            });
        }
    });
    let tokens: Vec<AnswerToken> = tokens.await?;
    step.succeeded();
    let tokens = tokens.into_iter().map(convert::token_probability).collect();
    Ok(Probabilities::Read { model, tokens, num_tokens })
}

/// The branch up to an answer, which stands at its end as one that is still to be written; with the
/// answer's tokens and the model that they are of, where they are known.
async fn answer(
    store: &cairn_store::Store,
    conversation_id: &str,
    message_id: &str,
) -> Result<(Vec<Message>, Option<(Vec<u32>, String)>), Failure> {
    let mut branch = store.branch(conversation_id).await?;
    let index = branch.iter().position(|message| message.id == message_id);
    let Some(index) = index else {
        return Err(Failure::gone(Gone::Message, "This message no longer exists."));
    };
    branch.truncate(index + 1);
    let row = &mut branch[index];
    if row.role != Role::Assistant || row.status == MessageStatus::Streaming {
        return Err(Failure::invalid("Only an answer that has ended has probabilities."));
    }
    row.status = MessageStatus::Streaming;
    let token_ids = row.token_ids.clone().filter(|ids| !ids.is_empty());
    let known = token_ids.zip(row.model.clone());
    Ok((branch, known))
}

/// The tokens of an answer up to `position`, and `token` in that place; with the model that wrote them.
/// Fails where the answer has no such place.
pub(crate) async fn tokens_with_other(
    store: &cairn_store::Store,
    conversation_id: &str,
    message_id: &str,
    position: usize,
    token: u32,
) -> Result<(Vec<u32>, String), Failure> {
    let (_, known) = answer(store, conversation_id, message_id).await?;
    let no_place = || Failure::invalid("This answer has no such token.");
    let (mut token_ids, model) = known.ok_or_else(no_place)?;
    let place = token_ids.get_mut(position).ok_or_else(no_place)?;
    *place = token;
    token_ids.truncate(position + 1);
    Ok((token_ids, model))
}
