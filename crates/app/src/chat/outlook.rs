//! What the next turn of a chat will read again, as the engine would find it now: with the system prompt,
//! the template and the settings that the turn would have.

use std::sync::Arc;

use cairn_engine::GenerateRequest;

use crate::app::App;
use crate::chat::answering::Asked;
use crate::chat::prompt::unsent_question;
use crate::convert;
use crate::models;
use crate::settings::commands as settings;
use crate::wire::{ChatOutlook, Failure, Reply};

/// A question that nobody asks; what it says does not change what is before it.
const ANY_QUESTION: &str = "?";

/// None while no model is loaded, and where the loaded one cannot read the conversation.
pub(crate) async fn get(app: &Arc<App>, conversation_id: &str) -> Result<Reply, Failure> {
    let store = app.store_of(conversation_id).await.clone();
    store.listed_conversation(conversation_id).await?;
    let Some(model) = models::loaded_name(app) else {
        return Ok(Reply::Outlook { outlook: None });
    };
    let mut branch = store.branch(conversation_id).await?;
    branch.push(unsent_question(conversation_id, ANY_QUESTION));
    let settings = settings::for_answer(app, &store, conversation_id, Some(&model)).await?;
    let asked = Asked { store: &store, conversation_id, branch: &branch, model: Some(&model) };
    // A starting point of another model, or a chat that is too long for this one.
    let Ok(request) = asked.request(app, &settings).await else {
        return Ok(Reply::Outlook { outlook: None });
    };
    let request = GenerateRequest { model: Some(model.clone()), ..request };
    let outlook = app.engine.outlook(request).await.ok().map(|outlook| ChatOutlook {
        model,
        known_tokens: convert::tokens(outlook.num_known),
        cached_tokens: convert::tokens(outlook.num_cached),
        miss: outlook.miss.and_then(|miss| convert::stored_miss(convert::cache_miss(&miss))),
    });
    Ok(Reply::Outlook { outlook })
}
