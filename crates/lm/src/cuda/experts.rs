//! The experts of one token: routing, then two launches for all chosen experts.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::product::activation_constant;
use super::{CudaKernels, is_bfloat16, is_readable, traced};
use crate::device_kernels::{Activation, Experts, Kernel};
use crate::ffi::{Compiled, Launch};

/// The inputs of `product.cu` where it multiplies with the matrices of chosen experts.
pub(super) const INPUTS: &[&str] =
    &["x", "norm_weight", "residual", "w", "scales", "biases", "experts", "shares"];

/// The most experts that one warp of `route.cu` chooses.
const MAX_CHOSEN: i32 = 32;

/// The most experts whose logits fit the shared memory of `route.cu`.
const MAX_EXPERTS: i32 = 8192;

/// See [`DeviceKernels::experts`](crate::device_kernels::DeviceKernels::experts).
#[derive(Debug)]
pub(super) struct ExpertKernels {
    compiled: Compiled,
    hidden: i32,
    num_experts: i32,
}

impl ExpertKernels {
    pub(super) fn new(kernels: &CudaKernels, experts: Experts<'_>) -> Option<Self> {
        let Experts { gate_up, down, num_chosen, adds_up_to_one } = experts;
        let (hidden, intermediate) = (gate_up.num_inputs(), down.num_inputs());
        let num_experts = gate_up.packed.dim(0);
        // The outputs of the chosen experts, one after another, are the input of the last product.
        const MAX_BLENDED: i32 = 20_480;
        let fits = is_readable(&gate_up)
            && is_readable(&down)
            && gate_up.num_rows() == 2 * intermediate
            && down.num_rows() == hidden
            && intermediate % 8 == 0
            && (1..=MAX_CHOSEN).contains(&num_chosen)
            && (num_chosen..=MAX_EXPERTS).contains(&num_experts)
            && num_chosen * intermediate <= MAX_BLENDED;
        if !fits {
            return None;
        }
        let owned = |rows: &crate::device_kernels::QuantizedRows<'_>| {
            Some([rows.packed, rows.scales, rows.biases?].map(Array::clone))
        };
        let (gate_up_arrays, down_arrays) = (owned(&gate_up)?, owned(&down)?);
        let groups = [gate_up.settings.group_size, down.settings.group_size];
        let (route, product) = (kernels.route.clone(), kernels.expert_product.clone());
        let compiled = traced(move |[x, logits, residual]: &[Array; 3]| {
            let [experts, shares] = route.apply(
                &[logits],
                Launch {
                    constants: &[
                        (c"E", num_experts),
                        (c"CHOSEN", num_chosen),
                        (c"NORMALIZED", i32::from(adds_up_to_one)),
                    ],
                    blocks: [1, 1, 1],
                    threads: 32,
                    outputs: &[(&[num_chosen], Dtype::Uint32), (&[num_chosen], Dtype::Float32)],
                },
            )?;
            let launch = |x: &Array, matrix: &[Array; 3], shape: ProductShape| {
                let ProductShape { inputs, outputs, group, rows_per_warp, is_blended } = shape;
                const WARPS: i32 = 8;
                let [packed, scales, biases] = matrix;
                let activation = if is_blended { None } else { Some(Activation::Silu) };
                let blended: (&[i32], i32) = (&[1, 1, outputs], 1);
                let apart: (&[i32], i32) = (&[1, num_chosen, outputs], num_chosen);
                let (shape, columns) = if is_blended { blended } else { apart };
                let rows = WARPS * rows_per_warp;
                product.apply(
                    &[x, x, residual, packed, scales, biases, &experts, &shares],
                    Launch {
                        constants: &[
                            (c"K", inputs),
                            (c"N", outputs),
                            (c"GROUP", group),
                            (c"ROWS", rows_per_warp),
                            (c"WARPS", WARPS),
                            (c"UNROLL", 2),
                            (c"NORM", 0),
                            (c"ACTIVATION", activation_constant(activation)),
                            (c"RESIDUAL", i32::from(is_blended)),
                            (c"EXPERTS", num_chosen),
                            (c"BLENDED", i32::from(is_blended)),
                            (c"EPS_BITS", 0),
                        ],
                        blocks: [(outputs + rows - 1) / rows, columns, 1],
                        threads: WARPS * 32,
                        outputs: &[(shape, Dtype::Bfloat16)],
                    },
                )
            };
            let [activated] = launch(
                x,
                &gate_up_arrays,
                ProductShape {
                    inputs: hidden,
                    outputs: intermediate,
                    group: groups[0],
                    rows_per_warp: 2,
                    is_blended: false,
                },
            )?;
            let [sum] = launch(
                &activated,
                &down_arrays,
                ProductShape {
                    inputs: num_chosen * intermediate,
                    outputs: hidden,
                    group: groups[1],
                    rows_per_warp: 1,
                    is_blended: true,
                },
            )?;
            Ok(vec![sum])
        })?;
        Some(ExpertKernels { compiled, hidden, num_experts })
    }
}

/// One launch of `product.cu` for all chosen experts.
struct ProductShape {
    inputs: i32,
    outputs: i32,
    group: i32,
    rows_per_warp: i32,
    /// Whether the outputs are summed over the experts.
    is_blended: bool,
}

impl Kernel for ExpertKernels {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let widths = [self.hidden, self.num_experts, self.hidden];
        let fits =
            |(array, width): (&&Array, i32)| is_bfloat16(array) && *array.shape() == [1, 1, width];
        if !inputs.iter().zip(widths).all(fits) {
            return Ok(None);
        }
        self.compiled.call::<1>(inputs).map(|outputs| Some(outputs.into()))
    }
}
