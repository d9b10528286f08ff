//! Time in chunks, for recurrences that decay: a chunk's tokens become matrix products, and only its
//! end is passed on to the next chunk.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

/// The division of time into N chunks of C tokens. The last one is padded with tokens that do not
/// change the state.
#[derive(Debug)]
pub(super) struct TimeChunks {
    pub(super) batch: i32,
    pub(super) length: i32,
    pub(super) chunk: i32,
    pub(super) num_chunks: i32,
}

impl TimeChunks {
    /// Chunks of at most `most` tokens, a power of two. Fewer tokens than that are one smaller chunk.
    pub(super) fn of(batch: i32, length: i32, most: i32) -> Self {
        let chunk = most.min((length as u32).next_power_of_two() as i32);
        TimeChunks { batch, length, chunk, num_chunks: (length + chunk - 1) / chunk }
    }

    /// Where chunks but the first begin among chunks.
    pub(super) fn ends(&self) -> Vec<i32> {
        (1..self.num_chunks).collect()
    }

    /// `[B, L, H * R, D]` to `[N, B, H, R, C, D]`.
    pub(super) fn vectors(
        &self,
        array: &Array,
        heads: i32,
        sharing: i32,
    ) -> Result<Array, Exception> {
        let shape = [self.batch, self.num_chunks, self.chunk, heads, sharing, array.dim(3)];
        ops::reshape(self.filled_up(array, 0.0)?, &shape)?.transpose_axes(&[1, 0, 3, 4, 2, 5])
    }

    /// `[B, L, H * R]` to `[N, B, H, R, C, 1]`.
    pub(super) fn numbers(
        &self,
        array: &Array,
        heads: i32,
        sharing: i32,
        filling: f32,
    ) -> Result<Array, Exception> {
        let shape = [self.batch, self.num_chunks, self.chunk, heads, sharing, 1];
        ops::reshape(self.filled_up(array, filling)?, &shape)?.transpose_axes(&[1, 0, 3, 4, 2, 5])
    }

    /// Each chunk's `[1, B, H, R, C, D]` to `[B, L, H * R, D]`.
    pub(super) fn joined(&self, chunks: &[Array]) -> Result<Array, Exception> {
        let joined = ops::concatenate(chunks, 0)?.transpose_axes(&[1, 0, 4, 2, 3, 5])?; // [B, N, C, H, R, D]
        let &[batch, _, _, heads, sharing, dim] = joined.shape() else {
            return Err(Exception::custom("chunks have six axes".to_owned()));
        };
        let width = heads * sharing;
        let joined = ops::reshape(joined, &[batch, self.num_chunks * self.chunk, width, dim])?;
        crate::ffi::slice(&joined, &[0; 4], &[batch, self.length, width, dim])
    }

    fn filled_up(&self, array: &Array, filling: f32) -> Result<Array, Exception> {
        let mut shape = array.shape().to_vec();
        shape[1] = self.chunk * self.num_chunks - self.length;
        if shape[1] == 0 {
            return Ok(array.clone());
        }
        let filling = ops::broadcast_to(Array::from_slice(&[filling], &[1]), &shape)?;
        ops::concatenate(&[array, &filling], 1)
    }
}

/// Decays `[..., C, 1]` to `[..., C, C]`: the factor by which what token j adds has decayed at token
/// i, and 0 for j > i.
///
/// The product is computed for each pair of tokens, because a quotient of two cumulative products
/// would lose precision for small decays, or be 0 / 0.
pub(super) fn decay_between(decay: &Array, chunk: i32) -> Result<Array, Exception> {
    let grid = |is_kept: fn(i32, i32) -> bool| -> Vec<bool> {
        (0..chunk).flat_map(|row| (0..chunk).map(move |column| is_kept(row, column))).collect()
    };
    let is_later = Array::from_slice(&grid(|row, column| row > column), &[chunk, chunk]);
    let factors = ops::select(is_later, decay, Array::from_slice(&[1.0f32], &[1]))?;
    let not_after: Vec<f32> = grid(|row, column| row >= column)
        .into_iter()
        .map(|is_kept| f32::from(u8::from(is_kept)))
        .collect();
    ops::multiply(factors.cumprod(-2, false, true)?, Array::from_slice(&not_after, &[chunk, chunk]))
}

/// Row `C - 1` of `array` along `axis`, whose length stays as one.
pub(super) fn last_of_chunk(array: &Array, chunk: i32, axis: i32) -> Result<Array, Exception> {
    array.take_axis(Array::from_slice(&[chunk - 1], &[1]), axis)
}
