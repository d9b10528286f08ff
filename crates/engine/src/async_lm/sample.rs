//! Sampling, through the engine's own answers: they decode together and take no batch of queries.

use cairn_chat::SamplingParams;

use super::AsyncLm;
use crate::{EngineError, GenerateEvent, GenerateRequest, Generation, PromptInput};

/// How to sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRequest {
    /// The most tokens.
    pub max_tokens: usize,
    /// The tokens that end it; they are not part of the result.
    pub eos_token_ids: Vec<u32>,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Makes the result repeat; none takes a new seed every time.
    pub seed: Option<u64>,
}

impl Default for SampleRequest {
    fn default() -> Self {
        SampleRequest { max_tokens: 256, eos_token_ids: Vec::new(), temperature: 1.0, seed: None }
    }
}

impl AsyncLm {
    /// Samples tokens after `prompt`. The tokens of [`SampleRequest::eos_token_ids`] end the
    /// result, and the end of the context; the model's own end-of-sequence tokens do not.
    pub async fn sample(
        &self,
        prompt: &[u32],
        request: &SampleRequest,
    ) -> Result<Vec<u32>, EngineError> {
        sampled(self.start_sample(prompt, request), request).await
    }

    /// Samples after each of `prompts`, all at the same time. Each has the seed for itself.
    pub async fn batch_sample(
        &self,
        prompts: &[Vec<u32>],
        request: &SampleRequest,
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        let running: Vec<Generation> =
            prompts.iter().map(|prompt| self.start_sample(prompt, request)).collect();
        let mut results = Vec::with_capacity(running.len());
        for generation in running {
            results.push(sampled(generation, request).await?);
        }
        Ok(results)
    }

    fn start_sample(&self, prompt: &[u32], request: &SampleRequest) -> Generation {
        let sampling = SamplingParams {
            temperature: request.temperature,
            seed: request.seed,
            ..SamplingParams::default()
        };
        self.shared.engine.generate(GenerateRequest {
            model: Some(self.shared.model.clone()),
            sampling,
            max_tokens: request.max_tokens,
            prefill_step_size: self.shared.limits().prefill_step_size,
            use_prompt_cache: false,
            ignore_eos: true,
            ..GenerateRequest::new(PromptInput::Tokens(prompt.to_vec()))
        })
    }
}

/// The tokens of an answer, which is stopped at the first that ends it.
async fn sampled(
    mut generation: Generation,
    request: &SampleRequest,
) -> Result<Vec<u32>, EngineError> {
    let mut tokens = Vec::new();
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Delta { token, .. } if request.eos_token_ids.contains(&token) => break,
            GenerateEvent::Delta { token, .. } => tokens.push(token),
            GenerateEvent::Failed(error) => return Err(error),
            GenerateEvent::SoFar(_)
            | GenerateEvent::Prefill { .. }
            | GenerateEvent::Finished(_) => {}
        }
    }
    Ok(tokens)
}
