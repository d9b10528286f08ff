//! What Cairn adds to the vendors' fields of a request.

use cairn_app::completion::{GenerateRequest, Thinking, forget_thinking};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The fields of a request that are Cairn's own, or that Cairn reads more generously.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnFields {
    pub(super) top_k: Option<usize>,
    pub(super) min_p: Option<f32>,
    pub(super) repetition_penalty: Option<f32>,
    pub(super) xtc_probability: Option<f32>,
    pub(super) xtc_threshold: Option<f32>,
    /// The answer does not end by itself before it has so many tokens.
    pub(super) min_tokens: Option<u32>,
    /// The answer goes on after the token with which the model ends it.
    pub(super) ignore_eos: Option<bool>,
    pub(super) logit_bias: Option<Map<String, Value>>,
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
    /// A place of its own in the saved context of the key.
    pub(super) prompt_cache_key: Option<String>,
    pub(super) cairn: CairnFields,
    /// How much the model is to think, in whichever vendor's words.
    #[serde(skip)]
    pub(super) thinking: Option<Thinking>,
}

impl OwnFields {
    /// Sets what the chat template is rendered with.
    pub(super) fn apply_to_template(&self, generate: &mut GenerateRequest) {
        if self.thinking.is_some() {
            // The request counts before the defaults for all programs.
            forget_thinking(&mut generate.template_variables);
            generate.thinking = self.thinking;
        }
        let own = self.chat_template_kwargs.clone();
        generate.template_variables.extend(own.unwrap_or_default());
    }
}

/// What only Cairn can do.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CairnFields {
    /// The name of the starting point that the prompt begins with.
    pub(super) start_from: Option<String>,
}

pub(super) const OWN_FIELDS: [&str; 11] = [
    "top_k",
    "min_p",
    "repetition_penalty",
    "xtc_probability",
    "xtc_threshold",
    "min_tokens",
    "ignore_eos",
    "logit_bias",
    "chat_template_kwargs",
    "prompt_cache_key",
    "cairn",
];
