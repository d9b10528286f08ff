//! Rows that are computed together, and their answers.

use std::collections::HashMap;

use cairn_chat::Encode;
use cairn_lm::batch::{RowAfterPrefix, RowsAfterPrefix, SharedPrefix};
use cairn_lm::{LmError, LoadedModel, LogitsProcessor, TokenScore, likeliest, logprobs};
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, ops};

use super::options::{OptionReading, that_begin_alike};
use super::{OptionScoring, RowAnswer};
use crate::EngineError;

/// The last tokens of a row by which the tokens of its options are found: enough for a word that an
/// option might join, and few enough to be the template's own.
const TAIL_TOKENS: usize = 3;

/// An encoded row.
#[derive(Debug)]
pub(super) struct PreparedRow {
    /// Its places in the request: several if rows are the same.
    indices: Vec<usize>,
    tokens: Vec<u32>,
    /// How many of them are the prefix's.
    num_shared: usize,
    names: Vec<String>,
    reading: OptionReading,
}

impl PreparedRow {
    /// Fails if options are empty, or begin with the same token and are scored by it.
    pub(super) fn new(
        model: &LoadedModel,
        index: usize,
        tokens: Vec<u32>,
        num_shared: usize,
        (options, scoring): (&[String], OptionScoring),
        encoder: &mut OptionEncoder,
    ) -> Result<Self, EngineError> {
        if tokens.is_empty() {
            return Err(LmError::EmptyPrompt.into());
        }
        cairn_lm::check_length(tokens.len(), &model.model)?;
        let mut encoded = encoder.encode(model, &tokens, options)?;
        let vocab_size = model.model.vocab_size();
        if let Some(&token) = encoded.iter().flatten().find(|&&token| token as usize >= vocab_size)
        {
            return Err(LmError::TokenOutOfRange { token, vocab_size }.into());
        }
        if let Some(empty) = encoded.iter().position(Vec::is_empty) {
            return Err(EngineError::EmptyOption { number: empty + 1 });
        }
        if scoring == OptionScoring::FirstToken {
            if let Some((first, second)) = that_begin_alike(&encoded) {
                let [first, second] = [first, second].map(|index| options[index].clone());
                return Err(EngineError::OptionsBeginAlike { first, second });
            }
            encoded.iter_mut().for_each(|tokens| tokens.truncate(1));
        }
        let reading = OptionReading::new(encoded);
        let (indices, names) = (vec![index], options.to_vec());
        Ok(PreparedRow { indices, tokens, num_shared, names, reading })
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn num_shared(&self) -> usize {
        self.num_shared
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        self.indices.iter().copied()
    }

    /// How many columns it takes in a pass.
    pub(super) fn width(&self) -> usize {
        let longest = self.reading.continuations().iter().map(Vec::len).max().unwrap_or(0);
        self.tokens.len() - self.num_shared + longest
    }

    /// How many rows of a pass it takes.
    pub(super) fn num_entries(&self) -> usize {
        self.reading.continuations().len()
    }

    /// After how many tokens the distribution of the next one is computed.
    pub(super) fn num_scored(&self) -> usize {
        self.reading.continuations().iter().map(|continuation| continuation.len() + 1).sum()
    }

    /// Where the scored positions of each continuation begin, if the row's begin at `first`.
    fn positions(&self, first: usize) -> Vec<usize> {
        let lengths = self.reading.continuations().iter().map(|tokens| tokens.len() + 1);
        let begin = |next: &mut usize, length: usize| {
            let own = *next;
            *next += length;
            Some(own)
        };
        lengths.scan(first, begin).collect()
    }

    pub(super) fn is_same(&self, other: &PreparedRow) -> bool {
        self.tokens == other.tokens && self.reading == other.reading && self.names == other.names
    }

    pub(super) fn join(&mut self, other: PreparedRow) {
        self.indices.extend(other.indices);
    }

    /// What is read for it.
    fn entries(&self) -> impl Iterator<Item = RowAfterPrefix> {
        let own = &self.tokens[self.num_shared..];
        self.reading.continuations().iter().map(move |continuation| RowAfterPrefix {
            tokens: [own, continuation.as_slice()].concat(),
            num_scored: continuation.len() + 1,
        })
    }
}

/// The tokens of options behind rows. Most rows of a request end alike and have the same options, so
/// the last ones are known.
#[derive(Debug, Default)]
pub(super) struct OptionEncoder {
    tail: Vec<u32>,
    options: Vec<String>,
    encoded: Vec<Vec<u32>>,
}

impl OptionEncoder {
    /// The tokens that each option adds behind a row.
    fn encode(
        &mut self,
        model: &LoadedModel,
        row: &[u32],
        options: &[String],
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        let tail = &row[row.len().saturating_sub(TAIL_TOKENS)..];
        if self.tail != tail || self.options != options {
            let encoded = option_tokens(model, tail, options)?;
            let (tail, options) = (tail.to_vec(), options.to_vec());
            *self = OptionEncoder { tail, options, encoded };
        }
        Ok(self.encoded.clone())
    }
}

fn option_tokens(
    model: &LoadedModel,
    tail: &[u32],
    options: &[String],
) -> Result<Vec<Vec<u32>>, EngineError> {
    let tokenizer = model.tokenizer.as_ref();
    let tail = tokenizer.decode(tail)?;
    let before = tokenizer.encode(&tail, false)?;
    let one = |option: &String| {
        let both = tokenizer.encode(&format!("{tail}{option}"), false)?;
        match both.strip_prefix(before.as_slice()) {
            Some(tokens) => Ok(tokens.to_vec()),
            // The option would join the row's last token, which is read already.
            None => Ok(tokenizer.encode(option, false)?),
        }
    };
    options.iter().map(one).collect()
}

/// Rows that are being read.
pub(super) struct Pass {
    rows: Vec<PreparedRow>,
    reading: RowsAfterPrefix,
}

/// A pass that failed, with its rows, which may be computed again.
pub(super) struct FailedPass {
    pub(super) rows: Vec<PreparedRow>,
    pub(super) error: EngineError,
}

/// Answers with the places of their rows in the request.
type Answers = Vec<(usize, RowAnswer)>;

impl Pass {
    pub(super) fn begin(
        prefix: &mut SharedPrefix,
        rows: Vec<PreparedRow>,
    ) -> Result<Self, Box<FailedPass>> {
        match prefix.rows(rows.iter().flat_map(PreparedRow::entries).collect()) {
            Ok(reading) => Ok(Pass { rows, reading }),
            Err(error) => Err(Box::new(FailedPass { rows, error: error.into() })),
        }
    }

    pub(super) fn num_unread(&self) -> usize {
        self.reading.num_unread()
    }

    /// How many tokens have been read, without padding.
    pub(super) fn num_read_tokens(&self) -> usize {
        self.reading.num_read_tokens()
    }

    pub(super) fn read(&mut self, max_tokens: usize) -> Result<(), EngineError> {
        Ok(self.reading.read(max_tokens)?)
    }

    pub(super) fn into_rows(self) -> Vec<PreparedRow> {
        self.rows
    }

    /// The answers, with their places in the request. All has to be read.
    pub(super) fn answers(
        self,
        model: &LoadedModel,
        num_top: usize,
        processor: Option<&mut LogitsProcessor>,
    ) -> Result<Answers, Box<FailedPass>> {
        let Pass { rows, reading } = self;
        let answers = computed(&rows, reading, processor)
            .and_then(|logprobs| Ok(read_rows(&rows, &logprobs, num_top)?))
            .and_then(|read| answers(&rows, read, model));
        answers.map_err(|error| Box::new(FailedPass { rows, error }))
    }
}

/// The log-probabilities `[N, V]` of all scored positions, evaluated.
fn computed(
    rows: &[PreparedRow],
    reading: RowsAfterPrefix,
    processor: Option<&mut LogitsProcessor>,
) -> Result<Array, EngineError> {
    let mut logits = reading.logits()?;
    if let Some(processor) = processor {
        logits = processed(rows, &logits, processor)?;
    }
    let logprobs = logprobs(&logits).map_err(LmError::from)?;
    logprobs.eval().map_err(LmError::from)?;
    Ok(logprobs)
}

/// The logits `[N, V]` after the processor has seen each with the tokens before it.
fn processed(
    rows: &[PreparedRow],
    logits: &Array,
    processor: &mut LogitsProcessor,
) -> Result<Array, LmError> {
    let mut all = Vec::new();
    for row in rows {
        for continuation in row.reading.continuations() {
            for num_read in 0..=continuation.len() {
                let before = [row.tokens.as_slice(), &continuation[..num_read]].concat();
                let before = Array::from_slice(&before, &[before.len() as i32]);
                let at = Array::from_slice(&[all.len() as u32], &[1]);
                all.push(processor(&before, logits.take_axis(at, 0)?)?);
            }
        }
    }
    Ok(ops::concatenate(&all, 0)?)
}

/// What the answer of a row needs of its log-probabilities.
struct ReadRow {
    /// By continuation, step and token, as [`OptionReading::asked`] names them.
    of_options: HashMap<(usize, usize, u32), f32>,
    /// The likeliest token behind the row, and its log-probability.
    best: (u32, f32),
    /// The likeliest ones, as many as were asked for.
    top: Vec<TokenScore>,
}

/// Reads from the device what answers need of the log-probabilities `[N, V]`: all of them would take
/// longer to read than to compute.
fn read_rows(
    rows: &[PreparedRow],
    logprobs: &Array,
    num_top: usize,
) -> Result<Vec<ReadRow>, LmError> {
    let (vocab_size, mut firsts, mut places) = (logprobs.dim(1) as usize, Vec::new(), Vec::new());
    let mut first = 0;
    for row in rows {
        let own = row.positions(first);
        places.extend(row.reading.asked().iter().map(|&(continuation, step, token)| {
            ((own[continuation] + step) * vocab_size + token as usize) as i64
        }));
        firsts.push(first as u32);
        first += row.num_scored();
    }
    // [n, V], behind each row
    let next = logprobs.take_axis(Array::from_slice(&firsts, &[firsts.len() as i32]), 0)?;
    let best = argmax_axis(&next, -1, false)?;
    let best_logprobs = floats(&next.max_axis(-1, false)?)?;
    let tops: Vec<Vec<TokenScore>> = match num_top {
        0 => vec![Vec::new(); rows.len()],
        _ => floats(&next)?.chunks(vocab_size).map(|row| likeliest(row, num_top)).collect(),
    };
    let found = match places.len() {
        0 => Vec::new(),
        count => {
            let places = Array::from_slice(&places, &[count as i32]);
            floats(&ops::reshape(logprobs, &[-1])?.take(places)?)?
        }
    };
    let (mut found, best) = (found.into_iter(), best.try_as_slice::<u32>()?);
    let rows = rows.iter().zip(best.iter().copied().zip(best_logprobs)).zip(tops);
    let read = rows.map(|((row, best), top)| {
        let of_options = row.reading.asked().into_iter().zip(found.by_ref()).collect();
        ReadRow { of_options, best, top }
    });
    Ok(read.collect())
}

fn floats(array: &Array) -> Result<Vec<f32>, LmError> {
    Ok(ops::reshape(array, &[-1])?.try_as_slice::<f32>()?.to_vec())
}

fn answers(
    rows: &[PreparedRow],
    read: Vec<ReadRow>,
    model: &LoadedModel,
) -> Result<Answers, EngineError> {
    let mut all = Vec::new();
    for (row, read) in std::iter::zip(rows, read) {
        let answer = answer(row, read, model)?;
        all.extend(row.indices().map(|index| (index, answer.clone())));
    }
    Ok(all)
}

fn answer(row: &PreparedRow, read: ReadRow, model: &LoadedModel) -> Result<RowAnswer, EngineError> {
    let option_logprobs = row.reading.logprobs(|continuation, step, token| {
        let asked = read.of_options.get(&(continuation, step, token));
        asked.copied().unwrap_or(f32::NEG_INFINITY) // all that it asks for was read
    });
    let best = option_logprobs.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let (token, text, logprob) = match best {
        None => {
            let (token, logprob) = read.best;
            (token, model.tokenizer.decode(&[token])?, logprob)
        }
        Some((option, logprob)) => {
            (row.reading.options()[option][0], row.names[option].clone(), logprob)
        }
    };
    Ok(RowAnswer {
        token,
        text,
        logprob,
        option_logprobs,
        top: read.top,
        num_prompt_tokens: row.tokens.len(),
        num_cached_tokens: row.num_shared,
    })
}
