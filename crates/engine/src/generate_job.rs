//! A request that waits to be answered, with what is found out of it meanwhile.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cairn_chat::{Cancel, Prompt};
use cairn_lm::{LmError, ModelIdentity};
use tokio::sync::{mpsc, watch};

use crate::EngineError;
use crate::model_pool::Loaded;
use crate::prompt::prompt_tokens;
use crate::prompt_cache::SavePermit;
use crate::prompt_facts::PromptFacts;
use crate::request::{GenerateEvent, GenerateRequest};
use crate::segments::{AnswerGrammar, lark};

/// A request, with the channel for its events.
#[derive(Debug)]
pub(crate) struct GenerateJob {
    pub(crate) request: Box<GenerateRequest>,
    pub(crate) events: mpsc::UnboundedSender<GenerateEvent>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) arrived: Instant,
    /// The tokens of its prompt for one model, once they are known.
    pub(crate) prompt: Option<(ModelIdentity, Prompt)>,
    /// The grammar of its form for one model, once that is compiled.
    pub(crate) grammar: Option<Box<(ModelIdentity, AnswerGrammar)>>,
    /// What it takes besides the weights, once that has been estimated.
    pub(crate) needs: Option<SequenceNeeds>,
    /// Whether what it computes may be saved.
    pub(crate) permit: Option<Arc<SavePermit>>,
    /// Facts about the prompt for the caller, set when the answer begins.
    pub(crate) facts: Arc<OnceLock<PromptFacts>>,
    /// Ends the building of its prompt when it is stopped, or the engine closes.
    cancel: Cancel,
}

/// What is left to whoever asks for an answer: its events, and what stops it.
pub(crate) type AnswerChannels = (mpsc::UnboundedReceiver<GenerateEvent>, watch::Sender<bool>);

/// The memory of a sequence: at most, and if its answer is short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SequenceNeeds {
    pub(crate) most_bytes: u64,
    pub(crate) least_bytes: u64,
}

impl GenerateJob {
    /// A request that has just arrived, with its `permit` where there is a prompt cache on disk.
    pub(crate) fn new(
        request: GenerateRequest,
        permit: Option<Arc<SavePermit>>,
        closing: watch::Receiver<bool>,
    ) -> (GenerateJob, AnswerChannels) {
        let (events, receiver) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let (asked, is_asked_to_stop) = (events.clone(), stopped.clone());
        let cancel = Cancel::new(move || {
            asked.is_closed() || *is_asked_to_stop.borrow() || *closing.borrow()
        });
        let job = GenerateJob {
            request: Box::new(request),
            events,
            stop: stopped,
            arrived: Instant::now(),
            prompt: None,
            grammar: None,
            needs: None,
            permit,
            facts: Arc::default(),
            cancel,
        };
        (job, (receiver, stop))
    }

    /// Whether the caller dropped its [`crate::Generation`] or asked it to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.events.is_closed() || *self.stop.borrow()
    }

    /// Returns the tokens of its prompt, followed by the tokens that the answer already has. They
    /// are computed again if another model answers now. Empty if the job was stopped before they
    /// were computed.
    pub(crate) fn prompt(&mut self, loaded: &Loaded) -> Result<&Prompt, EngineError> {
        let identity = &loaded.model.identity;
        let (known, prompt) = match self.prompt.take().filter(|(known, _)| known == identity) {
            Some(known) => known,
            None => {
                let GenerateRequest { prompt, template_variables, thinking, .. } = &*self.request;
                let cancel = self.cancel.clone();
                let built =
                    prompt_tokens(&loaded.model, prompt, template_variables, *thinking, cancel);
                let prompt = match built {
                    Ok(mut prompt) => {
                        prompt.tokens.extend(&self.request.answer_so_far);
                        prompt
                    }
                    Err(EngineError::Closed) if self.is_stopped() => Prompt::default(),
                    Err(error) => return Err(error),
                };
                (identity.clone(), prompt)
            }
        };
        Ok(&self.prompt.insert((known, prompt)).1)
    }

    /// As [`GenerateJob::prompt`], without keeping them. Fails if there are none, unless it was stopped.
    pub(crate) fn take_prompt(&mut self, loaded: &Loaded) -> Result<Prompt, EngineError> {
        self.prompt(loaded)?;
        let prompt = self.prompt.take().map(|(_, prompt)| prompt);
        let is_stopped = self.is_stopped();
        let prompt = prompt.filter(|prompt| is_stopped || !prompt.tokens.is_empty());
        Ok(prompt.ok_or(LmError::EmptyPrompt)?)
    }

    /// The grammar of its form that is not compiled yet for this model.
    pub(crate) fn missing_grammar(
        &mut self,
        loaded: &Loaded,
    ) -> Result<Option<String>, EngineError> {
        let identity = &loaded.model.identity;
        let is_compiled = self.grammar.as_ref().is_some_and(|grammar| grammar.0 == *identity);
        if is_compiled || self.request.form.is_none() {
            return Ok(None);
        }
        self.prompt(loaded)?;
        let prompt = self.prompt.as_ref().map_or("", |(_, prompt)| prompt.text.as_str());
        lark(loaded, &self.request, prompt)
    }

    /// The compiled grammar of its form. It is compiled here only if another model answers than the
    /// one that it was compiled for.
    pub(crate) fn take_grammar(
        &mut self,
        loaded: &Loaded,
    ) -> Result<Option<AnswerGrammar>, EngineError> {
        match self.missing_grammar(loaded)? {
            Some(lark) => AnswerGrammar::compile(&loaded.model.grammar_compiler(), &lark).map(Some),
            None => Ok(self.grammar.take().map(|grammar| grammar.1)),
        }
    }

    pub(crate) fn fail(&self, error: EngineError) {
        let _ = self.events.send(GenerateEvent::Failed(error));
    }
}

#[cfg(test)]
mod tests {
    use cairn_chat::{FinishReason, Message, Role};

    use super::*;
    use crate::request::{FinishedGeneration, PromptInput};
    use crate::restoring::Restored;
    use crate::scripted_model::worker_with;
    use crate::sequence::Sequence;

    #[test]
    fn ends_sequence_stopped_while_prompt_is_built() {
        for answer_so_far in [vec![], vec![97, 98]] {
            let mut worker = worker_with(r#"{"script": [97]}"#);
            // So long that rendering it asks whether it is cancelled.
            let content = "Why? ".repeat(100_000);
            let message = Message { role: Role::User, content, token_ids: None };
            let prompt = PromptInput::Messages(vec![message]);
            let request = GenerateRequest { answer_so_far, ..GenerateRequest::new(prompt) };
            let (mut job, (mut events, stop)) =
                GenerateJob::new(request, None, watch::channel(false).1);
            job.cancel = Cancel::new(move || stop.send(true).is_ok());
            let began = Sequence::begin(&mut worker, job, Restored::default());
            let (sequence, caches) = began.unwrap_or_else(|error| panic!("{error}"));
            assert!(sequence.job.is_stopped() && caches.is_empty());
            sequence.finish(&mut worker, FinishReason::Cancelled, caches);
            let finished: Vec<Box<FinishedGeneration>> =
                std::iter::from_fn(|| events.try_recv().ok())
                    .filter_map(|event| match event {
                        GenerateEvent::Finished(finished) => Some(finished),
                        GenerateEvent::Failed(error) => panic!("{error}"),
                        _ => None,
                    })
                    .collect();
            let [finished] = &finished[..] else { panic!("{finished:?}") };
            assert_eq!(finished.stats.finish_reason, FinishReason::Cancelled);
        }
    }
}
