//! Multipliers of a model that belong into its matrices: MLX's files hold the products, published files
//! the matrices as they were trained.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

/// What the matrices with one name are multiplied by as they are read.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixFactor {
    /// How their tensors' names end.
    pub name: &'static str,
    pub of_all: f32,
    /// Further factors of so many rows each, of all rows or of none.
    pub of_rows: Vec<(i32, f32)>,
}

impl MatrixFactor {
    /// One factor of all numbers.
    pub fn new(name: &'static str, of_all: f32) -> Self {
        MatrixFactor { name, of_all, of_rows: Vec::new() }
    }

    /// The matrix `[outputs, inputs]` with its factors, computed in the type that it is stored in, as
    /// the reference does.
    pub(crate) fn times(&self, matrix: &Array) -> Result<Array, Exception> {
        let dtype = matrix.dtype();
        let of_all = Array::from_f32(self.of_all).as_dtype(dtype)?;
        if self.of_rows.is_empty() {
            return ops::multiply(matrix, of_all);
        }
        let rows: Vec<f32> = self
            .of_rows
            .iter()
            .flat_map(|&(count, factor)| std::iter::repeat_n(factor, count as usize))
            .collect();
        let rows = Array::from_slice(&rows, &[rows.len() as i32, 1]).as_dtype(dtype)?;
        ops::multiply(matrix, ops::multiply(of_all, rows)?)
    }
}
