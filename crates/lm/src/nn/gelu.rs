//! GELU (Hendrycks and Gimpel 2016), exact and in its tanh approximation, as plain operations: MLX's
//! compiled forms would start a C++ compiler at run time on the CPU backend.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::nn::exponential::sigmoid;
use crate::nn::scalar;

/// `x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 x³)))`, computed in fewer operations as
/// `x * sigmoid((x² + b) (a x))`: MLX's compiler fuses chains of at most eleven operations, in which
/// each of its broadcasts counts.
#[derive(Debug)]
pub struct GeluApprox {
    scale: Array,  // a, scalar
    offset: Array, // b, scalar
}

impl GeluApprox {
    /// The function for arrays of `dtype`; constants of another type would change the result's
    /// type.
    pub fn new(dtype: Dtype) -> Result<Self, Exception> {
        // (1 + tanh z) / 2 = sigmoid(2 z)
        let linear = 2.0 * (2.0 / std::f32::consts::PI).sqrt();
        Ok(GeluApprox {
            scale: scalar(0.044715 * linear, dtype)?,
            offset: scalar(1.0 / 0.044715, dtype)?,
        })
    }

    /// An array of any shape to one of the same shape.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let sum = ops::add(ops::square(x)?, &self.offset)?;
        let exponent = ops::multiply(sum, ops::multiply(x, &self.scale)?)?;
        ops::multiply(sigmoid(&exponent)?, x)
    }
}

/// `x / 2 * (1 + erf(x / √2))`.
#[derive(Debug)]
pub struct Gelu {
    root: Array, // 1 / √2, scalar
    half: Array, // scalar
}

impl Gelu {
    /// The function for arrays of `dtype`.
    pub fn new(dtype: Dtype) -> Result<Self, Exception> {
        let root = std::f32::consts::FRAC_1_SQRT_2;
        Ok(Gelu { root: scalar(root, dtype)?, half: scalar(0.5, dtype)? })
    }

    /// An array of any shape to one of the same shape.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let half = ops::multiply(x, &self.half)?;
        ops::add(&half, ops::multiply(&half, ops::erf(&ops::multiply(x, &self.root)?)?)?)
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
    fn the_exact_function_is_that_of_the_normal_distribution() {
        // x Φ(x), from a table of the normal distribution.
        let expected = [(-3.0, -0.004_049_7), (-1.0, -0.158_655_3), (0.0, 0.0), (0.5, 0.345_731_2)];
        let xs: Vec<f32> = expected.iter().map(|(x, _)| *x).collect();
        let gelu = Gelu::new(Dtype::Float32).expect("constants");
        let found = gelu.forward(&Array::from_slice(&xs, &[4])).expect("forward");
        found.eval().expect("eval");
        for ((x, expected), found) in expected.iter().zip(found.as_slice::<f32>()) {
            assert!((found - expected).abs() < 1e-6, "gelu({x}) is {expected}, got {found}");
        }
    }

    #[test]
    fn both_keep_the_type_of_their_argument() {
        let x = Array::from_f32(1.0).as_dtype(Dtype::Bfloat16).expect("as_dtype");
        let approx = GeluApprox::new(Dtype::Bfloat16).expect("constants");
        assert_eq!(approx.forward(&x).expect("forward").dtype(), Dtype::Bfloat16);
        let exact = Gelu::new(Dtype::Bfloat16).expect("constants");
        assert_eq!(exact.forward(&x).expect("forward").dtype(), Dtype::Bfloat16);
    }
}
