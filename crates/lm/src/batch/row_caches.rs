//! The caches of some rows that are computed together: joined, forked, taken apart.

use std::sync::Arc;

use mlx_rs::Array;

use crate::LmError;
use crate::cache::LayerCache;
use crate::cache::batch::{continued_by_rows, extend, extract, filter, finalize, merge, prepare};

/// The caches of one or more rows, one per layer.
#[derive(Debug, Clone)]
pub struct RowCaches {
    caches: Vec<LayerCache>,
    num_rows: usize,
    form: RowForm,
}

/// What the caches are.
#[derive(Debug, Clone)]
enum RowForm {
    /// Those of one row.
    One,
    /// Those of several rows that share nothing.
    Several,
    /// Those of rows that share a prefix.
    Behind(Arc<Prefix>),
}

/// What rows share. Those with the same handle share the same arrays.
#[derive(Debug)]
struct Prefix {
    num_tokens: usize,
    num_bytes: usize,
}

impl RowCaches {
    /// The caches of one row.
    pub fn one(caches: Vec<LayerCache>) -> Self {
        RowCaches { caches, num_rows: 1, form: RowForm::One }
    }

    /// Rows that all continue the same prefix, which is held once, or that have read nothing.
    ///
    /// Fails if there is no row, and for a kind of cache that has no form for several rows unless
    /// there is one row only.
    pub fn repeated(prefix: Vec<LayerCache>, num_rows: usize) -> Result<Self, LmError> {
        let num_tokens = prefix.iter().map(LayerCache::offset).max().unwrap_or(0);
        Ok(match (num_rows, num_tokens) {
            (0, _) => return Err(LmError::MixedCaches),
            (1, _) => RowCaches::one(prefix),
            (_, 0) => {
                let caches = merge(vec![prefix; num_rows])?;
                RowCaches { caches, num_rows, form: RowForm::Several }
            }
            _ => {
                let num_bytes = prefix.iter().map(LayerCache::nbytes).sum();
                let caches = continued_by_rows(&prefix, num_rows)?;
                let form = RowForm::Behind(Arc::new(Prefix { num_tokens, num_bytes }));
                RowCaches { caches, num_rows, form }
            }
        })
    }

    /// The rows of all `parts`, in their order. Unless all parts share a prefix, none does then.
    ///
    /// Fails if there is no part, and if several are not of the same kinds with a batched form.
    pub fn joined(mut parts: Vec<RowCaches>) -> Result<Self, LmError> {
        if let [_] = *parts {
            return parts.pop().ok_or(LmError::MixedCaches);
        }
        if !share_a_prefix(&parts) {
            parts =
                parts.into_iter().map(RowCaches::apart).collect::<Result<Vec<_>, _>>()?.concat();
        }
        let mut batches: Vec<RowCaches> = Vec::new();
        // Rows that stand alone and follow each other are merged at once.
        let mut single: Vec<Vec<LayerCache>> = Vec::new();
        for part in parts {
            if let RowForm::One = part.form {
                single.push(part.caches);
            } else {
                flush(&mut single, &mut batches)?;
                batches.push(part);
            }
        }
        flush(&mut single, &mut batches)?;
        // In pairs, so that no row is copied once for each batch that follows.
        while batches.len() > 1 {
            let mut left = std::mem::take(&mut batches).into_iter();
            while let Some(mut one) = left.next() {
                if let Some(other) = left.next() {
                    one.num_rows += other.num_rows;
                    extend(&mut one.caches, other.caches)?;
                }
                batches.push(one);
            }
        }
        batches.pop().ok_or(LmError::MixedCaches)
    }

    /// The rows with what they share as copies in each, in parts that can be joined with any others.
    fn apart(self) -> Result<Vec<RowCaches>, LmError> {
        match self.form {
            RowForm::Behind(_) => {
                (0..self.num_rows).map(|row| Ok(RowCaches::one(self.row(row)?))).collect()
            }
            RowForm::One | RowForm::Several => Ok(vec![self]),
        }
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// How many tokens all rows hold together, padding included; those that they share once.
    pub fn num_tokens(&self) -> usize {
        let num_columns = self.caches.iter().map(LayerCache::offset).max().unwrap_or(0);
        let num_shared = self.prefix().map_or(0, |prefix| prefix.num_tokens);
        num_shared + self.num_rows * (num_columns - num_shared)
    }

    /// Bytes of all caches, capacity and what the rows share included.
    pub fn num_bytes(&self) -> usize {
        let own: usize = self.caches.iter().map(LayerCache::nbytes).sum();
        own + self.prefix().map_or(0, |prefix| prefix.num_bytes)
    }

    fn prefix(&self) -> Option<&Arc<Prefix>> {
        if let RowForm::Behind(prefix) = &self.form { Some(prefix) } else { None }
    }

    /// The rows `kept`, in that order; a row may be named several times. Copied is only what rows do
    /// not share.
    pub fn gathered(&self, kept: &[usize]) -> Result<Self, LmError> {
        match (&self.form, kept) {
            (RowForm::One, _) => RowCaches::repeated(self.caches.clone(), kept.len()),
            (RowForm::Several, &[row]) => Ok(RowCaches::one(self.row(row)?)),
            _ => {
                let mut caches = self.caches.clone();
                filter(&mut caches, kept)?;
                Ok(RowCaches { caches, num_rows: kept.len(), form: self.form.clone() })
            }
        }
    }

    /// A copy of one row's caches, as if it had been computed alone.
    pub fn row(&self, row: usize) -> Result<Vec<LayerCache>, LmError> {
        match self.form {
            RowForm::One => Ok(self.caches.clone()),
            RowForm::Several | RowForm::Behind(_) => extract(&self.caches, row),
        }
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

/// Whether all continue the same arrays.
fn share_a_prefix(parts: &[RowCaches]) -> bool {
    let Some(first) = parts.first().and_then(RowCaches::prefix) else { return false };
    parts.iter().all(|part| part.prefix().is_some_and(|prefix| Arc::ptr_eq(prefix, first)))
}

/// Merges the rows that wait into one batch.
fn flush(single: &mut Vec<Vec<LayerCache>>, batches: &mut Vec<RowCaches>) -> Result<(), LmError> {
    if !single.is_empty() {
        let num_rows = single.len();
        let caches = merge(std::mem::take(single))?;
        batches.push(RowCaches { caches, num_rows, form: RowForm::Several });
    }
    Ok(())
}
