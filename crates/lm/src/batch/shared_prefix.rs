//! The next token of many prompts that begin with the same tokens: these are read once, and the rows
//! of a pass share their keys and values.
//!
//! ```text
//! SharedPrefix ── read ── caches of one row ─┬─ RowsAfterPrefix ── read ── log-probabilities
//!                                            └─ … as often as wanted: the caches stay as they are
//! ```
//! The rows of a pass are padded on the right. Logits are computed only where they are asked for.

use mlx_rs::{Array, ops};

use crate::cache::LayerCache;
use crate::cache::batch::continued_by_rows;
use crate::generate::{check_length, check_tokens, finish_pass, padded_columns, token_array};
use crate::models::Model;
use crate::{LmError, memory};

/// A beginning that prompts share. It may be empty: then rows are read from their first token.
#[derive(Debug)]
pub struct SharedPrefix {
    model: Model,
    tokens: Vec<u32>,
    num_read: usize,
    caches: Vec<LayerCache>,
}

/// One prompt, after the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowAfterPrefix {
    /// Its tokens, at least one.
    pub tokens: Vec<u32>,
    /// At how many of its last tokens the distribution of the next one is wanted; at least one.
    pub num_scored: usize,
}

/// Rows that are being read.
#[derive(Debug)]
pub struct RowsAfterPrefix {
    model: Model,
    rows: Vec<RowAfterPrefix>,
    caches: Vec<LayerCache>,
    /// The length of the longest row.
    width: usize,
    num_read: usize,
    /// The hidden states `[n, D]` at the scored tokens that have been read, in the order of
    /// columns, and to which row each belongs.
    hidden: Vec<Array>,
    scored: Vec<usize>,
}

impl SharedPrefix {
    /// A prefix that is not read yet. Fails on token ids outside the vocabulary, and if it fills the
    /// context.
    pub fn new(model: &Model, tokens: Vec<u32>) -> Result<Self, LmError> {
        check_tokens(&tokens, model.vocab_size())?;
        check_length(tokens.len() + 1, model)?;
        Ok(SharedPrefix { model: model.clone(), tokens, num_read: 0, caches: model.make_cache() })
    }

    /// A prefix that `caches` hold already.
    pub fn after(
        model: &Model,
        tokens: Vec<u32>,
        caches: Vec<LayerCache>,
    ) -> Result<Self, LmError> {
        let (found, expected) = (caches.len(), model.cache_spec().layers().len());
        if found != expected {
            return Err(LmError::CacheLayers { found, expected });
        }
        let num_read = tokens.len();
        Ok(SharedPrefix { caches, num_read, ..SharedPrefix::new(model, tokens)? })
    }

    /// Its tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of them are not read yet.
    pub fn num_unread(&self) -> usize {
        self.tokens.len() - self.num_read
    }

    /// Bytes of its caches, capacity included.
    pub fn nbytes(&self) -> usize {
        self.caches.iter().map(LayerCache::nbytes).sum()
    }

    /// Reads at most `max_tokens` of what is left. After an error the prefix is of no further use.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let stop = self.tokens.len().min(self.num_read + max_tokens.max(1));
        if stop > self.num_read {
            let chunk = token_array(&self.tokens[self.num_read..stop]);
            self.model.forward(&chunk, &mut self.caches)?;
            finish_pass(&self.caches)?;
            self.num_read = stop;
        }
        Ok(())
    }

    /// Frees what was read, so that all of it is read again.
    pub fn forget(&mut self) {
        self.caches = self.model.make_cache();
        self.num_read = 0;
    }

    /// Begins to read rows, of which there is at least one; reads the rest of the prefix first. Fails
    /// on rows without tokens, token ids outside the vocabulary, rows beyond the context, and caches whose rows
    /// cannot share tokens ([`LmError::NotBatchable`]).
    pub fn rows(&mut self, rows: Vec<RowAfterPrefix>) -> Result<RowsAfterPrefix, LmError> {
        for row in &rows {
            if row.tokens.is_empty() {
                return Err(LmError::EmptyPrompt);
            }
            check_tokens(&row.tokens, self.model.vocab_size())?;
            check_length(self.tokens.len() + row.tokens.len(), &self.model)?;
        }
        while self.num_unread() > 0 {
            self.read(self.num_unread())?;
        }
        Ok(RowsAfterPrefix {
            model: self.model.clone(),
            caches: continued_by_rows(&self.caches, rows.len())?,
            width: rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0),
            num_read: 0,
            hidden: Vec::new(),
            scored: Vec::new(),
            rows,
        })
    }
}

impl RowsAfterPrefix {
    /// How many tokens are not read yet, padding included.
    pub fn num_unread(&self) -> usize {
        (self.width - self.num_read) * self.rows.len()
    }

    /// How many tokens have been read, without padding.
    pub fn num_read_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len().min(self.num_read)).sum()
    }

    /// Bytes of the rows' caches, without the prefix.
    pub fn own_nbytes(&self) -> usize {
        self.caches.iter().map(LayerCache::nbytes).sum()
    }

    /// Reads the next columns: at most `max_tokens`, padding included, and at least one column.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let length = (max_tokens / self.rows.len().max(1)).max(1);
        let (start, stop) = (self.num_read, self.width.min(self.num_read + length));
        if start >= stop {
            return Ok(());
        }
        let rows = self.rows.iter().map(|row| row.tokens.as_slice());
        let tokens = padded_columns(rows, start..stop);
        let hidden = self.model.forward(&tokens, &mut self.caches)?;
        let (indices, rows) = self.scored_in(start, stop);
        if !indices.is_empty() {
            let flat = hidden.reshape(&[-1, hidden.dim(2)])?;
            let num_scored = indices.len() as i32;
            let wanted = flat.take_axis(Array::from_slice(&indices, &[num_scored]), 0)?;
            wanted.eval()?;
            self.hidden.push(wanted);
            self.scored.extend(rows);
        }
        self.num_read = stop;
        if stop < self.width {
            finish_pass(&self.caches)?;
        }
        Ok(())
    }

    /// The scored tokens in some columns: their indices in `[B * (stop - start)]`, and their rows.
    fn scored_in(&self, start: usize, stop: usize) -> (Vec<u32>, Vec<usize>) {
        let all = (start..stop).flat_map(|column| {
            let rows = self.rows.iter().enumerate();
            rows.filter_map(move |(index, row)| {
                let first = row.tokens.len().saturating_sub(row.num_scored.max(1));
                let is_scored = (first..row.tokens.len()).contains(&column);
                is_scored.then_some(((index * (stop - start) + column - start) as u32, index))
            })
        });
        all.unzip()
    }

    /// Drops the caches and returns the logits `[N, V]` after the scored tokens: those of the first
    /// row in their order, then those of the next. All rows have to be read.
    pub fn logits(self) -> Result<Array, LmError> {
        let RowsAfterPrefix { model, caches, hidden, scored, .. } = self;
        drop(caches);
        let mut by_row: Vec<u32> = (0..scored.len() as u32).collect();
        by_row.sort_by_key(|&index| scored[index as usize]);
        let by_row = Array::from_slice(&by_row, &[scored.len() as i32]);
        let hidden = ops::concatenate(&hidden, 0)?.take_axis(by_row, 0)?; // [N, D]
        let logits = model.logits(&ops::expand_dims(hidden, 0)?)?; // [1, N, V]
        let logits = ops::squeeze_axes(logits, &[0])?;
        logits.eval()?;
        memory::clear_cache();
        Ok(logits)
    }
}
