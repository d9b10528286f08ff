//! Choosing the next token from its distribution. Order and meaning follow mlx-lm's sample_utils: top-p first, then temperature.

use cairn_chat::SamplingParams;
use mlx_rs::error::Result;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::random::{RandomState, categorical};
use mlx_rs::{Array, ops};

/// Chooses tokens for one request, with random numbers of its own.
#[derive(Debug)]
pub enum Sampler {
    /// The most likely token.
    Greedy,
    /// A random token.
    Random {
        /// Divides log-probabilities.
        temperature: f32,
        /// Probability mass to keep; none keeps all.
        top_p: Option<f32>,
        /// This request's random numbers.
        state: RandomState,
    },
}

impl Sampler {
    /// A sampler for checked `params`. Without a seed it takes one from the clock.
    pub fn new(params: &SamplingParams) -> Result<Self> {
        if params.temperature == 0.0 {
            return Ok(Sampler::Greedy);
        }
        let state = match params.seed {
            Some(seed) => RandomState::with_seed(seed)?,
            None => RandomState::new()?,
        };
        let top_p = (params.top_p > 0.0 && params.top_p < 1.0).then_some(params.top_p);
        Ok(Sampler::Random { temperature: params.temperature, top_p, state })
    }

    /// Logits `[1, V]` to a token `[1]`.
    pub fn sample(&mut self, logits: &Array) -> Result<Array> {
        match self {
            Sampler::Greedy => argmax_axis(logits, -1, false),
            Sampler::Random { temperature, top_p, state } => {
                let mut logprobs = logprobs(logits)?;
                if let Some(top_p) = top_p {
                    logprobs = keep_top_p(&logprobs, *top_p)?;
                }
                let key = state.next_key()?;
                categorical(ops::divide(logprobs, Array::from_f32(*temperature))?, -1, None, &key)
            }
        }
    }
}

/// Logits `[..., V]` to natural log-probabilities in f32.
pub fn logprobs(logits: &Array) -> Result<Array> {
    let logits = logits.as_dtype(mlx_rs::Dtype::Float32)?;
    let total = logits.logsumexp_axis(-1, true)?;
    ops::subtract(logits, total)
}

/// Removes tokens outside the smallest set whose mass reaches `top_p`; tokens as likely as the last one kept stay too.
fn keep_top_p(logprobs: &Array, top_p: f32) -> Result<Array> {
    let probabilities = ops::exp(logprobs)?;
    let ascending = ops::sort_axis(&probabilities, -1)?;
    // The mass strictly above each token: a token stays while that is below top_p, so the most likely one always does.
    let above = ascending.cumsum(-1, true, false)?;
    let infinity = Array::from_f32(f32::INFINITY);
    let kept = ops::select(above.lt(Array::from_f32(top_p))?, ascending, &infinity)?;
    let threshold = kept.min_axis(-1, true)?;
    ops::select(probabilities.ge(threshold)?, logprobs, Array::from_f32(f32::NEG_INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which tokens of a distribution survive top-p.
    fn check(probabilities: &[f32], top_p: f32, expected: &[usize]) {
        let logprobs: Vec<f32> = probabilities.iter().map(|probability| probability.ln()).collect();
        let kept = keep_top_p(&Array::from_slice(&logprobs, &[1, logprobs.len() as i32]), top_p).expect("top-p");
        kept.eval().expect("eval");
        let survivors: Vec<usize> =
            kept.as_slice::<f32>().iter().enumerate().filter(|(_, value)| value.is_finite()).map(|(index, _)| index).collect();
        assert_eq!(survivors, expected, "{probabilities:?} at {top_p}");
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_the_mass() {
        check(&[0.5, 0.3, 0.2], 0.4, &[0]);
        check(&[0.5, 0.3, 0.2], 0.5001, &[0, 1]);
        check(&[0.2, 0.5, 0.3], 0.6, &[1, 2]);
        check(&[0.5, 0.3, 0.2], 0.99, &[0, 1, 2]);
        check(&[0.25, 0.25, 0.25, 0.25], 0.1, &[0, 1, 2, 3]);
        check(&[0.9, 0.1], 0.0001, &[0]);
    }

    fn draw(params: &SamplingParams, count: usize) -> Vec<u32> {
        let logits = Array::from_slice(&[1.0f32, 2.0, 0.5, 1.5], &[1, 4]);
        let mut sampler = Sampler::new(params).expect("sampler");
        (0..count).map(|_| sampler.sample(&logits).expect("sample").item_exact::<u32>()).collect()
    }

    #[test]
    fn temperature_zero_takes_the_most_likely() {
        assert_eq!(draw(&SamplingParams::default(), 3), [1, 1, 1]);
    }

    #[test]
    fn a_seed_repeats_and_another_does_not() {
        let params = |seed| SamplingParams { temperature: 1.0, top_p: 0.95, seed: Some(seed) };
        assert_eq!(draw(&params(7), 40), draw(&params(7), 40));
        assert_ne!(draw(&params(7), 40), draw(&params(8), 40));
    }

    #[test]
    fn sampling_follows_the_distribution() {
        let draws = draw(&SamplingParams { temperature: 1.0, top_p: 1.0, seed: Some(1) }, 2000);
        let share = draws.iter().filter(|&&token| token == 1).count() as f64 / 2000.0;
        // softmax of the logits gives token 1 a probability of 0.455; four standard deviations are 0.045.
        assert!((share - 0.455).abs() < 0.045, "{share}");
    }
}
