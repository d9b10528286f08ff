//! A mixture of experts: routing, the chosen experts, and their weighted sum.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::device_kernels::{Kernel, run};
use crate::nn::{Chooser, Elementwise, ExpertForm, Linear, Routing, SwitchGlu, SwitchSizes};
use crate::weights::Layer;

/// `residual + sum of share_k * expert_k(x)` over the chosen experts, or `residual + expert(share * x)`
/// of one.
#[derive(Debug)]
pub struct ExpertBlend {
    router: Linear,
    correction_bias: Option<Array>, // [E]
    chooser: Chooser,
    switch_mlp: SwitchGlu,
    scales_input: bool,
    /// The residual plus what is blended.
    sum: Elementwise<2>,
    kernel: Option<Box<dyn Kernel>>,
}

/// The sizes of an [`ExpertBlend`], and how its experts are chosen.
#[derive(Debug, Clone, Copy)]
pub struct ExpertSizes {
    /// D
    pub hidden: i32,
    /// I, the width of an expert.
    pub intermediate: i32,
    /// E, the number of experts.
    pub num_experts: i32,
    pub routing: Routing,
    pub form: ExpertForm,
}

impl ExpertBlend {
    /// Takes the router and the experts of the block `layer`.
    pub fn load(layer: &mut Layer, sizes: ExpertSizes) -> Result<Self, LmError> {
        let ExpertSizes { hidden, intermediate, num_experts, routing, form } = sizes;
        let ExpertForm { router, router_has_bias, stored, has_bias, activation, scales_input } =
            form;
        let router = Linear::load(&mut layer.layer(router), hidden, num_experts, router_has_bias)?;
        router.eval()?;
        let correction_bias = routing
            .correction_bias
            .filter(|name| !routing.may_lack_correction_bias || layer.holds(name))
            .map(|name| layer.take_as(name, &Routing::correction_bias_shapes(num_experts)))
            .transpose()?;
        let sizes = SwitchSizes { hidden, intermediate, num_experts, stored, has_bias, activation };
        let switch_mlp = SwitchGlu::load(layer, sizes)?;
        let kernel =
            layer.kernels().and_then(|kernels| kernels.experts(switch_mlp.quantized(&routing)?));
        Ok(ExpertBlend {
            router,
            correction_bias,
            chooser: Chooser::new(routing),
            switch_mlp,
            scales_input,
            sum: Elementwise::new(|[residual, blended]| {
                ops::add(residual, blended.as_dtype(residual.dtype())?)
            }),
            kernel,
        })
    }

    /// The normalized hidden states `x` and the residual, `[B, L, D]`, to the same shape.
    pub fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        let router_logits = self.router.forward(x)?;
        if let Some([sum]) = run(self.kernel.as_deref(), &[x, &router_logits, residual]) {
            return Ok(sum);
        }
        let (chosen, shares) =
            self.chooser.choose(&router_logits, self.correction_bias.as_ref())?;
        if self.scales_input {
            let scaled = ops::multiply(x, shares.as_dtype(x.dtype())?)?;
            let output = self.switch_mlp.forward(&scaled, &chosen)?; // [B L, 1, D]
            return ops::add(residual, ops::reshape(output, residual.shape())?);
        }
        self.sum.call([residual, &self.switch_mlp.blend(x, &chosen, &shares)?])
    }
}
