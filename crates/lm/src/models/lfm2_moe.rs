//! LFM2 with experts (Liquid AI 2025): all layers but the first have experts. Reference: mlx-lm's
//! lfm2_moe.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, ExpertForm, ExpertsKind, Family, Routing, Score};
use super::lfm2::LayerArgs;
use crate::LmError;
use crate::config::{Size, check_experts, check_positive, check_range};

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    layers: LayerArgs,
    moe_intermediate_size: i64,
    num_experts: i64,
    num_experts_per_tok: i64,
    norm_topk_prob: bool,
    use_expert_bias: bool,
    num_dense_layers: i64,
    routed_scaling_factor: Option<f64>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.layers.decoder(&self.common)?;
        let (count, num_chosen) = check_experts(
            ("num_experts", self.num_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        let num_layers = decoder.layers.len() as i64;
        let num_dense = check_range("num_dense_layers", self.num_dense_layers, 0..=num_layers)?;
        let scale =
            check_positive("routed_scaling_factor", self.routed_scaling_factor.unwrap_or(1.0))?;
        decoder.experts = Some(ExpertsKind {
            block: "feed_forward",
            count,
            intermediate: Size::EXPERT_INTERMEDIATE.check(self.moe_intermediate_size)?,
            routing: Routing {
                correction_bias: self.use_expert_bias.then_some("expert_bias"),
                adds_up_to_one: self.norm_topk_prob,
                scale: (scale != 1.0).then_some(scale),
                ..Routing::of(Score::Sigmoid, num_chosen)
            },
            form: ExpertForm::USUAL,
            shared: None,
        });
        for layer in decoder.layers.iter_mut().skip(num_dense as usize) {
            layer.has_experts = true;
        }
        Ok(decoder)
    }
}
