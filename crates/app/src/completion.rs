//! Answers for other programs, which ask over HTTP: no conversation of the window, and nothing of
//! them is stored but saved context.
//!
//! ```text
//! App::completion(model, prompt) ─▶ GenerateRequest with the model's settings
//!        the caller changes what the program has asked for
//! App::start_from(request, name)   checks that the prompt begins with a starting point; uses it
//! App::complete(request) ─▶ Completion: the engine's events; dropping it cancels the answer
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use cairn_engine::{Generation, LmError, LoadedModel, Score, ScoreRequest, Speculation};
use cairn_store::NamedCacheRow;

pub use cairn_chat::{
    AnswerForm, CallArguments, CallSchema, Date, FinishReason, GenerationStats, GuessCounts,
    MadeCall, Message, OfferedTool, PromptEnd, Role, SamplingParams, SegmentEvent, TextForm,
    TextPlace, Thinking, Turn, TurnsPrompt, forget_thinking,
};
pub use cairn_engine::{
    EngineError, FinishedGeneration, GenerateEvent, GenerateRequest, KvCacheOptions, PromptFacts,
    PromptInput, PromptKeys, SegmentOptions, TokenLogprob,
};

use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::crashes::record::{RunningStep, Step, StepKind};
use crate::models::loaded::loaded_status;
use crate::models::{list, loading, model_title};
use crate::settings::commands as settings;
use crate::settings::sampling::sampling;
use crate::wire::{Failure, Model};

/// A model on this machine that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsableModel {
    /// The name by which programs ask for it.
    pub name: String,
    /// The title in the window: its alias, or a short form of its name.
    pub title: String,
    /// The other name that a person has given to it.
    pub alias: Option<String>,
    /// When its folder was last changed, in seconds since 1970; 0 if that is not known.
    pub changed_s: u64,
}

fn changed_s(folder: &Path) -> u64 {
    let changed = std::fs::metadata(folder).and_then(|folder| folder.modified());
    let since_1970 = changed.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since_1970.map_or(0, |elapsed| elapsed.as_secs())
}

/// Why a prompt cannot begin with a starting point.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Nothing has this name.
    #[error("There is no starting point with the name “{name}”.")]
    NoStartingPoint {
        /// The name that was given.
        name: String,
    },
    /// It was imported from a file that did not name its tokens.
    #[error(
        "The tokens of the starting point “{name}” are not known, so that no prompt can be \
         compared with them: begin a chat with it instead."
    )]
    UnknownTokens {
        /// Its name.
        name: String,
    },
    /// The prompt has other tokens, or ends before.
    #[error(
        "The prompt does not begin with the starting point “{name}”: of its {num_tokens} tokens \
         the first {num_shared} are the same, and from token {num_shared} on (counted from 0) the \
         prompt differs."
    )]
    Differs {
        /// Its name.
        name: String,
        /// How many tokens are the same.
        num_shared: usize,
        /// How many it has.
        num_tokens: usize,
    },
    /// The prompt could not be turned into tokens.
    #[error("{0}")]
    Engine(EngineError),
    /// The database could not be read.
    #[error("{}", .0.message)]
    Store(Failure),
}

impl From<Failure> for StartError {
    fn from(failure: Failure) -> Self {
        StartError::Store(failure)
    }
}

/// An answer that is being written for a program. Dropping it cancels the answer.
#[derive(Debug)]
pub struct Completion {
    generation: Generation,
    step: RunningStep,
}

/// A token of a prompt, as [`App::echo`] reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// Its text, with a leading space where it has one.
    pub text: String,
    /// Natural logarithm of its probability after the tokens before it. `None` for the first, and if
    /// no log-probabilities were asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place with theirs, best first.
    pub top: Vec<(String, f32)>,
}

impl Completion {
    /// The facts of its prompt, which are known once the first event was received.
    pub fn prompt(&self) -> Option<&PromptFacts> {
        self.generation.prompt()
    }

    /// The next event of the engine; none after the last.
    pub async fn recv(&mut self) -> Option<GenerateEvent> {
        let event = self.generation.recv().await;
        if let Some(GenerateEvent::Finished(finished)) = &event
            && finished.stats.finish_reason != FinishReason::Cancelled
        {
            self.step.succeeded();
        }
        event
    }
}

impl App {
    /// A request to a model on this machine, which is loaded beside the chats' if need be; without
    /// a name the loaded one answers. Sampling and limits follow
    /// [`crate::Options::answer_defaults`], then the model's settings.
    pub async fn completion(
        self: &Arc<Self>,
        model: Option<&str>,
        prompt: PromptInput,
    ) -> Result<GenerateRequest, Failure> {
        self.titles.stop();
        let model = loading::ensure_answers(self, model).await?;
        let settings = settings::of_loaded(self, &model).await?;
        let status = loaded_status(self, &model);
        let (kv_cache, speculation) = self.decoding(&settings, status.as_ref());
        let mut request = GenerateRequest {
            sampling: sampling(&settings),
            thinking: Some(convert::thinking(settings.thinking)),
            max_tokens: settings.max_tokens as usize,
            context_length: settings.context_length.map(|length| length as usize),
            kv_cache,
            speculation,
            model: Some(model),
            ..GenerateRequest::new(prompt)
        };
        self.answer_defaults.apply(&mut request);
        Ok(request)
    }

    /// The longest answer of a request that says nothing, in tokens; none: what the settings say.
    pub fn default_max_tokens(&self) -> Option<usize> {
        self.answer_defaults.max_tokens
    }

    /// Whether the texts of a prompt have to tell this loaded model of tools, because its chat template
    /// takes none.
    pub fn tells_of_tools(&self, model: &str) -> bool {
        loaded_status(self, model).is_some_and(|model| !model.takes_tools)
    }

    /// How many tokens the prompt of a request has; none of them is computed.
    pub async fn num_prompt_tokens(&self, request: GenerateRequest) -> Result<usize, EngineError> {
        let GenerateRequest { model, prompt, template_variables, thinking, .. } = request;
        let _step = self.crashes.begin(Step::new(StepKind::Program, model.clone()));
        let tokens =
            self.engine.prompt_tokens(model.as_deref(), prompt, template_variables, thinking);
        Ok(tokens.await?.len())
    }

    /// Reports the tokens of prompts for a loaded model, and with `num_top` also the log-probability of
    /// each and the likeliest tokens in its place, for which the prompts are read from their first
    /// tokens. Fails if a prompt is empty or longer than the context.
    pub async fn echo(
        &self,
        model: Option<String>,
        prompts: Vec<PromptInput>,
        num_top: Option<usize>,
    ) -> Result<Vec<Vec<PromptToken>>, EngineError> {
        let step = self.crashes.begin(Step::new(StepKind::Program, model.clone()));
        let mut scores = Vec::with_capacity(prompts.len());
        match num_top {
            Some(num_top_of_each) => {
                let model = model.clone();
                let request = ScoreRequest { model, prompts, num_top: 0, num_top_of_each };
                scores = self.engine.score_with(request).await?;
            }
            None => {
                for prompt in prompts {
                    let variables = serde_json::Map::new();
                    let tokens = self
                        .engine
                        .prompt_tokens(model.as_deref(), prompt, variables, None)
                        .await?;
                    scores.push(Score { tokens, ..Score::default() });
                }
            }
        }
        let texts =
            move |model: &LoadedModel| scores.iter().map(|score| texts(score, model)).collect();
        let tokens: Result<_, LmError> = self.engine.submit(model.as_deref(), texts).await?;
        if num_top.is_some() {
            step.succeeded();
        }
        Ok(tokens?)
    }

    /// Lets a request begin with the saved context of a starting point, with whose tokens its
    /// prompt has to begin.
    pub async fn start_from(
        &self,
        request: &mut GenerateRequest,
        name: &str,
    ) -> Result<(), StartError> {
        let listed = self.store.named_caches().await.map_err(Failure::from)?;
        let Some(listed) = listed.into_iter().find(|listed| listed.row.name == name) else {
            return Err(StartError::NoStartingPoint { name: name.to_owned() });
        };
        let row = self.store.listed_named_cache(&listed.row.id).await.map_err(Failure::from)?;
        let NamedCacheRow { id, namespace, token_ids, .. } = row;
        let Some(token_ids) = token_ids else {
            return Err(StartError::UnknownTokens { name: name.to_owned() });
        };
        let prompt = request.prompt.clone();
        let variables = request.template_variables.clone();
        let model = request.model.as_deref();
        let step = self.crashes.begin(Step::new(StepKind::Program, request.model.clone()));
        let prompt_ids =
            self.engine.prompt_tokens(model, prompt, variables, request.thinking).await;
        drop(step);
        let prompt_ids = prompt_ids.map_err(StartError::Engine)?;
        let num_shared = token_ids.iter().zip(&prompt_ids).take_while(|(a, b)| a == b).count();
        if num_shared < token_ids.len() {
            let (name, num_tokens) = (name.to_owned(), token_ids.len());
            return Err(StartError::Differs { name, num_shared, num_tokens });
        }
        request.kv_cache = KvCacheOptions::of_format(namespace.kv_format);
        // A draft model would have to read the starting point again.
        if matches!(request.speculation, Speculation::Draft { .. }) {
            request.speculation = Speculation::Off;
        }
        request.provenance = namespace.provenance;
        if let Err(error) = self.store.touch_named_cache(&id, now_ms()).await {
            tracing::debug!("the use of a starting point is not saved: {error}");
        }
        Ok(())
    }

    /// Begins the answer.
    pub fn complete(&self, request: GenerateRequest) -> Completion {
        self.titles.stop();
        let step = self.crashes.begin(Step::new(StepKind::Program, request.model.clone()));
        Completion { generation: self.engine.generate(request), step }
    }

    /// The models on this machine that can be used.
    pub async fn usable_models(self: &Arc<Self>) -> Vec<UsableModel> {
        let models = list::all(self).await;
        let describe = |model: &Model| UsableModel {
            name: model.name.clone(),
            title: model_title(&model.name, &models),
            alias: model.alias.clone(),
            changed_s: changed_s(Path::new(&model.path)),
        };
        let usable = models.iter().filter(|model| model.problem.is_none());
        usable.map(describe).collect()
    }

    /// The usable model that has this name, or else this alias.
    pub async fn usable_model(self: &Arc<Self>, wanted: &str) -> Option<UsableModel> {
        let mut models = self.usable_models().await;
        let is_wanted = |model: &UsableModel| model.name == wanted;
        let has_alias = |model: &UsableModel| model.alias.as_deref() == Some(wanted);
        let index = models.iter().position(is_wanted);
        Some(models.swap_remove(index.or_else(|| models.iter().position(has_alias))?))
    }
}

/// The tokens of a scored prompt with their texts.
fn texts(score: &Score, model: &LoadedModel) -> Result<Vec<PromptToken>, LmError> {
    let mut tokens = Vec::with_capacity(score.tokens.len());
    for (place, &token) in score.tokens.iter().enumerate() {
        let top = score.top.get(place).into_iter().flatten();
        let top = top.map(|&(token, logprob)| Ok((model.tokenizer.token_text(token)?, logprob)));
        tokens.push(PromptToken {
            text: model.tokenizer.token_text(token)?,
            logprob: score.logprobs.get(place).copied().flatten(),
            top: top.collect::<Result<_, LmError>>()?,
        });
    }
    Ok(tokens)
}
