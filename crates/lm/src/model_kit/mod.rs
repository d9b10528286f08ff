//! A model with an optional draft model and caches that are reused from one prompt to the next.
//!
//! The kit keeps tokens, caches and a point to roll them back to; a [`KitRun`] reads and generates
//! with the functions of [`crate::generate`], and [`ModelKit::generate`] is such a run that borrows
//! the kit and reports text.
//!
//! The behaviour is that of LM Studio's mlx-engine (`ModelKit` with its `CacheWrapper`), on a
//! single thread: the owner of a [`ModelKit`] calls [`ModelKit::generate`] and iterates over the
//! results.

mod cache_wrapper;
mod generation;
mod options;
mod progress;
mod run;

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use cairn_chat::SamplingParams;

use crate::config::ConfigFile;
use crate::generate::{GenerateOptions, Stops, check_tokens, check_vocabularies};
use crate::models::Model;
use crate::weights::LoadOptions;
use crate::{LmError, LoadedModel, memory};

use cache_wrapper::CacheWrapper;

pub use generation::{GenerationResult, GenerationStream, ResultToken, StopCondition, StopReason};
pub use options::ModelKitOptions;
pub use progress::{PromptProgress, PromptProgressReporter};
pub use run::KitRun;

/// A model, its draft model if one is loaded, and the caches of the last prompt.
#[derive(Debug)]
pub struct ModelKit {
    loaded: Rc<LoadedModel>,
    draft: Option<Rc<LoadedModel>>,
    options: ModelKitOptions,
    caches: CacheWrapper,
}

/// The parameters of [`ModelKit::generate`].
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateParams {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The most tokens to sample, at least 1; the answer also ends with the context.
    pub max_tokens: usize,
    /// Strings that end the answer.
    pub stop_strings: Vec<String>,
    /// Tokens that end the answer; `None` for the model's own.
    pub eos_token_ids: Option<BTreeSet<u32>>,
    /// How many of the likeliest tokens to report with each token, at most
    /// [`ModelKit::MAX_TOP_LOGPROBS`].
    pub top_logprobs: usize,
    /// Whether to use the draft model; `None` uses it if one is loaded. `Some(true)` without one is
    /// an error.
    pub speculative_decoding: Option<bool>,
    /// How many tokens the draft model proposes at a time; `None` for 3.
    pub num_draft_tokens: Option<usize>,
}

impl Default for GenerateParams {
    fn default() -> Self {
        GenerateParams {
            sampling: SamplingParams::default(),
            max_tokens: 10_000_000,
            stop_strings: Vec::new(),
            eos_token_ids: None,
            top_logprobs: 0,
            speculative_decoding: None,
            num_draft_tokens: None,
        }
    }
}

impl ModelKit {
    /// The largest allowed [`GenerateParams::top_logprobs`].
    pub const MAX_TOP_LOGPROBS: usize = 10;

    /// Loads the model in `folder`, after checking the options.
    pub fn load(
        folder: &Path,
        load: LoadOptions,
        options: ModelKitOptions,
    ) -> Result<Self, LmError> {
        let options = options.checked()?;
        Ok(ModelKit::with_checked(Rc::new(LoadedModel::load(folder, load)?), options))
    }

    /// A kit for a model that is loaded already.
    pub fn new(loaded: Rc<LoadedModel>, options: ModelKitOptions) -> Result<Self, LmError> {
        Ok(ModelKit::with_checked(loaded, options.checked()?))
    }

    fn with_checked(loaded: Rc<LoadedModel>, options: ModelKitOptions) -> Self {
        ModelKit { loaded, draft: None, options, caches: CacheWrapper::default() }
    }

    /// The model.
    pub fn model(&self) -> &Rc<LoadedModel> {
        &self.loaded
    }

    /// The draft model.
    pub fn draft_model(&self) -> Option<&Rc<LoadedModel>> {
        self.draft.as_ref()
    }

    /// The options in effect.
    pub fn options(&self) -> &ModelKitOptions {
        &self.options
    }

    /// Encodes a text; the result has at least one token, for an empty text that of a space.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>, LmError> {
        let tokens = self.loaded.tokenizer.encode_prompt(text)?;
        if tokens.is_empty() { self.loaded.tokenizer.encode_prompt(" ") } else { Ok(tokens) }
    }

    /// Whether the model in `folder` has a vocabulary of this model's size, as a draft model must.
    /// Reads only its config.json.
    pub fn is_draft_model_compatible(&self, folder: &Path) -> Result<bool, LmError> {
        let vocab_size =
            ConfigFile::read(folder)?.value.get("vocab_size").and_then(serde_json::Value::as_u64);
        Ok(vocab_size == Some(self.loaded.model.vocab_size() as u64))
    }

    /// Loads a draft model, which replaces the present one.
    pub fn load_draft_model(&mut self, folder: &Path, load: LoadOptions) -> Result<(), LmError> {
        self.set_draft_model(Rc::new(LoadedModel::load(folder, load)?))
    }

    /// Sets a draft model that is loaded already. Fails unless its vocabulary has the same size.
    pub fn set_draft_model(&mut self, draft: Rc<LoadedModel>) -> Result<(), LmError> {
        check_vocabularies(&self.loaded.model, &draft.model)?;
        self.caches.forget_draft();
        self.draft = Some(draft);
        Ok(())
    }

    /// Unloads the draft model, if there is one.
    pub fn unload_draft_model(&mut self) {
        if self.draft.take().is_some() {
            self.caches.forget_draft();
            memory::clear_cache();
        }
    }

    /// Drops the caches of the last prompt and frees their memory.
    pub fn clear_caches(&mut self) {
        self.caches = CacheWrapper::default();
        memory::clear_cache();
    }

    /// Reads the part of `prompt` that the caches do not hold, the draft model first, and returns a
    /// stream of results.
    ///
    /// `on_progress` is called during prefill. If it breaks, the stream has a single result without
    /// text and with [`StopReason::UserCancelled`], and the caches hold what was read. Dropping the
    /// stream returns the caches to the kit.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        params: &GenerateParams,
        on_progress: &mut dyn FnMut(PromptProgress) -> std::ops::ControlFlow<()>,
    ) -> Result<GenerationStream<'_>, LmError> {
        GenerationStream::start(self, prompt, params, on_progress)
    }

    fn checked(&self, prompt: &[u32], params: &GenerateParams) -> Result<GenerateParams, LmError> {
        let refuse = |name, value: usize, allowed: String| {
            Err(LmError::OutOfRange { name, value: value.to_string(), allowed })
        };
        if params.top_logprobs > Self::MAX_TOP_LOGPROBS {
            return refuse(
                "top_logprobs",
                params.top_logprobs,
                format!("at most {}", Self::MAX_TOP_LOGPROBS),
            );
        }
        if params.max_tokens == 0 {
            return refuse("max_tokens", 0, "1 or more".to_owned());
        }
        if prompt.is_empty() {
            return Err(LmError::EmptyPrompt);
        }
        check_tokens(prompt, self.loaded.model.vocab_size())?;
        let mut params = params.clone();
        // As in mlx-engine, seeds have 32 bits.
        params.sampling.seed = params.sampling.seed.map(|seed| seed & u64::from(u32::MAX));
        if self.options.max_kv_size.is_none() {
            let (num_tokens, context_length) = (prompt.len(), self.loaded.model.context_length());
            if num_tokens >= context_length {
                return Err(LmError::PromptTooLong { num_tokens, context_length });
            }
            params.max_tokens = params.max_tokens.min(context_length - num_tokens);
        }
        Ok(params)
    }
}

impl GenerateParams {
    fn stops(&self, loaded: &LoadedModel) -> Stops {
        let eos_token_ids = self.eos_token_ids.as_ref().unwrap_or(&loaded.eos_token_ids).clone();
        Stops { eos_token_ids, strings: self.stop_strings.clone(), ..Stops::default() }
    }

    /// The draft model to use.
    fn draft<'a>(&self, loaded: Option<&'a LoadedModel>) -> Result<Option<&'a Model>, LmError> {
        match (self.speculative_decoding, loaded) {
            (Some(true), None) => Err(LmError::NoDraftModel),
            (Some(false), _) | (None, None) => Ok(None),
            (_, Some(draft)) => Ok(Some(&draft.model)),
        }
    }

    fn options(&self, kit: &ModelKitOptions) -> GenerateOptions {
        let defaults = GenerateOptions::default();
        GenerateOptions {
            max_tokens: self.max_tokens,
            prefill_step_size: kit.prefill_step_size(),
            num_top_logprobs: Some(self.top_logprobs),
            max_kv_size: kit.max_kv_size,
            kv_quantization: kit.kv_quantization(),
            snapkv: None,
            num_draft_tokens: self.num_draft_tokens.unwrap_or(defaults.num_draft_tokens),
            prediction: Vec::new(),
        }
    }
}
