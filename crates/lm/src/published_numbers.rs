//! Numbers that published files hold in another form than MLX's: matrices without the factors that
//! belong into them, and norms less one.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

/// In which form a family's published files hold their numbers, and how one tells them from MLX's, whose
/// names and shapes may be the same.
#[derive(Debug, Clone, Default)]
pub(crate) enum PublishedNumbers {
    /// In MLX's.
    #[default]
    Same,
    WithoutFactors(PublishedFactors),
    /// Some norms are stored less one, where files have one of these signs.
    NormsLessOne(Vec<Sign>),
}

/// What only published files have.
#[derive(Debug, Clone)]
pub(crate) enum Sign {
    /// A tensor of this name.
    Tensor(String),
    /// A convolution of this name whose last axis is longer than one.
    Convolution(String),
}

impl Sign {
    /// Whether files have it whose tensors have these shapes.
    pub(crate) fn is_in<'a>(&self, shape_of: impl Fn(&str) -> Option<&'a [usize]>) -> bool {
        match self {
            Sign::Tensor(name) => shape_of(name).is_some(),
            Sign::Convolution(name) => shape_of(name).is_some_and(|shape| shape.last() != Some(&1)),
        }
    }
}

/// Factors of matrices in files that were published; mlx-lm's hold the products.
#[derive(Debug, Clone)]
pub struct PublishedFactors {
    /// The weights of a convolution: files that have them in PyTorch's order lack the factors.
    pub convolution: &'static str,
    pub factors: Vec<MatrixFactor>,
}

impl PublishedFactors {
    /// The factors that the matrices lack of files whose tensors have these shapes.
    pub(crate) fn missing<'a>(
        &self,
        shape_of: impl Fn(&str) -> Option<&'a [usize]>,
    ) -> &[MatrixFactor] {
        match shape_of(self.convolution) {
            Some(&[_, taps, last]) if last > taps => &self.factors,
            _ => &[],
        }
    }
}

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
    /// That of the tensor `name`, if it has one; of a quantized matrix its scales and biases have it.
    pub(crate) fn of<'a>(factors: &'a [MatrixFactor], name: &str) -> Option<&'a MatrixFactor> {
        let matrix = match name.rsplit_once('.') {
            Some((path, "scales" | "biases")) => format!("{path}.weight"),
            _ => name.to_owned(),
        };
        factors.iter().find(|factor| matrix.ends_with(factor.name))
    }

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
