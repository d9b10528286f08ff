//! MLX's fused operations: a node of the graph each on a GPU, many on a CPU.

#[cfg(not(test))]
pub(crate) use crate::ffi::dequantize;
#[cfg(not(test))]
pub(crate) use mlx_rs::fast::{
    layer_norm, rms_norm, rope, rope_dynamic, scaled_dot_product_attention,
};

#[cfg(test)]
pub(crate) use stand_ins::{
    dequantize, layer_norm, rms_norm, rope, rope_dynamic, scaled_dot_product_attention,
};

/// The same functions, but one node of the same inputs and shape where a graph is counted as a GPU
/// has it.
#[cfg(test)]
mod stand_ins {
    use mlx_rs::error::Result;
    use mlx_rs::fast::{self, ScaledDotProductAttentionMask};
    use mlx_rs::{Array, ops};

    use crate::device::ComputeDevice;
    use crate::device_kernels::QuantizedRows;
    use crate::ffi::{self, depends};

    fn as_one_node(result: Array, inputs: &[&Array]) -> Result<Array> {
        if ComputeDevice::current() == ComputeDevice::Cpu {
            return Ok(result);
        }
        let zeros = ops::zeros_dtype(result.shape(), result.dtype())?;
        zeros.eval()?;
        Ok(depends(&[&zeros], inputs)?.swap_remove(0))
    }

    pub(crate) fn dequantize(rows: QuantizedRows<'_>) -> Result<Array> {
        as_one_node(ffi::dequantize(rows)?, &[rows.packed, rows.scales])
    }

    pub(crate) fn rms_norm(
        x: impl AsRef<Array>,
        weight: Option<&Array>,
        eps: f32,
    ) -> Result<Array> {
        as_one_node(fast::rms_norm(&x, weight, eps)?, &[x.as_ref()])
    }

    pub(crate) fn layer_norm<'a>(
        x: impl AsRef<Array>,
        weight: impl Into<Option<&'a Array>>,
        bias: impl Into<Option<&'a Array>>,
        eps: f32,
    ) -> Result<Array> {
        as_one_node(fast::layer_norm(&x, weight, bias, eps)?, &[x.as_ref()])
    }

    pub(crate) fn rope<'a>(
        x: impl AsRef<Array>,
        dimensions: i32,
        traditional: bool,
        base: impl Into<Option<f32>>,
        scale: f32,
        offset: i32,
        freqs: impl Into<Option<&'a Array>>,
    ) -> Result<Array> {
        let result = fast::rope(&x, dimensions, traditional, base, scale, offset, freqs)?;
        as_one_node(result, &[x.as_ref()])
    }

    pub(crate) fn rope_dynamic<'a>(
        x: impl AsRef<Array>,
        dimensions: i32,
        traditional: bool,
        base: impl Into<Option<f32>>,
        scale: f32,
        offset: impl AsRef<Array>,
        freqs: impl Into<Option<&'a Array>>,
    ) -> Result<Array> {
        let result = fast::rope_dynamic(&x, dimensions, traditional, base, scale, &offset, freqs)?;
        as_one_node(result, &[x.as_ref(), offset.as_ref()])
    }

    pub(crate) fn scaled_dot_product_attention<'a>(
        queries: impl AsRef<Array>,
        keys: impl AsRef<Array>,
        values: impl AsRef<Array>,
        scale: f32,
        mask: impl Into<Option<ScaledDotProductAttentionMask<'a>>>,
        sinks: impl Into<Option<&'a Array>>,
    ) -> Result<Array> {
        let mask = mask.into();
        let masks = match &mask {
            Some(ScaledDotProductAttentionMask::Array(mask)) => vec![*mask],
            _ => Vec::new(),
        };
        let inputs = [queries.as_ref(), keys.as_ref(), values.as_ref()];
        let inputs: Vec<&Array> = inputs.into_iter().chain(masks.iter().copied()).collect();
        let result = fast::scaled_dot_product_attention(
            inputs[0], inputs[1], inputs[2], scale, mask, sinks,
        )?;
        as_one_node(result, &inputs)
    }
}
