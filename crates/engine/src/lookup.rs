//! What a request looks up in the prompt cache.

use cairn_chat::Prompt;

use crate::model_pool::Loaded;
use crate::prompt_cache::Query;
use crate::request::GenerateRequest;

/// The lookup of a prompt that has `num_tokens` with those in the request's file.
pub(crate) fn query<'a>(
    request: &'a GenerateRequest,
    prompt: &'a Prompt,
    num_tokens: usize,
    loaded: &'a Loaded,
) -> Query<'a> {
    Query {
        prompt,
        // At least one token must be run, to have something to sample from.
        limit: num_tokens - 1,
        model_name: &loaded.name,
        kv_format: request.kv_cache.format(),
        prefix_provenance: request.prefix_provenance(),
        num_opaque: request.prompt.num_opaque(),
        owner: request.owner.as_ref(),
        only_looks: false,
        is_draft: false,
    }
}

/// The lookup of what a draft model has read of a prompt.
pub(crate) fn draft_query<'a>(
    request: &'a GenerateRequest,
    prompt: &'a Prompt,
    draft: &'a Loaded,
) -> Query<'a> {
    Query { is_draft: true, ..query(request, prompt, prompt.tokens.len(), draft) }
}
