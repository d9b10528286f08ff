//! How the next token is chosen, with the ranges that are allowed.

use std::collections::BTreeMap;

use crate::ChatError;

/// Sampling parameters with mlx-lm's names, ranges and defaults.
///
/// Logits pass through these in order: `logit_bias` and `allowed_token_ids`, the three penalties,
/// then, unless the temperature is 0, `top_p`, `min_p`, XTC, `top_k` and the temperature.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 picks the most likely token.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose probability mass reaches this; 0 and 1 turn it off.
    pub top_p: f32,
    /// Keeps tokens at least this many times as likely as the most likely one; 0 turns it off.
    pub min_p: f32,
    /// How many of the most likely tokens `min_p` always keeps.
    pub min_tokens_to_keep: usize,
    /// Keeps so many of the most likely tokens; 0 turns it off. Below the size of the vocabulary.
    pub top_k: usize,
    /// How often XTC removes all likely tokens but the least likely of them; 0 turns it off.
    pub xtc_probability: f32,
    /// The probability above which XTC calls a token likely.
    pub xtc_threshold: f32,
    /// Makes sampled answers repeat; none takes a new seed every time.
    pub seed: Option<u64>,
    /// Divides positive logits of recent tokens and multiplies negative ones; none, 0 and 1 turn it
    /// off.
    pub repetition_penalty: Option<f32>,
    /// How many of the last tokens, prompt included, the repetition penalty looks at; 0 means all.
    pub repetition_context_size: usize,
    /// Taken off the logit of every recent token, once; none and 0 turn it off.
    pub presence_penalty: Option<f32>,
    /// How many of the last tokens the presence penalty looks at; 0 means all.
    pub presence_context_size: usize,
    /// Taken off the logit of every recent token, for each time it occurs; none and 0 turn it off.
    pub frequency_penalty: Option<f32>,
    /// How many of the last tokens the frequency penalty looks at; 0 means all.
    pub frequency_context_size: usize,
    /// Added to the logits of these token ids; negative infinity forbids a token.
    pub logit_bias: BTreeMap<u32, f32>,
    /// The only tokens that may be chosen; none allows all.
    pub allowed_token_ids: Option<Vec<u32>>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            min_tokens_to_keep: 1,
            top_k: 0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            seed: None,
            repetition_penalty: None,
            repetition_context_size: 20,
            presence_penalty: None,
            presence_context_size: 20,
            frequency_penalty: None,
            frequency_context_size: 20,
            logit_bias: BTreeMap::new(),
            allowed_token_ids: None,
        }
    }
}

impl SamplingParams {
    /// Refuses values outside their range, naming the argument. What depends on the vocabulary is
    /// checked when the model is known.
    pub fn validate(&self) -> Result<(), ChatError> {
        let not_negative = |value: f32| value.is_finite() && value >= 0.0;
        let share = |value: f32| (0.0..=1.0).contains(&value);
        check("temperature", self.temperature, not_negative(self.temperature), "0 or more")?;
        check("top_p", self.top_p, share(self.top_p), "0 to 1")?;
        check("min_p", self.min_p, share(self.min_p), "0 to 1")?;
        check(
            "min_tokens_to_keep",
            self.min_tokens_to_keep,
            self.min_tokens_to_keep > 0,
            "1 or more",
        )?;
        check("xtc_probability", self.xtc_probability, share(self.xtc_probability), "0 to 1")?;
        check(
            "xtc_threshold",
            self.xtc_threshold,
            (0.0..=0.5).contains(&self.xtc_threshold),
            "0 to 0.5",
        )?;
        if let Some(penalty) = self.repetition_penalty {
            check("repetition_penalty", penalty, not_negative(penalty), "0 or more")?;
        }
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            if let Some(penalty) = penalty {
                check(name, penalty, penalty.is_finite(), "a finite number")?;
            }
        }
        for &bias in self.logit_bias.values() {
            check(
                "logit_bias",
                bias,
                bias < f32::INFINITY,
                "a number below infinity for each token",
            )?;
        }
        match &self.allowed_token_ids {
            Some(ids) => {
                check("allowed_token_ids", "empty", !ids.is_empty(), "one token id or more")
            }
            None => Ok(()),
        }
    }
}

fn check(
    name: &'static str,
    value: impl ToString,
    is_allowed: bool,
    allowed: &'static str,
) -> Result<(), ChatError> {
    if is_allowed {
        Ok(())
    } else {
        let value = match value.to_string().as_str() {
            "inf" => "above 3.4e38".to_owned(),
            "-inf" => "below -3.4e38".to_owned(),
            value => value.to_owned(),
        };
        Err(ChatError::OutOfRange { name, value, allowed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut SamplingParams), expected: Result<(), &str>) {
        let mut params = SamplingParams::default();
        change(&mut params);
        assert_eq!(
            params.validate().map_err(|error| error.to_string()),
            expected.map_err(str::to_owned),
            "{params:?}"
        );
    }

    #[test]
    fn values_at_the_edge_of_their_range_are_allowed() {
        check(|_| {}, Ok(()));
        check(|params| params.temperature = 1000.0, Ok(()));
        check(
            |params| (params.top_p, params.min_p, params.xtc_probability) = (0.0, 1.0, 1.0),
            Ok(()),
        );
        check(|params| params.xtc_threshold = 0.5, Ok(()));
        check(|params| params.repetition_penalty = Some(0.0), Ok(()));
        check(|params| params.repetition_context_size = 0, Ok(()));
        check(
            |params| {
                (params.presence_penalty, params.frequency_penalty) = (Some(-2.0), Some(100.0))
            },
            Ok(()),
        );
        check(
            |params| params.logit_bias = BTreeMap::from([(0, 100.0), (9, f32::NEG_INFINITY)]),
            Ok(()),
        );
        check(|params| params.allowed_token_ids = Some(vec![3]), Ok(()));
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_name() {
        check(
            |params| params.temperature = -0.1,
            Err("temperature is -0.1, but must be 0 or more"),
        );
        check(
            |params| params.temperature = f32::NAN,
            Err("temperature is NaN, but must be 0 or more"),
        );
        check(|params| params.top_p = 1.5, Err("top_p is 1.5, but must be 0 to 1"));
        check(|params| params.min_p = -0.5, Err("min_p is -0.5, but must be 0 to 1"));
        check(|params| params.min_p = f32::NAN, Err("min_p is NaN, but must be 0 to 1"));
        check(
            |params| params.min_tokens_to_keep = 0,
            Err("min_tokens_to_keep is 0, but must be 1 or more"),
        );
        check(
            |params| params.xtc_probability = 1.01,
            Err("xtc_probability is 1.01, but must be 0 to 1"),
        );
        check(
            |params| params.xtc_threshold = 0.51,
            Err("xtc_threshold is 0.51, but must be 0 to 0.5"),
        );
        check(
            |params| params.repetition_penalty = Some(-1.0),
            Err("repetition_penalty is -1, but must be 0 or more"),
        );
        check(
            |params| params.presence_penalty = Some(f32::INFINITY),
            Err("presence_penalty is above 3.4e38, but must be a finite number"),
        );
        check(
            |params| params.frequency_penalty = Some(f32::NAN),
            Err("frequency_penalty is NaN, but must be a finite number"),
        );
        let endless =
            "logit_bias is above 3.4e38, but must be a number below infinity for each token";
        check(|params| params.logit_bias = BTreeMap::from([(1, f32::INFINITY)]), Err(endless));
        check(
            |params| params.allowed_token_ids = Some(vec![]),
            Err("allowed_token_ids is empty, but must be one token id or more"),
        );
    }
}
