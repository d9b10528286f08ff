//! Logits processors: bias, allowed tokens, penalties for repeated tokens, and custom functions.

use std::collections::BTreeSet;
use std::fmt;

use cairn_chat::SamplingParams;
use mlx_rs::ops::indexing::{put_along_axis, scatter_add_single, take_along_axis};
use mlx_rs::{Array, Dtype, ops};

use super::TokenBuffer;
use crate::{Constraint, LmError};

/// A custom processor: takes all tokens so far, `[n]` u32, and logits `[1, V]`, and returns the
/// logits to sample from, of the same shape. An error ends the request.
pub type LogitsProcessor = Box<dyn FnMut(&Array, Array) -> Result<Array, LmError>>;

/// The logits processors of one request, in mlx-lm's order: bias, repetition, presence, frequency,
/// then custom ones, and last a grammar. Excluded tokens come after the bias.
///
/// As in mlx-lm, everything is computed in the type of the logits. Tokens that are not allowed get
/// a bias of negative infinity.
#[derive(Default)]
pub struct LogitsProcessors {
    /// [1, V], added.
    bias: Option<Constant>,
    excluded: Option<Excluded>,
    penalties: Vec<Penalty>,
    custom: Vec<LogitsProcessor>,
    constraint: Option<Constraint>,
}

impl LogitsProcessors {
    /// The processors for checked `params`. Fails if a token id or `top_k` does not fit a
    /// vocabulary of `vocab_size`.
    pub fn new(params: &SamplingParams, vocab_size: usize) -> Result<Self, LmError> {
        if params.top_k >= vocab_size {
            let allowed = format!("less than the model's vocabulary of {vocab_size}");
            return Err(LmError::OutOfRange {
                name: "top_k",
                value: params.top_k.to_string(),
                allowed,
            });
        }
        let penalty = |kind, amount: Option<f32>, off: f32, context_size| {
            let amount = amount.filter(|&amount| amount != 0.0 && amount != off)?;
            Some(Penalty { kind, amount, context_size, constant: None })
        };
        let penalties = [
            // A penalty of 1 changes nothing; many clients send it for "off".
            penalty(
                PenaltyKind::Repetition,
                params.repetition_penalty,
                1.0,
                params.repetition_context_size,
            ),
            penalty(
                PenaltyKind::Presence,
                params.presence_penalty,
                0.0,
                params.presence_context_size,
            ),
            penalty(
                PenaltyKind::Frequency,
                params.frequency_penalty,
                0.0,
                params.frequency_context_size,
            ),
        ];
        let penalties = penalties.into_iter().flatten().collect();
        let bias = bias_row(params, vocab_size)?;
        Ok(LogitsProcessors { bias, penalties, ..LogitsProcessors::default() })
    }

    /// Adds a custom processor, which runs after all others but a grammar.
    pub fn push(&mut self, processor: LogitsProcessor) {
        self.custom.push(processor);
    }

    /// Lets a grammar choose among the tokens.
    pub fn constrain(&mut self, constraint: Constraint) {
        self.constraint = Some(constraint);
    }

    /// Excludes `tokens` from the next `num_steps` choices among the `vocab_size` tokens of a model.
    pub fn exclude(&mut self, tokens: &BTreeSet<u32>, num_steps: usize, vocab_size: usize) {
        let mut row = vec![0.0; vocab_size];
        for token in tokens {
            // A tokenizer may have more tokens than the model, which never chooses those.
            if let Some(bias) = row.get_mut(*token as usize) {
                *bias = f32::NEG_INFINITY;
            }
        }
        let row = Constant(Array::from_slice(&row, &[1, vocab_size as i32]));
        self.excluded = Some(Excluded { row, num_steps, begins_at: None });
    }

    /// Whether there is no processor, so that no token history is needed.
    pub fn is_empty(&self) -> bool {
        self.has_only_constraint() && self.constraint.is_none()
    }

    /// Whether there is none but a grammar, or not even that.
    pub(crate) fn has_only_constraint(&self) -> bool {
        self.bias.is_none()
            && self.excluded.is_none()
            && self.penalties.is_empty()
            && self.custom.is_empty()
    }

    /// The grammar, which a batch applies to all its rows at once.
    pub(crate) fn constraint_mut(&mut self) -> Option<&mut Constraint> {
        self.constraint.as_mut()
    }

    /// Applies all processors to the logits `[1, V]` of the token after `tokens` (prompt included).
    pub fn apply(&mut self, tokens: &TokenBuffer, logits: Array) -> Result<Array, LmError> {
        let logits = self.apply_unconstrained(tokens, logits)?;
        match &mut self.constraint {
            Some(constraint) => constraint.mask(&tokens.all()?, &logits),
            None => Ok(logits),
        }
    }

    /// As [`LogitsProcessors::apply`], without the grammar.
    pub(crate) fn apply_unconstrained(
        &mut self,
        tokens: &TokenBuffer,
        mut logits: Array,
    ) -> Result<Array, LmError> {
        if let Some(bias) = &mut self.bias {
            logits = ops::add(&logits, bias.cast(logits.dtype())?)?;
        }
        if let Some(excluded) = &mut self.excluded {
            logits = excluded.apply(tokens, logits)?;
        }
        for penalty in &mut self.penalties {
            logits = penalty.apply(tokens, logits)?;
        }
        if !self.custom.is_empty() {
            let tokens = tokens.all()?;
            for processor in &mut self.custom {
                logits = processor(&tokens, logits)?;
            }
        }
        Ok(logits)
    }
}

impl fmt::Debug for LogitsProcessors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let custom = self.custom.len();
        formatter
            .debug_struct("LogitsProcessors")
            .field("penalties", &self.penalties)
            .field("custom", &custom)
            .finish_non_exhaustive()
    }
}

/// Bias and allowed tokens as one row `[1, V]` to add: one graph node per step, however many tokens
/// they name.
fn bias_row(params: &SamplingParams, vocab_size: usize) -> Result<Option<Constant>, LmError> {
    if params.logit_bias.is_empty() && params.allowed_token_ids.is_none() {
        return Ok(None);
    }
    check_token_ids(params, vocab_size)?;
    let fill = if params.allowed_token_ids.is_some() { f32::NEG_INFINITY } else { 0.0 };
    let mut row = vec![fill; vocab_size];
    for &token in params.allowed_token_ids.iter().flatten() {
        row[token as usize] = 0.0;
    }
    for (&token, bias) in &params.logit_bias {
        row[token as usize] += bias;
    }
    Ok(Some(Constant(Array::from_slice(&row, &[1, vocab_size as i32]))))
}

/// Fails if the parameters name a token that a model with this vocabulary does not have.
pub(crate) fn check_token_ids(params: &SamplingParams, vocab_size: usize) -> Result<(), LmError> {
    let allowed = params.allowed_token_ids.iter().flatten().map(|&id| ("allowed_token_ids", id));
    let biased = params.logit_bias.keys().map(|&id| ("logit_bias", id));
    match allowed.chain(biased).find(|&(_, token)| token as usize >= vocab_size) {
        Some((name, token)) => Err(LmError::ParameterToken { name, token, vocab_size }),
        None => Ok(()),
    }
}

/// An array that is cast to the type of the logits once instead of in every step.
#[derive(Debug)]
struct Constant(Array);

impl Constant {
    fn cast(&mut self, dtype: Dtype) -> Result<&Array, LmError> {
        if self.0.dtype() != dtype {
            self.0 = self.0.as_dtype(dtype)?;
        }
        Ok(&self.0)
    }
}

/// Tokens that are not chosen in the first steps.
#[derive(Debug)]
struct Excluded {
    /// [1, V], added.
    row: Constant,
    num_steps: usize,
    /// How many tokens there were before the first step. A step may be taken again, after proposed
    /// tokens were refused, so steps are not counted.
    begins_at: Option<usize>,
}

impl Excluded {
    fn apply(&mut self, tokens: &TokenBuffer, logits: Array) -> Result<Array, LmError> {
        let begins_at = *self.begins_at.get_or_insert(tokens.len());
        if tokens.len() >= begins_at + self.num_steps {
            return Ok(logits);
        }
        Ok(ops::add(&logits, self.row.cast(logits.dtype())?)?)
    }
}

#[derive(Debug)]
struct Penalty {
    kind: PenaltyKind,
    amount: f32,
    /// How many of the last tokens count; 0 for all.
    context_size: usize,
    /// The amount as an array of the shape that is needed.
    constant: Option<Constant>,
}

#[derive(Debug, Clone, Copy)]
enum PenaltyKind {
    Repetition,
    Presence,
    Frequency,
}

impl Penalty {
    fn apply(&mut self, tokens: &TokenBuffer, logits: Array) -> Result<Array, LmError> {
        if tokens.is_empty() {
            return Ok(logits);
        }
        let count =
            if self.context_size == 0 { tokens.len() } else { self.context_size.min(tokens.len()) };
        let recent = tokens.last_row(count)?; // [1, n]
        let penalized = match self.kind {
            PenaltyKind::Repetition => {
                let penalty = self.constant(&[]).cast(logits.dtype())?;
                let own = take_along_axis(&logits, &recent, -1)?;
                let penalized = ops::select(
                    own.lt(Array::from_f32(0.0))?,
                    ops::multiply(&own, penalty)?,
                    ops::divide(&own, penalty)?,
                )?;
                put_along_axis(&logits, &recent, penalized, -1)?
            }
            // A token that occurs twice is written twice, with the same result.
            PenaltyKind::Presence => {
                let penalty = self.constant(&[]).cast(logits.dtype())?;
                let penalized = ops::subtract(take_along_axis(&logits, &recent, -1)?, penalty)?;
                put_along_axis(&logits, &recent, penalized, -1)?
            }
            // MLX's scatter takes one update slice for each index.
            PenaltyKind::Frequency => {
                let updates = self.constant(&[1, count as i32, 1, 1]).cast(logits.dtype())?;
                scatter_add_single(&logits, &recent, updates, 1)?
            }
        };
        Ok(penalized)
    }

    fn constant(&mut self, shape: &[i32]) -> &mut Constant {
        // The array of a frequency penalty grows until the context is full.
        self.constant = self.constant.take().filter(|constant| constant.0.shape() == shape);
        let amount =
            if let PenaltyKind::Frequency = self.kind { -self.amount } else { self.amount };
        self.constant.get_or_insert_with(|| {
            let values = vec![amount; shape.iter().product::<i32>() as usize];
            Constant(Array::from_slice(&values, shape))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use serde_json::Value;

    use super::*;

    fn values(logits: &Array) -> Vec<f32> {
        let logits = logits.as_dtype(Dtype::Float32).expect("f32");
        logits.eval().expect("eval");
        logits.as_slice::<f32>().to_vec()
    }

    fn processed(params: &SamplingParams, tokens: &[u32], logits: &[f32]) -> Vec<f32> {
        let mut processors = LogitsProcessors::new(params, logits.len()).expect("processors");
        let logits = Array::from_slice(logits, &[1, logits.len() as i32]);
        values(&processors.apply(&TokenBuffer::from_tokens(tokens), logits).expect("apply"))
    }

    fn check(params: SamplingParams, tokens: &[u32], logits: &[f32], expected: &[f32]) {
        let rounded: Vec<f32> = processed(&params, tokens, logits)
            .iter()
            .map(|value| (value * 1e4).round() / 1e4)
            .collect();
        assert_eq!(rounded, expected, "{params:?} after {tokens:?}");
    }

    fn default() -> SamplingParams {
        SamplingParams::default()
    }

    #[test]
    fn penalties_count_what_was_said() {
        let presence = |penalty| SamplingParams {
            presence_penalty: Some(penalty),
            presence_context_size: 5,
            ..default()
        };
        check(presence(0.5), &[0, 0, 0, 1, 1], &[0.0; 4], &[-0.5, -0.5, 0.0, 0.0]);
        check(presence(0.5), &[2, 0, 0, 0, 1, 1], &[0.0; 4], &[-0.5, -0.5, 0.0, 0.0]);
        let frequency = |penalty| SamplingParams {
            frequency_penalty: Some(penalty),
            frequency_context_size: 5,
            ..default()
        };
        check(frequency(0.5), &[0, 0, 0, 1, 1], &[0.0; 4], &[-1.5, -1.0, 0.0, 0.0]);
        check(frequency(0.5), &[1, 3, 0, 0, 0, 1], &[0.0; 4], &[-1.5, -0.5, 0.0, -0.5]);
        check(frequency(-1.0), &[2], &[0.0; 4], &[0.0, 0.0, 1.0, 0.0]);
        let repetition = |penalty, context| SamplingParams {
            repetition_penalty: Some(penalty),
            repetition_context_size: context,
            ..default()
        };
        check(
            repetition(1.3, 20),
            &[0, 1, 1, 0],
            &[2.0, -1.0, 0.5, 0.0],
            &[1.5385, -1.3, 0.5, 0.0],
        );
        check(repetition(1.3, 1), &[0, 1], &[2.0, -1.0, 0.5, 0.0], &[2.0, -1.3, 0.5, 0.0]);
        check(repetition(1.3, 0), &[0, 1], &[2.0, -1.0, 0.5, 0.0], &[1.5385, -1.3, 0.5, 0.0]);
        check(repetition(0.5, 20), &[2, 3], &[2.0, -1.0, 0.5, -4.0], &[2.0, -1.0, 1.0, -2.0]);
        check(repetition(1.3, 20), &[], &[2.0, -1.0], &[2.0, -1.0]);
    }

    #[test]
    fn bias_and_allowed_tokens_leave_the_rest_alone() {
        let bias = |pairs: &[(u32, f32)]| SamplingParams {
            logit_bias: pairs.iter().copied().collect(),
            ..default()
        };
        check(bias(&[(0, 2000.0), (2, -1.5)]), &[1], &[1.0, 1.0, 1.0], &[2001.0, 1.0, -0.5]);
        check(
            bias(&[(1, f32::NEG_INFINITY)]),
            &[1],
            &[1.0, 1.0, 1.0],
            &[1.0, f32::NEG_INFINITY, 1.0],
        );
        let allowed =
            |ids: &[u32]| SamplingParams { allowed_token_ids: Some(ids.to_vec()), ..default() };
        check(allowed(&[2, 0]), &[1], &[1.0, 9.0, -3.0], &[1.0, f32::NEG_INFINITY, -3.0]);
        let both = SamplingParams {
            logit_bias: BTreeMap::from([(0, 0.5), (1, 7.0)]),
            repetition_penalty: Some(2.0),
            ..allowed(&[0])
        };
        check(both, &[0, 1], &[1.0, 9.0], &[0.75, f32::NEG_INFINITY]);
    }

    #[test]
    fn parameters_that_do_not_fit_the_vocabulary_are_refused_by_name() {
        fn check(params: SamplingParams, expected: &str) {
            assert_eq!(
                LogitsProcessors::new(&params, 10).expect_err("is refused").to_string(),
                expected
            );
        }
        check(
            SamplingParams { top_k: 10, ..default() },
            "top_k is 10, but must be less than the model's vocabulary of 10",
        );
        let bias =
            SamplingParams { logit_bias: BTreeMap::from([(3, 1.0), (10, 1.0)]), ..default() };
        check(bias, "logit_bias names token id 10, which is outside the vocabulary of 10");
        let allowed = SamplingParams { allowed_token_ids: Some(vec![9, u32::MAX]), ..default() };
        check(
            allowed,
            "allowed_token_ids names token id 4294967295, which is outside the vocabulary of 10",
        );
        LogitsProcessors::new(&SamplingParams { top_k: 9, ..default() }, 10).expect("fits");
    }

    #[test]
    fn parameters_that_change_nothing_need_no_processor() {
        fn check(params: SamplingParams, is_empty: bool) {
            assert_eq!(
                LogitsProcessors::new(&params, 10).expect("processors").is_empty(),
                is_empty,
                "{params:?}"
            );
        }
        check(default(), true);
        let off = SamplingParams {
            presence_penalty: Some(0.0),
            frequency_penalty: Some(0.0),
            ..default()
        };
        check(SamplingParams { repetition_penalty: Some(0.0), ..off.clone() }, true);
        check(SamplingParams { repetition_penalty: Some(1.0), ..off }, true);
        check(SamplingParams { presence_penalty: Some(1.0), ..default() }, false);
        check(SamplingParams { frequency_penalty: Some(1.0), ..default() }, false);
        check(SamplingParams { allowed_token_ids: Some(vec![1]), ..default() }, false);
    }

    #[test]
    fn penalties_follow_an_answer_as_it_grows() {
        let params = SamplingParams {
            frequency_penalty: Some(1.0),
            frequency_context_size: 3,
            presence_penalty: Some(0.5),
            ..default()
        };
        let mut processors = LogitsProcessors::new(&params, 4).expect("processors");
        let mut buffer = TokenBuffer::from_tokens(&[0]);
        let mut tokens = vec![0];
        for sampled in [1, 1, 2, 3, 3, 3] {
            buffer.append(&Array::from_slice(&[sampled], &[1])).expect("append");
            tokens.push(sampled);
            let logits =
                processors.apply(&buffer, Array::from_slice(&[0.0f32; 4], &[1, 4])).expect("apply");
            assert_eq!(values(&logits), processed(&params, &tokens, &[0.0; 4]), "{tokens:?}");
        }
    }

    #[test]
    fn a_callers_function_sees_all_tokens_and_may_fail() {
        let mut processors = LogitsProcessors::new(
            &SamplingParams { logit_bias: BTreeMap::from([(1, 2.0)]), ..default() },
            3,
        )
        .expect("processors");
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&seen);
        processors.push(Box::new(move |tokens, logits| {
            tokens.eval()?;
            log.borrow_mut().push((tokens.as_slice::<u32>().to_vec(), values(&logits)));
            if tokens.dim(0) > 3 {
                Err(LmError::Cancelled)
            } else {
                Ok(ops::add(logits, Array::from_f32(1.0))?)
            }
        }));
        let mut buffer = TokenBuffer::from_tokens(&[7, 8, 9]);
        let logits = || Array::from_slice(&[0.0f32; 3], &[1, 3]);
        assert_eq!(values(&processors.apply(&buffer, logits()).expect("apply")), [1.0, 3.0, 1.0]);
        buffer.append(&Array::from_slice(&[4u32], &[1])).expect("append");
        assert!(matches!(processors.apply(&buffer, logits()), Err(LmError::Cancelled)));
        let biased = vec![0.0, 2.0, 0.0];
        assert_eq!(*seen.borrow(), [(vec![7, 8, 9], biased.clone()), (vec![7, 8, 9, 4], biased)]);
    }

    #[test]
    fn processed_logits_are_those_of_mlx_lm() {
        let golden: Value =
            serde_json::from_str(include_str!("../../../../tests/goldens/sampling.json"))
                .expect("JSON");
        let rows: Vec<Vec<f32>> = serde_json::from_value(golden["logits"].clone()).expect("logits");
        let tokens: Vec<u32> = serde_json::from_value(golden["tokens"].clone()).expect("tokens");
        let tokens = TokenBuffer::from_tokens(&tokens);
        let cases = golden["processors"].as_array().expect("processors");
        assert!(cases.len() > 10, "{}", cases.len());
        for case in cases {
            let penalty =
                |name: &str| case.get(name).map(|value| value.as_f64().expect("a number") as f32);
            let context = |name: &str| {
                case.get(name).map_or(20, |value| value.as_u64().expect("a count") as usize)
            };
            let bias = case.get("logit_bias").and_then(Value::as_object).into_iter().flatten();
            let params = SamplingParams {
                logit_bias: bias
                    .map(|(id, value)| {
                        (id.parse().expect("an id"), value.as_f64().expect("a number") as f32)
                    })
                    .collect(),
                repetition_penalty: penalty("repetition_penalty"),
                repetition_context_size: context("repetition_context_size"),
                presence_penalty: penalty("presence_penalty"),
                presence_context_size: context("presence_context_size"),
                frequency_penalty: penalty("frequency_penalty"),
                frequency_context_size: context("frequency_context_size"),
                ..default()
            };
            let dtype = if case["dtype"] == "bfloat16" { Dtype::Bfloat16 } else { Dtype::Float32 };
            let logits = Array::from_slice(&rows[0], &[1, rows[0].len() as i32])
                .as_dtype(dtype)
                .expect("cast");
            let mut processors = LogitsProcessors::new(&params, rows[0].len()).expect("processors");
            let processed = processors.apply(&tokens, logits).expect("apply");
            assert_eq!(processed.dtype(), dtype, "{case}");
            let expected: Vec<f32> =
                serde_json::from_value(case["logits"].clone()).expect("logits");
            assert_eq!(values(&processed), expected, "{case}");
        }
    }
}
