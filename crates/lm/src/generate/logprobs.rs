//! Log-probabilities: of sampled tokens, and of given ones ([`score`]).

use mlx_rs::Array;

use super::{check_length, check_tokens, token_array};
use crate::LmError;
use crate::cache::LayerCache;
use crate::models::Model;
use crate::sample::logprobs;

/// A token id with its natural log-probability.
pub type TokenScore = (u32, f32);

/// The distribution from which one token was sampled.
#[derive(Debug, Clone)]
pub struct Logprobs {
    /// The token's own natural log-probability.
    pub own: f32,
    /// The likeliest tokens, best first; as many as were asked for.
    pub top: Vec<TokenScore>,
    /// The log-probabilities of all tokens, f32 `[V]`.
    pub all: Array,
}

impl Logprobs {
    /// Looks up `token` in a row `[V]` of log-probabilities.
    pub(crate) fn read(all: Array, token: u32, num_top: usize) -> Result<Self, LmError> {
        let (own, top) = top_logprobs(&all, token, num_top)?;
        Ok(Logprobs { own, top, all })
    }
}

/// The log-probability of `token` and the `num_top` likeliest tokens, from an evaluated f32 row
/// `[V]`.
fn top_logprobs(
    row: &Array,
    token: u32,
    num_top: usize,
) -> Result<(f32, Vec<TokenScore>), LmError> {
    let row = row.try_as_slice::<f32>()?;
    let own = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    Ok((own, likeliest(row, num_top)))
}

/// How many tokens [`score`] reads at once: fewer than prefill, because each token needs a row of
/// logits over the vocabulary.
const SCORE_CHUNK: usize = 256;

/// The natural log-probability of each of `tokens` given those before it (`None` for the first),
/// and the `num_top` likeliest next tokens, best first.
///
/// Fails if `tokens` is empty, longer than the context, or outside the vocabulary.
pub fn score(
    model: &Model,
    tokens: &[u32],
    num_top: usize,
) -> Result<(Vec<Option<f32>>, Vec<TokenScore>), LmError> {
    let mut scorer = Scorer::new(model, tokens.to_vec(), num_top)?;
    while scorer.num_left() > 0 {
        scorer.read(SCORE_CHUNK)?;
    }
    let (_, scores, next) = scorer.finish();
    Ok((scores, next))
}

/// [`score`] in slices, between which the caller may do other work.
#[derive(Debug)]
pub struct Scorer {
    model: Model,
    tokens: Vec<u32>,
    num_top: usize,
    caches: Vec<LayerCache>,
    num_read: usize,
    scores: Vec<Option<f32>>,
    next: Vec<TokenScore>,
}

impl Scorer {
    /// Reads nothing yet. Fails as [`score`] does.
    pub fn new(model: &Model, tokens: Vec<u32>, num_top: usize) -> Result<Self, LmError> {
        if tokens.is_empty() {
            return Err(LmError::EmptyPrompt);
        }
        check_tokens(&tokens, model.vocab_size())?;
        check_length(tokens.len(), model)?;
        let caches = model.make_cache();
        let (model, scores) = (model.clone(), vec![None]);
        Ok(Scorer { model, tokens, num_top, caches, num_read: 0, scores, next: Vec::new() })
    }

    /// How many tokens are not read yet.
    pub fn num_left(&self) -> usize {
        self.tokens.len() - self.num_read
    }

    /// Reads the next `max_tokens`, at most 256, or all that are left.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let num_tokens = max_tokens.min(SCORE_CHUNK).min(self.num_left());
        if num_tokens == 0 {
            return Ok(());
        }
        let chunk = &self.tokens[self.num_read..self.num_read + num_tokens];
        let hidden = self.model.forward(&token_array(chunk), &mut self.caches)?;
        let logprobs = logprobs(&self.model.logits(&hidden)?)?; // [1, L, V]
        logprobs.eval()?;
        let vocab_size = logprobs.dim(2) as usize;
        let rows = logprobs.try_as_slice::<f32>()?;
        for row in rows.chunks(vocab_size) {
            self.num_read += 1;
            match self.tokens.get(self.num_read) {
                Some(&following) => self.scores.push(row.get(following as usize).copied()),
                None => self.next = likeliest(row, self.num_top),
            }
        }
        Ok(())
    }

    /// The tokens and what [`score`] returns for them, once all are read.
    pub fn finish(self) -> (Vec<u32>, Vec<Option<f32>>, Vec<TokenScore>) {
        (self.tokens, self.scores, self.next)
    }
}

/// The `count` likeliest tokens of a row of log-probabilities, best first.
pub fn likeliest(row: &[f32], count: usize) -> Vec<TokenScore> {
    let count = count.min(row.len());
    if count == 0 {
        return Vec::new();
    }
    let mut indexed: Vec<TokenScore> =
        row.iter().enumerate().map(|(id, &value)| (id as u32, value)).collect();
    indexed.select_nth_unstable_by(count - 1, |a, b| b.1.total_cmp(&a.1));
    indexed.truncate(count);
    indexed.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    indexed
}
