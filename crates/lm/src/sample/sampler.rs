//! The sampler of one request: filters, temperature, and its own random numbers.

use std::fmt;

use cairn_chat::SamplingParams;
use mlx_rs::random::categorical;
use mlx_rs::{Array, Dtype, ops};

use super::random_keys::RandomKeys;
use super::{filters, likeliest_token, logprobs};
use crate::{LmError, ffi};

/// A custom sampler: takes natural log-probabilities, f32 `[B, V]`, and returns a token id for each
/// row, integers `[B]`. An error ends the request.
pub type SamplerFn = Box<dyn FnMut(&Array) -> Result<Array, LmError>>;

/// Chooses tokens for one request.
pub enum Sampler {
    /// The most likely token.
    Greedy,
    /// A random token.
    Random(RandomSampler),
    /// A function of the caller, as mlx-lm's `sampler` argument.
    Custom(SamplerFn),
}

impl fmt::Debug for Sampler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sampler::Greedy => formatter.write_str("Greedy"),
            Sampler::Random(sampler) => formatter.debug_tuple("Random").field(sampler).finish(),
            Sampler::Custom(_) => formatter.write_str("Custom"),
        }
    }
}

/// A position in a sampler's random numbers.
#[derive(Debug, Clone)]
pub(crate) struct DrawPosition(Option<RandomKeys>);

/// Draws tokens: top_p, min_p, XTC, top_k, then the temperature, as mlx-lm's `make_sampler` orders
/// them.
///
/// A seed gives the same draws as in mlx-lm, as long as the logits are the same.
#[derive(Debug)]
pub struct RandomSampler {
    filters: Vec<Filter>,
    temperature: f32,
    /// 1 / temperature, f32.
    scale: Array,
    keys: RandomKeys,
}

#[derive(Debug)]
enum Filter {
    TopP(f32),
    MinP { ln_min_p: f32, min_tokens_to_keep: i32 },
    Xtc { probability: f32, threshold: f32, special: Vec<u32>, exempt: Option<Array> },
    TopK(i32),
}

impl Sampler {
    /// A sampler for checked `params`. Without a seed its draws are not reproducible.
    ///
    /// XTC never excludes `xtc_special_tokens`; mlx-lm passes the end-of-sequence tokens and those
    /// of a line break.
    pub fn new(params: &SamplingParams, xtc_special_tokens: &[u32]) -> Self {
        if params.temperature == 0.0 {
            return Sampler::Greedy;
        }
        let mut filters = Vec::new();
        if params.top_p > 0.0 && params.top_p < 1.0 {
            filters.push(Filter::TopP(params.top_p));
        }
        if params.min_p > 0.0 {
            let ln_min_p = f64::from(params.min_p).ln() as f32;
            filters.push(Filter::MinP {
                ln_min_p,
                min_tokens_to_keep: saturating(params.min_tokens_to_keep),
            });
        }
        if params.xtc_probability > 0.0 {
            let (probability, threshold) = (params.xtc_probability, params.xtc_threshold);
            filters.push(Filter::Xtc {
                probability,
                threshold,
                special: xtc_special_tokens.to_vec(),
                exempt: None,
            });
        }
        if params.top_k > 0 {
            filters.push(Filter::TopK(saturating(params.top_k)));
        }
        let scale = Array::from_f32((1.0 / f64::from(params.temperature)) as f32);
        Sampler::Random(RandomSampler {
            filters,
            temperature: params.temperature,
            scale,
            keys: RandomKeys::new(params.seed),
        })
    }

    /// Samples a token per row: logits `[B, V]` of any floating-point type to `[B]` u32. All rows
    /// are drawn with one key, and XTC applies to all of them or to none.
    ///
    /// Fails if a custom sampler fails or returns something else than a token id for each row; ids
    /// outside the vocabulary are replaced by its last one.
    pub fn sample(&mut self, logits: &Array) -> Result<Array, LmError> {
        match self {
            Sampler::Greedy => Ok(likeliest_token(logits)?),
            Sampler::Random(sampler) => sampler.sample(logits),
            Sampler::Custom(sampler) => {
                let tokens = sampler(&logprobs(logits)?)?;
                let (num_rows, vocab_size) = (logits.dim(0), logits.dim(1));
                if tokens.shape() != [num_rows] || tokens.dtype().is_float() {
                    return Err(LmError::SampledShape {
                        expected: num_rows,
                        found: tokens.shape().to_vec(),
                        dtype: format!("{:?}", tokens.dtype()).to_lowercase(),
                    });
                }
                // MLX does not check the ids when it looks up their embeddings.
                let largest = Array::from_slice(&[vocab_size as u32 - 1], &[1]);
                Ok(ops::minimum(tokens.as_dtype(Dtype::Uint32)?, largest)?)
            }
        }
    }

    /// Samples the tokens that follow each other, one behind each row of logits `[B, V]`: `[B]` u32,
    /// the same as sampling row by row.
    pub(crate) fn sample_successive(&mut self, logits: &Array) -> Result<Array, LmError> {
        match self {
            Sampler::Random(sampler) if logits.dim(0) > 1 => sampler.sample_successive(logits),
            _ => self.sample(logits),
        }
    }

    /// Where the random numbers stand.
    pub(crate) fn position(&self) -> DrawPosition {
        DrawPosition(match self {
            Sampler::Random(sampler) => Some(sampler.keys.clone()),
            Sampler::Greedy | Sampler::Custom(_) => None,
        })
    }

    /// Goes back to where the random numbers stood, and `num_draws` tokens on from there. A custom
    /// sampler has numbers of its own, which go on.
    pub(crate) fn go_back(&mut self, position: &DrawPosition, num_draws: usize) {
        if let (Sampler::Random(sampler), DrawPosition(Some(keys))) = (&mut *self, position) {
            sampler.keys = keys.clone();
        }
        self.skip(num_draws);
    }

    /// Advances the random numbers by `num_draws` tokens, to continue an answer that was begun with
    /// another sampler of the same seed.
    pub fn skip(&mut self, num_draws: usize) {
        let Sampler::Random(RandomSampler { filters, keys, .. }) = self else { return };
        let numbers_per_draw =
            1 + filters.iter().filter(|filter| matches!(filter, Filter::Xtc { .. })).count();
        for _ in 0..num_draws * numbers_per_draw {
            keys.next_uniform();
        }
    }
}

impl RandomSampler {
    /// Samples each row of logits `[B, V]` with its own sampler: `[B]` u32, the same tokens as row
    /// by row. `None` if the samplers' settings differ.
    ///
    /// Filters sort or sum the whole vocabulary and run once for all rows; only the draws use each
    /// row's own random numbers.
    pub(crate) fn sample_rows(
        samplers: &mut [&mut RandomSampler],
        logits: &Array,
    ) -> Result<Option<Array>, LmError> {
        let Some((first, others)) = samplers.split_first() else { return Ok(None) };
        if !others.iter().all(|other| other.treats_alike(first)) {
            return Ok(None);
        }
        let Some(logits) = first.filter_rows(logits)? else { return Ok(None) };
        let mut sampled = Vec::with_capacity(samplers.len());
        for (row, sampler) in (0..).zip(samplers) {
            let own = ffi::slice(&logits, &[row, 0], &[row + 1, logits.dim(1)])?;
            sampled.push(categorical(own, -1, None, &sampler.keys.next_key())?);
        }
        Ok(Some(ops::concatenate(&sampled, 0)?))
    }

    /// Samples the tokens that follow each other. As in [`RandomSampler::sample_rows`] filters run
    /// once, except for XTC, which is decided for each token.
    fn sample_successive(&mut self, logits: &Array) -> Result<Array, LmError> {
        let filtered = self.filter_rows(logits)?;
        let rows = filtered.as_ref().unwrap_or(logits);
        let mut sampled = Vec::with_capacity(rows.dim(0) as usize);
        for row in 0..rows.dim(0) {
            let own = ffi::slice(rows, &[row, 0], &[row + 1, rows.dim(1)])?;
            sampled.push(match filtered {
                Some(_) => categorical(own, -1, None, &self.keys.next_key())?,
                None => self.sample(&own)?,
            });
        }
        Ok(ops::concatenate(&sampled, 0)?)
    }

    /// The logits `[B, V]` of all rows, filtered and scaled in f32; `None` with XTC, which is random
    /// for each row.
    fn filter_rows(&self, logits: &Array) -> Result<Option<Array>, LmError> {
        let mut logits = logits.as_dtype(Dtype::Float32)?;
        for filter in &self.filters {
            logits = match filter {
                Filter::TopP(top_p) => filters::keep_top_p(&logits, *top_p)?,
                Filter::MinP { ln_min_p, min_tokens_to_keep } => {
                    filters::keep_min_p(&logits, *ln_min_p, *min_tokens_to_keep)?
                }
                Filter::TopK(top_k) => filters::keep_top_k(&logits, *top_k)?,
                Filter::Xtc { .. } => return Ok(None),
            };
        }
        Ok(Some(ops::multiply(logits, &self.scale)?))
    }

    /// Whether both have the same filters and temperature. XTC is never shared, because it is
    /// random for each row.
    fn treats_alike(&self, other: &RandomSampler) -> bool {
        let is_same = |filters: (&Filter, &Filter)| match filters {
            (Filter::TopP(one), Filter::TopP(other)) => one == other,
            (Filter::TopK(one), Filter::TopK(other)) => one == other,
            (
                Filter::MinP { ln_min_p: one, min_tokens_to_keep: one_kept },
                Filter::MinP { ln_min_p: other, min_tokens_to_keep: other_kept },
            ) => one == other && one_kept == other_kept,
            _ => false,
        };
        self.temperature == other.temperature
            && self.filters.len() == other.filters.len()
            && self.filters.iter().zip(&other.filters).all(is_same)
    }

    fn sample(&mut self, logits: &Array) -> Result<Array, LmError> {
        let mut logits = logits.as_dtype(Dtype::Float32)?;
        for filter in &mut self.filters {
            logits = match filter {
                Filter::TopP(top_p) => filters::keep_top_p(&logits, *top_p)?,
                Filter::MinP { ln_min_p, min_tokens_to_keep } => {
                    filters::keep_min_p(&logits, *ln_min_p, *min_tokens_to_keep)?
                }
                Filter::Xtc { probability, threshold, special, exempt } => {
                    // Decided on the host, so that a step without XTC has no graph nodes for it.
                    if self.keys.next_uniform() > *probability {
                        continue;
                    }
                    if exempt.is_none() && !special.is_empty() {
                        *exempt = Some(row_with(special, logits.dim(-1)));
                    }
                    filters::exclude_top_choices(&logits, *threshold, exempt.as_ref())?
                }
                Filter::TopK(top_k) => filters::keep_top_k(&logits, *top_k)?,
            };
        }
        let key = self.keys.next_key();
        Ok(categorical(ops::multiply(logits, &self.scale)?, -1, None, &key)?)
    }
}

/// bool `[V]`, true at `tokens`. Ids outside the vocabulary are ignored.
fn row_with(tokens: &[u32], vocab_size: i32) -> Array {
    let mut row = vec![false; vocab_size as usize];
    for &token in tokens {
        if let Some(entry) = row.get_mut(token as usize) {
            *entry = true;
        }
    }
    Array::from_slice(&row, &[vocab_size])
}

fn saturating(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn draw(params: &SamplingParams, count: usize) -> Vec<u32> {
        let logits = Array::from_slice(&[1.0f32, 2.0, 0.5, 1.5], &[1, 4]);
        let mut sampler = Sampler::new(params, &[]);
        (0..count).map(|_| sampler.sample(&logits).expect("sample").item_exact::<u32>()).collect()
    }

    #[test]
    fn skipped_draws_are_those_of_another_sampler() {
        let check = |params: SamplingParams| {
            let logits = Array::from_slice(&[1.0f32, 2.0, 0.5, 1.5], &[1, 4]);
            for num_draws in [0, 1, 7] {
                let mut sampler = Sampler::new(&params, &[]);
                sampler.skip(num_draws);
                let rest: Vec<u32> = (num_draws..20)
                    .map(|_| sampler.sample(&logits).expect("sample").item_exact::<u32>())
                    .collect();
                assert_eq!(rest, draw(&params, 20)[num_draws..], "{params:?}");
            }
        };
        let seeded =
            SamplingParams { temperature: 1.0, seed: Some(7), ..SamplingParams::default() };
        check(SamplingParams::default());
        check(SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.2, ..seeded.clone() });
        check(seeded);
    }

    #[test]
    fn temperature_zero_takes_the_most_likely() {
        assert_eq!(draw(&SamplingParams::default(), 3), [1, 1, 1]);
        assert_eq!(
            draw(&SamplingParams { xtc_probability: 1.0, ..SamplingParams::default() }, 3),
            [1, 1, 1]
        );
    }

    #[test]
    fn a_seed_repeats_and_another_does_not() {
        let params = |seed| SamplingParams {
            temperature: 1.0,
            top_p: 0.95,
            seed,
            ..SamplingParams::default()
        };
        assert_eq!(draw(&params(Some(7)), 40), draw(&params(Some(7)), 40));
        assert_ne!(draw(&params(Some(7)), 40), draw(&params(Some(8)), 40));
        assert_ne!(draw(&params(None), 40), draw(&params(None), 40));
    }

    #[test]
    fn two_requests_in_turn_do_not_touch_each_others_random_numbers() {
        let params = |seed| SamplingParams {
            temperature: 1.0,
            seed: Some(seed),
            ..SamplingParams::default()
        };
        let logits = Array::from_slice(&[1.0f32, 2.0, 0.5, 1.5], &[1, 4]);
        let mut samplers = [Sampler::new(&params(1), &[]), Sampler::new(&params(2), &[])];
        let mut draws = [Vec::new(), Vec::new()];
        for step in 0..40 {
            let which = usize::from(step % 3 == 0);
            draws[which].push(samplers[which].sample(&logits).expect("sample").item_exact::<u32>());
        }
        assert_eq!(draws, [draw(&params(1), draws[0].len()), draw(&params(2), draws[1].len())]);
    }

    #[test]
    fn sampling_follows_the_distribution() {
        let draws = draw(
            &SamplingParams { temperature: 1.0, seed: Some(1), ..SamplingParams::default() },
            2000,
        );
        let share = draws.iter().filter(|&&token| token == 1).count() as f64 / 2000.0;
        // softmax of the logits gives token 1 a probability of 0.455; four standard deviations are
        // 0.045.
        assert!((share - 0.455).abs() < 0.045, "{share}");
    }

    #[test]
    fn xtc_happens_as_often_as_asked_for() {
        let params = |xtc_probability| SamplingParams {
            temperature: 0.01,
            xtc_probability,
            seed: Some(4),
            ..SamplingParams::default()
        };
        // At this temperature the most likely token that is left is drawn: token 1, or token 2
        // where XTC took the rest.
        let share = |probability| {
            draw(&params(probability), 400).iter().filter(|&&token| token == 2).count() as f64
                / 400.0
        };
        assert_eq!(share(1.0), 1.0);
        // Four standard deviations of 400 throws of this coin are 0.092.
        assert!((share(0.3) - 0.3).abs() < 0.092, "{}", share(0.3));
    }

    #[test]
    fn a_seed_gives_the_draws_of_mlx_lm() {
        let golden: Value =
            serde_json::from_str(include_str!("../../../../tests/goldens/sampling.json"))
                .expect("JSON");
        let rows: Vec<Vec<f32>> = serde_json::from_value(golden["logits"].clone()).expect("logits");
        let logits = Array::from_slice(&rows.concat(), &[2, rows[0].len() as i32]);
        let cases = golden["samplers"].as_array().expect("samplers");
        assert!(cases.len() > 20, "{}", cases.len());
        for case in cases {
            let number = |name: &str| case.get(name).and_then(Value::as_f64);
            let default = SamplingParams::default();
            let params = SamplingParams {
                temperature: number("temp").expect("a temperature") as f32,
                top_p: number("top_p").map_or(default.top_p, |value| value as f32),
                min_p: number("min_p").map_or(default.min_p, |value| value as f32),
                min_tokens_to_keep: number("min_tokens_to_keep")
                    .map_or(default.min_tokens_to_keep, |value| value as usize),
                top_k: number("top_k").map_or(default.top_k, |value| value as usize),
                xtc_probability: number("xtc_probability")
                    .map_or(default.xtc_probability, |value| value as f32),
                xtc_threshold: number("xtc_threshold")
                    .map_or(default.xtc_threshold, |value| value as f32),
                seed: case["seed"].as_u64(),
                ..default
            };
            let special: Vec<u32> = case
                .get("xtc_special_tokens")
                .map_or(Vec::new(), |ids| serde_json::from_value(ids.clone()).expect("ids"));
            let mut sampler = Sampler::new(&params, &special);
            let draws: Vec<Vec<u32>> =
                serde_json::from_value(case["draws"].clone()).expect("draws");
            for (position, expected) in draws.iter().enumerate() {
                let drawn = sampler.sample(&logits).expect("sample");
                drawn.eval().expect("eval");
                assert_eq!(drawn.as_slice::<u32>(), expected, "draw {position} of {case}");
            }
        }
    }
}
