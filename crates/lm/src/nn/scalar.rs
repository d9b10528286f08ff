//! Numbers as arrays, of the type that the operations with them have.

use cairn_formats::bfloat16;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use crate::ffi;

/// A number of a type, evaluated: constants of another type would change a result's type.
pub(crate) fn scalar(number: f32, dtype: Dtype) -> Result<Array, Exception> {
    let scalar = Array::from_f32(number).as_dtype(dtype)?;
    scalar.eval()?;
    Ok(scalar)
}

/// A scalar of this dtype, so that operations with it keep the dtype.
pub(super) fn constant(number: f32, dtype: Dtype) -> Result<Array, Exception> {
    match dtype {
        Dtype::Float32 => Ok(Array::from_f32(number)),
        // Rounded here: a conversion would be a node of every graph.
        Dtype::Bfloat16 => {
            let high = (bfloat16(number).to_bits() >> 16) as u16;
            ffi::array_from_bytes(&high.to_le_bytes(), &[], dtype)
        }
        _ => Array::from_f32(number).as_dtype(dtype),
    }
}

/// The lowest finite number of a float type.
pub(super) fn least(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Float16 => -65504.0,
        // The lowest bfloat16; f32::MIN itself would round to minus infinity.
        Dtype::Bfloat16 => f32::from_bits(0xff7f_0000),
        _ => f32::MIN,
    }
}
