//! What is looked up in the prompt cache.

use cairn_chat::Prompt;
use cairn_lm::LoadedModel;
use cairn_prompt_cache::{KvFormat, Namespace, Owner, PromptTokens, Provenance};

/// A prompt to look up.
pub(crate) struct Query<'a> {
    pub(crate) prompt: &'a Prompt,
    /// The most tokens to reuse: at least one must be run, to have logits to sample from.
    pub(crate) limit: usize,
    /// The name under which the model was loaded.
    pub(crate) model_name: &'a str,
    /// How keys and values are stored in the end.
    pub(crate) kv_format: KvFormat,
    /// The provenance of the prompt's beginning.
    pub(crate) prefix_provenance: &'a Provenance,
    /// How many tokens of the prompt's beginning are unknown; zeros stand for them.
    pub(crate) num_opaque: usize,
    /// The conversation that the prompt belongs to.
    pub(crate) owner: Option<&'a Owner>,
    /// Nothing that the prompt's conversation goes on with is computed: resident conversations stay,
    /// and the lookup is not counted.
    pub(crate) only_looks: bool,
    /// A draft model is to continue: the lookup is neither counted nor explained, because the prompt's
    /// own model has one.
    pub(crate) is_draft: bool,
}

impl Query<'_> {
    /// The namespace of its beginning in a format.
    pub(super) fn namespace(&self, model: &LoadedModel, kv_format: KvFormat) -> Namespace {
        Namespace::computed(model.fingerprint.as_str(), kv_format).following(self.prefix_provenance)
    }

    /// The first `len` tokens of the prompt.
    pub(super) fn tokens(&self, len: usize) -> PromptTokens {
        prompt_tokens(&self.prompt.tokens[..len.min(self.prompt.tokens.len())], self.num_opaque)
    }
}

/// Tokens of a prompt, of which the first `num_opaque` are unknown.
pub(super) fn prompt_tokens(tokens: &[u32], num_opaque: usize) -> PromptTokens {
    let num_opaque = num_opaque.min(tokens.len());
    PromptTokens::after_opaque(num_opaque, &tokens[num_opaque..])
}
