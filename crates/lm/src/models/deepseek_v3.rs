//! DeepSeek-V3 and R1 (DeepSeek-AI 2024), and Kimi K2 (Moonshot AI 2025): latent attention whose caches hold
//! the short vectors, and experts in groups. Reference: mlx-lm's deepseek_v3.py.

use serde::Deserialize;

use super::decoder::{
    CachedForm, Common, Decoder, Family, LatentSizes, Matrix, NormKind, Projections, Usual,
};
use super::glm4_moe::ExpertArgs;
use crate::LmError;
use crate::config::{Size, check_full_attention, check_positive, check_range};
use crate::device_kernels::HeadShape;
use crate::nn::yarn_magnitude;

const USUAL: Usual = Usual { context: 2048, rope_theta: Some(10_000.0), is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    pub(super) latent: LatentArgs,
    #[serde(flatten)]
    pub(super) experts: ExpertArgs,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.latent.decoder(CachedForm::Latents, NORM_EPS, USUAL)?;
        decoder.has_further_layers = true;
        self.experts.set(&mut decoder, ExpertArgs::by_sigmoid)?;
        Ok(decoder)
    }
}

/// The epsilon of the norms of short vectors.
pub(super) const NORM_EPS: f32 = 1e-6;

/// The keys of a decoder with latent attention.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct LatentArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(default = "default_rms_norm_eps")]
    pub(super) rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default = "default_q_lora_rank")]
    q_lora_rank: Option<i64>,
    #[serde(default = "default_kv_lora_rank")]
    kv_lora_rank: i64,
    #[serde(default = "default_qk_rope_head_dim")]
    qk_rope_head_dim: i64,
    #[serde(default = "default_head_dim")]
    qk_nope_head_dim: i64,
    #[serde(default = "default_head_dim")]
    v_head_dim: i64,
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_q_lora_rank() -> Option<i64> {
    Some(1536)
}

fn default_kv_lora_rank() -> i64 {
    512
}

fn default_qk_rope_head_dim() -> i64 {
    64
}

fn default_head_dim() -> i64 {
    128
}

impl LatentArgs {
    /// The dense decoder of these keys. `norm_eps` is of the norms of short vectors.
    pub(super) fn decoder(
        &self,
        cached: CachedForm,
        norm_eps: f32,
        usual: Usual,
    ) -> Result<Decoder, LmError> {
        check_full_attention(self.common.layer_types.as_deref())?;
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let sizes = self.sizes(cached, norm_eps)?;
        // What is rotated is all of a vector. Key heads are not grouped, whatever a config says.
        let rotated = Common {
            head_dim: Some(sizes.rotated_dim.into()),
            num_key_value_heads: None,
            partial_rotary_factor: None,
            rope_traditional: Some(true),
            ..self.common.clone()
        };
        let mut decoder = rotated.decoder(norm, usual)?;
        let heads = decoder.attention.heads.heads;
        let mut heads = HeadShape::new(heads, heads, sizes.plain_dim + sizes.rotated_dim);
        let magnitude = yarn_magnitude(self.common.rope_scaling.as_ref())?;
        heads.scale = heads.scale * magnitude * magnitude;
        decoder.attention.heads = heads;
        decoder.attention.projections = Projections::Latent(sizes);
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        Ok(decoder)
    }

    fn sizes(&self, cached: CachedForm, norm_eps: f32) -> Result<LatentSizes, LmError> {
        let rank = |name, value| check_range(name, value, 1..=1 << 16);
        let dim = |name, value| Size::new(name, 1, 4096).check(value);
        let plain_dim = dim("qk_nope_head_dim", self.qk_nope_head_dim)?;
        if cached == CachedForm::Heads && plain_dim % 2 != 0 {
            return Err(LmError::Config {
                name: "qk_nope_head_dim",
                value: plain_dim.to_string(),
                allowed: "an even number".to_owned(),
            });
        }
        let query_rank = self.q_lora_rank.map(|value| rank("q_lora_rank", value)).transpose()?;
        Ok(LatentSizes {
            query_rank,
            rank: rank("kv_lora_rank", self.kv_lora_rank)?,
            plain_dim,
            rotated_dim: Size::new("qk_rope_head_dim", 2, 4096).check(self.qk_rope_head_dim)?,
            value_dim: dim("v_head_dim", self.v_head_dim)?,
            has_bias: self.attention_bias,
            norm_eps,
            cached,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::models::decoder::refused_key;

    fn config(changes: &Value) -> Value {
        let mut config = json!({
            "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 28,
            "num_attention_heads": 2, "kv_lora_rank": 32, "q_lora_rank": 48,
            "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 24,
        });
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        config
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let check = |changes: Value, expected: Option<&str>| {
            assert_eq!(refused_key::<ModelArgs>(&config(&changes)), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"q_lora_rank": null}), None);
        check(json!({"q_lora_rank": 0}), Some("q_lora_rank"));
        check(json!({"kv_lora_rank": 0}), Some("kv_lora_rank"));
        check(json!({"qk_nope_head_dim": 0}), Some("qk_nope_head_dim"));
        check(json!({"qk_rope_head_dim": 0}), Some("qk_rope_head_dim"));
        check(json!({"qk_rope_head_dim": 15}), Some("partial_rotary_factor"));
        check(json!({"v_head_dim": -1}), Some("v_head_dim"));
        let yarn = json!({"type": "yarn", "factor": 4.0, "mscale_all_dim": 1e300});
        check(json!({ "rope_scaling": yarn }), Some("rope_scaling"));
    }

    #[test]
    fn scores_grow_with_the_scaling_of_positions() {
        let scale = |changes: Value| {
            let args = ModelArgs::deserialize(config(&changes)).expect("arguments");
            args.decoder().expect("a decoder").attention.heads.scale
        };
        let plain = 48f32.powf(-0.5);
        assert_eq!(scale(json!({})), plain);
        let yarn = |factor: f64| json!({"rope_scaling": {"type": "yarn", "factor": factor, "mscale_all_dim": 0.5}});
        assert_eq!(scale(yarn(1.0)), plain);
        let magnitude = 1.0 + 0.05 * 40f32.ln();
        assert!((scale(yarn(40.0)) - plain * magnitude * magnitude).abs() < 1e-6);
    }
}
