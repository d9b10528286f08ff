//! The caches of some rows that are computed together: joined, forked, taken apart.

use mlx_rs::Array;

use crate::LmError;
use crate::cache::LayerCache;
use crate::cache::batch::{extend, extract, filter, finalize, merge, prepare};

/// The caches of one or more rows, one per layer: plain for one row, batched for several.
#[derive(Debug, Clone)]
pub struct RowCaches {
    caches: Vec<LayerCache>,
    num_rows: usize,
}

impl RowCaches {
    /// The caches of one row.
    pub fn one(caches: Vec<LayerCache>) -> Self {
        RowCaches { caches, num_rows: 1 }
    }

    /// Rows that all continue the same prefix. Each gets a copy of it: this is the one place where
    /// a shared prefix becomes several, and where a cache that stores it once belongs.
    ///
    /// Fails if there is no row, and for a kind of cache that has no batched form unless there is
    /// one row only.
    pub fn repeated(prefix: Vec<LayerCache>, num_rows: usize) -> Result<Self, LmError> {
        match num_rows {
            1 => Ok(RowCaches::one(prefix)),
            _ => Ok(RowCaches { caches: merge(vec![prefix; num_rows])?, num_rows }),
        }
    }

    /// The rows of all `parts`, in their order.
    ///
    /// Fails if there is no part, and if several are not of the same kinds with a batched form.
    pub fn joined(parts: Vec<RowCaches>) -> Result<Self, LmError> {
        let num_rows = parts.iter().map(RowCaches::num_rows).sum();
        let mut batches: Vec<Vec<LayerCache>> = Vec::new();
        // Rows that stand alone and follow each other are merged at once.
        let mut single: Vec<Vec<LayerCache>> = Vec::new();
        for part in parts {
            if part.num_rows > 1 {
                flush(&mut single, &mut batches)?;
                batches.push(part.caches);
            } else if num_rows == 1 {
                return Ok(part);
            } else {
                single.push(part.caches);
            }
        }
        flush(&mut single, &mut batches)?;
        // In pairs, so that no row is copied once for each batch that follows.
        while batches.len() > 1 {
            let mut left = std::mem::take(&mut batches).into_iter();
            while let Some(mut one) = left.next() {
                if let Some(other) = left.next() {
                    extend(&mut one, other)?;
                }
                batches.push(one);
            }
        }
        let caches = batches.pop().ok_or(LmError::MixedCaches)?;
        Ok(RowCaches { caches, num_rows })
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// How many tokens the longest row has read.
    pub fn num_columns(&self) -> usize {
        self.caches.iter().map(LayerCache::offset).max().unwrap_or(0)
    }

    /// Bytes of all caches, capacity included.
    pub fn num_bytes(&self) -> usize {
        self.caches.iter().map(LayerCache::nbytes).sum()
    }

    /// Copies of the rows `kept`, in that order; a row may be named several times.
    pub fn gathered(&self, kept: &[usize]) -> Result<Self, LmError> {
        if self.num_rows == 1 {
            return RowCaches::repeated(self.caches.clone(), kept.len());
        }
        if let [row] = *kept {
            return Ok(RowCaches::one(self.row(row)?));
        }
        let mut caches = self.caches.clone();
        filter(&mut caches, kept)?;
        Ok(RowCaches { caches, num_rows: kept.len() })
    }

    /// A copy of one row's caches, as if it had been computed alone.
    pub fn row(&self, row: usize) -> Result<Vec<LayerCache>, LmError> {
        if self.num_rows == 1 { Ok(self.caches.clone()) } else { extract(&self.caches, row) }
    }

    /// The arrays of all layers.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.caches.iter().flat_map(LayerCache::arrays)
    }

    pub(super) fn caches_mut(&mut self) -> &mut [LayerCache] {
        &mut self.caches
    }

    /// Announces how many tokens of the coming passes belong to each of several rows.
    pub(super) fn prepare(&mut self, lengths: &[i32]) -> Result<(), LmError> {
        prepare(&mut self.caches, lengths)
    }

    /// Ends what [`RowCaches::prepare`] announced.
    pub(super) fn finalize(&mut self) -> Result<(), LmError> {
        finalize(&mut self.caches)
    }
}

/// Merges the rows that wait into one batch.
fn flush(
    single: &mut Vec<Vec<LayerCache>>,
    batches: &mut Vec<Vec<LayerCache>>,
) -> Result<(), LmError> {
    if !single.is_empty() {
        batches.push(merge(std::mem::take(single))?);
    }
    Ok(())
}
