//! The distribution of the next token after each of several rows, in slices.

use std::sync::Arc;

use mlx_rs::transforms::eval;
use mlx_rs::{Array, ops};

use super::RowCaches;
use crate::cache::row_indices;
use crate::generate::{check_tokens, padded_columns};
use crate::models::Model;
use crate::sample::logprobs;
use crate::{LmError, memory};

/// Reads the new tokens of several rows after their prefixes, and computes the natural
/// log-probabilities of the token that follows each row.
///
/// ```text
/// row 0   prefix of 300 │ new new new          columns of one pass; what is behind a row's own
/// row 1   prefix of  20 │ new  –   –           new tokens is padding
///                       └ column 0
/// ```
/// Each row continues its own prefix, of whatever length. Only the last token of a row gets logits.
/// Rows that end before others leave the pass.
#[derive(Debug)]
pub struct NextTokenLogprobs {
    model: Model,
    new_tokens: Vec<Vec<u32>>,
    num_read: usize,
    /// The rows that are not at their end, as they stand in `caches`.
    rows: Vec<usize>,
    caches: Option<RowCaches>,
    ended: Vec<EndedRows>,
    /// f32 `[B, V]`, once all is read.
    logprobs: Option<Array>,
}

/// Rows that were read to their end.
#[derive(Debug)]
struct EndedRows {
    rows: Vec<usize>,
    hidden: Array, // [n, D], of their last tokens
    caches: RowCaches,
}

impl NextTokenLogprobs {
    /// Reads nothing yet. `prefixes` has a row for each of `new_tokens`, which hold at least one
    /// token each.
    ///
    /// Fails on a row without tokens and on token ids outside the vocabulary.
    pub fn new(
        model: &Model,
        prefixes: RowCaches,
        new_tokens: Vec<Vec<u32>>,
    ) -> Result<Self, LmError> {
        let (found, expected) = (new_tokens.len(), prefixes.num_rows());
        if found != expected {
            return Err(LmError::OutOfRange {
                name: "new_tokens",
                value: format!("{found} rows"),
                allowed: format!("as many rows as the caches have ({expected})"),
            });
        }
        if new_tokens.iter().any(Vec::is_empty) {
            return Err(LmError::EmptyPrompt);
        }
        new_tokens.iter().try_for_each(|row| check_tokens(row, model.vocab_size()))?;
        Ok(NextTokenLogprobs {
            model: model.clone(),
            rows: (0..new_tokens.len()).collect(),
            new_tokens,
            num_read: 0,
            caches: Some(prefixes),
            ended: Vec::new(),
            logprobs: None,
        })
    }

    /// How many tokens all rows together have left.
    pub fn num_left(&self) -> usize {
        self.rows.iter().map(|&row| self.new_tokens[row].len() - self.num_read).sum()
    }

    /// Reads about `max_tokens`, at least one of each row, and returns how many it read; padding
    /// counts. After an error the rows are of no further use.
    pub fn read(&mut self, max_tokens: usize) -> Result<usize, LmError> {
        let Some(mut caches) = self.caches.take() else { return Ok(0) };
        let (num_rows, start) = (self.rows.len(), self.num_read);
        let left = self.rows.iter().map(|&row| self.new_tokens[row].len() - start);
        let most = left.clone().max().unwrap_or(0);
        let width = (max_tokens / num_rows).clamp(1, most);
        let lengths: Vec<i32> = left.map(|left| left.min(width) as i32).collect();
        let is_ragged = lengths.iter().any(|&length| length < width as i32);
        if is_ragged {
            caches.prepare(&lengths)?;
        }
        // [B, width, D]
        let hidden = self.model.forward(&self.columns(width), caches.caches_mut())?;
        if is_ragged {
            caches.finalize()?;
        }
        self.num_read += width;
        self.part(caches, &hidden)?;
        if self.rows.is_empty() {
            self.end()?;
        } else {
            // Whatever is not evaluated keeps all that it was computed from.
            let left = self.caches.iter().flat_map(RowCaches::arrays);
            let ended = self.ended.iter();
            eval(left.chain(ended.flat_map(|ended| ended.caches.arrays().chain([&ended.hidden]))))?;
            memory::clear_cache();
        }
        Ok(width * num_rows)
    }

    /// u32 `[B, width]`: the next tokens of each row, padded on the right.
    fn columns(&self, width: usize) -> Array {
        let rows = self.rows.iter().map(|&row| self.new_tokens[row].as_slice());
        padded_columns(rows, self.num_read..self.num_read + width)
    }

    /// Parts the rows that are at their end from the others, which have tokens in every pass that
    /// follows: a ring drops tokens with each pass, also of a row that is only padded.
    fn part(&mut self, caches: RowCaches, hidden: &Array) -> Result<(), LmError> {
        let is_at_end = |row: usize| self.new_tokens[row].len() <= self.num_read;
        let indices = 0..self.rows.len();
        let (ended, left): (Vec<usize>, Vec<usize>) =
            indices.partition(|&index| is_at_end(self.rows[index]));
        let rows = |indices: &[usize]| -> Vec<usize> {
            indices.iter().map(|&index| self.rows[index]).collect()
        };
        let (ended_rows, left_rows) = (rows(&ended), rows(&left));
        if ended.is_empty() {
            self.caches = Some(caches);
            return Ok(());
        }
        let width = hidden.dim(1) as usize;
        let start = self.num_read - width;
        let last = std::iter::zip(&ended, &ended_rows);
        let last = last.map(|(index, &row)| index * width + self.new_tokens[row].len() - 1 - start);
        let last = row_indices(&last.collect::<Vec<_>>());
        let flat = ops::reshape(hidden, &[-1, hidden.dim(2)])?;
        let hidden = flat.take_axis(last, 0)?;
        let ended_caches = if left.is_empty() {
            caches
        } else {
            self.caches = Some(caches.gathered(&left)?);
            caches.gathered(&ended)?
        };
        self.ended.push(EndedRows { rows: ended_rows, hidden, caches: ended_caches });
        self.rows = left_rows;
        Ok(())
    }

    /// Computes the log-probabilities of all rows, and puts their caches together again.
    fn end(&mut self) -> Result<(), LmError> {
        let ended = std::mem::take(&mut self.ended);
        let rows: Vec<usize> = ended.iter().flat_map(|ended| ended.rows.clone()).collect();
        let (hidden, caches): (Vec<Array>, Vec<RowCaches>) =
            ended.into_iter().map(|ended| (ended.hidden, ended.caches)).unzip();
        let mut order = vec![0; rows.len()];
        for (index, &row) in rows.iter().enumerate() {
            order[row] = index;
        }
        let is_ordered = order.is_sorted();
        let mut caches = RowCaches::joined(caches)?;
        let mut hidden = match hidden.as_slice() {
            [all] => all.clone(),
            several => ops::concatenate(several, 0)?,
        };
        if !is_ordered {
            caches = caches.gathered(&order)?;
            hidden = hidden.take_axis(row_indices(&order), 0)?;
        }
        let logits = self.model.logits(&ops::expand_dims(hidden, 1)?)?; // [B, 1, V]
        let logprobs = ops::reshape(logprobs(&logits)?, &[rows.len() as i32, -1])?;
        eval(caches.arrays().chain([&logprobs]))?;
        self.caches = Some(caches);
        self.logprobs = Some(logprobs);
        Ok(())
    }

    /// The log-probabilities after each row, over the vocabulary, and the caches, which hold the
    /// rows' new tokens too; `None` while something is left to read.
    #[expect(clippy::type_complexity, reason = "a list of rows and their caches")]
    pub fn finish(self) -> Result<Option<(Vec<Arc<[f32]>>, RowCaches)>, LmError> {
        let (Some(logprobs), Some(caches)) = (self.logprobs, self.caches) else { return Ok(None) };
        let vocab_size = logprobs.dim(1) as usize;
        let all = logprobs.try_as_slice::<f32>()?;
        let rows = all.chunks(vocab_size.max(1)).map(Arc::from).collect();
        Ok(Some((rows, caches)))
    }
}
