//! Answers that a grammar constrains: the tokens that may come next are computed by llguidance, and
//! all others get a logit of negative infinity.
//!
//! ```text
//! tokenizer ── vocabulary as bytes ──▶ Grammars (of a model)
//!                                          │ compile
//!                                          ▼
//!                 logits ──▶ processor of a Constraint (of an answer) ──▶ masked logits
//! ```

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, ops};

use crate::sample::LogitsProcessor;
use crate::{LmError, LoadedModel};

/// Compiles the grammars of a model. What it needs of the vocabulary is made for the first one.
#[derive(Default)]
pub(crate) struct Grammars(OnceCell<ParserFactory>);

impl fmt::Debug for Grammars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Grammars")
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Constraint");
        debug.field("num_read", &self.num_read).finish_non_exhaustive()
    }
}

/// The state of an answer in its grammar.
pub struct Constraint {
    matcher: Matcher,
    /// How many tokens of the answer are known before the first call.
    num_sampled: usize,
    /// How many tokens of prompt and answer have been read; none before the first call.
    num_read: Option<usize>,
}

impl LoadedModel {
    /// Compiles a grammar in llguidance's dialect of Lark for an answer of which `num_sampled`
    /// tokens have been sampled already. [`LmError::Grammar`] says what cannot be compiled.
    pub fn constraint(&self, grammar: &str, num_sampled: usize) -> Result<Constraint, LmError> {
        let factory = match self.grammars.0.get() {
            Some(factory) => factory,
            None => {
                let factory = factory(self)?;
                self.grammars.0.get_or_init(|| factory)
            }
        };
        let grammar = TopLevelGrammar::from_lark(grammar.to_owned());
        let matcher = Matcher::new(factory.create_parser(grammar));
        match matcher.get_error() {
            Some(reason) => Err(refused(&reason)),
            None => Ok(Constraint { matcher, num_sampled, num_read: None }),
        }
    }
}

fn factory(model: &LoadedModel) -> Result<ParserFactory, LmError> {
    let vocab_size = model.model.vocab_size();
    let fits = |id: &u32| (*id as usize) < vocab_size;
    let eos: Vec<u32> = model.eos_token_ids.iter().copied().filter(fits).collect();
    let first = *eos.first().ok_or_else(|| refused("the model has no end-of-sequence token"))?;
    let info = TokRxInfo::new(vocab_size as u32, first);
    let words = model.tokenizer.vocabulary(vocab_size, TokTrie::SPECIAL_TOKEN_MARKER)?;
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&eos);
    let env = Arc::new(ApproximateTokEnv::new(trie)) as _;
    let mut factory =
        ParserFactory::new_simple(&env).map_err(|error| refused(&error.to_string()))?;
    factory.quiet();
    // Errors reach the program that asked: they need not hold the grammar and the state.
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// Why a grammar is refused, without the grammar, which whoever asked has not written.
fn refused(reason: &str) -> LmError {
    let line = reason.lines().next().unwrap_or_default();
    let of_schema = line.split_once("failed to compile JSON schema: ").map(|(_, reason)| reason);
    LmError::Grammar { reason: of_schema.unwrap_or(line).trim().to_owned() }
}

fn left(error: impl fmt::Display) -> LmError {
    LmError::Constraint { reason: error.to_string() }
}

impl Constraint {
    /// A logits processor. It waits for the tokens so far; while it computes which may follow, the
    /// device computes the logits.
    pub fn processor(mut self) -> LogitsProcessor {
        Box::new(move |tokens, logits| self.mask(tokens, logits))
    }

    /// `tokens` `[n]` u32, `logits` `[1, V]`.
    fn mask(&mut self, tokens: &Array, logits: Array) -> Result<Array, LmError> {
        async_eval([&logits])?;
        let tokens = tokens.try_as_slice::<u32>()?;
        let first = tokens.len() - self.num_sampled.min(tokens.len());
        let num_read = self.num_read.replace(tokens.len()).unwrap_or(first);
        for &token in &tokens[num_read.min(tokens.len())..] {
            // The step behind the end is launched before the end is known.
            if !self.matcher.is_stopped() {
                self.matcher.consume_token(token).map_err(left)?;
            }
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(left)?;
        let mut row = vec![f32::NEG_INFINITY; logits.dim(1) as usize];
        allowed.iter_set_entries(|token| {
            if let Some(logit) = row.get_mut(token) {
                *logit = 0.0;
            }
        });
        let row = Array::from_slice(&row, &[1, logits.dim(1)]);
        Ok(ops::add(&logits, row.as_dtype(logits.dtype())?)?)
    }
}
