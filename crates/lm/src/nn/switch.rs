//! Feed-forward experts of which each token uses a few. Reference: mlx-lm's switch_layers.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::device_kernels::{Activation, Experts, QuantizedRows};
use crate::ffi;
use crate::nn::stored_experts::Joined;
use crate::nn::{GatedActivation, Routing, StoredExperts};
use crate::weights::Layer;

/// From this number of (token, expert) pairs on, they are sorted by expert, so that a GPU reads
/// each expert's weights once.
const MIN_SORTED: usize = 64;

/// Gated feed-forward experts, `down(silu(gate(x)) * up(x))`.
#[derive(Debug)]
pub struct SwitchGlu {
    gate_up_proj: GateUp,
    swiglu: GatedActivation,
    down_proj: SwitchLinear,
    intermediate: i32,
}

#[derive(Debug)]
enum GateUp {
    /// For each expert the gate's rows, then up's: one product with the same numbers.
    Joined(SwitchLinear),
    /// Separate matrices, if the two are quantized differently.
    Separate { gate: SwitchLinear, up: SwitchLinear },
}

impl SwitchGlu {
    /// Takes the experts of the block `layer` (for example "model.layers.0.mlp") from where they are
    /// `stored`.
    pub fn load(
        layer: &mut Layer,
        hidden: i32,
        intermediate: i32,
        num_experts: i32,
        stored: StoredExperts,
    ) -> Result<Self, LmError> {
        let Joined { gate_up, down } = stored.joined();
        let (gate_up_proj, down_proj) = if layer.holds(gate_up) {
            let mut stacked = |name, outputs, inputs| -> Result<SwitchLinear, LmError> {
                let weight = layer.take(name, &[num_experts, outputs, inputs])?;
                Ok(SwitchLinear::Dense(ops::swap_axes(weight, 1, 2)?))
            };
            let joined = stacked(gate_up, 2 * intermediate, hidden)?;
            (GateUp::Joined(joined), stacked(down, hidden, intermediate)?)
        } else {
            let mut load = |name, inputs, outputs| {
                SwitchLinear::load(layer, (stored, name), inputs, outputs, num_experts)
            };
            let gate = load("gate_proj", hidden, intermediate)?;
            let up = load("up_proj", hidden, intermediate)?;
            let gate_up = match SwitchLinear::join(&gate, &up)? {
                Some(joined) => GateUp::Joined(joined),
                None => GateUp::Separate { gate, up },
            };
            (gate_up, load("down_proj", intermediate, hidden)?)
        };
        down_proj.eval()?;
        match &gate_up_proj {
            GateUp::Joined(joined) => joined.eval()?,
            GateUp::Separate { gate, up } => {
                gate.eval()?;
                up.eval()?;
            }
        }
        // SwiGLU has no constants, so its type does not matter.
        let swiglu = GatedActivation::new(Activation::Silu, Dtype::Float32)?;
        Ok(SwitchGlu { gate_up_proj, swiglu, down_proj, intermediate })
    }

    /// Runs each token of `x` `[B, L, D]` through its experts `expert_indices` `[B, L, K]`, which
    /// must be less than the number of experts; returns `[B, L, K, D]`.
    pub fn forward(&self, x: &Array, expert_indices: &Array) -> Result<Array, Exception> {
        let (&[batch, length, hidden], &[_, _, num_chosen]) = (x.shape(), expert_indices.shape())
        else {
            return Err(Exception::custom(format!("experts take three axes, got {:?}", x.shape())));
        };
        let shape = [batch, length, num_chosen, hidden];
        if expert_indices.size() < MIN_SORTED {
            let x = ops::reshape(x, &[batch, length, 1, 1, hidden])?;
            return ops::reshape(self.experts(&x, expert_indices, false)?, &shape);
        }
        let flat = ops::reshape(expert_indices, &[-1])?;
        let order = ops::argsort(&flat)?;
        let token = ops::floor_divide(&order, Array::from_slice(&[num_chosen as u32], &[1]))?;
        let x = ops::reshape(x, &[batch * length, 1, hidden])?.take_axis(token, 0)?;
        let sorted = self.experts(&x, &flat.take_axis(&order, 0)?, true)?;
        ops::reshape(sorted.take_axis(ops::argsort(&order)?, 0)?, &shape)
    }

    /// The matrices as a kernel reads them; `None` unless all are quantized, gate and up are stacked
    /// and a kernel can choose experts as `routing` does.
    pub fn quantized(&self, routing: &Routing) -> Option<Experts<'_>> {
        let adds_up_to_one = routing.as_softmax()?;
        let GateUp::Joined(gate_up) = &self.gate_up_proj else { return None };
        let (gate_up, down) = (gate_up.rows()?, self.down_proj.rows()?);
        Some(Experts { gate_up, down, num_chosen: routing.num_chosen, adds_up_to_one })
    }

    /// Runs `x` `[..., 1, D]` through the experts `indices` `[...]`; returns `[..., 1, D]`.
    fn experts(&self, x: &Array, indices: &Array, are_sorted: bool) -> Result<Array, Exception> {
        let (gate, up) = match &self.gate_up_proj {
            GateUp::Joined(joined) => {
                let gate_up = joined.forward(x, indices, are_sorted)?;
                let last = gate_up.ndim() - 1;
                let half = |from: i32| {
                    let (mut start, mut stop) = (vec![0; last + 1], gate_up.shape().to_vec());
                    (start[last], stop[last]) = (from, from + self.intermediate);
                    ffi::slice(&gate_up, &start, &stop)
                };
                (half(0)?, half(self.intermediate)?)
            }
            GateUp::Separate { gate, up } => {
                (gate.forward(x, indices, are_sorted)?, up.forward(x, indices, are_sorted)?)
            }
        };
        self.down_proj.forward(&self.swiglu.forward(&gate, &up)?, indices, are_sorted)
    }
}

/// One matrix per expert, without bias.
#[derive(Debug)]
enum SwitchLinear {
    /// `[E, in, out]`: a transposed view of the checkpoint's `[E, out, in]`.
    Dense(Array),
    /// Packed rows of `bits`-wide numbers with a scale and, in affine mode, a bias per group.
    Quantized { weight: Array, scales: Array, biases: Option<Array>, settings: Quantization },
}

impl SwitchLinear {
    fn load(
        block: &mut Layer,
        (stored, name): (StoredExperts, &'static str),
        inputs: i32,
        outputs: i32,
        num_experts: i32,
    ) -> Result<Self, LmError> {
        if let Some(single) = stored.single(name, |name| block.holds(name)) {
            let experts = (0..num_experts)
                .map(|expert| {
                    block
                        .layer(&format!("experts.{expert}.{single}"))
                        .take("weight", &[outputs, inputs])
                })
                .collect::<Result<Vec<_>, _>>()?;
            let weight = ops::stack(&experts, 0)?;
            weight.eval()?;
            return Ok(SwitchLinear::Dense(ops::swap_axes(weight, 1, 2)?));
        }
        let mut layer = block.layer(&format!("{}.{name}", stored.stacked()));
        let Some(settings) = layer.quantization()? else {
            let weight = layer.take("weight", &[num_experts, outputs, inputs])?;
            return Ok(SwitchLinear::Dense(ops::swap_axes(weight, 1, 2)?));
        };
        let (weight, scales, biases) =
            layer.take_quantized_experts(num_experts, inputs, outputs, settings)?;
        if layer.keeps_quantized() {
            return Ok(SwitchLinear::Quantized { weight, scales, biases, settings });
        }
        Ok(SwitchLinear::Dense(ops::swap_axes(
            layer.dequantize(&weight, &scales, biases.as_ref(), settings)?,
            1,
            2,
        )?))
    }

    fn rows(&self) -> Option<QuantizedRows<'_>> {
        match self {
            SwitchLinear::Dense(_) => None,
            SwitchLinear::Quantized { weight, scales, biases, settings } => {
                let (biases, settings) = (biases.as_ref(), *settings);
                Some(QuantizedRows { packed: weight, scales, biases, settings })
            }
        }
    }

    /// `x` `[..., 1, in]`, its leading axes broadcast to those of `indices`, to `[..., 1, out]`.
    fn forward(&self, x: &Array, indices: &Array, are_sorted: bool) -> Result<Array, Exception> {
        match self {
            SwitchLinear::Dense(weight) => ops::gather_mm(x, weight, None, indices, are_sorted),
            SwitchLinear::Quantized { weight, scales, biases, settings } => {
                let (biases, settings) = (biases.as_ref(), *settings);
                let rows = QuantizedRows { packed: weight, scales, biases, settings };
                ffi::gather_qmm(x, rows, indices, are_sorted)
            }
        }
    }

    /// Concatenates both matrices of each expert, the rows of `first` before those of `second`;
    /// `None` if their kinds or settings differ.
    fn join(
        first: &SwitchLinear,
        second: &SwitchLinear,
    ) -> Result<Option<SwitchLinear>, Exception> {
        match (first, second) {
            (SwitchLinear::Dense(first), SwitchLinear::Dense(second)) => {
                let rows = [ops::swap_axes(first, 1, 2)?, ops::swap_axes(second, 1, 2)?];
                Ok(Some(SwitchLinear::Dense(ops::swap_axes(ops::concatenate(&rows, 1)?, 1, 2)?)))
            }
            (
                SwitchLinear::Quantized { weight, scales, biases, settings },
                SwitchLinear::Quantized {
                    weight: weight2,
                    scales: scales2,
                    biases: biases2,
                    settings: settings2,
                },
            ) if settings == settings2 => Ok(Some(SwitchLinear::Quantized {
                weight: ops::concatenate(&[weight, weight2], 1)?,
                scales: ops::concatenate(&[scales, scales2], 1)?,
                biases: match (biases, biases2) {
                    (Some(biases), Some(biases2)) => Some(ops::concatenate(&[biases, biases2], 1)?),
                    _ => None,
                },
                settings: *settings,
            })),
            _ => Ok(None),
        }
    }

    /// Evaluates the arrays, so that intermediate arrays of the load are freed.
    fn eval(&self) -> Result<(), Exception> {
        match self {
            SwitchLinear::Dense(weight) => weight.eval(),
            SwitchLinear::Quantized { weight, scales, biases, .. } => {
                mlx_rs::transforms::eval([weight, scales].into_iter().chain(biases))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QuantizationMode;

    const EXPERTS: i32 = 5;
    const HIDDEN: i32 = 32;
    const INTERMEDIATE: i32 = 64;

    fn numbers(shape: &[i32]) -> Array {
        mlx_rs::random::uniform::<_, f32>(-0.5, 0.5, shape, None).expect("uniform")
    }

    fn layer(inputs: i32, outputs: i32, settings: Option<Quantization>) -> (SwitchLinear, Array) {
        let weight = numbers(&[EXPERTS, outputs, inputs]);
        let Some(settings) = settings else {
            return (SwitchLinear::Dense(ops::swap_axes(&weight, 1, 2).expect("view")), weight);
        };
        let (weight, scales, biases) = ffi::quantize(&weight, settings).expect("quantize");
        let linear = SwitchLinear::Quantized { weight, scales, biases, settings };
        let dense = ffi::dequantize(linear.rows().expect("quantized")).expect("dequantize");
        (linear, dense)
    }

    /// Experts by gathered products against one product per token and expert.
    fn check(
        batch: i32,
        length: i32,
        num_chosen: i32,
        [gate, up, down]: [Option<Quantization>; 3],
    ) {
        let (gate, gate_weight) = layer(HIDDEN, INTERMEDIATE, gate);
        let (up, up_weight) = layer(HIDDEN, INTERMEDIATE, up);
        let (down_proj, down_weight) = layer(INTERMEDIATE, HIDDEN, down);
        let gate_up_proj = match SwitchLinear::join(&gate, &up).expect("join") {
            Some(joined) => GateUp::Joined(joined),
            None => GateUp::Separate { gate, up },
        };
        let switch = SwitchGlu {
            gate_up_proj,
            swiglu: GatedActivation::new(Activation::Silu, Dtype::Float32).expect("swiglu"),
            down_proj,
            intermediate: INTERMEDIATE,
        };
        let x = numbers(&[batch, length, HIDDEN]);
        let logits = numbers(&[batch, length, EXPERTS]);
        let (indices, scores) =
            Routing::softmax(num_chosen, true).choose(&logits, None).expect("choose");
        let found = switch.forward(&x, &indices).expect("forward");
        assert_eq!(found.shape(), [batch, length, num_chosen, HIDDEN]);

        let sums = scores.sum_axis(-1, None).expect("sum");
        assert!(sums.as_slice::<f32>().iter().all(|sum| (sum - 1.0).abs() < 1e-5));
        let experts = indices.contiguous().expect("contiguous");
        for (index, &expert) in experts.as_slice::<u32>().iter().enumerate() {
            let row = |array: &Array, row: usize| {
                array.take_axis(Array::from_int(row as i32), 0).expect("row")
            };
            let token = row(
                &ops::reshape(&x, &[-1, HIDDEN]).expect("reshape"),
                index / num_chosen as usize,
            );
            let times = |weight: &Array, by: &Array| {
                ops::matmul(row(weight, expert as usize), by).expect("matmul")
            };
            let gate = times(&gate_weight, &token);
            let activated =
                ops::multiply(ops::sigmoid(&gate).expect("sigmoid"), gate).expect("multiply");
            let expected = times(
                &down_weight,
                &ops::multiply(activated, times(&up_weight, &token)).expect("multiply"),
            );
            let found = row(&ops::reshape(&found, &[-1, HIDDEN]).expect("reshape"), index);
            assert!(
                found.all_close(&expected, 1e-4, 1e-4, None).expect("all_close"),
                "index {index}, expert {expert}"
            );
        }
    }

    #[test]
    fn each_token_gets_its_experts_sorted_or_not() {
        use QuantizationMode::{Mxfp4, Mxfp8, Nvfp4};
        let affine = |bits| Some(Quantization::affine(32, bits));
        let [mxfp4, mxfp8, nvfp4] = [(Mxfp4, 32, 4), (Mxfp8, 32, 8), (Nvfp4, 16, 4)]
            .map(|(mode, group_size, bits)| Some(Quantization { mode, group_size, bits }));
        for settings in [
            [None; 3],
            [affine(4); 3],
            [affine(4), affine(8), affine(4)],
            [None, affine(4), None],
            [mxfp4; 3],
            [mxfp8; 3],
            [nvfp4; 3],
            [affine(4), mxfp4, nvfp4],
        ] {
            check(1, 1, 2, settings);
            check(2, 3, 3, settings);
            check(1, 31, 2, settings); // 62 pairs: the last in the order they come
            check(2, 16, 2, settings); // 64 pairs: the first sorted
            check(3, 9, 3, settings);
        }
    }
}
