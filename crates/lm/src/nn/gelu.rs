//! GELU in its tanh approximation (Hendrycks and Gimpel 2016), as plain operations: MLX's compiled
//! form would start a C++ compiler at run time on the CPU backend.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::nn::exponential::sigmoid;

/// `x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 x³)))`, computed in fewer operations as
/// `x * sigmoid((a x² + b) x)`.
#[derive(Debug)]
pub struct GeluApprox {
    cubic: Array,  // a, scalar
    linear: Array, // b, scalar
}

impl GeluApprox {
    /// The function for arrays of `dtype`; constants of another type would change the result's
    /// type.
    pub fn new(dtype: Dtype) -> Result<Self, Exception> {
        // (1 + tanh z) / 2 = sigmoid(2 z)
        let linear = 2.0 * (2.0 / std::f32::consts::PI).sqrt();
        let constant = |value: f32| {
            let constant = Array::from_f32(value).as_dtype(dtype)?;
            constant.eval()?;
            Ok::<_, Exception>(constant)
        };
        Ok(GeluApprox { cubic: constant(0.044715 * linear)?, linear: constant(linear)? })
    }

    /// An array of any shape to one of the same shape.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let slope = ops::add(ops::multiply(ops::square(x)?, &self.cubic)?, &self.linear)?;
        ops::multiply(sigmoid(&ops::multiply(slope, x)?)?, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_formula_with_tanh() {
        let xs: Vec<f32> = (-80..=80).map(|tenth| tenth as f32 / 10.0).collect();
        let gelu = GeluApprox::new(Dtype::Float32).expect("constants");
        let found = gelu.forward(&Array::from_slice(&xs, &[xs.len() as i32])).expect("forward");
        found.eval().expect("eval");
        for (&x, &found) in xs.iter().zip(found.as_slice::<f32>()) {
            let x = f64::from(x);
            let expected = 0.5
                * x
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
            assert!(
                (f64::from(found) - expected).abs() < 1e-5,
                "gelu({x}) is {expected}, got {found}"
            );
        }
    }

    #[test]
    fn keeps_the_type_of_its_argument() {
        let gelu = GeluApprox::new(Dtype::Bfloat16).expect("constants");
        let x = Array::from_f32(1.0).as_dtype(Dtype::Bfloat16).expect("as_dtype");
        assert_eq!(gelu.forward(&x).expect("forward").dtype(), Dtype::Bfloat16);
    }
}
