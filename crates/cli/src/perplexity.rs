//! `cairn perplexity`: the perplexity of a model on a data set, as mlx_lm.perplexity measures it.

mod data;
mod numpy_order;

use std::time::Instant;

use anyhow::Result;
use cairn_engine::{Engine, PromptInput};
use cairn_lm::Tokenizer;
use serde_json::json;

use crate::arguments::Perplexity;
use crate::download::Questions;
use crate::output::{self, note};
use crate::session::Session;

use data::DataSet;

/// A perplexity with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    perplexity: f64,
    standard_error: f64,
}

impl Measured {
    /// The measure of mlx_lm.perplexity: the exponential of the mean loss, whose standard error is
    /// carried over to first order.
    fn from_losses(losses: &[f64]) -> Measured {
        let count = losses.len() as f64;
        let mean = losses.iter().sum::<f64>() / count;
        let squares: f64 = losses.iter().map(|loss| (loss - mean).powi(2)).sum();
        let perplexity = mean.exp();
        let standard_error = perplexity * (squares / (count - 1.0)).sqrt() / count.sqrt();
        Measured { perplexity, standard_error }
    }
}

pub async fn run(arguments: Perplexity) -> Result<()> {
    // The data is checked before the model is loaded.
    let data = DataSet::read(&arguments.data_path)?;
    let session = Session::open(&arguments.model, Questions::unless(arguments.json)).await?;
    let tokenizer = Tokenizer::load(&session.folder)?;
    let length = arguments.sequence_length as usize;
    let samples = data.samples(&tokenizer, length, arguments.num_samples, arguments.seed)?;
    let is_limited = arguments.num_samples < usize::MAX;
    if is_limited && samples.len() < arguments.num_samples {
        note!(
            "note: {} has {} samples of {length} tokens, not {}",
            arguments.data_path.display(),
            samples.len(),
            arguments.num_samples
        );
    }
    let began = Instant::now();
    let losses = losses(&session.engine, &samples, arguments.batch_size as usize).await?;
    let seconds = began.elapsed().as_secs_f64();
    session.engine.shutdown().await;
    let measured = Measured::from_losses(&losses);
    print(measured, &samples, losses.len() as f64 / seconds, arguments.json)
}

/// The loss at each token of the samples but their first, in nats.
async fn losses(engine: &Engine, samples: &[Vec<u32>], batch_size: usize) -> Result<Vec<f64>> {
    let bar = output::bar(samples.len() as u64, "measuring {wide_bar} {pos}/{len}  {eta} left");
    let mut losses = Vec::new();
    for batch in samples.chunks(batch_size) {
        let rows = batch.iter().cloned().map(PromptInput::Tokens).collect();
        let scores = engine.score_all(rows, 0).await?;
        let logprobs = scores.iter().flat_map(|score| score.logprobs.iter().flatten());
        losses.extend(logprobs.map(|&logprob| -f64::from(logprob)));
        bar.inc(batch.len() as u64);
    }
    bar.finish_and_clear();
    Ok(losses)
}

fn print(measured: Measured, samples: &[Vec<u32>], tps: f64, json: bool) -> Result<()> {
    let Measured { perplexity, standard_error } = measured;
    let num_tokens: usize = samples.iter().map(Vec::len).sum();
    if json {
        return output::line(json!({
            "perplexity": perplexity,
            "standard_error": standard_error,
            "samples": samples.len(),
            "tokens": num_tokens,
            "tokens_per_second": tps,
        }));
    }
    output::line(format_args!(
        "perplexity\t{perplexity:.3}\nstandard_error\t{standard_error:.3}\n\
         samples\t{}\ntokens\t{num_tokens}\ntokens_per_second\t{tps:.0}",
        samples.len()
    ))
}
