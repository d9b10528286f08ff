//! GLM-4.5 and its successors with experts (Zhipu AI 2025): GLM-4 whose later layers have experts, chosen
//! as DeepSeek-V3 chooses them. Reference: mlx-lm's glm4_moe.py.

use serde::Deserialize;

use super::decoder::{
    Common, Decoder, ExpertForm, ExpertGroups, ExpertsKind, Family, GroupRank, HeadNormKind,
    NormKind, Projections, Routing, Score, SharedExpertKind, Usual,
};
use crate::LmError;
use crate::config::{Size, check_full_attention, check_positive, check_range};

const USUAL: Usual = Usual { context: 131_072, rope_theta: None, is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    experts: ExpertArgs,
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_qk_norm: bool,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        check_full_attention(self.common.layer_types.as_deref())?;
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        if self.use_qk_norm {
            decoder.attention.head_norms = HeadNormKind::OfEach;
        }
        decoder.has_further_layers = true;
        self.experts.set(&mut decoder, ExpertArgs::by_sigmoid)?;
        Ok(decoder)
    }
}

/// The keys of experts that DeepSeek's families have too.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ExpertArgs {
    n_routed_experts: Option<i64>,
    n_shared_experts: Option<i64>,
    num_experts_per_tok: Option<i64>,
    moe_intermediate_size: Option<i64>,
    routed_scaling_factor: Option<f64>,
    n_group: Option<i64>,
    topk_group: Option<i64>,
    first_k_dense_replace: Option<i64>,
    moe_layer_freq: Option<i64>,
    norm_topk_prob: Option<bool>,
    scoring_func: Option<String>,
    topk_method: Option<String>,
}

impl ExpertArgs {
    /// Gives `decoder` the experts that these keys describe, if they do, chosen as `routing` says of
    /// that many experts.
    pub(super) fn set(
        &self,
        decoder: &mut Decoder,
        routing: fn(&Self, i32) -> Result<Routing, LmError>,
    ) -> Result<(), LmError> {
        let Some(count) = self.n_routed_experts else { return Ok(()) };
        let count = check_range("n_routed_experts", count, 1..=1 << 14)?;
        let intermediate =
            Size::EXPERT_INTERMEDIATE.check(self.moe_intermediate_size.unwrap_or(1407))?;
        let num_shared =
            check_range("n_shared_experts", self.n_shared_experts.unwrap_or(0), 0..=64)?;
        // They are stored as one.
        let shared = (num_shared > 0)
            .then(|| SharedExpertKind::whole("shared_experts", num_shared * intermediate));
        let routing = routing(self, count)?;
        let form = ExpertForm::USUAL;
        decoder.experts =
            Some(ExpertsKind { block: "mlp", count, intermediate, routing, form, shared });
        let first = self.first_k_dense_replace.unwrap_or(0);
        let first = check_range("first_k_dense_replace", first, 0..=1 << 20)?;
        let every = check_range("moe_layer_freq", self.moe_layer_freq.unwrap_or(1), 1..=1 << 20)?;
        for (index, layer) in (0..).zip(&mut decoder.layers) {
            layer.has_experts = index >= first && index % every == 0;
        }
        Ok(())
    }

    /// DeepSeek-V3's choice: by sigmoids, with a bias that counts for the choice only, and among the
    /// groups with the best two experts.
    pub(super) fn by_sigmoid(&self, count: i32) -> Result<Routing, LmError> {
        check_only("scoring_func", self.scoring_func.as_deref(), &["sigmoid"])?;
        check_only("topk_method", self.topk_method.as_deref(), &["noaux_tc"])?;
        let num_chosen = self.num_chosen(count)?;
        Ok(Routing {
            in_float32: true,
            correction_bias: Some("gate.e_score_correction_bias"),
            groups: self.groups(count, num_chosen, GroupRank::BestTwo)?,
            adds_up_to_one: num_chosen > 1 && self.norm_topk_prob.unwrap_or(true),
            scale: Some(self.scale()?),
            ..Routing::of(Score::Sigmoid, num_chosen)
        })
    }

    /// DeepSeek-V2's choice: by a softmax over all experts, in some models among the groups with the
    /// best expert.
    pub(super) fn by_softmax(&self, count: i32) -> Result<Routing, LmError> {
        const GROUPED: &str = "group_limited_greedy";
        check_only("scoring_func", self.scoring_func.as_deref(), &["softmax"])?;
        let method = self.topk_method.as_deref();
        check_only("topk_method", method, &["greedy", "gready", GROUPED])?;
        if self.norm_topk_prob == Some(true) {
            return Err(LmError::Config {
                name: "norm_topk_prob",
                value: "true".to_owned(),
                allowed: "only shares as the router gives them are supported".to_owned(),
            });
        }
        let num_chosen = self.num_chosen(count)?;
        let groups = match method {
            Some(GROUPED) => self.groups(count, num_chosen, GroupRank::Best)?,
            _ => None,
        };
        Ok(Routing { groups, scale: Some(self.scale()?), ..Routing::softmax(num_chosen, false) })
    }

    fn num_chosen(&self, count: i32) -> Result<i32, LmError> {
        let num_chosen = self.num_experts_per_tok.unwrap_or(1);
        check_range("num_experts_per_tok", num_chosen, 1..=i64::from(count))
    }

    fn scale(&self) -> Result<f32, LmError> {
        check_positive("routed_scaling_factor", self.routed_scaling_factor.unwrap_or(1.0))
    }

    /// The groups, if there are several, which have to hold the chosen experts.
    fn groups(
        &self,
        count: i32,
        num_chosen: i32,
        rank: GroupRank,
    ) -> Result<Option<ExpertGroups>, LmError> {
        let num_groups = self.n_group.unwrap_or(1);
        let num_groups = check_range("n_group", num_groups, 1..=i64::from(count))?;
        if num_groups == 1 {
            return Ok(None);
        }
        let least = if rank == GroupRank::BestTwo { 2 } else { 1 };
        if count % num_groups != 0 || count / num_groups < least {
            return Err(LmError::Config {
                name: "n_group",
                value: num_groups.to_string(),
                allowed: format!(
                    "it must divide the {count} experts, into groups of {least} or more"
                ),
            });
        }
        let num_open = self.topk_group.unwrap_or(1);
        let num_open = check_range("topk_group", num_open, 1..=i64::from(num_groups))?;
        if num_open * (count / num_groups) < num_chosen {
            return Err(LmError::Config {
                name: "topk_group",
                value: num_open.to_string(),
                allowed: format!("so many groups must hold the {num_chosen} experts of a token"),
            });
        }
        Ok(Some(ExpertGroups { count: num_groups, num_chosen: num_open, rank }))
    }
}

/// Refuses other values than these of a key that may be left out.
fn check_only(name: &'static str, value: Option<&str>, known: &[&str]) -> Result<(), LmError> {
    match value {
        Some(other) if !known.contains(&other) => Err(LmError::Config {
            name,
            value: other.chars().take(80).collect(),
            allowed: format!("only {} is supported for this architecture", known.join(" or ")),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    fn config(changes: &serde_json::Value) -> serde_json::Value {
        let mut config = json!({
            "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 32, "head_dim": 32,
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 28,
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.5,
            "max_position_embeddings": 4096, "n_routed_experts": 8, "n_shared_experts": 1,
            "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 2.5, "norm_topk_prob": true, "first_k_dense_replace": 1,
        });
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        config
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            assert_eq!(refused_key::<ModelArgs>(&config(&changes)), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"n_group": 1, "topk_group": 1}), None);
        check(json!({"n_group": 3}), Some("n_group"));
        check(json!({"n_group": 8}), Some("n_group"));
        check(json!({"topk_group": 5}), Some("topk_group"));
        check(json!({"topk_group": 1}), Some("topk_group"));
        check(json!({"num_experts_per_tok": 9}), Some("num_experts_per_tok"));
        check(json!({"routed_scaling_factor": 0.0}), Some("routed_scaling_factor"));
        check(json!({"scoring_func": "softmax"}), Some("scoring_func"));
        check(json!({"topk_method": "greedy"}), Some("topk_method"));
        check(json!({"n_shared_experts": -1}), Some("n_shared_experts"));
        check(json!({"first_k_dense_replace": -1}), Some("first_k_dense_replace"));
    }

    #[test]
    fn the_first_layers_are_dense() {
        let args = ModelArgs::deserialize(config(&json!({}))).expect("arguments");
        let layers = args.decoder().expect("a decoder").layers;
        let with_experts: Vec<bool> = layers.iter().map(|layer| layer.has_experts).collect();
        assert_eq!(with_experts, [false, true, true, true]);
    }
}
