//! What it changes to hold recurrent states in bf16 ([`LoadOptions::bf16_state`]).

use std::path::Path;

use mlx_rs::Array;
use mlx_rs::transforms::eval;

use crate::models::Model;
use crate::sample::logprobs;
use crate::{LmError, LoadOptions, check_length, memory};

/// How the distributions of the next token differ behind each token of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StateComparison {
    /// How many distributions were compared.
    pub num_tokens: usize,
    /// Behind how many the likeliest token is the same.
    pub num_same_top: usize,
    /// The mean Kullback-Leibler divergence from states in f32 to states in bf16, in nats.
    pub mean_divergence: f64,
    /// The largest one.
    pub max_divergence: f64,
}

/// Reads `tokens` one at a time, as answers are written, with states in f32 and again with states in
/// bf16. `None` for a model that has no such states.
///
/// Each of the two models is loaded by itself. Between the two, a row of the vocabulary's size is held
/// for every token. Fails on tokens that the model cannot read.
pub fn compare_state(
    folder: &Path,
    options: LoadOptions,
    tokens: &[u32],
) -> Result<Option<StateComparison>, LmError> {
    let exact = distributions(&Model::load(folder, options.bf16_state(false))?.0, tokens)?;
    let (model, _) = Model::load(folder, options.bf16_state(true))?;
    if !model.cache_spec().has_bf16_state() {
        return Ok(None);
    }
    let rounded = distributions(&model, tokens)?;
    let mut comparison = StateComparison { num_tokens: exact.len(), ..Default::default() };
    for (exact, rounded) in exact.iter().zip(&rounded) {
        let (exact, rounded) = (exact.try_as_slice::<f32>()?, rounded.try_as_slice::<f32>()?);
        let divergence = divergence(exact, rounded);
        comparison.num_same_top += usize::from(likeliest(exact) == likeliest(rounded));
        comparison.mean_divergence += divergence / tokens.len() as f64;
        comparison.max_divergence = comparison.max_divergence.max(divergence);
    }
    Ok(Some(comparison))
}

/// The log-probabilities behind each token, f32 `[V]`.
fn distributions(model: &Model, tokens: &[u32]) -> Result<Vec<Array>, LmError> {
    check_length(tokens.len(), model)?;
    crate::generate::check_tokens(tokens, model.vocab_size())?;
    let mut caches = model.make_cache();
    let mut rows = Vec::with_capacity(tokens.len());
    for &token in tokens {
        let hidden = model.forward(&Array::from_slice(&[token], &[1, 1]), &mut caches)?;
        let row = logprobs(&model.logits(&hidden)?)?.reshape(&[-1])?;
        eval([&row])?;
        rows.push(row);
    }
    memory::clear_cache();
    Ok(rows)
}

/// Σ p (ln p − ln q) of two rows of log-probabilities.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let term = |(&p, &q): (&f32, &f32)| match p {
        f32::NEG_INFINITY => 0.0,
        _ => f64::from(p).exp() * (f64::from(p) - f64::from(q)),
    };
    // Rounding can make a divergence of nearly nothing negative.
    p.iter().zip(q).map(term).sum::<f64>().max(0.0)
}

fn likeliest(row: &[f32]) -> Option<usize> {
    (0..row.len()).max_by(|&one, &other| row[one].total_cmp(&row[other]))
}
