//! Queries that grow with their position, so that attention over long contexts stays as sharp (Llama 4).

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::cache::RopeOffset;

/// A query at position p is multiplied by `1 + growth ln(1 + ⌊(p + first) / span⌋)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionScale {
    pub growth: f32,
    pub span: f32,
    /// The number of the first position.
    pub first: i32,
}

impl PositionScale {
    /// `queries` `[B, H, L, D]`, the first of which have the position `offset`.
    pub fn forward(&self, queries: &Array, offset: &RopeOffset) -> Result<Array, Exception> {
        let length = queries.dim(2);
        let scales = match offset {
            // Nothing grows within the first span.
            RopeOffset::Same(offset) if ((offset + length + self.first) as f32) <= self.span => {
                return Ok(queries.clone());
            }
            RopeOffset::Same(offset) => {
                let scale = |position: i32| {
                    let spans = ((position + self.first) as f32 / self.span).floor();
                    1.0 + self.growth * (1.0 + spans).ln()
                };
                let scales: Vec<f32> = (*offset..offset + length).map(scale).collect();
                Array::from_slice(&scales, &[length, 1])
            }
            RopeOffset::PerRow(offsets) => {
                let first = offsets.reshape(&[-1, 1, 1, 1])?;
                let steps = ops::arange::<_, i32>(self.first, self.first + length, 1)?
                    .reshape(&[length, 1])?;
                let spans = ops::divide(ops::add(first, steps)?, Array::from_f32(self.span))?;
                let logs = ops::log1p(ops::floor(spans)?)?;
                ops::add(ops::multiply(logs, Array::from_f32(self.growth))?, Array::from_f32(1.0))?
            }
        };
        ops::multiply(queries, scales.as_dtype(queries.dtype())?)
    }
}
