//! The gated activation of most MLPs.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::device::ComputeDevice;
use crate::ffi::Compiled;

/// SwiGLU (Shazeer 2020): `silu(gate) * up`.
///
/// Compiled to one kernel on a GPU, without intermediate arrays. On the CPU backend, where MLX
/// would start a C++ compiler, it runs as plain operations.
#[derive(Debug)]
pub struct SwiGlu(Option<Compiled>);

impl SwiGlu {
    /// The function for MLX's default device.
    pub fn new() -> Result<Self, Exception> {
        if ComputeDevice::current() == ComputeDevice::Cpu {
            return Ok(SwiGlu(None));
        }
        let compiled = Compiled::elementwise(Box::new(|inputs| {
            let [gate, up]: [Array; 2] = inputs
                .try_into()
                .map_err(|_| Exception::custom("SwiGLU takes a gate and an input".to_owned()))?;
            Ok(vec![written_out(gate, up)?])
        }))?;
        Ok(SwiGlu(Some(compiled)))
    }

    /// Two arrays of the same shape to one of that shape.
    pub fn forward(&self, gate: Array, up: Array) -> Result<Array, Exception> {
        match &self.0 {
            None => written_out(gate, up),
            Some(compiled) => {
                let [activated] = compiled.call(&[&gate, &up])?;
                Ok(activated)
            }
        }
    }
}

fn written_out(gate: Array, up: Array) -> Result<Array, Exception> {
    ops::multiply(up, ops::multiply(ops::sigmoid(&gate)?, gate)?)
}
