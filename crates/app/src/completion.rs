//! Answers for other programs, which ask over HTTP: no conversation of the window, and nothing of
//! them is stored but saved context.
//!
//! ```text
//! App::completion(model, prompt) ─▶ GenerateRequest with the model's settings
//!        the caller changes what the program has asked for
//! App::complete(request) ─▶ Generation: the engine's events; dropping it cancels the answer
//! ```

use std::sync::Arc;

pub use cairn_chat::{
    AnswerForm, CallSchema, FinishReason, GenerationStats, MadeCall, Message, OfferedTool, Role,
    SamplingParams, SegmentEvent, TextForm, Turn,
};
pub use cairn_engine::{
    EngineError, FinishedGeneration, GenerateEvent, GenerateRequest, Generation, PromptInput,
    SegmentOptions, TokenLogprob,
};

use crate::app::App;
use crate::settings::commands as settings;
use crate::wire::Failure;
use crate::{convert, models};

impl App {
    /// A request to a model on this machine, which is loaded beside the chats' if need be; without
    /// a name the loaded one answers. Sampling and limits are those set for the model.
    pub async fn completion(
        self: &Arc<Self>,
        model: Option<&str>,
        prompt: PromptInput,
    ) -> Result<GenerateRequest, Failure> {
        let model = match model {
            Some(name) => models::ensure_loaded_beside(self, name).await?,
            None => {
                models::ensure_loaded(self.clone(), None).await?;
                models::loaded_name(self).ok_or_else(models::no_model)?
            }
        };
        let settings = settings::of_loaded(self, &model).await?;
        let group_size = {
            let status = self.engine.status();
            let models = &status.borrow().models;
            models.iter().find(|loaded| loaded.name == model).and_then(|model| model.kv_group_size)
        };
        Ok(GenerateRequest {
            sampling: convert::sampling(&settings),
            max_tokens: settings.max_tokens as usize,
            context_length: settings.context_length.map(|length| length as usize),
            kv_cache: convert::kv_cache(&settings, group_size),
            model: Some(model),
            ..GenerateRequest::new(prompt)
        })
    }

    /// Begins the answer.
    pub fn complete(&self, request: GenerateRequest) -> Generation {
        self.engine.generate(request)
    }

    /// The names of the models on this machine that can be used.
    pub async fn usable_models(self: &Arc<Self>) -> Vec<String> {
        let models = models::catalog::list(self).await;
        models.into_iter().filter(|model| model.problem.is_none()).map(|model| model.name).collect()
    }
}
