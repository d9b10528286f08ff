//! What an answer to a request would find in the prompt cache, without beginning it.

use cairn_prompt_cache::Miss;

use crate::EngineError;
use crate::lookup::query;
use crate::prompt::prompt_tokens;
use crate::request::GenerateRequest;
use crate::worker::Worker;

/// What the prompt cache has of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// Tokens of the prompt before its last message: what earlier turns can have read.
    pub num_known: usize,
    /// Tokens of the prompt that would not be computed.
    pub num_cached: usize,
    /// Why it would not be more; none where all that could be expected is there.
    pub miss: Option<Miss>,
}

/// Looks up the prompt of a request for the loaded model, or the one that it names.
pub(crate) fn look_ahead(
    worker: &mut Worker,
    request: &GenerateRequest,
) -> Result<Outlook, EngineError> {
    let loaded = worker.models.get(request.model.as_deref())?;
    request.check()?;
    let cancel = worker.cancel(|| false);
    let GenerateRequest { prompt, template_variables, thinking, .. } = request;
    let prompt = prompt_tokens(&loaded.model, prompt, template_variables, *thinking, cancel)?;
    let (num_known, num_tokens) = (prompt.last_from, prompt.tokens.len());
    if !request.looks_up() || num_tokens == 0 {
        return Ok(Outlook { num_known, num_cached: 0, miss: None });
    }
    let query = query(request, &prompt, num_tokens, &loaded);
    let (num_cached, miss) = worker.cache.num_reusable(&loaded.model, &query);
    Ok(Outlook { num_known, num_cached, miss })
}
