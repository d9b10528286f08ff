//! Linear layers: dense or affine-quantized, single or several fused into one product.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::device::ComputeDevice;
use crate::ffi;
use crate::nn::cuda::{self, Fusion, QuantizedRows};
use crate::weights::Layer;

/// `y = x Wᵀ (+ b)`.
#[derive(Debug)]
pub struct Linear {
    matrix: Matrix,
    bias: Option<Array>, // [out]
}

#[derive(Debug)]
enum Matrix {
    /// `[in, out]`, in the order of [`product_order`].
    Dense(Array),
    /// Packed rows of `bits`-wide integers with a scale and bias per group.
    Quantized { weight: Array, scales: Array, biases: Array, settings: Quantization },
}

impl Linear {
    /// Takes `weight` `[outputs, inputs]`, or the packed weight with `scales` and `biases` if the
    /// layer is quantized, and `bias` `[outputs]` if `has_bias`.
    pub fn load(
        layer: &mut Layer,
        inputs: i32,
        outputs: i32,
        has_bias: bool,
    ) -> Result<Self, LmError> {
        let bias = if has_bias { Some(layer.take("bias", &[outputs])?) } else { None };
        let matrix = match layer.quantization()? {
            Some(settings) => {
                let (weight, scales, biases) = layer.take_quantized(inputs, outputs, settings)?;
                if layer.keeps_quantized() {
                    Matrix::Quantized { weight, scales, biases, settings }
                } else {
                    Matrix::Dense(product_order(
                        &layer.dequantize(&weight, &scales, &biases, settings)?,
                    )?)
                }
            }
            None => Matrix::Dense(product_order(&layer.take("weight", &[outputs, inputs])?)?),
        };
        Ok(Linear { matrix, bias })
    }

    /// `[..., in]` to `[..., out]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let product = match &self.matrix {
            Matrix::Dense(weight) => match &self.bias {
                // One graph node instead of two.
                Some(bias) => return ops::addmm(bias, x, weight, None, None),
                None => ops::matmul(x, weight)?,
            },
            Matrix::Quantized { weight, scales, biases, settings } => quantized_product(
                x,
                QuantizedRows { packed: weight, scales, biases, settings: *settings },
            )?,
        };
        match &self.bias {
            Some(bias) => ops::add(product, bias),
            None => Ok(product),
        }
    }

    /// `residual + forward(x)`; one kernel launch for a batch on a CUDA device.
    pub fn forward_onto(&self, residual: &Array, x: &Array) -> Result<Array, Exception> {
        let fusion = Fusion { residual: Some(residual), ..Fusion::default() };
        if let Some(rows) = self.quantized()
            && let Some(sum) = cuda::batch_product(x, rows, fusion)?
        {
            return Ok(sum);
        }
        ops::add(residual, self.forward(x)?)
    }

    /// The matrix, if it is quantized and there is no bias.
    pub fn quantized(&self) -> Option<QuantizedRows<'_>> {
        match (&self.matrix, &self.bias) {
            (Matrix::Quantized { weight, scales, biases, settings }, None) => {
                Some(QuantizedRows { packed: weight, scales, biases, settings: *settings })
            }
            _ => None,
        }
    }

    /// Stacks the outputs of layers with the same input; `None` if their kinds or settings differ.
    fn stack(layers: &[Linear]) -> Result<Option<Linear>, Exception> {
        let bias = match layers.iter().map(|layer| layer.bias.as_ref()).collect::<Option<Vec<_>>>()
        {
            Some(biases) => Some(ops::concatenate(&biases, 0)?),
            None if layers.iter().all(|layer| layer.bias.is_none()) => None,
            None => return Ok(None),
        };
        let matrices: Vec<&Matrix> = layers.iter().map(|layer| &layer.matrix).collect();
        let matrix = match matrices.as_slice() {
            [Matrix::Dense(_), ..] => {
                let mut rows = Vec::new();
                for matrix in &matrices {
                    let Matrix::Dense(weight) = matrix else { return Ok(None) };
                    rows.push(weight.transpose()?);
                }
                Matrix::Dense(product_order(&ops::concatenate(&rows, 0)?)?)
            }
            [Matrix::Quantized { settings: first, .. }, ..] => {
                let (mut weights, mut all_scales, mut all_biases) =
                    (Vec::new(), Vec::new(), Vec::new());
                for matrix in &matrices {
                    match matrix {
                        Matrix::Quantized { weight, scales, biases, settings }
                            if settings == first =>
                        {
                            weights.push(weight);
                            all_scales.push(scales);
                            all_biases.push(biases);
                        }
                        _ => return Ok(None),
                    }
                }
                Matrix::Quantized {
                    weight: ops::concatenate(&weights, 0)?,
                    scales: ops::concatenate(&all_scales, 0)?,
                    biases: ops::concatenate(&all_biases, 0)?,
                    settings: *first,
                }
            }
            [] => return Ok(None),
        };
        Ok(Some(Linear { matrix, bias }))
    }

    fn num_outputs(&self) -> i32 {
        match &self.matrix {
            Matrix::Dense(weight) => weight.dim(1),
            Matrix::Quantized { weight, .. } => weight.dim(0),
        }
    }

    /// A layer that computes only the outputs `outputs`, in that order. Its numbers are exactly the
    /// same, because outputs do not depend on each other.
    pub fn select_outputs(&self, outputs: &[i32]) -> Result<Linear, Exception> {
        let outputs = Array::from_slice(outputs, &[outputs.len() as i32]);
        let rows = |array: &Array| array.take_axis(&outputs, 0);
        let matrix = match &self.matrix {
            Matrix::Dense(weight) => Matrix::Dense(product_order(&rows(&weight.transpose()?)?)?),
            Matrix::Quantized { weight, scales, biases, settings } => Matrix::Quantized {
                weight: rows(weight)?,
                scales: rows(scales)?,
                biases: rows(biases)?,
                settings: *settings,
            },
        };
        Ok(Linear { matrix, bias: self.bias.as_ref().map(rows).transpose()? })
    }

    /// A layer that computes the outputs `from..to`, with views of the same arrays.
    fn outputs(&self, from: i32, to: i32) -> Result<Linear, Exception> {
        let rows = |array: &Array| ffi::slice(array, &[from, 0], &[to, array.dim(1)]);
        let matrix = match &self.matrix {
            Matrix::Dense(weight) => {
                Matrix::Dense(ffi::slice(weight, &[0, from], &[weight.dim(0), to])?)
            }
            Matrix::Quantized { weight, scales, biases, settings } => Matrix::Quantized {
                weight: rows(weight)?,
                scales: rows(scales)?,
                biases: rows(biases)?,
                settings: *settings,
            },
        };
        let bias = self.bias.as_ref().map(|bias| ffi::slice(bias, &[from], &[to])).transpose()?;
        Ok(Linear { matrix, bias })
    }

    fn arrays(&self) -> Vec<&Array> {
        let mut arrays: Vec<&Array> = self.bias.iter().collect();
        match &self.matrix {
            Matrix::Dense(weight) => arrays.push(weight),
            Matrix::Quantized { weight, scales, biases, .. } => {
                arrays.extend([weight, scales, biases])
            }
        }
        arrays
    }

    /// Evaluates the layer's arrays, so that intermediate arrays of the load are freed.
    pub fn eval(&self) -> Result<(), Exception> {
        mlx_rs::transforms::eval(self.arrays())
    }
}

/// Transposes a checkpoint's weights `[out, in]` to `[in, out]`: stored in that order on a CPU, as
/// a view on a GPU, whose kernels prefer the checkpoint's order.
///
/// OpenBLAS packs the weights for every product, which takes half as long again if it has to
/// transpose them. Measured with all products of SmolLM2-135M on two Zen cores: 53 ms instead of 69
/// for one row, 81 instead of 107 for eight, 498 instead of 525 for 128.
pub(super) fn product_order(weight: &Array) -> Result<Array, Exception> {
    match ComputeDevice::current() {
        ComputeDevice::Cpu => weight.transpose()?.contiguous(),
        ComputeDevice::Gpu => weight.transpose(),
    }
}

/// `x` `[..., K]` times `rows`: `[..., N]`.
pub(super) fn quantized_product(x: &Array, rows: QuantizedRows<'_>) -> Result<Array, Exception> {
    if let Some(product) = cuda::batch_product(x, rows, Fusion::default())? {
        return Ok(product);
    }
    let QuantizedRows { packed, scales, biases, settings } = rows;
    ops::quantized_matmul(x, packed, scales, biases, true, settings.group_size, settings.bits)
}

/// Several linear layers over the same input (q/k/v, gate/up), fused into one product if possible.
///
/// Outputs of a product do not depend on each other, so fusing changes no number. It saves graph
/// nodes, which determine the cost of a token when the host is slower than the device. Layers of
/// different kinds (per-layer quantization) are not fused.
#[derive(Debug)]
pub struct FusedLinear {
    stacked: Option<Linear>,
    /// The single layers; views of `stacked` if there is one.
    layers: Vec<Linear>,
}

impl FusedLinear {
    /// Fuses `layers` if they are of one kind and the device benefits.
    pub fn new(layers: Vec<Linear>) -> Result<Self, Exception> {
        // MLX's CPU backend copies views of stacked dense weights for each product, and parts of
        // its output for elementwise operations. Measured with SmolLM2-135M on two Zen cores:
        // stacking gate and up took 9 % longer for a prompt of 512 tokens and gained nothing for
        // one or eight rows; stacking q, k and v took 5 % longer for the prompt, with no measurable
        // gain per token.
        let is_faster_separate = ComputeDevice::current() == ComputeDevice::Cpu
            && layers.iter().any(|layer| matches!(layer.matrix, Matrix::Dense(_)));
        if is_faster_separate { Self::separate(layers) } else { Self::stacked(layers) }
    }

    fn stacked(layers: Vec<Linear>) -> Result<Self, Exception> {
        let Some(stacked) = Linear::stack(&layers)? else { return Self::separate(layers) };
        stacked.eval()?;
        let mut from = 0;
        let mut views = Vec::with_capacity(layers.len());
        for layer in &layers {
            let to = from + layer.num_outputs();
            views.push(stacked.outputs(from, to)?);
            from = to;
        }
        Ok(FusedLinear { stacked: Some(stacked), ..Self::separate(views)? })
    }

    fn separate(layers: Vec<Linear>) -> Result<Self, Exception> {
        layers.iter().try_for_each(Linear::eval)?;
        Ok(FusedLinear { stacked: None, layers })
    }

    /// The stacked matrix, if there is one and [`Linear::quantized`] returns it.
    pub fn quantized(&self) -> Option<QuantizedRows<'_>> {
        self.stacked.as_ref()?.quantized()
    }

    /// For a gate and an up projection: `silu(gate) * up` in one kernel launch, for a batch on a
    /// CUDA device; otherwise `None`.
    pub fn gated(&self, x: &Array) -> Result<Option<Array>, Exception> {
        match self.quantized() {
            Some(rows) => cuda::batch_product(x, rows, Fusion { gated: true, ..Fusion::default() }),
            None => Ok(None),
        }
    }

    /// `[..., in]` to the concatenated outputs of all layers, `[..., sum of out]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        match &self.stacked {
            Some(stacked) => stacked.forward(x),
            None => ops::concatenate(&self.forward_each(x)?, -1),
        }
    }

    /// `[B, L, in]` to the outputs of the N layers, each `[B, L, out]`.
    ///
    /// Single tokens use one product and split it. Longer inputs use a product per layer: the parts
    /// of one product would be strided, and elementwise operations on strided arrays cost more than
    /// the additional products.
    pub fn forward_split<const N: usize>(&self, x: &Array) -> Result<[Array; N], Exception> {
        let parts = match (x.shape(), &self.stacked) {
            (&[_, 1, _], Some(stacked)) => self.parts(&stacked.forward(x)?)?,
            _ => self.forward_each(x)?,
        };
        parts.try_into().map_err(|parts: Vec<Array>| {
            Exception::custom(format!("{} layers are fused here, not {N}", parts.len()))
        })
    }

    fn forward_each(&self, x: &Array) -> Result<Vec<Array>, Exception> {
        self.layers.iter().map(|layer| layer.forward(x)).collect()
    }

    /// The outputs of each layer, as views of `all`.
    fn parts(&self, all: &Array) -> Result<Vec<Array>, Exception> {
        let (mut from, mut to) = (vec![0; all.ndim()], all.shape().to_vec());
        let last = all.ndim() - 1; // a product has at least one axis
        to[last] = 0;
        let mut part = |layer: &Linear| {
            from[last] = to[last];
            to[last] += layer.num_outputs();
            ffi::slice(all, &from, &to)
        };
        self.layers.iter().map(&mut part).collect()
    }
}
