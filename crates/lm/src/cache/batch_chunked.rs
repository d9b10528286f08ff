//! A cache of the last chunk or two, for several rows at once.

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::kind::CacheKind;
use super::rows::rope_offset;
use super::{
    AttentionStep, BatchKvCache, ChunkedKvCache, KeysValues, LayerCache, LayerCacheSpec, Mask,
    causal_mask,
};
use crate::LmError;

/// Several [`ChunkedKvCache`]s as the rows of one, for programs that make such caches: Llama 4 here keeps
/// all tokens. mlx-lm has no such cache.
///
/// The rows are those of a [`BatchKvCache`]; columns that no later token of any row attends to leave it
/// once there are many.
#[derive(Debug, Clone)]
pub struct BatchChunkedKvCache {
    rows: BatchKvCache,
    chunk_size: i32,
}

impl BatchChunkedKvCache {
    /// So many unseen columns are dropped at once.
    const MANY: i32 = super::buffer::STEP;

    /// Merges the `caches` of single rows, left-padded to the longest.
    ///
    /// Panics if `caches` is empty, and unless all have the same `chunk_size`.
    pub fn merge(caches: &[ChunkedKvCache]) -> Result<Self> {
        let chunk_size = caches.first().map(ChunkedKvCache::chunk_size);
        assert!(
            caches.iter().all(|cache| Some(cache.chunk_size()) == chunk_size),
            "the rows of a batch have chunks of one size"
        );
        let rows = caches.iter().map(ChunkedKvCache::to_plain).collect::<Result<Vec<_>>>()?;
        let chunk_size = chunk_size.unwrap_or(1) as i32;
        Ok(BatchChunkedKvCache { rows: BatchKvCache::merge(&rows)?, chunk_size })
    }

    /// How many tokens a step can look back to.
    pub fn chunk_size(&self) -> usize {
        self.chunk_size as usize
    }

    /// Drops the columns that no later token sees, if they are many.
    fn drop_unseen(&mut self) -> Result<()> {
        let unseen = self.first_columns(0).into_iter().min().unwrap_or(0);
        // The last token stays, and with it how many came before, where the next begins a chunk.
        let unseen = unseen.min(self.rows.num_columns() - 1);
        if unseen >= Self::MANY { self.rows.drop_columns(unseen) } else { Ok(()) }
    }

    /// The first column that the token `ahead` tokens after a row's last sees, of each row.
    fn first_columns(&self, ahead: i32) -> Vec<i32> {
        let first = |(position, [column, at]): (i32, [i32; 2])| {
            let chunk = (position + ahead) / self.chunk_size * self.chunk_size;
            column + (chunk - at).max(0)
        };
        std::iter::zip(self.rows.offsets(), self.rows.first_tokens()).map(first).collect()
    }
}

impl CacheKind for BatchChunkedKvCache {
    fn name(&self) -> &'static str {
        "batch of chunked caches"
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        None
    }

    fn offset(&self) -> usize {
        self.rows.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        self.rows.arrays()
    }

    /// The tokens attend to those before them in their own chunk of their row.
    fn attention_step(&self, length: i32, _window: Option<i32>) -> Result<AttentionStep> {
        let offset = rope_offset(&self.rows.offsets());
        if length == 1 {
            return self.rows.single_step(offset, self.first_columns(0));
        }
        let start = self.rows.num_columns();
        let by_token: Vec<_> = (0..length).map(|ahead| self.first_columns(ahead)).collect();
        let mask = match by_token.iter().flatten().all(|&first| first == 0) {
            true => Mask::Causal,
            false => {
                let num_rows = self.rows.num_rows() as i32;
                let by_row = |row: usize| by_token.iter().map(move |columns| columns[row]);
                let first: Vec<i32> = (0..num_rows as usize).flat_map(by_row).collect();
                let first = Array::from_slice(&first, &[num_rows, 1, length, 1]);
                let columns = ops::arange::<_, i32>(0, start + length, 1)?;
                Mask::Array(columns.ge(first)?.logical_and(causal_mask(length, start, None)?)?)
            }
        };
        Ok(AttentionStep::new(offset, mask))
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.rows.update_and_fetch(keys, values)?;
        // Now, because the layers of a step share what its tokens see.
        self.drop_unseen()?;
        Ok(KeysValues::Dense { keys, values })
    }

    /// As a chunked cache: not once tokens have been dropped.
    fn is_trimmable(&self) -> bool {
        self.rows.is_trimmable()
    }

    fn trim(&mut self, num_tokens: usize) -> usize {
        self.rows.trim(num_tokens)
    }

    fn extend(&mut self, other: LayerCache) -> std::result::Result<(), LmError> {
        match other {
            LayerCache::BatchChunked(other) if other.chunk_size == self.chunk_size => {
                Ok(self.rows.extend(other.rows)?)
            }
            _ => Err(LmError::MixedCaches),
        }
    }

    fn filter(&mut self, kept: &[usize]) -> std::result::Result<(), LmError> {
        Ok(self.rows.filter(kept)?)
    }

    fn extract(&self, row: usize) -> std::result::Result<LayerCache, LmError> {
        let plain = self.rows.extract(row)?;
        Ok(LayerCache::Chunked(ChunkedKvCache::of_plain(self.chunk_size, &plain)?))
    }

    fn prepare(&mut self, lengths: &[i32]) -> std::result::Result<(), LmError> {
        self.rows.prepare(lengths);
        Ok(())
    }

    fn finalize(&mut self) -> std::result::Result<(), LmError> {
        Ok(self.rows.finalize()?)
    }
}
