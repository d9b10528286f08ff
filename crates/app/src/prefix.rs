//! What a conversation begins with that was started from a named prompt cache, as the engine is asked to go on after it.

use cairn_engine::PromptPrefix;
use cairn_store::Prefix;

use crate::app::App;
use crate::wire::Failure;
use crate::{caches, convert};

/// A conversation's prefix, for the loaded model. Tokens say something else to a model with another vocabulary: it is refused, by name
/// of the model that read them.
pub(crate) async fn checked(app: &App, conversation_id: &str, prefix: Prefix) -> Result<PromptPrefix, Failure> {
    if let Some(model) = foreign_model(app, conversation_id, &prefix).await? {
        return Err(Failure::invalid(format!("this conversation begins with what {model} has read: choose that model to go on")));
    }
    Ok(PromptPrefix {
        num_tokens: usize::try_from(prefix.num_tokens).unwrap_or(0),
        kind: convert::prompt_kind(prefix.kind),
        variant: prefix.variant,
        token_ids: prefix.token_ids,
    })
}

/// The model that read a prefix, where the loaded one cannot go on after it.
async fn foreign_model(app: &App, conversation_id: &str, prefix: &Prefix) -> Result<Option<String>, Failure> {
    let Some(loaded) = app.engine.status().borrow().model_fingerprint.clone() else { return Ok(None) };
    // Its named prompt cache may be gone; then the conversation itself knows who read it last.
    let named = app.store.named_cache(&prefix.named_id).await?.map(|row| (row.fingerprint, row.model));
    let (fingerprint, model) = named.or_else(|| last_reader(app, conversation_id)).unzip();
    if fingerprint.as_ref() == Some(&loaded) {
        return Ok(None);
    }
    // Other weights can read the tokens anew where they have the same vocabulary: the text shows it.
    if let Some(token_ids) = &prefix.token_ids {
        let (start_text, end_text) = caches::ends(&app.engine, &loaded, token_ids).await;
        if !start_text.is_empty() && (start_text, end_text) == (prefix.start_text.clone(), prefix.end_text.clone()) {
            return Ok(None);
        }
    }
    Ok(Some(model.unwrap_or_else(|| "another model".to_owned())))
}

/// The fingerprint and the name of the model that read a conversation last.
fn last_reader(app: &App, conversation_id: &str) -> Option<(String, String)> {
    let holding = app.engine.cache()?.holding(&caches::conversation_owner(conversation_id))?;
    Some((holding.anchor.space.fingerprint, holding.anchor.model))
}
