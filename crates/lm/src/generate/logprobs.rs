//! Log-probabilities: of sampled tokens, and of given ones ([`score`]).

use mlx_rs::Array;

use super::{begin_rows, padded_columns};
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

/// The natural log-probability of each of a row's tokens given those before it (`None` for the first),
/// and the likeliest next tokens, best first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowScore {
    /// The row.
    pub tokens: Vec<u32>,
    /// One for each of its tokens.
    pub logprobs: Vec<Option<f32>>,
    /// As many as were asked for.
    pub next: Vec<TokenScore>,
    /// The likeliest tokens in the place of each of its tokens, best first; none in the first
    /// place. Empty unless [`Scorer::with_top_of_each`] asked for them.
    pub top: Vec<Vec<TokenScore>>,
}

/// Scores one row of tokens and reports its `num_top` likeliest next ones.
///
/// Fails if `tokens` is empty, longer than the context, or outside the vocabulary.
pub fn score(model: &Model, tokens: &[u32], num_top: usize) -> Result<RowScore, LmError> {
    let mut scorer = Scorer::new(model, vec![tokens.to_vec()], num_top)?;
    while scorer.num_left() > 0 {
        scorer.read(SCORE_CHUNK)?;
    }
    Ok(scorer.finish().pop().unwrap_or_default())
}

/// [`score`] of several rows at once, in slices, between which the caller may do other work. Shorter
/// rows are padded on the right: no token sees what follows it.
#[derive(Debug)]
pub struct Scorer {
    model: Model,
    rows: Vec<RowScore>,
    num_top: usize,
    /// How many of the likeliest tokens are kept in each place.
    num_top_of_each: usize,
    caches: Vec<LayerCache>,
    /// The length of the longest row.
    width: usize,
    /// How many columns have been read.
    num_read: usize,
}

impl Scorer {
    /// Reads nothing yet. Fails as [`score`] does.
    pub fn new(model: &Model, rows: Vec<Vec<u32>>, num_top: usize) -> Result<Self, LmError> {
        let (caches, width) = begin_rows(model, &rows)?;
        let row = |tokens| RowScore { tokens, logprobs: vec![None], ..RowScore::default() };
        let rows: Vec<RowScore> = rows.into_iter().map(row).collect();
        let model = model.clone();
        Ok(Scorer { model, rows, num_top, num_top_of_each: 0, caches, width, num_read: 0 })
    }

    /// Also keeps the `count` likeliest tokens in the place of each token.
    pub fn with_top_of_each(mut self, count: usize) -> Self {
        self.num_top_of_each = count;
        if count > 0 {
            self.rows.iter_mut().for_each(|row| row.top = vec![Vec::new()]);
        }
        self
    }

    /// How many tokens are not read yet, without padding.
    pub fn num_left(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len().saturating_sub(self.num_read)).sum()
    }

    /// Reads the next `max_tokens`, at most 256, or all that are left; at least one of each row.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let length = (max_tokens.min(SCORE_CHUNK) / self.rows.len().max(1)).max(1);
        let (start, stop) = (self.num_read, self.width.min(self.num_read + length));
        if start == stop {
            return Ok(());
        }
        let rows = self.rows.iter().map(|row| row.tokens.as_slice());
        let tokens = padded_columns(rows, start..stop);
        let hidden = self.model.forward(&tokens, &mut self.caches)?;
        let logprobs = logprobs(&self.model.logits(&hidden)?)?; // [B, L, V]
        logprobs.eval()?;
        let vocab_size = logprobs.dim(2) as usize;
        let mut positions = logprobs.try_as_slice::<f32>()?.chunks(vocab_size);
        for row in &mut self.rows {
            for (column, position) in (start..stop).zip(&mut positions) {
                match row.tokens.get(column + 1) {
                    Some(&following) => {
                        row.logprobs.push(position.get(following as usize).copied());
                        if self.num_top_of_each > 0 {
                            row.top.push(likeliest(position, self.num_top_of_each));
                        }
                    }
                    None if column + 1 == row.tokens.len() => {
                        row.next = likeliest(position, self.num_top);
                    }
                    None => {}
                }
            }
        }
        self.num_read = stop;
        Ok(())
    }

    /// The scores, once all rows are read.
    pub fn finish(self) -> Vec<RowScore> {
        self.rows
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::LoadOptions;

    #[test]
    fn padding_is_not_left_to_read() {
        let folder = cairn_tiny_models::tiny_model("llama/gqa");
        let model = Model::load(&folder, LoadOptions::new()).unwrap().0;
        let rows = vec![vec![3, 1, 4, 1, 5, 9, 2, 6], vec![2, 7, 1]];
        let mut scorer = Scorer::new(&model, rows, 0).unwrap();
        let mut left = vec![scorer.num_left()];
        while scorer.num_left() > 0 {
            scorer.read(4).unwrap();
            left.push(scorer.num_left());
        }
        assert_eq!(left, [11, 7, 4, 2, 0]);
    }

    #[test]
    fn scores_are_those_of_a_plain_forward_pass() {
        let folder = cairn_tiny_models::tiny_model("llama/gqa");
        let model = Model::load(&folder, LoadOptions::new()).unwrap().0;
        let rows: Vec<Vec<u32>> = vec![vec![3, 1, 4, 1, 5, 9, 2, 6], vec![2, 7, 1]];
        let mut scorer = Scorer::new(&model, rows.clone(), 0).unwrap().with_top_of_each(3);
        while scorer.num_left() > 0 {
            scorer.read(4).unwrap();
        }
        for (row, score) in rows.iter().zip(scorer.finish()) {
            let ids = Array::from_slice(row, &[1, row.len() as i32]);
            let hidden = model.forward(&ids, &mut model.make_cache()).unwrap();
            let plain = logprobs(&model.logits(&hidden).unwrap()).unwrap();
            plain.eval().unwrap();
            let plain = plain.try_as_slice::<f32>().unwrap();
            let vocab_size = plain.len() / row.len();
            assert_eq!((score.logprobs[0], &score.top[0]), (None, &Vec::new()));
            assert_eq!((score.logprobs.len(), score.top.len()), (row.len(), row.len()));
            for (place, position) in (1..row.len()).zip(plain.chunks(vocab_size)) {
                let expected = position[row[place] as usize];
                assert!((score.logprobs[place].unwrap() - expected).abs() < 1e-4, "{place}");
                let ids = |top: &[TokenScore]| top.iter().map(|top| top.0).collect::<Vec<_>>();
                assert_eq!(ids(&score.top[place]), ids(&likeliest(position, 3)), "{place}");
            }
        }
    }
}
