//! A generation that owns its kit and is advanced slice by slice, for a caller that serves others
//! in between.

use super::generation::{Call, launch};
use super::{GenerateParams, ModelKit};
use crate::LmError;
use crate::generate::{GenerateOptions, GenerationResponse, ResponseStream, Sampling};

/// [`ModelKit::generate`] in slices: [`KitRun::read`] until it [`is_read`](KitRun::is_read), then
/// [`KitRun::next_response`]. After an error it is of no further use.
#[derive(Debug)]
pub struct KitRun {
    kit: ModelKit,
    prompt: Vec<u32>,
    params: GenerateParams,
    num_cached: usize,
    /// `None` before the whole prompt has been read.
    responses: Option<ResponseStream>,
}

impl KitRun {
    /// A run of `kit` over `prompt`. Reads nothing yet; fails as [`ModelKit::generate`] does.
    pub fn new(
        mut kit: ModelKit,
        prompt: Vec<u32>,
        params: &GenerateParams,
    ) -> Result<Self, LmError> {
        let params = kit.checked(&prompt, params)?;
        params.draft(kit.draft.as_deref())?;
        Sampling::new(&params.sampling, &kit.loaded)?;
        kit.caches.begin(&prompt);
        let num_cached = kit.caches.main.num_read();
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
            None => self.kit.caches.main.num_read(),
        }
    }

    /// Whether the prompt has been read and the first step launched.
    pub fn is_read(&self) -> bool {
        self.responses.is_some()
    }

    /// How many tokens [`KitRun::read`] has yet to read, those of the draft model included.
    pub fn num_left(&self) -> usize {
        let num_left = |num_read: usize| (self.prompt.len() - 1).saturating_sub(num_read);
        let is_drafting = matches!(self.params.draft(self.kit.draft.as_deref()), Ok(Some(_)));
        let of_draft = if is_drafting { num_left(self.kit.caches.draft.num_read()) } else { 0 };
        of_draft + num_left(self.kit.caches.main.num_read())
    }

    /// Reads the next `max_tokens` of the prompt or less, the draft model first; when none are left,
    /// launches the first step.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let options = self.options();
        let ModelKit { loaded, draft, caches, .. } = &mut self.kit;
        let end = self.prompt.len() - 1;
        match self.params.draft(draft.as_deref())? {
            Some(draft) if caches.draft.num_read() < end => {
                return caches.draft.read_slice(&self.prompt, draft, &options, max_tokens);
            }
            _ if caches.main.num_read() < end => {
                return caches.main.read_slice(&self.prompt, &loaded.model, &options, max_tokens);
            }
            _ => {}
        }
        let call = Call {
            prompt: &self.prompt,
            draft: self.params.draft(draft.as_deref())?,
            sampling: Sampling::new(&self.params.sampling, loaded)?,
            stops: self.params.stops(loaded),
            options,
        };
        self.responses = Some(launch(loaded, caches, call)?);
        Ok(())
    }

    /// The next token; `None` after the last one, and before the prompt has been read.
    pub fn next_response(&mut self) -> Result<Option<GenerationResponse>, LmError> {
        let Some(responses) = &mut self.responses else { return Ok(None) };
        let response = responses.next().transpose()?;
        self.kit.caches.tokens.extend(response.iter().map(|response| response.token));
        Ok(response)
    }

    /// Ends the run and returns the kit, whose caches hold what was read and generated.
    pub fn into_kit(self) -> Result<ModelKit, LmError> {
        let KitRun { mut kit, responses, .. } = self;
        if let Some(responses) = responses {
            let (caches, draft_caches) = responses.into_caches()?;
            kit.caches.main.caches = caches;
            if let Some(draft_caches) = draft_caches {
                kit.caches.draft.caches = draft_caches;
            }
        }
        Ok(kit)
    }

    fn options(&self) -> GenerateOptions {
        self.params.options(&self.kit.options)
    }
}
