//! What a model thought of an answer that exists: the distribution before each of its tokens.

use mlx_rs::ops;
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use super::logprobs::{TokenScore, likeliest};
use super::{check_length, check_tokens, num_cached, token_array};
use crate::LmError;
use crate::cache::LayerCache;
use crate::models::Model;
use crate::sample::logprobs;

/// How many tokens of the answer are read at once: each needs rows over the vocabulary, which are
/// looked through on the CPU, and others wait meanwhile.
const ANSWER_CHUNK: usize = 64;
/// Natural log-probabilities below this add nothing to an entropy; negative infinity would make it no
/// number.
const LEAST_LOGPROB: f32 = -100.0;

/// A token of an answer among all that could have stood in its place, before sampling filters.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenChoice {
    /// Its id.
    pub token: u32,
    /// Its natural log-probability.
    pub logprob: f32,
    /// How many tokens were likelier.
    pub rank: usize,
    /// The entropy over the whole vocabulary, in bits.
    pub entropy_bits: f32,
    /// The likeliest tokens, best first.
    pub top: Vec<TokenScore>,
}

/// Reads an answer again, in slices, between which the caller may do other work.
///
/// After a slice has failed, it is of no further use.
#[derive(Debug)]
pub struct AnswerReader {
    model: Model,
    /// Prompt and answer.
    tokens: Vec<u32>,
    num_prompt: usize,
    num_top: usize,
    caches: Vec<LayerCache>,
    /// How many tokens are in the caches. The answer's last one is never read: nothing follows it.
    num_read: usize,
    choices: Vec<TokenChoice>,
}

impl AnswerReader {
    /// A reader of `answer` behind `prompt`, of which `caches` hold a beginning; it may be empty, but not
    /// all of the prompt. Reads nothing yet.
    ///
    /// Fails if prompt or answer are empty, outside the vocabulary, or longer than the context.
    pub fn new(
        model: &Model,
        prompt: &[u32],
        answer: &[u32],
        caches: Vec<LayerCache>,
        num_top: usize,
    ) -> Result<Self, LmError> {
        if prompt.is_empty() || answer.is_empty() || num_cached(&caches) >= prompt.len() {
            return Err(LmError::EmptyPrompt);
        }
        let tokens = [prompt, answer].concat();
        check_tokens(&tokens, model.vocab_size())?;
        check_length(tokens.len(), model)?;
        Ok(AnswerReader {
            model: model.clone(),
            tokens,
            num_prompt: prompt.len(),
            num_top,
            num_read: num_cached(&caches),
            caches,
            choices: Vec::new(),
        })
    }

    /// How many tokens are in the caches, and how many will be.
    pub fn progress(&self) -> (usize, usize) {
        (self.num_read, self.tokens.len() - 1)
    }

    /// How many tokens the next [`AnswerReader::read`] reads, and how many of them need logits.
    pub fn next_slice(&self, max_tokens: usize) -> (usize, usize) {
        // The prompt's last token is what the answer's first one follows.
        let plain = (self.num_prompt - 1).saturating_sub(self.num_read);
        match plain {
            0 => {
                let left = self.tokens.len() - 1 - self.num_read;
                let length = left.min(max_tokens.clamp(1, ANSWER_CHUNK));
                (length, length)
            }
            plain => (plain.min(max_tokens.max(1)), 0),
        }
    }

    /// Reads at most `max_tokens` more, at least one if any are left.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let (length, num_logits) = self.next_slice(max_tokens);
        if length == 0 {
            return Ok(());
        }
        let (start, stop) = (self.num_read, self.num_read + length);
        let hidden =
            self.model.forward(&token_array(&self.tokens[start..stop]), &mut self.caches)?;
        if num_logits > 0 {
            let logprobs = logprobs(&self.model.logits(&hidden)?)?; // [1, L, V]
            self.choose(start, &logprobs)?;
        } else {
            // Evaluated slice by slice, as a prompt is prefilled.
            eval(self.caches.iter().flat_map(LayerCache::arrays))?;
        }
        self.num_read = stop;
        Ok(())
    }

    /// Adds the tokens behind `start` and those after it.
    fn choose(&mut self, start: usize, logprobs: &Array) -> Result<(), LmError> {
        let entropies = entropies(logprobs)?; // [1, L]
        eval([logprobs, &entropies])?;
        let entropies = entropies.try_as_slice::<f32>()?;
        let vocab_size = logprobs.dim(2) as usize;
        let rows = logprobs.try_as_slice::<f32>()?.chunks(vocab_size);
        for ((row, &entropy_bits), &token) in rows.zip(entropies).zip(&self.tokens[start + 1..]) {
            let logprob = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            self.choices.push(TokenChoice {
                token,
                logprob,
                rank: row.iter().filter(|&&other| other > logprob).count(),
                entropy_bits,
                top: likeliest(row, self.num_top),
            });
        }
        Ok(())
    }

    /// Takes the tokens of the answer that have been read since this was last asked.
    pub fn take(&mut self) -> Vec<TokenChoice> {
        std::mem::take(&mut self.choices)
    }
}

/// The entropies in bits, f32 `[B, L]`, of log-probabilities `[B, L, V]`.
fn entropies(logprobs: &Array) -> Result<Array, LmError> {
    let bounded = ops::maximum(logprobs, Array::from_f32(LEAST_LOGPROB))?;
    let nats = ops::multiply(ops::exp(&bounded)?, &bounded)?.sum_axis(-1, None)?;
    let bits = ops::multiply(&nats, Array::from_f32(-std::f32::consts::LOG2_E))?;
    Ok(bits.as_dtype(Dtype::Float32)?)
}
