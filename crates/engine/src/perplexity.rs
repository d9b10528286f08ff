//! The perplexity of a short text, which says what rounding has cost a model that was imported: with
//! the file's own weights, and with the rounded ones.

use std::ops::ControlFlow;
use std::path::Path;

use cairn_formats::gguf::{ExactCopy, GgufError};

use crate::{Engine, EngineError, EngineOptions, PromptInput};

/// A text in English, some 350 tokens, whatever the model: short enough for a large one.
pub const PERPLEXITY_TEXT: &str = include_str!("perplexity.txt");

/// How well a model foretells the text: how many tokens it wavers between at each, on average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexity {
    /// It is 1 or more; not finite where the model's numbers overflow.
    pub value: f64,
    /// The tokens that were foretold.
    pub num_tokens: usize,
}

/// Why a perplexity could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    /// The copy with the file's own weights could not be made.
    #[error(transparent)]
    Copy(#[from] GgufError),
    /// The model could not be loaded, or cannot read the text.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Perplexity {
    /// Of the model in `folder`, which an engine of its own loads within the limit.
    pub async fn of(
        folder: &Path,
        memory_limit_bytes: Option<u64>,
    ) -> Result<Perplexity, PerplexityError> {
        let options = EngineOptions { memory_limit_bytes, ..EngineOptions::default() };
        let (engine, _) = Engine::start(options);
        let scores = score(&engine, folder).await;
        engine.shutdown().await;
        Ok(Perplexity::from_logprobs(&scores?))
    }

    /// Of the weights that a GGUF file has itself, in a copy beside `folder`, the model that was imported
    /// from it. `progress(done, total)` counts bytes of the file; where it breaks, nothing is left.
    pub async fn before_rounding(
        file: &Path,
        folder: &Path,
        memory_limit_bytes: Option<u64>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Perplexity, PerplexityError> {
        let copy = ExactCopy::make(file, folder.parent().unwrap_or(folder), progress)?;
        Perplexity::of(copy.folder(), memory_limit_bytes).await
    }

    fn from_logprobs(logprobs: &[f64]) -> Perplexity {
        let num_tokens = logprobs.len();
        let mean = logprobs.iter().sum::<f64>() / num_tokens.max(1) as f64;
        Perplexity { value: (-mean).exp(), num_tokens }
    }
}

/// The log-probabilities of the text's tokens behind the first.
async fn score(engine: &Engine, folder: &Path) -> Result<Vec<f64>, EngineError> {
    engine.load("model", folder).await?;
    let score = engine.score(PromptInput::Text(PERPLEXITY_TEXT.to_owned()), 0).await?;
    Ok(score.logprobs.into_iter().flatten().map(f64::from).collect())
}
