//! Formulas of several elementwise operations, each one launch on a GPU.

use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device::ComputeDevice;
use crate::ffi::Compiled;

type Formula<const N: usize, const M: usize> =
    Rc<dyn Fn([&Array; N]) -> Result<[Array; M], Exception>>;

/// A function of N arrays that is computed number by number, with M results; shapes are broadcast.
///
/// Compiled to one kernel on a GPU, without intermediate arrays: one node of the graph. On the CPU
/// backend, where MLX would start a C++ compiler, it runs as plain operations. Arrays that the
/// formula holds are constants, of which nothing depends on a token.
pub struct Elementwise<const N: usize, const M: usize = 1> {
    formula: Formula<N, M>,
    compiled: OnceCell<Compiled>,
}

impl<const N: usize> Elementwise<N> {
    /// The formula, which is traced once for all shapes.
    pub fn new(formula: impl Fn([&Array; N]) -> Result<Array, Exception> + 'static) -> Self {
        Elementwise::with_results(move |inputs| Ok([formula(inputs)?]))
    }

    /// The formula's result for `inputs`.
    pub fn call(&self, inputs: [&Array; N]) -> Result<Array, Exception> {
        let [result] = self.call_all(inputs)?;
        Ok(result)
    }
}

impl<const N: usize, const M: usize> Elementwise<N, M> {
    /// As [`Elementwise::new`], with M results of one shape.
    pub fn with_results(
        formula: impl Fn([&Array; N]) -> Result<[Array; M], Exception> + 'static,
    ) -> Self {
        Elementwise { formula: Rc::new(formula), compiled: OnceCell::new() }
    }

    /// The formula's results for `inputs`.
    pub fn call_all(&self, inputs: [&Array; N]) -> Result<[Array; M], Exception> {
        if ComputeDevice::current() == ComputeDevice::Cpu {
            return (self.formula)(inputs);
        }
        let compiled = match self.compiled.get() {
            Some(compiled) => compiled,
            None => {
                let compiled = self.compile()?;
                self.compiled.get_or_init(|| compiled)
            }
        };
        compiled.call(&inputs)
    }

    fn compile(&self) -> Result<Compiled, Exception> {
        let formula = self.formula.clone();
        let traced = Box::new(move |inputs: Vec<Array>| {
            match inputs.iter().collect::<Vec<_>>().try_into() {
                Ok(inputs) => Ok(formula(inputs)?.into()),
                Err(_) => Err(Exception::custom(format!("a formula takes {N} arrays"))),
            }
        });
        Compiled::elementwise(traced)
    }
}

impl<const N: usize, const M: usize> fmt::Debug for Elementwise<N, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elementwise<{N}, {M}>")
    }
}
