//! Linear layers: dense or affine-quantized, alone or several fused into one product.

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
    /// [in, out], as [`product_order`] stores it.
    Dense(Array),
    /// Packed rows of `bits`-wide integers with a scale and bias per group.
    Quantized { weight: Array, scales: Array, biases: Array, settings: Quantization },
}

impl Linear {
    /// Takes `weight` of `[outputs, inputs]`, packed with `scales` and `biases` where the layer is
    /// quantized, and `bias` where `has_bias`.
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
                // One node instead of two.
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

    /// `residual + forward(x)`, in one launch for rows of a batch on a CUDA device.
    pub fn forward_onto(&self, residual: &Array, x: &Array) -> Result<Array, Exception> {
        let fusion = Fusion { residual: Some(residual), ..Fusion::default() };
        if let Some(rows) = self.quantized()
            && let Some(sum) = cuda::batch_product(x, rows, fusion)?
        {
            return Ok(sum);
        }
        ops::add(residual, self.forward(x)?)
    }

    /// The matrix, where it is quantized and no bias is added to its product.
    pub fn quantized(&self) -> Option<QuantizedRows<'_>> {
        match (&self.matrix, &self.bias) {
            (Matrix::Quantized { weight, scales, biases, settings }, None) => {
                Some(QuantizedRows { packed: weight, scales, biases, settings: *settings })
            }
            _ => None,
        }
    }

    /// Stacks the outputs of layers that read the same input, where their kinds allow it.
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

    /// The layer whose outputs are those that `outputs` names, in that order: exact, as outputs do
    /// not depend on each other.
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

    /// The outputs `from..to` alone, as views of the same arrays.
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

    /// Computes the layer's arrays now, so that no file or intermediate stays alive behind them.
    pub fn eval(&self) -> Result<(), Exception> {
        mlx_rs::transforms::eval(self.arrays())
    }
}

/// A checkpoint's weights `[out, in]` as `[in, out]`, in the order that products read them.
///
/// OpenBLAS packs the weights anew for every product, and packing what must be transposed takes
/// half as long again: on two Zen cores all products of SmolLM2-135M took 53 ms instead of 69 for
/// one row, 81 instead of 107 for eight, 498 instead of 525 for 128. A GPU's kernels prefer the
/// checkpoint's order.
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

/// Several linear layers over the same input, in one product where that is exact.
///
/// Rows of a product do not depend on each other, so stacking q/k/v or gate/up changes no number;
/// it saves graph nodes, and on a host that is slower than its device those are what a token costs.
/// Layers of different kinds (per-layer quantization) stay apart.
#[derive(Debug)]
pub struct FusedLinear {
    stacked: Option<Linear>,
    /// The single layers; views into `stacked` where there is one.
    layers: Vec<Linear>,
}

impl FusedLinear {
    /// Fuses `layers` if they are of one kind and the device gains by it.
    pub fn new(layers: Vec<Linear>) -> Result<Self, Exception> {
        // MLX's CPU backend copies views of stacked dense weights for each product, and parts of
        // its output for elementwise work. Stacked, gate and up took 9 % longer for a prompt of 512
        // tokens and no less for one or eight single ones; q, k and v 5 % longer for a prompt, and
        // what they save single tokens is lost in the whole (SmolLM2-135M, two Zen cores).
        let is_better_apart = ComputeDevice::current() == ComputeDevice::Cpu
            && layers.iter().any(|layer| matches!(layer.matrix, Matrix::Dense(_)));
        if is_better_apart { Self::apart(layers) } else { Self::side_by_side(layers) }
    }

    fn side_by_side(layers: Vec<Linear>) -> Result<Self, Exception> {
        let Some(stacked) = Linear::stack(&layers)? else { return Self::apart(layers) };
        stacked.eval()?;
        let mut from = 0;
        let mut views = Vec::with_capacity(layers.len());
        for layer in &layers {
            let to = from + layer.num_outputs();
            views.push(stacked.outputs(from, to)?);
            from = to;
        }
        Ok(FusedLinear { stacked: Some(stacked), ..Self::apart(views)? })
    }

    fn apart(layers: Vec<Linear>) -> Result<Self, Exception> {
        layers.iter().try_for_each(Linear::eval)?;
        Ok(FusedLinear { stacked: None, layers })
    }

    /// The rows of all layers, one layer after the other, where they are stacked and as
    /// [`Linear::quantized`].
    pub fn quantized(&self) -> Option<QuantizedRows<'_>> {
        self.stacked.as_ref()?.quantized()
    }

    /// Of a gate and an up projection: `silu(gate) * up` in one launch, for rows of a batch on a
    /// CUDA device; otherwise none.
    pub fn gated(&self, x: &Array) -> Result<Option<Array>, Exception> {
        match self.quantized() {
            Some(rows) => cuda::batch_product(x, rows, Fusion { gated: true, ..Fusion::default() }),
            None => Ok(None),
        }
    }

    /// `[..., in]` to the outputs of all layers side by side, `[..., sum of out]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        match &self.stacked {
            Some(stacked) => stacked.forward(x),
            None => ops::concatenate(&self.forward_each(x)?, -1),
        }
    }

    /// `[B, L, in]` to the outputs of the N layers, `[B, L, out]`: parts of one product for single
    /// tokens; for more, several products, since parts of many rows would be strided, and
    /// elementwise work on those costs more than another product.
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

    /// The outputs of each layer, views of those of all.
    fn parts(&self, all: &Array) -> Result<Vec<Array>, Exception> {
        let (mut from, mut to) = (vec![0; all.ndim()], all.shape().to_vec());
        let last = all.ndim() - 1; // a product has axes
        to[last] = 0;
        let mut part = |layer: &Linear| {
            from[last] = to[last];
            to[last] += layer.num_outputs();
            ffi::slice(all, &from, &to)
        };
        self.layers.iter().map(&mut part).collect()
    }
}
