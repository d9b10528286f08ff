//! The caches of the last batches, which stay on the device: a query that continues one of their
//! rows computes its new tokens only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cairn_lm::LmError;
use cairn_lm::batch::RowCaches;
use cairn_lm::cache::{CacheSpec, LayerCache};

use super::kv_tree::num_common;
use super::plan::LiveRow;

/// The batches, the newest last. The newest stays; the others as long as all hold at most
/// `most_tokens`, padding included.
#[derive(Debug)]
pub(super) struct LiveBatches {
    most_tokens: usize,
    /// Whether caches can be cut at any token.
    is_trimmable: bool,
    batches: VecDeque<LiveBatch>,
    next_number: u64,
}

/// The rows of one pass.
#[derive(Debug)]
pub(super) struct LiveBatch {
    number: u64,
    pub(super) rows: Vec<ComputedRow>,
    pub(super) caches: RowCaches,
    /// Whether another batch continues some of its rows. What it does not continue was given up.
    pub(super) is_continued: bool,
}

/// A row that was computed.
#[derive(Debug, Clone)]
pub(super) struct ComputedRow {
    pub(super) ids: Arc<[u32]>,
    pub(super) logprobs: Arc<[f32]>,
}

/// The beginning of a query that live rows hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LiveMatch {
    pub(super) row: LiveRow,
    pub(super) num_tokens: usize,
    /// Whether it is all that the row holds.
    pub(super) is_whole: bool,
}

impl LiveBatches {
    pub(super) fn new(spec: &CacheSpec, most_tokens: usize) -> Self {
        LiveBatches {
            most_tokens,
            is_trimmable: spec.is_trimmable(),
            batches: VecDeque::new(),
            next_number: 0,
        }
    }

    /// The log-probabilities after exactly these tokens.
    pub(super) fn logprobs(&self, ids: &[u32]) -> Option<Arc<[f32]>> {
        let mut rows = self.batches.iter().flat_map(|batch| &batch.rows);
        rows.find(|row| *row.ids == *ids).map(|row| Arc::clone(&row.logprobs))
    }

    /// The live row that holds most of the first tokens of `ids`, at most `most`; of several the
    /// newest, and one that is continued as a whole before one that has to be cut.
    pub(super) fn longest(&self, ids: &[u32], most: usize) -> Option<LiveMatch> {
        let rows = self.batches.iter().flat_map(|batch| {
            let number = batch.number;
            batch.rows.iter().enumerate().map(move |(row, computed)| (number, row, computed))
        });
        let matched = rows.filter_map(|(batch, row, computed)| {
            let num_tokens = num_common(&computed.ids, ids).min(most);
            let is_whole = num_tokens == computed.ids.len();
            let row = LiveRow { batch, row };
            (num_tokens > 0 && (is_whole || self.is_trimmable)).then_some(LiveMatch {
                row,
                num_tokens,
                is_whole,
            })
        });
        matched.max_by_key(|found| (found.num_tokens, found.is_whole, found.row.batch))
    }

    /// How many rows each batch has.
    pub(super) fn num_rows(&self) -> BTreeMap<u64, usize> {
        self.batches.iter().map(|batch| (batch.number, batch.rows.len())).collect()
    }

    /// Takes a batch out, for a pass that continues it as it is.
    pub(super) fn take(&mut self, number: u64) -> Option<LiveBatch> {
        let index = self.batches.iter().position(|batch| batch.number == number)?;
        self.batches.remove(index)
    }

    /// Copies of rows of a batch.
    pub(super) fn gathered(&mut self, number: u64, rows: &[usize]) -> Result<RowCaches, LmError> {
        let batch = self.find(number)?;
        batch.is_continued = true;
        batch.caches.gathered(rows)
    }

    /// A copy of the first tokens of a row.
    pub(super) fn beginning(&mut self, found: LiveMatch) -> Result<Vec<LayerCache>, LmError> {
        let mut caches = self.find(found.row.batch)?.caches.row(found.row.row)?;
        for cache in &mut caches {
            cache.trim(cache.offset().saturating_sub(found.num_tokens));
        }
        Ok(caches)
    }

    fn find(&mut self, number: u64) -> Result<&mut LiveBatch, LmError> {
        let found = self.batches.iter_mut().find(|batch| batch.number == number);
        found.ok_or(LmError::MixedCaches)
    }

    /// Adds the newest batch, and returns the oldest ones for which there is no room any more.
    pub(super) fn push(&mut self, rows: Vec<ComputedRow>, caches: RowCaches) -> Vec<LiveBatch> {
        self.next_number += 1;
        let number = self.next_number;
        self.batches.push_back(LiveBatch { number, rows, caches, is_continued: false });
        let mut gone = Vec::new();
        while self.batches.len() > 1 && self.num_tokens() > self.most_tokens {
            gone.extend(self.batches.pop_front());
        }
        gone
    }

    /// How many tokens all rows hold, padding included.
    pub(super) fn num_tokens(&self) -> usize {
        self.batches.iter().map(|batch| batch.caches.num_tokens()).sum()
    }

    /// Bytes of all caches and log-probabilities. What batches share is counted for each of them.
    pub(super) fn num_bytes(&self) -> usize {
        let logprobs = |row: &ComputedRow| size_of_val(&*row.logprobs);
        let bytes = |batch: &LiveBatch| {
            batch.caches.num_bytes() + batch.rows.iter().map(logprobs).sum::<usize>()
        };
        self.batches.iter().map(bytes).sum()
    }

    /// Drops the batches that are not named.
    pub(super) fn retain(&mut self, numbers: &[u64]) {
        self.batches.retain(|batch| numbers.contains(&batch.number));
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
    }
}

impl LiveBatch {
    /// The rows that are worth storing when the batch goes, so that at most `num_tokens` are
    /// stored: the last ones, unless another batch continued what was still wanted.
    pub(super) fn rows_to_store(&self, num_tokens: usize) -> Vec<usize> {
        if self.is_continued {
            return Vec::new();
        }
        let mut left = num_tokens;
        let fits = |row: &usize| {
            let fits = self.rows[*row].ids.len() <= left;
            left = left.saturating_sub(self.rows[*row].ids.len());
            fits
        };
        (0..self.rows.len()).rev().take_while(fits).collect()
    }
}
