//! Gemma 4's experts, beside the feed-forward network that all tokens use.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::ModelArgs;
use crate::LmError;
use crate::config::check_range;
use crate::device_kernels::Activation;
use crate::nn::{
    Chooser, Elementwise, ExpertActivation, ExpertForm, Linear, NormResidual, RmsNorm, Routing,
    Score, StoredExperts, SwitchGlu, SwitchSizes,
};
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// How many experts a layer has, how many a token uses, and their width.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertSizes {
    pub(super) count: i32,
    pub(super) num_chosen: i32,
    pub(super) intermediate: i32,
}

/// The norms of a layer with experts: behind the dense network, before the experts, behind them.
const NORMS: [&str; 3] =
    ["post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"];

const FORM: ExpertForm = ExpertForm {
    router: "router.proj",
    stored: StoredExperts::SwitchGlu,
    activation: ExpertActivation::Gated(Activation::GeluApprox),
    ..ExpertForm::USUAL
};

impl ExpertSizes {
    /// `None` where layers have no experts.
    pub(super) fn check(args: &ModelArgs) -> Result<Option<Self>, LmError> {
        if !args.enable_moe_block {
            return Ok(None);
        }
        // A key that is missing is named like one that is out of range.
        let given = |value: Option<i64>| value.unwrap_or(0);
        let count = check_range("num_experts", given(args.num_experts), 1..=1 << 14)?;
        let (name, chosen) = ("top_k_experts", given(args.top_k_experts));
        let num_chosen = check_range(name, chosen, 1..=i64::from(count))?;
        let (name, width) = ("moe_intermediate_size", given(args.moe_intermediate_size));
        let intermediate = check_range(name, width, 1..=1 << 20)?;
        Ok(Some(ExpertSizes { count, num_chosen, intermediate }))
    }

    /// Adds what [`Experts::load`] takes of the layer at `path`.
    pub(super) fn list(self, list: &mut TensorList, path: &str, hidden: i32) {
        list.experts(path, hidden, self.intermediate, self.count, FORM);
        list.plain(format!("{path}.router.scale"), &[hidden]);
        list.plain(format!("{path}.router.per_expert_scale"), &[self.count]);
        for name in NORMS {
            list.plain(format!("{path}.{name}.weight"), &[hidden]);
        }
    }
}

/// A router that normalizes what it reads, and experts with norms of their own.
#[derive(Debug)]
pub(super) struct Experts {
    dense_norm: RmsNorm,
    router_norm: RmsNorm,
    router: Linear,
    chooser: Chooser,
    /// A factor of each expert's share, `[E]`.
    share_factors: Array,
    norm: RmsNorm,
    switch_glu: SwitchGlu,
    sum_norm: NormResidual,
    /// Shares times their factors.
    scaled_shares: Elementwise<2>,
}

impl Experts {
    pub(super) fn load(
        layer: &mut Layer,
        hidden: i32,
        sizes: ExpertSizes,
        eps: f32,
    ) -> Result<Self, LmError> {
        let ExpertSizes { count, num_chosen, intermediate } = sizes;
        let kernels = layer.kernels();
        let [dense_norm, norm, sum_norm] =
            NORMS.map(|name| RmsNorm::load(&mut layer.layer(name), hidden, eps));
        let router = Linear::load(&mut layer.layer(FORM.router), hidden, count, false)?;
        router.eval()?;
        let mut own = layer.layer("router");
        let factor = (hidden as f32).powf(-0.5);
        let router_norm = RmsNorm::load_scaled(&mut own, "scale", hidden, factor, eps)?;
        let share_factors = own.take("per_expert_scale", &[count])?;
        let ExpertForm { stored, has_bias, activation, .. } = FORM;
        let num_experts = count;
        let sizes = SwitchSizes { hidden, intermediate, num_experts, stored, has_bias, activation };
        Ok(Experts {
            dense_norm: dense_norm?,
            router_norm,
            router,
            chooser: Chooser::new(Routing::of(Score::SoftmaxOfChosen, num_chosen)),
            share_factors,
            norm: norm?,
            switch_glu: SwitchGlu::load(layer, sizes)?,
            sum_norm: NormResidual::new(sum_norm?, &kernels),
            scaled_shares: Elementwise::new(|[shares, factors]| ops::multiply(shares, factors)),
        })
    }

    /// Of the residual stream `h` and the dense network's output for it, `[B, L, D]`: the sum of both
    /// outputs, each normalized.
    pub(super) fn forward(&self, h: &Array, dense: &Array) -> Result<Array, Exception> {
        let logits = self.router.forward(&self.router_norm.forward(h)?)?;
        let (chosen, shares) = self.chooser.choose(&logits, None)?;
        let factors = self.share_factors.take_axis(&chosen, 0)?; // [B, L, K]
        let shares = self.scaled_shares.call([&shares, &factors])?;
        let blended = self.switch_glu.blend(&self.norm.forward(h)?, &chosen, &shares)?;
        self.sum_norm.forward(&blended.as_dtype(dense.dtype())?, &self.dense_norm.forward(dense)?)
    }
}
