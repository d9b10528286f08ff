//! Grammars of constrained answers, which llguidance compiles for a model's vocabulary. That needs no
//! device: a compiler works on any thread.
//!
//! ```text
//! tokenizer ── vocabulary as bytes ──▶ GrammarCompiler (of a model)
//!                                          │ compile
//!                                          ▼
//!                                       Grammar (of a schema) ──▶ Constraint (of an answer)
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::constraint::{Constraint, dead_end, is_dead_end};
use crate::tokenizer::Tokenizer;
use crate::{LmError, LoadedModel};

/// A longer grammar is refused. The largest schemas of public collections have some 400 KB.
const MAX_GRAMMAR_BYTES: usize = 1 << 20;

/// So many compiled grammars are kept: programs ask many questions in one form.
const NUM_KEPT: usize = 8;

/// Compiles the grammars of a model. Clones share what it makes of the vocabulary, which is made for
/// the first grammar, and the last grammars.
#[derive(Clone)]
pub struct GrammarCompiler(Arc<Shared>);

struct Shared {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos_token_ids: Vec<u32>,
    /// Or why there is none.
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The most recently used last.
    kept: Mutex<VecDeque<(String, Arc<Grammar>)>>,
}

/// A compiled grammar.
pub struct Grammar {
    /// Never used itself, only copied.
    fresh: Mutex<Matcher>,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GrammarCompiler")
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Grammar")
    }
}

impl Grammar {
    /// The state of an answer of which `num_sampled` tokens have been sampled already.
    pub fn constraint(&self, num_sampled: usize) -> Constraint {
        let fresh = self.fresh.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Copies that share a lexer would share its limit of states.
        Constraint::new(fresh.deep_clone(), num_sampled)
    }
}

impl LoadedModel {
    /// What compiles grammars for this model.
    pub fn grammar_compiler(&self) -> GrammarCompiler {
        self.grammar_compiler.clone()
    }
}

impl GrammarCompiler {
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        vocab_size: usize,
        eos_token_ids: &BTreeSet<u32>,
    ) -> Self {
        let fits = |id: &u32| (*id as usize) < vocab_size;
        GrammarCompiler(Arc::new(Shared {
            tokenizer: Arc::clone(tokenizer),
            vocab_size,
            eos_token_ids: eos_token_ids.iter().copied().filter(fits).collect(),
            factory: OnceLock::new(),
            kept: Mutex::default(),
        }))
    }

    /// Compiles a grammar in llguidance's dialect of Lark. [`LmError::Grammar`] says what cannot be
    /// compiled, or not within the limits.
    pub fn compile(&self, lark: &str) -> Result<Arc<Grammar>, LmError> {
        if let Some(grammar) = self.kept(lark) {
            return Ok(grammar);
        }
        let fresh = self.matcher(lark)?;
        // A copy is asked: what the answers begin with is as it was.
        if let Err(error) = fresh.deep_clone().compute_mask_or_eos() {
            return Err(dead_end(&error.to_string()));
        }
        let grammar = Arc::new(Grammar { fresh: Mutex::new(fresh) });
        self.keep(lark, &grammar);
        Ok(grammar)
    }

    /// Whether this grammar was compiled before, and is kept.
    pub fn has(&self, lark: &str) -> bool {
        self.kept(lark).is_some()
    }

    /// Whether more may come at the beginning of a grammar, or after a brace there, than can be enforced.
    /// False for a grammar that cannot be compiled: its own error says more.
    pub fn has_crowded_beginning(&self, lark: &str) -> bool {
        let Ok(mut matcher) = self.matcher(lark) else { return false };
        let Ok(factory) = self.factory() else { return false };
        let brace = factory.tok_env().tok_trie().greedy_tokenize(b"{");
        let mut read = || {
            let mask = matcher.compute_mask_or_eos()?;
            match brace[..] {
                [brace] if mask.is_allowed(brace) => matcher.consume_token(brace)?,
                _ => return Ok(()),
            }
            matcher.compute_mask_or_eos().map(drop)
        };
        read().is_err_and(|error| !is_dead_end(&error.to_string()))
    }

    fn factory(&self) -> Result<&ParserFactory, LmError> {
        let factory = self.0.factory.get_or_init(|| self.0.factory());
        factory.as_ref().map_err(|reason| refused(reason))
    }

    fn matcher(&self, lark: &str) -> Result<Matcher, LmError> {
        if lark.len() > MAX_GRAMMAR_BYTES {
            let reason = format!("it has {} bytes of at most {MAX_GRAMMAR_BYTES}", lark.len());
            return Err(LmError::Grammar { reason });
        }
        let grammar = TopLevelGrammar::from_lark(lark.to_owned());
        let fresh = Matcher::new(self.factory()?.create_parser(grammar));
        match fresh.get_error() {
            Some(reason) => Err(refused(&reason)),
            None => Ok(fresh),
        }
    }

    fn kept(&self, lark: &str) -> Option<Arc<Grammar>> {
        let mut kept = self.0.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let index = kept.iter().position(|(other, _)| other == lark)?;
        let used = kept.remove(index)?;
        let grammar = Arc::clone(&used.1);
        kept.push_back(used);
        Some(grammar)
    }

    fn keep(&self, lark: &str, grammar: &Arc<Grammar>) {
        let mut kept = self.0.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        kept.push_back((lark.to_owned(), Arc::clone(grammar)));
        if kept.len() > NUM_KEPT {
            kept.pop_front();
        }
    }
}

impl Shared {
    fn factory(&self) -> Result<ParserFactory, String> {
        let no_end = "the model has no end-of-sequence token";
        let first = *self.eos_token_ids.first().ok_or(no_end)?;
        let info = TokRxInfo::new(self.vocab_size as u32, first);
        let words = self.tokenizer.vocabulary(self.vocab_size, TokTrie::SPECIAL_TOKEN_MARKER);
        let words = words.map_err(|error| match error {
            LmError::Grammar { reason } => reason,
            other => other.to_string(),
        })?;
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&self.eos_token_ids);
        let env = Arc::new(ApproximateTokEnv::new(trie)) as _;
        let factory = ParserFactory::new_simple(&env);
        let mut factory = factory.map_err(|error| error.to_string())?;
        factory.quiet();
        // Errors reach the program that asked: they need not hold the grammar and the state.
        factory.limits_mut().verbose_errors = false;
        Ok(factory)
    }
}

/// Why a grammar is refused, without the grammar, which whoever asked has not written.
fn refused(reason: &str) -> LmError {
    let of_schema = reason.split_once("failed to compile JSON schema: ").map(|(_, reason)| reason);
    let mut lines = of_schema.unwrap_or(reason).lines().map(str::trim);
    let is_regex = reason.contains("regex parse error");
    let of_regex = || reason.lines().find_map(|line| line.trim().strip_prefix("error: "));
    let reason = match is_regex.then(of_regex).flatten() {
        Some(fault) => format!("a pattern is no regular expression that can be read: {fault}"),
        None => lines.next().unwrap_or_default().trim_end_matches([':', '.']).to_owned(),
    };
    LmError::Grammar { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_sentences_of_their_own() {
        fn check(error: LmError, expected: &str) {
            let LmError::Grammar { reason } = error else { panic!("{error:?}") };
            assert_eq!(reason, expected);
        }
        let of_schema = "at 2(1): failed to compile JSON schema: Unknown type: word\n<state>";
        check(refused(of_schema), "Unknown type: word");
        let of_regex = "failed to compile JSON schema: regex parse error:\n    (\n    ^\n\
             error: unclosed group";
        let expected = "a pattern is no regular expression that can be read: unclosed group";
        check(refused(of_regex), expected);
    }
}
