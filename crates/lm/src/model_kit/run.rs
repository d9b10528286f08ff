//! A generation with a kit, advanced slice by slice, for a caller that serves others in between.

use std::borrow::BorrowMut;
use std::ops::ControlFlow;

use super::cache_wrapper::KitModel;
use super::{GenerateParams, ModelKit, PromptProgress};
use crate::LmError;
use crate::generate::{
    Acceptance, Draft, Drafter, GenerateOptions, GenerationResponse, Input, ResponseStream,
    Sampling, StreamRequest, stream_generate,
};
use crate::models::Model;

/// A generation with a kit, which it owns or borrows: [`KitRun::read`] until it
/// [`is_read`](KitRun::is_read), then [`KitRun::next_response`]. After an error it is of no further
/// use.
#[derive(Debug)]
pub struct KitRun<K = ModelKit> {
    kit: K,
    prompt: Vec<u32>,
    params: GenerateParams,
    num_cached: usize,
    /// `None` before the whole prompt has been read.
    responses: Option<ResponseStream>,
}

impl<K: BorrowMut<ModelKit>> KitRun<K> {
    /// A run of `kit` over `prompt`. Reads nothing yet; fails as [`ModelKit::generate`] does.
    pub fn new(mut kit: K, prompt: Vec<u32>, params: &GenerateParams) -> Result<Self, LmError> {
        let own: &mut ModelKit = kit.borrow_mut();
        let params = own.checked(&prompt, params)?;
        params.draft(own.draft.as_deref())?;
        Sampling::new(&params.sampling, &own.loaded)?;
        own.caches.begin(&prompt);
        let num_cached = own.caches.main.num_read();
        Ok(KitRun { kit, prompt, params, num_cached, responses: None })
    }

    /// How many tokens of the prompt the main model's caches held at first.
    pub fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// How many tokens of the prompt the main model has read, cached ones included.
    pub fn num_read(&self) -> usize {
        match self.responses {
            Some(_) => self.prompt.len(),
            None => self.num_read_by(KitModel::Main),
        }
    }

    /// Whether the prompt has been read and the first step launched.
    pub fn is_read(&self) -> bool {
        self.responses.is_some()
    }

    /// How many tokens [`KitRun::read`] has yet to read, those of the draft model included.
    pub fn num_left(&self) -> usize {
        self.readers().map(|model| self.num_left_for(model)).sum()
    }

    /// Reads the next `max_tokens` of the prompt or less, the draft model first; when none are left,
    /// launches the first step.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        match self.readers().find(|model| self.num_left_for(*model) > 0) {
            Some(model) => self.read_slice(model, max_tokens),
            None => self.launch(),
        }
    }

    /// Reads all that is left and launches the first step. If `on_progress` breaks, the error is
    /// [`LmError::Cancelled`] and the caches hold what was read.
    pub(super) fn read_all(
        &mut self,
        on_progress: &mut dyn FnMut(PromptProgress) -> ControlFlow<()>,
    ) -> Result<(), LmError> {
        let mut report = |event| match on_progress(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LmError::Cancelled),
        };
        for model in self.readers() {
            let is_draft = model == KitModel::Draft;
            let (cached_tokens, total_prompt_tokens) = (self.num_read_by(model), self.prompt.len());
            report(PromptProgress::Begin { is_draft, cached_tokens, total_prompt_tokens })?;
            while self.num_left_for(model) > 0 {
                self.read_slice(model, usize::MAX)?;
                let prefill_tokens_processed = self.num_read_by(model) - cached_tokens;
                report(PromptProgress::Update { is_draft, prefill_tokens_processed })?;
            }
            let prefill_tokens_processed = self.prompt.len() - 1 - cached_tokens;
            report(PromptProgress::Finish { is_draft, prefill_tokens_processed })?;
        }
        self.launch()
    }

    /// The next token; `None` after the last one, and before the prompt has been read.
    pub fn next_response(&mut self) -> Result<Option<GenerationResponse>, LmError> {
        let Some(responses) = &mut self.responses else { return Ok(None) };
        let response = responses.next().transpose();
        match &response {
            Ok(response) => {
                let tokens = response.iter().map(|response| response.token);
                self.kit.borrow_mut().caches.tokens.extend(tokens);
            }
            // After a failure the caches' contents are unknown, so they are not returned.
            Err(_) => self.responses = None,
        }
        response
    }

    /// How many draft tokens were accepted; zeros without a draft model.
    pub fn acceptance(&self) -> Acceptance {
        self.responses.as_ref().map(ResponseStream::acceptance).unwrap_or_default()
    }

    /// Stops generating and returns the text that was withheld.
    pub(super) fn stop(&mut self) -> Result<String, LmError> {
        self.responses.as_mut().map_or(Ok(String::new()), ResponseStream::stop)
    }

    /// The kit.
    pub(super) fn kit(&self) -> &ModelKit {
        self.kit.borrow()
    }

    /// Ends the run: the kit's caches hold what was read and generated.
    pub(super) fn end(&mut self) -> Result<(), LmError> {
        let Some(responses) = self.responses.take() else { return Ok(()) };
        let (caches, draft_caches) = responses.into_caches()?;
        let own = &mut self.kit.borrow_mut().caches;
        own.main.caches = caches;
        if let Some(draft_caches) = draft_caches {
            own.draft.caches = draft_caches;
        }
        Ok(())
    }

    /// The models that read the prompt, in their order.
    fn readers(&self) -> impl Iterator<Item = KitModel> + use<K> {
        let is_drafting = matches!(self.params.draft(self.kit().draft.as_deref()), Ok(Some(_)));
        is_drafting.then_some(KitModel::Draft).into_iter().chain([KitModel::Main])
    }

    fn num_read_by(&self, model: KitModel) -> usize {
        self.kit().caches.of(model).num_read()
    }

    fn num_left_for(&self, model: KitModel) -> usize {
        (self.prompt.len() - 1).saturating_sub(self.num_read_by(model))
    }

    fn options(&self) -> GenerateOptions {
        self.params.options(&self.kit().options)
    }

    fn read_slice(&mut self, reader: KitModel, max_tokens: usize) -> Result<(), LmError> {
        let options = self.options();
        let ModelKit { loaded, draft, caches, .. } = self.kit.borrow_mut();
        let (caches, model): (_, &Model) = match (reader, draft) {
            (KitModel::Draft, Some(draft)) => (&mut caches.draft, &draft.model),
            _ => (&mut caches.main, &loaded.model),
        };
        caches.read_slice(&self.prompt, model, &options, max_tokens)
    }

    /// Launches the first step, after all of the prompt but its last token has been read.
    fn launch(&mut self) -> Result<(), LmError> {
        let options = self.options();
        let ModelKit { loaded, draft, caches, .. } = self.kit.borrow_mut();
        let draft = self.params.draft(draft.as_deref())?;
        let (cached_tokens, tokens) = self.prompt.split_at(self.prompt.len() - 1);
        let request = StreamRequest {
            input: Input { tokens, embeddings: None, cached_tokens },
            sampling: Sampling::new(&self.params.sampling, loaded)?,
            stops: self.params.stops(loaded),
            options,
            caches: Some(&mut caches.main.caches),
            drafter: draft.map(|model| {
                let caches = &mut caches.draft.caches;
                Drafter::Model(Draft { model, caches })
            }),
            on_progress: None,
        };
        self.responses = Some(stream_generate(loaded, request)?);
        Ok(())
    }
}

impl KitRun {
    /// Ends the run and returns the kit, whose caches hold what was read and generated.
    pub fn into_kit(mut self) -> Result<ModelKit, LmError> {
        self.end()?;
        Ok(self.kit)
    }
}
