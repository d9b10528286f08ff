//! The vectors of texts: their final hidden states, pooled.

use mlx_rs::{Array, Dtype, ops};

use super::{begin_rows, padded_columns};
use crate::cache::LayerCache;
use crate::embedding::Pooling;
use crate::models::Model;
use crate::{LmError, memory};

/// Makes a vector of each of several rows of tokens, in slices, between which the caller may do
/// other work. Shorter rows are padded on the right: no token sees what follows it.
#[derive(Debug)]
pub struct Embedder {
    model: Model,
    pooling: Pooling,
    rows: Vec<Vec<u32>>,
    caches: Vec<LayerCache>,
    /// The length of the longest row.
    width: usize,
    /// How many columns have been read.
    num_read: usize,
    /// The weighted hidden states read so far, added up; f32 `[B, D]`.
    sums: Option<Array>,
}

impl Embedder {
    /// Reads nothing yet. Fails on a row that is empty, longer than the context, or has ids outside
    /// the vocabulary.
    pub fn new(model: &Model, rows: Vec<Vec<u32>>, pooling: Pooling) -> Result<Self, LmError> {
        let (caches, width) = begin_rows(model, &rows)?;
        let model = model.clone();
        Ok(Embedder { model, pooling, rows, caches, width, num_read: 0, sums: None })
    }

    /// How many tokens are not read yet, without padding.
    pub fn num_left(&self) -> usize {
        self.rows.iter().map(|row| row.len().saturating_sub(self.num_read)).sum()
    }

    /// Reads about `max_tokens`, at least one of each row, and returns how many it read; padding
    /// counts. After an error the rows are of no further use.
    pub fn read(&mut self, max_tokens: usize) -> Result<usize, LmError> {
        let length = (max_tokens / self.rows.len().max(1)).max(1);
        let (start, stop) = (self.num_read, self.width.min(self.num_read + length));
        if start == stop {
            return Ok(0);
        }
        let rows = self.rows.iter().map(Vec::as_slice);
        let tokens = padded_columns(rows, start..stop);
        let hidden = self.model.forward(&tokens, &mut self.caches)?; // [B, L, D]
        let (num_rows, length) = (self.rows.len(), stop - start);
        let weights = self
            .rows
            .iter()
            .flat_map(|row| (start..stop).map(|column| self.pooling.weight(column, row.len())));
        let weights: Vec<f32> = weights.collect();
        let weights = Array::from_slice(&weights, &[num_rows as i32, length as i32, 1]);
        // A product of matrices may round to fewer bits on a GPU.
        let weighted = ops::multiply(hidden.as_dtype(Dtype::Float32)?, weights)?;
        let sums = weighted.sum_axis(1, false)?; // [B, D]
        let sums = match self.sums.take() {
            Some(before) => ops::add(before, sums)?,
            None => sums,
        };
        sums.eval()?;
        memory::clear_cache();
        self.sums = Some(sums);
        self.num_read = stop;
        Ok(num_rows * length)
    }

    /// The vectors, as long as the model's hidden ones, once all rows are read. Fails if the model
    /// computes no numbers.
    pub fn finish(self) -> Result<Vec<Vec<f32>>, LmError> {
        let Some(sums) = self.sums else { return Ok(Vec::new()) };
        let length = sums.dim(1) as usize;
        let numbers = sums.try_as_slice::<f32>()?;
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(self.model.no_numbers());
        }
        Ok(numbers.chunks(length.max(1)).map(<[f32]>::to_vec).collect())
    }
}
