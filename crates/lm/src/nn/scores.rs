//! The scores of attention: their factor, their cap, and their sinks.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::scalar::constant;
use crate::device_kernels::HeadShape;

/// How products of queries and keys become scores.
#[derive(Debug, Clone, Copy)]
pub struct Scores<'a> {
    /// Their factor.
    pub scale: f32,
    /// What they are capped to after that, c: `c tanh(score / c)`.
    pub softcap: Option<f32>,
    /// A score of each head `[H]` that is one of the softmax and has no value: a token may attend to
    /// nothing.
    pub sinks: Option<&'a Array>,
}

impl From<f32> for Scores<'_> {
    fn from(scale: f32) -> Self {
        Scores { scale, softcap: None, sinks: None }
    }
}

impl From<HeadShape> for Scores<'_> {
    fn from(HeadShape { scale, softcap, .. }: HeadShape) -> Self {
        Scores { scale, softcap, sinks: None }
    }
}

impl<'a> Scores<'a> {
    /// With these sinks, if there are some.
    pub fn with_sinks(self, sinks: Option<&'a Array>) -> Self {
        Scores { sinks, ..self }
    }

    /// Scores of products with scaled queries.
    pub(super) fn capped(self, scores: Array) -> Result<Array, Exception> {
        match self.softcap {
            Some(cap) => softcap(&scores, cap),
            None => Ok(scores),
        }
    }
}

/// `c tanh(x / c)` of each number.
pub fn softcap(x: &Array, cap: f32) -> Result<Array, Exception> {
    let small = ops::divide(x, constant(cap, x.dtype())?)?;
    ops::multiply(ops::tanh(&small)?, constant(cap, x.dtype())?)
}
