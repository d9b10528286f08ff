//! Feed-forward experts of which each token uses a few. Reference: mlx-lm's switch_layers.py.

use std::cell::OnceCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::device_kernels::{Activation, Experts, QuantizedRows};
use crate::ffi;
use crate::nn::norm_up::squared_relu;
use crate::nn::stored_experts::{BLOCK_BYTES, BLOCKS, Joined};
use crate::nn::{Elementwise, ExpertActivation, GatedActivation, Routing, StoredExperts};
use crate::tensor_list::check_groups;
use crate::weights::Layer;

/// From this number of (token, expert) pairs on, they are sorted by expert, so that a GPU reads
/// each expert's weights once.
const MIN_SORTED: usize = 64;

/// Gated feed-forward experts, `down(swiglu(gate(x), up(x)))`.
#[derive(Debug)]
pub struct SwitchGlu {
    gate_up_proj: GateUp,
    activation: GatedActivation,
    squared_relu: Elementwise<1>,
    down_proj: SwitchLinear,
    intermediate: i32,
    /// Whether it is `silu(gate) * up` that is activated.
    is_plain: bool,
    vectors_of_one: OnceCell<[Array; 2]>,
}

/// Which experts compute, and of what.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    experts: &'a Array,
    /// By their place among all of the input; `None` broadcasts.
    vectors: Option<&'a Array>,
    are_sorted: bool,
}

/// The sizes of a [`SwitchGlu`], and where it is stored.
#[derive(Debug, Clone, Copy)]
pub struct SwitchSizes {
    /// D
    pub hidden: i32,
    /// I, the width of an expert.
    pub intermediate: i32,
    /// E, the number of experts.
    pub num_experts: i32,
    pub stored: StoredExperts,
    /// Whether each matrix has a bias.
    pub has_bias: bool,
    pub activation: ExpertActivation,
}

#[derive(Debug)]
enum GateUp {
    /// For each expert the gate's rows, then up's: one product with the same numbers.
    Joined(SwitchLinear),
    /// Separate matrices, if the two are quantized differently.
    Separate { gate: SwitchLinear, up: SwitchLinear },
    /// No gate: `relu(up)²`.
    Up(SwitchLinear),
}

impl SwitchGlu {
    /// Takes the experts of the block `layer`, for example "model.layers.0.mlp".
    pub fn load(layer: &mut Layer, sizes: SwitchSizes) -> Result<Self, LmError> {
        let SwitchSizes { hidden, intermediate, num_experts, stored, has_bias, activation } = sizes;
        let Joined { gate_up, down } = stored.joined();
        let (gate_up_proj, down_proj) = if stored == StoredExperts::Blocks && layer.holds(gate_up) {
            let both =
                SwitchLinear::load_blocks(layer, "gate_up_proj", hidden, 2 * intermediate, sizes)?;
            let down = SwitchLinear::load_blocks(layer, "down_proj", intermediate, hidden, sizes)?;
            (GateUp::Joined(both), down)
        } else if layer.holds(gate_up) && !has_bias {
            let mut stacked = |name, outputs, inputs| -> Result<SwitchLinear, LmError> {
                let matrices = match stored {
                    StoredExperts::Turned => {
                        Matrices::Dense(layer.take(name, &[num_experts, inputs, outputs])?)
                    }
                    _ => {
                        let weight = layer.take(name, &[num_experts, outputs, inputs])?;
                        Matrices::transposed(&weight)?
                    }
                };
                Ok(SwitchLinear { matrices, bias: None })
            };
            let joined = stacked(gate_up, 2 * intermediate, hidden)?;
            (GateUp::Joined(joined), stacked(down, hidden, intermediate)?)
        } else if stored == StoredExperts::Ungated {
            let up = SwitchLinear::load(layer, "up_proj", hidden, intermediate, sizes)?;
            let down = SwitchLinear::load(layer, "down_proj", intermediate, hidden, sizes)?;
            (GateUp::Up(up), down)
        } else {
            let mut load =
                |name, inputs, outputs| SwitchLinear::load(layer, name, inputs, outputs, sizes);
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
            GateUp::Joined(matrices) | GateUp::Up(matrices) => matrices.eval()?,
            GateUp::Separate { gate, up } => {
                gate.eval()?;
                up.eval()?;
            }
        }
        let is_plain = activation == ExpertActivation::Gated(Activation::Silu);
        let activation = match activation {
            ExpertActivation::Clipped(clipped) => GatedActivation::clipped(clipped),
            ExpertActivation::Gated(kind) => GatedActivation::new(kind, down_proj.dtype())?,
        };
        let squared_relu = squared_relu();
        Ok(SwitchGlu {
            gate_up_proj,
            activation,
            squared_relu,
            down_proj,
            intermediate,
            is_plain,
            vectors_of_one: OnceCell::new(),
        })
    }

    /// The outputs of each token's experts, each times its share `[B, L, K]`, added: `[B, L, D]`, in the
    /// wider of the types of both. Other arguments are those of [`SwitchGlu::forward`].
    pub fn blend(
        &self,
        x: &Array,
        expert_indices: &Array,
        shares: &Array,
    ) -> Result<Array, Exception> {
        let outputs = self.forward(x, expert_indices)?;
        let shares = ops::reshape(shares, &[outputs.dim(0), 1, outputs.dim(1)])?;
        ops::reshape(ops::matmul(shares, outputs)?, x.shape())
    }

    /// Runs each token of `x` `[B, L, D]` through its experts `expert_indices` `[B, L, K]`, which
    /// must be less than the number of experts; returns `[B L, K, D]`.
    pub fn forward(&self, x: &Array, expert_indices: &Array) -> Result<Array, Exception> {
        let (&[batch, length, hidden], &[_, _, num_chosen]) = (x.shape(), expert_indices.shape())
        else {
            return Err(Exception::custom(format!("experts take three axes, got {:?}", x.shape())));
        };
        let shape = [batch * length, num_chosen, hidden];
        if batch * length == 1 && num_chosen as usize <= MIN_SORTED {
            let vectors = self.of_one_token(num_chosen)?;
            return ops::reshape(self.experts(x, expert_indices, Some(vectors), false)?, &shape);
        }
        if expert_indices.size() < MIN_SORTED {
            let x = ops::reshape(x, &[batch, length, 1, 1, hidden])?;
            return ops::reshape(self.experts(&x, expert_indices, None, false)?, &shape);
        }
        let flat = ops::reshape(expert_indices, &[-1])?;
        let order = ops::argsort(&flat)?;
        let token = ops::floor_divide(&order, Array::from_slice(&[num_chosen as u32], &[1]))?;
        let x = ops::reshape(x, &[batch * length, 1, hidden])?.take_axis(token, 0)?;
        let sorted = self.experts(&x, &flat.take_axis(&order, 0)?, None, true)?;
        ops::reshape(sorted.take_axis(ops::argsort(&order)?, 0)?, &shape)
    }

    /// The matrices as a kernel reads them; `None` unless all are quantized, gate and up are stacked
    /// and a kernel can choose experts as `routing` does.
    pub fn quantized(&self, routing: &Routing) -> Option<Experts<'_>> {
        if !self.is_plain {
            return None;
        }
        let adds_up_to_one = routing.as_softmax()?;
        let GateUp::Joined(gate_up) = &self.gate_up_proj else { return None };
        let (gate_up, down) = (gate_up.rows()?, self.down_proj.rows()?);
        Some(Experts { gate_up, down, num_chosen: routing.num_chosen, adds_up_to_one })
    }

    /// Which vectors the experts of a single token take, `[1, 1, K]` of u32, in the first product and
    /// in the last: MLX would make and broadcast such numbers for each product anew.
    fn of_one_token(&self, num_chosen: i32) -> Result<&[Array; 2], Exception> {
        if let Some(vectors) = self.vectors_of_one.get() {
            return match vectors[0].dim(2) == num_chosen {
                true => Ok(vectors),
                false => Err(Exception::custom("a token has always as many experts".to_owned())),
            };
        }
        let shape = [1, 1, num_chosen];
        let numbers: Vec<u32> = (0..num_chosen as u32).collect();
        let vectors = [
            Array::from_slice(&vec![0u32; numbers.len()], &shape),
            Array::from_slice(&numbers, &shape),
        ];
        Ok(self.vectors_of_one.get_or_init(|| vectors))
    }

    /// Runs `x` `[..., 1, D]` through the experts `indices` `[...]`; returns `[..., 1, D]`. `vectors` are
    /// those of [`SwitchGlu::of_one_token`].
    fn experts(
        &self,
        x: &Array,
        indices: &Array,
        vectors: Option<&[Array; 2]>,
        are_sorted: bool,
    ) -> Result<Array, Exception> {
        let chosen = |product: usize| Chosen {
            experts: indices,
            vectors: vectors.map(|vectors| &vectors[product]),
            are_sorted,
        };
        let (gate, up) = match &self.gate_up_proj {
            GateUp::Joined(joined) => {
                let gate_up = joined.forward(x, chosen(0))?;
                let last = gate_up.ndim() - 1;
                let half = |from: i32| {
                    let (mut start, mut stop) = (vec![0; last + 1], gate_up.shape().to_vec());
                    (start[last], stop[last]) = (from, from + self.intermediate);
                    ffi::slice(&gate_up, &start, &stop)
                };
                (half(0)?, half(self.intermediate)?)
            }
            GateUp::Separate { gate, up } => {
                (gate.forward(x, chosen(0))?, up.forward(x, chosen(0))?)
            }
            GateUp::Up(up) => {
                let activated = self.squared_relu.call([&up.forward(x, chosen(0))?])?;
                return self.down_proj.forward(&activated, chosen(1));
            }
        };
        self.down_proj.forward(&self.activation.forward(&gate, &up)?, chosen(1))
    }
}

/// One matrix per expert, and a bias if they have some.
#[derive(Debug)]
struct SwitchLinear {
    matrices: Matrices,
    bias: Option<Array>, // [E, out]
}

#[derive(Debug)]
enum Matrices {
    /// `[E, in, out]`: mostly a transposed view of the checkpoint's `[E, out, in]`.
    Dense(Array),
    /// Packed rows of `bits`-wide numbers with a scale and, in affine mode, a bias per group.
    Quantized { weight: Array, scales: Array, biases: Option<Array>, settings: Quantization },
}

impl SwitchLinear {
    /// Takes the matrices `name` of the experts in `sizes` from `block`.
    fn load(
        block: &mut Layer,
        name: &'static str,
        inputs: i32,
        outputs: i32,
        sizes: SwitchSizes,
    ) -> Result<Self, LmError> {
        let SwitchSizes { num_experts, stored, has_bias, .. } = sizes;
        if let Some(single) = stored.single(name, |name| block.holds(name)) {
            return SwitchLinear::load_singles(block, single, inputs, outputs, sizes);
        }
        let mut layer = block.layer(&stored.stacked_matrix(name));
        let bias = has_bias.then(|| layer.take("bias", &[num_experts, outputs])).transpose()?;
        let Some(settings) = layer.quantization()? else {
            let weight = layer.take("weight", &[num_experts, outputs, inputs])?;
            return Ok(SwitchLinear { matrices: Matrices::transposed(&weight)?, bias });
        };
        let (weight, scales, biases) =
            layer.take_quantized_experts(num_experts, inputs, outputs, settings)?;
        let matrices = Matrices::Quantized { weight, scales, biases, settings };
        Ok(SwitchLinear { matrices: matrices.for_device(&layer)?, bias })
    }

    /// Takes the matrix `single` of each expert by itself, dense or packed.
    fn load_singles(
        block: &mut Layer,
        single: &str,
        inputs: i32,
        outputs: i32,
        sizes: SwitchSizes,
    ) -> Result<Self, LmError> {
        let SwitchSizes { num_experts, has_bias, .. } = sizes;
        let path = |expert: i32| format!("experts.{expert}.{single}");
        let settings = block.layer(&path(0)).quantization()?;
        let mut each = |what, shape: &[i32]| -> Result<Array, LmError> {
            let experts =
                (0..num_experts).map(|expert| block.layer(&path(expert)).take(what, shape));
            stacked(experts.collect::<Result<Vec<_>, _>>()?)
        };
        let bias = has_bias.then(|| each("bias", &[outputs])).transpose()?;
        let Some(settings) = settings else {
            let weight = each("weight", &[outputs, inputs])?;
            return Ok(SwitchLinear { matrices: Matrices::transposed(&weight)?, bias });
        };
        let (mut weights, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        for expert in 0..num_experts {
            let mut layer = block.layer(&path(expert));
            let packed = layer.take_quantized(inputs, outputs, settings)?;
            weights.push(packed.0);
            scales.push(packed.1);
            biases.extend(packed.2);
        }
        let (weight, scales) = (stacked(weights)?, stacked(scales)?);
        let biases = (!biases.is_empty()).then(|| stacked(biases)).transpose()?;
        let matrices = Matrices::Quantized { weight, scales, biases, settings };
        Ok(SwitchLinear { matrices: matrices.for_device(block)?, bias })
    }

    /// Takes `mxfp4` blocks of the experts' matrices `name`, see [`StoredExperts::Blocks`].
    fn load_blocks(
        block: &mut Layer,
        name: &'static str,
        inputs: i32,
        outputs: i32,
        sizes: SwitchSizes,
    ) -> Result<Self, LmError> {
        let SwitchSizes { num_experts, has_bias, .. } = sizes;
        let mut layer = block.layer("experts");
        check_groups(name, inputs, BLOCKS.group_size)?;
        let groups = inputs / BLOCKS.group_size;
        let shape = [num_experts, outputs, groups, BLOCK_BYTES];
        let blocks = layer.take(&format!("{name}_blocks"), &shape)?;
        let words = ops::reshape(blocks.view::<u32>()?, &[num_experts, outputs, -1])?;
        let scales = layer.take(&format!("{name}_scales"), &[num_experts, outputs, groups])?;
        let bias = has_bias
            .then(|| layer.take(&format!("{name}_bias"), &[num_experts, outputs]))
            .transpose()?;
        let in_order = |array: Array| match name {
            "gate_up_proj" => gates_first(&array),
            _ => Ok(array),
        };
        let (weight, scales) = (in_order(words)?, in_order(scales)?);
        mlx_rs::transforms::eval([&weight, &scales])?;
        let matrices = Matrices::Quantized { weight, scales, biases: None, settings: BLOCKS };
        let bias = bias.map(in_order).transpose()?;
        Ok(SwitchLinear { matrices: matrices.for_device(&layer)?, bias })
    }

    /// The type of what it returns for numbers of that type.
    fn dtype(&self) -> Dtype {
        match &self.matrices {
            Matrices::Dense(weight) => weight.dtype(),
            quantized => quantized.rows().map_or(Dtype::Float32, |rows| rows.dtype()),
        }
    }

    /// The matrices as a kernel reads them; `None` if they are dense or have biases.
    fn rows(&self) -> Option<QuantizedRows<'_>> {
        self.matrices.rows().filter(|_| self.bias.is_none())
    }

    /// `x` `[..., 1, in]`, its leading axes broadcast to those of the experts, to `[..., 1, out]`.
    fn forward(&self, x: &Array, chosen: Chosen<'_>) -> Result<Array, Exception> {
        let Chosen { experts: indices, vectors, are_sorted } = chosen;
        let product = match &self.matrices {
            Matrices::Dense(weight) => ops::gather_mm(x, weight, vectors, indices, are_sorted)?,
            Matrices::Quantized { weight, scales, biases, settings } => {
                let (biases, settings) = (biases.as_ref(), *settings);
                let rows = QuantizedRows { packed: weight, scales, biases, settings };
                ffi::gather_qmm(x, rows, vectors, indices, are_sorted)?
            }
        };
        match &self.bias {
            Some(bias) => ops::add(product, bias.take_axis(indices, 0)?.expand_dims(-2)?),
            None => Ok(product),
        }
    }

    /// Concatenates both matrices of each expert, the rows of `first` before those of `second`;
    /// `None` if their kinds or settings differ.
    fn join(
        first: &SwitchLinear,
        second: &SwitchLinear,
    ) -> Result<Option<SwitchLinear>, Exception> {
        let bias = match (&first.bias, &second.bias) {
            (Some(first), Some(second)) => Some(ops::concatenate(&[first, second], 1)?),
            _ => None,
        };
        let joined = Matrices::join(&first.matrices, &second.matrices)?;
        Ok(joined.map(|matrices| SwitchLinear { matrices, bias }))
    }

    /// Evaluates the arrays, so that intermediate arrays of the load are freed.
    fn eval(&self) -> Result<(), Exception> {
        let matrices = match &self.matrices {
            Matrices::Dense(weight) => vec![weight],
            Matrices::Quantized { weight, scales, biases, .. } => {
                [weight, scales].into_iter().chain(biases).collect()
            }
        };
        mlx_rs::transforms::eval(matrices.into_iter().chain(&self.bias))
    }
}

impl Matrices {
    /// Dense ones `[E, out, in]`, as checkpoints have them.
    fn transposed(weight: &Array) -> Result<Self, Exception> {
        Ok(Matrices::Dense(ops::swap_axes(weight, 1, 2)?))
    }

    /// As they are, or dense where `layer` keeps none quantized.
    fn for_device(self, layer: &Layer) -> Result<Self, LmError> {
        match &self {
            Matrices::Quantized { weight, scales, biases, settings }
                if !layer.keeps_quantized() =>
            {
                let dense = layer.dequantize(weight, scales, biases.as_ref(), *settings)?;
                Ok(Matrices::transposed(&dense)?)
            }
            _ => Ok(self),
        }
    }

    fn rows(&self) -> Option<QuantizedRows<'_>> {
        match self {
            Matrices::Dense(_) => None,
            Matrices::Quantized { weight, scales, biases, settings } => {
                let (biases, settings) = (biases.as_ref(), *settings);
                Some(QuantizedRows { packed: weight, scales, biases, settings })
            }
        }
    }

    /// See [`SwitchLinear::join`].
    fn join(first: &Matrices, second: &Matrices) -> Result<Option<Matrices>, Exception> {
        match (first, second) {
            (Matrices::Dense(first), Matrices::Dense(second)) => {
                let rows = [ops::swap_axes(first, 1, 2)?, ops::swap_axes(second, 1, 2)?];
                Ok(Some(Matrices::transposed(&ops::concatenate(&rows, 1)?)?))
            }
            (
                Matrices::Quantized { weight, scales, biases, settings },
                Matrices::Quantized {
                    weight: weight2,
                    scales: scales2,
                    biases: biases2,
                    settings: settings2,
                },
            ) if settings == settings2 => Ok(Some(Matrices::Quantized {
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
}

/// An array for each expert as one, evaluated, so that they are freed one after another.
fn stacked(experts: Vec<Array>) -> Result<Array, LmError> {
    let all = ops::stack(&experts, 0)?;
    all.eval()?;
    Ok(all)
}

/// `[E, 2 I, ...]` with the rows of gates and of the rest by turns, as one after the other.
fn gates_first(by_turns: &Array) -> Result<Array, Exception> {
    let shape = by_turns.shape().to_vec();
    let (experts, rows) = (shape[0], shape[1]);
    let pairs = ops::reshape(by_turns, &[experts, rows / 2, 2, -1])?;
    ops::reshape(ops::swap_axes(pairs, 1, 2)?, &shape)
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

    fn layer(
        inputs: i32,
        outputs: i32,
        settings: Option<Quantization>,
        bias: Option<Array>,
    ) -> (SwitchLinear, Array) {
        let weight = numbers(&[EXPERTS, outputs, inputs]);
        let Some(settings) = settings else {
            let matrices = Matrices::transposed(&weight).expect("view");
            return (SwitchLinear { matrices, bias }, weight);
        };
        let (weight, scales, biases) = ffi::quantize(&weight, settings).expect("quantize");
        let matrices = Matrices::Quantized { weight, scales, biases, settings };
        let dense = ffi::dequantize(matrices.rows().expect("quantized")).expect("dequantize");
        (SwitchLinear { matrices, bias }, dense)
    }

    /// Experts by gathered products against one product per token and expert.
    fn check(
        batch: i32,
        length: i32,
        num_chosen: i32,
        [gate, up, down]: [Option<Quantization>; 3],
        has_bias: bool,
    ) {
        let [gate_bias, up_bias, down_bias] = [INTERMEDIATE, INTERMEDIATE, HIDDEN]
            .map(|outputs| has_bias.then(|| numbers(&[EXPERTS, outputs])));
        let (gate, gate_weight) = layer(HIDDEN, INTERMEDIATE, gate, gate_bias.clone());
        let (up, up_weight) = layer(HIDDEN, INTERMEDIATE, up, up_bias.clone());
        let (down_proj, down_weight) = layer(INTERMEDIATE, HIDDEN, down, down_bias.clone());
        let gate_up_proj = match SwitchLinear::join(&gate, &up).expect("join") {
            Some(joined) => GateUp::Joined(joined),
            None => GateUp::Separate { gate, up },
        };
        let switch = SwitchGlu {
            gate_up_proj,
            activation: GatedActivation::new(Activation::Silu, Dtype::Float32).expect("swiglu"),
            squared_relu: squared_relu(),
            down_proj,
            intermediate: INTERMEDIATE,
            is_plain: true,
            vectors_of_one: OnceCell::new(),
        };
        let x = numbers(&[batch, length, HIDDEN]);
        let logits = numbers(&[batch, length, EXPERTS]);
        let (indices, scores) = crate::nn::Chooser::new(Routing::softmax(num_chosen, true))
            .choose(&logits, None)
            .expect("choose");
        let found = switch.forward(&x, &indices).expect("forward");
        assert_eq!(found.shape(), [batch * length, num_chosen, HIDDEN]);

        let blended = switch.blend(&x, &indices, &scores).expect("blend");
        let shares = ops::reshape(&scores, &[batch * length, num_chosen, 1]).expect("reshape");
        let sums = ops::multiply(&found, shares).and_then(|shared| shared.sum_axis(1, false));
        let sums = sums.and_then(|sums| ops::reshape(sums, x.shape())).expect("sums");
        assert!(blended.all_close(&sums, 1e-5, 1e-5, None).expect("compared"), "what is blended");

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
            let times = |weight: &Array, bias: &Option<Array>, by: &Array| {
                let product = ops::matmul(row(weight, expert as usize), by).expect("matmul");
                match bias {
                    Some(bias) => ops::add(product, row(bias, expert as usize)).expect("add"),
                    None => product,
                }
            };
            let gate = times(&gate_weight, &gate_bias, &token);
            let activated =
                ops::multiply(ops::sigmoid(&gate).expect("sigmoid"), gate).expect("multiply");
            let expected = times(
                &down_weight,
                &down_bias,
                &ops::multiply(activated, times(&up_weight, &up_bias, &token)).expect("multiply"),
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
            for has_bias in [false, true] {
                check(1, 1, 2, settings, has_bias);
                check(2, 3, 3, settings, has_bias);
                check(1, 31, 2, settings, has_bias); // 62 pairs: the last in the order they come
                check(2, 16, 2, settings, has_bias); // 64 pairs: the first sorted
                check(3, 9, 3, settings, has_bias);
            }
        }
    }
}
